"""The client of the partner's API against the real server."""

from __future__ import annotations

import json
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from services.partner import Faults, Server
from shop import partner as client


def test_an_account_is_read(partner: Server) -> None:
    first, second = client.fetch_account("CHK-0001"), client.fetch_account("CHK-0001")

    assert first == second
    assert first.tier in ("Bronze", "Silver", "Gold")


def test_429_names_the_seconds_to_wait(partner: Server) -> None:
    partner.partner.change({"busy": 1.0, "retry_after": 7})

    with pytest.raises(client.TooManyRequests) as caught:
        client.fetch_account("CHK-0001")

    assert caught.value.retry_after == 7


def test_503_is_worth_another_try(partner: Server) -> None:
    partner.partner.change({"down": 1.0})

    with pytest.raises(client.Unavailable, match="503"):
        client.fetch_account("CHK-0001")


def test_a_server_that_hangs_is_left_after_the_time_out(partner: Server) -> None:
    partner.partner.change({"hang": 1.0, "hanging_for": 1.0})

    with pytest.raises(client.Unavailable, match="did not answer about 'CHK-0001'"):
        client.fetch_account("CHK-0001")


def test_a_closed_account_is_rejected_for_good(partner: Server) -> None:
    partner.partner.change({"gone": ["CHK-0002"]})

    with pytest.raises(client.Rejected, match="410"):
        client.fetch_account("CHK-0002")
    assert client.fetch_account("CHK-0001")


def test_a_server_that_is_not_there_is_worth_another_try(partner: Server, settings: object) -> None:
    settings.SHOP_PARTNER_URL = "http://127.0.0.1:1"  # type: ignore[attr-defined]

    with pytest.raises(client.Unavailable):
        client.fetch_account("CHK-0001")


def test_an_account_name_cannot_leave_its_place_in_the_address(partner: Server) -> None:
    assert client.fetch_account("../control?x=1").points >= 0


@pytest.mark.parametrize(("header", "seconds"), [("3", 3), (None, 1), ("Wed, 21 Oct", 1), ("-4", 0), ("1e9", 300)])
def test_retry_after_is_read_with_care(header: str | None, seconds: float) -> None:
    assert client._seconds(header) == seconds


def test_faults_are_the_same_on_every_run() -> None:
    faults = Faults(seed=3, busy=0.3, down=0.3, slowest=1)

    drawn = [faults.draw(f"CHK-{number:04}", 1) for number in range(200)]

    assert drawn == [faults.draw(f"CHK-{number:04}", 1) for number in range(200)]
    assert {kind for kind, _ in drawn} == {"ok", "busy", "down"}


def test_whoever_tries_again_is_answered_in_the_end() -> None:
    faults = Faults(busy=1.0, patience=3)

    assert [faults.draw("CHK-0001", number)[0] for number in range(1, 6)] == ["busy", "busy", "busy", "ok", "ok"]


def test_the_control_page_changes_the_faults_and_counts_the_answers(partner: Server) -> None:
    _post(f"{partner.url}/control", {"busy": 1.0, "patience": 1})
    with pytest.raises(client.TooManyRequests):
        client.fetch_account("CHK-0001")
    client.fetch_account("CHK-0001")

    with urlopen(f"{partner.url}/control") as answer:
        assert json.load(answer)["answers"] == {"busy": 1, "ok": 1}


def test_the_control_page_refuses_what_it_does_not_know(partner: Server) -> None:
    with pytest.raises(HTTPError) as caught:
        _post(f"{partner.url}/control", {"lazy": 1.0})
    caught.value.close()

    assert caught.value.code == 400


def _post(url: str, body: dict[str, object]) -> None:
    with urlopen(Request(url, data=json.dumps(body).encode())):
        pass

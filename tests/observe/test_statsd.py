"""Timings and counts over a real UDP socket."""

from __future__ import annotations

import logging
import socket
import threading
import time
from typing import Any

import pytest
from django.test import override_settings

from django_jobs import observe, signals
from django_jobs.observe import statsd
from django_jobs.runs import EndedRun, Then
from django_jobs.statuses import RunStatus
from tests.observe.ended import ended_run
from tests.observe.server import closed_afterwards, config, server

__all__ = ["closed_afterwards", "server"]


def test_timing_and_counters_of_a_batch_arrive(server: socket.socket) -> None:
    runs = [
        ended_run(duration=0.25),
        ended_run(duration=0.5),
        ended_run(status=RunStatus.FAILED, then=Then.RETRY, duration=1.0),
        ended_run(status=RunStatus.TIMED_OUT, then=Then.DIE, duration=2.0, task_name="shop.tasks.sync"),
    ]
    observe.connect()

    with override_settings(DJANGO_JOBS=config(server)):
        signals.runs_ended.send_robust(sender=None, runs=runs, using="default")

    assert server.recv(65536).decode().split("\n") == [
        "job.shop.tasks.send_mail.duration_ms:250.000|ms",
        "job.shop.tasks.send_mail.duration_ms:500.000|ms",
        "job.shop.tasks.send_mail.duration_ms:1000.000|ms",
        "job.shop.tasks.sync.duration_ms:2000.000|ms",
        "job.shop.tasks.send_mail.ok:2|c",
        "job.shop.tasks.send_mail.failed:1|c",
        "job.shop.tasks.sync.failed:1|c",
    ]


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (ended_run(status=RunStatus.RELEASED, then=Then.RETURN), []),
        (ended_run(status=RunStatus.CANCELLED), []),
        (ended_run(status=RunStatus.LOST, then=Then.RETRY), [b"job.shop.tasks.send_mail.failed:1|c"]),
    ],
)
def test_run_that_did_not_end_by_itself_has_no_duration(run: EndedRun, expected: list[bytes]) -> None:
    assert list(statsd.lines([run])) == expected


@pytest.mark.parametrize(
    ("prefix", "start"), [("shop", "shop.job."), ("shop.", "shop.job."), ("a b:c", "a_b_c.job."), ("", "job.")]
)
def test_prefix_leads_every_name(prefix: str, start: str) -> None:
    assert all(line.decode().startswith(start) for line in statsd.lines([ended_run()], prefix=prefix))


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("shop.tasks.send_mail", "shop.tasks.send_mail"),
        ("a:1|c", "a_1_c"),
        ("a b/c@d\n#e", "a_b_c_d__e"),
        ("größe", "gr__e"),
    ],
)
def test_name_cannot_forge_a_metric(name: str, safe: str) -> None:
    assert statsd.safe_name(name) == safe


def test_lines_are_packed_into_datagrams_that_fit_a_frame(server: socket.socket) -> None:
    runs = [ended_run(task_name=f"shop.tasks.task_{number}") for number in range(200)]

    with override_settings(DJANGO_JOBS=config(server)):
        statsd.send(runs)

    packets: list[bytes] = []
    while sum(packet.count(b"\n") + 1 for packet in packets) < 400:
        packets.append(server.recv(65536))
    assert max(len(packet) for packet in packets) <= 1400
    assert len(packets) < 20
    assert b"\n".join(packets).split(b"\n") == list(statsd.lines(runs))


def test_line_longer_than_a_datagram_goes_alone() -> None:
    assert list(statsd.datagrams([b"a", b"b" * 20, b"c", b"d"], size=10)) == [b"a", b"b" * 20, b"c\nd"]


def test_without_the_setting_nothing_is_sent_or_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **kwargs: pytest.fail("asked"))

    statsd.send([ended_run()])


def test_name_is_resolved_once(server: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    resolve = socket.getaddrinfo

    def count(*args: Any, **kwargs: Any) -> Any:
        asked.append(args)
        return resolve(*args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", count)
    sink = statsd.Sink("127.0.0.1", server.getsockname()[1])

    for _ in range(3):
        sink.send([b"job.a.ok:1|c"])

    assert [server.recv(100) for _ in range(3)] == [b"job.a.ok:1|c"] * 3
    assert len(asked) == 1
    sink.close()


def test_server_that_is_not_there_costs_one_log_line_and_no_error(
    server: socket.socket, caplog: pytest.LogCaptureFixture
) -> None:
    port = server.getsockname()[1]
    server.close()
    sink = statsd.Sink("127.0.0.1", port)

    with caplog.at_level(logging.INFO, logger="django_jobs"):
        for _ in range(5):
            sink.send([b"job.a.ok:1|c"])

    assert [message.split(" error=")[0] for message in caplog.messages] == [f"statsd away address=127.0.0.1:{port}"]


def test_server_that_comes_back_is_found_again(
    server: socket.socket, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = server.getsockname()
    server.close()
    sink = statsd.Sink(*address)
    for _ in range(3):
        sink.send([b"lost"])
    caplog.set_level(logging.INFO, logger="django_jobs")
    clock = time.monotonic()

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as again:
        again.bind(address)
        again.settimeout(5)
        sink.send([b"too early"])
        monkeypatch.setattr(time, "monotonic", lambda: clock + statsd.RESOLVE_AGAIN + 1)
        sink.send([b"found"])
        monkeypatch.setattr(time, "monotonic", lambda: clock + statsd.BELIEVED_BACK + 1)
        sink.send([b"believed"])
        assert [again.recv(100), again.recv(100)] == [b"found", b"believed"]

    said = [message.split(" error=")[0] for message in caplog.messages]
    assert said == [f"statsd {change} address=127.0.0.1:{address[1]}" for change in ("away", "back")]
    sink.close()


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a..b", "x" * 300, "\ud800"])
def test_name_that_cannot_be_resolved_never_raises(host: str) -> None:
    sink = statsd.Sink(host, 8125)

    sink.send([b"lost"])
    sink.send([b"lost"])


def test_name_server_that_does_not_answer_holds_nobody_up(
    server: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve, answer = socket.getaddrinfo, threading.Event()

    def slow(*args: Any, **kwargs: Any) -> Any:
        answer.wait(30)
        return resolve(*args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    monkeypatch.setattr(statsd, "RESOLVE_WAIT", 0.01)
    sink = statsd.Sink("127.0.0.1", server.getsockname()[1])
    sink.send([b"lost"])  # returned, although nobody has answered

    answer.set()
    assert sink._opening is not None
    sink._opening.result(timeout=30).fileno()
    sink.send([b"sent"])

    assert server.recv(100) == b"sent"
    sink.close()


def test_full_buffer_loses_numbers_and_never_waits(server: socket.socket) -> None:
    sink = statsd.Sink("127.0.0.1", server.getsockname()[1])
    sink.send([b"first"])

    sink.send(b"x" * 1400 for _ in range(5000))  # more than the receiver's buffer holds; nobody reads

    assert server.recv(2000) == b"first"
    sink.close()


def test_new_settings_are_followed(server: socket.socket) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.1", 0))
        other.settimeout(5)
        with override_settings(DJANGO_JOBS=config(server)):
            statsd.send([ended_run(status=RunStatus.LOST)])
        with override_settings(DJANGO_JOBS=config(other, prefix="shop")):
            statsd.send([ended_run(status=RunStatus.LOST)])

        assert server.recv(100) == b"job.shop.tasks.send_mail.failed:1|c"
        assert other.recv(100) == b"shop.job.shop.tasks.send_mail.failed:1|c"

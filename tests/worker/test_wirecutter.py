"""Statements that get no answer are ended; others may take as long as they like."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import OperationalError, connection, connections, transaction

from django_jobs.execution import hygiene
from django_jobs.execution.answers import Wait
from django_jobs.worker import wirecutter as module
from django_jobs.worker.connection import WATCHFUL, own_connection, prepare_connections
from django_jobs.worker.wirecutter import Wirecutter
from tests.wire import Wire, reached_at

pytestmark = pytest.mark.postgres

NEVER = 60.0  # seconds; no test waits for it


@pytest.fixture
def wirecutter() -> Iterator[Wirecutter]:
    with Wirecutter() as wirecutter:
        yield wirecutter
    connection.close()
    assert not wirecutter.thread.is_alive()


@pytest.fixture
def wire(transactional_db: None) -> Iterator[Wire]:
    """Lies between this process and its database."""
    with Wire.to_database() as wire, reached_at(**wire.address):
        yield wire


def rest(seconds: float) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_sleep(%s)", [seconds])


@pytest.mark.usefixtures("wirecutter", "transactional_db")
class TestCut:
    def test_statement_without_an_answer_ends_after_its_patience(self, wire: Wire) -> None:
        rest(0)
        wire.forget()
        wait = Wait(connections["default"], 0.3)
        with pytest.raises(OperationalError), wait:
            rest(0)
        assert wait.is_cut
        assert hygiene.is_lost(connection.connection)

    def test_commit_without_an_answer_ends_too(self, wire: Wire) -> None:
        wait = Wait(connections["default"], 0.3)

        def step() -> None:
            with wait, transaction.atomic():
                rest(0)
                wire.forget()

        with pytest.raises(OperationalError):
            step()
        assert wait.is_cut

    def test_step_of_many_statements_may_take_longer_than_each_of_them(self) -> None:
        with Wait(connections["default"], 1.0) as wait:
            for _ in range(5):
                rest(0.3)
        assert not wait.is_cut

    def test_thread_that_is_busy_with_something_else_is_left_alone(self) -> None:
        with Wait(connections["default"], 0.01) as wait:
            rest(0)
            time.sleep(3 * module.TICK)
        assert not wait.is_cut
        rest(0)


def test_process_that_shall_end_waits_no_longer(
    wirecutter: Wirecutter, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HURRIED", 0.1)
    rest(0)
    wire.forget()
    hurry = threading.Timer(0.1, wirecutter.hurry)
    hurry.start()

    with pytest.raises(OperationalError), Wait(connections["default"], NEVER):
        rest(0)

    hurry.join()


@pytest.mark.usefixtures("wirecutter")
def test_connection_that_is_asked_before_a_job_and_does_not_answer_is_replaced(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hygiene, "PING_PATIENCE", 0.3)
    rest(0)
    wire.forget()

    hygiene.freshen(idle=3600)

    rest(0)


@pytest.mark.django_db(transaction=True)
def test_after_one_connection_was_lost_those_used_before_are_replaced_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    connection.ensure_connection()
    before = connection.connection
    monkeypatch.setattr(connection, "is_usable", lambda: pytest.fail("the server was asked"))
    monkeypatch.setattr(hygiene, "_distrusted_until", time.monotonic() - 10)

    hygiene.freshen(idle=1)
    assert connection.connection is before

    hygiene.distrust()
    hygiene.freshen(idle=1)
    assert connection.connection is not before


class TestOptions:
    """Of the connections of a worker's process."""

    @pytest.fixture
    def database(self, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
        settings: dict[str, Any] = connections.settings["default"]
        monkeypatch.setitem(settings, "OPTIONS", {})
        monkeypatch.delenv("PGCONNECT_TIMEOUT", raising=False)
        return settings

    @pytest.mark.django_db(transaction=True)
    def test_server_that_is_gone_without_a_word_is_noticed_within_a_minute(self, database: dict[str, Any]) -> None:
        prepare_connections()
        with own_connection("default"):
            rest(0)
            with socket.socket(fileno=os.dup(connection.connection.fileno())) as own:
                idle = own.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
                unacknowledged = own.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)

        assert (idle, unacknowledged) == (30, 60_000)
        assert database["OPTIONS"] == {**WATCHFUL, "connect_timeout": 10}

    def test_what_the_project_says_stays(self, database: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
        database["OPTIONS"] = {"connect_timeout": 77, "tcp_user_timeout": 1}
        prepare_connections()
        assert database["OPTIONS"] == {**WATCHFUL, "connect_timeout": 77, "tcp_user_timeout": 1}

        database["OPTIONS"] = {"service": "shop"}
        prepare_connections()
        assert database["OPTIONS"] == {"service": "shop"}

        database["OPTIONS"] = {}
        monkeypatch.setenv("PGCONNECT_TIMEOUT", "77")
        prepare_connections()
        assert database["OPTIONS"] == WATCHFUL

    @pytest.mark.parametrize(("lease", "seconds"), [(1, 2), (15, 5), (3600, 10)])
    def test_connection_is_waited_for_so_long_that_the_lease_can_be_kept(
        self, database: dict[str, Any], settings: Any, lease: int, seconds: int
    ) -> None:
        settings.DJANGO_JOBS = {"LEASE": lease, "HEARTBEAT": 0.5}
        prepare_connections()
        assert database["OPTIONS"]["connect_timeout"] == seconds

"""Connections between two jobs of one thread."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, connections, transaction

from django_jobs.execution import hygiene
from tests.models import Effect

pytestmark = pytest.mark.django_db(transaction=True)


def _cut() -> None:
    """Let the server end this thread's session."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        (pid,) = cursor.fetchone()
    other = connections.create_connection("default")
    with other.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
    other.close()


@pytest.mark.postgres
@pytest.mark.parametrize("max_age", [0, 600, None])
def test_connection_that_the_server_has_closed_is_replaced_before_the_next_job(
    max_age: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """WK-05."""
    monkeypatch.setitem(connection.settings_dict, "CONN_MAX_AGE", max_age)
    connection.close()
    _cut()

    hygiene.freshen(idle=0)

    assert Effect.objects.count() == 0


@pytest.mark.postgres
def test_healthy_connection_is_kept_without_a_query(monkeypatch: pytest.MonkeyPatch) -> None:
    """With CONN_MAX_AGE 0 too: a worker is not a request."""
    monkeypatch.setitem(connection.settings_dict, "CONN_MAX_AGE", 0)
    connection.ensure_connection()
    before = connection.connection

    def refuse() -> bool:
        raise AssertionError("the server was asked")

    monkeypatch.setattr(connection, "is_usable", refuse)
    hygiene.freshen(idle=1)

    assert connection.connection is before


def test_connection_in_a_transaction_is_never_touched() -> None:
    """DESIGN 5.14: it is a test's."""
    with transaction.atomic():
        Effect.objects.create(label="kept")
        connection.errors_occurred = True
        hygiene.freshen(idle=3600)
        assert Effect.objects.filter(label="kept").exists()
    connection.errors_occurred = False


def _off() -> None:
    transaction.set_autocommit(False)


def _begin() -> None:
    with connection.cursor() as cursor:
        cursor.execute("BEGIN")


def _enter() -> None:
    transaction.atomic().__enter__()


@pytest.mark.parametrize("leave_open", [_off, _begin, _enter], ids=["autocommit off", "BEGIN", "atomic() not left"])
def test_transaction_that_a_task_left_open_is_rolled_back(
    leave_open: Callable[[], Any], caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest
) -> None:
    if leave_open is _begin and connection.vendor == "mysql":
        leave_open = _off  # its driver cannot tell
    leave_open()
    Effect.objects.create(label="half")
    caplog.set_level(logging.WARNING, "django_jobs")

    hygiene.tidy()

    assert Effect.objects.count() == 0
    assert connections["default"].get_autocommit()
    assert not connections["default"].in_atomic_block
    assert "transaction left open" in caplog.text


def test_query_log_is_emptied(settings: Any) -> None:
    """WK-11."""
    settings.DEBUG = True
    Effect.objects.count()
    assert connection.queries

    hygiene.tidy()

    assert not connection.queries


def test_connection_of_a_task_that_was_interrupted_is_not_used_again() -> None:
    connection.ensure_connection()
    before = connections["default"]

    hygiene.tidy(was_interrupted=True)

    assert connections["default"] is not before
    assert Effect.objects.count() == 0

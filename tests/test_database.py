"""Transactions of ours: whoever does not come back to one holds up nobody."""

from __future__ import annotations

from contextlib import suppress

import pytest
from django.db import OperationalError, connection, connections, transaction

from django_jobs import database, enqueue
from django_jobs.database import lock_rows, write_transaction
from django_jobs.execution.answers import Wait
from django_jobs.models import Job
from django_jobs.worker.wirecutter import Wirecutter
from tests.processes import wait_until
from tests.tasks import note
from tests.wire import Wire, reached_at

pytestmark = [pytest.mark.postgres, pytest.mark.django_db(transaction=True)]


def limit() -> str:
    with connection.cursor() as cursor:
        cursor.execute("SHOW idle_in_transaction_session_timeout")
        return str(cursor.fetchone()[0])


def is_free() -> bool:
    """Whether nobody has locked the job."""
    with transaction.atomic():
        return bool(lock_rows(Job.objects.all(), using="default"))


def lock_and_vanish(wire: Wire) -> None:
    with write_transaction("default"):
        list(lock_rows(Job.objects.all(), using="default"))
        wire.forget()


def test_rows_of_a_transaction_whose_end_is_swallowed_are_free_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of a worker whose machine has lost its power. The server hears nothing more of either."""
    monkeypatch.setattr(database, "ABANDONED", "300ms")
    enqueue(note, "x")
    with Wire.to_database() as wire:
        with Wirecutter(), reached_at(**wire.address), suppress(OperationalError), Wait(connections["default"], 0.3):
            lock_and_vanish(wire)

        assert len(wire) >= 1, "the server would know"
        wait_until(is_free, within=10)


def test_limit_of_a_transaction_ends_with_it() -> None:
    with write_transaction("default"):
        assert limit() == "30s"
    assert limit() == "0"


def test_transaction_of_the_caller_gets_no_limit() -> None:
    with transaction.atomic():
        with write_transaction("default"):
            assert limit() == "0"
        assert limit() == "0"


def test_limit_of_the_role_stays() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET idle_in_transaction_session_timeout = '7s'")
    with write_transaction("default"):
        assert limit() == "7s"
    connection.close()

"""Atomic tasks: the effects and the record of the success, together or not at all."""

from __future__ import annotations

import time
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction

from django_jobs.exceptions import LeaseLost
from django_jobs.execution import Recording, execute
from django_jobs.runs import Charge, Outcome, Then
from django_jobs.statuses import RunStatus
from django_jobs.worker.wirecutter import Wirecutter
from tests.execution.attempts import attempt, declared
from tests.models import Effect
from tests.wire import Wire, reached_at

pytestmark = pytest.mark.django_db(transaction=True)


class Book:
    """Records in the open transaction by an Effect, or fails as told."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.committed: list[Any] = []
        self.timeouts: list[float] = []

    def record(self, outcome: Outcome) -> str:
        assert connection.in_atomic_block
        if self.error is not None:
            raise self.error
        Effect.objects.create(label="recorded")
        return "written"

    def announce(self, recorded: Any) -> None:
        assert not connection.in_atomic_block
        self.committed.append(recorded)

    def begin(self, timeout: float) -> None:
        self.timeouts.append(timeout)
        Effect.objects.exists()

    @property
    def recording(self) -> Recording:
        return Recording("default", self.begin, self.record, self.announce, patience=0.5)


def effect(label: str = "effect", error: BaseException | None = None) -> None:
    Effect.objects.create(label=label)
    if error is not None:
        raise error


def _labels() -> list[str]:
    return list(Effect.objects.order_by("id").values_list("label", flat=True))


def test_effect_and_record_are_committed_together() -> None:
    book = Book()
    with declared(effect, atomic=True, timeout=60) as task:
        outcome = execute(attempt(task), recording=book.recording)

    assert outcome is None
    assert _labels() == ["effect", "recorded"]
    assert (book.committed, book.timeouts) == (["written"], [60.0])


def test_effect_of_a_lost_lease_is_rolled_back() -> None:
    book = Book(LeaseLost("taken over"))
    with declared(effect, atomic=True) as task:
        outcome = execute(attempt(task), recording=book.recording)

    assert outcome is None
    assert _labels() == []
    assert book.committed == []


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(1)], ids=repr)
def test_effect_of_a_failure_is_rolled_back_and_the_failure_is_told(error: BaseException) -> None:
    def fail() -> None:
        effect(error=error)

    with declared(fail, atomic=True) as task:
        outcome = execute(attempt(task), recording=Book().recording)

    assert outcome is not None
    assert (outcome.status, outcome.then) == (RunStatus.FAILED, Then.RETRY)
    assert _labels() == []


def test_transaction_that_the_task_broke_is_a_failure() -> None:
    def break_it() -> None:
        effect()
        transaction.set_rollback(True)

    def record(outcome: Outcome) -> None:
        Effect.objects.create(label="recorded")

    book = Book()
    book.record = record  # type: ignore[method-assign,assignment]
    with declared(break_it, atomic=True) as task:
        outcome = execute(attempt(task), recording=book.recording)

    assert outcome is not None
    assert outcome.status == RunStatus.FAILED
    assert _labels() == []


@pytest.mark.postgres
def test_constraint_that_fails_at_commit_is_a_failure() -> None:
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE deferred (id int UNIQUE DEFERRABLE INITIALLY DEFERRED)")

    def break_it() -> None:
        effect()
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO deferred VALUES (1), (1)")

    book = Book()
    try:
        with declared(break_it, atomic=True) as task:
            outcome = execute(attempt(task), recording=book.recording)
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP TABLE deferred")

    assert outcome is not None
    assert (outcome.status, outcome.then) == (RunStatus.FAILED, Then.RETRY)
    assert outcome.error is not None
    assert "IntegrityError" in outcome.error.error_type
    assert (_labels(), book.committed) == ([], [])


@pytest.mark.postgres
def test_connection_that_breaks_before_the_commit_charges_nobody() -> None:
    def record(outcome: Outcome) -> None:
        connection.connection.close()
        Effect.objects.create(label="recorded")

    book = Book()
    book.record = record  # type: ignore[method-assign,assignment]
    with declared(effect, atomic=True) as task:
        outcome = execute(attempt(task), recording=book.recording)

    assert outcome is not None
    assert (outcome.status, outcome.then, outcome.charge.value) == (RunStatus.RELEASED, Then.RETRY, "nothing")
    assert _labels() == []


def test_database_error_while_recording_is_a_failure() -> None:
    with declared(effect, atomic=True) as task:
        outcome = execute(attempt(task), recording=Book(DatabaseError("odd")).recording)

    assert outcome is not None
    assert outcome.status == RunStatus.FAILED
    assert _labels() == []


@pytest.mark.postgres
@pytest.mark.parametrize("when", ["before", "during"])
def test_transaction_whose_connection_swallows_everything_is_undone(when: str) -> None:
    """Its beginning and its end are in no time limit; a worker would hold the job for ever."""
    with Wirecutter(), Wire.to_database() as wire, reached_at(**wire.address):
        assert _labels() == []

        def fall_silent() -> None:
            effect()
            wire.forget()

        with declared(fall_silent, atomic=True) as task:
            if when == "before":
                wire.forget()
            outcome = execute(attempt(task), recording=Book().recording)

        assert outcome is not None
        assert (outcome.status, outcome.then, outcome.charge) == (RunStatus.RELEASED, Then.RETRY, Charge.NOTHING)
        assert _labels() == []


@pytest.mark.postgres
def test_rollback_that_gets_no_answer_keeps_nobody() -> None:
    with Wirecutter(), Wire.to_database() as wire, reached_at(**wire.address):

        def fail() -> None:
            wire.forget()
            raise ValueError("no")

        with declared(fail, atomic=True) as task:
            began = time.monotonic()
            outcome = execute(attempt(task), recording=Book().recording)

        assert outcome is not None
        assert outcome.then is Then.RETRY
        assert time.monotonic() - began < 15

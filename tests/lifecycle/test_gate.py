"""Claims of a crowd go one by one, and none waits for another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection

from django_jobs import enqueue_many
from django_jobs.lifecycle import turn
from django_jobs.lifecycle.gate import CROWD, LONGEST_PAUSE, MOST_DOUBLINGS, PATIENCE, PAUSE, Gate, parameters
from django_jobs.runs import ClaimedRun, Outcome, WorkerIdentity
from tests.lifecycle.steps import NAMES, failed, start_worker, succeeded
from tests.lifecycle.threads import OpenTransaction, Threads
from tests.tasks import note

transactional = pytest.mark.django_db(transaction=True)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def gate(clock: Clock) -> Gate:
    gate = Gate(clock=clock, rand=lambda least, most: most)
    gate.workers = CROWD + 1
    return gate


def claim_behind(gate: Gate, worker: WorkerIdentity, outcomes: list[Outcome] | None = None) -> list[ClaimedRun]:
    finished, runs = turn.turn(outcomes or [], worker, "default", 5, NAMES, using="default", gate=gate)
    assert len(finished.recorded) == len(outcomes or [])
    return runs


def shut(queue_name: str = "default") -> Callable[[], object]:
    def hold() -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_try_advisory_xact_lock(%s, %s)", parameters(queue_name))
            assert cursor.fetchone() == (True,)

    return hold


@pytest.mark.postgres
@transactional
@pytest.mark.parametrize("ending", [succeeded, failed, None])
def test_who_finds_it_shut_records_what_has_ended_and_claims_nothing(
    gate: Gate, ending: Callable[[Any], Any] | None
) -> None:
    enqueue_many([note.bind("x")] * 20)
    worker = start_worker()
    first = claim_behind(gate, worker)
    with Threads() as threads:
        other = OpenTransaction(threads, shut())
        assert claim_behind(gate, worker, [ending(run) for run in first] if ending else []) == []
        assert gate.pause > 0
        other.end()

    assert len(claim_behind(gate, worker)) == 5


@pytest.mark.postgres
@transactional
def test_gate_of_another_queue_is_none_of_its_business(gate: Gate) -> None:
    enqueue_many([note.bind("x")] * 20)
    with Threads() as threads:
        other = OpenTransaction(threads, shut("mail"))
        assert len(claim_behind(gate, start_worker())) == 5
        other.end()


@pytest.mark.postgres
@transactional
@pytest.mark.parametrize("is_alone", [True, False])
def test_few_workers_and_those_refused_for_long_claim_without_it(gate: Gate, clock: Clock, is_alone: bool) -> None:
    enqueue_many([note.bind("x")] * 20)
    worker = start_worker()
    with Threads() as threads:
        other = OpenTransaction(threads, shut())
        if is_alone:
            gate.workers = CROWD
        else:
            assert claim_behind(gate, worker) == []
            clock.now += PATIENCE + 1
        assert len(claim_behind(gate, worker)) == 5
        gate.workers = CROWD + 1
        assert claim_behind(gate, worker) == []  # once
        other.end()


@pytest.mark.postgres
@transactional
def test_it_is_open_again_as_soon_as_a_claim_has_committed(gate: Gate) -> None:
    enqueue_many([note.bind("x")] * 20)
    assert [len(claim_behind(gate, start_worker())) for _ in range(4)] == [5, 5, 5, 5]
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()")
        assert cursor.fetchone() == (0,)


def test_pauses_grow_with_the_crowd_and_with_refusals(gate: Gate, clock: Clock) -> None:
    pauses = []
    for _ in range(MOST_DOUBLINGS + 2):
        gate.refused()
        pauses.append(gate.pause)
        clock.now += gate.pause
    unit = PAUSE * gate.workers
    assert pauses == pytest.approx([unit * 2**doublings for doublings in (0, 1, 2, 3, 4, 4)])

    gate.workers *= 2
    gate.refused()
    assert gate.pause == pytest.approx(2 * pauses[-1])
    gate.workers = 1000
    gate.refused()
    assert gate.pause == pytest.approx(LONGEST_PAUSE)


def test_pause_is_what_made_every_other_try_succeed(gate: Gate, clock: Clock) -> None:
    """A claim takes back one refusal and no more: else each would be paid with as many refusals as the last one."""
    for _ in range(3):
        gate.refused()
    gate.passed()
    gate.refused()
    assert gate.pause == pytest.approx(4 * PAUSE * gate.workers)


def test_refusals_of_a_rush_that_is_over_are_forgotten(gate: Gate, clock: Clock) -> None:
    for _ in range(3):
        gate.refused()
    clock.now += gate.pause + LONGEST_PAUSE + 0.001
    gate.refused()
    assert gate.pause == pytest.approx(PAUSE * gate.workers)


def test_lock_of_a_queue_is_the_same_in_every_process() -> None:
    """ID-10."""
    assert parameters("default") == [1684696930, 1667104991]
    assert all(-(2**31) <= number < 2**31 for name in ("", "a", "Größe", "x" * 200) for number in parameters(name))

"""What keeps a worker from harm after an answer was lost, or its own lease: each with the mutant that it catches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast
from uuid import uuid4

import pytest
from django.db import connection

from django_jobs import JobHandle, enqueue, enqueue_many, registry
from django_jobs.database import Clock
from django_jobs.execution import Attempt
from django_jobs.lifecycle import extend, guard, prune
from django_jobs.models import Job, JobKey, JobRun
from django_jobs.runs import ClaimedRun
from django_jobs.worker.heartbeat import Heartbeat
from django_jobs.worker.inbox import Inbox
from django_jobs.worker.ledger import Ledger
from django_jobs.worker.options import WorkerOptions
from django_jobs.worker.outage import Outage
from django_jobs.worker.services import table
from tests.factories import JobFactory, JobKeyFactory, WorkerFactory
from tests.lifecycle.steps import claim_all, failed, finish_all, start_worker, succeeded
from tests.lifecycle.threads import OpenTransaction, Threads, wait_until_blocked
from tests.tasks import note

LEASE = timedelta(seconds=30)


@dataclass
class Beat:
    """All that a service asks of a heartbeat."""

    unbroken_for: float


@pytest.mark.django_db
@pytest.mark.parametrize(("unbroken_for", "left"), [(0.0, 1), (29.9, 1), (30.0, 0)])
def test_worker_judges_others_only_after_its_own_lease_was_unbroken_for_a_whole_one(
    unbroken_for: float, left: int
) -> None:
    """After an outage every lease looks over."""
    other = WorkerFactory.create(lease_expires_at=Clock(timedelta(seconds=-1)))
    JobFactory.create(running=True, worker_id=other.id)
    services = table(WorkerOptions(lease=LEASE), cast(Heartbeat, Beat(unbroken_for)), lambda: False)

    next(service for service in services if service.name == "rescue").run()

    assert Job.objects.filter(worker_id=other.id).count() == left


@pytest.mark.django_db(transaction=True)
def test_beat_that_came_after_the_lease_was_over_begins_anew() -> None:
    heartbeat = Heartbeat(
        start_worker(), interval=timedelta(hours=1), lease=LEASE, outage=Outage("default"), inbox=Inbox()
    )
    heartbeat.stop(patience=10)
    heartbeat._last -= LEASE.total_seconds() + 1
    heartbeat._unbroken_since -= 1000

    before = heartbeat.unbroken_for
    heartbeat._beat()

    assert before == 0
    assert heartbeat.unbroken_for < LEASE.total_seconds()


def _attempt(run: ClaimedRun) -> Attempt:
    return Attempt(run, registry.get(run.task_name), 0.0)


@pytest.mark.django_db
def test_claim_whose_answer_was_lost_is_given_back() -> None:
    """CL-14. The worker never learnt of it."""
    worker = start_worker()
    enqueue(note, "x")
    claim_all(worker)

    Ledger("default").reconcile(worker)

    job = Job.objects.get()
    assert (job.status, job.attempt, job.worker_id) == ("ready", 0, None)
    assert not JobRun.objects.exists()


@pytest.mark.django_db
def test_outcome_that_is_not_written_yet_keeps_its_claim() -> None:
    worker, ledger = start_worker(), Ledger("default")
    enqueue(note, "x")
    (run,) = claim_all(worker)
    attempt = _attempt(run)
    ledger.enter([attempt], worker)
    ledger.leave(attempt, succeeded(run))

    ledger.reconcile(worker)

    assert extend.held(worker, using="default") == {run[:2]}
    assert len(ledger.write()) == 1


@pytest.mark.django_db
def test_run_that_the_database_knows_nothing_of_is_named() -> None:
    worker, ledger = start_worker(), Ledger("default")
    handle = enqueue(note, "x")
    (run,) = claim_all(worker)
    attempt = _attempt(run)
    ledger.enter([attempt], worker)
    assert ledger.reconcile(worker) == []

    handle.cancel()

    assert ledger.reconcile(worker) == [attempt]


@pytest.mark.django_db
def test_second_end_of_a_run_is_dropped() -> None:
    """A task given up at its time limit ends after all."""
    worker, ledger = start_worker(), Ledger("default")
    enqueue(note, "x")
    (run,) = claim_all(worker)
    attempt = _attempt(run)
    ledger.enter([attempt], worker)

    ends = [ledger.leave(attempt, succeeded(run)), ledger.leave(attempt, succeeded(run))]

    assert ends == [True, False]
    assert ledger.unwritten == 1


@pytest.mark.django_db
def test_what_runs_again_is_told_from_what_is_over() -> None:
    """It is written before a look, lest the look miss it; a success can wait for the claim that follows."""
    worker, ledger = start_worker(), Ledger("default")
    enqueue_many([note.bind("x")] * 3)
    done, broken, returned = map(_attempt, claim_all(worker))
    ledger.enter([done, broken, returned], worker)
    answers = []

    ledger.leave(done, succeeded(done.run))
    answers.append(ledger.sends_back)
    ledger.leave(broken, failed(broken.run))
    answers.append(ledger.sends_back)
    ledger.write()
    ledger.hand_back([returned])
    answers.append(ledger.sends_back)

    assert answers == [False, True, True]


@pytest.mark.django_db
def test_key_that_is_taken_over_while_it_is_pruned_stays() -> None:
    """Between the look of the pruner and its DELETE, another job takes the expired key."""
    JobKeyFactory.create(key="k", scope="s", expires_at=Clock(timedelta(seconds=-1)))
    taker = uuid4()

    def take_over_first(execute: Callable[..., Any], sql: str, *rest: Any) -> Any:
        if sql.startswith("DELETE") and "jobkey" in sql and not JobKey.objects.filter(holder_id=taker).exists():
            guard.acquire([guard.Wanted("s", "k", taker)], using="default")
        return execute(sql, *rest)

    with connection.execute_wrapper(take_over_first):
        prune.prune(using="default")

    assert JobKey.objects.get().holder_id == taker


@pytest.mark.django_db
@pytest.mark.parametrize("others", [0, 1], ids=["alone", "beside another"])
def test_key_that_a_success_holds_for_a_while_is_taken_until_then(others: int) -> None:
    worker = start_worker()
    holder = enqueue(note.using(key="k"), "x")
    (run,) = claim_all(worker)
    finish_all([succeeded(run, key_ttl=timedelta(hours=1))], worker)

    def ask() -> JobHandle:
        handles = enqueue_many([note.using(key="k").bind("x"), *[note.using(key=str(uuid4())).bind("x")] * others])
        return handles[0]

    early = ask()
    JobKey.objects.filter(key="k").update(expires_at=Clock(timedelta(seconds=-1)))
    late = ask()

    assert (early.created, early.id, late.created) == (False, holder.id, True)


@pytest.mark.race
@pytest.mark.postgres  # whose guard sorts by SQL of its own
@pytest.mark.django_db(transaction=True)
def test_keys_of_one_call_are_taken_in_one_order_whatever_that_of_the_call() -> None:
    """So a call that waits for its first key has not taken its second one, for which somebody else may wait."""
    with Threads() as threads:
        holder = OpenTransaction(threads, lambda: enqueue(note.using(key="a"), "x"))
        waiting = threads.start(lambda: enqueue_many([note.using(key=key).bind("x") for key in ("b", "a")]))
        wait_until_blocked()

        other = threads.start(lambda: enqueue(note.using(key="b"), "x"))
        try:
            handle = other.result(20)
        finally:
            holder.end()

        assert handle.created
        assert [each.created for each in waiting.result(30)] == [False, False]

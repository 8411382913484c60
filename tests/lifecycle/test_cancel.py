"""A cancelled job stays cancelled, an ended one stays ended, and no worker waits for the caller's transaction."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.db import connection, transaction

from django_jobs import JobDoesNotExist, JobHandle, cancel, enqueue, signals
from django_jobs.database import Clock
from django_jobs.models import DeadLetter, Job, JobKey, JobRun
from django_jobs.runs import ClaimedRun, EndedRun, Outcome
from django_jobs.statuses import RunStatus
from tests.lifecycle.steps import claim_all, died, failed, finish_all, start_worker, succeeded
from tests.lifecycle.threads import OpenTransaction, Threads, at_once, wait_until_blocked
from tests.tasks import note

transactional = pytest.mark.django_db(transaction=True)


@pytest.mark.django_db
def test_job_that_never_ran_leaves_a_run_that_stands_for_none() -> None:
    handle = enqueue(note.using(key="k", priority=3), "x")

    assert cancel(handle.id)

    assert not Job.objects.exists()
    assert not JobKey.objects.exists()
    run = JobRun.objects.get()
    assert (run.attempt, run.status, run.is_last, run.started_at) == (0, "cancelled", True, None)
    assert (run.task_name, run.priority, run.key, run.payload) == (note.name, 3, "k", {"args": ["x"], "kwargs": {}})
    assert handle.status == "cancelled"
    assert claim_all(start_worker()) == []


@pytest.mark.django_db
@pytest.mark.parametrize("status", ["scheduled", "waiting", "retry"])
def test_job_that_waits_can_be_cancelled(status: str) -> None:
    handle = enqueue(note.using(delay=60 if status == "scheduled" else None), "x")
    if status == "waiting":
        Job.objects.update(status="waiting", waiting_since=Clock())
    if status == "retry":
        worker = start_worker()
        finish_all([failed(run) for run in claim_all(worker)], worker)

    assert handle.cancel()

    assert handle.status == "cancelled"
    assert not Job.objects.exists()
    assert JobRun.objects.filter(is_last=True).count() == 1


@pytest.mark.django_db
@pytest.mark.parametrize("ending", [succeeded, failed, died])
def test_cancel_between_the_last_statement_and_the_final_write_stays(ending: Callable[[ClaimedRun], Outcome]) -> None:
    """CL-17: no retry is scheduled, no letter written, and the late outcome is lost."""
    handle = enqueue(note.using(key="k"), "x")
    worker = start_worker()
    (run,) = claim_all(worker)

    assert cancel(handle.id)
    finished = finish_all([ending(run)], worker)

    assert len(finished.lost) == 1
    assert (handle.status, Job.objects.count(), DeadLetter.objects.count()) == ("cancelled", 0, 0)
    row = JobRun.objects.get()
    assert (row.claim_number, row.attempt, row.started_at) == (1, 1, run.claimed_at)
    assert enqueue(note.using(key="k"), "y").created


@pytest.mark.django_db
@pytest.mark.parametrize(("ending", "status"), [(succeeded, "succeeded"), (died, "dead")])
def test_cancel_after_the_end_says_too_late_and_changes_nothing(
    ending: Callable[[ClaimedRun], Outcome], status: str
) -> None:
    """CL-17"""
    handle = enqueue(note, "x")
    worker = start_worker()
    (run,) = claim_all(worker)
    finish_all([ending(run)], worker)

    assert not cancel(handle.id)
    assert not handle.cancel()

    assert handle.status == status
    assert JobRun.objects.count() == 1


@pytest.mark.django_db
def test_second_cancel_says_too_late() -> None:
    handle = enqueue(note, "x")

    assert [handle.cancel(), handle.cancel()] == [True, False]
    assert JobRun.objects.count() == 1


@pytest.mark.django_db
def test_unknown_job_is_an_error_that_names_it() -> None:
    unknown = uuid.uuid4()
    with pytest.raises(JobDoesNotExist, match=str(unknown)):
        cancel(unknown)


@pytest.mark.race
@transactional
@pytest.mark.parametrize("commits", [True, False])
def test_finish_does_not_wait_for_an_open_transaction_that_cancels(commits: bool) -> None:
    """CL-17: the outcome is kept until that transaction has ended one way or the other."""
    if connection.vendor == "sqlite":
        return  # its writers wait for each other
    handle = enqueue(note.using(key="k"), "x")
    worker = start_worker()
    (run,) = claim_all(worker)

    with Threads() as threads:
        canceller = OpenTransaction(threads, lambda: cancel(handle.id))
        during = finish_all([succeeded(run)], worker)
        canceller.end(commits=commits)
    after = finish_all(during.kept, worker)

    assert (len(during.kept), during.recorded, during.lost) == (1, [], [])
    assert (len(after.recorded), len(after.lost)) == ((0, 1) if commits else (1, 0))
    assert handle.status == ("cancelled" if commits else "succeeded")


@pytest.mark.race
@transactional
def test_cancel_waits_for_a_write_under_way_and_is_then_too_late() -> None:
    """CL-17"""
    handle = enqueue(note, "x")
    worker = start_worker()
    (run,) = claim_all(worker)

    with Threads() as threads:
        finisher = OpenTransaction(threads, lambda: finish_all([succeeded(run)], worker))
        canceller = threads.start(lambda: cancel(handle.id))
        wait_until_blocked()
        finisher.end()

    assert canceller.result() is False
    assert handle.status == "succeeded"


@pytest.mark.race
@transactional
def test_many_at_once_cancel_once() -> None:
    handle = enqueue(note.using(key="k"), "x")

    assert sum(at_once([lambda: cancel(handle.id)] * 8)) == 1
    assert JobRun.objects.count() == 1


@transactional
def test_rolled_back_cancel_leaves_the_job_and_its_key() -> None:
    handle: JobHandle = enqueue(note.using(key="k"), "x")

    with transaction.atomic():
        assert handle.cancel()
        transaction.set_rollback(True)

    assert handle.status == "ready"
    assert not enqueue(note.using(key="k"), "y").created


@transactional
def test_cancelled_run_passes_the_seam_of_ended_runs_after_the_commit() -> None:
    heard: list[EndedRun] = []

    def listen(*, runs: list[EndedRun], **kwargs: object) -> None:
        assert not connection.in_atomic_block
        heard.extend(runs)

    signals.runs_ended.connect(listen)
    try:
        running, ready = enqueue(note, "running"), enqueue(note.using(delay=60), "ready")
        claim_all(start_worker())
        with transaction.atomic():
            running.cancel()
            assert heard == []
        ready.cancel()
    finally:
        signals.runs_ended.disconnect(listen)

    (run,) = heard
    assert (run.job_id, run.status, run.attempt, run.claim_number) == (running.id, RunStatus.CANCELLED, 1, 1)
    assert timedelta(0) <= timedelta(seconds=run.duration) < timedelta(minutes=1)

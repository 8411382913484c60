"""Async tasks: they run, and one that never lets the event loop's thread go harms itself alone."""

from __future__ import annotations

import signal
from datetime import timedelta

import pytest

from django_jobs import enqueue
from django_jobs.models import DeadLetter, JobRun
from django_jobs.statuses import DeathReason, RunStatus
from tests.models import Effect
from tests.processes import Workers, wait_until
from tests.worker import tasks

pytestmark = [pytest.mark.race, pytest.mark.slow]

WITHIN = timedelta(seconds=15)  # its limit, and the 3 s after that in which it might still end


def test_async_task_has_run_when_its_job_is_done_or_its_job_is_dead(workers: Workers) -> None:
    """WK-17: a decorator that does not know of async functions calls one without awaiting it."""
    ran = enqueue(tasks.arest, "ran", 0)
    called = enqueue(tasks.aeffect_behind_a_decorator, "called")
    worker = workers.start_telling("--burst")

    assert worker.wait() == 0
    assert (workers.told / "noted").exists()
    assert (ran.get().status, called.get().status) == ("succeeded", "dead")
    letter = DeadLetter.objects.get()
    assert (letter.reason, letter.attempt) == (DeathReason.BAD_RESULT, 1)
    assert "coroutine" in letter.error_text
    assert Effect.objects.get().label == "ran"
    assert worker.output.count("never awaited") == 1, "Python's word on the one that is dead"


def test_task_that_blocks_the_event_loop_is_timed_out_and_all_others_go_on(workers: Workers) -> None:
    """In a worker alone: it goes on with another loop, and what the task does later counts for nothing."""
    beside = enqueue(tasks.arest, "beside", 1)
    worker = workers.start_telling()
    workers.wait_told("beside")
    blocking = enqueue(tasks.block_the_loop, "blocking")
    workers.wait_told("blocking")
    after = enqueue(tasks.arest, "after", 0)

    wait_until(lambda: after.get().is_finished and beside.get().is_finished)
    (workers.told / "go").touch()
    workers.wait_told("unblocked")
    last = enqueue(tasks.arest, "last", 0)
    wait_until(lambda: last.get().is_finished)
    worker.signal(signal.SIGTERM)

    assert worker.wait() == 0
    run = JobRun.objects.get(job_id=blocking.id)
    assert (run.status, "block_the_loop" in run.traceback) == (RunStatus.TIMED_OUT, True)
    assert run.started_at is not None
    assert run.ended_at - run.started_at < WITHIN
    assert blocking.get().status == "dead", "its success came too late"
    assert DeadLetter.objects.get().reason == DeathReason.OUT_OF_TRIES
    statuses = JobRun.objects.filter(job_id=beside.id).order_by("id").values_list("status", flat=True)
    assert list(statuses) == [RunStatus.RELEASED, RunStatus.SUCCEEDED], "nobody is charged but the task that blocks"
    assert sorted(Effect.objects.values_list("label", flat=True)) == ["after", "beside", "last"]
    assert worker.output.count("event loop replaced task=tests.worker.tasks.block_the_loop") == 1, worker.output


def test_worker_whose_event_loop_is_blocked_ends_when_it_is_told_to(workers: Workers) -> None:
    handle = enqueue(tasks.block_the_loop, "blocking")
    worker = workers.start_telling("--grace", "0")
    workers.wait_told("blocking")

    worker.signal(signal.SIGTERM)

    assert worker.wait(15) == 0
    assert handle.get().status in {"ready", "dead"}  # handed back, or given up just before

"""Several workers, one job: one outcome counts."""

from __future__ import annotations

import signal
from collections import Counter

import pytest
from django.db import connection

from django_jobs import enqueue, enqueue_many
from django_jobs.models import DeadLetter, Job, JobRun
from django_jobs.statuses import JobStatus, RunStatus
from tests.models import Effect
from tests.processes import FAST, Workers, wait_until
from tests.worker import tasks

pytestmark = [pytest.mark.race]


@pytest.mark.slow
def test_four_workers_run_two_hundred_jobs_once_each(workers: Workers) -> None:
    """CL-01, WK-20. Fewer on SQLite: there a new project waits 5 s for the one write lock, and then its task fails."""
    count, threads = (50, "1") if connection.vendor == "sqlite" else (200, "3")
    enqueue_many(tasks.plain_effect.bind(f"{number}") for number in range(count))

    processes = [workers.start("--burst", "--threads", threads, settings={}) for _ in range(4)]

    assert [process.wait(60) for process in processes] == [0] * 4
    assert Counter(JobRun.objects.values_list("status", "attempt")) == {(RunStatus.SUCCEEDED, 1): count}
    assert set(Counter(Effect.objects.values_list("label", flat=True)).values()) == {1}
    assert not Job.objects.exists()


@pytest.mark.slow
def test_late_finisher_changes_nothing_and_says_so_once(workers: Workers) -> None:
    """CL-02: a worker is stopped past its lease, another one runs the job, the first one comes back and fails."""
    handle = enqueue(tasks.wait_for_go, "late")
    late = workers.start_telling("--name", "late")
    workers.wait_told("late")
    late.signal(signal.SIGSTOP)
    workers.start("--name", "other")
    wait_until(lambda: JobRun.objects.filter(status=RunStatus.SUCCEEDED).exists(), what="the other worker's success")

    late.signal(signal.SIGCONT)
    (workers.told / "go").touch()
    late.wait_for("lease lost")
    late.signal(signal.SIGTERM)
    late.wait()

    assert handle.get().status == "succeeded"
    assert not DeadLetter.objects.exists()
    runs = JobRun.objects.order_by("id").values_list("status", "worker")
    assert list(runs) == [(RunStatus.LOST, "late"), (RunStatus.SUCCEEDED, "other")]
    assert late.output.count("lease lost") == 1, late.output


@pytest.mark.slow
def test_job_of_a_killed_worker_is_taken_back_and_run_by_another(workers: Workers) -> None:
    """CL-08: without any restart, within a lease and a sweep."""
    handle = enqueue(tasks.plain_effect, "killed")
    doomed = workers.start_telling()
    workers.wait_told("killed")
    workers.start()

    doomed.kill()
    wait_until(lambda: handle.get().is_finished)

    assert list(JobRun.objects.order_by("id").values_list("status", "attempt")) == [
        (RunStatus.LOST, 1),
        (RunStatus.SUCCEEDED, 2),
    ]


@pytest.mark.slow
def test_long_jobs_keep_their_lease_while_their_worker_lives(workers: Workers) -> None:
    """CL-03: longer than a lease, beside a worker that would take them back."""
    handles = [enqueue(task, "long", 1.7 * FAST["LEASE"]) for task in (tasks.rest, tasks.arest)]
    for _ in range(2):
        workers.start()

    wait_until(lambda: all(handle.get().is_finished for handle in handles))

    assert list(JobRun.objects.values_list("status", "attempt")) == [(RunStatus.SUCCEEDED, 1)] * 2


@pytest.mark.postgres
def test_outcome_is_written_after_the_connection_was_cut_just_before(workers: Workers) -> None:
    """CL-15: the task cuts every session of its worker, then ends."""
    first = enqueue(tasks.cut_own_worker, "cut")
    worker = workers.start(PGAPPNAME="cl15")
    wait_until(lambda: first.get().is_finished)
    second = enqueue(tasks.plain_effect, "after")
    wait_until(lambda: second.get().is_finished)

    worker.signal(signal.SIGTERM)

    assert worker.wait() == 0
    assert list(JobRun.objects.values_list("status", "attempt")) == [(RunStatus.SUCCEEDED, 1)] * 2


@pytest.mark.postgres
@pytest.mark.slow
def test_no_transaction_of_the_worker_is_open_while_a_task_runs(workers: Workers) -> None:
    """CL-20: the server ends transactions idle for a second; the job rests for three, and its row is free."""
    from django.db import transaction

    handle = enqueue(tasks.rest, "resting", 3)
    workers.start_telling(PGOPTIONS="-c idle_in_transaction_session_timeout=1s")
    workers.wait_told("resting")

    with transaction.atomic():
        row = Job.objects.select_for_update(nowait=True).get()
        assert row.status == JobStatus.RUNNING
    wait_until(lambda: handle.get().is_finished)

    assert list(JobRun.objects.values_list("status", "attempt")) == [(RunStatus.SUCCEEDED, 1)]

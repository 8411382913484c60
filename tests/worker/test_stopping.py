"""Stop signals: what runs may end, the rest goes back uncharged."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from django_jobs import enqueue, enqueue_many
from django_jobs.models import Job, JobRun, Worker
from django_jobs.registry import Task
from django_jobs.statuses import JobStatus, RunStatus
from tests.processes import FAST, Workers, wait_until
from tests.worker import tasks

pytestmark = [pytest.mark.race, pytest.mark.slow]

KINDS = pytest.mark.parametrize("task", [tasks.rest, tasks.arest], ids=["sync", "async"])


@KINDS
def test_running_job_may_end_within_the_grace(workers: Workers, task: Task) -> None:
    """WK-02."""
    enqueue(task, "running", 1.5)
    worker = workers.start_telling("--grace", "10")
    workers.wait_told("running")

    worker.signal(signal.SIGTERM)

    assert worker.wait() == 0
    assert list(JobRun.objects.values_list("status", "attempt")) == [(RunStatus.SUCCEEDED, 1)]
    assert not Worker.objects.exists()


@KINDS
def test_job_that_outlasts_the_grace_goes_back_uncharged(workers: Workers, task: Task) -> None:
    """WK-02."""
    enqueue(task, "running", 60)
    worker = workers.start_telling("--grace", "0.3")
    workers.wait_told("running")

    worker.signal(signal.SIGTERM)

    assert worker.wait(5) == 0
    job = Job.objects.get()
    assert (job.status, job.failures, job.crashes, job.interruptions) == (JobStatus.READY, 0, 0, 1)
    assert JobRun.objects.get().status == RunStatus.RELEASED


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@KINDS
def test_second_signal_hands_back_at_once(workers: Workers, task: Task, number: int) -> None:
    """WK-02."""
    enqueue(task, "running", 60)
    worker = workers.start_telling("--grace", "50")
    workers.wait_told("running")

    worker.signal(number)
    worker.wait_for("worker stopping")
    worker.signal(number)

    assert worker.wait(5) == 0
    assert Job.objects.get().status == JobStatus.READY


def test_jobs_that_were_not_started_go_back_as_they_came(workers: Workers) -> None:
    """CL-14: one thread, ten jobs, the first a long one."""
    enqueue_many(tasks.rest.bind(f"{number}", 60) for number in range(10))
    worker = workers.start_telling("--threads", "1", "--grace", "0.2")
    workers.wait_told("0")

    worker.signal(signal.SIGTERM)
    worker.wait(5)

    assert sorted(Job.objects.values_list("status", "attempt")) == [(JobStatus.READY, 0)] * 9 + [(JobStatus.READY, 1)]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("after", [0.0, 0.05, 0.2, 0.5, 1.0, None])
def test_signal_while_starting_ends_the_worker_and_strands_no_job(workers: Workers, after: float | None) -> None:
    """WK-01: and nothing is claimed after it; there is more to do than it could in so short a time.

    None: as soon as it has run a job.
    """
    enqueue_many(tasks.rest.bind(f"{number}", 0.2) for number in range(200))
    worker = workers.start()
    if after is None:
        wait_until(JobRun.objects.exists)
    else:
        time.sleep(after)  # the moment is what this test is about

    worker.signal(signal.SIGTERM)

    assert worker.wait(10) in (0, -signal.SIGTERM)
    assert not Job.objects.filter(status=JobStatus.RUNNING).exists()
    assert Job.objects.filter(status=JobStatus.READY, attempt=0).count() == 200 - JobRun.objects.count() > 0
    assert not JobRun.objects.exclude(status=RunStatus.SUCCEEDED).exists()


def test_heart_beats_until_the_last_job_has_ended(workers: Workers) -> None:
    """CL-06: the job goes on for more than a lease after the signal, beside a worker that would take it back."""
    handle = enqueue(tasks.rest, "ending", 1.5 * FAST["LEASE"])
    worker = workers.start_telling("--grace", "20")
    workers.wait_told("ending")
    workers.start()

    worker.signal(signal.SIGTERM)

    assert worker.wait() == 0
    assert handle.get().status == "succeeded"
    assert JobRun.objects.count() == 1


def test_task_can_ask_whether_its_worker_stops(workers: Workers) -> None:
    handle = enqueue(tasks.rest_until_told, "asking")
    worker = workers.start_telling("--grace", "20")
    workers.wait_told("asking")

    worker.signal(signal.SIGTERM)

    assert worker.wait(5) == 0
    assert handle.result() == "stopping"


def test_changed_code_starts_the_worker_again_though_a_task_still_runs(workers: Workers, tmp_path: Path) -> None:
    """With DEBUG: what ran is handed back, and started by the new process."""
    code = tmp_path / "changing_settings.py"
    code.write_text("from tests.worker.settings import *\nDEBUG = True\n")
    enqueue(tasks.rest, "running", 60)
    path = os.pathsep.join([str(tmp_path), *sys.path])
    worker = workers.start_telling(DJANGO_SETTINGS_MODULE="changing_settings", PYTHONPATH=path)
    workers.wait_told("running")

    def is_started_again() -> bool:
        code.touch()  # again and again: a change before the reloader has looked for the first time is none
        return worker.output.count("worker started") > 1

    try:
        wait_until(is_started_again, what="started again")
        wait_until(lambda: Job.objects.get().attempt > 1, what="the job runs again")
        assert set(JobRun.objects.values_list("status", flat=True)) == {RunStatus.RELEASED}
    finally:
        worker.signal(signal.SIGTERM)  # it ends the process that it has started, which SIGKILL would leave behind
        worker.wait()

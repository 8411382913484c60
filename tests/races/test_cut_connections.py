"""Every session of a worker is terminated, idle or busy, however Django keeps its connections."""

from __future__ import annotations

import signal
from collections import Counter
from typing import Any

import pytest
from django.db import connection

from django_jobs import enqueue, enqueue_many
from django_jobs.models import Job, JobRun
from django_jobs.statuses import RunStatus
from tests.processes import Workers, wait_until
from tests.worker import tasks

pytestmark = [pytest.mark.race, pytest.mark.slow, pytest.mark.postgres]

# Ways to keep connections, by the queue of the worker that keeps them so.
WAYS: dict[str, dict[str, Any]] = {
    "age-0": {"CONN_MAX_AGE": 0},
    "age-600": {"CONN_MAX_AGE": 600},
    "age-none": {"CONN_MAX_AGE": None},
    "pool": {"OPTIONS": {"pool": {"min_size": 1, "max_size": 4}}},
}


def cut(name: str) -> int:
    """Terminate all sessions under this application name. How many."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name = %s",
            [name],
        )
        return len(cursor.fetchall())


def ended() -> Counter[tuple[str, str, int]]:
    """How many runs of each queue have ended how, in which attempt."""
    return Counter(JobRun.objects.values_list("queue_name", "status", "attempt"))


def wait_until_succeeded(count: int) -> None:
    """So many runs in each queue, and nothing else."""
    want = Counter({(queue_name, RunStatus.SUCCEEDED.value, 1): count for queue_name in WAYS})
    wait_until(lambda: ended() == want, within=60, what=f"{count} runs in each queue")


def wait_until_ran(count: int) -> None:
    """So many runs or more."""
    wait_until(lambda: JobRun.objects.count() >= count, what=f"{count} runs")


def enqueue_in_each(label: str) -> None:
    """Three jobs that use the database."""
    for way in WAYS:
        enqueue_many(tasks.rest.using(queue_name=way).bind(f"{way} {label} {number}", 0.1) for number in range(2))
        enqueue(tasks.arest.using(queue_name=way), f"{way} {label}", 0)


@pytest.mark.parametrize("checks", [False, True], ids=["no-health-checks", "health-checks"])
def test_worker_whose_sessions_are_all_terminated_runs_the_next_jobs(workers: Workers, checks: bool) -> None:
    """WK-05: while it is idle, and in the midst of a job. One worker for each way to keep connections."""
    for way, database in WAYS.items():
        workers.start_telling(
            *("--queues", way, "--threads", "2"),
            database={"CONN_HEALTH_CHECKS": checks, **database},
            PGAPPNAME="wk05",
        )
    enqueue_in_each("warm")
    wait_until_succeeded(3)

    assert cut("wk05") >= 5 * len(WAYS)  # idle
    enqueue_in_each("idle")
    wait_until_succeeded(6)

    for way in WAYS:
        enqueue(tasks.wait_and_leave_no_effect.using(queue_name=way), f"{way} busy", 0.5)
    workers.wait_told(*(f"{way} busy" for way in WAYS))
    assert cut("wk05") >= 5 * len(WAYS)  # busy
    enqueue_in_each("busy")
    wait_until_succeeded(10)

    for worker in workers.started:
        worker.signal(signal.SIGTERM)
    assert [worker.wait() for worker in workers.started] == [0] * len(WAYS)
    assert [worker.outages for worker in workers.started] == [[]] * len(WAYS), "it was no outage"


def test_worker_in_full_run_loses_nothing_however_often_its_sessions_are_terminated(workers: Workers) -> None:
    """WK-05: whatever it was about to claim or to write just then."""
    worker = workers.start("--threads", "2", PGAPPNAME="wk05")
    enqueue_many(tasks.wait_and_leave_no_effect.bind(f"{number}", 0.002) for number in range(1000))
    for count in range(50, 1000, 50):
        wait_until_ran(count)
        cut("wk05")
    wait_until(lambda: not Job.objects.exists())
    worker.signal(signal.SIGTERM)

    assert worker.wait() == 0
    assert Counter(JobRun.objects.values_list("status", "attempt")) == {(RunStatus.SUCCEEDED, 1): 1000}

"""An idle worker is woken, and finds its connections cut."""

from __future__ import annotations

import signal
import time

import pytest
from django.db import connection

from django_jobs import enqueue, enqueue_many
from django_jobs.models import JobRun
from django_jobs.statuses import RunStatus
from tests.processes import Workers, wait_until
from tests.worker import tasks

pytestmark = [pytest.mark.race, pytest.mark.slow, pytest.mark.postgres]

SLOW_POLL = {"POLL_INTERVAL": 60}


def _is_listening() -> bool:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'"
        )
        return bool(cursor.fetchone()[0])


def test_commit_wakes_a_worker_that_polls_once_a_minute(workers: Workers) -> None:
    workers.start(settings=SLOW_POLL)
    wait_until(_is_listening)

    handles = [enqueue(tasks.plain_effect, "now"), enqueue(tasks.plain_effect.using(delay=0.5), "soon")]
    started = time.monotonic()
    wait_until(lambda: all(handle.get().is_finished for handle in handles), within=10)

    assert time.monotonic() - started < 5


@pytest.mark.parametrize("max_age", ["0", "600", "None"])
def test_idle_worker_whose_connections_were_all_cut_runs_the_next_jobs(workers: Workers, max_age: str) -> None:
    """WK-05."""
    worker = workers.start(PGAPPNAME="wk05", TEST_CONN_MAX_AGE=max_age)
    enqueue_many(tasks.plain_effect.bind(f"warm {number}") for number in range(10))
    enqueue(tasks.arest, "warm", 0)
    wait_until(lambda: JobRun.objects.count() == 11)

    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'wk05'")
        assert cursor.fetchall()
    enqueue_many(tasks.plain_effect.bind(f"{number}") for number in range(3))
    enqueue(tasks.arest, "async", 0)
    wait_until(lambda: JobRun.objects.count() == 15)
    worker.signal(signal.SIGTERM)

    assert worker.wait() == 0
    assert set(JobRun.objects.values_list("status", "attempt")) == {(RunStatus.SUCCEEDED, 1)}

"""Hosts whose clocks are ten minutes apart: only the database's counts."""

from __future__ import annotations

from datetime import timedelta

import pytest

from django_jobs import enqueue
from django_jobs.models import JobRun, Worker
from django_jobs.statuses import RunStatus
from tests.clocks import skewed
from tests.processes import Workers, wait_until
from tests.worker import tasks

# SQLite has no clock of its own.
pytestmark = [pytest.mark.race, pytest.mark.slow, pytest.mark.postgres, pytest.mark.mariadb]

SKEWS = [600, -600, 0]  # seconds
DELAY = 2.0
SETTINGS = {"LEASE": 2, "HEARTBEAT": 0.3, "POLL_INTERVAL": 0.1}


def test_clocks_of_hosts_break_no_lease_and_move_no_due_time(workers: Workers) -> None:
    """CR-12: each worker holds jobs past the lease that others would take to be over; each enqueuer delays one."""
    for number in SKEWS:
        workers.start_telling("--name", f"{number}", "--threads", "2", settings=SETTINGS, TEST_SKEW=f"{number}")
    wait_until(lambda: Worker.objects.count() == len(SKEWS), within=60)

    # Two threads each: all six are held at once, by three workers.
    held = [enqueue(tasks.rest, f"held {number}", 2 * SETTINGS["LEASE"]) for number in range(6)]
    workers.wait_told(*(f"held {number}" for number in range(6)))
    delayed = []
    for number in SKEWS:
        with skewed(number):
            delayed.append(enqueue(tasks.arest.using(delay=DELAY), f"delayed {number}", 0))
    wait_until(lambda: all(handle.get().is_finished for handle in [*held, *delayed]), within=60)

    assert set(JobRun.objects.values_list("status", "attempt")) == {(RunStatus.SUCCEEDED, 1)}
    assert JobRun.objects.count() == 9
    assert JobRun.objects.filter(job_id__in=[each.id for each in held]).values("worker").distinct().count() == 3
    for run in JobRun.objects.filter(job_id__in=[each.id for each in delayed]):
        assert run.started_at is not None
        assert run.enqueued_at is not None
        assert timedelta(seconds=DELAY) <= run.started_at - run.enqueued_at < timedelta(seconds=DELAY + 5)

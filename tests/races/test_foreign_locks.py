"""Somebody cancels or edits a job in a transaction that stays open: no worker waits for it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any
from uuid import UUID

import pytest

from django_jobs import JobHandle, cancel, enqueue, enqueue_many
from django_jobs.models import Job, JobRun, Worker
from django_jobs.statuses import RunStatus
from tests.lifecycle.threads import OpenTransaction, Threads
from tests.models import Effect
from tests.processes import Workers, wait_until
from tests.worker import tasks

# SQLite locks the whole file for whoever writes.
pytestmark = [pytest.mark.race, pytest.mark.slow, pytest.mark.postgres, pytest.mark.mariadb]

OTHERS = 48


def edit(job_id: UUID) -> None:
    """As an admin would: read it for an update, change it, save it."""
    job = Job.objects.select_for_update().get(id=job_id)
    job.priority = 7
    job.save(update_fields=["priority"])


@pytest.mark.parametrize(
    ("touch", "commits"),
    [(cancel, True), (cancel, False), (edit, True)],
    ids=["cancelled", "cancelled and rolled back", "edited"],
)
def test_jobs_in_somebodys_open_transaction_keep_no_worker_from_any_other(
    workers: Workers, touch: Callable[[UUID], Any], commits: bool
) -> None:
    """Of fifty jobs one is locked while it is ready and one while it runs; claims, finishes and heartbeats go on."""
    ready = enqueue(tasks.rest.using(priority=50), "ready", 0)
    running = enqueue(tasks.wait_for_file.using(priority=100), "running", "end")
    with Threads() as threads:
        first = OpenTransaction(threads, lambda: touch(ready.id))
        worker = workers.start_telling("--threads", "2")
        workers.wait_told("running")
        second = OpenTransaction(threads, lambda: touch(running.id))
        try:
            enqueue_many(tasks.rest.bind(f"{number}", 0) for number in range(OTHERS))
            wait_until(lambda: Effect.objects.count() == OTHERS, what="all others run")
            (workers.told / "end").touch()
            wait_until(lambda: JobRun.objects.filter(status=RunStatus.SUCCEEDED).count() == OTHERS)
            last = enqueue(tasks.rest, "last", 0)
            wait_until(lambda: last.get().is_finished)
            before = _heartbeat()
            wait_until(lambda: _heartbeat() > before, what="the heart beats on")
            assert not _ended(ready, running)
        finally:
            second.end(commits=commits)
            first.end(commits=commits)

    wait_until(lambda: _ended(ready, running))
    status = "cancelled" if touch is cancel and commits else "succeeded"
    assert (ready.get().status, running.get().status) == (status, status)
    assert set(JobRun.objects.exclude(status=RunStatus.CANCELLED).values_list("status", "attempt")) == {
        (RunStatus.SUCCEEDED, 1)
    }
    assert "database away" not in worker.output
    assert "service failed" not in worker.output


def _heartbeat() -> datetime:
    moment: datetime = Worker.objects.get().heartbeat_at
    return moment


def _ended(*handles: JobHandle) -> bool:
    return not Job.objects.filter(id__in=[handle.id for handle in handles]).exists()

"""Old and new code side by side, and a schema that is newer than the code."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator

import pytest
from django.apps import apps
from django.db import connection

from django_jobs import enqueue, enqueue_many
from django_jobs.models import Job, JobRun, Worker
from django_jobs.statuses import JobStatus, RunStatus
from tests.models import Effect
from tests.processes import Workers, wait_until
from tests.tasks import note
from tests.worker import tasks

pytestmark = [pytest.mark.race, pytest.mark.slow]

FEW = 20


def test_worker_of_the_old_code_leaves_new_tasks_to_the_new_one(workers: Workers) -> None:
    """DP-02: while it is alone, and while both are up; no attempt is used up."""
    old = workers.start("--name", "old", TEST_OLD_CODE="1")
    enqueue_many(tasks.rest.using(priority=9).bind(f"before {number}", 0) for number in range(FEW))
    behind = enqueue(note, "behind")
    wait_until(lambda: Job.objects.filter(status=JobStatus.WAITING, attempt=0).count() == FEW, within=60)
    wait_until(lambda: behind.get().is_finished, what="unknown tasks stand in no other's way")
    assert old.popen.poll() is None

    workers.start("--name", "new")
    wait_until(lambda: Worker.objects.count() == 2, within=60)
    enqueue_many(tasks.rest.bind(f"after {number}", 0) for number in range(FEW))
    wait_until(lambda: not Job.objects.exists())

    runs = JobRun.objects.exclude(job_id=behind.id).values_list("worker", "status", "attempt")
    assert Counter(runs) == {("new", RunStatus.SUCCEEDED, 1): 2 * FEW}
    assert Effect.objects.count() == 2 * FEW + 1


@pytest.fixture
def tables() -> Iterator[list[str]]:
    """The app's tables, to be widened; as they were after the test."""
    names = [model._meta.db_table for model in apps.get_app_config("django_jobs").get_models()]
    yield names
    with connection.cursor() as cursor:
        for table in names:
            for column in ("made_up", "made_up_number"):
                cursor.execute(f"ALTER TABLE {table} DROP COLUMN {column}")


def widen(table: str) -> None:
    """As a migration of the next release does that keeps to the rules of test_migrations."""
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {table} ADD COLUMN made_up varchar(20) NULL")
        cursor.execute(f"ALTER TABLE {table} ADD COLUMN made_up_number integer DEFAULT 0 NOT NULL")


def test_processes_serve_on_while_the_tables_under_them_get_the_columns_of_the_next_release(
    workers: Workers, tables: list[str]
) -> None:
    """DP-07: one claims and finishes all the while, this one enqueues; also what failed, was cancelled, has a key."""
    worker = workers.start_telling("--threads", "3")
    handles = [enqueue(tasks.rest, "running", 1.0)]
    workers.wait_told("running")

    for number, table in enumerate(tables):
        handles.append(enqueue(tasks.rest.using(key=f"{number}"), f"{number}", 0))
        widen(table)
        handles += enqueue_many(tasks.rest.bind(f"{number} {each}", 0) for each in range(FEW))
    broken = enqueue(tasks.raise_text, "broken")
    cancelled = enqueue(tasks.rest.using(delay=60), "cancelled", 0)
    assert cancelled.cancel()
    wait_until(lambda: not Job.objects.exists(), within=60)
    worker.signal(signal.SIGTERM)

    assert worker.wait() == 0
    assert broken.get().status == "dead"
    assert Counter(JobRun.objects.values_list("status", "attempt")) == {
        (RunStatus.SUCCEEDED, 1): len(handles),
        (RunStatus.FAILED, 1): 1,
        (RunStatus.CANCELLED, 0): 1,
    }
    assert "service failed" not in worker.output
    assert "database away" not in worker.output

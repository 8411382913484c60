"""Every waiting job can say why it waits."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.test import override_settings
from django.utils import timezone

from django_jobs.admin.waiting import briefly, explain
from django_jobs.models import Job
from tests.admin.pages import Asker
from tests.factories import JobFactory, JobRunFactory, WorkerFactory

pytestmark = pytest.mark.django_db

NOW = timezone.now()


def said(job: Job) -> str:
    return " ".join(explain(job, NOW, "default"))


def due(span: timedelta, **columns: object) -> Job:
    return JobFactory.create(run_at=NOW + span, **columns)


def test_a_scheduled_job_says_when_it_is_due() -> None:
    WorkerFactory.create()
    job = due(timedelta(minutes=5), status="scheduled")

    assert said(job) == "It is due in 5 min."
    assert briefly(job, NOW) == "due in 5 min"


def test_a_scheduled_job_that_is_due_waits_for_the_next_look() -> None:
    WorkerFactory.create()
    job = due(timedelta(seconds=-3), status="scheduled")

    assert said(job) == "It was due 3 s ago; a worker makes it ready at its next look."
    assert briefly(job, NOW) == "due for 3 s"


def test_a_retry_says_which_when_and_why() -> None:
    WorkerFactory.create()
    job = due(timedelta(seconds=14), status="scheduled", attempt=2, failures=1)
    JobRunFactory.create(job_id=job.id, attempt=1, is_last=False, error_type="OSError", error_text="first")
    JobRunFactory.create(job_id=job.id, attempt=2, is_last=False, error_type="ValueError", error_text="bad\nmore")

    assert said(job) == "Attempt 2 of 5 starts in 14 s, because the last run ended with ValueError: bad."
    assert briefly(job, NOW) == "attempt 2 of 5 in 14 s"


def test_a_retry_counts_to_the_jobs_own_limit() -> None:
    WorkerFactory.create()
    job = due(timedelta(seconds=14), status="scheduled", attempt=1, failures=1, options={"max_attempts": 9})

    assert said(job) == "Attempt 2 of 9 starts in 14 s."


def test_a_ready_job_tells_its_place_in_the_queue() -> None:
    WorkerFactory.create()
    job = due(timedelta(seconds=-90))
    due(timedelta(seconds=-95)), due(timedelta(seconds=-1), priority=5), due(timedelta(seconds=-80))
    due(timedelta(seconds=-95), queue_name="mail")

    assert said(job) == "It has been ready for 1 min 30 s, in queue 'default'. 2 jobs are ahead of it."
    assert briefly(job, NOW) == "ready for 1 min"


def test_job_of_a_bulk_call_counts_those_before_it_in_the_same_moment() -> None:
    WorkerFactory.create()
    jobs = [JobFactory.create(run_at=NOW) for _ in range(4)]

    assert "2 jobs are ahead of it." in said(jobs[2])
    assert "It is the next of its queue." in said(jobs[0])


def test_many_jobs_ahead_are_counted_no_further_than_that_they_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_jobs.admin.waiting.MOST_AHEAD", 3)
    WorkerFactory.create()
    JobFactory.create_batch(2, priority=1), JobFactory.create_batch(2, run_at=NOW)
    job = JobFactory.create(run_at=NOW)

    assert "More than 3 jobs are ahead of it." in said(job)


def test_the_next_job_of_a_queue_says_so() -> None:
    WorkerFactory.create()

    assert "It is the next of its queue." in said(due(timedelta(seconds=-1)))


def test_no_worker_is_said() -> None:
    WorkerFactory.create(lease_expires_at=NOW - timedelta(seconds=1))

    assert "No worker is running: start one with manage.py runworker." in said(due(timedelta(0)))


def test_no_worker_for_the_queue_is_said() -> None:
    WorkerFactory.create(queue_names=["mail"])

    assert "No running worker serves queue 'default'." in said(due(timedelta(0)))


def test_no_worker_of_the_queue_that_knows_the_task_is_said() -> None:
    WorkerFactory.create(task_names=[])
    WorkerFactory.create(queue_names=["mail"])

    assert "No running worker of its queue knows task 'tests.tasks.note'." in said(due(timedelta(0)))


def test_a_job_in_quarantine_says_that_it_runs_alone() -> None:
    WorkerFactory.create()

    assert "so it runs alone" in said(due(timedelta(0), crashes=1, attempt=1))


def test_a_job_whose_task_nobody_knows_says_what_will_become_of_it() -> None:
    job = JobFactory.create(waiting=True, task_name="old.name", waiting_since=NOW - timedelta(minutes=20))

    with override_settings(DJANGO_JOBS={"UNKNOWN_TASK_PATIENCE": timedelta(hours=1)}):
        text = said(job)

    assert "No running worker knows task 'old.name': it has waited for one for 20 min." in text
    assert "It becomes a dead letter in 40 min" in text
    assert "add aliases=" in text
    assert briefly(job, NOW) == "no running worker knows its task"


def test_a_waiting_job_of_a_known_task_points_at_the_workers_release() -> None:
    assert "does a worker run the same release?" in said(JobFactory.create(waiting=True))


def test_a_running_job_names_its_worker() -> None:
    worker = WorkerFactory.create(name="web-1:4711")
    job = JobFactory.create(running=True, worker_id=worker.id, claimed_at=NOW - timedelta(seconds=75))

    assert said(job) == "Attempt 1 runs for 1 min 15 s on worker 'web-1:4711'."
    assert briefly(job, NOW) == "running for 1 min"


def test_a_running_job_of_a_lost_worker_says_that_it_is_taken_back() -> None:
    worker = WorkerFactory.create(lease_expires_at=NOW - timedelta(seconds=1))

    assert "whose lease has expired" in said(JobFactory.create(running=True, worker_id=worker.id))
    assert said(JobFactory.create(running=True)) == "Its worker is gone; another one takes the job back."


def test_a_jobs_page_shows_why_it_waits(ask: Asker) -> None:
    page = ask.page(due(timedelta(minutes=5), status="scheduled"))

    assert "It is due in" in page
    assert "No worker is running" in page

"""Rows with only the columns that a test is about: `JobFactory.create(key="k")`."""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.utils import timezone
from factory.declarations import LazyAttribute, LazyFunction, SelfAttribute, Sequence, Trait
from factory.django import DjangoModelFactory

from django_jobs import ids
from django_jobs.models import DeadLetter, Job, JobKey, JobRun, Worker
from django_jobs.statuses import DeathReason, JobStatus, LetterStatus, RunStatus


def no_arguments() -> dict[str, Any]:
    return {"args": [], "kwargs": {}}


class WorkerFactory(DjangoModelFactory[Worker]):
    class Meta:
        model = Worker

    name = Sequence(lambda n: f"worker-{n}")
    host = "web-1"
    pid = 4711
    started_at = LazyFunction(timezone.now)
    heartbeat_at = LazyFunction(timezone.now)
    lease_expires_at = LazyFunction(lambda: timezone.now() + timedelta(minutes=5))
    queue_names = None
    task_names = LazyFunction(lambda: ["tests.tasks.note"])


class JobFactory(DjangoModelFactory[Job]):
    """A ready job. `running=True` gives it a worker and a claim; `due_in=` schedules it."""

    class Meta:
        model = Job

    class Params:
        running = Trait(
            status=JobStatus.RUNNING,
            worker_id=LazyFunction(ids.job_id),
            claim_number=1,
            attempt=1,
            claimed_at=LazyFunction(timezone.now),
        )
        waiting = Trait(status=JobStatus.WAITING, waiting_since=LazyFunction(timezone.now))
        due_in = None

    id = LazyFunction(ids.job_id)
    task_name = "tests.tasks.note"
    queue_name = "default"
    priority = 0
    status = LazyAttribute(lambda job: JobStatus.SCHEDULED if job.due_in else JobStatus.READY)
    run_at = LazyAttribute(lambda job: timezone.now() + (job.due_in or timedelta(0)))
    enqueued_at = LazyFunction(timezone.now)
    payload = LazyFunction(no_arguments)
    key = None
    uniqueness = LazyAttribute(lambda job: "" if job.key is None else "ever")
    claim_number = SelfAttribute("attempt")
    attempt = 0


class JobRunFactory(DjangoModelFactory[JobRun]):
    class Meta:
        model = JobRun

    job_id = LazyFunction(ids.job_id)
    claim_number = SelfAttribute("attempt")
    attempt = 1
    status = RunStatus.SUCCEEDED
    is_last = True
    task_name = "tests.tasks.note"
    queue_name = "default"
    worker = "worker-1"
    started_at = LazyAttribute(lambda run: run.ended_at - timedelta(seconds=1))
    ended_at = LazyFunction(timezone.now)
    priority = 0
    enqueued_at = LazyAttribute(lambda run: run.ended_at - timedelta(seconds=3))
    run_at = SelfAttribute("enqueued_at")
    payload = LazyFunction(no_arguments)


class DeadLetterFactory(DjangoModelFactory[DeadLetter]):
    """An open letter. `replayed=True` and `discarded=True` close it."""

    class Meta:
        model = DeadLetter

    class Params:
        replayed = Trait(
            status=LetterStatus.REPLAYED,
            closed_at=LazyFunction(timezone.now),
            closed_by="somebody",
            replayed_as=LazyFunction(ids.job_id),
        )
        discarded = Trait(status=LetterStatus.DISCARDED, closed_at=LazyFunction(timezone.now), closed_by="somebody")

    job_id = LazyFunction(ids.job_id)
    reason = DeathReason.OUT_OF_TRIES
    task_name = "tests.tasks.note"
    queue_name = "default"
    priority = 0
    payload = LazyFunction(lambda: {"args": ["again"], "kwargs": {}})
    attempt = 5
    failures = 5
    crashes = 0
    interruptions = 0
    error_type = "ValueError"
    error_text = "it broke"
    traceback = 'Traceback (most recent call last):\n  File "tasks.py", line 1, in note\nValueError: it broke'
    fingerprint = "0f1e2d3c"
    enqueued_at = LazyFunction(lambda: timezone.now() - timedelta(hours=1))
    run_at = SelfAttribute("enqueued_at")
    died_at = LazyFunction(timezone.now)


class JobKeyFactory(DjangoModelFactory[JobKey]):
    class Meta:
        model = JobKey

    key = Sequence(lambda n: f"key-{n}")
    scope = "tests.tasks.note"
    holder_id = LazyFunction(ids.job_id)
    created_at = LazyFunction(timezone.now)

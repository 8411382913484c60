"""What a project's tests need: see what was enqueued, run it in the calling thread, or run it at once."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import router
from django.test import override_settings

from django_jobs import codec, signals
from django_jobs.conf import get_settings
from django_jobs.models import Job, JobRun
from django_jobs.registry import Task
from django_jobs.runs import EndedRun
from django_jobs.statuses import RunStatus
from django_jobs.worker import inline

FAILED = (RunStatus.FAILED, RunStatus.TIMED_OUT)


class JobFailed(AssertionError):
    """A run failed under `run_jobs(raise_errors=True)`. Its text holds the task's traceback; `run` says the rest."""

    def __init__(self, run: EndedRun, traceback: str) -> None:
        super().__init__(f"Task {run.task_name} failed, attempt {run.attempt} of job {run.job_id}.\n{traceback}")
        self.run = run


@dataclass(frozen=True)
class EnqueuedJob:
    """A job that waits, with the arguments it will be called with."""

    id: UUID
    task_name: str
    args: list[Any]
    kwargs: dict[str, Any]
    queue_name: str
    priority: int
    key: str | None
    status: str  # ready, scheduled, running or waiting
    run_at: datetime

    def __str__(self) -> str:
        shown = [*(repr(value) for value in self.args), *(f"{name}={value!r}" for name, value in self.kwargs.items())]
        key = "" if self.key is None else f" key={self.key!r}"
        return f"{self.task_name}({', '.join(shown)}) queue={self.queue_name!r} status={self.status}{key}"


def enqueued(
    task: Task | None = None, *, queue_name: str | None = None, database: str | None = None
) -> list[EnqueuedJob]:
    """List the jobs that have not ended, of one task or of all, in the order they were enqueued."""
    jobs = Job.objects.using(database or router.db_for_read(Job)).order_by("id")
    if task is not None:
        jobs = jobs.filter(task_name__in=(task.name, *task.aliases))
    if queue_name is not None:
        jobs = jobs.filter(queue_name=queue_name)
    return [_as_enqueued(job) for job in jobs]


def assert_enqueued(
    task: Task,
    *,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    key: str | None = None,
    queue_name: str | None = None,
    database: str | None = None,
) -> EnqueuedJob:
    """Return the one job of this task that fits; what is not given may be anything.

    With `args` or `kwargs` the whole call is compared, by parameter: `send(7)` is `send(user_id=7)`.

    Raises:
        AssertionError: none fits, or several do; it lists what is enqueued.
    """
    found = enqueued(task, queue_name=queue_name, database=database)
    if key is not None:
        found = [job for job in found if job.key == key]
    if args is not None or kwargs is not None:
        wanted = _by_parameter(task, *_as_stored(args or (), kwargs or {}))
        found = [job for job in found if _by_parameter(task, job.args, job.kwargs) == wanted]
    if len(found) == 1:
        return found[0]
    asked = {"args": args, "kwargs": kwargs, "key": key, "queue_name": queue_name}
    shown = "".join(f" {name}={value!r}" for name, value in asked.items() if value is not None)
    everything = enqueued(database=database)
    listed = "".join(f"\n  {job}" for job in everything) or " nothing."
    raise AssertionError(f"{len(found)} jobs of {task.name} fit{shown}, not 1. Enqueued:{listed}")


def run_jobs(
    *,
    queues: Sequence[str] | None = None,
    max_jobs: int | None = None,
    database: str | None = None,
    raise_errors: bool = False,
) -> list[EndedRun]:
    """Run what is ready, and what that enqueues, in the calling thread on its connection; return the runs that ended.

    Jobs due later are left alone, retries with a wait included. Failures are recorded as a worker would. Time limits of
    sync tasks are not enforced: nobody watches them.

    Raises:
        JobFailed: at the end, with `raise_errors`, for the first run that failed.
    """
    using = database or router.db_for_write(Job)
    ended: list[EndedRun] = []
    thread = threading.get_ident()

    def collect(*, runs: list[EndedRun], **kwargs: Any) -> None:
        if threading.get_ident() == thread:
            ended.extend(runs)

    signals.runs_ended.connect(collect)
    try:
        inline.run_jobs(using=using, queue_names=queues, max_jobs=max_jobs)
    finally:
        signals.runs_ended.disconnect(collect)
    failed = next((run for run in ended if run.status in FAILED), None)
    if raise_errors and failed is not None:
        raise JobFailed(failed, _traceback(failed, using))
    return ended


def _traceback(run: EndedRun, using: str) -> str:
    rows = JobRun.objects.using(using).filter(job_id=run.job_id, claim_number=run.claim_number)
    return rows.values_list("traceback", flat=True).first() or f"{run.error_type}: {run.error_text}"


def immediate() -> override_settings:
    """Run each job inside the call that enqueues it, for a block or, as a decorator, for a function or a test class."""
    return override_settings(DJANGO_JOBS={**getattr(settings, "DJANGO_JOBS", {}), "IMMEDIATE": True})


def _as_enqueued(job: Job) -> EnqueuedJob:
    args, kwargs = codec.decode_call(job.payload)
    return EnqueuedJob(
        id=job.id,
        task_name=job.task_name,
        args=args,
        kwargs=kwargs,
        queue_name=job.queue_name,
        priority=job.priority,
        key=job.key,
        status=job.status,
        run_at=job.run_at,
    )


def _as_stored(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The arguments as a job would get them: a tuple is a list by then."""
    return codec.decode_call(json.loads(codec.encode_call(args, kwargs, max_size=get_settings().MAX_PAYLOAD_SIZE)))


def _by_parameter(task: Task, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The call by parameter, with defaults filled in."""
    bound = task.parameters.signature.bind(*args, **kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)

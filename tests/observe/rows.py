"""Rows of the three tables that alerts look at, written without going through a worker."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django_jobs.database import read_clock
from django_jobs.ids import job_id
from django_jobs.models import DeadLetter, Job, JobRun
from django_jobs.statuses import JobStatus, RunStatus


def job(*, due: timedelta, status: JobStatus = JobStatus.READY, **values: Any) -> Job:
    """A job that was due so long ago (or, if negative, will be)."""
    now = read_clock("default")
    defaults: dict[str, Any] = {
        "task_name": "shop.tasks.send_mail",
        "queue_name": "default",
        "priority": 0,
        "payload": {"args": [], "kwargs": {}},
        "enqueued_at": now - timedelta(days=7),
    }
    return Job(status=status, run_at=now - due, **{**defaults, **values})


def run(*, ended: timedelta, status: RunStatus = RunStatus.SUCCEEDED, **values: Any) -> JobRun:
    """A run that ended so long ago."""
    now = read_clock("default")
    return JobRun(
        job_id=job_id(), claim_number=1, attempt=1, status=status, is_last=True, task_name="shop.tasks.send_mail",
        queue_name="default", ended_at=now - ended, **values,
    )  # fmt: skip


def letter(**values: Any) -> DeadLetter:
    """An open dead letter of a moment ago."""
    now = read_clock("default")
    defaults: dict[str, Any] = {
        "job_id": job_id(), "reason": "out_of_tries", "task_name": "shop.tasks.send_mail", "queue_name": "default",
        "priority": 0, "payload": {}, "attempt": 5, "failures": 5, "crashes": 0, "interruptions": 0,
        "enqueued_at": now, "run_at": now, "died_at": now,
    }  # fmt: skip
    return DeadLetter(**{**defaults, **values})

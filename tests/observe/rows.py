"""Unsaved rows of the three tables that alerts look at, by how long ago something happened."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.utils import timezone

from django_jobs.models import DeadLetter, Job, JobRun
from django_jobs.statuses import JobStatus, RunStatus
from tests.factories import DeadLetterFactory, JobFactory, JobRunFactory


def job(*, due: timedelta, status: JobStatus = JobStatus.READY, **values: Any) -> Job:
    """A job of last week that was due so long ago (or, if negative, will be)."""
    now = timezone.now()
    return JobFactory.build(status=status, run_at=now - due, enqueued_at=now - timedelta(days=7), **values)


def run(*, ended: timedelta, status: RunStatus = RunStatus.SUCCEEDED, **values: Any) -> JobRun:
    """A run that ended so long ago."""
    return JobRunFactory.build(status=status, ended_at=timezone.now() - ended, **values)


def letter(**values: Any) -> DeadLetter:
    """An open dead letter of a moment ago."""
    return DeadLetterFactory.build(**values)

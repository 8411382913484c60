"""Job -> JobRun(cancelled)."""

from __future__ import annotations

from uuid import UUID

from django.db import connections

from django_jobs import logs
from django_jobs.database import Clock, write_transaction
from django_jobs.exceptions import JobDoesNotExist
from django_jobs.lifecycle import guard
from django_jobs.lifecycle.finish import carry_job
from django_jobs.models import DeadLetter, Job, JobRun
from django_jobs.statuses import JobStatus, RunStatus


def cancel(job_id: UUID, *, by: str = "", using: str) -> bool:
    """End a live job without running it (again) and free its key. False: too late, it had ended before.

    A run under way is told so by its context and goes on until it looks; whatever its outcome, the fence refuses it.
    In an open transaction this holds the job's row, and no worker waits for it.

    Raises:
        JobDoesNotExist: no job has this id.
    """
    with write_transaction(using):
        rows = Job.objects.using(using).filter(id=job_id)
        if connections[using].features.has_select_for_update:
            rows = rows.select_for_update()
        job = rows.first()
        if job is None:
            _require_ended(job_id, using=using)
            return False
        _record(job, using=using)
        Job.objects.using(using).filter(id=job.id).delete()
        if job.key is not None:
            guard.release([job.id], using=using)
    logs.job_cancelled(job.id, task_name=job.task_name, by=by)
    return True


def _record(job: Job, *, using: str) -> None:
    """Take the fence of the run under way, or stand for a run that never was."""
    is_running = job.status == JobStatus.RUNNING
    run = JobRun(
        job_id=job.id,
        claim_number=job.claim_number if is_running else job.claim_number + 1,
        attempt=job.attempt if is_running else 0,
        status=RunStatus.CANCELLED,
        is_last=True,
        task_name=job.task_name,
        queue_name=job.queue_name,
        started_at=job.claimed_at if is_running else None,
        ended_at=Clock(),
    )
    carry_job(run, job)
    run.save(using=using, force_insert=True)


def _require_ended(job_id: UUID, *, using: str) -> None:
    if JobRun.objects.using(using).filter(job_id=job_id).exists():
        return
    if DeadLetter.objects.using(using).filter(job_id=job_id).exists():
        return
    raise JobDoesNotExist(f"No job has the id {job_id}. It was never committed, or pruned, or is on another database.")

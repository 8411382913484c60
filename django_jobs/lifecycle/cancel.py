"""Job -> JobRun(cancelled)."""

from __future__ import annotations

from functools import partial
from uuid import UUID

from django_jobs import logs
from django_jobs.database import after_commit, delete_rows, lock_rows, read_clock, write_transaction
from django_jobs.exceptions import JobDoesNotExist
from django_jobs.lifecycle import guard
from django_jobs.lifecycle.finish import announce_runs, carry_job
from django_jobs.models import DeadLetter, Job, JobRun
from django_jobs.runs import EndedRun, Then
from django_jobs.statuses import JobStatus, RunStatus


def cancel(job_id: UUID, *, by: str = "", using: str) -> bool:
    """End a live job without running it (again) and free its key. False: too late, it had ended before.

    A run under way is told so by its context and goes on until it looks; whatever its outcome, the fence refuses it.
    In an open transaction this holds the job's row, and no worker waits for it.

    Raises:
        JobDoesNotExist: no job has this id.
    """
    with write_transaction(using):
        rows = Job.objects.using(using).filter(id=job_id).defer("payload", "options")
        job = lock_rows(rows, using=using, wait=True).first()
        if job is None:
            _require_ended(job_id, using=using)
            return False
        run = _as_run(job, using=using)
        JobRun.objects.using(using).bulk_create([run])
        delete_rows(Job.objects.using(using).filter(id=job.id))
        if job.key is not None:
            guard.release([job.id], using=using)
        if run.attempt:
            after_commit(partial(announce_runs, [_ended(run)], using=using), using=using)
    logs.job_cancelled(job.id, task_name=job.task_name, by=by)
    return True


def _as_run(job: Job, *, using: str) -> JobRun:
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
        ended_at=read_clock(using),
    )
    carry_job(run, job)
    return run


def _ended(run: JobRun) -> EndedRun:
    started_at = run.started_at or run.ended_at
    return EndedRun(
        job_id=run.job_id,
        claim_number=run.claim_number,
        task_name=run.task_name,
        queue_name=run.queue_name,
        status=RunStatus.CANCELLED,
        then=Then.DONE,
        attempt=run.attempt,
        duration=(run.ended_at - started_at).total_seconds(),
        waited=max((started_at - run.run_at).total_seconds(), 0.0) if run.run_at else 0.0,
        worker=run.worker,
        error_type="",
        error_text="",
        retry_in=None,
        reason=None,
    )


def _require_ended(job_id: UUID, *, using: str) -> None:
    if JobRun.objects.using(using).filter(job_id=job_id).exists():
        return
    if DeadLetter.objects.using(using).filter(job_id=job_id).exists():
        return
    raise JobDoesNotExist(f"No job has the id {job_id}. It was never committed, or pruned, or is on another database.")

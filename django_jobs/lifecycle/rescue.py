"""Job(running) -> JobRun(lost), and Job(scheduled) | DeadLetter: take back the jobs of workers that are gone."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from django.db import connections
from django.db.models import Exists, OuterRef

from django_jobs import logs
from django_jobs.backoff import Backoff
from django_jobs.conf import get_settings
from django_jobs.database import Clock, read_clock, write_transaction
from django_jobs.errors import ErrorRecord
from django_jobs.ids import job_id
from django_jobs.lifecycle.finish import finish
from django_jobs.models import Job, Worker
from django_jobs.registry import find
from django_jobs.runs import Charge, ClaimedRun, Outcome, Then, WorkerIdentity
from django_jobs.statuses import DeathReason, JobStatus, RunStatus


def rescue(*, using: str, limit: int = 100) -> int:
    """Take back jobs of workers whose lease is over or whose row is gone, up to `limit` of each. How many.

    Call it only from a process whose own heartbeat was unbroken for a whole lease: after an outage every lease looks over.
    """
    gone = Worker.objects.using(using).filter(lease_expires_at__lt=Clock()).values_list("id", "name")
    rescued = sum(rescue_worker(WorkerIdentity(*row), using=using, limit=limit) for row in gone)
    return rescued + sum(_rescue_jobs(worker, using=using, limit=limit) for worker in _without_row(using))


def rescue_worker(worker: WorkerIdentity, *, using: str, limit: int = 100, at_once: bool = False) -> int:
    """Take back one worker's jobs if its lease is over, or `at_once` if it is known to be dead. How many."""
    with write_transaction(using):
        row = Worker.objects.using(using).filter(id=worker.id)
        if not at_once:
            # Repeated under the lock: its heartbeat may have come in between.
            row = row.filter(lease_expires_at__lt=Clock())
        if connections[using].features.has_select_for_update:
            row = row.select_for_update(skip_locked=connections[using].features.has_select_for_update_skip_locked)
        if not row.exists():
            return 0
        rescued = _rescue_jobs(worker, using=using, limit=limit)
        if not Job.objects.using(using).filter(status=JobStatus.RUNNING, worker_id=worker.id).exists():
            Worker.objects.using(using).filter(id=worker.id).delete()
    return rescued


def _without_row(using: str) -> Iterable[WorkerIdentity]:
    """The workers named in running jobs that have no row: somebody deleted it."""
    row = Worker.objects.filter(id=OuterRef("worker_id"))
    orphans = Job.objects.using(using).filter(~Exists(row), status=JobStatus.RUNNING)
    ids = orphans.order_by().values_list("worker_id", flat=True).distinct()[:100]
    return [WorkerIdentity(worker_id, str(worker_id)) for worker_id in ids if worker_id is not None]


def _rescue_jobs(worker: WorkerIdentity, *, using: str, limit: int) -> int:
    rows = Job.objects.using(using).filter(status=JobStatus.RUNNING, worker_id=worker.id).order_by("id")[:limit]
    now = read_clock(using)
    outcomes = [_lost(_as_claimed(job), worker, now) for job in rows]
    rescued = len(finish(outcomes, worker, using=using).recorded)
    if rescued:
        logs.jobs_rescued(rescued, worker=worker.name)
    return rescued


def _as_claimed(job: Job) -> ClaimedRun:
    return ClaimedRun(job.id, *(getattr(job, name) for name in ClaimedRun._fields[1:]))


def _lost(run: ClaimedRun, worker: WorkerIdentity, now: datetime) -> Outcome:
    """The outcome of a run whose worker is gone: a crash, retried until there were too many."""
    crashes = run.crashes + 1
    dies = crashes >= get_settings().MAX_CRASHES
    task = find(run.task_name)
    backoff = task.backoff if task else Backoff()
    return Outcome(
        run,
        RunStatus.LOST,
        Then.DIE if dies else Then.RETRY,
        charge=Charge.CRASH,
        duration=(now - run.claimed_at).total_seconds(),
        delay=None if dies else backoff.delay(crashes),
        reason=DeathReason.WORKER_LOST if dies else None,
        error=ErrorRecord(
            error_type="WorkerLost",
            text=f"Worker {worker.name} ended, or lost touch with the database, while it held this job.",
            traceback="",
            fingerprint="worker-lost",
        ),
    )


def bury_unknown(*, using: str, limit: int = 100) -> int:
    """Let jobs die whose task no worker has known for UNKNOWN_TASK_PATIENCE. How many."""
    patience = get_settings().UNKNOWN_TASK_PATIENCE
    rows = Job.objects.using(using).filter(status=JobStatus.WAITING, waiting_since__lte=Clock(-patience))
    buried = 0
    for job in rows.order_by("id")[:limit]:
        buried += _bury(job, patience, using=using)
    return buried


def _bury(job: Job, patience: timedelta, *, using: str) -> int:
    """Claim one waiting job in the name of nobody and let it die, in one transaction."""
    nobody = WorkerIdentity(job_id(), "")
    with write_transaction(using):
        rows = Job.objects.using(using).filter(
            id=job.id, status=JobStatus.WAITING, claim_number=job.claim_number, waiting_since__lte=Clock(-patience)
        )
        now = read_clock(using)
        numbers = {"claim_number": job.claim_number + 1, "claimed_at": now}
        if not rows.update(status=JobStatus.RUNNING, worker_id=nobody.id, waiting_since=None, **numbers):
            return 0
        job.claim_number, job.claimed_at = job.claim_number + 1, now
        finished = finish([_unknown(_as_claimed(job))], nobody, using=using)
    return len(finished.recorded)


def _unknown(run: ClaimedRun) -> Outcome:
    return Outcome(
        run,
        RunStatus.FAILED,
        Then.DIE,
        reason=DeathReason.UNKNOWN_TASK,
        error=ErrorRecord(
            error_type="UnknownTask",
            text=f"No worker knows a task named {run.task_name!r}. Restore it, or list the name among the aliases of another.",
            traceback="",
            fingerprint="unknown-task",
        ),
    )

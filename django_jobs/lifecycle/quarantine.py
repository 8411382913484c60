"""Job(running) -> Job(scheduled) -> Job(running): what may have ended a worker is put aside and then claimed alone.

A suspect is a job with a crash on its account. It waits as `scheduled`, out of every claim's way, for a worker that has
nothing else to do; if none comes, it is due after a lease, is claimed with others, and put aside again.

`waiting_since` tells how a suspect came to run: only a claim out of quarantine leaves it. A suspect that a worker held
without it was never started there.
"""

from __future__ import annotations

from collections.abc import Sequence

from django.db.models import QuerySet

from django_jobs.conf import get_settings
from django_jobs.database import Clock
from django_jobs.lifecycle.claim import hold_back, take
from django_jobs.models import Job
from django_jobs.runs import ClaimedRun, WorkerIdentity
from django_jobs.statuses import JobStatus


def put_aside(suspects: Sequence[ClaimedRun], worker: WorkerIdentity, *, using: str) -> None:
    """Let these claims wait for a free worker, as if they had never been claimed."""
    hold_back(suspects, worker, using=using, after=get_settings().LEASE, waiting_since=Clock())


def claim_suspect(
    worker: WorkerIdentity, queue_names: Sequence[str] | None, known: frozenset[str], *, using: str
) -> list[ClaimedRun]:
    """Claim the suspect that waits longest, for a worker in which nothing runs. At most one.

    Nothing may be started beside it, so that it alone is charged if the process dies again.
    """
    rows = _aside(queue_names, using=using).filter(task_name__in=known)
    if not rows.exists():  # an idle worker must not ask SQLite for its only write lock
        return []
    return take(rows, worker, 1, using=using)


def is_anything_aside(queue_names: Sequence[str] | None, *, using: str) -> bool:
    """Whether a suspect waits for a free worker."""
    return _aside(queue_names, using=using).exists()


def _aside(queue_names: Sequence[str] | None, *, using: str) -> QuerySet[Job]:
    # The limit keeps this in the part of the index of scheduled jobs that is due next.
    soon = Clock(get_settings().LEASE)
    rows = Job.objects.using(using).filter(status=JobStatus.SCHEDULED, run_at__lte=soon, waiting_since__isnull=False)
    if queue_names is not None:
        rows = rows.filter(queue_name__in=queue_names)
    return rows.order_by("run_at", "id")


def was_never_started(job: Job) -> bool:
    """Whether a running job is a suspect that was claimed among others, where it is only put aside."""
    return job.crashes > 0 and job.waiting_since is None

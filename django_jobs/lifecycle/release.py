"""Job(running) -> Job(ready): hand back what was claimed but never started, as if it had not been claimed."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from django.db.models import F, Q

from django_jobs.database import forced_index, lock_rows, write_transaction
from django_jobs.lifecycle.wake import wake_on_commit
from django_jobs.models import Job
from django_jobs.runs import WorkerIdentity
from django_jobs.statuses import JobStatus


def fence(claims: Iterable[tuple[UUID, int]], worker: WorkerIdentity) -> Q:
    """The rows of these (job id, claim number) pairs, as long as they are this worker's."""
    numbers: dict[int, list[UUID]] = {}
    for job_id, claim_number in claims:
        numbers.setdefault(claim_number, []).append(job_id)
    pairs = Q(pk__in=[])
    for claim_number, ids in numbers.items():
        pairs |= Q(claim_number=claim_number, id__in=ids)
    return Q(pairs, worker_id=worker.id, status=JobStatus.RUNNING)


def release(claims: Iterable[tuple[UUID, int]], worker: WorkerIdentity, *, using: str) -> int:
    """Hand these (job id, claim number) pairs back, uncharged and without a run. How many were still this worker's.

    A row that somebody locks is not waited for: `extend.held` still names it.
    """
    rows = Job.objects.using(using).filter(fence(claims, worker))
    with write_transaction(using):
        queue_names = dict(lock_rows(rows, using=using).values_list("id", "queue_name"))
        with forced_index("PRIMARY", using=using):
            changes = {"status": JobStatus.READY, "worker_id": None, "attempt": F("attempt") - 1}
            count = rows.filter(id__in=list(queue_names)).update(**changes)
    if count:
        wake_on_commit(queue_names.values(), using=using)
    return count

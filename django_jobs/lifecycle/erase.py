"""A job and all that is left of it -> nothing: for jobs that nobody asked for, such as a benchmark's."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from django_jobs.database import write_transaction
from django_jobs.models import DeadLetter, Job, JobRun

BATCH = 1000  # jobs in one transaction


def erase(job_ids: Sequence[UUID], *, using: str) -> int:
    """Delete these jobs, their runs and their dead letters, whatever their state. How many rows."""
    count = 0
    for start in range(0, len(job_ids), BATCH):
        ids = job_ids[start : start + BATCH]
        with write_transaction(using):
            count += Job.objects.using(using).filter(id__in=ids)._raw_delete(using)
            count += JobRun.objects.using(using).filter(job_id__in=ids)._raw_delete(using)
            count += DeadLetter.objects.using(using).filter(job_id__in=ids)._raw_delete(using)
    return count


def erase_queue(queue_name: str, task_name: str, *, using: str) -> int:
    """Delete the live jobs of one task in one queue. How many rows."""
    left = Job.objects.using(using).filter(queue_name=queue_name, task_name=task_name)
    return erase(list(left.values_list("id", flat=True)), using=using)

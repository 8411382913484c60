"""The first ready job of each queue and priority, found by one probe of an index for each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

from django.db.models import QuerySet

from django_jobs.models import Job
from django_jobs.models.fields import Readable
from django_jobs.statuses import JobStatus


class Head(NamedTuple):
    """Of several jobs the one that is to be claimed first."""

    queue_name: str
    priority: int
    due_at: datetime


def ready(using: str) -> QuerySet[Job]:
    """What is ready, in the order in which it is claimed, which is that of an index."""
    return Job.objects.using(using).filter(status=JobStatus.READY).order_by("queue_name", "-priority", "run_at", "id")


def heads(queue_names: Sequence[str] | None = None, *, using: str) -> Iterator[Head]:
    """Yield the head of each priority, the highest first, queue by queue; with `queue_names` None of every queue."""
    rows = ready(using)
    if queue_names is None:
        head = first_of(rows)
        while head is not None:
            yield from _and_below(head, rows)
            head = first_of(rows.filter(queue_name__gt=head.queue_name))
        return
    for name in queue_names:
        head = first_of(rows.filter(queue_name=name))
        if head is not None:
            yield from _and_below(head, rows)


def _and_below(head: Head, rows: QuerySet[Job]) -> Iterator[Head]:
    below: Head | None = head
    while below is not None:
        yield below
        below = first_of(rows.filter(queue_name=head.queue_name, priority__lt=below.priority))


def first_of(rows: QuerySet[Job]) -> Head | None:
    """The first of these rows, or None."""
    return next(as_heads(rows, 1), None)


def as_heads(rows: QuerySet[Job], limit: int) -> Iterator[Head]:
    """Yield the first `limit` of these rows, each as the head of itself."""
    return map(Head._make, rows.values_list("queue_name", "priority", Readable("run_at"))[:limit])

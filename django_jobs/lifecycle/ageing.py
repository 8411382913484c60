"""Job(ready) -> Job(ready, higher priority): what has been due for PRIORITY_AGEING goes before what has not."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from itertools import groupby
from operator import attrgetter

from django_jobs import logs
from django_jobs.conf import get_settings
from django_jobs.database import Clock, change_free, read_clock
from django_jobs.lifecycle.heads import Head, heads, ready

AGE_BATCH = 1000  # jobs of one priority that are raised at a time: until the next time the others have their turn


def age(queue_names: Sequence[str] | None = None, *, using: str) -> int:
    """Raise what has been due for PRIORITY_AGEING to the highest priority that is ready in its queue. How many jobs.

    There it lies before what was due later, so that a steady stream of a higher priority starves nothing. Up to
    `AGE_BATCH` jobs of each queue and priority, those due first; of the queues named only, with None of all.
    """
    ageing = get_settings().PRIORITY_AGEING
    if ageing is None:
        return 0
    before = read_clock(using) - ageing
    count = 0
    for queue_name, group in groupby(heads(queue_names, using=using), attrgetter("queue_name")):
        top, *lower = group
        aged = [head for head in lower if head.due_at <= before]
        raised = sum(_raise(head, top.priority, ageing, using=using) for head in aged)
        if raised:
            logs.jobs_raised(raised, queue_name=queue_name, priority=top.priority)
        count += raised
    return count


def _raise(head: Head, priority: int, ageing: timedelta, *, using: str) -> int:
    aged = ready(using).filter(queue_name=head.queue_name, priority=head.priority, run_at__lte=Clock(-ageing))
    return change_free(aged, AGE_BATCH, using=using, priority=priority)

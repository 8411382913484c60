"""JobRun, closed DeadLetter, expired JobKey and old Lock -> nothing, in small batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

from django.db.models import QuerySet

from django_jobs import logs
from django_jobs.conf import get_settings
from django_jobs.database import Clock
from django_jobs.lifecycle import guard
from django_jobs.models import DeadLetter, JobKey, JobRun, Lock
from django_jobs.models.fields import Readable
from django_jobs.statuses import LetterStatus, RunStatus

EARLIEST = 2  # year; a moment before it is read as one in it
LOCKS_KEPT = timedelta(days=90)  # after expiry, so that a name in use never restarts its fencing numbers


def prune(*, using: str, should_stop: Callable[[], bool] = lambda: False) -> dict[str, int]:
    """Delete what is past its retention, PRUNE_BATCH rows per transaction, until nothing is left or `should_stop()`.

    Returns the number of rows by kind.
    """
    counts: Counter[str] = Counter()
    for name, rows in _old_rows(using):
        since = None
        while not should_stop():
            deleted, since = _delete_batch(rows, since)
            counts[name] += deleted
            if not deleted:
                break
    logs.rows_pruned(counts)
    return dict(counts)


def prune_step(*, using: str) -> bool:
    """Delete at most one batch of each kind. True if there may be more."""
    batch = get_settings().PRUNE_BATCH
    counts: Counter[str] = Counter()
    is_more = False
    for name, rows in _old_rows(using):
        deleted, _ = _delete_batch(rows)
        counts[name] += deleted
        is_more |= deleted == batch
    logs.rows_pruned(counts)
    return is_more


def to_prune(using: str) -> list[QuerySet[Any]]:
    """The rows that `prune` would delete, by kind."""
    return [rows for _, rows in _old_rows(using)]


def _old_rows(using: str) -> Iterator[tuple[str, QuerySet[Any]]]:
    """What may go, by kind, oldest first in the order of an index."""
    settings = get_settings()
    for status in RunStatus:
        keep = settings.KEEP_SUCCEEDED if status is RunStatus.SUCCEEDED else settings.KEEP_OTHER_RUNS
        if keep is not None:
            runs = JobRun.objects.using(using).filter(status=status, ended_at__lt=Clock(-keep))
            yield "runs", runs.order_by("ended_at")
    if settings.KEEP_CLOSED_LETTERS is not None:
        before = Clock(-settings.KEEP_CLOSED_LETTERS)
        for closed in (LetterStatus.REPLAYED, LetterStatus.DISCARDED):
            # died_at is implied by closed_at, and it is the one with the index.
            letters = DeadLetter.objects.using(using).filter(status=closed, died_at__lt=before, closed_at__lt=before)
            yield "dead_letters", letters.order_by("died_at")
    yield "keys", JobKey.objects.using(using).filter(guard.expired()).order_by("expires_at")
    yield "locks", Lock.objects.using(using).filter(expires_at__lt=Clock(-LOCKS_KEPT)).order_by("expires_at")


def _delete_batch(rows: QuerySet[Any], since: datetime | None = None) -> tuple[int, datetime | None]:
    """Delete the first PRUNE_BATCH of these rows. How many, and the moment of the last: the next lies `since` then.

    Without that moment each batch would walk over the index entries of all that went before it, until a vacuum comes.
    """
    (moment,) = rows.query.order_by
    left = rows if since is None else rows.filter(**{f"{moment}__gte": since})
    batch = list(left.values_list("pk", Readable(moment))[: get_settings().PRUNE_BATCH])
    if not batch:
        return 0, since
    first, last = batch[0][1], batch[-1][1]
    # The condition is repeated, as a key may be taken over meanwhile; with both moments, for with old statistics
    # PostgreSQL may look for the ids among all that fits it. Raw: a project's receiver of every model's post_delete
    # must not cost one query a row.
    doomed = rows.order_by().filter(**{f"{moment}__lte": last}, pk__in=[pk for pk, _ in batch])
    if first.year > EARLIEST:
        doomed = doomed.filter(**{f"{moment}__gte": first})
    return doomed._raw_delete(rows.db), last

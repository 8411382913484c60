"""Wake sleeping workers after a commit. A hint: their poll is the guarantee."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from datetime import timedelta
from functools import partial

from django.db import connections

from django_jobs.conf import get_settings
from django_jobs.database import after_commit
from django_jobs.driver import execute_prepared

CHANNEL = "django_jobs"
LONGEST_SLEEP = timedelta(seconds=20)  # a worker that hears wake-ups looks at least so often, or each POLL_INTERVAL
DEBOUNCE = 0.01  # seconds; a worker that was woken looks again after this long, so a hint left out is not missed
NOBODY = 0.25  # seconds for which an answer that nobody sleeps is good; who falls asleep looks again after this long

_until: dict[tuple[str, str], float] = {}  # when a queue's workers may have to be woken again


def wake_on_commit(queue_names: Collection[str], *, using: str) -> None:
    """Wake the workers of these queues once the current transaction has committed; at once outside of one."""
    connection = connections[using]
    if connection.vendor != "postgresql" or not get_settings().NOTIFY:
        return
    # NOTIFY belongs outside the caller's transaction: commits that notify stand in one line.
    if connection.in_atomic_block or any(_may_sleep(name, using) for name in queue_names):
        after_commit(partial(wake, sorted(set(queue_names)), using=using), using=using)


def is_soon(delay: timedelta | None) -> bool:
    """Whether a job that waits so long is due before every sleeping worker has looked by itself."""
    return delay is None or delay < max(LONGEST_SLEEP, get_settings().POLL_INTERVAL)


# A worker's sleep must not be asked for in the statement or the transaction that writes the job: one that falls asleep
# after that and looks before the commit would be missed. Asked for after it, it either sleeps, or will look.
_WAKE = """
    SELECT pg_notify(%s, %s) FROM django_jobs_worker WHERE NOT is_awake AND coalesce(queue_names ? %s, true) LIMIT 1"""


def wake(queue_names: Iterable[str], *, using: str) -> None:
    """Send one NOTIFY for each queue of which a worker sleeps, unless that was done or found needless just now."""
    for name in queue_names:
        if not _may_sleep(name, using):
            continue
        now = time.monotonic()
        cursor = execute_prepared(connections[using], _WAKE, [CHANNEL, name, name], asks=False)
        # From before the statement on, whose snapshot is younger; and only if it was answered.
        _until[using, name] = now + (DEBOUNCE if cursor.rowcount > 0 else NOBODY)


def _may_sleep(queue_name: str, using: str) -> bool:
    return time.monotonic() >= _until.get((using, queue_name), 0.0)

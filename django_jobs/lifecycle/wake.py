"""Wake sleeping workers after a commit. A hint: their poll is the guarantee."""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import partial

from django.db import connections

from django_jobs.conf import get_settings
from django_jobs.database import after_commit

CHANNEL = "django_jobs"
DEBOUNCE = 0.01  # seconds; a worker that was woken looks again after this long, so a hint left out is not missed

_last: dict[tuple[str, str], float] = {}


def wake_on_commit(queue_names: Iterable[str], *, using: str) -> None:
    """Wake the workers of these queues once the current transaction has committed; at once outside of one."""
    # NOTIFY belongs outside the caller's transaction: commits that notify stand in one line.
    if connections[using].vendor == "postgresql" and get_settings().NOTIFY:
        after_commit(partial(wake, sorted(set(queue_names)), using=using), using=using)


def wake(queue_names: Iterable[str], *, using: str) -> None:
    """Send one NOTIFY for each queue that had none within the last `DEBOUNCE` seconds."""
    due = [name for name in queue_names if _is_due(using, name)]
    if not due:
        return
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT pg_notify(%s, name) FROM unnest(%s::text[]) AS name", [CHANNEL, due])


def _is_due(using: str, queue_name: str) -> bool:
    now = time.monotonic()
    if now - _last.get((using, queue_name), -DEBOUNCE) < DEBOUNCE:
        return False
    _last[using, queue_name] = now
    return True

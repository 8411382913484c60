"""Run what is ready in the calling thread, on its connection: in a TestCase nothing may be committed or closed."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from contextvars import Context

from asgiref.sync import async_to_sync
from django.db import DatabaseError, connections, transaction

from django_jobs import registry
from django_jobs.conf import get_settings
from django_jobs.execution import Attempt, Recording, aexecute, execute
from django_jobs.lifecycle import claim, extend, finish, release
from django_jobs.runs import ClaimedRun, Outcome, WorkerIdentity
from django_jobs.worker.atomic import recording

PERSONS = (KeyboardInterrupt,)  # Ctrl-C is for whoever runs the tests, not an error of the task


def run_jobs(*, using: str = "default", queue_names: Sequence[str] | None = None, max_jobs: int | None = None) -> int:
    """Run jobs until none is ready, those included that jobs enqueue, or until so many were started. How many.

    What is due later is left alone. No thread is started, no signal handled, no connection closed. Time limits of sync
    tasks are not enforced, as there is nobody to watch them.
    """
    known = frozenset(registry.names())
    identity = extend.register("", queue_names, sorted(known), using=using)
    record = recording(lambda: identity, using=using, lease=get_settings().LEASE.total_seconds())
    count = 0
    try:
        while max_jobs is None or count < max_jobs:
            claim.promote(using=using)
            runs = claim.claim(identity, queue_names, 1, known, using=using)
            if not runs:
                break
            _run(runs[0], identity, record, using)
            count += 1
    finally:
        with contextlib.suppress(DatabaseError):
            extend.retire(identity, using=using)
    return count


def _run(run: ClaimedRun, identity: WorkerIdentity, record: Recording, using: str) -> None:
    attempt = Attempt(run, registry.get(run.task_name), time.monotonic())
    try:
        with _effects(using):
            outcome = _executed(attempt, record)
    except BaseException:
        with contextlib.suppress(DatabaseError):
            release.release([attempt.fence], identity, using=using)
        raise
    if outcome is not None:
        finish.finish([outcome], identity, using=using)


def _executed(attempt: Attempt, record: Recording) -> Outcome | None:
    if attempt.task.is_async:
        # async_to_sync brings home what the task has set in its context.
        return Context().run(async_to_sync(aexecute), attempt, lets_through=PERSONS)
    return execute(attempt, recording=record, lets_through=PERSONS)


@contextlib.contextmanager
def _effects(using: str) -> Iterator[None]:
    """Keep what the task wrote; but if it left the surrounding transaction broken, undo as much as it takes to go on.

    In a worker, where there is no surrounding transaction, a failed statement ends nothing but itself.
    """
    connection = connections[using]
    if not connection.in_atomic_block:
        yield
        return
    savepoint = connection.savepoint() or ""  # transaction.savepoint() is deprecated from Django 6.1 on
    yield
    if connection.needs_rollback or not _keep(savepoint, using):
        connection.needs_rollback = False
        transaction.savepoint_rollback(savepoint, using=using)


def _keep(savepoint: str, using: str) -> bool:
    try:
        transaction.savepoint_commit(savepoint, using=using)
    except DatabaseError:  # PostgreSQL: an earlier statement failed, and its error was caught
        return False
    return True

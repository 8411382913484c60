"""Exactly once for database effects: the task and the record of its success in one transaction."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple

from django.db import InterfaceError, OperationalError, connections, transaction

from django_jobs.exceptions import LeaseLost
from django_jobs.execution import policy
from django_jobs.execution.answers import Wait
from django_jobs.execution.attempt import Attempt
from django_jobs.runs import Outcome, Then


class Recording(NamedTuple):
    """How an atomic task is recorded. The caller gives the functions that write."""

    using: str
    begin: Callable[[float], None]  # seconds until the time limit; called first in the transaction
    record: Callable[[Outcome], Any]  # writes into the open transaction; LeaseLost if the job is somebody else's
    committed: Callable[[Any], None]  # is given what `record` returned
    patience: float = 30.0  # seconds for each statement of these, which no time limit of the task watches


class _Undo(Exception):
    """The task did not succeed: its transaction is to be rolled back."""


def record_atomically(attempt: Attempt, call: Callable[[], Outcome], recording: Recording) -> Outcome | None:
    """Call inside a transaction that also records the success. None if it is recorded, or if the lease was lost."""
    outcome: Outcome | None = None
    session: object = None
    connection = connections[recording.using]
    try:
        with ExitStack() as ending, transaction.atomic(using=recording.using):
            with Wait(connection, recording.patience):
                recording.begin(attempt.task.effective(attempt.run.options).timeout.total_seconds())
            session = connection.connection
            outcome = call()
            # Left after the COMMIT, or the ROLLBACK.
            ending.enter_context(Wait(connection, recording.patience))
            if outcome.then is not Then.DONE:
                raise _Undo  # noqa: TRY301  the only way to roll back is to raise
            recorded = recording.record(outcome)
    except _Undo:
        return outcome
    except LeaseLost:
        return None
    except Exception as error:  # noqa: BLE001  a deferred constraint, a broken transaction, a connection that is gone
        return _not_committed(attempt, error, session, recording.using)
    recording.committed(recorded)
    return None


def _not_committed(attempt: Attempt, error: Exception, session: object, using: str) -> Outcome:
    if isinstance(error, (OperationalError, InterfaceError)) and not _lives(session, using):
        return policy.undone(attempt, error)
    return policy.raised(attempt, error)


def _lives(session: object, using: str) -> bool:
    """Whether this driver's connection is still in use, and answers; Django opens another one as it leaves atomic()."""
    connection = connections[using]
    return session is not None and connection.connection is session and connection.is_usable()

"""Run a sync task in the calling thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import Context
from typing import Any

from django_jobs import codec
from django_jobs.context import enter
from django_jobs.exceptions import TimeLimitExceeded, UnreadablePayload
from django_jobs.execution import policy
from django_jobs.execution.atomic import Recording, record_atomically
from django_jobs.execution.attempt import Attempt
from django_jobs.execution.deadlines import disarm
from django_jobs.runs import Outcome

_NOTHING = object()


def execute(
    attempt: Attempt,
    *,
    recording: Recording,
    stopping: Callable[[], bool] = lambda: False,
    lets_through: tuple[type[BaseException], ...] = (),
) -> Outcome | None:
    """Run the task to its end and say what became of it.

    It runs in a context of its own, so that no context variable, language or time zone passes from one job to the next.

    An atomic task is recorded inside its own transaction: then, or if its lease was found lost, the answer is None.
    Exceptions of the types `lets_through` are raised, not recorded: Ctrl-C where a person runs jobs in a shell.
    """

    # Empty, not a copy: what a context holds may itself be changed, such as decimal's.
    if attempt.task.atomic:
        return record_atomically(attempt, lambda: Context().run(_call, attempt, stopping, lets_through), recording)
    return Context().run(_call, attempt, stopping, lets_through)


def _call(attempt: Attempt, stopping: Callable[[], bool], lets_through: tuple[type[BaseException], ...]) -> Outcome:
    attempt.thread_id = threading.get_ident()
    enter(attempt.begin(stopping))
    try:
        args, kwargs = codec.decode_call(attempt.run.payload)
    except UnreadablePayload as bad:
        return policy.unreadable(attempt, bad)
    if not attempt.task.parameters.fit(args, kwargs):
        return policy.unfit(attempt, attempt.task.parameters.explain(args, kwargs))
    value, error = _guarded(attempt, args, kwargs)
    if isinstance(error, lets_through):
        raise error
    secrets = policy.secrets_of(attempt, args, kwargs)
    return policy.succeeded(attempt, value, secrets) if error is None else policy.raised(attempt, error, secrets)


def _guarded(attempt: Attempt, args: list[Any], kwargs: dict[str, Any]) -> tuple[Any, BaseException | None]:
    """Call the function. On return, nothing can be raised in this thread from outside any more."""
    value: Any = _NOTHING
    error: BaseException | None = None
    try:
        try:
            args, kwargs = attempt.arguments((args, kwargs))
            attempt.is_armed = True
            value = attempt.task.func(*args, **kwargs)
        except BaseException as caught:  # noqa: BLE001  SystemExit of a task must not end the worker
            error = caught
        disarm(attempt)
    except TimeLimitExceeded as late:  # it landed after the task's end, on one of the lines above
        disarm(attempt)
        if value is _NOTHING and error is None:
            error = late
    return value, error

"""Run an async task on the running event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection

from django_jobs import codec
from django_jobs.context import enter
from django_jobs.exceptions import UnreadablePayload
from django_jobs.execution import policy
from django_jobs.execution.attempt import Attempt
from django_jobs.runs import Outcome


async def aexecute(
    attempt: Attempt,
    *,
    stopping: Callable[[], bool] = lambda: False,
    lets_through: tuple[type[BaseException], ...] = (),
    is_watched: bool = False,
) -> Outcome:
    """Await the task to its end and say what became of it. It needs an asyncio task, and context, of its own.

    A cancellation after `attempt.cancel()` hands the run back, one after `attempt.expire()` is its time limit, any
    other is the task's own failure. With `is_watched` somebody else minds the time limit: a timer for each of many
    short tasks would cost more than they do.
    """
    attempt.thread_id = threading.get_ident()
    enter(attempt.begin(stopping))
    try:
        args, kwargs = codec.decode_call(attempt.run.payload)
    except UnreadablePayload as error:
        return policy.unreadable(attempt, error)
    if not attempt.task.parameters.fit(args, kwargs):
        return policy.unfit(attempt, attempt.task.parameters.explain(args, kwargs))
    secrets = policy.secrets_of(attempt, args, kwargs)
    timer = None if is_watched else _timer(attempt)
    try:
        args, kwargs = attempt.arguments((args, kwargs))
        value = await attempt.task.func(*args, **kwargs)
    except lets_through:
        raise
    except BaseException as error:  # noqa: BLE001  SystemExit of a task must not end the worker
        return _raised(attempt, error, secrets)
    finally:
        if timer is not None:
            timer.cancel()
    return policy.succeeded(attempt, value, secrets)


def _timer(attempt: Attempt) -> asyncio.TimerHandle:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()

    def expire() -> None:
        if task is not None and attempt.expire():
            task.cancel()

    return loop.call_later(attempt.deadline - attempt.started, expire)


def _raised(attempt: Attempt, error: BaseException, secrets: Collection[str]) -> Outcome:
    if isinstance(error, asyncio.CancelledError):
        if attempt.sent:
            return policy.timed_out(attempt, error.__traceback__, secrets)
        if attempt.interrupted:
            return policy.handed_back(attempt)
    return policy.raised(attempt, error, secrets)

"""Run an async task on the running event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection
from typing import Any

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
) -> Outcome:
    """Await the task to its end and say what became of it. It needs an asyncio task, and context, of its own.

    A cancellation after `attempt.cancel()` hands the run back; any other is the task's own failure.
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
    limit = asyncio.timeout_at(asyncio.get_running_loop().time() + attempt.deadline - attempt.started)
    try:
        async with limit:
            value = await _awaited(attempt, args, kwargs)
    except lets_through:
        raise
    except BaseException as error:  # noqa: BLE001  SystemExit of a task must not end the worker
        return _raised(attempt, error, limit, secrets)
    return policy.succeeded(attempt, value, secrets)


async def _awaited(attempt: Attempt, args: list[Any], kwargs: dict[str, Any]) -> Any:
    args, kwargs = attempt.arguments((args, kwargs))
    return await attempt.task.func(*args, **kwargs)


def _raised(attempt: Attempt, error: BaseException, limit: asyncio.Timeout, secrets: Collection[str]) -> Outcome:
    if limit.expired() and isinstance(error, TimeoutError):
        # The cancellation that the limit sent says where the task was.
        cause = error.__cause__ or error.__context__ or error
        return policy.timed_out(attempt, cause.__traceback__, secrets)
    if attempt.interrupted and isinstance(error, asyncio.CancelledError):
        return policy.handed_back(attempt)
    return policy.raised(attempt, error, secrets)

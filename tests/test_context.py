"""What a running task learns about its job."""

import asyncio
import threading
from contextvars import Context
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from django_jobs.context import JobContext, current_job, enter

MOMENT = datetime(2030, 1, 1, tzinfo=UTC)


def context(**fields: Any) -> JobContext:
    values: dict[str, Any] = {
        "job_id": UUID(int=7),
        "task_name": "shop.tasks.send",
        "queue_name": "mail",
        "attempt": 2,
        "failures": 1,
        "key": None,
        "enqueued_at": MOMENT,
        "run_at": MOMENT,
    }
    return JobContext(**{**values, **fields})


@pytest.mark.parametrize(
    ("deadline", "now", "expected"),
    [
        (110.0, 100.0, timedelta(seconds=10)),
        (110.0, 109.75, timedelta(seconds=0.25)),
        (110.0, 110.0, timedelta(0)),
        (110.0, 500.0, timedelta(0)),
        (None, 100.0, timedelta.max),
    ],
)
def test_remaining_is_the_time_until_the_limit_and_never_negative(
    deadline: float | None, now: float, expected: timedelta
) -> None:
    assert context(deadline=deadline, clock=lambda: now).remaining() == expected


def test_remaining_goes_down_by_the_clock_of_this_machine() -> None:
    made = context(deadline=float("1e12"))

    assert made.remaining() >= made.remaining()


def test_a_cancelled_run_is_told_apart_from_a_stopping_worker() -> None:
    stop = threading.Event()
    made = context(stopping=stop.is_set)
    assert (made.is_cancelled, made.is_stopping, made.should_stop) == (False, False, False)

    stop.set()
    assert (made.is_cancelled, made.is_stopping, made.should_stop) == (False, True, True)

    stop.clear()
    made.is_cancelled = True
    assert (made.is_cancelled, made.is_stopping, made.should_stop) == (True, False, True)


def test_a_task_whose_time_is_up_should_stop() -> None:
    assert context(deadline=5.0, clock=lambda: 5.0).should_stop
    assert not context(deadline=5.0, clock=lambda: 4.9).should_stop


def test_cancelling_is_seen_by_the_thread_that_runs_the_task() -> None:
    made, entered, seen = context(), threading.Event(), []

    def task() -> None:
        entered.set()
        while not made.is_cancelled:
            pass
        seen.append(made.should_stop)

    thread = threading.Thread(target=task)
    thread.start()
    assert entered.wait(10)
    made.is_cancelled = True
    thread.join(10)

    assert seen == [True]


def test_outside_of_a_job_there_is_no_current_one() -> None:
    assert current_job() is None


def test_the_current_job_is_that_of_the_context_it_was_entered_in() -> None:
    first, second = context(), context(attempt=3)

    def enter_and_look(made: JobContext) -> JobContext | None:
        enter(SimpleNamespace(context=made))
        return current_job()

    assert Context().run(enter_and_look, first) is first
    assert Context().run(enter_and_look, second) is second
    assert current_job() is None


def test_two_async_tasks_each_see_their_own_job() -> None:
    async def task(made: JobContext, others: asyncio.Barrier) -> bool:
        enter(SimpleNamespace(context=made))
        await others.wait()
        return current_job() is made

    async def both() -> tuple[bool, bool]:
        others = asyncio.Barrier(2)
        first, second = await asyncio.gather(task(context(), others), task(context(), others))
        return first, second

    assert asyncio.run(both()) == (True, True)

"""Time limits: they end the task, and touch nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django_jobs import TimeLimitExceeded
from django_jobs.execution import Attempt
from django_jobs.execution.deadlines import interrupt
from django_jobs.runs import Then
from django_jobs.statuses import RunStatus
from tests.execution.attempts import attempt, declared, run, run_attempt


@contextmanager
def watched(box: list[Attempt]) -> Iterator[list[bool]]:
    """Interrupt what is in the box as soon as its deadline has passed, from another thread, as tightly as can be."""
    sent: list[bool] = []
    stop = threading.Event()

    def watch() -> None:
        while not stop.is_set():
            current = box[-1] if box else None
            if current is not None and current.is_armed and time.monotonic() >= current.deadline:
                sent.append(interrupt(current))
            time.sleep(0)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield sent
    finally:
        stop.set()
        thread.join()


def test_task_in_pure_python_is_ended_at_its_limit() -> None:
    def spin() -> None:
        while True:
            pass

    with declared(spin, timeout=0.05) as task:
        made = attempt(task)
        with watched([made]):
            outcome = run_attempt(made)

    assert (outcome.status, outcome.then) == (RunStatus.TIMED_OUT, Then.RETRY)
    assert outcome.duration < 5
    assert outcome.error is not None
    assert "0.05 s" in outcome.error.text
    assert "spin" in outcome.error.traceback


def test_task_that_swallows_its_interruption_and_returns_has_succeeded() -> None:
    def tidy_up() -> str:
        with contextlib.suppress(TimeLimitExceeded):
            while True:
                pass
        return "half"

    with declared(tidy_up, timeout=0.05) as task:
        made = attempt(task)
        with watched([made]):
            outcome = run_attempt(made)

    assert (outcome.status, outcome.result) == (RunStatus.SUCCEEDED, '"half"')


def test_error_raised_while_handling_the_limit_is_a_time_out() -> None:
    def stumble() -> None:
        try:
            while True:
                pass
        finally:
            raise ValueError("while closing")

    with declared(stumble, timeout=0.05) as task:
        made = attempt(task)
        with watched([made]):
            assert run_attempt(made).status == RunStatus.TIMED_OUT


def test_own_error_at_the_last_moment_is_not_taken_for_a_time_out() -> None:
    def fail(ready: Any) -> None:
        raise ValueError("mine")

    with declared(fail, timeout=60) as task:
        made = attempt(task, None)
        made.token.acquire()  # somebody has decided to interrupt, and comes too late
        made.sent = True
        outcome = run_attempt(made)

    assert outcome.status == RunStatus.FAILED


def test_run_that_has_ended_cannot_be_interrupted() -> None:
    def end() -> None: ...

    with declared(end, timeout=0.001) as task:
        made = attempt(task)
        assert not interrupt(made), "it has not begun"
        run_attempt(made)
        assert not interrupt(made), "it has ended"


def test_async_task_is_cancelled_at_its_limit() -> None:
    async def wait() -> None:
        await asyncio.sleep(60)

    with declared(wait, timeout=0.05) as task:
        outcome = run(task)

    assert (outcome.status, outcome.then) == (RunStatus.TIMED_OUT, Then.RETRY)
    assert outcome.error is not None
    assert "wait" in outcome.error.traceback


def test_time_out_of_something_the_async_task_called_is_its_own_error() -> None:
    async def call() -> None:
        async with asyncio.timeout(0.01):
            await asyncio.sleep(60)

    with declared(call, timeout=60) as task:
        assert run(task).status == RunStatus.FAILED


def test_cancellation_of_something_the_async_task_awaits_is_its_own_error() -> None:
    async def call() -> None:
        other = asyncio.ensure_future(asyncio.sleep(60))
        other.cancel()
        await other

    with declared(call, timeout=60) as task:
        assert run(task).status == RunStatus.FAILED

"""The tasks of the workloads."""

from __future__ import annotations

import asyncio
import time

from benchmarks import marks
from django_jobs import Retry, current_job, task

NAP = 0.05  # seconds


@task
def mark(number: int) -> None:
    """Do nothing but leave a mark."""
    marks.leave(number)


@task
async def amark(number: int) -> None:
    """The same as a coroutine."""
    marks.leave(number)


@task
def nap(number: int) -> None:
    marks.leave(number)
    time.sleep(NAP)


@task
async def anap(number: int) -> None:
    marks.leave(number)
    await asyncio.sleep(NAP)


@task
def mark_twice(number: int) -> None:
    """Ask for one more try, due a second later."""
    marks.leave(number)
    job = current_job()
    if job is not None and job.attempt == 1:
        raise Retry(delay=1)

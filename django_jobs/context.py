"""What a running task can learn about its job."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextvars import Context, ContextVar
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol
from uuid import UUID


def never() -> bool:
    return False


@dataclass(slots=True, eq=False)
class JobContext:
    """The job that is running: the first argument of a task declared with takes_context=True. Only read it.

    `attempt` counts the runs of the job, this one included; `failures` those that failed before. `deadline` is on the
    scale of `clock`. Whoever runs the task sets `is_cancelled`, from any thread.
    """

    job_id: UUID
    task_name: str
    queue_name: str
    attempt: int
    failures: int
    key: str | None
    enqueued_at: datetime
    run_at: datetime
    deadline: float | None = None
    # The run no longer counts: its job was cancelled, or its lease was lost. Leave off, and return.
    is_cancelled: bool = False
    stopping: Callable[[], bool] = field(default=never, repr=False)  # asks the worker
    clock: Callable[[], float] = field(default=time.monotonic, repr=False)

    def remaining(self) -> timedelta:
        """Return the span until the time limit: zero when it has passed, timedelta.max where there is none."""
        if self.deadline is None:
            return timedelta.max
        return timedelta(seconds=max(0.0, self.deadline - self.clock()))

    @property
    def is_stopping(self) -> bool:
        """Whether the worker has been told to stop. The run still counts."""
        return self.stopping()

    @property
    def should_stop(self) -> bool:
        """Whether a long task had better end now: it is cancelled, the worker stops, or its time is up."""
        return self.is_cancelled or self.is_stopping or self.remaining() <= timedelta(0)


class Running(Protocol):
    """What runs; most tasks never ask for its context, which is made when somebody does."""

    @property
    def context(self) -> JobContext: ...


_current: ContextVar[Running | None] = ContextVar("django_jobs_current_job", default=None)


def current_job() -> JobContext | None:
    """Return the context of the job that this code runs in; None outside of a job."""
    running = _current.get()
    return None if running is None else running.context


def enter(running: Running) -> None:
    """Let `current_job()` give its context in the contextvars' context in force, which is thrown away after the job."""
    _current.set(running)


def running_in(context: Context) -> Running | None:
    """Return what runs in another context; None outside of a job."""
    return context.get(_current)

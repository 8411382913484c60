"""One run on its way through a worker: what is called, since when, and until when."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Self
from uuid import UUID

from django_jobs.context import JobContext, never
from django_jobs.registry import Task
from django_jobs.runs import ClaimedRun


class Attempt:
    """A claimed run and the task that will run it. Times are those of `time.monotonic()`.

    Whoever takes `token` first decides how the run ends: the thread that runs the task takes it at the task's end, the
    watchman of deadlines before he interrupts. So no interruption is ever sent to a run that has ended.
    """

    __slots__ = (
        "_context",
        "claimed",
        "deadline",
        "interrupted",
        "is_armed",
        "place",
        "run",
        "sent",
        "started",
        "stopping",
        "task",
        "thread_id",
        "token",
    )

    def __init__(self, run: ClaimedRun, task: Task, claimed: float) -> None:
        self.run = run
        self.task = task
        self.claimed = claimed
        self.started = 0.0  # not yet
        self.deadline = 0.0
        self.thread_id = 0
        self.place = 0  # of its mark, for a supervisor
        self.token = threading.Lock()
        self.is_armed = False  # the task's thread is where an interruption can be caught
        self.sent = False  # the interruption is on its way, or has landed
        self.interrupted = False  # the worker ends, or the lease is lost: not the task's failure
        self.stopping: Callable[[], bool] = never
        self._context: JobContext | None = None

    @property
    def fence(self) -> tuple[UUID, int]:
        return self.run.job_id, self.run.claim_number

    @property
    def is_started(self) -> bool:
        return self.started > 0

    def begin(self, stopping: Callable[[], bool]) -> Self:
        """Start the clock; `stopping` says whether the worker has been told to stop."""
        self.stopping = stopping
        started = time.monotonic()
        self.deadline = started + self.task.effective(self.run.options).timeout.total_seconds()
        self.started = started  # at last: who sees that it has started looks at its deadline
        return self

    @property
    def context(self) -> JobContext:
        """What the task sees of its job."""
        if self._context is None:
            run = self.run
            self._context = JobContext(
                run.job_id, run.task_name, run.queue_name, run.attempt, run.failures, run.key, run.enqueued_at,
                run.run_at, self.deadline, stopping=self.stopping,
            )  # fmt: skip
            # Read after that was to be seen by `cancel`, in another thread.
            self._context.is_cancelled = self.interrupted
        return self._context

    def expire(self) -> bool:
        """The time limit of an async task has passed. False if that is known, or the run counts no longer."""
        if self.sent or self.interrupted:
            return False
        self.sent = True
        return True

    def cancel(self) -> None:
        """Tell the task that its run no longer counts."""
        self.interrupted = True
        if self._context is not None:
            self._context.is_cancelled = True

    def arguments(self, decoded: tuple[list[Any], dict[str, Any]]) -> tuple[list[Any], dict[str, Any]]:
        """What the function is called with: the context first, if it takes one."""
        args, kwargs = decoded
        return ([self.context, *args], kwargs) if self.task.takes_context else (args, kwargs)

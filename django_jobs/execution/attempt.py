"""One run on its way through a worker: what is called, since when, and until when."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any
from uuid import UUID

from django_jobs.context import JobContext
from django_jobs.registry import Task
from django_jobs.runs import ClaimedRun


class Attempt:
    """A claimed run and the task that will run it. Times are those of `time.monotonic()`.

    Whoever takes `token` first decides how the run ends: the thread that runs the task takes it at the task's end, the
    watchman of deadlines before he interrupts. So no interruption is ever sent to a run that has ended.
    """

    __slots__ = (
        "claimed",
        "context",
        "deadline",
        "interrupted",
        "is_armed",
        "run",
        "sent",
        "started",
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
        self.token = threading.Lock()
        self.is_armed = False  # the task's thread is where an interruption can be caught
        self.sent = False  # the interruption is on its way, or has landed
        self.interrupted = False  # the worker ends, or the lease is lost: not the task's failure
        self.context: JobContext | None = None

    @property
    def fence(self) -> tuple[UUID, int]:
        return self.run.job_id, self.run.claim_number

    @property
    def is_started(self) -> bool:
        return self.started > 0

    def begin(self, stopping: Callable[[], bool]) -> JobContext:
        """Start the clock, and give the context that the task sees."""
        run = self.run
        self.started = time.monotonic()
        self.deadline = self.started + self.task.effective(run.options).timeout.total_seconds()
        self.context = JobContext(
            run.job_id, run.task_name, run.queue_name, run.attempt, run.failures, run.key, run.enqueued_at, run.run_at,
            self.deadline, self.interrupted, stopping,
        )  # fmt: skip
        return self.context

    def cancel(self) -> None:
        """Tell the task that its run no longer counts."""
        self.interrupted = True
        if self.context is not None:
            self.context.is_cancelled = True

    def arguments(self, decoded: tuple[list[Any], dict[str, Any]]) -> tuple[list[Any], dict[str, Any]]:
        """What the function is called with: the context first, if it takes one."""
        args, kwargs = decoded
        return ([self.context, *args], kwargs) if self.task.takes_context else (args, kwargs)

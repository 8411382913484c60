"""The task of the benchmark: it notes its start, and is known only while a benchmark runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from django_jobs import registry
from django_jobs.registry import Call, Task

NAME = "django_jobs.bench"
QUEUE = "django_jobs_bench"


class Starts:
    """When jobs have started."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.forget()

    def forget(self) -> None:
        self._times: dict[int, float] = {}

    def note(self, number: int) -> None:
        """Be the task."""
        now = time.perf_counter()
        with self._changed:
            self._times[number] = now
            self._changed.notify_all()

    def wait(self, number: int, patience: float) -> float | None:
        """The moment a job started, once it has; None if it has not within so many seconds."""
        with self._changed:
            self._changed.wait_for(lambda: number in self._times, patience)
            return self._times.get(number)

    @property
    def span(self) -> float:
        """Seconds from the first start to the last."""
        return max(self._times.values()) - min(self._times.values()) if self._times else 0.0


starts = Starts()  # of this process: a task is found by its module


def note(number: int) -> None:
    starts.note(number)


@contextmanager
def only_task(*, using: str) -> Iterator[Task]:
    """The task, and no other in this process, while the block lasts."""
    starts.forget()
    with registry.isolated():
        for task in registry.all_tasks():
            registry.unregister(task)
        yield registry.declare(note, name=NAME, queue_name=QUEUE).using(database=using)


def call(task: Task, number: int) -> Call:
    """A call as `bind` makes it, but into a queue that DJANGO_JOBS["QUEUES"] need not list."""
    return Call(task, (number,), {})

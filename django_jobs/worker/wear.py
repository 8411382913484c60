"""When a worker's process has served for long enough."""

from __future__ import annotations

import time
from collections.abc import Callable

from django_jobs.worker.memory import resident

LOOK_EVERY = 1.0  # seconds
MEGABYTE = 2**20


class Wear:
    """What makes a process claim nothing more and end: `cause` says it once it is so."""

    def __init__(
        self,
        *,
        max_jobs: int | None,
        max_memory: int | None,
        is_supervised: bool,
        measure: Callable[[], int] = resident,
    ) -> None:
        self._max_jobs = max_jobs
        self._max_memory = max_memory
        self._is_supervised = is_supervised
        self._measure = measure
        self._next_look = 0.0
        self._lasting = ""
        self._runs = 0

    @property
    def cause(self) -> str:
        """Empty: it goes on."""
        if self._lasting:
            return self._lasting
        return "max_jobs" if self._max_jobs is not None and self._runs >= self._max_jobs else ""

    def left(self) -> int | None:
        """How many more jobs may be started; None: any number."""
        if self._lasting:
            return 0
        return None if self._max_jobs is None else self._max_jobs - self._runs

    def started(self, count: int) -> None:
        """So many more runs; below 0: they were handed back."""
        self._runs += count

    def gave_up(self) -> None:
        """A task goes on although it was given up. Without a supervisor nobody would start another process."""
        if self._is_supervised:
            self._lasting = self._lasting or "stuck_task"

    def look(self) -> bool:
        """Look at the memory if it is time. True if it has just become too much.

        A process that has run nothing yet goes on: the next one would be no smaller.
        """
        if self._max_memory is None or self._lasting or not self._runs or time.monotonic() < self._next_look:
            return False
        self._next_look = time.monotonic() + LOOK_EVERY
        if self._measure() <= self._max_memory * MEGABYTE:
            return False
        self._lasting = "max_memory"
        return True

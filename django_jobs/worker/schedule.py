"""When the worker looks for jobs."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

LOOK_AGAIN = 0.015  # seconds; a sender leaves out a wake-up that follows its last one by less
EARLIEST = 0.75  # of the interval: polls of workers that started together spread out


class Schedule:
    """The moments of the next claim and of the next look at jobs due later, on the scale of `time.monotonic()`."""

    def __init__(
        self, interval: float, *, clock: Callable[[], float] = time.monotonic, rand: Callable[[], float] = random.random
    ) -> None:
        self._interval = interval
        self._clock = clock
        self._rand = rand
        self._next_claim = self._next_due = clock()
        self._looks_again = False

    @property
    def pause(self) -> float:
        """Seconds until there is a reason to look."""
        return max(min(self._next_claim, self._next_due) - self._clock(), 0.0)

    @property
    def is_later_due(self) -> bool:
        """Whether it is time to look at the jobs that were due later."""
        return self._clock() >= self._next_due

    def look_now(self) -> None:
        """Somebody says that there is work, or that there is some due sooner than was known."""
        self._next_claim = self._next_due = self._clock()
        self._looks_again = True

    def claimed(self, count: int, limit: int) -> None:
        """So many jobs were found, of so many asked for."""
        now = self._clock()
        if count >= limit:
            self._next_claim = now
        elif count or self._looks_again:
            self._looks_again = False
            self._next_claim = now + LOOK_AGAIN
            self._next_due = min(self._next_due, self._next_claim)
        else:
            self._next_claim = now + self._jittered()

    def later_due(self, seconds: float | None) -> None:
        """The next job that is not ready yet is due in so many seconds; None: there is none."""
        wait = self._jittered()
        self._next_due = self._clock() + (wait if seconds is None else min(wait, max(seconds, 0.001)))

    def due_in(self, seconds: float) -> None:
        """One more job is due in so many seconds."""
        self._next_due = min(self._next_due, self._clock() + seconds)

    def _jittered(self) -> float:
        return self._interval * (EARLIEST + (1 - EARLIEST) * self._rand())

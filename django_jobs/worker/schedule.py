"""When the worker looks for jobs."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable

from django_jobs.lifecycle.wake import LONGEST_SLEEP, NOBODY

LOOK_AGAIN = 0.015  # seconds; a sender leaves out a wake-up that follows its last one by less
DOZE = 2 * NOBODY  # seconds; a sender may believe for half of it that this worker is still awake
EARLIEST = 0.75  # of the interval: polls of workers that started together spread out


class Schedule:
    """The moment of the next look at what is ready, parked or due later, on the scale of `time.monotonic()`.

    As long as wake-ups are known to arrive, looks that find nothing come ever more rarely.
    """

    def __init__(
        self,
        interval: float,
        *,
        hears: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
        rand: Callable[[], float] = random.random,
    ) -> None:
        self._interval = self._wait = interval
        self._longest = max(interval, LONGEST_SLEEP.total_seconds())
        self._hears = hears
        self._clock = clock
        self._rand = rand
        self._next = clock()
        self._again = self._dozed = -math.inf

    @property
    def pause(self) -> float:
        """Seconds until there is a reason to look."""
        return max(self._next - self._clock(), 0.0)

    def look_now(self) -> None:
        """Somebody says that there is work, or that there is some due sooner than was known."""
        self.woken()
        self._next = self._clock()

    def woken(self) -> None:
        """There is work in a queue that is claimed from at once: look around soon after."""
        self._wait = self._interval
        self._again = self._clock() + LOOK_AGAIN
        # What is planned stays: wake-ups without end must not keep the worker from looking at the other queues.
        self._next = min(self._next, self._again)

    def fell_asleep(self) -> None:
        """From now on this worker is woken, which those do not know yet who asked just before: look on for a while."""
        self._dozed = self._clock()

    def claimed(self, count: int, limit: int) -> None:
        """So many jobs were claimed of one queue, of so many asked for."""
        now, self._wait = self._clock(), self._interval
        self._next = now if count >= limit else min(self._next, now + LOOK_AGAIN)

    def looked(self, count: int, limit: int, due_in: float | None, *, is_empty: bool) -> None:
        """So many jobs were claimed of all queues. The next one that is not ready yet is due in so many seconds.

        `is_empty`: nothing was ready, whoever may have had it locked.
        """
        now = self._clock()
        if count:
            self._wait = self._interval
        if count >= limit:
            self._next = now
        elif count:
            self._next = now + LOOK_AGAIN
        else:
            self._next = now + self._until_next(now, is_empty)
        if due_in is not None:
            # What is overdue all the same has just been passed over: somebody has locked it, or it is one of many.
            self.due_in(max(due_in, 0.001) if due_in > 0 else LOOK_AGAIN)

    def _until_next(self, now: float, is_empty: bool) -> float:
        if now < self._again:
            return self._again - now
        if now < self._dozed + DOZE:
            return max(now - self._dozed, LOOK_AGAIN)
        wait = self._wait if is_empty and self._hears() else self._interval
        self._wait = min(2 * wait, self._longest)
        return wait * (EARLIEST + (1 - EARLIEST) * self._rand())

    def due_in(self, seconds: float) -> None:
        """One more job is due in so many seconds."""
        self._next = min(self._next, self._clock() + seconds)

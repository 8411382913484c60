"""The thread that watches time limits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from django_jobs.execution import Attempt
from django_jobs.execution.deadlines import interrupt

TICK = 0.1  # seconds
PATIENCE = 3.0  # seconds that a task may go on after its time limit, before it is given up


class Watchman:
    """Interrupts tasks at their deadline, up to a tick later, and tells of those that go on all the same."""

    def __init__(
        self,
        sync_attempts: Callable[[], Iterable[Attempt]],
        async_attempts: Callable[[], Iterable[Attempt]],
        expire: Callable[[Attempt], None],
        tell_stuck: Callable[[Attempt], None],
        is_idle: Callable[[], bool],
    ) -> None:
        self._sync_attempts = sync_attempts
        self._async_attempts = async_attempts
        self._expire = expire
        self._tell_stuck = tell_stuck
        self._is_idle = is_idle
        self._told: set[Attempt] = set()
        self._stop = threading.Event()
        self._bell = threading.Event()
        self.thread = threading.Thread(target=self._serve, name="django-jobs-deadlines", daemon=True)
        self.thread.start()

    def rouse(self) -> None:
        """There is something to watch, and `is_idle` says so already."""
        if not self._bell.is_set():
            self._bell.set()

    def stop(self) -> None:
        self._stop.set()
        self._bell.set()
        self.thread.join(1)

    def _serve(self) -> None:
        while not self._stop.wait(TICK):
            self.look(time.monotonic())
            self._rest()

    def _rest(self) -> None:
        """Sleep while nothing runs. What was given up or lost may still run, although nobody waits for it."""
        self._bell.clear()  # before it is asked: who begins after that rings again
        if self._is_idle() and not [*self._sync_attempts(), *self._async_attempts()] and not self._stop.is_set():
            self._bell.wait()

    def look(self, now: float) -> None:
        """One round."""
        stuck: set[Attempt] = set()
        for attempt in self._sync_attempts():
            if attempt.is_armed and now >= attempt.deadline:
                interrupt(attempt)
                if now >= attempt.deadline + PATIENCE:
                    stuck.add(attempt)
        for attempt in self._async_attempts():
            if attempt.is_started and now >= attempt.deadline:
                self._expire(attempt)
                if now >= attempt.deadline + PATIENCE:
                    stuck.add(attempt)
        for attempt in stuck - self._told:
            self._tell_stuck(attempt)
        self._told = stuck

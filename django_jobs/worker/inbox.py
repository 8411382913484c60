"""What the worker's main thread is told, and what it sleeps on."""

from __future__ import annotations

from collections import deque
from queue import Empty, SimpleQueue
from typing import TypeVar

from django_jobs.execution import Attempt
from django_jobs.runs import Outcome

T = TypeVar("T")
Ended = tuple[Attempt, Outcome | None]


class Inbox:
    """A bell and what was laid beside it. Any thread may put, and so may a signal handler."""

    def __init__(self) -> None:
        # SimpleQueue.put is reentrant: a signal handler may interrupt another put.
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._is_rung = False
        self._ended: deque[Ended] = deque()
        self._stuck: deque[Attempt] = deque()
        self._woken: deque[str] = deque()
        self._is_lease_lost = False

    def ring(self) -> None:
        """Let `wait` return."""
        if not self._is_rung:
            self._is_rung = True
            self._bell.put(None)

    def wait(self, timeout: float | None) -> None:
        """Sleep until the bell rings or the timeout (in seconds) is over."""
        try:
            if timeout is None or timeout > 0:
                self._bell.get(timeout=timeout)
        except Empty:
            pass
        # Before anything is taken: what comes in from here on rings again.
        self._is_rung = False

    def put_ended(self, attempt: Attempt, outcome: Outcome | None, *, is_urgent: bool) -> None:
        """A run has ended; None: it is recorded. What is not urgent is taken with the next thing that is."""
        self._ended.append((attempt, outcome))
        if is_urgent:
            self.ring()

    def take_ended(self) -> list[Ended]:
        return _drain(self._ended)

    def put_stuck(self, attempt: Attempt) -> None:
        """A run goes on although its time limit has passed."""
        self._stuck.append(attempt)
        self.ring()

    def take_stuck(self) -> list[Attempt]:
        return _drain(self._stuck)

    def wake(self, queue_name: str = "") -> None:
        """There may be something to claim in this queue; without a name: anywhere."""
        self._woken.append(queue_name)
        self.ring()

    def take_woken(self) -> set[str]:
        return set(_drain(self._woken))

    def put_lease_lost(self) -> None:
        """This worker's row is gone."""
        self._is_lease_lost = True
        self.ring()

    def take_lease_lost(self) -> bool:
        was, self._is_lease_lost = self._is_lease_lost, False
        return was


def _drain(box: deque[T]) -> list[T]:
    return [box.popleft() for _ in range(len(box))]

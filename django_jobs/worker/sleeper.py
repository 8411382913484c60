"""What the worker's row says about its sleep, so that nobody notifies those who look by themselves."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from django_jobs.lifecycle import extend
from django_jobs.runs import WorkerIdentity

BUSY = 1.0  # seconds for which every look found something, or nothing more was wanted


class Sleeper:
    """A worker that is busy says so after a while, and takes it back before it sleeps."""

    def __init__(self, using: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._using = using
        self._clock = clock
        self._busy_since: float | None = None
        self._is_awake = False  # what the row says, or might say

    def begin(self) -> None:
        """The worker has a new row."""
        self._is_awake = False

    def found(self) -> None:
        """There was something to claim."""
        if self._busy_since is None:
            self._busy_since = self._clock()

    @property
    def pause(self) -> float:
        """Seconds until `rise` has something to do."""
        if self._is_awake or self._busy_since is None:
            return math.inf
        return max(self._busy_since + BUSY - self._clock(), 0.0)

    def rise(self, identity: WorkerIdentity) -> bool:
        """Say that this worker is awake, if it has been busy for long enough. False if it was not time."""
        if self.pause > 0:
            return False
        # Before the statement: unanswered, it may have been carried out.
        self._is_awake = True
        extend.note_awake(identity, True, using=self._using)
        return True

    def lie_down(self, identity: WorkerIdentity) -> bool:
        """A look found nothing. True if the row said until now that this worker needs no wake-up: look again then."""
        self._busy_since = None
        if not self._is_awake:
            return False
        extend.note_awake(identity, False, using=self._using)
        self._is_awake = False
        return True

"""When a worker asks for a suspect: a job that was held by a worker when that died. It runs alone in its process."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

LOOK_AGAIN = 1.0  # seconds between two looks whether somebody else has taken what this worker keeps itself free for


class Quarantine:
    """The moments of the next look, on the scale of `time.monotonic()`, and whether the worker may claim meanwhile.

    A worker without work looks once per `interval`. One that meets a suspect among what it claims puts it aside, claims
    nothing more until nothing runs, and then takes it, unless another worker was faster. So a suspect waits no longer
    than the jobs beside it take, and a worker that is never idle gets to it too.
    """

    def __init__(self, interval: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval = interval
        self._clock = clock
        self._next = clock()
        self._is_wanted = False
        self._is_occupied = False

    @property
    def bars_claims(self) -> bool:
        return self._is_wanted or self._is_occupied

    @property
    def is_wanted(self) -> bool:
        """Whether this worker keeps itself free for a suspect."""
        return self._is_wanted

    @property
    def is_due(self) -> bool:
        return not self._is_occupied and self._clock() >= self._next

    @property
    def is_quiet(self) -> bool:
        """Whether the last look has found nothing, and it is not time for the next one."""
        return not self.bars_claims and not self.is_due

    def pause(self, *, is_free: bool) -> float | None:
        """Seconds until there is a reason to look; None: something ends before. `is_free`: nothing is held here."""
        if self._is_occupied or not (is_free or self._is_wanted):
            return None
        return max(self._next - self._clock(), 0.0)

    def meet(self) -> None:
        """A suspect was put aside."""
        self._is_wanted = True
        self._next = self._clock()

    def freed(self) -> None:
        """Nothing is held here now."""
        if self._is_occupied or self._is_wanted:
            self._is_occupied = False
            self._next = self._clock()

    def took(self, *, has_found: bool) -> None:
        """A free worker asked for a suspect."""
        self._is_wanted, self._is_occupied = False, has_found
        self._next = self._clock() + self._interval * random.uniform(0.8, 1.0)

    def looked(self, *, is_there: bool) -> None:
        """A worker that keeps itself free, and is not yet, has looked if it still should."""
        self._is_wanted = is_there
        self._next = self._clock() + (LOOK_AGAIN if is_there else self._interval)

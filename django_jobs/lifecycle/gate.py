"""One worker at a time claims from a queue that many serve.

SKIP LOCKED walks over each row that another claim, still under way, has locked, and asks the server's table of locks
about it: with N claims under way each job costs N such walks. On PostgreSQL a crowd therefore claims one by one, behind
an advisory lock of the claim's own transaction that nobody waits for. It saves work and guards nothing: what it keeps
out for too long claims without it.
"""

from __future__ import annotations

import random
import time
import zlib
from collections.abc import Callable

CROWD = 4  # workers of a database that claim without minding each other
CLASS = 0x646A6F62  # of the advisory locks: "djob"
PAUSE = 0.004  # seconds for each worker; each refusal doubles it for the next one, and each claim halves it again
MOST_DOUBLINGS = 4
LONGEST_PAUSE = 2.0  # seconds; who was not refused for as long begins anew
PATIENCE = 10.0  # seconds of refusals

GATE = "gate AS MATERIALIZED (SELECT pg_try_advisory_xact_lock(%s, %s) AS is_open)"
BEHIND_IT = " AND (SELECT is_open FROM gate)"


class Gate:
    """When a worker may knock again, that shares its queues with so many others."""

    def __init__(
        self, *, clock: Callable[[], float] = time.monotonic, rand: Callable[[float, float], float] = random.uniform
    ) -> None:
        self.workers = 1  # with this one
        self._clock = clock
        self._rand = rand
        self._refusals = 0
        self._next = 0.0
        self._refused_since: float | None = None

    @property
    def is_crowded(self) -> bool:
        return self.workers > CROWD

    def is_knocked_at(self) -> bool:
        """Whether to claim behind it, now."""
        if not self.is_crowded:
            return False
        if self._refused_since is not None and self._clock() - self._refused_since > PATIENCE:
            self._refused_since = None
            return False
        return True

    @property
    def pause(self) -> float:
        """Seconds until the next try."""
        return max(self._next - self._clock(), 0.0)

    def passed(self) -> None:
        """This worker has claimed."""
        self._refusals = max(self._refusals - 1, 0)
        self._refused_since = None

    def refused(self) -> None:
        """Another one was claiming."""
        now = self._clock()
        if now - self._next > LONGEST_PAUSE:
            self._refusals = 0
        pause = min(PAUSE * self.workers * 2**self._refusals, LONGEST_PAUSE)
        self._refusals = min(self._refusals + 1, MOST_DOUBLINGS)
        self._next = now + self._rand(pause / 2, pause)
        if self._refused_since is None:
            self._refused_since = now


def parameters(queue_name: str) -> list[int]:
    """Those of `GATE` for a queue, the same in every process."""
    return [CLASS, zlib.crc32(queue_name.encode()) - 2**31]

"""How long a full queue is claimed from without looking around."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from django_jobs.runs import ClaimedRun

SHARE = 20  # a look from the start may take one part in so many of the time
SHORTEST, LONGEST = 0.25, 2.0  # seconds


class Streak:
    """A queue that gives all that is asked for is claimed from beyond the last job it gave, for a while.

    What lies before that one in the index costs nothing then, however many entries of jobs long gone somebody's old
    snapshot keeps alive there; and each of them costs, once a streak, when the queue is looked at from the start again:
    for late commits, retries and higher priorities. So the dearer that look was, the longer the streak.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until = 0.0
        self.queue_name: str | None = None  # that of the streak; None if there is none
        self.full: str | None = None  # the queue that gave all that was asked for, to the last
        self.after: ClaimedRun | None = None  # beyond which job; None: from the start

    def looked(self, runs: Sequence[ClaimedRun], limit: int, seconds: float, workers: int = 1) -> None:
        """These runs, of so many asked for, were claimed by a look from the start that took so many seconds.

        Of so many workers each looks in its turn: the queue is looked at as often as by one alone.
        """
        is_full = len(runs) >= limit and runs[0].queue_name == runs[-1].queue_name
        self.full = self.queue_name = self.after = None
        if is_full:
            self.full = self.queue_name = runs[-1].queue_name
            self.after = runs[-1]
            self._until = self._clock() + min(max(SHARE * seconds, SHORTEST * workers), LONGEST)

    def claimed(self, runs: Sequence[ClaimedRun], limit: int) -> None:
        """These were claimed, of so many asked for, in the streak."""
        is_full = len(runs) >= limit
        self.full = self.queue_name if is_full else None
        # Some of what a short batch left out was locked by others, who might give it back.
        self.after = runs[-1] if is_full else None
        if not runs or self._clock() >= self._until:
            self.queue_name = self.after = None

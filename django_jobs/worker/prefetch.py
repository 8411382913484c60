"""How many jobs are claimed before a thread is free for them: it follows how long they were measured to take."""

from __future__ import annotations

import math

MOST_AHEAD = 600  # jobs: while a statement writes and claims one half, the threads work off the other
WORK_AHEAD = 0.05  # seconds
SHORT = 1.2  # times that: what waits for 50 ms and computes a little besides is short
WORTH_A_THREAD = 0.025  # seconds of work
WEIGHT = 0.1  # of the newest duration in the mean
LONGEST_COUNTED = 1.0  # seconds; one long run must not hide a hundred short ones for long


class Prefetch:
    """Durations of the tasks that ran here. What was never measured counts as long."""

    def __init__(self, *, most_ahead: int = MOST_AHEAD, work_ahead: float = WORK_AHEAD) -> None:
        self.most_ahead = most_ahead
        self.work_ahead = work_ahead
        self.is_crowded = False  # whether many workers claim one by one
        self._means: dict[str, float] = {}
        self._mix: float | None = None  # over all tasks, as they come
        self._async_share: float | None = None  # of the jobs claimed last

    def measure(self, task_name: str, duration: float) -> None:
        """Take in how long (in seconds) a run took."""
        duration = min(duration, LONGEST_COUNTED)
        means = self._means
        known = means.get(task_name)
        means[task_name] = duration if known is None else known + WEIGHT * (duration - known)
        self._mix = duration if self._mix is None else self._mix + WEIGHT * (duration - self._mix)

    def forget(self) -> None:
        """What was claimed ahead had to be handed back: measure anew."""
        self._mix = None

    def ahead(self, slots: int) -> int:
        """How many jobs may wait for so many threads."""
        # Long ones never: `is_short` would refuse them, and they would be handed back only to be claimed again.
        if self._mix is None or self._mix > SHORT * self.work_ahead:
            return 0
        # Never below a microsecond, which no call is.
        return min(self.most_ahead, int(slots * self.work_ahead / max(self._mix, 1e-6)))

    def low_water(self, slots: int) -> int:
        """At how few waiting jobs to claim more."""
        ahead = self.ahead(slots)
        # The server does not wait for this worker while others claim, and one statement for all that was claimed ahead
        # costs it less than two for a half each. Of longer jobs threads would miss the other half.
        return 0 if self.is_crowded and ahead == self.most_ahead else ahead // 2

    def meet(self, async_count: int, count: int) -> None:
        """Take in how many of so many claimed jobs are async."""
        newest = async_count / count
        known = self._async_share
        self._async_share = newest if known is None else known + WEIGHT * (newest - known)

    def room(self, sync_room: int, async_room: int) -> int:
        """How many jobs may be claimed if there is room for so many of each kind: as many as the last ones let expect.

        Nobody can ask for jobs of one kind, but what is all of one kind shall not wait for room of the other.
        """
        share = self._async_share
        if share is None:
            return min(sync_room, async_room)
        rooms = [sync_room / (1 - share)] if share < 1 else []
        rooms += [async_room / share] if share > 0 else []
        return math.floor(min(rooms))

    def threads_for(self, count: int) -> int:
        """How many threads so many jobs are worth."""
        return count if self._mix is None else min(count, math.ceil(count * self._mix / WORTH_A_THREAD))

    def is_short(self, task_name: str) -> bool:
        """Whether a job of the task may wait here behind others."""
        return self._means.get(task_name, LONGEST_COUNTED) <= SHORT * self.work_ahead

"""Who runs the tasks: the threads and, where there is an async task, the event loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from django_jobs import logs
from django_jobs.execution import Attempt, Recording
from django_jobs.worker.aloop import AsyncLoop
from django_jobs.worker.inbox import Inbox
from django_jobs.worker.ledger import Ledger
from django_jobs.worker.marks import Marks
from django_jobs.worker.prefetch import Prefetch
from django_jobs.worker.threads import Threads
from django_jobs.worker.watchman import Watchman


class Crew:
    """Takes batches of claimed runs and says for how many more there is room."""

    def __init__(
        self,
        *,
        threads: int,
        async_concurrency: int,
        is_async: bool,
        inbox: Inbox,
        recording: Recording,
        stopping: Callable[[], bool],
        is_idle: Callable[[], bool],
        marks: Marks | None = None,
    ) -> None:
        self.prefetch = Prefetch()
        self._threads = Threads(threads, inbox, recording, stopping, marks)
        self._loop = AsyncLoop(async_concurrency, inbox, stopping, marks) if is_async else None
        self._retired: list[AsyncLoop] = []  # each is kept by a task that blocks it, or was
        self._watchman = Watchman(
            self._threads.running, self._running_async, self._expire_async, inbox.put_stuck, is_idle
        )

    @property
    def _loops(self) -> list[AsyncLoop]:
        return [*self._retired, self._loop] if self._loop is not None else []

    def _running_async(self) -> Iterable[Attempt]:
        return [attempt for loop in self._loops for attempt in loop.running()]

    def _expire_async(self, attempt: Attempt) -> None:
        if attempt.expire():
            self._cancel_async([attempt])

    def _cancel_async(self, attempts: list[Attempt]) -> None:
        for loop in self._loops:
            loop.cancel(attempts)

    def room(self, ledger: Ledger) -> int:
        """How many jobs may be claimed, of whichever kind they turn out to be."""
        room = self._threads.count + self.prefetch.ahead(self._threads.count) - ledger.sync_count
        if self._loop is not None:
            async_room = self._loop.count + self.prefetch.ahead(self._loop.count) - ledger.async_count
            room = self.prefetch.room(room, async_room)
        return max(room, 0)

    @property
    def queued(self) -> int:
        """How many wait for a thread or for a place on the loop."""
        return self._threads.queued + (self._loop.queued if self._loop else 0)

    def submit(self, attempts: list[Attempt], ledger: Ledger) -> list[Attempt]:
        """Start what there is a free place for, and let short ones wait. What would wait and is not short."""
        free = {
            False: self._threads.count - ledger.sync_count,
            True: (self._loop.count if self._loop else 0) - ledger.async_count,
        }
        taken: dict[bool, list[Attempt]] = {False: [], True: []}
        refused: list[Attempt] = []
        for attempt in attempts:
            kind = attempt.task.is_async
            if len(taken[kind]) < free[kind] or self.prefetch.is_short(attempt.task.name):
                taken[kind].append(attempt)
            else:
                refused.append(attempt)
        self._hand_over(taken[False], taken[True])
        if attempts:
            self.prefetch.meet(sum(attempt.task.is_async for attempt in attempts), len(attempts))
        return refused

    def _hand_over(self, sync_attempts: list[Attempt], async_attempts: list[Attempt]) -> None:
        if self._loop is not None and async_attempts:
            self._loop.low_water = self.prefetch.low_water(self._loop.count)
            self._loop.submit(async_attempts)
        self._threads.low_water = self.prefetch.low_water(self._threads.count)
        self._threads.submit(sync_attempts, self.prefetch.threads_for(len(sync_attempts) + self._threads.queued))

    @property
    def oldest_claim(self) -> float | None:
        """When the first of those that wait was claimed."""
        claims = [self._threads.oldest_claim, self._loop.oldest_claim if self._loop else None]
        return min((each for each in claims if each is not None), default=None)

    def help_out(self) -> None:
        """Wake every idle thread if something waits for longer than it should: a task took longer than it used to."""
        oldest = self._threads.oldest_claim
        if oldest is not None and time.monotonic() - oldest > self.prefetch.work_ahead:
            self._threads.wake(self._threads.count)

    def watch(self) -> None:
        """Mind the time limits of what was submitted and is held by now."""
        self._watchman.rouse()

    def take_back(self) -> list[Attempt]:
        """Take what nobody has started."""
        return self._threads.take_back() + (self._loop.take_back() if self._loop else [])

    def cancel(self, attempts: Iterable[Attempt]) -> None:
        """Tell these that they no longer count. Async ones are cancelled; sync ones may ask their context."""
        attempts = list(attempts)
        for attempt in attempts:
            attempt.cancel()
        self._cancel_async([attempt for attempt in attempts if attempt.task.is_async])

    def replace_loop(self, attempt: Attempt) -> list[Attempt]:
        """Go on with a new event loop if the one that runs this is stuck. The runs that are stranded there."""
        loop = self._loop
        if loop is None or attempt not in loop.running() or not loop.is_stuck():
            return []
        self._retired = [each for each in self._retired if each.thread.is_alive()] + [loop]
        self._loop, stranded = loop.retire()
        logs.loop_replaced(attempt.run, stranded=len(stranded))
        return stranded

    def give_up(self, attempt: Attempt) -> None:
        """Make up for the place of a task that cannot be stopped."""
        if not attempt.task.is_async:
            self._threads.give_up(attempt)
            return
        for loop in self._loops:
            if attempt in loop.running():
                loop.give_up(attempt)

    def end(self, patience: float) -> bool:
        """Let everything end that can within so many seconds. False if some task still runs."""
        until = time.monotonic() + patience
        self._watchman.stop()
        ends = [loop.end(max(0.1, until - time.monotonic())) for loop in self._loops]
        return self._threads.end(max(0.1, until - time.monotonic())) and all(ends)

"""The threads that run sync tasks."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from queue import SimpleQueue

from django_jobs import logs
from django_jobs.execution import Attempt, Recording, execute, hygiene, policy
from django_jobs.runs import Outcome
from django_jobs.worker.inbox import Inbox
from django_jobs.worker.marks import Marks

LONG = 0.005  # seconds; the end of a run of at least this is told at once
LET_GO = 0.00002  # seconds, of which the system makes some 0.0001


class Slot:
    """One thread and what it runs now."""

    def __init__(self, number: int, serve: Callable[[Slot], None]) -> None:
        self.attempt: Attempt | None = None
        self.is_given_up = False
        self.bell: SimpleQueue[None] = SimpleQueue()
        # Daemons: a task that never returns must not keep the process from ending.
        self.thread = threading.Thread(target=serve, args=(self,), name=f"django-jobs-{number}", daemon=True)
        self.thread.start()


class Threads:
    """A fixed number of threads on one queue. A batch is queued at once, so that no job costs a hand-off of its own.

    Of idle threads as many are woken as the work is worth: several that run jobs of microseconds would only take the
    interpreter's lock from each other. The last one to fall asleep wakes first; its connection is the warmest.
    """

    def __init__(
        self,
        count: int,
        inbox: Inbox,
        recording: Recording,
        stopping: Callable[[], bool],
        marks: Marks | None = None,
    ) -> None:
        self.count = count
        self.low_water = 0  # at so few queued jobs the main thread is told to claim more
        self._inbox = inbox
        self._recording = recording
        self._stopping = stopping
        self._marks = marks
        self._home = hygiene.Home()
        self._waiting: deque[Attempt] = deque()
        self._idle: deque[Slot] = deque()
        self._is_ended = False
        self._started = 0
        self.slots: list[Slot] = []
        self._given_up: list[Slot] = []
        for _ in range(count):
            self._add_slot()

    def _add_slot(self) -> None:
        self._started += 1
        self.slots.append(Slot(self._started, self._serve))

    def submit(self, attempts: list[Attempt], wakes: int) -> None:
        """Queue them and wake so many threads, if as many are idle."""
        self._waiting.extend(attempts)
        if self.wake(wakes):
            # Else they would wait for the interpreter's lock, until the main thread has noted all that it still has to.
            time.sleep(LET_GO)

    def wake(self, count: int) -> bool:
        """Wake so many threads. False if none was idle."""
        is_any = False
        for _ in range(min(count, len(self._idle))):
            try:
                self._idle.pop().bell.put(None)
            except IndexError:  # the last one has found something by itself
                break
            is_any = True
        return is_any

    def take_back(self) -> list[Attempt]:
        """Take what no thread has started yet."""
        return list(self._take())

    def _take(self) -> Iterator[Attempt]:
        while True:
            try:
                yield self._waiting.popleft()
            except IndexError:
                return

    @property
    def queued(self) -> int:
        return len(self._waiting)

    @property
    def oldest_claim(self) -> float | None:
        """When the first of those that wait was claimed."""
        try:
            return self._waiting[0].claimed
        except IndexError:
            return None

    def running(self) -> Iterator[Attempt]:
        """What the threads run now, or have just ended."""
        for slot in list(self.slots):
            attempt = slot.attempt
            if attempt is not None:
                yield attempt

    def give_up(self, attempt: Attempt) -> None:
        """Replace the thread that runs this. It ends when its task returns, if ever."""
        for slot in self.slots:
            if slot.attempt is attempt:
                slot.is_given_up = True
                self.slots.remove(slot)
                self._given_up.append(slot)
                self._add_slot()
                logs.thread_given_up(attempt.run, seconds=time.monotonic() - attempt.deadline)
                return

    def end(self, patience: float) -> bool:
        """Let every thread end that is free within so many seconds. False if some are not."""
        self._is_ended = True
        self.wake(len(self.slots))
        until = time.monotonic() + patience
        for slot in self.slots:
            slot.thread.join(max(0.0, until - time.monotonic()))
        return not any(slot.thread.is_alive() for slot in (*self.slots, *self._given_up))

    def _serve(self, slot: Slot) -> None:
        ended = time.monotonic()
        try:
            while True:
                for attempt in self._take():
                    self._run(slot, attempt, time.monotonic() - ended)
                    ended = time.monotonic()
                    if slot.is_given_up:
                        return
                if self._is_ended:
                    return
                self._sleep(slot)
        finally:
            hygiene.close_all()

    def _sleep(self, slot: Slot) -> None:
        self._idle.append(slot)
        # What came in before this thread was seen to be idle has woken nobody.
        if self._waiting or self._is_ended:
            with contextlib.suppress(ValueError):  # somebody rings for it just now: it wakes once more, for nothing
                self._idle.remove(slot)
            return
        slot.bell.get()

    def _run(self, slot: Slot, attempt: Attempt, idle: float) -> None:
        outcome: Outcome | None = None
        try:
            if hygiene.has_connected():
                hygiene.freshen(idle)
            slot.attempt = attempt
            if self._marks is not None:
                self._marks.note_start(attempt)
            outcome = execute(attempt, recording=self._recording, stopping=self._stopping)
            slot.attempt = None
            self._home.restore(attempt.run)
            if attempt.sent or hygiene.has_connected():
                hygiene.tidy(was_interrupted=attempt.sent)
        except BaseException as error:  # noqa: BLE001  a fault of ours, or no memory left: the thread goes on
            slot.attempt = None
            logs.service_failed("thread", error)
            outcome = outcome or policy.raised(attempt, error)
        is_urgent = outcome is None or outcome.duration >= LONG or len(self._waiting) <= self.low_water
        self._inbox.put_ended(attempt, outcome, is_urgent=is_urgent)

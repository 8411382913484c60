"""The event loop that runs async tasks, in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextvars import Context
from typing import Any, Self

from asgiref.sync import sync_to_async
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from django_jobs import context, logs
from django_jobs.execution import Attempt, aexecute, hygiene, policy
from django_jobs.runs import Outcome
from django_jobs.worker.inbox import Inbox
from django_jobs.worker.marks import Marks
from django_jobs.worker.threads import LONG

# A coroutine that never waits then costs no turn of the loop.
EAGER: dict[str, Any] = {"eager_start": True} if sys.version_info >= (3, 12) else {}

LAST_PATIENCE = 0.2  # seconds for what is left when the loop ends
ANSWER_WITHIN = 0.5  # seconds; a loop that takes longer is stuck


class AsyncLoop:
    """Runs up to `count` async tasks at once.

    A task that never awaits keeps the thread from all others. Such a loop is retired: what is on it starts anew on its
    successor, but for the task that blocks, which stays as long as it runs.
    """

    def __init__(
        self,
        count: int,
        inbox: Inbox,
        stopping: Callable[[], bool],
        marks: Marks | None = None,
        *,
        database: DatabaseThread | None = None,
        home: hygiene.Home | None = None,
    ) -> None:
        self.count = count
        self.low_water = 0  # at so few queued jobs the main thread is told to claim more
        self._inbox = inbox
        self._stopping = stopping
        self._marks = marks
        self._waiting: deque[Attempt] = deque()
        self._running: dict[Attempt, asyncio.Task[None]] = {}
        self._given_up: set[Attempt] = set()
        self._free = count
        self._is_filling = False
        self._starting: Attempt | None = None  # in its first step, which may be its last
        self._is_retired = False
        self._database = database or DatabaseThread()
        self._home = home or hygiene.Home()
        self._ended = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self._serve, name="django-jobs-async", daemon=True)
        self.thread.start()

    def submit(self, attempts: list[Attempt]) -> None:
        """Queue them; one wake-up of the loop for the whole batch."""
        self._waiting.extend(attempts)
        self._tell(self._fill)

    def take_back(self) -> list[Attempt]:
        """Take what has not been started yet."""
        taken: list[Attempt] = []
        while self._waiting:
            try:
                taken.append(self._waiting.popleft())
            except IndexError:  # the loop was faster
                break
        return taken

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

    def running(self) -> list[Attempt]:
        starting = self._starting
        return [*self._running] if starting is None else [*self._running, starting]

    def cancel(self, attempts: list[Attempt]) -> None:
        """Cancel these, wherever they wait; mark them by `Attempt.cancel` before."""
        self._tell(self._cancel, attempts)

    def give_up(self, attempt: Attempt) -> None:
        """Make up for the place of a task that ignores its cancellation."""
        logs.thread_given_up(attempt.run, seconds=time.monotonic() - attempt.deadline)
        self._tell(self._replace, attempt)

    def is_stuck(self) -> bool:
        """Whether a task keeps the thread for itself. It may take a moment to say so."""
        answered = threading.Event()
        self._tell(answered.set)
        return not answered.wait(ANSWER_WITHIN)

    def retire(self) -> tuple[Self, list[Attempt]]:
        """Start nothing more here, as the thread is stuck. The loop to go on with, and the runs that are stranded here.

        What has not been started goes on there. The task that blocks is not stranded: it goes on here.
        """
        blocking = self._blocking()
        stranded = [attempt for attempt in self.running() if attempt is not blocking]
        successor = type(self)(
            self.count, self._inbox, self._stopping, self._marks, database=self._database, home=self._home
        )
        self._is_retired = True
        successor.submit(self.take_back())
        self._tell(self._end_if_retired)
        return successor, stranded

    def _blocking(self) -> Attempt | None:
        """What keeps the thread now; None if that is no task."""
        if self._starting is not None:
            return self._starting
        current = asyncio.current_task(self._loop)
        if current is None:
            return None
        running = dict(self._running)
        own = next((attempt for attempt, task in running.items() if task is current), None)
        # A task of its own making runs in a copy of its context.
        get_context = getattr(current, "get_context", None)
        if own is None and get_context is not None:
            owner = context.running_in(get_context())
            own = next((attempt for attempt in running if attempt is owner), None)
        return own

    def end(self, patience: float) -> bool:
        """Stop the loop. False if it is stuck."""
        self._tell(self._ended.set)
        self.thread.join(patience)
        return not self.thread.is_alive()

    def _tell(self, callback: Callable[..., object], *args: Any) -> None:
        """Let the loop call this."""
        with contextlib.suppress(RuntimeError):  # a retired loop has ended and is closed
            self._loop.call_soon_threadsafe(callback, *args)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._live())
        finally:
            self._loop.close()

    async def _live(self) -> None:
        await self._database.open()
        await self._ended.wait()
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        if rest:
            await asyncio.wait(rest, timeout=LAST_PATIENCE)
        if not self._is_retired:  # the successor goes on with it
            await self._database.close()
        await self._loop.shutdown_asyncgens()

    def _fill(self) -> None:
        # A task that ends without ever waiting calls this again, from inside.
        if self._is_filling:
            return
        self._is_filling = True
        try:
            while self._free > 0 and self._waiting:
                self._start(self._waiting.popleft())
        except IndexError:  # taken back in between
            pass
        finally:
            self._is_filling = False

    def _start(self, attempt: Attempt) -> None:
        self._free -= 1
        self._starting = attempt
        # Not the context we are in: it may be that of the job that has just ended.
        task = asyncio.Task(self._run(attempt), loop=self._loop, context=Context(), **EAGER)
        if not task.done():
            self._running[attempt] = task
        self._starting = None

    async def _run(self, attempt: Attempt) -> None:
        outcome: Outcome | None = None
        try:
            if self._database.is_suspect():
                await self._database.freshen()
            if attempt.interrupted:
                outcome = policy.handed_back(attempt)
            else:
                if self._marks is not None:
                    self._marks.note_start(attempt)
                outcome = await aexecute(attempt, stopping=self._stopping, is_watched=True)
                self._home.restore(attempt.run)
                if self._database.is_untidy():
                    await self._database.tidy()
        except BaseException as error:  # noqa: BLE001  a fault of ours, or no memory left: the loop goes on
            logs.service_failed("loop", error)
            outcome = outcome or policy.raised(attempt, error)
        self._running.pop(attempt, None)
        if attempt in self._given_up:
            self._given_up.discard(attempt)
        else:
            self._free += 1
        self._database.note_use()
        is_urgent = outcome.duration >= LONG or len(self._waiting) <= self.low_water
        self._inbox.put_ended(attempt, outcome, is_urgent=is_urgent)
        self._fill()
        self._end_if_retired()

    def _end_if_retired(self) -> None:
        if self._is_retired and not self.running():
            self._ended.set()

    def _cancel(self, attempts: list[Attempt]) -> None:
        for attempt in attempts:
            task = self._running.get(attempt)
            if task is not None and attempt.is_started:
                task.cancel()

    def _replace(self, attempt: Attempt) -> None:
        if attempt in self._running:
            self._given_up.add(attempt)
            self._free += 1
            self._fill()


class DatabaseThread:
    """The thread in which Django's ORM runs for async code, and the connections it has opened."""

    def __init__(self) -> None:
        self._connections: list[BaseDatabaseWrapper] = []
        self._used = time.monotonic()
        self._thread_id = 0

    async def open(self) -> None:
        await sync_to_async(self._enter)()

    async def close(self) -> None:
        connection_created.disconnect(self._created)
        if self._connections:
            await sync_to_async(connections.close_all)()

    def _enter(self) -> None:
        self._thread_id = threading.get_ident()
        # Here, in the thread itself: a task that is quicker than the loop's own start opens none unseen meanwhile.
        connection_created.connect(self._created)
        # The thread is older than this loop: what an earlier one has opened there is not announced again.
        opened = connections.all(initialized_only=True)
        self._connections = [connection for connection in opened if connection.connection is not None]

    def _created(self, *, connection: BaseDatabaseWrapper, **kwargs: Any) -> None:
        if threading.get_ident() == self._thread_id and connection not in self._connections:
            self._connections.append(connection)

    def note_use(self) -> None:
        """A task has ended. Empty the query log, and start to count idle seconds."""
        if not self._connections:
            return
        self._used = time.monotonic()
        for connection in self._connections:
            connection.queries_log.clear()

    def is_suspect(self) -> bool:
        """Whether a connection may have been closed by the server. Asks no server."""
        if not self._connections:
            return False
        idle = time.monotonic() - self._used
        return any(hygiene.is_suspect(connection, idle) for connection in self._connections)

    async def freshen(self) -> None:
        """Drop what the server has closed."""
        await sync_to_async(hygiene.freshen)(time.monotonic() - self._used)

    def is_untidy(self) -> bool:
        """Whether a transaction is open: that of another task's call that is under way, or one that was left open."""
        try:
            return any(hygiene.is_in_transaction(connection) for connection in self._connections)
        except Exception:  # noqa: BLE001  the driver's own error: its thread closes it just now
            return True

    async def tidy(self) -> None:
        """Roll back a transaction that was left open: between two calls of async code there can be no other."""
        await sync_to_async(hygiene.tidy)()
        self._connections = [connection for connection in self._connections if connection.connection is not None]

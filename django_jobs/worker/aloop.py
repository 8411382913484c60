"""The event loop that runs async tasks, in a thread of its own."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextvars import Context
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from django_jobs import logs
from django_jobs.execution import Attempt, aexecute, hygiene, policy
from django_jobs.worker.inbox import Inbox
from django_jobs.worker.marks import Marks
from django_jobs.worker.threads import LONG

# A coroutine that never waits then costs no turn of the loop.
EAGER: dict[str, Any] = {"eager_start": True} if sys.version_info >= (3, 12) else {}

LAST_PATIENCE = 0.2  # seconds for what is left when the loop ends


class AsyncLoop:
    """Runs up to `count` async tasks at once."""

    def __init__(self, count: int, inbox: Inbox, stopping: Callable[[], bool], marks: Marks | None = None) -> None:
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
        self._database = DatabaseThread()
        self._ended = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self._serve, name="django-jobs-async", daemon=True)
        self.thread.start()

    def submit(self, attempts: list[Attempt]) -> None:
        """Queue them; one wake-up of the loop for the whole batch."""
        self._waiting.extend(attempts)
        self._loop.call_soon_threadsafe(self._fill)

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
        return list(self._running)

    def cancel(self, attempts: list[Attempt]) -> None:
        """Cancel these, wherever they wait; mark them by `Attempt.cancel` before."""
        self._loop.call_soon_threadsafe(self._cancel, attempts)

    def give_up(self, attempt: Attempt) -> None:
        """Make up for the place of a task that ignores its cancellation."""
        logs.thread_given_up(attempt.run, seconds=time.monotonic() - attempt.deadline)
        self._loop.call_soon_threadsafe(self._replace, attempt)

    def end(self, patience: float) -> bool:
        """Stop the loop. False if it is stuck."""
        self._loop.call_soon_threadsafe(self._ended.set)
        self.thread.join(patience)
        return not self.thread.is_alive()

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
        # Not the context we are in: it may be that of the job that has just ended.
        task = asyncio.Task(self._run(attempt), loop=self._loop, context=Context(), **EAGER)
        if not task.done():
            self._running[attempt] = task

    async def _run(self, attempt: Attempt) -> None:
        try:
            if self._database.is_suspect():
                await self._database.freshen()
            if attempt.interrupted:
                outcome = policy.handed_back(attempt)
            else:
                if self._marks is not None:
                    self._marks.note_start(attempt)
                outcome = await aexecute(attempt, stopping=self._stopping, is_watched=True)
        except BaseException as error:  # noqa: BLE001  a fault of ours, or no memory left: the loop goes on
            logs.service_failed("loop", error)
            outcome = policy.raised(attempt, error)
        self._running.pop(attempt, None)
        if attempt in self._given_up:
            self._given_up.discard(attempt)
        else:
            self._free += 1
        self._database.note_use()
        is_urgent = outcome.duration >= LONG or len(self._waiting) <= self.low_water
        self._inbox.put_ended(attempt, outcome, is_urgent=is_urgent)
        self._fill()

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
        self._thread_id = await sync_to_async(threading.get_ident)()
        connection_created.connect(self._created)

    async def close(self) -> None:
        connection_created.disconnect(self._created)
        if self._connections:
            await sync_to_async(connections.close_all)()

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

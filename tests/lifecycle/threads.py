"""Threads with their own connections, and a look at who waits for whom in the database."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Self, TypeVar

from django.db import connection, connections, transaction

T = TypeVar("T")
PATIENCE = 30


class Threads:
    """Starts functions in threads of their own, closes their connections, and waits for all at the end of the block."""

    def __enter__(self) -> Self:
        self._pool = ThreadPoolExecutor(32)
        self._futures: list[Future[Any]] = []
        return self

    def start(self, function: Callable[[], T]) -> Future[T]:
        future = self._pool.submit(_with_own_connections, function)
        self._futures.append(future)
        return future

    def __exit__(self, *exc: object) -> None:
        self._pool.shutdown()
        for future in self._futures:
            future.result(PATIENCE)


def at_once(functions: list[Callable[[], T]]) -> list[T]:
    """Let all of them start at a barrier. What they returned, in order."""
    barrier = threading.Barrier(len(functions), timeout=PATIENCE)

    def start(function: Callable[[], T]) -> T:
        connection.ensure_connection()
        barrier.wait()
        return function()

    with Threads() as threads:
        futures = [threads.start(partial(start, function)) for function in functions]
    return [future.result() for future in futures]


class OpenTransaction:
    """A thread inside atomic(): it has done something, and commits or rolls back when told."""

    def __init__(self, threads: Threads, function: Callable[[], object]) -> None:
        self._function = function
        self._done, self._end = threading.Event(), threading.Event()
        self._commits = True
        self._future = threads.start(self._body)
        assert self._done.wait(PATIENCE) or self._future.result(0)

    def _body(self) -> None:
        try:
            with transaction.atomic():
                self._function()
                self._done.set()
                assert self._end.wait(PATIENCE)
                if not self._commits:
                    transaction.set_rollback(True)
        finally:
            self._done.set()

    def end(self, *, commits: bool = True) -> None:
        self._commits = commits
        self._end.set()
        self._future.result(PATIENCE)


_WAITING = {
    "postgresql": """
        SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'""",
    "mysql": """
        SELECT count(*) FROM information_schema.innodb_trx AS trx
        JOIN information_schema.processlist AS session ON session.id = trx.trx_mysql_thread_id
        WHERE session.db = database() AND trx.trx_state = 'LOCK WAIT'""",
}
LOOK_EVERY = 0.15  # seconds: MariaDB renews what it tells only if nobody has asked for 0.1


def wait_until_blocked() -> None:
    """Wait until some session waits for a lock. SQLite does not tell; there it waits for nothing."""
    sql = _WAITING.get(connection.vendor)
    end = time.monotonic() + PATIENCE
    while sql and time.monotonic() < end:
        with connection.cursor() as cursor:
            cursor.execute(sql)
            if cursor.fetchone()[0]:
                return
        time.sleep(LOOK_EVERY)
    assert not sql, "nobody waits for a lock"


def _with_own_connections(function: Callable[[], T]) -> T:
    try:
        return function()
    finally:
        connections.close_all()

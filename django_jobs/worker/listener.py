"""Wake-ups by PostgreSQL's NOTIFY, through psycopg 3. Elsewhere there is no listener, and polling serves alone."""

from __future__ import annotations

import copy
import select
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

from django.db import connections

from django_jobs.conf import get_settings
from django_jobs.lifecycle.wake import CHANNEL
from django_jobs.worker.outage import FIRST_PAUSE, LONGEST_PAUSE

try:
    from psycopg import Connection
except ImportError:
    Connection = None  # type: ignore[assignment,misc]

ASK_EVERY = 30.0  # seconds of silence after which the connection is asked if it still lives


def can_listen(using: str) -> bool:
    """Whether this database and its driver wake workers."""
    return Connection is not None and connections[using].vendor == "postgresql" and get_settings().NOTIFY


@contextmanager
def _own_connection(using: str) -> Iterator[Any]:
    """An autocommit connection of psycopg 3's own, out of no pool; None if Django uses psycopg2."""
    wrapper = connections.create_connection(using)
    settings = wrapper.settings_dict
    own = {"AUTOCOMMIT": True, "OPTIONS": {**settings["OPTIONS"], "pool": False}}
    wrapper.settings_dict = copy.deepcopy({**settings, **own})
    wrapper.connect()
    try:
        yield wrapper.connection if isinstance(wrapper.connection, Connection) else None
    finally:
        wrapper.close()


def hears_itself(using: str, *, patience: float = 1.0) -> bool:
    """Whether what one connection sends arrives at another within so many seconds, as a listening worker needs it.

    Through a pooler in transaction mode LISTEN is accepted, and nothing ever arrives.
    """
    channel = f"{CHANNEL}_{uuid4().hex}"  # no worker's own: none is woken
    with _own_connection(using) as ears, _own_connection(using) as mouth:
        if ears is None:
            return False
        ears.execute(f"LISTEN {channel}")
        mouth.execute("SELECT pg_notify(%s, '')", [channel])
        return any(notice.channel == channel for notice in ears.notifies(timeout=patience, stop_after=1))


class Listener:
    """A thread that listens on an autocommit connection of its own, and connects again when it is cut."""

    def __init__(self, using: str, queue_names: Collection[str] | None, wake: Callable[[], None]) -> None:
        self._using = using
        self._queue_names = queue_names
        self._wake = wake
        self._is_stopped = False
        self._stop_reader, self._stop_writer = socket.socketpair()
        self.thread = threading.Thread(target=self._serve, name="django-jobs-listener", daemon=True)
        self.thread.start()

    def stop(self) -> None:
        self._is_stopped = True
        self._stop_writer.send(b"x")
        self.thread.join(1)
        if not self.thread.is_alive():
            self._stop_reader.close()
            self._stop_writer.close()

    def _serve(self) -> None:
        failures = 0
        while not self._is_stopped:
            started = time.monotonic()
            try:
                self._listen()
            except Exception:  # noqa: BLE001  a hint that is missing is no harm: the poll is the guarantee
                failures = 1 if time.monotonic() - started > ASK_EVERY else failures + 1
                self._sleep(min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(failures, 30)))

    def _sleep(self, seconds: float) -> None:
        select.select([self._stop_reader], [], [], seconds)

    def _listen(self) -> None:
        with _own_connection(self._using) as raw:
            if raw is None:
                self._is_stopped = True  # psycopg2
                return
            raw.execute(f"LISTEN {CHANNEL}")
            self._wake()  # something may have been missed
            while not self._is_stopped:
                self._hear(raw)

    def _hear(self, raw: Any) -> None:
        readable, _, _ = select.select([raw.fileno(), self._stop_reader], [], [], ASK_EVERY)
        if not readable:
            raw.execute("SELECT 1")
        # What came in with that answer is handed over too.
        heard = [notice.payload for notice in raw.notifies(timeout=0)] if not self._is_stopped else []
        if any(self._concerns(payload) for payload in heard):
            self._wake()

    def _concerns(self, payload: str) -> bool:
        return not payload or self._queue_names is None or payload in self._queue_names

"""Wake-ups by PostgreSQL's NOTIFY, through psycopg 3. Elsewhere there is no listener, and polling serves alone."""

from __future__ import annotations

import math
import random
import select
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from django_jobs.conf import get_settings
from django_jobs.driver import HAS_PSYCOPG, heard, is_psycopg
from django_jobs.execution.answers import Wait
from django_jobs.lifecycle.wake import CHANNEL
from django_jobs.worker.connection import own_settings
from django_jobs.worker.outage import FIRST_PAUSE, LONGEST_PAUSE

ASK_EVERY = 30.0  # seconds of silence after which the connection is asked if it still lives
PATIENCE = 5.0  # seconds after which an answer is missed


def can_listen(using: str) -> bool:
    """Whether this database and its driver wake workers."""
    return HAS_PSYCOPG and connections[using].vendor == "postgresql" and get_settings().NOTIFY


class Session:
    """An autocommit connection of psycopg 3's own, out of no pool."""

    def __init__(self, wrapper: BaseDatabaseWrapper) -> None:
        self._wrapper = wrapper
        self.raw: Any = wrapper.connection

    def execute(self, sql: str, parameters: Sequence[object] | None = None) -> None:
        with Wait(self._wrapper, PATIENCE):
            self.raw.execute(sql, parameters)


@contextmanager
def _own_session(using: str) -> Iterator[Session | None]:
    """A new one; None if Django uses psycopg2."""
    wrapper = connections.create_connection(using)
    wrapper.settings_dict = {**own_settings(wrapper), "AUTOCOMMIT": True}
    wrapper.connect()
    try:
        yield Session(wrapper) if is_psycopg(wrapper.connection) else None
    finally:
        wrapper.close()


def hears_itself(using: str, *, patience: float = 1.0) -> bool:
    """Whether what one connection sends arrives at another within so many seconds, as a listening worker needs it.

    Through a pooler in transaction mode LISTEN is accepted, and nothing ever arrives.
    """
    with _own_session(using) as ears:
        return ears is not None and _hears(ears, using, patience=patience)


# No worker's own: none is woken. One for all tests of the process, as a pooler's session goes on listening to it.
TEST_CHANNEL = f"{CHANNEL}_{uuid4().hex}"


def _hears(ears: Session, using: str, *, patience: float = 1.0) -> bool:
    word = uuid4().hex
    ears.execute(f"LISTEN {TEST_CHANNEL}")
    with _own_session(using) as mouth:
        if mouth is not None:
            mouth.execute("SELECT pg_notify(%s, %s)", [TEST_CHANNEL, word])
        is_heard = any(notice.payload == word for notice in ears.raw.notifies(timeout=patience, stop_after=1))
    ears.execute(f"UNLISTEN {TEST_CHANNEL}")
    return is_heard


class Listener:
    """A thread that listens on an autocommit connection of its own, and connects again when it is cut.

    `wake` is told the queue of each wake-up; "" is any.
    """

    def __init__(self, using: str, queue_names: Collection[str] | None, wake: Callable[[str], None]) -> None:
        self._using = using
        self._queue_names = queue_names
        self._wake = wake
        self._is_proven = False
        self._lived = -math.inf  # when the connection last showed that it lives
        self._is_stopped = False
        self._stop_reader, self._stop_writer = socket.socketpair()
        self.thread = threading.Thread(target=self._serve, name="django-jobs-listener", daemon=True)
        self.thread.start()

    @property
    def hears(self) -> bool:
        """Whether wake-ups were seen to arrive on this connection, which has shown since then that it lives."""
        return self._is_proven and time.monotonic() < self._lived + ASK_EVERY + PATIENCE

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
                self._is_proven = False
                self._wake("")  # from now on the poll serves alone
                failures = 1 if time.monotonic() - started > ASK_EVERY else failures + 1
                self._sleep(min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(failures, 30)) * random.uniform(0.5, 1.0))

    def _sleep(self, seconds: float) -> None:
        select.select([self._stop_reader], [], [], seconds)

    def _listen(self) -> None:
        with _own_session(self._using) as session:
            if session is None:
                self._is_stopped = True  # psycopg2
                return
            self._start(session)
            while not self._is_stopped:
                self._hear(session)

    def _start(self, session: Session) -> None:
        self._is_proven = _hears(session, self._using)
        # To a pooler's session only if it is ours: what others do with it later would hear of each wake-up, and their
        # driver would keep it.
        if self._is_proven:
            session.execute(f"LISTEN {CHANNEL}")
        self._lived = time.monotonic()
        self._wake("")  # something may have been missed

    def _hear(self, session: Session) -> None:
        readable, _, _ = select.select([session.raw.fileno(), self._stop_reader], [], [], ASK_EVERY)
        if not readable:
            self._ask(session)
        # What came in with that answer is handed over too.
        payloads = heard(session.raw) if not self._is_stopped else set()
        self._lived = time.monotonic()
        for payload in payloads:
            if self._concerns(payload):
                self._wake(payload)

    def _ask(self, session: Session) -> None:
        """See whether the connection lives, and whether what did not get through before gets through now."""
        if self._is_proven:
            session.execute("SELECT 1")
        else:
            self._start(session)

    def _concerns(self, payload: str) -> bool:
        return not payload or self._queue_names is None or payload in self._queue_names

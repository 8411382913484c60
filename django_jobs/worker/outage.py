"""A database that is away: growing, jittered pauses, and one log line for each change."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

from django.db import InterfaceError, OperationalError, connections

from django_jobs import logs
from django_jobs.execution import hygiene

FIRST_PAUSE = 0.2  # seconds
LONGEST_PAUSE = 10.0


class Outage:
    """What the threads of a worker know together of their database being away."""

    def __init__(self, using: str) -> None:
        self.using = using
        self._lock = threading.Lock()
        self._since: float | None = None

    @property
    def is_on(self) -> bool:
        return self._since is not None

    def begin(self, error: BaseException) -> None:
        with self._lock:
            if self._since is None:
                self._since = time.monotonic()
                logs.database_away(self.using, error)

    def end(self) -> None:
        if self._since is None:
            return
        with self._lock:
            since, self._since = self._since, None
        if since is not None:
            logs.database_back(self.using, after=time.monotonic() - since)


class Retrier:
    """Runs one thread's steps against the database; after one that failed, the next waits, longer each time.

    A connection's first failure costs no pause and no log line: one that was cut while idle is replaced at once.
    """

    def __init__(self, part: str, outage: Outage, longest_pause: float = LONGEST_PAUSE) -> None:
        self.part = part
        self.outage = outage
        self.longest_pause = longest_pause
        self.failures = 0
        self._next = 0.0

    @property
    def pause(self) -> float:
        """Seconds until the next step may be tried."""
        return self._next - time.monotonic() if self.failures else 0.0

    def run(self, step: Callable[[], object]) -> bool:
        """Run the step if it is time. False if it is not, or if the step failed.

        A step that answers False did not ask the database, and says nothing about it.
        """
        if self.failures and time.monotonic() < self._next:
            return False
        try:
            answer = step()
        except Exception as error:  # noqa: BLE001  whatever it is, a worker goes on
            self._note(error)
            return False
        finally:
            # With DEBUG, Django keeps the text of thousands of statements; a request would end that.
            connections[self.outage.using].queries_log.clear()
        if answer is not False:
            self.failures = 0
            self.outage.end()
        return True

    def _note(self, error: Exception) -> None:
        self.failures += 1
        is_connection = isinstance(error, (OperationalError, InterfaceError))
        if is_connection and self.failures > 1:
            self.outage.begin(error)
        if not is_connection and self.failures == 1:
            logs.service_failed(self.part, error)
        connection = connections[self.outage.using]
        if not connection.in_atomic_block:
            hygiene.close(connection)
        self._next = time.monotonic() + self._pause(is_connection)

    def _pause(self, is_connection: bool) -> float:
        if is_connection and self.failures == 1:
            return 0.0
        doublings = min(self.failures, 30)
        return min(self.longest_pause, FIRST_PAUSE * 2.0**doublings) * random.uniform(0.5, 1.0)

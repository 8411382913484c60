"""A database that is away: growing, jittered pauses, and one log line for each change."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

from django.db import InterfaceError, OperationalError, connections

from django_jobs import logs
from django_jobs.execution import hygiene
from django_jobs.execution.answers import Wait

FIRST_PAUSE = 0.2  # seconds
LONGEST_PAUSE = 10.0
LEAST_PATIENCE, PATIENCE = 3.0, 30.0  # seconds that a statement of ours may take
READ_ONLY = "25006"  # the SQLSTATE of a standby that takes over soon; Django makes an InternalError of it


def patience_for(lease: float) -> float:
    """Seconds without an answer after which a statement is given up: by then the others count this worker as gone."""
    return min(max(lease, LEAST_PATIENCE), PATIENCE)


class NoAnswer(OperationalError):
    """The server, or what is in front of it, took a statement and said nothing."""


class Outage:
    """What the threads of a worker know together of their database being away.

    It begins with the first of them that does not get through, and is over when none is left that does not.
    """

    def __init__(self, using: str, patience: float = PATIENCE) -> None:
        self.using = using
        self.patience = patience  # seconds
        # Who writes regularly, and must do so before the database counts as back: that it can be read says too little.
        self.witness: Retrier | None = None
        self._lock = threading.Lock()
        self._since: float | None = None
        self._ended = 0.0  # the last one
        self._cut_off: set[Retrier] = set()

    @property
    def is_on(self) -> bool:
        return self._since is not None

    def has_ended_since(self, moment: float) -> bool:
        """What failed and was begun before that, says nothing about now."""
        return moment < self._ended

    def begin(self, retrier: Retrier, error: BaseException, *, waited: float = 0.0) -> None:
        """This one does not get through; it has `waited` so many seconds to learn that."""
        with self._lock:
            self._cut_off.add(retrier)
            if self._since is None:
                self._since = time.monotonic() - waited
                if self.witness is not None:
                    self._cut_off.add(self.witness)
                logs.database_away(self.using, error)

    def end(self, retrier: Retrier) -> None:
        """This one has got through. The others need not wait any longer to try."""
        if retrier not in self._cut_off:
            return
        with self._lock:
            self._cut_off.discard(retrier)
            rest = list(self._cut_off)
            if not rest and self._since is not None:
                self._ended = time.monotonic()
                logs.database_back(self.using, after=self._ended - self._since)
                self._since = None
        for each in rest:
            each.hurry()


class Retrier:
    """Runs one thread's steps against the database; after one that failed, the next waits, longer each time.

    A connection's first failure costs no pause and no log line: one that was cut while idle is replaced at once.
    """

    def __init__(
        self,
        part: str,
        outage: Outage,
        longest_pause: float = LONGEST_PAUSE,
        *,
        patience: float | None = None,
        wake: Callable[[], object] = lambda: None,
    ) -> None:
        self.part = part
        self.outage = outage
        self.longest_pause = longest_pause
        self.patience = outage.patience if patience is None else patience
        self.failures = 0
        self._wake = wake  # the thread, if it sleeps
        self._next = 0.0

    @property
    def pause(self) -> float:
        """Seconds until the next step may be tried."""
        return self._next - time.monotonic() if self.failures else 0.0

    def hurry(self) -> None:
        """Let the next step be tried now. Any thread may say so."""
        self._next = 0.0
        self._wake()

    def run(self, step: Callable[[], object]) -> bool:
        """Run the step if it is time. False if it is not, or if the step failed.

        A step that answers False did not ask the database, and says nothing about it.
        """
        if self.failures and time.monotonic() < self._next:
            return False
        connection = connections[self.outage.using]
        session, began, wait = connection.connection, time.monotonic(), Wait(connection, self.patience)
        try:
            with wait:
                answer = step()
        except Exception as error:  # noqa: BLE001  whatever it is, a worker goes on
            self._note(error, wait, is_stale=self.outage.has_ended_since(began))
            # A session that was opened while the server could only be read may stay so.
            if hygiene.is_lost(session) or _is_read_only(error):
                hygiene.distrust()
            if not connection.in_atomic_block:
                hygiene.close(connection)
            return False
        finally:
            # With DEBUG, Django keeps the text of thousands of statements; a request would end that.
            connections[self.outage.using].queries_log.clear()
        if answer is not False:
            self.failures = 0
            self.outage.end(self)
        return True

    def _note(self, error: Exception, wait: Wait, *, is_stale: bool) -> None:
        self.failures = 1 if is_stale else self.failures + 1
        is_away = wait.is_cut or _is_away(error)
        if is_away and not is_stale:
            self._tell(error, wait)
        elif not is_away:
            self.outage.end(self)
            if self.failures == 1:
                logs.service_failed(self.part, error)
        self._next = time.monotonic() + self._pause(is_away)

    def _tell(self, error: Exception, wait: Wait) -> None:
        if wait.is_cut:
            text = f"A statement had no answer within {wait.seconds:.1f} s."
            self.outage.begin(self, NoAnswer(text), waited=wait.seconds)
        elif self.failures > 1:
            self.outage.begin(self, error)

    def _pause(self, is_away: bool) -> float:
        if is_away and self.failures == 1:
            return 0.0
        doublings = min(self.failures, 30)
        return min(self.longest_pause, FIRST_PAUSE * 2.0**doublings) * random.uniform(0.5, 1.0)


def _is_away(error: Exception) -> bool:
    return isinstance(error, (OperationalError, InterfaceError)) or _is_read_only(error)


def _is_read_only(error: Exception) -> bool:
    cause = error.__cause__
    return READ_ONLY in (getattr(cause, "sqlstate", None), getattr(cause, "pgcode", None))  # psycopg's, psycopg2's

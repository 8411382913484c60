"""What the worker holds and has still to write: every claim is in here until the database knows its end."""

from __future__ import annotations

import time
from collections.abc import Iterable
from itertools import chain
from uuid import UUID

from django_jobs import logs
from django_jobs.execution import Attempt
from django_jobs.lifecycle import extend, finish, release, turn
from django_jobs.lifecycle.gate import Gate
from django_jobs.lifecycle.statements import is_sent_back
from django_jobs.runs import ClaimedRun, Outcome, WorkerIdentity

KEPT_PAUSE = 0.1  # seconds until an outcome is given again whose row somebody locks


class Ledger:
    """Used by the worker's main thread alone."""

    def __init__(self, using: str) -> None:
        self._using = using
        self._in_flight: dict[Attempt, WorkerIdentity] = {}
        self._outcomes: dict[WorkerIdentity, list[Outcome]] = {}
        self._kept: dict[WorkerIdentity, list[Outcome]] = {}  # tried, and their row was locked
        self._returned: dict[WorkerIdentity, set[tuple[UUID, int]]] = {}
        self._kept_until = 0.0
        self.sync_count = 0
        self.async_count = 0

    @property
    def in_flight(self) -> list[Attempt]:
        return list(self._in_flight)

    @property
    def is_idle(self) -> bool:
        """Nothing runs."""
        return not self._in_flight

    @property
    def is_written(self) -> bool:
        """The database knows all that has ended."""
        return not self._outcomes and not self._kept and not self._returned

    @property
    def sends_back(self) -> bool:
        """Whether `write` lets something run again."""
        ended = chain(*self._outcomes.values(), *self._kept.values())
        return bool(self._returned) or any(map(is_sent_back, ended))

    @property
    def unwritten(self) -> int:
        return sum(map(len, (*self._outcomes.values(), *self._kept.values(), *self._returned.values())))

    @property
    def pause(self) -> float | None:
        """Seconds until `write` has something to do; None if it has nothing."""
        if self._outcomes or self._returned:
            return 0.0
        return max(self._kept_until - time.monotonic(), 0.0) if self._kept else None

    def enter(self, attempts: Iterable[Attempt], identity: WorkerIdentity) -> None:
        """These were claimed."""
        for attempt in attempts:
            self._in_flight[attempt] = identity
            self._count(attempt, 1)

    def leave(self, attempt: Attempt, outcome: Outcome | None) -> bool:
        """A run has ended; None: it is recorded. False if that was known already: what comes late is dropped."""
        identity = self._in_flight.pop(attempt, None)
        if identity is None:
            return False
        self._count(attempt, -1)
        if outcome is not None:
            self._outcomes.setdefault(identity, []).append(outcome)
        return True

    def hand_back(self, attempts: Iterable[Attempt]) -> int:
        """These were never started, and will not be."""
        count = 0
        for attempt in attempts:
            identity = self._in_flight.pop(attempt, None)
            if identity is not None:
                self._count(attempt, -1)
                self._returned.setdefault(identity, set()).add(attempt.fence)
                count += 1
        return count

    def _count(self, attempt: Attempt, change: int) -> None:
        if attempt.task.is_async:
            self.async_count += change
        else:
            self.sync_count += change

    def write(self) -> list[Outcome]:
        """Write what has ended and what goes back. The outcomes that were recorded.

        Raises:
            django.db.Error: nothing is forgotten; call it again.
        """
        if time.monotonic() >= self._kept_until:
            for identity, kept in self._kept.items():
                self._outcomes.setdefault(identity, []).extend(kept)
            self._kept.clear()
        recorded: list[Outcome] = []
        for identity, outcomes in list(self._outcomes.items()):
            recorded += self._settle(identity, finish.finish(outcomes, identity, using=self._using))
        for identity in list(self._returned):
            count = release.release(self._returned[identity], identity, using=self._using)
            del self._returned[identity]
            logs.jobs_released(count, worker=identity.name)
        return recorded

    def turn(
        self,
        identity: WorkerIdentity,
        queue_name: str,
        limit: int,
        known: frozenset[str],
        *,
        after: ClaimedRun | None = None,
        gate: Gate | None = None,
    ) -> tuple[list[Outcome], list[ClaimedRun]]:
        """Write what has ended and claim from a queue, in one go. The outcomes recorded, and the runs claimed.

        Raises:
            django.db.Error: nothing is forgotten; call it again.
        """
        outcomes = self._outcomes.get(identity, [])
        finished, runs = turn.turn(
            outcomes, identity, queue_name, limit, known, using=self._using, after=after, gate=gate
        )
        return self._settle(identity, finished), runs

    def _settle(self, identity: WorkerIdentity, finished: finish.Finished) -> list[Outcome]:
        self._outcomes.pop(identity, None)
        if finished.kept:
            if not self._kept:
                self._kept_until = time.monotonic() + KEPT_PAUSE
            self._kept.setdefault(identity, []).extend(finished.kept)
        return finished.recorded

    def reconcile(self, identity: WorkerIdentity) -> list[Attempt]:
        """Compare with the database: give back what it says we hold and we do not know. What we run and do not hold.

        A statement whose answer was lost may have been carried out. A claim's rows would then be held for ever.
        """
        held = extend.held(identity, using=self._using)
        running = {attempt.fence: attempt for attempt, holder in self._in_flight.items() if holder == identity}
        ended = (*self._outcomes.get(identity, ()), *self._kept.get(identity, ()))
        unwritten = {each.run[:2] for each in ended} | self._returned.get(identity, set())
        stray = held - running.keys() - unwritten
        if stray:
            logs.jobs_released(release.release(stray, identity, using=self._using), worker=identity.name)
        return [attempt for fence, attempt in running.items() if fence not in held]

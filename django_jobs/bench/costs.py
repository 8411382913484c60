"""What an act costs, and where the time goes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from django.db import connections, transaction
from django.test.utils import CaptureQueriesContext

from django_jobs.lifecycle import extend
from django_jobs.runs import WorkerIdentity

TRIPS = 300
COMMITS = 60


@dataclass(frozen=True)
class Probes:
    """Seconds that the database needs for next to nothing, the CPU time of this process left out."""

    trip: float  # a statement that does no work, there and back
    flush: float  # what a commit waits for beyond a round trip: the disk

    @classmethod
    def measure(cls, worker: WorkerIdentity, *, using: str) -> Probes:
        trip = _waited(lambda: _ask_nothing(using), TRIPS)
        return cls(trip, max(_commit(worker, using) - trip, 0.0))


def between(before: Probes, after: Probes) -> Probes:
    """What holds for the time between two measurements: a disk that others use changes from minute to minute."""
    return Probes((before.trip + after.trip) / 2, (before.flush + after.flush) / 2)


def _ask_nothing(using: str) -> None:
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT 1")
        cursor.fetchall()


def _waited(act: Callable[[], object], times: int) -> float:
    """The median of the seconds that the act takes, less those in which this process worked."""
    act()
    waits = []
    for _ in range(times):
        started, worked = time.perf_counter(), time.process_time()
        act()
        waits.append(time.perf_counter() - started - (time.process_time() - worked))
    return max(statistics.median(waits), 0.0)


def _commit(worker: WorkerIdentity, using: str) -> float:
    """The median of what a COMMIT takes after a small write: a heartbeat in a row of our own."""
    waits = []
    transaction.set_autocommit(False, using=using)
    try:
        for _ in range(COMMITS):
            extend.extend(worker, using=using)
            started, worked = time.perf_counter(), time.process_time()
            transaction.commit(using=using)
            waits.append(time.perf_counter() - started - (time.process_time() - worked))
    finally:
        transaction.rollback(using=using)
        transaction.set_autocommit(True, using=using)
    return max(statistics.median(waits), 0.0)


@dataclass(frozen=True)
class Calls:
    """How often an act speaks with the database."""

    trips: int
    commits: int


def count_calls(act: Callable[[], object], *, using: str) -> Calls:
    """Do it once, and count its round trips and commits."""
    with CaptureQueriesContext(connections[using]) as captured:
        act()
    is_open, commits = False, 0
    for query in captured.captured_queries:
        sql = query["sql"].lstrip().upper()
        if sql.startswith("BEGIN"):
            is_open = True
        elif sql.startswith(("COMMIT", "ROLLBACK")):
            commits += sql.startswith("COMMIT")
            is_open = False
        elif not is_open and not sql.startswith(("SELECT", "WITH RECURSIVE", "PRAGMA")):
            commits += 1
    return Calls(len(captured.captured_queries), commits)


@dataclass(frozen=True)
class Rate:
    """One workload's result."""

    name: str
    jobs: int
    seconds: float
    worked: float  # seconds of CPU time of this process
    trips: int | None = None  # of all jobs together; None where they cannot be counted
    commits: int | None = None
    wal: float = 0.0  # bytes that the server wrote meanwhile

    @property
    def per_second(self) -> float:
        return self.jobs / self.seconds

    def shares(self, probes: Probes) -> dict[str, float]:
        """Which part of the time went where; the rest is what the database itself worked, or waited for locks."""
        spent = {"CPU": min(self.worked / self.seconds, 1.0)}
        if self.commits is not None and self.trips is not None:
            spent["commit"] = min(self.commits * probes.flush / self.seconds, 1.0)
            spent["trips"] = min(self.trips * probes.trip / self.seconds, 1.0)
        # The probes are of another moment: together they may come to more than there was.
        total = max(sum(spent.values()), 1.0)
        spent = {name: share / total for name, share in spent.items()}
        return {**spent, "database": 1.0 - sum(spent.values())}

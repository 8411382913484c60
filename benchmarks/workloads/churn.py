"""A long drain into which others come that sort before what is being claimed: each must start soon all the same.

5 % of the jobs ask for one more try a second later. Beside them come 1 % that are committed by transactions which stay
open for 3 s, though they were due an hour before all others, and 1 % of a higher priority.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta

from django.db import connections, transaction
from django.utils import timezone

from benchmarks import drains, marks
from benchmarks.bench import Bench
from benchmarks.lines import Line, Rule, Sample
from benchmarks.marks import Mark
from benchmarks.server import Connection
from benchmarks.tasks import mark
from benchmarks.workloads.enqueue import own_connection
from django_jobs import enqueue_many

WITHIN = 0.15
SOON = 3.0  # seconds
MOST, SECONDS = 1_000_000, 34.0  # jobs, and for how long they may be drained
RETRIED = 20  # one in so many
OPEN = 3.0  # seconds that a transaction stays open
DELAY = 1.0  # seconds to the second try, as in tasks.mark_twice
HIGH_EVERY = 0.25  # seconds between two lots of a higher priority


@dataclass
class Arrivals:
    """What is enqueued while the drain runs: numbers from `first` on, and when each was committed."""

    first: int
    count: int  # of each kind
    seconds: float  # over which they are spread
    committed: dict[int, float] = field(default_factory=dict)
    late: set[int] = field(default_factory=set)

    def start(self) -> list[threading.Thread]:
        threads = [threading.Thread(target=self._send_high)]
        lots = min(10, self.count)
        for lot in range(lots):
            numbers = range(self.first + lot * self.count // lots, self.first + (lot + 1) * self.count // lots)
            self.late.update(numbers)
            wait = max(self.seconds - OPEN - 1, 0) * lot / lots
            threads.append(threading.Thread(target=self._send_late, args=(numbers, wait)))
        for thread in threads:
            thread.start()
        return threads

    def _send_late(self, numbers: range, wait: float) -> None:
        time.sleep(wait)
        task = mark.using(run_at=timezone.now() - timedelta(hours=1))
        try:
            with transaction.atomic():
                enqueue_many((task, (number,), {}) for number in numbers)
                time.sleep(OPEN)
            self._note(numbers)
        finally:
            connections.close_all()

    def _send_high(self) -> None:
        lots = max(int(self.seconds / HIGH_EVERY), 1)
        task = mark.using(priority=10)
        after = self.first + self.count
        try:
            for lot in range(lots):
                numbers = range(after + lot * self.count // lots, after + (lot + 1) * self.count // lots)
                enqueue_many((task, (number,), {}) for number in numbers)
                self._note(numbers)
                time.sleep(HIGH_EVERY)
        finally:
            connections.close_all()

    def _note(self, numbers: range) -> None:
        self.committed.update(dict.fromkeys(numbers, time.time()))


def measure(bench: Bench) -> Iterator[Line]:
    count = bench.of(MOST, 10_000)
    if not bench.short:
        with bench.database(bench.app) as connection:
            guess = drains.drain(bench, bench.app, connection, "mark", 20_000).rate
        count = min(MOST, int(guess * SECONDS))
    if not bench.short and count < MOST:
        bench.remark(f"the long drain is of {count:,} jobs instead of {MOST:,}, to end in {SECONDS:.0f} s.")
    with bench.database(bench.app) as connection:
        plain = drains.drain(bench, bench.app, connection, "mark", count).rate
    with bench.database(bench.app) as connection, own_connection(connection):
        rate, waits = _churn(bench, connection, count, count / plain)
    yield Line(
        f"{count:,} with retries, late commits, priorities",
        Sample("/s", [rate]),
        Rule.RATIO_AT_LEAST,
        1.0,
        base=Sample("/s", [plain]),
        base_name="plain",
        tolerance=WITHIN,
    )
    for kind, wait in waits.items():
        yield Line(f"longest wait of {kind}", Sample(" s", [wait]), Rule.VALUE_AT_MOST, SOON, always_judged=True)


def _churn(bench: Bench, connection: Connection, count: int, seconds: float) -> tuple[float, dict[str, float]]:
    name = "CASE WHEN {n} % " + str(RETRIED) + " = 0 THEN 'benchmarks.tasks.mark_twice' ELSE p.task_name END"
    bench.app.fill(connection, "mark", count, task_name=name)
    bench.server.settle(connection)
    arrivals = Arrivals(first=count, count=count // 100, seconds=seconds)
    runs = count + count // RETRIED + (1 if count % RETRIED else 0) + 2 * arrivals.count
    with drains.started(bench, bench.app, connection, "mark") as (crew, path):
        drains.wait_for(path, 1, crew, drains.START_PATIENCE)
        threads = arrivals.start()
        drains.wait_for(path, runs, crew, drains.PATIENCE)
        drains.wait_until_done(bench.app, connection, crew)
        for thread in threads:
            thread.join()
        starts = marks.read(path)
    _check(starts, count, arrivals)
    return _rate(starts, count), _waits(starts, count, arrivals)


def _check(starts: list[Mark], count: int, arrivals: Arrivals) -> None:
    runs: dict[int, int] = {}
    for start in starts:
        runs[start.number] = runs.get(start.number, 0) + 1
    expected = {number: 1 + (number % RETRIED == 0) for number in range(count)} | dict.fromkeys(arrivals.committed, 1)
    wrong = [number for number in runs.keys() | expected.keys() if runs.get(number) != expected.get(number)]
    if wrong:
        raise drains.WrongCount(f"{len(wrong)} jobs did not run as often as they should have, first number {wrong[0]}.")


def _rate(starts: list[Mark], count: int) -> float:
    """Runs of every kind per second, until the last job has started that was there from the beginning."""
    first: dict[int, float] = {}
    for start in starts:
        first.setdefault(start.number, start.at)
    end = max(at for number, at in first.items() if number < count)
    return sum(1 for start in starts if start.at <= end) / (end - starts[0].at)


def _waits(starts: list[Mark], count: int, arrivals: Arrivals) -> dict[str, float]:
    """Seconds from the moment that nothing stood before a job any more to its start, the longest of each kind."""
    first: dict[int, float] = {}
    second: dict[int, float] = {}
    for start in starts:
        (second if start.number in first else first)[start.number] = start.at
    # A second try is due after all that was there, and its turn comes when that has started.
    end = max(at for number, at in first.items() if number < count)
    retried = [at - max(first[number] + DELAY, end) for number, at in second.items()]
    arrived = {number: first[number] - at for number, at in arrivals.committed.items()}
    late = [wait for number, wait in arrived.items() if number in arrivals.late]
    high = [wait for number, wait in arrived.items() if number not in arrivals.late]
    return {"retries": max(retried), "late commits": max(late), "higher priority": max(high)}

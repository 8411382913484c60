"""From the enqueueing of a job to its start by an idle worker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from django.db import transaction

from benchmarks import drains, floor
from benchmarks.bench import Bench
from benchmarks.lines import Line, Rule, Sample
from benchmarks.server import Connection
from benchmarks.sides import Side
from benchmarks.tasks import mark
from benchmarks.workloads.enqueue import own_connection
from django_jobs import enqueue

P50, P99 = 1.2 / 0.7, 4 / 2.8  # times the floor, as it was on the machine of the numbers in drain.py
GAP = 0.02  # seconds between jobs
WARM = 20  # jobs before those that count, for connections, caches and the worker's own measurements


class Asked(NamedTuple):
    """When a job was asked for, in seconds since 1970."""

    committed: float  # its COMMIT was answered
    returned: float  # the caller goes on: after the wake-up was sent


class Latency:
    """Milliseconds of all jobs of a round: their half and their 99th hundredth."""

    def __init__(self) -> None:
        self.p50, self.p99 = Sample(" ms"), Sample(" ms")

    def add(self, seconds: Iterator[float]) -> None:
        ordered = sorted(each * 1000 for each in seconds)
        self.p50.add(ordered[len(ordered) // 2])
        self.p99.add(ordered[min(int(len(ordered) * 0.99), len(ordered) - 1)])


def measure(bench: Bench) -> Iterator[Line]:
    app, base, from_commit = Latency(), Latency(), Latency()
    count = bench.of(200, 50)
    for _ in bench.rounds():
        with bench.database(bench.floor) as connection:
            found = _starts(bench, bench.floor, connection, _floor_enqueuer(connection), count)
            base.add(at - asked.returned for asked, at in found)
        with bench.database(bench.app) as connection, own_connection(connection):
            found = _starts(bench, bench.app, connection, _enqueue, count)
            app.add(at - asked.returned for asked, at in found)
            from_commit.add(at - asked.committed for asked, at in found)
    yield Line("enqueue to start, p50", app.p50, Rule.RATIO_AT_MOST, P50, base=base.p50)
    yield Line("enqueue to start, p99", app.p99, Rule.RATIO_AT_MOST, P99, base=base.p99)
    # The floor's wake-up goes with its COMMIT; the app's is sent after it.
    yield Line("... from its COMMIT on, p50", from_commit.p50, Rule.TOLD, base=base.p50)
    yield Line("... from its COMMIT on, p99", from_commit.p99, Rule.TOLD, base=base.p99)


def _enqueue(number: int) -> Asked:
    committed: list[float] = []
    with transaction.atomic():
        transaction.on_commit(lambda: committed.append(time.time()))
        enqueue(mark, number)
    return Asked(committed[0], time.time())


def _floor_enqueuer(connection: Connection) -> Callable[[int], Asked]:
    def enqueue(number: int) -> Asked:
        connection.execute(floor.INSERT_AND_NOTIFY, ("mark", number), prepare=True)
        now = time.time()
        return Asked(now, now)

    return enqueue


def _starts(
    bench: Bench, side: Side, connection: Connection, enqueue: Callable[[int], Asked], count: int
) -> list[tuple[Asked, float]]:
    """When each job was asked for, and when it was started."""
    with drains.started(bench, side, connection, "mark") as (crew, path):
        enqueue(0)
        drains.wait_for(path, 1, crew, drains.START_PATIENCE)
        asked = {number: _paced(enqueue, number) for number in range(1, WARM + count)}
        drains.wait_for(path, WARM + count, crew, drains.PATIENCE)
        starts = drains.check(path, WARM + count)
    return [(asked[start.number], start.at) for start in starts if start.number >= WARM]


def _paced(enqueue: Callable[[int], Asked], number: int) -> Asked:
    time.sleep(GAP)
    return enqueue(number)

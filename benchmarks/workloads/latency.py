"""From the commit of a job to its start by an idle worker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

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


def measure(bench: Bench) -> Iterator[Line]:
    halves = Sample(" ms"), Sample(" ms")
    tails = Sample(" ms"), Sample(" ms")
    count = bench.of(200, 50)
    for _ in bench.rounds():
        with bench.database(bench.floor) as connection:
            _add(_latencies(bench, bench.floor, connection, _floor_enqueuer(connection), count), halves[1], tails[1])
        with bench.database(bench.app) as connection, own_connection(connection):
            _add(_latencies(bench, bench.app, connection, _enqueue, count), halves[0], tails[0])
    yield Line("commit to start, p50", halves[0], Rule.RATIO_AT_MOST, P50, base=halves[1])
    yield Line("commit to start, p99", tails[0], Rule.RATIO_AT_MOST, P99, base=tails[1])


def _enqueue(number: int) -> float:
    """Enqueue, and say when the COMMIT returned: before the wake-up is sent, which therefore counts."""
    committed: list[float] = []
    with transaction.atomic():
        transaction.on_commit(lambda: committed.append(time.time()))
        enqueue(mark, number)
    return committed[0]


def _floor_enqueuer(connection: Connection) -> Callable[[int], float]:
    def enqueue(number: int) -> float:
        connection.execute(floor.INSERT_AND_NOTIFY, ("mark", number), prepare=True)
        return time.time()

    return enqueue


def _latencies(
    bench: Bench, side: Side, connection: Connection, enqueue: Callable[[int], float], count: int
) -> list[float]:
    """Milliseconds of each job, sorted."""
    with drains.started(bench, side, connection, "mark") as (crew, path):
        enqueue(0)
        drains.wait_for(path, 1, crew, drains.START_PATIENCE)
        committed = {number: _paced(enqueue, number) for number in range(1, WARM + count)}
        drains.wait_for(path, WARM + count, crew, drains.PATIENCE)
        starts = drains.check(path, WARM + count)
    return sorted((start.at - committed[start.number]) * 1000 for start in starts if start.number >= WARM)


def _paced(enqueue: Callable[[int], float], number: int) -> float:
    time.sleep(GAP)
    return enqueue(number)


def _add(latencies: list[float], half: Sample, tail: Sample) -> None:
    half.add(latencies[len(latencies) // 2])
    tail.add(latencies[min(int(len(latencies) * 0.99), len(latencies) - 1)])

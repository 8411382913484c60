"""Enqueueing: one job in its own transaction, one inside a caller's open transaction, 10,000 at once."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from django.db import connections, transaction

from benchmarks import floor
from benchmarks.bench import Bench
from benchmarks.lines import Line, Rule, Sample
from benchmarks.server import Connection
from benchmarks.tasks import mark
from django_jobs import enqueue, enqueue_many

ONE = 0.8  # of the floor
INSIDE = 150.0  # µs more than a bare INSERT
BULK = 0.37  # of the floor: 100,000 of 268,000 jobs per second
MANY = 10_000
BLOCK = 50  # calls of one kind before the other takes its turn


def measure(bench: Bench) -> Iterator[Line]:
    one = Sample("/s"), Sample("/s")
    inside = Sample(" µs"), Sample(" µs")
    bulk = Sample("/s"), Sample("/s")
    for _ in bench.rounds():
        with bench.database(bench.app) as connection, own_connection(connection), bench.database(bench.floor) as raw:
            _one(bench, raw, *one)
            _inside(bench, connection, *inside)
            _bulk(raw, *bulk)
    yield Line("enqueue one, own transaction", one[0], Rule.RATIO_AT_LEAST, ONE, base=one[1])
    yield Line(
        "enqueue one, open transaction", inside[0], Rule.EXCESS_AT_MOST, INSIDE, base=inside[1], base_name="bare INSERT"
    )
    yield Line("enqueue 10,000 at once", bulk[0], Rule.RATIO_AT_LEAST, BULK, base=bulk[1])


@contextmanager
def own_connection(connection: Connection) -> Iterator[None]:
    """Let Django's default connection lead to that database for the block."""
    default = connections["default"]
    default.close()
    default.settings_dict["NAME"] = connection.info.dbname
    try:
        yield
    finally:
        default.close()


def _one(bench: Bench, raw: Connection, app: Sample, base: Sample) -> None:
    """Turn and turn about, so that both meet the same noise."""
    spans: dict[str, list[float]] = {"app": [], "floor": []}
    for _ in range(bench.of(50, 8)):
        spans["floor"] += timed(lambda: raw.execute(floor.INSERT_AND_NOTIFY, ("mark", 1), prepare=True))
        spans["app"] += timed(lambda: enqueue(mark, 1))
    base.add(_rate(spans["floor"]))
    app.add(_rate(spans["app"]))


def _rate(spans: list[float]) -> float:
    return len(spans) / sum(spans)


def timed(call: Callable[[], object]) -> list[float]:
    """Seconds of each of a block of calls."""
    spans = []
    for _ in range(BLOCK):
        started = time.perf_counter()
        call()
        spans.append(time.perf_counter() - started)
    return spans


def _inside(bench: Bench, connection: Connection, app: Sample, base: Sample) -> None:
    connection.execute(floor.TABLE)
    spans: dict[str, list[float]] = {"app": [], "bare": []}

    def bare() -> None:
        with connections["default"].cursor() as cursor:
            cursor.execute(floor.INSERT, ["mark", 1])

    with transaction.atomic():
        for _ in range(bench.of(40, 6)):
            spans["bare"] += timed(bare)
            spans["app"] += timed(lambda: enqueue(mark, 1))
    base.add(statistics.median(spans["bare"]) * 1e6)
    app.add(statistics.median(spans["app"]) * 1e6)


def _bulk(raw: Connection, app: Sample, base: Sample) -> None:
    started = time.perf_counter()
    raw.execute(floor.INSERT_MANY, ("mark", list(range(MANY))))
    base.add(MANY / (time.perf_counter() - started))
    started = time.perf_counter()
    enqueue_many((mark, (number,), {}) for number in range(MANY))
    app.add(MANY / (time.perf_counter() - started))

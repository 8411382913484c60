"""Bytes of write-ahead log for a job, from its enqueueing in bulk to its end, its run kept."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator

from benchmarks import drains, floor
from benchmarks.bench import Bench
from benchmarks.lines import Line, Rule, Sample
from benchmarks.server import Connection
from benchmarks.sides import Side
from benchmarks.tasks import mark
from benchmarks.workloads.enqueue import own_connection
from django_jobs import enqueue_many

LIMIT = 1000.0  # bytes
MOST_FOREIGN = 0.1  # of the WAL, which is one for all databases of a server


def measure(bench: Bench) -> Iterator[Line]:
    count = bench.of(20_000, 5_000)
    app, base = Sample(" B"), Sample(" B")
    for _ in bench.rounds():
        with bench.database(bench.floor) as raw:
            base.add(_bytes(bench, bench.floor, raw, count, lambda raw=raw: _fill_floor(raw, count)))  # type: ignore[misc]
        with bench.database(bench.app) as connection, own_connection(connection):
            app.add(_bytes(bench, bench.app, connection, count, lambda: _fill_app(count)))
    yield Line("WAL per job", app, Rule.VALUE_AT_MOST, LIMIT, base=base)


def _fill_app(count: int) -> None:
    enqueue_many((mark, (number,), {}) for number in range(count))


def _fill_floor(connection: Connection, count: int) -> None:
    connection.execute(floor.INSERT_MANY, ("mark", list(range(count))))


def _bytes(bench: Bench, side: Side, connection: Connection, count: int, fill: Callable[[], None]) -> float:
    """A checkpoint before it and none in between, or the first change of each page would write the page as a whole."""
    bench.server.settle(connection)
    others = _others(bench)
    before, started = bench.server.wal_position(), time.monotonic()
    fill()
    connection.execute("ANALYZE")
    drains.run(bench, side, connection, "mark", count)
    written, seconds = bench.server.wal_position() - before, time.monotonic() - started
    foreign = (others + _others(bench)) / 2 * seconds
    if foreign > written * MOST_FOREIGN:
        bench.remark(
            f"other databases of this server wrote {foreign / written:.0%} of the WAL: what is ours is unknown."
        )
        return math.nan
    return (written - foreign) / count


def _others(bench: Bench) -> float:
    """Bytes per second that others write."""
    before = bench.server.wal_position()
    time.sleep(0.5)
    return (bench.server.wal_position() - before) / 0.5

"""Bytes of write-ahead log for a job, from its enqueueing in bulk to its end, its run kept."""

from __future__ import annotations

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


def measure(bench: Bench) -> Iterator[Line]:
    count = bench.of(20_000, 5_000)
    app, base = Sample(" B"), Sample(" B")
    for _ in bench.rounds(20):
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
    before = bench.server.wal_position()
    fill()
    connection.execute("ANALYZE")
    found = drains.run(bench, side, connection, "mark", count)
    written = bench.server.wal_position() - before
    if others * found.seconds > written / 20:
        bench.remark(
            f"other databases of this server wrote {others / 1e6:.1f} MB/s of WAL, which counts in WAL per job."
        )
    return written / count


def _others(bench: Bench) -> float:
    """Bytes per second that others write."""
    before = bench.server.wal_position()
    time.sleep(0.5)
    return (bench.server.wal_position() - before) / 0.5

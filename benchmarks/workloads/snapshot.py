"""A drain while another session holds a snapshot from before: no dead row or index entry may be cleared away."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from benchmarks.bench import Bench
from benchmarks.drains import drain
from benchmarks.lines import Line, Rule, Sample
from benchmarks.marks import Mark
from benchmarks.server import Connection

WITHIN = 0.15


def measure(bench: Bench) -> Iterator[Line]:
    count = bench.of(100_000, 10_000)
    held, free = Sample("/s"), Sample("/s")
    last, first = Sample("/s"), Sample("/s")
    for _ in bench.rounds():
        with bench.database(bench.app) as connection:
            free.add(drain(bench, bench.app, connection, "mark", count).rate)
        with bench.database(bench.app) as connection, _snapshot(bench, connection):
            found = drain(bench, bench.app, connection, "mark", count)
        held.add(found.rate)
        first.add(_rate(found.starts[: count // 5]))
        last.add(_rate(found.starts[-count // 5 :]))
    name = f"{count:,} under a held snapshot"
    yield Line(name, held, Rule.RATIO_AT_LEAST, 1.0, base=free, base_name="no snapshot", tolerance=WITHIN)
    yield Line(f"{name}: last fifth", last, Rule.RATIO_AT_LEAST, 1.0, base=first, base_name="first fifth")


@contextmanager
def _snapshot(bench: Bench, connection: Connection) -> Iterator[None]:
    with bench.server.connect(connection.info.dbname) as other:
        other.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        other.execute("SELECT count(*) FROM django_jobs_job")
        yield


def _rate(starts: Sequence[Mark]) -> float:
    return (len(starts) - 1) / (starts[-1].at - starts[0].at)

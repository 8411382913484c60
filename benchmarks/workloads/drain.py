"""No-op jobs that are ready, drained by one worker process and by two."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.bench import Bench
from benchmarks.drains import drain
from benchmarks.lines import Line, Rule, Sample

# Of one process of the floor: 30,000 of 107,000 jobs per second with one worker, 34,000 with two, on the machine where
# the fastest other queue did 20,000 and 28,400.
ONE, TWO = 0.28, 0.32
SECONDS = {1: 60.0, 2: 60.0}


def measure(bench: Bench) -> Iterator[Line]:
    for processes, limit in ((1, ONE), (2, TWO)):
        floor, app = Sample("/s"), {"mark": Sample("/s"), "amark": Sample("/s")}
        for _ in bench.rounds(SECONDS[processes]):
            with bench.database(bench.floor) as connection:
                floor.add(drain(bench, bench.floor, connection, "mark", bench.of(100_000, 20_000)).rate)
            for task, sample in app.items():
                with bench.database(bench.app) as connection:
                    count = bench.of(100_000, 5_000)
                    sample.add(drain(bench, bench.app, connection, task, count, processes=processes).rate)
        for task, sample in app.items():
            kind = "async" if task == "amark" else "sync"
            name = f"drain, {kind}, {processes} worker{'s' if processes > 1 else ''}"
            yield Line(name, sample, Rule.RATIO_AT_LEAST, limit, base=floor)

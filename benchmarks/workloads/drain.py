"""No-op jobs that are ready, drained by one worker process and by two."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from benchmarks.bench import Bench
from benchmarks.drains import drain
from benchmarks.lines import Line, Rule, Sample

# Of one process of the floor: 30,000 of 107,000 jobs per second with one worker, 34,000 with two, on the machine where
# the fastest other queue did 20,000 and 28,400.
LIMITS = {1: 0.28, 2: 0.32}
TASKS = {"mark": "sync", "amark": "async"}


def measure(bench: Bench) -> Iterator[Line]:
    count, floor_count = bench.of(100_000, 5_000), bench.of(100_000, 20_000)
    kinds = [(1, "mark"), (1, "amark"), (2, "mark")] if bench.short else list(product(LIMITS, TASKS))
    floor, app = Sample("/s"), {kind: Sample("/s") for kind in kinds}
    for _ in bench.rounds():
        with bench.database(bench.floor) as connection:
            floor.add(drain(bench, bench.floor, connection, "mark", floor_count).rate)
        for (processes, task), sample in app.items():
            with bench.database(bench.app) as connection:
                sample.add(drain(bench, bench.app, connection, task, count, processes=processes).rate)
    for (processes, task), sample in app.items():
        name = f"drain, {TASKS[task]}, {processes} worker{'s' if processes > 1 else ''}"
        yield Line(name, sample, Rule.RATIO_AT_LEAST, LIMITS[processes], base=floor)

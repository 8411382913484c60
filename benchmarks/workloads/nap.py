"""Jobs that wait: 50 ms of sleep each, in 100 slots of one process."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.bench import Bench
from benchmarks.drains import drain
from benchmarks.lines import Line, Rule, Sample

# 1,850 and 1,950 of 2,040 jobs per second.
LIMITS = {"nap": 0.907, "anap": 0.956}


def measure(bench: Bench) -> Iterator[Line]:
    count = bench.of(2000, 500)
    floor, app = Sample("/s"), {"nap": Sample("/s"), "anap": Sample("/s")}
    for _ in bench.rounds():
        with bench.database(bench.floor) as connection:
            floor.add(drain(bench, bench.floor, connection, "nap", count).rate)
        for task, sample in app.items():
            with bench.database(bench.app) as connection:
                sample.add(drain(bench, bench.app, connection, task, count).rate)
    for task, sample in app.items():
        name = "threads" if task == "nap" else "async"
        yield Line(f"{count:,} jobs of 50 ms, 100 slots, {name}", sample, Rule.RATIO_AT_LEAST, LIMITS[task], base=floor)

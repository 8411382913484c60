"""What a worker costs that has nothing to do."""

from __future__ import annotations

import time
from collections.abc import Iterator

from benchmarks import drains
from benchmarks.bench import Bench
from benchmarks.lines import Line, Rule, Sample
from benchmarks.sides import Side

QUERIES, CPU, MEMORY = 0.3, 3.0, 45.0  # per second; ms per second; MB


def measure(bench: Bench) -> Iterator[Line]:
    """Both idle side by side: neither disturbs the other."""
    sides: tuple[Side, ...] = (bench.app, bench.floor)
    queries, cpu, memory = ([Sample(unit), Sample(unit)] for unit in ("/s", " ms/s", " MB"))
    with (
        bench.database(bench.app) as app,
        bench.database(bench.floor) as floor,
        drains.started(bench, bench.app, app, "mark") as (app_crew, app_marks),
        drains.started(bench, bench.floor, floor, "mark") as (floor_crew, floor_marks),
    ):
        crews = (app_crew, floor_crew)
        for side, connection, path, crew in zip(sides, (app, floor), (app_marks, floor_marks), crews, strict=True):
            side.fill(connection, "mark", 1)
            drains.wait_for(path, 1, crew, drains.START_PATIENCE)
        time.sleep(bench.of(8, 2))
        for _ in bench.rounds():
            before = [(bench.server.statements(side.name), crew.cpu()) for side, crew in zip(sides, crews, strict=True)]
            started = time.monotonic()
            time.sleep(bench.of(15, 4))
            seconds = time.monotonic() - started
            for number, (side, crew) in enumerate(zip(sides, crews, strict=True)):
                queries[number].add((bench.server.statements(side.name) - before[number][0]) / seconds)
                cpu[number].add((crew.cpu() - before[number][1]) / seconds * 1000)
                memory[number].add(crew.memory())
    yield Line("idle worker: queries", queries[0], Rule.VALUE_AT_MOST, QUERIES, base=queries[1])
    yield Line("idle worker: CPU", cpu[0], Rule.VALUE_AT_MOST, CPU, base=cpu[1])
    yield Line("idle worker: memory (PSS)", memory[0], Rule.VALUE_AT_MOST, MEMORY, base=memory[1])

"""How the drain of a queue is timed."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks import marks
from benchmarks.bench import Bench
from benchmarks.marks import Mark
from benchmarks.server import Connection
from benchmarks.sides import Side
from benchmarks.workers import Workers, workers

LOOK = 0.003  # seconds between looks at the marks
START_PATIENCE = 60.0  # seconds to the first job
PATIENCE = 180.0  # seconds to the last


class WrongCount(Exception):
    """Jobs were lost or run twice: no number of such a run means anything."""


@dataclass(frozen=True)
class Drain:
    """From the start of the first job until the database knows the end of all; they were ready before a worker came."""

    count: int
    seconds: float
    cpu: float  # seconds of the workers, over the same time
    starts: list[Mark]

    @property
    def rate(self) -> float:
        """Jobs per second."""
        return self.count / self.seconds


def drain(
    bench: Bench,
    side: Side,
    connection: Connection,
    task: str,
    count: int,
    *,
    processes: int = 1,
    options: tuple[str, ...] = (),
) -> Drain:
    """Fill the database with so many jobs and let so many worker processes drain it."""
    side.fill(connection, task, count)
    bench.server.settle(connection)
    return run(bench, side, connection, task, count, processes=processes, options=options)


def run(
    bench: Bench,
    side: Side,
    connection: Connection,
    task: str,
    count: int,
    *,
    processes: int = 1,
    options: tuple[str, ...] = (),
) -> Drain:
    """The same with the jobs already there."""
    with started(bench, side, connection, task, processes=processes, options=options) as (crew, path):
        wait_for(path, 1, crew, START_PATIENCE)
        cpu = crew.cpu()
        wait_for(path, count, crew, PATIENCE)
        wait_until_done(side, connection, crew)
        ended = time.time()
        cpu = crew.cpu() - cpu
        starts = check(path, count)
        return Drain(count, ended - starts[0].at, cpu, starts)


@contextmanager
def started(
    bench: Bench, side: Side, connection: Connection, task: str, *, processes: int = 1, options: tuple[str, ...] = ()
) -> Iterator[tuple[Workers, Path]]:
    """Worker processes for the block, and the file of their marks."""
    with bench.marks() as path:
        environment = {**side.environment(connection), "BENCH_MARKS": str(path)}
        with workers([*side.command(task), *options], processes, environment) as crew:
            yield crew, path


def wait_for(path: Path, count: int, crew: Workers, seconds: float) -> None:
    """Until there are so many marks."""
    until = time.monotonic() + seconds
    while marks.count(path) < count:
        crew.check()
        if time.monotonic() > until:
            raise WrongCount(f"After {seconds:.0f} s {marks.count(path)} of {count} jobs have started.\n{crew.said()}")
        time.sleep(LOOK)


def wait_until_done(side: Side, connection: Connection, crew: Workers) -> None:
    """Until the database knows the end of all that has started: a late write counts."""
    until = time.monotonic() + PATIENCE
    while not side.is_done(connection):
        crew.check()
        if time.monotonic() > until:
            raise WrongCount(f"Jobs have started, but their end is not recorded after {PATIENCE:.0f} s.\n{crew.said()}")
        time.sleep(LOOK)


def check(path: Path, count: int, *, runs: int = 1) -> list[Mark]:
    """The marks, if each of the jobs numbered from 0 has left as many as it has runs."""
    found = marks.read(path)
    times = Counter(mark.number for mark in found)
    lost = sum(1 for number in range(count) if times[number] < runs)
    more = sum(1 for runs_of_one in times.values() if runs_of_one > runs)
    if lost or more:
        raise WrongCount(f"Of {count} jobs {lost} were lost and {more} ran more often than they should have.")
    return found

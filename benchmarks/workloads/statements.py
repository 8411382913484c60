"""What more workers on one queue cost the database: statements per job, and how long one waits for another's lock."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from benchmarks import drains
from benchmarks.bench import Bench
from benchmarks.lines import Line, Rule, Sample
from benchmarks.server import Connection
from benchmarks.workers import Workers

LONGEST_WAIT = 100.0  # ms
WITHIN = 0.1
MOST = 40  # workers
CONNECTIONS = 4  # of a worker: it claims, extends its lease, listens, and looks after others
RESERVE = 15  # connections
LOOK = 0.02  # seconds
FLUSH = 1.1  # seconds after which a server process has told its counts


class Wait(NamedTuple):
    """How long somebody waited, and for what."""

    seconds: float
    what: str


def measure(bench: Bench) -> Iterator[Line]:
    counts = (1, 4) if bench.short else _counts(bench)
    jobs = bench.of(100_000, 5_000)  # many, or the last looks of each worker, which find nothing, would weigh too much
    unit = f" {bench.server.statement_unit}"
    alone = Sample(unit)
    longest = Wait(0.0, "")
    for processes in counts:
        per_job, wait = _measure(bench, processes, jobs)
        longest = max(longest, wait)
        if processes == 1:
            alone.add(per_job)
        else:
            name = f"per job, {processes} workers"
            yield Line(
                name,
                Sample(unit, [per_job]),
                Rule.RATIO_AT_MOST,
                1.0,
                base=alone,
                base_name="1 worker",
                tolerance=WITHIN,
            )
    if longest.seconds * 1000 > LONGEST_WAIT:
        bench.remark(f"the longest wait was for {longest.what}")
    name = f"longest lock wait, 1 to {counts[-1]} workers"
    yield Line(name, Sample(" ms", [longest.seconds * 1000]), Rule.VALUE_AT_MOST, LONGEST_WAIT)


def _counts(bench: Bench) -> list[int]:
    """1, 4, 16 and 40 workers, or as many as the server has connections for."""
    free = bench.server.ask(
        "SELECT current_setting('max_connections')::int - count(*)::int"
        " FROM pg_stat_activity WHERE client_port IS NOT NULL"
    )
    most = (free - RESERVE) // CONNECTIONS
    if most < MOST:
        bench.remark(f"the server has connections for {most} workers, not for {MOST}.")
    return sorted({count for count in (1, 4, 16) if count < most} | {max(min(MOST, most), 1)})


def _measure(bench: Bench, processes: int, jobs: int) -> tuple[float, Wait]:
    """Statements per job, and the longest wait. The workers are up before the jobs come."""
    with (
        bench.database(bench.app) as connection,
        drains.started(bench, bench.app, connection, "mark", processes=processes) as (crew, path),
    ):
        _wait_for_workers(connection, crew, processes)
        time.sleep(FLUSH)
        idle = _idle_rate(bench, bench.of(3, 2))
        before = bench.server.statements(bench.app.name)
        with _watched_locks(bench, connection.info.dbname) as waits:
            bench.app.fill(connection, "mark", jobs)
            connection.execute("NOTIFY django_jobs, 'default'")
            drains.wait_for(path, jobs, crew, drains.PATIENCE)
            drains.wait_until_done(bench.app, connection, crew)
        time.sleep(FLUSH)
        statements = bench.server.statements(bench.app.name) - before - idle * FLUSH
        drains.check(path, jobs)
    return max(statements, 0.0) / jobs, max(waits, default=Wait(0.0, ""))


def _wait_for_workers(connection: Connection, crew: Workers, processes: int) -> None:
    until = time.monotonic() + 2 * drains.START_PATIENCE
    while True:
        row = connection.execute("SELECT count(*) FROM django_jobs_worker").fetchone()
        if row and row[0] == processes:
            return
        crew.check()
        if time.monotonic() > until:
            raise drains.WrongCount(f"{processes} workers did not come up in time.")
        time.sleep(0.1)


def _idle_rate(bench: Bench, seconds: float) -> float:
    """Statements per second of workers with nothing to do."""
    before = bench.server.statements(bench.app.name)
    time.sleep(seconds)
    return (bench.server.statements(bench.app.name) - before) / seconds


@contextmanager
def _watched_locks(bench: Bench, database: str) -> Iterator[list[Wait]]:
    """Look at the locks of that database for the block, and keep how long each look found somebody waiting."""
    found: list[Wait] = []
    stop = threading.Event()

    def watch() -> None:
        with bench.server.connect(database) as connection:
            while not stop.wait(LOOK):
                found.extend(Wait(float(seconds), what) for seconds, what in connection.execute(_WAITS, [database]))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield found
    finally:
        stop.set()
        thread.join()


_WAITS = """
    SELECT extract(epoch FROM clock_timestamp() - lock.waitstart),
        concat_ws(' ', lock.mode, 'on', lock.locktype, lock.relation::regclass, 'by', left(session.query, 100))
    FROM pg_locks lock JOIN pg_stat_activity session ON session.pid = lock.pid
    WHERE NOT lock.granted AND lock.waitstart IS NOT NULL AND session.datname = %s
    ORDER BY lock.waitstart LIMIT 1"""

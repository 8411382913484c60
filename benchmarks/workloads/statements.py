"""What more workers on one queue cost the database: statements per job, and how long one waits for another's lock.

Statements are counted while the queue is full, from the first tenth of the jobs to the last: what each worker asks at
its start, and when it finds nothing more, is no matter of the jobs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks import drains, marks
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
FULL = (0.1, 0.9)  # of the jobs: in between, statements are counted
REST = 3.0  # seconds for the workers to come to rest


class Wait(NamedTuple):
    """How long somebody waited, and for what."""

    seconds: float
    what: str


def measure(bench: Bench) -> Iterator[Line]:
    counts = (1, 4) if bench.short else _counts(bench)
    jobs = bench.of(100_000, 10_000)
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
        time.sleep(REST)
        with _watched_locks(bench, connection.info.dbname) as waits:
            bench.app.fill(connection, "mark", jobs)
            connection.execute("NOTIFY django_jobs, 'default'")
            counts = [_counted(bench, path, int(share * jobs), crew) for share in FULL]
            drains.wait_for(path, jobs, crew, drains.PATIENCE)
            drains.wait_until_done(bench.app, connection, crew)
        drains.check(path, jobs)
    (first_jobs, first), (last_jobs, last) = counts
    return (last - first) / (last_jobs - first_jobs), max(waits, default=Wait(0.0, ""))


def _counted(bench: Bench, path: Path, jobs: int, crew: Workers) -> tuple[int, int]:
    """How many jobs have started, and how many statements there were, once so many have."""
    drains.wait_for(path, jobs, crew, drains.PATIENCE)
    return marks.count(path), bench.server.statements(bench.app.name)


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


@contextmanager
def _watched_locks(bench: Bench, database: str) -> Iterator[list[Wait]]:
    """Look at the locks of that database for the block, and keep how long each look found somebody waiting."""
    found: list[Wait] = []
    stop = threading.Event()

    def watch() -> None:
        seen: set[tuple[int, float]] = set()
        with bench.server.connect(database) as connection:
            while not stop.wait(LOOK):
                rows = connection.execute(_WAITS, [database]).fetchall()
                # What is seen once may be none: SKIP LOCKED asks for a lock too, and shows the start of an older wait.
                found.extend(Wait(float(seconds), what) for *key, seconds, what in rows if tuple(key) in seen)
                seen = {(pid, start) for pid, start, *_ in rows}

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield found
    finally:
        stop.set()
        thread.join()


_WAITS = """
    SELECT lock.pid, lock.waitstart, extract(epoch FROM clock_timestamp() - lock.waitstart),
        concat_ws(' ', lock.mode, 'on', lock.locktype, lock.relation::regclass, 'by', left(session.query, 100))
    FROM pg_locks lock JOIN pg_stat_activity session ON session.pid = lock.pid
    WHERE NOT lock.granted AND lock.waitstart IS NOT NULL AND session.wait_event_type = 'Lock'
        AND session.datname = %s"""

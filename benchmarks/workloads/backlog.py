"""5,000 jobs behind very many others that they have nothing to do with, beside the same without the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from psycopg import sql

from benchmarks.bench import Bench
from benchmarks.drains import drain
from benchmarks.lines import Line, Rule, Sample
from benchmarks.server import Connection
from benchmarks.sides import STAND_IN, copy_rows, ordered_id

WITHIN = 0.1
FIRST = 1_000_000_000  # number of the first of the others
OTHERS = 1_000_000
UNKNOWN = 100_000
FINISHED = 10_000_000


@dataclass(frozen=True)
class Shape:
    """One kind of others: how many, and how they are written."""

    name: str
    count: int
    fill: Callable[[Bench, Connection, int], None]
    options: tuple[str, ...] = ()  # of the worker
    is_in_short: bool = True


def _jobs(**columns: str) -> Callable[[Bench, Connection, int], None]:
    def fill(bench: Bench, connection: Connection, count: int) -> None:
        bench.app.fill(connection, "mark", count, first=FIRST, **columns)

    return fill


def _finished(bench: Bench, connection: Connection, count: int) -> None:
    """Copy the run of a job that has run; indexes are made anew, which takes a third of the time."""
    drain(bench, bench.app, connection, "mark", 1)
    indexes = connection.execute(
        "SELECT indexname, indexdef FROM pg_indexes WHERE tablename = 'django_jobs_jobrun'"
        " AND indexname NOT IN (SELECT conname FROM pg_constraint)"
    ).fetchall()
    for name, _ in indexes:
        connection.execute(sql.SQL("DROP INDEX {}").format(sql.Identifier(name)))
    connection.execute("CREATE TABLE run_pattern AS SELECT * FROM django_jobs_jobrun")
    pattern = sql.SQL("run_pattern")
    columns = {"id": "nextval(pg_get_serial_sequence('django_jobs_jobrun', 'id'))", "job_id": ordered_id(0)}
    copy_rows(connection, "django_jobs_jobrun", pattern, count, first=FIRST, columns=columns)
    for _, definition in indexes:
        connection.execute(definition)


DUE_LATER = {"status": "'scheduled'", "run_at": "statement_timestamp() + interval '1 day'"}
SHAPES = (
    Shape("due tomorrow at a higher priority", OTHERS, _jobs(**DUE_LATER, priority="50")),
    Shape("in another queue", OTHERS, _jobs(queue_name="'another'"), ("--queues", "default"), is_in_short=False),
    Shape("ready at a lower priority", OTHERS, _jobs(priority="-50")),
    Shape(
        "waiting, of a task nobody knows",
        UNKNOWN,
        _jobs(status="'waiting'", task_name="'gone.task'"),
        is_in_short=False,
    ),
    Shape("ready, of a task nobody knows", UNKNOWN, _jobs(task_name="'gone.task'", priority="50")),
    Shape("finished", FINISHED, _finished),
)
assert STAND_IN < FIRST
COUNT = 5000


def measure(bench: Bench) -> Iterator[Line]:
    shapes = [shape for shape in SHAPES if shape.is_in_short] if bench.short else SHAPES
    free = Sample("/s")
    for number, shape in enumerate(shapes):
        if not bench.short or not number:
            free = Sample("/s")
        with bench.database(bench.app, "app_behind") as crowded:
            yield _measure(bench, shape, crowded, free, share=1 / (len(shapes) - number))


def _measure(bench: Bench, shape: Shape, crowded: Connection, free: Sample, *, share: float) -> Line:
    """Turn and turn about with an empty database; in a short run that is measured once."""
    others = shape.count // bench.of(1, 50)
    options = (*shape.options, "--max-jobs", str(COUNT))  # jobs after the 5,000 are not for this worker
    crowded.execute("SET synchronous_commit = off")
    shape.fill(bench, crowded, others)
    crowded.execute("VACUUM ANALYZE")
    behind = Sample("/s")
    for _ in bench.rounds(share=share):
        if not (bench.short and free.values):
            with bench.database(bench.app) as connection:
                free.add(drain(bench, bench.app, connection, "mark", COUNT, options=options).rate)
        behind.add(drain(bench, bench.app, crowded, "mark", COUNT, options=options).rate)
    name = f"{COUNT:,} behind {others:,} {shape.name}"
    return Line(name, behind, Rule.RATIO_AT_LEAST, 1.0, base=free, base_name="empty", tolerance=WITHIN)

"""The two that are measured: the app, and the floor it stands on. Both do the same jobs on the same server."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Protocol

from django.core.management import call_command
from django.db import connections
from psycopg import sql
from psycopg.conninfo import make_conninfo

from benchmarks import floor, tasks
from benchmarks.server import Connection
from benchmarks.workers import ROOT
from django_jobs import Task, enqueue

STAND_IN = 987654321  # the argument of a pattern job: each copy has its own number in its place
SLOTS = 100  # sleeping jobs at once


class Side(Protocol):
    """What a workload needs of one that is measured. A job is named by the task that it calls."""

    @property
    def name(self) -> str: ...

    def create_tables(self, connection: Connection) -> None:
        """Make what it needs in an empty database."""

    def fill(self, connection: Connection, task: str, count: int, *, first: int = 0) -> None:
        """Write so many ready jobs, numbered from `first`, by one statement."""

    def command(self, task: str) -> list[str]:
        """The command line of a worker for these jobs."""

    def environment(self, connection: Connection) -> dict[str, str]:
        """What its workers need in their environment to find this database."""

    def is_done(self, connection: Connection) -> bool:
        """Whether the database knows the end of every job that was claimed."""


class Floor:
    """psycopg alone: a table, claims of 1,000, no history."""

    name = "floor"

    def create_tables(self, connection: Connection) -> None:
        connection.execute(floor.TABLE)

    def fill(self, connection: Connection, task: str, count: int, *, first: int = 0) -> None:
        connection.execute(floor.FILL, {"task": _floor_task(task), "first": first, "last": first + count - 1})

    def command(self, task: str) -> list[str]:
        return [sys.executable, "-m", "benchmarks.floor_worker", _floor_task(task), str(SLOTS)]

    def environment(self, connection: Connection) -> dict[str, str]:
        info = connection.info
        return {"BENCH_FLOOR": make_conninfo(info.dsn, password=info.password or None)}

    def is_done(self, connection: Connection) -> bool:
        row = connection.execute("SELECT NOT EXISTS (SELECT FROM floor_job WHERE state = 1)").fetchone()
        return bool(row and row[0])


def _floor_task(task: str) -> str:
    return task.removeprefix("a")


class App:
    """django_jobs, with every setting at its default."""

    name = "app"
    _fills = 0
    tasks: Mapping[str, Task[Any, Any]] = {
        "mark": tasks.mark,
        "amark": tasks.amark,
        "nap": tasks.nap,
        "anap": tasks.anap,
        "mark_twice": tasks.mark_twice,
    }

    def create_tables(self, connection: Connection) -> None:
        """Migrate, and keep one enqueued job of each task as the pattern of many."""
        default = connections["default"]
        default.close()
        default.settings_dict["NAME"] = connection.info.dbname
        call_command("migrate", verbosity=0, interactive=False)
        for task in self.tasks.values():
            enqueue(task, STAND_IN)
        default.close()
        connection.execute("CREATE TABLE pattern AS SELECT * FROM django_jobs_job")
        connection.execute("TRUNCATE django_jobs_job")

    def fill(self, connection: Connection, task: str, count: int, *, first: int = 0, **columns: str) -> None:
        """Copy the pattern. `columns` are SQL for what shall differ from it; {n} in it is the job's number."""
        pattern = sql.SQL("pattern WHERE task_name = {}").format(self.tasks[task].name)
        self._fills += 1
        given = {"id": ordered_id(self._fills), **_NOW, **columns}
        copy_rows(connection, "django_jobs_job", pattern, count, first=first, columns=given)

    def command(self, task: str) -> list[str]:
        options = ["--threads", str(SLOTS)] if task == "nap" else []
        return [sys.executable, str(ROOT / "benchmarks" / "manage.py"), "runworker", *options]

    def environment(self, connection: Connection) -> dict[str, str]:
        return {"BENCH_DATABASE": connection.info.dbname}

    def is_done(self, connection: Connection) -> bool:
        row = connection.execute("SELECT NOT EXISTS (SELECT FROM django_jobs_job WHERE status = 'running')").fetchone()
        return bool(row and row[0])


_NOW = {"run_at": "statement_timestamp()", "enqueued_at": "statement_timestamp()"}


def ordered_id(series: int) -> str:
    """SQL of an id like those the app makes: they grow, and lie together in an index. No two series meet."""
    return f"('0190{series:04x}-0000-7000-8000-' || lpad(to_hex({{n}}), 12, '0'))::uuid"


def copy_rows(
    connection: Connection, table: str, pattern: sql.Composable, count: int, *, first: int, columns: Mapping[str, str]
) -> None:
    """Write so many copies of the one row of `pattern`, whatever columns the table has by now."""
    found = connection.execute(
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute"
        " WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped AND attidentity = '' ORDER BY attnum",
        [table],
    ).fetchall()
    values = [_value(str(name), str(kind), columns) for name, kind in found]
    names = [sql.Identifier(str(name)) for name, _ in found]
    connection.execute(
        sql.SQL("INSERT INTO {} ({}) SELECT {} FROM (SELECT * FROM {}) p, generate_series({}, {}) n").format(
            sql.Identifier(table),
            sql.SQL(", ").join(names),
            sql.SQL(", ").join(values),
            pattern,
            first,
            first + count - 1,
        )
    )


def _value(name: str, kind: str, columns: Mapping[str, str]) -> sql.Composable:
    if name in columns:
        return sql.SQL(columns[name].replace("{n}", "n::bigint"))
    if name == "payload":
        return sql.SQL("replace(p.payload::text, {}, n::text)::{}").format(str(STAND_IN), sql.SQL(kind))
    return sql.SQL("p.{}").format(sql.Identifier(name))

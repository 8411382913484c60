"""Backlogs of every shape: 50,000 rows that are none of a statement's business, each in a schema of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any, NamedTuple

from django.apps import apps
from django.db import connection, transaction
from django.db.models import AutoField, Model
from django.utils import timezone

from django_jobs.doctor.schema import expected_parameters
from django_jobs.statuses import JobStatus
from tests.factories import DeadLetterFactory, JobFactory, JobKeyFactory, JobRunFactory
from tests.plans.plan import Plan, run

MANY = 50_000
TOMORROW, LATELY = timedelta(days=1), timedelta(hours=-1)
GONE = "gone.task"
_ID = "('01980000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid"  # like ours, and older than those of a test
_VARIED = {  # by table: the columns in which the rows of a backlog differ, as SQL over their number
    "django_jobs_job": {"id": _ID, "run_at": "run_at + n * interval '1 ms'"},
    "django_jobs_jobrun": {
        "job_id": _ID,
        "ended_at": "ended_at - n * interval '60 ms'",
        "status": "CASE WHEN n % 10 = 0 THEN 'failed' ELSE status END",
    },
    "django_jobs_deadletter": {"job_id": _ID, "died_at": "died_at - n * interval '60 ms'"},
    "django_jobs_jobkey": {"key": "'key ' || n", "holder_id": _ID},
}


class Shape(NamedTuple):
    """A backlog: so many rows like one that a factory makes."""

    factory: Any
    fields: dict[str, Any]

    @property
    def table(self) -> str:
        return str(self.factory._meta.model._meta.db_table)

    @property
    def letter(self) -> str:
        """What it is a backlog of: Jobs that wait, jobs Held by others, Runs, Letters, Keys."""
        if self.status == JobStatus.RUNNING:
            return "H"
        return {"job": "J", "jobrun": "R", "deadletter": "L", "jobkey": "K"}[self.table.rpartition("_")[2]]

    @property
    def status(self) -> str | None:
        return getattr(self.factory.build(**self.fields), "status", None)


SHAPES = {
    "nothing": None,
    "due tomorrow, of a higher priority": Shape(JobFactory, {"due_in": TOMORROW, "priority": 50}),
    "ready in another queue": Shape(JobFactory, {"due_in": LATELY, "status": "ready", "queue_name": "bulk"}),
    "ready in the same queue, of a lower priority": Shape(
        JobFactory, {"due_in": LATELY, "status": "ready", "priority": -50}
    ),
    "ready at the head, of a task nobody knows": Shape(
        JobFactory, {"due_in": LATELY, "status": "ready", "priority": 50, "task_name": GONE}
    ),
    "waiting, of a task nobody knows": Shape(JobFactory, {"waiting": True, "task_name": GONE}),
    "held by another worker": Shape(JobFactory, {"running": True}),
    "finished runs": Shape(JobRunFactory, {}),
    "runs past their retention": Shape(JobRunFactory, {"ended_at": timezone.now() - timedelta(days=100)}),
    "dead letters": Shape(DeadLetterFactory, {}),
    "keys": Shape(JobKeyFactory, {}),
}
# What the planner is told of the table and its indexes. Without pg_statistic it knows of no value in any column.
_RELATIONS = """
    UPDATE pg_class SET {changes} WHERE oid = '{table}'::regclass
        OR oid IN (SELECT indexrelid FROM pg_index WHERE indrelid = '{table}'::regclass);
    DELETE FROM pg_statistic WHERE starelid = '{table}'::regclass"""
NONE = "none"
STATISTICS = {
    "fresh": "",
    "gathered when it was empty": _RELATIONS.replace("{changes}", "reltuples = 0, relallvisible = 0"),
    NONE: _RELATIONS.replace("{changes}", "reltuples = -1, relpages = 0, relallvisible = 0"),
}


class Backlogs:
    """The schemas, each made when it is first asked for. They go with the test database."""

    def __init__(self) -> None:
        self._made: dict[str, str] = {}

    def make(self, name: str) -> str:
        """The schema of a shape; not inside of a transaction that will be rolled back."""
        if name not in self._made:
            schema = f"plans_{len(self._made)}"
            with transaction.atomic(), connection.cursor() as cursor:
                cursor.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE; CREATE SCHEMA {schema}")
                cursor.execute(f"SET LOCAL search_path = {schema}")
                _create_tables()
                if shape := SHAPES[name]:
                    _fill(shape)
            self._made[name] = schema
        return self._made[name]


def _create_tables() -> None:
    models = list(apps.get_app_config("django_jobs").get_models())
    with connection.schema_editor() as editor:
        for model in models:
            editor.create_model(model)
    with connection.cursor() as cursor:
        for table in (model._meta.db_table for model in models):
            parameters = {**expected_parameters().get(table, {}), "autovacuum_enabled": False}
            cursor.execute(f"ALTER TABLE {table} SET ({', '.join(f'{key} = {parameters[key]}' for key in parameters)})")


def _fill(shape: Shape) -> None:
    row: Model = shape.factory.create(**shape.fields)
    names = [f'"{each.column}"' for each in row._meta.concrete_fields if not isinstance(each, AutoField)]
    varied = {f'"{name}"': sql for name, sql in _VARIED[shape.table].items()}
    values = ", ".join(varied.get(name, name) for name in names)
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {shape.table} ({', '.join(names)})"
            f" SELECT {values} FROM {shape.table}, generate_series(1, {MANY}) AS n"
        )
        cursor.execute(f"ANALYZE {shape.table}")


def believing(shape: Shape | None, *, needs_statistics: bool = False) -> Callable[[str, Any], list[Plan]]:
    """Run a statement once for each of the statistics that the planner may have of the backlog's table.

    They are made up by a superuser, in a transaction that is rolled back.
    """
    table = shape.table if shape else "django_jobs_job"
    pretended = {name: sql for name, sql in STATISTICS.items() if name != NONE or not needs_statistics}

    def explain(sql: str, params: Any) -> list[Plan]:
        return [
            replace(run(sql, params, before.format(table=table)), statistics=name) for name, before in pretended.items()
        ]

    return explain

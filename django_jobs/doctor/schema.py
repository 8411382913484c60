"""The tables: are all migrations applied, and is every index there that the models declare?"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from django.apps import apps
from django.db import connections
from django.db.migrations.loader import MigrationLoader
from django.db.models import CheckConstraint, Model

from django_jobs.doctor.applied import APP, unapplied
from django_jobs.doctor.findings import Finding, fine, or_fine, problem, warning
from django_jobs.doctor.rows import ask
from django_jobs.operations import SetStorageParameters


@cache
def expected_parameters() -> dict[str, dict[str, Any]]:
    """By table, the storage parameters that the migrations set."""
    loader = MigrationLoader(None)
    found: dict[str, dict[str, Any]] = {}
    for key in sorted(key for key in loader.graph.nodes if key[0] == APP):
        for operation in loader.graph.nodes[key].operations:
            if isinstance(operation, SetStorageParameters):
                table = apps.get_model(APP, operation.model_name)._meta.db_table
                found.setdefault(table, {}).update(operation.parameters)
    return found


def migrations(using: str) -> Iterator[Finding]:
    missing = unapplied(using)
    if not missing:
        yield fine("migrations", "All migrations of django_jobs are applied.")
        return
    count = f"{len(missing)} migration{'s' if len(missing) > 1 else ''}"
    message = f"The database lacks {count} of django_jobs, first {missing[0]!r}. Workers refuse to start."
    yield problem("migrations", message, f"manage.py migrate django_jobs --database {using}")


def indexes(using: str) -> Iterator[Finding]:
    """Compare the tables with what the models declare."""
    yield from or_fine(_wrong_indexes(using), "indexes", "Every index and constraint that the models declare is there.")


def _wrong_indexes(using: str) -> Iterator[Finding]:
    if connections[using].vendor == "postgresql":
        yield from _invalid_indexes(using)
    for model in apps.get_app_config(APP).get_models():
        with connections[using].cursor() as cursor:
            there = connections[using].introspection.get_constraints(cursor, model._meta.db_table)
        yield from _missing(model, there, using)


def _missing(model: type[Model], there: dict[str, Any], using: str) -> Iterator[Finding]:
    table = model._meta.db_table
    for index in model._meta.indexes:
        if index.name not in there:
            message = f"Index {index.name} of {table} is missing: what it is for reads the whole table."
            yield problem("indexes", message, _statement(index, model, using))
    for constraint in model._meta.constraints:
        if constraint.name not in there:
            kind = "rows that break its rule are not refused"
            message = f"Constraint {constraint.name} of {table} is missing: {kind}."
            report = warning if isinstance(constraint, CheckConstraint) else problem
            yield report("indexes", message, _statement(constraint, model, using))
    columns = [each["columns"] for each in there.values() if each["index"] or each["unique"] or each["primary_key"]]
    fields: list[Any] = model._meta.local_fields
    for field in fields:
        if (field.unique or field.db_index) and not any(each[:1] == [field.column] for each in columns):
            message = f"The index over {field.column} of {table} is missing: what it is for reads the whole table."
            yield problem("indexes", message, f"CREATE INDEX ON {table} ({field.column});")


def _statement(what: Any, model: type[Model], using: str) -> str:
    """The SQL that makes the index or constraint."""
    connection = connections[using]
    editor = connection.schema_editor(collect_sql=True)
    extra = {"concurrently": True} if connection.vendor == "postgresql" and what in model._meta.indexes else {}
    statement = what.create_sql(model, editor, **extra)
    return f"{statement};" if statement else f"manage.py migrate on a new file, and copy the rows ({what.name})"


def _invalid_indexes(using: str) -> Iterator[Finding]:
    tables = [model._meta.db_table for model in apps.get_app_config(APP).get_models()]
    rows = ask(
        using,
        """
        SELECT index.relname, tab.relname FROM pg_index
        JOIN pg_class AS index ON index.oid = indexrelid JOIN pg_class AS tab ON tab.oid = indrelid
        WHERE NOT indisvalid AND pg_table_is_visible(tab.oid) AND tab.relname = ANY(%s)
            AND NOT EXISTS (SELECT FROM pg_stat_progress_create_index WHERE index_relid = indexrelid)
        ORDER BY 1""",
        [tables],
    )
    for name, table in rows:
        message = (
            f"Index {name} of {table} is INVALID, left behind by a failed attempt: it costs writes and serves no read."
        )
        declared = any(name == index.name for model in apps.get_models() for index in model._meta.indexes)
        mend = f"REINDEX INDEX CONCURRENTLY {name};" if declared else f"DROP INDEX CONCURRENTLY {name};"
        yield problem("indexes", message, mend)

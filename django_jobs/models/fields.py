"""Columns that compare byte by byte, or are read whatever they hold, and an index over the rows of one status."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper

EARLIEST, LATEST = "0002-01-01", "9998-12-31"  # Python knows them in every time zone


class ExactCharField(models.CharField):  # type: ignore[type-arg]
    """A CharField in which 'Key', 'key' and 'key ' are three values on MariaDB and MySQL too."""

    def db_parameters(self, connection: BaseDatabaseWrapper) -> dict[str, Any]:
        parameters: dict[str, Any] = dict(super().db_parameters(connection))
        if connection.vendor == "mysql":
            is_mariadb = connection.mysql_is_mariadb  # type: ignore[attr-defined]
            parameters["collation"] = "utf8mb4_nopad_bin" if is_mariadb else "utf8mb4_0900_bin"
        return parameters


class LenientJSONField(models.JSONField):
    """A JSONField that gives the text of a value Python cannot parse, such as a number of 5,000 digits.

    One such row must not stop the reading of all others.
    """

    def from_db_value(self, value: Any, expression: Any, connection: BaseDatabaseWrapper) -> Any:
        try:
            return super().from_db_value(value, expression, connection)
        except (ValueError, RecursionError):
            return value

    def deconstruct(self) -> Any:
        name, _, args, kwargs = super().deconstruct()
        return name, "django.db.models.JSONField", args, kwargs  # The column is the same: no migration.


class LenientDateTimeField(models.DateTimeField):  # type: ignore[type-arg]
    """A DateTimeField that gives the nearest moment Python knows for one it does not, such as PostgreSQL's infinity.

    One such row must not stop the reading of all others. Where `values()` reads one that its rows are ordered by, ask
    for `Readable` of it: Django would order by what it reads, and no index is in that order.
    """

    def select_format(self, compiler: Any, sql: str, params: Any) -> tuple[str, Any]:
        return _readable(sql, params, compiler.connection)

    def deconstruct(self) -> Any:
        name, _, args, kwargs = super().deconstruct()
        return name, "django.db.models.DateTimeField", args, kwargs  # The column is the same: no migration.


class Readable(models.Func):
    """A moment as a `LenientDateTimeField` gives it."""

    output_field = models.DateTimeField()

    def as_sql(self, compiler: Any, connection: BaseDatabaseWrapper, **extra: Any) -> Any:  # type: ignore[override]
        (moment,) = self.get_source_expressions()
        sql, params = compiler.compile(moment)
        return _readable(sql, params, connection)


def _readable(sql: str, params: Any, connection: BaseDatabaseWrapper) -> tuple[str, Any]:
    if connection.vendor != "postgresql":  # No other stores what Python does not know.
        return sql, params
    # Not least() and greatest(), which make a moment of NULL.
    beyond = f"WHEN {sql} < '{EARLIEST}' THEN '{EARLIEST}' WHEN {sql} > '{LATEST}' THEN '{LATEST}'"
    return f"CASE {beyond} ELSE {sql} END", (*params, *params, *params)


class StatusIndex(models.Index):
    """An index over the rows of one status: partial on PostgreSQL, led by the status elsewhere.

    A claim must never walk over rows it cannot take, so jobs of another status stay out of the range it reads. SQLite
    has partial indexes too, but uses them only for a status written into the statement, and Django sends it as a
    parameter.
    """

    def __init__(self, *, fields: list[str], name: str, status: str) -> None:
        super().__init__(fields=fields, name=name)
        self.status = status

    def create_sql(self, model: type[models.Model], schema_editor: Any, using: str = "", **kwargs: Any) -> Any:
        # Not a condition of this index itself: Django would warn that the other databases have none.
        if schema_editor.connection.vendor == "postgresql":
            index = models.Index(fields=self.fields, name=self.name, condition=models.Q(status=self.status))
        else:
            index = models.Index(fields=["status", *self.fields], name=self.name)
        return index.create_sql(model, schema_editor, using=using, **kwargs)

    def deconstruct(self) -> tuple[str, Any, dict[str, Any]]:
        path, args, kwargs = super().deconstruct()
        return path, args, {**kwargs, "status": self.status}

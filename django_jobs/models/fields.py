"""Columns that compare byte by byte or read whatever they hold, and an index over the rows of one status."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper


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

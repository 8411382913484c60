"""Migration operations that a busy table survives: no rewrite, no lock that reads or writes wait for."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from django.db import models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.operations import AddIndex, RemoveIndex
from django.db.migrations.operations.base import Operation, OperationCategory
from django.db.utils import NotSupportedError

LOOK_EVERY = 0.2  # seconds


class AddIndexConcurrently(AddIndex):
    """Add an index while the table is in use: CONCURRENTLY on PostgreSQL, plainly elsewhere.

    An index that is there already is left alone, so that a migration which was cut off can be run again; on PostgreSQL
    an INVALID one of that name, what a failed attempt leaves behind, is replaced. Its migration needs `atomic = False`.
    """

    atomic = False

    def describe(self) -> str:
        return f"Concurrently add index {self.index.name} on {self.model_name}"

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        model = to_state.apps.get_model(app_label, self.model_name)
        if not self.allow_migrate_model(schema_editor.connection.alias, model):
            return
        if schema_editor.connection.vendor == "postgresql":
            _add_concurrently(model, self.index, schema_editor)
        elif schema_editor.collect_sql or not _has_index(schema_editor, model, self.index.name):
            schema_editor.add_index(model, self.index)

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        model = from_state.apps.get_model(app_label, self.model_name)
        if not self.allow_migrate_model(schema_editor.connection.alias, model):
            return
        _remove(model, self.index, schema_editor)


class RemoveIndexConcurrently(RemoveIndex):
    """Remove an index while the table is in use, the other way round than `AddIndexConcurrently`."""

    atomic = False

    def describe(self) -> str:
        return f"Concurrently remove index {self.name} from {self.model_name}"

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        model = from_state.apps.get_model(app_label, self.model_name)
        if self.allow_migrate_model(schema_editor.connection.alias, model):
            _remove(model, self._index(app_label, from_state), schema_editor)

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        operation = AddIndexConcurrently(self.model_name, self._index(app_label, to_state))
        operation.database_forwards(app_label, schema_editor, from_state, to_state)

    def _index(self, app_label: str, state: Any) -> models.Index:
        index: models.Index = state.models[app_label, self.model_name_lower].get_index_by_name(self.name)
        return index


def _add_concurrently(model: type[models.Model], index: models.Index, schema_editor: Any) -> None:
    _refuse_transaction(index, schema_editor)
    if schema_editor.collect_sql:
        schema_editor.collected_sql.append(f"-- If an INVALID index {index.name} exists, it is dropped first.")
    elif not _is_valid(schema_editor, model, index.name):
        _drop_concurrently(schema_editor, index.name)
    statement = index.create_sql(model, schema_editor, concurrently=True)
    statement.template = statement.template.replace("CONCURRENTLY", "CONCURRENTLY IF NOT EXISTS", 1)
    schema_editor.execute(statement, params=None)


def _remove(model: type[models.Model], index: models.Index, schema_editor: Any) -> None:
    if schema_editor.connection.vendor == "postgresql":
        _refuse_transaction(index, schema_editor)
        _drop_concurrently(schema_editor, index.name)
    elif schema_editor.collect_sql or _has_index(schema_editor, model, index.name):
        schema_editor.remove_index(model, index)


def _refuse_transaction(index: models.Index, schema_editor: Any) -> None:
    if schema_editor.connection.in_atomic_block:
        raise NotSupportedError(
            f"Index {index.name!r} cannot be built or dropped in a transaction. Set atomic = False on its migration."
        )


def _has_index(schema_editor: Any, model: type[models.Model], name: str) -> bool:
    connection = schema_editor.connection
    with connection.cursor() as cursor:
        return name in connection.introspection.get_constraints(cursor, model._meta.db_table)


def _is_valid(schema_editor: Any, model: type[models.Model], name: str) -> bool:
    """Whether PostgreSQL uses the index; True as well if there is none, as then nothing has to go."""
    # Another migrate may be building it just now: it is INVALID until then. Not waited for by a lock: the builder waits
    # for every older snapshot, that of the waiting LOCK TABLE included, and PostgreSQL would end one of the two.
    while (found := _look_up(schema_editor, model, name)) == (False, True):
        time.sleep(LOOK_EVERY)
    return found is None or found[0]


def _look_up(schema_editor: Any, model: type[models.Model], name: str) -> tuple[bool, bool] | None:
    """Is it valid, and is somebody building it? None: there is no such index on the table."""
    with schema_editor.connection.cursor() as cursor:
        cursor.execute(
            "SELECT indisvalid, EXISTS (SELECT FROM pg_stat_progress_create_index WHERE index_relid = indexrelid)"
            " FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid"
            " WHERE indrelid = %s::regclass AND relname = %s",
            [schema_editor.quote_name(model._meta.db_table), name],
        )
        row: tuple[bool, bool] | None = cursor.fetchone()
        return row


def _drop_concurrently(schema_editor: Any, name: str) -> None:
    schema_editor.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {schema_editor.quote_name(name)}")


class SetStorageParameters(Operation):
    """Set storage parameters of a model's table on PostgreSQL; nothing happens elsewhere.

    The lock it takes, SHARE UPDATE EXCLUSIVE, stops no read and no write. No row is touched: a fillfactor holds for
    pages filled from then on. The way back takes the parameters off, whatever they were before.
    """

    category = OperationCategory.ALTERATION
    reduces_to_sql = True
    reversible = True

    def __init__(self, model_name: str, parameters: Mapping[str, str | int | float | bool]) -> None:
        self.model_name = model_name
        self.parameters = dict(parameters)

    def deconstruct(self) -> tuple[str, list[Any], dict[str, Any]]:
        return type(self).__name__, [], {"model_name": self.model_name, "parameters": self.parameters}

    def describe(self) -> str:
        return f"Set storage parameters of {self.model_name}"

    @property
    def migration_name_fragment(self) -> str:
        return f"{self.model_name.lower()}_storage"

    def references_model(self, name: str, app_label: str) -> bool:
        return name.lower() == self.model_name.lower()

    def state_forwards(self, app_label: str, state: Any) -> None:
        """The models are the same."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        values = ", ".join(f"{name} = {_literal(value)}" for name, value in self.parameters.items())
        self._alter(to_state.apps.get_model(app_label, self.model_name), schema_editor, f"SET ({values})")

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        names = ", ".join(self.parameters)
        self._alter(to_state.apps.get_model(app_label, self.model_name), schema_editor, f"RESET ({names})")

    def _alter(self, model: type[models.Model], schema_editor: BaseDatabaseSchemaEditor, action: str) -> None:
        connection = schema_editor.connection
        if connection.vendor == "postgresql" and self.allow_migrate_model(connection.alias, model):
            schema_editor.execute(f"ALTER TABLE {schema_editor.quote_name(model._meta.db_table)} {action}")


def _literal(value: str | float) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)

"""What differs between databases: the clock, writing first, and the names of our tables in SQL."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar

from django.conf import settings
from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import DateTimeField, Func, JSONField, Model, QuerySet
from django.utils import timezone

M = TypeVar("M", bound=Model)

ABANDONED = "30s"  # after which nobody continues a transaction of ours
# Unless the role has a limit of its own.
_LIMIT_IDLE = """
    SELECT set_config('idle_in_transaction_session_timeout', %s, true)
    WHERE current_setting('idle_in_transaction_session_timeout') = '0'"""
R = TypeVar("R")


def clock_sql(connection: BaseDatabaseWrapper) -> tuple[str, list[Any]]:
    """SQL and parameters for this moment by the database's clock, as its datetime columns store it.

    It moves on inside a transaction, where PostgreSQL's now() stands still.
    """
    if connection.vendor == "postgresql":
        return "statement_timestamp()", []
    if connection.vendor == "mysql":
        return _mysql_clock(connection), []
    # SQLite has no clock but the process's own.
    return "%s", [connection.ops.adapt_datetimefield_value(timezone.now())]


def _mysql_clock(connection: BaseDatabaseWrapper) -> str:
    # CURRENT_TIMESTAMP is in the session's zone, while Django stores the connection's zone (UTC with USE_TZ).
    if settings.USE_TZ and connection.timezone_name == "UTC":
        return "UTC_TIMESTAMP(6)"
    zone = connection.timezone or timezone.get_default_timezone()
    offset = int((datetime.now(zone).utcoffset() or timedelta(0)).total_seconds())
    return f"(UTC_TIMESTAMP(6) + INTERVAL {offset} SECOND)"


class Clock(Func):
    """`clock_sql` as an expression; `after` is added to it."""

    output_field = DateTimeField()

    def __init__(self, after: timedelta | None = None) -> None:
        super().__init__()
        self.after = after

    def as_sql(self, compiler: Any, connection: BaseDatabaseWrapper, **extra: Any) -> Any:  # type: ignore[override]
        return clock_after_sql(connection, self.after)


def clock_after_sql(connection: BaseDatabaseWrapper, after: timedelta | None) -> tuple[str, list[Any]]:
    """Like `clock_sql`, moved by a span."""
    sql, params = clock_sql(connection)
    if not after:
        return sql, params
    if connection.vendor == "postgresql":
        return f"({sql} + %s)", [*params, after]
    if connection.vendor == "mysql":
        return f"({sql} + INTERVAL %s MICROSECOND)", [*params, after // timedelta(microseconds=1)]
    return "%s", [connection.ops.adapt_datetimefield_value(timezone.now() + after)]


def seconds_until_sql(connection: BaseDatabaseWrapper, moment: str) -> tuple[str, list[Any]]:
    """SQL and parameters for the seconds from now, by `clock_sql`, until the moment in a datetime column."""
    sql, params = clock_sql(connection)
    if connection.vendor == "postgresql":
        return f"extract(epoch FROM {moment} - {sql})::float8", params
    if connection.vendor == "mysql":
        return f"(TIMESTAMPDIFF(MICROSECOND, {sql}, {moment}) / 1000000.0)", params
    return f"((julianday({moment}) - julianday({sql})) * 86400.0)", params


def read_clock(using: str) -> datetime:
    """This moment by the database's clock."""
    connection = connections[using]
    if connection.vendor == "sqlite":
        return timezone.now()
    sql, params = clock_sql(connection)
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {sql}", params)
        now: datetime = cursor.fetchone()[0]
    if settings.USE_TZ and timezone.is_naive(now):
        return timezone.make_aware(now, connection.timezone)
    return now


@contextmanager
def write_transaction(using: str) -> Iterator[None]:
    """`atomic()` that is a write from its first statement on.

    SQLite refuses at once (no waiting for the busy timeout) to turn a read transaction into a write one when somebody
    else wrote meanwhile, and under DEFERRED every transaction begins as a read.

    PostgreSQL ends it if it is ours alone and nothing more is heard of it. A process that vanished with its machine, or
    whose COMMIT was swallowed, would keep its rows locked until TCP gives up, by default for two hours.
    """
    connection = connections[using]
    is_ours = not connection.in_atomic_block and connection.get_autocommit()
    with transaction.atomic(using=using):
        if connection.vendor == "sqlite":
            with connection.cursor() as cursor:
                cursor.execute("DELETE FROM django_jobs_job WHERE 0")
        elif connection.vendor == "postgresql" and is_ours:
            with connection.cursor() as cursor:
                cursor.execute(_LIMIT_IDLE, [ABANDONED])
        yield


def after_commit(function: Callable[[], object], *, using: str) -> None:
    """Call this once the current transaction has committed, at once outside of one; what it raises is logged.

    In manual transaction management nobody can tell when that is, and it is not called.
    """
    connection = connections[using]
    if connection.in_atomic_block or connection.get_autocommit():
        transaction.on_commit(function, using=using, robust=True)


def lock_rows(rows: QuerySet[M], *, using: str, wait: bool = False) -> QuerySet[M]:
    """Lock these rows until the transaction ends; without `wait`, leave out those that somebody else has locked.

    MariaDB before 10.6 cannot leave out, and waits. SQLite locks no rows: there a `write_transaction` is the only
    writer.
    """
    features = connections[using].features
    if not features.has_select_for_update:
        return rows
    return rows.select_for_update(
        skip_locked=features.has_select_for_update_skip_locked and not wait,
        # The plain form would block inserts that refer to the row.
        no_key=features.has_select_for_no_key_update,
    )


def change_free(rows: QuerySet[Any], limit: int, *, using: str, **changes: Any) -> int:
    """Change up to `limit` of these rows, the first in their order that nobody else has locked. How many."""
    with write_transaction(using):
        ids = list(lock_rows(rows, using=using).values_list("pk", flat=True)[:limit])
        # They are locked. By their ids alone: beside the condition PostgreSQL might take its index, and read all that
        # fits it.
        with forced_index("PRIMARY", using=using):
            changed: int = rows.model._base_manager.using(using).filter(pk__in=ids).update(**changes)
    return changed


def the_only(rows: QuerySet[Any, R]) -> R | None:
    """The row that a unique column names, or None.

    Not `first()`, which orders by the primary key: with the statistics of an empty table PostgreSQL may then walk over
    all rows in that order, and not ask the index of the column.
    """
    return next(iter(rows.order_by()[:1]), None)


def are_there_any(querysets: Sequence[QuerySet[Any]], *, using: str) -> list[bool]:
    """Whether each of these has a row: one statement for all of them.

    Each is asked for its first row in its own order, and not by EXISTS, which PostgreSQL likes to answer by a walk over
    the table where it believes that most rows would do.
    """
    if not querysets:
        return []
    asked = [rows.values("pk")[:1].query.get_compiler(using).as_sql() for rows in querysets]
    with connections[using].cursor() as cursor:
        cursor.execute(
            "SELECT " + ", ".join(f"({sql}) IS NOT NULL" for sql, _ in asked),
            [each for _, params in asked for each in params],
        )
        return [bool(each) for each in cursor.fetchone()]


@contextmanager
def forced_index(index: str, *, using: str) -> Iterator[None]:
    """Let UPDATEs on MariaDB and MySQL find their rows by this index, however small the table.

    A scan of a small table would wait for rows that others have locked, though it changes none of them.
    """
    connection = connections[using]
    if connection.vendor != "mysql":
        yield
        return
    with connection.execute_wrapper(partial(_force_index, index)):
        yield


def _force_index(index: str, execute: Callable[..., Any], sql: str, *rest: Any) -> Any:
    return execute(re.sub(r"^UPDATE (`\w+`)", rf"UPDATE \1 FORCE INDEX ({index})", sql), *rest)


def delete_rows(rows: QuerySet[Any]) -> int:
    """Delete these rows by one statement, and no project's receiver of post_delete makes it several. How many.

    On MariaDB and MySQL by one statement a row, for the reason of `forced_index`, which no DELETE takes.
    """
    if connections[rows.db].vendor != "mysql":
        return rows._raw_delete(rows.db)
    ids = list(rows.values_list("pk", flat=True))
    return sum(rows.filter(pk=each)._raw_delete(rows.db) for each in ids)


def text_array(values: Iterable[str | None]) -> str:
    """The literal of a PostgreSQL array of these texts; None is NULL. A driver takes ten times as long for a list."""
    return "{" + ",".join(["NULL" if each is None else _quoted(each) for each in values]) + "}"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


class StoredJSON(Func):
    """JSON text for a JSON column, as it is: Django would parse it and write it anew."""

    output_field = JSONField()

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def as_sql(self, compiler: Any, connection: BaseDatabaseWrapper, **extra: Any) -> Any:  # type: ignore[override]
        return ("%s::jsonb" if connection.vendor == "postgresql" else "%s"), [self.text]

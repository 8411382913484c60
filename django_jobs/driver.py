"""What is asked of psycopg 3 itself, past Django. With another driver all of it falls back to what Django does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

from django.db import ProgrammingError, connections
from django.db.backends.utils import CursorDebugWrapper, CursorWrapper

try:
    from psycopg import Connection, Cursor, pq
except ImportError:
    Connection = Cursor = pq = None  # type: ignore[assignment,misc]

HAS_PSYCOPG = Connection is not None
HAS_USER_TIMEOUT = HAS_PSYCOPG and pq.version() >= 120_000  # libpq 12 has tcp_user_timeout; an older one refuses it
PREPARE_AFTER = 1  # uses of one text
_PLAN_IS_GONE = ("26000", "42P05")  # invalid_sql_statement_name, duplicate_prepared_statement
# It would plan anew for each limit otherwise, to gain nothing. And a plan that is kept must not be the one that was
# best while the table was empty. Where an index is missing it would also be compiled, at each use.
_KEEP_PLANS = """
    SELECT set_config('plan_cache_mode', 'force_generic_plan', false), set_config('enable_seqscan', 'off', false),
        set_config('enable_bitmapscan', 'off', false), set_config('jit', 'off', false)"""


def is_psycopg(raw: Any) -> bool:
    """Whether this is a connection of psycopg 3's."""
    return HAS_PSYCOPG and isinstance(raw, Connection)


def prepare_statements(using: str) -> None:
    """Let the server keep the plans of what `fetch_prepared` sends on this thread's open connection.

    To plan a claim takes it longer than to carry one out. Only for a session that is this connection's own: through a
    pooler in transaction mode the next statement would meet another one, which knows of no such plan.
    """
    connection = connections[using]
    if not is_psycopg(connection.connection) or connection.connection.prepare_threshold is not None:
        return
    with connection.cursor() as cursor:
        cursor.execute(_KEEP_PLANS)
    connection.connection.prepare_threshold = PREPARE_AFTER


def fetch_prepared(sql: str, params: Sequence[Any], *, using: str) -> list[Any]:
    """The rows of a large statement of our own that is sent again and again with other values.

    Django binds values on its side, so that no two texts are alike and none can be prepared.
    """
    connection = connections[using]
    if not _prepares(connection):
        return fetch(sql, params, using=using)
    with connection.wrap_database_errors:
        return list(Cursor(connection.connection).execute(sql, params).fetchall())


def fetch(sql: str, params: Sequence[Any], *, using: str) -> list[Any]:
    """The rows of a statement, by Django's cursor."""
    with connections[using].cursor() as cursor:
        cursor.execute(sql, params)
        return list(cursor.fetchall())


# By connection of psycopg's: whether its session is its own. None: it was seen once, and not asked.
_own_sessions: WeakKeyDictionary[Any, bool | None] = WeakKeyDictionary()


def execute_prepared(connection: Any, sql: str, params: Any, *, asks: bool = True) -> Any:
    """Execute a small statement that a project's process sends again and again, in any transaction; its cursor.

    The server plans it once. It must be one whose plan cannot grow wrong, such as a plain INSERT. Django's own cursor
    is asked for first, for the sake of all that is done and refused then. With `asks` the connection's session is asked
    whether it is its own, at the second use.
    """
    cursor = connection.cursor()
    raw = connection.connection
    if not _is_plain(connection, cursor) or not _has_own_session(connection, raw, asks=asks):
        cursor.execute(sql, params)
        return cursor
    cursor.cursor = Cursor(raw)
    threshold, raw.prepare_threshold = raw.prepare_threshold, 0  # of other statements, the project decides
    try:
        cursor.execute(sql, params)
    except ProgrammingError as error:
        if getattr(error.__cause__, "sqlstate", "") not in _PLAN_IS_GONE:
            raise
        # Somebody sent DISCARD ALL or DEALLOCATE ALL, of which psycopg knows nothing; it may happen again.
        _own_sessions[raw] = False
        if connection.in_atomic_block or not connection.get_autocommit():
            raise
    else:
        return cursor
    finally:
        raw.prepare_threshold = threshold
    return execute_prepared(connection, sql, params)


def _is_plain(connection: Any, cursor: Any) -> bool:
    """Whether nothing but Django stands between us and psycopg, and this thread has the connection for itself."""
    return (
        type(cursor) in (CursorWrapper, CursorDebugWrapper)
        and is_psycopg(connection.connection)
        and not (connection.execute_wrappers or connection.needs_rollback or connection.allow_thread_sharing)
    )


def _has_own_session(connection: Any, raw: Any, *, asks: bool) -> bool:
    """Whether no pooler gives this connection's statements to whichever session is free."""
    known = _own_sessions.get(raw, ...)
    if known is ... and asks:  # a connection that is opened for one job is not asked
        _own_sessions[raw] = None
    elif known is None and asks:
        known = _own_sessions[raw] = _ask_for_own_session(connection, raw)
    return known is True


def _ask_for_own_session(connection: Any, raw: Any) -> bool:
    settings = connection.settings_dict
    options = settings["OPTIONS"]
    if settings.get("DISABLE_SERVER_SIDE_CURSORS"):  # Django's own setting for such a pooler
        return False
    if options.get("server_side_binding") or options.get("cursor_factory"):  # the project has ways of its own
        return False
    pool = options.get("pool")
    if isinstance(pool, dict) and pool.get("reset"):  # which may well throw away all plans
        return False
    # A pooler invents the process id that libpq was told at the connect.
    with connection.wrap_database_errors, Cursor(raw) as cursor:
        return bool(cursor.execute("SELECT pg_backend_pid()").fetchone() == (raw.info.backend_pid,))


def _prepares(connection: Any) -> bool:
    # Whoever watches Django's cursors, and whatever they do inside a transaction, is left to Django.
    if connection.in_atomic_block or connection.execute_wrappers or connection.queries_logged:
        return False
    return is_psycopg(connection.connection) and connection.connection.prepare_threshold is not None


def heard(raw: Any) -> set[str]:
    """The payloads of the notifications that have arrived on a connection of psycopg's. Waits for nothing.

    Raises:
        psycopg.OperationalError: the connection is gone.
    """
    raw.pgconn.consume_input()
    payloads = set()
    while notice := raw.pgconn.notifies():
        payloads.add(notice.extra.decode())
    return payloads

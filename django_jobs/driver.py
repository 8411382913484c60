"""What is asked of psycopg 3 itself, past Django. With another driver all of it falls back to what Django does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connections

try:
    from psycopg import Connection, Cursor, pq
except ImportError:
    Connection = Cursor = pq = None  # type: ignore[assignment,misc]

HAS_PSYCOPG = Connection is not None
HAS_USER_TIMEOUT = HAS_PSYCOPG and pq.version() >= 120_000  # libpq 12 has tcp_user_timeout; an older one refuses it
PREPARE_AFTER = 1  # uses of one text
# It would plan anew for each limit otherwise, to gain nothing. And a plan that is kept must not be the one that was
# best while the table was empty.
_KEEP_PLANS = """
    SELECT set_config('plan_cache_mode', 'force_generic_plan', false), set_config('enable_seqscan', 'off', false),
        set_config('enable_bitmapscan', 'off', false)"""


def is_psycopg(raw: Any) -> bool:
    """Whether this is a connection of psycopg 3's."""
    return HAS_PSYCOPG and isinstance(raw, Connection)


def prepare_statements(using: str) -> None:
    """Let the server keep the plans of what `statement_cursor` sends on this thread's open connection.

    To plan a claim takes it longer than to carry one out. Only for a session that is this connection's own: through a
    pooler in transaction mode the next statement would meet another one, which knows of no such plan.
    """
    connection = connections[using]
    if not is_psycopg(connection.connection) or connection.connection.prepare_threshold is not None:
        return
    with connection.cursor() as cursor:
        cursor.execute(_KEEP_PLANS)
    connection.connection.prepare_threshold = PREPARE_AFTER


@contextmanager
def statement_cursor(using: str) -> Iterator[Any]:
    """A cursor for large statements of our own that are sent again and again with other values.

    Django binds values on its side, so that no two texts are alike and none can be prepared.
    """
    connection = connections[using]
    if not _prepares(connection):
        with connection.cursor() as cursor:
            yield cursor
        return
    with connection.wrap_database_errors, Cursor(connection.connection) as cursor:
        yield cursor


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

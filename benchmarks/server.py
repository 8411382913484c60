"""The PostgreSQL server: databases that a run makes and drops, and the counters it keeps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from django.conf import settings
from psycopg import sql

from benchmarks.settings import BENCH_OUTSET, BENCH_PREFIX

Connection = psycopg.Connection[tuple[Any, ...]]


class Server:
    """One server, through its maintenance connection. Every database it makes has `prefix` in its name."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.made: set[str] = set()
        self._maintenance = self.connect(BENCH_OUTSET)
        self.counts_statements = self._can_count_statements()

    def connect(self, database: str) -> Connection:
        """A connection of one's own in autocommit mode."""
        given = settings.DATABASES["default"]
        return psycopg.connect(
            host=given["HOST"] or None,
            port=given["PORT"] or None,
            user=given["USER"] or None,
            password=given["PASSWORD"] or None,
            dbname=database,
            autocommit=True,
        )

    def ask(self, query: str, *parameters: object) -> Any:
        """The first column of the first row, or None."""
        cursor = self._maintenance.execute(query, parameters)
        row = cursor.fetchone()
        return row[0] if row else None

    def create(self, name: str, template: str | None = None) -> str:
        """An empty database, or a copy; its full name. One of that name is dropped before."""
        self.drop(name)
        full = self.full_name(name)
        statement = sql.SQL("CREATE DATABASE {}").format(sql.Identifier(full))
        if template is not None:
            self._end_sessions(template)
            statement += sql.SQL(" TEMPLATE {}").format(sql.Identifier(self.full_name(template)))
        self._maintenance.execute(statement)
        self.made.add(name)
        return full

    def drop(self, name: str) -> None:
        self._maintenance.execute(
            sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(self.full_name(name)))
        )
        self.made.discard(name)

    def close(self) -> None:
        """Drop every database that was made."""
        for name in list(self.made):
            self.drop(name)
        self._maintenance.close()

    def full_name(self, name: str) -> str:
        return f"{self.prefix}_{name}"

    def _end_sessions(self, name: str) -> None:
        self._maintenance.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %s",
            [self.full_name(name)],
        )

    def settle(self, connection: Connection) -> None:
        """Bring a database to where it would be after a while: analyzed, with its pages written out."""
        connection.execute("ANALYZE")
        with suppress(psycopg.errors.InsufficientPrivilege):
            connection.execute("CHECKPOINT")

    def wal_position(self) -> int:
        """Bytes of WAL the server has written since it was made, by whoever."""
        return int(self.ask("SELECT pg_current_wal_lsn() - '0/0'::pg_lsn"))

    def statements(self, name: str) -> int:
        """How many statements a database has carried out; where pg_stat_statements is not loaded, transactions."""
        if self.counts_statements:
            return int(
                self.ask(
                    # Without those of the benchmark itself, which watches the locks there.
                    "SELECT coalesce(sum(calls), 0) FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid"
                    " WHERE d.datname = %s AND strpos(query, 'pg_locks') = 0",
                    self.full_name(name),
                )
            )
        counted = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = %s"
        return int(self.ask(counted, self.full_name(name)) or 0)

    @property
    def statement_unit(self) -> str:
        return "statements" if self.counts_statements else "transactions"

    def _can_count_statements(self) -> bool:
        try:
            self._maintenance.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
            self._maintenance.execute("SELECT count(*) FROM pg_stat_statements")
        except psycopg.Error:
            return False
        return True

    def configuration(self) -> dict[str, str]:
        """What of the server's settings bears on the numbers."""
        names = ["server_version", "fsync", "synchronous_commit", "shared_buffers", "max_wal_size", "wal_level", "jit"]
        names += ["full_page_writes", "autovacuum"]
        return {name: str(self.ask("SELECT current_setting(%s)", name)) for name in names}


@contextmanager
def server() -> Iterator[Server]:
    """The server of DATABASE_URL. What is made on it is dropped at the end."""
    found = Server(BENCH_PREFIX)
    try:
        yield found
    finally:
        found.close()

"""Which questions are asked of which database, and what an answer is worth that could not be had."""

from __future__ import annotations

from collections.abc import Sequence

from django.db import DatabaseError, InterfaceError, connections, transaction

from django_jobs.doctor import applied, everywhere, mysql, postgres, schema, sqlite, vacuum, wakeups
from django_jobs.doctor.findings import Finding, Question, unseen

LOCK_PATIENCE = "2s"  # a table may be locked just now: the doctor does not stand in the line

SERVER: dict[str, tuple[Question, ...]] = {
    "postgresql": (
        postgres.version,
        postgres.durability,
        postgres.isolation,
        postgres.timeouts,
        vacuum.transactions,
        vacuum.replication_slots,
        vacuum.prepared_transactions,
        wakeups.listening,
    ),
    "mysql": (mysql.version, mysql.durability, mysql.isolation, mysql.replication, mysql.transactions),
    "sqlite": (sqlite.version, sqlite.options, sqlite.durability, sqlite.file),
}
TABLES: dict[str, tuple[Question, ...]] = {
    "postgresql": (postgres.autovacuum, vacuum.dead_rows, postgres.connection_room),
}
# Cheap, and of settings that stay: `manage.py check --database` asks these, too.
STATIC: dict[str, tuple[Question, ...]] = {
    "postgresql": (postgres.autovacuum, schema.indexes, postgres.timeouts),
    "mysql": (schema.indexes,),
    "sqlite": (schema.indexes,),
}
DURABILITY: dict[str, Question] = {
    "postgresql": postgres.durability,
    "mysql": mysql.durability,
    "sqlite": sqlite.durability,
}


def examine(using: str) -> list[Finding]:
    """Everything that slows this database's queue down, or puts a promise at risk; what is fine is among it.

    Raises:
        django.db.Error: the database cannot be reached.
    """
    connections[using].ensure_connection()
    vendor = connections[using].vendor
    questions: list[Question] = [*SERVER[vendor], schema.migrations, everywhere.clock]
    if not applied.unapplied(using):
        questions += [schema.indexes, *TABLES.get(vendor, ()), everywhere.workers]
    return ask_all(questions, using)


def examine_settings(using: str, *, deployed: bool = False) -> list[Finding]:
    """The cheap part, about settings and tables, for a database whose migrations are all applied. None otherwise."""
    if applied.unapplied(using):
        return []  # Some of it will be mended by `migrate`, which asks before it starts.
    vendor = connections[using].vendor
    return ask_all([DURABILITY[vendor]] if deployed else list(STATIC[vendor]), using)


def ask_all(questions: Sequence[Question], using: str) -> list[Finding]:
    """Ask each by itself: one that is refused stops no other."""
    return [finding for question in questions for finding in _answer(question, using)]


def _answer(question: Question, using: str) -> list[Finding]:
    connection = connections[using]
    try:
        with transaction.atomic(using=using):
            if connection.vendor == "postgresql":
                with connection.cursor() as cursor:
                    cursor.execute(f"SET LOCAL lock_timeout = '{LOCK_PATIENCE}'")
            return list(question(using))
    except (DatabaseError, InterfaceError) as error:
        if not connection.in_atomic_block and not connection.is_usable():
            raise
        reason = str(error).strip().partition("\n")[0]
        return [unseen(question.__name__, f"The database did not answer: {reason}")]

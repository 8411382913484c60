"""What MariaDB's and MySQL's settings do to a queue."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.db import connections

from django_jobs.doctor.findings import HOUR, MINUTE, Finding, fine, or_fine, problem, span, unseen, warning
from django_jobs.doctor.rows import ask

OLD, VERY_OLD = MINUTE, HOUR  # seconds of a transaction's age


def variables(using: str, *names: str) -> dict[str, str]:
    """The session's variables of these names; those that this server does not know are left out."""
    marks = ", ".join(["%s"] * len(names))
    rows: list[Any] = ask(using, f"SHOW VARIABLES WHERE Variable_name IN ({marks})", names)
    return {name.lower(): value for name, value in rows}


def version(using: str) -> Iterator[Finding]:
    connection = connections[using]
    ((text,),) = ask(using, "SELECT version()")
    if connection.features.has_select_for_update_skip_locked:
        yield fine("server", f"{connection.display_name} {text}.")
        return
    message = f"{connection.display_name} {text} cannot skip locked rows: workers block each other."
    yield problem("server", message, "Use MariaDB 10.6, MySQL 8.0.1 or a later one.")


def isolation(using: str) -> Iterator[Finding]:
    found = variables(using, "transaction_isolation", "tx_isolation")
    level = found.get("transaction_isolation") or found.get("tx_isolation", "")
    if level.upper().replace("-", " ") == "READ COMMITTED":
        yield fine("isolation", "Transactions are READ COMMITTED.")
        return
    message = f"Transactions are {level}: claims lock the gaps between rows, and workers meet deadlocks."
    yield warning("isolation", message, f'DATABASES["{using}"]["OPTIONS"]["isolation_level"] = "read committed"')


def durability(using: str) -> Iterator[Finding]:
    found = _durability(using)
    yield from or_fine(found, "durability", "A commit that was answered is on the disk.")


def _durability(using: str) -> Iterator[Finding]:
    names = ("innodb_flush_log_at_trx_commit", "log_bin", "sync_binlog", "innodb_doublewrite")
    yield from judge_durability(variables(using, *names))
    sql = (
        "SELECT table_name, engine FROM information_schema.tables WHERE table_schema = DATABASE()"
        " AND table_name LIKE 'django\\_jobs\\_%%' AND engine <> 'InnoDB' ORDER BY 1"
    )
    for table, engine in ask(using, sql, []):
        message = f"{table} is kept by {engine}, which knows no transactions: none of the promises hold."
        yield problem("durability", message, f"ALTER TABLE {table} ENGINE = InnoDB;")


def judge_durability(found: dict[str, str]) -> Iterator[Finding]:
    flush = found.get("innodb_flush_log_at_trx_commit", "1")
    if flush != "1":
        lost = "power cut or crash" if flush == "0" else "power cut"
        message = f"innodb_flush_log_at_trx_commit is {flush}: a {lost} loses the last second of committed jobs."
        yield warning("durability", message, "SET GLOBAL innodb_flush_log_at_trx_commit = 1;  -- and in my.cnf")
    if found.get("log_bin") == "ON" and found.get("sync_binlog") == "0":
        message = "sync_binlog is 0: after a power cut replicas may have jobs that the primary has not, or lack some."
        yield warning("durability", message, "SET GLOBAL sync_binlog = 1;  -- and in my.cnf")
    if found.get("innodb_doublewrite", "ON").upper() in {"OFF", "0"}:
        message = "innodb_doublewrite is off: after a power cut pages may be half written."
        yield warning("durability", message, "innodb_doublewrite = ON in my.cnf, and restart")


def replication(using: str) -> Iterator[Finding]:
    found = variables(using, "log_bin", "binlog_format")
    if found.get("log_bin") == "ON" and found.get("binlog_format") == "STATEMENT":
        message = "binlog_format is STATEMENT, which InnoDB refuses under READ COMMITTED: nothing can be written."
        yield problem("replication", message, "SET GLOBAL binlog_format = 'ROW';  -- and in my.cnf")
    else:
        yield fine("replication", "The binary log, if there is one, takes what workers write.")


def transactions(using: str) -> Iterator[Finding]:
    """Look for old transactions: their snapshots keep old versions of rows."""
    if not ask(using, "SELECT 1 FROM information_schema.user_privileges WHERE privilege_type = 'PROCESS' LIMIT 1"):
        message = "How old the transactions of others are, this user may not see."
        yield unseen("transactions", message, "GRANT PROCESS ON *.* TO ...;")
        return
    rows = ask(
        using,
        "SELECT trx_mysql_thread_id, timestampdiff(SECOND, trx_started, now()), trx_state"
        " FROM information_schema.innodb_trx WHERE trx_mysql_thread_id <> connection_id() ORDER BY trx_started",
    )
    found = (finding for row in rows for finding in judge_transaction(*row))
    yield from or_fine(found, "transactions", f"No transaction is older than {span(OLD)}.")


def judge_transaction(thread: int, age: int, state: str) -> Iterator[Finding]:
    if age < OLD:
        return
    report = problem if age >= VERY_OLD else warning
    message = (
        f"Connection {thread} has been in one transaction for {span(age)} ({state.lower()}): old versions of rows are "
        "kept since then, and claims slow down with each job."
    )
    yield report("transactions", message, f"KILL {thread};  -- if nobody needs it")

"""What keeps PostgreSQL from removing dead rows: they are what slows a queue down in the end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from django_jobs.doctor.findings import HOUR, MINUTE, Finding, fine, or_fine, problem, size, span, unseen, warning
from django_jobs.doctor.rows import ask
from django_jobs.doctor.schema import expected_parameters

OLD, VERY_OLD = MINUTE, HOUR  # seconds of a transaction's age
OLD_SNAPSHOT = 1_000_000  # transactions since, where the time may not be seen
DEAD_SHARE = 10  # times the threshold of the job table's vacuum
VACUUM_LATE = 5 * MINUTE  # autovacuum looks at a table once a minute
KEPT_WAL = 1e9  # bytes
BLOATED = 2e9  # bytes of the job table and its indexes, above which their use is looked at
BYTES_PER_JOB = 10_000  # of table and indexes, above which most of them is empty or dead; a job has about 500
STOPS = "no dead row of since then can be removed, and claims slow down with each job"


class Session(NamedTuple):
    """Somebody else's session. Times are None where the role may not see them."""

    pid: int
    role: str | None
    application: str | None
    kind: str | None
    state: str | None
    age: float | None  # seconds since its transaction began
    idle: float | None  # seconds since its last statement ended
    snapshot: int | None  # transactions begun since the oldest that it may still look at
    holds: bool  # dead rows

    @property
    def is_idle(self) -> bool:
        return (self.state or "").startswith("idle in transaction")

    def __str__(self) -> str:
        who = f"pid {self.pid} ({self.application or 'no application_name'}, role {self.role or '?'})"
        return f"{self.kind} {who}" if self.kind not in (None, "client backend") else f"Session {who}"


def sessions(using: str) -> list[Session]:
    """Sessions in a transaction that matters to the tables of this database, the oldest first."""
    rows = ask(
        using,
        """
        SELECT pid, usename, application_name, backend_type, state,
            extract(epoch FROM clock_timestamp() - xact_start)::float8,
            CASE WHEN state LIKE 'idle%%' THEN extract(epoch FROM clock_timestamp() - state_change)::float8 END,
            greatest(age(backend_xmin), age(backend_xid)), backend_xmin IS NOT NULL OR backend_xid IS NOT NULL
        FROM pg_stat_activity
        WHERE pid <> pg_backend_pid() AND (datname = current_database() OR backend_xmin IS NOT NULL AND datname IS NULL)
            AND coalesce(backend_type, '') NOT IN ('autovacuum worker', 'parallel worker')
            -- These hold back nobody but each other.
            AND pid NOT IN (SELECT pid FROM pg_stat_progress_vacuum)
            AND pid NOT IN (SELECT pid FROM pg_stat_progress_create_index)
            AND (xact_start IS NOT NULL OR backend_xmin IS NOT NULL OR backend_xid IS NOT NULL OR state IS NULL)
        ORDER BY xact_start NULLS LAST, 8 DESC NULLS LAST""",
        [],
    )
    return [Session(*row) for row in rows]


def oldest_transaction(using: str) -> float:
    """Seconds since the oldest transaction began that keeps dead rows, as far as the role may see; 0 without any."""
    return max((session.age or 0.0 for session in sessions(using) if session.holds), default=0.0)


def transactions(using: str) -> Iterator[Finding]:
    """Look for old transactions and snapshots, and for sessions that forgot theirs."""
    everybody = sessions(using)
    found = [finding for session in everybody for finding in _judge(session)]
    yield from or_fine(iter(found), "transactions", f"No transaction is older than {span(OLD)}.")
    hidden = [session for session in everybody if session.state is None and session.kind is None]
    if hidden:
        message = f"How old the transactions of {len(hidden)} sessions of other roles are, this role may not see."
        yield unseen("transactions", message, "GRANT pg_read_all_stats TO CURRENT_USER;  -- as a superuser")


def _judge(session: Session) -> Iterator[Finding]:
    if session.age is None:
        if session.holds and (session.snapshot or 0) >= OLD_SNAPSHOT:
            message = f"{session} has a snapshot from {session.snapshot:,} transactions ago: {STOPS}."
            yield warning("transactions", message, *_mend(session))
    elif session.age >= OLD and (session.holds or (session.is_idle and (session.idle or 0) >= OLD)):
        idle = f", idle for {span(session.idle)} of it" if session.is_idle and session.idle is not None else ""
        harm = STOPS if session.holds else "its locks stay, and its connection"
        report = problem if session.holds and session.age >= VERY_OLD else warning
        message = f"{session} has been in one transaction for {span(session.age)}{idle}: {harm}."
        yield report("transactions", message, *_mend(session))


def _mend(session: Session) -> tuple[str, ...]:
    if session.kind == "walsender":
        return ("On that standby: end its long query, or set hot_standby_feedback = off.",)
    end = f"SELECT pg_terminate_backend({session.pid});  -- if nobody needs it"
    if session.is_idle:
        limit = f"ALTER ROLE {session.role} SET idle_in_transaction_session_timeout = '5min';"
        return end, limit
    return (end,)


def replication_slots(using: str) -> Iterator[Finding]:
    rows = ask(
        using,
        """
        SELECT slot_name, active, age(xmin), CASE WHEN NOT pg_is_in_recovery()
            THEN pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::float8 END
        FROM pg_replication_slots WHERE database IS NULL OR database = current_database()
        ORDER BY age(xmin) DESC NULLS LAST""",
    )
    found = (finding for row in rows for finding in judge_slot(*row))
    yield from or_fine(found, "slots", "No replication slot keeps dead rows or WAL.")


def judge_slot(name: str, is_active: bool, age: int | None, kept: float | None) -> Iterator[Finding]:
    mend = f"SELECT pg_drop_replication_slot('{name}');  -- if its standby will not come back"
    if age is not None and not is_active:
        message = f"Replication slot {name} is not in use and keeps a snapshot {age:,} transactions old: {STOPS}."
        yield problem("slots", message, mend)
    elif age is not None and age >= OLD_SNAPSHOT:
        message = f"The standby of replication slot {name} keeps a snapshot {age:,} transactions old: {STOPS}."
        yield warning("slots", message, "On that standby: end its long query, or set hot_standby_feedback = off.")
    if kept is not None and kept >= KEPT_WAL and not is_active:
        message = f"Replication slot {name} is not in use and keeps {size(kept)} of WAL: the disk will fill up."
        yield warning("slots", message, mend)


def prepared_transactions(using: str) -> Iterator[Finding]:
    rows = ask(
        using,
        "SELECT gid, extract(epoch FROM clock_timestamp() - prepared)::float8 FROM pg_prepared_xacts"
        " WHERE database = current_database() ORDER BY prepared",
    )
    found = (finding for row in rows for finding in judge_prepared(*row))
    yield from or_fine(found, "prepared", "No prepared transaction was forgotten.")


def judge_prepared(gid: str, age: float) -> Iterator[Finding]:
    if age < OLD:
        return
    message = f"Prepared transaction {gid!r} has been open for {span(age)}: {STOPS}. It outlives sessions and restarts."
    name = gid.replace("'", "''")
    yield problem("prepared", message, f"ROLLBACK PREPARED '{name}';  -- or COMMIT PREPARED, its manager knows")


class DeadRows(NamedTuple):
    """The job table as the statistics have it."""

    live: int
    dead: int
    vacuumed: float | None  # seconds since the last vacuum; None is never, or before the statistics were reset
    size: int  # bytes of the table and its indexes, without what is stored out of line


def dead_rows_of(using: str) -> DeadRows:
    """Dead rows and the last vacuum of the job table."""
    ((live, dead, vacuumed, bytes_used),) = ask(
        using,
        """
        SELECT n_live_tup, n_dead_tup,
            extract(epoch FROM clock_timestamp() - greatest(last_vacuum, last_autovacuum))::float8,
            pg_relation_size(relid) + pg_indexes_size(relid)
        FROM pg_stat_all_tables WHERE relid = to_regclass('django_jobs_job')""",
    )
    return DeadRows(live, dead, vacuumed, bytes_used)


def dead_rows(using: str) -> Iterator[Finding]:
    """Does vacuum keep up with the job table?"""
    threshold = int(expected_parameters().get("django_jobs_job", {}).get("autovacuum_vacuum_threshold", 50))
    yield from judge_dead_rows(dead_rows_of(using), threshold)


def judge_dead_rows(table: DeadRows, threshold: int) -> Iterator[Finding]:
    last = "never vacuumed" if table.vacuumed is None else f"last vacuumed {span(table.vacuumed)} ago"
    said = f"The job table has {table.dead:,} dead rows beside {table.live:,} live ones, {last}"
    now = "VACUUM (INDEX_CLEANUP ON) django_jobs_job;"
    if table.dead > threshold and (table.vacuumed is None or table.vacuumed > VACUUM_LATE):
        message = f"{said}: autovacuum does not come round. All its workers are busy, or it is off."
        yield warning("dead_rows", message, now, "If they are busy: raise autovacuum_max_workers.")
    elif table.dead > max(DEAD_SHARE * threshold, table.live):
        message = f"{said}: vacuum comes, but may not remove them. See the findings about old snapshots."
        yield warning("dead_rows", message, "End what holds the snapshot; then:", now)
    else:
        yield fine("dead_rows", f"{said}.")
    if table.size > BLOATED and table.size > BYTES_PER_JOB * (table.live + table.dead):
        message = f"The job table and its indexes take {size(table.size)} for {table.live + table.dead:,} rows."
        mend = (
            "REINDEX TABLE CONCURRENTLY django_jobs_job;",
            "VACUUM (TRUNCATE) django_jobs_job;  -- at a quiet time",
        )
        yield warning("dead_rows", f"{message} Most of it is empty, and each vacuum reads the indexes.", *mend)

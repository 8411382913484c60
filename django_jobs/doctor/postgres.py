"""What PostgreSQL's settings do to a queue."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from django.db import connections

from django_jobs import registry
from django_jobs.conf import get_settings
from django_jobs.doctor.findings import Finding, fine, or_fine, problem, span, warning
from django_jobs.doctor.rows import Setting, ask, settings_of
from django_jobs.doctor.schema import expected_parameters
from django_jobs.models import Worker

LEAST_STATEMENT = 5.0  # seconds that a statement of ours must be allowed: a prune batch on a slow disk
LEAST_IDLE_IN_TRANSACTION = 5.0  # seconds that a worker may be held up between two statements of one transaction
LEAST_IDLE = 60.0  # seconds; a listening connection says nothing for 30
CONNECTIONS_BESIDE_THREADS = 5  # of one worker
LEAST_FREE = 3  # connections
RESTART = "and restart PostgreSQL"


def version(using: str) -> Iterator[Finding]:
    ((text, is_standby),) = ask(using, "SELECT current_setting('server_version'), pg_is_in_recovery()")
    if is_standby:
        message = (
            f"Alias {using!r} leads to a standby, which can be read only: nothing can be enqueued or claimed there."
        )
        yield problem("server", message, f'Let DATABASES["{using}"]["HOST"] name the primary.')
    else:
        yield fine("server", f"PostgreSQL {text}.")


def autovacuum(using: str) -> Iterator[Finding]:
    """Is it on, and do the tables have the settings that the migrations gave them?"""
    yield from or_fine(_vacuum_settings(using), "autovacuum", "It is on, and the tables have their settings.")


def _vacuum_settings(using: str) -> Iterator[Finding]:
    for name, setting in settings_of(using, "autovacuum", "track_counts").items():
        if not setting.is_on:
            message = f"{name} is off ({setting.source}): dead rows stay for ever, and claims slow down with each job."
            yield problem("autovacuum", message, f"ALTER SYSTEM SET {name} = on; SELECT pg_reload_conf();")
    for table, expected in expected_parameters().items():
        yield from judge_parameters(table, expected, parameters_of(using, table))


def parameters_of(using: str, table: str) -> dict[str, str]:
    """The storage parameters of a table."""
    rows = ask(using, "SELECT reloptions FROM pg_class WHERE oid = to_regclass(%s)", [table])
    return dict(each.split("=", 1) for (options,) in rows for each in options or ())


def judge_parameters(table: str, expected: Mapping[str, Any], found: Mapping[str, str]) -> Iterator[Finding]:
    """Other values than the migrations' are somebody's choice; none at all are an accident."""
    if found.get("autovacuum_enabled", "true").lower() in {"false", "off", "0", "no"}:
        message = f"Autovacuum is switched off for {table}: its dead rows stay for ever."
        yield problem("autovacuum", message, f"ALTER TABLE {table} RESET (autovacuum_enabled);")
    missing = {name: value for name, value in expected.items() if name not in found}
    if missing:
        values = ", ".join(f"{name} = {str(value).lower()}" for name, value in missing.items())
        message = f"{table} lacks {', '.join(missing)}, which keep dead rows, writes and lock waits few."
        yield warning("autovacuum", message, f"ALTER TABLE {table} SET ({values});")


def durability(using: str) -> Iterator[Finding]:
    """Is a commit on the disk when it is answered?"""
    names = ("fsync", "full_page_writes", "synchronous_commit")
    found = judge_durability(settings_of(using, *names), _name(using))
    yield from or_fine(_unlogged(using, found), "durability", "A commit that was answered is on the disk.")


def judge_durability(settings: Mapping[str, Setting], database: str) -> Iterator[Finding]:
    fsync, pages, commit = (settings[name] for name in ("fsync", "full_page_writes", "synchronous_commit"))
    if not fsync.is_on:
        message = (
            f"fsync is off ({fsync.source}): a power cut loses jobs that were committed, and may spoil the database."
        )
        yield problem("durability", message, "ALTER SYSTEM SET fsync = on; SELECT pg_reload_conf();")
    if not pages.is_on:
        message = f"full_page_writes is off ({pages.source}): after a power cut pages may be half written."
        yield warning("durability", message, "ALTER SYSTEM SET full_page_writes = on; SELECT pg_reload_conf();")
    if commit.value == "off":
        message = (
            f"synchronous_commit is off ({commit.source}): a crash of the server loses jobs that were committed in its "
            "last moments, and lets some finished ones run again."
        )
        yield warning("durability", message, where_to_set("synchronous_commit", commit, "on", database))


def _unlogged(using: str, found: Iterator[Finding]) -> Iterator[Finding]:
    yield from found
    sql = (
        "SELECT relname FROM pg_class WHERE relkind = 'r' AND relpersistence = 'u' AND pg_table_is_visible(oid)"
        " AND relname LIKE 'django\\_jobs\\_%%' ORDER BY 1"
    )
    for (table,) in ask(using, sql, []):
        message = f"{table} is UNLOGGED: after a crash of the server it is empty."
        yield problem("durability", message, f"ALTER TABLE {table} SET LOGGED;  -- rewrites it under a lock")


def where_to_set(name: str, setting: Setting, value: str, database: str) -> str:
    """The statement that undoes a setting at the place it comes from."""
    places = {
        "user": f"ALTER ROLE CURRENT_USER RESET {name};",
        "database user": f'ALTER ROLE CURRENT_USER IN DATABASE "{database}" RESET {name};',
        "database": f'ALTER DATABASE "{database}" RESET {name};',
        "client": f'Take {name} out of "OPTIONS" in DATABASES.',
        "session": f"Do not set {name} when a connection is made.",
    }
    return places.get(setting.source, f"ALTER SYSTEM SET {name} = {value}; SELECT pg_reload_conf();")


def _name(using: str) -> str:
    return str(connections[using].settings_dict["NAME"])


def isolation(using: str) -> Iterator[Finding]:
    ((level,),) = ask(using, "SELECT current_setting('transaction_isolation')")
    if level == "read committed":
        yield fine("isolation", "Transactions are READ COMMITTED.")
        return
    message = f"Transactions are {level.upper()}: workers meet serialization failures, and do their work again."
    yield warning("isolation", message, f'Take isolation_level out of DATABASES["{using}"]["OPTIONS"].')


def timeouts(using: str) -> Iterator[Finding]:
    """Would the role's own limits cut a worker off?"""
    names = (
        "statement_timeout",
        "idle_in_transaction_session_timeout",
        "idle_session_timeout",
        "transaction_timeout",
    )
    found = judge_timeouts(settings_of(using, *names), _name(using))
    yield from or_fine(found, "timeouts", "No time limit of the role cuts a worker off.")


def judge_timeouts(settings: Mapping[str, Setting], database: str) -> Iterator[Finding]:
    """Milliseconds; 0 is no limit."""
    limits = {name: int(setting.value) / 1000 for name, setting in settings.items() if int(setting.value) > 0}
    longest = longest_atomic_task()
    tests = {
        "statement_timeout": (LEAST_STATEMENT, "a sweep or a prune batch may be cut off and never end"),
        "idle_in_transaction_session_timeout": (
            LEAST_IDLE_IN_TRANSACTION,
            "a worker on a busy host loses its connection in the middle of a write",
        ),
        "idle_session_timeout": (LEAST_IDLE, "idle workers lose their connections, and wake-ups with them"),
        "transaction_timeout": (longest, "a task with atomic=True is cut off before its own time limit"),
    }
    for name, (least, consequence) in tests.items():
        if limits.get(name, least) < least:
            message = (
                f"{name} is {span(limits[name])} ({settings[name].source}), less than {span(least)}: {consequence}."
            )
            yield warning("timeouts", message, where_to_set(name, settings[name], f"'{least:g}s'", database))


def longest_atomic_task() -> float:
    """Seconds that a transaction of an atomic task may last."""
    settings = get_settings()
    lengths = [task.timeout for task in registry.all_tasks() if task.atomic]
    return max((length + settings.LEASE).total_seconds() for length in lengths) if lengths else 0.0


def connection_room(using: str) -> Iterator[Finding]:
    """Is there room for one more worker, as a deploy needs it?"""
    ((most, used, role_limit, role_used, data_limit, data_used),) = ask(
        using,
        """
        SELECT
            current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
                - coalesce(nullif(current_setting('reserved_connections', true), '')::int, 0),
            (SELECT sum(numbackends) FROM pg_stat_database)::int,
            rolconnlimit, (SELECT count(*) FROM pg_stat_activity WHERE usename = current_user)::int,
            datconnlimit, (SELECT numbackends FROM pg_stat_database WHERE datname = current_database())
        FROM pg_roles, pg_database WHERE rolname = current_user AND datname = current_database()""",
    )
    limits = [("max_connections", most, used)]
    limits += [("the role's CONNECTION LIMIT", role_limit, role_used)] if role_limit >= 0 else []
    limits += [("the database's CONNECTION LIMIT", data_limit, data_used)] if data_limit >= 0 else []
    name, limit, in_use = min(limits, key=lambda each: each[1] - each[2])
    yield judge_room(name, limit, in_use, Worker.objects.using(using).count())


def judge_room(name: str, limit: int, in_use: int, workers: int) -> Finding:
    """What is left of the scarcest limit, against what a worker may take."""
    each = get_settings().THREADS + CONNECTIONS_BESIDE_THREADS
    said = f"{in_use} of {limit} connections are in use; {workers} workers are registered, each may take up to {each}"
    mend = (
        "Run fewer workers or threads, put a pooler in front of the web processes,",
        f"or raise {name}" + (f" {RESTART}." if name == "max_connections" else "."),
    )
    if limit - in_use < each:
        report = problem if limit - in_use < LEAST_FREE else warning
        return report("connections", f"{said}. There is no room for one more, which a deploy needs ({name}).", *mend)
    if workers * each > limit:
        return warning(
            "connections", f"{said}: {workers * each} when all are busy, more than there are ({name}).", *mend
        )
    return fine("connections", f"{said}.")

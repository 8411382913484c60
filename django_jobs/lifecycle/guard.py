"""The one guard for every kind of uniqueness: a row in JobKey, whose INSERT decides."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple
from uuid import UUID

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Q

from django_jobs.database import (
    Clock,
    clock_after_sql,
    clock_sql,
    delete_rows,
    forced_index,
    lock_rows,
    write_transaction,
)
from django_jobs.models import JobKey
from django_jobs.statuses import Uniqueness


class Wanted(NamedTuple):
    """A key somebody wants to hold."""

    scope: str
    key: str
    holder_id: UUID
    ttl: timedelta | None = None


# Two steps of one PostgreSQL statement over the rows of `new` (id, scope, key, key_ttl): an expired row is taken over,
# a free key inserted. DO UPDATE … WHERE expired would do both, but it locks the row of a key that stays with its
# holder. The ids stand as an array as well: to join them alone, with the statistics of an empty table, PostgreSQL would
# read all keys in the order of their ids.
POSTGRES_GUARD = """
    due AS MATERIALIZED (
        SELECT k.id, new.id AS new_holder, new.key_ttl
        FROM django_jobs_jobkey AS k JOIN new ON new.key = k.key AND new.scope = k.scope
        WHERE k.key = ANY(ARRAY(SELECT key FROM new)) AND k.expires_at <= statement_timestamp()
        ORDER BY k.key COLLATE "C", k.scope COLLATE "C"
        FOR UPDATE OF k
    ),
    taken AS (
        UPDATE django_jobs_jobkey AS held
        SET holder_id = due.new_holder, created_at = statement_timestamp(),
            expires_at = statement_timestamp() + due.key_ttl
        FROM due WHERE held.id = ANY(ARRAY(SELECT id FROM due)) AND held.id = due.id
        RETURNING held.holder_id
    ),
    guard AS (
        INSERT INTO django_jobs_jobkey (key, scope, holder_id, created_at, expires_at)
        SELECT key, scope, id, statement_timestamp(), statement_timestamp() + key_ttl
        FROM new WHERE key IS NOT NULL
        ORDER BY key COLLATE "C", scope COLLATE "C"
        ON CONFLICT (key, scope) DO NOTHING
        RETURNING holder_id
    )"""
# The same for one key, given as parameters, at half the cost. POSTGRES_GOT_IT has one row then, and none where the key
# stays with its holder.
POSTGRES_GUARD_OF_ONE = """
    taken AS (
        UPDATE django_jobs_jobkey
        SET holder_id = %(id)s::uuid, created_at = statement_timestamp(),
            expires_at = statement_timestamp() + %(key_ttl)s::interval
        WHERE key = %(key)s AND scope = %(scope)s AND expires_at <= statement_timestamp()
        RETURNING id
    ),
    guard AS (
        INSERT INTO django_jobs_jobkey (key, scope, holder_id, created_at, expires_at)
        VALUES (
            %(key)s, %(scope)s, %(id)s::uuid, statement_timestamp(), statement_timestamp() + %(key_ttl)s::interval
        )
        ON CONFLICT (key, scope) DO NOTHING
        RETURNING id
    )"""
POSTGRES_GOT_IT = "(SELECT FROM taken UNION ALL SELECT FROM guard) AS got_it"


def acquire(wanted: Sequence[Wanted], *, using: str) -> None:
    """Insert these keys where they are free or expired, by a statement that never fails on a duplicate.

    Who holds a key is read afterwards by `holders`. The statement waits for an open transaction that writes one of the
    keys. On PostgreSQL it is one for each key: of several at once only `enqueue` has need, and has its own.
    """
    connection = connections[using]
    # In one order everywhere, so that two calls never wait for each other in a circle.
    ordered = sorted(wanted, key=lambda each: (each.key, each.scope))
    if connection.vendor == "postgresql":
        statements = [_postgres_statement(each) for each in ordered]
    else:
        statements = [_portable_statement(ordered, connection)]
    with connection.cursor() as cursor:
        for sql, params in statements:
            cursor.execute(sql, params)


def _postgres_statement(wanted: Wanted) -> tuple[str, Any]:
    parameters = {"id": wanted.holder_id, "scope": wanted.scope, "key": wanted.key, "key_ttl": wanted.ttl}
    return f"WITH {POSTGRES_GUARD_OF_ONE} SELECT FROM {POSTGRES_GOT_IT}", parameters


def _portable_statement(wanted: Sequence[Wanted], connection: BaseDatabaseWrapper) -> tuple[str, Any]:
    rows, params = [], []
    for each in wanted:
        now, now_params = clock_sql(connection)
        end, end_params = clock_after_sql(connection, each.ttl) if each.ttl else ("NULL", [])
        rows.append(f"(%s, %s, %s, {now}, {end})")
        params += [each.key, each.scope, _as_stored(each.holder_id, connection), *now_params, *end_params]
    key = connection.ops.quote_name("key")
    on_conflict, conflict_params = _on_conflict(connection)
    sql = (
        f"INSERT INTO django_jobs_jobkey ({key}, scope, holder_id, created_at, expires_at)"
        f" VALUES {', '.join(rows)} {on_conflict}"
    )
    return sql, params + conflict_params


def _on_conflict(connection: BaseDatabaseWrapper) -> tuple[str, list[Any]]:
    """What follows the VALUES: an expired row is taken over by the same statement, any other stays as it is."""
    now, params = clock_sql(connection)
    if connection.vendor == "mysql":
        # Assignments run from left to right, each seeing the one before: expires_at, which the others ask, comes last.
        expired = f"expires_at <= {now}"
        columns = ("holder_id", "created_at", "expires_at")
        assignments = ", ".join(f"{name} = IF({expired}, VALUES({name}), {name})" for name in columns)
        return f"ON DUPLICATE KEY UPDATE {assignments}", params * 3
    update = (
        'ON CONFLICT ("key", scope) DO UPDATE SET holder_id = excluded.holder_id, created_at = excluded.created_at,'
        f" expires_at = excluded.expires_at WHERE django_jobs_jobkey.expires_at <= {now}"
    )
    return update, params


def holders(pairs: Iterable[tuple[str, str]], *, using: str) -> dict[tuple[str, str], UUID]:
    """Who holds each (scope, key). A pair is missing where the holder has just gone."""
    pairs = set(pairs)
    if not pairs:
        return {}
    rows = JobKey.objects.using(using).filter(
        key__in={key for _, key in pairs}, scope__in={scope for scope, _ in pairs}
    )
    connection = connections[using]
    is_snapshot = connection.vendor == "mysql" and getattr(connection, "isolation_level", "") != "read committed"
    if is_snapshot and connection.in_atomic_block:
        # A plain SELECT would not see what was committed since the snapshot. Only here, as a locking one walks over
        # rows that others are inserting, and may meet them in a deadlock.
        rows = rows.select_for_update()
    found = {(scope, key): holder for scope, key, holder in rows.values_list("scope", "key", "holder_id")}
    return {pair: found[pair] for pair in pairs if pair in found}


def hold(pairs: Iterable[tuple[str, str]], *, using: str) -> None:
    """Let no job start that holds one of these (scope, key) before the caller's transaction has ended.

    It was told that such a job will do for it; so that job must see what it commits. Elsewhere than on PostgreSQL the
    refused INSERT has locked the row, or the database.
    """
    connection = connections[using]
    wanted = list(pairs)
    if not wanted or connection.vendor != "postgresql" or not connection.in_atomic_block:
        return
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT id FROM django_jobs_jobkey WHERE key = ANY(%s) AND scope = ANY(%s) FOR SHARE",
            [[key for _, key in wanted], [scope for scope, _ in wanted]],
        )


def start(holder_ids: Iterable[UUID], *, using: str) -> set[UUID]:
    """Free the keys of jobs that start. Those that may not yet: an open transaction holds their key, see `hold`."""
    rows = JobKey.objects.using(using).filter(holder_id__in=list(holder_ids))
    with write_transaction(using):
        ids = list(lock_rows(rows, using=using).values_list("id", flat=True))
        delete_rows(rows.filter(id__in=ids))
    return set(rows.values_list("holder_id", flat=True))


def busy(holder_ids: Iterable[UUID], *, using: str) -> set[UUID]:
    """Lock the keys of these jobs. Those whose key somebody else has locked."""
    rows = JobKey.objects.using(using).filter(holder_id__in=list(holder_ids))
    locked = set(lock_rows(rows, using=using).values_list("holder_id", flat=True))
    return set(rows.values_list("holder_id", flat=True)) - locked


def release(holder_ids: Iterable[UUID], *, using: str) -> None:
    """Free the keys these jobs hold."""
    delete_rows(JobKey.objects.using(using).filter(holder_id__in=list(holder_ids)))


def keep_for(holder_id: UUID, ttl: timedelta, *, using: str) -> None:
    """Let a job's key expire that long from now."""
    with forced_index("django_jobs_key_holder", using=using):
        JobKey.objects.using(using).filter(holder_id=holder_id).update(expires_at=Clock(ttl))


def settle(succeeded: Iterable[tuple[UUID, str, timedelta | None]], ended: Iterable[UUID], *, using: str) -> None:
    """What becomes of the keys of jobs that ended: (job, uniqueness, key_ttl) for successes, ids for the others."""
    freed = list(ended)
    for job_id, uniqueness, ttl in succeeded:
        if uniqueness != Uniqueness.EVER:
            freed.append(job_id)
        elif ttl is not None:
            keep_for(job_id, ttl, using=using)
    if freed:
        release(freed, using=using)


def expired() -> Q:
    """The keys anybody may take over."""
    return Q(expires_at__lte=Clock())


def _as_stored(value: UUID, connection: BaseDatabaseWrapper) -> Any:
    return JobKey._meta.get_field("holder_id").get_db_prep_value(value, connection)

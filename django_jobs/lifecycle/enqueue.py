"""-> Job(ready | scheduled): write jobs in the caller's transaction, each key through the guard."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple
from uuid import UUID

from django.db import connections, transaction
from django.db.models import Case, DateTimeField, Value, When
from django.db.models.lookups import GreaterThan

from django_jobs import logs
from django_jobs.database import Clock, StoredJSON, text_array
from django_jobs.driver import execute_prepared
from django_jobs.lifecycle import guard
from django_jobs.lifecycle.wake import wake_on_commit
from django_jobs.models import Job
from django_jobs.statuses import JobStatus, Uniqueness

CHUNK = 1000  # jobs per INSERT
ROUNDS = 10  # how often a key whose holder vanished between two statements is tried again


class NewJob(NamedTuple):
    """A job as it will be written. `payload` (the codec's) and `options` are JSON text; `scope` is that of the key."""

    id: UUID
    payload: str
    task_name: str
    queue_name: str
    priority: int
    options: str | None = None
    delay: timedelta | None = None  # or run_at; neither is now
    run_at: datetime | None = None
    key: str | None = None
    scope: str = ""
    uniqueness: str = ""
    enqueued_at: datetime | None = None  # None is now; a replay keeps the first one


class Enqueued(NamedTuple):
    """The id of the job that stands for the request, and whether this call wrote it."""

    id: UUID
    created: bool


def enqueue(jobs: Sequence[NewJob], *, using: str) -> list[Enqueued]:
    """Write these jobs, one INSERT per chunk, and answer in their order.

    A key that is held is no error: its holder is the answer. Workers are woken after the commit.
    """
    if any(job.key is not None for job in jobs):
        answers = _enqueue_keyed(jobs, using=using)
        queue_names = {job.queue_name for job, answer in zip(jobs, answers, strict=True) if answer.created}
    else:
        answers = _enqueue_plain(jobs, using=using)
        queue_names = {job.queue_name for job in jobs}
    _announce(queue_names, using=using)
    return answers


def enqueue_one(job: NewJob, *, using: str) -> Enqueued:
    """Do what `enqueue` does, in half the steps: most calls write one job without a key."""
    connection = connections[using]
    if job.key is not None or connection.vendor != "postgresql":
        return enqueue([job], using=using)[0]
    shape, parameters = _one(job)
    execute_prepared(connection, _statement(shape), parameters)
    _announce((job.queue_name,), using=using)
    return Enqueued(job.id, True)


def enqueue_alike(pattern: NewJob, new_ids: Sequence[UUID], payloads: Sequence[str], *, using: str) -> None:
    """Write jobs that differ from the pattern in id and payload only; it has no key."""
    if connections[using].vendor != "postgresql":
        pairs = zip(new_ids, payloads, strict=True)
        enqueue([pattern._replace(id=new_id, payload=payload) for new_id, payload in pairs], using=using)
        return
    with nullcontext() if len(new_ids) <= CHUNK else _one_transaction(using):
        for start in range(0, len(new_ids), CHUNK):
            end = start + CHUNK
            _insert_alike(pattern, new_ids[start:end], payloads[start:end], using=using)
    _announce((pattern.queue_name,), using=using)


def _announce(queue_names: Collection[str], *, using: str) -> None:
    if queue_names:
        wake_on_commit(queue_names, using=using)
        if immediate is not None:
            immediate(using)


def _enqueue_plain(jobs: Sequence[NewJob], *, using: str) -> list[Enqueued]:
    """Without a key nothing can be refused, and one INSERT needs no transaction around it."""
    insert = _insert_postgres if connections[using].vendor == "postgresql" else _insert_portable
    with nullcontext() if len(jobs) <= CHUNK else _one_transaction(using):
        for start in range(0, len(jobs), CHUNK):
            insert(jobs[start : start + CHUNK], using=using)
    return [Enqueued(job.id, True) for job in jobs]


def _enqueue_keyed(jobs: Sequence[NewJob], *, using: str) -> list[Enqueued]:
    answers: dict[UUID, Enqueued] = {}
    # Each statement sorts its own keys; over several of them, two calls must not wait for each other in a circle
    # either.
    ordered = jobs if len(jobs) <= CHUNK else sorted(jobs, key=lambda job: (job.key or "", job.scope))
    with nullcontext() if len(jobs) == 1 else _one_transaction(using):
        for start in range(0, len(jobs), CHUNK):
            answers.update(_enqueue_chunk(ordered[start : start + CHUNK], using=using))
    return [answers[job.id] for job in jobs]


def _one_transaction(using: str) -> AbstractContextManager[object]:
    """The caller's transaction, or one of our own."""
    return nullcontext() if connections[using].in_atomic_block else transaction.atomic(using=using)


# Set by the app when it is ready: runs what is ready in the calling thread if settings say so (a test mode).
immediate: Callable[[str], object] | None = None


def _enqueue_chunk(jobs: Sequence[NewJob], *, using: str) -> dict[UUID, Enqueued]:
    insert = _insert_postgres if connections[using].vendor == "postgresql" else _insert_portable
    first, twins = _split_twins(jobs)
    answers: dict[UUID, Enqueued] = {}
    open_jobs = first
    for _ in range(ROUNDS):
        refused = insert(open_jobs, using=using)
        answers.update((job.id, Enqueued(job.id, True)) for job in open_jobs if job.id not in refused)
        open_jobs = [job for job in open_jobs if job.id in refused]
        if not open_jobs:
            break
        debounced = [job for job in open_jobs if job.uniqueness == Uniqueness.QUEUED]
        guard.hold(((job.scope, job.key or "") for job in debounced), using=using)
        held = guard.holders(((job.scope, job.key or "") for job in open_jobs), using=using)
        for job in open_jobs:
            if holder := held.get((job.scope, job.key or "")):
                answers[job.id] = Enqueued(holder, False)
                logs.key_taken(job.task_name, job.key or "", holder=holder)
        open_jobs = [job for job in open_jobs if job.id not in answers]
        if not open_jobs:
            break
    else:
        names = ", ".join(sorted({f"{job.key!r} of task {job.task_name!r}" for job in open_jobs}))
        raise RuntimeError(f"The holder of key {names} came and went {ROUNDS} times in one call. Call enqueue again.")
    answers.update((twin.id, Enqueued(answers[of].id, False)) for twin, of in twins)
    return answers


def _split_twins(jobs: Sequence[NewJob]) -> tuple[list[NewJob], list[tuple[NewJob, UUID]]]:
    """The first job of each key, and those that repeat one of them."""
    seen: dict[tuple[str, str], UUID] = {}
    first, twins = [], []
    for job in jobs:
        if job.key is not None and (of := seen.setdefault((job.scope, job.key), job.id)) != job.id:
            twins.append((job, of))
        else:
            first.append(job)
    return first, twins


# How a statement is given the values of one field: not at all, once for all its jobs, or as an array.
_NULL, _ONCE, _EACH = "null", "once", "each"


def _insert_postgres(jobs: Sequence[NewJob], *, using: str) -> set[UUID]:
    """Insert keys and jobs by one statement. The ids of those it did not write, because their key is held."""
    shape, parameters = _one(jobs[0]) if len(jobs) == 1 else _many(jobs)
    if parameters.get("key") is None:
        execute_prepared(connections[using], _statement(shape), parameters)
        return set()
    # Its plan reads the keys, and is not kept: they may be many more soon.
    with connections[using].cursor() as cursor:
        cursor.execute(_statement(shape), parameters)
        if cursor.rowcount == len(jobs):
            return set()
        written = {row[0] for row in cursor.fetchall()} if len(jobs) > 1 else set()
    return {job.id for job in jobs} - written


def _insert_alike(pattern: NewJob, new_ids: Sequence[UUID], payloads: Sequence[str], *, using: str) -> None:
    shape, parameters = _one(pattern)
    given = dict(zip(_TYPES, shape, strict=True)) | {"id": _EACH, "payload": _EACH}
    parameters |= {"id": _as_array("id", new_ids), "payload": _as_array("payload", payloads)}
    execute_prepared(connections[using], _statement(tuple(given.values())), parameters)


def _one(job: NewJob) -> tuple[tuple[str, ...], dict[str, Any]]:
    """How the statement for one job is given its fields, and its parameters."""
    shape = tuple([_NULL if value is None else _ONCE for value in job])
    parameters = job._asdict()
    # As text: a driver adapts that in a fraction of the time.
    parameters["id"], parameters["priority"] = job.id.hex, str(job.priority)
    parameters["key_ttl"] = None  # a key's time to live counts from the job's success
    return shape, parameters


def _many(jobs: Sequence[NewJob]) -> tuple[tuple[str, ...], dict[str, Any]]:
    columns = dict(zip(NewJob._fields, zip(*jobs, strict=True), strict=True))
    shape = tuple(map(_given, columns.values()))
    parameters = {
        name: values[0] if given == _ONCE else _as_array(name, values)
        for (name, values), given in zip(columns.items(), shape, strict=True)
        if given != _NULL
    }
    return shape, parameters


def _given(values: tuple[Any, ...]) -> str:
    first = values[0]
    # Two datetimes of one zone that differ in their fold are equal, and not the same moment.
    if isinstance(first, datetime) or values.count(first) < len(values):
        return _EACH
    return _NULL if first is None else _ONCE


_TYPES = {
    "id": "uuid",
    "payload": "jsonb",
    "task_name": "text",
    "queue_name": "text",
    "priority": "smallint",
    "options": "jsonb",
    "delay": "interval",
    "run_at": "timestamptz",
    "key": "text",
    "scope": "text",
    "uniqueness": "text",
    "enqueued_at": "timestamptz",
}


def _as_array(name: str, values: Sequence[Any]) -> Any:
    """These values as a parameter: text where that is right, for a driver takes long to adapt them one by one."""
    match _TYPES[name]:
        case "uuid":
            return "{" + ",".join([each.hex for each in values]) + "}"
        case "jsonb":
            return _lines(values)
        case "text":
            return text_array(values)
    return list(values)


def _lines(values: Sequence[str | None]) -> str:
    # JSON has no line break but between its parts, where a space will do; and no text is not JSON, so it can be NULL.
    return "\n".join(["" if each is None else each.replace("\n", " ") for each in values])


@lru_cache(maxsize=256)
def _statement(shape: tuple[str, ...]) -> str:
    """The INSERT for values that are given in this way.

    It names only what differs: one job without a key is left with a plain INSERT … VALUES, which costs a third of one
    that reads arrays; and a thousand calls of one task with two arrays instead of twelve.
    """
    given = dict(zip(_TYPES, shape, strict=True))
    arrays = [name for name in _TYPES if given[name] == _EACH]
    columns = _columns(given)
    insert, values = f"INSERT INTO django_jobs_job ({', '.join(columns)})", ", ".join(columns.values())
    rows = f"unnest({', '.join(map(_array, arrays))}) AS n({', '.join(arrays)})"
    if given["key"] == _NULL:
        return f"{insert} SELECT {values} FROM {rows}" if arrays else f"{insert} VALUES ({values})"
    if not arrays:
        return f"WITH {guard.POSTGRES_GUARD_OF_ONE} {insert} SELECT {values} FROM {guard.POSTGRES_GOT_IT}"
    key, scope = _value("key", given), _value("scope", given)
    return f"""
        WITH n AS MATERIALIZED (SELECT * FROM {rows}),
        new AS (SELECT n.id, {key} AS key, {scope} AS scope, NULL::interval AS key_ttl FROM n),
        {guard.POSTGRES_GUARD} {insert} SELECT {values} FROM n
        WHERE {key} IS NULL OR n.id IN (SELECT holder_id FROM taken UNION ALL SELECT holder_id FROM guard)
        RETURNING id"""


def _columns(given: dict[str, str]) -> dict[str, str]:
    """The columns of a job, and what goes into each; without those that stay NULL."""
    as_they_are = ("id", "payload", "task_name", "queue_name", "priority", "options", "key", "uniqueness")
    columns = {name: _value(name, given) for name in as_they_are if given[name] != _NULL}
    # Text is what a bare parameter is taken for; each cast that can go saves the planner some microseconds.
    columns |= {name: f"%({name})s" for name in columns if given[name] == _ONCE and _TYPES[name] == "text"}
    now = "statement_timestamp()"
    columns["enqueued_at"] = columns["run_at"] = now
    columns["status"] = "'ready'"
    if given["enqueued_at"] != _NULL:
        columns["enqueued_at"] = f"coalesce({_value('enqueued_at', given)}, {now})"
    if given["run_at"] != _NULL or given["delay"] != _NULL:
        run_at = f"coalesce({_value('run_at', given)}, {now} + coalesce({_value('delay', given)}, '0'))"
        columns["run_at"] = run_at
        columns["status"] = f"CASE WHEN {run_at} > {now} THEN 'scheduled' ELSE 'ready' END"
    return columns | dict.fromkeys(("claim_number", "attempt", "failures", "crashes", "interruptions"), "0")


def _value(name: str, given: dict[str, str]) -> str:
    if given[name] == _EACH:
        return f"n.{name}"
    if given[name] == _NULL:
        return f"NULL::{_TYPES[name]}"
    return f"%({name})s::{_TYPES[name]}"


def _array(name: str) -> str:
    if _TYPES[name] == "jsonb":
        return f"string_to_array(%({name})s, chr(10), '')::jsonb[]"
    return f"%({name})s::{_TYPES[name]}[]"


def _insert_portable(jobs: Sequence[NewJob], *, using: str) -> set[UUID]:
    """Insert keys, then the jobs whose key is theirs, in one transaction. The ids of those not written."""
    with transaction.atomic(using=using, savepoint=False):
        wanted = [guard.Wanted(job.scope, job.key, job.id) for job in jobs if job.key is not None]
        if wanted:
            guard.acquire(wanted, using=using)
        held = guard.holders(((each.scope, each.key) for each in wanted), using=using)
        free = [job for job in jobs if job.key is None or held.get((job.scope, job.key)) == job.id]
        Job.objects.using(using).bulk_create([_as_row(job) for job in free])
    return {job.id for job in jobs} - {job.id for job in free}


def _as_row(job: NewJob) -> Job:
    if job.run_at is not None:
        run_at: Any = job.run_at
        status: Any = Case(
            When(condition=_is_later(job.run_at), then=Value(JobStatus.SCHEDULED.value)),
            default=Value(JobStatus.READY.value),
        )
    else:
        run_at = Clock(job.delay)
        status = JobStatus.SCHEDULED if job.delay else JobStatus.READY
    return Job(
        id=job.id,
        task_name=job.task_name,
        queue_name=job.queue_name,
        priority=job.priority,
        payload=StoredJSON(job.payload),
        options=None if job.options is None else StoredJSON(job.options),
        key=job.key,
        uniqueness=job.uniqueness,
        enqueued_at=job.enqueued_at or Clock(),
        run_at=run_at,
        status=status,
    )


def _is_later(moment: datetime) -> Any:
    return GreaterThan(Value(moment, output_field=DateTimeField()), Clock())

"""-> Job(ready | scheduled): write jobs in the caller's transaction, each key through the guard."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from django.db import connections, transaction
from django.db.models import Case, DateTimeField, Value, When
from django.db.models.lookups import GreaterThan

from django_jobs import logs
from django_jobs.database import Clock, StoredJSON
from django_jobs.lifecycle import guard
from django_jobs.lifecycle.wake import wake_on_commit
from django_jobs.models import Job
from django_jobs.statuses import JobStatus, Uniqueness

CHUNK = 1000  # jobs per INSERT
ROUNDS = 10  # how often a key whose holder vanished between two statements is tried again


class NewJob(NamedTuple):
    """A job as it will be written. `payload` (the codec's) and `options` are JSON text; `scope` is that of the key."""

    id: UUID
    task_name: str
    queue_name: str
    priority: int
    payload: str
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
    answers: dict[UUID, Enqueued] = {}
    # Each statement sorts its own keys; over several of them, two calls must not wait for each other in a circle
    # either.
    ordered = jobs if len(jobs) <= CHUNK else sorted(jobs, key=lambda job: (job.key or "", job.scope))
    with nullcontext() if len(jobs) == 1 else _one_transaction(using):
        for start in range(0, len(jobs), CHUNK):
            answers.update(_enqueue_chunk(ordered[start : start + CHUNK], using=using))
    created = [job for job in jobs if answers[job.id].created]
    if created:
        wake_on_commit((job.queue_name for job in created), using=using)
        if immediate is not None:
            immediate(using)
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
        written = insert(open_jobs, using=using)
        answers.update((job.id, Enqueued(job.id, True)) for job in open_jobs if job.id in written)
        open_jobs = [job for job in open_jobs if job.id not in written]
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


_COLUMNS = "id, task_name, queue_name, priority, payload, options, key, uniqueness, enqueued_at, run_at, status"
_NEW = """
    new AS (
        SELECT id, task_name, queue_name, priority, payload::jsonb AS payload, options::jsonb AS options, key,
            uniqueness, scope, NULL::interval AS key_ttl, coalesce(enqueued_at, statement_timestamp()) AS enqueued_at,
            coalesce(run_at, statement_timestamp() + coalesce(delay, '0')) AS run_at
        FROM unnest(
            %s::uuid[], %s::text[], %s::text[], %s::smallint[], %s::text[], %s::text[], %s::text[], %s::text[],
            %s::text[], %s::interval[], %s::timestamptz[], %s::timestamptz[]
        ) AS n(
            id, task_name, queue_name, priority, payload, options, key, uniqueness, scope, delay, run_at, enqueued_at
        )
    )"""
_INSERT = f"""
    INSERT INTO django_jobs_job ({_COLUMNS}, claim_number, attempt, failures, crashes, interruptions)
    SELECT id, task_name, queue_name, priority, payload, options, key, uniqueness, enqueued_at, run_at,
        CASE WHEN run_at > statement_timestamp() THEN 'scheduled' ELSE 'ready' END, 0, 0, 0, 0, 0
    FROM new"""
_PLAIN = f"WITH {_NEW} {_INSERT} RETURNING id"
_KEYED = f"""WITH {_NEW}, {guard.POSTGRES_GUARD} {_INSERT}
    WHERE key IS NULL OR id IN (SELECT holder_id FROM taken UNION ALL SELECT holder_id FROM guard) RETURNING id"""


def _insert_postgres(jobs: Sequence[NewJob], *, using: str) -> set[UUID]:
    """Insert keys and jobs by one statement. The ids written: those whose key was free."""
    columns: list[Any] = [
        [job.id for job in jobs],
        [job.task_name for job in jobs],
        [job.queue_name for job in jobs],
        [job.priority for job in jobs],
        [job.payload for job in jobs],
        [job.options for job in jobs],
        [job.key for job in jobs],
        [job.uniqueness for job in jobs],
        [job.scope for job in jobs],
        [job.delay for job in jobs],
        [job.run_at for job in jobs],
        [job.enqueued_at for job in jobs],
    ]
    keyed = any(job.key is not None for job in jobs)
    with connections[using].cursor() as cursor:
        cursor.execute(_KEYED if keyed else _PLAIN, columns)
        return {row[0] for row in cursor.fetchall()}


def _insert_portable(jobs: Sequence[NewJob], *, using: str) -> set[UUID]:
    """Insert keys, then the jobs whose key is theirs, in one transaction."""
    with transaction.atomic(using=using, savepoint=False):
        wanted = [guard.Wanted(job.scope, job.key, job.id) for job in jobs if job.key is not None]
        if wanted:
            guard.acquire(wanted, using=using)
        held = guard.holders(((each.scope, each.key) for each in wanted), using=using)
        free = [job for job in jobs if job.key is None or held.get((job.scope, job.key)) == job.id]
        Job.objects.using(using).bulk_create([_as_row(job) for job in free])
    return {job.id for job in free}


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

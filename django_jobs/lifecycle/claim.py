"""Job(ready) -> Job(running, claim_number + 1, worker): one short transaction."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from django.db import connections, transaction
from django.db.models import F

from django_jobs import logs
from django_jobs.database import Clock, read_clock, write_transaction
from django_jobs.lifecycle import guard
from django_jobs.lifecycle.release import fence
from django_jobs.models import Job
from django_jobs.runs import ClaimedRun, WorkerIdentity
from django_jobs.statuses import JobStatus, Uniqueness

PROMOTE_BATCH = 1000


def claim(
    worker: WorkerIdentity, queue_names: Sequence[str] | None, limit: int, known: frozenset[str], *, using: str
) -> list[ClaimedRun]:
    """Claim up to `limit` due jobs for a worker; with `queue_names` None of any queue.

    Within a queue by priority, then run_at, then id; queues that have work are visited in turn. A job whose task is not in
    `known` is parked as `waiting` on the way, uncharged, and claimed from there by a worker that knows it.
    """
    runs: list[ClaimedRun] = []
    for queue_name in _queues_with_work(queue_names, using=using):
        while len(runs) < limit:
            claimed = _claim_queue(worker, queue_name, limit - len(runs), using=using)
            runs += _park_unknown(worker, claimed, known, using=using)
            if len(runs) == limit or not claimed:
                break
    if len(runs) < limit:
        runs += _claim_waiting(worker, queue_names, limit - len(runs), known, using=using)
    started = [run.job_id for run in runs if run.uniqueness == Uniqueness.QUEUED]
    if started:
        guard.release(started, using=using)
    return runs


def promote(*, using: str) -> int:
    """Make ready what was scheduled and is due, up to `PROMOTE_BATCH` jobs. How many."""
    due = Job.objects.using(using).filter(status=JobStatus.SCHEDULED, run_at__lte=Clock()).order_by("run_at", "id")
    if not due.exists():  # an idle worker must not ask SQLite for its only write lock
        return 0
    with write_transaction(using):
        ids = list(_locking(due, using).values_list("id", flat=True)[:PROMOTE_BATCH])
        return Job.objects.using(using).filter(id__in=ids, status=JobStatus.SCHEDULED).update(status=JobStatus.READY)


def seconds_to_next(*, using: str) -> float | None:
    """Seconds until the next scheduled job is due, 0 or less if one is; None if there is none."""
    scheduled = Job.objects.using(using).filter(status=JobStatus.SCHEDULED).order_by("run_at")
    row = scheduled.annotate(now=Clock()).values_list("run_at", "now").first()
    return None if row is None else (row[0] - row[1]).total_seconds()


# A loose index scan: one probe of the index of ready jobs per queue, however many jobs there are.
_QUEUES = """
    WITH RECURSIVE queues(name) AS (
        SELECT min(queue_name) FROM django_jobs_job WHERE status = 'ready'
        UNION ALL
        SELECT (SELECT min(job.queue_name) FROM django_jobs_job job WHERE job.status = 'ready' AND job.queue_name > queues.name)
        FROM queues WHERE queues.name IS NOT NULL
    )
    SELECT name FROM queues WHERE name IS NOT NULL"""


def _queues_with_work(queue_names: Sequence[str] | None, *, using: str) -> list[str]:
    if queue_names is not None and len(queue_names) == 1:
        return list(queue_names)
    with connections[using].cursor() as cursor:
        cursor.execute(_QUEUES)
        found = [row[0] for row in cursor.fetchall()]
    return found if queue_names is None else [name for name in queue_names if name in found]


def _claim_queue(worker: WorkerIdentity, queue_name: str, limit: int, *, using: str) -> list[ClaimedRun]:
    if connections[using].vendor == "postgresql":
        return _claim_postgres(worker, queue_name, limit, using=using)
    return _claim_rows(worker, _ready(queue_name, using), limit, using=using)


def _ready(queue_name: str, using: str) -> Any:
    ready = Job.objects.using(using).filter(status=JobStatus.READY, queue_name=queue_name)
    return ready.order_by("-priority", "run_at", "id")


def _locking(rows: Any, using: str) -> Any:
    """Lock what nobody else has locked, where the database can; elsewhere the transaction already holds the only write lock."""
    features = connections[using].features
    if not features.has_select_for_update_skip_locked:
        return rows
    return rows.select_for_update(skip_locked=True, no_key=features.has_select_for_no_key_update)


_FIELDS = tuple(name for name in ClaimedRun._fields if name != "job_id")
_QUEUE = "the queue's name stands here"
_compiled: dict[tuple[str, int], tuple[str, tuple[Any, ...]]] = {}


def _claim_postgres(worker: WorkerIdentity, queue_name: str, limit: int, *, using: str) -> list[ClaimedRun]:
    """Pick, mark and read by one statement, whose inner SELECT Django compiles once."""
    picked, parameters = _pick(limit, using)
    columns = ", ".join(f"job.{name}" for name in ("id", *_FIELDS))
    sql = f"""
        WITH picked AS MATERIALIZED ({picked}), claimed AS (
            UPDATE django_jobs_job AS job
            SET status = 'running', claim_number = claim_number + 1, attempt = attempt + 1, worker_id = %s,
                claimed_at = statement_timestamp(), waiting_since = NULL
            FROM picked WHERE job.id = picked.id
            RETURNING {columns}
        )
        SELECT * FROM claimed ORDER BY priority DESC, run_at, id"""
    with connections[using].cursor() as cursor:
        cursor.execute(sql, [*(queue_name if each == _QUEUE else each for each in parameters), worker.id])
        rows = cursor.fetchall()
    return [
        ClaimedRun(*row[:5], json.loads(row[5]), *row[6:12], row[12] and json.loads(row[12]), *row[13:]) for row in rows
    ]


def _pick(limit: int, using: str) -> tuple[str, tuple[Any, ...]]:
    """The SELECT of the ids to claim, as SQL and parameters with `_QUEUE` for the queue's name."""
    found = _compiled.get((using, limit))
    if found is None:
        with transaction.atomic(using=using):  # Django compiles FOR UPDATE only inside a transaction
            rows = _locking(_ready(_QUEUE, using), using).values("id")[:limit]
            found = _compiled[using, limit] = rows.query.get_compiler(using=using).as_sql()
    return found


def _claim_rows(worker: WorkerIdentity, rows: Any, limit: int, *, using: str) -> list[ClaimedRun]:
    """The same by three plain statements, for the other databases and the rarer ways in."""
    with write_transaction(using):
        jobs = list(_locking(rows, using)[:limit])
        if not jobs:
            return []
        now = read_clock(using)
        Job.objects.using(using).filter(id__in=[job.id for job in jobs]).update(
            status=JobStatus.RUNNING,
            claim_number=F("claim_number") + 1,
            attempt=F("attempt") + 1,
            worker_id=worker.id,
            claimed_at=now,
            waiting_since=None,
        )
    for job in jobs:
        job.claim_number, job.attempt, job.claimed_at = job.claim_number + 1, job.attempt + 1, now
    return [ClaimedRun(job.id, *(getattr(job, name) for name in _FIELDS)) for job in jobs]


def _claim_waiting(
    worker: WorkerIdentity, queue_names: Sequence[str] | None, limit: int, known: frozenset[str], *, using: str
) -> list[ClaimedRun]:
    rows = Job.objects.using(using).filter(status=JobStatus.WAITING)
    if not rows.exists():
        return []
    rows = rows.filter(task_name__in=known)
    if queue_names is not None:
        rows = rows.filter(queue_name__in=queue_names)
    return _claim_rows(worker, rows.order_by("id"), limit, using=using)


def _park_unknown(
    worker: WorkerIdentity, claimed: list[ClaimedRun], known: frozenset[str], *, using: str
) -> list[ClaimedRun]:
    """Put what this worker does not know aside, as if it had never been claimed. The rest."""
    unknown = [run for run in claimed if run.task_name not in known]
    if not unknown:
        return claimed
    Job.objects.using(using).filter(fence((run[:2] for run in unknown), worker)).update(
        status=JobStatus.WAITING, worker_id=None, attempt=F("attempt") - 1, waiting_since=Clock()
    )
    for task_name, count in Counter(run.task_name for run in unknown).items():
        logs.jobs_parked(count, task_name=task_name)
    return [run for run in claimed if run.task_name in known]

"""Job(ready) -> Job(running, claim_number + 1, worker): one short transaction."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from functools import cache
from typing import Any, NamedTuple
from uuid import UUID

from django.db import connections
from django.db.models import F, Q, QuerySet
from django.db.models.functions import Least
from django.utils.timezone import get_default_timezone

from django_jobs import logs
from django_jobs.codec import JSONText
from django_jobs.database import (
    Clock,
    change_free,
    forced_index,
    lock_rows,
    read_clock,
    seconds_until_sql,
    write_transaction,
)
from django_jobs.driver import fetch_prepared
from django_jobs.lifecycle import guard
from django_jobs.lifecycle.release import fence
from django_jobs.lifecycle.wake import wake_on_commit
from django_jobs.models import Job
from django_jobs.runs import ClaimedRun, WorkerIdentity
from django_jobs.statuses import JobStatus, Uniqueness

MOST = 2**31 - 1  # what the column of attempts holds: a row at its end must not stop the claim of the others
MOST_AT_ONCE = 1000  # jobs that one statement claims
PROMOTE_BATCH = 1000
PARK_BATCH = 1000
FIRST_MOMENT, LAST_MOMENT = datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)
MOMENT = timedelta(seconds=1)  # until a job is looked at again whose key an open transaction holds


def claim(
    worker: WorkerIdentity,
    queue_names: Sequence[str] | None,
    limit: int,
    known: frozenset[str],
    *,
    using: str,
    rand: Callable[[], float] = random.random,
    found: Found | None = None,
) -> list[ClaimedRun]:
    """Claim up to `limit` due jobs for a worker; with `queue_names` None of any queue. `found` is a look just taken.

    Within a queue by priority, then run_at, then id. A job whose task is not in `known` is parked as `waiting` on the
    way, uncharged, and made ready again by a worker that knows it.
    """
    found = found or look(queue_names, using=using)
    runs: list[ClaimedRun] = []
    for queue_name in ready_queues(found, queue_names, limit, known, using=using, rand=rand):
        if len(runs) < limit:
            runs += claim_queue(worker, queue_name, limit - len(runs), known, using=using)
    return runs


def ready_queues(
    found: Found,
    queue_names: Sequence[str] | None,
    limit: int,
    known: frozenset[str],
    *,
    using: str,
    rand: Callable[[], float] = random.random,
) -> list[str]:
    """The queues to claim up to `limit` jobs from, after what waited for these tasks was made ready.

    Which one comes first is drawn anew each time, so that a full one starves no other.
    """
    if known.intersection(found.waiting):
        _bring_back(known.intersection(found.waiting), queue_names, limit, using=using)
        found = look(queue_names, using=using)
    start = int(rand() * len(found.ready))
    return [*found.ready[start:], *found.ready[:start]]


def promote(*, using: str) -> int:
    """Make ready what was scheduled and is due, up to `PROMOTE_BATCH` jobs. How many."""
    due = Job.objects.using(using).filter(status=JobStatus.SCHEDULED, run_at__lte=Clock()).order_by("run_at", "id")
    if not due.exists():  # an idle worker must not ask SQLite for its only write lock
        return 0
    return _make_ready(due, PROMOTE_BATCH, using=using)


# A loose index scan: one probe of the index per name, however many jobs there are. Not min(), which PostgreSQL takes
# from all rows where its statistics say that there is only one.
_NAMES = """
    {names}(name) AS (
        SELECT (SELECT {column} FROM django_jobs_job WHERE status = '{status}'{where} ORDER BY {column} LIMIT 1)
        UNION ALL
        SELECT (
            SELECT job.{column} FROM django_jobs_job job
            WHERE job.status = '{status}'{until} AND job.{column} > seen.name ORDER BY job.{column} LIMIT 1
        ) FROM {names} AS seen WHERE seen.name IS NOT NULL
    )"""


def _names(names: str, column: str, status: str, *, after: str = "", until: str = "") -> str:
    """A step called `names`: the values of a column, all of them or those after one, or those before one."""
    return _NAMES.format(
        names=names,
        column=column,
        status=status,
        where=f" AND {column} {after or until}" if after or until else "",
        until=f" AND job.{column} {until}" if until else "",
    )


_WAITING = _names("tasks", "task_name", "waiting")
_LOOK = """
    WITH RECURSIVE {queues}, {waiting}, due(seconds) AS (
        SELECT {seconds} FROM django_jobs_job WHERE status = 'scheduled' ORDER BY run_at LIMIT 1
    )
    SELECT 'due', '', seconds FROM due
    UNION ALL SELECT 'ready', name, NULL FROM queues WHERE name IS NOT NULL
    UNION ALL SELECT 'waiting', name, NULL FROM tasks WHERE name IS NOT NULL"""
_ALL_QUEUES = _names("queues", "queue_name", "ready")
_OTHER_QUEUES = f"""{_names("lower", "queue_name", "ready", until="< %s")},
    {_names("higher", "queue_name", "ready", after="> %s")},
    queues(name) AS (SELECT name FROM lower UNION ALL SELECT name FROM higher)"""


class Found(NamedTuple):
    """What a look has found."""

    ready: list[str]  # the queues with something ready, out of those asked for
    waiting: list[str]  # the tasks of which something is parked
    due_in: float | None  # seconds until the next scheduled job is due, 0 or less if one is; None if there is none


def look(queue_names: Sequence[str] | None, *, using: str, full: str | None = None) -> Found:
    """See what there is to do, by one statement: it is all that an idle worker asks.

    The queue named `full` counts as ready unseen: to find its first job would cost as much as to claim it, where
    somebody's old snapshot keeps alive the index entries of those that went before.
    """
    queues, bounds = (_ALL_QUEUES, []) if full is None else (_OTHER_QUEUES, 3 * [full])
    seconds, params = seconds_until_sql(connections[using], "run_at")
    sql = _LOOK.format(queues=queues, waiting=_WAITING, seconds=seconds)
    found = fetch_prepared(sql, [*bounds, *params], using=using)
    ready = {name for kind, name, _ in found if kind == "ready"} | ({full} if full is not None else set())
    waiting = [name for kind, name, _ in found if kind == "waiting"]
    due_in = [float(seconds) for kind, _, seconds in found if kind == "due"]
    asked_for = sorted(ready) if queue_names is None else queue_names
    return Found([name for name in asked_for if name in ready], waiting, due_in[0] if due_in else None)


def _bring_back(task_names: Iterable[str], queue_names: Sequence[str] | None, limit: int, *, using: str) -> None:
    """Make ready again what waits for a worker that knows these tasks, as much as this one may claim now."""
    for task_name in task_names:
        waiting = Job.objects.using(using).filter(status=JobStatus.WAITING, task_name=task_name)
        if queue_names is not None:
            waiting = waiting.filter(queue_name__in=queue_names)
        _make_ready(waiting.order_by("waiting_since", "id"), limit, using=using)


def _make_ready(rows: QuerySet[Job], limit: int, *, using: str) -> int:
    return change_free(rows, limit, using=using, status=JobStatus.READY, waiting_since=None)


def claim_queue(
    worker: WorkerIdentity,
    queue_name: str,
    limit: int,
    known: frozenset[str],
    *,
    using: str,
    after: ClaimedRun | None = None,
) -> list[ClaimedRun]:
    """Claim up to `limit` ready jobs of one queue; `after` is explained at `turn`, and is of use on PostgreSQL only."""
    claim_rows = _claim_postgres if connections[using].vendor == "postgresql" else _claim_portable
    runs: list[ClaimedRun] = []
    while len(runs) < limit:
        wanted = min(limit - len(runs), MOST_AT_ONCE)
        claimed = claim_rows(worker, queue_name, wanted, after, using=using)
        admitted = admit(claimed, worker, queue_name, known, using=using)
        runs += admitted
        if len(admitted) == len(claimed) < wanted:
            break
    return runs


def admit(
    claimed: list[ClaimedRun], worker: WorkerIdentity, queue_name: str, known: frozenset[str], *, using: str
) -> list[ClaimedRun]:
    """Free the keys that end with the start of their job, and park what this worker does not know. The rest."""
    unknown = [run for run in claimed if run.task_name not in known]
    if unknown:
        _park(unknown, worker, queue_name, known, using=using)
        claimed = [run for run in claimed if run.task_name in known]
    started = [run.job_id for run in claimed if run.uniqueness == Uniqueness.QUEUED]
    if started and (held := guard.start(started, using=using)):
        hold_back([run for run in claimed if run.job_id in held], worker, using=using)
        claimed = [run for run in claimed if run.job_id not in held]
    return claimed


_FIELDS = ("id", *(name for name in ClaimedRun._fields if name != "job_id"))
_PLAIN = ClaimedRun._fields.index("payload")  # fields before it are taken as they come
# Seconds since 1970: a driver takes twelve times as long to make a datetime. A float holds them to half a microsecond
# until the year 2106.
_TIMES = ("enqueued_at", "run_at", "claimed_at")
_RETURNING = ", ".join(
    f"date_part('epoch', job.{name}) AS {name}" if name in _TIMES else f"job.{name}" for name in _FIELDS
)
# Two steps of one PostgreSQL statement: pick and mark. Parameters: the queue, those of `beyond`, the limit, the worker.
# `behind` is empty, or has it claim behind a gate.
# The status is part of the text: a prepared statement's generic plan could not use an index over one status. A locked
# row stays where it is, so that the second step finds it by its place (ctid), whatever the statistics say; one that was
# changed since the statement began is not found there, and is left to the next claim. Rows are locked one by one as the
# outer limit asks for them; the inner one lets a plan that was made for any limit know that it will be few.
CLAIM = f"""
    picked AS MATERIALIZED (
        SELECT place FROM (
            SELECT ctid AS place FROM django_jobs_job WHERE status = 'ready' AND queue_name = %s{{beyond}}{{behind}}
            ORDER BY priority DESC, run_at, id LIMIT {MOST_AT_ONCE} FOR NO KEY UPDATE SKIP LOCKED
        ) AS first LIMIT %s
    ), claimed AS (
        UPDATE django_jobs_job AS job
        SET status = 'running', claim_number = claim_number + 1, attempt = least(attempt, {MOST - 1}) + 1,
            worker_id = %s, claimed_at = statement_timestamp(), waiting_since = NULL
        WHERE job.ctid = ANY(ARRAY(SELECT place FROM picked))
        RETURNING {_RETURNING}
    )"""


@cache
def _claim_sql(beyond: str) -> str:
    return f"WITH {CLAIM.format(beyond=beyond, behind='')} SELECT * FROM claimed ORDER BY priority DESC, run_at, id"


def beyond(after: ClaimedRun | None) -> tuple[str, list[Any]]:
    """The condition of `CLAIM` that leaves out what lies before a claimed run in the index, and its parameters."""
    if after is None:
        return "", []
    return " AND priority = %s AND (run_at, id) > (%s, %s)", [after.priority, after.run_at, after.job_id]


def _claim_postgres(
    worker: WorkerIdentity, queue_name: str, limit: int, after: ClaimedRun | None, *, using: str
) -> list[ClaimedRun]:
    """Pick, mark and read by one statement."""
    condition, marks = beyond(after)
    rows = fetch_prepared(_claim_sql(condition), [queue_name, *marks, limit, worker.id], using=using)
    return read_claimed(rows, using=using)


def read_claimed(rows: Iterable[Sequence[Any]], *, using: str) -> list[ClaimedRun]:
    """The runs in rows of `CLAIM`."""
    moments = _Moments(connections[using].timezone)
    return [
        ClaimedRun._make(
            (*row[:_PLAIN], JSONText(row[-5]), _parsed(row[-4]), moments[row[-3]], moments[row[-2]], moments[row[-1]])
        )
        for row in rows
    ]


class _Moments(dict[float, datetime]):
    """Datetimes as Django reads them from a database, by seconds since 1970. Many jobs of a batch share theirs."""

    def __init__(self, zone: tzinfo | None) -> None:
        """Without a zone they are naive, in the project's own."""
        super().__init__()
        self._is_naive = zone is None
        self._zone = zone or get_default_timezone()

    def __missing__(self, seconds: float) -> datetime:
        try:
            moment = datetime.fromtimestamp(seconds, self._zone)
        except (OverflowError, ValueError, OSError):  # not one that Python knows: the nearest
            moment = LAST_MOMENT if seconds > 0 else FIRST_MOMENT
        self[seconds] = moment = moment.replace(tzinfo=None) if self._is_naive else moment
        return moment


def _parsed(text: str | None) -> Any:
    """A JSON column's value, or its text where Python cannot parse it: one job must not stop the rest of its batch."""
    try:
        return None if text is None else json.loads(text)
    except (ValueError, RecursionError):
        return text


def _claim_portable(
    worker: WorkerIdentity, queue_name: str, limit: int, after: ClaimedRun | None, *, using: str
) -> list[ClaimedRun]:
    """The same by plain statements."""
    ready = Job.objects.using(using).filter(status=JobStatus.READY, queue_name=queue_name)
    rows = ready.order_by("-priority", "run_at", "id")
    return take(rows, worker, limit, using=using, waiting_since=None)


def take(rows: QuerySet[Job], worker: WorkerIdentity, limit: int, *, using: str, **changes: Any) -> list[ClaimedRun]:
    """Claim the first of these rows that nobody has locked."""
    with write_transaction(using):
        free = lock_rows(rows, using=using)
        claimed = [ClaimedRun._make(row) for row in free.values_list(*_FIELDS)[:limit]]
        now = read_clock(using)
        changes |= {"claim_number": F("claim_number") + 1, "attempt": Least(F("attempt"), MOST - 1) + 1}
        with forced_index("PRIMARY", using=using):
            rows.order_by().filter(id__in=[run.job_id for run in claimed]).update(
                status=JobStatus.RUNNING, worker_id=worker.id, claimed_at=now, **changes
            )
    return [run._replace(claim_number=run.claim_number + 1, attempt=run.attempt + 1, claimed_at=now) for run in claimed]


def _park(
    claimed: Sequence[ClaimedRun], worker: WorkerIdentity, queue_name: str, known: frozenset[str], *, using: str
) -> None:
    """Put what this worker does not know aside, as if it had never been claimed, and what lies right behind it too."""
    ready = Job.objects.using(using).filter(status=JobStatus.READY, queue_name=queue_name)
    with write_transaction(using):
        held = fence((run[:2] for run in claimed), worker)
        parked = _set_aside(held, JobStatus.RUNNING, using=using, attempt=F("attempt") - 1)
        ahead = ready.order_by("-priority", "run_at", "id").values_list("id", "task_name")[:PARK_BATCH]
        unknown = [job_id for job_id, task_name in ahead if task_name not in known]
        parked += _set_aside(Q(id__in=unknown), JobStatus.READY, using=using)
    for task_name, count in Counter(parked).items():
        logs.jobs_parked(count, task_name=task_name)
    # Who knows them may have looked while they were claimed here.
    wake_on_commit([queue_name], using=using)


def hold_back(
    claimed: Sequence[ClaimedRun], worker: WorkerIdentity, *, using: str, after: timedelta = MOMENT, **changes: Any
) -> None:
    """Look at these again in a moment, as if they had never been claimed."""
    rows = Job.objects.using(using).filter(fence((run[:2] for run in claimed), worker))
    changes |= {"status": JobStatus.SCHEDULED, "worker_id": None, "attempt": F("attempt") - 1, "run_at": Clock(after)}
    change_free(rows, len(claimed), using=using, **changes)


def _set_aside(condition: Q, status: JobStatus, *, using: str, **changes: Any) -> list[str]:
    """Park the jobs of this status that meet the condition and that nobody has locked. The task of each."""
    rows = Job.objects.using(using).filter(condition)
    # The status is looked at here: beside the ids PostgreSQL might take its index, and read all jobs of that status.
    locked = lock_rows(rows, using=using).values_list("id", "task_name", "status")
    tasks: dict[UUID, str] = {job_id: task_name for job_id, task_name, found in locked if found == status}
    changes |= {"status": JobStatus.WAITING, "worker_id": None, "waiting_since": Clock()}
    with forced_index("PRIMARY", using=using):
        Job.objects.using(using).filter(id__in=list(tasks)).update(**changes)
    return list(tasks.values())

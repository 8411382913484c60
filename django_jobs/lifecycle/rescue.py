"""Job(running) -> JobRun(lost), and Job(scheduled) | DeadLetter: take back the jobs of workers that are gone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from django.db.models import Exists, OuterRef, QuerySet

from django_jobs import logs
from django_jobs.backoff import Backoff
from django_jobs.conf import get_settings
from django_jobs.database import Clock, lock_rows, read_clock, write_transaction
from django_jobs.errors import ErrorRecord
from django_jobs.ids import job_id
from django_jobs.lifecycle.claim import look
from django_jobs.lifecycle.finish import Finished, announce, record
from django_jobs.lifecycle.quarantine import was_never_started
from django_jobs.lifecycle.release import release
from django_jobs.models import Job, Worker
from django_jobs.registry import find
from django_jobs.runs import Charge, ClaimedRun, Outcome, Then, WorkerIdentity
from django_jobs.statuses import DeathReason, JobStatus, RunStatus


class Ending(NamedTuple):
    """What is known of a dead worker: how it ended, and what it had claimed but certainly not started."""

    cause: str = "ended, or lost touch with the database,"
    is_unstarted: Callable[[ClaimedRun], bool] = lambda run: False


UNSEEN = Ending()


def rescue(*, using: str, limit: int = 100) -> int:
    """Take back jobs of workers whose lease is over or whose row is gone, up to `limit` of each. How many.

    Call it only from a process whose own heartbeat was unbroken for a whole lease: after an outage every lease looks
    over.
    """
    gone = list(_gone(using).values_list("id", "name"))
    rescued = sum(rescue_worker(WorkerIdentity(*row), using=using, limit=limit) for row in gone)
    for worker in _without_row(using):
        rescued += _announce(_take_back(worker, UNSEEN, using=using, limit=limit), using=using)
    return rescued


def rescue_dead(worker_id: UUID, ending: Ending, *, using: str) -> bool:
    """Take back all jobs of a worker whose process was seen to end. False: somebody locks some, so call it again."""
    rows = Worker.objects.using(using).filter(id=worker_id)
    name = rows.values_list("name", flat=True).first()
    if name is None:
        return True
    while rescue_worker(WorkerIdentity(worker_id, name), using=using, at_once=True, ending=ending):
        pass
    return not rows.exists()


def rescue_worker(
    worker: WorkerIdentity, *, using: str, limit: int = 100, at_once: bool = False, ending: Ending = UNSEEN
) -> int:
    """Take back one worker's jobs if its lease is over, or `at_once` if it is known to be dead. How many."""
    with write_transaction(using):
        row = Worker.objects.using(using).filter(id=worker.id)
        if not at_once:
            # Repeated under the lock: its heartbeat may have come in between.
            row = row.filter(lease_expires_at__lt=Clock())
        if not lock_rows(row, using=using).values_list("id"):
            return 0
        taken = _take_back(worker, ending, using=using, limit=limit)
        if not Job.objects.using(using).filter(status=JobStatus.RUNNING, worker_id=worker.id).exists():
            Worker.objects.using(using).filter(id=worker.id).delete()
    return _announce(taken, using=using)


def to_rescue(using: str) -> list[QuerySet[Any]]:
    """The rows that `rescue` would do something about."""
    return [_gone(using), _orphans(using)]


def _gone(using: str) -> QuerySet[Worker]:
    return Worker.objects.using(using).filter(lease_expires_at__lt=Clock())


def _orphans(using: str) -> QuerySet[Job]:
    row = Worker.objects.filter(id=OuterRef("worker_id"))
    return Job.objects.using(using).filter(~Exists(row), status=JobStatus.RUNNING).order_by("worker_id")


def _without_row(using: str) -> Iterable[WorkerIdentity]:
    """The workers named in running jobs that have no row: somebody deleted it."""
    ids = _orphans(using).values_list("worker_id", flat=True).distinct()[:100]
    return [WorkerIdentity(worker_id, str(worker_id)) for worker_id in ids if worker_id is not None]


def _take_back(worker: WorkerIdentity, ending: Ending, *, using: str, limit: int) -> tuple[Finished, int]:
    """Charge what may have been running, and hand back what had certainly not been started: so many."""
    rows = Job.objects.using(using).filter(status=JobStatus.RUNNING, worker_id=worker.id).defer("payload", "options")
    now = read_clock(using)
    started: list[ClaimedRun] = []
    unstarted: list[ClaimedRun] = []
    for job in rows[:limit]:
        run = _as_claimed(job)
        is_innocent = was_never_started(job) or ending.is_unstarted(run)
        (unstarted if is_innocent else started).append(run)
    released = release([run[:2] for run in unstarted], worker, using=using) if unstarted else 0
    return record([_lost(run, worker, now, ending.cause) for run in started], worker, using=using), released


def _announce(taken: tuple[Finished, int], *, using: str) -> int:
    """Tell of what is committed by now. How many jobs were taken back."""
    finished, released = taken
    count = len(finished.recorded) + released
    if count:
        logs.jobs_rescued(count, unstarted=released, worker=finished.worker)
    announce(finished, using=using)
    return count


def _as_claimed(job: Job) -> ClaimedRun:
    """The claim as its outcome needs it: without the arguments."""
    own = {name: getattr(job, name) for name in ClaimedRun._fields if name not in {"job_id", "payload", "options"}}
    own["claimed_at"] = job.claimed_at or job.run_at  # no claim leaves it empty, but a hand might
    return ClaimedRun(job_id=job.id, payload=None, options=None, **own)


def _lost(run: ClaimedRun, worker: WorkerIdentity, now: datetime, cause: str) -> Outcome:
    """The outcome of a run whose worker is gone: a crash, retried until there were too many."""
    crashes = run.crashes + 1
    dies = crashes >= get_settings().MAX_CRASHES
    task = find(run.task_name)
    backoff = task.backoff if task else Backoff()
    return Outcome(
        run,
        RunStatus.LOST,
        Then.DIE if dies else Then.RETRY,
        charge=Charge.CRASH,
        duration=(now - run.claimed_at).total_seconds(),
        delay=None if dies else backoff.delay(crashes),
        reason=DeathReason.WORKER_LOST if dies else None,
        error=ErrorRecord(
            error_type="WorkerLost",
            text=f"Worker {worker.name} {cause} while it held this job.",
            traceback="",
            fingerprint="worker-lost",
        ),
    )


def bury_unknown(*, using: str, limit: int = 100) -> int:
    """Let jobs die whose task no worker has known for UNKNOWN_TASK_PATIENCE. How many.

    A worker that knows the task and serves the queue keeps them alive, however busy it is.
    """
    patience = get_settings().UNKNOWN_TASK_PATIENCE
    count = 0
    for rows in _unexpected(using):
        jobs = rows.filter(waiting_since__lte=Clock(-patience)).defer("payload", "options")
        count += sum(_bury(job, patience, using=using) for job in jobs[: limit - count])
    return count


def parked(using: str) -> QuerySet[Job]:
    """The rows that `bury_unknown` looks at, in the order of their index."""
    return Job.objects.using(using).filter(status=JobStatus.WAITING).order_by("task_name", "waiting_since", "id")


def _unexpected(using: str) -> Iterator[QuerySet[Job]]:
    """What waits for a worker, task by task, without what a worker alive will run: it serves the queue, knows the task.

    One index over tasks and times finds the oldest of each, however many there are.
    """
    names = look(None, using=using).waiting
    served = _served(using) if names else {}
    for name in names:
        if name not in served.get(None, ()):
            queue_names = [queue_name for queue_name, known in served.items() if name in known]
            yield parked(using).filter(task_name=name).exclude(queue_name__in=queue_names)


def _served(using: str) -> dict[str | None, set[str]]:
    """The tasks that workers alive know, by the queue they serve; None is every queue."""
    alive = Worker.objects.using(using).filter(lease_expires_at__gte=Clock())
    tasks_of: dict[str | None, set[str]] = {}
    for queue_names, task_names in alive.values_list("queue_names", "task_names"):
        for queue_name in [None] if queue_names is None else _names(queue_names):
            tasks_of.setdefault(queue_name, set()).update(_names(task_names))
    return tasks_of


def _names(value: object) -> list[str]:
    return [name for name in value if isinstance(name, str)] if isinstance(value, list) else []


def _bury(job: Job, patience: timedelta, *, using: str) -> int:
    """Claim one waiting job in the name of nobody and let it die, in one transaction."""
    nobody = WorkerIdentity(job_id(), "")
    with write_transaction(using):
        rows = Job.objects.using(using).filter(
            id=job.id, status=JobStatus.WAITING, claim_number=job.claim_number, waiting_since__lte=Clock(-patience)
        )
        now = read_clock(using)
        if not lock_rows(rows, using=using).values_list("id"):
            return 0
        job.claim_number, job.claimed_at = job.claim_number + 1, now
        rows.update(
            status=JobStatus.RUNNING,
            worker_id=nobody.id,
            waiting_since=None,
            claim_number=job.claim_number,
            claimed_at=now,
        )
        finished = record([_unknown(_as_claimed(job))], nobody, using=using)
    announce(finished, using=using)
    return len(finished.recorded)


def _unknown(run: ClaimedRun) -> Outcome:
    return Outcome(
        run,
        RunStatus.FAILED,
        Then.DIE,
        reason=DeathReason.UNKNOWN_TASK,
        error=ErrorRecord(
            error_type="UnknownTask",
            text=f"No worker knows a task named {run.task_name!r}. Restore it, or let another list it in its aliases.",
            traceback="",
            fingerprint="unknown-task",
        ),
    )

"""Job(running) -> JobRun, and nothing | Job(scheduled) | DeadLetter: a batch in one short, fenced transaction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from operator import attrgetter
from typing import Any, Self
from uuid import UUID

from django.db import DatabaseError, DataError, IntegrityError, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import F, Func, JSONField

from django_jobs import logs, signals
from django_jobs.database import Clock, StoredJSON, delete_rows, lock_rows, write_transaction
from django_jobs.errors import ErrorRecord
from django_jobs.exceptions import LeaseLost
from django_jobs.lifecycle import guard
from django_jobs.lifecycle.release import fence
from django_jobs.lifecycle.statements import (
    SEND_BACK,
    SETTLE_KEYS,
    SUCCEED,
    is_sent_back,
    is_success,
    return_parameters,
    settles_key,
    success_parameters,
)
from django_jobs.lifecycle.wake import is_soon, wake_on_commit
from django_jobs.models import DeadLetter, Job, JobRun
from django_jobs.runs import Charge, Death, EndedRun, EndedRuns, Outcome, Then, WorkerIdentity
from django_jobs.statuses import DeathReason, JobStatus, RunStatus

BATCH = 100  # outcomes per transaction: a statement with more of them might be too long for MariaDB
BATCH_AT_ONCE = 1000  # of those that PostgreSQL records by one statement
MOST = 2**31 - 1  # what a counter's column holds


@dataclass(slots=True)
class Finished:
    """What became of a batch.

    Each outcome was recorded; or lost to another claim (nothing was changed); or kept, as somebody locks the row; or
    refused, as the database takes no row about this run, which cannot be mended by trying again.
    """

    recorded: list[Outcome] = field(default_factory=list)
    lost: list[Outcome] = field(default_factory=list)
    kept: list[Outcome] = field(default_factory=list)
    refused: list[Outcome] = field(default_factory=list)
    deaths: list[Death] = field(default_factory=list)
    worker: str = ""

    def __iadd__(self, other: Self) -> Self:
        self.recorded += other.recorded
        self.lost += other.lost
        self.kept += other.kept
        self.refused += other.refused
        self.deaths += other.deaths
        return self

    def ended_runs(self) -> EndedRuns:
        """The recorded runs as signals carry them."""
        return EndedRuns(self.recorded, self.worker)


def finish(outcomes: Sequence[Outcome], worker: WorkerIdentity, *, using: str) -> Finished:
    """Record these outcomes of this worker's claims and tell who listens.

    A row that somebody locks is not waited for: its outcome comes back as `kept`, to be given again. If a value cannot
    be stored, the batch is halved until the bad one is alone, and that job dies with the reason.

    Raises:
        django.db.Error: the database is away. What was recorded stays so: give all of them again.
    """
    finished = record(outcomes, worker, using=using)
    for outcome in finished.lost:
        logs.lease_lost(outcome.run, worker=worker.name)
    announce(finished, using=using)
    return finished


def finish_atomically(outcome: Outcome, worker: WorkerIdentity, *, using: str) -> Finished:
    """Record one outcome in the open transaction of its own effects; `announce` it after that has committed.

    Raises:
        LeaseLost: the job is not this worker's any more. Roll the effects back.
    """
    with write_transaction(using):
        done = _record_postgres([outcome], worker, using=using, wait=True) if _is_postgres(using) else set()
        finished = Finished(recorded=[outcome], worker=worker.name)
        if not done:
            finished = _record([outcome], worker, using=using, wait=True)
    if not finished.recorded:
        logs.lease_lost(outcome.run, worker=worker.name)
        raise LeaseLost(f"Job {outcome.run.job_id} was taken over while its run was under way.")
    return finished


def record(outcomes: Sequence[Outcome], worker: WorkerIdentity, *, using: str) -> Finished:
    """Like `finish`, but tell nobody: for callers with a transaction of their own, who `announce` after it."""
    finished = Finished(worker=worker.name)
    rest = outcomes
    if _is_postgres(using):
        done = _record_at_once(outcomes, worker, using=using)
        finished.recorded = [each for each in outcomes if each.run.job_id in done]
        rest = [each for each in outcomes if each.run.job_id not in done]
    for start in range(0, len(rest), BATCH):
        finished += _halve_until_stored(rest[start : start + BATCH], worker, using=using)
    return finished


def announce(finished: Finished, *, using: str) -> None:
    """Send the signals of a committed batch, and wake the workers that have to know of what runs again soon."""
    again = [each for each in finished.recorded if each.then in (Then.RETRY, Then.RETURN)]
    if soon := {each.run.queue_name for each in again if is_soon(each.delay)}:
        wake_on_commit(soon, using=using)
    announce_runs(finished.ended_runs(), using=using)
    if finished.deaths:
        signals.jobs_died.send_robust(sender=DeadLetter, letters=finished.deaths, using=using)


def announce_runs(runs: Sequence[EndedRun], *, using: str) -> None:
    if runs:
        signals.runs_ended.send_robust(sender=JobRun, runs=runs, using=using)


def _halve_until_stored(outcomes: Sequence[Outcome], worker: WorkerIdentity, *, using: str) -> Finished:
    try:
        with write_transaction(using):
            return _record(outcomes, worker, using=using)
    except Exception as error:
        if not is_about_a_value(error):
            raise
        if len(outcomes) == 1:
            return _bury_unstorable(outcomes[0], error, worker, using=using)
    half = len(outcomes) // 2
    finished = _halve_until_stored(outcomes[:half], worker, using=using)
    finished += _halve_until_stored(outcomes[half:], worker, using=using)
    return finished


def is_about_a_value(error: Exception) -> bool:
    """Whether a driver or database says it cannot store a value; of a lone surrogate not even by a database error."""
    if isinstance(error, (DataError, IntegrityError, ValueError, TypeError, OverflowError)):
        return True
    if not isinstance(error, DatabaseError):
        return False
    # PostgreSQL's class 54: nested too deeply, too long. MariaDB's 1916: a number out of range; MySQL's 3140: no JSON.
    sqlstate = getattr(error.__cause__, "sqlstate", None) or ""
    return sqlstate.startswith("54") or error.args[:1] in ((1916,), (3140,))


def _bury_unstorable(outcome: Outcome, error: Exception, worker: WorkerIdentity, *, using: str) -> Finished:
    """Let the job die with what is left of its outcome: nothing but our own words."""
    name = type(error).__name__
    if outcome.reason is DeathReason.BAD_ROW:
        logs.outcome_refused(outcome.run, name, worker=worker.name)
        return Finished(refused=[outcome])
    death = Outcome(
        outcome.run,
        RunStatus.FAILED,
        Then.DIE,
        Charge.FAILURE,
        reason=DeathReason.BAD_ROW,
        error=ErrorRecord(name, f"The outcome ({outcome.status.value}) could not be stored: {name}.", "", "bad-row"),
    )
    return _halve_until_stored([death], worker, using=using)


def _is_postgres(using: str) -> bool:
    return connections[using].vendor == "postgresql"


def _record_at_once(outcomes: Sequence[Outcome], worker: WorkerIdentity, *, using: str) -> set[UUID]:
    """What is recorded by one statement for many, without a transaction around it. The ids of those it recorded."""
    done: set[UUID] = set()
    for start in range(0, len(outcomes), BATCH_AT_ONCE):
        try:
            with write_transaction(using) if connections[using].in_atomic_block else nullcontext():
                done |= _record_postgres(outcomes[start : start + BATCH_AT_ONCE], worker, using=using, wait=False)
        except Exception as error:
            if not is_about_a_value(error):
                raise
    return done


def _record_postgres(outcomes: Sequence[Outcome], worker: WorkerIdentity, *, using: str, wait: bool) -> set[UUID]:
    done: set[UUID] = set()
    for fits, write in ((is_success, _succeed_postgres), (is_sent_back, _return_postgres)):
        if some := [each for each in outcomes if fits(each)]:
            done |= write(some, worker, using=using, wait=wait)
    return done


def _record(outcomes: Sequence[Outcome], worker: WorkerIdentity, *, using: str, wait: bool = False) -> Finished:
    """Turn outcomes of any kind into rows, in the transaction that is open, and find out why some cannot be."""
    jobs = _lock(outcomes, worker, using=using, wait=wait)
    held = [each for each in outcomes if each.run.job_id in jobs]
    finished = Finished(recorded=held, worker=worker.name)
    _write(held, jobs, worker, finished, using=using)
    _sort_missing([each for each in outcomes if each.run.job_id not in jobs], worker, finished, using=using)
    return finished


def _lock(outcomes: Sequence[Outcome], worker: WorkerIdentity, *, using: str, wait: bool) -> dict[UUID, Job]:
    """The job rows that are still under these claims and that nobody else has locked."""
    rows = Job.objects.using(using).filter(fence((each.run[:2] for each in outcomes), worker))
    jobs = {job.id: job for job in lock_rows(rows.defer("payload", "options"), using=using, wait=wait)}
    if wait or connections[using].vendor != "mysql":
        return jobs
    # There an open transaction that was refused a key has locked its row, and would be waited for.
    settled = [each.run.job_id for each in outcomes if settles_key(each) and each.run.job_id in jobs]
    busy = guard.busy(settled, using=using) if settled else set()
    return {job_id: job for job_id, job in jobs.items() if job_id not in busy}


def _sort_missing(missing: Sequence[Outcome], worker: WorkerIdentity, finished: Finished, *, using: str) -> None:
    """Tell apart: locked by somebody just now, recorded by an earlier try whose answer was lost, taken over."""
    if not missing:
        return
    fences = [each.run[:2] for each in missing]
    locked = set(Job.objects.using(using).filter(fence(fences, worker)).values_list("id", flat=True))
    runs = JobRun.objects.using(using).filter(job_id__in=[job_id for job_id, _ in fences])
    recorded = {row[:2]: row[2] for row in runs.values_list("job_id", "claim_number", "status")}
    again = []
    for outcome in missing:
        if outcome.run.job_id in locked:
            finished.kept.append(outcome)
        elif _is_own_record(outcome, status := recorded.get(outcome.run[:2])):
            again.append(_succeeded(outcome) if status == RunStatus.SUCCEEDED else outcome)
        else:
            finished.lost.append(outcome)
    finished.recorded += again
    finished.deaths += _deaths((each.run.job_id for each in again if each.then is not Then.RETRY), using=using)


def _succeeded(outcome: Outcome) -> Outcome:
    """The outcome as it was recorded: that the COMMIT of an atomic task was not answered made it look undone."""
    if outcome.status is RunStatus.SUCCEEDED:
        return outcome
    return outcome._replace(status=RunStatus.SUCCEEDED, then=Then.DONE, delay=None, until=None, error=None)


def _is_own_record(outcome: Outcome, status: str | None) -> bool:
    """Whether a run recorded under our fence is by ourselves: the others who may end it leave their own marks."""
    return status == outcome.status or status not in (None, RunStatus.LOST, RunStatus.CANCELLED)


def _write(
    outcomes: Sequence[Outcome], jobs: dict[UUID, Job], worker: WorkerIdentity, finished: Finished, *, using: str
) -> None:
    JobRun.objects.using(using).bulk_create([_as_run(each, jobs[each.run.job_id], worker) for each in outcomes])
    dead = [each for each in outcomes if each.then is Then.DIE]
    DeadLetter.objects.using(using).bulk_create([_as_letter(each, jobs[each.run.job_id], worker) for each in dead])
    finished.deaths += _deaths((each.run.job_id for each in dead), using=using)
    for outcome in outcomes:
        if outcome.then in (Then.RETRY, Then.RETURN):
            _send_back(outcome, using=using)
    done = [each for each in outcomes if each.then is Then.DONE]
    delete_rows(Job.objects.using(using).filter(id__in=[each.run.job_id for each in (*dead, *done)]))
    guard.settle(
        [(each.run.job_id, each.run.uniqueness, each.key_ttl) for each in done if each.run.key is not None],
        [each.run.job_id for each in dead if each.run.key is not None],
        using=using,
    )


_COUNTER = {Charge.FAILURE: "failures", Charge.CRASH: "crashes", Charge.INTERRUPTION: "interruptions"}


def _send_back(outcome: Outcome, *, using: str) -> None:
    """Make the job wait for its next run; its row is locked by us."""
    later = outcome.delay if outcome.delay and outcome.delay > timedelta(0) else None
    is_later = outcome.then is Then.RETRY and (later is not None or outcome.until is not None)
    changes: dict[str, Any] = {
        "status": JobStatus.SCHEDULED if is_later else JobStatus.READY,
        "worker_id": None,
        "waiting_since": None,
    }
    if outcome.then is Then.RETRY:
        changes["run_at"] = outcome.until or Clock(later)
    if counter := _COUNTER.get(outcome.charge):
        changes[counter] = F(counter) + 1
    if outcome.is_cleared:
        changes["crashes"] = 0
    Job.objects.using(using).filter(id=outcome.run.job_id).update(**changes)


def _as_run(outcome: Outcome, job: Job, worker: WorkerIdentity) -> JobRun:
    error = outcome.error
    run = JobRun(
        job_id=job.id,
        claim_number=job.claim_number,
        attempt=job.attempt,
        status=outcome.status,
        is_last=outcome.then in (Then.DONE, Then.DIE),
        task_name=job.task_name,
        queue_name=job.queue_name,
        worker=worker.name,
        started_at=outcome.started_at,
        ended_at=outcome.ended_at,
        error_type=error.error_type[:200] if error else "",
        error_text=error.text if error else "",
        traceback=error.traceback if error else "",
        result=None if outcome.result is None else StoredJSON(outcome.result),
    )
    if run.is_last:
        carry_job(run, job)
    return run


def carry_job(run: JobRun, job: Job) -> None:
    """Let a job's last run carry what the job was."""
    run.priority, run.enqueued_at, run.run_at = job.priority, job.enqueued_at, job.run_at
    run.payload, run.key = _Stored(job, "payload"), job.key


class _Stored(Func):
    """The value of a job's JSON column as it is: not every value in a column survives being parsed and written.

    Subquery() would compile a query of its own for each row: five times the cost of all the rest.
    """

    output_field = JSONField()

    def __init__(self, job: Job, column: str) -> None:
        super().__init__()
        self._job_id, self._column = job.id, column

    def as_sql(self, compiler: Any, connection: BaseDatabaseWrapper, **extra: Any) -> Any:  # type: ignore[override]
        job_id = Job._meta.pk.get_db_prep_value(self._job_id, connection)
        return f"(SELECT {self._column} FROM django_jobs_job WHERE id = %s)", [job_id]


def _as_letter(outcome: Outcome, job: Job, worker: WorkerIdentity) -> DeadLetter:
    error = outcome.error
    counts = {"failures": job.failures, "crashes": job.crashes, "interruptions": job.interruptions}
    if counter := _COUNTER.get(outcome.charge):
        counts[counter] = min(counts[counter] + 1, MOST)
    if outcome.is_cleared:
        counts["crashes"] = 0
    return DeadLetter(
        job_id=job.id,
        reason=outcome.reason or DeathReason.OUT_OF_TRIES,
        task_name=job.task_name,
        queue_name=job.queue_name,
        priority=job.priority,
        payload=_Stored(job, "payload"),
        options=_Stored(job, "options"),
        key=job.key,
        uniqueness=job.uniqueness,
        attempt=job.attempt,
        **counts,
        worker=worker.name,
        error_type=error.error_type[:200] if error else "",
        error_text=error.text if error else "",
        traceback=error.traceback if error else "",
        fingerprint=error.fingerprint if error else "",
        enqueued_at=job.enqueued_at,
        run_at=job.run_at,
        died_at=Clock(),
    )


def _deaths(job_ids: Iterable[UUID], *, using: str) -> list[Death]:
    """The letters of these jobs, as signals carry them."""
    ids = list(job_ids)
    if not ids:
        return []
    letters = DeadLetter.objects.using(using).filter(job_id__in=ids)
    fields = ("id", "job_id", "task_name", "queue_name", "reason", "error_type", "error_text")
    # Put in order here: see `the_only`.
    deaths = [Death._make(row)._replace(reason=DeathReason(row[4])) for row in letters.values_list(*fields)]
    return sorted(deaths, key=attrgetter("letter_id"))


def _succeed_postgres(outcomes: Sequence[Outcome], worker: WorkerIdentity, *, using: str, wait: bool) -> set[UUID]:
    """Record successes by one statement. The ids of those recorded."""
    steps = f"{SUCCEED}, {SETTLE_KEYS}" if any(map(settles_key, outcomes)) else SUCCEED
    sql = f"WITH {steps} SELECT job_id FROM succeeded"
    return _ids(sql, success_parameters(outcomes, worker), using=using, wait=wait)


def _return_postgres(outcomes: Sequence[Outcome], worker: WorkerIdentity, *, using: str, wait: bool) -> set[UUID]:
    """Send jobs back by one statement. The ids of those recorded."""
    sql = f"WITH {SEND_BACK} SELECT job_id FROM ended"
    return _ids(sql, return_parameters(outcomes, worker), using=using, wait=wait)


def _ids(sql: str, parameters: list[Any], *, using: str, wait: bool) -> set[UUID]:
    with connections[using].cursor() as cursor:
        cursor.execute(sql.format(lock="" if wait else "SKIP LOCKED"), parameters)
        return {row[0] for row in cursor.fetchall()}

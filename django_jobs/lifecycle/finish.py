"""Job(running) -> JobRun, and nothing | Job(scheduled) | DeadLetter: a batch of outcomes in one short, fenced transaction."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.db import DataError, IntegrityError, connections
from django.db.models import F

from django_jobs import logs, signals
from django_jobs.database import Clock, write_transaction
from django_jobs.errors import ErrorRecord
from django_jobs.exceptions import LeaseLost
from django_jobs.lifecycle import guard
from django_jobs.lifecycle.release import fence
from django_jobs.models import DeadLetter, Job, JobRun
from django_jobs.runs import Charge, Death, EndedRun, Outcome, Then, WorkerIdentity
from django_jobs.statuses import DeathReason, JobStatus, RunStatus

# What a driver or database says of a value it cannot store; a lone surrogate is not even a database error.
UNSTORABLE = (DataError, IntegrityError, ValueError, TypeError, OverflowError)


@dataclass(slots=True)
class Finished:
    """What became of a batch: recorded; lost to another claim (nothing was changed); or kept, as somebody locks the row."""

    recorded: list[Outcome] = field(default_factory=list)
    lost: list[Outcome] = field(default_factory=list)
    kept: list[Outcome] = field(default_factory=list)
    deaths: list[Death] = field(default_factory=list)
    worker: str = ""

    def __iadd__(self, other: Finished) -> Finished:
        self.recorded += other.recorded
        self.lost += other.lost
        self.kept += other.kept
        self.deaths += other.deaths
        return self

    def ended_runs(self) -> list[EndedRun]:
        """The recorded runs as signals carry them."""
        return [_ended(outcome, self.worker) for outcome in self.recorded]


def finish(outcomes: Sequence[Outcome], worker: WorkerIdentity, *, using: str) -> Finished:
    """Record these outcomes of this worker's claims and tell who listens.

    A row that somebody locks is not waited for: its outcome comes back as `kept`, to be given again. If a value cannot be
    stored, the batch is halved until the bad one is alone, and that job dies with the reason.
    """
    finished = _finish(outcomes, worker, using=using)
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
        finished = _record([outcome], worker, using=using, wait=True)
        if not finished.recorded:
            raise LeaseLost(f"Job {outcome.run.job_id} was taken over while its run was under way.")
    return finished


def announce(finished: Finished, *, using: str) -> None:
    """Send the signals of a committed batch."""
    if finished.recorded:
        signals.runs_ended.send_robust(sender=JobRun, runs=finished.ended_runs(), using=using)
    if finished.deaths:
        signals.jobs_died.send_robust(sender=DeadLetter, letters=finished.deaths, using=using)


def _finish(outcomes: Sequence[Outcome], worker: WorkerIdentity, *, using: str) -> Finished:
    if not outcomes:
        return Finished(worker=worker.name)
    try:
        with write_transaction(using):
            return _record(outcomes, worker, using=using)
    except UNSTORABLE as error:
        if len(outcomes) > 1:
            half = len(outcomes) // 2
            finished = _finish(outcomes[:half], worker, using=using)
            finished += _finish(outcomes[half:], worker, using=using)
            return finished
        if outcomes[0].reason is DeathReason.BAD_ROW:
            raise
        return _finish([_unstorable(outcomes[0], error)], worker, using=using)


def _unstorable(outcome: Outcome, error: Exception) -> Outcome:
    text = f"The outcome ({outcome.status}) could not be stored: {type(error).__name__}."
    return replace(
        outcome,
        status=RunStatus.FAILED,
        then=Then.DIE,
        charge=Charge.FAILURE,
        reason=DeathReason.BAD_ROW,
        error=ErrorRecord(error_type=type(error).__name__, text=text, traceback="", fingerprint=""),
        result=None,
    )


def _record(outcomes: Sequence[Outcome], worker: WorkerIdentity, *, using: str, wait: bool = False) -> Finished:
    """The one place that turns outcomes into rows."""
    finished = Finished(worker=worker.name)
    rest = list(outcomes)
    if connections[using].vendor == "postgresql":
        plain = [each for each in outcomes if each.then is Then.DONE and each.status is RunStatus.SUCCEEDED]
        done = _succeed_postgres(plain, worker, using=using, wait=wait) if plain else set()
        finished.recorded = [each for each in plain if each.run.job_id in done]
        rest = [each for each in outcomes if each.run.job_id not in done]
    if rest:
        jobs = _lock(rest, worker, using=using, wait=wait)
        held = [each for each in rest if each.run.job_id in jobs]
        _write(held, jobs, worker, finished, using=using)
        finished.recorded += held
        _sort_missing([each for each in rest if each.run.job_id not in jobs], worker, finished, using=using)
    return finished


def _lock(outcomes: Sequence[Outcome], worker: WorkerIdentity, *, using: str, wait: bool) -> dict[UUID, Job]:
    """The job rows that are still under these claims and that nobody else has locked."""
    rows = Job.objects.using(using).filter(fence((each.run[:2] for each in outcomes), worker))
    features = connections[using].features
    if features.has_select_for_update:
        rows = rows.select_for_update(skip_locked=features.has_select_for_update_skip_locked and not wait)
    return {job.id: job for job in rows}


def _sort_missing(
    missing: Sequence[Outcome], worker: WorkerIdentity, finished: Finished, *, using: str
) -> None:
    """Tell apart: locked by somebody just now, recorded by an earlier try whose answer was lost, taken over."""
    if not missing:
        return
    fences = [each.run[:2] for each in missing]
    locked = set(Job.objects.using(using).filter(fence(fences, worker)).values_list("id", flat=True))
    recorded = set(
        JobRun.objects.using(using)
        .filter(job_id__in=[job_id for job_id, _ in fences], worker=worker.name)
        .values_list("job_id", "claim_number", "status")
    )
    for outcome in missing:
        if outcome.run.job_id in locked:
            finished.kept.append(outcome)
        elif (*outcome.run[:2], outcome.status.value) in recorded:
            finished.recorded.append(outcome)
        else:
            finished.lost.append(outcome)


def _write(
    outcomes: Sequence[Outcome], jobs: dict[UUID, Job], worker: WorkerIdentity, finished: Finished, *, using: str
) -> None:
    JobRun.objects.using(using).bulk_create([_as_run(each, jobs[each.run.job_id], worker) for each in outcomes])
    dead = [each for each in outcomes if each.then is Then.DIE]
    letters = [_as_letter(each, jobs[each.run.job_id], worker) for each in dead]
    DeadLetter.objects.using(using).bulk_create(letters)
    finished.deaths += [
        _death(each, letter) for each, letter in zip(dead, _with_ids(letters, using=using), strict=True)
    ]
    done = [each for each in outcomes if each.then is Then.DONE]
    for outcome in outcomes:
        if outcome.then in (Then.RETRY, Then.RETURN):
            _send_back(outcome, jobs[outcome.run.job_id], using=using)
    Job.objects.using(using).filter(id__in=[each.run.job_id for each in (*dead, *done)]).delete()
    guard.settle(
        [(each.run.job_id, each.run.uniqueness, each.key_ttl) for each in done if each.run.key is not None],
        [each.run.job_id for each in dead if each.run.key is not None],
        using=using,
    )


def _with_ids(letters: list[DeadLetter], *, using: str) -> list[DeadLetter]:
    """The letters with their ids, read back where the database returns none (MySQL)."""
    if any(letter.id is None for letter in letters):
        ids = dict(
            DeadLetter.objects.using(using)
            .filter(job_id__in=[letter.job_id for letter in letters])
            .values_list("job_id", "id")
        )
        for letter in letters:
            letter.id = ids[letter.job_id]
    return letters


_COUNTER = {Charge.FAILURE: "failures", Charge.CRASH: "crashes", Charge.INTERRUPTION: "interruptions"}


def _send_back(outcome: Outcome, job: Job, *, using: str) -> None:
    """Make the job wait for its next run; its row is locked by us."""
    later = outcome.delay if outcome.delay and outcome.delay > timedelta(0) else None
    is_later = outcome.then is Then.RETRY and (later is not None or outcome.until is not None)
    changes: dict[str, Any] = {
        "status": JobStatus.SCHEDULED if is_later else JobStatus.READY,
        "worker_id": None,
    }
    if outcome.then is Then.RETRY:
        changes["run_at"] = outcome.until or Clock(later)
    if counter := _COUNTER.get(outcome.charge):
        changes[counter] = F(counter) + 1
    Job.objects.using(using).filter(id=job.id).update(**changes)


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
        result=None if outcome.result is None else json.loads(outcome.result),
    )
    if run.is_last:
        carry_job(run, job)
    return run


def carry_job(run: JobRun, job: Job) -> None:
    """Let a job's last run carry what the job was."""
    run.priority, run.enqueued_at, run.run_at = job.priority, job.enqueued_at, job.run_at
    run.payload, run.key = job.payload, job.key


def _as_letter(outcome: Outcome, job: Job, worker: WorkerIdentity) -> DeadLetter:
    error = outcome.error
    counts = {"failures": job.failures, "crashes": job.crashes, "interruptions": job.interruptions}
    if counter := _COUNTER.get(outcome.charge):
        counts[counter] += 1
    return DeadLetter(
        job_id=job.id,
        reason=outcome.reason or DeathReason.OUT_OF_TRIES,
        task_name=job.task_name,
        queue_name=job.queue_name,
        priority=job.priority,
        payload=job.payload,
        options=job.options,
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


def _death(outcome: Outcome, letter: DeadLetter) -> Death:
    return Death(
        letter_id=letter.id,
        job_id=letter.job_id,
        task_name=letter.task_name,
        queue_name=letter.queue_name,
        reason=DeathReason(letter.reason),
        error_type=letter.error_type,
        error_text=letter.error_text,
    )


def _ended(outcome: Outcome, worker: str) -> EndedRun:
    run, error = outcome.run, outcome.error
    return EndedRun(
        job_id=run.job_id,
        claim_number=run.claim_number,
        task_name=run.task_name,
        queue_name=run.queue_name,
        status=outcome.status,
        then=outcome.then,
        attempt=run.attempt,
        duration=outcome.duration,
        waited=max((run.claimed_at - run.run_at).total_seconds() + outcome.started_after, 0.0),
        worker=worker,
        error_type=error.error_type if error else "",
        error_text=error.text if error else "",
        retry_in=outcome.delay if outcome.then is Then.RETRY else None,
        reason=outcome.reason,
    )


# Move rows from Job to JobRun by one statement. FOR UPDATE SKIP LOCKED: it never waits for somebody's lock on one of them.
_SUCCEED = """
    WITH outcome AS MATERIALIZED (
        SELECT * FROM unnest(%s::uuid[], %s::bigint[], %s::timestamptz[], %s::timestamptz[], %s::text[], %s::interval[])
            AS o(job_id, claim_number, started_at, ended_at, result, key_ttl)
    ), held AS MATERIALIZED (
        SELECT job.id FROM django_jobs_job AS job
        JOIN outcome ON outcome.job_id = job.id AND outcome.claim_number = job.claim_number
        WHERE job.status = 'running' AND job.worker_id = %s
        FOR UPDATE OF job {lock}
    ), gone AS (
        DELETE FROM django_jobs_job AS job USING held WHERE job.id = held.id RETURNING job.*
    ){keys}
    INSERT INTO django_jobs_jobrun (
        job_id, claim_number, attempt, status, is_last, task_name, queue_name, worker, started_at, ended_at, error_type,
        error_text, traceback, result, priority, enqueued_at, run_at, payload, key
    )
    SELECT gone.id, gone.claim_number, attempt, 'succeeded', true, task_name, queue_name, %s, started_at, ended_at, '',
        '', '', result::jsonb, priority, enqueued_at, run_at, payload, key
    FROM gone JOIN outcome ON outcome.job_id = gone.id
    RETURNING job_id"""
_KEYS = """, freed AS (
        DELETE FROM django_jobs_jobkey AS held USING gone WHERE held.holder_id = gone.id AND gone.uniqueness <> 'ever'
    ), kept AS (
        UPDATE django_jobs_jobkey AS held SET expires_at = statement_timestamp() + outcome.key_ttl
        FROM gone JOIN outcome ON outcome.job_id = gone.id
        WHERE held.holder_id = gone.id AND gone.uniqueness = 'ever' AND outcome.key_ttl IS NOT NULL
    )"""


def _succeed_postgres(
    outcomes: Sequence[Outcome], worker: WorkerIdentity, *, using: str, wait: bool
) -> set[UUID]:
    """Record successes by one statement. The ids of those recorded."""
    columns: list[Any] = [
        [each.run.job_id for each in outcomes],
        [each.run.claim_number for each in outcomes],
        [each.started_at for each in outcomes],
        [each.ended_at for each in outcomes],
        [each.result for each in outcomes],
        [each.key_ttl for each in outcomes],
    ]
    keyed = any(each.run.key is not None for each in outcomes)
    sql = _SUCCEED.format(lock="" if wait else "SKIP LOCKED", keys=_KEYS if keyed else "")
    with connections[using].cursor() as cursor:
        cursor.execute(sql, [*columns, worker.id, worker.name])
        return {row[0] for row in cursor.fetchall()}


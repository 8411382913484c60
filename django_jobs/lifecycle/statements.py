"""PostgreSQL's statements that record many outcomes at once: with what they are given, and what they answer.

A success moves its row from Job to JobRun; a retry, and a run handed back, leaves a JobRun and sends its row on its
way. Both lock their rows by FOR UPDATE SKIP LOCKED, so that they wait for nobody, and both repeat the fence under it.
A locked row stays where it is, so that it is found again by its place (ctid) for less than by its id; one that was
changed since the statement began is not found there, and is left to the next time.

The fence stands as IS TRUE, which no index serves, so that rows are looked for by their ids alone: by the index over
what a worker runs PostgreSQL would read all that it ever ran, while somebody's old snapshot keeps those entries alive.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django_jobs.database import text_array
from django_jobs.runs import Charge, Outcome, Then, WorkerIdentity
from django_jobs.statuses import RunStatus, Uniqueness

_HELD = """
    {name} AS MATERIALIZED (
        SELECT job.ctid AS place{more} FROM django_jobs_job AS job
        JOIN {outcome} AS o ON o.job_id = job.id AND o.claim_number = job.claim_number
        WHERE job.id = ANY(ARRAY(SELECT job_id FROM {outcome}))
            AND (job.status = 'running') IS TRUE AND (job.worker_id = %s) IS TRUE
        FOR UPDATE OF job {lock}
    )"""
_RUN = """
    INSERT INTO django_jobs_jobrun (
        job_id, claim_number, attempt, status, is_last, task_name, queue_name, worker, started_at, ended_at, error_type,
        error_text, traceback, result, priority, enqueued_at, run_at, payload, key
    )"""
# No claim leaves claimed_at empty, but a hand might.
_TIMES = """
    coalesce(claimed_at, run_at) + make_interval(secs => started_after),
    coalesce(claimed_at, run_at) + make_interval(secs => started_after + duration)"""
SUCCEED = f"""
    success AS MATERIALIZED (
        SELECT * FROM unnest(%s::uuid[], %s::bigint[], %s::float8[], %s::float8[], %s::text[], %s::interval[])
            AS o(job_id, claim_number, started_after, duration, result, key_ttl)
    ), {_HELD.format(name="held", outcome="success", more="", lock="{lock}")}, gone AS (
        DELETE FROM django_jobs_job AS job WHERE job.ctid = ANY(ARRAY(SELECT place FROM held))
        RETURNING id, claim_number, attempt, task_name, queue_name, priority, enqueued_at, run_at, claimed_at, payload,
            key, uniqueness
    ), succeeded AS (
        {_RUN}
        SELECT gone.id, gone.claim_number, attempt, 'succeeded', true, task_name, queue_name, %s, {_TIMES}, '',
            '', '', result::jsonb, priority, enqueued_at, run_at, payload, key
        FROM gone JOIN success ON success.job_id = gone.id
        RETURNING job_id
    )"""
SETTLE_KEYS = """
    freed AS (
        DELETE FROM django_jobs_jobkey WHERE holder_id = ANY(ARRAY(SELECT id FROM gone WHERE uniqueness <> 'ever'))
    ), kept AS (
        UPDATE django_jobs_jobkey AS key SET expires_at = statement_timestamp() + success.key_ttl
        FROM gone JOIN success ON success.job_id = gone.id
        WHERE key.holder_id = ANY(ARRAY(SELECT id FROM gone)) AND key.holder_id = gone.id
            AND gone.uniqueness = 'ever' AND success.key_ttl IS NOT NULL
    )"""
# The moved run_at is not that of the run that ended, whose times count from the claim. The place is the only condition:
# to join the ids too, with the statistics of an empty table, PostgreSQL would read all jobs in the order of these.
SEND_BACK = f"""
    ending AS MATERIALIZED (
        SELECT * FROM unnest(
            %s::uuid[], %s::bigint[], %s::float8[], %s::float8[], %s::text[], %s::boolean[], %s::float8[],
            %s::timestamptz[], %s::int[], %s::int[], %s::int[], %s::text[], %s::text[], %s::text[]
        ) AS o(
            job_id, claim_number, started_after, duration, status, is_retry, delay, until, failure, crash, interruption,
            error_type, error_text, traceback
        )
    ), {_HELD.format(name="sent", outcome="ending", more=", o.*", lock="{lock}")}, back AS (
        UPDATE django_jobs_job AS job SET
            status = CASE WHEN is_retry AND (delay > 0 OR until IS NOT NULL) THEN 'scheduled' ELSE 'ready' END,
            worker_id = NULL, waiting_since = NULL,
            run_at = CASE
                WHEN is_retry
                THEN coalesce(until, statement_timestamp() + make_interval(secs => greatest(coalesce(delay, 0), 0)))
                ELSE run_at
            END,
            failures = failures + failure, crashes = crashes + crash, interruptions = interruptions + interruption
        FROM sent WHERE job.ctid = sent.place
        RETURNING job.id, job.claim_number, attempt, task_name, queue_name, claimed_at, run_at, started_after, duration,
            sent.status, error_type, error_text, traceback
    ), ended AS (
        {_RUN}
        SELECT id, claim_number, attempt, status, false, task_name, queue_name, %s, {_TIMES}, error_type,
            error_text, traceback, NULL, NULL, NULL, NULL, NULL, NULL
        FROM back
        RETURNING job_id
    )"""


def is_success(outcome: Outcome) -> bool:
    """Whether `SUCCEED` records it."""
    return outcome.then is Then.DONE and outcome.status is RunStatus.SUCCEEDED


def is_sent_back(outcome: Outcome) -> bool:
    """Whether `SEND_BACK` records it."""
    return outcome.then is Then.RETRY or outcome.then is Then.RETURN


def settles_key(outcome: Outcome) -> bool:
    """Whether something changes for the key of its job."""
    if outcome.run.key is None or is_sent_back(outcome):
        return False
    return outcome.then is Then.DIE or outcome.run.uniqueness != Uniqueness.EVER or outcome.key_ttl is not None


def success_parameters(outcomes: Sequence[Outcome], worker: WorkerIdentity) -> list[Any]:
    """What `SUCCEED` is given."""
    return [
        *_fences_and_times(outcomes),
        text_array(results) if any(results := [each.result for each in outcomes]) else None,
        _sparse([each.key_ttl for each in outcomes]),
        worker.id,
        worker.name,
    ]


def return_parameters(outcomes: Sequence[Outcome], worker: WorkerIdentity) -> list[Any]:
    """What `SEND_BACK` is given."""
    errors = [each.error for each in outcomes]
    return [
        *_fences_and_times(outcomes),
        _array([each.status.value for each in outcomes]),
        _array([str(each.then is Then.RETRY) for each in outcomes]),
        _array(["NULL" if each.delay is None else f"{each.delay.total_seconds():.6f}" for each in outcomes]),
        _sparse([each.until for each in outcomes]),
        _array([str(int(each.charge is Charge.FAILURE)) for each in outcomes]),
        _array([str(int(each.charge is Charge.CRASH) - each.is_cleared) for each in outcomes]),
        _array([str(int(each.charge is Charge.INTERRUPTION)) for each in outcomes]),
        text_array([error.error_type[:200] if error else "" for error in errors]),
        text_array([error.text if error else "" for error in errors]),
        text_array([error.traceback if error else "" for error in errors]),
        worker.id,
        worker.name,
    ]


def _fences_and_times(outcomes: Sequence[Outcome]) -> list[str]:
    return [
        _array([f"{each.run.job_id.int:032x}" for each in outcomes]),
        _array([str(each.run.claim_number) for each in outcomes]),
        _array([f"{each.started_after:.6f}" for each in outcomes]),
        _array([f"{each.duration:.6f}" for each in outcomes]),
    ]


def _array(values: list[str]) -> str:
    """An array as text, of what needs no quotes: a driver that adapts value by value costs more than the statement."""
    return "{" + ",".join(values) + "}"


def _sparse(values: list[Any]) -> list[Any] | None:
    """None if all of them are: unnest fills up with NULL."""
    return None if values.count(None) == len(values) else values

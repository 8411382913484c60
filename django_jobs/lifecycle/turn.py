"""Finish a batch and claim the next one: on PostgreSQL one statement, one round trip, one commit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db import connections

from django_jobs.lifecycle.claim import CLAIM, admit, claim_queue, read_claimed
from django_jobs.lifecycle.finish import Finished, announce, finish, is_about_a_value
from django_jobs.runs import ClaimedRun, Outcome, Then, WorkerIdentity
from django_jobs.statuses import RunStatus


def turn(
    outcomes: Sequence[Outcome],
    worker: WorkerIdentity,
    queue_name: str,
    limit: int,
    known: frozenset[str],
    *,
    using: str,
) -> tuple[Finished, list[ClaimedRun]]:
    """What `finish` of these outcomes and a claim of up to `limit` jobs of this queue would do one after the other.

    For a worker in the midst of a full queue. Successes without a key go by the one statement, all others their own
    way.

    Raises:
        django.db.Error: the database is away. Give the outcomes again.
    """
    plain: list[Outcome] = []
    rest: list[Outcome] = []
    for each in outcomes:
        (plain if _is_plain(each) else rest).append(each)
    if not plain or connections[using].vendor != "postgresql":
        rest = list(outcomes)
        return finish(rest, worker, using=using), claim_queue(worker, queue_name, limit, known, using=using)
    try:
        recorded, claimed = _turn_postgres(plain, worker, queue_name, limit, using=using)
    except Exception as error:  # of a lone surrogate the driver says so by a UnicodeEncodeError
        if not is_about_a_value(error):
            raise
        return finish(outcomes, worker, using=using), claim_queue(worker, queue_name, limit, known, using=using)
    runs = admit(claimed, worker, queue_name, known, using=using)
    finished = Finished(recorded=recorded, worker=worker.name)
    announce(finished, using=using)
    if len(recorded) < len(plain):
        done = {each.run.job_id for each in recorded}
        rest += [each for each in plain if each.run.job_id not in done]
    if rest:
        finished += finish(rest, worker, using=using)
    return finished, runs


def _is_plain(outcome: Outcome) -> bool:
    return outcome.then is Then.DONE and outcome.status is RunStatus.SUCCEEDED and outcome.run.key is None


# Arrays go as text made here: a driver that adapts them value by value costs more than the statement itself.
_TURN = f"""
    WITH outcome AS MATERIALIZED (
        SELECT * FROM unnest(%s::uuid[], %s::bigint[], %s::float8[], %s::float8[], %s::text[])
            AS o(job_id, claim_number, started_after, duration, result)
    ), held AS MATERIALIZED (
        SELECT job.id FROM django_jobs_job AS job
        JOIN outcome ON outcome.job_id = job.id AND outcome.claim_number = job.claim_number
        WHERE job.id = ANY(ARRAY(SELECT job_id FROM outcome)) AND job.status = 'running' AND job.worker_id = %s
        FOR UPDATE OF job SKIP LOCKED
    ), gone AS (
        DELETE FROM django_jobs_job AS job WHERE job.id = ANY(ARRAY(SELECT id FROM held)) RETURNING job.*
    ), runs AS (
        INSERT INTO django_jobs_jobrun (
            job_id, claim_number, attempt, status, is_last, task_name, queue_name, worker, started_at, ended_at,
            error_type, error_text, traceback, result, priority, enqueued_at, run_at, payload, key
        )
        SELECT gone.id, gone.claim_number, attempt, 'succeeded', true, task_name, queue_name, %s,
            claimed_at + make_interval(secs => started_after),
            claimed_at + make_interval(secs => started_after + duration),
            '', '', '', result::jsonb, priority, enqueued_at, run_at, payload, key
        FROM gone JOIN outcome ON outcome.job_id = gone.id
        RETURNING job_id
    ), recorded AS (
        SELECT count(*) AS amount, CASE WHEN count(*) < %s THEN array_agg(job_id) END AS ids FROM runs
    ), {CLAIM}
    SELECT recorded.amount, recorded.ids, claimed.* FROM recorded LEFT JOIN claimed ON true
    ORDER BY priority DESC, run_at, id"""


def _turn_postgres(
    outcomes: list[Outcome], worker: WorkerIdentity, queue_name: str, limit: int, *, using: str
) -> tuple[list[Outcome], list[ClaimedRun]]:
    """The outcomes that were recorded, and the runs claimed."""
    parameters = [*_columns(outcomes), worker.id, worker.name, len(outcomes), queue_name, limit, worker.id]
    with connections[using].cursor() as cursor:
        cursor.execute(_TURN, parameters)
        rows = cursor.fetchall()
    amount, ids, *_ = rows[0]
    if amount < len(outcomes):
        done = set(ids or ())
        outcomes = [each for each in outcomes if each.run.job_id in done]
    return outcomes, read_claimed((row[2:] for row in rows if row[2] is not None), using=using)


def _columns(outcomes: list[Outcome]) -> list[Any]:
    results = [each.result for each in outcomes]
    return [
        _array([each.run.job_id.hex for each in outcomes]),
        _array([str(each.run.claim_number) for each in outcomes]),
        _array([f"{each.started_after:.6f}" for each in outcomes]),
        _array([f"{each.duration:.6f}" for each in outcomes]),
        None if results.count(None) == len(results) else results,  # unnest fills up with NULL
    ]


def _array(values: list[str]) -> str:
    return "{" + ",".join(values) + "}"

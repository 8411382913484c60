"""Finish a batch and claim the next one: on PostgreSQL one statement, one round trip, one commit."""

from __future__ import annotations

from collections.abc import Sequence

from django.db import connections

from django_jobs.lifecycle.claim import CLAIM, admit, beyond, claim_queue, read_claimed
from django_jobs.lifecycle.finish import Finished, announce, finish, is_about_a_value
from django_jobs.lifecycle.statements import (
    SEND_BACK,
    SUCCEED,
    is_sent_back,
    is_success,
    return_parameters,
    success_parameters,
)
from django_jobs.runs import ClaimedRun, Outcome, WorkerIdentity


def turn(
    outcomes: Sequence[Outcome],
    worker: WorkerIdentity,
    queue_name: str,
    limit: int,
    known: frozenset[str],
    *,
    using: str,
    after: ClaimedRun | None = None,
) -> tuple[Finished, list[ClaimedRun]]:
    """What `finish` of these outcomes and a claim of up to `limit` jobs of this queue would do one after the other.

    For a worker in the midst of a full queue. Successes without a key, and what goes back to the queue, go by the one
    statement, all others their own way. With `after`, the last run it claimed, only jobs of that priority which come
    after it are looked at: whatever dead entries others keep alive in the index before it cost nothing then.

    Raises:
        django.db.Error: the database is away. Give the outcomes again.
    """
    done = [each for each in outcomes if is_success(each) and each.run.key is None]
    if not done or connections[using].vendor != "postgresql":
        finished = finish(outcomes, worker, using=using) if outcomes else Finished(worker=worker.name)
        return finished, claim_queue(worker, queue_name, limit, known, using=using, after=after)
    back = [each for each in outcomes if is_sent_back(each)]
    try:
        recorded, claimed = _turn_postgres(done, back, worker, queue_name, limit, using=using, after=after)
    except Exception as error:  # of a lone surrogate the driver says so by a UnicodeEncodeError
        if not is_about_a_value(error):
            raise
        finished = finish(outcomes, worker, using=using)
        return finished, claim_queue(worker, queue_name, limit, known, using=using, after=after)
    runs = admit(claimed, worker, queue_name, known, using=using)
    finished = Finished(recorded=recorded, worker=worker.name)
    announce(finished, using=using)
    if len(recorded) < len(outcomes):
        ids = {each.run.job_id for each in recorded}
        finished += finish([each for each in outcomes if each.run.job_id not in ids], worker, using=using)
    return finished, runs


def _turn_postgres(
    done: list[Outcome],
    back: list[Outcome],
    worker: WorkerIdentity,
    queue_name: str,
    limit: int,
    *,
    using: str,
    after: ClaimedRun | None,
) -> tuple[list[Outcome], list[ClaimedRun]]:
    """The outcomes that were recorded, and the runs claimed."""
    outcomes = done + back
    condition, marks = beyond(after)
    sql = (_TURN_AND_SEND_BACK if back else _TURN).format(beyond=condition, lock="SKIP LOCKED")
    parameters = [
        *success_parameters(done, worker),
        *(return_parameters(back, worker) if back else ()),
        len(outcomes),
        queue_name,
        *marks,
        limit,
        worker.id,
    ]
    with connections[using].cursor() as cursor:
        cursor.execute(sql, parameters)
        rows = cursor.fetchall()
    amount, ids, *_ = rows[0]
    if amount < len(outcomes):
        recorded = set(ids or ())
        outcomes = [each for each in outcomes if each.run.job_id in recorded]
    return outcomes, read_claimed((row[2:] for row in rows if row[2] is not None), using=using)


# That all were recorded is the rule, and then nobody needs to be told which.
_STEPS = """
    WITH {steps}, recorded AS (
        SELECT count(*) AS amount, CASE WHEN count(*) < %s THEN array_agg(job_id) END AS ids FROM ({ended}) AS ended
    ), {claim}
    SELECT recorded.amount, recorded.ids, claimed.* FROM recorded LEFT JOIN claimed ON true
    ORDER BY priority DESC, run_at, id"""
_TURN = _STEPS.format(steps=SUCCEED, ended="SELECT job_id FROM succeeded", claim=CLAIM)
_TURN_AND_SEND_BACK = _STEPS.format(
    steps=f"{SUCCEED}, {SEND_BACK}",
    ended="SELECT job_id FROM succeeded UNION ALL SELECT job_id FROM ended",
    claim=CLAIM,
)

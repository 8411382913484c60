"""Finish a batch and claim the next one: on PostgreSQL one statement, one round trip, one commit."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from django.db import connections

from django_jobs.driver import fetch, fetch_prepared
from django_jobs.lifecycle.claim import CLAIM, admit, beyond, claim_queue, read_claimed
from django_jobs.lifecycle.finish import Finished, announce, finish, is_about_a_value
from django_jobs.lifecycle.gate import BEHIND_IT, GATE, Gate
from django_jobs.lifecycle.gate import parameters as gate_parameters
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
    gate: Gate | None = None,
) -> tuple[Finished, list[ClaimedRun]]:
    """What `finish` of these outcomes and a claim of up to `limit` jobs of this queue would do one after the other.

    For a worker in the midst of a full queue. Successes, and what goes back to the queue, go by the one statement; what
    that did not record is `kept`, and `finish` finds out why. With `after`, the last run it claimed, only jobs of that
    priority which come after it are looked at: whatever dead entries others keep alive in the index before it cost
    nothing then. A `gate` that applies is knocked at, and told whether it was open; if it was not, nothing is claimed.

    Raises:
        django.db.Error: the database is away. Give the outcomes again.
    """
    done = [each for each in outcomes if is_success(each)]
    gate = gate if gate is not None and gate.is_knocked_at() else None
    if not (done or gate) or connections[using].vendor != "postgresql":
        finished = finish(outcomes, worker, using=using) if outcomes else Finished(worker=worker.name)
        return finished, claim_queue(worker, queue_name, limit, known, using=using, after=after)
    back = [each for each in outcomes if is_sent_back(each)]
    try:
        finished, claimed = _turn_postgres(done, back, worker, queue_name, limit, using=using, after=after, gate=gate)
    except Exception as error:  # of a lone surrogate the driver says so by a UnicodeEncodeError
        if not is_about_a_value(error):
            raise
        finished = finish(outcomes, worker, using=using)
        return finished, claim_queue(worker, queue_name, limit, known, using=using, after=after)
    runs = admit(claimed, worker, queue_name, known, using=using)
    announce(finished, using=using)
    if rest := [each for each in outcomes if not is_success(each) and not is_sent_back(each)]:
        finished += finish(rest, worker, using=using)
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
    gate: Gate | None,
) -> tuple[Finished, list[ClaimedRun]]:
    """What became of the outcomes, and the runs claimed."""
    outcomes = done + back
    condition, marks = beyond(after)
    parameters = [
        *(success_parameters(done, worker) if done else ()),
        *(return_parameters(back, worker) if back else ()),
        *(gate_parameters(queue_name) if gate else ()),
        len(outcomes),
        queue_name,
        *marks,
        limit,
        worker.id,
    ]
    sql = _statement(
        succeeds=bool(done), settles_keys=any(map(settles_key, done)), sends_back=bool(back), is_gated=gate is not None
    )
    # What finishes many is planned by how many they are; a mere claim is planned once.
    ask = fetch if outcomes else fetch_prepared
    text = sql.format(beyond=condition, behind=BEHIND_IT if gate else "", lock="SKIP LOCKED")
    rows = ask(text, parameters, using=using)
    amount, ids, is_open, *_ = rows[0]
    if gate is not None:
        gate.passed() if is_open else gate.refused()
    finished = Finished(recorded=outcomes, worker=worker.name)
    if amount < len(outcomes):
        recorded = set(ids or ())
        finished.recorded = [each for each in outcomes if each.run.job_id in recorded]
        finished.kept = [each for each in outcomes if each.run.job_id not in recorded]
    return finished, read_claimed((row[3:] for row in rows if row[3] is not None), using=using)


@cache
def _statement(*, succeeds: bool, settles_keys: bool, sends_back: bool, is_gated: bool) -> str:
    steps = {SUCCEED: succeeds, SETTLE_KEYS: settles_keys, SEND_BACK: sends_back, GATE: is_gated}
    ended = {"SELECT job_id FROM succeeded": succeeds, "SELECT job_id FROM ended": sends_back}
    ids = " UNION ALL ".join(_chosen(ended)) or "SELECT NULL::uuid AS job_id WHERE false"
    # That all were recorded is the rule, and then nobody needs to be told which.
    recorded = f"""recorded AS (
        SELECT count(*) AS amount, CASE WHEN count(*) < %s THEN array_agg(job_id) END AS ids FROM ({ids}) AS ended
    )"""
    return f"""
    WITH {", ".join([*_chosen(steps), recorded, CLAIM])}
    SELECT recorded.amount, recorded.ids, {"(SELECT is_open FROM gate)" if is_gated else "true"}, claimed.*
    FROM recorded LEFT JOIN claimed ON true ORDER BY priority DESC, run_at, id"""


def _chosen(texts: dict[str, bool]) -> list[str]:
    return [text for text, is_wanted in texts.items() if is_wanted]

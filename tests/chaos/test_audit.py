"""The auditor sees each violation: evidence of a good run, changed in one place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest

from tests.chaos.audit import AskedJob, Done, Evidence, Key, Lease, Letter, Run, audit

START = datetime(2026, 1, 1, tzinfo=UTC)
ATOMIC, GUARDED, PLAIN, EVER, DEAD, CANCELLED, STRANGE = (uuid4() for _ in range(7))


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def run(number: int, job_id: UUID, claim: int = 1, status: str = "succeeded", **fields: object) -> Run:
    values: dict[str, object] = {
        "id": number, "job_id": job_id, "claim_number": claim, "attempt": claim, "status": status, "is_last": True,
        "started_at": at(claim), "ended_at": at(claim + 0.5), "run_at": START, "worker": "w1", "key": None,
    }  # fmt: skip
    return Run(**{**values, **fields})  # type: ignore[arg-type]


GOOD = Evidence(
    asked=[
        AskedJob(ATOMIC, "atomic", "a"),
        AskedJob(GUARDED, "guarded", "g"),
        AskedJob(PLAIN, "plain", "p"),
        AskedJob(EVER, "ever", "e"),
        AskedJob(DEAD, "doomed", "d"),
        AskedJob(CANCELLED, "plain", "c"),
    ],
    rolled_back={"r"},
    cancelled={CANCELLED},
    runs=[
        run(1, ATOMIC, 1, "lost", is_last=False),
        run(2, ATOMIC, 2),
        run(3, GUARDED),
        run(4, PLAIN),
        run(5, EVER, key="k"),
        run(6, DEAD, status="failed"),
        run(7, CANCELLED, status="cancelled", attempt=0, started_at=None),
    ],
    letters=[Letter(DEAD, "out_of_tries", 0)],
    effects=[Done(ATOMIC, 2, "a"), Done(GUARDED, 1, "g"), Done(PLAIN, 1, "p"), Done(EVER, 1, "e")],
    starts=[Done(GUARDED, 1), Done(PLAIN, 1), Done(EVER, 1), Done(DEAD, 1)],
    keys=[Key("once", "g", GUARDED), Key("task", "k", EVER)],
    once_scope="once",
    leases={"w1": [Lease(at(0), at(1), 11), Lease(at(3), at(6), 12)]},
)


def with_run(index: int, **fields: object) -> Callable[[Evidence], Evidence]:
    def change(e: Evidence) -> Evidence:
        runs = list(e.runs)
        runs[index] = runs[index]._replace(**fields)  # type: ignore[arg-type]
        return replace(e, runs=runs)

    return change


def test_good_run_has_no_violation() -> None:
    assert audit(GOOD) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda e: replace(e, asked=[*e.asked, AskedJob(STRANGE, "plain", "x")]), "has 0 ends"),
        (lambda e: replace(e, runs=[*e.runs, run(8, PLAIN, 2)]), "has 2 ends"),
        (lambda e: replace(e, runs=[*e.runs, run(8, STRANGE)]), "never committed"),
        (lambda e: replace(e, rolled_back={"p"}), "p was rolled back and is there"),
        (lambda e: replace(e, effects=[*e.effects, Done(PLAIN, 1, "r")]), "rolled back and has an effect"),
        (lambda e: replace(e, live=[PLAIN]), "is still there"),
        (lambda e: replace(e, workers=["w1"]), "worker w1 is still there"),
        (lambda e: replace(e, letters=[]), "has no dead letter"),
        (lambda e: replace(e, letters=[*e.letters, Letter(PLAIN, "out_of_tries", 0)]), "has a dead letter"),
        (lambda e: replace(e, cancelled=set()), "not what cancel() answered"),
        (lambda e: replace(e, cancelled={CANCELLED, PLAIN}), "not what cancel() answered"),
        (lambda e: replace(e, effects=[*e.effects, Done(ATOMIC, 2, "a")]), "has 2 effects"),
        (lambda e: replace(e, effects=e.effects[1:]), "has 0 effects"),
        (lambda e: replace(e, effects=[*e.effects, Done(DEAD, 1, "d")], asked=_atomic(e, DEAD)), "success: False"),
        (lambda e: replace(e, effects=[Done(ATOMIC, 1, "a"), *e.effects[1:]]), "is that of claim 1"),
        (lambda e: replace(e, effects=[x for x in e.effects if x.label != "p"]), "without an effect"),
        (lambda e: replace(e, effects=[*e.effects, Done(GUARDED, 1, "g")]), "once('g') has 2 effects"),
        (lambda e: replace(e, effects=[x for x in e.effects if x.label != "g"]), "once('g') has 0 effects"),
        (lambda e: replace(e, keys=e.keys[1:]), "key: False"),
        (lambda e: replace(e, keys=e.keys[:1]), "is gone, which succeeded"),
        (lambda e: replace(e, keys=[*e.keys, Key("task", "l", DEAD)]), "has left a key behind"),
        (with_run(1, claim_number=1), "2 outcomes"),
        (lambda e: replace(e, starts=[*e.starts, Done(PLAIN, 1)]), "2 starts"),
        (with_run(0, claim_number=3), "claim 3 is followed by 2"),
        (with_run(0, ended_at=at(5)), "overlap"),
        (with_run(3, run_at=at(9)), "before it was due"),
        (with_run(1, attempt=3), "has attempts [1, 3] on record"),
        (lambda e: replace(e, letters=[Letter(DEAD, "out_of_tries", 3)]), "with 3 crashes"),
        (lambda e: replace(e, letters=[Letter(DEAD, "worker_lost", 2)]), "with 2 crashes"),
        (lambda e: replace(e, runs=[*(run(n, ATOMIC, n, "lost") for n in (-4, -3, -2)), *e.runs]), "lost 4 times"),
        (lambda e: replace(e, leases={"w1": [Lease(at(0), at(9), 11)]}), "before its lease was over"),
    ],
)  # fmt: skip
def test_auditor_sees(change: Callable[[Evidence], Evidence], message: str) -> None:
    assert any(message in each for each in audit(change(GOOD))), audit(change(GOOD))


def test_process_that_has_ended_is_rescued_before_its_lease_is_over() -> None:
    """By the supervisor that reaped it."""
    assert audit(replace(GOOD, leases={"w1": [Lease(at(0), at(9), 11)]}, gone={11: at(2)})) == []


def test_process_that_has_ended_may_have_left_its_name_to_another_one() -> None:
    leases = {"w1": [Lease(at(0), at(9), 11), Lease(at(1.5), at(9), 12)]}
    assert audit(replace(GOOD, leases=leases, gone={11: at(2)})) == []


def _atomic(e: Evidence, job_id: UUID) -> list[AskedJob]:
    return [job._replace(kind="atomic") if job.job_id == job_id else job for job in e.asked]

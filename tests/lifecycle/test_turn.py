"""A turn does what a finish and a claim do one after the other, whatever is among the outcomes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection, transaction

from django_jobs import cancel, enqueue, enqueue_many, signals
from django_jobs.database import read_clock
from django_jobs.lifecycle import finish, turn
from django_jobs.models import DeadLetter, Job, JobKey, JobRun
from django_jobs.runs import Charge, ClaimedRun, EndedRun, Outcome, Then, WorkerIdentity
from django_jobs.statuses import RunStatus
from tests.lifecycle.steps import ERROR, NAMES, claim_all, died, failed, finish_all, start_worker, succeeded
from tests.lifecycle.threads import OpenTransaction, Threads, at_once
from tests.tasks import echo, note

transactional = pytest.mark.django_db(transaction=True)
LATER = datetime(2100, 1, 1, tzinfo=UTC)


def take_turn(
    outcomes: list[Outcome],
    worker: WorkerIdentity,
    limit: int = 100,
    known: frozenset[str] = NAMES,
    after: ClaimedRun | None = None,
) -> tuple[finish.Finished, list[ClaimedRun]]:
    return turn.turn(outcomes, worker, "default", limit, known, using="default", after=after)


@pytest.fixture
def heard() -> Iterator[list[EndedRun]]:
    runs: list[EndedRun] = []

    def listen(**kwargs: Any) -> None:
        runs.extend(kwargs["runs"])

    signals.runs_ended.connect(listen)
    yield runs
    signals.runs_ended.disconnect(listen)


@transactional
def test_turns_drain_a_queue_in_order_each_job_once(heard: list[EndedRun]) -> None:
    handles = enqueue_many(note.using(priority=number % 2).bind(str(number)) for number in range(100))
    worker = start_worker()
    order: list[Any] = []
    outcomes: list[Outcome] = []
    while True:
        finished, runs = take_turn(outcomes, worker, 7)
        assert len(finished.recorded) == len(outcomes)
        if not runs:
            break
        order += [run.job_id for run in runs]
        outcomes = [succeeded(run) for run in runs]

    expected = [handle.id for handle in handles[1::2]] + [handle.id for handle in handles[::2]]
    assert order == expected
    assert sorted(JobRun.objects.values_list("job_id", flat=True)) == sorted(expected)
    assert len(heard) == 100
    assert not Job.objects.exists()


@transactional
def test_run_recorded_by_a_turn_is_the_same_as_by_a_finish() -> None:
    rows = []
    for record in (take_turn, lambda outcomes, worker: finish.finish(outcomes, worker, using="default")):
        enqueue(note.using(priority=3), "x")
        worker = start_worker()
        (run,) = claim_all(worker)
        record([succeeded(run)._replace(result='{"a": 1}', started_after=0.25)], worker)
        row = JobRun.objects.values().get(job_id=run.job_id)
        assert row["started_at"] == run.claimed_at + timedelta(seconds=0.25)
        assert row["ended_at"] == run.claimed_at + timedelta(seconds=0.26)
        rows.append({key: value for key, value in row.items() if not key.endswith(("_at", "id"))})

    assert rows[0] == rows[1]


@transactional
@pytest.mark.parametrize(
    "outcome",
    [
        lambda run: failed(run, retry_in=timedelta(seconds=90)),
        lambda run: failed(run, retry_in=timedelta(0)),
        lambda run: failed(run, retry_in=None),
        lambda run: failed(run)._replace(delay=None, until=LATER),
        lambda run: Outcome(run, RunStatus.RELEASED, Then.RETRY, delay=timedelta(seconds=90), duration=0.5),
        lambda run: Outcome(run, RunStatus.RELEASED, Then.RETURN, Charge.INTERRUPTION, started_after=0.25),
        lambda run: Outcome(run, RunStatus.LOST, Then.RETRY, Charge.CRASH, delay=timedelta(seconds=90), error=ERROR),
    ],
)
def test_job_sent_back_by_a_turn_and_by_postgres_is_the_same_as_one_by_plain_statements(
    outcome: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for how in ("turn", "finish", "portable"):
        if how == "portable":
            monkeypatch.setattr(finish, "is_sent_back", lambda outcome: False)
        handle, _ = enqueue_many([note.using(priority=3).bind("x"), note.bind("y")])
        worker = start_worker()
        run, beside = claim_all(worker)
        outcomes = [outcome(run), succeeded(beside)]
        if how == "turn":
            take_turn(outcomes, worker)
        else:
            finish_all(outcomes, worker)
        job, row = Job.objects.filter(id=handle.id).values().get(), JobRun.objects.values().get(job_id=handle.id)
        now = read_clock("default")
        moved = job["run_at"] if job["run_at"] == LATER else round((job["run_at"] - now).total_seconds(), -1)
        times = [row[name] - run.claimed_at for name in ("started_at", "ended_at")]  # type: ignore[operator]
        plain = {key: value for key, value in (*job.items(), *row.items()) if not key.endswith(("_at", "id"))}
        found.append((plain, moved, times))
        Job.objects.all().delete()

    assert found[0] == found[1] == found[2]


@transactional
def test_turn_after_a_run_looks_at_what_follows_it_in_its_queue_and_no_further() -> None:
    first, middle, last = enqueue_many(note.bind(str(number)) for number in range(3))
    worker = start_worker()
    runs = claim_all(worker, 2)
    Job.objects.filter(id=first.id).update(status="ready", worker_id=None)
    high, low = enqueue_many(note.using(priority=priority).bind("x") for priority in (1, -1))

    finished, claimed = take_turn([succeeded(runs[1])], worker, after=runs[1])

    assert [each.run.job_id for each in finished.recorded] == [middle.id]
    if connection.vendor == "postgresql":
        assert [run.job_id for run in claimed] == [last.id]
        _, claimed = take_turn([succeeded(claimed[0])], worker)
        assert [run.job_id for run in claimed] == [high.id, first.id, low.id]
    else:
        assert [run.job_id for run in claimed] == [high.id, first.id, last.id, low.id]


@transactional
def test_outcomes_of_every_kind_may_be_mixed(heard: list[EndedRun]) -> None:
    enqueue_many(note.using(key=str(number) if number == 3 else None).bind(str(number)) for number in range(5))
    worker = start_worker()
    runs = claim_all(worker, 4)

    outcomes = [succeeded(runs[0]), failed(runs[1]), died(runs[2]), succeeded(runs[3])]
    finished, claimed = take_turn(outcomes, worker)

    assert len(finished.recorded) == len(heard) == 4
    assert len(claimed) == 1
    assert (JobRun.objects.count(), DeadLetter.objects.count(), JobKey.objects.count()) == (4, 1, 1)


@transactional
def test_keys_of_successes_are_settled_by_their_turn() -> None:
    enqueue(note.using(key="live", unique="live"), "x")
    enqueue(note.using(key="for a while"), "y")
    enqueue(note.using(key="ever"), "z")
    worker = start_worker()
    runs = {run.key: run for run in claim_all(worker)}

    finished, _ = take_turn(
        [
            succeeded(runs["live"]),
            succeeded(runs["for a while"], key_ttl=timedelta(hours=1)),
            succeeded(runs["ever"]),
        ],
        worker,
    )

    assert len(finished.recorded) == 3
    expiring = {key: expires_at is not None for key, expires_at in JobKey.objects.values_list("key", "expires_at")}
    assert expiring == {"for a while": True, "ever": False}


@transactional
def test_lost_outcome_changes_nothing_and_the_claim_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    """CL-02"""
    enqueue_many(note.bind(str(number)) for number in range(3))
    worker = start_worker()
    lost, kept = claim_all(worker, 2)
    cancel(lost.job_id)

    finished, claimed = take_turn([succeeded(lost), succeeded(kept)], worker)
    finished += finish_all(finished.kept, worker)

    assert [outcome.run for outcome in finished.lost] == [lost]
    assert [outcome.run for outcome in finished.recorded] == [kept]
    assert len(claimed) == 1
    assert sum("lease lost" in record.getMessage() for record in caplog.records) == 1


@transactional
def test_fence_of_the_same_worker_is_its_claim_number() -> None:
    """A worker may claim a job again while an outcome of its first claim is still in its hands."""
    handle = enqueue(note, "x")
    worker = start_worker()
    (first,) = claim_all(worker)
    Job.objects.update(status="ready", worker_id=None)
    (second,) = claim_all(worker)

    finished, _ = take_turn([succeeded(first)], worker)
    assert len(finished.lost) + len(finish_all(finished.kept, worker).lost) == 1
    assert handle.status == "running"
    assert len(take_turn([succeeded(second)], worker)[0].recorded) == 1


@pytest.mark.race
@transactional
def test_row_that_somebody_locks_is_kept(heard: list[EndedRun]) -> None:
    if connection.vendor == "sqlite":
        return
    enqueue_many(note.bind(str(number)) for number in range(3))
    worker = start_worker()
    locked, free = claim_all(worker, 2)
    with Threads() as threads:
        holder = OpenTransaction(threads, lambda: cancel(locked.job_id))
        finished, claimed = take_turn([succeeded(locked), succeeded(free)], worker)
        holder.end(commits=False)

    assert [outcome.run for outcome in finished.kept] == [locked]
    assert [outcome.run for outcome in finished.recorded] == [free]
    assert len(claimed) == 1


@transactional
def test_outcome_given_again_after_a_lost_answer_is_recorded(heard: list[EndedRun]) -> None:
    """CL-15"""
    enqueue(note, "x")
    worker = start_worker()
    (run,) = claim_all(worker)
    finish.record([succeeded(run)], worker, using="default")

    finished, claimed = take_turn([succeeded(run)], worker)
    finished += finish_all(finished.kept, worker)

    assert (len(finished.recorded), finished.lost, claimed) == (1, [], [])
    assert JobRun.objects.count() == len(heard) == 1


@transactional
@pytest.mark.parametrize("result", ['{"x": NaN}', "{", '"\ud800"'])
def test_bad_result_kills_its_own_job_only(result: str) -> None:
    enqueue_many(note.bind(str(number)) for number in range(6))
    worker = start_worker()
    runs = claim_all(worker, 5)
    outcomes = [succeeded(run) for run in runs]
    outcomes[2] = outcomes[2]._replace(result=result)

    finished, claimed = take_turn(outcomes, worker)

    assert len(finished.recorded) == 5
    assert len(claimed) == 1
    assert DeadLetter.objects.get().reason == "bad_row"


@transactional
def test_unknown_task_is_parked_in_a_turn() -> None:
    enqueue_many([echo.bind("x"), note.bind("y"), echo.bind("z")])
    worker = start_worker()

    _, claimed = take_turn([], worker, known=frozenset({note.name}))
    _, more = take_turn([succeeded(claimed[0])], worker, known=frozenset({note.name}))

    assert [run.task_name for run in (*claimed, *more)] == [note.name]
    assert Job.objects.filter(status="waiting", attempt=0).count() == 2


@transactional
def test_debounce_key_is_free_after_a_turn_that_claims_its_job() -> None:
    enqueue(note, "first")
    worker = start_worker()
    (run,) = claim_all(worker)
    enqueue(note.using(key="k", unique="queued"), "x")

    take_turn([succeeded(run)], worker)

    assert enqueue(note.using(key="k", unique="queued"), "y").created


@pytest.mark.race
@transactional
def test_workers_that_take_turns_at_once_record_each_job_once() -> None:
    enqueue_many(note.bind(str(number)) for number in range(200))

    def drain() -> int:
        worker, done, outcomes = start_worker(), 0, list[Outcome]()
        while True:
            finished, runs = take_turn(outcomes, worker, 9)
            done += len(finished.recorded)
            outcomes = [*finished.kept, *map(succeeded, runs)]
            if not outcomes:
                return done

    assert sum(at_once([drain] * 4)) == 200
    assert JobRun.objects.count() == 200
    assert set(JobRun.objects.values_list("attempt", flat=True)) == {1}


@transactional
def test_turn_in_a_callers_transaction_rolls_back_with_it() -> None:
    handle = enqueue(note, "x")
    worker = start_worker()
    (run,) = claim_all(worker)

    with transaction.atomic():
        take_turn([succeeded(run)], worker)
        transaction.set_rollback(True)

    assert handle.status == "running"

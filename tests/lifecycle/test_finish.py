"""One outcome of a claim is recorded, whatever it holds and whoever else writes; a late one changes nothing."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import DatabaseError, OperationalError, connection, transaction

from django_jobs import JobHandle, codec, enqueue, enqueue_many, errors, signals
from django_jobs import cancel as cancel_job
from django_jobs.database import Clock, read_clock
from django_jobs.exceptions import LeaseLost
from django_jobs.lifecycle import finish, release, rescue
from django_jobs.models import DeadLetter, Job, JobKey, JobRun, Worker
from django_jobs.runs import Charge, ClaimedRun, Death, EndedRun, Outcome, Then, WorkerIdentity
from django_jobs.statuses import DeathReason, RunStatus
from tests.lifecycle.steps import ERROR, claim_all, died, failed, finish_all, start_worker, succeeded
from tests.lifecycle.threads import OpenTransaction, Threads
from tests.models import Effect
from tests.tasks import note

transactional = pytest.mark.django_db(transaction=True)
MINUTE = timedelta(minutes=1)


class Heard:
    """What the two signals said."""

    def __init__(self) -> None:
        self.runs: list[EndedRun] = []
        self.letters: list[Death] = []

    def on_runs(self, *, runs: list[EndedRun], **kwargs: Any) -> None:
        self.runs += runs

    def on_letters(self, *, letters: list[Death], **kwargs: Any) -> None:
        self.letters += letters


@pytest.fixture
def heard() -> Iterator[Heard]:
    listener = Heard()
    signals.runs_ended.connect(listener.on_runs)
    signals.jobs_died.connect(listener.on_letters)
    yield listener
    signals.runs_ended.disconnect(listener.on_runs)
    signals.jobs_died.disconnect(listener.on_letters)


def claim_one(label: str = "x", **options: Any) -> tuple[JobHandle, ClaimedRun, WorkerIdentity]:
    worker = start_worker()
    handle = enqueue(note.using(**options), label)
    (run,) = claim_all(worker)
    return handle, run, worker


@pytest.mark.django_db
def test_success_moves_the_job_to_its_run(heard: Heard) -> None:
    handle, run, worker = claim_one(priority=3)
    job = Job.objects.get()

    finished = finish_all([succeeded(run)._replace(result='{"a": [1, "ü"]}', started_after=0.5)], worker)

    assert (len(finished.recorded), finished.lost, finished.kept, finished.refused) == (1, [], [], [])
    assert not Job.objects.exists()
    row = JobRun.objects.get()
    assert (row.job_id, row.claim_number, row.attempt, row.status, row.is_last) == (handle.id, 1, 1, "succeeded", True)
    assert (row.task_name, row.queue_name, row.worker, row.priority) == (note.name, "default", "w", 3)
    assert (row.payload, row.key, row.enqueued_at, row.run_at) == (job.payload, None, job.enqueued_at, job.run_at)
    assert row.started_at == run.claimed_at + timedelta(seconds=0.5)
    assert row.ended_at == row.started_at + timedelta(seconds=0.01)
    assert (row.result, row.error_type, row.error_text, row.traceback) == ({"a": [1, "ü"]}, "", "", "")
    assert [(each.status, each.then, each.attempt) for each in heard.runs] == [(RunStatus.SUCCEEDED, Then.DONE, 1)]
    assert heard.letters == []


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("charge", "counts"),
    [
        (Charge.NOTHING, (0, 0, 0)),
        (Charge.FAILURE, (1, 0, 0)),
        (Charge.CRASH, (0, 1, 0)),
        (Charge.INTERRUPTION, (0, 0, 1)),
    ],
)
@pytest.mark.parametrize("then", [Then.RETRY, Then.RETURN, Then.DIE])
def test_each_run_is_counted_as_what_it_was_charged_for(
    charge: Charge, counts: tuple[int, int, int], then: Then
) -> None:
    _, run, worker = claim_one()

    finish_all([Outcome(run, RunStatus.FAILED, then, charge, delay=MINUTE, error=ERROR)], worker)

    row = DeadLetter.objects.get() if then is Then.DIE else Job.objects.get()
    assert (row.failures, row.crashes, row.interruptions) == counts
    assert row.attempt == 1
    assert JobRun.objects.get().is_last is (then is Then.DIE)


@pytest.mark.django_db
def test_retry_waits_for_its_delay_by_the_database_clock() -> None:
    handle, run, worker = claim_one()
    before = read_clock("default")

    finish_all([failed(run, retry_in=MINUTE)], worker)

    job = Job.objects.get()
    assert (job.status, job.worker_id, job.failures, job.attempt) == ("scheduled", None, 1, 1)
    assert before + MINUTE <= job.run_at <= read_clock("default") + MINUTE
    assert (JobRun.objects.get().error_text, JobRun.objects.get().payload) == ("no", None)
    Job.objects.update(run_at=Clock(-MINUTE))
    (again,) = claim_all(worker)
    assert (again.job_id, again.attempt, again.claim_number, again.failures) == (handle.id, 2, 2, 1)


@pytest.mark.django_db
@pytest.mark.parametrize("delay", [None, timedelta(0)])
def test_retry_without_delay_is_ready_at_once(delay: timedelta | None) -> None:
    handle, run, worker = claim_one()

    finish_all([failed(run, retry_in=delay)], worker)

    assert handle.status == "ready"
    assert Job.objects.get().run_at > run.run_at


@pytest.mark.django_db
def test_snoozed_job_starts_at_the_moment_it_named() -> None:
    handle, run, worker = claim_one()
    until = read_clock("default") + timedelta(days=1)

    finish_all([Outcome(run, RunStatus.RELEASED, Then.RETRY, until=until)], worker)

    assert handle.get().run_at == until
    assert (handle.status, handle.get().failures) == ("scheduled", 0)


@pytest.mark.django_db
def test_returned_job_is_ready_in_its_old_place_with_a_run_on_record() -> None:
    _, run, worker = claim_one()

    finish_all([Outcome(run, RunStatus.RELEASED, Then.RETURN, Charge.INTERRUPTION)], worker)

    job = Job.objects.get()
    assert (job.status, job.run_at, job.interruptions) == ("ready", run.run_at, 1)
    assert JobRun.objects.get().status == "released"


@pytest.mark.django_db
def test_death_writes_the_letter_and_the_run_and_says_so_once(heard: Heard) -> None:
    """RT-07"""
    handle, run, worker = claim_one(key="k", priority=4, max_attempts=2)
    job = Job.objects.get()

    finish_all([died(run)], worker)

    letter = DeadLetter.objects.get()
    assert not Job.objects.exists()
    assert not JobKey.objects.exists()
    assert (letter.job_id, letter.status, letter.reason) == (handle.id, "open", "out_of_tries")
    assert (letter.task_name, letter.queue_name, letter.priority) == (note.name, "default", 4)
    assert (letter.payload, letter.options, letter.key) == (job.payload, {"max_attempts": 2}, "k")
    assert (letter.uniqueness, letter.enqueued_at, letter.run_at) == ("ever", job.enqueued_at, job.run_at)
    assert (letter.error_type, letter.error_text, letter.traceback) == ("ValueError", "no", "Traceback")
    assert (letter.fingerprint, letter.worker, letter.attempt, letter.failures) == ("f1", "w", 1, 1)
    assert (JobRun.objects.get().is_last, JobRun.objects.get().payload) == (True, job.payload)
    assert heard.letters == [
        Death(letter.id, handle.id, note.name, "default", DeathReason.OUT_OF_TRIES, "ValueError", "no")
    ]
    assert len(heard.runs) == 1


@pytest.mark.django_db
def test_batch_of_every_ending_is_recorded_at_once(heard: Heard) -> None:
    worker = start_worker()
    enqueue_many(note.bind(str(number)) for number in range(40))
    runs = claim_all(worker)
    endings: list[Callable[[ClaimedRun], Outcome]] = [succeeded, failed, died, lambda run: failed(run, retry_in=None)]

    finished = finish_all([endings[number % 4](run) for number, run in enumerate(runs)], worker)

    assert len(finished.recorded) == 40
    assert sorted(JobRun.objects.values_list("job_id", flat=True)) == sorted(run.job_id for run in runs)
    assert (Job.objects.count(), DeadLetter.objects.count(), len(heard.letters), len(heard.runs)) == (20, 10, 10, 40)
    assert {each.letter_id for each in heard.letters} == set(DeadLetter.objects.values_list("id", flat=True))


@pytest.mark.django_db
def test_more_outcomes_than_one_statement_takes_are_all_recorded(heard: Heard) -> None:
    worker = start_worker()
    enqueue_many(note.bind(str(number)) for number in range(250))
    runs = claim_all(worker, 250)

    finished = finish_all([succeeded(run) for run in runs], worker)

    assert len(finished.recorded) == len(heard.runs) == JobRun.objects.count() == 250


@pytest.mark.django_db
@pytest.mark.parametrize("late_ending", [succeeded, failed, died])
def test_late_finisher_changes_nothing_and_is_logged_once(
    late_ending: Callable[[ClaimedRun], Outcome], heard: Heard, caplog: pytest.LogCaptureFixture
) -> None:
    """CL-02"""
    handle, late_run, late = claim_one(key="k")
    Worker.objects.filter(id=late.id).update(lease_expires_at=Clock(-MINUTE))
    rescue.rescue(using="default")
    Job.objects.update(run_at=Clock(-MINUTE))
    second = start_worker("second")
    (run,) = claim_all(second)
    finish_all([succeeded(run)], second)
    before = [list(model.objects.order_by("pk").values()) for model in (Job, JobRun, DeadLetter, JobKey)]
    heard.runs.clear()
    caplog.clear()

    with caplog.at_level("WARNING", logger="django_jobs"):
        finished = finish_all([late_ending(late_run)], late)

    assert [outcome.run for outcome in finished.lost] == [late_run]
    assert [list(model.objects.order_by("pk").values()) for model in (Job, JobRun, DeadLetter, JobKey)] == before
    assert handle.status == "succeeded"
    assert (heard.runs, heard.letters) == ([], [])
    assert [record.getMessage().split(" task=")[0] for record in caplog.records] == ["lease lost"]


@pytest.mark.django_db
def test_late_finisher_of_a_job_that_runs_again_changes_nothing() -> None:
    """CL-02: the second claim is still under way."""
    handle, late_run, late = claim_one()
    Worker.objects.filter(id=late.id).update(lease_expires_at=Clock(-MINUTE))
    rescue.rescue(using="default")
    Job.objects.update(run_at=Clock(-MINUTE))
    second = start_worker("second")
    (run,) = claim_all(second)

    finished = finish_all([died(late_run)], late)

    assert (len(finished.lost), handle.status, DeadLetter.objects.count()) == (1, "running", 0)
    assert finish_all([succeeded(run)], second).recorded


@pytest.mark.django_db
@pytest.mark.parametrize("ending", [succeeded, failed, died])
@pytest.mark.parametrize("is_charged", [True, False])
def test_late_finisher_of_a_job_that_was_taken_back_changes_nothing(
    ending: Callable[[ClaimedRun], Outcome], is_charged: bool
) -> None:
    """CL-02: nobody has claimed it again, so that its claim number is still the late one's."""
    _, late_run, late = claim_one()
    if is_charged:
        Worker.objects.filter(id=late.id).update(lease_expires_at=Clock(-MINUTE))
        rescue.rescue(using="default")
    else:  # as never started: no run takes the place of the late one
        release.release({late_run[:2]}, late, using="default")
    before = [list(model.objects.order_by("pk").values()) for model in (Job, JobRun, DeadLetter)]

    assert finish_all([ending(late_run)], late).lost

    assert [list(model.objects.order_by("pk").values()) for model in (Job, JobRun, DeadLetter)] == before


@pytest.mark.django_db
@pytest.mark.parametrize("ending", [succeeded, failed, died])
def test_fence_of_the_same_worker_is_its_claim_number(ending: Callable[[ClaimedRun], Outcome]) -> None:
    """A worker may claim a job again while an outcome of its first claim is still in its hands."""
    handle, first, worker = claim_one()
    Job.objects.update(status="ready", worker_id=None)
    (second,) = claim_all(worker)

    assert finish_all([ending(first)], worker).lost
    assert handle.status == "running"
    assert finish_all([succeeded(second)], worker).recorded


@pytest.mark.django_db
@pytest.mark.parametrize("ending", [succeeded, failed, died])
def test_outcome_given_again_after_a_lost_answer_is_recorded_not_lost(
    ending: Callable[[ClaimedRun], Outcome], heard: Heard
) -> None:
    """CL-15, RT-07: the first try committed, and its caller never learned it."""
    _, run, worker = claim_one(key="k")
    finish.record([ending(run)], worker, using="default")
    before = [list(model.objects.order_by("pk").values()) for model in (Job, JobRun, DeadLetter, JobKey)]

    finished = finish_all([ending(run)], worker)

    assert (len(finished.recorded), finished.lost) == (1, [])
    assert [list(model.objects.order_by("pk").values()) for model in (Job, JobRun, DeadLetter, JobKey)] == before
    assert len(heard.runs) == 1
    assert len(heard.letters) == (ending is died)


@transactional
@pytest.mark.parametrize("ending", [succeeded, failed, died])
def test_outcome_whose_write_failed_can_be_given_again(ending: Callable[[ClaimedRun], Outcome]) -> None:
    """CL-15: the connection broke just before, so nothing is half done."""
    handle, run, worker = claim_one()

    def break_at_the_run(execute: Any, sql: str, *rest: Any) -> Any:
        if "INSERT INTO" in sql and "django_jobs_jobrun" in sql:
            raise OperationalError("gone")
        return execute(sql, *rest)

    with connection.execute_wrapper(break_at_the_run), pytest.raises(OperationalError):
        finish_all([ending(run)], worker)
    connection.close()
    assert handle.status == "running"

    assert finish_all([ending(run)], worker).recorded
    assert JobRun.objects.count() == 1


@pytest.mark.race
@transactional
@pytest.mark.parametrize("ending", [succeeded, failed])
def test_row_that_somebody_locks_is_kept_and_not_waited_for(ending: Callable[[ClaimedRun], Outcome]) -> None:
    if connection.vendor == "sqlite":
        return  # one lock for the whole file, waited for by its own timeout
    worker = start_worker()
    locked = enqueue(note, "locked")
    enqueue(note, "free")
    runs = claim_all(worker)
    with Threads() as threads:
        holder = OpenTransaction(threads, lambda: cancel_job(locked.id))
        finished = finish_all([ending(run) for run in runs], worker)
        holder.end(commits=False)

    assert [outcome.run.job_id for outcome in finished.kept] == [locked.id]
    assert len(finished.recorded) == 1
    assert finished.lost == []
    assert finish_all(finished.kept, worker).recorded


NAN = '{"x": NaN}'
BAD_RESULTS = {"postgresql": [NAN, '"a\\u0000b"', '"\\ud800"', "{", "[" * 50_000]}


def bad_results() -> list[str]:
    return BAD_RESULTS.get(connection.vendor, [NAN, "{"])


@transactional
@pytest.mark.parametrize("number", range(5))
@pytest.mark.parametrize("others", [0, 7, 99])
def test_result_that_no_database_stores_kills_its_own_job_only(
    number: int, others: int, heard: Heard, caplog: pytest.LogCaptureFixture
) -> None:
    if number >= len(bad_results()):
        return
    worker = start_worker()
    enqueue_many(note.using(key=str(each)).bind(str(each)) for each in range(others + 1))
    runs = claim_all(worker, 100)
    outcomes = [succeeded(run) for run in runs]
    bad = others // 2
    outcomes[bad] = outcomes[bad]._replace(result=bad_results()[number])

    finished = finish_all(outcomes, worker)

    assert (len(finished.recorded), finished.lost, finished.kept, finished.refused) == (others + 1, [], [], [])
    assert JobRun.objects.filter(status="succeeded").count() == others
    letter = DeadLetter.objects.get()
    assert (letter.job_id, letter.reason, letter.failures) == (runs[bad].job_id, "bad_row", 1)
    assert letter.error_text.startswith("The outcome (succeeded) could not be stored: ")
    assert codec.decode_call(letter.payload) == codec.decode_call(runs[bad].payload)
    assert JobKey.objects.count() == others
    assert len(heard.runs) == others + 1
    assert len(heard.letters) == 1
    assert not Job.objects.exists()


@transactional
@pytest.mark.parametrize(
    "fields",
    [
        {"duration": float("nan")},
        {"duration": float("inf")},
        {"started_after": 1e300},
        {"delay": timedelta.max},
        {"error": errors.ErrorRecord("E" * 5_000, "\ud800", "", "f" * 500)},
        {"error": errors.ErrorRecord("E", "t", "", "f" * 500)},
    ],
    ids=lambda fields: str(fields)[:30],
)
def test_outcome_with_absurd_values_ends_its_job_all_the_same(fields: dict[str, Any]) -> None:
    worker = start_worker()
    handles = enqueue_many([note.bind("bad"), note.bind("good")])
    bad, good = claim_all(worker)
    is_delayed = "delay" in fields
    outcome = failed(bad) if is_delayed else died(bad)

    finished = finish_all([outcome._replace(**fields), succeeded(good)], worker)

    assert len(finished.recorded) == 2
    assert [handle.status for handle in handles] == [handles[0].status, "succeeded"]
    assert handles[0].status == "dead" or connection.vendor == "sqlite"


@pytest.mark.django_db
@pytest.mark.parametrize("text", ["a\0b", "\ud800", "\x1b[31m", "x" * 10**6, "\U0001f600" * 9, "'; DROP TABLE x; --"])
def test_error_text_of_any_kind_is_stored(text: str) -> None:
    """PL-02"""
    handle, run, worker = claim_one()
    record = errors.describe(ValueError(text))

    finish_all([died(run)._replace(error=record)], worker)

    letter = DeadLetter.objects.get()
    assert (letter.reason, letter.error_text, letter.traceback) == ("out_of_tries", record.text, record.traceback)
    assert "\0" not in letter.error_text
    assert handle.get().error_text == record.text


@transactional
def test_row_that_the_database_refuses_in_any_form_stops_nobody_else(caplog: pytest.LogCaptureFixture) -> None:
    """Somebody put a job back by hand whose end is on record already."""
    worker = start_worker()
    handles = enqueue_many([note.bind("bad"), note.bind("good")])
    runs = claim_all(worker)
    now = Clock()
    JobRun.objects.create(
        job_id=handles[0].id, claim_number=1, attempt=1, status="lost", is_last=False, task_name="t", ended_at=now
    )

    finished = finish_all([succeeded(run) for run in runs], worker)

    assert [outcome.run.job_id for outcome in finished.refused] == [handles[0].id]
    assert (handles[0].status, handles[1].status) == ("running", "succeeded")
    assert sum("outcome refused" in record.getMessage() for record in caplog.records) == 1


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("unique", "key_ttl", "expected"),
    [("ever", None, None), ("ever", MINUTE, MINUTE), ("live", MINUTE, "gone"), ("queued", None, "gone")],
)
def test_success_settles_the_key(unique: str, key_ttl: timedelta | None, expected: timedelta | str | None) -> None:
    _, run, worker = claim_one(key="k", unique=unique)

    finish_all([succeeded(run, key_ttl=key_ttl)], worker)

    left = JobKey.objects.first()
    if expected == "gone":
        assert left is None
    elif expected is None:
        assert left is not None
        assert left.expires_at is None
    else:
        assert left is not None
        assert left.expires_at is not None
        assert abs(left.expires_at - read_clock("default") - MINUTE) < timedelta(seconds=20)


KILLED = """
import django, os, sys; django.setup()
from django.db import connection
from django_jobs import registry
from django_jobs.lifecycle import claim, extend
from tests.lifecycle.steps import died, finish_all
seen, stop = 0, int(sys.argv[1])
def count(execute, sql, *rest):
    global seen
    if seen == stop:
        os._exit(9)
    seen += 1
    return execute(sql, *rest)
worker = extend.register("w", None, registry.names(), using="default")
(run,) = claim.claim(worker, None, 1, frozenset(registry.names()), using="default")
with connection.execute_wrapper(count):
    finish_all([died(run)], worker)
"""


@pytest.mark.race
@transactional
@pytest.mark.timeout(180)
def test_process_killed_at_any_statement_of_a_death_leaves_the_job_or_one_letter(
    process_environment: dict[str, str],
) -> None:
    """RT-08"""
    for statement in itertools.count():
        handle = enqueue(note.using(key=str(statement)), "x")
        code = subprocess.run([sys.executable, "-c", KILLED, str(statement)], env=process_environment, check=False)
        jobs, letters = Job.objects.filter(id=handle.id), DeadLetter.objects.filter(job_id=handle.id)

        assert (jobs.count(), letters.count()) == ((1, 0) if code.returncode else (0, 1))
        assert JobKey.objects.filter(key=str(statement)).exists() is jobs.exists()
        jobs.delete()
        if not code.returncode:
            break

    assert statement >= 4


@transactional
def test_atomic_finish_takes_its_transactions_effects_along() -> None:
    handle, run, worker = claim_one()

    with transaction.atomic():
        Effect.objects.create(label="kept")
        finish.finish_atomically(succeeded(run), worker, using="default")

    assert handle.status == "succeeded"
    assert Effect.objects.count() == 1


@transactional
def test_atomic_finish_without_the_lease_raises_and_the_effects_roll_back(caplog: pytest.LogCaptureFixture) -> None:
    """CL-02"""
    handle, run, worker = claim_one()
    cancel_job(handle.id)

    with pytest.raises(LeaseLost, match=str(handle.id)):
        _finish_with_an_effect(run, worker)

    assert handle.status == "cancelled"
    assert not Effect.objects.exists()
    assert sum("lease lost" in record.getMessage() for record in caplog.records) == 1


@transaction.atomic
def _finish_with_an_effect(run: ClaimedRun, worker: WorkerIdentity) -> None:
    Effect.objects.create(label="undone")
    finish.finish_atomically(succeeded(run), worker, using="default")


@pytest.mark.race
@transactional
def test_atomic_finish_waits_for_whoever_locks_the_row() -> None:
    if connection.vendor == "sqlite":
        return
    handle, run, worker = claim_one()
    with Threads() as threads:
        holder = OpenTransaction(threads, lambda: cancel_job(handle.id))
        finisher = threads.start(lambda: finish.finish_atomically(succeeded(run), worker, using="default"))
        holder.end(commits=False)
        finisher.result()

    assert handle.status == "succeeded"


@pytest.mark.django_db
def test_nothing_to_finish_asks_nothing(django_assert_num_queries: Any) -> None:
    worker = start_worker()
    with django_assert_num_queries(0):
        assert finish_all([], worker).recorded == []


@pytest.mark.django_db
def test_listener_that_raises_changes_nothing(heard: Heard) -> None:
    def explode(**kwargs: Any) -> None:
        raise DatabaseError("a listener's own")

    signals.runs_ended.connect(explode)
    try:
        handle, run, worker = claim_one()
        finish_all([succeeded(run)], worker)
    finally:
        signals.runs_ended.disconnect(explode)

    assert handle.status == "succeeded"
    assert len(heard.runs) == 1

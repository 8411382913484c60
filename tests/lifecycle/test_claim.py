"""A claim takes due jobs in order, each once, and costs the same whatever else lies in the tables."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from django_jobs import cancel, codec, enqueue, enqueue_many, registry
from django_jobs.database import Clock, read_clock
from django_jobs.lifecycle import claim, release
from django_jobs.models import Job, JobRun
from django_jobs.runs import ClaimedRun, WorkerIdentity
from tests.lifecycle.steps import finish_all, start_worker, succeeded
from tests.lifecycle.threads import OpenTransaction, Threads, at_once
from tests.tasks import echo, mail, note

transactional = pytest.mark.django_db(transaction=True)
NAMES = frozenset(registry.names())
MINUTE = timedelta(minutes=1)


def take(
    worker: WorkerIdentity, limit: int = 100, *, queues: Sequence[str] | None = None, known: frozenset[str] = NAMES
) -> list[ClaimedRun]:
    return claim.claim(worker, queues, limit, known, using="default")


def labels(runs: Sequence[ClaimedRun]) -> list[Any]:
    return [codec.decode_call(run.payload)[0][0] for run in runs]


@pytest.mark.django_db
def test_order_is_priority_then_due_time_then_id() -> None:
    """CL-22"""
    now = read_clock("default")
    for label, priority, age in [("d", 0, 5), ("c", 0, 9), ("f", -5, 99), ("a", 10, 1), ("e", 0, 5), ("b", 10, 1)]:
        enqueue(note.using(priority=priority), label)
        Job.objects.filter(payload__args=[label]).update(run_at=now - age * MINUTE)

    one_by_one = [label for _ in range(6) for label in labels(take(start_worker(), 1))]

    assert one_by_one == ["a", "b", "c", "d", "e", "f"]


@pytest.mark.django_db
@pytest.mark.parametrize("microsecond", [0, 1, 123457, 499999, 999999])
@pytest.mark.parametrize("year", [1971, 2026, 2100])
def test_claimed_times_are_those_of_the_row_to_the_microsecond(year: int, microsecond: int) -> None:
    enqueue(note, "x")
    moment = datetime(year, 3, 29, 1, 30, 59, microsecond, tzinfo=UTC)
    Job.objects.update(run_at=moment, enqueued_at=moment + timedelta(microseconds=1))

    (run,) = take(start_worker())

    job = Job.objects.get()
    assert (run.run_at, run.enqueued_at, run.claimed_at) == (job.run_at, job.enqueued_at, job.claimed_at)
    assert run.run_at == moment


@pytest.mark.postgres
@pytest.mark.django_db
@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/St_Johns", "UTC"])
def test_claimed_times_are_naive_and_local_as_all_of_a_project_without_time_zones(
    zone: str,
    settings: Any,
) -> None:
    enqueue(note, "x")
    settings.USE_TZ, settings.TIME_ZONE = False, zone

    (run,) = take(start_worker())

    job = Job.objects.get()
    assert run.run_at.tzinfo is None
    assert (run.run_at, run.enqueued_at, run.claimed_at) == (job.run_at, job.enqueued_at, job.claimed_at)


@pytest.mark.postgres
@pytest.mark.django_db
@pytest.mark.parametrize("moment", ["infinity", "-infinity", "4713-01-01 BC", "290000-01-01"])
def test_a_time_that_python_does_not_know_stops_no_claim(moment: str) -> None:
    enqueue_many([note.bind("x"), note.bind("y")])
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE django_jobs_job SET run_at = %s, enqueued_at = %s WHERE payload->'args'->>0 = 'x'", [moment] * 2
        )

    assert sorted(labels(take(start_worker()))) == ["x", "y"]


@pytest.mark.django_db
def test_batch_is_in_the_same_order() -> None:
    handles = enqueue_many(note.using(priority=number % 3).bind(str(number)) for number in range(30))

    runs = take(start_worker(), 20)

    expected = sorted(range(30), key=lambda number: (-(number % 3), number))
    assert labels(runs) == [str(number) for number in expected[:20]]
    assert {run.job_id for run in runs} <= {handle.id for handle in handles}


@pytest.mark.django_db
def test_recovered_job_keeps_its_priority_and_place() -> None:
    """CL-22"""
    enqueue_many(note.using(priority=number).bind(str(number)) for number in range(3))
    worker = start_worker()
    (first,) = take(worker, 1)
    release.release([first[:2]], worker, using="default")

    assert labels(take(worker)) == ["2", "1", "0"]


@pytest.mark.django_db
def test_claim_says_what_it_took() -> None:
    handle = enqueue(echo.using(queue_name="q", priority=3, key="k", max_attempts=2), 1, a=2)
    worker = start_worker()
    before = read_clock("default")

    (run,) = take(worker)

    job = Job.objects.get()
    assert (run.job_id, run.claim_number, run.attempt, run.task_name) == (handle.id, 1, 1, echo.name)
    assert (run.queue_name, run.priority, run.key, run.uniqueness) == ("q", 3, "k", "ever")
    assert (codec.decode_call(run.payload), run.options) == (([1], {"a": 2}), {"max_attempts": 2})
    assert (run.failures, run.crashes, run.interruptions) == (0, 0, 0)
    assert before <= run.claimed_at <= read_clock("default")
    assert (run.run_at, run.enqueued_at, run.claimed_at) == (job.run_at, job.enqueued_at, job.claimed_at)
    assert (job.status, job.worker_id, job.claim_number, job.attempt) == ("running", worker.id, 1, 1)


@pytest.mark.race
@transactional
def test_two_workers_never_take_the_same_job() -> None:
    handles = enqueue_many(note.bind(str(number)) for number in range(200))

    def drain() -> list[ClaimedRun]:
        worker, taken = start_worker(), list[ClaimedRun]()
        while runs := take(worker, 7):
            taken += runs
        return taken

    drained = at_once([drain] * 4)

    taken = [run.job_id for runs in drained for run in runs]
    assert sorted(taken) == sorted(handle.id for handle in handles)
    assert set(Job.objects.values_list("status", "attempt", "claim_number")) == {("running", 1, 1)}


@pytest.mark.mariadb
@pytest.mark.race
@transactional
def test_database_that_cannot_skip_locked_rows_waits_for_them_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    """MariaDB before 10.6."""
    enqueue_many(note.bind(str(number)) for number in range(40))
    monkeypatch.setattr(type(connection.features), "has_select_for_update_skip_locked", False)

    def drain() -> list[uuid.UUID]:
        worker, taken = start_worker(), list[uuid.UUID]()
        while runs := take(worker, 3):
            taken += [run.job_id for run in runs]
        return taken

    drained = at_once([drain] * 3)

    assert len([job_id for ids in drained for job_id in ids]) == 40
    assert set(Job.objects.values_list("claim_number", flat=True)) == {1}


DRAIN = """
import django; django.setup()
from django_jobs import registry
from django_jobs.lifecycle import claim, extend, finish
from django_jobs.runs import Outcome, Then
from django_jobs.statuses import RunStatus
names = registry.names()
worker = extend.register("", None, names, using="default")
while runs := claim.claim(worker, None, 7, frozenset(names), using="default"):
    finish.finish([Outcome(run, RunStatus.SUCCEEDED, Then.DONE) for run in runs], worker, using="default")
"""


@pytest.mark.race
@transactional
def test_four_processes_record_each_of_two_hundred_jobs_once(process_environment: dict[str, str]) -> None:
    """CL-01"""
    handles = enqueue_many(note.bind(str(number)) for number in range(200))

    processes = [subprocess.Popen([sys.executable, "-c", DRAIN], env=process_environment) for _ in range(4)]
    codes = [process.wait(60) for process in processes]

    assert codes == [0] * 4
    assert sorted(JobRun.objects.values_list("job_id", flat=True)) == sorted(handle.id for handle in handles)
    assert set(JobRun.objects.values_list("attempt", "status")) == {(1, "succeeded")}
    assert Job.objects.count() == 0


@pytest.mark.sqlite
@pytest.mark.race
@transactional
def test_processes_on_sqlite_as_a_new_project_has_it_do_not_fail(process_environment: dict[str, str]) -> None:
    """WK-20: transactions that begin as a read, and wait for five seconds."""
    enqueue_many(note.bind(str(number)) for number in range(100))
    environment = {**process_environment, "SQLITE_DEFAULTS": "1"}

    processes = [subprocess.Popen([sys.executable, "-c", DRAIN], env=environment) for _ in range(4)]

    assert [process.wait(60) for process in processes] == [0] * 4
    assert set(JobRun.objects.values_list("attempt", "status")) == {(1, "succeeded")}
    assert (JobRun.objects.count(), Job.objects.count()) == (100, 0)


@pytest.mark.race
@transactional
def test_row_that_somebody_locks_is_left_out_and_not_waited_for() -> None:
    locked, free = enqueue(note, "locked"), enqueue(note, "free")
    if connection.vendor == "sqlite":
        return  # one lock for the whole file; see the next test
    with Threads() as threads:
        holder = OpenTransaction(threads, lambda: cancel(locked.id))
        runs = take(start_worker())
        holder.end(commits=False)

    assert [run.job_id for run in runs] == [free.id]


@transactional
def test_scheduled_job_is_not_claimed_before_it_is_due() -> None:
    handle = enqueue(note.using(delay=60), "x")
    worker = start_worker()
    assert claim.promote(using="default") == 0
    assert take(worker) == []
    assert 59 < (claim.look(None, using="default").due_in or 0) < 60.1
    Job.objects.update(run_at=Clock(-MINUTE))

    assert -61 < (claim.look(None, using="default").due_in or 0) < -59.9  # SQLite tells days as a float
    assert claim.promote(using="default") == 1

    assert [run.job_id for run in take(worker)] == [handle.id]
    assert claim.look(None, using="default").due_in is None


@pytest.mark.django_db
def test_run_at_in_the_past_is_ready_at_once_and_keeps_its_time() -> None:
    moment = read_clock("default") - MINUTE

    handle = enqueue(note.using(run_at=moment), "x")

    assert handle.status == "ready"
    assert Job.objects.get().run_at == moment


@pytest.mark.django_db
def test_promotion_takes_a_batch_of_what_is_due_the_oldest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim, "PROMOTE_BATCH", 2)
    for minutes in (1, 3, 2, -1):
        enqueue(note.using(delay=60), str(minutes))
        Job.objects.filter(payload__args=[str(minutes)]).update(run_at=Clock(-minutes * MINUTE))

    promoted = [claim.promote(using="default") for _ in range(3)]

    assert promoted == [2, 1, 0]
    assert labels(take(start_worker())) == ["3", "2", "1"]


@pytest.mark.race
@transactional
def test_promotion_by_many_at_once_counts_each_job_once() -> None:
    enqueue_many(note.using(delay=60).bind(str(number)) for number in range(100))
    Job.objects.update(run_at=Clock(-MINUTE))

    assert sum(at_once([lambda: claim.promote(using="default")] * 4)) == 100


@pytest.mark.django_db
def test_worker_serves_the_queues_it_was_given_only() -> None:
    enqueue(note, "default")
    enqueue(mail, "mail")
    enqueue(note.using(queue_name="other"), "other")
    worker = start_worker()

    assert labels(take(worker, queues=["mail"])) == ["mail"]
    assert labels(take(worker, queues=["none", "other"])) == ["other"]
    assert take(worker, queues=[]) == []
    assert labels(take(worker)) == ["default"]


@pytest.mark.django_db
@pytest.mark.parametrize(("rand", "first"), [(0.0, "a"), (0.34, "b"), (0.99, "c")])
def test_any_queue_may_come_first_so_that_a_full_one_starves_no_other(rand: float, first: str) -> None:
    for queue_name in ("a", "b", "c"):
        enqueue_many(note.using(queue_name=queue_name).bind(queue_name) for _ in range(3))

    runs = claim.claim(start_worker(), None, 3, NAMES, using="default", rand=lambda: rand)

    assert labels(runs) == [first] * 3


@pytest.mark.django_db
def test_what_one_queue_lacks_is_taken_from_the_next() -> None:
    for queue_name in ("a", "b", "c"):
        enqueue(note.using(queue_name=queue_name), queue_name)

    assert sorted(labels(take(start_worker(), 2)) + labels(take(start_worker(), 2))) == ["a", "b", "c"]


@pytest.mark.django_db
def test_unknown_task_is_parked_uncharged_and_does_not_block_what_lies_behind() -> None:
    """DP-01, DP-02"""
    unknown = enqueue(echo.using(priority=100), "new")
    behind = enqueue_many(note.bind(str(number)) for number in range(5))
    worker = start_worker()

    runs = take(worker, known=frozenset({note.name}))

    assert [run.job_id for run in runs] == [handle.id for handle in behind]
    job = Job.objects.get(id=unknown.id)
    assert (job.status, job.attempt, job.worker_id) == ("waiting", 0, None)
    assert job.waiting_since is not None
    assert unknown.get().why.startswith("No worker that looked at it knows a task named 'tests.tasks.echo'. Declare it")


@pytest.mark.django_db
def test_worker_that_knows_the_task_claims_what_others_parked_in_its_place_in_the_queue() -> None:
    """DP-02: the old worker leaves all of them, the new one runs all of them, and no attempt is used up."""
    new = enqueue_many(echo.using(priority=1).bind(str(number)) for number in range(20))
    enqueue(note, "old")
    old_worker, new_worker = start_worker("old"), start_worker("new")
    assert labels(take(old_worker, known=frozenset({note.name}))) == ["old"]
    enqueue(echo.using(priority=2), "first")

    runs = take(new_worker)

    assert [run.job_id for run in runs[1:]] == [handle.id for handle in new]
    assert {run.attempt for run in runs} == {1}
    assert labels(runs)[0] == "first"
    finish_all([succeeded(run) for run in runs], new_worker)
    assert {handle.status for handle in new} == {"succeeded"}


@pytest.mark.django_db
def test_parked_job_of_another_queue_is_left_alone() -> None:
    enqueue(echo.using(queue_name="q"), "x")
    take(start_worker(), known=frozenset({note.name}))

    assert take(start_worker(), queues=["default"]) == []
    assert labels(take(start_worker(), queues=["q"])) == ["x"]


@pytest.mark.django_db
def test_parked_jobs_come_back_although_the_worker_has_enough_to_do() -> None:
    parked = enqueue(echo.using(priority=5), "parked")
    take(start_worker(), known=frozenset({note.name}))
    enqueue_many(note.bind(str(number)) for number in range(10))

    (run,) = take(start_worker(), 1)

    assert run.job_id == parked.id


@pytest.mark.django_db
def test_many_unknown_jobs_are_parked_by_few_statements(monkeypatch: pytest.MonkeyPatch) -> None:
    enqueue_many(echo.bind(str(number)) for number in range(1_500))
    known = enqueue(note, "known")
    worker = start_worker()

    with CaptureQueriesContext(connection) as captured:
        (run,) = take(worker, 1, known=frozenset({note.name}))

    assert run.job_id == known.id
    assert Job.objects.filter(status="waiting", attempt=0).count() == 1_500
    assert len(captured) < 60


@pytest.mark.django_db
def test_debounce_key_is_free_as_soon_as_the_claim_returns() -> None:
    enqueue(note.using(key="k", unique="queued"), "x")
    take(start_worker())

    assert enqueue(note.using(key="k", unique="queued"), "y").created


@transactional
def test_nothing_to_do_writes_nothing() -> None:
    """An idle worker must not ask SQLite for its only write lock, nor write to any log of the database."""
    worker = start_worker()
    enqueue(note.using(delay=60), "later")

    with CaptureQueriesContext(connection) as captured:
        claim.promote(using="default")
        assert take(worker) == []
        assert take(worker, queues=["default"]) == []

    statements = [query["sql"].lstrip().split()[0] for query in captured]
    assert set(statements) <= {"SELECT", "WITH"}, captured.captured_queries


@transactional
def test_no_transaction_is_open_after_a_claim() -> None:
    """CL-20: another session can lock the claimed row at once."""
    handle = enqueue(note, "x")
    take(start_worker())
    nowait = connection.features.has_select_for_update_nowait

    def lock() -> int:
        with transaction.atomic():
            return len(Job.objects.filter(id=handle.id).select_for_update(nowait=nowait))

    with Threads() as threads:
        assert threads.start(lock).result() == 1

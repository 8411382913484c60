"""Jobs of a worker that is gone are taken back, counted as crashes, and nobody else's are touched."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.test import override_settings

from django_jobs import cancel, enqueue, enqueue_many, signals
from django_jobs.database import Clock, read_clock
from django_jobs.lifecycle import claim, extend, release, rescue
from django_jobs.models import DeadLetter, Job, JobKey, JobRun, Worker
from django_jobs.runs import WorkerIdentity
from tests.lifecycle.steps import claim_all, claim_alone, finish_all, start_worker, succeeded
from tests.lifecycle.threads import OpenTransaction, Threads, at_once
from tests.tasks import echo, mail, note

transactional = pytest.mark.django_db(transaction=True)
PAST = timedelta(seconds=-1)


def expire(worker: WorkerIdentity) -> None:
    Worker.objects.filter(id=worker.id).update(lease_expires_at=Clock(PAST))


@pytest.mark.django_db
def test_only_workers_whose_lease_is_over_lose_their_jobs() -> None:
    dead, alive = start_worker("dead"), start_worker("alive")
    lost, kept = enqueue(note, "lost"), enqueue(note, "kept")
    claim_all(dead, 1)
    (run,) = claim_all(alive, 1)
    expire(dead)
    before = read_clock("default")

    assert rescue.rescue(using="default") == 1

    job = Job.objects.get(id=lost.id)
    assert (job.status, job.crashes, job.failures, job.attempt, job.worker_id) == ("scheduled", 1, 0, 1, None)
    assert before <= job.run_at <= before + timedelta(minutes=10)
    row = JobRun.objects.get()
    assert (row.job_id, row.status, row.error_type, row.worker) == (lost.id, "lost", "WorkerLost", "dead")
    assert kept.status == "running"
    assert finish_all([succeeded(run)], alive).recorded
    assert list(Worker.objects.values_list("name", flat=True)) == ["alive"]
    assert rescue.rescue(using="default") == 0


@pytest.mark.django_db
def test_third_crash_is_the_last_one() -> None:
    """CL-09: exactly three starts, then one letter that says worker lost; backoff between the starts."""
    handle = enqueue(note.using(key="k"), "x")
    statuses = []
    for _ in range(3):
        worker = start_worker()
        assert len(claim_alone(worker)) == 1
        expire(worker)
        rescue.rescue(using="default")
        statuses.append(handle.status)
        Job.objects.update(run_at=Clock(PAST))

    assert statuses == ["scheduled", "scheduled", "dead"]
    letter = DeadLetter.objects.get()
    assert (letter.reason, letter.crashes, letter.failures, letter.attempt) == ("worker_lost", 3, 0, 3)
    assert letter.get_reason_display() == "worker lost"
    assert JobRun.objects.filter(status="lost").count() == 3
    assert not JobKey.objects.exists()


@pytest.mark.django_db
def test_number_of_crashes_is_a_setting_and_apart_from_failures() -> None:
    handle = enqueue(note, "x")
    worker = start_worker()
    claim_all(worker)
    Job.objects.update(failures=4)
    expire(worker)

    with override_settings(DJANGO_JOBS={"MAX_CRASHES": 1}):
        rescue.rescue(using="default")

    assert handle.status == "dead"
    assert (DeadLetter.objects.get().crashes, DeadLetter.objects.get().failures) == (1, 4)


@pytest.mark.django_db
def test_jobs_of_a_worker_without_a_row_are_taken_back() -> None:
    handle = enqueue(note, "x")
    worker = start_worker()
    claim_all(worker)
    extend.retire(worker, using="default")

    assert rescue.rescue(using="default") == 1
    assert handle.status == "scheduled"


@pytest.mark.postgres
@pytest.mark.mariadb  # SQLite without WAL lets nobody write while the look is still being read
@transactional
def test_heartbeat_that_comes_between_the_look_and_the_lock_saves_the_jobs() -> None:
    handle = enqueue(note, "x")
    worker = start_worker()
    claim_all(worker)
    expire(worker)
    beats = 0

    def beat(execute: Any, sql: str, *rest: Any) -> Any:
        nonlocal beats
        result = execute(sql, *rest)
        if sql.startswith("SELECT") and "django_jobs_worker" in sql and not beats:
            beats += 1
            with Threads() as threads:
                assert threads.start(lambda: extend.extend(worker, using="default")).result()
        return result

    with connection.execute_wrapper(beat):
        assert rescue.rescue(using="default") == 0

    assert beats == 1
    assert handle.status == "running"
    assert Worker.objects.count() == 1


@pytest.mark.race
@transactional
def test_several_rescuers_take_each_job_once() -> None:
    enqueue_many(note.bind(str(number)) for number in range(30))
    worker = start_worker()
    claim_all(worker)
    expire(worker)

    assert sum(at_once([lambda: rescue.rescue(using="default")] * 4)) == 30
    assert set(Job.objects.values_list("crashes", flat=True)) == {1}
    assert JobRun.objects.count() == 30


@pytest.mark.django_db
def test_worker_known_to_be_dead_loses_its_jobs_at_once() -> None:
    handle = enqueue(note, "x")
    worker = start_worker()
    claim_all(worker)

    assert rescue.rescue_worker(worker, using="default") == 0
    assert rescue.rescue_worker(worker, using="default", at_once=True) == 1
    assert handle.status == "scheduled"
    assert not Worker.objects.exists()


@pytest.mark.django_db
def test_worker_with_more_jobs_than_the_limit_is_emptied_in_several_rounds() -> None:
    enqueue_many(note.bind(str(number)) for number in range(5))
    worker = start_worker()
    claim_all(worker)
    expire(worker)

    rounds = [rescue.rescue(using="default", limit=2) for _ in range(4)]

    assert rounds == [2, 2, 1, 0]
    assert not Worker.objects.exists()


@pytest.mark.race
@transactional
def test_job_that_somebody_locks_is_left_for_the_next_round() -> None:
    if connection.vendor == "sqlite":
        return
    locked = enqueue(note, "locked")
    enqueue(note, "free")
    worker = start_worker()
    claim_all(worker)
    expire(worker)

    with Threads() as threads:
        canceller = OpenTransaction(threads, lambda: cancel(locked.id))
        first = rescue.rescue(using="default")
        canceller.end(commits=False)

    assert (first, rescue.rescue(using="default")) == (1, 1)


@pytest.mark.race
@transactional
def test_rescue_of_a_dead_worker_says_that_somebody_locks_one_of_its_jobs() -> None:
    if connection.vendor == "sqlite":
        return
    locked = enqueue(note, "locked")
    enqueue(note, "free")
    worker = start_worker()
    claim_all(worker)

    with Threads() as threads:
        canceller = OpenTransaction(threads, lambda: cancel(locked.id))
        first = rescue.rescue_dead(worker.id, rescue.UNSEEN, using="default")
        canceller.end(commits=False)

    assert not first
    assert rescue.rescue_dead(worker.id, rescue.UNSEEN, using="default")
    assert set(Job.objects.values_list("crashes", flat=True)) == {1}


@transactional
def test_signals_go_out_after_the_commit() -> None:
    handle = enqueue(note, "x")
    worker = start_worker()
    claim_all(worker)
    Job.objects.update(crashes=2, waiting_since=Clock())
    expire(worker)
    seen: list[tuple[str, bool]] = []

    def listen(**kwargs: object) -> None:
        seen.append((handle.status, connection.in_atomic_block))

    signals.jobs_died.connect(listen)
    try:
        rescue.rescue(using="default")
    finally:
        signals.jobs_died.disconnect(listen)

    assert seen == [("dead", False)]


@pytest.mark.django_db
def test_late_heartbeat_of_a_rescued_worker_is_told_that_its_row_is_gone() -> None:
    worker = start_worker()
    assert extend.extend(worker, using="default")
    expire(worker)
    rescue.rescue(using="default")

    assert not extend.extend(worker, using="default")


@pytest.mark.django_db
def test_heartbeat_moves_the_lease_on_by_the_database_clock() -> None:
    worker = start_worker()
    expire(worker)
    before = read_clock("default")

    with override_settings(DJANGO_JOBS={"LEASE": 40}):
        assert extend.extend(worker, using="default")

    row = Worker.objects.get()
    assert before + timedelta(seconds=40) <= row.lease_expires_at <= read_clock("default") + timedelta(seconds=40)
    assert before <= row.heartbeat_at


@pytest.mark.django_db
def test_worker_is_told_what_it_holds() -> None:
    enqueue_many(note.bind(str(number)) for number in range(3))
    worker, other = start_worker(), start_worker()
    runs = claim_all(worker, 2)
    claim_all(other)

    assert extend.held(worker, using="default") == {run[:2] for run in runs}


# Handing back.


@pytest.mark.django_db
def test_released_claim_is_as_if_it_had_never_been() -> None:
    handle = enqueue(note.using(priority=3), "x")
    worker = start_worker()
    before = Job.objects.values("run_at", "priority", "attempt", "status", "worker_id").get()
    (run,) = claim_all(worker)

    assert release.release([run[:2]], worker, using="default") == 1

    assert Job.objects.values("run_at", "priority", "attempt", "status", "worker_id").get() == before
    assert not JobRun.objects.exists()
    (again,) = claim_all(worker)
    assert (again.job_id, again.attempt, again.claim_number) == (handle.id, 1, 2)


@pytest.mark.django_db
def test_release_touches_only_claims_that_are_still_the_workers() -> None:
    enqueue_many(note.bind(str(number)) for number in range(3))
    worker, other = start_worker(), start_worker()
    mine, cancelled = claim_all(worker, 2)
    (others,) = claim_all(other)
    cancel(cancelled.job_id)

    claims = [mine[:2], cancelled[:2], others[:2], (mine.job_id, mine.claim_number + 1)]

    assert release.release(claims, worker, using="default") == 1
    assert release.release(claims, worker, using="default") == 0
    assert release.release([], worker, using="default") == 0
    assert extend.held(other, using="default") == {others[:2]}


@pytest.mark.race
@transactional
def test_release_does_not_wait_for_a_row_that_somebody_locks() -> None:
    if connection.vendor == "sqlite":
        return
    locked, _ = enqueue(note, "locked"), enqueue(note, "free")
    worker = start_worker()
    runs = claim_all(worker)

    with Threads() as threads:
        canceller = OpenTransaction(threads, lambda: cancel(locked.id))
        released = release.release([run[:2] for run in runs], worker, using="default")
        canceller.end(commits=False)

    assert released == 1
    assert {job_id for job_id, _ in extend.held(worker, using="default")} == {locked.id}


# Tasks that nobody knows.


def park() -> None:
    """Let a worker that knows nothing look at what is ready."""
    stranger = start_worker("stranger")
    claim.claim(stranger, None, 10, frozenset(), using="default")
    Worker.objects.filter(id=stranger.id).delete()


@pytest.mark.django_db
def test_task_that_nobody_has_known_for_the_set_time_becomes_a_letter() -> None:
    """DP-01, DP-02: not at once; its key is freed."""
    handle = enqueue(note.using(key="k"), "x")
    park()
    early = rescue.bury_unknown(using="default")
    Job.objects.update(waiting_since=Clock(-timedelta(hours=1, seconds=1)))

    assert (early, rescue.bury_unknown(using="default")) == (0, 1)

    letter = DeadLetter.objects.get()
    assert (letter.job_id, letter.reason, letter.attempt, letter.failures) == (handle.id, "unknown_task", 0, 0)
    assert "tests.tasks.note" in letter.error_text
    assert (JobRun.objects.get().attempt, JobRun.objects.get().status) == (0, "failed")
    assert enqueue(note.using(key="k"), "y").created


@pytest.mark.django_db
def test_job_is_not_buried_while_a_worker_alive_serves_its_queue_and_knows_its_task() -> None:
    """That worker may be busy for hours."""
    enqueue(note, "x")
    enqueue(mail, "y")
    enqueue(echo.using(queue_name="far"), "z")
    park()
    Job.objects.update(waiting_since=Clock(-timedelta(hours=2)))
    extend.register("busy", ["default", "other"], [note.name, mail.name, echo.name], using="default")
    extend.register("all", None, [mail.name], using="default")
    expire(extend.register("gone", None, [echo.name], using="default"))

    assert rescue.bury_unknown(using="default") == 1

    assert DeadLetter.objects.get().task_name == echo.name
    assert Job.objects.filter(status="waiting").count() == 2


@pytest.mark.race
@transactional
def test_several_bury_one_job_once() -> None:
    enqueue(note, "x")
    park()
    Job.objects.update(waiting_since=Clock(-timedelta(hours=2)))

    assert sum(at_once([lambda: rescue.bury_unknown(using="default")] * 4)) == 1
    assert DeadLetter.objects.count() == 1


@pytest.mark.postgres
@pytest.mark.mariadb  # SQLite without WAL lets nobody write while the look is still being read
@transactional
def test_job_that_a_worker_claims_meanwhile_is_not_buried() -> None:
    handle = enqueue(note, "x")
    park()
    Job.objects.update(waiting_since=Clock(-timedelta(hours=2)))
    claimed = 0

    def let_it_be_claimed(execute: Any, sql: str, *rest: Any) -> Any:
        nonlocal claimed
        result = execute(sql, *rest)
        if not claimed and sql.startswith("SELECT") and "LIMIT 100" in sql:
            claimed += 1
            with Threads() as threads:
                threads.start(lambda: claim_all(start_worker()))
        return result

    with connection.execute_wrapper(let_it_be_claimed):
        buried = rescue.bury_unknown(using="default")

    assert (claimed, buried, handle.status) == (1, 0, "running")


@transactional
def test_burial_announces_after_its_commit() -> None:
    enqueue(note, "x")
    park()
    Job.objects.update(waiting_since=Clock(-timedelta(hours=2)))
    open_blocks: list[bool] = []

    def listen(**kwargs: object) -> None:
        open_blocks.append(connection.in_atomic_block)

    signals.jobs_died.connect(listen)
    try:
        rescue.bury_unknown(using="default")
    finally:
        signals.jobs_died.disconnect(listen)

    assert open_blocks == [False]
    assert not transaction.get_connection().in_atomic_block

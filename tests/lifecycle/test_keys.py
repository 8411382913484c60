"""A key is one logical operation: whoever asks, however many at once, whatever became of the job that holds it."""

from __future__ import annotations

import json
import os
import random
import string
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.db import IntegrityError, connection, transaction
from django.test import override_settings

from django_jobs import JobHandle, enqueue, enqueue_many
from django_jobs.database import Clock
from django_jobs.lifecycle import prune, rescue
from django_jobs.models import DeadLetter, Job, JobKey, JobRun, Worker
from tests.lifecycle.steps import claim_all, claim_alone, died, failed, finish_all, start_worker, succeeded
from tests.lifecycle.threads import OpenTransaction, Threads, at_once, wait_until_blocked
from tests.models import Effect
from tests.tasks import mail, note

transactional = pytest.mark.django_db(transaction=True)
PAST = timedelta(seconds=-1)


@pytest.mark.race
@transactional
def test_twenty_callers_at_once_get_one_job() -> None:
    """ID-01"""
    handles = at_once([lambda: enqueue(note.using(key="k"), "x")] * 20)

    assert Job.objects.count() == 1
    assert {handle.id for handle in handles} == {Job.objects.get().id}
    assert sum(handle.created for handle in handles) == 1


@transactional
def test_taken_key_leaves_the_callers_transaction_usable() -> None:
    """ID-02"""
    holder = enqueue(note.using(key="k"), "x")

    with transaction.atomic():
        Effect.objects.create(label="R")
        second = enqueue(note.using(key="k"), "y")
        Effect.objects.create(label="S")

    assert (second.created, second.id) == (False, holder.id)
    assert set(Effect.objects.values_list("label", flat=True)) == {"R", "S"}


def _ready(unique: str) -> JobHandle:
    return enqueue(note.using(key="k", unique=unique), "x")


def _scheduled(unique: str) -> JobHandle:
    return enqueue(note.using(key="k", unique=unique, delay=60), "x")


def _after(*outcomes: Callable[[Any], Any]) -> Callable[[str], JobHandle]:
    def reach(unique: str) -> JobHandle:
        handle = _ready(unique)
        worker = start_worker()
        (run,) = claim_all(worker)
        finish_all([outcome(run) for outcome in outcomes], worker)
        return handle

    return reach


def _cancelled(unique: str) -> JobHandle:
    handle = _ready(unique)
    assert handle.cancel()
    return handle


FREE, TAKEN = True, False


@pytest.mark.django_db
@pytest.mark.parametrize("unique", ["ever", "live", "queued"])
@pytest.mark.parametrize(
    ("reach", "status", "answers"),
    [
        (_ready, "ready", {"ever": TAKEN, "live": TAKEN, "queued": TAKEN}),
        (_scheduled, "scheduled", {"ever": TAKEN, "live": TAKEN, "queued": TAKEN}),
        (_after(), "running", {"ever": TAKEN, "live": TAKEN, "queued": FREE}),
        (_after(failed), "scheduled", {"ever": TAKEN, "live": TAKEN, "queued": FREE}),
        (_after(succeeded), "succeeded", {"ever": TAKEN, "live": FREE, "queued": FREE}),
        (_cancelled, "cancelled", {"ever": FREE, "live": FREE, "queued": FREE}),
        (_after(died), "dead", {"ever": FREE, "live": FREE, "queued": FREE}),
    ],
    ids=["ready", "scheduled", "running", "retry", "succeeded", "cancelled", "dead"],
)
def test_key_is_held_as_long_as_its_uniqueness_says(
    unique: str, reach: Callable[[str], JobHandle], status: str, answers: dict[str, bool]
) -> None:
    """ID-04"""
    holder = reach(unique)
    assert holder.status == status

    second = enqueue(note.using(key="k", unique=unique), "y")

    assert second.created is answers[unique]
    assert (second.id == holder.id) is not answers[unique]


@pytest.mark.django_db
def test_key_of_a_killed_workers_job_is_held_by_its_retry_and_free_after_its_death() -> None:
    """ID-05"""
    holder = enqueue(note.using(key="k"), "x")
    answers = []
    for _ in range(3):
        claim_alone(start_worker())
        Worker.objects.update(lease_expires_at=Clock(PAST))
        assert rescue.rescue(using="default") == 1
        Job.objects.update(run_at=Clock(PAST))
        answers.append(enqueue(note.using(key="k"), "y").created)

    assert answers == [False, False, True]
    assert holder.status == "dead"


@pytest.mark.django_db
@pytest.mark.parametrize("length", [200, 201, 6000])
def test_key_that_fits_its_column_is_stored_whole_and_a_longer_one_refused(length: int) -> None:
    """ID-07: four bytes a character are no reason to fail."""
    key = "".join(random.choices(string.printable.strip() + "ü€🔒", k=length))

    if length <= 200:
        assert enqueue(note.using(key=key), "x").created
        assert JobKey.objects.get().key == key
    else:
        with pytest.raises(ValueError, match="at most 200"):
            enqueue(note.using(key=key), "x")


@pytest.mark.django_db
def test_scope_of_a_key_is_the_task_whatever_the_queue() -> None:
    """ID-09"""
    first = enqueue(note.using(key="k"), "x")
    other_queue = enqueue(note.using(key="k", queue_name="other"), "x")
    other_task = enqueue(mail.using(key="k"), "x")

    assert other_queue.id == first.id
    assert other_task.created
    assert set(JobKey.objects.values_list("scope", flat=True)) == {note.name, mail.name}


def test_key_is_the_same_in_processes_with_other_hash_seeds() -> None:
    """ID-10: nothing is derived from hash() or from the order of a dict or set."""
    script = (
        "import django; django.setup()\n"
        "import json\n"
        "from django_jobs.api import _new_job\n"
        "from tests.tasks import echo\n"
        "job = _new_job(echo.using(key='k', max_attempts=2, timeout=5).bind({'b': 1, 'a': 2}))\n"
        "print(json.dumps([job.key, job.scope, job.payload, job.options]))\n"
    )
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings", "PYTHONPATH": ":".join(sys.path)}

    printed = {
        subprocess.run(
            [sys.executable, "-c", script], env={**environment, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2", "3")
    }

    assert len(printed) == 1
    assert json.loads(printed.pop())[:2] == ["k", "tests.tasks.echo"]


@pytest.mark.django_db
@pytest.mark.parametrize("other", ["K", "k ", " k", "ḱ", "k\u0301", "\U0001d424"])
def test_keys_are_compared_byte_by_byte(other: str) -> None:
    """Case, accents and trailing spaces make another key, on MariaDB too."""
    first, second = enqueue(note.using(key="k"), "x"), enqueue(note.using(key=other), "x")

    assert first.created
    assert second.created
    assert not enqueue(note.using(key=other), "x").created


@pytest.mark.django_db
def test_expired_key_is_taken_over_by_the_statement_that_writes_the_job() -> None:
    enqueue(note.using(key="k"), "x")
    worker = start_worker()
    (run,) = claim_all(worker)
    finish_all([succeeded(run, key_ttl=timedelta(hours=1))], worker)
    within = enqueue(note.using(key="k"), "y")
    JobKey.objects.update(expires_at=Clock(PAST))

    after = enqueue(note.using(key="k"), "z")

    assert (within.created, within.id) == (False, run.job_id)
    assert after.created
    row = JobKey.objects.get()
    assert (row.holder_id, row.expires_at) == (after.id, None)


@pytest.mark.race
@transactional
def test_expired_key_is_taken_over_by_one_of_many() -> None:
    JobKey.objects.create(key="k", scope=note.name, holder_id=uuid4(), created_at=Clock(PAST), expires_at=Clock(PAST))

    handles = at_once([lambda: enqueue(note.using(key="k"), "x")] * 8)

    assert sum(handle.created for handle in handles) == 1
    assert {handle.id for handle in handles} == {Job.objects.get().id} == {JobKey.objects.get().holder_id}


@pytest.mark.race
@transactional
@pytest.mark.parametrize("commits", [True, False])
def test_caller_waits_for_an_open_transaction_that_writes_the_key(commits: bool) -> None:
    first: list[JobHandle] = []
    with Threads() as threads:
        holder = OpenTransaction(threads, lambda: first.append(enqueue(note.using(key="k"), "x")))
        second = threads.start(lambda: enqueue(note.using(key="k"), "y"))
        wait_until_blocked()
        assert not second.done()
        holder.end(commits=commits)

    assert second.result().created is not commits
    assert (second.result().id == first[0].id) is commits
    assert Job.objects.count() == 1


@pytest.mark.race
@transactional
@pytest.mark.parametrize("count", [50, 1500], ids=["one statement", "several statements"])
def test_bulk_calls_with_crossed_key_orders_never_deadlock(count: int) -> None:
    keys = [f"k{number:04}" for number in range(count)]

    def bulk(order: list[str]) -> int:
        with transaction.atomic():
            return sum(handle.created for handle in enqueue_many(note.using(key=key).bind(key) for key in order))

    for _ in range(3):
        created = at_once([lambda: bulk(keys), lambda: bulk(keys[::-1]), lambda: bulk(random.sample(keys, count))])
        assert sorted(created) == [0, 0, count]
        assert Job.objects.count() == count
        Job.objects.all().delete()
        JobKey.objects.all().delete()


@pytest.mark.django_db
def test_answers_of_a_bulk_call_keep_the_order_over_several_statements() -> None:
    holder = enqueue(note.using(key="k0007"), "held")
    keys = [f"k{number:04}" if number % 3 else None for number in range(2_500)]

    handles = enqueue_many(note.using(key=key).bind(str(number)) for number, key in reversed(list(enumerate(keys))))

    assert [handle.created for handle in handles].index(False) == 2_500 - 8
    assert handles[-8].id == holder.id
    payloads = {job.id: job.payload["args"] for job in Job.objects.all()}
    expected = [[str(number)] if number != 7 else ["held"] for number in reversed(range(2_500))]
    assert [payloads[handle.id] for handle in handles] == expected


@transactional
def test_bulk_call_outside_a_transaction_is_written_whole_or_not_at_all() -> None:
    calls = [note.bind(str(number)) for number in range(1_500)]
    broken = calls[-1].task.using(priority=5)
    vars(broken)["priority"] = 32_000  # the constraint refuses it, in the second statement

    with pytest.raises(IntegrityError):
        enqueue_many([*calls, broken.bind("x")])

    assert Job.objects.count() == 0


@pytest.mark.postgres  # elsewhere the refused INSERT locks the holder's row, or the database
@transactional
def test_key_whose_holder_vanishes_between_two_statements_is_tried_again() -> None:
    enqueue(note.using(key="k"), "x")
    vanished = 0

    def vanish(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        nonlocal vanished
        is_look = sql.lstrip().startswith("SELECT") and "django_jobs_jobkey" in sql
        if is_look and not vanished:
            vanished += 1
            with Threads() as threads:
                threads.start(lambda: JobKey.objects.all().delete())
        return execute(sql, params, many, context)

    with connection.execute_wrapper(vanish):
        handle = enqueue(note.using(key="k"), "y")

    assert vanished == 1
    assert handle.created
    assert JobKey.objects.get().holder_id == handle.id


@pytest.mark.postgres
@transactional
def test_holder_that_comes_and_goes_for_ever_is_an_error_that_names_the_key() -> None:
    def come_and_go(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if "INSERT INTO django_jobs_jobkey" in sql:
            JobKey.objects.create(key="k", scope=note.name, holder_id=uuid4(), created_at=Clock())
            try:
                return execute(sql, params, many, context)
            finally:
                JobKey.objects.all().delete()
        return execute(sql, params, many, context)

    with (
        connection.execute_wrapper(come_and_go),
        pytest.raises(RuntimeError, match="of task"),
    ):
        enqueue(note.using(key="k"), "x")

    assert Job.objects.count() == 0


@pytest.mark.django_db
def test_key_of_a_success_outlives_the_pruning_of_its_run() -> None:
    """RT-19"""
    handle = enqueue(note.using(key="k"), "x")
    worker = start_worker()
    finish_all([succeeded(run) for run in claim_all(worker)], worker)
    JobRun.objects.update(ended_at=Clock(timedelta(days=-100)))
    assert prune.prune(using="default")["runs"] == 1

    again = enqueue(note.using(key="k"), "y")

    assert (again.created, again.id) == (False, handle.id)
    assert Job.objects.count() == 0


@pytest.mark.django_db
def test_key_window_outlives_the_pruning_of_its_run_and_ends_by_itself() -> None:
    """RT-19: a window of a day, runs kept for an hour."""
    enqueue(note.using(key="k"), "x")
    worker = start_worker()
    finish_all([succeeded(run, key_ttl=timedelta(days=1)) for run in claim_all(worker)], worker)
    JobRun.objects.update(ended_at=Clock(timedelta(hours=-2)))

    with override_settings(DJANGO_JOBS={"KEEP_SUCCEEDED": 3600}):
        pruned = prune.prune(using="default")
    within = enqueue(note.using(key="k"), "y")
    JobKey.objects.update(expires_at=Clock(PAST))
    pruned_later = prune.prune(using="default")

    assert (pruned["runs"], pruned["keys"]) == (1, 0)
    assert not within.created
    assert pruned_later["keys"] == 1
    assert enqueue(note.using(key="k"), "z").created


@pytest.mark.django_db
def test_death_frees_the_key_of_its_own_job_only() -> None:
    """The newer job of a debounced task holds the key while the older one dies."""
    enqueue(note.using(key="k", unique="queued"), "old")
    worker = start_worker()
    (old,) = claim_all(worker)
    newer = enqueue(note.using(key="k", unique="queued"), "new")

    finish_all([died(old)], worker)

    assert JobKey.objects.get().holder_id == newer.id
    assert not enqueue(note.using(key="k", unique="queued"), "newest").created


@pytest.mark.django_db
def test_a_thousand_refused_calls_leave_one_key_and_its_column_is_wide() -> None:
    """DP-08: refused inserts may use numbers up, and there are 2**63 of them."""
    enqueue(note.using(key="k"), "x")

    handles = enqueue_many(note.using(key="k").bind("y") for _ in range(1_000))

    assert not any(handle.created for handle in handles)
    assert JobKey.objects.count() == 1
    for model in (JobKey, JobRun, DeadLetter):
        assert model._meta.pk.get_internal_type() == "BigAutoField"
    assert Job._meta.get_field("claim_number").get_internal_type() == "BigIntegerField"


@pytest.mark.django_db
def test_key_taken_is_logged_with_its_holder(caplog: pytest.LogCaptureFixture) -> None:
    holder = enqueue(note.using(key="order 7"), "x")

    with caplog.at_level("INFO", logger="django_jobs"):
        enqueue(note.using(key="order 7"), "y")

    assert [record.getMessage() for record in caplog.records] == [
        f'key taken task=tests.tasks.note key="order 7" holder={holder.id}'
    ]


@pytest.mark.race
@transactional
@pytest.mark.parametrize("commits", [True, False])
def test_debounced_job_does_not_start_before_the_transaction_it_stands_for_has_ended(commits: bool) -> None:
    """That transaction was told that the job will do: the job must see what it wrote."""
    handle = enqueue(note.using(key="k", unique="queued"), "x")
    behind = enqueue(note, "behind")
    worker = start_worker()
    if connection.vendor == "sqlite":
        return  # the other transaction keeps every worker out
    refused: list[JobHandle] = []
    with Threads() as threads:
        other = OpenTransaction(threads, lambda: refused.append(enqueue(note.using(key="k", unique="queued"), "y")))
        during = claim_all(worker, 1) + claim_all(worker, 1)
        other.end(commits=commits)
    job = Job.objects.get(id=handle.id)
    Job.objects.filter(status="scheduled").update(run_at=Clock(PAST))
    after = claim_all(worker)

    assert (refused[0].created, refused[0].id) == (False, handle.id)
    assert [run.job_id for run in during] == [behind.id]
    assert (job.status, job.attempt, job.worker_id) == ("scheduled", 0, None)
    assert [(run.job_id, run.attempt) for run in after] == [(handle.id, 1)]
    assert enqueue(note.using(key="k", unique="queued"), "z").created


@pytest.mark.postgres  # MariaDB's wait for each other, and SQLite has one writer
@pytest.mark.race
@transactional
def test_many_transactions_may_be_refused_one_debounced_key_at_once() -> None:
    handle = enqueue(note.using(key="k", unique="queued"), "x")
    asked: list[JobHandle] = []

    with Threads() as threads:
        others = [
            OpenTransaction(threads, lambda: asked.append(enqueue(note.using(key="k", unique="queued"), "y")))
            for _ in range(3)
        ]
        for other in others:
            other.end()

    assert {each.id for each in asked} == {handle.id}
    assert len(asked) == 3


@pytest.mark.race
@transactional
@pytest.mark.parametrize("ending", [succeeded, failed, died])
def test_finish_does_not_wait_for_a_transaction_that_was_refused_the_key(ending: Callable[[Any], Any]) -> None:
    """MariaDB has locked the key's row by then: the outcome is kept until that transaction has ended."""
    if connection.vendor == "sqlite":
        return
    handle = enqueue(note.using(key="k", unique="live"), "x")
    worker = start_worker()
    (run,) = claim_all(worker)
    with Threads() as threads:
        other = OpenTransaction(threads, lambda: enqueue(note.using(key="k", unique="live"), "y"))
        during = finish_all([ending(run)], worker)
        other.end()
    after = finish_all(during.kept, worker)

    assert len(during.recorded) + len(after.recorded) == 1
    assert (during.lost, after.lost, after.kept) == ([], [], [])
    assert handle.status in {"succeeded", "scheduled", "dead"}
    assert JobKey.objects.exists() is (ending is failed)

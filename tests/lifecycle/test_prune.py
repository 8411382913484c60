"""Old rows of every final state go, in small batches, and nothing else does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection
from django.db.models.signals import post_delete, pre_delete
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from django_jobs import enqueue, get_job
from django_jobs.database import Clock
from django_jobs.exceptions import JobDoesNotExist
from django_jobs.lifecycle import prune
from django_jobs.models import DeadLetter, Job, JobKey, JobRun, Lock
from django_jobs.statuses import LetterStatus, RunStatus
from tests.lifecycle.steps import claim_all, failed, finish_all, start_worker
from tests.tasks import note

DAY = timedelta(days=1)


def make_runs(status: str, age: timedelta, count: int = 1) -> None:
    JobRun.objects.bulk_create(
        JobRun(
            job_id=uuid4(),
            claim_number=1,
            attempt=1,
            status=status,
            is_last=True,
            task_name="t",
            queue_name="q",
            ended_at=Clock(-age),
        )
        for _ in range(count)
    )


def make_letter(status: str, age: timedelta) -> DeadLetter:
    closed = {} if status == "open" else {"closed_at": Clock(-age)}
    return DeadLetter.objects.create(
        job_id=uuid4(),
        status=status,
        reason="gave_up",
        task_name="t",
        queue_name="q",
        priority=0,
        payload={},
        attempt=1,
        failures=1,
        crashes=0,
        interruptions=0,
        enqueued_at=Clock(-2 * age),
        run_at=Clock(-2 * age),
        died_at=Clock(-age - DAY),
        replayed_as=uuid4() if status == "replayed" else None,
        **closed,
    )


@pytest.mark.django_db
@pytest.mark.parametrize("status", RunStatus.values)
def test_run_of_every_status_goes_when_its_time_is_over_and_not_before(status: str) -> None:
    """RT-14"""
    days = 7 if status == "succeeded" else 90
    make_runs(status, (days + 1) * DAY)
    make_runs(status, (days - 1) * DAY)

    assert prune.prune(using="default")["runs"] == 1
    assert prune.prune(using="default")["runs"] == 0
    assert JobRun.objects.count() == 1


@pytest.mark.django_db
@pytest.mark.parametrize(("status", "gone"), [("open", 0), ("replayed", 1), ("discarded", 1)])
def test_closed_letter_goes_and_an_open_one_is_kept(status: str, gone: int) -> None:
    """RT-14"""
    make_letter(status, 91 * DAY)
    make_letter(status, 89 * DAY)

    assert prune.prune(using="default")["dead_letters"] == gone
    assert DeadLetter.objects.count() == 2 - gone


def test_every_final_status_has_a_retention() -> None:
    """RT-14: a status added later must not be forgotten."""
    pruned = {str(rows.query) for _, rows in prune._old_rows("default")}

    for run_status in RunStatus.values:
        assert any("jobrun" in sql and run_status in sql for sql in pruned)
    for letter_status in set(LetterStatus.values) - {"open"}:
        assert any("deadletter" in sql and letter_status in sql for sql in pruned)


@pytest.mark.django_db
def test_retention_is_a_setting_and_none_keeps_for_ever() -> None:
    for status in ("succeeded", "failed"):
        make_runs(status, 1000 * DAY)
    make_letter("discarded", 1000 * DAY)
    keep = {"KEEP_SUCCEEDED": None, "KEEP_OTHER_RUNS": None, "KEEP_CLOSED_LETTERS": None}

    with override_settings(DJANGO_JOBS=keep):
        kept = prune.prune(using="default")
    with override_settings(DJANGO_JOBS=dict.fromkeys(keep, 0)):
        pruned = prune.prune(using="default")

    assert sum(kept.values()) == 0
    assert (pruned["runs"], pruned["dead_letters"]) == (2, 1)


@pytest.mark.django_db
def test_keys_go_when_they_have_expired_and_live_ones_stay() -> None:
    for key, expires in (("old", Clock(-DAY)), ("window", Clock(DAY)), ("ever", None)):
        JobKey.objects.create(key=key, scope="s", holder_id=uuid4(), created_at=Clock(-9 * DAY), expires_at=expires)

    assert prune.prune(using="default")["keys"] == 1
    assert set(JobKey.objects.values_list("key", flat=True)) == {"window", "ever"}


@pytest.mark.django_db
def test_lock_keeps_its_numbers_for_a_long_time() -> None:
    for name, days in (("old", 91), ("younger", 89)):
        Lock.objects.create(name=name, owner=None, acquired_at=Clock(-100 * DAY), expires_at=Clock(-days * DAY))

    assert prune.prune(using="default")["locks"] == 1
    assert Lock.objects.get().name == "younger"


@pytest.mark.django_db
def test_live_jobs_are_never_pruned_whatever_their_age() -> None:
    handle = enqueue(note, "x")
    worker = start_worker()
    finish_all([failed(run) for run in claim_all(worker)], worker)
    Job.objects.update(enqueued_at=Clock(-1000 * DAY), run_at=Clock(-1000 * DAY))
    JobRun.objects.update(ended_at=Clock(-1000 * DAY))

    assert prune.prune(using="default")["runs"] == 1
    assert handle.status == "scheduled"


@pytest.mark.django_db
def test_pruned_job_is_said_to_be_unknown() -> None:
    make_runs("succeeded", 8 * DAY)
    job_id = JobRun.objects.get().job_id
    prune.prune(using="default")

    with pytest.raises(JobDoesNotExist, match="pruned"):
        get_job(job_id)


@pytest.fixture
def small_batches() -> Iterator[None]:
    with override_settings(DJANGO_JOBS={"PRUNE_BATCH": 10}):
        yield


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("small_batches")
def test_rows_go_in_batches_each_its_own_transaction() -> None:
    """RT-16"""
    make_runs("succeeded", 8 * DAY, 35)
    deletes = []

    def note_delete(execute: Any, sql: str, *rest: Any) -> Any:
        result = execute(sql, *rest)
        if sql.startswith("DELETE FROM"):
            deletes.append(connection.in_atomic_block)
        return result

    with connection.execute_wrapper(note_delete):
        assert prune.prune(using="default")["runs"] == 35

    assert deletes == [False] * 4


@pytest.mark.django_db
@pytest.mark.usefixtures("small_batches")
def test_no_batch_walks_over_what_the_ones_before_it_have_deleted() -> None:
    """PG-07: dead index entries stay until a vacuum comes."""
    make_runs("succeeded", 8 * DAY, 35)

    with CaptureQueriesContext(connection) as captured:
        prune.prune(using="default")

    looks = [query["sql"] for query in captured if query["sql"].startswith("SELECT") and "'succeeded'" in query["sql"]]
    bounds = [re.findall(r"ended_at. >= ([^ ]+ [^ ]+)", look) for look in looks]
    assert [len(each) for each in bounds] == [0, 1, 1, 1, 1]
    assert JobRun.objects.count() == 0


@pytest.mark.django_db
@pytest.mark.usefixtures("small_batches")
def test_pruning_stops_after_the_batch_in_which_it_is_asked_to() -> None:
    """RT-18"""
    make_runs("succeeded", 8 * DAY, 35)
    asked = iter([False, False, True])

    counts = prune.prune(using="default", should_stop=lambda: next(asked, True))

    assert counts["runs"] == 20
    assert JobRun.objects.count() == 15


@pytest.mark.django_db
@pytest.mark.usefixtures("small_batches")
def test_step_deletes_one_batch_and_says_whether_there_is_more() -> None:
    make_runs("succeeded", 8 * DAY, 15)

    assert [prune.prune_step(using="default"), prune.prune_step(using="default")] == [True, False]
    assert JobRun.objects.count() == 0


@pytest.mark.django_db
def test_receivers_of_every_models_delete_cost_nothing() -> None:
    """Audit and search apps connect to all models."""
    make_runs("succeeded", 8 * DAY, 50)
    seen = []

    def listen(**kwargs: object) -> None:
        seen.append(kwargs)

    for signal in (pre_delete, post_delete):
        signal.connect(listen)
    try:
        with CaptureQueriesContext(connection) as captured:
            prune.prune(using="default")
    finally:
        for signal in (pre_delete, post_delete):
            signal.disconnect(listen)

    assert seen == []
    assert len(captured) < 25


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
@pytest.mark.slow
@pytest.mark.timeout(180)
def test_half_a_million_rows_go_under_a_short_statement_timeout() -> None:
    """RT-16"""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO django_jobs_jobrun (job_id, claim_number, attempt, status, is_last, task_name, queue_name,"
            " worker, ended_at, error_type, error_text, traceback)"
            " SELECT gen_random_uuid(), 1, 1, 'succeeded', true, 't', 'q', 'w', now() - interval '8 days', '', '', ''"
            " FROM generate_series(1, 500000)"
        )
        cursor.execute("ANALYZE django_jobs_jobrun")
        cursor.execute("SET statement_timeout = '2s'")
    try:
        with override_settings(DJANGO_JOBS={"PRUNE_BATCH": 5000}):
            counts = prune.prune(using="default")
    finally:
        with connection.cursor() as cursor:
            cursor.execute("RESET statement_timeout")

    assert counts["runs"] == 500_000

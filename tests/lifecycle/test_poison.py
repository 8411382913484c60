"""Rows that nobody of us would write: they end as letters, whole, and stop nobody else."""

from __future__ import annotations

import datetime as dt
import zoneinfo
from datetime import timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from django.db import DatabaseError, connection, transaction
from django.db.models import TextField
from django.db.models.functions import Cast

from django_jobs import codec, enqueue, get_job, registry
from django_jobs.database import Clock, StoredJSON
from django_jobs.exceptions import UnreadablePayload
from django_jobs.lifecycle import extend, prune, rescue
from django_jobs.lifecycle.cancel import cancel
from django_jobs.lifecycle.replay import ReplayResult, replay_many
from django_jobs.models import DeadLetter, Job, JobRun, Worker
from tests.lifecycle.steps import claim_all, died, failed, finish_all, start_worker, succeeded
from tests.tasks import echo, note

MANY_DIGITS = "9" * 5_000
POISON = {
    "a string": '"text"',
    "null": "null",
    "a list": "[1, 2]",
    "another shape": '{"arguments": []}',
    "args no list": '{"args": 7, "kwargs": null}',
    "unknown tag": '{"args": [{"$pickle": "x"}], "kwargs": {}}',
    "a number of 5,000 digits": f'{{"args": [{MANY_DIGITS}], "kwargs": {{}}}}',
    "a float beyond floats": '{"args": [1e400], "kwargs": {}}',
    "30 levels": '{"args": [' + "[" * 28 + "]" * 28 + '], "kwargs": {}}',
    "2,000 levels": "[" * 2_000 + "]" * 2_000,
}


def insert(text: str, options: str | None = None, **values: Any) -> UUID:
    """A ready job whose JSON is this text; None if this database does not take it."""
    handle = enqueue(note.using(priority=100), "x")
    changes = {"payload": StoredJSON(text), "options": None if options is None else StoredJSON(options)}
    with transaction.atomic():
        Job.objects.filter(id=handle.id).update(**changes, **values)
    return handle.id


def stored_text(model: Any, column: str, **condition: Any) -> str:
    text: str = model.objects.filter(**condition).values_list(Cast(column, TextField()), flat=True).get()
    return text


def is_taken(text: str) -> bool:
    """Whether this database stores the text at all: MariaDB refuses 33 levels."""
    try:
        insert(text)
    except DatabaseError:
        return False
    Job.objects.all().delete()
    return True


@pytest.fixture
def others() -> list[UUID]:
    return [enqueue(note, str(number)).id for number in range(3)]


@pytest.mark.django_db
@pytest.mark.parametrize("name", POISON)
@pytest.mark.parametrize("ending", [succeeded, failed, died])
def test_unreadable_payload_is_claimed_ended_and_kept_as_it_is(name: str, ending: Any) -> None:
    if not is_taken(POISON[name]):
        return
    job_id = insert(POISON[name])
    before = stored_text(Job, "payload", id=job_id)
    others = [enqueue(note, str(number)).id for number in range(3)]
    worker = start_worker()

    runs = claim_all(worker)
    finished = finish_all([ending(run) for run in runs], worker)

    assert [run.job_id for run in runs] == [job_id, *others]
    assert len(finished.recorded) == 4
    assert JobRun.objects.count() == 4
    if ending is failed:
        assert stored_text(Job, "payload", id=job_id) == before
    else:
        assert stored_text(JobRun, "payload", job_id=job_id) == before
    if ending is died:
        assert stored_text(DeadLetter, "payload", job_id=job_id) == before
        assert DeadLetter.objects.get(job_id=job_id).reason == "out_of_tries"
    assert get_job(job_id).id == job_id


@pytest.mark.django_db
@pytest.mark.parametrize("name", ["a string", "null", "a list", "another shape", "args no list", "unknown tag"])
def test_claimed_payload_of_another_shape_is_refused_by_the_codec_and_by_nobody_before(name: str) -> None:
    insert(POISON[name])
    (run,) = claim_all(start_worker())

    with pytest.raises(UnreadablePayload):
        codec.decode_call(run.payload)


@pytest.mark.django_db
@pytest.mark.parametrize("name", POISON)
def test_every_other_arrow_takes_it_along_as_it_is(name: str) -> None:
    """Rescue to the end, replay, cancel."""
    if not is_taken(POISON[name]):
        return
    job_id = insert(POISON[name])
    before = stored_text(Job, "payload", id=job_id)
    worker = start_worker()
    claim_all(worker)
    Job.objects.update(crashes=2, waiting_since=Clock())  # as if it was claimed alone
    Worker.objects.update(lease_expires_at=Clock(timedelta(seconds=-1)))

    assert rescue.rescue(using="default") == 1
    letter = DeadLetter.objects.get()
    assert letter.reason == "worker_lost"
    (replayed,) = replay_many([letter.id], by="ann", using="default")
    assert replayed.result is ReplayResult.REPLAYED
    assert stored_text(Job, "payload", id=replayed.job_id) == before
    assert replayed.job_id is not None
    assert cancel(replayed.job_id, using="default")
    assert stored_text(JobRun, "payload", job_id=replayed.job_id) == before


@pytest.mark.django_db
@pytest.mark.parametrize(
    "options",
    ["[]", '"x"', "7", '{"max_attempts": "many"}', '{"max_attempts": -1, "timeout": 1e300}', '{"timeout": []}', "null"],
)
def test_options_of_the_wrong_kind_stop_nothing_and_are_kept(options: str) -> None:
    job_id = insert('{"args": ["x"], "kwargs": {}}', options)
    worker = start_worker()

    (run,) = claim_all(worker)
    limits = registry.get(run.task_name).effective(run.options)
    finish_all([died(run)], worker)
    (answer,) = replay_many([DeadLetter.objects.get().id], by="ann", using="default")

    assert (limits.max_attempts, limits.timeout) == (5, timedelta(hours=1))
    assert answer.result is ReplayResult.REPLAYED
    assert stored_text(Job, "options", id=answer.job_id) == stored_text(DeadLetter, "options", job_id=job_id)


@pytest.mark.django_db
@pytest.mark.parametrize("ending", [succeeded, failed, died])
def test_counters_at_the_end_of_their_column_stop_nothing(ending: Any, others: list[UUID]) -> None:
    most = 2**31 - 1
    job_id = insert('{"args": [], "kwargs": {}}', failures=most, crashes=most, interruptions=most)
    worker = start_worker()

    finished = finish_all([ending(run) for run in claim_all(worker)], worker)

    assert len(finished.recorded) == 4
    if ending is died or (ending is failed and connection.vendor != "sqlite"):  # its integers have no such end
        assert get_job(job_id).status == "dead"
        assert DeadLetter.objects.get(job_id=job_id).failures == most
        assert replay_many([DeadLetter.objects.get(job_id=job_id).id], by="ann", using="default")[0].job_id


@pytest.mark.django_db
def test_attempts_at_the_end_of_their_column_do_not_stop_a_claim(others: list[UUID]) -> None:
    job_id = insert('{"args": [], "kwargs": {}}', attempt=2**31 - 1, claim_number=2**40)

    runs = claim_all(start_worker())

    assert [run.job_id for run in runs] == [job_id, *others]


@pytest.mark.django_db
def test_unknown_task_with_an_unreadable_payload_is_parked_and_buried(others: list[UUID]) -> None:
    job_id = insert(POISON["a number of 5,000 digits"], task_name="gone.task")
    worker = start_worker()

    assert [run.job_id for run in claim_all(worker)] == others
    Job.objects.filter(status="waiting").update(waiting_since=Clock(timedelta(hours=-2)))
    assert rescue.bury_unknown(using="default") == 1
    assert DeadLetter.objects.get().job_id == job_id


@pytest.mark.django_db
def test_worker_row_of_another_shape_stops_no_rescue_and_no_burial() -> None:
    handle = enqueue(note, "x")
    worker = start_worker()
    claim_all(worker)
    Worker.objects.update(lease_expires_at=Clock(timedelta(seconds=-1)))
    strange = extend.register("strange", None, [], using="default")
    Worker.objects.filter(id=strange.id).update(task_names=StoredJSON("7"), queue_names=StoredJSON('{"a": 1}'))
    waiting = enqueue(echo, "x")
    Job.objects.filter(id=waiting.id).update(status="waiting", waiting_since=Clock(timedelta(hours=-2)))

    assert rescue.rescue(using="default") == 1
    assert rescue.bury_unknown(using="default") == 1
    assert (handle.status, waiting.status) == ("scheduled", "dead")


@pytest.mark.django_db
@pytest.mark.parametrize("crashes", [0, 2])
def test_running_job_that_nobody_claimed_is_rescued_with_the_others(crashes: int, others: list[UUID]) -> None:
    job_id = insert('{"args": [], "kwargs": {}}')
    worker = start_worker()
    claim_all(worker)
    Job.objects.filter(id=job_id).update(claimed_at=None, crashes=crashes, waiting_since=Clock())
    Worker.objects.update(lease_expires_at=Clock(timedelta(seconds=-1)))

    assert rescue.rescue(using="default") == 4
    assert get_job(job_id).status == ("dead" if crashes else "scheduled")


@pytest.mark.django_db
def test_pruning_takes_what_nobody_can_read() -> None:
    insert(POISON["a number of 5,000 digits"])
    worker = start_worker()
    finish_all([succeeded(run) for run in claim_all(worker)], worker)
    JobRun.objects.update(ended_at=Clock(timedelta(days=-100)))

    assert prune.prune(using="default")["runs"] == 1


MOMENTS = ["infinity", "-infinity", "4713-01-01 BC", "290000-01-01"]  # that PostgreSQL stores


def write_moment(model: Any, moment: str, *columns: str) -> None:
    """Write this moment, which Python does not know, into these columns of all rows."""
    with connection.cursor() as cursor:
        for column in columns:
            cursor.execute(f"UPDATE {model._meta.db_table} SET {column} = %s", [moment])


@pytest.mark.postgres
@pytest.mark.django_db
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_time_that_python_does_not_know_stops_no_life(moment: str) -> None:
    """Claimed, rescued to the end, replayed, looked up and cancelled, with all its times beyond."""
    handle = enqueue(note, "x")
    write_moment(Job, moment, "enqueued_at", "run_at")
    claim_all(start_worker())
    write_moment(Job, moment, "claimed_at", "waiting_since")
    Job.objects.update(crashes=2)
    write_moment(Worker, moment, "started_at", "heartbeat_at")
    Worker.objects.update(lease_expires_at=Clock(timedelta(seconds=-1)))

    assert rescue.rescue(using="default") == 1
    write_moment(DeadLetter, moment, "enqueued_at", "run_at", "died_at")
    assert get_job(handle.id).status == "dead"
    (replayed,) = replay_many([DeadLetter.objects.get().id], by="ann", using="default")
    assert replayed.result is ReplayResult.REPLAYED
    write_moment(Job, moment, "enqueued_at", "run_at")
    assert replayed.job_id is not None
    assert cancel(replayed.job_id, using="default")
    assert get_job(replayed.job_id).status == "cancelled"


@pytest.mark.postgres
@pytest.mark.django_db
@pytest.mark.parametrize("moment", ["-infinity", "4713-01-01 BC"])
def test_pruning_takes_what_ended_before_all_times(moment: str) -> None:
    for _ in range(3):
        enqueue(note, "x")
    worker = start_worker()
    finish_all([succeeded(run) for run in claim_all(worker)], worker)
    old, older, _ = JobRun.objects.all()
    JobRun.objects.filter(id=old.id).update(ended_at=Clock(timedelta(days=-100)))
    with connection.cursor() as cursor:
        cursor.execute("UPDATE django_jobs_jobrun SET ended_at = %s WHERE id = %s", [moment, older.id])

    assert prune.prune(using="default")["runs"] == 2
    assert JobRun.objects.count() == 1


ZONE = zoneinfo.ZoneInfo("America/New_York")


@pytest.mark.django_db
@pytest.mark.parametrize(
    "value",
    [
        UUID("01900000-0000-7000-8000-00000000002a"),
        Decimal("1.10"),
        dt.datetime(2026, 8, 5, 12, 30, 15, 123456, tzinfo=dt.UTC),
        dt.datetime(2026, 11, 1, 1, 30, 0, 123456, tzinfo=ZONE, fold=1),
        dt.datetime(2026, 8, 5, 12, 30, 15, 123456),  # noqa: DTZ001
        dt.date(2026, 8, 5),
        dt.time(1, 2, 3, 456789),
        timedelta(days=-1, microseconds=1),
        b"\x00\xff",
        2**53 + 1,
        10**300,
        0.1,
        -0.0,
        1e-320,
        "\U0001f600 ü \\u0041",
        {"": None, "$decimal": "no tag", "nested": [{"a": [True, False, None]}]},
    ],
    ids=repr,
)
def test_rich_argument_arrives_equal_in_value_and_type_through_the_database(value: Any) -> None:
    """PL-06, PL-07"""
    enqueue(echo, value, named=value)

    (run,) = claim_all(start_worker())
    args, kwargs = codec.decode_call(run.payload)

    for arrived in (args[0], kwargs["named"]):
        assert arrived == value
        assert type(arrived) is type(value)
        assert isinstance(value, dict) or repr(arrived) == repr(value)

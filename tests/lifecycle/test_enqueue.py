"""Jobs are written in the caller's transaction, frozen at the call, and refused there when they cannot run."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.core.exceptions import SynchronousOnlyOperation
from django.db import DatabaseError, connection, connections, transaction
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from django_jobs import (
    JobDoesNotExist,
    aenqueue,
    codec,
    enqueue,
    enqueue_many,
    enqueue_on_commit,
    get_job,
)
from django_jobs.models import Job, JobKey
from tests.lifecycle.steps import claim_all, inserts, start_worker
from tests.lifecycle.threads import Threads
from tests.models import Effect
from tests.tasks import echo, mail, note

transactional = pytest.mark.django_db(transaction=True, databases=["default", "other"])


@transactional
def test_job_and_data_commit_together_and_are_not_seen_before() -> None:
    """EN-01"""
    worker = start_worker()

    with Threads() as threads, transaction.atomic():
        row = Effect.objects.create(label="row")
        enqueue(note, str(row.pk))
        seen = threads.start(lambda: claim_all(worker)).result()
    runs = claim_all(worker)

    assert seen == []
    assert [codec.decode_call(run.payload)[0] for run in runs] == [[str(row.pk)]]
    assert Effect.objects.filter(pk=row.pk).exists()


@transactional
def test_rolled_back_savepoint_takes_its_job_along() -> None:
    with transaction.atomic():
        kept = enqueue(note, "kept")
        with transaction.atomic():
            enqueue(note, "gone")
            transaction.set_rollback(True)

    assert list(Job.objects.values_list("id", flat=True)) == [kept.id]


@transactional
@pytest.mark.parametrize("commits", [True, False])
def test_job_is_written_on_the_alias_that_was_asked_for(commits: bool) -> None:
    """EN-05"""
    with transaction.atomic(using="other"):
        enqueue(note.using(database="other"), "there")
        transaction.set_rollback(not commits, using="other")

    assert Job.objects.using("other").count() == int(commits)
    assert Job.objects.using("default").count() == 0


@transactional
def test_crash_in_an_on_commit_callback_cannot_part_job_and_data(process_environment: dict[str, str]) -> None:
    """EN-06: the row is there, so its job is there."""
    script = (
        "import django, os; django.setup()\n"
        "from django.db import transaction\n"
        "from django_jobs import enqueue\n"
        "from tests.models import Effect\n"
        "from tests.tasks import note\n"
        "with transaction.atomic():\n"
        "    transaction.on_commit(lambda: os._exit(1))\n"
        "    Effect.objects.create(label='row')\n"
        "    enqueue(note, 'row')\n"
    )

    ended = subprocess.run([sys.executable, "-c", script], env=process_environment, capture_output=True, check=False)

    assert ended.returncode == 1, ended.stderr.decode()
    assert Effect.objects.filter(label="row").count() == 1
    assert Job.objects.count() == 1


@transactional
def test_failing_insert_reaches_the_caller_and_undoes_everything() -> None:
    """EN-06, second form: the table is away."""
    with connection.schema_editor() as editor:
        editor.alter_db_table(Job, "django_jobs_job", "django_jobs_away")
    try:
        with pytest.raises(DatabaseError):
            _enqueue_with_a_row()
    finally:
        with connection.schema_editor() as editor:
            editor.alter_db_table(Job, "django_jobs_away", "django_jobs_job")

    assert not Effect.objects.exists()
    assert not JobKey.objects.exists()


@transaction.atomic
def _enqueue_with_a_row() -> None:
    Effect.objects.create(label="row")
    enqueue(note, "row")


@transactional
def test_handle_has_its_id_at_once_and_claims_nothing_after_a_rollback() -> None:
    """EN-08"""
    with transaction.atomic():
        handle = enqueue(note, "x")
        Effect.objects.create(label=str(handle.id))
    assert Job.objects.get(id=handle.id)
    assert handle.status == "ready"

    with transaction.atomic():
        rolled_back = enqueue(note, "y")
        transaction.set_rollback(True)

    with pytest.raises(JobDoesNotExist, match=str(rolled_back.id)):
        rolled_back.get()


@pytest.mark.django_db
@pytest.mark.parametrize("immediate", [False, True])
def test_argument_that_is_not_json_is_refused_at_the_call(immediate: bool) -> None:
    """EN-10: in production and in the test mode alike, naming the argument."""
    with override_settings(DJANGO_JOBS={"IMMEDIATE": immediate}), transaction.atomic():
        with pytest.raises(TypeError, match=r"args\[0\]"):
            enqueue(echo, {1, 2})
        Effect.objects.create(label="still usable")

    assert Effect.objects.count() == 1
    assert Job.objects.count() == 0


@transactional
def test_async_form_writes_one_job_and_the_sync_form_refuses() -> None:
    """EN-12"""

    async def view() -> None:
        with pytest.raises(SynchronousOnlyOperation, match="aenqueue"):
            enqueue(note, "by mistake")
        await aenqueue(note, "right")
        await note.aenqueue("right too")
        await sync_to_async(connections.close_all)()

    asyncio.run(view())

    assert Job.objects.count() == 2


@pytest.mark.django_db
def test_duplicate_in_a_bulk_call_is_reported_and_the_rest_is_written() -> None:
    """EN-13: one INSERT for the chunk, order kept."""
    holder = enqueue(note.using(key="50"), "first")
    calls = [note.using(key=str(number)).bind(str(number)) for number in range(100)]

    with CaptureQueriesContext(connection) as captured:
        handles = enqueue_many(calls)

    assert [handle.created for handle in handles] == [number != 50 for number in range(100)]
    assert handles[50].id == holder.id
    payloads = {job.id: job.payload["args"][0] for job in Job.objects.all()}
    assert [payloads[handle.id] for handle in handles if handle.created] == [str(n) for n in range(100) if n != 50]
    found = [query["sql"] for query in captured if "INSERT INTO" in query["sql"] and "django_jobs_job" in query["sql"]]
    assert len([sql for sql in found if "task_name" in sql]) == inserts(Job, 99)


@pytest.mark.django_db
def test_repeated_key_inside_one_bulk_call_is_one_job() -> None:
    handles = enqueue_many([note.using(key="k").bind("1"), note.bind("2"), note.using(key="k").bind("3")])

    assert [handle.created for handle in handles] == [True, True, False]
    assert handles[0].id == handles[2].id
    assert Job.objects.count() == 2


@pytest.mark.django_db
def test_bulk_call_writes_many_chunks() -> None:
    handles = enqueue_many(note.bind(str(number)) for number in range(2_500))

    assert len({handle.id for handle in handles}) == 2_500
    assert Job.objects.count() == 2_500


@transactional
def test_answers_of_a_bulk_call_over_tasks_and_databases_keep_the_order() -> None:
    there, later = note.using(database="other"), mail.using(delay=60)
    calls = [task.bind(str(number)) for number, task in enumerate([note, there, later, note, there, note])]

    handles = enqueue_many(calls)

    assert [handle.database for handle in handles] == ["default", "other", "default", "default", "other", "default"]
    assert [handle.task_name for handle in handles] == [call.task.name for call in calls]
    written = [Job.objects.using(handle.database).get(id=handle.id) for handle in handles]
    assert [job.payload["args"] for job in written] == [[str(number)] for number in range(6)]
    assert [job.id for job in written] == sorted(job.id for job in written)


@pytest.mark.django_db
def test_arguments_of_a_bulk_call_are_frozen_as_each_call_is_taken() -> None:
    def calls() -> Iterator[tuple[Any, Any, Any]]:
        growing: list[int] = []
        for number in range(3):
            growing.append(number)
            yield echo, (growing,), {}

    handles = enqueue_many(calls())

    assert [Job.objects.get(id=each.id).payload["args"] for each in handles] == [[[0]], [[0, 1]], [[0, 1, 2]]]


@pytest.mark.django_db
@pytest.mark.parametrize("wrong", [(note, (), {}), (echo, ({1},), {}), (note, ("x",), {"y": 1}), "note"])
def test_one_wrong_call_leaves_a_bulk_call_without_effect(wrong: Any) -> None:
    with pytest.raises(TypeError):
        enqueue_many([*(note.bind("x") for _ in range(1_500)), wrong])

    assert enqueue_many([]) == []
    assert not Job.objects.exists()


@transactional
def test_on_commit_form_writes_after_the_commit_of_the_other_database() -> None:
    with transaction.atomic(using="other"):
        handle = enqueue_on_commit(note, "x", using="other")
        during = Job.objects.count()
    with transaction.atomic(using="other"):
        enqueue_on_commit(note, "y", using="other")
        transaction.set_rollback(True, using="other")

    assert during == 0
    assert handle.get().status == "ready"
    assert Job.objects.count() == 1


@pytest.mark.django_db
def test_delay_makes_a_scheduled_job_by_the_database_clock() -> None:
    now = enqueue(note, "now")
    later = enqueue(note.using(delay=60), "later")

    assert now.status == "ready"
    assert later.status == "scheduled"
    job = Job.objects.get(id=later.id)
    # On SQLite each of the two reads the clock for itself.
    assert timedelta(seconds=59) < job.run_at - job.enqueued_at < timedelta(seconds=61)


@pytest.mark.django_db
def test_options_of_the_call_win_over_those_of_the_task() -> None:
    handle = enqueue(mail.using(queue_name="other", priority=7, max_attempts=2, timeout=5, key="k"), "x")

    job = Job.objects.get(id=handle.id)
    assert (job.queue_name, job.priority, job.key, job.uniqueness) == ("other", 7, "k", "ever")
    assert job.options == {"max_attempts": 2, "timeout": 5.0}


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"priority": 2**31}, ValueError),
        ({"priority": "high"}, ValueError),
        ({"delay": 10**13}, ValueError),
        ({"delay": -1}, ValueError),
        ({"delay": float("nan")}, ValueError),
        ({"key": ""}, ValueError),
        ({"key": "k" * 6000}, ValueError),
        ({"key": "a\0b"}, ValueError),
        ({"key": 7}, TypeError),
        ({"nonsense": 1}, TypeError),
    ],
)
def test_option_out_of_range_is_refused_at_the_call(options: dict[str, Any], error: type[Exception]) -> None:
    """PL-16, ID-07"""
    with transaction.atomic():
        with pytest.raises(error, match=next(iter(options))):
            enqueue(note.using(**options), "x")
        Effect.objects.create(label="still usable")

    assert Job.objects.count() == 0


@pytest.mark.django_db
def test_payload_up_to_the_limit_is_kept_and_one_byte_more_is_refused() -> None:
    """PL-09"""
    empty = len('{"args":[""],"kwargs":{}}')
    for size in (9_000, 65_536 - empty):
        handle = enqueue(echo, "x" * size)
        assert Job.objects.get(id=handle.id).payload["args"] == ["x" * size]
    with pytest.raises(ValueError, match=r"65,?537.*65,?536"):
        enqueue(echo, "x" * (65_536 - empty + 1))
    with override_settings(DJANGO_JOBS={"MAX_PAYLOAD_SIZE": 200_000}):
        assert enqueue(echo, "x" * 100_000).created


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("value", "path"),
    [
        ("a\0b", r"args\[0\]"),
        ({"x": ["a\0b"]}, r"args\[0\]\['x'\]\[0\]"),
        ({"a\0b": 1}, r"args\[0\]"),
        ("\ud800", r"args\[0\]"),
        (float("nan"), r"args\[0\]"),
        (float("inf"), r"args\[0\]"),
    ],
)
def test_value_no_database_stores_is_refused_with_its_path(value: object, path: str) -> None:
    """PL-01, PL-03, PL-05: and the caller's transaction still commits."""
    with transaction.atomic():
        with pytest.raises(ValueError, match=path):
            enqueue(echo, value)
        Effect.objects.create(label="still usable")

    assert Effect.objects.count() == 1


@pytest.mark.django_db
def test_model_instance_is_refused_with_the_mend() -> None:
    """PL-18"""
    effect = Effect.objects.create(label="x")

    with pytest.raises(TypeError, match="primary key"):
        enqueue(echo, effect)


@transactional
def test_job_can_be_looked_up_by_text_and_garbage_is_refused() -> None:
    handle = enqueue(note, "x")

    assert get_job(str(handle.id)).id == handle.id
    with pytest.raises(ValueError, match="'nonsense'"):
        get_job("nonsense")

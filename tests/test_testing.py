"""The test kit, used as a project would: inside a plain TestCase."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from django.core.management import call_command
from django.db import connection, transaction
from django.test import TestCase, override_settings

from django_jobs import GiveUp, Retry, Snooze, enqueue, enqueue_on_commit, get_job, task
from django_jobs.models import DeadLetter, Job, JobRun
from django_jobs.testing import JobFailed, assert_enqueued, enqueued, immediate, run_jobs
from tests.models import Effect
from tests.tasks import broken, echo, mail, note


@task
def note_twice(label: str) -> None:
    note.enqueue(f"{label} again")
    Effect.objects.create(label=label)


@task
async def note_async(label: str) -> str:
    await asyncio.sleep(0)
    return label


@task(atomic=True, timeout=30)
def note_atomically(label: str, *, fail: bool = False) -> None:
    Effect.objects.create(label=label)
    if fail:
        raise GiveUp("no")


@task
def break_the_transaction() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT * FROM no_such_table")


@task(max_attempts=3, backoff=0)
def fail_twice(label: str) -> str:
    Effect.objects.create(label=label)
    if Effect.objects.filter(label=label).count() < 3:
        raise Retry("not yet")
    return "done"


@task
def later() -> None:
    raise Snooze(delay=60)


def labels() -> list[str]:
    return list(Effect.objects.order_by("id").values_list("label", flat=True))


class EnqueuedTest(TestCase):
    def test_job_is_there_at_once_without_any_callback_on_commit(self) -> None:
        """EN-03: first form."""
        with self.captureOnCommitCallbacks(execute=True):
            enqueue(note, "a")

        assert Job.objects.count() == 1
        assert labels() == []

    def test_enqueue_on_commit_waits_for_the_commit_that_the_test_asks_for(self) -> None:
        """EN-03."""
        with self.captureOnCommitCallbacks(execute=True):
            enqueue_on_commit(note, "a")
            assert enqueued() == []

        assert_enqueued(note, args=("a",))

    def test_jobs_are_listed_in_order_with_their_arguments(self) -> None:
        mail.using(key="m:1", priority=7).enqueue("a")
        echo.enqueue(1, (2, 3), when=timedelta(seconds=5))

        first, second = enqueued()

        assert (first.task_name, first.queue_name, first.priority) == ("tests.tasks.mail", "mail", 7)
        assert (first.key, first.status) == ("m:1", "ready")
        assert (second.args, second.kwargs) == ([1, [2, 3]], {"when": timedelta(seconds=5)})

    def test_list_can_be_narrowed(self) -> None:
        note.enqueue("a")
        mail.enqueue("b")
        note.using(queue_name="slow", delay=60).enqueue("c")

        assert [job.args for job in enqueued(note)] == [["a"], ["c"]]
        assert [job.args for job in enqueued(queue_name="mail")] == [["b"]]
        assert [job.status for job in enqueued(note, queue_name="slow")] == ["scheduled"]

    def test_assertion_answers_with_the_job_that_fits(self) -> None:
        note.enqueue("a")
        wanted = note.using(key="k").enqueue("b")

        assert assert_enqueued(note, args=("b",)).id == wanted.id
        assert assert_enqueued(note, kwargs={"label": "b"}).id == wanted.id
        assert assert_enqueued(note, key="k").id == wanted.id

    def test_assertion_compares_what_was_stored(self) -> None:
        echo.enqueue((1, 2), how={"b": 1, "a": (2,)})

        assert_enqueued(echo, args=([1, 2],), kwargs={"how": {"a": [2], "b": 1}})
        assert_enqueued(echo, args=((1, 2),), kwargs={"how": {"a": (2,), "b": 1}})

    def test_assertion_fails_with_a_list_of_what_is_there(self) -> None:
        note.enqueue("a")
        mail.using(key="m:1").enqueue("b")

        with pytest.raises(AssertionError) as caught:
            assert_enqueued(note, args=("z",))

        assert "0 jobs of tests.tasks.note fit args=('z',), not 1." in str(caught.value)
        assert "tests.tasks.note('a') queue='default' status=ready" in str(caught.value)
        assert "tests.tasks.mail('b') queue='mail' status=ready key='m:1'" in str(caught.value)

    def test_assertion_fails_if_several_fit(self) -> None:
        note.enqueue("a")
        note.enqueue("a")

        with self.assertRaisesMessage(AssertionError, "2 jobs of tests.tasks.note fit args=('a',), not 1."):
            assert_enqueued(note, args=("a",))

    def test_assertion_fails_if_nothing_is_there(self) -> None:
        with self.assertRaisesMessage(AssertionError, "0 jobs of tests.tasks.note fit, not 1. Enqueued: nothing."):
            assert_enqueued(note)


class RunJobsTest(TestCase):
    def test_jobs_run_in_the_tests_own_transaction(self) -> None:
        """EN-04: no thread, and the connection stays."""
        handle = note.enqueue("a")

        runs = run_jobs()

        assert [(run.task_name, run.status) for run in runs] == [("tests.tasks.note", "succeeded")]
        assert labels() == ["a"]
        assert get_job(handle.id).status == "succeeded"

    def test_command_works_inside_a_test(self) -> None:
        """EN-04: a query after the command works."""
        handle = note.enqueue("a")

        call_command("runworker", burst=True)

        assert get_job(handle.id).status == "succeeded"
        assert labels() == ["a"]
        assert connection.in_atomic_block

    def test_jobs_that_jobs_enqueue_run_too(self) -> None:
        note_twice.enqueue("a")

        assert len(run_jobs()) == 2
        assert labels() == ["a", "a again"]

    def test_nothing_to_do_is_fine(self) -> None:
        assert run_jobs() == []

    def test_queues_and_number_can_be_bounded(self) -> None:
        mail.enqueue("mail")
        for label in "abc":
            note.enqueue(label)

        assert len(run_jobs(queues=["mail"])) == 1
        assert len(run_jobs(max_jobs=2)) == 2
        assert labels() == ["mail", "a", "b"]

    def test_jobs_due_later_stay(self) -> None:
        note.using(delay=60).enqueue("later")

        assert run_jobs() == []
        assert len(enqueued(note)) == 1

    def test_async_tasks_run_too(self) -> None:
        handle = note_async.enqueue("a")

        run_jobs()

        assert handle.result() == "a"

    def test_atomic_tasks_keep_their_effects_or_lose_them(self) -> None:
        note_atomically.enqueue("kept")
        note_atomically.enqueue("lost", fail=True)

        assert [run.status for run in run_jobs()] == ["succeeded", "failed"]
        assert labels() == ["kept"]

    def test_failure_is_recorded_and_the_test_goes_on(self) -> None:
        broken.enqueue()

        (run,) = run_jobs()

        assert (run.status, run.error_text, run.reason) == ("failed", "broken", "out_of_tries")
        assert DeadLetter.objects.get().error_text == "broken"

    def test_failure_can_be_raised_with_the_tasks_own_traceback(self) -> None:
        broken.enqueue()

        with pytest.raises(JobFailed) as caught:
            run_jobs(raise_errors=True)

        assert "Task tests.tasks.broken failed, attempt 1" in str(caught.value)
        assert "ValueError: broken" in str(caught.value)
        assert "in broken" in str(caught.value)
        assert caught.value.run.error_text == "broken"

    def test_success_and_snooze_raise_nothing(self) -> None:
        note.enqueue("a")
        later.enqueue()

        assert [run.status for run in run_jobs(raise_errors=True)] == ["succeeded", "released"]

    def test_retries_without_a_wait_are_made(self) -> None:
        handle = fail_twice.enqueue("a")

        assert [run.status for run in run_jobs()] == ["failed", "failed", "succeeded"]
        assert handle.result() == "done"

    def test_task_that_breaks_its_transaction_does_not_break_the_tests(self) -> None:
        """EN-04: on PostgreSQL a failed statement spoils the transaction it is in, which here is the test's."""
        break_the_transaction.enqueue()
        note.enqueue("a")

        assert [run.status for run in run_jobs()] == ["failed", "succeeded"]
        assert labels() == ["a"]

    def test_worker_row_does_not_stay(self) -> None:
        from django_jobs.models import Worker

        run_jobs()

        assert not Worker.objects.exists()


class ImmediateTest(TestCase):
    def test_job_runs_inside_the_call_that_enqueues_it(self) -> None:
        """EN-03: second form, the documented test mode."""
        with immediate():
            handle = note.enqueue("a")

        assert labels() == ["a"]
        assert handle.status == "succeeded"

    @override_settings(DJANGO_JOBS={"IMMEDIATE": True})
    def test_setting_does_the_same(self) -> None:
        """EN-03."""
        with transaction.atomic():
            note.enqueue("a")

        assert labels() == ["a"]

    @immediate()
    def test_it_is_a_decorator_too_and_jobs_of_jobs_run(self) -> None:
        note_twice.enqueue("a")

        assert sorted(labels()) == ["a", "a again"]

    @immediate()
    def test_enqueue_on_commit_runs_with_the_callbacks(self) -> None:
        with self.captureOnCommitCallbacks(execute=True):
            enqueue_on_commit(note, "a")
            assert labels() == []

        assert labels() == ["a"]

    @immediate()
    def test_failure_reaches_nobody_who_enqueues(self) -> None:
        handle = broken.enqueue()

        assert handle.status == "dead"

    @immediate()
    def test_job_due_later_waits(self) -> None:
        note.using(delay=60).enqueue("a")

        assert labels() == []

    @override_settings(DJANGO_JOBS={"QUEUES": {"default": {}, "mail": {}}})
    def test_other_settings_stay(self) -> None:
        with immediate(), pytest.raises(ValueError, match="is not in DJANGO_JOBS"):
            note.using(queue_name="nowhere").enqueue("a")

    def test_outside_of_it_nothing_runs(self) -> None:
        with immediate():
            pass
        note.enqueue("a")

        assert labels() == []


@pytest.mark.django_db(databases=["default", "other"])
def test_kit_looks_where_it_is_told_to() -> None:
    echo.using(database="other").enqueue(1)

    assert enqueued() == []
    assert assert_enqueued(echo, args=(1,), database="other").args == [1]
    assert [run.status for run in run_jobs(database="other")] == ["succeeded"]
    assert JobRun.objects.using("other").count() == 1

"""A whole worker in this process: threads, loop and heartbeat of its own, and this database."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest

from django_jobs import enqueue, enqueue_many, get_job
from django_jobs.models import DeadLetter, Job, JobRun
from django_jobs.models import Worker as WorkerRow
from django_jobs.registry import Task
from django_jobs.signals import jobs_died
from django_jobs.statuses import DeathReason, JobStatus, RunStatus
from django_jobs.worker import Worker
from django_jobs.worker.options import read_options
from tests.lifecycle.test_poison import POISON, insert, is_taken
from tests.models import Effect
from tests.processes import wait_until
from tests.worker import tasks

pytestmark = pytest.mark.django_db(transaction=True)


def burst(**options: Any) -> Worker:
    worker = Worker(read_options(burst=True, poll_interval=0.05, **options))
    assert worker.run() == 0
    return worker


def test_burst_ends_at_once_on_an_empty_queue() -> None:
    """WK-12."""
    assert burst().runs == 0


def test_burst_runs_what_its_jobs_enqueue() -> None:
    """WK-12."""
    enqueue(tasks.chain, "link", 3)

    assert burst().runs == 4
    assert sorted(Effect.objects.values_list("label", flat=True)) == ["link0", "link1", "link2", "link3"]


def test_burst_does_not_wait_for_what_is_due_later() -> None:
    """WK-12."""
    enqueue(tasks.plain_effect.using(delay=60), "later")
    enqueue(tasks.plain_effect, "now")

    assert burst().runs == 1
    assert Job.objects.get().status == JobStatus.SCHEDULED


def test_worker_ends_after_so_many_jobs() -> None:
    """WK-12: five of eight, and not one more is started or claimed."""
    enqueue_many(tasks.plain_effect.bind(f"{number}") for number in range(8))

    worker = Worker(read_options(max_jobs=5, threads=2, poll_interval=0.05))

    assert worker.run() == 0
    assert (worker.runs, Effect.objects.count(), JobRun.objects.count()) == (5, 5, 5)
    assert Counter(Job.objects.values_list("status", "claim_number")) == {(JobStatus.READY, 0): 3}


def test_worker_leaves_no_row_of_its_own_behind() -> None:
    burst()

    assert not WorkerRow.objects.exists()


def test_worker_serves_the_queues_it_is_told_to() -> None:
    enqueue(tasks.plain_effect.using(queue_name="mail"), "mail")
    enqueue(tasks.plain_effect, "default")

    burst(queue_names=["mail", "other"])

    assert Effect.objects.get().label == "mail"


@pytest.mark.parametrize("task", [tasks.rest, tasks.arest], ids=["sync", "async"])
def test_jobs_rest_side_by_side(task: Task) -> None:
    enqueue_many(task.bind(f"{number}", 0.2) for number in range(10))

    burst(threads=10, async_concurrency=10)

    assert Effect.objects.count() == 10
    assert {status for (status,) in JobRun.objects.values_list("status")} == {RunStatus.SUCCEEDED}


@pytest.mark.parametrize(
    ("task", "runs", "reason"),
    [(tasks.retry_at_once, 2, DeathReason.OUT_OF_TRIES), (tasks.give_up, 1, DeathReason.GAVE_UP)],
    ids=["out of tries", "gave up"],
)
def test_death_comes_after_the_last_try_and_is_told_once(task: Task, runs: int, reason: DeathReason) -> None:
    """CL-10, RT-07: not one run more, and no waiting for a retry without delay."""
    died: list[Any] = []

    def hear(**kwargs: Any) -> None:
        died.extend(kwargs["letters"])

    jobs_died.connect(hear)
    try:
        enqueue(task, "dying")
        burst()
    finally:
        jobs_died.disconnect(hear)

    assert Effect.objects.count() == runs
    assert [letter.reason for letter in died] == [reason]
    letter = DeadLetter.objects.get()
    assert (letter.attempt, letter.failures) == (runs, runs)


@pytest.mark.parametrize(
    ("text", "stored"),
    [("a\\x00b", "a\\x00b"), ("a\\ud800b", "a\\ud800b"), ("ok", "ok")],
    ids=["NUL", "surrogate", "plain"],
)
def test_failure_whose_text_cannot_be_stored_is_stored_all_the_same(text: str, stored: str) -> None:
    """PL-02: and the worker takes the next job."""
    enqueue(tasks.raise_text, text)
    enqueue(tasks.plain_effect, "next")

    burst(threads=1)

    assert DeadLetter.objects.get().error_text == stored
    assert Effect.objects.get().label == "next"
    assert not Job.objects.exists()


@pytest.mark.parametrize("kind", ["exit", "interrupt", "memory", "generator", "recursion"])
def test_exception_meant_for_a_process_ends_only_its_job(kind: str) -> None:
    """WK-04."""
    enqueue(tasks.raise_exit, kind)
    enqueue(tasks.plain_effect, "next")

    burst(threads=1)

    assert DeadLetter.objects.get().reason == DeathReason.OUT_OF_TRIES
    assert Effect.objects.get().label == "next"


@pytest.mark.parametrize("kind", ["object", "nan", "large"])
def test_result_that_cannot_be_stored_ends_the_job_after_one_run(kind: str) -> None:
    """PL-14."""
    enqueue(tasks.return_odd, kind)

    burst()

    assert Effect.objects.count() == 1
    assert DeadLetter.objects.get().reason == DeathReason.BAD_RESULT
    assert JobRun.objects.get().status == RunStatus.FAILED
    assert not Job.objects.exists()


def test_rows_that_nobody_can_run_end_as_letters_with_a_reason_and_stop_no_other_job() -> None:
    """Payloads that nobody can read or that fit the task no more, and a failure beyond the end of its column."""
    stored = [text for text in POISON.values() if is_taken(text)]
    spoilt = [insert(text, '{"max_attempts": 1}') for text in stored]
    unfit = insert('{"args": [], "kwargs": {"gone": 1}}')
    worn = enqueue(tasks.raise_text, "worn").id
    Job.objects.filter(id=worn).update(failures=2**31 - 1, interruptions=2**31 - 1)
    enqueue_many(tasks.plain_effect.bind(f"{number}") for number in range(5))

    burst(threads=2)

    assert not Job.objects.exists()
    assert Effect.objects.filter(label__in="01234").count() == 5
    letters = {letter.job_id: letter for letter in DeadLetter.objects.all()}
    assert letters[unfit].reason == DeathReason.BAD_PAYLOAD
    assert letters[worn].reason == DeathReason.OUT_OF_TRIES
    # What Python can read all the same may succeed, or fail as any other value would.
    ended = Counter(letters[each].reason if each in letters else get_job(each).status for each in spoilt)
    assert set(ended) <= {DeathReason.BAD_PAYLOAD, DeathReason.OUT_OF_TRIES, "succeeded"}
    assert ended[DeathReason.BAD_PAYLOAD] >= 7
    assert all(letter.error_text for letter in letters.values())


@pytest.mark.slow
def test_time_limits_end_tasks_and_free_their_thread() -> None:
    """WK-14, CL-10: in pure Python, on the loop, and blocked in C; the one thread runs the next job all the same."""
    enqueue(tasks.spin, "spin")
    enqueue(tasks.arest_too_long, "async")
    blocked = enqueue(tasks.ignore_the_limit, "blocked")
    after = enqueue(tasks.plain_effect, "after")

    worker = burst(threads=1)

    assert Counter(JobRun.objects.values_list("status", flat=True)) == {RunStatus.TIMED_OUT: 3, RunStatus.SUCCEEDED: 1}
    assert after.status == "succeeded"
    assert worker.has_leftovers
    ended = JobRun.objects.get(job_id=blocked.id)
    assert "ignore_the_limit" in ended.traceback
    assert (ended.ended_at - (ended.started_at or ended.ended_at)).total_seconds() < 6
    _wait_for_leftovers()
    assert not Effect.objects.filter(label="blocked").exists()


def _wait_for_leftovers() -> None:
    """Until the thread that was given up has ended too, so that nothing of it meets the next test."""
    wait_until(lambda: not any(thread.name == "django-jobs-1" for thread in threading.enumerate()))


@pytest.mark.parametrize("count", [300])
def test_batches_claimed_ahead_are_all_run(count: int) -> None:
    enqueue_many(tasks.plain_effect.bind(f"{number}") for number in range(count))

    burst(threads=3)

    assert Effect.objects.count() == count
    assert JobRun.objects.filter(attempt=1, status=RunStatus.SUCCEEDED).count() == count


def test_transaction_left_open_by_a_task_touches_no_other_job(caplog: pytest.LogCaptureFixture) -> None:
    enqueue(tasks.leave_transaction_open, "open")
    enqueue(tasks.plain_effect, "next")

    burst(threads=1)

    assert Effect.objects.get().label == "next"
    assert "transaction left open" in caplog.text


def test_cancelled_job_is_told_and_its_outcome_does_not_count() -> None:
    """A running task learns of it within a lease."""
    handle = enqueue(tasks.rest_until_told, "cancelled")
    options = read_options(max_jobs=1, poll_interval=0.05)
    worker = Worker(options)
    worker._plan_reconciliation = lambda: None  # type: ignore[method-assign]  # compare in each cycle
    thread = threading.Thread(target=worker.run)
    thread.start()
    wait_until(lambda: handle.status == "running")

    assert handle.cancel()
    worker._inbox.wake()
    thread.join(10)

    assert not thread.is_alive()
    assert handle.status == "cancelled"
    assert not JobRun.objects.filter(status=RunStatus.SUCCEEDED).exists()

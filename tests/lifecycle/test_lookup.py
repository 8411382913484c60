"""get_job() finds a job wherever it has got to, and says so in a sentence."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connections
from django.test import override_settings

from django_jobs import JobDoesNotExist, JobHandle, enqueue, get_job
from django_jobs.database import Clock
from django_jobs.lifecycle.replay import discard, replay
from django_jobs.models import DeadLetter, Job, JobRun
from tests.lifecycle.steps import claim_all, died, failed, finish_all, start_worker, succeeded
from tests.tasks import note


def make(**options: Any) -> JobHandle:
    return enqueue(note.using(key="k", priority=3, queue_name="q", **options), "x")


def end(*endings: Callable[[Any], Any]) -> None:
    """Run what is ready once for each ending."""
    for ending in endings:
        worker = start_worker()
        (run,) = claim_all(worker)
        finish_all([ending(run)], worker)
        Job.objects.update(run_at=Clock(timedelta(seconds=-1)))


def retried(run: Any) -> Any:
    return failed(run, retry_in=None)


@pytest.mark.django_db
def test_ready_job_waits_for_a_worker_of_its_queue() -> None:
    handle = make()

    info = get_job(handle.id)

    assert (info.id, info.status, info.is_finished) == (handle.id, "ready", False)
    assert (info.task_name, info.queue_name, info.priority, info.key) == (note.name, "q", 3, "k")
    assert (info.attempt, info.failures, info.crashes) == (0, 0, 0)
    assert (info.started_at, info.ended_at, info.result) == (None, None, None)
    assert info.why == "It is due, and waits for a worker that serves queue 'q'."


@pytest.mark.django_db
def test_job_that_waits_for_a_retry_shows_why_its_last_run_failed() -> None:
    handle = make()
    end(failed)

    info = handle.get()

    assert (info.status, info.attempt, info.failures) == ("scheduled", 1, 1)
    assert (info.error_type, info.error_text) == ("ValueError", "no")


@pytest.mark.django_db
def test_scheduled_job_says_when_it_is_due() -> None:
    handle = make(delay=60)

    info = handle.get()

    assert (info.status, info.is_finished) == ("scheduled", False)
    assert timedelta(seconds=59) < info.run_at - info.enqueued_at < timedelta(seconds=61)
    assert info.why == f"It is due at {info.run_at.isoformat(timespec='seconds')}."


@pytest.mark.django_db
def test_retried_job_says_which_try_is_next() -> None:
    handle = make()
    worker = start_worker()
    finish_all([failed(run) for run in claim_all(worker)], worker)

    info = handle.get()

    assert (info.status, info.attempt, info.failures) == ("scheduled", 1, 1)
    assert info.why.endswith(", for try 2.")


@pytest.mark.django_db
def test_running_job_says_since_when() -> None:
    handle = make()
    (run,) = claim_all(start_worker())

    info = handle.get()

    assert (info.status, info.started_at, info.attempt) == ("running", run.claimed_at, 1)
    assert info.why == "It is running, try 1."


@pytest.mark.django_db
def test_parked_job_says_that_nobody_knows_its_task() -> None:
    handle = make()
    Job.objects.update(status="waiting", waiting_since=Clock())

    assert (handle.status, handle.get().is_finished) == ("waiting", False)
    assert "No worker that looked at it knows" in handle.get().why


@pytest.mark.django_db
def test_succeeded_job_gives_its_result_and_its_counts() -> None:
    handle = make()
    end(retried, retried, lambda run: succeeded(run)._replace(result='[1, {"$decimal": "1.10"}]'))

    info = handle.get()

    assert (info.status, info.is_finished, info.attempt, info.failures) == ("succeeded", True, 3, 2)
    assert info.result == handle.result()
    assert info.result[0] == 1
    assert (info.task_name, info.queue_name, info.priority, info.key) == (note.name, "q", 3, "k")
    assert info.started_at is not None
    assert info.ended_at is not None
    assert info.why == "It succeeded."


@pytest.mark.django_db
def test_cancelled_job_keeps_the_counts_of_its_runs() -> None:
    handle = make()
    end(retried)
    handle.cancel()

    info = handle.get()

    assert (info.status, info.is_finished, info.attempt, info.failures) == ("cancelled", True, 1, 1)
    assert info.why == "It was cancelled."


@pytest.mark.django_db
def test_dead_job_names_its_letter_and_its_error() -> None:
    handle = make()
    end(retried, died)

    info = handle.get()

    letter = DeadLetter.objects.get()
    assert (info.status, info.is_finished, info.dead_letter_id) == ("dead", True, letter.id)
    assert (info.attempt, info.failures, info.error_type, info.error_text) == (2, 2, "ValueError", "no")
    assert (info.started_at, info.ended_at) == (JobRun.objects.get(attempt=2).started_at, letter.died_at)
    assert info.why == "It died: out of tries."


@pytest.mark.django_db
def test_closed_letter_says_what_became_of_it() -> None:
    first, second = make(), enqueue(note, "y")
    worker = start_worker()
    finish_all([died(run) for run in claim_all(worker)], worker)
    letters = {letter.job_id: letter for letter in DeadLetter.objects.all()}
    replay(letters[first.id].id, by="ann", using="default")
    discard(letters[second.id].id, by="ann", using="default")

    assert (first.status, second.status) == ("replayed", "discarded")
    assert first.get().is_finished
    assert second.get().is_finished


@pytest.mark.django_db
def test_dead_job_is_found_after_its_runs_were_pruned() -> None:
    handle = make()
    end(died)
    JobRun.objects.all().delete()

    assert handle.status == "dead"
    assert handle.get().started_at is None


@pytest.mark.django_db
@pytest.mark.parametrize("text", ["nonsense", "", 7, None])
def test_what_is_no_id_is_refused(text: Any) -> None:
    with pytest.raises(ValueError, match="not a job's id"):
        get_job(text)


@pytest.mark.django_db
def test_unknown_id_is_an_error_that_names_it() -> None:
    unknown = uuid.uuid4()
    with pytest.raises(JobDoesNotExist, match=str(unknown)):
        get_job(unknown)


class ReadsElsewhere:
    """A router that sends reads to a replica, as many projects have."""

    def db_for_read(self, model: Any, **hints: Any) -> str:
        return "other"

    def db_for_write(self, model: Any, **hints: Any) -> str:
        return "default"


class JobsElsewhere:
    """A router that keeps the jobs on a database of their own."""

    def db_for_read(self, model: Any, **hints: Any) -> str | None:
        return "other" if model._meta.app_label == "django_jobs" else None

    db_for_write = db_for_read


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_job_is_looked_up_where_it_was_written_not_on_a_replica() -> None:
    with override_settings(DATABASE_ROUTERS=[ReadsElsewhere()]):
        handle = enqueue(note, "x")

        assert get_job(handle.id).status == "ready"
        assert handle.cancel()


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_router_that_sends_jobs_to_another_database_is_followed_through_the_whole_life() -> None:
    with override_settings(DATABASE_ROUTERS=[JobsElsewhere()]):
        handle = enqueue(note.using(key="k"), "x")
        dying = enqueue(note.using(key="d"), "x")
        worker = start_worker(using="other")
        runs = claim_all(worker, using="other")
        finish_all([succeeded(runs[0]), died(runs[1])], worker, using="other")
        letter = DeadLetter.objects.using("other").get()
        again = replay(letter.id, by="ann", using="other")
        again_job = get_job(again.job_id or "")

        assert handle.database == "other"
        assert (handle.status, dying.status, again_job.status) == ("succeeded", "replayed", "ready")
        assert get_job(again_job.id).status == "ready"
    for model in (Job, JobRun, DeadLetter):
        assert not model.objects.using("default").exists()
    assert connections["other"].vendor == connections["default"].vendor

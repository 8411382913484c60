"""A job that was held by a worker when that died runs alone, so that only what kills its process is charged again."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_jobs import codec, enqueue, enqueue_many, get_job
from django_jobs.database import Clock
from django_jobs.lifecycle import claim, extend, quarantine, rescue
from django_jobs.models import DeadLetter, Job, JobRun, Worker
from django_jobs.runs import ClaimedRun, WorkerIdentity
from tests.lifecycle.steps import NAMES, claim_all, claim_alone, died, failed, finish_all, start_worker, succeeded
from tests.tasks import mail, note

pytestmark = pytest.mark.django_db
PAST = timedelta(seconds=-1)


def let_die(worker: WorkerIdentity) -> None:
    """Let its lease be over, and another worker take its jobs."""
    Worker.objects.filter(id=worker.id).update(lease_expires_at=Clock(PAST))
    rescue.rescue(using="default")
    Job.objects.filter(status="scheduled").update(run_at=Clock(PAST))


def make_suspects(count: int) -> WorkerIdentity:
    """Let a worker die with so many jobs, and another one put them aside."""
    enqueue_many(note.bind(str(number)) for number in range(count))
    dead, worker = start_worker("dead"), start_worker("next")
    assert len(claim_all(dead)) == count
    let_die(dead)
    quarantine.put_aside(claim_all(worker), worker, using="default")
    return worker


def take(worker: WorkerIdentity, queue_names: list[str] | None = None) -> list[ClaimedRun]:
    return quarantine.claim_suspect(worker, queue_names, NAMES, using="default")


def test_suspect_is_put_aside_as_if_it_had_not_been_claimed() -> None:
    worker = make_suspects(1)

    job = Job.objects.get()
    assert (job.status, job.attempt, job.crashes, job.worker_id) == ("scheduled", 1, 1, None)
    assert claim_all(worker) == []
    assert "it runs alone" in get_job(job.id).why
    assert JobRun.objects.count() == 1


def test_suspects_are_claimed_one_at_a_time_each_in_its_turn() -> None:
    worker = make_suspects(3)

    runs = [run for _ in range(4) for run in take(worker)]

    assert [codec.decode_call(run.payload)[0] for run in runs] == [["0"], ["1"], ["2"]]
    assert {(run.attempt, run.crashes) for run in runs} == {(2, 1)}
    assert extend.held(worker, using="default") == {run[:2] for run in runs}


def test_suspect_of_another_queue_or_an_unknown_task_is_left_alone() -> None:
    worker = make_suspects(1)

    assert take(worker, ["other"]) == []
    assert quarantine.claim_suspect(worker, None, frozenset({mail.name}), using="default") == []
    assert quarantine.is_anything_aside(["default"], using="default")
    assert not quarantine.is_anything_aside(["other"], using="default")
    assert len(take(worker, ["default"])) == 1


def test_suspect_waits_for_the_end_of_its_backoff_first() -> None:
    enqueue(note, "x")
    dead, worker = start_worker("dead"), start_worker("next")
    claim_all(dead)
    Worker.objects.filter(id=dead.id).update(lease_expires_at=Clock(PAST))
    rescue.rescue(using="default")

    assert take(worker) == []
    assert not quarantine.is_anything_aside(None, using="default")


def test_suspect_that_no_worker_was_free_for_is_due_again_after_a_lease() -> None:
    worker = make_suspects(1)
    Job.objects.update(run_at=Clock(PAST))

    (run,) = claim_all(worker)

    assert run.crashes == 1


def test_suspect_that_was_claimed_among_others_is_not_charged_for_their_worker() -> None:
    """It is never started there: the worker puts it aside, and dies just before that is written."""
    make_suspects(1)
    Job.objects.update(run_at=Clock(PAST))
    enqueue(note, "beside it")
    dead = start_worker()
    assert len(claim_all(dead)) == 2

    let_die(dead)

    assert sorted(Job.objects.values_list("crashes", "attempt", "status")) == [(1, 1, "ready"), (1, 1, "scheduled")]


def test_only_the_job_that_ends_its_worker_again_and_again_dies() -> None:
    """Promise 6: ten jobs of a dead worker; nine are innocent, and one kills each worker that runs it."""
    make_suspects(10)
    guilty = Job.objects.order_by("id")[4].id
    for _ in range(40):
        worker = start_worker()
        for run in claim_alone(worker):
            if run.job_id == guilty:
                let_die(worker)
            else:
                finish_all([succeeded(run)], worker)

    assert not Job.objects.exists()
    assert DeadLetter.objects.get().job_id == guilty
    assert DeadLetter.objects.get().crashes == 3
    assert JobRun.objects.filter(job_id=guilty, status="lost").count() == 3
    assert JobRun.objects.filter(status="succeeded", attempt=2).count() == 9


def test_failure_of_its_own_clears_a_suspect() -> None:
    worker = make_suspects(2)

    finish_all([failed(run) for run in take(worker)], worker)
    finish_all([died(run) for run in take(worker)], worker)

    assert Job.objects.values_list("crashes", "failures", "waiting_since").get() == (0, 1, None)
    assert DeadLetter.objects.values_list("crashes", "failures").get() == (0, 1)


def test_failure_does_not_clear_what_ended_its_process_when_it_ran_alone() -> None:
    make_suspects(1)
    alone, worker = start_worker("alone"), start_worker("last")
    take(alone)
    let_die(alone)

    finish_all([failed(run) for run in claim_alone(worker)], worker)

    assert Job.objects.values_list("crashes", "failures").get() == (2, 1)


def test_what_a_dead_worker_had_surely_not_started_is_charged_nothing() -> None:
    enqueue_many(note.bind(str(number)) for number in range(5))
    worker = start_worker()
    runs = claim_all(worker)
    ending = rescue.Ending("was killed by SIGKILL", lambda run: run.job_id != runs[0].job_id)

    assert rescue.rescue_dead(worker.id, ending, using="default")

    assert sorted(Job.objects.values_list("crashes", "attempt", "status")) == [(0, 0, "ready")] * 4 + [
        (1, 1, "scheduled")
    ]
    assert JobRun.objects.get().error_text == "Worker w was killed by SIGKILL while it held this job."
    assert not Worker.objects.exists()
    assert rescue.rescue_dead(worker.id, ending, using="default"), "there is nothing left to do"


def test_dead_letter_says_how_the_process_ended() -> None:
    make_suspects(1)
    Job.objects.update(crashes=2)
    worker = start_worker()
    take(worker)

    rescue.rescue_dead(worker.id, rescue.Ending("exited with code 9"), using="default")

    letter = DeadLetter.objects.get()
    assert (letter.reason, letter.error_text) == ("worker_lost", "Worker w exited with code 9 while it held this job.")


def test_free_worker_asks_once_and_writes_nothing_where_nothing_is_aside() -> None:
    worker = start_worker()
    enqueue(note, "ready")

    with CaptureQueriesContext(connection) as captured:
        assert take(worker) == []

    assert len(captured) == 1


def test_suspects_are_no_part_of_what_a_claim_walks_over() -> None:
    make_suspects(3)

    assert claim.claim(start_worker(), None, 10, NAMES, using="default") == []
    assert not Job.objects.filter(status="ready").exists()

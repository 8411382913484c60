"""What the product does, each act beside a few jobs of its own: prepared, and returned as what is to be watched."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

from django.test import override_settings

from django_jobs import enqueue, enqueue_many, get_job, once
from django_jobs.database import Clock, are_there_any
from django_jobs.doctor import everywhere
from django_jobs.ids import job_id
from django_jobs.lifecycle import (
    ageing,
    cancel,
    claim,
    extend,
    finish,
    prune,
    quarantine,
    release,
    replay,
    rescue,
    turn,
    wake,
)
from django_jobs.models import DeadLetter, Job, JobKey, JobRun, Worker
from django_jobs.observe import alerts
from django_jobs.runs import ClaimedRun, WorkerIdentity
from tests.factories import DeadLetterFactory, JobFactory, JobKeyFactory, JobRunFactory
from tests.lifecycle.steps import NAMES, died, failed, finish_all, start_worker, succeeded
from tests.tasks import note

Todo = Callable[[], object]
FEW = 10  # jobs that an act is about
LIMIT = 20  # jobs that a claim asks for
PAST = timedelta(seconds=-1)
LONG_AGO = timedelta(days=-100)


def make(count: int = FEW, **fields: Any) -> list[Job]:
    """Jobs beside the backlog; a priority of 100 is before all of it."""
    job = JobFactory.build(**fields)
    jobs = [copy(job) for _ in range(count)]
    for each in jobs:
        each.id = job_id()
    return Job.objects.bulk_create(jobs)


def hold(count: int = FEW, **fields: Any) -> tuple[WorkerIdentity, list[ClaimedRun]]:
    """A worker with so many claimed jobs."""
    make(count, priority=100, **fields)
    worker = start_worker()
    runs = claim.claim_queue(worker, "default", count, NAMES, using="default")
    assert len(runs) == count
    return worker, runs


def age(model: Any, column: str, by: timedelta, **rows: Any) -> None:
    model.objects.filter(**rows).update(**{column: Clock(by)})


# --- Claim


def look() -> Todo:
    make()
    return partial(claim.look, None, using="default")


def claim_from_any_queue() -> Todo:
    make()
    return partial(claim.claim, start_worker(), None, LIMIT, NAMES, using="default")


def claim_from_its_queue() -> Todo:
    make()
    return partial(claim.claim, start_worker(), ["default"], LIMIT, NAMES, using="default")


def promote() -> Todo:
    make(due_in=PAST)
    make(10 * FEW, due_in=-LONG_AGO)
    return partial(claim.promote, using="default")


def raise_what_has_aged() -> Todo:
    make(priority=100)
    make(priority=99)
    age(Job, "run_at", LONG_AGO, priority=99)
    return override_settings(DJANGO_JOBS={"PRIORITY_AGEING": timedelta(days=99)})(partial(ageing.age, using="default"))


def bring_back() -> Todo:
    make(waiting=True)
    return partial(claim.claim, start_worker(), None, LIMIT, NAMES, using="default")


def park() -> Todo:
    make(priority=100, task_name="gone.other")
    return partial(claim.claim, start_worker(), ["default"], LIMIT, NAMES, using="default")


def claim_with_a_key_that_ends_at_the_start() -> Todo:
    jobs = make(priority=100, key="k", uniqueness="queued")
    for number, job in enumerate(jobs):
        JobKeyFactory.create(key=f"k{number}", holder_id=job.id)
    return partial(claim.claim_queue, start_worker(), "default", FEW, NAMES, using="default")


# --- Finish


def _end(ending: Callable[[ClaimedRun], Any]) -> Todo:
    worker, runs = hold()
    return partial(finish_all, [ending(run) for run in runs], worker)


def succeed() -> Todo:
    return _end(succeeded)


def fail() -> Todo:
    return _end(failed)


def die() -> Todo:
    return _end(died)


def succeed_with_keys() -> Todo:
    worker, runs = hold(key="k", uniqueness="live")
    for number, run in enumerate(runs):
        JobKeyFactory.create(key=f"k{number}", holder_id=run.job_id)
    return partial(finish_all, [succeeded(run) for run in runs], worker)


def finish_late() -> Todo:
    worker, runs = hold()
    for run in runs:
        Job.objects.filter(id=run.job_id).delete()
    return partial(finish_all, [succeeded(run) for run in runs], worker)


def finish_atomically() -> Todo:
    worker, runs = hold(1)
    return partial(finish.finish_atomically, succeeded(runs[0]), worker, using="default")


def turn_over() -> Todo:
    worker, runs = hold()
    make(priority=100)
    outcomes = [succeeded(run) for run in runs[:5]] + [failed(run) for run in runs[5:]]
    return partial(turn.turn, outcomes, worker, "default", FEW, NAMES, using="default", after=runs[-1])


def turn_over_at_the_end() -> Todo:
    worker, runs = hold()
    outcomes = [succeeded(run) for run in runs]
    return partial(turn.turn, outcomes, worker, "default", LIMIT, NAMES, using="default", after=runs[-1])


def turn_over_from_the_start() -> Todo:
    worker, runs = hold()
    make(priority=100)
    outcomes = [succeeded(run) for run in runs]
    return partial(turn.turn, outcomes, worker, "default", FEW, NAMES, using="default")


def hand_back() -> Todo:
    worker, runs = hold()
    return partial(release.release, [run[:2] for run in runs], worker, using="default")


# --- Lease


def reconcile() -> Todo:
    worker, _ = hold()
    return partial(extend.held, worker, using="default")


def beat() -> Todo:
    worker, _ = hold()
    start_worker("other")
    return partial(extend.extend, worker, using="default")


def fall_asleep() -> Todo:
    return partial(extend.note_awake, start_worker(), False, using="default")


def retire() -> Todo:
    return partial(extend.retire, start_worker(), using="default")


# --- Rescue


def rescue_a_dead_worker() -> Todo:
    worker, _ = hold()
    start_worker("other")
    age(Worker, "lease_expires_at", PAST, id=worker.id)
    return partial(rescue.rescue, using="default")


def rescue_of_a_worker_without_row() -> Todo:
    worker, _ = hold()
    Worker.objects.filter(id=worker.id).delete()
    return partial(rescue.rescue, using="default")


def rescue_a_child() -> Todo:
    worker, _ = hold()
    return partial(rescue.rescue_dead, worker.id, rescue.UNSEEN, using="default")


def bury() -> Todo:
    start_worker()
    make(waiting=True, task_name="gone.other")
    age(Job, "waiting_since", LONG_AGO, task_name="gone.other")
    return partial(rescue.bury_unknown, using="default")


def ask_for_work() -> Todo:
    hold()
    rows = [*rescue.to_rescue("default"), rescue.parked("default"), *prune.to_prune("default")]
    return partial(are_there_any, rows, using="default")


def put_aside() -> Todo:
    worker, runs = hold()
    return partial(quarantine.put_aside, runs, worker, using="default")


def claim_a_suspect() -> Todo:
    worker, runs = hold()
    quarantine.put_aside(runs, worker, using="default")
    return partial(quarantine.claim_suspect, worker, None, NAMES, using="default")


def look_for_suspects() -> Todo:
    return partial(quarantine.claim_suspect, start_worker(), ["default"], NAMES, using="default")


# --- The rest of a life


def enqueue_one() -> Todo:
    return partial(enqueue, note, "x")


def enqueue_under_a_key() -> Todo:
    JobKeyFactory.create(key="held")
    return lambda: [enqueue(note.using(key=key), "x") for key in ("held", "free")]


def enqueue_many_under_keys() -> Todo:
    JobKeyFactory.create(key="3")
    return lambda: enqueue_many(note.using(key=str(number)).bind("x") for number in range(FEW))


def pass_once() -> Todo:
    return partial(once, "k")


def wake_up() -> Todo:
    start_worker()
    wake._until.clear()
    return partial(wake.wake, ["default"], using="default")


def cancel_one() -> Todo:
    (job,) = make(1, key="k")
    JobKeyFactory.create(key="k", holder_id=job.id)
    return partial(cancel.cancel, job.id, using="default")


def cancel_too_late() -> Todo:
    (letter,) = DeadLetterFactory.create_batch(1)
    return partial(cancel.cancel, letter.job_id, using="default")


def look_up() -> Todo:
    (job,) = make(1, attempt=1)
    run, letter = JobRunFactory.create(), DeadLetterFactory.create()
    return lambda: [get_job(each) for each in (job.id, run.job_id, letter.job_id)]


def replay_some() -> Todo:
    letters = DeadLetterFactory.create_batch(FEW)
    return partial(replay.replay_many, [each.id for each in letters], by="ann", using="default")


def discard_one() -> Todo:
    return partial(replay.discard, DeadLetterFactory.create().id, by="ann", using="default")


def prune_all() -> Todo:
    JobRunFactory.create_batch(FEW, worker="old")
    DeadLetterFactory.create_batch(FEW, discarded=True, worker="old")
    JobKeyFactory.create_batch(FEW, scope="old")
    age(JobRun, "ended_at", LONG_AGO, worker="old")
    age(DeadLetter, "died_at", LONG_AGO, worker="old")
    age(DeadLetter, "closed_at", LONG_AGO, worker="old")
    age(JobKey, "expires_at", LONG_AGO, scope="old")
    return partial(prune.prune, using="default")


def alert_of_letters() -> Todo:
    return partial(alerts.open_letters, using="default")


def alert_of_what_waits() -> Todo:
    make()
    return partial(alerts.queue_states, using="default")


def alert_of_failures() -> Todo:
    return partial(alerts.recent_failures, using="default")


def examine_workers() -> Todo:
    return lambda: list(everywhere.workers("default"))


class Act(NamedTuple):
    """What must cost the same beside any backlog."""

    prepare: Callable[[], Todo]
    backlogs: str  # that must not matter: Jobs that wait, jobs Held by others, Runs, Letters, Keys
    rows: int  # that one node of one of its plans reads, at most
    pages: int  # that one of its statements touches, at most
    # With none at all PostgreSQL takes every value of a column for rare, and sorts what it should read in order.
    needs_statistics: bool = False

    def __str__(self) -> str:
        return self.prepare.__name__.replace("_", " ")


READ = (20, 150)
WRITE = (120, 350)  # to join ten to ten, and to insert ten with their index entries
PARK = (250, 1500)  # a hundred at once
ALERT = (2020, 999)  # a sample of 2,000 runs, and SC-08
# Jobs whose worker has no row are looked for among all that are held: as many as there are threads in the end.
ACTS = [
    Act(look, "JH", *READ),
    Act(claim_from_any_queue, "JH", *PARK),
    Act(claim_from_its_queue, "JH", *PARK),
    Act(claim_with_a_key_that_ends_at_the_start, "JHK", *WRITE),
    Act(promote, "JH", *WRITE),
    Act(raise_what_has_aged, "JH", *WRITE),
    Act(bring_back, "JH", *PARK),
    Act(park, "JH", *PARK),
    Act(succeed, "JHR", *WRITE),
    Act(succeed_with_keys, "JHRK", *WRITE),
    Act(fail, "JHR", *WRITE),
    Act(die, "JHRL", *WRITE),
    Act(finish_late, "JHR", *READ),
    Act(finish_atomically, "JHR", *WRITE),
    Act(turn_over, "JHR", *WRITE),
    Act(turn_over_at_the_end, "JHR", *WRITE),
    Act(turn_over_from_the_start, "JHR", *WRITE),
    Act(hand_back, "JH", *WRITE),
    Act(reconcile, "JH", *READ),
    Act(beat, "", *READ),
    Act(fall_asleep, "", *READ),
    Act(retire, "", *READ),
    Act(wake_up, "", *READ),
    Act(rescue_a_dead_worker, "JR", *WRITE),
    Act(rescue_of_a_worker_without_row, "JR", *WRITE),
    Act(rescue_a_child, "JHR", *WRITE),
    Act(bury, "JHRL", *WRITE),
    Act(ask_for_work, "JRLK", *READ),
    Act(put_aside, "JH", *WRITE),
    Act(claim_a_suspect, "JH", *READ),
    Act(look_for_suspects, "JH", *READ),
    Act(enqueue_one, "JH", *WRITE),
    Act(enqueue_under_a_key, "JHK", *WRITE),
    Act(enqueue_many_under_keys, "JHK", *WRITE),
    Act(pass_once, "K", *READ),
    Act(cancel_one, "JHRK", *READ),
    Act(cancel_too_late, "JHRL", *READ),
    Act(look_up, "JHRL", *READ),
    Act(replay_some, "JHL", *WRITE),
    Act(discard_one, "L", *READ),
    Act(prune_all, "RLK", *WRITE, needs_statistics=True),
    Act(alert_of_letters, "L", *ALERT, needs_statistics=True),
    Act(alert_of_what_waits, "JH", *ALERT),
    Act(alert_of_failures, "R", *ALERT),
    Act(examine_workers, "JH", *READ),
]

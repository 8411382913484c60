"""Several workers, one job: one outcome counts."""

from __future__ import annotations

import signal
from collections import Counter
from datetime import datetime

import pytest
from django.db import connection

from django_jobs import enqueue, enqueue_many
from django_jobs.models import DeadLetter, Job, JobRun, Lock, Worker
from django_jobs.registry import Task
from django_jobs.statuses import JobStatus, RunStatus
from tests.models import Effect
from tests.processes import FAST, Workers, wait_until
from tests.worker import tasks

pytestmark = [pytest.mark.race]


def _is_sqlite() -> bool:
    return connection.vendor == "sqlite"


@pytest.mark.slow
def test_four_workers_run_two_hundred_jobs_once_each(workers: Workers) -> None:
    """CL-01, WK-20. Fewer on SQLite: there a new project waits 5 s for the one write lock, and then its task fails."""
    count, threads = (50, "1") if _is_sqlite() else (200, "3")
    processes = [workers.start("--threads", threads, settings={"POLL_INTERVAL": 0.1}) for _ in range(4)]
    wait_until(lambda: Worker.objects.count() == 4, within=60, what="four workers")

    enqueue_many(tasks.rest.bind(f"{number}", 0.01) for number in range(count))
    wait_until(lambda: not Job.objects.exists(), within=60)
    for process in processes:
        process.signal(signal.SIGTERM)

    assert [process.wait() for process in processes] == [0] * 4
    assert Counter(JobRun.objects.values_list("status", "attempt")) == {(RunStatus.SUCCEEDED, 1): count}
    assert JobRun.objects.values("job_id").distinct().count() == count
    assert Counter(Effect.objects.values_list("label", flat=True)) == {f"{number}": 1 for number in range(count)}
    assert JobRun.objects.values("worker").distinct().count() > 1, "one of them was alone"


@pytest.mark.slow
def test_worker_that_comes_back_after_its_lease_stops_what_it_runs_and_changes_nothing(workers: Workers) -> None:
    """CL-02: it is stopped past its lease, and another one runs its jobs. Then it comes back, and one of them fails."""
    handles = [
        enqueue(tasks.wait_for_go, "failing"),
        enqueue(tasks.ask_until_cancelled, "asking"),
        enqueue(tasks.await_until_cancelled, "awaiting"),
    ]
    late = workers.start_telling("--name", "late")
    workers.wait_told("failing", "asking", "awaiting")
    late.signal(signal.SIGSTOP)
    workers.start("--name", "other")
    wait_until(lambda: JobRun.objects.filter(status=RunStatus.SUCCEEDED).count() == 3, what="the other's successes")

    late.signal(signal.SIGCONT)
    (workers.told / "go").touch()
    workers.wait_told("asking cancelled", "awaiting cancelled")
    wait_until(lambda: late.output.count("lease lost") == 3, what=late.output)
    late.signal(signal.SIGTERM)

    assert late.wait() == 0
    assert [handle.get().status for handle in handles] == ["succeeded"] * 3
    assert not DeadLetter.objects.exists()
    runs = [(RunStatus.LOST, "late"), (RunStatus.SUCCEEDED, "other")]
    for handle in handles:
        assert list(JobRun.objects.filter(job_id=handle.id).order_by("id").values_list("status", "worker")) == runs
    assert late.output.count("lease lost") == 3, "once for each run"


@pytest.mark.slow
def test_job_of_a_killed_worker_is_taken_back_and_run_by_another(workers: Workers) -> None:
    """CL-08: without any restart, within a lease and a sweep."""
    handle = enqueue(tasks.plain_effect, "killed")
    doomed = workers.start_telling()
    workers.wait_told("killed")
    workers.start()
    wait_until(lambda: Worker.objects.count() == 2)

    doomed.kill()
    sweep = 2 * FAST["LEASE"]
    wait_until(lambda: handle.get().crashes == 1 or handle.get().is_finished, within=FAST["LEASE"] + sweep)
    wait_until(lambda: handle.get().is_finished)

    assert list(JobRun.objects.order_by("id").values_list("status", "attempt")) == [
        (RunStatus.LOST, 1),
        (RunStatus.SUCCEEDED, 2),
    ]


@pytest.mark.slow
def test_killed_holder_of_the_only_place_of_a_group_frees_it_and_is_run_again(workers: Workers) -> None:
    """CL-13: the group's limit of one is a lock that each of its jobs takes, for as long as a lease."""
    doomed = workers.start_telling("--threads", "1")
    first = enqueue(tasks.alone_in_group, "first", FAST["LEASE"])
    workers.wait_told("first")
    second = enqueue(tasks.alone_in_group, "second", FAST["LEASE"])
    doomed.kill()
    workers.start("--threads", "2")

    wait_until(lambda: first.get().is_finished and second.get().is_finished, within=30)

    assert [first.status, second.status] == ["succeeded", "succeeded"]
    effects = Counter(Effect.objects.values_list("label", flat=True))
    assert effects == {"first": 2, "second": 1}
    assert first.get().crashes == 1
    assert second.get().failures == 0
    assert not Lock.objects.filter(owner__isnull=False).exists()


@pytest.mark.slow
def test_long_jobs_keep_their_lease_while_their_worker_lives(workers: Workers) -> None:
    """CL-03, CL-04, CL-05: jobs of three leases, beside a worker that would take them back.

    One sleeps, one awaits, one computes without a pause, and one stays in a transaction. SQLite locks the whole file
    for the last one, heartbeats included.
    """
    settings = {"LEASE": 2, "HEARTBEAT": 0.3, "POLL_INTERVAL": 0.1}
    kinds: list[Task] = [tasks.rest, tasks.arest, tasks.compute]
    if not _is_sqlite():
        kinds.append(tasks.rest_in_transaction)
    handles = [enqueue(task, task.name, 3 * settings["LEASE"]) for task in kinds]
    workers.start_telling("--name", "holder", settings=settings)
    workers.wait_told(*(task.name for task in kinds))
    workers.start("--name", "other", settings=settings)

    moments: set[datetime] = set()

    def are_ended() -> bool:
        moments.update(Worker.objects.filter(name="holder").values_list("heartbeat_at", flat=True))
        return all(handle.get().is_finished for handle in handles)

    wait_until(are_ended, within=60)

    assert set(JobRun.objects.values_list("status", "attempt", "worker")) == {(RunStatus.SUCCEEDED, 1, "holder")}
    assert JobRun.objects.count() == len(kinds)
    assert len(moments) > 3, "from here, the heart is seen to beat while they run"


@pytest.mark.postgres
def test_outcome_is_written_after_the_connection_was_cut_just_before(workers: Workers) -> None:
    """CL-15: the task cuts every session of its worker, then ends."""
    first = enqueue(tasks.cut_own_worker, "cut")
    worker = workers.start(PGAPPNAME="cl15")
    wait_until(lambda: first.get().is_finished)
    second = enqueue(tasks.plain_effect, "after")
    wait_until(lambda: second.get().is_finished)

    worker.signal(signal.SIGTERM)

    assert worker.wait() == 0
    assert list(JobRun.objects.values_list("status", "attempt")) == [(RunStatus.SUCCEEDED, 1)] * 2


@pytest.mark.postgres
@pytest.mark.slow
def test_no_transaction_of_the_worker_is_open_while_a_task_runs(workers: Workers) -> None:
    """CL-20: the server ends transactions idle for a second; the job rests for three, and its row is free."""
    from django.db import transaction

    handle = enqueue(tasks.rest, "resting", 3)
    workers.start_telling(PGOPTIONS="-c idle_in_transaction_session_timeout=1s")
    workers.wait_told("resting")

    with transaction.atomic():
        row = Job.objects.select_for_update(nowait=True).get()
        assert row.status == JobStatus.RUNNING
    wait_until(lambda: handle.get().is_finished)

    assert list(JobRun.objects.values_list("status", "attempt")) == [(RunStatus.SUCCEEDED, 1)]

"""`runworker --processes`: what dies is replaced and its jobs are rescued, and all ends together."""

from __future__ import annotations

import os
import re
import signal
from collections import Counter
from pathlib import Path

import pytest

from django_jobs import enqueue, enqueue_many
from django_jobs.models import DeadLetter, Job, JobRun
from django_jobs.models import Worker as WorkerRow
from django_jobs.statuses import DeathReason, JobStatus, RunStatus
from tests.processes import WorkerProcess, Workers, is_alive, wait_until
from tests.worker import tasks

pytestmark = [pytest.mark.race, pytest.mark.slow]

# Nothing is rescued by the end of a lease here.
SLOW = {"LEASE": 300, "HEARTBEAT": 10, "POLL_INTERVAL": 0.1}
FEW = ("--grace", "10", "--threads", "1")


def supervise(workers: Workers, *arguments: str, processes: int = 1, **environment: str) -> WorkerProcess:
    flags = (*FEW, "--processes", str(processes), *arguments)
    return workers.start_telling(*flags, settings=SLOW, **environment)


def wait_served(count: int) -> None:
    wait_until(lambda: WorkerRow.objects.count() == count, what=f"{count} workers", within=30)


def stop(process: WorkerProcess, number: int = signal.SIGTERM) -> int:
    process.signal(number)
    return process.wait()


def starts(workers: Workers, label: str) -> int:
    """How often `end_process` was started with this label."""
    return len((workers.told / label).read_text())


@pytest.mark.parametrize(("how", "ending"), [("exit", "exited with code 9"), ("SIGKILL", "was killed by SIGKILL")])
def test_job_that_kills_its_process_is_started_three_times_and_those_beside_it_are_charged_nothing(
    workers: Workers, how: str, ending: str
) -> None:
    """CL-09, promise 6: all hundred were claimed at once, and the first of them never ends."""
    supervisor = supervise(workers)
    enqueue_many(tasks.end_process.bind(f"warm-up {number}") for number in range(100))
    wait_until(lambda: not Job.objects.exists(), within=30)

    killer = tasks.end_process.using(priority=10)
    enqueue_many([killer.bind("killer", how), *(tasks.end_process.bind(f"{number}") for number in range(99))])
    wait_until(lambda: not Job.objects.exists(), within=60)

    assert starts(workers, "killer") == 3
    letter = DeadLetter.objects.get()
    assert (letter.reason, letter.crashes, letter.failures, letter.attempt) == (DeathReason.WORKER_LOST, 3, 0, 3)
    assert ending in letter.error_text
    runs = JobRun.objects.exclude(job_id=letter.job_id).values_list("status", "attempt")
    assert Counter(runs) == {(RunStatus.SUCCEEDED, 1): 199}
    assert stop(supervisor) == 0
    claimed_beside = sum(map(int, re.findall(r"jobs rescued count=\d+ unstarted=(\d+)", supervisor.output)))
    assert claimed_beside > 0, supervisor.output


def test_dead_process_is_replaced_and_its_job_rescued_long_before_its_lease_is_over(workers: Workers) -> None:
    handle = enqueue(tasks.plain_effect, "held")
    supervisor = supervise(workers)
    workers.wait_told("held")
    (pid,) = supervisor.children

    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: handle.get().crashes == 1, within=30)
    (workers.told / "held").unlink()
    workers.wait_told("held")

    lost = JobRun.objects.get()
    assert (lost.status, "was killed by SIGKILL" in lost.error_text) == (RunStatus.LOST, True)
    assert "process ended place=1" in supervisor.output
    assert supervisor.children != [pid]


def test_sigterm_lets_every_process_end_its_job(workers: Workers) -> None:
    enqueue_many(tasks.rest.bind(label, 1.5) for label in ("a", "b"))
    supervisor = supervise(workers, processes=2)
    workers.wait_told("a", "b")

    assert stop(supervisor) == 0

    assert Counter(JobRun.objects.values_list("status", "attempt")) == {(RunStatus.SUCCEEDED, 1): 2}
    assert not WorkerRow.objects.exists()
    assert supervisor.output.count('ending="exited with code 0"') == 2, supervisor.output


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_second_signal_hands_back_at_once(workers: Workers, number: int) -> None:
    enqueue(tasks.rest, "running", 60)
    supervisor = supervise(workers, "--grace", "50")
    workers.wait_told("running")

    supervisor.signal(number)
    supervisor.wait_for("worker stopping")
    supervisor.signal(number)

    assert supervisor.wait(10) == 0
    assert Job.objects.get().status == JobStatus.READY
    assert JobRun.objects.get().status == RunStatus.RELEASED


def test_signal_to_the_whole_group_is_one_signal(workers: Workers) -> None:
    """As systemd sends it by default, and some container runtimes do: to the supervisor and to its processes."""
    enqueue(tasks.rest, "running", 2)
    supervisor = supervise(workers)
    workers.wait_told("running")

    for pid in [*supervisor.children, supervisor.popen.pid]:
        os.kill(pid, signal.SIGTERM)

    assert supervisor.wait() == 0
    assert JobRun.objects.get().status == RunStatus.SUCCEEDED


def test_signal_while_its_processes_start_ends_them(workers: Workers) -> None:
    """WK-01."""
    enqueue(tasks.rest, "never", 60)
    supervisor = supervise(workers, processes=2)
    supervisor.wait_for("process started place=2")

    supervisor.signal(signal.SIGTERM)

    assert supervisor.wait(20) == 0
    assert supervisor.children == []
    assert not Job.objects.filter(status=JobStatus.RUNNING).exists()


def test_processes_end_gently_when_their_supervisor_is_killed(workers: Workers) -> None:
    handle = enqueue(tasks.rest, "ending", 1.5)
    supervisor = supervise(workers, processes=2)
    workers.wait_told("ending")
    wait_served(2)
    pids = supervisor.children

    supervisor.kill()

    wait_until(lambda: not any(map(is_alive, pids)), within=30)
    assert handle.get().status == "succeeded"
    assert not WorkerRow.objects.exists()
    assert "the supervisor is gone" in supervisor.output


def test_processes_share_no_connection_with_each_other(workers: Workers) -> None:
    """WK-10: nor with their supervisor, which has none."""
    supervisor = supervise(workers, processes=2)
    wait_served(2)

    own, *others = [sockets(pid) for pid in (supervisor.popen.pid, *supervisor.children)]

    assert own == set()
    assert len(others) == 2
    assert not others[0] & others[1]


def sockets(pid: int) -> set[str]:
    links = []
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            links.append(str(descriptor.readlink()))
        except OSError:  # closed meanwhile
            continue
    return {link for link in links if link.startswith("socket:")}


def test_process_is_replaced_after_so_many_jobs(workers: Workers) -> None:
    enqueue_many(tasks.plain_effect.bind(f"{number}") for number in range(8))

    supervisor = workers.start(*FEW, "--processes", "1", "--max-jobs", "3", "--burst", settings=SLOW)

    assert supervisor.wait(60) == 0
    assert sorted(Counter(JobRun.objects.values_list("worker", flat=True)).values()) == [2, 3, 3]
    assert supervisor.output.count("process started") == 3


def test_process_is_replaced_when_it_takes_too_much_memory(workers: Workers) -> None:
    enqueue(tasks.hoard, 300)
    supervisor = supervise(workers, "--max-memory", "250")
    supervisor.wait_for("cause=max_memory", within=40)
    enqueue(tasks.end_process, "after")
    wait_until(lambda: not Job.objects.exists(), within=30)

    assert stop(supervisor) == 0
    assert JobRun.objects.values("worker").distinct().count() == 2


def test_worker_without_a_supervisor_ends_when_it_takes_too_much_memory(workers: Workers) -> None:
    enqueue(tasks.hoard, 300)

    worker = workers.start("--max-memory", "250", settings=SLOW)

    assert worker.wait(40) == 0
    assert "worker spent" in worker.output
    assert JobRun.objects.get().status == RunStatus.SUCCEEDED


def test_process_with_a_task_that_cannot_be_stopped_is_replaced_when_the_others_are_done(workers: Workers) -> None:
    """WK-14: what the stuck one writes later has no effect on its job."""
    enqueue(tasks.ignore_the_limit, "stuck")
    supervisor = supervise(workers, "--threads", "2")
    workers.wait_told("stuck")
    beside = enqueue(tasks.rest, "beside", 5)
    supervisor.wait_for("cause=stuck_task", within=40)
    after = enqueue(tasks.end_process, "after")
    wait_until(lambda: after.get().is_finished, within=30)

    assert stop(supervisor) == 0
    assert beside.get().status == "succeeded"
    assert JobRun.objects.get(job_id=beside.id).worker != JobRun.objects.get(job_id=after.id).worker
    assert DeadLetter.objects.get().reason == DeathReason.OUT_OF_TRIES


def test_sighup_replaces_each_process_without_charging_a_job(workers: Workers) -> None:
    handle = enqueue(tasks.rest, "running", 1.5)
    supervisor = supervise(workers, processes=2)
    workers.wait_told("running")
    wait_served(2)
    before = supervisor.children

    supervisor.signal(signal.SIGHUP)
    wait_until(lambda: len(supervisor.children) == 2 and not {*supervisor.children} & {*before}, within=40)

    assert stop(supervisor) == 0
    assert (handle.get().status, handle.get().attempt) == ("succeeded", 1)


def test_names_of_processes_are_told_apart_by_their_place(workers: Workers) -> None:
    supervise(workers, "--name", "shop", processes=2)
    wait_served(2)

    assert sorted(WorkerRow.objects.values_list("name", flat=True)) == ["shop-1", "shop-2"]


def test_number_of_processes_can_be_a_setting(workers: Workers) -> None:
    supervisor = workers.start(settings={**SLOW, "PROCESSES": 2})
    wait_served(2)

    assert stop(supervisor) == 0


def test_busy_worker_gets_to_a_suspect_when_what_runs_has_ended(workers: Workers) -> None:
    """It has two threads, and always a job for each; the suspect runs alone all the same."""
    suspect = enqueue(tasks.rest.using(priority=5), "suspect", 0.2)
    Job.objects.update(crashes=1)
    enqueue_many(tasks.rest.bind(f"{number}", 0.1) for number in range(60))
    workers.start_telling("--threads", "2", settings=SLOW)

    wait_until(lambda: suspect.get().is_finished, within=30)

    assert Job.objects.filter(status=JobStatus.READY).exists(), "it did not wait for the end of the queue"
    run = JobRun.objects.get(job_id=suspect.id)
    assert run.status == RunStatus.SUCCEEDED
    wait_until(lambda: not Job.objects.exists(), within=30)
    others = JobRun.objects.exclude(job_id=suspect.id)
    assert not others.filter(started_at__lt=run.ended_at, ended_at__gt=run.started_at).exists()


def test_only_the_guilty_dies_without_a_supervisor_too(workers: Workers) -> None:
    """Nobody knows what a dead worker had started: its jobs run alone, one after the other, and are cleared by that."""
    fast = {"LEASE": 1, "HEARTBEAT": 0.3, "POLL_INTERVAL": 0.1}
    enqueue_many(tasks.end_process.bind(f"{number}") for number in range(20))
    enqueue(tasks.end_process.using(priority=5), "killer", "exit")

    for _ in range(3):
        assert workers.start_telling("--threads", "1", settings=fast).wait(60) == 9
    workers.start(settings=fast)
    wait_until(lambda: not Job.objects.exists(), within=60)

    assert starts(workers, "killer") == 3
    letter = DeadLetter.objects.get()
    assert (letter.reason, letter.crashes) == (DeathReason.WORKER_LOST, 3)
    assert JobRun.objects.filter(status=RunStatus.SUCCEEDED).count() == 20
    assert JobRun.objects.exclude(job_id=letter.job_id).filter(attempt__gt=2).count() == 0

"""Statements that are carried out and committed, and whose answer is lost with the connection."""

from __future__ import annotations

import signal
from collections import Counter
from typing import NamedTuple

import pytest

from django_jobs import enqueue_many
from django_jobs.models import Job, JobRun
from django_jobs.registry import Task
from django_jobs.statuses import RunStatus
from tests.models import Effect
from tests.processes import FAST, Workers, wait_until
from tests.wire import Wire
from tests.worker import tasks

pytestmark = [pytest.mark.race, pytest.mark.slow, pytest.mark.postgres]

ONCE = {(RunStatus.SUCCEEDED, 1): 1}
TWICE = {(RunStatus.FAILED, 1): 1, (RunStatus.FAILED, 2): 1}


class Lost(NamedTuple):
    """What is lost: the answer to the last of these texts. So many jobs run meanwhile, each as often as `runs` says."""

    name: str
    texts: tuple[bytes, ...]
    jobs: int = 40
    task: Task = tasks.plain_effect
    runs: dict[tuple[RunStatus, int], int] = ONCE


LOST = [
    Lost("claim", (b"WITH \n    picked AS",)),
    Lost("turn", (b"WITH \n    success AS", b"recorded AS"), jobs=400),
    Lost("successes", (b") SELECT job_id FROM succeeded",)),
    Lost("retries", (b") SELECT job_id FROM ended",), task=tasks.retry_at_once, runs=TWICE),
    Lost(
        "commit of deaths", (b'INSERT INTO "django_jobs_deadletter"', b"COMMIT"), task=tasks.retry_at_once, runs=TWICE
    ),
    Lost("commit of an atomic task", (b") SELECT job_id FROM succeeded", b"COMMIT"), task=tasks.atomic_effect),
    Lost("heartbeat", (b"SET heartbeat_at",)),
]


def test_worker_does_nothing_twice_and_forgets_nothing_when_an_answer_is_lost(wire: Wire, workers: Workers) -> None:
    """CL-14: one after the other in one process."""
    # One that is woken lets the server keep its statements, which cannot be read any more then.
    worker = workers.start("--threads", "2", database=wire.address, settings={**FAST, "NOTIFY": False})
    worker.wait_for("worker started")
    for lost in LOST:
        _lose(lost, wire)
    worker.signal(signal.SIGTERM)

    assert worker.wait() == 0
    assert worker.outages == [], worker.output
    assert "lease lost" not in worker.output
    assert "run released" not in worker.output, "the atomic task succeeded"


def _lose(lost: Lost, wire: Wire) -> None:
    loss = wire.lose_answer(*lost.texts)
    jobs = enqueue_many(lost.task.bind(f"{lost.name} {number}") for number in range(lost.jobs))

    wait_until(lambda: loss.is_done and not Job.objects.exists(), what=lost.name)

    labels = Counter(Effect.objects.filter(label__startswith=f"{lost.name} ").values_list("label", flat=True))
    assert set(labels.values()) == {sum(lost.runs.values())}, lost.name
    assert len(labels) == lost.jobs, lost.name
    # Nothing is tidied away: the worker may still be about to ask what has become of the statement without an answer.
    runs = Counter(JobRun.objects.filter(job_id__in=[job.id for job in jobs]).values_list("status", "attempt"))
    assert runs == {each: lost.jobs * times for each, times in lost.runs.items()}, lost.name

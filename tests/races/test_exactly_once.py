"""Effects of workers that were killed between the effect and its record, counted in the database."""

from __future__ import annotations

from collections import Counter

import pytest

from django_jobs import enqueue_many
from django_jobs.models import Job
from django_jobs.registry import Task
from tests.models import Effect
from tests.processes import Workers, wait_until
from tests.worker import tasks

KILLS = 10
RUNS = 10  # of each task, caught in each kill

# SQLite has one writer: there, ten transactions cannot be caught at once.
pytestmark = [
    pytest.mark.race,
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.postgres,
    pytest.mark.mariadb,
]

KINDS: dict[str, Task] = {
    "atomic": tasks.atomic_effect,
    "once": tasks.once_effect,
    "plain": tasks.plain_effect,
}


def test_effects_of_atomic_and_once_tasks_are_made_exactly_once_whenever_the_worker_is_killed(workers: Workers) -> None:
    """Ten kills, each with ten runs of each kind between effect and finish. Plain tasks leave doubles."""
    for kill in range(KILLS):
        labels = _enqueue(kill)
        worker = workers.start_telling("--threads", str(len(labels)))
        workers.wait_told(*labels, within=60)
        worker.kill()

    workers.start("--threads", "5")
    wait_until(lambda: not Job.objects.exists(), within=60)

    counts = Counter(Effect.objects.values_list("label", flat=True))
    by_kind = {kind: sorted(counts[f"{kind}-{kill}-{run}"] for kill, run in _caught()) for kind in KINDS}
    assert by_kind["atomic"] == [1] * KILLS * RUNS
    assert by_kind["once"] == [1] * KILLS * RUNS
    assert by_kind["plain"] == [2] * KILLS * RUNS, "without atomic, each run that was caught leaves its effect twice"


def _caught() -> list[tuple[int, int]]:
    return [(kill, run) for kill in range(KILLS) for run in range(RUNS)]


def _enqueue(kill: int) -> list[str]:
    labels = {kind: [f"{kind}-{kill}-{run}" for run in range(RUNS)] for kind in KINDS}
    enqueue_many(KINDS[kind].bind(label) for kind in KINDS for label in labels[kind])
    return [label for each in labels.values() for label in each]

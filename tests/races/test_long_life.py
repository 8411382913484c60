"""A worker's process that has run many thousands of jobs is no larger than one that has run some."""

from __future__ import annotations

import pytest

from django_jobs import enqueue, enqueue_many
from django_jobs.models import Job, JobRun
from django_jobs.statuses import RunStatus
from tests.processes import Workers, wait_until
from tests.worker import tasks

# What other databases' drivers keep for themselves is not ours.
pytestmark = [pytest.mark.race, pytest.mark.slow, pytest.mark.postgres]

COUNT = 12_000
# What leaks 100 bytes of each job leaks an object of each.
MOST_OBJECTS = COUNT // 10
MOST_MEMORY = 4_000_000  # bytes
ASKS = 10  # statements of one job


def _run(sync_count: int, async_count: int, asking_count: int) -> None:
    enqueue_many(
        [
            *(tasks.pass_by.bind(number) for number in range(sync_count)),
            *(tasks.apass_by.bind(number) for number in range(async_count)),
            *(tasks.ask.bind(ASKS) for _ in range(asking_count)),
        ]
    )
    wait_until(lambda: not Job.objects.exists(), within=120)


def _weigh() -> tuple[int, int]:
    handle = enqueue(tasks.weigh)
    wait_until(lambda: handle.get().is_finished, within=60)
    memory, objects = handle.result()
    return memory, objects


def test_worker_grows_by_nothing_with_each_job(workers: Workers) -> None:
    """WK-11: with DEBUG, too, where Django remembers every statement."""
    workers.start_telling("--threads", "2", "--noreload", TEST_DEBUG="1")
    _run(COUNT // 6, COUNT // 6, 100)
    memory, objects = _weigh()

    _run(COUNT // 2, COUNT // 2, 300)
    memory_after, objects_after = _weigh()

    assert objects_after - objects < MOST_OBJECTS
    assert memory_after - memory < MOST_MEMORY
    assert set(JobRun.objects.values_list("status", "attempt")) == {(RunStatus.SUCCEEDED, 1)}
    asking = JobRun.objects.filter(task_name=tasks.ask.name)
    assert not asking.filter(result__gt=ASKS).exists(), "what one job has asked is forgotten before the next one"

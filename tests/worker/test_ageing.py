"""A steady stream of a high priority, and one job of a low one."""

from __future__ import annotations

from typing import Any

import pytest

from django_jobs import enqueue, enqueue_many
from django_jobs.models import Job, JobRun
from tests.processes import FAST, Workers, wait_until
from tests.worker import tasks

pytestmark = [pytest.mark.race, pytest.mark.slow]
AHEAD = 20  # jobs of the high priority that always wait: more than the worker claims ahead


def _stream(until: Any, within: float) -> None:
    """Keep the queue full of the high priority until then."""

    def top_up() -> Any:
        missing = AHEAD - Job.objects.filter(status="ready", priority=10).count()
        enqueue_many(tasks.rest.using(priority=10).bind("high", 0.05) for _ in range(missing))
        return until()

    wait_until(top_up, within=within)


@pytest.mark.parametrize("ageing", [1, None])
def test_low_priority_is_served_beside_a_steady_stream_where_jobs_age(workers: Workers, ageing: int | None) -> None:
    """CL-22"""
    workers.start("--threads", "1", settings={**FAST, "PRIORITY_AGEING": ageing})
    _stream(JobRun.objects.exists, within=30)
    low = enqueue(tasks.rest.using(priority=-5), "low", 0.05)
    before = JobRun.objects.count()

    def served() -> bool:
        return JobRun.objects.filter(job_id=low.id).exists()

    if ageing:
        _stream(served, within=30)
        assert JobRun.objects.get(job_id=low.id).priority == 10
    else:
        _stream(lambda: JobRun.objects.count() > before + 2 * AHEAD or served(), within=30)
        assert not served()
        assert Job.objects.get(id=low.id).priority == -5

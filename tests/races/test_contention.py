"""Thirty workers on one queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection

from django_jobs import enqueue_many, registry
from django_jobs.lifecycle import claim, extend, turn
from django_jobs.models import Job, JobKey, JobRun
from django_jobs.runs import Outcome
from tests.lifecycle.steps import start_worker, succeeded
from tests.lifecycle.threads import at_once
from tests.tasks import note

pytestmark = [pytest.mark.race, pytest.mark.postgres, pytest.mark.mariadb, pytest.mark.django_db(transaction=True)]

WORKERS = 30
JOBS = 900
BATCH = 3
KNOWN = frozenset(registry.names())
MOST_WAIT = {
    "postgresql": "SET lock_timeout = '1s'",
    "mysql": "SET SESSION innodb_lock_wait_timeout = 1",
}
# For each job. PostgreSQL is asked once for a batch that ends and the one that follows it.
MOST_ASKED = {"postgresql": 1.5, "mysql": 10}


def test_thirty_workers_on_one_queue_wait_for_no_lock_and_ask_little_for_each_job() -> None:
    """PG-05: a wait of more than a second is an error here. Each job has a key, and each worker beats meanwhile."""
    enqueue_many(note.using(key=f"{number}", unique="live").bind(f"{number}") for number in range(JOBS))

    asked = at_once([_serve] * WORKERS)

    assert JobRun.objects.filter(status="succeeded", attempt=1).count() == JOBS
    assert not Job.objects.exists()
    assert not JobKey.objects.exists()
    assert sum(asked) / JOBS < MOST_ASKED[connection.vendor]


def _serve() -> int:
    """Take turns until nothing is left. How many statements that took."""
    with connection.cursor() as cursor:
        cursor.execute(MOST_WAIT[connection.vendor])
    worker, outcomes, asked = start_worker(), list[Outcome](), 0

    def count(execute: Callable[..., Any], sql: str, *rest: Any) -> Any:
        nonlocal asked
        asked += 1
        return execute(sql, *rest)

    with connection.execute_wrapper(count):
        while True:
            finished, runs = turn.turn(outcomes, worker, "default", BATCH, KNOWN, using="default")
            outcomes = [*finished.kept, *map(succeeded, runs)]
            if not outcomes and not claim.look(None, using="default").ready:
                break
            if not runs:
                extend.extend(worker, using="default")
    return asked

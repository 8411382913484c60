"""Connections that stay open and swallow all that is sent: no error ever comes of that."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from django_jobs import enqueue, enqueue_many
from django_jobs.models import JobRun
from django_jobs.statuses import RunStatus
from tests.models import Effect
from tests.processes import Workers, wait_until
from tests.wire import Wire
from tests.worker import tasks

pytestmark = [pytest.mark.race, pytest.mark.slow]


@pytest.mark.postgres
@pytest.mark.mariadb
def test_worker_whose_statements_get_no_answer_goes_on_over_new_connections(wire: Wire, workers: Workers) -> None:
    """WK-08. Those that were open stay dead, those of idle threads too."""
    _let_connections_die(wire, workers, {})


@pytest.mark.postgres
def test_pool_whose_connections_swallow_everything_is_filled_anew(wire: Wire, workers: Workers) -> None:
    _let_connections_die(wire, workers, {"pool": {"min_size": 2, "max_size": 8}})


def _let_connections_die(wire: Wire, workers: Workers, options: dict[str, Any]) -> None:
    worker = workers.start_telling(database={**wire.address, "OPTIONS": {**wire.address["OPTIONS"], **options}})
    enqueue_many(tasks.rest.bind(f"before {number}", 0.1) for number in range(5))
    wait_until(lambda: JobRun.objects.count() == 5)
    enqueue(tasks.wait_and_leave_no_effect, "during", 0.5)
    workers.wait_told("during")

    wire.is_dead = True
    worker.wait_for("database away")
    enqueue_many(tasks.rest.bind(f"after {number}", 0.1) for number in range(5))
    wire.forget()
    wait_until(lambda: JobRun.objects.count() == 11, within=40)
    worker.wait_for("database back")
    worker.signal(signal.SIGTERM)

    assert worker.wait() == 0
    assert set(JobRun.objects.values_list("status", "attempt")) == {(RunStatus.SUCCEEDED, 1)}
    assert Effect.objects.count() == 10
    assert worker.outages == ["away", "back"], worker.output


@pytest.mark.postgres
def test_stop_signal_ends_a_worker_long_before_its_patience_would(wire: Wire, workers: Workers) -> None:
    """WK-08: it would wait for half a minute for that answer; the grace is shorter."""
    worker = workers.start(database=wire.address, settings={"POLL_INTERVAL": 0.1, "NOTIFY": False})
    worker.wait_for("worker started")
    wire.is_dead = True
    wait_until(lambda: wire.swallowed)

    worker.signal(signal.SIGTERM)

    assert worker.wait(15) == 0


@pytest.mark.postgres
def test_stop_signal_ends_a_worker_that_gets_no_answer_at_its_start(wire: Wire, workers: Workers) -> None:
    wire.is_dead = True
    worker = workers.start(database=wire.address)
    wait_until(lambda: wire.swallowed)

    worker.signal(signal.SIGTERM)

    assert worker.wait(15) == 0

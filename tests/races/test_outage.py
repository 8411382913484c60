"""The database goes away under a worker, and comes back."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
from django.db import connection, connections

from django_jobs import enqueue
from django_jobs.models import JobRun
from django_jobs.statuses import RunStatus
from tests.processes import Workers, wait_until
from tests.wire import Wire
from tests.worker import tasks

pytestmark = [pytest.mark.race, pytest.mark.slow, pytest.mark.postgres]

AWAY = 2.0  # seconds


@contextmanager
def away() -> Iterator[None]:
    """Let the server cut every session of this database, and refuse new ones, for the block."""
    params = connection.get_connection_params()
    name = str(params["dbname"])
    where = {key: params[key] for key in ("host", "port", "user", "password") if key in params}
    connections.close_all()
    with psycopg.connect(**where, dbname="postgres", autocommit=True) as server:
        server.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
        try:
            server.execute("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %s", [name])
            yield
        finally:
            server.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')


def test_worker_outlives_an_outage_and_writes_what_ended_meanwhile(wire: Wire, workers: Workers) -> None:
    """WK-07: one line when it begins and one when it ends, few tries in between, and nobody is charged."""
    during = enqueue(tasks.wait_and_leave_no_effect, "during", 1.0)
    worker = workers.start_telling(database=wire.address, settings={"POLL_INTERVAL": 0.1})
    workers.wait_told("during")

    with away():
        asked = wire.asked
        time.sleep(AWAY)  # the span of the outage
        asked = wire.asked - asked
        assert worker.popen.poll() is None, worker.output
    wait_until(lambda: during.get().is_finished, within=30)
    after = enqueue(tasks.wait_and_leave_no_effect, "after", 0)
    wait_until(lambda: after.get().is_finished, within=30)
    worker.wait_for("database back")
    worker.signal(signal.SIGTERM)

    assert worker.wait() == 0
    assert JobRun.objects.get(job_id=during.id).status == RunStatus.SUCCEEDED
    assert JobRun.objects.get(job_id=during.id).attempt == 1
    assert after.get().attempt == 1
    assert worker.outages == ["away", "back"], worker.output
    assert 2 <= asked <= 20  # of four threads, whose pauses grow to several seconds: see TestRetrier


def test_worker_that_is_started_first_waits_for_the_database(workers: Workers) -> None:
    """WK-07."""
    handle = enqueue(tasks.plain_effect, "waiting")
    with away():
        worker = workers.start(settings={"POLL_INTERVAL": 0.1})
        worker.wait_for("database away")
    wait_until(lambda: handle.get().is_finished, within=30)
    worker.signal(signal.SIGTERM)

    assert worker.wait() == 0
    assert handle.get().attempt == 1
    assert worker.outages == ["away", "back"], worker.output


def test_stop_signal_ends_a_worker_whose_database_is_away(workers: Workers) -> None:
    worker = workers.start(settings={"POLL_INTERVAL": 0.1})
    worker.wait_for("worker started")
    with away():
        worker.wait_for("database away")
        worker.signal(signal.SIGTERM)
        assert worker.wait(15) in (0, 1), os.linesep + worker.output

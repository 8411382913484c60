"""The server can be read and not written: a standby that is not promoted yet, or a primary that was demoted."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import environ
import pytest
from django.core.management import call_command
from django.db import connection

from django_jobs import enqueue
from django_jobs.models import JobRun
from django_jobs.statuses import RunStatus
from services.postgres import EmbeddedPostgresMissing, Server, embedded_server
from tests.processes import WorkerProcess, Workers, wait_until
from tests.wire import reached_at
from tests.worker import tasks

pytestmark = [pytest.mark.race, pytest.mark.slow, pytest.mark.postgres]

AWAY = 1.5  # seconds


@contextmanager
def read_only() -> Iterator[None]:
    """For the block, sessions of this database are new, and can only read."""
    name = connection.ops.quote_name(connection.settings_dict["NAME"])
    with connection.cursor() as cursor:
        cursor.execute("SET default_transaction_read_only = off")  # for this one
        cursor.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        try:
            cursor.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            yield
        finally:
            cursor.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only")


def replace_by_standby(server: Server) -> None:
    """Let the server die, and another one with its data be there at its address, which can only be read."""
    server.stop("immediate")
    told_to_stand_by = server._run / "data" / "standby.signal"
    told_to_stand_by.touch()
    shutil.chown(told_to_stand_by, told_to_stand_by.parent.stat().st_uid)
    server.start()


@pytest.fixture
def server() -> Iterator[Server]:
    try:
        with embedded_server(fsync=False) as server:
            yield server
    except EmbeddedPostgresMissing as missing:
        pytest.skip(f"There is no PostgreSQL here that may be stopped: {missing}.")


def start_and_hold(workers: Workers, **options: str) -> WorkerProcess:
    """Start a worker whose connections have all been used, and that is in the midst of a job that takes a second."""
    worker = workers.start_telling("--threads", "2", **options)
    before = enqueue(tasks.rest, "before", 0.1), enqueue(tasks.rest, "before, too", 0.1)
    wait_until(lambda: all(each.get().is_finished for each in before))
    enqueue(tasks.wait_and_leave_no_effect, "during", 1.0)
    workers.wait_told("during")
    return worker


def check_that_all_is_well(worker: WorkerProcess, *, runs: int) -> None:
    wait_until(lambda: JobRun.objects.count() == runs, within=30)
    worker.wait_for("database back")
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert set(JobRun.objects.values_list("status", "attempt")) == {(RunStatus.SUCCEEDED, 1)}
    assert worker.outages == ["away", "back"], worker.output
    assert "service failed" not in worker.output


def test_worker_waits_until_a_database_that_can_only_be_read_can_be_written_again(workers: Workers) -> None:
    worker = start_and_hold(workers)

    with read_only():
        worker.wait_for("database away")
        for number in range(4):
            enqueue(tasks.rest, f"after {number}", 0.1)
        time.sleep(AWAY)  # the span of the outage

    check_that_all_is_well(worker, runs=7)


def test_worker_goes_on_when_a_standby_takes_over(workers: Workers, server: Server) -> None:
    """The address stays. At first nobody answers there, then one who can only be read."""
    address = {key: environ.Env.db_url_config(server.url)[key] for key in ("NAME", "USER", "PASSWORD", "HOST", "PORT")}
    with reached_at(**address):
        call_command("migrate", run_syncdb=True, verbosity=0)
        worker = start_and_hold(workers, DATABASE_URL=server.url, TEST_DATABASE_DEFAULT="postgres")

        connection.close()
        replace_by_standby(server)
        worker.wait_for("database away")
        time.sleep(AWAY)  # the span of the outage
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_promote()")
        for number in range(4):
            enqueue(tasks.rest, f"after {number}", 0.1)

        check_that_all_is_well(worker, runs=7)

"""A whole worker behind a PgBouncer in transaction mode, and those who enqueue for it."""

from __future__ import annotations

import contextlib
import io
import signal
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from django.core.management import call_command
from django.db import connection, transaction

from django_jobs import enqueue, enqueue_many
from django_jobs.lifecycle.wake import CHANNEL
from django_jobs.models import DeadLetter, Job, JobKey, JobRun
from django_jobs.statuses import RunStatus
from tests.models import Effect
from tests.pooler import POOL_SIZE, pgbouncer
from tests.processes import Workers, wait_until
from tests.wire import Wire, reached_at
from tests.worker import tasks

pytestmark = [pytest.mark.race, pytest.mark.slow, pytest.mark.postgres]

POLL = {"POLL_INTERVAL": 0.1, "HEARTBEAT": 10, "LEASE": 30}
PLAIN = 140


@pytest.fixture
def pooler(transactional_db: None) -> Iterator[int]:
    """Its port. This process reaches the database through it too."""
    with pgbouncer() as port, reached_at(HOST="127.0.0.1", PORT=port):
        yield port


@pytest.fixture
def wire(pooler: int) -> Iterator[Wire]:
    """Leads to the pooler, and counts."""
    with Wire.to_database() as wire:
        yield wire


def advisory_locks() -> int:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_locks JOIN pg_database ON pg_database.oid = database"
            " WHERE locktype = 'advisory' AND datname = current_database()"
        )
        return int(cursor.fetchone()[0])


def channels(port: int) -> set[str]:
    """What the pooler's sessions listen to: all of them, for each is held by a transaction."""
    params = connection.get_connection_params()
    where = f"host=127.0.0.1 port={port} dbname={params['dbname']} user={params['user']}"
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(psycopg.connect(where)) for _ in range(POOL_SIZE)]
        heard = [client.execute("SELECT pg_backend_pid(), pg_listening_channels()").fetchall() for client in clients]
        return {channel for rows in heard for _, channel in rows}


def enqueue_all_kinds() -> None:
    """Two hundred jobs and some that these enqueue; the same key twice, some in a transaction, some rolled back."""
    with transaction.atomic():
        enqueue_many(tasks.plain_effect.bind(f"plain {number}") for number in range(PLAIN))
        enqueue_many(tasks.atomic_effect.bind(f"atomic {number}") for number in range(20))
        enqueue_many(tasks.arest.bind(f"async {number}", 0.01) for number in range(10))
    with contextlib.suppress(ZeroDivisionError), transaction.atomic():
        enqueue(tasks.plain_effect, "rolled back")
        raise ZeroDivisionError
    enqueue_many(tasks.once_effect.bind(f"once {number % 5}") for number in range(10))
    enqueue_many(tasks.retry_at_once.bind(f"retried {number}") for number in range(10))
    handles = [enqueue(tasks.plain_effect.using(key=f"{number % 5}"), f"keyed {number % 5}") for number in range(10)]
    assert [handle.created for handle in handles] == [True] * 5 + [False] * 5
    enqueue(tasks.chain, "chain ", 4)


def test_worker_behind_a_pooler_runs_all_kinds_of_jobs_and_polls(pooler: int, wire: Wire, workers: Workers) -> None:
    """WK-19: no session lock, no session state; LISTEN is of no use there, and the worker sees that."""
    enqueue_all_kinds()

    worker = workers.start(database=wire.address, settings=POLL)
    wait_until(lambda: not Job.objects.exists(), within=60)

    effects = Counter(Effect.objects.values_list("label", flat=True))
    assert {label for label, count in effects.items() if count > 1} == {f"retried {number}" for number in range(10)}
    assert len(effects) == PLAIN + 20 + 10 + 5 + 10 + 5 + 5
    runs = Counter(JobRun.objects.values_list("status", "attempt"))
    assert runs == {
        (RunStatus.SUCCEEDED, 1): PLAIN + 20 + 10 + 10 + 5 + 5,
        (RunStatus.FAILED, 1): 10,
        (RunStatus.FAILED, 2): 10,
    }
    assert DeadLetter.objects.count() == 10
    assert JobKey.objects.filter(key__in=list("01234")).count() == 5
    assert advisory_locks() == 0

    # One that believes to be woken looks ever more rarely: that would take minutes.
    said = wire.said
    wait_until(lambda: wire.said >= said + 25, what="looks of an idle worker")
    handle = enqueue(tasks.plain_effect, "polled")
    wait_until(lambda: handle.get().is_finished, within=10)
    assert CHANNEL not in channels(pooler)

    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert worker.outages == [], worker.output


@pytest.mark.usefixtures("pooler")
def test_enqueue_asks_for_no_plan_that_the_next_session_would_not_know() -> None:
    def enqueue_some(number: int) -> None:
        try:
            for _ in range(10):
                enqueue(tasks.plain_effect, f"{number}")
                with transaction.atomic():
                    enqueue(tasks.plain_effect, f"{number}")
            with connection.cursor() as cursor:
                cursor.execute("SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE 'INSERT%'")
                assert cursor.fetchone() == (0,)
        finally:
            connection.close()

    with ThreadPoolExecutor(2 * POOL_SIZE) as threads:
        list(threads.map(enqueue_some, range(2 * POOL_SIZE)))

    assert Job.objects.count() == 2 * POOL_SIZE * 20


@pytest.mark.usefixtures("pooler")
def test_doctor_names_the_pooler() -> None:
    output = io.StringIO()

    with contextlib.suppress(SystemExit):
        call_command("jobs_doctor", stdout=output)

    assert "a pooler in transaction mode is in the way" in " ".join(output.getvalue().split())

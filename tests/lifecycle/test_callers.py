"""Callers and databases that are set up otherwise: isolation levels, manual commits, drivers' options, schemas."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import OperationalError, connection, connections, transaction

from django_jobs import enqueue, enqueue_many, once
from django_jobs.models import DeadLetter, Job, JobKey, JobRun
from tests.lifecycle.steps import claim_all, died, failed, finish_all, start_worker, succeeded
from tests.lifecycle.threads import Threads
from tests.models import Effect
from tests.tasks import note

transactional = pytest.mark.django_db(transaction=True)


@contextmanager
def isolation(level: str) -> Iterator[None]:
    """A transaction of this level that has taken its snapshot."""
    is_mysql = connection.vendor == "mysql"
    if is_mysql:
        with connection.cursor() as cursor:
            cursor.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
    with transaction.atomic():
        if not is_mysql:
            with connection.cursor() as cursor:
                cursor.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
        Job.objects.count()
        yield


@pytest.mark.postgres
@transactional
@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_stricter_transaction_enqueues_and_meets_keys_of_its_snapshot(level: str) -> None:
    holder = enqueue(note.using(key="held"), "x")

    with isolation(level):
        plain = enqueue(note, "x")
        fresh = enqueue(note.using(key="fresh"), "x")
        taken = enqueue(note.using(key="held"), "x")
        again = enqueue(note.using(key="fresh"), "x")
        first, second = once("k"), once("k")
        Effect.objects.create(label="usable")

    assert [plain.created, fresh.created, taken.created, again.created] == [True, True, False, False]
    assert (taken.id, again.id, first, second) == (holder.id, fresh.id, True, False)
    assert Effect.objects.count() == 1


@pytest.mark.postgres
@transactional
@pytest.mark.parametrize("call", [lambda: enqueue(note.using(key="k"), "x"), lambda: once("k")])
def test_key_written_after_the_snapshot_is_a_serialization_failure_as_for_any_row(call: Callable[[], Any]) -> None:
    """REPEATABLE READ promises not to show that row. The caller retries the transaction, as it must there anyway."""
    with pytest.raises(OperationalError) as raised:
        _call_after_others_have_committed(call)

    assert raised.value.__cause__ is not None
    assert getattr(raised.value.__cause__, "sqlstate", "") == "40001"
    with transaction.atomic():
        assert not enqueue(note.using(key="k"), "x").created
        assert not once("k")


def _call_after_others_have_committed(call: Callable[[], Any]) -> None:
    with isolation("REPEATABLE READ"):
        with Threads() as threads:
            threads.start(lambda: enqueue(note.using(key="k"), "other"))
            threads.start(_once_committed)
        call()


def _once_committed() -> None:
    with transaction.atomic():
        once("k")


@pytest.mark.mariadb
@transactional
def test_repeatable_read_caller_learns_the_holder_written_after_its_snapshot() -> None:
    with isolation("REPEATABLE READ"):
        with Threads() as threads:
            other = threads.start(lambda: enqueue(note.using(key="k"), "other"))
        before = connection.isolation_level  # type: ignore[attr-defined]
        connection.isolation_level = "repeatable read"  # type: ignore[attr-defined]  # what OPTIONS would have set
        try:
            handle = enqueue(note.using(key="k"), "x")
        finally:
            connection.isolation_level = before  # type: ignore[attr-defined]

    assert (handle.created, handle.id) == (False, other.result().id)


@pytest.mark.postgres
@transactional
def test_worker_in_repeatable_read_loses_nothing() -> None:
    """A database or role whose default is stricter."""
    with connection.cursor() as cursor:
        cursor.execute("SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    try:
        enqueue_many(note.bind(str(number)) for number in range(6))
        worker = start_worker()
        runs = claim_all(worker)
        endings = [succeeded, failed, died] * 2
        finished = finish_all([ending(run) for ending, run in zip(endings, runs, strict=True)], worker)
    finally:
        with connection.cursor() as cursor:
            cursor.execute("SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED")

    assert len(finished.recorded) == 6
    assert (JobRun.objects.count(), Job.objects.count(), DeadLetter.objects.count()) == (6, 2, 2)


@transactional
@pytest.mark.parametrize("commits", [True, False])
def test_caller_who_commits_by_hand_is_served(commits: bool) -> None:
    """AUTOCOMMIT off: nobody can tell when that commits, so nobody is woken; the poll finds it."""
    transaction.set_autocommit(False)
    try:
        first = enqueue(note, "x")
        second = enqueue(note.using(key="k"), "x")
        third = enqueue(note.using(key="k"), "x")
        many = enqueue_many([note.bind("1"), note.bind("2")])
        (transaction.commit if commits else transaction.rollback)()
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)

    assert [first.created, second.created, third.created] == [True, True, False]
    assert Job.objects.count() == (2 + len(many) if commits else 0)
    assert JobKey.objects.count() == commits


LIFE = """
import django; django.setup()
from datetime import timedelta
from django.db import connection, transaction
from django.utils import timezone
from django_jobs import enqueue, enqueue_many, get_job, lock, once
from django_jobs.lifecycle import claim, extend, finish, prune, release, replay, rescue, turn
from django_jobs.models import DeadLetter, Job, JobRun
from tests.lifecycle.steps import NAMES, claim_all, died, failed, start_worker, succeeded
from tests.tasks import note

worker = start_worker()
with transaction.atomic():
    assert once("k") and not once("k") and once("k", scope="s", ttl=60)
    one = enqueue(note.using(key="k", delay=0.001, max_attempts=3, timeout=5), "x")
    assert not enqueue(note.using(key="k"), "x").created
    enqueue(note.using(run_at=timezone.now() + timedelta(days=1)), "later")
many = enqueue_many(note.using(key=str(number) if number % 2 else None).bind("x") for number in range(10))
runs = claim_all(worker)
while len(runs) < 11:
    runs += claim_all(worker)
release.release([runs.pop()[:2]], worker, using="default")
runs += claim.claim(worker, ["default"], 1, NAMES, using="default")
done = finish.finish([succeeded(runs[0], key_ttl=timedelta(hours=1)), succeeded(runs[1])], worker, using="default")
assert len(done.recorded) == 2
done = finish.finish([failed(runs[2]), died(runs[3]), failed(runs[4], retry_in=None)], worker, using="default")
assert len(done.recorded) == 3 and len(done.deaths) == 1
done, more = turn.turn([succeeded(run) for run in runs[5:9]], worker, "default", 5, NAMES, using="default")
assert len(done.recorded) == 4 and len(more) == 1, (done, more)
with transaction.atomic():
    finish.finish_atomically(succeeded(runs[9]), worker, using="default")
assert replay.replay(DeadLetter.objects.get().id, by="ann", using="default").result.value == "replayed"
assert replay.replay(DeadLetter.objects.get().id, by="ann", using="default").result.value == "already_replayed"
assert claim.promote(using="default") == 0 and claim.look(None, using="default").due_in > 0
assert extend.extend(worker, using="default") and len(extend.held(worker, using="default")) == 2
assert rescue.rescue_worker(worker, using="default", at_once=True) == 2
assert rescue.rescue(using="default") == 0 and rescue.bury_unknown(using="default") == 0
assert get_job(one.id).status and {get_job(handle.id).is_finished for handle in many} == {True, False}
for job in Job.objects.all():
    get_job(job.id)
assert many[0].cancel() in (True, False)
with lock("name", ttl=5) as held:
    assert held.extend(5)
prune.prune(using="default")
print("lived", JobRun.objects.count())
"""


def live(environment: dict[str, str], before: str = "") -> None:
    """Walk through all arrows in a process whose settings are changed by the code `before`."""
    script = f"from django.conf import settings\n{before}\n{LIFE}"
    ended = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("lived")


@transactional
def test_whole_life_in_a_process_of_its_own(process_environment: dict[str, str]) -> None:
    live(process_environment)


@pytest.mark.postgres
@transactional
@pytest.mark.parametrize(
    "options",
    [
        {"server_side_binding": True},
        {"pool": {"min_size": 1, "max_size": 3}},
        {"server_side_binding": True, "prepare_threshold": 0},
        {"options": "-c default_transaction_isolation=serializable"},
    ],
    ids=["server-side binding", "pool", "prepared statements", "serializable"],
)
def test_whole_life_with_options_of_the_driver(options: dict[str, Any], process_environment: dict[str, str]) -> None:
    live(
        process_environment,
        f"settings.DATABASES['default']['OPTIONS'] = {options!r}; settings.DATABASES['default']['CONN_MAX_AGE'] = 0",
    )


@pytest.mark.postgres
@transactional
def test_whole_life_in_a_schema_of_the_search_path(process_environment: dict[str, str]) -> None:
    with connection.cursor() as cursor:
        cursor.execute("CREATE SCHEMA elsewhere")
    try:
        live(
            process_environment,
            "settings.DATABASES['default']['OPTIONS'] = {'options': '-c search_path=elsewhere'}\n"
            "import django; django.setup()\n"
            "from django.core.management import call_command\n"
            "call_command('migrate', verbosity=0)",
        )
        assert Job.objects.count() == JobRun.objects.count() == 0
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP SCHEMA elsewhere CASCADE")


@pytest.mark.mariadb
@transactional
def test_whole_life_in_repeatable_read(process_environment: dict[str, str]) -> None:
    live(
        process_environment,
        "settings.DATABASES['default'].setdefault('OPTIONS', {})['isolation_level'] = 'repeatable read'",
    )


@pytest.mark.sqlite
@transactional
def test_whole_life_on_sqlite_as_a_new_project_has_it(process_environment: dict[str, str]) -> None:
    live({**process_environment, "SQLITE_DEFAULTS": "1"})


@transactional
@pytest.mark.parametrize("zone", ["Pacific/Apia", "America/Los_Angeles", "Asia/Kolkata"])
def test_whole_life_without_time_zones(zone: str, process_environment: dict[str, str]) -> None:
    """RT-05: nothing is early, late or due for ever, east and west of UTC."""
    live(
        process_environment,
        f"settings.USE_TZ = False; settings.TIME_ZONE = {zone!r}",
    )


@transactional
def test_broken_transaction_of_the_caller_says_so_at_the_call() -> None:
    with transaction.atomic():
        transaction.set_rollback(True)
        with pytest.raises(transaction.TransactionManagementError):
            enqueue(note, "x")

    assert Job.objects.count() == 0
    assert connections["default"].get_autocommit()

"""lock(): one holder, by the database's clock, whatever its processes do."""

from __future__ import annotations

import asyncio
import logging
import math
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from datetime import timedelta

import pytest
from asgiref.sync import sync_to_async
from django.db import connection, connections, transaction

from django_jobs import lock
from django_jobs.database import Clock, read_clock
from django_jobs.exceptions import LockNotAcquired
from django_jobs.lifecycle.lock import DatabaseLock
from django_jobs.models import Lock

pytestmark = pytest.mark.django_db


def expire(name: str, *, using: str = "default") -> None:
    Lock.objects.using(using).filter(name=name).update(expires_at=Clock(after=timedelta(seconds=-1)))


def test_second_contender_is_refused_until_the_holder_releases() -> None:
    first, second = lock("report", ttl=60), lock("report", ttl=60)

    assert first.acquire()
    assert not second.acquire()
    assert first.release()
    assert second.acquire()
    assert (first.fencing_number, second.fencing_number) == (1, 2)


def test_holder_is_not_let_in_twice() -> None:
    holder = lock("report", ttl=60)
    holder.acquire()

    assert not holder.acquire()
    assert holder.is_held
    assert holder.fencing_number == 1


def test_names_are_compared_byte_by_byte() -> None:
    assert all(lock(name, ttl=60).acquire() for name in ("report", "Report", "report ", "rëport", "🔒" * 200))


def test_expired_lock_goes_to_the_next_contender_with_a_higher_number() -> None:
    """CR-08: the holder died; it is replaced once its lease is over."""
    dead, heir = lock("report", ttl=60), lock("report", ttl=60)
    dead.acquire()
    expire("report")

    assert heir.acquire()
    assert heir.fencing_number == 2


def test_holder_that_was_paused_past_its_ttl_learns_it_everywhere() -> None:
    """CR-09: it does nothing until it has the lock again."""
    paused = lock("report", ttl=60)
    paused.acquire()
    expire("report")

    assert not paused.is_held
    assert paused.remaining() == timedelta(0)
    assert not paused.extend()
    assert not paused.release()


def test_late_holder_changes_nothing_of_its_successor() -> None:
    """CR-09."""
    paused, heir = lock("report", ttl=60), lock("report", ttl=60)
    paused.acquire()
    expire("report")
    heir.acquire()
    before = Lock.objects.values().get(name="report")

    assert not paused.extend(3600)
    assert not paused.release()
    assert Lock.objects.values().get(name="report") == before
    assert heir.is_held


def test_paused_holder_may_take_the_lock_again_under_a_new_number() -> None:
    paused = lock("report", ttl=60)
    paused.acquire()
    expire("report")

    assert paused.acquire()
    assert paused.fencing_number == 2


def test_extend_counts_from_now() -> None:
    holder = lock("report", ttl=10)
    holder.acquire()

    assert holder.extend(100)
    assert timedelta(seconds=95) < holder.remaining() <= timedelta(seconds=100)
    assert holder.extend()
    assert timedelta(seconds=5) < holder.remaining() <= timedelta(seconds=10)


def test_release_twice_says_no_the_second_time() -> None:
    holder = lock("report", ttl=10)
    holder.acquire()

    assert holder.release()
    assert not holder.release()
    assert not holder.extend()
    assert not holder.is_held


def test_number_grows_through_every_way_of_losing_the_lock() -> None:
    numbers = []
    for way in ("release", "expire", "release", "expire"):
        holder = lock("report", ttl=60)
        assert holder.acquire()
        numbers.append(holder.fencing_number)
        if way == "release":
            holder.release()
        else:
            expire("report")

    assert numbers == [1, 2, 3, 4]


def test_lock_is_for_as_long_as_asked_by_the_clock_of_the_database() -> None:
    holder = lock("report", ttl=timedelta(hours=1))
    before = read_clock("default")
    holder.acquire()

    row = Lock.objects.get(name="report")
    # SQLite has no clock: the two moments are read by the process, one after the other.
    assert abs(row.expires_at - row.acquired_at - timedelta(hours=1)) < timedelta(seconds=1)
    assert before <= row.acquired_at <= read_clock("default")


def test_context_manager_releases_at_the_end_and_after_an_error() -> None:
    with lock("report", ttl=60) as held:
        assert held.is_held
    with pytest.raises(RuntimeError, match="work failed"), lock("report", ttl=60):
        raise RuntimeError("work failed")

    assert lock("report", ttl=60).acquire()


def test_context_manager_refuses_with_a_sentence_that_names_lock_and_expiry() -> None:
    lock("report", ttl=60).acquire()
    until = Lock.objects.get(name="report").expires_at

    with pytest.raises(LockNotAcquired) as caught, lock("report", ttl=60):
        pytest.fail("entered")

    assert "'report'" in str(caught.value)
    assert until.isoformat() in str(caught.value)


def test_context_manager_logs_a_lock_that_was_lost_inside(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="django_jobs"), lock("report", ttl=60):
        expire("report")

    assert caplog.messages == ["lock lost name=report fencing_number=1"]


def test_error_inside_a_broken_transaction_is_not_masked_by_the_release() -> None:
    def break_the_transaction() -> None:
        transaction.set_rollback(True)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), transaction.atomic(), lock("report", ttl=60):
        break_the_transaction()

    assert not Lock.objects.filter(name="report").exists()


@pytest.mark.parametrize(
    "ttl",
    [0, -1, 0.0, 1e-9, math.nan, math.inf, -math.inf, 1e300, 10**13, timedelta(0), timedelta(days=-1), timedelta.max],
)
def test_ttl_out_of_range_is_refused(ttl: timedelta | float) -> None:
    """CR-09."""
    with pytest.raises(ValueError, match="ttl="):
        lock("report", ttl=ttl)
    holder = lock("report", ttl=60)
    holder.acquire()
    with pytest.raises(ValueError, match="ttl="):
        holder.extend(ttl)


@pytest.mark.parametrize("ttl", ["60", True, b"1", [1]])
def test_ttl_of_another_type_is_refused(ttl: object) -> None:
    with pytest.raises(TypeError, match="ttl="):
        lock("report", ttl=ttl)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["", "x" * 201, "a\x00b", "\ud800"])
def test_name_that_no_database_stores_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="lock's name"):
        lock(name, ttl=1)


def test_name_that_is_no_string_is_refused() -> None:
    with pytest.raises(TypeError, match="lock's name"):
        lock(7, ttl=1)  # type: ignore[arg-type]


@pytest.mark.django_db(databases=["default", "other"])
def test_same_name_on_another_database_is_another_lock() -> None:
    assert lock("report", ttl=60).acquire()
    assert lock("report", ttl=60, using="other").acquire()
    assert Lock.objects.using("other").count() == 1


@pytest.mark.django_db(transaction=True)
def test_rollback_undoes_an_acquisition() -> None:
    holder = lock("report", ttl=60)
    with transaction.atomic():
        assert holder.acquire()
        transaction.set_rollback(True)

    assert not holder.is_held
    assert lock("report", ttl=60).acquire()


@pytest.mark.race
@pytest.mark.postgres
@pytest.mark.mariadb
@pytest.mark.django_db(transaction=True)
def test_refused_contender_in_a_transaction_does_not_stop_the_holder_from_extending() -> None:
    holder = lock("report", ttl=60)
    holder.acquire()

    with transaction.atomic():
        assert not lock("report", ttl=60).acquire()
        assert in_a_thread(lambda: extend_without_waiting_long(holder)) == [True]


def extend_without_waiting_long(holder: DatabaseLock) -> bool:
    if connection.vendor != "sqlite":
        with connection.cursor() as cursor:
            wait = "lock_timeout = '5s'" if connection.vendor == "postgresql" else "innodb_lock_wait_timeout = 5"
            cursor.execute(f"SET {wait}")
    return holder.extend()


@pytest.mark.django_db(transaction=True)
def test_async_form_holds_and_releases() -> None:
    async def main() -> list[bool]:
        try:
            async with lock("report", ttl=60) as held:
                second = lock("report", ttl=60)
                return [await second.aacquire(), await held.aextend(), await second.arelease()]
        finally:
            await sync_to_async(connections.close_all)()

    assert asyncio.run(main()) == [False, True, False]
    assert lock("report", ttl=60).acquire()


def in_a_thread(act: Callable[[], object], count: int = 1) -> list[object]:
    """Results of `act`, called at the same moment in threads that each have their own connections."""
    barrier = threading.Barrier(count)
    results: list[object] = []

    def run() -> None:
        try:
            connection.ensure_connection()
            barrier.wait(timeout=30)
            results.append(act())
        except Exception as error:  # noqa: BLE001 - it is the result
            results.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    return results


@pytest.mark.race
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("before", ["no row", "released", "expired"])
def test_of_twenty_contenders_exactly_one_holds_the_lock(before: str) -> None:
    """CR-07: two schedulers at one moment."""
    if before != "no row":
        first = lock("report", ttl=60)
        first.acquire()
        if before == "released":
            first.release()
        else:
            expire("report")

    results = in_a_thread(lambda: lock("report", ttl=60).acquire(), count=20)

    assert sorted(results, key=repr) == [False] * 19 + [True]
    assert Lock.objects.get(name="report").fencing_number == (1 if before == "no row" else 2)


@pytest.mark.race
@pytest.mark.django_db(transaction=True)
def test_numbers_of_contending_threads_are_all_different_and_none_is_skipped() -> None:
    def hold_five_times() -> list[int | None]:
        numbers: list[int | None] = []
        while len(numbers) < 5:
            mine = lock("report", ttl=60)
            if mine.acquire():
                numbers.append(mine.fencing_number)
                mine.release()
        return numbers

    results = in_a_thread(hold_five_times, count=4)

    for numbers in results:
        assert isinstance(numbers, list), numbers
        assert numbers == sorted(numbers)
    assert sorted(number for numbers in results for number in numbers) == list(range(1, 21))  # type: ignore[attr-defined]


CONTENDER = """
    import sys, datetime
    import django
    django.setup()
    from django.utils import timezone
    real_now, shift = timezone.now, datetime.timedelta(seconds=float(sys.argv[1]))
    timezone.now = lambda: real_now() + shift
    from django_jobs import lock
    mine = lock("report", ttl=60)
    print("ready", flush=True)
    sys.stdin.readline()
    print(mine.acquire(), flush=True)
    sys.stdin.readline()
    print(mine.is_held, flush=True)
"""


class Contender:
    """A process of its own that acquires and asks when told to."""

    def __init__(self, environment: dict[str, str], shift: float = 0) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(CONTENDER), str(shift)],
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def tell(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.mark.race
@pytest.mark.django_db(transaction=True)
def test_of_several_processes_exactly_one_holds_and_after_its_kill_another_follows(
    process_environment: dict[str, str],
) -> None:
    """CR-07, CR-08: kill -9 of the holder; the next one needs nothing but the end of the lease."""
    contenders = [Contender(process_environment) for _ in range(4)]
    try:
        assert [each.answer() for each in contenders] == ["ready"] * 4
        for each in contenders:
            each.tell()
        answers = [each.answer() for each in contenders]
        assert sorted(answers) == ["False", "False", "False", "True"]
        contenders[answers.index("True")].kill()
    finally:
        for each in contenders:
            if each.process.poll() is None:
                each.kill()

    assert not lock("report", ttl=60).acquire()
    expire("report")
    assert lock("report", ttl=60).acquire()


@pytest.mark.race
@pytest.mark.postgres
@pytest.mark.mariadb
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("shift", [600, -600])
def test_clock_of_the_process_does_not_matter(process_environment: dict[str, str], shift: float) -> None:
    """CR-09, CR-12: a host ten minutes ahead does not break a live lock, and one behind holds its own as long."""
    mine = lock("report", ttl=60)
    mine.acquire()
    shifted = Contender(process_environment, shift)
    try:
        assert shifted.answer() == "ready"
        shifted.tell()
        assert shifted.answer() == "False"
        shifted.tell()
        assert shifted.answer() == "False"
    finally:
        shifted.kill()
    mine.release()

    heir = Contender(process_environment, shift)
    try:
        assert heir.answer() == "ready"
        heir.tell()
        assert heir.answer() == "True"
        row = Lock.objects.get(name="report")
        assert abs(read_clock("default") - row.acquired_at) < timedelta(seconds=30)
        assert row.expires_at - row.acquired_at == timedelta(seconds=60)
        heir.tell()
        assert heir.answer() == "True"
    finally:
        heir.kill()

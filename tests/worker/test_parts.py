"""The worker's parts, each without the others."""

from __future__ import annotations

import logging
import math
import os
import platform
import signal
import threading
import time
from typing import Any

import pytest
from django.db import OperationalError, ProgrammingError

from django_jobs.lifecycle import extend
from django_jobs.lifecycle.wake import NOBODY
from django_jobs.models import Worker
from django_jobs.runs import WorkerIdentity
from django_jobs.worker.inbox import Inbox
from django_jobs.worker.memory import give_back, resident
from django_jobs.worker.outage import Outage, Retrier
from django_jobs.worker.prefetch import MOST_AHEAD, Prefetch
from django_jobs.worker.quarantine import Quarantine
from django_jobs.worker.schedule import LOOK_AGAIN, Schedule
from django_jobs.worker.sleeper import BUSY, Sleeper
from django_jobs.worker.wear import MEGABYTE, Wear


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def _schedule(clock: Clock, rand: float = 1.0, *, hears: bool = False) -> Schedule:
    schedule = Schedule(2.0, hears=lambda: hears, clock=clock, rand=lambda: rand)
    _look(schedule)
    return schedule


def _look(schedule: Schedule, count: int = 0, *, due_in: float | None = None, is_empty: bool = True) -> float:
    """A look that found so many of ten. Seconds until the next one."""
    schedule.looked(count, 10, due_in, is_empty=is_empty and not count)
    return schedule.pause


class TestSchedule:
    def test_first_look_is_at_once(self, clock: Clock) -> None:
        assert Schedule(2.0, clock=clock).pause == 0

    @pytest.mark.parametrize(("rand", "pause"), [(0.0, 1.5), (0.5, 1.75), (1.0, 2.0)])
    def test_polls_of_several_workers_spread_out(self, clock: Clock, rand: float, pause: float) -> None:
        """WK-13."""
        assert _schedule(clock, rand).pause == pytest.approx(pause)

    @pytest.mark.parametrize(("count", "pause"), [(10, 0.0), (3, LOOK_AGAIN), (0, 2.0)], ids=["full", "some", "none"])
    def test_next_look_follows_what_was_found(self, clock: Clock, count: int, pause: float) -> None:
        assert _look(_schedule(clock), count) == pytest.approx(pause)

    def test_job_due_in_half_a_second_is_looked_for_then(self, clock: Clock) -> None:
        schedule = _schedule(clock)
        schedule.due_in(0.5)
        schedule.due_in(0.9)
        assert schedule.pause == pytest.approx(0.5)
        clock.now += 0.5
        assert _look(schedule, due_in=0.3) == pytest.approx(0.3)

    def test_wake_up_from_anywhere_means_now_and_once_more(self, clock: Clock) -> None:
        """A sender leaves out a wake-up that follows its last one closely, for jobs due later as well."""
        schedule = _schedule(clock)
        schedule.look_now()
        assert schedule.pause == 0

        assert _look(schedule) == pytest.approx(LOOK_AGAIN)
        clock.now += LOOK_AGAIN
        assert _look(schedule) == pytest.approx(2.0)

    def test_after_each_wake_up_of_a_queue_comes_a_look_that_no_later_one_puts_off(self, clock: Clock) -> None:
        schedule = _schedule(clock)
        schedule.woken()
        schedule.claimed(1, 10)
        clock.now += 0.010
        schedule.woken()
        schedule.claimed(0, 10)
        assert schedule.pause == pytest.approx(LOOK_AGAIN - 0.010)
        clock.now += LOOK_AGAIN - 0.010

        assert _look(schedule) == pytest.approx(0.010)
        clock.now += 0.010
        assert _look(schedule) == pytest.approx(2.0)

    def test_looks_that_find_nothing_come_ever_more_rarely_while_wake_ups_are_heard(self, clock: Clock) -> None:
        schedule = Schedule(2.0, hears=lambda: True, clock=clock, rand=lambda: 1.0)
        assert [_look(schedule) for _ in range(6)] == [2.0, 4.0, 8.0, 16.0, 20.0, 20.0]

        schedule.woken()
        clock.now += LOOK_AGAIN
        assert _look(schedule) == pytest.approx(2.0)

    def test_without_wake_ups_the_interval_holds(self, clock: Clock) -> None:
        schedule = _schedule(clock)
        assert [_look(schedule) for _ in range(3)] == [2.0, 2.0, 2.0]

    def test_interval_holds_as_soon_as_wake_ups_are_heard_no_more(self, clock: Clock) -> None:
        hears = [True]
        schedule = Schedule(2.0, hears=lambda: hears[0], clock=clock, rand=lambda: 1.0)
        for _ in range(4):
            _look(schedule)
        hears[0] = False
        assert _look(schedule) == 2.0

    def test_ready_jobs_that_somebody_has_locked_are_looked_at_each_interval(self, clock: Clock) -> None:
        """Who lets them go tells nobody."""
        schedule = _schedule(clock, hears=True)
        assert [_look(schedule, is_empty=False) for _ in range(3)] == [2.0, 2.0, 2.0]

    def test_longer_interval_than_the_longest_sleep_is_kept(self, clock: Clock) -> None:
        schedule = Schedule(60.0, hears=lambda: True, clock=clock, rand=lambda: 1.0)
        assert [_look(schedule) for _ in range(3)] == [60.0, 60.0, 60.0]

    def test_who_fell_asleep_looks_on_for_longer_than_a_sender_believes_it_to_be_awake(self, clock: Clock) -> None:
        schedule = _schedule(clock, hears=True)
        schedule.fell_asleep()
        began, looks = clock.now, []
        while (pause := _look(schedule)) < 1.0:
            clock.now += pause
            looks.append(clock.now - began)
        assert looks[0] == pytest.approx(LOOK_AGAIN)
        assert looks[-1] > NOBODY


class TestSleeper:
    @pytest.fixture
    def worker(self, db: None) -> WorkerIdentity:
        return extend.register("w", None, [], using="default")

    def _row(self) -> bool:
        return Worker.objects.get().is_awake

    def test_new_worker_has_to_be_woken(self, clock: Clock, worker: WorkerIdentity) -> None:
        sleeper = Sleeper("default", clock=clock)
        assert not self._row()
        assert sleeper.pause == math.inf
        assert not sleeper.rise(worker)
        assert not sleeper.lie_down(worker)

    def test_busy_worker_says_so_once_after_a_while_and_takes_it_back_once(
        self, clock: Clock, worker: WorkerIdentity
    ) -> None:
        sleeper = Sleeper("default", clock=clock)
        sleeper.found()
        assert sleeper.pause == BUSY
        assert not sleeper.rise(worker)
        clock.now += BUSY
        sleeper.found()

        assert [sleeper.rise(worker), sleeper.rise(worker), self._row()] == [True, False, True]
        assert [sleeper.lie_down(worker), sleeper.lie_down(worker), self._row()] == [True, False, False]

    def test_look_that_finds_nothing_begins_anew(self, clock: Clock, worker: WorkerIdentity) -> None:
        sleeper = Sleeper("default", clock=clock)
        sleeper.found()
        clock.now += BUSY / 2
        sleeper.lie_down(worker)
        sleeper.found()
        clock.now += BUSY / 2
        assert not sleeper.rise(worker)

    def test_answer_that_was_lost_counts_as_carried_out(
        self, clock: Clock, worker: WorkerIdentity, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Who believes to be woken, and is not, would sleep for long."""
        note_awake = extend.note_awake

        def lose_the_answer(*args: Any, **kwargs: Any) -> None:
            note_awake(*args, **kwargs)
            raise OperationalError("gone")

        sleeper = Sleeper("default", clock=clock)
        sleeper.found()
        clock.now += BUSY
        monkeypatch.setattr(extend, "note_awake", lose_the_answer)
        with pytest.raises(OperationalError):
            sleeper.rise(worker)
        with pytest.raises(OperationalError):
            sleeper.lie_down(worker)
        monkeypatch.undo()

        assert sleeper.lie_down(worker)
        assert not self._row()


class TestPrefetch:
    @pytest.mark.parametrize(
        ("duration", "is_crowded", "low_water"),
        [(0.00001, False, MOST_AHEAD // 2), (0.00001, True, 0), (0.005, False, 25), (0.005, True, 25)],
    )
    def test_crowd_claims_short_jobs_when_none_is_left(self, duration: float, is_crowded: bool, low_water: int) -> None:
        prefetch = Prefetch()
        prefetch.measure("a", duration)
        prefetch.is_crowded = is_crowded

        assert prefetch.low_water(5) == low_water

    def test_nothing_is_claimed_ahead_before_anything_was_measured(self) -> None:
        assert Prefetch().ahead(5) == 0
        assert not Prefetch().is_short("a")

    @pytest.mark.parametrize(
        ("duration", "slots", "ahead"),
        [(0.000_01, 5, MOST_AHEAD), (0.01, 5, 25), (0.05, 100, 100), (0.05, 5, 5), (0.055, 100, 90), (0.07, 100, 0)],
    )
    def test_jobs_claimed_ahead_are_bounded_by_number_and_by_50_ms_of_work(
        self, duration: float, slots: int, ahead: int
    ) -> None:
        prefetch = Prefetch()
        for _ in range(100):
            prefetch.measure("a", duration)
        assert prefetch.ahead(slots) == pytest.approx(ahead, abs=1)

    def test_task_that_became_slow_is_soon_taken_for_long(self) -> None:
        prefetch = Prefetch()
        for duration in [0.001] * 50 + [2.0]:
            prefetch.measure("a", duration)
        assert not prefetch.is_short("a")

    def test_after_a_hand_back_nothing_is_claimed_ahead_until_measured_again(self) -> None:
        prefetch = Prefetch()
        prefetch.measure("a", 0.001)
        prefetch.forget()
        assert prefetch.ahead(5) == 0

    @pytest.mark.parametrize(
        ("claims", "room"),
        [
            ([], 5),  # nothing is known
            ([(0, 5)], 5),
            ([(5, 5)], 100),
            ([(5, 5), (0, 5)], 50),  # one in ten may be sync: five of fifty
            ([(1, 2)], 10),
        ],
    )
    def test_room_of_one_kind_bounds_the_other_as_far_as_it_is_claimed(
        self, claims: list[tuple[int, int]], room: int
    ) -> None:
        prefetch = Prefetch()
        for async_count, count in claims:
            prefetch.meet(async_count, count)
        assert prefetch.room(5, 100) == pytest.approx(room, abs=1)

    def test_no_room_for_a_kind_that_is_claimed_is_no_room(self) -> None:
        prefetch = Prefetch()
        prefetch.meet(9, 10)
        assert prefetch.room(0, 100) == 0
        prefetch = Prefetch()
        prefetch.meet(10, 10)
        assert prefetch.room(0, 100) == 100


class TestInbox:
    def test_bell_rung_before_the_wait_is_heard(self) -> None:
        inbox = Inbox()
        inbox.wake()
        started = time.monotonic()
        inbox.wait(30)
        assert time.monotonic() - started < 10
        assert inbox.take_woken() == {""}
        assert not inbox.take_woken()

    def test_many_rings_are_one(self) -> None:
        inbox = Inbox()
        for _ in range(5):
            inbox.wake()
        inbox.wait(0.01)
        started = time.monotonic()
        inbox.wait(0.05)
        assert time.monotonic() - started >= 0.04

    def test_signal_handler_wakes_the_thread_that_sleeps_on_it(self) -> None:
        inbox = Inbox()
        former = signal.signal(signal.SIGUSR1, lambda *args: inbox.wake())
        try:
            # To the process, as a supervisor sends it: the kernel interrupts the sleeping main thread with it.
            timer = threading.Timer(0.05, os.kill, [os.getpid(), signal.SIGUSR1])
            started = time.monotonic()
            timer.start()
            inbox.wait(30)
            waited = time.monotonic() - started
        finally:
            timer.join()
            signal.signal(signal.SIGUSR1, former)
        assert inbox.take_woken()
        assert waited < 10


class TestRetrier:
    """WK-07."""

    def _fail(self, error: Exception) -> Any:
        def step() -> None:
            raise error

        return step

    @pytest.mark.django_db(transaction=True)
    def test_outage_is_told_once_when_it_begins_and_once_when_it_ends(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO, "django_jobs")
        retrier = Retrier("worker", Outage("default"))

        for _ in range(6):
            retrier._next = 0.0
            assert not retrier.run(self._fail(OperationalError("gone")))
        retrier._next = 0.0
        assert retrier.run(lambda: None)

        assert [record.message.split(" database=")[0] for record in caplog.records] == [
            "database away",
            "database back",
        ]

    @pytest.mark.django_db(transaction=True)
    def test_connection_that_was_cut_is_replaced_without_a_pause_or_a_word(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        retrier = Retrier("worker", Outage("default"))

        assert not retrier.run(self._fail(OperationalError("gone")))
        assert retrier.pause <= 0
        assert retrier.run(lambda: None)

        assert not caplog.records

    @pytest.mark.django_db(transaction=True)
    def test_pauses_grow_up_to_their_limit(self) -> None:
        retrier = Retrier("worker", Outage("default"))
        pauses = []
        for _ in range(40):
            retrier._next = 0.0
            retrier.run(self._fail(OperationalError("gone")))
            pauses.append(retrier.pause)

        assert pauses[0] <= 0
        assert pauses[2] > 0.3
        assert max(pauses) <= 10
        assert min(pauses[10:]) > 4
        assert len(set(pauses[10:])) == 30  # none like another: not all workers ask together
        assert not retrier.run(lambda: pytest.fail("it was not time"))

    @pytest.mark.django_db(transaction=True)
    def test_part_that_gets_through_lets_the_others_try_at_once(self, caplog: pytest.LogCaptureFixture) -> None:
        """And the database is back when the last of them gets through."""
        caplog.set_level(logging.INFO, "django_jobs")
        outage, woken = Outage("default"), []
        first = Retrier("first", outage)
        second = Retrier("second", outage, wake=lambda: woken.append("second"))
        for retrier in (first, second):
            for _ in range(5):
                retrier._next = 0.0
                retrier.run(self._fail(OperationalError("gone")))
        first._next = 0.0

        first.run(lambda: None)
        told = len(caplog.records)

        assert (woken, outage.is_on, told) == (["second"], True, 1)
        assert second.run(lambda: None)
        assert not outage.is_on
        assert len(caplog.records) == 2

    @pytest.mark.django_db(transaction=True)
    def test_database_is_back_when_the_one_who_writes_has_written(self) -> None:
        """A standby can be read long before it can be written."""
        outage = Outage("default")
        outage.witness = writer = Retrier("heartbeat", outage)
        reader = Retrier("worker", outage)
        for _ in range(2):
            reader.run(self._fail(OperationalError("gone")))
        reader._next = 0.0

        assert reader.run(lambda: None)
        assert outage.is_on
        assert writer.run(lambda: None)
        assert not outage.is_on

    @pytest.mark.django_db(transaction=True)
    def test_failure_of_what_began_before_the_end_of_an_outage_begins_no_other(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        outage = Outage("default")
        slow, quick = Retrier("slow", outage), Retrier("quick", outage)
        slow.run(self._fail(OperationalError("gone")))
        for _ in range(2):
            quick.run(self._fail(OperationalError("gone")))

        def fail_late() -> None:
            quick._next = 0.0
            quick.run(lambda: None)
            raise OperationalError("connection timeout expired")

        slow.run(fail_late)

        assert not outage.is_on
        assert [record.message.split(" database=")[0] for record in caplog.records] == [
            "database away",
            "database back",
        ]
        assert slow.pause <= 0

    @pytest.mark.django_db(transaction=True)
    def test_other_errors_are_told_once_and_tried_again(self, caplog: pytest.LogCaptureFixture) -> None:
        retrier = Retrier("prune", Outage("default"))
        for _ in range(3):
            retrier._next = 0.0
            retrier.run(self._fail(ProgrammingError("no such table")))

        assert [record.message for record in caplog.records] == ["service failed service=prune"]


class TestQuarantine:
    def test_worker_without_work_looks_at_its_start_and_then_once_per_interval(self, clock: Clock) -> None:
        quarantine = Quarantine(30, clock=clock)
        assert (quarantine.is_due, quarantine.is_quiet) == (True, False)

        quarantine.took(has_found=False)

        assert quarantine.is_quiet
        assert 24 <= (quarantine.pause(is_free=True) or 0) <= 30
        assert quarantine.pause(is_free=False) is None

    def test_worker_that_meets_a_suspect_claims_nothing_more_until_it_has_taken_it(self, clock: Clock) -> None:
        quarantine = Quarantine(30, clock=clock)
        quarantine.took(has_found=False)
        quarantine.meet()
        assert (quarantine.bars_claims, quarantine.is_due) == (True, True)

        quarantine.looked(is_there=True)
        assert (quarantine.bars_claims, quarantine.is_due) == (True, False)

        quarantine.freed()
        assert quarantine.is_due
        quarantine.took(has_found=True)
        assert (quarantine.bars_claims, quarantine.is_due, quarantine.pause(is_free=True)) == (True, False, None)

        quarantine.freed()
        assert (quarantine.bars_claims, quarantine.is_due) == (False, True)

    def test_worker_claims_again_when_another_one_was_faster(self, clock: Clock) -> None:
        quarantine = Quarantine(30, clock=clock)
        quarantine.meet()

        quarantine.looked(is_there=False)

        assert quarantine.is_quiet


class TestMemory:
    @pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc alone keeps what was freed, and can be asked")
    def test_what_was_freed_goes_back_to_the_system(self) -> None:
        blocks = [bytearray(16_000) for _ in range(2_000)]
        del blocks[:-1]  # the last one stays above the hole, which is none of the heap's end then
        before = resident()

        give_back()

        assert before - resident() > 20_000_000

    def test_no_system_refuses_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("ctypes.CDLL", lambda name: object())  # musl has no such function

        give_back()


class TestWear:
    def test_number_of_jobs_counts_what_was_started_and_not_handed_back(self) -> None:
        wear = Wear(max_jobs=3, max_memory=None, is_supervised=False)
        wear.started(3)
        wear.started(-1)
        assert (wear.left(), wear.cause) == (1, "")

        wear.started(1)

        assert (wear.left(), wear.cause) == (0, "max_jobs")

    def test_memory_counts_once_a_job_was_run(self) -> None:
        wear = Wear(max_jobs=None, max_memory=100, is_supervised=False, measure=lambda: 101 * MEGABYTE)
        assert (wear.look(), wear.left()) == (False, None)

        wear.started(1)

        assert wear.look()
        assert (wear.left(), wear.cause) == (0, "max_memory")
        assert not wear.look(), "it says so once"

    def test_memory_within_the_limit_is_none_of_its_business(self) -> None:
        wear = Wear(max_jobs=None, max_memory=100, is_supervised=False, measure=lambda: 100 * MEGABYTE)
        wear.started(1)

        assert (wear.look(), wear.cause) == (False, "")

    @pytest.mark.parametrize(("is_supervised", "cause"), [(True, "stuck_task"), (False, "")])
    def test_stuck_task_ends_a_process_that_somebody_replaces(self, is_supervised: bool, cause: str) -> None:
        wear = Wear(max_jobs=None, max_memory=None, is_supervised=is_supervised)

        wear.gave_up()

        assert wear.cause == cause

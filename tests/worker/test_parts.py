"""The worker's parts, each without the others."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from typing import Any

import pytest
from django.db import OperationalError, ProgrammingError

from django_jobs.worker.inbox import Inbox
from django_jobs.worker.outage import Outage, Retrier
from django_jobs.worker.prefetch import MOST_AHEAD, Prefetch
from django_jobs.worker.schedule import LOOK_AGAIN, Schedule


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def _schedule(clock: Clock, rand: float = 1.0) -> Schedule:
    schedule = Schedule(2.0, clock=clock, rand=lambda: rand)
    schedule.claimed(0, 10)
    schedule.later_due(None)
    return schedule


class TestSchedule:
    def test_first_look_is_at_once(self, clock: Clock) -> None:
        assert Schedule(2.0, clock=clock).pause == 0

    @pytest.mark.parametrize(("rand", "pause"), [(0.0, 1.5), (0.5, 1.75), (1.0, 2.0)])
    def test_polls_of_several_workers_spread_out(self, clock: Clock, rand: float, pause: float) -> None:
        """WK-13."""
        assert _schedule(clock, rand).pause == pytest.approx(pause)

    @pytest.mark.parametrize(("count", "pause"), [(10, 0.0), (3, LOOK_AGAIN), (0, 2.0)], ids=["full", "some", "none"])
    def test_next_look_follows_what_was_found(self, clock: Clock, count: int, pause: float) -> None:
        schedule = _schedule(clock)
        schedule.claimed(count, 10)
        assert schedule.pause == pytest.approx(pause)

    def test_job_due_in_half_a_second_is_looked_for_then(self, clock: Clock) -> None:
        schedule = _schedule(clock)
        schedule.due_in(0.5)
        schedule.due_in(0.9)
        assert schedule.pause == pytest.approx(0.5)
        assert not schedule.is_later_due
        clock.now += 0.5
        assert schedule.is_later_due

    def test_wake_up_means_now_and_once_more(self, clock: Clock) -> None:
        """A sender leaves out a wake-up that follows its last one closely, for jobs due later as well."""
        schedule = _schedule(clock)
        schedule.look_now()
        assert schedule.pause == 0
        assert schedule.is_later_due

        schedule.later_due(None)
        schedule.claimed(0, 10)
        assert schedule.pause == pytest.approx(LOOK_AGAIN)
        clock.now += LOOK_AGAIN
        assert schedule.is_later_due

        schedule.later_due(None)
        schedule.claimed(0, 10)
        assert schedule.pause == pytest.approx(2.0)


class TestPrefetch:
    def test_nothing_is_claimed_ahead_before_anything_was_measured(self) -> None:
        assert Prefetch().ahead(5) == 0
        assert not Prefetch().is_short("a")

    @pytest.mark.parametrize(
        ("duration", "slots", "ahead"),
        [(0.000_01, 5, MOST_AHEAD), (0.01, 5, 25), (0.05, 100, 100), (0.05, 5, 5), (0.06, 100, 0), (0.3, 5, 0)],
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


class TestInbox:
    def test_bell_rung_before_the_wait_is_heard(self) -> None:
        inbox = Inbox()
        inbox.wake()
        started = time.monotonic()
        inbox.wait(30)
        assert time.monotonic() - started < 10
        assert inbox.take_woken()
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
        assert not retrier.run(lambda: pytest.fail("it was not time"))

    @pytest.mark.django_db(transaction=True)
    def test_other_errors_are_told_once_and_tried_again(self, caplog: pytest.LogCaptureFixture) -> None:
        retrier = Retrier("prune", Outage("default"))
        for _ in range(3):
            retrier._next = 0.0
            retrier.run(self._fail(ProgrammingError("no such table")))

        assert [record.message for record in caplog.records] == ["service failed service=prune"]

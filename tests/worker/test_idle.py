"""What a worker asks that has nothing to do, and what its services do without being asked each second."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from queue import SimpleQueue
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_jobs.conf import DAY, Settings
from django_jobs.database import Clock as Now
from django_jobs.lifecycle import claim, extend
from django_jobs.models import Worker
from django_jobs.runs import WorkerIdentity
from django_jobs.worker import services
from django_jobs.worker.heartbeat import Heartbeat
from django_jobs.worker.inbox import Inbox
from django_jobs.worker.listener import ASK_EVERY
from django_jobs.worker.options import WorkerOptions
from django_jobs.worker.outage import Outage
from django_jobs.worker.schedule import Schedule
from django_jobs.worker.services import JITTER, Service, Services
from tests.lifecycle.steps import start_worker
from tests.worker.test_parts import Clock, clock

__all__ = ["clock"]

TIME = 3600.0
MOST = 0.3  # statements a second
CONNECT = 1  # statement with which Django sets a new connection's time zone


def statements(ask: Callable[[], object]) -> int:
    with CaptureQueriesContext(connection) as captured:
        ask()
    return len([query for query in captured if not query["sql"].startswith(("BEGIN", "COMMIT"))])


def table(worker: WorkerIdentity) -> list[Service]:
    heartbeat: Any = None  # asked only by a rescue
    return services.table(WorkerOptions(), heartbeat, lambda: False)


def looks(clock: Clock) -> int:
    """How often it looks in that time, if all its looks are as early as can be."""
    schedule = Schedule(Settings().POLL_INTERVAL.total_seconds(), hears=lambda: True, clock=clock, rand=lambda: 0.0)
    end, count = clock.now + TIME, 0
    while clock.now < end:
        schedule.looked(0, 10, None, is_empty=True)
        clock.now += schedule.pause
        count += 1
    return count


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
def test_idle_worker_asks_less_than_three_questions_in_ten_seconds(clock: Clock) -> None:
    """WK-13: in the worst case of every jitter."""
    worker = start_worker()
    heartbeats = TIME / (0.9 * Settings().HEARTBEAT.total_seconds())
    sweeps = TIME / ((1 - JITTER) * min(each.interval for each in table(worker)).total_seconds())
    sweeper = Services([], Outage("default"), threading.Event())
    sweeper.stop(patience=5)

    asked = (
        looks(clock) * statements(lambda: claim.look(None, using="default"))
        + heartbeats * statements(lambda: extend.extend(worker, using="default"))
        + sweeps * (CONNECT + statements(lambda: sweeper._busy(table(worker))))
        + TIME / ASK_EVERY
    )

    assert asked / TIME <= MOST


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("queue_names", [None, ["default"]])
def test_idle_look_is_one_statement(queue_names: list[str] | None) -> None:
    worker = start_worker()

    def look() -> None:
        found = claim.look(queue_names, using="default")
        assert claim.claim(worker, queue_names, 5, frozenset(), using="default", found=found) == []

    assert statements(look) == 1


class TestServices:
    @pytest.mark.django_db(transaction=True)
    def test_hurried_one_runs_now_and_the_others_when_they_are_due(self) -> None:
        start_worker()
        ran: SimpleQueue[str] = SimpleQueue()

        def service(name: str, interval: timedelta) -> Service:
            return Service(name, interval, lambda: [Worker.objects.all()], lambda: ran.put(name))

        started = Services([service("a", DAY), service("b", 2 * DAY)], Outage("default"), threading.Event())
        try:
            started.hurry("a", 0.0)
            assert ran.get(timeout=20) == "a"
            started.hurry("nobody", 0.0)
            started.hurry("a", 0.0)
            assert ran.get(timeout=20) == "a"
        finally:
            started.stop(patience=20)
        assert ran.empty()

    @pytest.mark.django_db(transaction=True)
    def test_only_those_run_that_have_something_to_do(self) -> None:
        """By one statement for all of them."""
        services_ = table(start_worker())
        asker = Services([], Outage("default"), threading.Event())
        asker.stop(patience=20)

        assert asker._busy(services_) == []
        Worker.objects.update(lease_expires_at="2000-01-01T00:00:00Z")
        assert [each.name for each in asker._busy(services_)] == ["rescue"]
        assert statements(lambda: asker._busy(services_)) == 1


@pytest.mark.django_db(transaction=True)
class TestFirstExpiry:
    """A heartbeat tells when the first lease of others is over, so that nobody has to ask for it."""

    def _set(self, worker: WorkerIdentity, seconds: float) -> None:
        Worker.objects.filter(id=worker.id).update(lease_expires_at=Now(timedelta(seconds=seconds)))

    def test_it_is_none_where_there_is_no_other(self) -> None:
        assert extend.extend(start_worker(), using="default") == (None, 0)

    @pytest.mark.parametrize("seconds", [-100, 5])
    def test_it_is_that_of_the_first(self, seconds: float) -> None:
        own, first, _ = start_worker("own"), start_worker("first"), start_worker("second")
        self._set(first, seconds)
        self._set(own, -1000)

        extended = extend.extend(own, using="default")

        assert extended
        assert extended.first_expiry == pytest.approx(seconds, abs=3)

    def test_heartbeat_tells_of_one_before_its_next(self) -> None:
        own, other = start_worker("own"), start_worker("other")
        told: list[float] = []
        settings = Settings()
        heartbeat = Heartbeat(
            own, interval=settings.HEARTBEAT, lease=settings.LEASE, outage=Outage("default"), inbox=Inbox()
        )
        heartbeat.stop(patience=20)
        heartbeat.tell_expiry = told.append

        heartbeat._beat()
        assert told == []  # a later beat sees whether it was moved on
        self._set(other, -1)
        heartbeat._beat()

        # Not before its own lease was unbroken for as long.
        assert len(told) == 1
        assert settings.LEASE.total_seconds() - 3 < told[0] < settings.LEASE.total_seconds() + 1

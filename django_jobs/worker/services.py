"""What every worker does beside running jobs: a table of services, each alike."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from django_jobs.execution import hygiene
from django_jobs.lifecycle import prune, rescue
from django_jobs.worker.connection import use_own_connection
from django_jobs.worker.heartbeat import Heartbeat
from django_jobs.worker.outage import Outage, Retrier

IDLE = 5.0  # seconds; for a longer pause the connection is closed
JITTER = 0.2  # of the interval
NEVER = 3600.0  # seconds between two looks at an empty table


@dataclass(frozen=True)
class Service:
    """One round of `run` each `interval`."""

    name: str
    interval: timedelta
    run: Callable[[], object]


def table(using: str, heartbeat: Heartbeat, lease: timedelta, should_stop: Callable[[], bool]) -> list[Service]:
    """The services of a worker."""

    def rescue_others() -> int | bool:
        # After an outage every lease looks over: only who kept its own may judge.
        return heartbeat.unbroken_for >= lease.total_seconds() and rescue.rescue(using=using)

    return [
        Service("rescue", lease / 5, rescue_others),
        Service("bury_unknown", timedelta(minutes=1), lambda: rescue.bury_unknown(using=using)),
        Service("prune", timedelta(minutes=1), lambda: prune.prune(using=using, should_stop=should_stop)),
    ]


class Services:
    """The thread that runs them, on a connection of its own."""

    def __init__(self, services: Sequence[Service], outage: Outage, stop: threading.Event) -> None:
        self._services = services
        self._using = outage.using
        self._stop = stop
        self._retriers = {each.name: Retrier(each.name, outage) for each in services}
        self.thread = threading.Thread(target=self._serve, name="django-jobs-services", daemon=True)
        self.thread.start()

    def stop(self, patience: float) -> None:
        """Let the round under way end after its current batch."""
        self._stop.set()
        self.thread.join(patience)

    def _serve(self) -> None:
        use_own_connection(self._using)
        now = time.monotonic()
        due = {each.name: now + _jittered(each.interval, least=0.0) for each in self._services}
        try:
            while not self._stop.wait(self._pause(due)):
                self._round(due)
        finally:
            hygiene.close_all()

    def _pause(self, due: dict[str, float]) -> float:
        pause = min(due.values(), default=time.monotonic() + NEVER) - time.monotonic()
        if pause > IDLE:
            hygiene.close_all()
        return max(pause, 0.0)

    def _round(self, due: dict[str, float]) -> None:
        for service in self._services:
            if time.monotonic() >= due[service.name] and not self._stop.is_set():
                self._retriers[service.name].run(service.run)
                due[service.name] = time.monotonic() + _jittered(service.interval)


def _jittered(interval: timedelta, least: float = 1 - JITTER) -> float:
    return interval.total_seconds() * random.uniform(least, 1.0)

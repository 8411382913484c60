"""What every worker does beside running jobs: a table of services, each alike."""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db.models import QuerySet

from django_jobs.conf import get_settings
from django_jobs.database import are_there_any
from django_jobs.execution import hygiene
from django_jobs.lifecycle import prune, rescue
from django_jobs.lifecycle.ageing import age
from django_jobs.lifecycle.heads import ready
from django_jobs.observe.gauges import Gauges
from django_jobs.worker.connection import own_connection
from django_jobs.worker.heartbeat import Heartbeat
from django_jobs.worker.options import WorkerOptions
from django_jobs.worker.outage import FIRST_PAUSE, PATIENCE, Outage, Retrier

IDLE = 5.0  # seconds; for a longer pause the connection is closed
JITTER = 0.2  # of the interval; what is due so soon is done with what is due now
GAUGES = timedelta(seconds=15)
NEVER = 3600.0  # seconds between two looks at an empty table


@dataclass(frozen=True)
class Service:
    """One round of `run` each `interval`, if there is any row that it would work on; with `rows` None in any case."""

    name: str
    interval: timedelta
    rows: Callable[[], list[QuerySet[Any]]] | None
    run: Callable[[], object]


def table(options: WorkerOptions, heartbeat: Heartbeat, should_stop: Callable[[], bool]) -> list[Service]:
    """The services of a worker."""
    settings, using, lease = get_settings(), options.using, options.lease

    def rescue_others() -> None:
        # After an outage every lease looks over: only who kept its own may judge.
        while heartbeat.unbroken_for >= lease.total_seconds() and not should_stop():
            if not rescue.rescue(using=using):
                return

    def bury() -> None:
        rescue.bury_unknown(using=using)

    def prune_old() -> None:
        prune.prune(using=using, should_stop=should_stop)

    services = [
        # Of a lease that is over the heartbeat tells in time; this one finds jobs whose worker's row somebody deleted.
        Service("rescue", 2 * lease, lambda: rescue.to_rescue(using), rescue_others),
        Service("bury_unknown", timedelta(minutes=1), lambda: [rescue.parked(using)], bury),
        Service("prune", timedelta(minutes=1), lambda: prune.to_prune(using), prune_old),
    ]
    if settings.PRIORITY_AGEING is not None:
        often = min(max(settings.PRIORITY_AGEING / 10, timedelta(seconds=1)), timedelta(minutes=1))
        rows = ready(using)
        services.append(Service("age", often, lambda: [rows], lambda: age(options.queue_names, using=using)))
    if settings.STATSD is not None:
        services.append(Service("gauges", GAUGES, None, Gauges(using).send))
    return services


class Services:
    """The thread that runs them, on a connection of its own."""

    def __init__(self, services: Sequence[Service], outage: Outage, stop: threading.Event) -> None:
        self._services = services
        self._using = outage.using
        self._stop = stop
        self._bell = threading.Event()
        self._hurried: deque[tuple[str, float]] = deque()
        self._asker = self._retrier("services", outage)
        self._retriers = {each.name: self._retrier(each.name, outage) for each in services}
        self.thread = threading.Thread(target=self._serve, name="django-jobs-services", daemon=True)
        self.thread.start()

    def _retrier(self, part: str, outage: Outage) -> Retrier:
        # However short the lease: a batch may take a slow disk some seconds.
        return Retrier(part, outage, patience=PATIENCE, wake=self._hurry_all)

    def stop(self, patience: float) -> None:
        """Let the round under way end after its current batch."""
        self._stop.set()
        self._bell.set()
        self.thread.join(patience)

    def hurry(self, name: str, seconds: float) -> None:
        """Let this service have its next round in so many seconds at the latest. Any thread may say so."""
        self._hurried.append((name, time.monotonic() + seconds))
        self._bell.set()

    def _hurry_all(self) -> None:
        for each in self._services:
            self.hurry(each.name, 0.0)

    def _serve(self) -> None:
        now, share = time.monotonic(), random.uniform(0.5, 1.0)  # one for all, so that they go on together
        due = {each.name: now + share * each.interval.total_seconds() for each in self._services}
        with own_connection(self._using):
            while not self._stop.is_set():
                self._take_hurried(due)
                if any(moment <= time.monotonic() for moment in due.values()):
                    self._round(due)
                self._sleep(min(due.values(), default=time.monotonic() + NEVER) - time.monotonic())

    def _take_hurried(self, due: dict[str, float]) -> None:
        while self._hurried:
            name, moment = self._hurried.popleft()
            if name in due:
                due[name] = min(due[name], moment)

    def _sleep(self, pause: float) -> None:
        if pause > IDLE:
            hygiene.close_all()
        self._bell.wait(max(pause, 0.0))
        self._bell.clear()

    def _round(self, due: dict[str, float]) -> None:
        """Ask by one statement which of those that are due have something to do, and let them do it."""
        now = time.monotonic()
        services = [each for each in self._services if now >= due[each.name] - JITTER * each.interval.total_seconds()]
        busy: list[Service] = []
        is_answered = self._asker.run(lambda: busy.extend(self._busy(services)))
        for service in services:
            retrier = self._retriers[service.name] if is_answered else self._asker
            if is_answered and not self._stop.is_set():
                retrier.run(service.run if service in busy else _nothing)
            pause = max(retrier.pause, FIRST_PAUSE) if retrier.failures else _jittered(service.interval)
            due[service.name] = time.monotonic() + pause

    def _busy(self, services: Sequence[Service]) -> list[Service]:
        rows = [(service, each) for service in services if service.rows for each in service.rows()]
        answers = are_there_any([each for _, each in rows], using=self._using)
        busy = {service.name for (service, _), is_any in zip(rows, answers, strict=True) if is_any}
        busy |= {service.name for service in services if service.rows is None}
        return [service for service in services if service.name in busy]


def _nothing() -> None:
    """What there was to do, somebody else has done."""


def _jittered(interval: timedelta) -> float:
    return interval.total_seconds() * random.uniform(1 - JITTER, 1.0)

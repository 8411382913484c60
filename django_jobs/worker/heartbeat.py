"""The thread that keeps the worker's lease alive, whatever the tasks do."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from datetime import timedelta

from django_jobs.execution import hygiene
from django_jobs.lifecycle import extend
from django_jobs.runs import WorkerIdentity
from django_jobs.worker.connection import own_connection
from django_jobs.worker.inbox import Inbox
from django_jobs.worker.outage import Outage, Retrier

SECOND_AFTER = 2.0  # seconds: workers that are started together count each other then
SPREAD = (0.05, 0.5)  # seconds after the end of a lease, so that not all others look at it together


class Heartbeat:
    """Extends the lease on a connection of its own, and knows for how long that went well without a gap."""

    def __init__(
        self, identity: WorkerIdentity, *, interval: timedelta, lease: timedelta, outage: Outage, inbox: Inbox
    ) -> None:
        self.identity = identity
        self._interval = interval.total_seconds()
        self._lease = lease.total_seconds()
        self._using = outage.using
        self._inbox = inbox
        self._bell = threading.Event()
        # So that it can connect again before the lease is over.
        patience = min((self._lease - self._interval) / 2, outage.patience)
        self._retrier = Retrier("heartbeat", outage, self._interval, patience=patience, wake=self._bell.set)
        outage.witness = self._retrier
        self.others = 0  # workers of this database beside this one, at the last beat
        self.tell_expiry: Callable[[float], object] = lambda seconds: None  # seconds until others may be rescued
        self._stop = threading.Event()
        self._last = self._unbroken_since = time.monotonic()
        self.thread = threading.Thread(target=self._serve, name="django-jobs-heartbeat", daemon=True)
        self.thread.start()

    @property
    def unbroken_for(self) -> float:
        """Seconds for which the lease has been held without a gap; 0 if it may be over by now."""
        now = time.monotonic()
        if now - self._last >= self._lease:
            return 0.0
        return now - self._unbroken_since

    def adopt(self, identity: WorkerIdentity) -> None:
        """Go on for the worker's next identity, whose row was written just now."""
        self._last = self._unbroken_since = time.monotonic()
        self.identity = identity

    def stop(self, patience: float) -> None:
        self._stop.set()
        self._bell.set()
        self.thread.join(patience)

    def _serve(self) -> None:
        with own_connection(self._using):
            pause = 0.0  # the first one shows that the connection can be had
            following = min(SECOND_AFTER, self._interval)
            while not self._stop.is_set():
                hygiene.freshen(pause)
                if self._retrier.run(self._beat):
                    pause, following = following, self._interval
                else:
                    pause = max(self._retrier.pause, 0.0)
                # Up to a tenth earlier, so that workers started together do not beat together.
                self._bell.wait(pause * random.uniform(0.9, 1.0))
                self._bell.clear()

    def _beat(self) -> None:
        identity, started = self.identity, time.monotonic()
        extended = extend.extend(identity, using=self._using)
        if identity is not self.identity:
            return
        if extended is None:
            self._last = started - self._lease
            self._inbox.put_lease_lost()
            return
        if started - self._last >= self._lease:
            self._unbroken_since = started
        self._last, self.others = started, extended.others
        # A later one is told by a later beat, if it has not been moved on by then.
        if extended.first_expiry is not None and extended.first_expiry <= self._interval:
            seconds = max(extended.first_expiry, self._lease - self.unbroken_for, 0.0)
            self.tell_expiry(seconds + random.uniform(*SPREAD))

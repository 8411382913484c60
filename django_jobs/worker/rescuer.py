"""The supervisor's thread that takes back the jobs of processes that died."""

from __future__ import annotations

import threading
import time
from collections import deque
from uuid import UUID

from django_jobs.lifecycle.rescue import Ending, rescue_dead
from django_jobs.worker.connection import own_connection
from django_jobs.worker.outage import Outage, Retrier
from django_jobs.worker.wirecutter import Wirecutter

LOCKED_PAUSE = 0.2  # seconds until jobs are asked for again that somebody locks


class Rescuer:
    """Rescues one dead worker after the other, however long the database takes to come.

    It has a connection only meanwhile. What it cannot rescue, others do when the lease is over.
    """

    def __init__(self, using: str) -> None:
        self._using = using
        self._retrier = Retrier("rescue", Outage(using))
        self._dead: deque[tuple[UUID, Ending]] = deque()
        self._changed = threading.Condition()
        self._is_stopped = False
        self.thread = threading.Thread(target=self._serve, name="django-jobs-rescuer", daemon=True)
        self.thread.start()

    def rescue(self, worker_id: UUID, ending: Ending) -> None:
        """Take back this worker's jobs soon."""
        with self._changed:
            self._dead.append((worker_id, ending))
            self._changed.notify()

    def stop(self, patience: float) -> bool:
        """End when all are rescued. False if that took more than so many seconds."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify()
        self.thread.join(patience)
        return not self.thread.is_alive()

    def _serve(self) -> None:
        with Wirecutter():
            self._rescue_all()

    def _rescue_all(self) -> None:
        while (dead := self._next()) is not None:
            with own_connection(self._using):
                is_done = self._rescue(*dead)
            if not is_done:
                # Behind the others: one that cannot be rescued must not keep them waiting.
                self._dead.append(dead)
                time.sleep(max(self._retrier.pause, LOCKED_PAUSE))

    def _next(self) -> tuple[UUID, Ending] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._dead or self._is_stopped)
            return self._dead.popleft() if self._dead else None

    def _rescue(self, worker_id: UUID, ending: Ending) -> bool:
        is_done = False

        def step() -> None:
            nonlocal is_done
            is_done = rescue_dead(worker_id, ending, using=self._using)

        self._retrier.run(step)
        return is_done

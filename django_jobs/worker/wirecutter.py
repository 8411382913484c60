"""The thread that cuts connections whose statements get no answer."""

from __future__ import annotations

import math
import threading
from typing import Self

from django_jobs.execution import answers

TICK = 0.25  # seconds
HURRIED = 2.0  # seconds that a statement may take when the process has been told to end


class Wirecutter:
    """Looks after all threads of this process, for its block. It sleeps while nobody waits for an answer."""

    def __init__(self) -> None:
        self._longest = math.inf
        self._stop = threading.Event()
        self.thread = threading.Thread(target=self._serve, name="django-jobs-wirecutter", daemon=True)

    def __enter__(self) -> Self:
        self.thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        answers.bell.set()
        self.thread.join(1)

    def hurry(self) -> None:
        """The process shall end: nobody has time to wait. A signal handler may call it."""
        self._longest = HURRIED

    def _serve(self) -> None:
        while not self._stop.wait(TICK):
            answers.cut_overdue(self._longest)
            self._rest()

    def _rest(self) -> None:
        answers.bell.clear()  # before it is asked: who begins to wait after that rings again
        if not answers.is_anything_awaited() and not self._stop.is_set():
            answers.bell.wait()

"""A worker's process as its supervisor holds it: told by a pipe to stop, and by the pipe's end that it is alone."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from typing import NamedTuple

from django_jobs.worker.marks import Marks


class Place(NamedTuple):
    """Which of the supervisor's processes this one is, and the files that it has inherited."""

    number: int
    pipe: int
    marks: int

    def __str__(self) -> str:
        return ":".join(map(str, self))

    @classmethod
    def parse(cls, text: str) -> Place:
        """What `str` gave.

        Raises:
            ValueError: it is something else.
        """
        number, pipe, marks = map(int, text.split(":"))
        return cls(number, pipe, marks)

    def open_marks(self) -> Marks:
        marks = Marks(self.marks)
        os.close(self.marks)
        return marks


class Stops:
    """How urgently the worker was asked to stop, whoever asked.

    A process manager may signal a whole group: the worker itself, and the supervisor, which passes it on. That is one
    signal, not a first and a second.
    """

    def __init__(self, stop: Callable[[str], None]) -> None:
        self._stop = stop
        self._lock = threading.RLock()  # a signal may interrupt its own handler
        self._level = 0
        self._signals = 0

    def signal(self, name: str) -> None:
        """A signal came to this process."""
        self._signals += 1
        self.ask(self._signals, name)

    def ask(self, level: int, cause: str) -> None:
        """1: gently; 2: at once."""
        with self._lock:
            while self._level < level:
                self._level += 1
                self._stop(cause)


class Tether:
    """The thread that listens to the supervisor."""

    def __init__(self, pipe: int, stops: Stops) -> None:
        os.set_inheritable(pipe, False)
        self._pipe = pipe
        self._stops = stops
        self.thread = threading.Thread(target=self._serve, name="django-jobs-tether", daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        with os.fdopen(self._pipe, "r") as lines:
            for line in lines:
                level, _, cause = line.strip().partition(" ")
                self._stops.ask(int(level), cause)
        self._stops.ask(1, "the supervisor is gone")


def tell(pipe: int, level: int, cause: str) -> None:
    """Ask the process at the other end to stop. Nothing happens if it has ended."""
    with contextlib.suppress(OSError):
        os.write(pipe, f"{level} {cause}\n".encode())

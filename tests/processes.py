"""Worker processes as tests start, wait for and end them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# So that a rescue takes a few seconds; a shorter lease is lost on a machine that is busy with other tests.
FAST = {"LEASE": 3, "HEARTBEAT": 0.5, "POLL_INTERVAL": 0.1}


def wait_until(condition: Callable[[], Any], *, within: float = 20.0, what: str = "") -> None:
    """Return once the condition holds; fail if it does not in so many seconds."""
    until = time.monotonic() + within
    while not condition():
        if time.monotonic() > until:
            raise AssertionError(f"Not so within {within:g} s: {what or condition}")
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    """Whether the process runs; one that has ended and was not reaped does not."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


class WorkerProcess:
    """A `manage.py runworker` of its own."""

    def __init__(self, environment: dict[str, str], log: Path, *arguments: str) -> None:
        self.log = log
        with log.open("wb") as stream:
            self.popen = subprocess.Popen(
                [sys.executable, "-m", "django", "runworker", *arguments],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
            )

    @property
    def output(self) -> str:
        return self.log.read_text()

    def wait(self, within: float = 30.0) -> int:
        try:
            return self.popen.wait(within)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"The worker has not ended within {within:g} s.\n{self.output}") from None

    def wait_for(self, text: str, within: float = 20.0) -> None:
        """Return once its output holds the text."""
        wait_until(lambda: text in self.output or self.popen.poll() is not None, within=within, what=text)
        assert text in self.output, self.output

    @property
    def outages(self) -> list[str]:
        """What it has said of its database: "away", "back", in that order."""
        return re.findall(r" database (away|back) ", self.output)

    @property
    def children(self) -> list[int]:
        """The processes that a supervisor has started, by its log, and that live."""
        started = re.findall(r"process started place=\d+ pid=(\d+)", self.output)
        return [int(pid) for pid in started if is_alive(int(pid))]

    def signal(self, number: int) -> None:
        self.popen.send_signal(number)

    def kill(self) -> None:
        self.popen.kill()
        self.popen.wait()


class Workers:
    """Starts workers, and kills what is left of them at the end of the test."""

    def __init__(self, environment: dict[str, str], folder: Path) -> None:
        self.told = folder / "told"
        self.told.mkdir()
        self._environment = {**environment, "DJANGO_SETTINGS_MODULE": "tests.worker.settings"}
        self._folder = folder
        self.started: list[WorkerProcess] = []

    def start(
        self,
        *arguments: str,
        settings: dict[str, Any] | None = None,
        database: dict[str, Any] | None = None,
        **environment: str,
    ) -> WorkerProcess:
        """Start one. `settings` are DJANGO_JOBS, `database` is added to DATABASES["default"].

        `environment` adds to its variables; TOLD_FOLDER=told lets its tasks say where they are.
        """
        added = {
            "DJANGO_JOBS": json.dumps(FAST if settings is None else settings),
            "TEST_DATABASE": json.dumps(database or {}),
            **environment,
        }
        log = self._folder / f"worker-{len(self.started)}.log"
        process = WorkerProcess({**self._environment, **added}, log, *arguments)
        self.started.append(process)
        return process

    def start_telling(self, *arguments: str, **options: Any) -> WorkerProcess:
        """Start one whose tasks say where they are."""
        return self.start(*arguments, TOLD_FOLDER=str(self.told), **options)

    def wait_told(self, *labels: str, within: float = 20.0) -> None:
        """Return once tasks have said all of these."""
        wait_until(lambda: all((self.told / label).exists() for label in labels), within=within, what=f"told {labels}")


@contextmanager
def workers(environment: dict[str, str], folder: Path) -> Iterator[Workers]:
    started = Workers(environment, folder)
    try:
        yield started
    finally:
        for process in started.started:
            if process.popen.poll() is None:
                process.kill()
            for pid in process.children:
                os.kill(pid, signal.SIGKILL)
            # pytest shows it where the test has failed.
            sys.stdout.write(f"--- {process.log.name} ended with {process.popen.returncode}\n{process.output}\n")

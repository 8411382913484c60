"""Child processes that end with us, whatever happens."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

PROJECT = Path(__file__).resolve().parent.parent
TETHER = PROJECT / "services" / "tether.py"
START_LIMIT = 30.0  # seconds until a server has to say its port
STOP_LIMIT = 15.0  # seconds from SIGTERM to SIGKILL


class ChildFailed(Exception):
    """A process ended by itself, or did not start. The message holds the end of its log."""


@dataclass
class Child:
    name: str
    process: subprocess.Popen[bytes]
    output: Path
    log: Path
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def is_running(self) -> bool:
        return self.process.poll() is None

    def complaint(self) -> ChildFailed:
        lines = self.log.read_text(errors="replace").strip().splitlines()[-15:]
        end = f"ended with {self.process.returncode}" if not self.is_running() else "did not answer"
        return ChildFailed("\n  ".join([f"The {self.name} {end}. Its log says:", *(lines or ["(nothing)"])]))


class Crew:
    """Starts processes and, at the end of the `with` block, stops all that still run, the youngest first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._children: list[Child] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A second Ctrl-C must not leave half of them behind.
        while self._children:
            child = self._children.pop()
            try:
                self._end(child)
            except KeyboardInterrupt:
                child.process.kill()
                self._children, rest = [], self._children
                for each in rest:
                    each.process.kill()

    def start(
        self, name: str, *command: str | Path, env: Mapping[str, str] | None = None, has_port: bool = False
    ) -> Child:
        """Start a Python script. With `has_port` it returns when the script has said where it listens."""
        number = len(list(self.folder.glob(f"{name}-*.log"))) + 1
        output, log = self.folder / f"{name}-{number}.out", self.folder / f"{name}-{number}.log"
        with output.open("wb") as out, log.open("wb") as errors:
            process = subprocess.Popen(
                [sys.executable, TETHER, sys.executable, *command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=errors,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})},
                start_new_session=True,  # Ctrl-C is for us: we end the children in their order
            )
        child = Child(name, process, output, log)
        self._children.append(child)
        if has_port:
            child.port = self._wait_for_port(child)
        return child

    def stop(self, child: Child) -> None:
        """Ask a child to end, and wait until it has."""
        self._children.remove(child)
        self._end(child)

    def kill(self, child: Child) -> None:
        """SIGKILL, as the kernel does it to a process that takes too much memory."""
        self._children.remove(child)
        child.process.kill()
        child.process.wait()

    def check(self) -> None:
        """Raise ChildFailed if one has ended by itself."""
        for child in self._children:
            if not child.is_running():
                raise child.complaint()

    def _wait_for_port(self, child: Child) -> int:
        deadline = time.monotonic() + START_LIMIT
        while time.monotonic() < deadline and child.is_running():
            if said := re.search(r"listening on \S+:(\d+)\s", child.output.read_text(errors="replace")):
                return int(said[1])
            time.sleep(0.02)
        raise child.complaint()

    def _end(self, child: Child) -> None:
        with suppress(ProcessLookupError):
            child.process.terminate()
        try:
            child.process.wait(timeout=STOP_LIMIT)
        except subprocess.TimeoutExpired:
            child.process.kill()
            child.process.wait()

"""Worker processes: start them, read what they cost, end them. Linux counts; elsewhere their cost is unknown."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


class WorkerDied(Exception):
    """A worker ended by itself. The message holds the end of what it said."""


@cache
def compile_code() -> None:
    """Compile the code once, as an installed package is: a process that compiles what it imports keeps a megabyte."""
    command = [sys.executable, "-m", "compileall", "-q", "django_jobs", "benchmarks"]
    subprocess.run(command, cwd=ROOT, env=_environment(), check=False)


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


class Workers:
    """Some worker processes alike."""

    def __init__(self, command: Sequence[str], count: int, environment: dict[str, str]) -> None:
        compile_code()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  closed by `end`
        self._children = [
            subprocess.Popen(
                command,
                env={**_environment(), **environment},
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                start_new_session=True,  # Ctrl-C is for the benchmark, which ends them
            )
            for _ in range(count)
        ]

    def check(self) -> None:
        """Raise WorkerDied if one has ended other than well."""
        for child in self._children:
            if child.poll() not in (None, 0):
                raise WorkerDied(f"A worker ended with code {child.returncode}. It said:\n{self.said()}")

    def said(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")[-3000:]

    def cpu(self) -> float:
        """Seconds of CPU they have used so far."""
        return sum(_cpu(child.pid) for child in self._children)

    def memory(self) -> float:
        """Megabytes (10^6) of memory they use: their proportional share, so that shared pages count once."""
        return sum(_pss(child.pid) for child in self._children)

    def end(self) -> None:
        """Kill them: what they did is counted by now, and their database goes next."""
        for child in self._children:
            child.kill()
        for child in self._children:
            child.wait()
        self._log.close()


@contextmanager
def workers(command: Sequence[str], count: int, environment: dict[str, str]) -> Iterator[Workers]:
    """Run them for the block."""
    started = Workers(command, count, environment)
    try:
        yield started
    finally:
        started.end()


def _cpu(pid: int) -> float:
    # Nanoseconds of each thread that lives; /proc/PID/stat counts in hundredths of a second.
    total = 0
    for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with suppress(OSError):
            total += int(path.read_text().split()[0])
    return total / 1e9


def _pss(pid: int) -> float:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024 / 1e6
    return float("nan")

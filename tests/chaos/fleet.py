"""The worker processes: started, hit, and started again."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from random import Random

from django.core.management import load_command_class
from django.core.management.base import CommandParser

SIZE = 4
CHILDREN = 2  # of each worker that has a supervisor
SKEWS = [0, 0, 600, -600]  # seconds
END_WITHIN = 40.0  # seconds from SIGTERM to the end: grace, last words, and a database that is away meanwhile
DEADLY = 70  # the exit code of tasks.deadly


def has_supervisor() -> bool:
    """Whether runworker knows --processes."""
    parser = CommandParser()
    load_command_class("django_jobs", "runworker").add_arguments(parser)
    return any("--processes" in action.option_strings for action in parser._actions)


class Member:
    """One `runworker`, with all that it starts: a session of its own, so that nothing of it is left behind."""

    def __init__(self, name: str, environment: dict[str, str], folder: Path, arguments: list[str]) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self.told_to_stop: float | None = None
        self.was_killed = False
        with self.log.open("wb") as stream:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "django", "runworker", "--name", name, *arguments],
                env=environment, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, start_new_session=True,
            )  # fmt: skip

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def pids(self) -> list[int]:
        """Itself and its children."""
        pid = self.process.pid
        try:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        except OSError:
            children = []
        return [pid, *map(int, children)]

    def end(self) -> None:
        """Kill whatever is left of it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class Fleet:
    """`SIZE` workers; `refill` replaces those that have ended."""

    def __init__(self, rand: Random, folder: Path, direct: str, wired: str) -> None:
        self._rand = rand
        self._folder = folder
        self._urls = [direct, wired]
        self._arguments = ["--processes", str(CHILDREN)] if has_supervisor() else []
        self.members: list[Member] = []
        self.started = 0
        self.skewed = 0
        self.violations: list[str] = []
        self.endings: Counter[str] = Counter()

    def refill(self) -> None:
        self._look_after()
        while len(self.members) < SIZE:
            self._start()

    def random(self) -> Member:
        return self._rand.choice(self.members)

    def kill(self) -> str:
        member = self.random()
        pid = self._rand.choice(member.pids())
        member.was_killed = True
        _send(pid, signal.SIGKILL)
        return f"{member.name} pid={pid}"

    def terminate(self) -> str:
        member = self.random()
        member.told_to_stop = member.told_to_stop or time.monotonic()
        _send(member.process.pid, signal.SIGTERM)
        return member.name

    def pause(self) -> tuple[str, int]:
        """Stop one process of a worker. The caller lets it go on by `resume`."""
        member = self.random()
        pid = self._rand.choice(member.pids())
        _send(pid, signal.SIGSTOP)
        return f"{member.name} pid={pid}", pid

    def resume(self, pid: int) -> None:
        _send(pid, signal.SIGCONT)

    def stop(self) -> None:
        """Let all end in peace."""
        for member in self.members:
            member.told_to_stop = member.told_to_stop or time.monotonic()
            _send(member.process.pid, signal.SIGTERM)
        while self.members:
            self._look_after()
            time.sleep(0.05)

    def end(self) -> None:
        """Kill what is left."""
        for member in self.members:
            member.end()
        self.members = []

    def _start(self) -> None:
        # Alternately, so that there is always one that needs no wire.
        url, skew = self._urls[self.started % 2], self._rand.choice(SKEWS)
        environment = {
            **os.environ,
            "CHAOS_DATABASE_URL": url,
            "CHAOS_SKEW": str(skew),
            "CHAOS_CONN_MAX_AGE": self._rand.choice(["0", "600"]),
        }
        self.started += 1
        self.skewed += bool(skew)
        self.members.append(Member(f"w{self.started}", environment, self._folder, self._arguments))

    def _look_after(self) -> None:
        for member in list(self.members):
            if not member.is_alive:
                self._judge(member)
            elif member.told_to_stop and time.monotonic() - member.told_to_stop > END_WITHIN:
                self.violations.append(f"{member.name} has not ended within {END_WITHIN:g} s of SIGTERM: {member.log}")
            else:
                continue
            member.end()
            self.members.remove(member)

    def _judge(self, member: Member) -> None:
        """A worker ends because it was told to, or was hit; not by itself."""
        code = member.process.returncode
        self.endings[f"exit {code}"] += 1
        if member.was_killed or code == DEADLY or (member.told_to_stop and code in (0, 1, -signal.SIGTERM, 143)):
            return
        self.violations.append(f"{member.name} ended by itself with code {code}: {member.log}")


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)

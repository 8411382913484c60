"""Several worker processes: started, watched, replaced, and ended together.

Each is a fresh interpreter that runs the same command line, not a fork of this one. A fork would save the memory of the
imported project only until reference counts have touched it, and it takes along whatever the project's apps have opened
or started by then: connections whose TLS state two processes then advance, locks that are held by threads which are not
there any more, random generators in step. Nobody can promise for all apps that there is no such thing. A fresh process
also runs the code that is there now, so that SIGHUP is a deploy.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from django_jobs import logs
from django_jobs.lifecycle.rescue import Ending
from django_jobs.worker.inbox import Inbox
from django_jobs.worker.marks import Marks
from django_jobs.worker.rescuer import Rescuer
from django_jobs.worker.tether import Place, tell

FIRST_PAUSE = 0.25  # seconds
LONGEST_PAUSE = 30.0
STEADY = 30.0  # seconds; a process that has lived for so long did not fail at its start
PATIENCE = 15.0  # seconds after the grace in which a process may write its last outcomes, before it is killed
RESCUE_PATIENCE = 5.0
RENEWAL_LOOK = 0.2  # seconds between two looks whether a new process is there


class Process:
    """One worker's process: the pipe that holds it, and what can be read of it when it is dead."""

    def __init__(self, number: int, command: Sequence[str]) -> None:
        self.started = time.monotonic()
        self.told = 0  # the level of urgency
        self.is_killed = False
        self.marks, marks_file = Marks.create()
        ours, self._pipe = os.pipe()
        try:
            place = Place(number, ours, marks_file)
            self._popen = subprocess.Popen(  # noqa: S603  this process's own command line
                [*command, "--child", str(place)],
                pass_fds=(ours, marks_file),
                # Ctrl-C in a terminal goes to the whole foreground group; this one gets it by the pipe, and once.
                process_group=0,
            )
        except BaseException:
            self.close()
            raise
        finally:
            os.close(ours)
            os.close(marks_file)
        self.pid = self._popen.pid

    @property
    def code(self) -> int | None:
        """The exit code; below 0 the signal; None while it lives."""
        return self._popen.poll()

    @property
    def age(self) -> float:
        return time.monotonic() - self.started

    def ask(self, level: int, cause: str) -> None:
        """Let it stop: 1 gently, 2 at once. What it was asked before is not repeated."""
        if level > self.told:
            self.told = level
            tell(self._pipe, level, cause)

    def kill(self) -> None:
        self.is_killed = True
        self._popen.kill()

    def close(self) -> None:
        os.close(self._pipe)
        self.marks.close()


class Slot:
    """One of the places of a supervisor, and its process, if there is one now."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.process: Process | None = None
        self.is_done = False  # nothing is started here any more
        self.failures = 0  # in a row
        self.next_start = 0.0

    def failed(self, rand: Callable[[], float]) -> None:
        """Wait before the next start: not at all after the first failure, longer after each further one."""
        self.failures += 1
        pause = 0.0
        if self.failures > 1:
            pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(self.failures, 30)) * (0.5 + rand() / 2)
        self.next_start = time.monotonic() + pause
        if self.failures == 2:
            logs.process_failing(self.number, retry_in=pause)

    def settled(self) -> None:
        """Its process has lived for long, or has ended as it should."""
        if self.failures > 1:
            logs.process_steady(self.number)
        self.failures = 0


class Supervisor:
    """Keeps so many processes of one command alive until it is told to stop.

    With `ends_when_done` (burst), a process that ends by itself without a fault is not replaced.
    """

    def __init__(
        self,
        count: int,
        command: Sequence[str],
        *,
        using: str,
        grace: float,
        ends_when_done: bool = False,
        rand: Callable[[], float] = random.random,
    ) -> None:
        self._command = list(command)
        self._slots = [Slot(number) for number in range(1, count + 1)]
        self._using = using
        self._grace = grace
        self._ends_when_done = ends_when_done
        self._rand = rand
        self._inbox = Inbox()
        self._stops = 0
        self._stop_cause = ""
        self._renewals = 0
        self._outdated: list[Process] = []
        self._kill_at = float("inf")
        self._has_fault = False  # a process did not end as it should after the stop

    def stop(self, cause: str) -> None:
        """End gently; at the second call at once. Signal handlers may call it, and any thread."""
        self._stops += 1
        self._stop_cause = cause
        self._inbox.ring()

    def renew(self) -> None:
        """Replace each process by a new one, one after the other; what runs may end within the grace."""
        self._renewals += 1
        self._inbox.ring()

    def run(self) -> int:
        """Serve until `stop`, or until everything is done. 0 if each process ended as it should."""
        started = time.monotonic()
        self._rescuer = Rescuer(self._using)
        logs.supervisor_started(os.getpid(), processes=len(self._slots))
        with self._signals():
            while not self._is_over():
                self._inbox.wait(self._pause())
        is_rescued = self._rescuer.stop(RESCUE_PATIENCE)
        logs.supervisor_stopped(uptime=time.monotonic() - started)
        return 0 if is_rescued and not self._has_fault else 1

    def _is_over(self) -> bool:
        """One round. True if there is nothing left to watch."""
        self._reap()
        if self._stops:
            self._pass_on_stop()
        else:
            self._renew_next()
            self._start_missing()
        return all(slot.process is None and (self._stops or slot.is_done) for slot in self._slots)

    def _processes(self) -> list[Process]:
        return [slot.process for slot in self._slots if slot.process is not None]

    def _pause(self) -> float | None:
        """Seconds until something is to do although nobody rings."""
        now = time.monotonic()
        moments = [self._kill_at] if self._stops else [now + RENEWAL_LOOK] if self._outdated else []
        for slot in self._slots:
            if slot.process is None and not slot.is_done and not self._stops:
                moments.append(slot.next_start)
            elif slot.process is not None and slot.failures:
                moments.append(slot.process.started + STEADY)
        return max(min(moments) - now, 0.0) if moments and min(moments) < float("inf") else None

    # Processes that end.

    def _reap(self) -> None:
        for slot in self._slots:
            process = slot.process
            if process is None:
                continue
            code = process.code
            if code is not None:
                slot.process = None
                self._ended(slot, process, code)
            elif slot.failures and process.age >= STEADY:
                slot.settled()

    def _ended(self, slot: Slot, process: Process, code: int) -> None:
        ending = describe(code)
        logs.process_ended(slot.number, pid=process.pid, ending=ending, uptime=process.age, is_clean=code == 0)
        self._has_fault |= bool(self._stops and code)
        if code == 0:
            if not self._stops:
                slot.settled()
            slot.is_done = self._ends_when_done and not process.marks.is_spent and process not in self._outdated
        else:
            self._rescue(process, ending)
            slot.failed(self._rand)
        process.close()

    def _rescue(self, process: Process, ending: str) -> None:
        """Nobody has to wait for this worker's lease: its process is known to be dead."""
        worker_id = process.marks.worker_id
        if worker_id is not None:
            verb = "was" if ending.startswith("killed") else ""
            cause = f"{verb} {ending}".strip()
            self._rescuer.rescue(worker_id, Ending(cause, process.marks.read_unstarted()))

    # Processes that start.

    def _start_missing(self) -> None:
        for slot in self._slots:
            if slot.process is None and not slot.is_done and time.monotonic() >= slot.next_start:
                self._start(slot)

    def _start(self, slot: Slot) -> None:
        try:
            slot.process = Process(slot.number, self._command)
        except OSError as error:  # no more processes, memory or files just now
            logs.process_refused(slot.number, error)
            slot.failures += 1  # the first pause is none
            slot.failed(self._rand)
        else:
            logs.process_started(slot.number, pid=slot.process.pid)

    def _renew_next(self) -> None:
        """Replace the next one, if all others serve: code that cannot even start ends no more than one process."""
        living = self._processes()
        if self._renewals:
            self._renewals = 0
            self._outdated = living
        self._outdated = [process for process in self._outdated if process in living]
        serving = sum(process.marks.worker_id is not None for process in living)
        if self._outdated and serving == sum(not slot.is_done for slot in self._slots):
            self._outdated[0].ask(1, "SIGHUP")

    # The end.

    def _pass_on_stop(self) -> None:
        level = min(self._stops, 2)
        if any(process.told < level for process in self._processes()):
            logs.supervisor_stopping(cause=self._stop_cause)
            self._kill_at = time.monotonic() + PATIENCE + (self._grace if level == 1 else 0.0)
        for slot in self._slots:
            if slot.process is None:
                continue
            slot.process.ask(level, self._stop_cause)
            if time.monotonic() >= self._kill_at and not slot.process.is_killed:
                logs.process_killed(slot.number, pid=slot.process.pid)
                slot.process.kill()
        if time.monotonic() >= self._kill_at:
            self._kill_at = float("inf")

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Wake up when a process ends, and renew all on SIGHUP, if this is the main thread; nobody else may."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        handlers: dict[signal.Signals, Callable[[], None]] = {signal.SIGCHLD: self._inbox.ring}
        # A terminal that is closed sends it too, and then everything shall end; `nohup` lets it be ignored.
        if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL and not os.isatty(0):
            handlers[signal.SIGHUP] = self.renew

        def catch(number: int, frame: FrameType | None) -> None:
            handlers[signal.Signals(number)]()

        former = {number: signal.signal(number, catch) for number in handlers}
        try:
            yield
        finally:
            for number, handler_before in former.items():
                signal.signal(number, handler_before)


def describe(code: int) -> str:
    """How a process ended, from the code that `Popen` gives: "exited with code 1", "killed by SIGKILL"."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:  # a real-time signal
        return f"killed by signal {-code}"

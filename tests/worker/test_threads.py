"""Threads wake as many of them as the work is worth, and nothing waits for one that sleeps."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from django_jobs.execution import Attempt, Recording
from django_jobs.worker.inbox import Inbox
from django_jobs.worker.prefetch import WORTH_A_THREAD, Prefetch
from django_jobs.worker.threads import Threads
from tests.execution.attempts import attempt, declared, nothing

COUNT = 4
PATIENCE = 30.0


@pytest.fixture
def inbox() -> Inbox:
    return Inbox()


@pytest.fixture
def threads(inbox: Inbox) -> Iterator[Threads]:
    made = Threads(COUNT, inbox, Recording("default", nothing, nothing, nothing), lambda: False)
    yield made
    assert made.end(PATIENCE)


def ended(inbox: Inbox, count: int) -> list[Attempt]:
    """Wait for so many ends."""
    found: list[Attempt] = []
    until = time.monotonic() + PATIENCE
    while len(found) < count and time.monotonic() < until:
        inbox.wait(0.01)
        found += [each for each, _ in inbox.take_ended()]
    return found


def test_jobs_submitted_one_by_one_all_run_whichever_thread_falls_asleep_meanwhile(
    threads: Threads, inbox: Inbox
) -> None:
    ran: set[str] = set()

    def run() -> None:
        ran.add(threading.current_thread().name)

    with declared(run) as task:
        attempts = [attempt(task) for _ in range(3000)]
        for number, each in enumerate(attempts):
            threads.submit([each], 1)
            if number % 7 == 0:
                time.sleep(0)
        assert set(ended(inbox, len(attempts))) == set(attempts)


def test_short_jobs_are_left_to_as_many_threads_as_they_are_worth(threads: Threads, inbox: Inbox) -> None:
    ran: set[str] = set()

    def run() -> None:
        ran.add(threading.current_thread().name)

    with declared(run) as task:
        for _ in range(20):
            threads.submit([attempt(task) for _ in range(10)], 1)
            ended(inbox, 10)
            while len(threads._idle) < COUNT:
                time.sleep(0.001)

    assert len(ran) == 1


def test_woken_thread_does_not_wait_for_the_interpreters_lock(threads: Threads, inbox: Inbox) -> None:
    def run() -> None:
        pass

    with declared(run) as task:
        # One is enough: on a busy machine a thread may wake up later than the one that woke it.
        for _ in range(1000):
            while len(threads._idle) < COUNT:
                time.sleep(0.001)
            job = attempt(task)
            threads.submit([job], 1)
            has_begun = job.is_started
            ended(inbox, 1)
            if has_begun:
                return
    pytest.fail("No thread began before the one that had woken it went on.")


def test_what_waits_behind_a_slow_task_is_taken_by_threads_that_are_woken(threads: Threads, inbox: Inbox) -> None:
    held = threading.Event()

    def run(waits: bool) -> None:
        if waits:
            held.wait(PATIENCE)

    with declared(run) as task:
        slow, quick = attempt(task, True), attempt(task, False)
        threads.submit([slow, quick], 1)
        while not slow.is_started:
            time.sleep(0.001)
        assert threads.oldest_claim == quick.claimed

        threads.wake(COUNT)

        assert ended(inbox, 1) == [quick]
        held.set()
        assert ended(inbox, 1) == [slow]


@pytest.mark.parametrize("is_removed", [False, True], ids=["there", "gone"])
def test_working_directory_is_the_workers_again_when_a_task_has_changed_it(
    threads: Threads, inbox: Inbox, tmp_path: Path, is_removed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    before = Path.cwd()

    def change() -> None:
        folder = tmp_path / "folder"
        folder.mkdir()
        os.chdir(folder)
        if is_removed:
            folder.rmdir()

    with declared(change) as task:
        threads.submit([attempt(task)], 1)
        ended(inbox, 1)

    assert Path.cwd() == before
    assert caplog.text.count("working directory changed") == 1


@pytest.mark.parametrize(
    ("duration", "count", "woken"),
    [(None, 5, 5), (WORTH_A_THREAD / 1000, 300, 1), (WORTH_A_THREAD, 5, 5), (WORTH_A_THREAD / 10, 35, 4)],
)
def test_threads_are_woken_by_the_work_there_is(duration: float | None, count: int, woken: int) -> None:
    prefetch = Prefetch()
    if duration is not None:
        prefetch.measure("a", duration)

    assert prefetch.threads_for(count) == woken

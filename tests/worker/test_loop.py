"""The event loop: a task that never awaits keeps its thread, and nothing else."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connection, transaction
from django.utils import timezone, translation

from django_jobs.execution import Attempt
from django_jobs.runs import Outcome
from django_jobs.statuses import RunStatus
from django_jobs.worker.aloop import AsyncLoop
from django_jobs.worker.inbox import Inbox
from tests.execution.attempts import attempt, declared
from tests.models import Effect
from tests.processes import wait_until

PATIENCE = 30.0


class Loop:
    """A loop, and the outcomes that it has put into its inbox."""

    def __init__(self) -> None:
        self.inbox = Inbox()
        self.loops = [AsyncLoop(5, self.inbox, lambda: False)]
        self._ended: dict[Attempt, Outcome | None] = {}

    def submit(self, *attempts: Attempt) -> None:
        self.loops[-1].submit([*attempts])

    def outcome(self, wanted: Attempt) -> Outcome:
        def is_there() -> bool:
            self._ended.update(self.inbox.take_ended())
            return wanted in self._ended

        wait_until(is_there, within=PATIENCE)
        found = self._ended[wanted]
        assert found is not None
        return found

    def run(self, wanted: Attempt) -> Outcome:
        self.submit(wanted)
        return self.outcome(wanted)

    def retire(self) -> list[Attempt]:
        successor, stranded = self.loops[-1].retire()
        self.loops.append(successor)
        return stranded


unblocked = threading.Event()


@pytest.fixture
def loop() -> Iterator[Loop]:
    unblocked.clear()
    made = Loop()
    yield made
    unblocked.set()
    assert all([each.end(PATIENCE) for each in made.loops])  # noqa: C419  each is to end


async def block_at_once() -> str:
    unblocked.wait(3 * PATIENCE)
    return "late"


async def block_after_a_while() -> str:
    await asyncio.sleep(0)
    return await block_at_once()


async def block_in_a_task_of_its_own() -> str:
    await asyncio.sleep(0)
    async with asyncio.TaskGroup() as group:
        blocking = group.create_task(block_at_once())
    return blocking.result()


WAYS = [block_at_once, block_after_a_while]
if hasattr(asyncio.Task, "get_context"):  # Python 3.12: whose task it is can be told
    WAYS.append(block_in_a_task_of_its_own)


@pytest.mark.parametrize("block", WAYS, ids=lambda block: block.__name__)
def test_loop_that_a_task_blocks_is_left_to_it_and_all_others_go_on_elsewhere(
    loop: Loop, block: Callable[[], Coroutine[Any, Any, str]]
) -> None:
    async def rest(seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "rested"

    with declared(rest) as resting, declared(block) as blocking:
        beside, blocked, queued = attempt(resting, 3600), attempt(blocking), [attempt(resting, 0) for _ in range(9)]
        loop.submit(beside)
        wait_until(lambda: beside.is_started)
        loop.submit(blocked)
        wait_until(lambda: blocked.is_started and loop.loops[0].is_stuck())
        assert set(loop.loops[0].running()) == {beside, blocked}, "both are watched"
        loop.submit(*queued)

        assert loop.retire() == [beside]
        assert {loop.outcome(each).result for each in queued} == {'"rested"'}
        beside.cancel()
        loop.loops[0].cancel([beside])
        assert loop.loops[0].thread.is_alive()

        unblocked.set()

        assert loop.outcome(blocked).result == '"late"'
        assert loop.outcome(beside).status == RunStatus.RELEASED
        wait_until(lambda: not loop.loops[0].thread.is_alive(), what="a retired loop ends with its last task")
        assert loop.loops[1].thread.is_alive()
        loop.loops[0].cancel([beside])  # of no use, and no harm


def test_loop_whose_tasks_only_wait_is_not_stuck(loop: Loop) -> None:
    async def rest() -> None:
        await asyncio.sleep(0.01)

    with declared(rest) as task:
        attempts = [attempt(task) for _ in range(300)]
        loop.submit(*attempts)
        assert not loop.loops[0].is_stuck()
        loop.outcome(attempts[-1])


colour: ContextVar[str] = ContextVar("colour", default="none")


@pytest.mark.parametrize("fails", [False, True], ids=["succeeds", "fails"])
def test_language_zone_directory_and_context_variables_stay_in_their_job(
    loop: Loop, fails: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def change() -> None:
        translation.activate("nl")
        timezone.activate("Asia/Tokyo")
        await asyncio.sleep(0)
        colour.set("red")
        os.chdir(tmp_path)
        if fails:
            raise ValueError

    async def look() -> list[Any]:
        return [translation.get_language(), timezone.get_current_timezone_name(), colour.get(), str(Path.cwd())]

    before = Path.cwd()
    with declared(look) as looking:
        was = loop.run(attempt(looking)).result
    with declared(change) as changing:
        loop.run(attempt(changing))
    with declared(look) as looking:
        assert loop.run(attempt(looking)).result == was
    assert Path.cwd() == before
    assert "working directory changed task=" in caplog.text


def _off() -> None:
    transaction.set_autocommit(False)


def _begin() -> None:
    with connection.cursor() as cursor:
        cursor.execute("BEGIN")


def _enter() -> None:
    transaction.atomic().__enter__()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("open_one", [_off, _begin, _enter], ids=["autocommit off", "BEGIN", "atomic() not left"])
def test_transaction_that_an_async_task_left_open_is_rolled_back_and_takes_no_other_job_in(
    loop: Loop, open_one: Callable[[], object], caplog: pytest.LogCaptureFixture
) -> None:
    """One thread has the connection of all async tasks."""
    if open_one is _begin and connection.vendor == "mysql":
        open_one = _off  # its driver cannot tell

    async def leave_open() -> None:
        await sync_to_async(open_one)()
        await Effect.objects.acreate(label="half")

    async def note() -> None:
        await Effect.objects.acreate(label="next")

    with declared(leave_open) as leaving:
        assert loop.run(attempt(leaving)).status == RunStatus.SUCCEEDED
    with declared(note) as noting:
        assert loop.run(attempt(noting)).status == RunStatus.SUCCEEDED

    assert [effect.label for effect in Effect.objects.all()] == ["next"]
    assert caplog.text.count("transaction left open") == 1

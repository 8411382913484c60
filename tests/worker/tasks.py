"""Tasks that last, hang, break and die, for tests of the worker. Where a test shall wait for one, it touches a file."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from django.db import DatabaseError, connection, transaction

from django_jobs import GiveUp, JobContext, LockNotAcquired, Retry, Snooze, enqueue, lock, once, task
from django_jobs.worker.memory import resident
from tests.models import Effect

P = ParamSpec("P")
T = TypeVar("T")
NEVER = 3600.0  # seconds; no test waits for it


def tell(label: str) -> None:
    """Say that the task has come to this point, where the test asked for it."""
    folder = os.environ.get("TOLD_FOLDER")
    if folder:
        Path(folder, label).touch()


def hold(label: str) -> None:
    """Say so, and stay until the process is killed; go on where no test asked to be held."""
    if os.environ.get("TOLD_FOLDER"):
        tell(label)
        time.sleep(NEVER)


@task(backoff=0)
def plain_effect(label: str) -> None:
    Effect.objects.create(label=label)
    hold(label)


@task(backoff=0, atomic=True)
def atomic_effect(label: str) -> None:
    Effect.objects.create(label=label)
    hold(label)


@task(backoff=0)
def once_effect(label: str) -> None:
    with transaction.atomic():
        if once(label):
            Effect.objects.create(label=label)
    hold(label)


@task(backoff=0)
def rest(label: str, seconds: float) -> None:
    tell(label)
    time.sleep(seconds)
    Effect.objects.create(label=label)


@task(backoff=0)
async def arest(label: str, seconds: float) -> None:
    tell(label)
    await asyncio.sleep(seconds)
    await Effect.objects.acreate(label=label)


@task(backoff=0, takes_context=True)
def rest_until_told(context: JobContext, label: str) -> str:
    tell(label)
    while not context.should_stop:
        time.sleep(0.01)
    return "cancelled" if context.is_cancelled else "stopping" if context.is_stopping else "late"


@task(max_attempts=1, timeout=0.3)
def spin(label: str) -> None:
    while True:
        pass


@task(backoff=0)
def compute(label: str, seconds: float) -> None:
    """Keep the interpreter busy."""
    tell(label)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


@task(backoff=0)
def rest_in_transaction(label: str, seconds: float) -> None:
    with transaction.atomic():
        Effect.objects.create(label=label)
        tell(label)
        time.sleep(seconds)


@task(max_attempts=1, timeout=0.3)
def ignore_the_limit(label: str) -> None:
    """Blocked in C, where no exception reaches it, then effective although it is too late."""
    tell(label)
    time.sleep(6)
    Effect.objects.create(label=label)


@task(max_attempts=1, timeout=0.3)
async def arest_too_long(label: str) -> None:
    await asyncio.sleep(NEVER)


@task
def chain(label: str, more: int) -> None:
    Effect.objects.create(label=f"{label}{more}")
    if more:
        enqueue(chain, label, more - 1)


@task(max_attempts=1)
def raise_text(text: str) -> None:
    raise ValueError(text.encode().decode("unicode_escape"))


@task(max_attempts=1)
def raise_exit(kind: str) -> None:
    if kind == "recursion":
        raise_exit.func(kind)
    kinds: dict[str, type[BaseException]] = {
        "exit": SystemExit,
        "interrupt": KeyboardInterrupt,
        "memory": MemoryError,
        "generator": GeneratorExit,
    }
    raise kinds.get(kind, RecursionError)(kind)


@task(max_attempts=3)
def return_odd(kind: str) -> Any:
    Effect.objects.create(label=kind)
    return {"object": object(), "nan": float("nan"), "large": "x" * 5_000_000}[kind]


@task(max_attempts=2)
def retry_at_once(label: str) -> None:
    Effect.objects.create(label=label)
    raise Retry("again", delay=0)


@task(backoff=0)
def alone_in_group(label: str, ttl: float) -> None:
    """At most one of these runs at a time; who comes meanwhile looks again soon, and is charged nothing."""
    try:
        with lock("group g", ttl=ttl):
            Effect.objects.create(label=label)
            hold(label)
    except LockNotAcquired:
        raise Snooze(delay=0.2) from None


@task
def cut_own_worker(label: str) -> None:
    """Cut every other session on this database: that of the worker's main thread too."""
    Effect.objects.create(label=label)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name = %s",
            [os.environ["PGAPPNAME"]],
        )


@task
def leave_transaction_open(label: str) -> None:
    transaction.set_autocommit(False)
    Effect.objects.create(label=label)


@task(max_attempts=1, backoff=0)
def wait_for_go(label: str) -> None:
    """Wait for the test in the worker that tells it, and fail there."""
    folder = os.environ.get("TOLD_FOLDER")
    if folder:
        tell(label)
        while not Path(folder, "go").exists():
            time.sleep(0.01)
        raise ValueError("too late")


@task(max_attempts=1, sensitive=["password"])
def log_in(user: str, password: str) -> None:
    raise ValueError(f"{user} could not log in with {password}")


@task(max_attempts=1)
def break_transaction(label: str) -> None:
    """Let a statement fail, and catch the error: in PostgreSQL the transaction around it is broken."""
    with contextlib.suppress(DatabaseError), connection.cursor() as cursor:
        cursor.execute("SELECT no_such_column FROM tests_effect")


@task
def wait_and_leave_no_effect(label: str, seconds: float) -> None:
    """Needs no database."""
    tell(label)
    time.sleep(seconds)


@task(max_attempts=5)
def give_up(label: str) -> None:
    Effect.objects.create(label=label)
    raise GiveUp("no such account")


@task(backoff=0)
def end_process(label: str, how: str = "") -> None:
    """Do nothing, or note the start and kill the process that runs this."""
    if not how:
        return
    with Path(os.environ["TOLD_FOLDER"], label).open("a") as starts:
        starts.write("x")
    if how == "exit":
        os._exit(9)
    os.kill(os.getpid(), getattr(signal, how))
    time.sleep(NEVER)  # a signal may reach another thread first


@task
def pass_by(number: int) -> int:
    """What a short job does: take something, give something back."""
    return number + 1


@task
async def apass_by(number: int) -> int:
    return number + 1


@task
def ask(count: int) -> int:
    """Ask the database so many times. How many statements the connection remembered before."""
    remembered = len(connection.queries_log)
    for _ in range(count):
        Effect.objects.count()
    return remembered


@task
def weigh() -> tuple[int, int]:
    """How large the process is: its memory in bytes, and the number of Python's objects in it."""
    gc.collect()
    return resident(), sys.getallocatedblocks()


HOARD: list[bytes] = []


@task
def hoard(megabytes: int) -> None:
    """Keep so much memory after the task's end."""
    HOARD.append(b"x" * (megabytes * 2**20))


@task(max_attempts=1, timeout=0.3)
async def block_the_loop(label: str) -> None:
    """Keep the thread of the event loop for itself, however short the time limit, until the test lets it succeed."""
    tell(label)
    while not Path(os.environ["TOLD_FOLDER"], "go").exists():  # noqa: ASYNC240
        time.sleep(0.01)  # noqa: ASYNC251
    tell("unblocked")


@task(backoff=0)
def wait_for_file(label: str, name: str) -> None:
    """End when the test has made this file."""
    tell(label)
    while not Path(os.environ["TOLD_FOLDER"], name).exists():
        time.sleep(0.01)


@task(backoff=0, takes_context=True)
def ask_until_cancelled(context: JobContext, label: str) -> None:
    """Stay until the run counts no longer; succeed at once where no test asked to be told."""
    tell(label)
    while os.environ.get("TOLD_FOLDER") and not context.is_cancelled:
        time.sleep(0.01)
    tell(f"{label} cancelled")


@task(backoff=0)
async def await_until_cancelled(label: str) -> None:
    """The same on the event loop."""
    tell(label)
    try:
        await asyncio.sleep(NEVER if os.environ.get("TOLD_FOLDER") else 0)
    finally:
        tell(f"{label} cancelled")


def noted(function: Callable[P, T]) -> Callable[P, T]:
    """A decorator that does not know of async functions."""

    @functools.wraps(function)
    def noting(*args: P.args, **kwargs: P.kwargs) -> T:
        tell("noted")
        return function(*args, **kwargs)

    return noting


@task(max_attempts=3)
@noted
async def aeffect_behind_a_decorator(label: str) -> None:
    await Effect.objects.acreate(label=label)

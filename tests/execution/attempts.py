"""Attempts made by hand: a claimed run without a database."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from django_jobs import codec, registry
from django_jobs.execution import Attempt, Recording, aexecute, execute
from django_jobs.ids import job_id
from django_jobs.registry import Task
from django_jobs.runs import ClaimedRun, Outcome

NOW = datetime(2026, 8, 5, 12, tzinfo=UTC)


@contextmanager
def declared(function: Callable[..., Any], **options: Any) -> Iterator[Task]:
    """A task of a function written inside a test."""
    function.__module__, function.__qualname__ = "tests.execution", function.__name__
    with registry.isolated():
        yield registry.task(**options)(function)


def claimed(task: Task, *args: Any, **fields: Any) -> ClaimedRun:
    """A first claim of the task with these arguments."""
    values: dict[str, Any] = {
        "job_id": job_id(),
        "claim_number": 1,
        "task_name": task.name,
        "queue_name": "default",
        "priority": 0,
        "payload": json.loads(codec.encode_call(args, {}, max_size=65536)),
        "attempt": 1,
        "failures": 0,
        "crashes": 0,
        "interruptions": 0,
        "key": None,
        "uniqueness": "",
        "options": None,
        "enqueued_at": NOW,
        "run_at": NOW,
        "claimed_at": NOW,
        **fields,
    }
    return ClaimedRun(**values)


def nothing(*args: Any) -> None: ...


def attempt(task: Task, *args: Any, **fields: Any) -> Attempt:
    return Attempt(claimed(task, *args, **fields), task, time.monotonic())


def run(task: Task, *args: Any, **fields: Any) -> Outcome:
    """Execute one claim in this thread, on a loop if the task is async."""
    return run_attempt(attempt(task, *args, **fields))


def run_attempt(made: Attempt) -> Outcome:
    if made.task.is_async:
        return asyncio.run(aexecute(made))
    outcome = execute(made, recording=Recording("default", nothing, nothing, nothing))
    assert outcome is not None
    return outcome

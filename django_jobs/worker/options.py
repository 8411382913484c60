"""What a worker is told to do, checked by the same rules as the settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django_jobs import registry
from django_jobs.conf import Settings, get_settings, read
from django_jobs.models.job import NAME_LENGTH, QUEUE_LENGTH


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """Everything a worker needs to know, settings included."""

    using: str = "default"
    queue_names: tuple[str, ...] | None = None  # None: every queue
    threads: int = 5
    async_concurrency: int = 100
    burst: bool = False  # end when nothing is ready
    max_jobs: int | None = None  # end after so many were started
    max_memory: int | None = None  # megabytes; end when the process takes more
    processes: int = 0  # under a supervisor; 0: one, without
    name: str = ""
    grace: timedelta = timedelta(seconds=25)
    poll_interval: timedelta = timedelta(seconds=1)
    lease: timedelta = timedelta(seconds=30)
    heartbeat: timedelta = timedelta(seconds=10)
    sweeps: bool = True  # rescue, bury and prune beside the jobs


def read_options(
    *,
    using: str = "default",
    queue_names: Sequence[str] | None = None,
    threads: int | None = None,
    async_concurrency: int | None = None,
    burst: bool = False,
    max_jobs: int | None = None,
    max_memory: int | None = None,
    processes: int | None = None,
    name: str = "",
    grace: timedelta | float | None = None,
    poll_interval: timedelta | float | None = None,
) -> WorkerOptions:
    """Options from what was asked for; the settings fill the gaps.

    Raises:
        ValueError: a sentence for each thing wrong.
    """
    asked = {
        "THREADS": threads,
        "ASYNC_CONCURRENCY": async_concurrency,
        "GRACE": grace,
        "POLL_INTERVAL": poll_interval,
        "PROCESSES": processes,
    }
    settings, problems = _settings({key: value for key, value in asked.items() if value is not None})
    queues = None if queue_names is None else tuple(dict.fromkeys(queue_names))
    problems += _queue_problems(queues, settings)
    if max_jobs is not None and max_jobs < 1:
        problems.append(f"max_jobs={max_jobs!r} must be a whole number of at least 1.")
    if max_memory is not None and max_memory < 1:
        problems.append(f"max_memory={max_memory!r} must be a whole number of megabytes, at least 1.")
    if len(name) > NAME_LENGTH or not name.isprintable():
        problems.append(f"The worker's name {name[:NAME_LENGTH]!r} must be up to {NAME_LENGTH} printable characters.")
    if problems:
        raise ValueError(" ".join(problems))
    return WorkerOptions(
        using=using,
        queue_names=queues,
        threads=settings.THREADS,
        async_concurrency=settings.ASYNC_CONCURRENCY,
        burst=burst,
        max_jobs=max_jobs,
        max_memory=max_memory,
        processes=settings.PROCESSES,
        name=name,
        grace=settings.GRACE,
        poll_interval=settings.POLL_INTERVAL,
        lease=settings.LEASE,
        heartbeat=settings.HEARTBEAT,
    )


def _settings(asked: Mapping[str, Any]) -> tuple[Settings, list[str]]:
    """The settings with what was asked for in their place, and what is wrong with it."""
    base = get_settings()
    read_ones, problems = read(asked)
    values = {key: getattr(read_ones, key) for key in asked}
    return Settings(**{**vars(base), **values}), problems


def _queue_problems(queue_names: tuple[str, ...] | None, settings: Settings) -> list[str]:
    if queue_names is None:
        return []
    if not queue_names:
        return ["No queue is named. Name at least one, or leave the option out to serve every queue."]
    problems = [
        f"Queue name {name!r} must be a string of 1 to {QUEUE_LENGTH} characters."
        for name in queue_names
        if not 1 <= len(name) <= QUEUE_LENGTH
    ]
    if settings.QUEUES:
        problems += [registry.unknown_queue(name) for name in queue_names if name not in settings.QUEUES]
    return problems

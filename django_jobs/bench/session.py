"""Begin and end of a benchmark: who else is there, what is refused, and that nothing is left."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connections
from django.dispatch import Signal

from django_jobs import signals
from django_jobs.bench.task import NAME, QUEUE, only_task
from django_jobs.bench.workloads import Bench
from django_jobs.conf import get_settings
from django_jobs.database import Clock
from django_jobs.doctor.applied import unapplied
from django_jobs.lifecycle import extend
from django_jobs.lifecycle.erase import erase, erase_queue
from django_jobs.models import Worker


class Refused(Exception):
    """The benchmark would disturb somebody, or measure something else."""


@contextmanager
def session(*, using: str, jobs: int, seconds: float) -> Iterator[Bench]:
    """A benchmark, ready to measure. Afterwards every row it wrote is gone, whatever happened.

    Raises:
        Refused: the message says why, and what would help.
    """
    refuse(using)
    with only_task(using=using) as task, quiet():
        erase_queue(QUEUE, NAME, using=using)  # What one that was killed has left.
        worker = extend.register("jobs_bench", [QUEUE], [NAME], using=using)
        bench = Bench(using=using, jobs=jobs, seconds=seconds, worker=worker, task=task)
        try:
            yield bench
        finally:
            erase(bench.written, using=using)
            extend.retire(worker, using=using)


def refuse(using: str) -> None:
    """Raise Refused if this is no place or time for it."""
    if connections[using].in_atomic_block:
        raise Refused("A benchmark commits, which it cannot do inside a transaction.")
    if missing := unapplied(using):
        raise Refused(f"Database {using!r} lacks migration {missing[0]!r} of django_jobs. Run manage.py migrate first.")
    if get_settings().IMMEDIATE:
        raise Refused('DJANGO_JOBS["IMMEDIATE"] is on: nothing would be queued. Take it out of these settings.')
    for name in others(using):
        raise Refused(
            f"Worker {name} serves every queue, or is another benchmark's, and would take these jobs. Stop it for a "
            "minute, start it with --queues, or measure a copy of the database."
        )


def others(using: str) -> list[str]:
    """The live workers that would take the benchmark's jobs."""
    alive = Worker.objects.using(using).filter(lease_expires_at__gte=Clock())
    rows = alive.values_list("name", "queue_names")
    return [name for name, queue_names in rows if queue_names is None or QUEUE in queue_names]


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the jobs of the benchmark from the project's logs and from its receivers of signals."""
    logger = logging.getLogger("django_jobs")
    level, heard = logger.level, {each: each.receivers for each in (signals.runs_ended, signals.jobs_died)}
    logger.setLevel(logging.WARNING)
    for each in heard:
        _connect(each, [])
    try:
        yield
    finally:
        logger.setLevel(level)
        for each, receivers in heard.items():
            _connect(each, receivers)


def _connect(signal: Signal, receivers: list[object]) -> None:
    with signal.lock:
        signal.receivers = receivers
        signal.sender_receivers_cache.clear()

"""What is asked of every kind of database: clocks and workers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime, timedelta

from django.db import connections
from django.utils import timezone

from django_jobs.conf import get_settings
from django_jobs.database import are_there_any, read_clock
from django_jobs.doctor.findings import Finding, fine, or_fine, problem, span, warning
from django_jobs.models import Job, Worker
from django_jobs.statuses import JobStatus

CLOCKS_APART = 1.0  # seconds


def clock(using: str) -> Iterator[Finding]:
    """Compare this host's clock with the database's."""
    if connections[using].vendor == "sqlite":
        return  # It has none of its own.
    started = time.monotonic()
    here, there = timezone.now(), read_clock(using)
    yield judge_clocks(here, there, within=time.monotonic() - started)


def judge_clocks(here: datetime, there: datetime, *, within: float) -> Finding:
    """What the two say, read within so many seconds of each other."""
    apart = max(abs((there - here).total_seconds()) - within, 0.0)
    if apart < CLOCKS_APART:
        return fine("clock", "This host and the database agree on the time.")
    order = "behind" if here < there else "ahead of"
    message = (
        f"This host is {span(apart)} {order} the database. Leases are safe, as they go by the database's clock; but a "
        "run_at computed here is wrong by as much, and log lines do not fit the times in the admin."
    )
    return warning("clock", message, "Let both hosts follow NTP: timedatectl set-ntp true")


def workers(using: str) -> Iterator[Finding]:
    """Look for workers whose heartbeat is late, and for jobs that nobody serves."""
    now, heartbeat = read_clock(using), get_settings().HEARTBEAT
    rows = list(Worker.objects.using(using).order_by("heartbeat_at"))
    alive = [worker for worker in rows if worker.lease_expires_at >= now]
    message = f"{len(alive)} worker{'' if len(alive) == 1 else 's'} alive, all heartbeats in time."
    yield from or_fine(_late(rows, now, heartbeat), "workers", message)
    ready = Job.objects.using(using).filter(status=JobStatus.READY).order_by("queue_name", "-priority", "run_at", "id")
    if not alive and any(are_there_any([ready], using=using)):
        yield problem("workers", "Jobs are ready, and no worker is alive.", f"manage.py runworker --database {using}")


def _late(rows: list[Worker], now: datetime, heartbeat: timedelta) -> Iterator[Finding]:
    for worker in rows:
        late, expired = now - worker.heartbeat_at, now - worker.lease_expires_at
        who = f"Worker {worker.name} (host {worker.host}, pid {worker.pid})"
        if (gone := expired.total_seconds()) > 0:
            message = (
                f"{who} lost its lease {span(gone)} ago: it was killed, or cannot reach the database. "
                "Its jobs are taken back by a worker that has run for the length of a lease."
            )
            yield warning("workers", message, f"manage.py runworker --database {rows[0]._state.db}")
        elif late > 2 * heartbeat:
            message = (
                f"{who} sent its last heartbeat {span(late.total_seconds())} ago, and should do so each "
                f"{heartbeat.total_seconds():g} s: it is stopped, starved of CPU, or waits for the database."
            )
            yield warning("workers", message, f"On {worker.host}: py-spy dump --pid {worker.pid}")

"""The lease: a worker's row, its heartbeat, and what it holds."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import UUID

from django.db import connections

from django_jobs.conf import get_settings
from django_jobs.database import Clock, seconds_until_sql
from django_jobs.ids import job_id
from django_jobs.models import Job, Worker
from django_jobs.runs import WorkerIdentity
from django_jobs.statuses import JobStatus


def register(name: str, queue_names: Sequence[str] | None, task_names: Sequence[str], *, using: str) -> WorkerIdentity:
    """Write the row of a worker that starts. Its id is new each time; an empty name becomes host:pid."""
    worker = WorkerIdentity(job_id(), (name or f"{socket.gethostname()}:{os.getpid()}")[:200])
    Worker.objects.using(using).create(
        id=worker.id,
        name=worker.name,
        host=socket.gethostname()[:255],
        pid=os.getpid(),
        started_at=Clock(),
        heartbeat_at=Clock(),
        lease_expires_at=Clock(get_settings().LEASE),
        queue_names=None if queue_names is None else list(queue_names),
        task_names=sorted(task_names),
    )
    return worker


class Extended(NamedTuple):
    """The lease was moved on."""

    first_expiry: float | None  # seconds until the first lease of another worker is over; None if there is no other
    others: int = 0  # workers beside this one


def extend(worker: WorkerIdentity, *, using: str) -> Extended | None:
    """The heartbeat: move the lease on. None if the row is gone: the jobs were rescued."""
    if connections[using].vendor == "postgresql":
        return _extend_postgres(worker, using=using)
    rows = Worker.objects.using(using).filter(id=worker.id)
    if not rows.update(heartbeat_at=Clock(), lease_expires_at=Clock(get_settings().LEASE)):
        return None
    others = Worker.objects.using(using).exclude(id=worker.id).order_by("lease_expires_at")
    first = others.annotate(now=Clock()).values_list("lease_expires_at", "now").first()
    return Extended(first and (first[0] - first[1]).total_seconds(), others.count())


def _extend_postgres(worker: WorkerIdentity, *, using: str) -> Extended | None:
    """One statement, so that it costs an idle worker nothing to know when others have to be rescued."""
    seconds, _ = seconds_until_sql(connections[using], "min(lease_expires_at)")
    parameters: list[Any] = [get_settings().LEASE, worker.id, worker.id]
    with connections[using].cursor() as cursor:
        cursor.execute(
            "UPDATE django_jobs_worker"
            " SET heartbeat_at = statement_timestamp(), lease_expires_at = statement_timestamp() + %s WHERE id = %s"
            f" RETURNING (SELECT {seconds} FROM django_jobs_worker WHERE id <> %s),"
            " (SELECT count(*) - 1 FROM django_jobs_worker)",
            parameters,
        )
        row = cursor.fetchone()
    return row and Extended(*row)


def note_awake(worker: WorkerIdentity, is_awake: bool, *, using: str) -> None:
    """Say whether this worker looks for jobs by itself, so that nobody needs to wake it."""
    Worker.objects.using(using).filter(id=worker.id).update(is_awake=is_awake)


def held(worker: WorkerIdentity, *, using: str) -> set[tuple[UUID, int]]:
    """The (job id, claim number) pairs this worker holds."""
    rows = Job.objects.using(using).filter(status=JobStatus.RUNNING, worker_id=worker.id)
    return set(rows.values_list("id", "claim_number"))


def retire(worker: WorkerIdentity, *, using: str) -> None:
    """Delete the row of a worker that ended and holds nothing any more."""
    Worker.objects.using(using).filter(id=worker.id).delete()

"""The lease: a worker's row, its heartbeat, and what it holds."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from uuid import UUID

from django_jobs.conf import get_settings
from django_jobs.database import Clock
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


def extend(worker: WorkerIdentity, *, using: str) -> bool:
    """The heartbeat: move the lease on. False if the row is gone: the jobs were rescued."""
    rows = Worker.objects.using(using).filter(id=worker.id)
    return rows.update(heartbeat_at=Clock(), lease_expires_at=Clock(get_settings().LEASE)) == 1


def held(worker: WorkerIdentity, *, using: str) -> set[tuple[UUID, int]]:
    """The (job id, claim number) pairs this worker holds."""
    rows = Job.objects.using(using).filter(status=JobStatus.RUNNING, worker_id=worker.id)
    return set(rows.values_list("id", "claim_number"))


def retire(worker: WorkerIdentity, *, using: str) -> None:
    """Delete the row of a worker that ended and holds nothing any more."""
    Worker.objects.using(using).filter(id=worker.id).delete()

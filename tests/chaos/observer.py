"""Looks at leases and claims while they are there; what has ended is the auditor's."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from django.db import connection

from django_jobs.models import Job, Worker
from tests.chaos.audit import Lease
from tests.chaos.callers import Beside


class Observer(Beside):
    """Samples ten times a second."""

    pause = 0.1

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.leases: dict[str, list[Lease]] = {}  # by the worker's name
        self.gone: dict[int, datetime] = {}  # by process id: when it was first seen to be gone
        self._pids: set[int] = set()
        self._claims: dict[UUID, tuple[int, UUID | None]] = {}

    def step(self) -> None:
        # By this host's clock, which is the database's too: a process may end while that is away.
        self.gone |= {pid: datetime.now(UTC) for pid in self._pids - self.gone.keys() if not _is_alive(pid)}
        self._look_at_leases()
        rows = Job.objects.exclude(claim_number=0).values_list("id", "claim_number", "worker_id")
        claims = {job_id: (number, worker) for job_id, number, worker in rows}
        for job_id, (number, worker) in claims.items():
            before, holder = self._claims.get(job_id, (0, None))
            if number < before:
                self.violations.append(f"the claim number of job {job_id} went from {before} to {number}")
            if number == before and None not in (worker, holder) and worker != holder:
                self.violations.append(f"claim {number} of job {job_id} is held by {worker}, and was by {holder}")
        self._claims = claims

    def _look_at_leases(self) -> None:
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT name, pid, lease_expires_at, statement_timestamp() FROM {Worker._meta.db_table}")
            rows = cursor.fetchall()
        for name, pid, until, seen in rows:
            self.leases.setdefault(name, []).append(Lease(seen, until, pid))
            self._pids.add(pid)


def _is_alive(pid: int) -> bool:
    """Whether it runs, or could: one that nobody has waited for yet is dead."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in {"Z", "X"}
    except OSError:
        return False

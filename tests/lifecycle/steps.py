"""The arrows of the state diagram as a worker would walk them, in the calling thread."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from django.db import connection
from django.db.models import AutoField, Model

from django_jobs import registry
from django_jobs.errors import ErrorRecord
from django_jobs.lifecycle import claim, extend, finish, quarantine
from django_jobs.runs import Charge, ClaimedRun, Outcome, Then, WorkerIdentity
from django_jobs.statuses import DeathReason, RunStatus

NAMES = frozenset(registry.names())
ERROR = ErrorRecord(error_type="ValueError", text="no", traceback="Traceback", fingerprint="f1")


def start_worker(name: str = "w", *, using: str = "default") -> WorkerIdentity:
    return extend.register(name, None, sorted(NAMES), using=using)


def claim_all(worker: WorkerIdentity, limit: int = 100, *, using: str = "default") -> list[ClaimedRun]:
    claim.promote(using=using)
    return claim.claim(worker, None, limit, NAMES, using=using)


def claim_alone(worker: WorkerIdentity, *, using: str = "default") -> list[ClaimedRun]:
    """What a worker with nothing else to do runs: an ordinary job, or else one suspect, which it puts aside before."""
    runs = claim_all(worker, 1, using=using)
    suspects = [run for run in runs if run.crashes]
    if runs and not suspects:
        return runs
    quarantine.put_aside(suspects, worker, using=using)
    return quarantine.claim_suspect(worker, None, NAMES, using=using)


def succeeded(run: ClaimedRun, **fields: Any) -> Outcome:
    return Outcome(run, RunStatus.SUCCEEDED, Then.DONE, duration=0.01, result="null", **fields)


def failed(run: ClaimedRun, *, retry_in: timedelta | None = timedelta(seconds=30)) -> Outcome:
    return Outcome(run, RunStatus.FAILED, Then.RETRY, Charge.FAILURE, delay=retry_in, error=ERROR)


def died(run: ClaimedRun) -> Outcome:
    reason = DeathReason.OUT_OF_TRIES
    return Outcome(run, RunStatus.FAILED, Then.DIE, Charge.FAILURE, reason=reason, error=ERROR)


def finish_all(outcomes: Sequence[Outcome], worker: WorkerIdentity, *, using: str = "default") -> finish.Finished:
    return finish.finish(outcomes, worker, using=using)


def inserts(model: type[Model], count: int) -> int:
    """How many INSERTs one bulk_create makes: several on SQLite before Django 6.0, which has 999 parameters."""
    fields = [field for field in model._meta.concrete_fields if not isinstance(field, AutoField)]
    size: int = connection.ops.bulk_batch_size(fields, [model()] * count) if connection.vendor == "sqlite" else count
    return -(-count // size)

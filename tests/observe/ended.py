"""Ended runs to feed to whoever listens."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django_jobs.runs import EndedRun, Then
from django_jobs.statuses import RunStatus

JOB_ID = UUID("0190f5fe-7c00-7a00-8000-000000000001")


def ended_run(**values: Any) -> EndedRun:
    """A success, but for the values given."""
    defaults: dict[str, Any] = {
        "job_id": JOB_ID,
        "claim_number": 1,
        "task_name": "shop.tasks.send_mail",
        "queue_name": "mail",
        "status": RunStatus.SUCCEEDED,
        "then": Then.DONE,
        "attempt": 1,
        "duration": 0.0123,
        "waited": 0.0031,
        "worker": "host-1",
        "error_type": "",
        "error_text": "",
        "retry_in": None,
        "reason": None,
    }
    return EndedRun(**{**defaults, **values})

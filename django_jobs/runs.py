"""A run as a value: what a claim hands over, what became of it, and what was recorded."""

from __future__ import annotations

import enum
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from django_jobs.errors import ErrorRecord
from django_jobs.statuses import DeathReason, RunStatus


class ClaimedRun(NamedTuple):
    """One claim of one job. `(job_id, claim_number)` is its fence; times are the database's."""

    job_id: UUID
    claim_number: int
    task_name: str
    queue_name: str
    priority: int
    payload: Any  # parsed JSON, read by `codec.decode_call`
    attempt: int
    failures: int
    crashes: int
    interruptions: int
    key: str | None
    uniqueness: str
    options: dict[str, Any] | None  # overrides of the task's own: max_attempts, timeout (seconds)
    enqueued_at: datetime
    run_at: datetime
    claimed_at: datetime


class WorkerIdentity(NamedTuple):
    """Who claims: the id of its Worker row, never used again, and its name."""

    id: UUID
    name: str


class Then(enum.Enum):
    """What happens to the job after a run."""

    DONE = "done"
    RETRY = "retry"
    DIE = "die"
    RETURN = "return"  # back to ready at once


class Charge(enum.Enum):
    """What the run is counted as."""

    NOTHING = "nothing"
    FAILURE = "failure"
    CRASH = "crash"
    INTERRUPTION = "interruption"


class Outcome(NamedTuple):
    """What became of a claimed run; one place (`lifecycle.finish`) turns it into rows."""

    run: ClaimedRun
    status: RunStatus
    then: Then
    charge: Charge = Charge.NOTHING
    started_after: float = 0.0  # seconds from the claim to the start
    duration: float = 0.0  # seconds
    delay: timedelta | None = None  # with RETRY
    until: datetime | None = None  # with RETRY, instead of delay
    reason: DeathReason | None = None  # with DIE
    error: ErrorRecord | None = None
    result: str | None = None  # JSON text
    key_ttl: timedelta | None = None  # how long a success holds the key; None is for ever

    @property
    def started_at(self) -> datetime:
        return self.run.claimed_at + timedelta(seconds=self.started_after)

    @property
    def ended_at(self) -> datetime:
        return self.started_at + timedelta(seconds=self.duration)


class EndedRun(NamedTuple):
    """One recorded run, as `signals.runs_ended` carries it."""

    job_id: UUID
    claim_number: int
    task_name: str
    queue_name: str
    status: RunStatus
    then: Then
    attempt: int
    duration: float  # seconds
    waited: float  # seconds from due to start
    worker: str
    error_type: str
    error_text: str
    retry_in: timedelta | None
    reason: DeathReason | None


class Death(NamedTuple):
    """One new dead letter, as `signals.jobs_died` carries it."""

    letter_id: int
    job_id: UUID
    task_name: str
    queue_name: str
    reason: DeathReason
    error_type: str
    error_text: str

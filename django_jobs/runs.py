"""A run as a value: what a claim hands over, what became of it, and what was recorded."""

from __future__ import annotations

import enum
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple, overload
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
    attempt: int
    failures: int
    crashes: int
    interruptions: int
    key: str | None
    uniqueness: str
    payload: Any  # parsed JSON, or its codec.JSONText; read by `codec.decode_call`
    options: dict[str, Any] | None  # overrides of the task's own: max_attempts, timeout (seconds)
    enqueued_at: datetime
    run_at: datetime
    claimed_at: datetime


class WorkerIdentity(NamedTuple):
    """Who claims: the id of its Worker row, never used again, and its name."""

    id: UUID
    name: str

    def __hash__(self) -> int:
        return hash(self.name)  # a UUID computes its hash each time, in Python


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
    def is_cleared(self) -> bool:
        """Whether the run shows that it was not this job that ended the worker which held it once.

        Nobody knows which of the jobs a dead worker held has ended it, so all were charged. Those that kill their
        process do so again when they run alone, and that is never taken back. Only a failure clears, for the number of
        failures is bounded itself.
        """
        return self.run.crashes == 1 and self.charge is Charge.FAILURE

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


class EndedRuns(Sequence[EndedRun]):
    """The recorded runs of one write; each is made when somebody looks at it, as most of them nobody looks at."""

    def __init__(self, outcomes: Sequence[Outcome], worker: str) -> None:
        self._outcomes = outcomes
        self._worker = worker

    def __len__(self) -> int:
        return len(self._outcomes)

    @overload
    def __getitem__(self, index: int) -> EndedRun: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[EndedRun]: ...
    def __getitem__(self, index: int | slice) -> EndedRun | Sequence[EndedRun]:
        if isinstance(index, slice):
            return EndedRuns(self._outcomes[index], self._worker)
        return _ended(self._outcomes[index], self._worker)

    def unless(self, statuses: Collection[RunStatus]) -> Sequence[EndedRun]:
        """Those that ended in no such status."""
        return EndedRuns([each for each in self._outcomes if each.status not in statuses], self._worker)


def _ended(outcome: Outcome, worker: str) -> EndedRun:
    run, error = outcome.run, outcome.error
    return EndedRun(
        job_id=run.job_id,
        claim_number=run.claim_number,
        task_name=run.task_name,
        queue_name=run.queue_name,
        status=outcome.status,
        then=outcome.then,
        attempt=run.attempt,
        duration=outcome.duration,
        waited=max((run.claimed_at - run.run_at).total_seconds() + outcome.started_after, 0.0),
        worker=worker,
        error_type=error.error_type if error else "",
        error_text=error.text if error else "",
        retry_in=outcome.delay if outcome.then is Then.RETRY else None,
        reason=outcome.reason,
    )


class Death(NamedTuple):
    """One new dead letter, as `signals.jobs_died` carries it."""

    letter_id: int
    job_id: UUID
    task_name: str
    queue_name: str
    reason: DeathReason
    error_type: str
    error_text: str

"""What the tables must hold after each step, as plain Python: the oracle of test_model.

It knows nothing of SQL, of batches, or of how anything is done. Who reads it reads the rules of the state diagram.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from uuid import UUID

from django_jobs.runs import Charge, ClaimedRun, Outcome, Then, WorkerIdentity
from django_jobs.statuses import DeathReason, JobStatus, LetterStatus, RunStatus, Uniqueness

MAX_CRASHES = 3


@dataclass
class ModelJob:
    """A live job."""

    id: UUID
    scope: str
    key: str | None
    unique: str
    priority: int
    status: JobStatus
    is_due: bool = False  # while it is scheduled
    claim_number: int = 0
    attempt: int = 0
    failures: int = 0
    crashes: int = 0
    interruptions: int = 0
    worker: WorkerIdentity | None = None
    waits: bool = False  # to run alone, or does so: it is a suspect, which was held by a worker that is gone

    @property
    def row(self) -> tuple[object, ...]:
        counts = (self.claim_number, self.attempt, self.failures, self.crashes, self.interruptions)
        return (self.id, self.status.value, *counts, self.worker and self.worker.id, self.waits)


@dataclass
class ModelKey:
    """A key that is held: for ever, until it expires, or until somebody frees it."""

    holder: UUID
    expires: bool = False
    is_expired: bool = False


@dataclass
class ModelLetter:
    """A dead letter."""

    job: ModelJob
    reason: DeathReason
    status: LetterStatus = LetterStatus.OPEN
    replayed_as: UUID | None = None


@dataclass
class Oracle:
    """The tables, and the rules by which they change."""

    jobs: dict[UUID, ModelJob] = field(default_factory=dict)
    keys: dict[tuple[str, str], ModelKey] = field(default_factory=dict)
    runs: dict[tuple[UUID, int], RunStatus] = field(default_factory=dict)
    letters: dict[UUID, ModelLetter] = field(default_factory=dict)
    workers: dict[UUID, bool] = field(default_factory=dict)  # those with a row, and whether their lease is over

    # Keys.

    def holder(self, scope: str, key: str | None) -> UUID | None:
        held = self.keys.get((scope, key)) if key else None
        return None if held is None or held.is_expired else held.holder

    def free(self, job: ModelJob) -> None:
        """Its own key only: another job may hold that name by now."""
        self.keys = {pair: held for pair, held in self.keys.items() if held.holder != job.id}

    # The arrows of the state diagram.

    def enqueue(self, job: ModelJob) -> None:
        assert self.holder(job.scope, job.key) is None
        self.jobs[job.id] = job
        if job.key:
            self.keys[job.scope, job.key] = ModelKey(job.id)

    def promote(self, locked: Iterable[UUID]) -> None:
        for job in self.jobs.values():
            if job.status == JobStatus.SCHEDULED and job.is_due and job.id not in locked:
                job.status, job.waits = JobStatus.READY, False

    def claimable(self, locked: Iterable[UUID]) -> list[ModelJob]:
        return [job for job in self.jobs.values() if job.status == JobStatus.READY and job.id not in locked]

    def suspects(self, locked: Iterable[UUID]) -> set[UUID]:
        aside = [job for job in self.jobs.values() if job.status == JobStatus.SCHEDULED and job.waits]
        return {job.id for job in aside} - set(locked)

    def claim(self, run: ClaimedRun, worker: WorkerIdentity, *, is_alone: bool = False) -> None:
        job = self.jobs[run.job_id]
        job.status, job.worker, job.waits = JobStatus.RUNNING, worker, is_alone
        job.claim_number += 1
        job.attempt += 1
        assert (run.claim_number, run.attempt) == (job.claim_number, job.attempt)
        assert (run.failures, run.crashes, run.interruptions) == (job.failures, job.crashes, job.interruptions)
        if job.unique == Uniqueness.QUEUED:
            self.free(job)

    def holds(self, worker: WorkerIdentity | None, fence: tuple[UUID, int]) -> bool:
        job = self.jobs.get(fence[0])
        return job is not None and job.worker == worker and job.claim_number == fence[1]

    def finish(self, outcome: Outcome, worker: WorkerIdentity, locked: Iterable[UUID]) -> str:
        """What `Finished` must call the outcome."""
        fence = outcome.run[:2]
        if not self.holds(worker, fence):
            return "recorded" if self._is_own_record(outcome) else "lost"
        if fence[0] in locked:
            return "kept"
        self._end(self.jobs[fence[0]], outcome)
        return "recorded"

    def _is_own_record(self, outcome: Outcome) -> bool:
        """It was recorded by an earlier try: then the same again is no news. What others wrote is theirs."""
        status = self.runs.get(outcome.run[:2])
        return status is not None and (status == outcome.status or status not in {RunStatus.LOST, RunStatus.CANCELLED})

    def _end(self, job: ModelJob, outcome: Outcome) -> None:
        assert (job.id, job.claim_number) not in self.runs, "two outcomes for one claim"
        self.runs[job.id, job.claim_number] = outcome.status
        job.failures += outcome.charge is Charge.FAILURE
        job.crashes += outcome.charge is Charge.CRASH
        job.interruptions += outcome.charge is Charge.INTERRUPTION
        if outcome.run.crashes == 1 and outcome.charge is Charge.FAILURE:
            job.crashes = 0  # it ran, and ended no worker
        job.worker, job.waits = None, False
        if outcome.then is Then.DIE:
            self.die(job, outcome.reason or DeathReason.OUT_OF_TRIES)
        elif outcome.then is Then.DONE:
            self._succeed(job, expires=outcome.key_ttl is not None)
        else:
            is_later = outcome.then is Then.RETRY and bool(outcome.delay)
            job.status, job.is_due = (JobStatus.SCHEDULED if is_later else JobStatus.READY), False

    def _succeed(self, job: ModelJob, *, expires: bool) -> None:
        del self.jobs[job.id]
        if job.unique != Uniqueness.EVER:
            self.free(job)
        elif expires and (held := self.keys.get((job.scope, job.key or ""))) and held.holder == job.id:
            held.expires = True

    def die(self, job: ModelJob, reason: DeathReason) -> None:
        del self.jobs[job.id]
        self.letters[job.id] = ModelLetter(job, reason)
        self.free(job)

    def release(self, worker: WorkerIdentity | None, fence: tuple[UUID, int], locked: Iterable[UUID]) -> int:
        if not self.holds(worker, fence) or fence[0] in locked:
            return 0
        job = self.jobs[fence[0]]
        job.status, job.worker = JobStatus.READY, None
        job.attempt -= 1
        return 1

    def put_aside(self, worker: WorkerIdentity, fence: tuple[UUID, int], locked: Iterable[UUID]) -> None:
        if self.release(worker, fence, locked):
            job = self.jobs[fence[0]]
            job.status, job.is_due, job.waits = JobStatus.SCHEDULED, False, True

    def rescue(self, locked: Iterable[UUID]) -> int:
        """Of every worker whose lease is over or whose row is gone. How many jobs."""
        gone = {job.worker.id for job in self.jobs.values() if job.worker} - self.workers.keys()
        over = {worker for worker, is_over in self.workers.items() if is_over} | gone
        mine = [job for job in self.jobs.values() if job.worker and job.worker.id in over]
        taken = [job for job in mine if job.id not in locked]
        for job in taken:
            if job.crashes and not job.waits:
                self.release(job.worker, (job.id, job.claim_number), locked)  # it was never started
            else:
                self.lose(job)
        still = {job.worker.id for job in mine if job.worker}
        self.workers = {worker: is_over for worker, is_over in self.workers.items() if not is_over or worker in still}
        return len(taken)

    def lose(self, job: ModelJob) -> None:
        self.runs[job.id, job.claim_number] = RunStatus.LOST
        job.worker, job.waits = None, False
        job.crashes += 1
        job.status, job.is_due = JobStatus.SCHEDULED, False
        if job.crashes >= MAX_CRASHES:
            self.die(job, DeathReason.WORKER_LOST)

    def cancel(self, job: ModelJob) -> None:
        del self.jobs[job.id]
        number = job.claim_number if job.status == JobStatus.RUNNING else job.claim_number + 1
        assert (job.id, number) not in self.runs, "two outcomes for one claim"
        self.runs[job.id, number] = RunStatus.CANCELLED
        self.free(job)

"""Compares what was asked for with what was done. Pure: tested with evidence made by hand."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise
from typing import NamedTuple
from uuid import UUID

MAX_CRASHES = 3
LOOK = timedelta(seconds=2)  # until the observer sees that a process has ended, beside a database that is away
CLOCK = timedelta(milliseconds=50)  # what two readings of one moment may differ by


class AskedJob(NamedTuple):
    """A job that was committed."""

    job_id: UUID
    kind: str
    label: str


class Run(NamedTuple):
    """A row of JobRun."""

    id: int
    job_id: UUID
    claim_number: int
    attempt: int
    status: str
    is_last: bool
    started_at: datetime | None
    ended_at: datetime
    run_at: datetime | None
    worker: str
    key: str | None


class Letter(NamedTuple):
    """A row of DeadLetter."""

    job_id: UUID
    reason: str
    crashes: int


class Done(NamedTuple):
    """An effect, or a start, in the order of their ids."""

    job_id: UUID
    claim_number: int
    label: str = ""


class Key(NamedTuple):
    """A row of JobKey."""

    scope: str
    key: str
    holder_id: UUID


class Lease(NamedTuple):
    """At `seen`, by the database's clock, the lease of the worker in process `pid` was to last until `until`."""

    seen: datetime
    until: datetime
    pid: int


@dataclass
class Evidence:
    """All that is left when the workers have ended."""

    asked: Sequence[AskedJob] = ()
    rolled_back: set[str] = field(default_factory=set)  # labels
    cancelled: set[UUID] = field(default_factory=set)
    runs: Sequence[Run] = ()
    letters: Sequence[Letter] = ()
    effects: Sequence[Done] = ()
    starts: Sequence[Done] = ()
    keys: Sequence[Key] = ()
    once_scope: str = ""
    live: Sequence[UUID] = ()  # job ids
    workers: Sequence[str] = ()  # names
    leases: dict[str, list[Lease]] = field(default_factory=dict)  # by the worker's name
    gone: dict[int, datetime] = field(default_factory=dict)  # by process id

    def __post_init__(self) -> None:
        self.last = {run.job_id: run for run in self.runs if run.is_last}
        self.kinds = {job.job_id: job.kind for job in self.asked}


def audit(evidence: Evidence) -> list[str]:
    """Every violation, as a sentence."""
    return [message for check in CHECKS for message in check(evidence)]


def every_committed_job_has_ended(e: Evidence) -> Iterator[str]:
    ends = Counter(run.job_id for run in e.runs if run.is_last)
    for job in e.asked:
        if ends[job.job_id] != 1:
            yield f"{job.kind} job {job.job_id} was committed and has {ends[job.job_id]} ends"


def nothing_was_made_up(e: Evidence) -> Iterator[str]:
    """Whatever there is was asked for by a transaction that committed."""
    known = {job.job_id for job in e.asked}
    seen = {job_id for rows in (e.runs, e.letters, e.effects, e.starts) for job_id in _ids(rows)}
    yield from (f"job {job_id} was never committed and has left a row" for job_id in seen - known)
    yield from (f"{job.label} was rolled back and is there" for job in e.asked if job.label in e.rolled_back)
    yield from (f"{each.label} was rolled back and has an effect" for each in e.effects if each.label in e.rolled_back)


def nothing_is_left_behind(e: Evidence) -> Iterator[str]:
    yield from (f"job {job_id} is still there" for job_id in e.live)
    yield from (f"the row of worker {name} is still there" for name in e.workers)


def ends_agree(e: Evidence) -> Iterator[str]:
    """A dead job has a letter, no other has, and what was cancelled has ended so."""
    dead = {letter.job_id for letter in e.letters}
    for job_id, run in e.last.items():
        if (run.status not in {"succeeded", "cancelled"}) != (job_id in dead):
            yield f"job {job_id} ended as {run.status}, and {'has a' if job_id in dead else 'has no'} dead letter"
        if (run.status == "cancelled") != (job_id in e.cancelled):
            yield f"job {job_id} ended as {run.status}, which is not what cancel() answered"


def effects_are_as_promised(e: Evidence) -> Iterator[str]:
    of_job = Counter(effect.job_id for effect in e.effects)
    for job in e.asked:
        count, run = of_job[job.job_id], e.last.get(job.job_id)
        is_success = run is not None and run.status == "succeeded"
        if job.kind == "atomic" and count != int(is_success):
            yield f"atomic job {job.job_id} has {count} effects, success: {is_success}"
        if job.kind not in {"atomic", "guarded", "late", "deadly"} and is_success and not count:
            yield f"{job.kind} job {job.job_id} has succeeded without an effect"


def atomic_effects_are_those_of_the_claim_that_counts(e: Evidence) -> Iterator[str]:
    for effect in e.effects:
        run = e.last.get(effect.job_id)
        if e.kinds.get(effect.job_id) == "atomic" and run and effect.claim_number != run.claim_number:
            yield f"the effect of atomic job {effect.job_id} is that of claim {effect.claim_number}"


def once_is_once(e: Evidence) -> Iterator[str]:
    """By label, as a replay repeats it; and its key is there exactly if the effect is."""
    effects = Counter(effect.label for effect in e.effects if e.kinds.get(effect.job_id) == "guarded")
    succeeded = {j.label for j in e.asked if j.kind == "guarded" and _status(e, j.job_id) == "succeeded"}
    keys = {key.key for key in e.keys if key.scope == e.once_scope}
    for label in succeeded | effects.keys() | keys:
        if effects[label] != 1 or label not in keys:
            yield f"once({label!r}) has {effects[label]} effects, key: {label in keys}"


def keys_are_held_by_successes_only(e: Evidence) -> Iterator[str]:
    held = {key.holder_id for key in e.keys if key.scope != e.once_scope}
    succeeded = {job.job_id for job in e.asked if job.kind == "ever" and _status(e, job.job_id) == "succeeded"}
    yield from (f"job {job_id} has left a key behind" for job_id in held - succeeded)
    yield from (f"the key of job {job_id} is gone, which succeeded" for job_id in succeeded - held)
    successes = Counter(run.key for run in e.last.values() if run.job_id in succeeded)
    yield from (f"key {key} has {count} successes" for key, count in successes.items() if count > 1)


def each_claim_has_one_outcome_and_one_start(e: Evidence) -> Iterator[str]:
    outcomes = ((run.job_id, run.claim_number) for run in e.runs)
    starts = ((start.job_id, start.claim_number) for start in e.starts)
    for what, claims in (("outcomes", outcomes), ("starts", starts)):
        counts = Counter(claims)
        yield from (f"claim {n} of job {job} has {count} {what}" for (job, n), count in counts.items() if count > 1)


def claims_follow_each_other(e: Evidence) -> Iterator[str]:
    """Numbers grow, no claim begins before the one before has ended, and none before it is due."""
    for job_id, runs in _by_job(e.runs).items():
        for before, after in pairwise(runs):
            if after.claim_number <= before.claim_number:
                yield f"job {job_id}: claim {before.claim_number} is followed by {after.claim_number}"
            if after.started_at and after.attempt and after.started_at + CLOCK < before.ended_at:
                yield f"job {job_id}: claims {before.claim_number} and {after.claim_number} overlap"
        last = runs[-1]
        if any(run.status == "lost" for run in runs):
            continue  # a suspect is given another due time, until which it waits for a worker that has nothing to do
        if last.is_last and last.started_at and last.run_at and last.started_at + CLOCK < last.run_at:
            yield f"job {job_id} was started {last.run_at - last.started_at} before it was due"


def each_attempt_is_on_record(e: Evidence) -> Iterator[str]:
    """No claim was taken over without an outcome: what is handed back unrecorded is not counted."""
    for job_id, runs in _by_job(e.runs).items():
        attempts = [run.attempt for run in runs if run.attempt]
        if attempts != list(range(1, len(attempts) + 1)):
            yield f"job {job_id} has attempts {attempts} on record"


def crashes_are_bounded(e: Evidence) -> Iterator[str]:
    for letter in e.letters:
        if (letter.reason == "worker_lost") != (letter.crashes == MAX_CRASHES):
            yield f"job {letter.job_id} died of {letter.reason} with {letter.crashes} crashes"
    lost = Counter(run.job_id for run in e.runs if run.status == "lost")
    failed = Counter(run.job_id for run in e.runs if run.status in {"failed", "timed_out"})  # which clears a first one
    for job_id, count in lost.items():
        if count > MAX_CRASHES + failed[job_id]:
            yield f"job {job_id} was lost {count} times"


def nobody_is_rescued_who_lives(e: Evidence) -> Iterator[str]:
    """A worker loses its jobs when its lease is over, or when its process has ended."""
    for run in e.runs:
        if run.status != "lost":
            continue
        leases = [lease for lease in e.leases.get(run.worker, ()) if lease.seen <= run.ended_at]
        # Whose process was replaced meanwhile, has left its name to another one: it is the one that began the run.
        began = [lease for lease in leases if run.started_at is None or lease.seen <= run.started_at] or leases[:1]
        lease = max((lease for lease in leases if lease.pid == began[-1].pid), default=None)
        if lease is None or lease.until <= run.ended_at + CLOCK:
            continue
        if lease.pid not in e.gone or e.gone[lease.pid] > run.ended_at + LOOK:
            yield f"job {run.job_id} was taken from {run.worker} {lease.until - run.ended_at} before its lease was over"


CHECKS = [
    every_committed_job_has_ended,
    nothing_was_made_up,
    nothing_is_left_behind,
    ends_agree,
    effects_are_as_promised,
    atomic_effects_are_those_of_the_claim_that_counts,
    once_is_once,
    keys_are_held_by_successes_only,
    each_claim_has_one_outcome_and_one_start,
    claims_follow_each_other,
    each_attempt_is_on_record,
    crashes_are_bounded,
    nobody_is_rescued_who_lives,
]


def _ids(rows: Sequence[Run] | Sequence[Letter] | Sequence[Done]) -> set[UUID]:
    return {row.job_id for row in rows}


def _status(e: Evidence, job_id: UUID) -> str:
    return e.last[job_id].status if job_id in e.last else ""


def _by_job(runs: Sequence[Run]) -> dict[UUID, list[Run]]:
    jobs: defaultdict[UUID, list[Run]] = defaultdict(list)
    for run in sorted(runs, key=lambda run: run.id):
        jobs[run.job_id].append(run)
    return jobs

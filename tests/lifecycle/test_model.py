"""The state machine as a whole, in any order that hypothesis can think of, against an oracle of plain Python.

Two workers take turns with callers, a rescuer, a pruner, and somebody who locks rows from a session of his own. No
claim is ever forgotten: outcomes are given late, twice, and for jobs that others have ended. After each step the tables
hold what the oracle says. Time passes by UPDATE.

MODEL_EXAMPLES=2000 tries other examples each time, and so many, and looks for a shorter one that fails, which takes
minutes; without it they are few and always the same.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from datetime import timedelta
from typing import Any, TypeVar
from uuid import UUID, uuid4

import pytest
from django.db import connection, transaction
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from django_jobs import JobDoesNotExist, cancel, enqueue, enqueue_many
from django_jobs.database import Clock
from django_jobs.lifecycle import claim, extend, prune, quarantine, release, replay, rescue, turn
from django_jobs.models import DeadLetter, Job, JobKey, JobRun, Worker
from django_jobs.runs import Charge, ClaimedRun, Outcome, Then, WorkerIdentity
from django_jobs.statuses import JobStatus, LetterStatus, RunStatus
from tests.lifecycle.oracle import ModelJob, ModelLetter, Oracle
from tests.lifecycle.steps import NAMES, died, failed, finish_all, start_worker, succeeded
from tests.tasks import echo, note

EXAMPLES = int(os.environ.get("MODEL_EXAMPLES", "0"))
LATER, EARLIER = timedelta(hours=1), timedelta(hours=-1)
TASKS = {"note": note, "echo": echo}  # in one queue, with a scope of keys each
ROWS = (
    "id", "status", "claim_number", "attempt", "failures", "crashes", "interruptions", "worker_id",
)  # fmt: skip


def _returned(run: ClaimedRun) -> Outcome:
    return Outcome(run, RunStatus.RELEASED, Then.RETURN, Charge.INTERRUPTION)


ENDINGS: dict[str, Callable[[ClaimedRun], Outcome]] = {
    "success": succeeded,
    "success that holds its key for a while": lambda run: succeeded(run, key_ttl=LATER),
    "retry": lambda run: failed(run, retry_in=LATER),
    "retry at once": lambda run: failed(run, retry_in=None),
    "return": _returned,
    "death": died,
}
numbers = st.integers(0, 30)  # how far back: hypothesis likes small ones, and so the latest
keys = st.sampled_from([None, "a"])
uniques = st.sampled_from(["ever", "ever", "live", "queued"])
endings = st.sampled_from(sorted(ENDINGS))
T = TypeVar("T")


def _latest(items: list[T], number: int) -> T:
    return items[-1 - number % len(items)]


class Lifecycle(RuleBasedStateMachine):
    """Each rule does one thing to the database and the same to the oracle."""

    def __init__(self) -> None:
        super().__init__()
        self.oracle = Oracle()
        self.workers: list[WorkerIdentity] = []
        self.claims: list[tuple[WorkerIdentity, ClaimedRun]] = []  # all there ever were
        self.ids: list[UUID] = []  # of all jobs there ever were
        self.locker: Any = None
        self.locked: set[UUID] = set()

    @initialize()
    def begin(self) -> None:
        for model in (Job, JobRun, DeadLetter, JobKey, Worker):
            model.objects.all()._raw_delete("default")
        self.workers = [self._start_worker(), self._start_worker()]

    def teardown(self) -> None:
        self._unlock()

    # Callers.

    @rule(
        name=st.sampled_from(["note", "echo"]),
        key=keys,
        unique=uniques,
        priority=st.sampled_from([0, 0, 5]),
        later=st.booleans(),
    )
    def enqueue_one(self, name: str, key: str | None, unique: str, priority: int, later: bool) -> None:
        task: Any = TASKS[name]
        options = {"delay": LATER if later else None, "priority": priority}
        call = task.using(key=key, unique=unique if key else None, **options)

        handle = enqueue(call, "x")

        holder = self.oracle.holder(task.key_scope, key)
        assert (handle.created, handle.id) == (holder is None, holder or handle.id)
        if handle.created:
            self._made(handle.id, task.key_scope, key, unique, priority, later=later)

    @rule(number=st.integers(2, 6), key=keys)
    def enqueue_several(self, number: int, key: str | None) -> None:
        """All but the first under one key, which is free or not: one of them may be made."""
        holder = self.oracle.holder(note.key_scope, key)

        handles = enqueue_many([note.bind("x"), *[note.using(key=key).bind("x")] * (number - 1)])

        for handle, wanted in zip(handles, [None, *[key] * (number - 1)], strict=True):
            if wanted is None or holder is None:
                assert handle.created
                self._made(handle.id, note.key_scope, wanted, "ever", 0)
                holder = handle.id if wanted else holder
            else:
                assert (handle.created, handle.id) == (False, holder)

    @rule(key=keys)
    def enqueue_and_roll_back(self, key: str | None) -> None:
        with transaction.atomic():
            handle = enqueue(note.using(key=key), "x")
            transaction.set_rollback(True)
        if handle.created:
            with pytest.raises(JobDoesNotExist):
                cancel(handle.id)

    @precondition(lambda self: self.ids)
    @rule(number=numbers)
    def cancel_one(self, number: int) -> None:
        job_id = _latest(self.ids, number)
        if job_id in self.locked:
            return  # it would wait for it
        job = self.oracle.jobs.get(job_id)

        assert cancel(job_id) == (job is not None)

        if job is not None:
            self.oracle.cancel(job)

    @precondition(lambda self: self.oracle.letters)
    @rule(number=numbers)
    def replay_one(self, number: int) -> None:
        letter, row = self._letter(number)
        holder = self.oracle.holder(letter.job.scope, letter.job.key)

        answer = replay.replay(row.id, by="me", using="default")

        if letter.status == LetterStatus.DISCARDED:
            expected, job_id = replay.ReplayResult.DISCARDED, None
        elif letter.status == LetterStatus.REPLAYED:
            expected, job_id = replay.ReplayResult.ALREADY_REPLAYED, letter.replayed_as
        elif holder is not None:
            expected, job_id = replay.ReplayResult.KEY_TAKEN, holder
        else:
            expected, job_id = replay.ReplayResult.REPLAYED, answer.job_id
            assert job_id is not None
            letter.status, letter.replayed_as = LetterStatus.REPLAYED, job_id
            self._made(job_id, letter.job.scope, letter.job.key, letter.job.unique, letter.job.priority)
        assert (answer.result, answer.job_id) == (expected, job_id)

    @precondition(lambda self: self.oracle.letters)
    @rule(number=numbers)
    def discard_one(self, number: int) -> None:
        letter, row = self._letter(number)
        assert replay.discard(row.id, by="me", using="default") == (letter.status == LetterStatus.OPEN)
        if letter.status == LetterStatus.OPEN:
            letter.status = LetterStatus.DISCARDED

    # Two workers.

    @rule(which=st.integers(0, 1), limit=st.integers(1, 4))
    def claim_some(self, which: int, limit: int) -> None:
        worker = self.workers[which]
        self.oracle.promote(self.locked)

        claim.promote(using="default")
        runs = claim.claim(worker, None, limit, NAMES, using="default")

        self._claimed(runs, worker, limit)

    @precondition(lambda self: self.claims)
    @rule(chosen=st.lists(st.tuples(numbers, endings), min_size=1, max_size=4), limit=st.integers(1, 4))
    def finish_some_and_claim(self, chosen: list[tuple[int, str]], limit: int) -> None:
        worker, outcomes = self._outcomes(chosen)

        finished, runs = turn.turn(outcomes, worker, "default", limit, NAMES, using="default")

        ready = {job.id for job in self.oracle.claimable(self.locked)}
        self._finished(outcomes, worker, finished, may_keep=True)
        # On PostgreSQL the claim is in the statement that sends others back, and does not see them yet.
        self._claimed(runs, worker, limit, unseen={job.id for job in self.oracle.claimable(self.locked)} - ready)

    @precondition(lambda self: self.claims)
    @rule(chosen=st.lists(st.tuples(numbers, endings), min_size=1, max_size=4))
    def finish_some(self, chosen: list[tuple[int, str]]) -> None:
        """Those of any claim: one that is over, too, and the second time."""
        worker, outcomes = self._outcomes(chosen)
        self._finished(outcomes, worker, finish_all(outcomes, worker))

    @precondition(lambda self: self.claims)
    @rule(number=numbers)
    def release_one(self, number: int) -> None:
        worker, run = _latest(self.claims, number)
        expected = self.oracle.release(worker, run[:2], self.locked)
        assert release.release([run[:2]], worker, using="default") == expected

    @precondition(lambda self: self.claims)
    @rule(number=numbers)
    def put_suspect_aside(self, number: int) -> None:
        """A worker does so with what it has claimed among others, before it starts anything."""
        suspects = [(worker, run) for worker, run in self.claims if run.crashes]
        if suspects:
            worker, run = _latest(suspects, number)
            self.oracle.put_aside(worker, run[:2], self.locked)
            quarantine.put_aside([run], worker, using="default")

    @rule(which=st.integers(0, 1))
    def claim_suspect(self, which: int) -> None:
        worker, suspects = self.workers[which], self.oracle.suspects(self.locked)

        runs = quarantine.claim_suspect(worker, None, NAMES, using="default")

        assert len(runs) == min(1, len(suspects))
        for run in runs:
            assert run.job_id in suspects
            self.oracle.claim(run, worker, is_alone=True)
            self.claims.append((worker, run))

    @rule(which=st.integers(0, 1))
    def extend_lease(self, which: int) -> None:
        """It is never too late as long as the row is there; a worker whose row is gone starts anew."""
        worker = self.workers[which]
        assert (extend.extend(worker, using="default") is not None) == (worker.id in self.oracle.workers)
        held = {(job.id, job.claim_number) for job in self.oracle.jobs.values() if job.worker == worker}
        assert extend.held(worker, using="default") == held
        if worker.id in self.oracle.workers:
            self.oracle.workers[worker.id] = False
        else:
            self.workers[which] = self._start_worker()

    @rule(which=st.integers(0, 1))
    def let_lease_expire(self, which: int) -> None:
        worker = self.workers[which]
        Worker.objects.filter(id=worker.id).update(lease_expires_at=Clock(EARLIER))
        if worker.id in self.oracle.workers:
            self.oracle.workers[worker.id] = True

    @rule(which=st.integers(0, 1))
    def lose_row(self, which: int) -> None:
        """Somebody deletes it by hand."""
        Worker.objects.filter(id=self.workers[which].id).delete()
        self.oracle.workers.pop(self.workers[which].id, None)

    # What goes on beside them.

    @rule()
    def rescue(self) -> None:
        expected = self.oracle.rescue(self.locked)
        assert rescue.rescue(using="default") == expected
        # The backoff may be over at once; here time passes by UPDATE only.
        sleeping = [job for job in self.oracle.jobs.values() if job.status == JobStatus.SCHEDULED and not job.is_due]
        retries = {job.id for job in sleeping if not job.waits}
        Job.objects.filter(id__in=retries - self.locked).update(run_at=Clock(LATER))

    @rule()
    def let_time_pass(self) -> None:
        """All that is due later becomes due, and all keys that expire are over."""
        for job in self.oracle.jobs.values():
            if job.status == JobStatus.SCHEDULED and job.id not in self.locked:
                job.is_due = True
                Job.objects.filter(id=job.id).update(run_at=Clock(EARLIER))
        for held in self.oracle.keys.values():
            held.is_expired = held.is_expired or held.expires
        JobKey.objects.filter(expires_at__isnull=False).update(expires_at=Clock(EARLIER))

    @rule()
    def prune(self) -> None:
        expired = [pair for pair, held in self.oracle.keys.items() if held.is_expired]
        assert prune.prune(using="default")["keys"] == len(expired)
        for pair in expired:
            del self.oracle.keys[pair]

    @precondition(lambda self: self.oracle.jobs and not self.locked and connection.features.has_select_for_update)
    @rule(number=numbers)
    def lock(self, number: int) -> None:
        """Somebody opens a transaction and holds a job's row, as an edit by hand would."""
        chosen = _latest(list(self.oracle.jobs), number)
        self.locker = connection.copy()
        self.locker.set_autocommit(False)
        with self.locker.cursor() as cursor:
            value = Job._meta.pk.get_db_prep_value(chosen, self.locker)
            cursor.execute("SELECT id FROM django_jobs_job WHERE id = %s FOR UPDATE", [value])
        self.locked = {chosen}

    @precondition(lambda self: self.locked)
    @rule()
    def unlock(self) -> None:
        self._unlock()

    # What must be so after each of them.

    @invariant()
    def tables_are_what_the_oracle_says(self) -> None:
        oracle = self.oracle
        rows = {(*row, waiting is not None) for *row, waiting in Job.objects.values_list(*ROWS, "waiting_since")}
        assert rows == {job.row for job in oracle.jobs.values()}
        held = {(scope, key): holder for scope, key, holder in JobKey.objects.values_list("scope", "key", "holder_id")}
        assert held == {pair: key.holder for pair, key in oracle.keys.items()}
        runs = {row[:2]: row[2] for row in JobRun.objects.values_list("job_id", "claim_number", "status")}
        assert runs == {fence: status.value for fence, status in oracle.runs.items()}
        letters = DeadLetter.objects.values_list("job_id", "status", "reason", "replayed_as")
        assert set(letters) == {
            (job_id, letter.status.value, letter.reason.value, letter.replayed_as)
            for job_id, letter in oracle.letters.items()
        }
        assert set(Worker.objects.values_list("id", flat=True)) == set(oracle.workers)

    # Both sides of a step.

    def _start_worker(self) -> WorkerIdentity:
        worker = start_worker(str(uuid4()))
        self.oracle.workers[worker.id] = False
        return worker

    def _made(
        self, job_id: UUID, scope: str, key: str | None, unique: str, priority: int, *, later: bool = False
    ) -> None:
        status = JobStatus.SCHEDULED if later else JobStatus.READY
        self.oracle.enqueue(ModelJob(job_id, scope, key, unique if key else "", priority, status))
        self.ids.append(job_id)

    def _letter(self, number: int) -> tuple[ModelLetter, DeadLetter]:
        job_id = _latest(list(self.oracle.letters), number)
        return self.oracle.letters[job_id], DeadLetter.objects.get(job_id=job_id)

    def _claimed(
        self, runs: list[ClaimedRun], worker: WorkerIdentity, limit: int, unseen: Collection[UUID] = ()
    ) -> None:
        """As many as there are, nobody's but ready ones, and none while a more urgent one is left that can be seen."""
        ready = self.oracle.claimable(self.locked)
        taken = {run.job_id for run in runs}
        assert min(limit, len(ready) - len(unseen)) <= len(taken) == len(runs) <= limit
        assert taken <= {job.id for job in ready}
        left = [job.priority for job in ready if job.id not in {*taken, *unseen}]
        assert not left or all(run.priority >= max(left) for run in runs)
        for run in runs:
            self.oracle.claim(run, worker)
            self.claims.append((worker, run))

    def _outcomes(self, chosen: list[tuple[int, str]]) -> tuple[WorkerIdentity, list[Outcome]]:
        """Of the worker of the first claim chosen, for one claim of each job."""
        worker = _latest(self.claims, chosen[0][0])[0]
        outcomes: dict[UUID, Outcome] = {}
        for number, ending in chosen:
            holder, run = _latest(self.claims, number)
            if holder == worker:
                outcomes.setdefault(run.job_id, ENDINGS[ending](run))
        return worker, list(outcomes.values())

    def _finished(
        self, outcomes: list[Outcome], worker: WorkerIdentity, finished: Any, *, may_keep: bool = False
    ) -> None:
        """Each was called what it is. A turn may keep what changes nothing, for the next `finish` to find out why."""
        told = [(each.run[:2], name) for name in ("recorded", "kept", "lost") for each in getattr(finished, name)]
        for outcome in outcomes:
            is_held = self.oracle.holds(worker, outcome.run[:2])
            expected = self.oracle.finish(outcome, worker, self.locked)
            names = {expected} if is_held or not may_keep else {expected, "kept"}
            told.remove(next(each for each in told if each[0] == outcome.run[:2] and each[1] in names))
        assert not told
        assert not finished.refused

    def _unlock(self) -> None:
        if self.locker is not None:
            self.locker.rollback()
            self.locker.close()
        self.locker, self.locked = None, set()


@pytest.fixture
def quick_commits(transactional_db: None) -> Iterator[None]:
    """Let no commit wait for the disk, where the database lets a session choose."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SET synchronous_commit TO off")
    yield
    connection.close()


@pytest.mark.slow
@pytest.mark.timeout(0 if EXAMPLES else 180)
@pytest.mark.usefixtures("quick_commits")
def test_whatever_happens_in_whatever_order_the_tables_hold_what_the_oracle_says() -> None:
    profile = settings(
        max_examples=EXAMPLES or 30,
        stateful_step_count=50,
        derandomize=not EXAMPLES,
        phases=[Phase.generate, Phase.shrink] if EXAMPLES else [Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(Lifecycle, settings=profile)

"""The workloads: the app's own ways to enqueue, claim and finish, on jobs that do nothing."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from uuid import UUID

from django.db import connections, transaction

from django_jobs.api import enqueue_many
from django_jobs.bench.costs import Rate, count_calls
from django_jobs.bench.task import QUEUE, call, starts
from django_jobs.lifecycle.erase import erase
from django_jobs.lifecycle.turn import turn
from django_jobs.registry import Task
from django_jobs.runs import ClaimedRun, Outcome, Then, WorkerIdentity
from django_jobs.statuses import RunStatus
from django_jobs.worker import Worker
from django_jobs.worker.options import WorkerOptions, read_options

BULK = 1000  # jobs in one call of enqueue_many
BATCHES = (1, 10, 100)
LATENCIES = 60  # jobs, one after the other
PAUSE = 0.03  # seconds between two of them, in which the worker falls asleep
PATIENCE = 10.0  # seconds that a single job may take to start


class NothingStarted(Exception):
    """A worker of our own ran no job."""


@dataclass
class Bench:
    """One run on one database. It remembers every job it wrote."""

    using: str
    jobs: int  # at most, for each workload
    seconds: float  # at most, for each workload
    worker: WorkerIdentity
    task: Task
    written: list[UUID] = field(default_factory=list)
    left: int = 0  # jobs that are ready
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def rates(self) -> Iterator[Rate]:
        """One workload after the other."""
        yield self.enqueue_one()
        yield self.enqueue_bulk()
        for batch in BATCHES:
            yield self.claim_and_finish(batch)
        yield self.drain()

    def enqueue(self, count: int) -> int:
        """Write so many jobs by one call. How many."""
        numbers = itertools.islice(self._numbers, count)
        handles = enqueue_many([call(self.task, number) for number in numbers])
        self.written += [handle.id for handle in handles]
        self.left += count
        return count

    def enqueue_one(self) -> Rate:
        return self._repeat("enqueue, one at a time", lambda: self.enqueue(1))

    def enqueue_bulk(self) -> Rate:
        size = min(BULK, self.jobs)
        return self._repeat(f"enqueue, {size:,} at a time", lambda: self.enqueue(size))

    def claim_and_finish(self, batch: int) -> Rate:
        """Finish a batch and claim the next one as a busy worker does; nothing is run in between."""
        self._fill(self.jobs + 4 * batch)
        held: list[ClaimedRun] = []

        def step(limit: int = batch) -> int:
            nonlocal held
            done = [Outcome(run, RunStatus.SUCCEEDED, Then.DONE) for run in held]
            _, held = turn(done, self.worker, QUEUE, limit, frozenset({self.task.name}), using=self.using)
            self.left -= len(held)
            return len(done)

        step()
        rate = self._repeat(f"claim and finish, {batch} at a time", step)
        step(limit=0)
        return rate

    def drain(self) -> Rate:
        """What one worker process does, threads and all."""
        self._fill(self.jobs)
        starts.forget()
        worker = Worker(self._options(burst=True, max_jobs=self.jobs))
        wal, worked, started = self._wal(), time.process_time(), time.perf_counter()
        with _beside(worker) as thread:
            thread.join(self.seconds)
            worker.stop("the end of the measurement")
        self.left -= worker.runs
        elapsed, worked = time.perf_counter() - started, time.process_time() - worked
        if worker.runs < 2:
            raise NothingStarted("A worker of the benchmark ran none of its jobs.")
        # Its start and its end are no part of the rate; they cost little CPU time.
        rate = Rate("one worker process", worker.runs, min(starts.span, elapsed), worked)
        return replace(rate, wal=self._wal() - wal)

    def latencies(self) -> list[float]:
        """Seconds from a commit to the start of its job, by a worker that sleeps. Sorted."""
        erase(self.written, using=self.using)
        worker = Worker(self._options())
        found: list[float] = []
        with _beside(worker):
            self._latency()  # By then it is up.
            until = time.monotonic() + self.seconds
            while len(found) < LATENCIES and time.monotonic() < until:
                time.sleep(PAUSE)
                found.append(self._latency())
            worker.stop("the end of the measurement")
        return sorted(found)

    def _latency(self) -> float:
        committed: list[float] = []
        number = next(self._numbers)
        with transaction.atomic(using=self.using):
            # The first thing after the commit, before anybody is woken.
            transaction.on_commit(lambda: committed.append(time.perf_counter()), using=self.using)
            (handle,) = enqueue_many([call(self.task, number)])
        self.written.append(handle.id)
        began = starts.wait(number, PATIENCE)
        if began is None:
            raise NothingStarted(f"A job did not start within {PATIENCE:g} s.")
        return max(began - committed[0], 0.0)

    def _fill(self, count: int) -> None:
        while self.left < count:
            self.enqueue(min(BULK, count - self.left))

    def _options(self, *, burst: bool = False, max_jobs: int | None = None) -> WorkerOptions:
        options = read_options(using=self.using, burst=burst, max_jobs=max_jobs, name="jobs_bench")
        return replace(options, queue_names=(QUEUE,), sweeps=False)

    def _repeat(self, name: str, act: Callable[[], int]) -> Rate:
        """Do it until there were enough jobs, or the time is up, or there is nothing left to do."""
        calls = count_calls(act, using=self.using)
        jobs, times = 0, 0
        wal, worked, started = self._wal(), time.process_time(), time.perf_counter()
        until = started + self.seconds
        while jobs < self.jobs and time.perf_counter() < until:
            done = act()
            if not done:
                break
            jobs, times = jobs + done, times + 1
        elapsed, worked = time.perf_counter() - started, time.process_time() - worked
        rate = Rate(name, jobs, elapsed, worked, calls.trips * times, calls.commits * times)
        return replace(rate, wal=self._wal() - wal)

    def _wal(self) -> float:
        """Bytes of WAL that PostgreSQL has written so far, for whomever; 0 elsewhere."""
        if connections[self.using].vendor != "postgresql":
            return 0.0
        with connections[self.using].cursor() as cursor:
            cursor.execute("SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::float8")
            return float(cursor.fetchone()[0])


@contextmanager
def _beside(worker: Worker) -> Iterator[threading.Thread]:
    """Run a worker in a thread; it is over when the block is."""
    thread = threading.Thread(target=worker.run, name="jobs-bench-worker", daemon=True)
    thread.start()
    try:
        yield thread
    except BaseException:
        worker.stop("an error")
        raise
    finally:
        thread.join(PATIENCE)

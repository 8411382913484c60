"""One process that serves queues: claim, execute, finish."""

from __future__ import annotations

import math
import threading
import time

from django_jobs import logs, registry
from django_jobs.driver import prepare_statements
from django_jobs.execution import Attempt, policy
from django_jobs.execution.deadlines import whereabouts
from django_jobs.lifecycle import claim, extend, quarantine
from django_jobs.lifecycle.gate import Gate
from django_jobs.runs import ClaimedRun, Outcome, Then, WorkerIdentity
from django_jobs.worker.atomic import recording
from django_jobs.worker.connection import hurry_connecting, own_connection, prepare_connections
from django_jobs.worker.crew import Crew
from django_jobs.worker.heartbeat import Heartbeat
from django_jobs.worker.inbox import Inbox
from django_jobs.worker.ledger import Ledger
from django_jobs.worker.listener import Listener, can_listen
from django_jobs.worker.marks import Marks
from django_jobs.worker.options import WorkerOptions
from django_jobs.worker.outage import Outage, Retrier, patience_for
from django_jobs.worker.quarantine import Quarantine
from django_jobs.worker.schedule import Schedule
from django_jobs.worker.services import Services, table
from django_jobs.worker.sleeper import Sleeper
from django_jobs.worker.streak import Streak
from django_jobs.worker.wear import Wear
from django_jobs.worker.wirecutter import Wirecutter

MOST_HINTS = 3  # queues that are claimed from unseen after wake-ups; for more of them a look is cheaper
FLUSH = 0.02  # seconds for which an ended run may wait to be written together with others
STRANDED_AFTER = 0.25  # seconds that a claimed job may wait for a thread, before it is handed back
MOST_PROMOTED = 10  # batches of jobs due later that are made ready before the next claim
CANCELLED_PATIENCE = 1.0  # seconds for cancelled async tasks to clean up
LAST_WORDS = 5.0  # seconds for the last writes after the grace


class Worker:
    """Claims jobs, runs them in threads and on an event loop, and records what became of them.

    The thread that calls `run` claims and writes, alone; it sleeps on the inbox.
    """

    def __init__(self, options: WorkerOptions, marks: Marks | None = None) -> None:
        self.options = options
        self.runs = 0  # started
        self.has_leftovers = False  # after `run`: a task that cannot be stopped still runs in a daemon thread
        self._using = options.using
        self._known = frozenset(registry.names())
        self._inbox = Inbox()
        self._ledger = Ledger(self._using)
        self._listener: Listener | None = None
        self._schedule = Schedule(options.poll_interval.total_seconds(), hears=self._hears)
        self._sleeper = Sleeper(self._using)
        self._hints: set[str] = set()  # queues in which something is said to be ready
        self._wirecutter = Wirecutter()
        self._outage = Outage(self._using, patience_for(options.lease.total_seconds()))
        self._retrier = Retrier("worker", self._outage, wake=self._inbox.ring)
        self._marks = marks  # under a supervisor
        self._wear = Wear(max_jobs=options.max_jobs, max_memory=options.max_memory, is_supervised=marks is not None)
        self._quarantine = Quarantine(options.lease.total_seconds())
        self._stops = 0
        self._stopped = 0.0  # when the first one came
        self._stop_cause = ""
        self._is_dry = False  # nothing ran, and nothing was found
        self._streak = Streak()
        self._gate = Gate()
        self._needs_identity = True
        self._next_reconciliation = 0.0
        self._idle_reconciliations = 0  # since the last claim or failure

    def stop(self, cause: str) -> None:
        """End gently; at the second call at once. Signal handlers may call it, and any thread."""
        self._stopped = self._stopped or time.monotonic()
        self._stops += 1
        self._stop_cause = self._stop_cause or cause
        self._wirecutter.hurry()
        self._inbox.ring()

    @property
    def is_stopping(self) -> bool:
        return self._stops > 0

    def run(self) -> int:
        """Serve until there is nothing left to do, or until `stop`. 0 if the database knows the end of every run."""
        started = time.monotonic()
        prepare_connections()
        with self._wirecutter, own_connection(self._using):
            if not self._wait_for_identity():
                return 0
            self._open()
            self._serve()
            code = self._close()
            logs.worker_stopped(self._identity.name, runs=self.runs, uptime=time.monotonic() - started)
            return code

    # Beginning.

    def _wait_for_identity(self) -> bool:
        """Register, however long the database takes to come. False if a stop came first."""
        while not self.is_stopping:
            if self._retrier.run(self._take_identity):
                return True
            self._inbox.wait(self._retrier.pause)
        return False

    def _take_identity(self) -> None:
        options = self.options
        self._identity: WorkerIdentity = extend.register(
            options.name, options.queue_names, sorted(self._known), using=self._using
        )
        if self._marks is not None:
            self._marks.identify(self._identity.id)
        self._needs_identity = False
        self._sleeper.begin()
        self._schedule.fell_asleep()
        self._plan_reconciliation()

    def _open(self) -> None:
        options, lease = self.options, self.options.lease
        self._heartbeat = Heartbeat(
            self._identity, interval=options.heartbeat, lease=lease, outage=self._outage, inbox=self._inbox
        )
        self._crew = Crew(
            threads=options.threads,
            async_concurrency=options.async_concurrency,
            is_async=any(task.is_async for task in registry.all_tasks()),
            inbox=self._inbox,
            recording=recording(lambda: self._identity, using=self._using, lease=lease.total_seconds()),
            stopping=lambda: self.is_stopping,
            is_idle=lambda: self._ledger.is_idle,
            marks=self._marks,
        )
        stop_services = threading.Event()
        services = table(options, self._heartbeat, stop_services.is_set) if options.sweeps else []
        self._services = Services(services, self._outage, stop_services)
        self._heartbeat.tell_expiry = lambda seconds: self._services.hurry("rescue", seconds)
        if can_listen(self._using) and not options.burst:
            self._listener = Listener(self._using, options.queue_names, self._inbox.wake)
        logs.worker_started(
            self._identity.name,
            queue_names=options.queue_names,
            threads=options.threads,
            tasks=len(registry.all_tasks()),
            using=self._using,
        )

    # Serving.

    def _serve(self) -> None:
        while not self.is_stopping:
            self._take_in()
            self._retrier.run(self._cycle)
            if self._is_done():
                return
            self._inbox.wait(self._pause())

    def _is_done(self) -> bool:
        if not self._is_empty:
            return False
        if self._wear.cause:
            return True
        return self.options.burst and self._is_dry and self._quarantine.is_quiet

    def _pause(self) -> float:
        """Seconds to sleep if nobody rings."""
        pauses = [min(self._next_reconciliation - time.monotonic(), self.options.lease.total_seconds())]
        if self._listener:
            pauses.append(self._sleeper.pause)
        if self._room() > 0:
            pauses.append(max(0.0 if self._hints else self._schedule.pause, self._gate.pause))
        if self._crew.queued:
            pauses.append(FLUSH)
        suspects = self._quarantine.pause(is_free=self._is_empty)
        if suspects is not None and not self._wear.cause:
            pauses.append(suspects)
        unwritten = self._ledger.pause
        if unwritten is not None:
            pauses.append(unwritten)
        return max(min(pauses), self._retrier.pause, 0.0)

    def _take_in(self) -> None:
        """Take what others laid into the inbox."""
        for attempt, outcome in self._inbox.take_ended():
            self._ended(attempt, outcome)
        for attempt in self._inbox.take_stuck():
            if attempt.task.is_async:
                self._leave_stuck_loop(attempt)
            self._give_up(attempt)
        if woken := self._inbox.take_woken():
            self._take_hints(woken)
        if self._inbox.take_lease_lost() and not self._needs_identity:
            self._lose_lease()
        if self._crew.queued:
            self._crew.help_out()
            self._return_stranded()
        if self._wear.look():
            self._hand_back(self._crew.take_back())

    def _take_hints(self, queue_names: set[str]) -> None:
        self._hints |= queue_names
        if "" in self._hints or len(self._hints) > MOST_HINTS:
            self._hints.clear()
            self._schedule.look_now()
        else:
            self._schedule.woken()

    def _ended(self, attempt: Attempt, outcome: Outcome | None) -> None:
        if not self._ledger.leave(attempt, outcome):
            return
        duration = time.monotonic() - attempt.started if outcome is None else outcome.duration
        self._crew.prefetch.measure(attempt.task.name, duration)
        if self.options.burst:
            # Its end may have made something ready: the next job of a chain, or its own next try.
            self._is_dry = False
            if self._ledger.is_idle:
                self._schedule.look_now()

    def _give_up(self, attempt: Attempt) -> None:
        """A task goes on after its time limit: record that, and let what it does later count for nothing."""
        if self._ledger.leave(attempt, policy.timed_out(attempt, whereabouts(attempt.thread_id))):
            attempt.cancel()
            self._crew.give_up(attempt)
            self._wear.gave_up()

    def _leave_stuck_loop(self, attempt: Attempt) -> None:
        """If the event loop is stuck, hand back what it cannot go on with: only the task that blocks it is to blame."""
        stranded = self._crew.replace_loop(attempt)
        for each in stranded:
            self._ledger.leave(each, policy.handed_back(each))
        self._crew.cancel(stranded)

    def _lose_lease(self) -> None:
        logs.worker_replaced(self._identity.name)
        self._crew.cancel(self._ledger.in_flight)
        self._needs_identity = True

    def _return_stranded(self) -> None:
        """Hand back what was claimed ahead, if something slow keeps the threads from it."""
        oldest = self._crew.oldest_claim
        if oldest is not None and time.monotonic() - oldest > STRANDED_AFTER:
            self._hand_back(self._crew.take_back())
            self._crew.prefetch.forget()

    def _hand_back(self, attempts: list[Attempt]) -> None:
        self._count(-self._ledger.hand_back(attempts))

    def _count(self, runs: int) -> None:
        self.runs += runs
        self._wear.started(runs)

    def _cycle(self) -> bool:
        """What the main thread does with the database; any step may raise, and all of it is tried again.

        False if there was nothing to do.
        """
        if self._retrier.failures:
            self._next_reconciliation = 0.0
            self._idle_reconciliations = 0
        if self._needs_identity:
            self._take_identity()
            self._heartbeat.adopt(self._identity)
        has_asked = self._claim() | self._write()
        if self._hears():
            prepare_statements(self._using)  # for those to come: what is ready now need not wait for this
        if self._is_empty:
            self._quarantine.freed()
        if time.monotonic() >= self._next_reconciliation:
            self._crew.cancel(self._ledger.reconcile(self._identity))
            self._idle_reconciliations += self._ledger.is_idle
            self._plan_reconciliation()
            has_asked = True
        if self._listener:
            has_asked |= self._sleeper.rise(self._identity)
        return self._visit_quarantine() or has_asked

    def _claim(self) -> bool:
        """Claim if it is time, and write what has ended in the same go. False if it is not."""
        limit = self._room()
        if limit <= 0 or self._gate.pause > 0:
            return False
        if self._streak.queue_name is not None:
            self._claim_on(self._streak.queue_name, limit)
        elif self._schedule.pause <= 0:
            self._look(limit)
        elif self._hints:
            self._claim_hinted(limit)
        else:
            return False
        return True

    def _plan_reconciliation(self) -> None:
        # Who has claimed nothing since holds nothing, unless a statement came through after all whose answer was lost:
        # once now and once a lease later is enough for that.
        is_settled = self._idle_reconciliations > 1
        self._next_reconciliation = math.inf if is_settled else time.monotonic() + self.options.lease.total_seconds()

    def _expect_strays(self) -> None:
        """Something is held again, and so something could be held that this worker does not know."""
        self._idle_reconciliations = 0
        if self._next_reconciliation == math.inf:
            self._plan_reconciliation()

    def _hears(self) -> bool:
        return self._listener is not None and self._listener.hears

    def _write(self) -> bool:
        """Write what has ended. False if nothing has."""
        if self._ledger.pause != 0:
            return False
        self._note_retries(self._ledger.write())
        return True

    def _note_retries(self, recorded: list[Outcome]) -> None:
        for outcome in recorded:
            if outcome.then is Then.RETRY:
                self._schedule.due_in(outcome.delay.total_seconds() if outcome.delay else 0.0)

    @property
    def _is_empty(self) -> bool:
        """Whether this process holds no job. What has ended and is not written yet would be suspected with others."""
        return self._ledger.is_idle and self._ledger.is_written

    def _room(self) -> int:
        if self._quarantine.bars_claims:
            return 0
        room, left = min(self._crew.room(self._ledger), claim.MOST_AT_ONCE), self._wear.left()
        return room if left is None else min(room, left)

    def _look(self, limit: int) -> None:
        """Claim from any queue, after what has become due was made ready."""
        was_idle, began = self._ledger.is_idle, time.monotonic()
        if was_idle and self._ledger.sends_back:
            self._write()  # it makes something ready, such as the next try of what has failed
        found = self._promoted()
        names = claim.ready_queues(found, self.options.queue_names, limit, self._known, using=self._using)
        runs: list[ClaimedRun] = []
        for queue_name in names:
            if len(runs) < limit:
                runs += self._claim_from(queue_name, limit - len(runs))
        self._hints.clear()
        if self._gate.pause > 0 and not runs:
            self._hints.update(names)
            self._schedule.looked(0, limit, found.due_in, is_empty=False)
            return
        self._is_dry = was_idle and not runs
        if not runs and self._listener and self._sleeper.lie_down(self._identity):
            self._schedule.fell_asleep()
        self._schedule.looked(len(runs), limit, found.due_in, is_empty=not found.ready)
        self._streak.looked(runs, limit, time.monotonic() - began, self._gate.workers)
        self._start(self._without_suspects(runs))

    def _promoted(self) -> claim.Found:
        """See what there is, after what has become due was made ready."""
        queue_names, full = self.options.queue_names, self._streak.full
        found = claim.look(queue_names, using=self._using, full=full)
        for _ in range(MOST_PROMOTED):
            if found.due_in is None or found.due_in > 0:
                break
            claim.promote(using=self._using)
            found = claim.look(queue_names, using=self._using, full=full)
        return found

    def _claim_hinted(self, limit: int) -> None:
        """Claim from a queue that has just been written to, without looking around first."""
        queue_name, began = self._hints.pop(), time.monotonic()
        runs = self._claim_from(queue_name, limit)
        if self._gate.pause > 0:
            self._hints.add(queue_name)
            return
        seconds = time.monotonic() - began
        self._start(self._without_suspects(runs))
        self._schedule.claimed(len(runs), limit)
        self._streak.looked(runs, limit, seconds, self._gate.workers)

    def _claim_on(self, queue_name: str, limit: int) -> None:
        """In the midst of a full queue, claim more of it without looking around first."""
        runs = self._claim_from(queue_name, limit, after=self._streak.after)
        if self._gate.pause > 0:
            return
        self._schedule.claimed(len(runs), limit)
        self._streak.claimed(runs, limit)
        self._start(self._without_suspects(runs))

    def _claim_from(self, queue_name: str, limit: int, *, after: ClaimedRun | None = None) -> list[ClaimedRun]:
        self._gate.workers = self._heartbeat.others + 1
        self._crew.prefetch.is_crowded = self._gate.is_crowded
        recorded, runs = self._ledger.turn(self._identity, queue_name, limit, self._known, after=after, gate=self._gate)
        self._note_retries(recorded)
        return runs

    def _without_suspects(self, runs: list[ClaimedRun]) -> list[ClaimedRun]:
        """Put aside what was held by a worker that died, before anything beside it is started."""
        suspects = [run for run in runs if run.crashes]
        if not suspects:
            return runs
        self._expect_strays()
        quarantine.put_aside(suspects, self._identity, using=self._using)
        logs.jobs_put_aside(len(suspects), worker=self._identity.name)
        self._quarantine.meet()
        return [run for run in runs if not run.crashes]

    def _visit_quarantine(self) -> bool:
        """Take a job that must run alone, if nothing else is here. False if the database was not asked."""
        if not self._quarantine.is_due or self._wear.cause:
            return False
        queue_names = self.options.queue_names
        if self._is_empty:
            runs = quarantine.claim_suspect(self._identity, queue_names, self._known, using=self._using)
            self._quarantine.took(has_found=bool(runs))
            self._start(runs)
            return True
        if self._quarantine.is_wanted:
            self._quarantine.looked(is_there=quarantine.is_anything_aside(queue_names, using=self._using))
            return True
        return False

    def _start(self, runs: list[ClaimedRun]) -> None:
        if not runs:
            return
        now = time.monotonic()
        attempts = [Attempt(run, registry.get(run.task_name), now) for run in runs]
        if self._marks is not None:
            self._marks.note_claimed(attempts)
        # Nothing is started after a stop, not even what was being claimed when it came.
        refused = attempts if self.is_stopping else self._crew.submit(attempts, self._ledger)
        # A thread may have ended some by now; their end is taken in after this.
        self._ledger.enter(attempts, self._identity)
        self._crew.watch()
        self._count(len(attempts))
        self._hand_back(refused)
        self._sleeper.found()
        self._expect_strays()

    # Ending.

    def _close(self) -> int:
        """Let what runs end within the grace, hand back the rest, and go."""
        if self.is_stopping:
            logs.worker_stopping(self._identity.name, cause=self._stop_cause)
        elif cause := self._wear.cause:
            logs.worker_spent(self._identity.name, cause=cause)
            if self._marks is not None:
                self._marks.note_spent()
        hurry_connecting(self._using)
        self._services.stop(patience=0)
        self._hand_back(self._crew.take_back())
        # Since the stop, which may have come while a statement got no answer.
        began = self._stopped or time.monotonic()
        self._wait_for_runs(until=began + self.options.grace.total_seconds(), stops=2)
        if not self._ledger.is_idle:
            self._interrupt()
        code = self._write_last()
        self._heartbeat.stop(patience=1.0)
        if code == 0:
            self._retrier.run(lambda: extend.retire(self._identity, using=self._using))
        if self._listener:
            self._listener.stop()
        self._services.stop(patience=1.0)
        self.has_leftovers = not self._crew.end(patience=1.0)
        return code

    def _wait_for_runs(self, *, until: float, stops: int) -> None:
        """Until nothing runs, that moment has come, or a stop was asked for so many times."""
        while True:
            self._take_in()
            self._retrier.run(self._write)
            left = until - time.monotonic()
            if self._ledger.is_idle or left <= 0 or self._stops >= stops:
                return
            self._inbox.wait(min(left, max(self._ledger.pause or left, self._retrier.pause)))

    def _interrupt(self) -> None:
        """Hand back what still runs: nobody is charged for it. Async tasks may clean up before."""
        running = self._ledger.in_flight
        self._crew.cancel(running)
        if any(attempt.task.is_async for attempt in running):
            self._wait_for_async()
        rest = self._ledger.in_flight
        for attempt in rest:
            self._ledger.leave(attempt, policy.handed_back(attempt))
        if rest:
            logs.runs_handed_back(len(rest), worker=self._identity.name)

    def _wait_for_async(self) -> None:
        until = time.monotonic() + CANCELLED_PATIENCE
        while self._ledger.async_count and (left := until - time.monotonic()) > 0:
            self._inbox.wait(left)
            self._take_in()

    def _write_last(self) -> int:
        until = time.monotonic() + LAST_WORDS
        while not self._ledger.is_written and time.monotonic() < until:
            self._retrier.run(self._write)
            pause = max(self._ledger.pause or 0.0, self._retrier.pause)
            if not self._ledger.is_written:
                time.sleep(min(pause, max(0.0, until - time.monotonic())))
        if self._ledger.is_written:
            return 0
        logs.outcomes_unwritten(self._ledger.unwritten, worker=self._identity.name)
        return 1

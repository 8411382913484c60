"""The one module that writes log lines: `key=value`, past tense, never the arguments of a job."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from uuid import UUID

from django_jobs.runs import ClaimedRun, EndedRun, EndedRuns, Then
from django_jobs.statuses import RunStatus

logger = logging.getLogger("django_jobs")

TEXT_LIMIT = 200  # characters of an error's text; the whole of it is in its row
_ONE_WORD = re.compile('[^ "=]+')
UNCHARGED = (RunStatus.SUCCEEDED, RunStatus.RELEASED, RunStatus.CANCELLED)


def runs_ended(runs: Sequence[EndedRun]) -> None:
    """Write one line per run: INFO for one that cost nothing, WARNING for one to be retried, ERROR for a death."""
    if not logger.isEnabledFor(logging.ERROR):
        return
    lowest = logger.getEffectiveLevel()
    if lowest > logging.INFO and isinstance(runs, EndedRuns):
        runs = runs.unless(UNCHARGED)
    for run in runs:
        level = run_level(run)
        if level >= lowest:
            logger.log(level, "run %s %s%s", run.status.value, _run_fields(run), _ending(run))


def run_level(run: EndedRun) -> int:
    """The level of an ended run's line."""
    if run.then is Then.DIE:
        return logging.ERROR
    return logging.INFO if run.status in UNCHARGED else logging.WARNING


def _run_fields(run: EndedRun) -> str:
    return (
        f"task={quoted(run.task_name)} job={run.job_id} attempt={run.attempt} queue={quoted(run.queue_name)} "
        f"duration={run.duration:.3f} waited={run.waited:.3f}"
    )


def _ending(run: EndedRun) -> str:
    parts = []
    if run.error_type:
        parts.append(f" error={quoted(run.error_type)}")
    if run.error_text:
        parts.append(f" text={quoted(run.error_text, TEXT_LIMIT)}")
    if run.retry_in is not None:
        parts.append(f" retry_in={run.retry_in.total_seconds():.3f}")
    if run.reason is not None:
        parts.append(f" reason={run.reason.value}")
    return "".join(parts)


def lease_lost(run: ClaimedRun, *, worker: str) -> None:
    """Somebody else has the job now; the outcome of this run was not recorded."""
    logger.warning(
        "lease lost task=%s job=%s attempt=%s claim=%s worker=%s",
        quoted(run.task_name), run.job_id, run.attempt, run.claim_number, quoted(worker),
    )  # fmt: skip


def outcome_refused(run: ClaimedRun, error_name: str, *, worker: str) -> None:
    """The database takes no row about the end of this run, not even one that says so."""
    logger.error(
        "outcome refused task=%s job=%s attempt=%s claim=%s worker=%s error=%s",
        quoted(run.task_name), run.job_id, run.attempt, run.claim_number, quoted(worker), quoted(error_name),
    )  # fmt: skip


def key_taken(task_name: str, key: str, *, holder: UUID | None) -> None:
    """A job was not enqueued, because its key is held."""
    logger.info("key taken task=%s key=%s holder=%s", quoted(task_name), quoted(key), holder)


def jobs_rescued(count: int, *, unstarted: int, worker: str) -> None:
    """Jobs of a worker that is gone were taken back, some of them uncharged."""
    logger.warning("jobs rescued count=%s unstarted=%s worker=%s", count, unstarted, quoted(worker))


def jobs_put_aside(count: int, *, worker: str) -> None:
    """Jobs that a dead worker had held were claimed among others; each will run alone."""
    logger.info("jobs put aside count=%s worker=%s cause=crashes", count, quoted(worker))


def jobs_parked(count: int, *, task_name: str) -> None:
    """Jobs wait, because the worker that claimed them does not know their task."""
    logger.warning("jobs parked count=%s task=%s cause=unknown_task", count, quoted(task_name))


def jobs_raised(count: int, *, queue_name: str, priority: int) -> None:
    """Jobs of a lower priority had been due for PRIORITY_AGEING, and were given this one."""
    logger.info("jobs raised count=%s queue=%s priority=%s cause=age", count, quoted(queue_name), priority)


def jobs_released(count: int, *, worker: str) -> None:
    """Claimed jobs that had not been started were handed back."""
    logger.info("jobs released count=%s worker=%s", count, quoted(worker))


def job_cancelled(job_id: UUID, *, task_name: str, by: str) -> None:
    logger.info("job cancelled job=%s task=%s by=%s", job_id, quoted(task_name), quoted(by))


def letter_written(letter_id: int, *, job_id: UUID, task_name: str, reason: str) -> None:
    logger.info("dead letter written letter=%s job=%s task=%s reason=%s", letter_id, job_id, quoted(task_name), reason)


def letter_replayed(letter_id: int, *, job_id: UUID, by: str) -> None:
    logger.info("dead letter replayed letter=%s job=%s by=%s", letter_id, job_id, quoted(by))


def letter_discarded(letter_id: int, *, by: str) -> None:
    logger.info("dead letter discarded letter=%s by=%s", letter_id, quoted(by))


def rows_pruned(counts: Mapping[str, int]) -> None:
    """Old rows were deleted; silent if there were none."""
    if any(counts.values()):
        logger.info("rows pruned %s", " ".join(f"{name}={count}" for name, count in sorted(counts.items())))


def lock_lost(name: str, *, fencing_number: int | None) -> None:
    """A lock had expired, or was taken over, before its holder released it."""
    logger.warning("lock lost name=%s fencing_number=%s", quoted(name), fencing_number)


def database_away(using: str, error: BaseException) -> None:
    """Say it once per outage, not once per try."""
    text = " ".join(str(error).split())  # drivers break their lines
    logger.error(
        "database away database=%s error=%s text=%s", using, quoted(type(error).__name__), quoted(text, TEXT_LIMIT)
    )


def database_back(using: str, *, after: float) -> None:
    logger.warning("database back database=%s after=%.1f", using, after)


def statsd_away(address: str, error: BaseException) -> None:
    logger.warning("statsd away address=%s error=%s", quoted(address), quoted(f"{type(error).__name__}: {error}"))


def statsd_back(address: str) -> None:
    logger.info("statsd back address=%s", quoted(address))


def worker_started(name: str, *, queue_names: Sequence[str] | None, threads: int, tasks: int, using: str) -> None:
    queues = quoted(",".join(queue_names)) if queue_names else "all"
    line = "worker started name=%s queues=%s threads=%s tasks=%s database=%s"
    logger.info(line, quoted(name), queues, threads, tasks, using)


def worker_stopping(name: str, *, cause: str) -> None:
    logger.info("worker stopping name=%s cause=%s", quoted(name), quoted(cause))


def worker_spent(name: str, *, cause: str) -> None:
    """The process has served for long enough, and claims nothing more."""
    logger.info("worker spent name=%s cause=%s", quoted(name), cause)


def supervisor_started(pid: int, *, processes: int) -> None:
    logger.info("supervisor started pid=%s processes=%s", pid, processes)


def supervisor_stopping(*, cause: str) -> None:
    logger.info("supervisor stopping cause=%s", quoted(cause))


def supervisor_stopped(*, uptime: float) -> None:
    logger.info("supervisor stopped uptime=%.1f", uptime)


def process_started(place: int, *, pid: int) -> None:
    logger.info("process started place=%s pid=%s", place, pid)


def process_ended(place: int, *, pid: int, ending: str, uptime: float, is_clean: bool) -> None:
    """A worker's process is gone; `ending` is its exit code, or the signal that killed it."""
    level = logging.INFO if is_clean else logging.ERROR
    logger.log(level, "process ended place=%s pid=%s ending=%s uptime=%.1f", place, pid, quoted(ending), uptime)


def process_refused(place: int, error: BaseException) -> None:
    """The system gives no new process; it is asked again."""
    logger.error("process refused place=%s error=%s", place, quoted(f"{type(error).__name__}: {error}"))


def process_failing(place: int, *, retry_in: float) -> None:
    """Say it once: the process has died again soon after its start, and is started again with growing pauses."""
    logger.error("process failing place=%s retry_in=%.1f", place, retry_in)


def process_steady(place: int) -> None:
    logger.warning("process steady place=%s", place)


def process_killed(place: int, *, pid: int) -> None:
    """The process did not end within the grace and some seconds more."""
    logger.error("process killed place=%s pid=%s cause=did_not_end", place, pid)


def worker_stopped(name: str, *, runs: int, uptime: timedelta | float) -> None:
    seconds = uptime.total_seconds() if isinstance(uptime, timedelta) else uptime
    logger.info("worker stopped name=%s runs=%s uptime=%.1f", quoted(name), runs, seconds)


def transaction_left_open(alias: str) -> None:
    """A task ended with a transaction still open; it was rolled back."""
    logger.warning("transaction left open database=%s cause=task_ended_inside", alias)


def thread_given_up(run: ClaimedRun, *, seconds: float) -> None:
    """A task went on for so long after its time limit that its thread was replaced."""
    logger.error("thread given up task=%s job=%s over=%.1f", quoted(run.task_name), run.job_id, seconds)


def loop_replaced(run: ClaimedRun, *, stranded: int) -> None:
    """A task kept the thread of the event loop for itself; the runs beside it were handed back."""
    logger.error("event loop replaced task=%s job=%s stranded=%s", quoted(run.task_name), run.job_id, stranded)


def directory_left(run: ClaimedRun) -> None:
    """The working directory of the process was another one when a run ended; it was changed back."""
    logger.warning("working directory changed task=%s job=%s", quoted(run.task_name), run.job_id)


def runs_handed_back(count: int, *, worker: str) -> None:
    """Runs were still under way when the worker's grace was over."""
    logger.warning("runs handed back count=%s worker=%s", count, quoted(worker))


def worker_replaced(name: str) -> None:
    """The row of this worker was gone: its jobs were rescued. It goes on under a new identity."""
    logger.error("worker lost its lease name=%s", quoted(name))


def outcomes_unwritten(count: int, *, worker: str) -> None:
    """The worker ended while the database was away; these jobs are rescued when their lease is over."""
    logger.error("outcomes unwritten count=%s worker=%s", count, quoted(worker))


def service_failed(service: str, error: BaseException) -> None:
    """A part of the worker failed and will be tried again."""
    logger.error("service failed service=%s", service, exc_info=error)


def quoted(value: str, limit: int = 0) -> str:
    """The value as one word: as it is, or in JSON's quotes where it would break the line or its `key=value` form."""
    text = value if not limit or len(value) <= limit else value[: limit - 1] + "…"
    if text.isprintable() and _ONE_WORD.fullmatch(text):
        return text
    if text.isprintable():
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return json.dumps(text)

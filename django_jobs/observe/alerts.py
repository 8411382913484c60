"""What is wrong with the jobs of one database, told by read-only queries that walk over no finished rows.

Three questions: is there an open dead letter (page), has a job waited for more than 5 times its queue's expected
latency (warn), and did more than ALERT_FAILURE_RATE of the runs in the last ALERT_WINDOW fail (warn).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import IntEnum

from django.db.models import QuerySet

from django_jobs.conf import QueueOptions, get_settings
from django_jobs.database import read_clock
from django_jobs.lifecycle.heads import Head, as_heads, heads, ready
from django_jobs.models import DeadLetter, Job, JobRun
from django_jobs.models.fields import Readable
from django_jobs.statuses import JobStatus, LetterStatus, RunStatus

PATIENCE = 5  # times the expected latency of a queue
COUNT_LIMIT = 1000  # counting stops here: "1000 or more" is alarming enough, and a longer count costs
SAMPLE = 2000  # runs of one status that the failure rate looks at: its error is then below half a percent
PER_TASK = 100  # waiting jobs of one unknown task that are looked at

FAILED = (RunStatus.FAILED, RunStatus.TIMED_OUT, RunStatus.LOST)


class Level(IntEnum):
    """How urgent an alert is; also the exit code of `manage.py jobs_alerts`."""

    WARN = 1
    PAGE = 2


@dataclass(frozen=True)
class Alert:
    """One thing that is wrong. `value` went past `threshold`; ages are seconds, rates from 0 to 1."""

    level: Level
    name: str  # dead_letters, oldest_waiting or failure_rate
    message: str
    value: float
    threshold: float
    queue_name: str | None = None


def find_alerts(*, using: str) -> list[Alert]:
    """All alerts of this database, the most urgent first; an empty list if all is well."""
    found = [*_dead_letters(using), *_oldest_waiting(using), *_failure_rate(using)]
    return sorted(found, key=lambda alert: -alert.level)


def _dead_letters(using: str) -> Iterator[Alert]:
    count, oldest = open_letters(using=using)
    if count:
        noun = "dead letter is" if count == 1 else "dead letters are"
        since = "" if oldest is None else f", the oldest since {oldest.isoformat(timespec='seconds')}"
        yield Alert(
            Level.PAGE,
            "dead_letters",
            f"{_bounded(count)} {noun} open{since}. Replay or discard in the admin.",
            count,
            0,
        )


def _oldest_waiting(using: str) -> Iterator[Alert]:
    queues = get_settings().QUEUES
    for queue in queue_states(using=using):
        expected = queues.get(queue.name, QueueOptions()).expected_latency
        if queue.oldest_age > PATIENCE * expected:
            age, limit = queue.oldest_age.total_seconds(), (PATIENCE * expected).total_seconds()
            message = (
                f"The oldest job in queue {queue.name!r} has been due for {age:.0f} s, more than {limit:g} s; "
                f"{_bounded(queue.backlog)} due. Is a worker serving it?"
            )
            yield Alert(Level.WARN, "oldest_waiting", message, age, limit, queue.name)


def _failure_rate(using: str) -> Iterator[Alert]:
    settings = get_settings()
    failed, ended = recent_failures(using=using)
    if ended and failed / ended > settings.ALERT_FAILURE_RATE:
        minutes = settings.ALERT_WINDOW.total_seconds() / 60
        message = (
            f"{failed} of {ended} runs in the last {minutes:g} minutes failed: {failed / ended:.1%}, more than "
            f"{settings.ALERT_FAILURE_RATE:.1%}."
        )
        yield Alert(Level.WARN, "failure_rate", message, failed / ended, settings.ALERT_FAILURE_RATE)


def _bounded(count: int) -> str:
    return f"{count} or more" if count >= COUNT_LIMIT else str(count)


def open_letters(*, using: str) -> tuple[int, datetime | None]:
    """How many dead letters are open (counted up to `COUNT_LIMIT`), and when the oldest of them died."""
    letters = DeadLetter.objects.using(using).filter(status=LetterStatus.OPEN).order_by("died_at")
    died = list(letters.values_list(Readable("died_at"), flat=True)[:COUNT_LIMIT])
    return len(died), died[0] if died else None


@dataclass(frozen=True)
class QueueState:
    """The jobs of one queue that should be running by now. Jobs due later are not backlog."""

    name: str
    backlog: int  # counted up to COUNT_LIMIT
    oldest_age: timedelta  # since the oldest one was due
    oldest_ages: Mapping[int, timedelta]  # the same by priority


def queue_states(*, using: str) -> list[QueueState]:
    """Every queue with jobs that are due and wait: ready, scheduled and overdue, or parked for an unknown task."""
    now = read_clock(using)
    backlog: Counter[str] = Counter()
    ages: dict[str, dict[int, timedelta]] = {}
    for head, count in _due(now, using):
        backlog[head.queue_name] = min(backlog[head.queue_name] + count, COUNT_LIMIT)
        of_queue = ages.setdefault(head.queue_name, {})
        of_queue[head.priority] = max(now - head.due_at, of_queue.get(head.priority, timedelta(0)))
    return [QueueState(name, backlog[name], max(ages[name].values()), ages[name]) for name in sorted(ages)]


def _due(now: datetime, using: str) -> Iterator[tuple[Head, int]]:
    """Yield (head, jobs that it stands for) so that the oldest job of each queue and priority is among them."""
    jobs = Job.objects.using(using)
    yield from _ready(using)
    # Workers make these ready; where none runs, the oldest thousand tell enough.
    overdue = jobs.filter(status=JobStatus.SCHEDULED, run_at__lte=now).order_by("run_at", "id")
    yield from ((head, 1) for head in as_heads(overdue, COUNT_LIMIT))
    yield from ((head, 1) for head in _parked(jobs.filter(status=JobStatus.WAITING)))


def _ready(using: str) -> Iterator[tuple[Head, int]]:
    counted = None
    for head in heads(using=using):
        # All of a queue with its first head, in the order of the index, so that it is the index that is read.
        in_queue = ready(using).filter(queue_name=head.queue_name).values("id")[:COUNT_LIMIT]
        yield head, 0 if head.queue_name == counted else in_queue.count()
        counted = head.queue_name


def _parked(jobs: QuerySet[Job]) -> Iterator[Head]:
    """Look at the jobs of each task that no worker knows which wait for one longest, along the index of these."""
    names = jobs.order_by("task_name").values_list("task_name", flat=True)
    name = names.first()
    while name is not None:
        longest = jobs.filter(task_name=name).order_by("waiting_since", "id")
        yield from as_heads(longest, PER_TASK)
        name = names.filter(task_name__gt=name).first()


def recent_failures(*, using: str) -> tuple[int, int]:
    """(failed, ended) runs of the last ALERT_WINDOW; runs that were handed back or cancelled do not count.

    Where more than `SAMPLE` runs of one status ended in the window, both numbers are of the shorter time that holds the
    latest `SAMPLE` of them, so that the cost does not grow with the load.
    """
    now = read_clock(using)
    since = now - get_settings().ALERT_WINDOW
    ended = {status: _latest_ends(status, since, now, using) for status in (RunStatus.SUCCEEDED, *FAILED)}
    since = max([since, *(times[-1] for times in ended.values() if len(times) == SAMPLE)])
    counts = {status: sum(moment >= since for moment in times) for status, times in ended.items()}
    return sum(counts[status] for status in FAILED), sum(counts.values())


def _latest_ends(status: RunStatus, since: datetime, now: datetime, using: str) -> list[datetime]:
    # Both ends of the window: without statistics PostgreSQL expects a third of all runs in one that is open.
    runs = JobRun.objects.using(using).filter(status=status.value, ended_at__range=(since, now))
    return list(runs.order_by("-ended_at").values_list(Readable("ended_at"), flat=True)[:SAMPLE])

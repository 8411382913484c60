"""What django_jobs raises. Bad input is a TypeError or ValueError at the call; these say the rest."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.core.exceptions import ObjectDoesNotExist


class JobsError(Exception):
    """The base of everything here that is not about one bad value."""


class JobDoesNotExist(JobsError, ObjectDoesNotExist):
    """No live job, run or dead letter has this id: never enqueued, rolled back, or pruned."""


class UnknownTask(JobsError, LookupError):
    """No registered task has this name."""


class InvalidTask(JobsError, TypeError):
    """The callable cannot be a task, or its options contradict each other."""


class UnreadablePayload(JobsError, ValueError):
    """A stored payload is not what the codec writes."""


class UnstorableResult(JobsError, ValueError):
    """A task returned a value that cannot be stored as JSON."""


class LeaseLost(JobsError):
    """Another claim, a cancellation or a rescue took the job; nothing was changed."""


class LockNotAcquired(JobsError):
    """Somebody else holds the lock."""


class NotInTransaction(JobsError):
    """`once()` was called outside `transaction.atomic()`, where it could not be undone with its effect."""


class TimeLimitExceeded(JobsError):
    """Raised inside a task whose time limit has passed."""


class Retry(JobsError):
    """Raise inside a task to have it tried again; it counts as a failure.

    `delay` is a timedelta or seconds; without it the task's backoff decides.
    """

    def __init__(self, reason: str = "", *, delay: timedelta | float | None = None) -> None:
        super().__init__(reason or "the task asked to be tried again")
        self.delay = _checked_delay(delay)


class Snooze(JobsError):
    """Raise inside a task to have it started again later; nothing is counted.

    Give either `until` (a datetime) or `delay` (a timedelta or seconds).
    """

    def __init__(self, *, until: datetime | None = None, delay: timedelta | float | None = None) -> None:
        if (until is None) == (delay is None):
            raise ValueError("Snooze takes either until= (a datetime) or delay= (a timedelta or seconds).")
        super().__init__("the task asked to be started again later")
        self.until = until
        self.delay = _checked_delay(delay)


class GiveUp(JobsError):
    """Raise inside a task to end its job at once as a dead letter, whatever tries are left."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason or "the task gave up")


def _checked_delay(delay: timedelta | float | None) -> timedelta | None:
    if delay is None:
        return None
    span = delay if isinstance(delay, timedelta) else timedelta(seconds=delay)
    if span < timedelta(0):
        raise ValueError(f"delay={delay!r} is negative. Give a span of zero or more.")
    return span

"""Background jobs for Django, kept in the project's own database."""

from django_jobs.api import (
    JobHandle,
    JobInfo,
    aenqueue,
    cancel,
    enqueue,
    enqueue_many,
    enqueue_on_commit,
    get_job,
    lock,
    once,
)
from django_jobs.backoff import Backoff
from django_jobs.context import JobContext, current_job
from django_jobs.exceptions import (
    GiveUp,
    JobDoesNotExist,
    LockNotAcquired,
    NotInTransaction,
    Retry,
    Snooze,
    TimeLimitExceeded,
)
from django_jobs.registry import Call, Task, task

__version__ = "0.1.0"

__all__ = [
    "Backoff",
    "Call",
    "GiveUp",
    "JobContext",
    "JobDoesNotExist",
    "JobHandle",
    "JobInfo",
    "LockNotAcquired",
    "NotInTransaction",
    "Retry",
    "Snooze",
    "Task",
    "TimeLimitExceeded",
    "aenqueue",
    "cancel",
    "current_job",
    "enqueue",
    "enqueue_many",
    "enqueue_on_commit",
    "get_job",
    "lock",
    "once",
    "task",
]

"""The words a job, a run and a dead letter can be in."""

from __future__ import annotations

from django.db.models import TextChoices
from django.utils.translation import gettext_lazy as _


class JobStatus(TextChoices):
    SCHEDULED = "scheduled", _("scheduled")  # due later
    READY = "ready", _("ready")
    RUNNING = "running", _("running")
    WAITING = "waiting", _("waiting")  # for a worker that knows its task


class RunStatus(TextChoices):
    SUCCEEDED = "succeeded", _("succeeded")
    FAILED = "failed", _("failed")
    TIMED_OUT = "timed_out", _("timed out")
    LOST = "lost", _("lost")  # the worker died
    RELEASED = "released", _("released")  # handed back unfinished
    CANCELLED = "cancelled", _("cancelled")


class LetterStatus(TextChoices):
    OPEN = "open", _("open")
    REPLAYED = "replayed", _("replayed")
    DISCARDED = "discarded", _("discarded")


class DeathReason(TextChoices):
    OUT_OF_TRIES = "out_of_tries", _("out of tries")
    NOT_RETRIED = "not_retried", _("error is not retried")
    GAVE_UP = "gave_up", _("gave up")
    WORKER_LOST = "worker_lost", _("worker lost")
    UNKNOWN_TASK = "unknown_task", _("unknown task")
    BAD_PAYLOAD = "bad_payload", _("unreadable payload")
    BAD_RESULT = "bad_result", _("result cannot be stored")
    BAD_ROW = "bad_row", _("outcome cannot be stored")


class Uniqueness(TextChoices):
    """How long a key is held."""

    EVER = "ever", _("ever")  # success leaves it
    LIVE = "live", _("live")  # released when the job ends
    QUEUED = "queued", _("queued")  # released when the job starts: debounce

"""Jobs that will not be tried again by themselves."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from django_jobs.models.fields import ExactCharField, LenientDateTimeField, LenientJSONField
from django_jobs.models.job import KEY_LENGTH, NAME_LENGTH, QUEUE_LENGTH
from django_jobs.statuses import DeathReason, LetterStatus


class DeadLetter(models.Model):
    """Everything needed to understand and replay a job that died.

    A replay makes a new job; `replayed_as` is its id, and if that dies too, it has a letter of its own.
    """

    id = models.BigAutoField(primary_key=True)
    job_id = models.UUIDField(_("job"), unique=True)
    status = models.CharField(_("status"), max_length=9, choices=LetterStatus, default=LetterStatus.OPEN)
    reason = models.CharField(_("reason"), max_length=12, choices=DeathReason)
    task_name = ExactCharField(_("task"), max_length=NAME_LENGTH)
    queue_name = ExactCharField(_("queue"), max_length=QUEUE_LENGTH)
    priority = models.SmallIntegerField(_("priority"))
    payload = LenientJSONField(_("arguments"))
    options = LenientJSONField(_("options"), null=True)
    key = ExactCharField(_("key"), max_length=KEY_LENGTH, null=True, db_index=True)
    uniqueness = models.CharField(_("uniqueness"), max_length=6, blank=True, default="")
    attempt = models.IntegerField(_("attempts"))
    failures = models.IntegerField(_("failures"))
    crashes = models.IntegerField(_("crashes"))
    interruptions = models.IntegerField(_("interruptions"))
    worker = models.CharField(_("worker"), max_length=NAME_LENGTH, blank=True, default="")
    error_type = models.CharField(_("error"), max_length=200, blank=True, default="")
    error_text = models.TextField(_("error text"), blank=True, default="")
    traceback = models.TextField(_("traceback"), blank=True, default="")
    fingerprint = models.CharField(_("fingerprint"), max_length=40, blank=True, default="")
    enqueued_at = LenientDateTimeField(_("enqueued at"))
    run_at = LenientDateTimeField(_("run at"))
    died_at = LenientDateTimeField(_("died at"))
    closed_at = LenientDateTimeField(_("closed at"), null=True, blank=True)
    closed_by = models.CharField(_("closed by"), max_length=254, blank=True, default="")
    replayed_as = models.UUIDField(_("replayed as"), null=True, blank=True)

    class Meta:
        verbose_name = _("dead letter")
        verbose_name_plural = _("dead letters")
        indexes = [models.Index(fields=["status", "died_at"], name="django_jobs_letter_status")]
        constraints = [
            models.CheckConstraint(condition=Q(status__in=LetterStatus.values), name="django_jobs_letter_status_ok"),
            models.CheckConstraint(
                condition=Q(status=LetterStatus.OPEN.value, closed_at__isnull=True, replayed_as__isnull=True)
                | Q(status=LetterStatus.DISCARDED.value, closed_at__isnull=False, replayed_as__isnull=True)
                | Q(status=LetterStatus.REPLAYED.value, closed_at__isnull=False, replayed_as__isnull=False),
                name="django_jobs_letter_closed",
            ),
        ]
        permissions = [
            ("replay_deadletter", "Can replay dead letters"),
            ("discard_deadletter", "Can discard dead letters"),
        ]
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"{self.task_name} {self.job_id}"

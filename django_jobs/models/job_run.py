"""Append-only history: one row per ended attempt."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from django_jobs.models.fields import ExactCharField, LenientDateTimeField, LenientJSONField
from django_jobs.models.job import KEY_LENGTH, NAME_LENGTH, QUEUE_LENGTH
from django_jobs.statuses import RunStatus


class JobRun(models.Model):
    """One ended run. The last one of a job (`is_last`) also carries what the job was.

    There is no foreign key to Job, whose row is gone when its last run is written. A job that ended without a run has
    one row with attempt 0. Columns of a fixed length come first, so that no byte goes to their alignment.
    """

    id = models.BigAutoField(primary_key=True)
    job_id = models.UUIDField(_("job"))
    claim_number = models.BigIntegerField(_("claim number"))
    started_at = LenientDateTimeField(_("started at"), null=True)
    ended_at = LenientDateTimeField(_("ended at"))
    enqueued_at = LenientDateTimeField(_("enqueued at"), null=True)
    run_at = LenientDateTimeField(_("run at"), null=True)
    attempt = models.IntegerField(_("attempt"))
    priority = models.SmallIntegerField(_("priority"), null=True)
    is_last = models.BooleanField(_("last run"))
    status = models.CharField(_("status"), max_length=10, choices=RunStatus)
    task_name = ExactCharField(_("task"), max_length=NAME_LENGTH)
    queue_name = ExactCharField(_("queue"), max_length=QUEUE_LENGTH)
    worker = models.CharField(_("worker"), max_length=NAME_LENGTH, blank=True, default="")
    error_type = models.CharField(_("error"), max_length=200, blank=True, default="")
    error_text = models.TextField(_("error text"), blank=True, default="")
    traceback = models.TextField(_("traceback"), blank=True, default="")
    result = LenientJSONField(_("result"), null=True)
    payload = LenientJSONField(_("arguments"), null=True)
    key = ExactCharField(_("key"), max_length=KEY_LENGTH, null=True)

    class Meta:
        verbose_name = _("run")
        verbose_name_plural = _("runs")
        indexes = [
            # Pruning and the failure rate both ask for one status and a time.
            models.Index(fields=["status", "ended_at"], name="django_jobs_run_ended"),
        ]
        constraints = [
            models.UniqueConstraint(fields=["job_id", "claim_number"], name="django_jobs_run_fence"),
            models.CheckConstraint(condition=Q(status__in=RunStatus.values), name="django_jobs_run_status"),
        ]
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"{self.task_name} {self.job_id} #{self.attempt}"

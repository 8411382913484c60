"""Live jobs only: small and hot, whatever the history."""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _

from django_jobs.ids import job_id
from django_jobs.models.fields import ExactCharField, LenientDateTimeField, LenientJSONField, StatusIndex
from django_jobs.statuses import JobStatus, Uniqueness

NAME_LENGTH = 200
QUEUE_LENGTH = 64
KEY_LENGTH = 200


class Job(models.Model):
    """One row asking for one call of a task. It lives here until it is finished.

    The columns that a claim changes come last: the log of an UPDATE holds what lies between the first changed byte and
    the last one.
    """

    id = models.UUIDField(primary_key=True, default=job_id, editable=False)
    enqueued_at = LenientDateTimeField(_("enqueued at"))
    priority = models.SmallIntegerField(_("priority"), help_text=_("-100 to 100, larger first"))
    task_name = ExactCharField(_("task"), max_length=NAME_LENGTH)
    queue_name = ExactCharField(_("queue"), max_length=QUEUE_LENGTH)
    payload = LenientJSONField(_("arguments"))
    options = LenientJSONField(_("options"), null=True)
    key = ExactCharField(_("key"), max_length=KEY_LENGTH, null=True)
    uniqueness = models.CharField(_("uniqueness"), max_length=6, choices=Uniqueness, default="", blank=True)
    failures = models.IntegerField(_("failures"), default=0)
    crashes = models.IntegerField(_("crashes"), default=0)
    interruptions = models.IntegerField(_("interruptions"), default=0)
    run_at = LenientDateTimeField(_("run at"))
    attempt = models.IntegerField(_("attempt"), default=0)
    # The fence: claim_number only ever grows, so (job, claim_number) names one claim.
    claim_number = models.BigIntegerField(_("claim number"), default=0)
    claimed_at = LenientDateTimeField(_("claimed at"), null=True)
    worker_id = models.UUIDField(_("worker"), null=True)
    status = models.CharField(_("status"), max_length=10, choices=JobStatus)
    waiting_since = LenientDateTimeField(_("waiting since"), null=True)

    class Meta:
        verbose_name = _("job")
        verbose_name_plural = _("jobs")
        indexes = [
            StatusIndex(
                status=JobStatus.READY.value,
                fields=["queue_name", "-priority", "run_at", "id"],
                name="django_jobs_job_ready",
            ),
            StatusIndex(status=JobStatus.SCHEDULED.value, fields=["run_at", "id"], name="django_jobs_job_scheduled"),
            StatusIndex(status=JobStatus.RUNNING.value, fields=["worker_id"], name="django_jobs_job_running"),
            StatusIndex(
                status=JobStatus.WAITING.value,
                fields=["task_name", "waiting_since", "id"],
                name="django_jobs_job_parked",
            ),
        ]
        constraints = [
            models.CheckConstraint(condition=Q(status__in=JobStatus.values), name="django_jobs_job_status"),
            models.CheckConstraint(condition=Q(priority__range=(-100, 100)), name="django_jobs_job_priority"),
            models.CheckConstraint(
                condition=Q(status=JobStatus.RUNNING.value, worker_id__isnull=False)
                | (~Q(status=JobStatus.RUNNING.value) & Q(worker_id__isnull=True)),
                name="django_jobs_job_worker",
            ),
            models.CheckConstraint(
                condition=Q(key__isnull=True, uniqueness="") | Q(key__isnull=False, uniqueness__in=Uniqueness.values),
                name="django_jobs_job_key",
            ),
            models.CheckConstraint(
                condition=Q(attempt__gte=0, failures__gte=0, crashes__gte=0, interruptions__gte=0)
                & Q(claim_number__gte=F("attempt")),
                name="django_jobs_job_counts",
            ),
        ]
        permissions = [
            ("cancel_job", "Can cancel jobs"),
            ("view_arguments", "Can see the arguments of jobs"),
        ]
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"{self.task_name} {self.id}"

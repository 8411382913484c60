"""One row per process start. Its identity is never used again."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_jobs.ids import job_id
from django_jobs.models.fields import LenientDateTimeField, LenientJSONField
from django_jobs.models.job import NAME_LENGTH


class Worker(models.Model):
    """A running worker. The heartbeat moves `lease_expires_at` on; no column of it is indexed, so that it stays HOT."""

    id = models.UUIDField(primary_key=True, default=job_id, editable=False)
    name = models.CharField(_("name"), max_length=NAME_LENGTH)
    host = models.CharField(_("host"), max_length=255)
    pid = models.IntegerField(_("process id"))
    started_at = LenientDateTimeField(_("started at"))
    heartbeat_at = LenientDateTimeField(_("heartbeat at"))
    lease_expires_at = LenientDateTimeField(_("lease expires at"))
    queue_names = LenientJSONField(_("queues"), null=True, help_text=_("empty: all"))
    task_names = LenientJSONField(_("tasks"))
    # It looks for jobs by itself, and needs no wake-up. A worker of a release without this column never says so.
    is_awake = models.BooleanField(_("awake"), default=False, db_default=False)

    class Meta:
        verbose_name = _("worker")
        verbose_name_plural = _("workers")
        default_permissions = ("view",)

    def __str__(self) -> str:
        return self.name

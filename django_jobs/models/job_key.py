"""One row per logical operation: its INSERT is the guard."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_jobs.models.fields import ExactCharField, LenientDateTimeField
from django_jobs.models.job import KEY_LENGTH, NAME_LENGTH


class JobKey(models.Model):
    """An idempotency key. The scope is the task's name, or that of `once()`."""

    id = models.BigAutoField(primary_key=True)
    key = ExactCharField(_("key"), max_length=KEY_LENGTH)
    scope = ExactCharField(_("scope"), max_length=NAME_LENGTH)
    holder_id = models.UUIDField(_("holder"), help_text=_("the job, or the call of once(), that inserted the row"))
    created_at = LenientDateTimeField(_("created at"))
    expires_at = LenientDateTimeField(_("expires at"), null=True)

    class Meta:
        verbose_name = _("key")
        verbose_name_plural = _("keys")
        indexes = [
            models.Index(fields=["holder_id"], name="django_jobs_key_holder"),
            models.Index(fields=["expires_at"], name="django_jobs_key_expires"),
        ]
        # The key leads, so that a search by key alone finds it too.
        constraints = [models.UniqueConstraint(fields=["key", "scope"], name="django_jobs_key_unique")]
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"{self.scope}: {self.key}"

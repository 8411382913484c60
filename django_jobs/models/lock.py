"""Leases on names: what `lock()` takes."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_jobs.models.fields import ExactCharField, LenientDateTimeField
from django_jobs.models.job import KEY_LENGTH


class Lock(models.Model):
    """A lease on a name. The row stays after release, so that `fencing_number` only ever grows."""

    name = ExactCharField(_("name"), max_length=KEY_LENGTH, primary_key=True)
    owner = models.UUIDField(_("owner"), null=True)
    fencing_number = models.BigIntegerField(_("fencing number"), default=1)
    acquired_at = LenientDateTimeField(_("acquired at"))
    expires_at = LenientDateTimeField(_("expires at"))

    class Meta:
        verbose_name = _("lock")
        verbose_name_plural = _("locks")
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"{self.name}"

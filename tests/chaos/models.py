"""What the auditor compares: what was asked for, and what was done."""

from __future__ import annotations

from typing import ClassVar

from django.db import models


class Asked(models.Model):
    """A job, written by the transaction that enqueued it: it is there if and only if the job was committed."""

    objects: ClassVar[models.Manager[Asked]] = models.Manager()  # the plugin of mypy knows the suite's apps only
    job_id = models.UUIDField(unique=True)
    kind = models.CharField(max_length=20)
    label = models.CharField(max_length=100, db_index=True)

    def __str__(self) -> str:
        return f"{self.kind} {self.label}"


class Cancelled(models.Model):
    """A cancellation that was answered by True, written by its own transaction."""

    objects: ClassVar[models.Manager[Cancelled]] = models.Manager()
    job_id = models.UUIDField(unique=True)

    def __str__(self) -> str:
        return str(self.job_id)


class Cured(models.Model):
    """A label that does not fail any more."""

    objects: ClassVar[models.Manager[Cured]] = models.Manager()
    label = models.CharField(max_length=100, unique=True)

    def __str__(self) -> str:
        return self.label


class Start(models.Model):
    """A claim whose task began, committed at once."""

    objects: ClassVar[models.Manager[Start]] = models.Manager()
    job_id = models.UUIDField()
    claim_number = models.BigIntegerField()

    def __str__(self) -> str:
        return f"{self.job_id} #{self.claim_number}"


class Effect(models.Model):
    """What a task does."""

    objects: ClassVar[models.Manager[Effect]] = models.Manager()
    job_id = models.UUIDField()
    claim_number = models.BigIntegerField()
    label = models.CharField(max_length=100)

    def __str__(self) -> str:
        return self.label

"""The admin: it reads, and what changes a job goes through `lifecycle`.

To give a page more, subclass its mixin over a base of your own and register that instead:

    class MyJobAdmin(JobAdminMixin, unfold.admin.ModelAdmin): ...

To put all pages on another base class, name it in DJANGO_JOBS["ADMIN_BASE"].
"""

from __future__ import annotations

from django.contrib import admin

from django_jobs.admin.base import Base, ReadOnlyMixin
from django_jobs.admin.jobs import JobAdminMixin
from django_jobs.admin.letters import DeadLetterAdminMixin
from django_jobs.admin.others import JobKeyAdminMixin, LockAdminMixin, WorkerAdminMixin
from django_jobs.admin.runs import JobRunAdminMixin
from django_jobs.models import DeadLetter, Job, JobKey, JobRun, Lock, Worker

__all__ = [
    "DeadLetterAdminMixin",
    "JobAdminMixin",
    "JobKeyAdminMixin",
    "JobRunAdminMixin",
    "LockAdminMixin",
    "ReadOnlyMixin",
    "WorkerAdminMixin",
]


@admin.register(Job)
class JobAdmin(JobAdminMixin, Base):
    pass


@admin.register(JobRun)
class JobRunAdmin(JobRunAdminMixin, Base):
    pass


@admin.register(DeadLetter)
class DeadLetterAdmin(DeadLetterAdminMixin, Base):
    pass


@admin.register(Worker)
class WorkerAdmin(WorkerAdminMixin, Base):
    pass


@admin.register(JobKey)
class JobKeyAdmin(JobKeyAdminMixin, Base):
    pass


@admin.register(Lock)
class LockAdmin(LockAdminMixin, Base):
    pass

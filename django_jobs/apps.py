"""The app's configuration."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.module_loading import autodiscover_modules
from django.utils.translation import gettext_lazy as _


class DjangoJobsConfig(AppConfig):
    name = "django_jobs"
    verbose_name = _("Background jobs")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from django_jobs import checks, observe  # noqa: F401
        from django_jobs.lifecycle import enqueue

        observe.connect()
        enqueue.immediate = _run_immediately
        autodiscover_modules("tasks")


def _run_immediately(using: str) -> None:
    """Run what was enqueued before the call returns, if DJANGO_JOBS["IMMEDIATE"] says so: a test mode."""
    from django_jobs.conf import get_settings

    if get_settings().IMMEDIATE:
        from django_jobs.worker.inline import run_jobs

        run_jobs(using=using)

"""The pages of runs: the history, one row for each ended attempt."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_jobs.admin import search
from django_jobs.admin.arguments import arguments, result
from django_jobs.admin.base import Order, ReadOnlyMixin
from django_jobs.admin.display import (
    NOTHING,
    badge,
    badge_and_note,
    block,
    first_line,
    mono,
    named,
    span,
    when,
    when_exactly,
)
from django_jobs.admin.filters import QueueFilter, RunStatusFilter, TaskFilter
from django_jobs.models import Job, JobRun
from django_jobs.statuses import RunStatus


class JobRunAdminMixin(ReadOnlyMixin):
    large_fields = ("payload", "result", "error_text", "traceback")
    json_fields = ("payload", "result")
    empty_text = gettext_lazy("No run has ended yet. Each attempt at a job is listed here once it is over.")
    list_display = ("job", "attempt", "status_and_error", "took", "ended")
    list_filter = (RunStatusFilter, QueueFilter, TaskFilter)
    ordering = ("-pk",)
    orders = dict.fromkeys(RunStatus.values, Order(("-ended_at",)))
    search_fields = ("pk",)
    search_help_text = gettext_lazy("A job's id, its key, or a task")
    fieldsets = (
        (gettext_lazy("What went wrong"), {"fields": ("error", "traceback_shown")}),
        (gettext_lazy("Result"), {"fields": ("result_shown",)}),
        (
            gettext_lazy("The job"),
            {"fields": (("task", "queue"), ("job_link", "key_shown"), ("worker_shown", "is_last_shown"))},
        ),
        (gettext_lazy("Arguments"), {"fields": ("arguments_shown",)}),
        (
            gettext_lazy("Times"),
            {"fields": (("enqueued_exactly", "run_at_exactly"), ("started_exactly", "ended_exactly"))},
        ),
    )

    def get_fieldsets(self, request: HttpRequest, run: JobRun | None = None) -> Any:
        empty = set()
        if run and not (run.error_type or run.error_text or run.traceback):
            empty.add("error")  # and its traceback
        if run and run.status != RunStatus.SUCCEEDED:
            empty.add("result_shown")
        if run and not run.is_last:
            empty.add("arguments_shown")  # they stand with the last run
        return [each for each in self.fieldsets if each[1]["fields"][0] not in empty]

    # --- The list

    @admin.display(description=gettext_lazy("job"))
    def job(self, run: JobRun) -> SafeString:
        return named(run, run.job_id)

    @admin.display(description=gettext_lazy("status"))
    def status_and_error(self, run: JobRun) -> SafeString:
        return badge_and_note(run.status, run.error_type)

    @admin.display(description=gettext_lazy("took"))
    def took(self, run: JobRun) -> str:
        return span(run.ended_at - run.started_at) if run.started_at else NOTHING

    @admin.display(description=gettext_lazy("ended"))
    def ended(self, run: JobRun) -> SafeString:
        return when(run.ended_at)

    def search(self, request: HttpRequest, term: str) -> search.Search:
        return search.by_id_key_or_task(term, self.alias(request), id_order=("-job_id", "-claim_number"))

    # --- A run's page

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> JobRun | None:
        run: Any = super().get_object(request, object_id, from_field)
        if run:
            run.arguments_html = arguments(request, run)
            run.result_html = result(request, run)
            run.job_html = self.link(request, Job, run.job_id)
        return run  # type: ignore[no-any-return]

    def page(self, request: HttpRequest, run: JobRun) -> dict[str, Any]:
        return {
            "title": run.task_name,
            "subtitle": None,
            "head": {
                "badge": badge(run.status),
                "pk": run.job_id,
                "sentences": [self._summary(run)],
                "link": self.link(request, Job, run.job_id, _("Open its job")),
            },
        }

    def _summary(self, run: JobRun) -> str:
        if not run.attempt:
            return _("The job ended without a run.")
        text = _("Attempt %(n)d took %(span)s") % {"n": run.attempt, "span": self.took(run)}
        error = f"{run.error_type}: {first_line(run.error_text)}".rstrip(": ")
        return f"{text}: {error}" if error else f"{text}."

    @admin.display(description=gettext_lazy("task"))
    def task(self, run: JobRun) -> SafeString:
        return mono(run.task_name)

    @admin.display(description=gettext_lazy("job"))
    def job_link(self, run: JobRun) -> SafeString:
        return run.job_html  # type: ignore[attr-defined,no-any-return]

    @admin.display(description=gettext_lazy("queue"))
    def queue(self, run: JobRun) -> SafeString:
        return mono(run.queue_name)

    @admin.display(description=gettext_lazy("key"))
    def key_shown(self, run: JobRun) -> SafeString:
        return mono(run.key)

    @admin.display(description=gettext_lazy("worker"))
    def worker_shown(self, run: JobRun) -> SafeString:
        return mono(run.worker)

    @admin.display(description=gettext_lazy("the job's last run"))
    def is_last_shown(self, run: JobRun) -> str:
        return _("yes") if run.is_last else _("no")

    @admin.display(description=gettext_lazy("error"))
    def error(self, run: JobRun) -> SafeString:
        return block(f"{run.error_type}: {run.error_text}".rstrip(": "))

    @admin.display(description=gettext_lazy("traceback"))
    def traceback_shown(self, run: JobRun) -> SafeString:
        return block(run.traceback)

    @admin.display(description=gettext_lazy("result"))
    def result_shown(self, run: JobRun) -> SafeString:
        return run.result_html  # type: ignore[attr-defined,no-any-return]

    @admin.display(description=gettext_lazy("arguments"))
    def arguments_shown(self, run: JobRun) -> SafeString:
        return run.arguments_html  # type: ignore[attr-defined,no-any-return]

    @admin.display(description=gettext_lazy("enqueued"))
    def enqueued_exactly(self, run: JobRun) -> SafeString:
        return when_exactly(run.enqueued_at)

    @admin.display(description=gettext_lazy("due"))
    def run_at_exactly(self, run: JobRun) -> SafeString:
        return when_exactly(run.run_at)

    @admin.display(description=gettext_lazy("started"))
    def started_exactly(self, run: JobRun) -> SafeString:
        return when_exactly(run.started_at)

    @admin.display(description=gettext_lazy("ended"))
    def ended_exactly(self, run: JobRun) -> SafeString:
        return when_exactly(run.ended_at)

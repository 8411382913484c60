"""The pages of jobs. A job's own page exists as long as anything is known of it: live, finished or dead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import UUID

from django.contrib import admin, messages
from django.db import DEFAULT_DB_ALIAS
from django.db.models import QuerySet
from django.db.models.functions import Substr
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_jobs.admin import search
from django_jobs.admin.actions import Deed, DeedsMixin, Said
from django_jobs.admin.arguments import arguments
from django_jobs.admin.base import Order
from django_jobs.admin.display import (
    DEAD,
    NOTHING,
    badge,
    first_line,
    mono,
    named,
    pretty_json,
    reason_label,
    span,
    when,
    when_exactly,
)
from django_jobs.admin.filters import JobStatusFilter, QueueFilter, TaskFilter
from django_jobs.admin.waiting import attempts_allowed, briefly, explain
from django_jobs.database import read_clock, the_only
from django_jobs.exceptions import JobDoesNotExist
from django_jobs.lifecycle.cancel import cancel as cancel_job
from django_jobs.models import DeadLetter, Job, JobRun, Worker
from django_jobs.statuses import JobStatus, LetterStatus, RunStatus

MOST_NAMED = 5
MOST_RUNS = 50
_RUN_TEXTS = ("payload", "result", "error_text", "traceback")
TRACEBACK_SHOWN = 10_000  # characters of each run's traceback on the job's page


class Known(NamedTuple):
    """All that is left of a job; the holder is the row that carries what the job was."""

    holder: Job | JobRun | DeadLetter
    last_run: JobRun | None = None
    letter: DeadLetter | None = None


def find_job(job_id: UUID, using: str) -> Known | None:
    """Look where a job may be: live, in the history, among the dead letters."""
    if job := Job.objects.using(using).filter(pk=job_id).defer("payload").first():
        return Known(job)
    runs = JobRun.objects.using(using).filter(job_id=job_id).defer(*_RUN_TEXTS)
    last_run = runs.order_by("-claim_number").first()
    letter = the_only(DeadLetter.objects.using(using).filter(job_id=job_id).defer("payload", "traceback"))
    holder = letter or last_run
    return Known(holder, last_run, letter) if holder else None


def as_job(known: Known) -> Job:
    """A job that has ended, as the row it was; its status is one of those that only ended jobs have."""
    if isinstance(known.holder, Job):
        return known.holder
    last: Any = known.holder
    job = Job(
        pk=last.job_id,
        task_name=last.task_name,
        queue_name=last.queue_name,
        priority=last.priority,
        status=_ended_as(known),
        run_at=last.run_at,
        enqueued_at=last.enqueued_at,
        key=last.key,
        attempt=last.attempt,
    )
    for name in ("options", "uniqueness", "failures", "crashes", "interruptions"):
        setattr(job, name, getattr(last, name, None))
    job._state.db = last._state.db
    return job


def _ended_as(known: Known) -> str:
    if known.letter:
        return DEAD if known.letter.status == LetterStatus.OPEN else known.letter.status
    return known.last_run.status if known.last_run else ""


def _cancel(request: HttpRequest, jobs: Sequence[Job], total: int) -> list[Said]:
    return [_cancel_one(request, job) for job in jobs]


def _cancel_one(request: HttpRequest, job: Job) -> Said:
    try:
        is_cancelled = cancel_job(job.pk, by=request.user.get_username(), using=job._state.db or DEFAULT_DB_ALIAS)
    except JobDoesNotExist:
        return Said(messages.WARNING, _("gone"), _("Not cancelled: nothing is known of it any more."), is_change=False)
    if not is_cancelled:
        return Said(messages.WARNING, _("too late"), _("Not cancelled: it had ended before."), is_change=False)
    return Said(messages.SUCCESS, _("cancelled"), _("Cancelled."), is_change=True)


def _cancel_consequence(count: int) -> str:
    return _(
        "They will not run (again), for good, and their keys are free. A run under way goes on until its task looks, "
        "but its outcome does not count."
    )


CANCEL = Deed(
    name="cancel",
    permission="django_jobs.cancel_job",
    question=gettext_lazy("Cancel these jobs?"),
    yes=gettext_lazy("Yes, cancel them"),
    doing=gettext_lazy("Jobs are being cancelled"),
    button=gettext_lazy("Cancel this job"),
    warning=gettext_lazy("It will not run (again), for good."),
    do=_cancel,
    consequence=_cancel_consequence,
)


class JobAdminMixin(DeedsMixin):
    large_fields = json_fields = ("payload",)
    empty_text = gettext_lazy(
        "No job is waiting or running. Live jobs are listed here; those that have ended are under Runs, "
        "and those that need a decision under Dead letters."
    )
    list_display = ("job", "status_badge", "situation", "enqueued")
    list_filter = (JobStatusFilter, QueueFilter, TaskFilter)
    ordering = ("-pk",)
    orders = {
        JobStatus.READY: Order(("queue_name", "-priority", "run_at", "pk"), serves=frozenset({"queue"})),
        JobStatus.SCHEDULED: Order(("run_at", "pk")),
        # However few or many there are: they are sorted, and no filter need be served.
        JobStatus.RUNNING: Order(("claimed_at", "pk"), serves=frozenset({"queue", "task", "search"})),
        JobStatus.WAITING: Order(("task_name", "waiting_since", "pk"), serves=frozenset({"task", "search"})),
    }
    search_fields = ("pk",)
    search_help_text = gettext_lazy("A job's id, its key, or a task")
    actions = ("cancel",)
    deeds = (CANCEL,)
    fieldsets = (
        (
            None,
            {
                "fields": (
                    ("task", "queue"),
                    ("priority_shown", "options_shown"),
                    ("key_shown", "uniqueness_shown"),
                    "arguments_shown",
                )
            },
        ),
        (gettext_lazy("Times"), {"fields": (("enqueued_exactly", "run_at_exactly"), ("claimed_exactly", "worker"))}),
        (gettext_lazy("Counts"), {"fields": (("attempt", "failures_shown"), ("crashes", "interruptions"))}),
    )

    # --- The list

    @admin.display(description=gettext_lazy("job"))
    def job(self, job: Job) -> SafeString:
        return named(job, job.pk)

    @admin.display(description=gettext_lazy("status"))
    def status_badge(self, job: Job) -> SafeString:
        return badge(job.status)

    @admin.display(description=gettext_lazy("what it waits for"))
    def situation(self, job: Job) -> str:
        return briefly(job, timezone.now())

    @admin.display(description=gettext_lazy("key"))
    def key_shown(self, job: Job) -> SafeString:
        return mono(job.key)

    @admin.display(description=gettext_lazy("enqueued"))
    def enqueued(self, job: Job) -> SafeString:
        return when(job.enqueued_at)

    def search(self, request: HttpRequest, term: str) -> search.Search:
        return search.by_id_key_or_task(term, self.alias(request), id_order=("-pk",))

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        response: Any = super().changelist_view(request, extra_context)
        found = getattr(response, "context_data", None) or {}
        if "cl" in found and found["cl"].query and not found["cl"].result_count:
            found["elsewhere"] = self._ended_jobs(request, found["cl"].query)
        return response  # type: ignore[no-any-return]

    def _ended_jobs(self, request: HttpRequest, term: str) -> list[SafeString]:
        """Links to the jobs that a term names and that are live no more."""
        using = self.alias(request)
        ids = search.job_ids(term.strip(), using)[:MOST_NAMED]
        return [self.link(request, Job, job_id) for job_id in ids if find_job(job_id, using)]

    # --- A job's page

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Job | None:
        job_id = search.as_uuid(object_id)
        known = find_job(job_id, self.alias(request)) if job_id else None
        if known is None:
            return None
        job = as_job(known)
        job.arguments_html = arguments(request, known.holder)  # type: ignore[attr-defined]
        return job

    def page(self, request: HttpRequest, job: Job) -> dict[str, Any]:
        using = job._state.db or self.alias(request)
        is_live = job.status in JobStatus.values
        return {
            "title": job.task_name,
            "subtitle": None,
            "head": {
                "badge": badge(job.status),
                "pk": job.pk,
                "sentences": explain(job, read_clock(using), using) if is_live else self._ended(job, using),
                "link": self._letter_link(request, job, using),
                "buttons": self.buttons(request, job) if is_live else [],
            },
            **(self._runs(request, job, using) if self.may(request, JobRun) else {}),
        }

    def _ended(self, job: Job, using: str) -> list[str]:
        letter = the_only(DeadLetter.objects.using(using).filter(job_id=job.pk).defer("payload", "traceback"))
        if letter:
            error = f"{letter.error_type}: {first_line(letter.error_text)}".rstrip(": ")
            return [_("It died: %(reason)s.") % {"reason": reason_label(letter.reason)}, error]
        return [_("It has ended and will not run again.")]

    def _letter_link(self, request: HttpRequest, job: Job, using: str) -> SafeString | None:
        letter_id = the_only(DeadLetter.objects.using(using).filter(job_id=job.pk).values_list("pk", flat=True))
        return self.link(request, DeadLetter, letter_id, _("Open its dead letter")) if letter_id else None

    def _runs(self, request: HttpRequest, job: Job, using: str) -> dict[str, Any]:
        rows = JobRun.objects.using(using).filter(job_id=job.pk).defer(*_RUN_TEXTS).order_by("-claim_number")
        # The database cuts: a traceback may be megabytes, and there may be fifty.
        cut = rows.annotate(error_start=Substr("error_text", 1, 1000), trace=Substr("traceback", 1, TRACEBACK_SHOWN))
        runs = list(cut[: MOST_RUNS + 1])
        for run in runs:
            run.page = self.address(JobRun, "change", run.pk)  # type: ignore[attr-defined]
            run.badge = badge(run.status)  # type: ignore[attr-defined]
            run.when = when(run.ended_at)  # type: ignore[attr-defined]
            run.took = span(run.ended_at - run.started_at) if run.started_at else NOTHING  # type: ignore[attr-defined]
            run.is_cut = len(run.trace) == TRACEBACK_SHOWN  # type: ignore[attr-defined]
        return {
            "shows_runs": True,
            "runs": runs[:MOST_RUNS],
            "most_runs": MOST_RUNS if len(runs) > MOST_RUNS else None,
        }

    @admin.display(description=gettext_lazy("task"))
    def task(self, job: Job) -> SafeString:
        return mono(job.task_name)

    @admin.display(description=gettext_lazy("queue"))
    def queue(self, job: Job) -> SafeString:
        return mono(job.queue_name)

    @admin.display(description=gettext_lazy("priority"))
    def priority_shown(self, job: Job) -> SafeString:
        return mono(job.priority)

    @admin.display(description=gettext_lazy("key is held"))
    def uniqueness_shown(self, job: Job) -> str:
        return {
            "ever": _("for ever once it succeeds"),
            "live": _("until the job ends"),
            "queued": _("until the job starts"),
        }.get(job.uniqueness, NOTHING)

    @admin.display(description=gettext_lazy("options"))
    def options_shown(self, job: Job) -> SafeString | str:
        return pretty_json(job.options) if job.options else _("those of the task")

    @admin.display(description=gettext_lazy("arguments"))
    def arguments_shown(self, job: Job) -> SafeString:
        return job.arguments_html  # type: ignore[attr-defined,no-any-return]

    @admin.display(description=gettext_lazy("enqueued"))
    def enqueued_exactly(self, job: Job) -> SafeString:
        return when_exactly(job.enqueued_at)

    @admin.display(description=gettext_lazy("due"))
    def run_at_exactly(self, job: Job) -> SafeString:
        return when_exactly(job.run_at)

    @admin.display(description=gettext_lazy("claimed"))
    def claimed_exactly(self, job: Job) -> SafeString:
        return when_exactly(job.claimed_at)

    @admin.display(description=gettext_lazy("failures"))
    def failures_shown(self, job: Job) -> str:
        if job.status in RunStatus.values:  # a run does not tell
            return NOTHING
        return _("%(n)d of %(most)d") % {"n": job.failures, "most": attempts_allowed(job)}

    @admin.display(description=gettext_lazy("worker"))
    def worker(self, job: Job) -> SafeString:
        name = (
            Worker.objects.using(job._state.db)
            .filter(pk__in=[job.worker_id] if job.worker_id else [])
            .values_list("name", flat=True)
            .first()
        )
        return mono(name or job.worker_id)

    # --- What can be done

    def has_cancel_permission(self, request: HttpRequest) -> bool:
        return self.permits(request, CANCEL)

    @admin.action(permissions=["cancel"], description=gettext_lazy("Cancel the chosen jobs"))
    def cancel(self, request: HttpRequest, jobs: QuerySet[Job]) -> HttpResponse | None:
        return self.do_to_many(request, jobs, CANCEL)

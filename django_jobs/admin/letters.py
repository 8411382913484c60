"""The pages of dead letters, from which what died is replayed or discarded."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.contrib import admin, messages
from django.db import DEFAULT_DB_ALIAS
from django.db.models import QuerySet
from django.db.models.functions import Left
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_jobs import registry
from django_jobs.admin import search
from django_jobs.admin.actions import Deed, DeedsMixin, Said
from django_jobs.admin.arguments import arguments
from django_jobs.admin.base import Order
from django_jobs.admin.display import (
    NOTHING,
    badge,
    block,
    first_line,
    mono,
    named,
    pretty_json,
    reason_label,
    relative,
    short_error,
    span,
    when,
    when_exactly,
)
from django_jobs.admin.filters import LetterStatusFilter, QueueFilter, ReasonFilter, TaskFilter
from django_jobs.lifecycle.replay import Replay, ReplayResult, discard, replay_many
from django_jobs.models import DeadLetter, Job
from django_jobs.statuses import DeathReason, LetterStatus

REPLAYED_AT_ONCE = 100  # more than these are spread
STARTS_PER_SECOND = 50
ERROR_SHOWN = 120  # characters of an error that a list selects and shows


def spread_of(count: int) -> timedelta:
    """The time over which the starts of that many replayed jobs are spread, so that they do not come all at once."""
    return timedelta(seconds=count / STARTS_PER_SECOND if count > REPLAYED_AT_ONCE else 0)


def _replay(request: HttpRequest, letters: Sequence[DeadLetter], total: int) -> list[Said]:
    using = letters[0]._state.db or DEFAULT_DB_ALIAS
    pks = [letter.pk for letter in letters]
    by = request.user.get_username()
    return [_said(each) for each in replay_many(pks, by=by, using=using, spread=spread_of(total))]


def _said(replay: Replay) -> Said:
    words = {
        ReplayResult.REPLAYED: _("replayed"),
        ReplayResult.ALREADY_REPLAYED: _("already replayed"),
        ReplayResult.DISCARDED: _("discarded before"),
        ReplayResult.KEY_TAKEN: _("not replayed, as their key is held"),
        ReplayResult.UNKNOWN_TASK: _("not replayed, as their task is unknown here"),
        ReplayResult.MISSING: _("gone"),
    }
    is_change = replay.result is ReplayResult.REPLAYED
    level = messages.SUCCESS if is_change else messages.WARNING
    return Said(level, words[replay.result], replay.message, is_change)


def _replay_consequence(count: int) -> str:
    text = _("Each becomes a new job with the same arguments, options and key, and its counters start afresh.")
    if spread := spread_of(count):
        return f"{text} " + _("They are many: their starts are spread over %(span)s.") % {"span": span(spread)}
    return text


def _discard(request: HttpRequest, letters: Sequence[DeadLetter], total: int) -> list[Said]:
    by = request.user.get_username()
    return [_discard_one(letter, by) for letter in letters]


def _discard_one(letter: DeadLetter, by: str) -> Said:
    using = letter._state.db or DEFAULT_DB_ALIAS
    if discard(letter.pk, by=by, using=using):
        return Said(messages.SUCCESS, _("discarded"), _("Discarded."), is_change=True)
    found = DeadLetter.objects.using(using).filter(pk=letter.pk).values_list("status", "closed_by").first()
    if found is None:
        return Said(messages.WARNING, _("gone"), _("This dead letter does not exist any more."), is_change=False)
    status, closed_by = found
    text = _("Already replayed by %(by)s.") if status == LetterStatus.REPLAYED else _("Already discarded by %(by)s.")
    return Said(messages.WARNING, _("closed before"), text % {"by": closed_by}, is_change=False)


REPLAY = Deed(
    name="replay",
    permission="django_jobs.replay_deadletter",
    question=gettext_lazy("Replay these dead letters?"),
    yes=gettext_lazy("Yes, replay them"),
    doing=gettext_lazy("Dead letters are being replayed"),
    button=gettext_lazy("Replay"),
    warning="",
    do=_replay,
    consequence=_replay_consequence,
    batch=100,
)
DISCARD = Deed(
    name="discard",
    permission="django_jobs.discard_deadletter",
    question=gettext_lazy("Discard these dead letters?"),
    yes=gettext_lazy("Yes, discard them"),
    doing=gettext_lazy("Dead letters are being discarded"),
    button=gettext_lazy("Discard"),
    warning=gettext_lazy("It can not be replayed afterwards."),
    do=_discard,
    consequence=lambda count: _("They can not be replayed afterwards. They stay listed until they are pruned."),
)


class DeadLetterAdminMixin(DeedsMixin):
    large_fields = ("payload", "options", "error_text", "traceback")
    json_fields = ("payload",)
    empty_text = gettext_lazy(
        "No dead letter is open: nothing waits for a decision. "
        "Jobs that will not be tried again by themselves come here."
    )
    list_display = ("job", "status_badge", "why", "died")
    list_filter = (LetterStatusFilter, ReasonFilter, QueueFilter, TaskFilter)
    ordering = ("-pk",)
    orders = dict.fromkeys(LetterStatus.values, Order(("-died_at",)))
    search_fields = ("pk",)
    search_help_text = gettext_lazy("A job's id, its key, or a task")
    actions = ("replay", "discard")
    deeds = (REPLAY, DISCARD)
    fieldsets = (
        (
            gettext_lazy("What went wrong"),
            {"fields": ("error", "traceback_shown", ("worker_shown", "fingerprint_shown"))},
        ),
        (
            gettext_lazy("The job"),
            {
                "fields": (
                    ("task", "queue"),
                    ("job_link", "key_shown"),
                    ("priority", "options_shown"),
                    "arguments_shown",
                )
            },
        ),
        (gettext_lazy("Times"), {"fields": (("enqueued_exactly", "run_at_exactly"), "died_exactly")}),
        (gettext_lazy("Counts"), {"fields": (("attempt", "failures"), ("crashes", "interruptions"))}),
    )

    # --- The list

    @admin.display(description=gettext_lazy("job"))
    def job(self, letter: DeadLetter) -> SafeString:
        return named(letter, letter.job_id)

    @admin.display(description=gettext_lazy("status"))
    def status_badge(self, letter: DeadLetter) -> SafeString:
        return badge(letter.status)

    def get_queryset(self, request: HttpRequest) -> QuerySet[DeadLetter]:
        letters: QuerySet[DeadLetter] = super().get_queryset(request)
        return letters.annotate(error_start=Left("error_text", ERROR_SHOWN + 1))

    @admin.display(description=gettext_lazy("reason"))
    def why(self, letter: DeadLetter) -> SafeString:
        text = first_line(letter.error_start, limit=ERROR_SHOWN)  # type: ignore[attr-defined]
        error = text if letter.reason == DeathReason.GAVE_UP else short_error(letter.error_type, text)
        return format_html(
            '{}<span class="dj-why" title="{}">{}</span>', reason_label(letter.reason), letter.error_type, error
        )

    @admin.display(description=gettext_lazy("key"))
    def key_shown(self, letter: DeadLetter) -> SafeString:
        return mono(letter.key)

    @admin.display(description=gettext_lazy("died"))
    def died(self, letter: DeadLetter) -> SafeString:
        return when(letter.died_at)

    def search(self, request: HttpRequest, term: str) -> search.Search:
        return search.by_id_key_or_task(term, self.alias(request), id_order=("-job_id",))

    # --- A letter's page

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> DeadLetter | None:
        letter: Any = super().get_object(request, object_id, from_field)
        if letter:
            letter.arguments_html = arguments(request, letter)
            letter.job_html = self.link(request, Job, letter.job_id)
        return letter  # type: ignore[no-any-return]

    def page(self, request: HttpRequest, letter: DeadLetter) -> dict[str, Any]:
        is_open = letter.status == LetterStatus.OPEN
        return {
            "title": letter.task_name,
            "subtitle": None,
            "head": {
                "badge": badge(letter.status),
                "pk": letter.job_id,
                "sentences": [self._died(letter), *(self._hints(letter) if is_open else self._closed(letter))],
                "link": self._replayed_link(request, letter.replayed_as),
                "buttons": self.buttons(request, letter) if is_open else [],
            },
        }

    def _died(self, letter: DeadLetter) -> str:
        error = f"{letter.error_type}: {first_line(letter.error_text)}".rstrip(": ")
        reason = reason_label(letter.reason)
        return f"{reason[:1].upper()}{reason[1:]}: {error}" if error else f"{reason[:1].upper()}{reason[1:]}."

    def _hints(self, letter: DeadLetter) -> list[str]:
        if registry.find(letter.task_name) is None:
            return [_("No task of this name is registered in this process, so it cannot be replayed here.")]
        return []

    def _closed(self, letter: DeadLetter) -> list[str]:
        words = _("Replayed %(when)s by %(by)s.") if letter.replayed_as else _("Discarded %(when)s by %(by)s.")
        moment = relative(letter.closed_at, timezone.now()) if letter.closed_at else ""
        return [words % {"when": moment, "by": letter.closed_by or NOTHING}]

    def _replayed_link(self, request: HttpRequest, job_id: UUID | None) -> SafeString | None:
        return self.link(request, Job, job_id, _("Open the job it was replayed as")) if job_id else None

    @admin.display(description=gettext_lazy("task"))
    def task(self, letter: DeadLetter) -> SafeString:
        return mono(letter.task_name)

    @admin.display(description=gettext_lazy("job"))
    def job_link(self, letter: DeadLetter) -> SafeString:
        return letter.job_html  # type: ignore[attr-defined,no-any-return]

    @admin.display(description=gettext_lazy("queue"))
    def queue(self, letter: DeadLetter) -> SafeString:
        return mono(letter.queue_name)

    @admin.display(description=gettext_lazy("options"))
    def options_shown(self, letter: DeadLetter) -> SafeString | str:
        return pretty_json(letter.options) if letter.options else _("those of the task")

    @admin.display(description=gettext_lazy("error"))
    def error(self, letter: DeadLetter) -> SafeString:
        return block(f"{letter.error_type}: {letter.error_text}".rstrip(": "))

    @admin.display(description=gettext_lazy("traceback"))
    def traceback_shown(self, letter: DeadLetter) -> SafeString:
        return block(letter.traceback)

    @admin.display(description=gettext_lazy("fingerprint"))
    def fingerprint_shown(self, letter: DeadLetter) -> SafeString:
        return mono(letter.fingerprint)

    @admin.display(description=gettext_lazy("last worker"))
    def worker_shown(self, letter: DeadLetter) -> SafeString:
        return mono(letter.worker)

    @admin.display(description=gettext_lazy("arguments"))
    def arguments_shown(self, letter: DeadLetter) -> SafeString:
        return letter.arguments_html  # type: ignore[attr-defined,no-any-return]

    @admin.display(description=gettext_lazy("enqueued"))
    def enqueued_exactly(self, letter: DeadLetter) -> SafeString:
        return when_exactly(letter.enqueued_at)

    @admin.display(description=gettext_lazy("due"))
    def run_at_exactly(self, letter: DeadLetter) -> SafeString:
        return when_exactly(letter.run_at)

    @admin.display(description=gettext_lazy("died"))
    def died_exactly(self, letter: DeadLetter) -> SafeString:
        return when_exactly(letter.died_at)

    # --- What can be done

    def has_replay_permission(self, request: HttpRequest) -> bool:
        return self.permits(request, REPLAY)

    def has_discard_permission(self, request: HttpRequest) -> bool:
        return self.permits(request, DISCARD)

    @admin.action(permissions=["replay"], description=gettext_lazy("Replay the chosen dead letters"))
    def replay(self, request: HttpRequest, letters: QuerySet[DeadLetter]) -> HttpResponse | None:
        return self.do_to_many(request, letters, REPLAY)

    @admin.action(permissions=["discard"], description=gettext_lazy("Discard the chosen dead letters"))
    def discard(self, request: HttpRequest, letters: QuerySet[DeadLetter]) -> HttpResponse | None:
        return self.do_to_many(request, letters, DISCARD)

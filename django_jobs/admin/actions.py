"""Acting on many rows: ask first, work in steps that fit into a request, audit each, say what happened.

A step works for `STEP` and then answers with a page that sends the next one by itself (or by its button, where scripts
are off). What is still to be done is told by one cursor over the primary key, up to the greatest one there was when the
person was asked: nothing that came later is swept in, and nothing is done twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, ClassVar, NamedTuple

from django.contrib import messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.options import get_content_type_for_model
from django.contrib.admin.utils import quote, unquote
from django.core import signing
from django.core.exceptions import BadRequest, PermissionDenied
from django.db import DatabaseError, transaction
from django.db.models import Count, QuerySet
from django.forms import Media
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path
from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext as _

from django_jobs.admin.base import ReadOnlyMixin
from django_jobs.admin.display import first_line

STEP = 5.0  # seconds of work in one request
MOST_LINES = 20  # rows named one by one in the message at the end
MOST_TASKS = 20  # tasks named one by one when asking
_SALT = "django_jobs.admin.actions"


class Said(NamedTuple):
    """What happened to one row."""

    level: int  # of django.contrib.messages
    kind: str  # what the summary counts, such as "replayed"
    text: str  # one sentence
    is_change: bool  # then it is audited


@dataclass
class Progress:
    """How far the work has come. It travels through the browser, signed."""

    upto: str
    total: int
    after: str = ""
    done: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    level: int = messages.SUCCESS

    def note(self, row: Any, said: Said) -> None:
        self.after = str(row.pk)
        self.done += 1
        self.counts[said.kind] = self.counts.get(said.kind, 0) + 1
        self.level = max(self.level, said.level)
        # Of many rows only those are named that went another way than the rest.
        if len(self.lines) < MOST_LINES and (self.total <= MOST_LINES or said.level != messages.SUCCESS):
            self.lines.append(said.text if self.total == 1 else f"{row}: {said.text}")

    @property
    def is_done(self) -> bool:
        return self.after == self.upto

    @property
    def done_shown(self) -> str:
        return f"{self.done:,}"

    @property
    def total_shown(self) -> str:
        return f"{self.total:,}"

    def sealed(self) -> str:
        return signing.dumps(asdict(self), salt=_SALT, compress=True)

    @classmethod
    def opened(cls, text: str) -> Progress:
        try:
            return cls(**signing.loads(text, salt=_SALT))
        except (signing.BadSignature, TypeError) as error:
            raise BadRequest("The progress of the action cannot be read. Start it again from the list.") from error

    def summary(self) -> str:
        return ", ".join(f"{count:,} {kind}" for kind, count in self.counts.items())


class Deed(NamedTuple):
    """One thing that can be done to rows."""

    name: str  # in addresses, and of the action in the list's menu
    permission: str
    question: Any  # texts are translated when shown
    yes: Any
    doing: Any  # the title while it is under way
    button: Any  # on a row's own page
    warning: Any  # there, before it is done; empty: it is done at once
    do: Callable[[HttpRequest, Sequence[Any], int], list[Said]]  # a batch, and how many rows there are in all
    consequence: Callable[[int], str]  # what it means for that many rows
    batch: int = 1  # rows in one transaction


class DeedsMixin(ReadOnlyMixin):
    """Does deeds to a selection of the list, or to one row from its own page."""

    deeds: ClassVar[tuple[Deed, ...]] = ()

    def permits(self, request: HttpRequest, deed: Deed) -> bool:
        return self.has_view_permission(request) and request.user.has_perm(deed.permission)

    def get_urls(self) -> list[Any]:
        return [
            path(
                f"<path:object_id>/{deed.name}/",
                self.admin_site.admin_view(partial(self.deed_view, deed=deed)),
                name=f"{self.opts.app_label}_{self.opts.model_name}_{deed.name}",
            )
            for deed in self.deeds
        ] + super().get_urls()

    def deed_view(self, request: HttpRequest, object_id: str, *, deed: Deed) -> HttpResponse:
        """What a button on a row's own page posts to."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        if not self.permits(request, deed):
            raise PermissionDenied
        row = self.get_object(request, unquote(object_id))
        if row is None:
            raise Http404
        (said,) = self._do(request, [row], deed, 1)
        self.message_user(request, said.text, said.level)
        return HttpResponseRedirect(self.address(self.model, "change", quote(row.pk)))

    def buttons(self, request: HttpRequest, row: Any) -> list[dict[str, Any]]:
        """The deeds that are open to this user, for the head of a row's own page."""
        return [
            {"deed": deed, "address": self.address(self.model, deed.name, quote(row.pk))}
            for deed in self.deeds
            if self.permits(request, deed)
        ]

    def do_to_many(self, request: HttpRequest, rows: QuerySet[Any], deed: Deed) -> HttpResponse | None:
        """Ask, work, or go on working. None: the list shows itself again."""
        rows = self._chosen(request, rows)
        if "progress" in request.POST:
            return self._work(request, rows, deed, Progress.opened(request.POST["progress"]))
        last = rows.order_by("-pk").values_list("pk", flat=True).first()
        if last is None:
            self.message_user(request, _("None of the chosen rows is there any more."), messages.WARNING)
            return None
        progress = Progress(upto=str(last), total=rows.filter(pk__lte=last).count())
        return self._ask(request, rows, deed, progress)

    def _chosen(self, request: HttpRequest, rows: QuerySet[Any]) -> QuerySet[Any]:
        if request.POST.get("select_across") == "1":
            return rows  # with the filters of the list
        # Exactly those that were ticked, even one that has left the filter meanwhile: what became of it is said.
        chosen = self.get_queryset(request).filter(pk__in=request.POST.getlist(ACTION_CHECKBOX_NAME))
        return chosen.defer(*self.large_fields)

    def _ask(self, request: HttpRequest, rows: QuerySet[Any], deed: Deed, progress: Progress) -> HttpResponse:
        by_task = rows.order_by().values_list("task_name").annotate(n=Count("pk")).order_by("-n", "task_name")
        listed = list(by_task[: MOST_TASKS + 1])
        context = {
            **self._page(request, deed, progress),
            "by_task": listed[:MOST_TASKS],
            "has_more_tasks": len(listed) > MOST_TASKS,
        }
        return TemplateResponse(request, "admin/django_jobs/confirm.html", context)

    def _work(self, request: HttpRequest, rows: QuerySet[Any], deed: Deed, progress: Progress) -> HttpResponse:
        stop = time.monotonic() + STEP
        for batch in _batches(rows, deed.batch, progress):
            for row, said in zip(batch, self._do(request, batch, deed, progress.total), strict=True):
                progress.note(row, said)
            if time.monotonic() > stop and not progress.is_done:
                page = self._page(request, deed, progress)
                return TemplateResponse(request, "admin/django_jobs/progress.html", page)
        self.message_user(request, _report(progress), progress.level)
        return HttpResponseRedirect(request.get_full_path())

    def _do(self, request: HttpRequest, rows: Sequence[Any], deed: Deed, total: int) -> list[Said]:
        try:
            with transaction.atomic(using=rows[0]._state.db):
                said = deed.do(request, rows, total)
                self._audit(request, [(row, each) for row, each in zip(rows, said, strict=True) if each.is_change])
        except DatabaseError as error:
            if len(rows) == 1:
                text = _("The database refused it: %(error)s") % {"error": first_line(str(error))}
                return [Said(messages.ERROR, _("failed"), text, is_change=False)]
            # One bad row does not stop the rest.
            return [each for row in rows for each in self._do(request, [row], deed, total)]
        return said

    def _audit(self, request: HttpRequest, changes: Sequence[tuple[Any, Said]]) -> None:
        if len(changes) == 1:
            ((row, said),) = changes
            self.log_change(request, row, said.text)
            return
        author: Any = request.user.pk
        content_type = get_content_type_for_model(self.model)
        LogEntry.objects.bulk_create(
            LogEntry(
                user_id=author,
                content_type=content_type,
                object_id=row.pk,
                object_repr=str(row)[:200],
                action_flag=CHANGE,
                change_message=said.text,
            )
            for row, said in changes
        )

    def _page(self, request: HttpRequest, deed: Deed, progress: Progress) -> dict[str, Any]:
        is_across = request.POST.get("select_across") == "1"
        chosen = request.POST.getlist(ACTION_CHECKBOX_NAME)
        request.current_app = self.admin_site.name
        return {
            **self.admin_site.each_context(request),
            "title": deed.doing if progress.done else deed.question,
            "opts": self.opts,
            "media": self.media + (Media(js=["django_jobs/continue.js"]) if progress.done else Media()),
            "deed": deed,
            "consequence": deed.consequence(progress.total),
            "progress": progress,
            "is_across": is_across,
            # With select_across one is enough, and keeps the form below DATA_UPLOAD_MAX_NUMBER_FIELDS.
            "chosen": chosen[:1] if is_across else chosen,
            "checkbox_name": ACTION_CHECKBOX_NAME,
            "list_address": request.get_full_path(),
        }


def _batches(rows: QuerySet[Any], size: int, progress: Progress) -> Iterator[list[Any]]:
    rest = rows.filter(pk__lte=progress.upto).order_by("pk")
    read = max(size, 100)
    while True:
        page = list(rest.filter(pk__gt=progress.after)[:read] if progress.after else rest[:read])
        yield from (page[start : start + size] for start in range(0, len(page), size))
        if len(page) < read:
            return


def _report(progress: Progress) -> str:
    """One message: the sentence about the only row, or the counts and a line about each row that matters."""
    if progress.total == 1 and progress.lines:
        return progress.lines[0]
    lines = format_html_join("", "<br>{}", ([line] for line in progress.lines))
    return format_html("{}.{}", progress.summary() or _("Nothing was left to do"), lines)

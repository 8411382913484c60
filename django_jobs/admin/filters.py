"""Side filters whose choices cost no query over the rows: no DISTINCT, no GROUP BY."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from django.contrib import admin
from django.contrib.admin.options import ModelAdmin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from django_jobs import registry
from django_jobs.admin.base import is_searching
from django_jobs.admin.display import strings
from django_jobs.admin.search import served_names
from django_jobs.conf import get_settings
from django_jobs.models import Worker
from django_jobs.statuses import DeathReason, JobStatus, LetterStatus, RunStatus

MOST_CHOICES = 50


class ColumnFilter(admin.SimpleListFilter):
    """Rows whose column equals the choice. Any value may be given in the address."""

    column: ClassVar[str]

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> list[tuple[str, Any]]:
        names = sorted(set(self.names(model_admin.get_queryset(request).db)))[:MOST_CHOICES]
        given = request.GET.get(self.parameter_name or "")
        if given and given not in names:
            names.append(given)
        return [(name, name) for name in names]

    def names(self, using: str) -> Iterable[str]:
        raise NotImplementedError

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value()
        if value is None:
            return queryset
        # PostgreSQL's driver raises ValueError on a NUL.
        return queryset.none() if "\0" in value else queryset.filter(**{self.column: value})


class QueueFilter(ColumnFilter):
    title = _("queue")
    parameter_name = "queue"
    column = "queue_name"

    def names(self, using: str) -> Iterable[str]:
        served = Worker.objects.using(using).values_list("queue_names", flat=True)[:200]
        yield from get_settings().QUEUES
        yield from (registry.get(name).queue_name for name in registry.names())
        yield from (name for each in served for name in strings(each))


class TaskFilter(ColumnFilter):
    title = _("task")
    parameter_name = "task"
    column = "task_name"

    def names(self, using: str) -> Iterable[str]:
        return {*registry.names(), *served_names(using)}


class ChoiceFilter(admin.SimpleListFilter):
    """Rows of one of the words that a column can be."""

    parameter_name = "status"
    title = _("status")
    choices_of: ClassVar[list[tuple[str, Any]]]

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> list[tuple[str, Any]]:
        return self.choices_of

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if self.value() not in dict(self.choices_of):
            return queryset
        return queryset.filter(**{self.parameter_name or "": self.value()})


class JobStatusFilter(ChoiceFilter):
    choices_of = JobStatus.choices


class RunStatusFilter(ChoiceFilter):
    choices_of = RunStatus.choices


class ReasonFilter(ChoiceFilter):
    title = _("reason")
    parameter_name = "reason"
    choices_of = DeathReason.choices


class LetterStatusFilter(ChoiceFilter):
    """Open letters unless something else is asked for: those are the ones that wait for a person."""

    choices_of = [*LetterStatus.choices, ("all", _("all"))]

    def value(self) -> str | None:
        return super().value() or self.default

    def __init__(self, request: HttpRequest, params: Any, model: Any, model_admin: ModelAdmin[Any]) -> None:
        self.default = "all" if is_searching(request) else LetterStatus.OPEN.value
        super().__init__(request, params, model, model_admin)

    def choices(self, changelist: Any) -> Any:
        for value, title in self.lookup_choices:
            yield {
                "selected": self.value() == value,
                "query_string": changelist.get_query_string({self.parameter_name: value}),
                "display": title,
            }

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset if self.value() == "all" else super().queryset(request, queryset)

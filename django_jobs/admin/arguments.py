"""The arguments of a job for people: only with the permission to see them, and never the sensitive ones."""

from __future__ import annotations

import json
from typing import Any

from django.db.models import TextField
from django.db.models.functions import Cast
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from django_jobs import registry
from django_jobs.admin.display import NOTHING, pretty_json
from django_jobs.models import DeadLetter, Job, JobRun

MASK = "********"
PERMISSION = "django_jobs.view_arguments"
UNREADABLE = (ValueError, RecursionError)  # too deep for Python: how deep is up to its version


def may_see_arguments(request: HttpRequest) -> bool:
    return request.user.has_perm(PERMISSION)


def arguments(request: HttpRequest, row: Job | JobRun | DeadLetter) -> SafeString:
    """The call that a row holds as indented JSON, named by parameter where the task is known."""
    if not may_see_arguments(request):
        return _note(_("Hidden: you need the permission to see the arguments of jobs."))
    task = registry.find(row.task_name)
    if task is None:
        return _note(
            _(
                "Hidden: task %(name)s is not registered in this process, so nobody here can tell which of its "
                "arguments are sensitive."
            )
            % {"name": repr(row.task_name)}
        )
    try:
        payload = _read(row, "payload")
        return SafeString(NOTHING) if payload is None else pretty_json(masked(payload, task))
    except UNREADABLE:
        return _note(_("What is stored cannot be read."))


def result(request: HttpRequest, run: JobRun) -> SafeString:
    """What a run returned, as indented JSON."""
    if not may_see_arguments(request):
        return _note(_("Hidden: you need the permission to see the arguments of jobs."))
    try:
        value = _read(run, "result")
        return SafeString(NOTHING) if value is None else pretty_json(value)
    except UNREADABLE:
        return _note(_("What is stored cannot be read."))


def _read(row: Job | JobRun | DeadLetter, column: str) -> Any:
    """A JSON column by way of its text, so that no row fails to load for what it holds, such as a very long number."""
    model: Any = type(row)
    rows = model._default_manager.using(row._state.db).filter(pk=row.pk)
    text = rows.values_list(Cast(column, TextField()), flat=True).first()
    return None if text is None else json.loads(text)


def masked(payload: Any, task: registry.Task) -> Any:
    """The stored call by parameter, its sensitive values replaced.

    What does not fit the task's parameters is masked as a whole if the task has anything sensitive.
    """
    named = _by_parameter(payload, task)
    if not task.sensitive:
        return payload if named is None else named
    if named is None:
        return MASK
    hidden = named.keys() if task.sensitive is True else {*task.sensitive, *_any_keywords(named, task)}
    return {name: MASK if name.lstrip("*") in hidden or name in hidden else value for name, value in named.items()}


def _by_parameter(payload: Any, task: registry.Task) -> dict[str, Any] | None:
    try:
        bound = task.parameters.signature.bind(*payload["args"], **payload["kwargs"])
    except (TypeError, KeyError):
        return None
    named = dict(bound.arguments)
    if (any_positional := task.parameters.var_positional) in named:
        named[f"*{any_positional}"] = list(named.pop(any_positional or ""))
    if (any_keyword := task.parameters.var_keyword) in named:
        named.update(named.pop(any_keyword or ""))
    return named


def _any_keywords(named: dict[str, Any], task: registry.Task) -> set[str]:
    """The names that came in by **kwargs, if that parameter itself is sensitive."""
    if task.sensitive is True or task.parameters.var_keyword not in task.sensitive:
        return set()
    return named.keys() - task.parameters.names()


def _note(text: str) -> SafeString:
    return format_html('<span class="dj-note">{}</span>', text)

"""The arguments of a job for people: only with the permission to see them, and never the sensitive ones."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from django_jobs import registry
from django_jobs.admin.display import NOTHING, pretty_json

MASK = "********"
PERMISSION = "django_jobs.view_arguments"


def may_see_arguments(request: HttpRequest) -> bool:
    return request.user.has_perm(PERMISSION)


def arguments(request: HttpRequest, task_name: str, payload: Any) -> SafeString:
    """A stored call as indented JSON, named by parameter where the task is known."""
    if not may_see_arguments(request):
        return _note(_("Hidden: you need the permission to see the arguments of jobs."))
    if payload is None:
        return SafeString(NOTHING)
    task = registry.find(task_name)
    if task is None:
        return _note(
            _(
                "Hidden: task %(name)s is not registered in this process, so nobody here can tell which of its "
                "arguments are sensitive."
            )
            % {"name": repr(task_name)}
        )
    return pretty_json(masked(payload, task))


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


def result(request: HttpRequest, value: Any) -> SafeString:
    if value is None:
        return SafeString(NOTHING)
    if not may_see_arguments(request):
        return _note(_("Hidden: you need the permission to see the arguments of jobs."))
    return pretty_json(value)


def _note(text: str) -> SafeString:
    return format_html('<span class="dj-note">{}</span>', text)

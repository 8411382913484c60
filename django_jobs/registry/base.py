"""The class that Task is built on: Django's own Task from 6.0 on, a plain one of the same shape before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any


@dataclass(frozen=True, kw_only=True)
class PlainTask:
    """What Django's Task holds, for Django 5.2."""

    func: Callable[..., Any]
    priority: int = 0
    backend: str = "default"
    queue_name: str = "default"
    run_after: datetime | None = None
    takes_context: bool = False


if TYPE_CHECKING:
    BaseTask = PlainTask  # One static class, whichever Django is installed.
else:
    try:
        from django.tasks.base import Task as BaseTask
    except ImportError:
        BaseTask = PlainTask

"""Tasks that the suite enqueues. Autodiscovery finds them, as in any app."""

from __future__ import annotations

from typing import Any

from django_jobs import task
from tests.models import Effect


@task
def note(label: str) -> None:
    """Leave one Effect."""
    Effect.objects.create(label=label)


@task
def echo(*args: Any, **kwargs: Any) -> list[Any]:
    return [list(args), kwargs]


@task(queue_name="mail")
def mail(label: str) -> None:
    Effect.objects.create(label=label)


@task(max_attempts=1)
def broken(label: str = "") -> None:
    raise ValueError("broken")

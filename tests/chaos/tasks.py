"""One task for each kind of promise. `trouble` is how many of its runs fail first, after their effect."""

from __future__ import annotations

import asyncio
import os
import time

from django.db import transaction

from django_jobs import JobContext, once, task
from django_jobs.context import _current
from tests.chaos.models import Cured, Effect, Start

STEP = 0.05  # seconds
SOON = 0.3  # seconds until a retry, at most


class Trouble(Exception):
    pass


def _fence() -> dict[str, object]:
    run = _current.get().run  # type: ignore[union-attr]
    return {"job_id": run.job_id, "claim_number": run.claim_number}


def _start() -> None:
    Start.objects.create(**_fence())


def _leave_effect(label: str) -> None:
    Effect.objects.create(label=label, **_fence())


def _fail(context: JobContext, trouble: int) -> None:
    if context.failures < trouble:
        raise Trouble(f"{context.failures} of {trouble}")


@task(backoff=SOON, takes_context=True)
def plain(context: JobContext, label: str, trouble: int = 0) -> None:
    _start()
    _leave_effect(label)
    _fail(context, trouble)


@task(backoff=SOON, takes_context=True, atomic=True, timeout=20)
def atomic(context: JobContext, label: str, trouble: int = 0) -> None:
    _leave_effect(label)
    _fail(context, trouble)


@task(backoff=SOON, takes_context=True)
def guarded(context: JobContext, label: str, trouble: int = 0) -> None:
    """Its effect is guarded by once()."""
    _start()
    with transaction.atomic():
        if once(label):
            _leave_effect(label)
    _fail(context, trouble)


@task(backoff=SOON, takes_context=True)
def slow(context: JobContext, label: str, seconds: float) -> None:
    """Longer than a lease, some of them; in small steps, so that it can be interrupted."""
    _start()
    until = time.monotonic() + seconds
    while time.monotonic() < until and not context.is_cancelled:
        time.sleep(STEP)
    _leave_effect(label)


@task(backoff=SOON)
async def aslow(label: str, seconds: float) -> None:
    await Start.objects.acreate(**_fence())
    await asyncio.sleep(seconds)
    await Effect.objects.acreate(label=label, **_fence())


@task(backoff=SOON, max_attempts=2)
def doomed(label: str) -> None:
    """It fails until somebody has cured what was wrong, and sends it back."""
    _start()
    if not Cured.objects.filter(label=label).exists():
        raise Trouble("not cured")
    _leave_effect(label)


@task(backoff=SOON, max_attempts=2, timeout=0.4)
def late(label: str) -> None:
    """It never comes to its effect."""
    _start()
    while True:
        time.sleep(STEP)


@task(backoff=SOON)
def deadly(label: str) -> None:
    """It takes its process along."""
    _start()
    os._exit(70)

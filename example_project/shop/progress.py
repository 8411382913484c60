"""What became of an order's jobs, in words for the person who waits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.utils import timezone
from django.utils.timesince import timeuntil

from django_jobs import JobDoesNotExist, JobInfo, get_job
from django_jobs.models import DeadLetter
from shop.models import Order


@dataclass(frozen=True)
class Step:
    """One job of an order as its page shows it."""

    title: str
    job_id: UUID
    status: str
    attempt: int
    note: str
    at: datetime | None
    is_settled: bool


def steps_of(order: Order) -> list[Step]:
    """The order's jobs in the order in which they were asked for, replays included."""
    steps = list(_steps("Stock and invoice", order.job_id))
    if hasattr(order, "invoice"):
        steps += _steps("Mail with the invoice", order.invoice.mail_job_id)
    return steps


def is_settled(order: Order, steps: list[Step]) -> bool:
    """Nothing will change by itself any more."""
    # A success without an invoice: the order was read just before the job ended. The next look shows both.
    is_stale = bool(steps) and steps[-1].status == "succeeded" and not hasattr(order, "invoice")
    return all(each.is_settled for each in steps) and not is_stale


def _steps(title: str, job_id: UUID | None) -> Iterator[Step]:
    """A job, and the jobs it was replayed as."""
    while job_id:
        try:
            yield _step(title, get_job(job_id))
        except JobDoesNotExist:
            return  # pruned: its history is older than the shop keeps it
        letter = DeadLetter.objects.filter(job_id=job_id).only("replayed_as").first()
        job_id = letter.replayed_as if letter else None
        title = "Replayed by a person"


def _step(title: str, job: JobInfo) -> Step:
    return Step(
        title=title,
        job_id=job.id,
        status=str(job.status),
        attempt=job.attempt,
        note=_note(job),
        at=job.ended_at or job.started_at or job.enqueued_at,
        is_settled=job.is_finished,
    )


def _note(job: JobInfo) -> str:
    """Why it waits, or how it ended."""
    wait = "any moment" if not job.run_at or job.run_at <= timezone.now() else f"in {timeuntil(job.run_at)}"
    notes = {
        "ready": "Waits for a worker with a free hand.",
        "scheduled": f"Failed {job.failures} times and is tried again {wait}." if job.failures else f"Is due {wait}.",
        "waiting": "No running worker knows this task yet.",
        "running": "Is being worked on."
        if job.attempt < 2
        else f"Is being worked on, for the {_nth(job.attempt)} time.",
        "dead": job.error_text or "Will not be tried again by itself.",
        "replayed": job.error_text or "Died, and was replayed.",
    }
    return notes.get(str(job.status), "")


def _nth(number: int) -> str:
    return {2: "second", 3: "third"}.get(number, f"{number}th")

"""A scheduler for one night. Two of them may run: on two machines, so that the report survives the loss of one."""

from __future__ import annotations

import time
from datetime import date, datetime
from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.utils import timezone

from django_jobs import LockNotAcquired, enqueue, lock
from shop.tasks import nightly_report


class Command(BaseCommand):
    help = "Start the nightly report of a day, once however many schedulers do so."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--day", type=date.fromisoformat, help="the day to report on; today without it")
        parser.add_argument("--at", type=datetime.fromisoformat, help="when to start, with offset; now without it")

    def handle(self, *args: Any, **options: Any) -> None:
        day = options["day"] or timezone.localdate()
        if options["at"]:
            time.sleep(max(0.0, (options["at"] - timezone.now()).total_seconds()))
        self.stdout.write(start_report(day))


def start_report(day: date) -> str:
    """Enqueue the report of a day. What happened, as a sentence.

    The lock keeps two schedulers from preparing the same night at once. The key is what makes it one report: it holds
    when the lock is free again, and when a scheduler that was stopped wakes up after its lock has expired.
    """
    name = f"nightly-report:{day}"
    try:
        with lock(name, ttl=3600):
            job = enqueue(nightly_report.using(key=name), day)
    except LockNotAcquired:
        return f"The report of {day} is being started by another scheduler."
    return f"The report of {day} is job {job.id}." if job.created else f"The report of {day} was started before."

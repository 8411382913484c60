"""manage.py jobs_prune: delete what is past its retention, now."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from django_jobs.lifecycle.prune import prune
from django_jobs.management.databases import answering, job_database


class Command(BaseCommand):
    help = "Deletes runs, closed dead letters, keys and locks that are past their retention, in small batches."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--database", help="alias of the database to prune; by default the one jobs are written to")

    def handle(self, *args: Any, **options: Any) -> None:
        using = job_database(options["database"])
        with answering(using):
            counts = prune(using=using)
        found = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in sorted(counts.items()) if count)
        self.stdout.write(f"Deleted {found}." if found else "Nothing was old enough to delete.")

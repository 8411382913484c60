"""manage.py jobs_prune: delete what is past its retention, now."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DEFAULT_DB_ALIAS, connections

from django_jobs.conf import did_you_mean
from django_jobs.lifecycle.prune import prune


class Command(BaseCommand):
    help = "Deletes runs, closed dead letters, keys and locks that are past their retention, in small batches."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--database", default=DEFAULT_DB_ALIAS, metavar="alias", help="the database that holds the jobs"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        using = options["database"]
        if using not in connections.settings:
            known = did_you_mean(using, connections.settings)
            raise CommandError(f"Database {using!r} is not in settings.DATABASES.{known}")
        counts = prune(using=using)
        found = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in sorted(counts.items()) if count)
        self.stdout.write(f"Deleted {found}." if found else "Nothing was old enough to delete.")

"""Tell what is wrong with the jobs, in words and by exit code."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from django_jobs.management.databases import answering, job_database
from django_jobs.observe.alerts import Alert, find_alerts

UNKNOWN = 3


class Command(BaseCommand):
    help = (
        "Prints a line for each alert, or OK. "
        "Exit code: 0 all is well, 1 warn, 2 page, 3 the database could not be asked."
    )
    requires_system_checks: list[str] = []  # It asks one question, once a minute.

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--database", help="alias of the database to ask; by default the one jobs are written to")
        parser.add_argument("--json", action="store_true", help="print a JSON list of alerts instead of lines")

    def handle(self, *args: Any, **options: Any) -> None:
        using = job_database(options["database"], returncode=UNKNOWN)
        with answering(using, returncode=UNKNOWN):
            alerts = find_alerts(using=using)
        if options["json"]:
            self.stdout.write(json.dumps([_as_json(alert) for alert in alerts], indent=2))
        else:
            for alert in alerts:
                self.stdout.write(f"{alert.level.name} {alert.name}: {alert.message}")
            if not alerts:
                self.stdout.write("OK")
        if alerts:
            sys.exit(max(alert.level for alert in alerts))


def _as_json(alert: Alert) -> dict[str, Any]:
    return {**dataclasses.asdict(alert), "level": alert.level.name.lower()}

"""manage.py jobs_doctor: say what slows the queue down, and how to mend it."""

from __future__ import annotations

import json
import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connections

from django_jobs.doctor.examination import SERVER, examine
from django_jobs.doctor.findings import Finding, Level
from django_jobs.doctor.report import lines
from django_jobs.management.databases import answering, job_database

UNKNOWN = 3


class Command(BaseCommand):
    help = (
        "Looks at what slows a queue down or puts a promise at risk, and says how to mend it. "
        "Exit code: 0 fine, 1 warnings, 2 problems, 3 the database could not be asked."
    )
    requires_system_checks: list[str] = []  # It looks closer than they do.

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--database", help="alias of the database to look at; by default the one jobs are written to"
        )
        parser.add_argument("--json", action="store_true", help="print JSON instead of lines")

    def handle(self, *args: Any, **options: Any) -> None:
        using = job_database(options["database"], returncode=UNKNOWN)
        findings = self._examine(using)
        code = max((finding.level.exit_code for finding in findings), default=0)
        if options["json"]:
            self.stdout.write(json.dumps(_as_json(using, code, findings), indent=2))
        else:
            self.stdout.write(f"The queue on database {using!r}:\n")
            for line in lines(findings, self._paint):
                self.stdout.write(line)
        if code:
            sys.exit(code)

    def _examine(self, using: str) -> list[Finding]:
        if connections[using].vendor not in SERVER:
            name = connections[using].display_name
            raise CommandError(
                f"Database {using!r} is a {name}, which django_jobs does not support.", returncode=UNKNOWN
            )
        with answering(using, returncode=UNKNOWN):
            return examine(using)

    def _paint(self, level: Level, text: str) -> str:
        style = {Level.PROBLEM: self.style.ERROR, Level.WARNING: self.style.WARNING, Level.FINE: self.style.SUCCESS}
        return str(style[level](text)) if level in style else text


def _as_json(using: str, code: int, findings: list[Finding]) -> dict[str, Any]:
    return {
        "database": using,
        "exit_code": code,
        "findings": [
            {"level": each.level.value, "name": each.name, "message": each.message, "mend": list(each.mend)}
            for each in findings
        ],
    }

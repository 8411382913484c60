"""manage.py jobs_bench: measure this database with the app's own code."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connections

from django_jobs.bench.costs import Probes, between
from django_jobs.bench.session import Refused, others, session
from django_jobs.bench.task import QUEUE
from django_jobs.bench.verdict import HEADER, limits, quantile, row
from django_jobs.bench.workloads import Bench, NothingStarted
from django_jobs.management.databases import job_database

LEAST_JOBS = 10


class Command(BaseCommand):
    help = (
        "Measures how fast this database enqueues, claims and finishes jobs, and says what limits it. "
        "It writes jobs that do nothing into a queue of its own, and deletes them."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        add = parser.add_argument
        add("--database", help="alias of the database to measure; by default the one jobs are written to")
        add("--jobs", type=int, default=20_000, metavar="N", help="jobs for each measurement, at most (default: 20000)")
        add("--seconds", type=float, default=5.0, help="time for each measurement, at most (default: 5)")

    def handle(self, *args: Any, **options: Any) -> None:
        using = job_database(options["database"])
        if options["jobs"] < LEAST_JOBS or not options["seconds"] > 0:
            raise CommandError(f"--jobs must be at least {LEAST_JOBS}, and --seconds more than 0.")
        try:
            with session(using=using, jobs=options["jobs"], seconds=options["seconds"]) as bench:
                self._measure(bench)
        except (Refused, NothingStarted) as error:
            raise CommandError(str(error)) from error

    def _measure(self, bench: Bench) -> None:
        say, using = self.stdout.write, bench.using
        say(f"Database {using!r} ({connections[using].display_name}), queue {QUEUE!r}.")
        say(f"Each measurement ends after {bench.jobs:,} jobs or {bench.seconds:g} s. Log lines and signals are off.")
        probes = Probes.measure(bench.worker, using=using)
        say("")
        say(f"{'round trip':31}{probes.trip * 1e3:>9.3f} ms")
        say(f"{'commit, beyond its round trip':31}{probes.flush * 1e3:>9.3f} ms")
        say("")
        say(HEADER)
        rates = []
        for rate in bench.rates():
            before, probes = probes, Probes.measure(bench.worker, using=using)
            rates.append((rate, between(before, probes)))
            say(row(*rates[-1]))
        say("")
        say(f"The commit at the end: {probes.flush * 1e3:.3f} ms.")
        found = bench.latencies()
        half, most = (quantile(found, share) * 1e3 for share in (0.5, 0.99))
        say(f"From commit to start, by a worker that sleeps: half within {half:.1f} ms, 99 % within {most:.1f} ms.")
        for line in limits(rates):
            say(line)
        self._warn_of_others(bench)

    def _warn_of_others(self, bench: Bench) -> None:
        for name in others(bench.using):
            if name != bench.worker.name:
                self.stdout.write(
                    f"\nWorker {name} came meanwhile and took some of these jobs. Measure again without it."
                )

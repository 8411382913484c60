"""manage.py runworker: serve queues."""

from __future__ import annotations

import argparse
import atexit
import gc
import logging
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from django.conf import settings
from django.core.checks import Tags
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DEFAULT_DB_ALIAS, OperationalError, connections
from django.utils import autoreload

from django_jobs.checks import TAG
from django_jobs.execution.answers import Wait
from django_jobs.management.banner import banner
from django_jobs.management.databases import job_database, lacks_migrations
from django_jobs.worker import Worker
from django_jobs.worker.connection import own_connection, prepare_connections
from django_jobs.worker.inline import run_jobs
from django_jobs.worker.memory import give_back
from django_jobs.worker.options import WorkerOptions, read_options
from django_jobs.worker.signals import StopSignals
from django_jobs.worker.supervisor import Supervisor
from django_jobs.worker.tether import Place, Stops, Tether
from django_jobs.worker.wirecutter import Wirecutter

LEVELS = {0: logging.WARNING, 1: logging.INFO, 2: logging.INFO, 3: logging.DEBUG}
ANSWER_PATIENCE = 5.0  # seconds for a statement at the start
RELOAD_PATIENCE = 5.0  # seconds


class Command(BaseCommand):
    # Not those of the pages, which would import every view of the project into a process that shows none.
    requires_system_checks = [TAG, Tags.models]
    help = "Runs background jobs until it is stopped."

    def add_arguments(self, parser: CommandParser) -> None:
        add = parser.add_argument
        add("--queues", metavar="a,b", type=_names, help="serve these queues only (default: all)")
        add("--processes", type=int, metavar="N", help="run N worker processes under a supervisor (0: one, without)")
        add("--threads", type=int, help="sync tasks at once")
        add("--async-concurrency", type=int, help="async tasks at once")
        add("--burst", action="store_true", help="end when nothing is ready")
        add("--max-jobs", type=int, metavar="N", help="end, or be replaced, after N jobs were started")
        add("--max-memory", type=int, metavar="MB", help="end, or be replaced, when the process takes more memory")
        add("--database", default=DEFAULT_DB_ALIAS, metavar="alias", help="the database that holds the jobs")
        add("--name", default="", help="what this worker is called in logs and runs (default: host:pid)")
        add("--grace", type=float, metavar="SECONDS", help="after a stop signal, running jobs have so long to end")
        add("--poll-interval", type=float, metavar="SECONDS", help="look for jobs at least so often")
        add("--noreload", action="store_true", help="with DEBUG, do not start again when code changes")
        add("--child", type=_place, metavar="PLACE", help="what a supervisor says to its processes")

    def handle(self, *args: Any, **options: Any) -> None:
        signals = StopSignals()
        worker_options, place = self._read(options), options["child"]
        if connections[worker_options.using].in_atomic_block:
            self._run_inline(worker_options)
        elif place is None and options["processes"] is None and self._reloads(worker_options, options["noreload"]):
            # In the reloader's thread a refusal is a traceback, and a process that waits for ever.
            self._check_tables(worker_options.using)
            connections[worker_options.using].close()
            autoreload.run_with_reloader(self._run_reloading, worker_options, options["verbosity"])
        else:
            signals.install()
            try:
                if place is None and self._is_supervised(worker_options, asked=options["processes"]):
                    self._supervise(worker_options, signals, options["verbosity"])
                else:
                    self._run(worker_options, signals, options["verbosity"], place)
            finally:
                signals.restore()

    def _is_supervised(self, worker_options: WorkerOptions, *, asked: int | None) -> bool:
        if not worker_options.processes:
            return False
        # The processes are started by the same command line.
        if os.name == "posix" and getattr(self, "_called_from_command_line", False):
            return True
        if asked:
            raise CommandError("--processes needs a POSIX system, and `manage.py runworker` as the command line.")
        return False

    def _supervise(self, worker_options: WorkerOptions, signals: StopSignals, verbosity: int) -> None:
        self._check_tables(worker_options.using)
        connections[worker_options.using].close()
        with _console_log(verbosity):
            supervisor = Supervisor(
                worker_options.processes,
                autoreload.get_child_arguments(),
                using=worker_options.using,
                grace=worker_options.grace.total_seconds(),
                ends_when_done=worker_options.burst,
            )
            signals.attach(supervisor.stop)
            self._say(worker_options, verbosity)
            code = supervisor.run()
        if code:
            sys.exit(code)

    def _say(self, worker_options: WorkerOptions, verbosity: int) -> None:
        if verbosity > 0:
            self.stdout.write(banner(worker_options))
            self.stdout.flush()

    def _read(self, options: dict[str, Any]) -> WorkerOptions:
        using = job_database(options["database"])
        try:
            return read_options(
                using=using,
                queue_names=options["queues"],
                threads=options["threads"],
                async_concurrency=options["async_concurrency"],
                burst=options["burst"],
                max_jobs=options["max_jobs"],
                max_memory=options["max_memory"],
                processes=options["processes"],
                name=options["name"],
                grace=options["grace"],
                poll_interval=options["poll_interval"],
            )
        except ValueError as error:
            raise CommandError(str(error)) from None

    def _reloads(self, worker_options: WorkerOptions, noreload: bool) -> bool:
        is_limited = worker_options.burst or worker_options.max_jobs or worker_options.max_memory
        return settings.DEBUG and not noreload and not is_limited

    def _run_inline(self, worker_options: WorkerOptions) -> None:
        if not worker_options.burst:
            raise CommandError("Inside a transaction, such as a TestCase's, a worker can only run with --burst.")
        run_jobs(using=worker_options.using, queue_names=worker_options.queue_names, max_jobs=worker_options.max_jobs)

    def _run_reloading(self, worker_options: WorkerOptions, verbosity: int) -> None:
        """Under the reloader: it is the main thread, so signals and changed code arrive as the interpreter's end."""
        signals = StopSignals()
        ended = threading.Event()

        def end() -> None:
            for _ in range(2):  # there is no time for a grace
                signals.tell("Ctrl-C or changed code")
            ended.wait(RELOAD_PATIENCE)

        atexit.register(end)
        try:
            self._run(worker_options, signals, verbosity)
        finally:
            ended.set()

    def _run(
        self, worker_options: WorkerOptions, signals: StopSignals, verbosity: int, place: Place | None = None
    ) -> None:
        self._check_tables(worker_options.using)
        with _console_log(verbosity):
            if place is None:
                worker = Worker(worker_options)
                signals.attach(worker.stop)
                self._say(replace(worker_options, processes=0), verbosity)
            else:
                worker = _tethered(worker_options, signals, place)
            if self._has_process:
                # What is loaded by now stays loaded: the collector shall not look through it again and again.
                gc.collect()
                gc.freeze()
                give_back()
            code = worker.run()
        # The reloader ends the process itself, with the exit code by which it is started again.
        is_reloading = threading.current_thread() is not threading.main_thread()
        if worker.has_leftovers and not is_reloading and self._has_process:
            _leave(code)
        if code:
            sys.exit(code)

    @property
    def _has_process(self) -> bool:
        """Whether the process is there for this command alone."""
        return getattr(self, "_called_from_command_line", False)

    def _check_tables(self, using: str) -> None:
        prepare_connections()
        try:
            with Wirecutter(), own_connection(using), Wait(connections[using], ANSWER_PATIENCE):
                problem = lacks_migrations(using)
        except OperationalError:
            return  # The database is away: the worker waits for it.
        if problem:
            raise CommandError(problem)


def _tethered(worker_options: WorkerOptions, signals: StopSignals, place: Place) -> Worker:
    """A supervisor's worker."""
    name = worker_options.name and f"{worker_options.name}-{place.number}"
    worker = Worker(replace(worker_options, name=name), place.open_marks())
    stops = Stops(worker.stop)
    signals.attach(stops.signal)
    Tether(place.pipe, stops)
    return worker


def _place(text: str) -> Place:
    try:
        return Place.parse(text)
    except ValueError:
        raise argparse.ArgumentTypeError("It is for the supervisor of --processes alone.") from None


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise argparse.ArgumentTypeError(f"{text!r} has an empty queue name. Separate names by single commas.")
    return names


@contextmanager
def _console_log(verbosity: int) -> Iterator[None]:
    """Show the log on the console, if the project has not said where it goes."""
    logger = logging.getLogger("django_jobs")
    if logger.hasHandlers():
        yield
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    former = logger.level
    logger.addHandler(handler)
    logger.setLevel(LEVELS[verbosity])
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(former)


def _leave(code: int) -> None:
    """End the process although a task still runs in a thread, which the interpreter would wait for."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)

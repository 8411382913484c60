"""Django's system checks for django_jobs.

=================== ===================================================================================================
django_jobs.E001    A key of DJANGO_JOBS is unknown, its value is of no use, or two of them contradict each other.
django_jobs.E002    A task is declared for a queue that DJANGO_JOBS["QUEUES"] does not list.
django_jobs.E003    DJANGO_JOBS["ADMIN_BASE"] cannot be imported, or is no ModelAdmin.
django_jobs.E004    A database with jobs cannot skip locked rows, so that workers would wait for each other.
django_jobs.E005    A database with jobs is of a kind that django_jobs does not support.
django_jobs.E006    A database with jobs has AUTOCOMMIT off, so that nothing a worker writes would be committed.
django_jobs.W001    A SQLite database with jobs lacks OPTIONS without which workers meet "database is locked".
django_jobs.W002    A MariaDB or MySQL database with jobs is not set to READ COMMITTED, so that workers meet deadlocks.
django_jobs.W003    DJANGO_JOBS["IMMEDIATE"] is on in production (with ``check --deploy``): nothing is queued.
django_jobs.W004    Autovacuum is off, or a table lacks the settings with which it is vacuumed in time.
django_jobs.W005    A table lacks an index or a constraint that the models declare, or has an INVALID one.
django_jobs.W006    A time limit of the database's role cuts workers off.
django_jobs.W007    The server answers commits that are not on its disk yet (with ``check --deploy``).
=================== ===================================================================================================

A database has jobs if the router writes jobs to it, or if a command names it, as ``check --database ALIAS`` does. E004
and W004 to W007 ask the server, and so come in the second case only; ``jobs_doctor`` looks closer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from django.apps import AppConfig, apps
from django.conf import settings as django_settings
from django.core.checks import CheckMessage, Error, Tags, register
from django.core.checks import Warning as Advice
from django.db import DatabaseError, InterfaceError, OperationalError, connections, router
from django.utils.module_loading import import_string

from django_jobs import registry
from django_jobs.conf import Settings, did_you_mean, read
from django_jobs.models import Job

TAG = "django_jobs"
SQLITE_OPTIONS = """\
"OPTIONS": {
    "transaction_mode": "IMMEDIATE",
    "timeout": 20,
    "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
}"""

AppConfigs = Sequence[AppConfig] | None


@register(TAG)
def check_settings(app_configs: AppConfigs = None, **kwargs: Any) -> list[CheckMessage]:
    """Report all that is wrong in DJANGO_JOBS (E001), and queues of tasks that it does not list (E002)."""
    settings, problems = _settings()
    if problems:
        return [
            Error(each, hint="See django_jobs.conf.Settings for every key.", id="django_jobs.E001") for each in problems
        ]
    return list(_queues_of_tasks(settings))


def _settings() -> tuple[Settings, list[str]]:
    return read(getattr(django_settings, "DJANGO_JOBS", {}))


def _queues_of_tasks(settings: Settings) -> Iterator[CheckMessage]:
    for task in registry.all_tasks() if settings.QUEUES else ():
        if task.queue_name not in settings.QUEUES:
            hint = did_you_mean(task.queue_name, settings.QUEUES) or ' Add it to DJANGO_JOBS["QUEUES"].'
            yield Error(
                f'Task {task.name!r} is declared for queue {task.queue_name!r}, which is not in DJANGO_JOBS["QUEUES"].',
                hint=hint.strip(),
                obj=task.module_path,
                id="django_jobs.E002",
            )


@register(TAG, Tags.admin)
def check_admin_base(app_configs: AppConfigs = None, **kwargs: Any) -> list[CheckMessage]:
    """Report a base class that the admin pages cannot be built on (E003)."""
    if not apps.is_installed("django.contrib.admin"):
        return []
    path = _settings()[0].ADMIN_BASE
    hint = 'Give the dotted path of a ModelAdmin, such as "unfold.admin.ModelAdmin".'
    try:
        base = import_string(path)
    except ImportError as error:
        return [
            Error(f'DJANGO_JOBS["ADMIN_BASE"] = {path!r} cannot be imported: {error}', hint=hint, id="django_jobs.E003")
        ]
    if isinstance(base, type) and issubclass(base, import_string("django.contrib.admin.ModelAdmin")):
        return []
    return [Error(f'DJANGO_JOBS["ADMIN_BASE"] = {path!r} is no ModelAdmin.', hint=hint, id="django_jobs.E003")]


@register(TAG, deploy=True)
def check_immediate(app_configs: AppConfigs = None, **kwargs: Any) -> list[CheckMessage]:
    """Report that jobs run inside the call that enqueues them (W003)."""
    if not _settings()[0].IMMEDIATE:
        return []
    message = 'DJANGO_JOBS["IMMEDIATE"] is True: each job runs inside the call that enqueues it.'
    return [Advice(message, hint="It is meant for tests. Take it out of these settings.", id="django_jobs.W003")]


@register(TAG)
def check_database(app_configs: AppConfigs = None, **kwargs: Any) -> list[CheckMessage]:
    """Report what is wrong in the options of the database with the jobs (E005, E006, W001, W002). Asks no server."""
    return list(_options_of(router.db_for_write(Job)))


@register(TAG, Tags.database)
def check_named_databases(
    app_configs: AppConfigs = None, databases: Sequence[str] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    """Report the same for the databases that a command names, and what their servers cannot do (E004)."""
    found: list[CheckMessage] = []
    for alias in databases or ():
        if router.allow_migrate_model(alias, Job):
            found += _features_of(alias)
            found += _options_of(alias) if alias != router.db_for_write(Job) else ()
    return found


# Not under TAG: Django 6.1 names every database to a tagged check, whether or not somebody wants them asked.
@register(Tags.database)
def check_servers(
    app_configs: AppConfigs = None, databases: Sequence[str] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    """Report what is wrong on the servers that a command names and costs little to ask (W004 to W006)."""
    return list(_findings_of(databases or (), deployed=False))


@register(Tags.database, deploy=True)
def check_durability(
    app_configs: AppConfigs = None, databases: Sequence[str] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    """Report commits that a crash may lose (W007): fine for tests."""
    return list(_findings_of(databases or (), deployed=True))


IDS = {
    "autovacuum": "django_jobs.W004",
    "indexes": "django_jobs.W005",
    "timeouts": "django_jobs.W006",
    "durability": "django_jobs.W007",
}


def _findings_of(databases: Sequence[str], *, deployed: bool) -> Iterator[CheckMessage]:
    if not databases:
        return
    # Here, lest each web process and worker hold the whole doctor for an answer that only a command asks for.
    from django_jobs.doctor.examination import SERVER, examine_settings
    from django_jobs.doctor.findings import Level

    for alias in databases:
        if not router.allow_migrate_model(alias, Job) or connections[alias].vendor not in SERVER:
            continue
        try:
            found = examine_settings(alias, deployed=deployed)
        except (DatabaseError, InterfaceError):
            continue  # A server that cannot be asked is no finding.
        for finding in found:
            if finding.level in (Level.WARNING, Level.PROBLEM):
                message = f"Database {alias!r}: {finding.message}"
                yield Advice(message, hint="\n".join(finding.mend), id=IDS[finding.name])


def _options_of(alias: str) -> Iterator[CheckMessage]:
    vendor = connections[alias].vendor
    if not connections[alias].settings_dict["AUTOCOMMIT"]:
        yield Error(
            f"Database {alias!r} has AUTOCOMMIT off: workers would commit nothing, and enqueue() wakes none.",
            hint=f"Take AUTOCOMMIT out of DATABASES[{alias!r}], and use transaction.atomic().",
            id="django_jobs.E006",
        )
    if vendor == "sqlite":
        yield from _sqlite_options(alias)
    elif vendor == "mysql":
        yield from _mysql_options(alias)
    elif vendor != "postgresql":
        yield Error(
            f"Database {alias!r} is a {connections[alias].display_name}, which django_jobs does not support.",
            hint="Route the app django_jobs to PostgreSQL, MariaDB, MySQL or SQLite.",
            id="django_jobs.E005",
        )


def _sqlite_options(alias: str) -> Iterator[CheckMessage]:
    connection = connections[alias]
    if connection.is_in_memory_db():  # type: ignore[attr-defined]  # SQLite's own
        return
    options = connection.settings_dict.get("OPTIONS", {})
    missing = []
    if str(options.get("transaction_mode")).upper() not in {"IMMEDIATE", "EXCLUSIVE"}:
        missing.append("transaction_mode")
    if "timeout" not in options:
        missing.append("timeout")
    if not re.search(r"journal_mode\s*=\s*['\"]?wal", str(options.get("init_command")), re.IGNORECASE):
        missing.append("journal_mode=WAL")
    if missing:
        yield Advice(
            f"SQLite database {alias!r} lacks {', '.join(missing)}: a worker and a web request that write at once can "
            'fail with "database is locked".',
            hint=f"Put this into DATABASES[{alias!r}]:\n{SQLITE_OPTIONS}",
            id="django_jobs.W001",
        )


def _mysql_options(alias: str) -> Iterator[CheckMessage]:
    # Django itself asks for READ COMMITTED where the option is absent.
    level = connections[alias].settings_dict.get("OPTIONS", {}).get("isolation_level", "read committed")
    if str(level).lower() != "read committed":
        yield Advice(
            f"Database {alias!r} has isolation_level {level!r}, in which claims lock gaps and workers meet deadlocks.",
            hint=f'Set DATABASES[{alias!r}]["OPTIONS"]["isolation_level"] to "read committed", Django\'s default.',
            id="django_jobs.W002",
        )


def _features_of(alias: str) -> Iterator[CheckMessage]:
    connection = connections[alias]
    if connection.vendor != "mysql":  # PostgreSQL has it; SQLite has one writer at a time and needs none.
        return
    try:
        is_able = connection.features.has_select_for_update_skip_locked
    except OperationalError:
        return  # A server that cannot be asked is no finding; a worker waits for it to come back.
    if not is_able:
        yield Error(
            f"Database {alias!r} ({connection.display_name}) cannot skip locked rows: workers would block each other.",
            hint="Use MariaDB 10.6, MySQL 8.0.1 or a later one.",
            id="django_jobs.E004",
        )

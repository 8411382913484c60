"""The database that a command is about, and what is said where it does not answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from django.core.management.base import CommandError
from django.db import DatabaseError, InterfaceError, NotSupportedError, connections, router

from django_jobs.conf import did_you_mean
from django_jobs.doctor.applied import unapplied
from django_jobs.models import Job

FAILED = 1


def job_database(given: str | None, *, returncode: int = FAILED) -> str:
    """The alias that was given, or that of the database which jobs are written to.

    Raises:
        CommandError: there is no such database.
    """
    using = given or router.db_for_write(Job)
    if using not in connections.settings:
        hint = did_you_mean(using, connections.settings)
        raise CommandError(f"Database {using!r} is not in settings.DATABASES.{hint}", returncode=returncode)
    return using


@contextmanager
def answering(using: str, *, returncode: int = FAILED) -> Iterator[None]:
    """Make a CommandError of what the database raises in the block: its tables are missing, or it cannot be asked."""
    try:
        yield
    except (DatabaseError, InterfaceError, NotSupportedError) as error:
        text = f"Database {using!r} could not be asked: {error}"
        with suppress(DatabaseError, InterfaceError):
            text = lacks_migrations(using) or text
        raise CommandError(text, returncode=returncode) from error


def lacks_migrations(using: str) -> str:
    """A sentence about the migrations that this database lacks; nothing if it has all."""
    missing = unapplied(using)
    if not missing:
        return ""
    count = f"{len(missing)} migration{'s' if len(missing) > 1 else ''}"
    return f"Database {using!r} lacks {count} of django_jobs, first {missing[0]!r}. Run manage.py migrate first."

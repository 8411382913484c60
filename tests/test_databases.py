"""Commands that are pointed at a database that is not ready for them say so in one line."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError, ProgrammingError, connection
from django.db.migrations.recorder import MigrationRecorder

pytestmark = pytest.mark.django_db
COMMANDS = {"jobs_alerts": 3, "jobs_prune": 1}  # and the exit code that says so


@contextmanager
def answer_of_our_tables(error: Exception) -> Any:
    def refuse(execute: Any, sql: str, *rest: Any) -> Any:
        if "django_jobs_" in sql:
            raise error
        return execute(sql, *rest)

    with connection.execute_wrapper(refuse):
        yield


@pytest.mark.parametrize("name", COMMANDS)
def test_missing_tables_are_told_with_the_mend(name: str) -> None:
    MigrationRecorder(connection).record_unapplied("django_jobs", "0001_initial")

    with (
        answer_of_our_tables(ProgrammingError("no such table")),
        pytest.raises(CommandError, match=r"'default' lacks 1 .*'0001_initial'. Run manage.py migrate") as caught,
    ):
        call_command(name)

    assert caught.value.returncode == COMMANDS[name]


@pytest.mark.parametrize("name", COMMANDS)
def test_database_that_does_not_answer_is_told(name: str) -> None:
    with (
        answer_of_our_tables(OperationalError("server closed the connection")),
        pytest.raises(CommandError, match=r"'default' could not be asked: server closed") as caught,
    ):
        call_command(name)

    assert caught.value.returncode == COMMANDS[name]


@pytest.mark.parametrize("name", [*COMMANDS, "jobs_doctor", "jobs_bench"])
def test_unknown_database_is_told_with_the_closest_one(name: str) -> None:
    with pytest.raises(CommandError, match=r"'othr' is not in settings.DATABASES. Did you mean 'other'"):
        call_command(name, database="othr")

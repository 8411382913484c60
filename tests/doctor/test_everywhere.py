"""jobs_doctor on any database: migrations, clocks, workers, and what the command prints."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.core.checks import Tags, run_checks
from django.core.management import CommandError, call_command
from django.db import OperationalError, connection
from django.db.migrations.recorder import MigrationRecorder
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_jobs import checks
from django_jobs.doctor import everywhere, examination, schema
from django_jobs.doctor.findings import Finding, Level, fine, or_fine, problem, size, span, unseen, warning
from django_jobs.doctor.report import lines
from django_jobs.models import JobRun
from tests.doctor.sessions import run
from tests.factories import JobFactory, WorkerFactory

pytestmark = pytest.mark.django_db

SECOND = timedelta(seconds=1)


@pytest.fixture
def without_a_migration(db: None) -> Iterator[None]:
    forgotten = MigrationRecorder.Migration.objects.get(app="django_jobs", name__startswith="0002")
    forgotten.delete()
    yield
    MigrationRecorder.Migration.objects.get_or_create(app=forgotten.app, name=forgotten.name)


def test_migrations_are_all_applied() -> None:
    assert [each.level for each in schema.migrations("default")] == [Level.FINE]


@pytest.mark.usefixtures("without_a_migration")
def test_a_migration_that_is_missing_is_a_problem() -> None:
    (finding,) = schema.migrations("default")

    assert finding.level is Level.PROBLEM
    assert "lacks 1 migration of django_jobs, first '0002_" in finding.message


@pytest.mark.usefixtures("without_a_migration")
def test_tables_are_not_looked_at_before_they_are_there() -> None:
    assert not {"workers", "indexes"} & {each.name for each in examination.examine("default")}


@pytest.mark.parametrize(
    ("seconds", "within", "words"),
    [
        (0.9, 0.0, "agree"),
        (-0.9, 0.0, "agree"),
        (5.0, 4.5, "agree"),
        (5.0, 0.1, "is 4.9 s behind the database"),
        (-300.0, 0.1, "is 5 min ahead of the database"),
    ],
)
def test_clocks_that_disagree_are_told(seconds: float, within: float, words: str) -> None:
    here = datetime(2026, 1, 1, tzinfo=UTC)

    finding = everywhere.judge_clocks(here, here + seconds * SECOND, within=within)

    assert words in finding.message
    assert (finding.level is Level.FINE) == (words == "agree")


def test_the_clocks_of_this_run_agree() -> None:
    assert all(each.level is Level.FINE for each in everywhere.clock("default"))


class TestWorkers:
    def found(self) -> list[Finding]:
        return list(everywhere.workers("default"))

    def test_none_is_fine_while_nothing_waits(self) -> None:
        (finding,) = self.found()
        assert (finding.level, finding.message) == (Level.FINE, "0 workers alive, all heartbeats in time.")

    def test_none_is_a_problem_when_a_job_is_ready(self) -> None:
        JobFactory.create()

        assert [each.level for each in self.found()] == [Level.FINE, Level.PROBLEM]

    def test_one_whose_heartbeat_is_late_is_named(self) -> None:
        WorkerFactory.create(name="slow", heartbeat_at=timezone.now() - 25 * SECOND)
        WorkerFactory.create(name="good")

        (finding,) = self.found()
        assert finding.level is Level.WARNING
        assert finding.message.startswith("Worker slow (host web-1, pid 4711) sent its last heartbeat 25 s ago")

    def test_one_whose_lease_is_over_is_named(self) -> None:
        long_ago = timezone.now() - timedelta(minutes=5)
        WorkerFactory.create(name="dead", heartbeat_at=long_ago, lease_expires_at=long_ago)

        (finding,) = self.found()
        assert finding.level is Level.WARNING
        assert "Worker dead (host web-1, pid 4711) lost its lease 5 min ago" in finding.message

    def test_of_many_alike_a_few_are_named(self) -> None:
        WorkerFactory.create_batch(40, heartbeat_at=timezone.now() - 25 * SECOND)

        found = self.found()
        assert len(found) == 6
        assert found[-1].message == "35 more are like those named."


@pytest.mark.sqlite
@pytest.mark.mariadb
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("name", ["django_jobs_job_ready", "django_jobs_run_ended"])
def test_a_missing_index_is_named_with_the_statement_that_makes_it(name: str) -> None:
    table = "django_jobs_job" if "job_ready" in name else "django_jobs_jobrun"
    run(f"DROP INDEX {name}" + (f" ON {table}" if connection.vendor == "mysql" else ""))

    (finding,) = schema.indexes("default")
    assert finding.level is Level.PROBLEM
    assert f"Index {name} of {table} is missing" in finding.message

    run(finding.mend[0])
    assert [each.level for each in schema.indexes("default")] == [Level.FINE]


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.9, "0.9 s"), (2, "2 s"), (90, "90 s"), (600, "10 min"), (7200, "2 h"), (900_000, "10 days")],
)
def test_spans_are_said_as_a_person_does(seconds: float, shown: str) -> None:
    assert span(seconds) == shown


@pytest.mark.parametrize(("count", "shown"), [(12, "12 bytes"), (2_345, "2.35 kB"), (5e7, "50 MB"), (3.2e12, "3.2 TB")])
def test_sizes_are_said_as_a_person_does(count: float, shown: str) -> None:
    assert size(count) == shown


def test_report_begins_with_the_worst_and_is_aligned_and_leaves_mends_unbroken() -> None:
    statement = f"ALTER TABLE t SET ({', '.join(f'a_long_parameter_{n} = {n}' for n in range(9))});"
    found = [
        fine("one", "Good."),
        unseen("two", "No."),
        warning("three", "word " * 40),
        problem("x", "Bad.", statement),
    ]

    printed = list(lines(found))

    assert [line.split()[0] for line in printed if line[:1].strip()][:4] == ["problem", "warning", "unseen", "fine"]
    assert printed[0] == "problem  x      Bad."
    assert printed[1] == f"                > {statement}"
    assert all(len(line) <= 100 for line in printed if ">" not in line)
    assert printed[-1] == "1 problem, 1 warning, 1 unseen, 1 fine"


def test_a_kind_of_finding_is_told_a_few_times() -> None:
    assert [each.message for each in or_fine(iter(()), "n", "All good.")] == ["All good."]
    many = list(or_fine((warning("n", str(number)) for number in range(7)), "n", "All good."))
    assert [each.message for each in many] == ["0", "1", "2", "3", "4", "2 more are like those named."]


def command(*flags: str) -> tuple[str, int]:
    """What `manage.py jobs_doctor` prints, and its exit code."""
    out = io.StringIO()
    try:
        call_command("jobs_doctor", *flags, stdout=out)
    except SystemExit as stopped:
        return out.getvalue(), int(stopped.code or 0)
    return out.getvalue(), 0


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[Finding]:
    """Let the questions have these answers."""
    found: list[Finding] = [fine("server", "Good.")]
    monkeypatch.setattr(examination, "SERVER", {connection.vendor: (lambda using: found,)})
    monkeypatch.setattr(examination, "TABLES", {})
    return found


def test_command_exits_with_0_1_and_2(answers: list[Finding]) -> None:
    assert command()[1] == 0
    answers.append(unseen("a", "Hidden."))
    assert command()[1] == 0
    answers.append(warning("b", "Slow."))
    assert command()[1] == 1
    answers.append(problem("c", "Bad."))
    text, code = command()
    assert code == 2
    assert text.splitlines()[0] == "The queue on database 'default':"


def test_command_prints_json(answers: list[Finding]) -> None:
    answers.append(warning("b", "Slow.", "one;", "two;"))

    text, code = command("--json")

    report = json.loads(text)
    assert (code, report["exit_code"], report["database"]) == (1, 1, "default")
    assert {"level": "warning", "name": "b", "message": "Slow.", "mend": ["one;", "two;"]} in report["findings"]


def test_command_on_this_database_asks_everything() -> None:
    text, code = command()

    assert code in {0, 1, 2}
    assert "migrations" in text


@pytest.mark.django_db(databases=["default", "other"])
def test_command_looks_at_the_database_it_is_told_to() -> None:
    assert "The queue on database 'other':" in command("--database", "other")[0]


def test_it_reads_no_finished_rows() -> None:
    """SC-08: whatever the history, it costs the same."""
    with CaptureQueriesContext(connection) as captured:
        examination.examine("default")

    tables = ("jobrun", "deadletter", "jobkey")
    # Django looks at a table's columns on MariaDB by SHOW and by its first row.
    statements = [each["sql"] for each in captured if not re.match("SHOW|.* LIMIT 1$", each["sql"])]
    assert [each for each in statements if any(re.search(rf"FROM .?django_jobs_{name}", each) for name in tables)] == []


def test_unknown_database_has_an_exit_code_of_its_own() -> None:
    with pytest.raises(CommandError, match=r"'othr' is not in settings.DATABASES.*Did you mean 'other'") as caught:
        call_command("jobs_doctor", "--database", "othr")
    assert caught.value.returncode == 3


def test_database_that_cannot_be_asked_has_one_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise OperationalError("connection refused")

    monkeypatch.setattr(connection, "ensure_connection", refuse)
    with pytest.raises(CommandError, match="could not be asked: connection refused") as caught:
        call_command("jobs_doctor")
    assert caught.value.returncode == 3


@pytest.fixture
def without_an_index(transactional_db: None) -> Iterator[None]:
    (index,) = (each for each in JobRun._meta.indexes if each.name == "django_jobs_run_ended")
    run(f"DROP INDEX {index.name}" + (" ON django_jobs_jobrun" if connection.vendor == "mysql" else ""))
    yield
    run(schema._statement(index, JobRun, "default"))


class TestSystemChecks:
    """The cheap part of it, with `check --database`."""

    def found(self, **options: Any) -> list[str | None]:
        messages = run_checks(tags=[Tags.database], databases=["default"], **options)
        return [each.id for each in messages if (each.id or "").startswith("django_jobs")]

    @pytest.mark.django_db(transaction=True)  # MariaDB ends a transaction at the first change of a table.
    def test_a_missing_index_is_a_warning(
        self, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
    ) -> None:
        monkeypatch.setitem(examination.STATIC, connection.vendor, (schema.indexes,))
        assert "django_jobs.W005" not in self.found()

        request.getfixturevalue("without_an_index")

        assert "django_jobs.W005" in self.found()

    @pytest.mark.postgres
    def test_a_table_without_its_settings_is_a_warning_with_the_mend_as_its_hint(self) -> None:
        run("ALTER TABLE django_jobs_worker RESET (fillfactor)")

        found = [each for each in checks.check_servers(databases=["default"]) if "django_jobs_worker" in each.msg]

        assert [each.id for each in found] == ["django_jobs.W004"]
        assert found[0].hint == "ALTER TABLE django_jobs_worker SET (fillfactor = 50);"

    @pytest.mark.django_db(transaction=True)
    @pytest.mark.usefixtures("without_a_migration", "without_an_index")
    def test_nothing_is_said_about_what_migrate_is_about_to_mend(self) -> None:
        assert checks.check_servers(databases=["default"]) == []

    def test_durability_is_a_matter_of_deployment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(examination.DURABILITY, connection.vendor, lambda using: [problem("durability", "Off.")])

        assert "django_jobs.W007" not in self.found()
        assert "django_jobs.W007" in self.found(include_deployment_checks=True)

    def test_a_server_that_is_away_is_no_finding(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(using: str, **options: Any) -> None:
            raise OperationalError("connection refused")

        monkeypatch.setattr(examination, "examine_settings", refuse)

        assert checks.check_servers(databases=["default"]) == []

    def test_nothing_is_asked_of_a_database_that_no_command_names(self) -> None:
        assert checks.check_servers() == []

"""The system checks: what each reports, and that this suite's own settings pass them all."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.contrib.admin import ModelAdmin
from django.core.checks import CheckMessage, Tags, run_checks
from django.core.checks.registry import registry as registered
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.db import OperationalError, connections

from django_jobs import checks, registry
from django_jobs.registry import declare

IDS = set(re.findall(r"django_jobs\.[EW]\d{3}", checks.__doc__ or ""))


class Plain:
    """No ModelAdmin."""


class ThemedAdmin(ModelAdmin):  # type: ignore[type-arg]  # It takes its parameter in the stubs only.
    """A theme's base class."""


def send(invoice_id: int) -> None: ...


def test_a_process_that_serves_pages_loads_neither_the_worker_nor_the_doctor() -> None:
    script = (
        "import django, sys\n"
        "from django.conf import settings\n"
        "settings.configure(INSTALLED_APPS=['django.contrib.contenttypes', 'django_jobs'])\n"
        "django.setup()\n"
        "from django.core.checks import run_checks\n"
        "run_checks()\n"
        "print([name for name in sys.modules if name.startswith(('django_jobs.worker', 'django_jobs.doctor'))])\n"
    )

    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert run.stdout == "[]\n"


@pytest.fixture(autouse=True)
def nothing_stays_registered() -> Iterator[None]:
    with registry.isolated():
        yield


@pytest.fixture
def options(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The OPTIONS of the default database, empty, to be filled by the test. The open connection keeps its own."""
    empty: dict[str, Any] = {}
    monkeypatch.setitem(connections["default"].settings_dict, "OPTIONS", empty)
    return empty


def expected_here() -> list[str]:
    """The ids of the advice that this run of the suite needs: with SQLITE_DEFAULTS=1 it has a new project's options."""
    connection = connections["default"]
    return ["django_jobs.W001"] if connection.vendor == "sqlite" and not connection.settings_dict["OPTIONS"] else []


def ids(messages: list[CheckMessage]) -> list[str | None]:
    return [each.id for each in messages]


def test_every_check_is_registered_and_this_project_passes_them() -> None:
    found = run_checks(tags=[checks.TAG], include_deployment_checks=True)

    assert set(ids(found)) == set(expected_here())


def test_every_id_is_in_the_table_of_the_docstring() -> None:
    code = Path(checks.__file__).read_text().removeprefix(f'"""{checks.__doc__}"""')

    assert set(re.findall(r"django_jobs\.[EW]\d{3}", code)) == IDS


def test_each_thing_wrong_in_the_settings_is_an_error(settings: Any) -> None:
    """DP-10."""
    settings.DJANGO_JOBS = {"THREDS": 3, "LEASE": -1, "NOTIFY": "yes"}

    found = checks.check_settings()

    assert ids(found) == ["django_jobs.E001"] * 3
    assert found[0].msg == "DJANGO_JOBS[\"THREDS\"] is not a setting. Did you mean 'THREADS'?"


@pytest.mark.django_db(databases=["default", "other"])
def test_settings_that_contradict_each_other_stop_every_command(settings: Any) -> None:
    """DP-10."""
    settings.DJANGO_JOBS = {"LEASE": 10, "HEARTBEAT": 10}

    with pytest.raises(SystemCheckError, match=r"django_jobs\.E001.*must be at least twice"):
        call_command("check")


@pytest.mark.parametrize(
    ("queue_name", "hint"),
    [("emial", "Did you mean 'email'?"), ("zzz", 'Add it to DJANGO_JOBS["QUEUES"].')],
)
def test_a_task_for_a_queue_that_is_not_listed_is_an_error(settings: Any, queue_name: str, hint: str) -> None:
    settings.DJANGO_JOBS = {"QUEUES": {"default": {}, "mail": {}, "email": {}}}
    declared = declare(send, name="send", queue_name=queue_name)

    (error,) = (each for each in checks.check_settings() if each.obj == declared.module_path)

    assert (error.id, error.hint) == ("django_jobs.E002", hint)
    assert error.msg == f"Task 'send' is declared for queue {queue_name!r}, which is not in DJANGO_JOBS[\"QUEUES\"]."


def test_any_queue_will_do_where_none_is_listed() -> None:
    declare(send, queue_name="anything")

    assert checks.check_settings() == []


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("nowhere.ModelAdmin", "cannot be imported: No module named 'nowhere'"),
        ("ModelAdmin", "cannot be imported"),
        ("django.contrib.admin.ModelAdmn", "cannot be imported"),
        (f"{__name__}.Plain", "is no ModelAdmin."),
        (f"{__name__}.send", "is no ModelAdmin."),
    ],
)
def test_an_admin_base_that_cannot_serve_is_an_error(settings: Any, path: str, words: str) -> None:
    settings.DJANGO_JOBS = {"ADMIN_BASE": path}

    (error,) = checks.check_admin_base()

    assert error.id == "django_jobs.E003"
    assert error.msg.startswith(f'DJANGO_JOBS["ADMIN_BASE"] = {path!r} ')
    assert words in error.msg


def test_an_admin_base_of_a_theme_is_fine(settings: Any) -> None:
    settings.DJANGO_JOBS = {"ADMIN_BASE": f"{__name__}.ThemedAdmin"}

    assert checks.check_admin_base() == []


def test_a_project_without_the_admin_needs_no_base(settings: Any) -> None:
    settings.DJANGO_JOBS = {"ADMIN_BASE": "nowhere.ModelAdmin"}
    settings.INSTALLED_APPS = [each for each in settings.INSTALLED_APPS if each != "django.contrib.admin"]

    assert checks.check_admin_base() == []


def test_the_options_are_looked_at_by_every_command_and_the_server_when_it_is_named() -> None:
    of_every_command: list[Any] = [each for each in registered.get_checks() if Tags.database not in each.tags]

    assert {checks.check_settings, checks.check_admin_base, checks.check_database} <= set(of_every_command)
    assert checks.check_named_databases not in of_every_command


def test_immediate_is_reported_by_the_deployment_checks_only(settings: Any) -> None:
    settings.DJANGO_JOBS = {"IMMEDIATE": True}

    assert "django_jobs.W003" not in ids(run_checks(tags=[checks.TAG]))
    assert "django_jobs.W003" in ids(run_checks(tags=[checks.TAG], include_deployment_checks=True))


ADVICE = {
    "transaction_mode": "IMMEDIATE",
    "timeout": 20,
    "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
}


@pytest.mark.sqlite
class TestSQLite:
    """WK-20."""

    @pytest.mark.parametrize(
        ("given", "missing"),
        [
            ({}, "transaction_mode, timeout, journal_mode=WAL"),
            ({**ADVICE, "transaction_mode": "DEFERRED"}, "transaction_mode"),
            ({**ADVICE, "transaction_mode": None}, "transaction_mode"),
            ({"transaction_mode": "IMMEDIATE", "timeout": 20}, "journal_mode=WAL"),
            ({**ADVICE, "init_command": "PRAGMA synchronous=NORMAL;"}, "journal_mode=WAL"),
            ({key: value for key, value in ADVICE.items() if key != "timeout"}, "timeout"),
        ],
        ids=str,
    )
    def test_missing_options_are_advised_ready_to_paste(
        self, options: dict[str, Any], given: dict[str, Any], missing: str
    ) -> None:
        options.update(given)

        (advice,) = checks.check_database()

        assert advice.id == "django_jobs.W001"
        assert f"SQLite database 'default' lacks {missing}: " in advice.msg
        assert advice.hint is not None
        pasted = advice.hint.partition("\n")[2]
        assert eval(f"{{{pasted}}}") == {"OPTIONS": ADVICE}

    @pytest.mark.parametrize(
        "given",
        [
            ADVICE,
            {**ADVICE, "transaction_mode": "immediate"},
            {**ADVICE, "transaction_mode": "EXCLUSIVE"},
            {**ADVICE, "init_command": "pragma journal_mode = 'wal'"},
        ],
        ids=str,
    )
    def test_the_advised_options_pass(self, options: dict[str, Any], given: dict[str, Any]) -> None:
        options.update(given)

        assert checks.check_database() == []

    @pytest.mark.parametrize("name", [":memory:", "file:jobs?mode=memory&cache=shared"])
    def test_a_database_in_memory_needs_no_options(
        self, options: dict[str, Any], name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(connections["default"].settings_dict, "NAME", name)

        assert checks.check_database() == []

    def test_a_database_asked_about_by_name_is_looked_at(
        self, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(connections["other"].settings_dict, "OPTIONS", {})
        options.update(ADVICE)

        found = checks.check_named_databases(databases=["other"])

        assert [each.msg.partition(" lacks")[0] for each in found] == ["SQLite database 'other'"]
        assert checks.check_database() == []


class NoJobsOnOther:
    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool | None:
        return False if (db, app_label) == ("other", "django_jobs") else None


class JobsOnOther:
    def db_for_write(self, model: Any, **hints: Any) -> str | None:
        return "other" if model._meta.app_label == "django_jobs" else None


@pytest.mark.sqlite
def test_a_database_without_jobs_is_left_alone(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connections["other"].settings_dict, "OPTIONS", {})
    settings.DATABASE_ROUTERS = [NoJobsOnOther()]

    assert checks.check_named_databases(databases=["other"]) == []


@pytest.mark.sqlite
def test_the_database_that_the_router_writes_jobs_to_is_looked_at(
    settings: Any, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connections["other"].settings_dict, "OPTIONS", {})
    settings.DATABASE_ROUTERS = [JobsOnOther()]

    (advice,) = checks.check_database()

    assert "'other'" in advice.msg


@pytest.mark.mariadb
class TestMariaDB:
    @pytest.mark.parametrize("level", ["repeatable read", "SERIALIZABLE", None])
    def test_another_isolation_level_is_advised_against(self, options: dict[str, Any], level: str | None) -> None:
        options["isolation_level"] = level

        (advice,) = checks.check_database()

        assert advice.id == "django_jobs.W002"
        assert f"isolation_level {level!r}" in advice.msg

    @pytest.mark.parametrize("given", [{}, {"isolation_level": "READ COMMITTED"}], ids=str)
    def test_read_committed_passes(self, options: dict[str, Any], given: dict[str, Any]) -> None:
        options.update(given)

        assert checks.check_database() == []

    @pytest.mark.django_db
    def test_a_server_too_old_to_skip_locked_rows_is_an_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert checks.check_named_databases(databases=["default"]) == []
        monkeypatch.setattr(connections["default"].features, "has_select_for_update_skip_locked", False)

        assert ids(checks.check_named_databases(databases=["default"])) == ["django_jobs.E004"]

    @pytest.mark.django_db
    def test_a_server_that_is_away_is_no_finding(self, monkeypatch: pytest.MonkeyPatch) -> None:
        connection = type(connections["default"])({**connections["default"].settings_dict, "PORT": "1"}, "default")
        with pytest.raises(OperationalError):
            connection.ensure_connection()
        monkeypatch.setattr(checks, "connections", {"default": connection})

        assert checks.check_named_databases(databases=["default"]) == []


def test_a_database_that_does_not_commit_by_itself_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connections["default"].settings_dict, "AUTOCOMMIT", False)

    errors = [each for each in checks.check_database() if each.id == "django_jobs.E006"]

    assert [error.msg for error in errors] == [
        "Database 'default' has AUTOCOMMIT off: workers would commit nothing, and enqueue() wakes none."
    ]
    assert "transaction.atomic()" in str(errors[0].hint)


@pytest.mark.django_db  # Django asks MariaDB itself for its name
def test_a_database_of_another_kind_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections["default"], "vendor", "oracle")
    monkeypatch.setattr(connections["default"], "display_name", "Oracle")

    (error,) = checks.check_database()

    assert (error.id, error.msg) == (
        "django_jobs.E005",
        "Database 'default' is a Oracle, which django_jobs does not support.",
    )


@pytest.mark.django_db(databases=["default", "other"])
def test_every_database_of_this_suite_passes() -> None:
    assert ids(checks.check_named_databases(databases=["default", "other"])) == expected_here()

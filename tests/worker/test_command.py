"""manage.py runworker: what it refuses, and what it says."""

from __future__ import annotations

import io
import logging
import re
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, connections
from django.db.migrations.recorder import MigrationRecorder

from django_jobs import enqueue, testing
from django_jobs.management.commands import jobs_worker, runworker
from django_jobs.models import JobRun
from django_jobs.models import Worker as WorkerRow
from django_jobs.statuses import RunStatus
from tests.models import Effect
from tests.processes import Workers
from tests.worker import tasks

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"threads": 0}, "THREADS.*= 0: must be from 1"),
    ({"threads": -1}, "THREADS.*= -1"),
    ({"threads": 10**6}, "THREADS"),
    ({"async_concurrency": 0}, "ASYNC_CONCURRENCY"),
    ({"grace": -1.0}, "GRACE"),
    ({"grace": float("nan")}, "GRACE"),
    ({"grace": 10.0**13}, "GRACE"),
    ({"poll_interval": 0.0}, "POLL_INTERVAL"),
    ({"max_jobs": 0}, "max_jobs=0"),
    ({"max_jobs": -3}, "max_jobs=-3"),
    ({"max_memory": 0}, "max_memory=0 must be a whole number of megabytes"),
    ({"processes": -1}, "PROCESSES.*= -1: must be from 0"),
    ({"processes": 2}, "--processes needs"),
    ({"database": "defautl"}, "'defautl' is not in settings.DATABASES. Did you mean 'default'"),
    ({"queues": ["x" * 65]}, "Queue name"),
    ({"name": "x" * 300}, "worker's name"),
    ({"name": "a\nb"}, "worker's name"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED, ids=[str(each[0])[:40] for each in REFUSED])
def test_bad_value_is_refused_with_its_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(CommandError, match=message):
        call_command("runworker", burst=True, **options)


@pytest.mark.django_db(transaction=True, databases="__all__")
def test_worker_imports_no_pages_of_the_project(settings: Any) -> None:
    settings.ROOT_URLCONF = "tests.no_such_urls"
    enqueue(tasks.plain_effect, "a")

    runworker.Command().run_from_argv(["manage.py", "runworker", "--burst", "--noreload"])

    assert Effect.objects.count() == 1


@pytest.mark.race
@pytest.mark.parametrize("flag", ["--burst", "--skip-checks"])
def test_settings_that_contradict_each_other_start_no_worker(workers: Workers, flag: str) -> None:
    """DP-10: whether or not Django's checks run before."""
    worker = workers.start(flag, settings={"LEASE": 10, "HEARTBEAT": 10})

    assert worker.wait() == 1
    assert "must be at least twice" in worker.output
    assert not WorkerRow.objects.exists()
    assert "worker started" not in worker.output


def test_what_a_supervisor_says_is_no_flag_for_persons() -> None:
    with pytest.raises(CommandError, match="for the supervisor of --processes alone"):
        call_command("runworker", "--burst", "--child", "yes")


@pytest.mark.django_db(transaction=True)
def test_setting_of_processes_is_for_the_command_line(settings: Any) -> None:
    """What calls the command has another command line, by which no process could be started."""
    settings.DJANGO_JOBS = {"PROCESSES": 2}
    enqueue(tasks.plain_effect, "a")
    out = io.StringIO()

    call_command("runworker", burst=True, stdout=out)

    assert Effect.objects.get().label == "a"
    assert "processes" not in out.getvalue()


def test_unknown_queue_is_refused_with_a_proposal(settings: Any) -> None:
    settings.DJANGO_JOBS = {"QUEUES": {"email": {}, "default": {}}}

    with pytest.raises(CommandError, match=r"Queue 'emial' is not in .*Did you mean 'email'\?"):
        call_command("runworker", burst=True, queues=["default", "emial"])


@pytest.mark.parametrize("text", ["", "a,", ",a", "a,,b"])
def test_empty_queue_name_is_refused(text: str) -> None:
    with pytest.raises(CommandError, match="has an empty queue name"):
        call_command("runworker", "--queues", text, "--burst")


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("options", [{"burst": True}, {}], ids=["burst", "reloading"])
def test_database_without_the_tables_is_refused_with_what_to_do(options: dict[str, bool], settings: Any) -> None:
    """DP-09: also with DEBUG, before the reloader takes over."""
    settings.DEBUG = True
    recorder = MigrationRecorder(connection)
    recorder.record_unapplied("django_jobs", "0001_initial")
    try:
        with pytest.raises(CommandError, match=r"lacks \d+ migrations? of django_jobs.*migrate"):
            call_command("runworker", **options)
    finally:
        recorder.record_applied("django_jobs", "0001_initial")


@pytest.mark.django_db(transaction=True)
def test_banner_says_what_is_served() -> None:
    out = io.StringIO()

    call_command("runworker", burst=True, queues=["mail", "default"], threads=3, stdout=out)

    said = out.getvalue()
    assert "database 'default'" in said
    assert re.search(r"queues\s+mail, default", said)
    assert re.search(r"tasks\s+\d+", said)
    assert "3 threads" in said
    assert re.search(r"lease\s+30 s", said)


@pytest.mark.django_db(transaction=True)
def test_each_ended_run_is_one_line_on_the_console(capsys: pytest.CaptureFixture[str]) -> None:
    enqueue(tasks.plain_effect, "a")
    logger = logging.getLogger("django_jobs")
    former, logger.propagate = logger.propagate, False  # as in a project that has configured nothing
    try:
        call_command("runworker", burst=True)
    finally:
        logger.propagate = former

    assert capsys.readouterr().err.count("run succeeded") == 1
    assert logger.handlers == []


@pytest.mark.django_db(transaction=True)
def test_secret_argument_is_nowhere_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """PL-13."""
    caplog.set_level(logging.DEBUG, "django_jobs")
    enqueue(tasks.log_in, "ann", password="hunter2-secret")

    call_command("runworker", burst=True)

    assert "ann" in JobRun.objects.get().error_text
    assert "hunter2-secret" not in caplog.text
    assert "hunter2-secret" not in JobRun.objects.get().error_text + JobRun.objects.get().traceback


def test_other_name_is_the_same_command() -> None:
    assert issubclass(jobs_worker.Command, runworker.Command)


@pytest.mark.django_db
class TestInsideATransaction:
    """EN-04, DESIGN 5.14: in a TestCase the command works in this thread, on this connection."""

    def test_burst_runs_the_jobs_and_leaves_the_connection_open(self) -> None:
        before = connection.connection
        enqueue(tasks.plain_effect, "a")
        enqueue(tasks.arest, "b", 0)
        enqueue(tasks.atomic_effect, "c")
        enqueue(tasks.chain, "d", 1)

        call_command("runworker", "--burst")

        assert sorted(Effect.objects.values_list("label", flat=True)) == ["a", "b", "c", "d0", "d1"]
        assert connections["default"].connection is before

    def test_failure_of_a_statement_leaves_the_transaction_usable(self) -> None:
        enqueue(tasks.break_transaction, "caught")
        enqueue(tasks.plain_effect, "next")

        call_command("runworker", "--burst")

        assert Effect.objects.filter(label="next").exists()

    def test_worker_that_never_ends_is_refused(self) -> None:
        with pytest.raises(CommandError, match="only run with --burst"):
            call_command("runworker")

    def test_max_jobs_is_kept(self) -> None:
        for number in range(3):
            enqueue(tasks.plain_effect, str(number))

        call_command("runworker", "--burst", "--max-jobs", "2")

        assert Effect.objects.count() == 2

    def test_ctrl_c_is_for_the_person_who_runs_the_tests(self) -> None:
        enqueue(tasks.raise_exit, "interrupt")

        with pytest.raises(KeyboardInterrupt):
            call_command("runworker", "--burst")

    def test_the_test_kit_runs_jobs_the_same_way(self) -> None:
        enqueue(tasks.plain_effect, "a")

        assert [run.status for run in testing.run_jobs()] == [RunStatus.SUCCEEDED]

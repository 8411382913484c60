"""The log lines: one for each ended run, and none that tells what a job was called with."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from django_jobs import logs, observe, signals
from django_jobs.runs import Death, Then
from django_jobs.statuses import DeathReason, RunStatus
from tests.observe.ended import JOB_ID, ended_run

FAILURE = {"status": RunStatus.FAILED, "error_type": "smtplib.SMTPException", "error_text": "try later"}


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG, logger="django_jobs")
    return caplog


def test_success_is_one_info_line_with_its_times(lines: pytest.LogCaptureFixture) -> None:
    logs.runs_ended([ended_run()])

    assert lines.record_tuples == [
        (
            "django_jobs",
            logging.INFO,
            f"run succeeded task=shop.tasks.send_mail job={JOB_ID} attempt=1 queue=mail duration=0.012 waited=0.003",
        )
    ]


def test_failure_with_tries_left_is_a_warning_that_says_when_it_is_retried(lines: pytest.LogCaptureFixture) -> None:
    logs.runs_ended([ended_run(**FAILURE, then=Then.RETRY, retry_in=timedelta(seconds=12.5))])

    (record,) = lines.records
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith("run failed task=shop.tasks.send_mail")
    assert record.getMessage().endswith(' error=smtplib.SMTPException text="try later" retry_in=12.500')


def test_death_is_an_error_that_says_why(lines: pytest.LogCaptureFixture) -> None:
    logs.runs_ended([ended_run(**FAILURE, then=Then.DIE, reason=DeathReason.OUT_OF_TRIES)])

    (record,) = lines.records
    assert record.levelno == logging.ERROR
    assert record.getMessage().endswith(" reason=out_of_tries")


@pytest.mark.parametrize(
    ("status", "then", "level"),
    [
        (RunStatus.SUCCEEDED, Then.DONE, logging.INFO),
        (RunStatus.RELEASED, Then.RETURN, logging.INFO),
        (RunStatus.RELEASED, Then.RETRY, logging.INFO),
        (RunStatus.CANCELLED, Then.DONE, logging.INFO),
        (RunStatus.FAILED, Then.RETRY, logging.WARNING),
        (RunStatus.TIMED_OUT, Then.RETRY, logging.WARNING),
        (RunStatus.LOST, Then.RETRY, logging.WARNING),
        (RunStatus.LOST, Then.DIE, logging.ERROR),
        (RunStatus.TIMED_OUT, Then.DIE, logging.ERROR),
        (RunStatus.FAILED, Then.DIE, logging.ERROR),
    ],
)
def test_level_says_how_much_a_run_matters(
    lines: pytest.LogCaptureFixture, status: RunStatus, then: Then, level: int
) -> None:
    logs.runs_ended([ended_run(status=status, then=then)])

    assert [record.levelno for record in lines.records] == [level]


def test_batch_is_one_line_each_in_order(lines: pytest.LogCaptureFixture) -> None:
    logs.runs_ended([ended_run(attempt=number) for number in range(1, 4)])

    assert [f"attempt={number}" in message for number, message in enumerate(lines.messages, 1)] == [True] * 3


def test_successes_cost_nothing_where_only_warnings_are_wanted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="django_jobs")

    logs.runs_ended([ended_run(duration=None), ended_run(**FAILURE, then=Then.RETRY)])  # None would fail to format

    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_line_is_formatted_only_if_somebody_hears_errors_at_all(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="django_jobs")

    logs.runs_ended([ended_run(duration=None, then=Then.DIE)])

    assert caplog.records == []


@pytest.mark.parametrize(
    ("value", "word"),
    [
        ("mail", "mail"),
        ("Grüße", "Grüße"),
        ("", '""'),
        ("two words", '"two words"'),
        ("a=b", '"a=b"'),
        ('say "no"', '"say \\"no\\""'),
        ("evil\nrun succeeded job=1", '"evil\\nrun succeeded job=1"'),
        ("\x1b[31m", '"\\u001b[31m"'),
        ("\ud800", '"\\ud800"'),
        ("a\u2028b", '"a\\u2028b"'),
    ],
)
def test_value_cannot_break_the_line_or_its_form(value: str, word: str) -> None:
    assert logs.quoted(value) == word


def test_long_error_text_is_cut(lines: pytest.LogCaptureFixture) -> None:
    logs.runs_ended([ended_run(**{**FAILURE, "error_text": "x" * 100_000}, then=Then.RETRY)])

    assert len(lines.messages[0]) < 500


def test_every_line_about_the_rest_is_one_line_of_key_and_value(lines: pytest.LogCaptureFixture) -> None:
    evil = 'a\nb="c'
    logs.key_taken(evil, evil, holder=JOB_ID)
    logs.jobs_rescued(3, unstarted=2, worker=evil)
    logs.jobs_put_aside(2, worker=evil)
    logs.worker_spent(evil, cause="max_jobs")
    logs.supervisor_stopping(cause=evil)
    logs.process_ended(1, pid=7, ending=evil, uptime=1.5, is_clean=False)
    logs.process_refused(1, OSError(evil))
    logs.jobs_parked(2, task_name=evil)
    logs.jobs_released(1, worker=evil)
    logs.job_cancelled(JOB_ID, task_name=evil, by=evil)
    logs.letter_written(7, job_id=JOB_ID, task_name=evil, reason="gave_up")
    logs.letter_replayed(7, job_id=JOB_ID, by=evil)
    logs.letter_discarded(7, by=evil)
    logs.rows_pruned({"runs": 5, "keys": 0})
    logs.rows_pruned({"runs": 0})
    logs.lock_lost(evil, fencing_number=4)
    logs.database_away("default", RuntimeError(evil))
    logs.database_back("default", after=1.0)
    logs.statsd_away(evil, OSError(evil))
    logs.statsd_back(evil)
    logs.worker_started(evil, queue_names=[evil], threads=5, tasks=9, using="default")
    logs.worker_stopping(evil, cause="SIGTERM")
    logs.worker_stopped(evil, runs=5, uptime=timedelta(seconds=3))

    assert len(lines.messages) == 22
    assert all("\n" not in message and "=" in message for message in lines.messages)


def test_database_that_is_away_is_named_with_what_the_driver_says(lines: pytest.LogCaptureFixture) -> None:
    logs.database_away("default", OSError('no database "shpo"\n  at 127.0.0.1'))

    assert lines.messages == [
        'database away database=default error=OSError text="no database \\"shpo\\" at 127.0.0.1"',
    ]


def test_connecting_twice_writes_each_line_once(lines: pytest.LogCaptureFixture) -> None:
    observe.connect()
    observe.connect()

    signals.runs_ended.send_robust(sender=None, runs=[ended_run()], using="default")

    assert len(lines.messages) == 1


def test_dead_letter_is_named_by_its_number(lines: pytest.LogCaptureFixture) -> None:
    death = Death(7, UUID(int=1), "shop.tasks.send_mail", "mail", DeathReason.GAVE_UP, "GiveUp", "no such address")

    signals.jobs_died.send_robust(sender=None, letters=[death], using="default")

    assert lines.messages == [
        "dead letter written letter=7 job=00000000-0000-0000-0000-000000000001 task=shop.tasks.send_mail reason=gave_up"
    ]


def test_receivers_accept_what_a_later_release_may_send(lines: pytest.LogCaptureFixture) -> None:
    extra: dict[str, Any] = {"news": 1}
    answers = signals.runs_ended.send_robust(sender=None, runs=[ended_run()], using="default", **extra)

    assert [answer for _, answer in answers if isinstance(answer, Exception)] == []

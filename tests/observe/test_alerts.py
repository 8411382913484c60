"""jobs_alerts: what is wrong, at a cost that history does not change."""

from __future__ import annotations

import io
import json
from datetime import timedelta
from uuid import uuid4

import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError, connection
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from django_jobs.database import read_clock
from django_jobs.models import DeadLetter, Job, JobRun
from django_jobs.observe import alerts
from django_jobs.observe.alerts import Level, find_alerts
from django_jobs.statuses import JobStatus, LetterStatus, RunStatus
from tests.observe import rows

pytestmark = pytest.mark.django_db

SECOND = timedelta(seconds=1)


def names() -> list[tuple[str, str | None]]:
    return [(alert.name, alert.queue_name) for alert in find_alerts(using="default")]


def test_nothing_is_wrong_with_empty_tables() -> None:
    assert find_alerts(using="default") == []


def test_one_open_dead_letter_is_a_page() -> None:
    rows.letter().save()

    (alert,) = find_alerts(using="default")
    assert (alert.level, alert.name, alert.value) == (Level.PAGE, "dead_letters", 1)
    assert alert.message.startswith("1 dead letter is open, the oldest since ")


def test_closed_dead_letters_are_none() -> None:
    now = read_clock("default")
    rows.letter(status=LetterStatus.DISCARDED, closed_at=now).save()
    rows.letter(status=LetterStatus.REPLAYED, closed_at=now, replayed_as=uuid4()).save()

    assert find_alerts(using="default") == []


def test_letters_are_counted_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alerts, "COUNT_LIMIT", 3)
    DeadLetter.objects.bulk_create(rows.letter() for _ in range(5))

    assert find_alerts(using="default")[0].message.startswith("3 or more dead letters are open")


def test_jobs_due_later_are_no_backlog_and_age_counts_from_when_a_job_was_due() -> None:
    """SC-10: 100 jobs due tomorrow, one due 30 s ago that was enqueued last week."""
    later = [rows.job(due=timedelta(days=-1), status=JobStatus.SCHEDULED) for _ in range(100)]
    Job.objects.bulk_create([*later, rows.job(due=30 * SECOND)])

    (state,) = alerts.queue_states(using="default")
    assert state.backlog == 1
    assert 30 * SECOND <= state.oldest_age < 40 * SECOND
    assert find_alerts(using="default") == []


def test_age_is_told_by_priority() -> None:
    """CL-22"""
    for due, priority, status in [
        (9, 5, "ready"),
        (8, 5, "ready"),
        (30, 0, "ready"),
        (40, 0, "scheduled"),
        (50, -1, "waiting"),
    ]:
        rows.job(due=due * SECOND, priority=priority, status=JobStatus(status)).save()

    (state,) = alerts.queue_states(using="default")

    assert {priority: age // (10 * SECOND) for priority, age in state.oldest_ages.items()} == {5: 0, 0: 4, -1: 5}
    assert state.oldest_age == state.oldest_ages[-1]
    assert state.backlog == 5


@pytest.mark.postgres
@pytest.mark.parametrize("moment", ["-infinity", "4713-01-01 BC", "infinity"])
def test_a_time_that_python_does_not_know_stops_no_question(moment: str) -> None:
    rows.job(due=9 * SECOND, queue_name="mail").save()
    rows.job(due=9 * SECOND).save()
    with connection.cursor() as cursor:
        cursor.execute("UPDATE django_jobs_job SET run_at = %s WHERE queue_name = 'default'", [moment])

    assert [state.name for state in alerts.queue_states(using="default")] == ["default", "mail"]


@pytest.mark.parametrize("status", [JobStatus.READY, JobStatus.SCHEDULED, JobStatus.WAITING])
def test_job_that_is_due_and_waits_too_long_warns_whatever_it_waits_for(status: JobStatus) -> None:
    rows.job(due=301 * SECOND, status=status, queue_name="mail").save()

    (alert,) = find_alerts(using="default")
    assert (alert.level, alert.name, alert.queue_name) == (Level.WARN, "oldest_waiting", "mail")
    assert alert.threshold == 300
    assert "'mail'" in alert.message


def test_running_job_waits_for_nothing() -> None:
    rows.job(due=timedelta(hours=1), status=JobStatus.RUNNING, worker_id=uuid4()).save()

    assert find_alerts(using="default") == []


def test_expected_latency_is_that_of_the_queue() -> None:
    Job.objects.bulk_create([rows.job(due=60 * SECOND, queue_name=name) for name in ("fast", "slow", "unnamed")])

    queues = {"fast": {"expected_latency": 10}, "slow": {"expected_latency": 3600}, "default": {}}
    with override_settings(DJANGO_JOBS={"QUEUES": queues}):
        assert names() == [("oldest_waiting", "fast")]


def test_oldest_job_is_found_behind_younger_ones_of_every_priority_and_queue() -> None:
    Job.objects.bulk_create(
        rows.job(due=age * SECOND, queue_name=queue, priority=priority)
        for queue, ages in {"a": (1, 2, 904), "b": (34, 54, 44), "c": (804, 6, 7)}.items()
        for priority, age in zip((100, 0, -100), ages, strict=True)
    )

    states = {state.name: state.oldest_age.total_seconds() for state in alerts.queue_states(using="default")}
    assert states == {"a": pytest.approx(904, abs=9), "b": pytest.approx(54, abs=9), "c": pytest.approx(804, abs=9)}
    assert names() == [("oldest_waiting", "a"), ("oldest_waiting", "c")]


def test_waiting_jobs_of_every_unknown_task_are_looked_at() -> None:
    Job.objects.bulk_create(
        rows.job(due=400 * SECOND, status=JobStatus.WAITING, task_name=f"gone.{number}", queue_name=f"q{number}")
        for number in range(3)
    )

    assert names() == [("oldest_waiting", f"q{number}") for number in range(3)]


def runs(age: timedelta = SECOND, **counts: int) -> None:
    JobRun.objects.bulk_create(
        rows.run(ended=age, status=RunStatus(status)) for status, count in counts.items() for _ in range(count)
    )


@pytest.mark.parametrize(
    ("counts", "is_alert"),
    [
        ({"succeeded": 19, "failed": 1}, False),  # 5 % are not more than 5 %
        ({"succeeded": 18, "failed": 1}, True),
        ({"succeeded": 18, "timed_out": 1}, True),
        ({"succeeded": 18, "lost": 1}, True),
        ({"failed": 1}, True),
        ({"succeeded": 1}, False),
        ({"released": 50, "cancelled": 50}, False),
        ({"succeeded": 19, "failed": 1, "released": 50, "cancelled": 50}, False),
    ],
)
def test_failure_rate_warns_above_its_limit(counts: dict[str, int], is_alert: bool) -> None:
    runs(SECOND, **counts)

    assert names() == ([("failure_rate", None)] if is_alert else [])


def test_failures_before_the_window_are_history() -> None:
    runs(failed=10, age=timedelta(minutes=11))

    assert find_alerts(using="default") == []
    with override_settings(DJANGO_JOBS={"ALERT_WINDOW": 3600}):
        assert names() == [("failure_rate", None)]


def test_limit_of_the_failure_rate_can_be_set() -> None:
    runs(succeeded=5, failed=5)

    with override_settings(DJANGO_JOBS={"ALERT_FAILURE_RATE": 0.5}):
        assert find_alerts(using="default") == []


def test_under_a_heavy_load_the_rate_is_that_of_the_latest_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alerts, "SAMPLE", 10)
    runs(succeeded=20, failed=9, age=timedelta(minutes=5))
    runs(succeeded=10, failed=1, age=timedelta(minutes=1))

    assert alerts.recent_failures(using="default") == (1, 11)


def test_number_of_questions_does_not_grow_with_the_rows() -> None:
    def count() -> int:
        with CaptureQueriesContext(connection) as captured:
            find_alerts(using="default")
        return len(captured)

    Job.objects.bulk_create(rows.job(due=SECOND, status=status) for status in (JobStatus.READY, JobStatus.WAITING))
    before = count()
    Job.objects.bulk_create(rows.job(due=SECOND, status=status) for status in (JobStatus.READY, JobStatus.WAITING) * 50)
    runs(succeeded=100, failed=100)

    assert count() == before


def command(*flags: str) -> tuple[str, int]:
    """What `manage.py jobs_alerts` prints, and its exit code."""
    out = io.StringIO()
    try:
        call_command("jobs_alerts", *flags, stdout=out)
    except SystemExit as stopped:
        return out.getvalue(), int(stopped.code or 0)
    return out.getvalue(), 0


def test_command_prints_ok_and_exits_with_0() -> None:
    assert command() == ("OK\n", 0)
    assert command("--json") == ("[]\n", 0)


def test_command_exits_with_1_for_a_warning() -> None:
    runs(failed=1)

    text, code = command()
    assert text.startswith("WARN failure_rate: 1 of 1 runs in the last 10 minutes failed: 100.0%, more than 5.0%.")
    assert code == 1


def test_command_exits_with_2_for_a_page_which_it_prints_first() -> None:
    runs(failed=1)
    rows.letter().save()

    text, code = command()
    assert [line.split(":")[0] for line in text.splitlines()] == ["PAGE dead_letters", "WARN failure_rate"]
    assert code == 2


def test_command_prints_json() -> None:
    rows.job(due=timedelta(hours=1), queue_name="mail").save()

    text, code = command("--json")
    (alert,) = json.loads(text)
    assert code == 1
    assert alert["level"] == "warn"
    assert alert["queue_name"] == "mail"
    assert alert["value"] == pytest.approx(3600, abs=10)


@pytest.mark.django_db(databases=["default", "other"])
def test_command_asks_the_database_it_is_told_to() -> None:
    rows.letter().save(using="other")

    assert command() == ("OK\n", 0)
    assert command("--database", "other")[1] == 2


def test_unknown_database_is_neither_well_nor_an_alert() -> None:
    with pytest.raises(CommandError, match=r"'othr' is not in settings.DATABASES.*Did you mean 'other'") as caught:
        call_command("jobs_alerts", "--database", "othr")
    assert caught.value.returncode == 3


def test_database_that_cannot_be_asked_has_an_exit_code_of_its_own() -> None:
    def refuse(*args: object) -> None:
        raise OperationalError("server closed the connection")

    with connection.execute_wrapper(refuse), pytest.raises(CommandError, match="could not be asked") as caught:
        call_command("jobs_alerts")
    assert caught.value.returncode == 3

"""jobs_bench: it measures, it leaves nothing, and it takes nobody else's jobs."""

from __future__ import annotations

import io
import logging
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from django.utils import timezone

from django_jobs import registry, signals
from django_jobs.bench import session as sessions
from django_jobs.bench.costs import Calls, Probes, Rate, count_calls
from django_jobs.bench.task import NAME, QUEUE
from django_jobs.bench.verdict import limit, limits, quantile, row
from django_jobs.bench.workloads import Bench, NothingStarted
from django_jobs.models import DeadLetter, Job, JobRun, Worker
from tests.factories import DeadLetterFactory, JobFactory, JobRunFactory, WorkerFactory

in_the_open = pytest.mark.django_db(transaction=True)


def bench(*flags: str) -> str:
    """What `manage.py jobs_bench` prints."""
    out = io.StringIO()
    call_command("jobs_bench", "--jobs", "40", "--seconds", "2", *flags, stdout=out)
    return out.getvalue()


def everything() -> list[list[dict[str, Any]]]:
    models: list[Any] = [Job, JobRun, DeadLetter, Worker]
    return [list(model.objects.order_by("pk").values()) for model in models]


@in_the_open
def test_it_prints_a_rate_for_each_workload_and_what_limits_it() -> None:
    text = bench()

    for name in (
        "round trip",
        "commit, beyond its round trip",
        "enqueue, one at a time",
        "enqueue, 40 at a time",
        "claim and finish, 1 at a time",
        "claim and finish, 10 at a time",
        "claim and finish, 100 at a time",
        "one worker process",
        "From commit to start",
    ):
        assert any(line.startswith(name) for line in text.splitlines()), name
    assert "It limits" in text


@in_the_open
def test_it_leaves_nothing_and_touches_no_other_row() -> None:
    JobFactory.create_batch(3)
    JobFactory.create(due_in=timedelta(days=1))
    JobFactory.create(waiting=True, task_name="nobody.knows")
    JobRunFactory.create_batch(2, ended_at=timezone.now() - timedelta(days=30))
    DeadLetterFactory.create()
    WorkerFactory.create(queue_names=["mail"])
    before = everything()

    bench()

    assert everything() == before


@in_the_open
def test_the_projects_tasks_logs_and_receivers_hear_nothing_of_it(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[Any] = []

    def receiver(**kwargs: Any) -> None:
        heard.append(kwargs)

    signals.runs_ended.connect(receiver)
    names, level = registry.names(), logging.getLogger("django_jobs").level
    try:
        bench()
        receivers = list(signals.runs_ended.receivers)
    finally:
        signals.runs_ended.disconnect(receiver)

    assert heard == []
    assert [record for record in caplog.records if record.name == "django_jobs"] == []
    assert len(receivers) == len(signals.runs_ended.receivers) + 1
    assert (registry.names(), logging.getLogger("django_jobs").level) == (names, level)


@in_the_open
@pytest.mark.parametrize("queue_names", [None, [QUEUE, "mail"]], ids=str)
def test_it_refuses_beside_a_worker_that_would_take_its_jobs(queue_names: list[str] | None) -> None:
    WorkerFactory.create(name="greedy", queue_names=queue_names)

    with pytest.raises(CommandError, match="Worker greedy serves every queue, or is another benchmark's"):
        bench()
    assert not Job.objects.exists()


@in_the_open
def test_a_worker_that_is_gone_is_no_reason_to_refuse() -> None:
    WorkerFactory.create(lease_expires_at=timezone.now() - timedelta(seconds=1))

    assert "one worker process" in bench()


@in_the_open
def test_queues_that_the_settings_list_need_not_hold_its_own(settings: Any) -> None:
    settings.DJANGO_JOBS = {"QUEUES": {"mail": {}}}

    assert "one worker process" in bench()


@in_the_open
def test_it_refuses_where_nothing_is_queued(settings: Any) -> None:
    settings.DJANGO_JOBS = {"IMMEDIATE": True}

    with pytest.raises(CommandError, match=r'DJANGO_JOBS\["IMMEDIATE"\] is on'):
        bench()


@in_the_open
def test_it_refuses_inside_a_transaction() -> None:
    with transaction.atomic(), pytest.raises(CommandError, match="cannot do inside a transaction"):
        bench()


@in_the_open
def test_it_cleans_up_when_it_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: Bench) -> Rate:
        raise KeyboardInterrupt

    monkeypatch.setattr(Bench, "drain", interrupted)
    with pytest.raises(KeyboardInterrupt):
        bench()

    assert everything() == [[], [], [], []]


@in_the_open
def test_it_takes_away_what_a_killed_one_has_left() -> None:
    JobFactory.create_batch(2, task_name=NAME, queue_name=QUEUE)
    JobFactory.create(task_name=NAME, queue_name=QUEUE, waiting=True)

    bench()

    assert not Job.objects.exists()


@in_the_open
def test_jobs_that_do_not_start_end_it_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(self: Bench) -> list[float]:
        raise NothingStarted("A job did not start within 10 s.")

    monkeypatch.setattr(Bench, "latencies", nothing)
    with pytest.raises(CommandError, match="did not start within 10 s"):
        bench()


@in_the_open
def test_a_worker_that_came_meanwhile_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def latencies(self: Bench) -> list[float]:
        WorkerFactory.create(name="late")
        return [0.001]

    monkeypatch.setattr(Bench, "latencies", latencies)

    assert "Worker late came meanwhile" in bench()


@pytest.mark.django_db(databases=["default", "other"], transaction=True)
def test_it_measures_the_database_it_is_told_to() -> None:
    text = bench("--database", "other")

    assert text.startswith("Database 'other'")
    assert not Job.objects.using("other").exists()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--database", "othr"], "'othr' is not in settings.DATABASES. Did you mean 'other'"),
        (["--jobs", "9"], "--jobs must be at least 10"),
        (["--seconds", "0"], "--seconds more than 0"),
    ],
)
def test_flags_of_no_use_are_refused(flags: list[str], words: str) -> None:
    with pytest.raises(CommandError, match=words.replace("(", r"\(")):
        bench(*flags)


@in_the_open
def test_it_counts_round_trips_and_commits() -> None:
    def write_twice() -> None:
        with transaction.atomic():
            WorkerFactory.create()
            WorkerFactory.create()

    assert count_calls(WorkerFactory.create, using="default") == Calls(trips=1, commits=1)
    calls = count_calls(write_twice, using="default")
    assert calls.commits == 1
    assert calls.trips in {3, 4}  # Some databases are told of the beginning.
    assert count_calls(Job.objects.exists, using="default") == Calls(trips=1, commits=0)


PROBES = Probes(trip=0.001, flush=0.010)


@pytest.mark.parametrize(
    ("worked", "trips", "commits", "expected"),
    [(0.1, 100, 80, "commit"), (0.1, 700, 10, "trips"), (0.9, 10, 1, "CPU"), (0.1, 10, 1, "database")],
)
def test_what_takes_most_of_the_time_is_the_limit(worked: float, trips: int, commits: int, expected: str) -> None:
    rate = Rate("a", jobs=100, seconds=1.0, worked=worked, trips=trips, commits=commits)

    assert limit(rate, PROBES) == expected
    assert sum(rate.shares(PROBES).values()) == pytest.approx(1.0)
    assert list(limits([(rate, PROBES)]))[-1] == "    a"


def test_probes_of_another_moment_add_up_to_no_more_than_there_was() -> None:
    rate = Rate("a", jobs=100, seconds=1.0, worked=0.5, trips=100, commits=1000)

    shares = rate.shares(PROBES)

    assert shares["commit"] == pytest.approx(1.0 / 1.6)
    assert sum(shares.values()) == pytest.approx(1.0)


def test_a_row_leaves_out_what_was_not_counted() -> None:
    rate = Rate("one worker process", jobs=1000, seconds=0.5, worked=0.25)

    assert row(rate, PROBES).split() == ["one", "worker", "process", "2,000", "0.500", "50%", "50%"]


def test_quantiles_are_those_of_sorted_values() -> None:
    values = [float(number) for number in range(100)]

    assert (quantile(values, 0.5), quantile(values, 0.99), quantile([7.0], 0.99)) == (50.0, 99.0, 7.0)


@in_the_open
def test_only_live_workers_of_the_same_queue_are_others() -> None:
    WorkerFactory.create(name="all")
    WorkerFactory.create(name="mail", queue_names=["mail"])
    WorkerFactory.create(name="gone", lease_expires_at=timezone.now() - timedelta(seconds=1))

    assert sessions.others(connection.alias) == ["all"]

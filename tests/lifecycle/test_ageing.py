"""What has waited for long goes before what has not, where a project asks for it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_jobs import codec
from django_jobs.database import Clock
from django_jobs.lifecycle import ageing, claim
from django_jobs.lifecycle.ageing import age
from django_jobs.lifecycle.heads import Head, heads
from django_jobs.models import Job
from tests.factories import JobFactory
from tests.lifecycle.steps import NAMES, start_worker
from tests.lifecycle.threads import OpenTransaction, Threads

AGEING = timedelta(minutes=5)
MINUTE = timedelta(minutes=1)

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _ageing(settings: Any) -> None:
    settings.DJANGO_JOBS = {"PRIORITY_AGEING": AGEING}


def make(label: str, priority: int, waited: timedelta, **fields: Any) -> Job:
    fields |= {"payload": {"args": [label], "kwargs": {}}, "run_at": Clock(-waited)}
    return JobFactory.create(priority=priority, **fields)


def order() -> list[object]:
    runs = claim.claim(start_worker(), None, 100, NAMES, using="default")
    return [codec.decode_call(run.payload)[0][0] for run in runs]


def priorities() -> dict[str, int]:
    return {job.payload["args"][0]: job.priority for job in Job.objects.all()}


def test_job_that_waited_so_long_is_claimed_before_a_higher_priority() -> None:
    """CL-22"""
    make("new and high", 10, 0 * MINUTE)
    make("old and low", -10, 6 * MINUTE)

    assert age(using="default") == 1
    assert order() == ["old and low", "new and high"]


def test_those_that_waited_so_long_are_claimed_in_the_order_in_which_they_were_due() -> None:
    """CL-22"""
    for label, priority, minutes in [("b", -5, 8), ("d", 10, 0), ("a", 0, 9), ("c", -100, 7), ("e", 0, 4)]:
        make(label, priority, minutes * MINUTE)

    assert age(using="default") == 3
    assert order() == ["a", "b", "c", "d", "e"]


def test_nothing_is_raised_before_its_time() -> None:
    make("high", 10, 0 * MINUTE)
    make("low", 0, AGEING - MINUTE)

    assert age(using="default") == 0
    assert priorities() == {"high": 10, "low": 0}


def test_nothing_is_raised_without_the_setting(settings: Any) -> None:
    settings.DJANGO_JOBS = {}
    make("high", 10, 0 * MINUTE)
    make("low", 0, timedelta(days=9))

    assert age(using="default") == 0
    assert priorities() == {"high": 10, "low": 0}


def test_job_is_raised_to_what_is_ready_in_its_own_queue_and_no_further() -> None:
    make("low", 0, 6 * MINUTE)
    make("lower", -1, 6 * MINUTE)
    make("of another queue", 99, 0 * MINUTE, queue_name="mail")
    make("due later", 99, -6 * MINUTE, status="scheduled")
    make("runs", 99, 6 * MINUTE, running=True)

    assert age(using="default") == 1
    assert priorities() == {"low": 0, "lower": 0, "of another queue": 99, "due later": 99, "runs": 99}


def test_only_what_is_ready_is_raised() -> None:
    make("high", 10, 0 * MINUTE)
    make("runs", 0, 6 * MINUTE, running=True)
    make("parked", 0, 6 * MINUTE, waiting=True)

    assert age(using="default") == 0
    assert priorities() == {"high": 10, "runs": 0, "parked": 0}


@pytest.mark.parametrize(("queue_names", "raised"), [(["mail"], ["mail"]), ([], []), (None, ["default", "mail"])])
def test_only_the_queues_that_are_served_are_looked_at(queue_names: Sequence[str] | None, raised: list[str]) -> None:
    """A queue that nobody serves keeps its order until somebody does."""
    for name in ("default", "mail"):
        make(f"high {name}", 10, 0 * MINUTE, queue_name=name)
        make(name, 0, 6 * MINUTE, queue_name=name)

    assert age(queue_names, using="default") == len(raised)
    assert sorted(label for label, priority in priorities().items() if priority == 10) == sorted(
        [*raised, "high default", "high mail"]
    )


def test_no_more_than_a_batch_is_raised_at_a_time_and_those_due_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ageing, "AGE_BATCH", 2)
    make("high", 10, 0 * MINUTE)
    for minutes in (7, 9, 8):
        make(f"{minutes}", 0, minutes * MINUTE)

    assert age(using="default") == 2
    assert priorities() == {"high": 10, "9": 10, "8": 10, "7": 0}
    assert age(using="default") == 1
    assert age(using="default") == 0


def test_what_was_raised_is_said_once_for_each_queue(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "django_jobs")
    make("high", 10, 0 * MINUTE)
    make("low", 0, 6 * MINUTE)
    make("lower", -1, 6 * MINUTE)

    age(using="default")
    age(using="default")

    assert caplog.messages == ["jobs raised count=2 queue=default priority=10 cause=age"]


@pytest.mark.postgres
@pytest.mark.parametrize("moment", ["infinity", "-infinity", "4713-01-01 BC", "290000-01-01"])
def test_a_time_that_python_does_not_know_stops_nobody(moment: str) -> None:
    make("high", 10, 0 * MINUTE)
    make("low", 0, 6 * MINUTE)
    make("absurd", 5, 6 * MINUTE)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE django_jobs_job SET run_at = %s WHERE priority = 5", [moment])

    age(using="default")

    assert priorities()["low"] == 10


def test_heads_are_the_first_of_each_queue_and_priority() -> None:
    for queue_name, priority, minutes in [("b", 0, 2), ("b", 0, 3), ("a", 5, 1), ("b", -1, 9), ("a", 7, 0)]:
        make("x", priority, minutes * MINUTE, queue_name=queue_name)

    found = list(heads(using="default"))

    assert [head[:2] for head in found] == [("a", 7), ("a", 5), ("b", 0), ("b", -1)]
    assert found[2] == Head("b", 0, Job.objects.filter(queue_name="b", priority=0).earliest("run_at").run_at)
    assert list(heads(["b"], using="default")) == found[2:]
    assert list(heads(["none"], using="default")) == []


@pytest.mark.parametrize("jobs", [1, 40])
def test_number_of_statements_does_not_grow_with_the_jobs(jobs: int) -> None:
    for priority in (0, 10):
        JobFactory.create_batch(jobs, priority=priority)

    with CaptureQueriesContext(connection) as captured:
        age(using="default")

    # The clock (SQLite's is the process's), two heads, none below, no other queue.
    assert len(captured) == 4 + (connection.vendor != "sqlite")


@pytest.mark.race
@pytest.mark.django_db(transaction=True)
def test_job_that_somebody_holds_is_left_as_it_is_and_not_waited_for() -> None:
    if connection.vendor == "sqlite":  # it locks no rows
        return
    make("high", 10, 0 * MINUTE)
    held = make("held", 0, 7 * MINUTE)
    make("low", 0, 6 * MINUTE)

    with Threads() as threads:
        holder = OpenTransaction(threads, lambda: Job.objects.filter(id=held.id).update(failures=1))
        raised = age(using="default")
        holder.end()

    assert raised == 1
    assert priorities() == {"high": 10, "held": 0, "low": 10}

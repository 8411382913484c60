"""What the hot statements cost: how many there are, and what they are given. Their plans are in tests/plans."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from django_jobs import enqueue, enqueue_many, once, registry
from django_jobs.lifecycle import claim, turn
from django_jobs.models import DeadLetter, Job, JobRun
from django_jobs.runs import WorkerIdentity
from tests.lifecycle.steps import died, failed, finish_all, inserts, start_worker, succeeded
from tests.lifecycle.threads import OpenTransaction, Threads
from tests.plans.plan import explained, run
from tests.tasks import note

NAMES = frozenset(registry.names())
transactional = pytest.mark.django_db(transaction=True)


class Statements(list[tuple[str, Any]]):
    """The statements of a block that name our tables."""

    def __call__(self, execute: Any, sql: str, params: Any, *rest: Any) -> Any:
        if "django_jobs_" in sql and "pg_notify" not in sql:  # a wake-up is left out if one was sent just now
            self.append((sql, params))
        return execute(sql, params, *rest)


@contextmanager
def noted() -> Iterator[Statements]:
    statements = Statements()
    with connection.execute_wrapper(statements):
        yield statements


def by_vendor(**counts: int) -> int:
    return counts[connection.vendor]


def take(worker: WorkerIdentity, limit: int = 100) -> list[Any]:
    return claim.claim(worker, ["default"], limit, NAMES, using="default")


@transactional
def test_enqueue_outside_a_transaction_is_one_statement() -> None:
    with noted() as statements, CaptureQueriesContext(connection) as captured:
        enqueue(note, "x")

    assert len(statements) == 1
    if connection.vendor == "postgresql":
        assert not [query["sql"] for query in captured if "BEGIN" in query["sql"]]


@pytest.mark.postgres
@transactional
@pytest.mark.parametrize(
    ("options", "more"),
    [
        ({}, ""),
        ({"delay": 60}, "delay"),
        ({"max_attempts": 2}, "options"),
        ({"run_at": datetime(2090, 1, 1, tzinfo=UTC)}, "run_at"),
    ],
)
def test_job_without_a_key_is_written_by_a_plain_insert_that_asks_nothing_back(
    options: dict[str, Any], more: str
) -> None:
    with noted() as statements:
        enqueue(note.using(**options), "x")

    ((sql, params),) = statements
    assert re.fullmatch(r"INSERT INTO django_jobs_job \(.*\) VALUES \(.*\)", sql)
    always = {"id", "payload", "task_name", "queue_name", "priority", "uniqueness"}
    assert set(re.findall(r"%\((\w+)\)s", sql)) == always | set(more.split())
    # A driver adapts text in no time, and other values in several microseconds each.
    assert all(isinstance(params[name], str) for name in always)


@pytest.mark.postgres
@transactional
def test_job_with_a_key_reads_no_arrays_either() -> None:
    with noted() as statements:
        enqueue(note.using(key="k"), "x")

    ((sql, _),) = statements
    assert "unnest" not in sql
    assert "RETURNING id\n    )" in sql  # the keys'
    assert not sql.endswith("RETURNING id")


@pytest.mark.postgres
@transactional
def test_bulk_insert_is_given_arrays_only_of_what_differs_and_asks_nothing_back() -> None:
    later = note.using(priority=3, delay=60)
    with noted() as statements:
        enqueue_many(note.bind(str(number)) for number in range(20))
        enqueue_many(later.bind(str(number)) for number in range(20))
        enqueue_many(task.bind("x") for task in (note, later))

    usual, delayed, mixed = (sql for sql, _ in statements)
    assert arrays(usual) == arrays(delayed) == {"id", "payload"}
    assert arrays(mixed) == {"id", "priority", "delay"}
    assert not any("RETURNING" in sql for sql, _ in statements)


def arrays(sql: str) -> set[str]:
    (names,) = re.findall(r" AS n\(([\w, ]+)\)", sql)
    return set(names.split(", "))


@pytest.mark.postgres
@transactional
def test_bulk_call_of_one_statement_opens_no_transaction() -> None:
    with CaptureQueriesContext(connection) as captured:
        enqueue_many(note.bind("x") for _ in range(1_000))
    assert not [query["sql"] for query in captured if "BEGIN" in query["sql"]]

    with CaptureQueriesContext(connection) as captured:
        enqueue_many(note.bind("x") for _ in range(1_001))
    assert [query["sql"] for query in captured if "BEGIN" in query["sql"]]


@transactional
@pytest.mark.parametrize("count", [1, 10, 1_000])
def test_enqueue_many_is_one_statement_however_many_there_are(count: int) -> None:
    with noted() as statements, transaction.atomic():
        enqueue_many([note.bind("x")] * count)

    assert len(statements) == inserts(Job, count)


@transactional
@pytest.mark.parametrize("count", [1, 100])
def test_enqueue_with_keys_is_one_statement_on_postgres_and_three_elsewhere(count: int) -> None:
    with noted() as statements, transaction.atomic():
        enqueue_many(note.using(key=str(number)).bind("x") for number in range(count))

    # Elsewhere: keys, their holders, jobs.
    assert len(statements) == by_vendor(postgresql=1, sqlite=2 + inserts(Job, count), mysql=3)


@transactional
def test_refused_key_costs_one_more_look() -> None:
    enqueue(note.using(key="k"), "x")
    with noted() as statements, transaction.atomic():
        enqueue(note.using(key="k"), "y")

    assert len(statements) == by_vendor(postgresql=2, sqlite=3, mysql=3)


@transactional
def test_once_is_two_statements() -> None:
    with noted() as statements, transaction.atomic():
        once("k")

    assert len(statements) == 2


@transactional
@pytest.mark.parametrize("count", [1, 100])
def test_claim_costs_the_same_for_one_and_for_a_hundred(count: int) -> None:
    enqueue_many([note.bind("x")] * count)
    worker = start_worker()

    with noted() as statements:
        assert len(take(worker)) == count

    # A look at what there is, and the claim; elsewhere that is: (the write lock,) pick, mark.
    assert len(statements) == by_vendor(postgresql=2, sqlite=4, mysql=3)


@transactional
@pytest.mark.parametrize("count", [1, 100])
def test_successes_are_recorded_by_as_many_statements_for_one_and_for_a_hundred(count: int) -> None:
    enqueue_many([note.bind("x")] * count)
    worker = start_worker()
    runs = take(worker)

    with noted() as statements:
        finish_all([succeeded(run) for run in runs], worker)

    # Elsewhere: (the write lock,) lock, write, delete; on MariaDB a DELETE for each row, see database.delete_rows.
    assert len(statements) == by_vendor(postgresql=1, sqlite=3 + inserts(JobRun, count), mysql=3 + count)


@transactional
def test_hundred_deaths_cost_no_more_than_one() -> None:
    costs = []
    for count in (1, 100):
        enqueue_many([note.bind("x")] * count)
        worker = start_worker()
        runs = take(worker)
        with noted() as statements:
            finish_all([died(run) for run in runs], worker)
        costs.append(len([sql for sql, _ in statements if not sql.startswith("DELETE")]))

    more = inserts(JobRun, 100) + inserts(DeadLetter, 100) - 2
    assert costs[0] == costs[1] - more <= 6


@transactional
def test_retries_cost_one_statement_on_postgres_and_one_each_elsewhere() -> None:
    enqueue_many([note.bind("x")] * 50)
    worker = start_worker()
    runs = take(worker)

    with noted() as statements:
        finish_all([failed(run) for run in runs], worker)

    assert len(statements) == by_vendor(postgresql=1, sqlite=52 + inserts(JobRun, 50), mysql=52)


@pytest.mark.postgres
@transactional
@pytest.mark.parametrize("ending", [succeeded, failed])
def test_turn_is_one_statement_with_retries_and_without(ending: Callable[[Any], Any]) -> None:
    enqueue_many([note.bind("x")] * 100)
    worker = start_worker()
    first, *rest = take(worker, 50)

    with noted() as statements:
        outcomes = [succeeded(first), *map(ending, rest)]
        finished, runs = turn.turn(outcomes, worker, "default", 50, NAMES, using="default", after=rest[-1])

    assert (len(finished.recorded), len(runs), len(statements)) == (50, 50, 1)


def hold_snapshot() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        cursor.execute("SELECT count(*) FROM django_jobs_job")


@pytest.mark.postgres
@pytest.mark.usefixtures("fresh_tables")
@transactional
@pytest.mark.parametrize("has_statistics", [False, True])
def test_turn_after_a_run_reads_nothing_that_lies_before_it(has_statistics: bool) -> None:
    """Design 5.3: the dead entries that a snapshot from before keeps alive lie before the watermark."""
    worker = start_worker()
    enqueue_many([note.bind("x")] * 6_000)
    with Threads() as threads, connection.cursor() as cursor:
        snapshot = OpenTransaction(threads, hold_snapshot)
        claim.claim(worker, ["default"], 5_000, NAMES, using="default")
        *_, last = claim.claim(worker, ["default"], 50, NAMES, using="default")
        if has_statistics:
            cursor.execute("ANALYZE django_jobs_job")
        with explained(run) as plans:
            _, runs = turn.turn([], worker, "default", 10, NAMES, using="default", after=last)
        snapshot.end()

    assert len(runs) == 10
    (plan,) = plans
    picked = plan.part("picked")
    assert picked.indexes == {"django_jobs_job_ready"}, picked
    assert not picked.sorted, picked
    assert picked.buffers < 100, picked

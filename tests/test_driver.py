"""Plans that the server keeps: only where the session is the connection's own, and never a plan that grew wrong."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.utils import ProgrammingError
from django.test.utils import CaptureQueriesContext

from django_jobs import enqueue_many
from django_jobs.driver import prepare_statements, statement_cursor
from django_jobs.lifecycle import claim
from tests.lifecycle.steps import NAMES, start_worker
from tests.tasks import note

pytestmark = [pytest.mark.postgres, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def prepared() -> Iterator[None]:
    connection.close()
    connection.ensure_connection()
    prepare_statements("default")
    yield
    connection.close()


def kept_plans() -> list[str]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT name, statement FROM pg_prepared_statements WHERE generic_plans > 0")
        return [name for name, statement in cursor.fetchall() if "picked" in statement]


@pytest.mark.usefixtures("prepared")
def test_claims_keep_one_plan_whatever_their_limit() -> None:
    enqueue_many([note.bind("x")] * 30)
    worker = start_worker()
    for limit in (1, 2, 3, 4, 20):
        assert len(claim.claim(worker, None, limit, NAMES, using="default")) == limit
    assert len(kept_plans()) == 1


def test_nothing_is_kept_before_that_was_asked_for() -> None:
    enqueue_many([note.bind("x")] * 30)
    worker = start_worker()
    for _ in range(5):
        claim.claim(worker, None, 1, NAMES, using="default")
    assert kept_plans() == []


@pytest.mark.usefixtures("prepared", "fresh_tables")
def test_plan_that_was_made_for_an_empty_table_is_right_for_a_full_one() -> None:
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE django_jobs_job")  # no page: to read all of it costs nothing, they say
    worker = start_worker()
    for _ in range(3):
        assert claim.claim_queue(worker, "default", 10, NAMES, using="default") == []
    (name,) = kept_plans()
    enqueue_many([note.bind("x")] * 5_000)

    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS) EXECUTE {name} ('default', 10, '{worker.id}')")
        plan = "\n".join(row[0] for row in cursor.fetchall())
        transaction.set_rollback(True)
    assert "Index Scan using django_jobs_job_ready" in plan, plan
    assert "Seq Scan" not in plan, plan
    assert "actual" in plan, plan
    assert re.search(r"actual [^)]*rows=10(\.00)? ", plan), plan


@pytest.mark.usefixtures("prepared")
def test_limit_locks_no_row_more_than_it_gives() -> None:
    enqueue_many([note.bind("x")] * 30)
    worker = start_worker()
    with transaction.atomic():
        assert len(claim.claim_queue(worker, "default", 3, NAMES, using="default")) == 3
        other = connection.copy()
        try:
            with other.cursor() as cursor:
                cursor.execute("SELECT count(*) FROM (SELECT 1 FROM django_jobs_job FOR UPDATE SKIP LOCKED) AS free")
                assert cursor.fetchone() == (27,)
        finally:
            other.close()


@pytest.mark.usefixtures("prepared")
def test_who_watches_the_cursors_of_django_sees_them(settings: Any) -> None:
    worker = start_worker()
    with CaptureQueriesContext(connection) as queries:
        claim.claim_queue(worker, "default", 1, NAMES, using="default")
    assert len(queries) == 1


@pytest.mark.usefixtures("prepared")
def test_errors_are_those_of_django() -> None:
    with pytest.raises(ProgrammingError), statement_cursor("default") as cursor:
        cursor.execute("SELECT nothing")

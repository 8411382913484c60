"""Plans that the server keeps: only where the session is the connection's own, and never a plan that grew wrong."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.backends.utils import CursorWrapper
from django.db.transaction import TransactionManagementError
from django.db.utils import InternalError, ProgrammingError
from django.test.utils import CaptureQueriesContext
from psycopg import ConnectionInfo

from django_jobs import driver, enqueue, enqueue_many
from django_jobs.driver import fetch_prepared, prepare_statements
from django_jobs.lifecycle import claim, wake
from django_jobs.models import Job
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


@pytest.mark.usefixtures("prepared")
def test_no_statement_is_compiled_even_where_a_missing_index_makes_it_dear() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET enable_indexscan = off; SET enable_indexonlyscan = off")  # each table is 10^10 dear now
        cursor.execute("EXPLAIN (ANALYZE) SELECT id FROM django_jobs_job WHERE run_at < now()")
        plan = "\n".join(row[0] for row in cursor.fetchall())
    assert "JIT" not in plan, plan


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
    with pytest.raises(ProgrammingError):
        fetch_prepared("SELECT nothing", [], using="default")


def prepared_inserts() -> list[str]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT statement FROM pg_prepared_statements WHERE statement LIKE 'INSERT INTO django_jobs_job %'"
        )
        return [statement for (statement,) in cursor.fetchall()]


@pytest.fixture
def fresh_connection() -> Iterator[None]:
    connection.close()
    yield
    connection.close()


@pytest.mark.usefixtures("fresh_connection")
@pytest.mark.parametrize("transactions", [0, 1])
def test_enqueue_is_planned_once_for_a_connection_that_enqueues_again(transactions: int) -> None:
    with transaction.atomic() if transactions else nullcontext():
        enqueue(note, "x")
        assert prepared_inserts() == []  # nothing is asked of a connection that is opened for one job
        for _ in range(3):
            enqueue(note, "x")
    assert len(prepared_inserts()) == 1
    assert Job.objects.count() == 4


@pytest.mark.usefixtures("fresh_connection")
def test_statements_of_the_project_are_left_as_they_are() -> None:
    for _ in range(3):
        enqueue(note, "x")
    assert connection.connection.prepare_threshold is None


@pytest.mark.usefixtures("fresh_connection")
def test_nothing_is_prepared_where_the_project_says_that_a_pooler_is_in_the_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(connection.settings_dict, "DISABLE_SERVER_SIDE_CURSORS", True)
    for _ in range(3):
        enqueue(note, "x")
    assert prepared_inserts() == []


@pytest.mark.usefixtures("fresh_connection")
def test_nothing_is_prepared_where_another_session_may_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pooler answers the connect with a process id of its own making. The real one is in tests/races."""
    monkeypatch.setattr(ConnectionInfo, "backend_pid", 1)
    for _ in range(3):
        enqueue(note, "x")
    assert prepared_inserts() == []


@pytest.mark.usefixtures("fresh_connection")
def test_prepared_enqueue_is_seen_by_who_counts_queries() -> None:
    for _ in range(3):
        enqueue(note, "x")
    with CaptureQueriesContext(connection) as queries, transaction.atomic():
        enqueue(note, "a needle")
    inserts = [query["sql"] for query in queries if "INSERT" in query["sql"]]
    assert len(inserts) == 1
    assert "a needle" in inserts[0]
    assert len(prepared_inserts()) == 1


@pytest.mark.usefixtures("fresh_connection")
def test_nothing_is_prepared_where_somebody_changes_statements() -> None:
    def add(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        return execute(f"SELECT set_config('a.b', 'c', false); {sql}", params, many, context)

    with connection.execute_wrapper(add):
        for _ in range(3):
            enqueue(note, "x")
    assert prepared_inserts() == []
    assert Job.objects.count() == 3


@pytest.mark.usefixtures("fresh_connection")
def test_nothing_is_prepared_where_somebody_else_makes_the_cursors(monkeypatch: pytest.MonkeyPatch) -> None:
    """As django-tenants does, which sets the search path there, and Django's own tests, which refuse."""
    real, made = connection.cursor, []

    class Watched(CursorWrapper):
        pass

    def watched() -> Any:
        made.append(1)
        return Watched(real().cursor, connection)

    monkeypatch.setattr(connection, "cursor", watched)
    for _ in range(3):
        enqueue(note, "x")
    assert len(made) >= 3
    monkeypatch.undo()
    assert prepared_inserts() == []


@pytest.mark.usefixtures("fresh_connection")
def test_cursor_of_django_is_asked_for_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(3):
        enqueue(note, "x")

    def refuse() -> Any:
        raise AssertionError("no queries here")

    monkeypatch.setattr(connection, "cursor", refuse)
    with pytest.raises(AssertionError, match="no queries here"):
        enqueue(note, "x")


@pytest.mark.usefixtures("fresh_connection")
def test_plan_that_reads_keys_is_not_kept() -> None:
    for number in range(8):
        enqueue(note.using(key=f"{number}"), "x")
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_prepared_statements")
        assert cursor.fetchone() == (0,)


@pytest.mark.usefixtures("fresh_connection")
def test_connection_that_is_opened_for_one_job_is_asked_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wake, "_until", {})
    enqueue(note, "x")
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_prepared_statements")
        assert cursor.fetchone() == (0,)
    assert driver._own_sessions[connection.connection] is None


@pytest.mark.usefixtures("fresh_connection")
def test_prepared_enqueue_in_a_broken_transaction_says_what_django_says() -> None:
    for _ in range(3):
        enqueue(note, "x")
    with transaction.atomic():
        with pytest.raises(ProgrammingError), connection.cursor() as cursor:
            cursor.execute("SELECT nothing")
        with pytest.raises(InternalError, match="aborted"):
            enqueue(note, "x")
        connection.needs_rollback = True
        with pytest.raises(TransactionManagementError):
            enqueue(note, "x")


@pytest.mark.usefixtures("fresh_connection", "fresh_tables")
def test_prepared_enqueue_survives_a_new_column_and_plans_that_were_thrown_away() -> None:
    for _ in range(3):
        enqueue(note, "x")
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE django_jobs_job ADD COLUMN later integer")
        try:
            enqueue(note, "x")
            cursor.execute("DEALLOCATE ALL")
            enqueue(note, "x")
        finally:
            cursor.execute("ALTER TABLE django_jobs_job DROP COLUMN later")
    enqueue(note, "x")
    assert Job.objects.count() == 6
    assert prepared_inserts() == [], "it may happen again"


@pytest.mark.usefixtures("fresh_connection")
def test_plans_thrown_away_cost_an_open_transaction_one_error_at_most() -> None:
    for _ in range(3):
        enqueue(note, "x")
    with connection.cursor() as cursor:
        cursor.execute("DEALLOCATE ALL")
    with pytest.raises(ProgrammingError, match="does not exist"), transaction.atomic():
        enqueue(note, "x")
    with transaction.atomic():
        enqueue(note, "x")
    assert Job.objects.count() == 4


@pytest.mark.usefixtures("fresh_connection")
def test_nothing_is_prepared_on_connections_that_a_pool_resets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connection.settings_dict["OPTIONS"], "pool", {"reset": lambda raw: raw.execute("DISCARD ALL")})
    try:
        with transaction.atomic():
            for _ in range(3):
                enqueue(note, "x")
            assert prepared_inserts() == []
    finally:
        connection.close_pool()  # type: ignore[attr-defined]

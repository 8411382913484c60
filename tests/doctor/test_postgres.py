"""jobs_doctor on PostgreSQL: each finding by making it true, and each mend by doing what it says."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import pytest
from django.db import DatabaseError, connection, connections, transaction

from django_jobs.doctor import postgres, schema, vacuum, wakeups
from django_jobs.doctor.examination import ask_all, examine
from django_jobs.doctor.findings import Finding, Level
from django_jobs.doctor.rows import Setting
from django_jobs.doctor.vacuum import DeadRows, Session
from django_jobs.registry import declare, isolated
from tests.doctor.sessions import another_session, deaf_pooler, run
from tests.factories import JobFactory

pytestmark = [pytest.mark.postgres, pytest.mark.django_db]

FINE, UNSEEN, WARNING, PROBLEM = Level.FINE, Level.UNSEEN, Level.WARNING, Level.PROBLEM


def levels(question: Callable[[str], Any]) -> list[Level]:
    return [finding.level for finding in question("default")]


def only(question: Callable[[str], Any]) -> Finding:
    (finding,) = question("default")
    assert isinstance(finding, Finding)
    return finding


def mend(finding: Finding) -> None:
    """Do what the finding says, as it stands."""
    assert finding.mend
    for line in finding.mend:
        run(line)


def test_a_database_of_this_suite_is_fine_but_for_its_server() -> None:
    """Whoever runs the suite may have switched these off for speed."""
    server_wide = {"autovacuum", "durability", "dead_rows", "transactions", "connections", "slots"}

    found = examine("default")

    assert {"migrations", "indexes", "timeouts", "wakeups", "clock", "workers"} <= {each.name for each in found}
    assert [each for each in found if each.level is not FINE and each.name not in server_wide] == []


class TestAutovacuum:
    """PG-07."""

    def test_it_is_told_when_the_server_has_it_off(self) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SHOW autovacuum")
            is_on = cursor.fetchone()[0] == "on"

        assert levels(postgres.autovacuum) == [FINE if is_on else PROBLEM]

    @pytest.mark.parametrize(
        ("table", "parameters"),
        [
            ("django_jobs_job", "autovacuum_vacuum_scale_factor, vacuum_truncate"),
            ("django_jobs_worker", "fillfactor"),
            ("django_jobs_jobrun", "autovacuum_vacuum_insert_threshold"),
        ],
    )
    def test_settings_that_a_table_lacks_are_named_and_mended(self, table: str, parameters: str) -> None:
        run(f"ALTER TABLE {table} RESET ({parameters})")

        (finding,) = (each for each in postgres.autovacuum("default") if table in each.message)
        assert finding.level is WARNING
        assert f"{table} lacks {parameters}" in finding.message

        mend(finding)
        assert not [each for each in postgres.autovacuum("default") if table in each.message]

    def test_other_values_are_somebodys_choice(self) -> None:
        run("ALTER TABLE django_jobs_job SET (autovacuum_vacuum_threshold = 77)")

        assert not [each for each in postgres.autovacuum("default") if "django_jobs_job" in each.message]

    def test_a_table_that_is_never_vacuumed_is_a_problem(self) -> None:
        run("ALTER TABLE django_jobs_job SET (autovacuum_enabled = off)")

        (finding,) = (each for each in postgres.autovacuum("default") if "django_jobs_job" in each.message)
        assert finding.level is PROBLEM

        mend(finding)
        assert not [each for each in postgres.autovacuum("default") if "django_jobs_job" in each.message]


class TestIndexes:
    @pytest.mark.parametrize("name", ["django_jobs_job_ready", "django_jobs_run_ended", "django_jobs_key_holder"])
    def test_a_missing_index_is_named_with_the_statement_that_makes_it(self, name: str) -> None:
        run(f"DROP INDEX {name}")

        finding = only(schema.indexes)
        assert finding.level is PROBLEM
        assert f"Index {name} of " in finding.message

        run(finding.mend[0].replace("CONCURRENTLY ", ""))  # this test is a transaction
        assert levels(schema.indexes) == [FINE]

    @pytest.mark.parametrize(
        ("constraint", "level"), [("django_jobs_run_fence", PROBLEM), ("django_jobs_run_status", WARNING)]
    )
    def test_a_missing_constraint_is_named_with_the_statement_that_makes_it(
        self, constraint: str, level: Level
    ) -> None:
        run(f"ALTER TABLE django_jobs_jobrun DROP CONSTRAINT {constraint}")

        finding = only(schema.indexes)
        assert finding.level is level

        mend(finding)
        assert levels(schema.indexes) == [FINE]

    def test_a_missing_index_of_a_single_column_is_found(self) -> None:
        run("ALTER TABLE django_jobs_deadletter DROP CONSTRAINT django_jobs_deadletter_job_id_key")

        assert "job_id of django_jobs_deadletter is missing" in only(schema.indexes).message

    @pytest.mark.django_db(transaction=True)
    def test_an_invalid_index_that_a_failed_attempt_left_behind_is_dropped(self) -> None:
        JobFactory.create_batch(2, priority=0)
        with pytest.raises(DatabaseError):
            run("CREATE UNIQUE INDEX CONCURRENTLY made_up ON django_jobs_job (priority)")

        finding = only(schema.indexes)
        assert "Index made_up of django_jobs_job is INVALID" in finding.message

        mend(finding)
        assert levels(schema.indexes) == [FINE]

    @pytest.mark.django_db(transaction=True)
    def test_an_invalid_index_of_the_models_is_built_anew(self) -> None:
        run("UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'django_jobs_job_ready'::regclass")

        finding = only(schema.indexes)
        assert "Index django_jobs_job_ready of django_jobs_job is INVALID" in finding.message

        mend(finding)
        assert levels(schema.indexes) == [FINE]


class TestTransactions:
    """PG-01."""

    @pytest.fixture(autouse=True)
    def everything_is_old(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(vacuum, "OLD", 0.0)

    @contextmanager
    def snapshot(self) -> Iterator[int]:
        """Somebody else's report, which has read something and does not end. Its pid."""
        with another_session() as session, session.cursor() as cursor:
            cursor.execute("SET application_name = 'report'")
            cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            cursor.execute("SELECT pg_backend_pid(), 'a secret'")
            yield cursor.fetchone()[0]

    def of(self, pid: int) -> Finding:
        (finding,) = (each for each in vacuum.transactions("default") if f"pid {pid} " in each.message)
        return finding

    def test_a_snapshot_held_elsewhere_is_named_without_its_query(self) -> None:
        with self.snapshot() as pid:
            finding = self.of(pid)

        assert finding.level is WARNING
        assert f"Session pid {pid} (report, role " in finding.message
        assert ", idle for " in finding.message
        assert "no dead row of since then can be removed" in finding.message
        assert "secret" not in f"{finding}"

    def test_a_very_old_one_is_a_problem(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(vacuum, "VERY_OLD", 0.0)
        with self.snapshot() as pid:
            assert self.of(pid).level is PROBLEM

    def test_its_mend_ends_it(self) -> None:
        with self.snapshot() as pid:
            run(self.of(pid).mend[0])
            with connection.cursor() as cursor:
                _until(cursor, f"SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = {pid})")
        assert not [each for each in vacuum.transactions("default") if f"pid {pid} " in each.message]

    def test_one_that_holds_only_locks_is_told_if_it_does_nothing(self) -> None:
        with another_session() as session, session.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute("LOCK TABLE django_jobs_lock IN ROW SHARE MODE")
            cursor.execute("SELECT pg_backend_pid()")
            finding = self.of(cursor.fetchone()[0])

        assert "its locks stay" in finding.message

    def test_the_oldest_is_a_number_for_metrics(self) -> None:
        with self.snapshot():
            assert vacuum.oldest_transaction("default") > 0

    def test_what_the_role_may_not_see_is_said(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """PG-07: no superuser is needed."""
        with self.snapshot() as pid, as_nobody():
            unseen = [each for each in vacuum.transactions("default") if each.level is UNSEEN]
            monkeypatch.setattr(vacuum, "OLD_SNAPSHOT", 0)
            finding = self.of(pid)

        assert "this role may not see" in unseen[0].message
        assert "pg_read_all_stats" in unseen[0].mend[0]
        assert "has a snapshot from" in finding.message

    def test_young_ones_are_fine(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(vacuum, "OLD", 3600.0)
        with self.snapshot() as pid:
            assert not [each for each in vacuum.transactions("default") if f"pid {pid} " in each.message]

    def test_a_standby_that_holds_a_snapshot_is_told_how_to_let_go(self) -> None:
        held = 2 * vacuum.OLD_SNAPSHOT
        standby = Session(7, "replicator", "standby-1", "walsender", "active", None, None, held, holds=True)

        (finding,) = vacuum._judge(standby)

        assert finding.message.startswith("walsender pid 7 (standby-1, role replicator) has a snapshot from 2,000,000")
        assert "hot_standby_feedback" in finding.mend[0]


@contextmanager
def as_nobody() -> Iterator[None]:
    """Become a role with no rights but to connect, in a transaction that takes it back."""
    name = f"nobody_{uuid4().hex[:8]}"
    with transaction.atomic():
        run(f"CREATE ROLE {name}")
        run(f"SET LOCAL ROLE {name}")
        yield
        run("RESET ROLE")
        transaction.set_rollback(True)


def test_a_question_that_is_refused_is_unseen_and_stops_no_other() -> None:
    with as_nobody():
        found = ask_all([postgres.connection_room, postgres.isolation], "default")

    assert [(each.name, each.level) for each in found] == [("connection_room", UNSEEN), ("isolation", FINE)]
    assert "permission denied for table django_jobs_worker" in found[0].message


def _until(cursor: Any, question: str) -> None:
    """Ask until it is true; the database tells nobody by itself."""
    for _ in range(1000):
        cursor.execute("SELECT pg_stat_clear_snapshot()")
        cursor.execute(question)
        if cursor.fetchone()[0]:
            return
        time.sleep(0.01)
    raise AssertionError(question)


class TestReplicationSlots:
    @pytest.fixture
    def slot(self) -> Iterator[str]:
        name = f"gone_{uuid4().hex[:8]}"
        with another_session() as session, session.cursor() as cursor:
            cursor.execute("SELECT pg_create_physical_replication_slot(%s, true)", [name])
            try:
                yield name
            finally:
                drop = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s"
                cursor.execute(drop, [name])

    def test_one_that_keeps_nothing_is_fine(self, slot: str) -> None:
        assert not [each for each in vacuum.replication_slots("default") if slot in each.message]

    def test_one_that_keeps_a_snapshot_unused_is_a_problem_and_can_be_dropped(self, slot: str) -> None:
        if not standby_reports_and_goes(slot):
            return  # The server lets nobody replicate, so that it cannot happen there.

        (finding,) = (each for each in vacuum.replication_slots("default") if slot in each.message)
        assert finding.level is PROBLEM
        assert "is not in use and keeps a snapshot" in finding.message

        mend(finding)
        assert not [each for each in vacuum.replication_slots("default") if slot in each.message]

    @pytest.mark.parametrize(
        ("is_active", "age", "kept", "expected"),
        [
            (True, None, 5e9, []),
            (True, 10, 1e3, []),
            (True, 2_000_000, 1e3, [WARNING]),
            (False, None, 1e3, []),
            (False, None, 5e9, [WARNING]),
            (False, 10, 5e9, [PROBLEM, WARNING]),
            (False, 10, None, [PROBLEM]),
        ],
    )
    def test_each_kind_is_judged(
        self, is_active: bool, age: int | None, kept: float | None, expected: list[Level]
    ) -> None:
        assert [each.level for each in vacuum.judge_slot("s", is_active, age, kept)] == expected


def standby_reports_and_goes(slot: str) -> bool:
    """Stream as a standby with hot_standby_feedback does, say which snapshot its oldest query has, and go away."""
    import psycopg

    settings = connection.get_connection_params()
    names = {name: settings[name] for name in ("host", "port", "user", "password") if settings.get(name)}
    raw = psycopg.pq.PGconn.connect(psycopg.conninfo.make_conninfo("", **names, replication="true").encode())
    with another_session() as session, session.cursor() as cursor:
        cursor.execute("SELECT txid_current()")
        xmin = cursor.fetchone()[0]
        try:
            if raw.status is not psycopg.pq.ConnStatus.OK:
                return False
            position = raw.exec_(b"IDENTIFY_SYSTEM").get_value(0, 2)
            raw.exec_(b'START_REPLICATION SLOT "%s" PHYSICAL %s' % (slot.encode(), position or b"0/0"))
            raw.put_copy_data(struct.pack("!cqIIII", b"h", 0, xmin & 0xFFFFFFFF, xmin >> 32, 0, 0))
            raw.flush()
            _until(cursor, f"SELECT xmin IS NOT NULL FROM pg_replication_slots WHERE slot_name = '{slot}'")
        finally:
            raw.finish()
        _until(cursor, f"SELECT NOT active FROM pg_replication_slots WHERE slot_name = '{slot}'")
    return True


class TestPreparedTransactions:
    @pytest.mark.django_db(transaction=True)
    def test_a_forgotten_one_is_a_problem(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(vacuum, "OLD", 0.0)
        doubled = f"it''s {uuid4().hex}"
        with connection.cursor() as cursor:
            cursor.execute("SELECT current_setting('max_prepared_transactions')::int")
            (most,) = cursor.fetchone()
        if not most:  # PostgreSQL's default: then there is none to forget
            assert levels(vacuum.prepared_transactions) == [FINE]
            return
        with another_session() as session, session.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute("SELECT txid_current()")
            cursor.execute(f"PREPARE TRANSACTION '{doubled}'")

        finding = only(vacuum.prepared_transactions)
        assert finding.level is PROBLEM

        mend(finding)
        assert levels(vacuum.prepared_transactions) == [FINE]

    def test_a_young_one_is_its_managers_business(self) -> None:
        assert list(vacuum.judge_prepared("gid", 1.0)) == []
        assert [each.level for each in vacuum.judge_prepared("gid", 100.0)] == [PROBLEM]


class TestDeadRows:
    """PG-07: and what a metric may show."""

    @pytest.mark.django_db(transaction=True)
    def test_rows_that_nobody_removes_are_told_and_go_with_the_mend(self) -> None:
        JobFactory.create_batch(30)
        run("DELETE FROM django_jobs_job")
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_stat_reset_single_table_counters('django_jobs_job'::regclass)")
        JobFactory.create_batch(30)
        run("DELETE FROM django_jobs_job")
        for _ in range(500):
            connection.close()  # A session reports what it did at its end.
            if vacuum.dead_rows_of("default").dead >= 30:
                break
            time.sleep(0.01)

        (finding,) = vacuum.judge_dead_rows(vacuum.dead_rows_of("default"), threshold=20)
        assert finding.level is WARNING
        assert "dead rows beside " in finding.message

        for _ in range(500):  # A snapshot of somebody's may keep them for a moment.
            run(finding.mend[0])
            if vacuum.dead_rows_of("default").dead < 30:
                return
            time.sleep(0.01)
        pytest.fail("VACUUM removed nothing.")

    @pytest.mark.parametrize(
        ("table", "expected", "words"),
        [
            (DeadRows(100, 5_000, None, 10**6), FINE, "never vacuumed"),
            (DeadRows(100, 50_000, 30.0, 10**6), FINE, "last vacuumed 30 s ago"),
            (DeadRows(100, 50_000, 3600.0, 10**6), WARNING, "autovacuum does not come round"),
            (DeadRows(100, 50_000, None, 10**6), WARNING, "autovacuum does not come round"),
            (DeadRows(100, 5_000_000, 30.0, 10**6), WARNING, "may not remove them"),
            (DeadRows(9_000_000, 5_000_000, 30.0, 10**6), FINE, "last vacuumed 30 s ago"),
        ],
        ids=str,
    )
    def test_each_case_is_judged(self, table: DeadRows, expected: Level, words: str) -> None:
        (finding,) = vacuum.judge_dead_rows(table, threshold=10_000)

        assert finding.level is expected
        assert words in finding.message

    def test_a_table_that_is_almost_all_room_is_told(self) -> None:
        _, finding = vacuum.judge_dead_rows(DeadRows(100, 0, 30.0, 50 * 10**9), threshold=10_000)

        assert finding.level is WARNING
        assert "take 50 GB for 100 rows" in finding.message


@contextmanager
def database_setting(assignment: str) -> Iterator[None]:
    """A setting of the database, which new sessions have."""
    name = connection.settings_dict["NAME"]
    run(f'ALTER DATABASE "{name}" SET {assignment}')
    connection.close()
    try:
        yield
    finally:
        run(f'ALTER DATABASE "{name}" RESET ALL')
        connection.close()


@pytest.mark.django_db(transaction=True)
class TestSettingsOfTheDatabase:
    @pytest.mark.parametrize(
        ("assignment", "words"),
        [
            ("statement_timeout = '900ms'", "statement_timeout is 0.9 s (database), less than 5 s"),
            ("idle_in_transaction_session_timeout = '2s'", "idle_in_transaction_session_timeout is 2 s (database)"),
            ("idle_session_timeout = '20s'", "idle workers lose their connections"),
        ],
    )
    def test_a_limit_that_cuts_a_worker_off_is_named_and_mended_where_it_is_set(
        self, assignment: str, words: str
    ) -> None:
        with database_setting(assignment):
            finding = only(postgres.timeouts)
            assert finding.level is WARNING
            assert words in finding.message

            mend(finding)
            connection.close()
            assert levels(postgres.timeouts) == [FINE]

    @pytest.mark.parametrize(
        "assignment", ["statement_timeout = '30s'", "idle_in_transaction_session_timeout = '5min'"]
    )
    def test_a_limit_that_spares_workers_is_fine(self, assignment: str) -> None:
        with database_setting(assignment):
            assert levels(postgres.timeouts) == [FINE]

    def test_commits_that_are_not_waited_for_are_told_and_mended(self) -> None:
        with database_setting("synchronous_commit = off"):
            (finding,) = (each for each in postgres.durability("default") if "synchronous_commit" in each.message)
            assert finding.level is WARNING

            mend(finding)
            connection.close()
            assert not [each for each in postgres.durability("default") if "synchronous_commit" in each.message]

    def test_another_isolation_level_is_told(self) -> None:
        assert levels(postgres.isolation) == [FINE]
        with database_setting("default_transaction_isolation = 'repeatable read'"):
            assert only(postgres.isolation).level is WARNING

    def test_no_room_for_one_more_worker_is_told(self) -> None:
        name = connection.settings_dict["NAME"]
        run(f'ALTER DATABASE "{name}" CONNECTION LIMIT 2')
        try:
            finding = only(postgres.connection_room)
        finally:
            run(f'ALTER DATABASE "{name}" CONNECTION LIMIT -1')

        assert finding.level is PROBLEM
        assert "of 2 connections are in use" in finding.message
        assert "(the database's CONNECTION LIMIT)" in finding.message


@pytest.mark.parametrize(
    ("limit", "used", "workers", "expected"),
    [
        (100, 90, 2, FINE),
        (100, 95, 2, WARNING),
        (100, 98, 2, PROBLEM),
        (100, 30, 10, FINE),
        (100, 30, 11, WARNING),
    ],
)
def test_room_is_what_one_more_worker_needs_and_all_of_them_when_busy(
    limit: int, used: int, workers: int, expected: Level
) -> None:
    assert postgres.judge_room("max_connections", limit, used, workers).level is expected


def test_a_limit_on_transactions_is_held_against_the_longest_atomic_task() -> None:
    """PostgreSQL 17 has the setting."""
    limit = {"transaction_timeout": Setting(str(10 * 3600 * 1000), "user")}
    with isolated():
        declare(_short, atomic=True, timeout=10)
        assert list(postgres.judge_timeouts(limit, "shop")) == []
        declare(_long, atomic=True, timeout=20 * 3600)
        (finding,) = postgres.judge_timeouts(limit, "shop")

    assert "a task with atomic=True is cut off" in finding.message
    assert finding.mend == ("ALTER ROLE CURRENT_USER RESET transaction_timeout;",)


def _short() -> None: ...


def _long() -> None: ...


@pytest.mark.parametrize(
    ("fsync", "pages", "commit", "expected"),
    [
        ("on", "on", "on", []),
        ("on", "on", "remote_apply", []),
        ("on", "on", "local", []),
        ("off", "on", "on", [PROBLEM]),
        ("on", "off", "on", [WARNING]),
        ("on", "on", "off", [WARNING]),
        ("off", "off", "off", [PROBLEM, WARNING, WARNING]),
    ],
)
def test_durability_is_judged(fsync: str, pages: str, commit: str, expected: list[Level]) -> None:
    values = {"fsync": fsync, "full_page_writes": pages, "synchronous_commit": commit}
    settings = {name: Setting(value, "configuration file") for name, value in values.items()}

    assert [each.level for each in postgres.judge_durability(settings, "shop")] == expected


def test_a_table_that_a_crash_would_empty_is_a_problem() -> None:
    run("ALTER TABLE django_jobs_lock SET UNLOGGED")

    (finding,) = (each for each in postgres.durability("default") if "UNLOGGED" in each.message)
    assert finding.level is PROBLEM

    mend(finding)
    assert not [each for each in postgres.durability("default") if "UNLOGGED" in each.message]


class TestWakeups:
    def test_a_notification_is_heard(self) -> None:
        assert levels(wakeups.listening) == [FINE]

    def test_a_pooler_in_the_way_is_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with deaf_pooler() as port:
            monkeypatch.setitem(connections.settings["default"], "HOST", "127.0.0.1")
            monkeypatch.setitem(connections.settings["default"], "PORT", str(port))
            finding = only(wakeups.listening)

        assert finding.level is WARNING
        assert "a pooler in transaction mode is in the way. An idle worker looks each 1 s" in finding.message

    def test_nobody_listens_where_the_settings_say_so(self, settings: Any) -> None:
        settings.DJANGO_JOBS = {"NOTIFY": False}

        assert "is off" in only(wakeups.listening).message

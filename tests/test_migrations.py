"""Migrations that a busy table survives, and the operations they are made of."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import DatabaseError, connection, connections, migrations, models, transaction
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.state import ProjectState
from django.db.utils import NotSupportedError

from django_jobs.models import Job
from django_jobs.models.fields import StatusIndex
from django_jobs.operations import AddIndexConcurrently, RemoveIndexConcurrently, SetStorageParameters
from tests.factories import DeadLetterFactory, JobFactory, JobKeyFactory, JobRunFactory, WorkerFactory
from tests.lifecycle.steps import claim_all, finish_all, start_worker, succeeded

APP = "django_jobs"


def all_migrations() -> list[migrations.Migration]:
    loader = MigrationLoader(connection)
    return [loader.graph.nodes[key] for key in sorted(key for key in loader.graph.nodes if key[0] == APP)]


def state_before(name: str) -> ProjectState:
    state: ProjectState = MigrationLoader(connection).project_state((APP, name), at_end=False)
    return state


def state_now() -> ProjectState:
    loader = MigrationLoader(connection)
    state: ProjectState = loader.project_state(loader.graph.leaf_nodes(APP))
    return state


def apply(*operations: Any, backwards: bool = False) -> None:
    """Run a migration of these operations, one after another, as `migrate` does with `atomic = False`."""
    migration = migrations.Migration("made_up", APP)
    migration.operations, migration.atomic = list(operations), False  # type: ignore[misc]  # Django's own way: attributes.
    with connection.schema_editor(atomic=False) as editor:
        (migration.unapply if backwards else migration.apply)(state_now(), editor)


def statements(migration: migrations.Migration, *, backwards: bool = False) -> list[str]:
    """What `sqlmigrate` prints of it, without the comments."""
    loader = MigrationLoader(connection)
    printed: list[str] = loader.collect_sql([(migration, backwards)])
    return [line for line in printed if not line.startswith("--")]


# A statement that reads and writes of a busy table never wait for longer than a moment, and that touches no row.
SAFE = (
    r"BEGIN;|COMMIT;",
    r"ALTER TABLE \S+ (RE)?SET \([^()]*\);",
    r"(CREATE( UNIQUE)?|DROP) INDEX CONCURRENTLY IF (NOT )?EXISTS .*;",
    r"CREATE TABLE .*;",
    # Processes of the previous release write no value for it.
    r"ALTER TABLE \S+ ADD COLUMN (?!.*(UNIQUE|GENERATED|REFERENCES|CONSTRAINT)).*((?<! NOT) NULL| DEFAULT .*);",
    r"ALTER TABLE \S+ ADD CONSTRAINT .* NOT VALID;",
    r"ALTER TABLE \S+ VALIDATE CONSTRAINT \S+;",
)


# Only on the way back, when no process reads the column any more.
SAFE_BACKWARDS = (*SAFE, r"ALTER TABLE \S+ DROP COLUMN \S+( CASCADE)?;")


def unsafe(printed: list[str], safe: tuple[str, ...] = SAFE) -> list[str]:
    """The statements that are not `safe`; anything goes for a table that was made on the way."""
    new = set(re.findall(r"^CREATE TABLE (\S+)", "\n".join(printed), re.MULTILINE))
    return [
        each
        for each in printed
        if not any(re.fullmatch(pattern, each, re.DOTALL) for pattern in safe) and not any(name in each for name in new)
    ]


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)  # what is done concurrently refuses a transaction
@pytest.mark.parametrize("backwards", [False, True], ids=["forwards", "backwards"])
def test_no_migration_after_the_first_rewrites_or_blocks_a_table(backwards: bool) -> None:
    """DP-06."""
    for migration in all_migrations()[1:]:
        printed = statements(migration, backwards=backwards)
        assert unsafe(printed, SAFE_BACKWARDS if backwards else SAFE) == [], migration.name


@pytest.mark.parametrize(
    "statement",
    [
        'CREATE INDEX "a" ON "django_jobs_job" ("key");',
        'CREATE INDEX CONCURRENTLY "a" ON "django_jobs_job" ("key");',
        'ALTER TABLE "django_jobs_job" ALTER COLUMN "key" TYPE text;',
        'ALTER TABLE "django_jobs_job" ALTER COLUMN "key" SET NOT NULL;',
        'ALTER TABLE "django_jobs_job" ADD COLUMN "cursor" jsonb NOT NULL;',
        'ALTER TABLE "django_jobs_job" ADD COLUMN "cursor" jsonb NULL UNIQUE;',
        'ALTER TABLE "django_jobs_job" ADD CONSTRAINT "a" CHECK ("attempt" >= 0);',
        'ALTER TABLE "django_jobs_job" DROP COLUMN "key" CASCADE;',
        'ALTER TABLE "django_jobs_job" SET UNLOGGED;',
        'UPDATE "django_jobs_job" SET "key" = NULL;',
    ],
)
def test_a_statement_that_would_do_so_is_found(statement: str) -> None:
    """DP-06: the rule above is one that can be broken."""
    assert unsafe([statement]) == [statement]


@pytest.mark.django_db(transaction=True)  # SQLite's schema editor refuses a transaction
def test_later_migrations_do_nothing_to_other_databases() -> None:
    if connection.vendor == "postgresql":
        assert statements(all_migrations()[1]) != ["BEGIN;", "COMMIT;"]
    else:
        assert [line for line in statements(all_migrations()[1]) if line not in {"BEGIN;", "COMMIT;"}] == []


@pytest.mark.django_db
def test_rows_that_processes_of_the_release_before_a_migration_write_are_taken_and_run() -> None:
    """DP-07: they write no value into a column that they do not know."""
    for migration in all_migrations()[1:]:
        old = state_before(migration.name).apps
        for factory in (JobFactory, JobRunFactory, DeadLetterFactory, WorkerFactory, JobKeyFactory):
            row: models.Model = factory.build()
            model = old.get_model(APP, row._meta.label.rpartition(".")[2])
            known = [field.attname for field in model._meta.concrete_fields]
            model._default_manager.create(**{name: getattr(row, name) for name in known})

        worker = start_worker()
        claimed = claim_all(worker)

        assert len(claimed) == 1, migration.name
        assert len(finish_all([succeeded(run) for run in claimed], worker).recorded) == 1


def options_of(table: str) -> dict[str, str]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT reloptions FROM pg_class WHERE oid = %s::regclass", [table])
        (found,) = cursor.fetchone()
    return dict(each.split("=") for each in found or [])


@pytest.mark.postgres
@pytest.mark.django_db
class TestStorageParameters:
    """PG-07."""

    def test_tables_have_them(self) -> None:
        assert options_of("django_jobs_job") == {
            "fillfactor": "50",
            "autovacuum_vacuum_scale_factor": "0",
            "autovacuum_vacuum_threshold": "10000",
            "autovacuum_vacuum_cost_limit": "1000",
            "vacuum_truncate": "false",
        }
        assert options_of("django_jobs_worker") == {"fillfactor": "50"}
        assert options_of("django_jobs_jobrun")["autovacuum_vacuum_insert_scale_factor"] == "0.03"
        assert options_of("django_jobs_jobkey") == {"autovacuum_vacuum_scale_factor": "0.03"}

    def test_setting_them_rewrites_nothing_and_blocks_neither_reads_nor_writes(self) -> None:
        """DP-06."""
        before = self._file()
        with transaction.atomic():
            apply(SetStorageParameters("job", {"fillfactor": 77}))
            with connection.cursor() as cursor:
                cursor.execute(
                    "SELECT mode FROM pg_locks WHERE relation = 'django_jobs_job'::regclass AND pid = pg_backend_pid()"
                )
                assert {mode for (mode,) in cursor} == {"ShareUpdateExclusiveLock"}
            assert options_of("django_jobs_job")["fillfactor"] == "77"
            transaction.set_rollback(True)
        assert self._file() == before

    def test_the_way_back_takes_them_off_and_leaves_the_others(self) -> None:
        with transaction.atomic():
            apply(SetStorageParameters("job", {"fillfactor": 77, "vacuum_truncate": True}))
            apply(SetStorageParameters("job", {"fillfactor": 77}), backwards=True)
            found = options_of("django_jobs_job")
            transaction.set_rollback(True)
        assert "fillfactor" not in found
        assert found["vacuum_truncate"] == "true"

    def test_heartbeats_of_many_workers_touch_no_index(self) -> None:
        """A page of worker rows that is full leaves no room for a new version beside the old one."""
        workers = WorkerFactory.create_batch(60, task_names=[f"shop.tasks.task_{number}" for number in range(60)])
        with connection.cursor() as cursor:
            cursor.execute("SELECT max((ctid::text::point)[0]), count(*) FROM django_jobs_worker")
            last_page, count = cursor.fetchone()
            cursor.execute("SELECT max(pg_column_size(w.*)) FROM django_jobs_worker w")
            (size,) = cursor.fetchone()
        assert count == len(workers)
        per_page = count / (last_page + 1)
        assert per_page * size <= 8192 * 0.55

    def _file(self) -> int:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_relation_filenode('django_jobs_job')")
            return int(cursor.fetchone()[0])


BY_PRIORITY = models.Index(fields=["priority"], name="made_up_priority")
OF_READY = StatusIndex(fields=["task_name"], name="made_up_ready", status="ready")


def indexes() -> dict[str, bool]:
    """The made-up indexes, and whether each is valid."""
    with connection.cursor() as cursor:
        if connection.vendor != "postgresql":
            names = connection.introspection.get_constraints(cursor, Job._meta.db_table)
            return {name: True for name in names if name.startswith("made_up")}
        cursor.execute(
            "SELECT relname, indisvalid FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid"
            " WHERE relname LIKE 'made\\_up%'"
        )
        return dict(cursor.fetchall())


@pytest.fixture
def no_made_up_indexes() -> Iterator[None]:
    yield
    for index in (BY_PRIORITY, OF_READY):
        if index.name in indexes():
            with connection.schema_editor(atomic=False) as editor:
                editor.remove_index(Job, index)


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("no_made_up_indexes")
class TestAddIndexConcurrently:
    @pytest.mark.parametrize("index", [BY_PRIORITY, OF_READY], ids=lambda index: index.name)
    def test_it_adds_the_index_and_takes_it_away(self, index: models.Index) -> None:
        operation = AddIndexConcurrently("job", index)

        apply(operation)
        assert indexes() == {index.name: True}

        apply(operation, backwards=True)
        assert indexes() == {}

    def test_it_may_be_run_again(self) -> None:
        """DP-06: a migration that was cut off between two indexes."""
        apply(AddIndexConcurrently("job", BY_PRIORITY))

        apply(AddIndexConcurrently("job", BY_PRIORITY), AddIndexConcurrently("job", OF_READY))

        assert indexes() == {"made_up_priority": True, "made_up_ready": True}

    @pytest.mark.postgres
    def test_it_refuses_a_transaction_which_would_hide_what_it_does(self) -> None:
        with transaction.atomic(), pytest.raises(NotSupportedError, match="Set atomic = False on its migration"):
            apply(AddIndexConcurrently("job", BY_PRIORITY))

    @pytest.mark.postgres
    def test_it_replaces_an_invalid_index_of_its_name(self) -> None:
        """DP-06."""
        _leave_an_invalid_index("made_up_priority")
        assert indexes() == {"made_up_priority": False}

        apply(AddIndexConcurrently("job", BY_PRIORITY))

        assert indexes() == {"made_up_priority": True}

    @pytest.mark.postgres
    def test_it_is_printed_as_one_statement_that_can_be_run_again(self) -> None:
        migration = migrations.Migration("made_up", APP)
        migration.operations, migration.atomic = [AddIndexConcurrently("job", OF_READY)], False  # type: ignore[misc]

        with connection.schema_editor(collect_sql=True, atomic=False) as editor:
            migration.apply(state_now(), editor, collect_sql=True)

        printed = [line for line in editor.collected_sql if not line.startswith("--")]
        (statement,) = printed
        assert statement == (
            'CREATE INDEX CONCURRENTLY IF NOT EXISTS "made_up_ready" ON "django_jobs_job" ("task_name") '
            "WHERE \"status\" = 'ready';"
        )
        assert unsafe(printed) == []

    @pytest.mark.postgres
    @pytest.mark.race
    def test_two_migrates_at_once_build_one_index(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """DP-09: the second one meets an INVALID index that the first is building, and waits instead of dropping it."""
        errors: list[BaseException] = []

        def migrate() -> None:
            try:
                apply(AddIndexConcurrently("job", BY_PRIORITY))
            except BaseException as error:  # noqa: BLE001  shown by the assertion below
                errors.append(error)
            finally:
                connections.close_all()

        waits = threading.Event()

        def pause(seconds: float) -> None:
            waits.set()
            threading.Event().wait(seconds)

        monkeypatch.setattr(time, "sleep", pause)
        first, second = threading.Thread(target=migrate), threading.Thread(target=migrate)
        with transaction.atomic():
            Job.objects.filter(priority=1).update(priority=2)  # an open write: the builder waits for its end
            first.start()
            _wait_for(
                "SELECT FROM pg_stat_progress_create_index WHERE phase LIKE 'waiting%' AND datname = current_database()"
            )
            building = _oid("made_up_priority")
            second.start()
            waits.wait(10)
        first.join(20)
        second.join(20)

        assert errors == []
        assert indexes() == {"made_up_priority": True}
        assert _oid("made_up_priority") == building


@pytest.mark.django_db(transaction=True)
class TestRemoveIndexConcurrently:
    OPERATION = RemoveIndexConcurrently("job", "django_jobs_job_parked")

    @pytest.fixture(autouse=True)
    def restored(self) -> Iterator[None]:
        yield
        apply(self.OPERATION, backwards=True)

    def _is_there(self) -> bool:
        with connection.cursor() as cursor:
            return self.OPERATION.name in connection.introspection.get_constraints(cursor, Job._meta.db_table)

    def test_it_takes_the_index_away_and_brings_it_back(self) -> None:
        apply(self.OPERATION)
        assert not self._is_there()

        apply(self.OPERATION, backwards=True)
        assert self._is_there()

    @pytest.mark.parametrize("backwards", [False, True])
    def test_it_may_be_run_again(self, backwards: bool) -> None:
        """DP-06: a migration that was cut off behind it."""
        for _ in range(2):
            apply(self.OPERATION, backwards=backwards)

        assert self._is_there() == backwards

    @pytest.mark.postgres
    def test_it_refuses_a_transaction_which_would_hide_what_it_does(self) -> None:
        with transaction.atomic(), pytest.raises(NotSupportedError, match="Set atomic = False on its migration"):
            apply(self.OPERATION)


def _leave_an_invalid_index(name: str) -> None:
    """As it happens: a unique index over rows that are not unique."""
    JobFactory.create_batch(2, priority=0)
    with connection.cursor() as cursor, pytest.raises(DatabaseError):
        cursor.execute(f"CREATE UNIQUE INDEX CONCURRENTLY {name} ON django_jobs_job (priority)")


def _oid(name: str) -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT %s::regclass::oid", [name])
        return int(cursor.fetchone()[0])


def _wait_for(question: str) -> None:
    """Ask until there is a row; the database tells nobody by itself."""
    for _ in range(2000):
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_stat_clear_snapshot()")
            cursor.execute(question)
            if cursor.fetchone() is not None:
                return
        threading.Event().wait(0.01)
    raise AssertionError(f"{question} never had an answer")

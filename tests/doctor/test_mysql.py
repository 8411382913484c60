"""jobs_doctor on MariaDB and MySQL."""

from __future__ import annotations

import pytest
from django.db import connection

from django_jobs.doctor import mysql
from django_jobs.doctor.findings import Level
from tests.doctor.sessions import another_session, run

pytestmark = [pytest.mark.mariadb, pytest.mark.django_db(transaction=True)]

FINE, UNSEEN, WARNING, PROBLEM = Level.FINE, Level.UNSEEN, Level.WARNING, Level.PROBLEM


def test_the_server_of_this_suite_is_fine() -> None:
    for question in (mysql.version, mysql.isolation, mysql.replication):
        assert [each.level for each in question("default")] == [FINE]


def test_another_isolation_level_is_told() -> None:
    run("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    try:
        (finding,) = mysql.isolation("default")
    finally:
        connection.close()

    assert finding.level is WARNING
    assert "Transactions are REPEATABLE-READ" in finding.message


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ({"innodb_flush_log_at_trx_commit": "1", "log_bin": "OFF", "sync_binlog": "0"}, []),
        ({"innodb_flush_log_at_trx_commit": "2", "log_bin": "OFF"}, [WARNING]),
        ({"innodb_flush_log_at_trx_commit": "0", "log_bin": "OFF"}, [WARNING]),
        ({"innodb_flush_log_at_trx_commit": "1", "log_bin": "ON", "sync_binlog": "0"}, [WARNING]),
        ({"innodb_flush_log_at_trx_commit": "1", "log_bin": "ON", "sync_binlog": "1"}, []),
        ({"innodb_flush_log_at_trx_commit": "1", "innodb_doublewrite": "OFF"}, [WARNING]),
    ],
)
def test_durability_is_judged(found: dict[str, str], expected: list[Level]) -> None:
    assert [each.level for each in mysql.judge_durability(found)] == expected


def test_its_variables_are_those_of_the_server() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT @@innodb_flush_log_at_trx_commit")
        (value,) = cursor.fetchone()

    assert mysql.variables("default", "innodb_flush_log_at_trx_commit", "no_such") == {
        "innodb_flush_log_at_trx_commit": str(value)
    }


def test_a_table_without_transactions_is_a_problem() -> None:
    run("ALTER TABLE django_jobs_lock ENGINE = MyISAM")
    try:
        (finding,) = (each for each in mysql.durability("default") if "django_jobs_lock" in each.message)
    finally:
        run("ALTER TABLE django_jobs_lock ENGINE = InnoDB")

    assert finding.level is PROBLEM
    assert finding.mend == ("ALTER TABLE django_jobs_lock ENGINE = InnoDB;",)


def test_an_old_transaction_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """PG-01, on this database."""
    monkeypatch.setattr(mysql, "OLD", 0.0)
    with another_session() as session, session.cursor() as cursor:
        cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        cursor.execute("SELECT connection_id(), (SELECT count(*) FROM django_jobs_job)")
        thread = cursor.fetchone()[0]
        found = [each for each in mysql.transactions("default") if f"Connection {thread} " in each.message]

    assert [each.level for each in found] == [WARNING]
    assert found[0].mend[0].startswith(f"KILL {thread};")

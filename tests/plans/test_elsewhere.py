"""By which index SQLite and MariaDB find what the engine asks for, as far as they tell."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from django.db import connection

from tests.plans import acts
from tests.plans.plan import explained
from tests.plans.shapes import SHAPES

READY, SCHEDULED, RUNNING, PARKED = (f"django_jobs_job_{name}" for name in ("ready", "scheduled", "running", "parked"))
EXPECTED: dict[Callable[[], acts.Todo], set[str]] = {
    acts.look: {READY, SCHEDULED, PARKED},
    acts.claim_from_its_queue: {READY},
    acts.promote: {SCHEDULED},
    acts.bring_back: {PARKED, READY},
    acts.rescue_a_dead_worker: {RUNNING},
    acts.ask_for_work: {RUNNING, PARKED},
    acts.claim_a_suspect: {SCHEDULED},
}
BACKLOGS = [name for name, shape in SHAPES.items() if shape and shape.letter == "J"]
MANY = 1_000


class Reading(NamedTuple):
    """What a statement reads of the jobs."""

    sql: str
    indexes: set[str]
    is_scan: bool  # of the whole table


def on_sqlite(sql: str, params: Any) -> Reading:
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN QUERY PLAN {sql}", params)
        steps = [str(row[3]) for row in cursor.fetchall()]
    indexes = {name for step in steps for name in re.findall(r"INDEX (django_jobs_job_\w+)", step)}
    return Reading(sql, indexes, any(re.match(r"SCAN (job|django_jobs_job)\b", step) for step in steps))


def on_mariadb(sql: str, params: Any) -> Reading:
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN {sql}", params)
        names = [column[0] for column in cursor.description]
        steps = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    jobs = [step for step in steps if step["table"] in {"job", "django_jobs_job"}]
    return Reading(sql, {step["key"] for step in jobs if step["key"]}, any(step["type"] == "ALL" for step in jobs))


def reading(prepare: Callable[[], acts.Todo], explain: Callable[[str, Any], Reading]) -> list[Reading]:
    todo = prepare()
    with explained(explain, table="django_jobs_job", most=12) as readings:
        todo()
    return [
        each for each in readings if not each.sql.endswith("WHERE 0")
    ]  # it only makes the transaction one that writes


def faults(explain: Callable[[str, Any], Reading], *, without: tuple[Callable[[], acts.Todo], ...] = ()) -> list[str]:
    found = []
    for prepare, expected in EXPECTED.items():
        if prepare in without:
            continue
        readings = reading(prepare, explain)
        missing = expected - {index for each in readings for index in each.indexes}
        found += [f"{prepare.__name__} does not use {index}" for index in missing]
        found += [f"{prepare.__name__} reads all jobs: {each.sql}" for each in readings if each.is_scan]
    return found


@pytest.fixture(params=BACKLOGS)
def backlog(request: pytest.FixtureRequest) -> None:
    request.getfixturevalue("transactional_db" if connection.vendor == "mysql" else "db")
    shape = SHAPES[request.param]
    assert shape
    acts.make(MANY, **shape.fields)


@pytest.mark.sqlite
@pytest.mark.django_db
@pytest.mark.usefixtures("backlog")
@pytest.mark.parametrize("has_statistics", [False, True])
def test_sqlite_finds_jobs_by_the_index_of_their_status(has_statistics: bool) -> None:
    if has_statistics:
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE")

    # SQLite counts how many jobs a worker has on average; those of a backlog have none, and count as one worker's.
    assert not faults(on_sqlite, without=(acts.rescue_a_dead_worker,) if has_statistics else ())


@pytest.mark.mariadb
@pytest.mark.django_db(transaction=True)  # ANALYZE commits
@pytest.mark.usefixtures("backlog")
def test_mariadb_finds_jobs_by_the_index_of_their_status() -> None:
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE TABLE django_jobs_job")

    assert not faults(on_mariadb)

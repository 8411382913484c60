from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from pytest_django import DjangoDbBlocker

from django_jobs.admin import base, waiting
from django_jobs.lifecycle import claim
from tests.plans.shapes import SHAPES, Backlogs, Shape


@pytest.fixture(scope="session")
def backlogs() -> Backlogs:
    return Backlogs()


@pytest.fixture(scope="module")  # so that it comes before the transaction of the test
def schema(
    request: pytest.FixtureRequest, django_db_setup: None, django_db_blocker: DjangoDbBlocker, backlogs: Backlogs
) -> tuple[str, str]:
    """The name of a shape, and the schema in which our tables have it."""
    with django_db_blocker.unblock():
        return request.param, backlogs.make(request.param)


@pytest.fixture
def shape(schema: tuple[str, str], db: None) -> Shape | None:
    """Let our tables be those of a shape until the test is rolled back."""
    name, path = schema
    with connection.cursor() as cursor:
        cursor.execute(f"SET LOCAL search_path = {path}, public")
        # No shape has rows in it, and what other tests have rolled back still lies in its pages.
        cursor.execute("TRUNCATE django_jobs_worker")
    # A first walk over what other tests have rolled back: PostgreSQL marks it in the indexes, and no plan pays for it.
    claim.look(None, using="default")
    return SHAPES[name]


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    """What is bounded by a number of rows, by so many less as the backlog is smaller than a real one."""
    monkeypatch.setattr(claim, "PARK_BATCH", 100)
    monkeypatch.setattr(base, "MOST_COUNTED", 200)
    monkeypatch.setattr(base, "MOST_SEARCHED", 500)
    monkeypatch.setattr(waiting, "MOST_AHEAD", 200)
    settings.DJANGO_JOBS = {"PRUNE_BATCH": 100}

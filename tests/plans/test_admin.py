"""A page of the admin reads what it shows, whatever else the tables hold and the planner believes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any, NamedTuple
from urllib.parse import urlencode

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.test import Client, RequestFactory

from django_jobs.models import DeadLetter, Job, JobKey, JobRun
from django_jobs.statuses import DeathReason, JobStatus, LetterStatus, RunStatus
from tests.admin.pages import Asker
from tests.factories import DeadLetterFactory, JobFactory, JobKeyFactory, JobRunFactory
from tests.plans.plan import explained
from tests.plans.shapes import SHAPES, Shape, believing

pytestmark = [pytest.mark.postgres, pytest.mark.django_db]
LAST = {"p": "4"}  # the last page of those that are counted
NOTE = {"task": "tests.tasks.note"}
TERMS = ("{id}", "j", "l", "note", "nothing")
OF_ALL: list[dict[str, str]] = [{}, LAST, NOTE, {"task": "a.b"}, {"queue": "q"}, *({"q": term} for term in TERMS)]
QUERIES: dict[Any, list[dict[str, str]]] = {
    Job: [{"status": status, **more} for status in JobStatus for more in ({}, LAST, NOTE, {"queue": "default"})],
    JobRun: [
        *({"status": status.value} for status in (RunStatus.SUCCEEDED, RunStatus.FAILED, RunStatus.LOST)),
        *({"status": "succeeded", **more} for more in (LAST, NOTE, {"queue": "q"})),
    ],
    DeadLetter: [
        *({"status": status} for status in (*LetterStatus, "all")),
        *({"reason": reason.value} for reason in (DeathReason.OUT_OF_TRIES, DeathReason.BAD_ROW)),
        {"status": "open", "task": "a.b"},
    ],
}
LISTS = [(model, query) for model, queries in QUERIES.items() for query in (*OF_ALL, *queries)]
LISTS += [(JobKey, query) for query in ({}, LAST, {"q": "j"}, {"q": "{id}"}, {"q": "nothing"})]
ROWS, PAGES = 520, 600  # as far as a list is counted, and as far as it is looked through for what no index serves


class Rows(NamedTuple):
    """What there is beside the backlog."""

    job: Job
    run: JobRun
    letter: DeadLetter


@pytest.fixture
def rows(shape: Shape | None) -> Rows:
    job, letter = JobFactory.create(key="j"), DeadLetterFactory.create(key="l", uniqueness="ever")
    JobKeyFactory.create(key="j", holder_id=job.id)
    return Rows(job, JobRunFactory.create(job_id=letter.job_id, status="failed"), letter)


def _matters(query: dict[str, str], model: Any, shape: Shape | None) -> bool:
    """Whether the backlog could make the list slow: a filter within one status reads nothing of another."""
    if shape is None or shape.table != model._meta.db_table or shape.letter == "H":
        return False  # what runs is sorted: it is bounded by what there is to run it
    return model is not Job or len(query) < 2 or query["status"] == shape.status


LIST_PAIRS = [
    pytest.param(name, model, query, id=f"{model.__name__} {urlencode(query)}, beside {name}")
    for name, shape in SHAPES.items()
    for model, query in LISTS
    if _matters(query, model, shape)
]


@pytest.mark.parametrize(("schema", "model", "query"), LIST_PAIRS, indirect=["schema"])
def test_list_costs_the_same_beside_any_backlog(shape: Shape, rows: Rows, model: Any, query: dict[str, str]) -> None:
    """SC-01 and SC-06."""
    request = RequestFactory().get("/", {name: text.format(id=rows.job.id) for name, text in query.items()})
    request.user = User(is_staff=True, is_superuser=True)
    # One status is half a percent of a table as long as there are no statistics; see Act.
    explain = believing(shape, needs_statistics="status" in query or model is DeadLetter)

    with explained(explain, table=shape.table) as plans:
        list(admin.site.get_model_admin(model).get_changelist_instance(request).result_list)

    assert plans
    faults = [each.faults(rows=ROWS, pages=PAGES, table=shape.table) for each in chain(*plans)]
    assert not any(faults), "\n\n".join(chain(*faults))


VISITS: dict[str, tuple[str, Callable[[Asker, Rows], object]]] = {
    "page of a live job": ("JRL", lambda ask, rows: ask.page(rows.job)),
    "page of a dead job": ("JRL", lambda ask, rows: ask.page(Job(pk=rows.letter.job_id))),
    "page of a run": ("R", lambda ask, rows: ask.page(rows.run)),
    "page of a letter": ("L", lambda ask, rows: ask.page(rows.letter)),
    "button that cancels": ("JRL", lambda ask, rows: ask.press(rows.job, "cancel")),
    "button that replays": ("JL", lambda ask, rows: ask.press(rows.letter, "replay")),
    "action that discards": ("L", lambda ask, rows: ask.act_and_confirm("discard", rows.letter)),
}
VISIT_PAIRS = [
    pytest.param(name, visit, id=f"{about}, beside {name}")
    for name, shape in SHAPES.items()
    for about, (backlogs, visit) in VISITS.items()
    if shape and shape.letter in backlogs
]


@pytest.mark.parametrize(("schema", "visit"), VISIT_PAIRS, indirect=["schema"])
def test_visit_costs_the_same_beside_any_backlog(
    shape: Shape, rows: Rows, admin_client: Client, visit: Callable[[Asker, Rows], object]
) -> None:
    with explained(believing(shape, needs_statistics=shape.factory is DeadLetterFactory), table=shape.table) as plans:
        visit(Asker(admin_client), rows)

    assert plans
    faults = [each.faults(rows=ROWS, pages=PAGES, table=shape.table) for each in chain(*plans)]
    assert not any(faults), "\n\n".join(chain(*faults))

"""A list comes in the order of the index that finds it, and what no index serves is looked for among the first rows."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from django.db.models import Model
from django.utils import timezone

from django_jobs.admin import base
from django_jobs.models import DeadLetter, Job, JobKey, JobRun
from tests.admin.pages import Asker, listed
from tests.factories import DeadLetterFactory, JobFactory, JobKeyFactory, JobRunFactory

SECOND = timedelta(seconds=1)
CUT = "With this filter only the first 3 of the list were looked through."


def keys(rows: Sequence[Model]) -> list[str]:
    return [str(row.pk) for row in rows]


def test_jobs_of_one_status_come_in_the_order_in_which_something_happens_to_them(ask: Asker) -> None:
    second, third, first = (
        JobFactory.create(priority=priority, queue_name=queue) for priority, queue in ((9, "b"), (0, "b"), (0, "a"))
    )
    later, soon = JobFactory.create(due_in=9 * SECOND), JobFactory.create(due_in=SECOND)
    new, old = (JobFactory.create(running=True, claimed_at=timezone.now() - age * SECOND) for age in (1, 9))
    of_z, of_a = (JobFactory.create(waiting=True, task_name=name) for name in ("z.gone", "a.gone"))

    assert listed(ask.list(Job, status="ready")) == keys([first, second, third])
    assert listed(ask.list(Job, status="scheduled")) == keys([soon, later])
    assert listed(ask.list(Job, status="running")) == keys([old, new])
    assert listed(ask.list(Job, status="waiting")) == keys([of_a, of_z])


def test_runs_and_letters_of_one_status_come_latest_first(ask: Asker) -> None:
    now = timezone.now()
    runs = [JobRunFactory.create(ended_at=now - age * SECOND, status="lost") for age in (2, 1, 3)]
    letters = [DeadLetterFactory.create(died_at=now - age * SECOND) for age in (2, 1, 3)]

    assert listed(ask.list(JobRun, status="lost")) == keys([runs[1], runs[0], runs[2]])
    assert listed(ask.list(DeadLetter)) == keys([letters[1], letters[0], letters[2]])
    assert listed(ask.list(DeadLetter, status="all")) == keys(letters[::-1])


def test_runs_of_a_job_come_last_one_first(ask: Asker) -> None:
    runs = [JobRunFactory.create(attempt=attempt) for attempt in (1, 2, 3)]
    JobRun.objects.update(job_id=runs[0].job_id)

    assert listed(ask.list(JobRun, q=str(runs[0].job_id))) == keys(runs[::-1])


@pytest.mark.parametrize(
    ("model", "factory"), [(Job, JobFactory), (JobRun, JobRunFactory), (DeadLetter, DeadLetterFactory)]
)
@pytest.mark.parametrize("query", [{"task": "a.b"}, {"queue": "q"}, {"q": "a.b"}])
def test_filter_without_an_index_looks_through_the_first_of_the_list_and_says_so(
    ask: Asker, monkeypatch: pytest.MonkeyPatch, model: Any, factory: Any, query: dict[str, str]
) -> None:
    old, wanted = (factory.create(task_name="a.b", queue_name="q") for _ in range(2))
    factory.create_batch(2)
    assert listed(ask.list(model, **query)) == keys([wanted, old])

    monkeypatch.setattr(base, "MOST_SEARCHED", 3)
    page = ask.list(model, **query)

    assert listed(page) == keys([wanted])
    assert CUT in page


def test_it_looks_through_those_of_the_status_that_is_asked_for(ask: Asker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever came later of another one."""
    monkeypatch.setattr(base, "MOST_SEARCHED", 3)
    runs = [JobRunFactory.create(status="failed", task_name="a.b") for _ in range(4)]
    jobs = [JobFactory.create(due_in=seconds * SECOND, task_name="a.b") for seconds in (9, 8, 7, 6)]
    JobRunFactory.create_batch(5), JobFactory.create_batch(5)

    failed, later = ask.list(JobRun, status="failed", task="a.b"), ask.list(Job, status="scheduled", queue="default")

    assert listed(failed) == keys(runs[:0:-1])
    assert listed(later) == keys(jobs[:0:-1])
    assert CUT in failed
    assert CUT in later


@pytest.mark.parametrize(
    ("fields", "query"),
    [
        ({}, {}),
        ({}, {"status": "ready"}),
        ({}, {"status": "ready", "queue": "default"}),
        ({"waiting": True}, {"status": "waiting", "task": "tests.tasks.note"}),
        ({"waiting": True}, {"status": "waiting", "q": "note"}),
        ({"running": True}, {"status": "running", "queue": "default", "task": "tests.tasks.note"}),
        ({}, {"q": "k"}),
    ],
)
def test_list_that_an_index_serves_is_not_cut(
    ask: Asker, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], query: dict[str, str]
) -> None:
    monkeypatch.setattr(base, "MOST_SEARCHED", 3)
    for job in JobFactory.create_batch(5, **fields):
        JobKeyFactory.create(key="k", scope=str(job.id), holder_id=job.id)

    page = ask.list(Job, **query)

    assert len(listed(page)) == 5
    assert "were looked through" not in page


def test_search_for_a_key_takes_the_holder_as_well(ask: Asker) -> None:
    held, other = JobKeyFactory.create(), JobKeyFactory.create()
    named = JobKeyFactory.create(key=str(held.holder_id))

    assert set(listed(ask.list(JobKey, q=str(held.holder_id)))) == set(keys([held, named]))
    assert listed(ask.list(JobKey, q=other.key)) == keys([other])

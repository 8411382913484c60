"""Rows that nobody of us would write: every page that meets one still answers, and its buttons work."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import DatabaseError, transaction
from django.db.models import DateTimeField, Model

from django_jobs.database import StoredJSON
from django_jobs.models import DeadLetter, Job, JobRun, Worker
from tests.admin.pages import Asker
from tests.factories import DeadLetterFactory, JobFactory, JobRunFactory, WorkerFactory
from tests.lifecycle.test_poison import MOMENTS, POISON, write_moment

MOST = 2**31 - 1
FACTORIES: dict[type[Model], Any] = {Job: JobFactory, JobRun: JobRunFactory, DeadLetter: DeadLetterFactory}


def spoil(model: type[Model], pk: Any, **columns: str) -> bool:
    """Write this JSON into the row. False if this database does not take it."""
    try:
        with transaction.atomic():
            model._default_manager.filter(pk=pk).update(**{name: StoredJSON(text) for name, text in columns.items()})
    except DatabaseError:
        return False
    return True


@pytest.mark.parametrize("name", POISON)
@pytest.mark.parametrize("model", FACTORIES, ids=lambda model: model.__name__)
def test_unreadable_payload_is_on_every_page_without_stopping_it(ask: Asker, model: type[Model], name: str) -> None:
    row, beside = FACTORIES[model].create(), FACTORIES[model].create()
    if not spoil(model, row.pk, payload=POISON[name]):
        return

    listed = ask.list(model)

    assert str(row.pk)[-12:] in listed
    assert str(beside.pk)[-12:] in listed
    assert ask.list(model, q=str(row.pk))
    assert row.task_name in ask.page(row)
    assert ask.history(row)


@pytest.mark.parametrize("name", POISON)
def test_unreadable_job_can_be_cancelled_and_its_letter_replayed_from_a_page(ask: Asker, name: str) -> None:
    job, letter = JobFactory.create(), DeadLetterFactory.create()
    if not spoil(Job, job.pk, payload=POISON[name]):
        return
    spoil(DeadLetter, letter.pk, payload=POISON[name])

    ask.act_and_confirm("cancel", job)
    ask.act_and_confirm("replay", letter)

    assert JobRun.objects.get().status == "cancelled"
    assert Job.objects.get().pk != job.pk
    assert DeadLetter.objects.get().status == "replayed"


@pytest.mark.parametrize("options", ["[]", '"x"', "7", '{"max_attempts": "many"}', '{"timeout": []}', "null"])
def test_options_of_the_wrong_kind_stop_no_page(ask: Asker, options: str) -> None:
    job, letter = JobFactory.create(), DeadLetterFactory.create()
    spoil(Job, job.pk, options=options)
    spoil(DeadLetter, letter.pk, options=options)

    assert job.task_name in ask.page(job)
    assert letter.task_name in ask.page(letter)
    assert ask.list(DeadLetter)


def test_counters_at_the_end_of_their_column_stop_no_page(ask: Asker) -> None:
    counters = {"attempt": MOST, "failures": MOST, "crashes": MOST, "interruptions": MOST}
    rows: list[Any] = [
        JobFactory.create(**counters, claim_number=2**62),
        JobRunFactory.create(attempt=MOST, claim_number=2**62),
        DeadLetterFactory.create(**counters),
    ]
    for row in rows:
        assert ask.list(type(row))
        assert row.task_name in ask.page(row)


@pytest.mark.postgres
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("model", [*FACTORIES, Worker], ids=lambda model: model.__name__)
def test_a_time_that_python_does_not_know_stops_no_page(ask: Asker, model: type[Model], moment: str) -> None:
    row = WorkerFactory.create() if model is Worker else FACTORIES[model].create()
    columns = [field.name for field in model._meta.get_fields() if isinstance(field, DateTimeField)]
    write_moment(model, moment, *(name for name in columns if name != "closed_at"))

    assert str(row) in ask.page(row)
    assert ask.list(model)


@pytest.mark.parametrize("queue_names", ["7", '{"a": 1}', '"default"', "[7, null]"])
def test_worker_row_of_another_shape_stops_no_page(ask: Asker, queue_names: str) -> None:
    worker = WorkerFactory.create(name="strange")
    ready, waiting = JobFactory.create(), JobFactory.create(waiting=True)
    spoil(Worker, worker.pk, task_names="7", queue_names=queue_names)

    assert "strange" in ask.list(Worker)
    assert "strange" in ask.page(worker)
    assert ask.list(Job)
    assert ask.page(ready)
    assert ask.page(waiting)

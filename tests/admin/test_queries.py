"""What the pages ask of the database does not grow with what the tables hold."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.utils import timezone

from django_jobs import ids
from django_jobs.admin.base import CappedPaginator
from django_jobs.models import DeadLetter, Job, JobKey, JobRun
from tests.admin.pages import Asker, listed, statements, watch
from tests.factories import DeadLetterFactory, JobFactory, JobKeyFactory, JobRunFactory, WorkerFactory

LISTS = [(Job, JobFactory), (JobRun, JobRunFactory), (DeadLetter, DeadLetterFactory)]
LARGE = ("payload", "result", "error_text", "traceback", "options")


def own(found: list[str], model: Any) -> list[str]:
    """The statements over one table of ours."""
    return [sql for sql in found if f"{model._meta.db_table}" in sql]


@pytest.mark.parametrize(("model", "factory"), LISTS)
@pytest.mark.parametrize("query", [{}, {"status": "ready"}, {"status": "failed"}, {"queue": "mail"}, {"q": "note"}])
def test_lists_count_no_further_than_their_cap(ask: Asker, model: Any, factory: Any, query: dict[str, str]) -> None:
    """SC-01."""
    factory.create()

    with watch() as queries:
        ask.list(model, **query)

    counts = [sql for sql in own(statements(queries), model) if "COUNT(" in sql]
    assert len(counts) == 1
    assert "LIMIT 10001" in counts[0]


@pytest.mark.parametrize(("model", "factory"), LISTS)
@pytest.mark.parametrize("query", [{}, {"status": "ready"}, {"task": "x"}, {"q": "note"}, {"_facets": "True"}])
def test_side_filters_ask_for_no_distinct_and_no_groups(
    ask: Asker, model: Any, factory: Any, query: dict[str, str]
) -> None:
    """SC-02."""
    factory.create()

    with watch() as queries:
        ask.list(model, **query)

    assert not [sql for sql in own(statements(queries), model) if re.search("DISTINCT|GROUP BY", sql)]


@pytest.mark.parametrize(("model", "factory"), LISTS)
def test_lists_select_no_large_column(ask: Asker, model: Any, factory: Any) -> None:
    """SC-04."""
    factory.create()
    columns = [name for name in LARGE if name in {field.name for field in model._meta.fields} and name != "options"]

    with watch() as queries:
        ask.list(model)

    found = own(statements(queries), model)
    assert len(found) == 2  # the count and the page
    # The start of an error is cut out by the server.
    whole = [re.sub(r"(LEFT|SUBSTR)\([^()]*error_text[^()]*\)", "", sql) for sql in found]
    assert not [sql for sql in whole for name in columns if name in sql]


def test_a_megabyte_of_arguments_is_not_loaded_by_the_page_that_asks(ask: Asker) -> None:
    """SC-04."""
    letters = DeadLetterFactory.create_batch(2)

    with watch() as queries:
        ask.act("discard", *letters)

    assert not [sql for sql in own(statements(queries), DeadLetter) if "payload" in sql or "traceback" in sql]


@pytest.mark.parametrize(("model", "factory"), LISTS)
def test_a_longer_list_takes_no_more_queries(ask: Asker, model: Any, factory: Any) -> None:
    """SC-05."""
    WorkerFactory.create_batch(3)
    counts = []

    for rows in (10, 90):
        factory.create_batch(rows, key="k", uniqueness="ever") if model is DeadLetter else factory.create_batch(rows)
        ask.list(model)
        with watch() as queries:
            ask.list(model, all="")
        counts.append(len(queries))

    assert counts[0] == counts[1]


@pytest.mark.parametrize(("model", "factory"), LISTS)
def test_search_reads_neither_json_nor_error_text(ask: Asker, model: Any, factory: Any) -> None:
    """SC-06: one row holds a 5 MB error."""
    large = {} if model is Job else {"error_text": "needle " * 700_000, "traceback": "needle"}
    factory.create(payload={"args": ["needle"], "kwargs": {}}, **large)

    with watch() as queries:
        page = ask.list(model, q="needle")

    assert "Nothing matches." in page
    wheres = [sql.split(" WHERE ", 1)[1] for sql in own(statements(queries), model) if " WHERE " in sql]
    assert wheres
    assert not [where for where in wheres if re.search("payload|error|traceback|result|LIKE", where.split("ORDER")[0])]


def notations(job_id: UUID) -> list[str]:
    text = str(job_id)
    return [text, text.upper(), job_id.hex, f"{{{text}}}", f"urn:uuid:{text}", f" {text} ", f'"{text}"']


@pytest.mark.parametrize("index", range(7))
def test_search_finds_an_id_in_any_notation(ask: Asker, index: int) -> None:
    """SC-06."""
    job = JobFactory.create()
    run = JobRunFactory.create(job_id=job.id)
    letter = DeadLetterFactory.create(job_id=ids.job_id(), replayed=True)
    JobFactory.create(), JobRunFactory.create(), DeadLetterFactory.create()

    assert listed(ask.list(Job, q=notations(job.id)[index])) == [str(job.pk)]
    assert listed(ask.list(JobRun, q=notations(job.id)[index])) == [str(run.pk)]
    assert listed(ask.list(DeadLetter, q=notations(letter.job_id)[index])) == [str(letter.pk)]


def test_search_finds_a_key_through_its_holder(ask: Asker) -> None:
    job = JobFactory.create(key="invoice:7")
    JobKeyFactory.create(key="invoice:7", holder_id=job.id)
    run = JobRunFactory.create(job_id=job.id, is_last=False)
    letter = DeadLetterFactory.create(key="invoice:8", uniqueness="ever")
    dead = JobRunFactory.create(job_id=letter.job_id)
    JobFactory.create(key="invoice:9"), JobRunFactory.create(), DeadLetterFactory.create()

    assert listed(ask.list(Job, q="invoice:7")) == [str(job.pk)]
    assert listed(ask.list(JobRun, q="invoice:7")) == [str(run.pk)]
    assert listed(ask.list(JobRun, q="invoice:8")) == [str(dead.pk)]
    assert listed(ask.list(DeadLetter, q="invoice:8")) == [str(letter.pk)]
    assert len(listed(ask.list(JobKey, q="invoice:7"))) == 1


def test_search_for_a_task_takes_part_of_its_name_in_either_case(ask: Asker) -> None:
    note = JobFactory.create()
    gone = JobFactory.create(task_name="gone.Task")
    served = JobFactory.create(task_name="elsewhere.send")
    WorkerFactory.create(task_names=["elsewhere.send"])

    assert listed(ask.list(Job, q="NOTE")) == [str(note.pk)]
    assert listed(ask.list(Job, q="where.se")) == [str(served.pk)]
    assert listed(ask.list(Job, q="gone.Task")) == [str(gone.pk)]


@pytest.mark.parametrize("term", ["%", "_", "'", "\\", '"', "a" * 5000, "\U0001f600", "{}", "urn:uuid:"])
@pytest.mark.parametrize("model", [Job, JobRun, DeadLetter])
def test_any_search_term_gives_a_page(ask: Asker, model: Any, term: str) -> None:
    """SC-06."""
    assert "Nothing matches." in ask.list(model, q=term)


@pytest.mark.parametrize("name", ["status", "queue", "task"])
def test_a_nul_in_the_address_is_no_error(ask: Asker, name: str) -> None:
    ask.list(Job, **{name: "a\0b"})
    ask.list(JobRun, q="a\0b")


def test_search_for_a_job_that_has_ended_leads_to_it(ask: Asker) -> None:
    run = JobRunFactory.create()

    page = ask.list(Job, q=str(run.job_id))

    assert "This job has ended:" in page
    assert f"/job/{run.job_id}/change/" in page


def test_a_capped_list_says_so_and_ends(ask: Asker, monkeypatch: pytest.MonkeyPatch) -> None:
    """SC-01: more rows than are counted."""
    monkeypatch.setattr("django_jobs.admin.base.MOST_COUNTED", 120)
    DeadLetterFactory.create_batch(121)

    page = ask.list(DeadLetter, p="3")

    assert "There are more than 120; the first 120 are listed." in page
    assert len(listed(page)) == 20
    assert "There are more than" not in ask.list(DeadLetter, status="replayed")


def test_the_paginator_knows_whether_it_stopped_counting(db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_jobs.admin.base.MOST_COUNTED", 3)
    JobFactory.create_batch(3)
    exact = CappedPaginator(Job.objects.order_by("pk"), 2)
    assert (exact.count, exact.is_capped, exact.num_pages) == (3, False, 2)

    JobFactory.create()
    capped = CappedPaginator(Job.objects.order_by("pk"), 2)
    assert (capped.count, capped.is_capped, capped.num_pages) == (3, True, 2)


def test_a_job_with_twenty_thousand_runs_shows_the_last_fifty(ask: Asker) -> None:
    """SC-11."""
    job = JobFactory.create(attempt=20_000, failures=3)
    now = timezone.now()
    JobRun.objects.bulk_create(
        (
            JobRun(
                job_id=job.id, claim_number=n, attempt=n, status="failed", is_last=False, task_name=job.task_name,
                queue_name="default", ended_at=now - timedelta(seconds=20_000 - n), traceback="line\n" * 5,
            )
            for n in range(1, 20_001)
        ),
        batch_size=2000,
    )  # fmt: skip

    with watch() as queries:
        page = ask.page(job)

    assert page.count('<li class="dj-run">') == 50
    assert "Attempt 20000<" in page.replace("20,000", "20000")
    assert "The newest 50 are shown" in page
    assert len(queries) < 25
    assert not [sql for sql in own(statements(queries), JobRun) if "COUNT(" in sql]


def test_a_traceback_of_megabytes_is_cut_by_the_database(ask: Asker) -> None:
    """SC-11."""
    job = JobFactory.create(attempt=1)
    run = JobRunFactory.create(job_id=job.id, is_last=False, status="failed", traceback="x" * 3_000_000)

    page = ask.page(job)

    assert len(page) < 100_000
    assert "Only its beginning is shown" in page
    assert "100,000 of 3,000,000 characters are shown." in ask.page(run)

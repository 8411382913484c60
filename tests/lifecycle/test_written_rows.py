"""A job is the same row whichever statement writes it: alone, among many, or by the way that knows no PostgreSQL."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from django.db import DatabaseError, connection, transaction
from hypothesis import given, settings
from hypothesis import strategies as st

from django_jobs import codec, ids
from django_jobs.database import read_clock, text_array
from django_jobs.lifecycle import enqueue as lifecycle
from django_jobs.lifecycle.enqueue import NewJob, enqueue, enqueue_one
from django_jobs.models import Job, JobKey

Row = dict[str, Any]

# What SQL, array literals, JSON and the drivers each have a use for, and a word that is NULL in one of them.
texts = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12),
    st.text("\\\"'{},;%() \n\r\t\x1a\x7fNULnul$:é😀", max_size=12),
    st.sampled_from(["", "NULL", "null", "{}", "\\", '"', "%s", "%(id)s", "a\nb"]),
)
names = st.one_of(st.sampled_from(["tests.tasks.echo", "default"]), texts.filter(bool))
past = st.timedeltas(timedelta(0), timedelta(days=3650)).map(lambda span: datetime(2001, 1, 1, tzinfo=UTC) + span)
future = st.timedeltas(timedelta(0), timedelta(days=3650)).map(lambda span: datetime(2090, 1, 1, tzinfo=UTC) + span)
plain = st.fixed_dictionaries(
    {
        "payload": st.lists(st.one_of(texts, st.integers(), st.none()), max_size=3).map(
            lambda args: codec.encode_call(args, {}, max_size=10**6)
        ),
        "task_name": names,
        "queue_name": names.map(lambda name: name[:64]),
        "priority": st.integers(-100, 100),
        "options": st.one_of(st.none(), st.just('{"max_attempts":\n 2}')),
        "enqueued_at": st.one_of(st.none(), past),
    }
)
starts: st.SearchStrategy[Row] = st.one_of(
    st.just({}),
    st.timedeltas(timedelta(0), timedelta(days=3650)).map(lambda delay: {"delay": delay}),
    st.one_of(past, future).map(lambda at: {"run_at": at}),
)
keys: st.SearchStrategy[Row] = st.one_of(
    st.just({}),
    st.fixed_dictionaries({"key": texts.filter(bool), "scope": names, "uniqueness": st.sampled_from(["ever", "live"])}),
)
options = st.builds(lambda *parts: {name: value for part in parts for name, value in part.items()}, plain, starts, keys)
# One of few kinds many times over, so that a field is now the same for all and now another for each.
batches = st.lists(options, min_size=1, max_size=3).flatmap(lambda kinds: st.lists(st.sampled_from(kinds), max_size=6))


def as_jobs(batch: Sequence[dict[str, Any]], *, are_keyed: bool) -> list[NewJob]:
    """The jobs, each key only once: what a repeated one comes to is another test's."""
    jobs, seen = [], set()
    for each in batch:
        key = (each.get("key"), each.get("scope"))
        without = ("key", "scope", "uniqueness") if key in seen or not are_keyed else ()
        seen.add(key)
        jobs.append(NewJob(id=ids.job_id(), **{name: value for name, value in each.items() if name not in without}))
    return jobs


def rows_after(write: Callable[[], Any], jobs: Sequence[NewJob]) -> tuple[dict[UUID, Row], list[Row]]:
    """The rows that this writes, with "now" where the database's clock stands; nothing is left of them."""
    with transaction.atomic():
        before = read_clock("default")
        write()
        after = read_clock("default")
        rows: dict[UUID, Row] = {row["id"]: {**row} for row in Job.objects.values()}
        keys = JobKey.objects.order_by("key", "scope").values("key", "scope", "holder_id", "expires_at")
        held: list[Row] = [{**row} for row in keys]
        transaction.set_rollback(True)
    for job in jobs:
        row = rows[job.id]
        if job.enqueued_at is None and before <= row["enqueued_at"] <= after:
            row["enqueued_at"] = "now"
        delay = job.delay or timedelta(0)
        if job.run_at is None and before + delay <= row["run_at"] <= after + delay:
            row["run_at"] = "now"
    return rows, held


@pytest.mark.django_db
@pytest.mark.parametrize("are_keyed", [False, True])
@given(batch=batches)
@settings(max_examples=100, deadline=None)
def test_row_is_the_same_whichever_way_it_is_written(are_keyed: bool, batch: list[dict[str, Any]]) -> None:
    jobs = as_jobs(batch, are_keyed=are_keyed)

    together = rows_after(lambda: enqueue(jobs, using="default"), jobs)
    alone = rows_after(lambda: [enqueue([job], using="default") for job in jobs], jobs)
    shortly = rows_after(lambda: [enqueue_one(job, using="default") for job in jobs], jobs)
    portable = rows_after(lambda: lifecycle._insert_portable(jobs, using="default"), jobs)

    assert together == alone == shortly == portable
    rows, held = together
    assert {row["holder_id"] for row in held} == {job.id for job in jobs if job.key}
    for job in jobs:
        row = rows[job.id]
        assert (row["task_name"], row["queue_name"], row["priority"]) == (job.task_name, job.queue_name, job.priority)
        assert (row["key"], row["uniqueness"]) == (job.key, job.uniqueness)
        assert row["payload"] == json.loads(job.payload)
        assert row["options"] == (None if job.options is None else json.loads(job.options))
        assert row["run_at"] == (job.run_at or "now")
        assert row["enqueued_at"] == (job.enqueued_at or "now")
        is_later = bool(job.delay) or (job.run_at is not None and job.run_at.year > 2050)
        assert row["status"] == ("scheduled" if is_later else "ready")


@pytest.mark.django_db
@given(option=options, texts=st.lists(texts, min_size=1, max_size=4))
@settings(max_examples=100, deadline=None)
def test_rows_that_differ_in_their_arguments_only_are_the_same_by_the_shorter_way(
    option: dict[str, Any], texts: list[str]
) -> None:
    payloads = [codec.encode_call([text], {}, max_size=10**6) for text in texts]
    jobs = as_jobs([{**option, "payload": payload} for payload in payloads], are_keyed=False)
    new_ids = [job.id for job in jobs]

    alike = rows_after(lambda: lifecycle.enqueue_alike(jobs[0], new_ids, payloads, using="default"), jobs)
    portable = rows_after(lambda: lifecycle._insert_portable(jobs, using="default"), jobs)

    assert alike == portable


@pytest.mark.django_db
def test_two_moments_that_python_calls_equal_stay_two() -> None:
    """The hour that comes twice: datetimes of one zone are compared without their fold."""
    moments = [datetime(2090, 10, 29, 2, 30, tzinfo=ZoneInfo("Europe/Vienna"), fold=fold) for fold in (0, 1)]
    assert moments[0] == moments[1]

    written = enqueue(
        [NewJob(ids.job_id(), '{"args":[],"kwargs":{}}', "t", "q", 0, run_at=moment) for moment in moments],
        using="default",
    )

    first, second = (Job.objects.get(id=each.id).run_at for each in written)
    assert second - first == timedelta(hours=1)


@pytest.mark.postgres
@pytest.mark.django_db
@given(values=st.lists(st.one_of(st.none(), texts), max_size=8))
@settings(max_examples=300, deadline=None)
def test_array_made_as_text_is_the_one_a_driver_makes(values: list[str | None]) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT %s::text[], %s::text[]", [text_array(values), values])
        made, adapted = cursor.fetchone()

    assert made == adapted == values


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("bad", ["a\0b", "a\ud800b"])
@pytest.mark.parametrize("field", ["key", "task_name", "payload"])
@pytest.mark.parametrize("count", [1, 3])
def test_text_no_database_stores_is_refused_by_every_statement_and_nothing_is_written(
    bad: str, field: str, count: int
) -> None:
    """The border refuses it before; should something slip through, no value is cut short or put in another's place."""
    jobs = [
        NewJob(ids.job_id(), '{"args":[],"kwargs":{}}', "t", "q", 0, key=f"k{number}", scope="t", uniqueness="ever")
        for number in range(count)
    ]
    changes: Row = {field: f'"{bad}"' if field == "payload" else bad}
    jobs[-1] = jobs[-1]._replace(**changes)

    with pytest.raises((DatabaseError, ValueError)):
        enqueue(jobs, using="default")

    assert not Job.objects.exists()
    assert not JobKey.objects.exists()

"""AD-01: data is text on every page."""

from __future__ import annotations

from typing import Any

import pytest
from django.utils import timezone

from django_jobs import registry
from django_jobs.models import DeadLetter, Job, JobKey, JobRun, Lock, Worker
from tests.admin.pages import Asker
from tests.factories import DeadLetterFactory, JobFactory, JobKeyFactory, JobRunFactory, WorkerFactory
from tests.tasks import note

SCRIPTS = ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "</pre><b>out</b>"]


def assert_escaped(page: str, script: str) -> None:
    assert script not in page
    assert "<img src=x" not in page


@pytest.fixture(params=SCRIPTS)
def script(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def columns(script: str) -> dict[str, Any]:
    return {
        "task_name": script,
        "queue_name": script,
        "key": script,
        "payload": {"args": [script], "kwargs": {script: script}},
    }


def ended(script: str) -> dict[str, Any]:
    texts = ("error_type", "error_text", "traceback", "worker")
    return {**columns(script), **dict.fromkeys(texts, script)}


def test_a_live_job_is_escaped_in_list_and_page(ask: Asker, script: str) -> None:
    """AD-01."""
    worker = WorkerFactory.create(name=script, host=script, queue_names=[script], task_names=[script])
    job = JobFactory.create(running=True, worker_id=worker.id, options={"timeout": script}, **columns(script))
    JobRunFactory.create(job_id=job.id, is_last=False, attempt=2, result=script, **ended(script))

    for page in (ask.list(Job), ask.list(Job, q=script), ask.list(Job, queue=script), ask.page(job)):
        assert_escaped(page, script)
    for page in (ask.list(Worker), ask.page(worker)):
        assert_escaped(page, script)


def test_arguments_of_a_known_task_are_escaped(ask: Asker, script: str) -> None:
    """AD-01."""
    job = JobFactory.create(task_name=note.name, payload={"args": [script], "kwargs": {}})

    page = ask.page(job)

    assert_escaped(page, script)
    assert "&quot;label&quot;: &quot;" in page


def test_a_run_is_escaped_in_list_and_page(ask: Asker, script: str) -> None:
    """AD-01."""
    run = JobRunFactory.create(status="failed", result={script: script}, **ended(script))

    for page in (ask.list(JobRun), ask.page(run), ask.page(Job(pk=run.job_id))):
        assert_escaped(page, script)


def test_a_dead_letter_is_escaped_from_the_list_to_the_history(ask: Asker, script: str) -> None:
    """AD-01."""
    letter = DeadLetterFactory.create(fingerprint=script, **ended(script), uniqueness="ever", options={script: script})
    other = DeadLetterFactory.create(**ended(script), uniqueness="ever")

    for page in (ask.list(DeadLetter), ask.page(letter), ask.act("replay", letter, other)):
        assert_escaped(page, script)
    assert_escaped(ask.act_and_confirm("replay", letter, other), script)  # an unknown task: the message names it
    assert_escaped(ask.press(letter, "replay"), script)
    assert_escaped(ask.act_and_confirm("discard", letter, other), script)
    assert_escaped(ask.history(letter), script)
    assert_escaped(ask.page(letter), script)
    assert_escaped(ask.list(DeadLetter, status="all"), script)


def test_a_message_about_a_held_key_is_escaped(ask: Asker, script: str) -> None:
    """AD-01."""
    JobKeyFactory.create(key=script, scope=note.name)
    letters = [DeadLetterFactory.create(key=script, uniqueness="ever") for _ in range(2)]

    page = ask.act_and_confirm("replay", *letters)

    assert "is held by job" in page
    assert_escaped(page, script)


def test_keys_and_locks_are_escaped(ask: Asker, script: str) -> None:
    """AD-01."""
    key = JobKeyFactory.create(key=script, scope=script)
    lock = Lock.objects.create(name=script, acquired_at=timezone.now(), expires_at=timezone.now())

    for page in (ask.list(JobKey), ask.page(key), ask.list(Lock)):
        assert_escaped(page, script)
    assert lock.name == script


def test_the_home_page_is_escaped_after_an_action(ask: Asker, script: str) -> None:
    """AD-01: the admin's home page lists recent actions."""
    with registry.isolated():
        job = JobFactory.create(**columns(script))
        ask.press(job, "cancel")

    page = ask.client.get("/admin/").content.decode()

    assert "Cancelled" in ask.history(job)
    assert_escaped(page, script)
    assert_escaped(ask.history(job), script)

"""PL-13: what a task declares sensitive is in no log line, no row but the payload's, no alert, no metric."""

from __future__ import annotations

import io
import json
import logging
from typing import Any

import pytest
from django.core.management import call_command

from django_jobs import task
from django_jobs.models import DeadLetter, Job, JobRun
from django_jobs.observe import statsd
from django_jobs.testing import run_jobs
from tests.tasks import note

pytestmark = pytest.mark.django_db

SECRET = "hunter2-secret"


@task(sensitive=["token"], max_attempts=2, backoff=0)
def log_in(user: str, token: str) -> None:
    local = f"{user}:{token}"
    raise ValueError(f"{local!r} was refused: {token}")


@task(sensitive=["token"])
def answer(token: str) -> dict[str, Any]:
    return {"said": f"your token is {token}", token: [token]}


def written() -> str:
    """Everything that was stored but the payload."""
    rows = [*JobRun.objects.values(), *DeadLetter.objects.values()]
    return json.dumps([{name: value for name, value in row.items() if name != "payload"} for row in rows], default=str)


def alert_text() -> str:
    out = io.StringIO()
    with pytest.raises(SystemExit):
        call_command("jobs_alerts", "--json", stdout=out)
    return out.getvalue()


def test_sensitive_argument_of_a_failing_task_is_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    log_in.enqueue("anna", token=SECRET)

    runs = run_jobs()

    assert [run.status for run in runs] == ["failed", "failed"]
    sent = b"\n".join(statsd.lines(runs)).decode()
    for text in (caplog.text, written(), alert_text(), sent, repr(runs)):
        assert SECRET not in text
    assert "was refused" in caplog.text
    assert "was refused" in written()


def test_sensitive_argument_in_a_result_is_masked(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    handle = answer.enqueue(SECRET)

    run_jobs()

    assert SECRET not in caplog.text + written()
    assert handle.result()["said"].startswith("your token is ")


@pytest.mark.parametrize("payload", [{"args": ["a", SECRET], "kwargs": {}}, {"args": [], "kwargs": {"other": SECRET}}])
def test_arguments_that_do_not_fit_are_not_shown(payload: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    """The code has changed since: the error must not tell what it was called with."""
    caplog.set_level(logging.DEBUG)
    handle = note.enqueue("a")
    Job.objects.filter(id=handle.id).update(payload=payload)

    (run,) = run_jobs()

    assert run.reason == "bad_payload"
    assert SECRET not in caplog.text + written() + alert_text()


def test_call_that_does_not_fit_is_refused_without_its_values() -> None:
    with pytest.raises(TypeError) as caught:
        note.enqueue(*["a", SECRET])

    assert SECRET not in str(caught.value)

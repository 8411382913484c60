"""What the pages of jobs, runs and dead letters show."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.staticfiles import finders
from django.core.exceptions import ImproperlyConfigured
from django.test import Client, override_settings
from django.utils import timezone

from django_jobs import ids
from django_jobs.admin.base import _base
from django_jobs.admin.display import badge, exact, relative, rough_span, span, when
from django_jobs.models import DeadLetter, Job, JobKey, JobRun, Lock, Worker
from django_jobs.statuses import JobStatus, LetterStatus, RunStatus
from tests.admin.pages import Asker, address
from tests.factories import DeadLetterFactory, JobFactory, JobKeyFactory, JobRunFactory, WorkerFactory

MODELS = [Job, JobRun, DeadLetter, Worker, JobKey, Lock]


class OwnBase(admin.ModelAdmin):  # type: ignore[type-arg]
    pass


def test_a_finished_jobs_page_lists_its_runs(ask: Asker) -> None:
    job_id = ids.job_id()
    JobRunFactory.create(job_id=job_id, attempt=1, status="failed", is_last=False, traceback="in the first run")
    last = JobRunFactory.create(job_id=job_id, attempt=2, payload={"args": ["a-label"], "kwargs": {}}, key="k-1")

    page = ask.page(Job(pk=job_id))

    assert "dj-badge-succeeded" in page
    assert "It has ended and will not run again." in page
    assert page.index("Attempt 2") < page.index("Attempt 1")
    assert "in the first run" in page
    assert "a-label" in page
    assert "k-1" in page
    assert address(JobRun, "change", last.pk) in page
    assert 'form="dj-cancel"' not in page


def test_a_dead_jobs_page_leads_to_its_letter(ask: Asker) -> None:
    letter = DeadLetterFactory.create()
    JobRunFactory.create(job_id=letter.job_id, status="failed")

    page = ask.page(Job(pk=letter.job_id))

    assert "dj-badge-dead" in page
    assert "It died: out of tries." in page
    assert address(DeadLetter, "change", letter.pk) in page


def test_a_job_whose_runs_are_pruned_is_shown_from_its_letter(ask: Asker) -> None:
    letter = DeadLetterFactory.create(replayed=True)

    page = ask.page(Job(pk=letter.job_id))

    assert "dj-badge-replayed" in page
    assert "No attempt at this job has ended yet." in page


def test_a_job_of_which_nothing_is_known_leads_home(root: Client) -> None:
    for unknown in (ids.job_id(), "nonsense", "1"):
        response = root.get(address(Job, "change", unknown))
        assert (response.status_code, response["Location"]) == (302, "/admin/")


def test_the_link_of_a_run_leads_to_its_job(ask: Asker) -> None:
    run = JobRunFactory.create()

    assert address(Job, "change", run.job_id) in ask.page(run)
    assert ask.page(Job(pk=run.job_id))


def test_a_letters_page_tells_all_of_it(ask: Asker) -> None:
    letter = DeadLetterFactory.create(crashes=1, worker="web-1:4711", options={"max_attempts": 9})

    page = ask.page(letter)

    for text in ("Out of tries: ValueError: it broke", letter.fingerprint, "in note", "web-1:4711", "max_attempts"):
        assert text in page
    assert "&quot;label&quot;: &quot;again&quot;" in page


def test_a_closed_letter_says_who_closed_it_and_leads_to_the_new_job(ask: Asker) -> None:
    letter = DeadLetterFactory.create(replayed=True, closed_by="anna")

    page = ask.page(letter)

    assert "by anna." in page
    assert address(Job, "change", letter.replayed_as) in page
    assert 'form="dj-replay"' not in page


def test_a_letter_of_an_unknown_task_says_that_it_cannot_be_replayed_here(ask: Asker) -> None:
    assert "cannot be replayed here" in ask.page(DeadLetterFactory.create(task_name="gone.task"))


def test_the_list_of_letters_shows_the_open_ones_first_of_all(ask: Asker) -> None:
    open_one = DeadLetterFactory.create()
    closed = DeadLetterFactory.create(replayed=True)

    def is_listed(page: str, letter: DeadLetter) -> bool:
        return address(DeadLetter, "change", letter.pk) in page

    assert is_listed(ask.list(DeadLetter), open_one)
    assert not is_listed(ask.list(DeadLetter), closed)
    assert is_listed(ask.list(DeadLetter, status="all"), closed)
    assert is_listed(ask.list(DeadLetter, q=str(closed.job_id)), closed)
    assert not is_listed(ask.list(DeadLetter, status="replayed"), open_one)


@pytest.mark.parametrize(
    ("columns", "shown"),
    [
        ({"error_type": "shop.models.Order.DoesNotExist", "error_text": "None."}, ">DoesNotExist: None.<"),
        ({"error_text": "first\nsecond"}, "ValueError: first<"),
        ({"error_text": ""}, ">ValueError<"),
        ({"reason": "gave_up", "error_type": "GiveUp", "error_text": "Sold out."}, ">Sold out.<"),
        ({"reason": "worker_lost", "error_type": "", "error_text": ""}, "></span>"),
        ({"error_text": "x" * 5000}, f"ValueError: {'x' * 120}…<"),
    ],
)
def test_the_list_of_letters_shows_how_each_error_begins(ask: Asker, columns: dict[str, str], shown: str) -> None:
    DeadLetterFactory.create(**columns)

    assert shown in ask.list(DeadLetter)


@pytest.mark.parametrize(
    ("query", "count"),
    [({"status": "ready"}, 2), ({"queue": "mail"}, 1), ({"task": "a.task"}, 1), ({"status": "nonsense"}, 4)],
)
def test_jobs_are_filtered_by_status_queue_and_task(ask: Asker, query: dict[str, str], count: int) -> None:
    JobFactory.create(), JobFactory.create(queue_name="mail")
    JobFactory.create(due_in=timedelta(hours=1)), JobFactory.create(running=True, task_name="a.task")

    assert ask.list(Job, **query).count('name="_selected_action"') == count


@pytest.mark.parametrize("model", MODELS)
def test_an_empty_list_says_what_it_is_for(ask: Asker, model: Any) -> None:
    page = ask.list(model)

    assert "dj-empty" in page
    assert "There is nothing here yet" not in page
    assert "Nothing matches" in ask.list(model, q="no-such-thing")


def test_the_pages_of_workers_and_keys_show_their_rows(ask: Asker) -> None:
    alive = WorkerFactory.create(queue_names=["mail"])
    WorkerFactory.create(lease_expires_at=timezone.now() - timedelta(seconds=1))
    key = JobKeyFactory.create()

    page = ask.list(Worker)

    assert "dj-badge-alive" in page
    assert "dj-badge-expired" in page
    assert "tests.tasks.note" in ask.page(alive)
    assert address(Job, "change", key.holder_id) in ask.page(key)


@pytest.mark.parametrize("model", MODELS)
def test_no_page_holds_a_script_or_a_handler_of_its_own(ask: Asker, model: Any) -> None:
    """A content security policy without 'unsafe-inline' breaks nothing."""
    page = ask.list(model)

    assert not [part for part in page.split("<script")[1:] if "src=" not in part.split(">")[0]]
    assert "onclick=" not in page
    assert "style=" not in page


def test_a_list_without_time_zones_tells_the_time(ask: Asker) -> None:
    JobFactory.create(enqueued_at=timezone.now() - timedelta(minutes=3))

    page = ask.list(Job)

    assert "3 min ago</time>" in page


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 ms"),
        (0.25, "250 ms"),
        (1.25, "1.25 s"),
        (14, "14 s"),
        (125, "2 min 5 s"),
        (3600, "1 h"),
        (90000, "1 d 1 h"),
    ],
)
def test_spans_are_told_in_their_greatest_units(seconds: float, text: str) -> None:
    assert span(timedelta(seconds=seconds)) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "now"), (14, "in 14 s"), (-14, "14 s ago"), (-200, "3 min ago"), (7300, "in 2 h"), (-200000, "2 d ago")],
)
def test_moments_are_told_from_now(seconds: float, text: str) -> None:
    now = timezone.now()
    moment = now + timedelta(seconds=seconds)

    assert relative(moment, now) == text
    assert exact(moment) in when(moment, now=now)


def test_a_rough_span_has_one_unit() -> None:
    assert rough_span(timedelta(hours=49, minutes=59)) == "2 d"


def test_the_base_class_is_the_one_that_the_setting_names() -> None:
    with override_settings(DJANGO_JOBS={"ADMIN_BASE": f"{__name__}.OwnBase"}):
        assert _base() is OwnBase


@pytest.mark.parametrize(
    "name", ["no.such.module.Admin", "nothing", "datetime.datetime", "django_jobs.admin.base.search"]
)
def test_a_base_class_that_is_none_is_refused_by_name(name: str) -> None:
    with override_settings(DJANGO_JOBS={"ADMIN_BASE": name}), pytest.raises(ImproperlyConfigured, match=name):
        _base()


def test_what_is_wrong_with_other_keys_is_left_to_the_system_checks() -> None:
    with override_settings(DJANGO_JOBS={"THREDS": 3, "LEASE": 1}):
        assert _base() is admin.ModelAdmin


def test_white_on_every_badge_can_be_read() -> None:
    """4.5:1 is what WCAG AA asks for; a badge brings its own colour, so it holds in light and dark pages."""
    css = Path(str(finders.find("django_jobs/jobs.css"))).read_text()
    colours = re.findall(r"\.dj-badge[^{]*\{[^}]*background: (#[0-9a-f]{6})", css)

    assert len(colours) >= 6
    assert not [colour for colour in colours if 1.05 / (luminance(colour) + 0.05) < 4.5]


def test_every_status_has_a_label() -> None:
    for status in (*JobStatus.values, *RunStatus.values, *LetterStatus.values, "dead", "alive", "expired"):
        assert f">{status.replace('_', ' ')}</span>" in badge(status)


def luminance(colour: str) -> float:
    """Relative luminance, WCAG 2.2."""
    shares = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

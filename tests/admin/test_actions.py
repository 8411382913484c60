"""Replay, discard and cancel, from the list and from a row's own page."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.core import signing
from django.db import connections
from django.test import Client
from django.utils import timezone

from django_jobs.admin import actions
from django_jobs.ids import job_id
from django_jobs.models import DeadLetter, Job, JobRun
from django_jobs.statuses import JobStatus, LetterStatus, RunStatus
from tests.admin.pages import Asker, address, hidden_fields, messages_of, ticked
from tests.factories import DeadLetterFactory, JobFactory, JobKeyFactory
from tests.tasks import note

Staff = Callable[..., Client]


# --- One row


def test_replaying_makes_one_job_and_tells_its_id(ask: Asker) -> None:
    letter = DeadLetterFactory.create(key="k", uniqueness="ever", priority=7, queue_name="mail")

    page = ask.press(letter, "replay")

    job = Job.objects.get()
    letter.refresh_from_db()
    assert messages_of(page) == f"Replayed as job {job.id}."
    assert (letter.status, letter.closed_by, letter.replayed_as) == (LetterStatus.REPLAYED, "root", job.id)
    assert (job.payload, job.key, job.priority, job.queue_name) == (letter.payload, "k", 7, "mail")
    assert address(Job, "change", job.id) in page


def test_a_second_replay_in_a_row_makes_no_second_job(ask: Asker) -> None:
    """RT-09."""
    letter = DeadLetterFactory.create()
    ask.press(letter, "replay")

    page = ask.press(letter, "replay")

    assert messages_of(page) == f"Already replayed as job {Job.objects.get().id} by root."
    assert LogEntry.objects.count() == 1


def test_the_same_list_sent_twice_makes_no_second_job(ask: Asker) -> None:
    """RT-09: the browser's back button, and the form again."""
    letters = [DeadLetterFactory.create() for _ in range(2)]
    form = ask.act("replay", *letters)
    ask.confirm(form, DeadLetter)

    page = ask.confirm(form, DeadLetter)

    assert Job.objects.count() == 2
    assert "2 already replayed." in messages_of(page)
    assert messages_of(page).count("Already replayed as job") == 2


@pytest.mark.django_db(transaction=True)
@pytest.mark.race
def test_two_sessions_replaying_at_once_make_one_job() -> None:
    """RT-09."""
    letter = DeadLetterFactory.create()
    barrier = threading.Barrier(2, timeout=20)
    said: dict[str, str] = {}

    def replay(client: Client, name: str) -> None:
        try:
            barrier.wait()
            said[name] = messages_of(Asker(client).press(letter, "replay"))
        finally:
            connections.close_all()

    clients = {name: Client() for name in ("ann", "bob")}
    for name, client in clients.items():
        client.force_login(User.objects.create_superuser(name))
    threads = [threading.Thread(target=replay, args=(client, name)) for name, client in clients.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    job = Job.objects.get()
    winner = DeadLetter.objects.get().closed_by
    loser = ({"ann", "bob"} - {winner}).pop()
    assert said[winner] == f"Replayed as job {job.id}."
    assert said[loser] == f"Already replayed as job {job.id} by {winner}."
    assert [entry.user.get_username() for entry in LogEntry.objects.all()] == [winner]


def test_a_held_key_refuses_the_replay_and_names_the_holder(ask: Asker) -> None:
    letter = DeadLetterFactory.create(key="k", uniqueness="ever")
    held = JobKeyFactory.create(key="k", scope=note.key_scope)

    page = ask.press(letter, "replay")

    assert f"is held by job {held.holder_id}" in messages_of(page)
    assert DeadLetter.objects.get().status == LetterStatus.OPEN
    assert not LogEntry.objects.exists()


def test_a_task_this_process_cannot_import_is_refused_clearly(ask: Asker) -> None:
    """RT-12."""
    letter = DeadLetterFactory.create(task_name="other.service.task")
    DeadLetterFactory.create()

    page = ask.press(letter, "replay")

    assert messages_of(page) == "Not replayed: no task named 'other.service.task' is registered here."
    assert not Job.objects.exists()
    assert DeadLetter.objects.filter(status=LetterStatus.OPEN).count() == 2


def test_replay_acts_on_the_letter_that_was_chosen(ask: Asker) -> None:
    """RT-12: several letters of one task, with the same arguments, after a replay that died again."""
    letters = [DeadLetterFactory.create() for _ in range(3)]

    ask.press(letters[1], "replay")

    assert [each.status for each in DeadLetter.objects.order_by("pk")] == ["open", "replayed", "open"]


def test_discarding_closes_the_letter(ask: Asker) -> None:
    letter = DeadLetterFactory.create()

    page = ask.press(letter, "discard")

    letter.refresh_from_db()
    assert messages_of(page) == "Discarded."
    assert (letter.status, letter.closed_by) == (LetterStatus.DISCARDED, "root")
    assert messages_of(ask.press(letter, "discard")) == "Already discarded by root."
    assert messages_of(ask.press(letter, "replay")) == "Not replayed: it was discarded by root."


def test_cancelling_ends_the_job_and_its_page_stays(ask: Asker) -> None:
    job = JobFactory.create()

    page = ask.press(job, "cancel")

    run = JobRun.objects.get()
    assert not Job.objects.exists()
    assert (run.job_id, run.status) == (job.id, RunStatus.CANCELLED)
    assert messages_of(page) == "Cancelled."
    assert "dj-badge-cancelled" in page
    assert messages_of(ask.press(job, "cancel")) == "Not cancelled: it had ended before."


def test_a_running_job_is_cancelled_safely(ask: Asker) -> None:
    """AD-08."""
    job = JobFactory.create(running=True)

    ask.press(job, "cancel")

    run = JobRun.objects.get()
    assert (run.claim_number, run.status, run.is_last) == (1, RunStatus.CANCELLED, True)
    assert LogEntry.objects.get().object_id == str(job.id)


def test_a_button_for_a_row_that_never_was_is_not_found(root: Client) -> None:
    assert root.post(address(DeadLetter, "replay", 99)).status_code == 404
    assert root.post(address(Job, "cancel", "no-id")).status_code == 404


# --- The audit


def test_each_deed_is_logged_by_user_and_row_without_the_payload(staff: Staff) -> None:
    """AD-08."""
    ask = Asker(staff("view_job", "view_deadletter", "replay_deadletter", "discard_deadletter", "cancel_job"))
    job = JobFactory.create(payload={"args": ["private"], "kwargs": {}})
    letters = [DeadLetterFactory.create(payload={"args": ["private"], "kwargs": {}}) for _ in range(4)]

    ask.press(job, "cancel")
    ask.act_and_confirm("discard", *letters[:2])
    ask.act_and_confirm("replay", *letters[2:])

    entries = LogEntry.objects.order_by("pk")
    said = [entry.get_change_message().split(" as job")[0] for entry in entries]
    assert said == ["Cancelled.", "Discarded.", "Discarded.", "Replayed", "Replayed"]
    assert {entry.user.get_username() for entry in entries} == {"sam"}
    assert [entry.object_id for entry in entries] == [str(job.pk), *(str(letter.pk) for letter in letters)]
    assert not [entry for entry in entries if "private" in f"{entry.object_repr} {entry.change_message}"]
    assert {letter.closed_by for letter in DeadLetter.objects.all()} == {"sam"}


# --- Many rows


def test_the_page_that_asks_tells_how_many_of_which_task(ask: Asker) -> None:
    """RT-13."""
    letters = [DeadLetterFactory.create() for _ in range(3)]
    letters.append(DeadLetterFactory.create(task_name="tests.tasks.mail"))

    page = ask.act("replay", *letters)

    assert "4 dead letters" in page
    assert "tests.tasks.note" in page
    assert not Job.objects.exists()


def test_select_all_takes_what_the_filters_leave_and_nothing_else(ask: Asker) -> None:
    """RT-13: the list shows 50 a page."""
    mail = DeadLetterFactory.create_batch(60, task_name="tests.tasks.mail", queue_name="mail")
    DeadLetterFactory.create_batch(5)

    asked = ask.act("replay", mail[0], across=True, queue="mail")
    DeadLetterFactory.create(task_name="tests.tasks.mail", queue_name="mail")  # after the question: it stays
    page = ask.confirm(asked, DeadLetter, queue="mail")

    assert "60 dead letters" in asked
    assert "60 replayed." in messages_of(page)
    assert set(Job.objects.values_list("queue_name", flat=True)) == {"mail"}
    assert DeadLetter.objects.filter(status=LetterStatus.OPEN).count() == 6
    assert LogEntry.objects.count() == 60


def test_many_letters_take_several_requests(ask: Asker, monkeypatch: pytest.MonkeyPatch) -> None:
    """RT-13: each request works for a bounded time, and the next goes on behind it."""
    monkeypatch.setattr(actions, "STEP", 0.0)  # one batch a request
    letters = DeadLetterFactory.create_batch(230)
    unknown = DeadLetterFactory.create(task_name="gone.task")

    first = ask.confirm(ask.act("replay", letters[0], across=True), DeadLetter)
    replayed_by_the_first = Job.objects.count()
    second = ask.confirm(first, DeadLetter)
    last = ask.confirm(second, DeadLetter)

    assert replayed_by_the_first == 100
    assert "100 of 231 are done" in first
    assert "200 of 231 are done" in second
    assert "continue.js" in first
    assert Job.objects.count() == 230
    assert messages_of(last) == (
        "230 replayed, 1 not replayed, as their task is unknown here. "
        f"{unknown}: Not replayed: no task named 'gone.task' is registered here."
    )


def test_many_replays_do_not_start_all_at_once(ask: Asker) -> None:
    """RT-13."""
    DeadLetterFactory.create_batch(150)

    asked = ask.act("replay", DeadLetter.objects.latest("pk"), across=True)
    ask.confirm(asked, DeadLetter)

    late = Job.objects.filter(status=JobStatus.SCHEDULED, run_at__gt=timezone.now() + timedelta(seconds=0.5))
    assert "starts are spread over 3 s" in asked
    assert late.count() > 75


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_twenty_thousand_letters_are_replayed(ask: Asker) -> None:
    """RT-13."""
    one = DeadLetterFactory.build()
    fields = [field.name for field in DeadLetter._meta.fields if field.name not in {"id", "job_id"}]
    columns = {name: getattr(one, name) for name in fields}
    DeadLetter.objects.bulk_create((DeadLetter(job_id=job_id(), **columns) for _ in range(20_000)), batch_size=500)

    asked = ask.act("replay", DeadLetter.objects.latest("pk"), across=True)
    page = ask.confirm(asked, DeadLetter)
    requests = 1
    while 'id="dj-continue"' in page:
        page, requests = ask.confirm(page, DeadLetter), requests + 1

    assert "20,000 dead letters" in asked
    assert "20,000 replayed." in messages_of(page)
    assert requests < 100
    assert Job.objects.count() == 20_000
    assert LogEntry.objects.count() == 20_000


def test_a_rejected_row_does_not_stop_the_rest(ask: Asker) -> None:
    """One letter's queue name is no longer allowed: it has a letter of its own in the message."""
    good = DeadLetterFactory.create_batch(2)
    bad = DeadLetterFactory.create(priority=1000)  # the constraint of Job refuses it

    page = ask.act_and_confirm("replay", good[0], bad, good[1])

    assert Job.objects.count() == 2
    assert "2 replayed, 1 failed." in messages_of(page)
    assert "The database refused it" in messages_of(page)
    assert DeadLetter.objects.get(pk=bad.pk).status == LetterStatus.OPEN


def test_many_jobs_are_cancelled_from_the_list(ask: Asker) -> None:
    jobs = JobFactory.create_batch(3)
    kept = JobFactory.create()

    page = ask.act_and_confirm("cancel", *jobs)

    assert "3 cancelled." in messages_of(page)
    assert Job.objects.get() == kept


def test_all_jobs_are_cancelled_under_a_filter(ask: Asker) -> None:
    ready = JobFactory.create_batch(3)
    JobFactory.create(due_in=timedelta(hours=1))

    ask.act_and_confirm("cancel", ready[0], across=True, status="ready")

    assert Job.objects.get().status == JobStatus.SCHEDULED


def test_rows_gone_since_the_list_was_shown_are_no_error(ask: Asker) -> None:
    letter = DeadLetterFactory.create()
    other = DeadLetterFactory.create()
    DeadLetter.objects.filter(pk=letter.pk).delete()

    assert "None of the chosen rows is there any more." in messages_of(ask.act("replay", letter))
    form = ask.act("replay", other)
    DeadLetter.objects.all().delete()
    assert "Nothing was left to do." in messages_of(ask.confirm(form, DeadLetter))


@pytest.mark.parametrize(
    "token", ["", "nonsense", signing.dumps({"upto": "1"}), "\0"], ids=["empty", "nonsense", "foreign salt", "NUL"]
)
def test_a_forged_progress_is_refused(root: Client, token: str) -> None:
    letter = DeadLetterFactory.create()
    data: dict[str, Any] = {"action": "replay", "progress": token, **ticked(letter)}

    assert root.post(address(DeadLetter, "changelist"), data).status_code == 400
    assert not Job.objects.exists()


def test_the_form_that_asks_fits_into_a_request_for_any_number_of_rows(ask: Asker) -> None:
    """RT-13: DATA_UPLOAD_MAX_NUMBER_FIELDS is 1,000."""
    letters = DeadLetterFactory.create_batch(60)

    fields = hidden_fields(ask.act("replay", *letters, across=True))

    assert sum(len(values) for values in fields.values()) < 10

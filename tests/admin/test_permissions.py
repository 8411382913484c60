"""Who may see and do what."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.test import Client

from django_jobs.models import DeadLetter, Job, JobKey, JobRun, Lock, Worker
from django_jobs.statuses import LetterStatus
from tests.admin.pages import Asker, address, ticked
from tests.factories import DeadLetterFactory, JobFactory, JobRunFactory

Staff = Callable[..., Client]

VIEW = ("view_job", "view_jobrun", "view_deadletter", "view_worker", "view_jobkey", "view_lock")
DEEDS = [
    (JobFactory, "cancel", "cancel_job"),
    (DeadLetterFactory, "replay", "replay_deadletter"),
    (DeadLetterFactory, "discard", "discard_deadletter"),
]


@pytest.mark.parametrize(("factory", "deed", "permission"), DEEDS)
def test_view_permission_alone_does_nothing_by_a_crafted_post(
    staff: Staff, factory: Any, deed: str, permission: str
) -> None:
    """AD-03."""
    row = factory.create()
    client = staff(*VIEW)

    by_address = client.post(address(type(row), deed, row.pk))
    by_list = client.post(
        address(type(row), "changelist"), {"action": deed, "index": 0, "progress": "x", **ticked(row)}, follow=True
    )

    assert by_address.status_code == 403
    assert f'value="{deed}"' not in by_list.content.decode()
    assert_untouched(row)


@pytest.mark.parametrize(("factory", "deed", "permission"), DEEDS)
def test_a_deeds_permission_without_the_view_permission_does_nothing(
    staff: Staff, factory: Any, deed: str, permission: str
) -> None:
    """AD-03."""
    row = factory.create()
    client = staff(permission)

    assert client.post(address(type(row), deed, row.pk)).status_code == 403
    assert client.post(address(type(row), "changelist"), {"action": deed, **ticked(row)}).status_code == 403
    assert_untouched(row)


@pytest.mark.parametrize(("factory", "deed", "permission"), DEEDS)
def test_each_deed_asks_for_its_own_permission(staff: Staff, factory: Any, deed: str, permission: str) -> None:
    row = factory.create()
    others = [other for _factory, _deed, other in DEEDS if other != permission]

    assert staff(*VIEW, *others, username="others").post(address(type(row), deed, row.pk)).status_code == 403
    assert staff(*VIEW, permission).post(address(type(row), deed, row.pk)).status_code == 302
    assert f'form="dj-{deed}"' not in Asker(staff(*VIEW, *others, username="another")).page(factory.create())


@pytest.mark.parametrize(("factory", "deed", "permission"), DEEDS)
def test_a_deed_refuses_get(root: Client, factory: Any, deed: str, permission: str) -> None:
    """AD-03."""
    row = factory.create()

    assert root.get(address(type(row), deed, row.pk)).status_code == 405
    assert_untouched(row)


@pytest.mark.parametrize(("factory", "deed", "permission"), DEEDS)
def test_a_deed_needs_the_csrf_token(staff: Staff, factory: Any, deed: str, permission: str) -> None:
    row = factory.create()
    session = staff(*VIEW, permission)
    client = Client(enforce_csrf_checks=True)
    client.cookies = session.cookies

    assert client.post(address(type(row), deed, row.pk)).status_code == 403
    assert_untouched(row)


def assert_untouched(row: Job | DeadLetter) -> None:
    if isinstance(row, Job):
        assert Job.objects.get() == row
    else:
        assert DeadLetter.objects.get().status == LetterStatus.OPEN
        assert not Job.objects.exists()


@pytest.mark.parametrize("model", [Job, JobRun, DeadLetter, Worker, JobKey, Lock])
def test_staff_without_permission_see_no_list_and_no_link(staff: Staff, model: Any) -> None:
    """AD-05."""
    client = staff()

    assert client.get(address(model, "changelist")).status_code == 403
    assert address(model, "changelist") not in client.get("/admin/").content.decode()


@pytest.mark.parametrize("factory", [JobFactory, JobRunFactory, DeadLetterFactory])
def test_staff_without_permission_see_no_row(staff: Staff, factory: Any) -> None:
    """AD-05."""
    row = factory.create()
    client = staff()

    assert client.get(address(type(row), "change", row.pk)).status_code == 403
    assert client.get(address(type(row), "history", row.pk)).status_code == 403


def test_an_ended_job_is_closed_to_staff_without_permission(staff: Staff) -> None:
    """AD-05."""
    run = JobRunFactory.create()

    assert staff().get(address(Job, "change", run.job_id)).status_code == 403


def test_a_jobs_page_shows_runs_and_letter_only_to_those_who_may_see_them(staff: Staff) -> None:
    letter = DeadLetterFactory.create()
    JobRunFactory.create(job_id=letter.job_id, status="failed", traceback="Traceback of the run")

    page = Asker(staff("view_job")).page(Job(pk=letter.job_id))

    assert "Traceback of the run" not in page
    assert address(DeadLetter, "change", letter.pk) not in page


@pytest.mark.parametrize("model", [Job, JobRun, DeadLetter, Worker, JobKey, Lock])
def test_a_superuser_can_add_nothing(root: Client, model: Any) -> None:
    """AD-06."""
    crafted = {"task_name": "os.system", "payload": '{"args": ["id"], "kwargs": {}}', "name": "x", "key": "x"}

    assert root.get(address(model, "add")).status_code == 403
    assert root.post(address(model, "add"), crafted).status_code == 403
    assert not model.objects.exists()


@pytest.mark.parametrize("factory", [JobFactory, JobRunFactory, DeadLetterFactory])
def test_a_superuser_can_change_and_delete_nothing(root: Client, factory: Any) -> None:
    """AD-06."""
    row = factory.create()
    crafted = {"task_name": "os.system", "payload": '{"args": ["id"], "kwargs": {}}', "_save": "Save"}

    changed = root.post(address(type(row), "change", row.pk), crafted)
    deleted = root.post(address(type(row), "delete", row.pk), {"post": "yes"})
    selected = root.post(
        address(type(row), "changelist"), {"action": "delete_selected", "post": "yes", ACTION_CHECKBOX_NAME: row.pk}
    )

    assert (changed.status_code, deleted.status_code) == (403, 403)
    assert selected.status_code in {200, 302}
    found = type(row).objects.get()
    assert (found.task_name, found.payload) == (row.task_name, row.payload)


def test_delete_selected_is_not_offered(ask: Asker) -> None:
    DeadLetterFactory.create()

    page = ask.list(DeadLetter)

    assert 'value="replay"' in page
    assert "delete_selected" not in page

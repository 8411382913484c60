"""A person replays what died, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from django_jobs.admin import actions
from django_jobs.models import DeadLetter, Job
from django_jobs.statuses import LetterStatus
from tests.browser.chromium import chromium, log_in
from tests.factories import DeadLetterFactory

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(120), pytest.mark.django_db(transaction=True)]


@pytest.fixture
def browser(live_server: Any) -> Iterator[Chrome]:
    User.objects.create_superuser("anna", password="anna")
    with chromium() as opened:
        log_in(opened, f"{live_server.url}/admin/", "anna", "anna")
        yield opened


def text_of(browser: Chrome, selector: str) -> str:
    WebDriverWait(browser, 20).until(lambda each: each.find_elements(By.CSS_SELECTOR, selector))
    return browser.find_element(By.CSS_SELECTOR, selector).text


def click(browser: Chrome, selector: str) -> None:
    browser.find_element(By.CSS_SELECTOR, selector).click()


def test_a_letter_is_opened_and_replayed(browser: Chrome, live_server: Any) -> None:
    DeadLetterFactory.create()
    browser.find_element(By.LINK_TEXT, "Dead letters").click()

    click(browser, "#result_list tbody th a")
    click(browser, "button[form=dj-replay]")

    assert "Replayed as job" in text_of(browser, ".messagelist")
    assert text_of(browser, ".dj-badge") == "replayed"
    browser.find_element(By.LINK_TEXT, "Open the job it was replayed as").click()
    assert str(Job.objects.get().pk) in text_of(browser, ".dj-head")
    assert not [entry for entry in browser.get_log("browser") if "favicon" not in entry["message"]]  # type: ignore[no-untyped-call]


def test_a_letter_is_discarded_only_after_a_second_click(browser: Chrome, live_server: Any) -> None:
    letter = DeadLetterFactory.create()
    browser.get(f"{live_server.url}/admin/django_jobs/deadletter/{letter.pk}/change/")

    button = browser.find_element(By.CSS_SELECTOR, "button[form=dj-discard]")
    assert not button.is_displayed()
    click(browser, ".dj-ask summary")
    button.click()

    assert "Discarded." in text_of(browser, ".messagelist")


def test_all_letters_of_several_pages_are_replayed_step_by_step(
    browser: Chrome, live_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RT-13: each page sends the next step by itself."""
    monkeypatch.setattr(actions, "STEP", 0.0)
    DeadLetterFactory.create_batch(250)
    browser.get(f"{live_server.url}/admin/django_jobs/deadletter/")

    click(browser, "#action-toggle")
    click(browser, ".actions .question a")
    click(browser, "select[name=action] option[value=replay]")
    click(browser, ".actions button")
    assert "250 dead letters" in text_of(browser, ".dj-count")
    click(browser, ".dj-confirm-form button")

    assert "250 replayed." in text_of(browser, ".messagelist")
    assert not DeadLetter.objects.filter(status=LetterStatus.OPEN).exists()

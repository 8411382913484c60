"""Take pictures of the admin of a running project, such as the shop. That of the README is made so:

    ADMIN_PASSWORD=PASSWORD make serve ARGS=--trouble      # and half a minute later, when all letters are there:
    python -m tests.browser.pictures http://127.0.0.1:8000/admin/ admin PASSWORD docs/images

It writes admin-jobs.png, admin-job.png, admin-runs.png, admin-dead-letters.png and admin-dead-letter.png, each also as
…-dark.png.
"""

from __future__ import annotations

import sys
from pathlib import Path

from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By

from tests.browser.chromium import chromium, log_in, take_picture

LISTS = {"jobs": "job", "runs": "jobrun", "dead-letters": "deadletter"}
PAGES = {"job": "job", "dead-letter": "deadletter"}


def main(admin: str, username: str, password: str, folder: Path, *, width: int = 1280) -> None:
    """Take them all. A list that is empty gives no picture of a row's page."""
    with chromium(width=width) as browser:
        log_in(browser, admin, username, password)
        # What is to be seen is beside the sidebar.
        browser.execute_script("localStorage.setItem('django.admin.navSidebarIsOpen', 'false')")
        for name, model in LISTS.items():
            browser.get(f"{admin}django_jobs/{model}/")
            _both(browser, folder / f"admin-{name}.png", width)
        for name, model in PAGES.items():
            browser.get(f"{admin}django_jobs/{model}/")
            rows = browser.find_elements(By.CSS_SELECTOR, "#result_list tbody th a")
            if rows:
                rows[0].click()
                _both(browser, folder / f"admin-{name}.png", width)


def _both(browser: Chrome, path: Path, width: int) -> None:
    take_picture(browser, path, width=width)
    take_picture(browser, path.with_stem(f"{path.stem}-dark"), width=width, dark=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]))

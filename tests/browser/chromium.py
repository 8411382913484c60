"""A headless Chromium, and pictures of the admin's pages."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from selenium.webdriver import Chrome, ChromeOptions, ChromeService
from selenium.webdriver.common.by import By

FLAGS = (
    "--headless=new",
    "--no-sandbox",  # as root Chromium refuses to start with it
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@contextmanager
def chromium(*, width: int = 1280, height: int = 900, dark: bool = False) -> Iterator[Chrome]:
    """Start a browser of its own profile; it is gone at the end of the block."""
    with TemporaryDirectory() as profile:
        options = ChromeOptions()
        options.binary_location = shutil.which("chromium") or shutil.which("google-chrome") or ""
        for flag in (*FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}"):
            options.add_argument(flag)
        browser = Chrome(options, ChromeService(shutil.which("chromedriver")))
        try:
            set_view(browser, width=width, height=height, dark=dark)
            yield browser
        finally:
            browser.quit()


def set_view(browser: Chrome, *, width: int, height: int, dark: bool = False) -> None:
    """Set the size of the page, and which colours it prefers."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})
    # Colours change over a moment: a picture shows where they end.
    browser.execute_script("document.getAnimations().forEach(each => each.finish())")


def log_in(browser: Chrome, admin: str, username: str, password: str) -> None:
    """Log in at the admin's address."""
    browser.get(admin)
    browser.find_element(By.NAME, "username").send_keys(username)
    browser.find_element(By.NAME, "password").send_keys(password)
    browser.find_element(By.CSS_SELECTOR, "[type=submit]").click()


def take_picture(browser: Chrome, path: Path, *, width: int, dark: bool = False, height: int | None = None) -> None:
    """Write the page as a PNG: all of it, unless a height is given."""
    set_view(browser, width=width, height=height or 800, dark=dark)
    if height is None:
        whole = browser.execute_script("return document.documentElement.scrollHeight")
        set_view(browser, width=width, height=max(400, int(whole)), dark=dark)
    path.parent.mkdir(parents=True, exist_ok=True)
    browser.save_screenshot(str(path))

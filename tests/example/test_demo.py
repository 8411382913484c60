"""`manage.py demo` and `manage.py serve`, in small, with all their processes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest
from django.db import connections

from demo.browser import Page, PageFailed
from demo.story import REFUSED, plan_orders

MANAGE = Path(__file__).resolve().parent.parent.parent / "example_project" / "manage.py"


@pytest.fixture
def environment(transactional_db: None, tmp_path: Path) -> dict[str, str]:
    """The test's own database, empty, for the processes of the demo."""
    settings = connections["default"].settings_dict
    scheme = {"postgresql": "postgres", "mysql": "mysql", "sqlite": "sqlite"}[connections["default"].vendor]
    login = f"{settings['USER']}:{settings['PASSWORD']}@{settings['HOST']}:{settings['PORT'] or ''}"
    url = f"{scheme}://{'' if scheme == 'sqlite' else login.rstrip(':')}/{settings['NAME']}"
    kept = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    return {**kept, "DATABASE_URL": url, "TMPDIR": str(tmp_path), "JOBS_POLL_INTERVAL": "0.1"}


def left_behind(folder: Path) -> list[str]:
    """The command lines of processes that still hold something in this folder open or named."""
    found = []
    for each in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"TMPDIR={folder}".encode() in each.read_bytes().split(b"\0"):
                found.append((each.parent / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found


@pytest.mark.race
@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_small_demo_comes_out_as_it_must(environment: dict[str, str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, MANAGE, "demo", "--orders", "10"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "WRONG" not in done.stdout
    assert re.search(r"mails received +10\n +doubled +0\n", done.stdout)
    assert re.search(r"runs rescued +[1-9]", done.stdout)
    assert re.search(r"commit to start, idle +p50", done.stdout)
    assert "SIGKILL" in done.stdout
    assert done.stderr == ""
    assert left_behind(tmp_path) == []


@pytest.mark.race
@pytest.mark.slow
@pytest.mark.timeout(90)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_serve_says_where_it_is_and_ends_with_all_it_started(
    environment: dict[str, str], tmp_path: Path, number: signal.Signals
) -> None:
    command = [sys.executable, str(MANAGE), "serve", "--port", "0"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            _look_around(process, tmp_path)
            process.send_signal(number)
            process.wait(timeout=40)
        finally:
            process.kill()  # one that goes on would run the jobs of other tests

    assert process.returncode == (0 if number == signal.SIGINT else 143)
    assert left_behind(tmp_path) == []


def _look_around(process: subprocess.Popen[str], folder: Path) -> None:
    """Read what `serve` says, and see that it is so."""
    assert process.stdout
    said = ""
    while "Ctrl-C" not in said:
        line = process.stdout.readline()
        assert line, said
        said += line
    shop, admin, password = re.findall(r"(http://\S+)\n.*?(http://\S+/admin/).*password (\S+)", said, re.DOTALL)[0]
    with urlopen(shop) as answer:
        assert b"Chinook Records" in answer.read()
    assert admin == f"{shop}/admin/"
    assert len(password) >= 12
    assert len(left_behind(folder)) == 5  # itself, web, smtp, partner, worker


def test_the_same_orders_are_planned_on_every_run() -> None:
    customers = [(f"C{number}", f"c{number}@mail.example") for number in range(6)]
    plan = plan_orders(20, products=list(range(10, 40)), sold_out=[1, 2], customers=customers)

    assert plan == plan_orders(20, products=list(range(10, 40)), sold_out=[1, 2], customers=customers)
    assert [each.email for each in plan[:REFUSED]] == ["c0@mail.example", "c1@mail.example"]
    assert not {each.email for each in plan[REFUSED:]} & {"c0@mail.example", "c1@mail.example"}
    wanted = [product for each in plan for product, _ in each.quantities]
    assert (wanted.count(1), wanted.count(2)) == (1, 1)
    assert all(1 <= len(each.quantities) <= 4 for each in plan)


def test_a_form_is_read_as_a_browser_would_send_it() -> None:
    page = Page(
        "http://shop/",
        """<form><input name="q"></form>
        <form method="post"><input type="hidden" name="a" value="1 &amp; 2"><input type="submit" name="go" value="Go">
        <input type="checkbox" name="pick" value="7"><input type="checkbox" name="pick" value="8" checked>
        <select name="action"><option value="">-</option><option value="replay">Replay</option></select></form>""",
    )

    form = page.form_with("pick")

    assert form.fields == [("a", "1 & 2"), ("pick", "8")]
    assert form.choices == {"pick": ["7", "8"], "action": ["", "replay"]}
    with pytest.raises(PageFailed, match="has no form with a field 'nothing'"):
        page.form_with("nothing")


def test_what_the_admin_says_is_read_without_its_markup() -> None:
    page = Page(
        "", '<ul class="messagelist"><li class="success">7 replayed &amp; 1 not.<br>a <a href="x">b</a></li></ul>'
    )

    assert [each.splitlines()[0] for each in page.messages] == ["7 replayed & 1 not."]


def test_without_the_wheel_the_shop_says_so_and_runs_on_sqlite(tmp_path: Path) -> None:
    program = """
import os
from services import postgres
postgres.WHEEL = "no_such_wheel"
from demo.database import database_for_the_shop
with database_for_the_shop():
    print(os.environ["DATABASE_URL"])
"""
    kept = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
    environment = {**kept, "PYTHONPATH": str(MANAGE.parent), "TMPDIR": str(tmp_path)}

    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True, timeout=30
    )

    said, url = done.stdout.splitlines()
    assert "no-such-wheel" in said
    assert "SQLite is used instead" in said
    assert url.startswith(f"sqlite:///{tmp_path}/")
    assert list(tmp_path.iterdir()) == []

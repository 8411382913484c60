"""What every test may lean on: databases by DATABASE_URL, tests left out by database, runs that refuse skips."""

import os
import shutil
import signal
from pathlib import Path

import pytest
from django.apps import apps
from django.conf import settings
from django.db import connections

ROOT = Path(__file__).resolve().parent.parent
VENDOR_MARKERS = {"postgresql": "postgres", "mysql": "mariadb", "sqlite": "sqlite"}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--refuse-skips",
        action="store_true",
        default=os.environ.get("REFUSE_SKIPS") == "1",
        help="fail if any test was skipped (also: REFUSE_SKIPS=1)",
    )


def pytest_configure(config: pytest.Config) -> None:
    # A shell starts with SIGINT ignored what it sends to the background, and all that a test starts would inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what means nothing here. It is deselected, not skipped: a skip hides a test that should have run."""
    kept = [item for item in items if _fits_the_database(item) and _fits_the_machine(item)]
    if len(kept) < len(items):
        config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
        items[:] = kept


def _fits_the_database(item: pytest.Item) -> bool:
    wanted = [marker for marker in VENDOR_MARKERS.values() if item.get_closest_marker(marker)]
    return not wanted or VENDOR_MARKERS[connections["default"].vendor] in wanted


def _fits_the_machine(item: pytest.Item) -> bool:
    if not item.get_closest_marker("browser"):
        return True
    return bool(shutil.which("chromedriver") and (shutil.which("chromium") or shutil.which("google-chrome")))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    shutil.rmtree(settings.SQLITE_FOLDER, ignore_errors=True)
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or not session.config.getoption("--refuse-skips"):
        return
    skipped = reporter.stats.get("skipped", [])
    if skipped and exitstatus == pytest.ExitCode.OK:
        reporter.write_line(f"\nSkipped tests: {len(skipped)}. This run refuses skips (--refuse-skips).", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(scope="session")
def django_db_modify_db_settings(django_db_modify_db_settings_parallel_suffix: None) -> None:
    """Make the folder of the SQLite test databases. pytest-django asks for this before it creates them."""
    if connections["default"].vendor == "sqlite":
        settings.SQLITE_FOLDER.mkdir(parents=True, exist_ok=True)


@pytest.fixture
def fresh_tables(db: None) -> None:
    """Empty tables on PostgreSQL: rows that earlier tests rolled back still lie in pages that plans read."""
    connection = connections["default"]
    if connection.vendor != "postgresql":
        return
    tables = (model._meta.db_table for model in apps.get_app_config("django_jobs").get_models())
    with connection.cursor() as cursor:
        cursor.execute(f"TRUNCATE {', '.join(map(connection.ops.quote_name, tables))}")


@pytest.fixture
def process_environment() -> dict[str, str]:
    """Give the environment for a process that shall open this test's databases.

    Start it as ``subprocess.Popen([sys.executable, "-m", "django", "runworker", ...], env=process_environment)``.
    The test itself needs ``transactional_db`` (or ``django_db(transaction=True)``): another process sees commits only.
    """
    return {
        **os.environ,
        **{f"TEST_DATABASE_{alias.upper()}": str(connections[alias].settings_dict["NAME"]) for alias in connections},
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "example_project")]),
    }

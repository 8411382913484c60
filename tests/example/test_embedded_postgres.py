"""The embedded PostgreSQL: a command's own server, which leaves nothing behind however the command ends."""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from services.postgres import Server, embedded_server

SCRIPT = Path(__file__).resolve().parents[2] / "example_project" / "services" / "postgres.py"
SELECT_ONE = "import os, psycopg; print(psycopg.connect(os.environ['DATABASE_URL']).execute('SELECT 1').fetchone())"


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give a temporary folder for the servers. Others may enter it, unlike pytest's: root's server runs as nobody."""
    monkeypatch.delenv("DATABASE_URL", raising=False)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        monkeypatch.setenv("TMPDIR", name)
        monkeypatch.setattr("tempfile.tempdir", name)
        yield folder


@pytest.fixture
def server(folder: Path) -> Iterator[Server]:
    with embedded_server(fsync=False) as server:
        yield server


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), "--", *command], capture_output=True, text=True, check=False)


def processes_that_name(folder: Path) -> list[str]:
    listing = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    return [line for line in listing.splitlines() if str(folder) in line]


def test_a_command_gets_a_database_of_its_own(folder: Path) -> None:
    done = run(sys.executable, "-c", SELECT_ONE)

    assert (done.returncode, done.stdout, done.stderr) == (0, "(1,)\n", "")
    assert list(folder.iterdir()) == []
    assert processes_that_name(folder) == []


@pytest.mark.parametrize(("script", "code"), [("exit 7", 7), ("kill -KILL $$", 128 + signal.SIGKILL)])
def test_the_commands_exit_code_is_passed_on(folder: Path, script: str, code: int) -> None:
    assert run("sh", "-c", script).returncode == code
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda signum: signum.name)
def test_a_signal_reaches_the_command_and_the_server_ends_after_it(folder: Path, signum: signal.Signals) -> None:
    script = (
        f"import signal, sys; signal.signal({signum.value}, lambda *_: sys.exit(3)); print(flush=True); signal.pause()"
    )
    command = [sys.executable, str(SCRIPT), "--", sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as started:
        assert started.stdout is not None
        started.stdout.readline()

        started.send_signal(signum)

    assert started.returncode == 3
    assert list(folder.iterdir()) == []
    assert processes_that_name(folder) == []


def test_a_database_url_that_is_set_wins(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "sqlite:///mine.sqlite3")

    assert run("sh", "-c", 'echo "$DATABASE_URL"').stdout == "sqlite:///mine.sqlite3\n"


def test_without_the_wheel_the_command_runs_without_a_database_url(folder: Path) -> None:
    script = (
        "import sys; from services import postgres; postgres.WHEEL = 'no_such_wheel'; "
        "sys.exit(postgres.main(['--', 'sh', '-c', 'echo url=$DATABASE_URL']))"
    )
    environment = {**os.environ, "PYTHONPATH": str(SCRIPT.parents[1])}

    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)

    assert done.stdout == "url=\n"
    assert "the wheel no-such-wheel is not installed" in done.stderr
    assert "SQLite is used instead" in done.stderr


def test_committed_rows_outlive_a_crash_of_the_server(server: Server) -> None:
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 1 AS n")

    server.stop("immediate")
    server.start()

    with psycopg.connect(server.url) as connection:
        assert connection.execute("SELECT n FROM kept").fetchone() == (1,)


def test_the_server_runs_as_whoever_started_it_or_as_nobody_for_root(server: Server, folder: Path) -> None:
    (data,) = folder.glob("*/run/data")

    expected = pwd.getpwnam("nobody").pw_uid if os.geteuid() == 0 else os.geteuid()
    assert data.stat().st_uid == expected
    assert data.stat().st_mode & 0o077 == 0


def test_no_one_gets_in_without_the_password(server: Server) -> None:
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(server.url, password="guessed")

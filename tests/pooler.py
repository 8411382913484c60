"""A PgBouncer of the test's own, in transaction mode, in front of the test's database server."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.db import connections

PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin"])  # where Debian puts it
START_TIMEOUT = 20.0  # seconds
POOL_SIZE = 4  # fewer than a worker has connections
SETTINGS = """
[databases]
* = host={host} port={port}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {own_port}
unix_socket_dir =
auth_type = trust
auth_file = {users}
pool_mode = transaction
default_pool_size = {size}
"""


@contextmanager
def pgbouncer() -> Iterator[int]:
    """Give the port of a running one."""
    program = shutil.which("pgbouncer", path=PATH)
    if program is None:
        pytest.skip("There is no pgbouncer: apt install pgbouncer")
    folder = Path(tempfile.mkdtemp(prefix="django-jobs-pgbouncer-"))
    process: subprocess.Popen[bytes] | None = None
    try:
        port = _free_port()
        _configure(folder, port)
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen([program, folder / "ini"], stdout=log, stderr=log, cwd=folder, **_identity())
        _wait_until_ready(port, process, folder / "log")
        yield port
    finally:
        if process is not None:
            process.kill()  # it would wait for its clients
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _configure(folder: Path, port: int) -> None:
    params = connections["default"].get_connection_params()
    users = folder / "users"
    users.write_text(f'"{params["user"]}" "{params.get("password", "")}"\n')
    where = {"host": params.get("host", "127.0.0.1"), "port": params.get("port", 5432)}
    (folder / "ini").write_text(SETTINGS.format(**where, own_port=port, users=users, size=POOL_SIZE))
    if user := _unprivileged_user():
        for path in (folder, *folder.iterdir()):
            os.chown(path, user.pw_uid, user.pw_gid)


def _unprivileged_user() -> pwd.struct_passwd | None:
    """It refuses to run as root."""
    return pwd.getpwnam("nobody") if os.geteuid() == 0 else None


def _identity() -> dict[str, Any]:
    user = _unprivileged_user()
    return {} if user is None else {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def _wait_until_ready(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    params = connections["default"].get_connection_params()
    until = time.monotonic() + START_TIMEOUT
    while True:
        try:
            psycopg.connect(host="127.0.0.1", port=port, user=params["user"], dbname=params["dbname"]).close()
        except psycopg.OperationalError:
            if process.poll() is not None or time.monotonic() > until:
                raise AssertionError(f"pgbouncer did not start.\n{log.read_text()}") from None
            time.sleep(0.02)
        else:
            return

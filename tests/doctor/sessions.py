"""Other sessions of the database under test, and what lies between it and a client."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

DATABASE = "default"


@contextmanager
def another_session(**options: Any) -> Iterator[BaseDatabaseWrapper]:
    """A connection of its own to the same database, as another process has it."""
    wrapper = connections.create_connection(DATABASE)
    wrapper.settings_dict = {**connections[DATABASE].settings_dict, **options}
    try:
        yield wrapper
    finally:
        wrapper.close()


def run(sql: str, using: str = DATABASE) -> None:
    with connections[using].cursor() as cursor:
        cursor.execute(sql)


@contextmanager
def deaf_pooler() -> Iterator[int]:
    """A port that leads to the database, but lets no notification through.

    A pooler in transaction mode hands it to whoever uses that server connection just then: not to the client that said
    LISTEN, which sees what it sees here.
    """
    settings = connections.settings[DATABASE]
    address = settings["HOST"], int(settings["PORT"] or 5432)
    server = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=_accept, args=(server, address), daemon=True).start()
    try:
        yield server.getsockname()[1]
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()


def _accept(server: socket.socket, address: tuple[str, int]) -> None:
    with suppress(OSError):
        while True:
            client, _ = server.accept()
            upstream = socket.create_connection(address)
            threading.Thread(target=_copy, args=(client, upstream), daemon=True).start()
            threading.Thread(target=_copy_messages, args=(upstream, client), daemon=True).start()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)


def _copy_messages(source: socket.socket, target: socket.socket) -> None:
    """Copy the server's messages, each a letter and a length, but those of notifications ("A")."""
    with suppress(OSError, EOFError):
        while True:
            kind = _read(source, 1)
            if kind in b"NS" and _is_bare(source):  # the answer to a request for encryption
                target.sendall(kind)
                continue
            length = _read(source, 4)
            body = _read(source, struct.unpack("!I", length)[0] - 4)
            if kind != b"A":
                target.sendall(kind + length + body)
    source.close()
    target.close()


def _is_bare(source: socket.socket) -> bool:
    source.settimeout(0.05)
    try:
        return len(source.recv(1, socket.MSG_PEEK)) == 0
    except TimeoutError:
        return True
    finally:
        source.settimeout(None)


def _read(source: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = source.recv(count - len(data))
        if not more:
            raise EOFError
        data += more
    return data

"""Answers that the server owes: where one does not come, the connection is cut, and whoever waits learns of it.

A firewall that has forgotten a connection, or a balancer that hangs, swallows what is sent. No error ever comes of it,
and a driver waits for ever. The operating system cannot always tell: a proxy that hangs still acknowledges packets.
"""

from __future__ import annotations

import math
import socket
import struct
import sys
import threading
import time
from typing import Any, Self

from django.db.backends.base.base import BaseDatabaseWrapper

ACTIVE = 1  # libpq's number for a session that works on a statement
LAST_DATA_RECEIVED = 52  # where Linux's struct tcp_info has it, in milliseconds

_waits: set[Wait] = set()
bell = threading.Event()  # rings when there is a wait


class Wait:
    """For its block: a thread waits for its connection, which may owe it an answer for up to `patience` seconds.

    Somebody must call `cut_overdue` again and again. Statements are not wrapped: that would cost each of them.
    """

    def __init__(self, connection: BaseDatabaseWrapper, patience: float) -> None:
        self.is_cut = False
        self.seconds = 0.0  # for which an answer was owed at the last look
        self._connection = connection
        self._patience = patience
        self._quiet = math.inf  # when no statement was under way

    def __enter__(self) -> Self:
        self._quiet = time.monotonic()
        _waits.add(self)
        if not bell.is_set():
            bell.set()
        return self

    def __exit__(self, *exception: object) -> None:
        _waits.discard(self)

    def look(self, longest: float) -> None:
        """Cut the connection if an answer is owed for longer than the patience, or than so many seconds."""
        raw = self._connection.connection
        if not _is_active(raw):
            self._quiet = time.monotonic()
            return
        try:
            with socket.fromfd(raw.fileno(), socket.AF_INET, socket.SOCK_STREAM) as own:
                self.seconds = min(time.monotonic() - self._quiet, _silence(own))
                # Asked again: had the thread closed it by then, the number might be that of another file.
                if self.seconds > min(self._patience, longest) and _is_active(raw):
                    self.is_cut = True
                    # For the thread that waits it is as if the server had closed the connection.
                    own.shutdown(socket.SHUT_RDWR)
        except Exception:  # noqa: BLE001, S110  the driver's own error, or the system's: there is nothing left to cut
            pass


def _is_active(raw: Any) -> bool:
    """Whether the session works on a statement. Drivers that do not tell are left alone: those of MariaDB."""
    return getattr(getattr(raw, "info", None), "transaction_status", None) == ACTIVE


def _silence(own: socket.socket) -> float:
    """Seconds since the last byte came in. Infinite where the system does not tell."""
    if sys.platform != "linux":
        return math.inf
    try:
        info = own.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, LAST_DATA_RECEIVED + 4)
    except OSError:  # a socket of the same machine
        return math.inf
    return int(struct.unpack_from("=I", info, LAST_DATA_RECEIVED)[0]) / 1000


def is_anything_awaited() -> bool:
    return bool(_waits)


def cut_overdue(longest: float) -> None:
    """Cut the connections of all threads whose answer is overdue, or is owed for so many seconds."""
    for wait in list(_waits):
        wait.look(longest)

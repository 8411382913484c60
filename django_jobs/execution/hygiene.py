"""What one job must not leave to the next in its thread, and connections that died while nobody used them."""

from __future__ import annotations

import contextlib
import math
import os
import select
import threading
import time
from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from django_jobs import logs
from django_jobs.execution.answers import Wait
from django_jobs.runs import ClaimedRun

PING_AFTER = 30.0  # seconds of idleness after which a connection is asked, whatever its socket says
BLIND_PING_AFTER = 1.0  # seconds, where the socket cannot be looked at
PING_PATIENCE = 5.0  # seconds after which a connection that was asked is given up

IDLE = 0  # libpq's numbers
IN_TRANSACTION = (2, 3)  # open, broken; others say that a statement runs, or that the session is gone


_connected: set[int] = set()  # threads
_distrusted_until = -math.inf  # by `time.monotonic()`


def _note_thread(**kwargs: Any) -> None:
    _connected.add(threading.get_ident())


connection_created.connect(_note_thread, dispatch_uid="django_jobs.execution.hygiene")


def has_connected() -> bool:
    """Whether this thread, started after this module was imported, has ever connected to a database.

    If it has not, there is nothing to freshen and nothing to tidy; to find that out by these costs more than a short
    job.
    """
    return threading.get_ident() in _connected


def is_lost(session: Any) -> bool:
    """Whether a driver's connection has broken, as far as that driver tells. Asks no server."""
    return bool(getattr(session, "closed", False)) or not getattr(session, "open", True)


def distrust() -> None:
    """One connection of this process was lost: replace all that nobody uses just now before they are used again.

    They may be as dead, and show nothing of it: who was cut off without a word hears of it only when he speaks.
    """
    global _distrusted_until  # noqa: PLW0603  of the process, as the connections are
    _distrusted_until = time.monotonic()
    for alias in connections:
        if connections.settings[alias]["OPTIONS"].get("pool"):
            _empty_pool(connections.create_connection(alias))  # this thread's own one may be kept out of it


def _empty_pool(connection: Any) -> None:
    drain = getattr(connection.pool, "drain", None)  # of psycopg_pool 3.3
    with contextlib.suppress(Exception):
        (drain or connection.close_pool)()


def freshen(idle: float) -> None:
    """Before a job: drop the connections of this thread that the server has closed. `idle` is in seconds.

    A worker is not a request: with CONN_MAX_AGE 0 the connection is kept.
    """
    for connection in connections.all(initialized_only=True):
        if is_suspect(connection, idle):
            _check(connection, idle)


def is_suspect(connection: BaseDatabaseWrapper, idle: float) -> bool:
    """Whether there is a reason to ask the server before this connection is used again. Asks nobody."""
    if connection.connection is None or connection.in_atomic_block or connection.vendor == "sqlite":
        return False
    if connection.errors_occurred or _is_old(connection) or _is_distrusted(idle):
        return True
    return idle > PING_AFTER or _has_spoken(connection, idle)


def _is_old(connection: BaseDatabaseWrapper) -> bool:
    close_at = connection.close_at if connection.settings_dict["CONN_MAX_AGE"] else None
    return close_at is not None and time.monotonic() >= close_at


def _is_distrusted(idle: float) -> bool:
    return time.monotonic() - idle <= _distrusted_until


def _check(connection: BaseDatabaseWrapper, idle: float) -> None:
    if _is_distrusted(idle):
        close(connection)
    with Wait(connection, PING_PATIENCE):
        if connection.settings_dict["CONN_MAX_AGE"]:
            connection.close_if_unusable_or_obsolete()
        if connection.connection is not None and not connection.is_usable():
            close(connection)
    connection.errors_occurred = False


def _has_spoken(connection: BaseDatabaseWrapper, idle: float) -> bool:
    """Whether the server sent something between two jobs: as a rule, that it has closed the connection."""
    try:
        number = connection.connection.fileno()
    except AttributeError:  # a driver that does not show its socket (MySQL's)
        return idle > BLIND_PING_AFTER
    except Exception:  # noqa: BLE001  the driver's own error: the connection is closed
        return True
    return bool(_readable(number))


def _readable(number: int) -> Any:
    if not hasattr(select, "poll"):
        return select.select([number], [], [], 0)[0]
    poller = select.poll()
    poller.register(number, select.POLLIN)
    return poller.poll(0)


def tidy(*, was_interrupted: bool = False) -> None:
    """After a job: roll back and close what it left open, and empty the query log.

    Where a time limit `was_interrupted` code of Django or the driver halfway, nothing of theirs is used again.
    """
    for connection in connections.all(initialized_only=True):
        connection.queries_log.clear()
        if was_interrupted:
            _discard(connection)
        elif connection.connection is None:
            if connection.in_atomic_block:
                _discard(connection)
        elif is_in_transaction(connection):
            logs.transaction_left_open(connection.alias)
            _discard(connection)
        elif _is_pooled(connection):
            close(connection)


def is_in_transaction(connection: BaseDatabaseWrapper) -> bool:
    """Whether a transaction is open on it. Asks nobody."""
    raw = connection.connection
    if raw is None:
        return connection.in_atomic_block
    if connection.in_atomic_block or connection.autocommit is not connection.settings_dict["AUTOCOMMIT"]:
        return True
    if connection.vendor == "sqlite":
        return bool(raw.in_transaction)
    # psycopg's; BEGIN may have been sent as SQL.
    info = getattr(raw, "info", None)
    return getattr(info, "transaction_status", IDLE) in IN_TRANSACTION


def _is_pooled(connection: BaseDatabaseWrapper) -> bool:
    return bool(connection.settings_dict["OPTIONS"].get("pool"))


def _discard(connection: BaseDatabaseWrapper) -> None:
    """Close it, and let the thread make a new wrapper: the old one believes to be in a transaction."""
    close(connection)
    del connections[connection.alias]


def close(connection: BaseDatabaseWrapper) -> None:
    """Close it; one that is broken may refuse even that."""
    with contextlib.suppress(Exception):
        connection.close()


def close_all() -> None:
    """Close the connections of this thread."""
    _connected.discard(threading.get_ident())
    for connection in connections.all(initialized_only=True):
        close(connection)


class Home:
    """The working directory of the process, which is one for all its threads, and which a task may change."""

    def __init__(self) -> None:
        self._path = os.getcwdb()  # noqa: PTH109  by Path it takes ten times as long, for each job

    def restore(self, run: ClaimedRun) -> None:
        """After a run: go back to it."""
        try:
            if os.getcwdb() == self._path:  # noqa: PTH109
                return
        except OSError:  # the directory is gone
            pass
        with contextlib.suppress(OSError):
            os.chdir(self._path)
            logs.directory_left(run)

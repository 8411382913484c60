"""Connections of the worker's process, and those of its own threads."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from django_jobs.conf import get_settings
from django_jobs.driver import HAS_USER_TIMEOUT
from django_jobs.execution import hygiene
from django_jobs.worker.outage import patience_for

# libpq's. A server that is gone without a word is noticed within a minute, by packets that nobody acknowledges, and not
# within two hours, as by default. A query may take as long as it likes, if the server lives.
WATCHFUL = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3, "tcp_user_timeout": 60_000}
MOST_CONNECT_TIMEOUT = 10  # seconds
LEAST_CONNECT_TIMEOUT = 2  # seconds; libpq knows no shorter one

_ours: set[str] = set()  # aliases of which the project has not said how long to wait for a connection


def prepare_connections() -> None:
    """Let all connections of this process notice that the server is gone, if the project has not said how."""
    for alias in connections:
        settings = connections.settings[alias]
        if _is_postgres(alias) and "service" not in settings["OPTIONS"] and "PGSERVICE" not in os.environ:
            _make_watchful(alias, settings)
        if settings["OPTIONS"].get("pool"):
            _check_pooled(alias, settings)


def _is_postgres(alias: str) -> bool:
    try:
        return connections[alias].vendor == "postgresql"
    except ImproperlyConfigured:  # its driver is missing; perhaps nothing here uses this one
        return False


def _make_watchful(alias: str, settings: dict[str, Any]) -> None:
    options = settings["OPTIONS"]
    if "connect_timeout" not in options and "PGCONNECT_TIMEOUT" not in os.environ:
        options = {**options, "connect_timeout": _connect_timeout()}
        _ours.add(alias)
    settings["OPTIONS"] = {**WATCHFUL, **options}
    if not HAS_USER_TIMEOUT and "tcp_user_timeout" not in options:
        del settings["OPTIONS"]["tcp_user_timeout"]


def _connect_timeout() -> int:
    """A third of a lease: then there is time left."""
    seconds = int(get_settings().LEASE.total_seconds() / 3)
    return min(max(seconds, LEAST_CONNECT_TIMEOUT), MOST_CONNECT_TIMEOUT)


def _check_pooled(alias: str, settings: dict[str, Any]) -> None:
    """Let Django's pool hand out no connection that the server has closed, whatever CONN_HEALTH_CHECKS says.

    Between two jobs a pooled connection is not the thread's, which therefore cannot look at it.
    """
    if not settings["CONN_HEALTH_CHECKS"]:
        settings["CONN_HEALTH_CHECKS"] = True
        # One that was opened before now does not check; the next one will.
        connections[alias].close()
        connections[alias].close_pool()  # type: ignore[attr-defined]


def own_settings(wrapper: BaseDatabaseWrapper) -> dict[str, Any]:
    """Settings of a database for the worker itself: out of Django's pool, whose few connections are for the tasks."""
    settings = wrapper.settings_dict
    options = {**settings["OPTIONS"]}
    if "pool" in options:
        options["pool"] = False
    if wrapper.vendor == "mysql":
        # Its drivers show nothing by which somebody else could see that an answer is owed.
        patience = math.ceil(patience_for(get_settings().LEASE.total_seconds()))
        timeouts = {"connect_timeout": _connect_timeout(), "read_timeout": patience, "write_timeout": patience}
        options = {**timeouts, **options}
    return {**settings, "OPTIONS": options}


@contextmanager
def own_connection(using: str) -> Iterator[None]:
    """For the block, this thread's connection is the worker's own. At its end, the thread has none."""
    wrapper = connections[using]
    former = wrapper.settings_dict
    try:
        if wrapper.vendor != "sqlite":
            hygiene.close(wrapper)
            wrapper.settings_dict = own_settings(wrapper)
        yield
    finally:
        hygiene.close_all()
        wrapper.settings_dict = former


def hurry_connecting(using: str) -> None:
    """The process shall end: let this thread's own connection wait no longer than it must."""
    if using in _ours:
        connections[using].settings_dict["OPTIONS"]["connect_timeout"] = LEAST_CONNECT_TIMEOUT

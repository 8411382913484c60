"""Connections of the worker's process, and those of its own threads."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from django_jobs.conf import get_settings
from django_jobs.execution import hygiene

# libpq's. A server that is gone without a word is noticed within a minute, by packets that nobody acknowledges, and not
# within two hours, as by default. A query may take as long as it likes, if the server lives.
WATCHFUL = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3, "tcp_user_timeout": 60_000}
MOST_CONNECT_TIMEOUT = 10  # seconds
LEAST_CONNECT_TIMEOUT = 2  # seconds; libpq knows no shorter one


_hurried: set[str] = set()  # the aliases that wait for a connection as long as we say


def prepare_connections() -> None:
    """Let all connections of this process notice that the server is gone, if the project has not said how."""
    for alias in connections:
        settings = connections.settings[alias]
        if connections[alias].vendor == "postgresql" and not _is_a_service(settings):
            if "connect_timeout" not in settings["OPTIONS"] and "PGCONNECT_TIMEOUT" not in os.environ:
                settings["OPTIONS"] = {**settings["OPTIONS"], "connect_timeout": _connect_timeout()}
                _hurried.add(alias)
            settings["OPTIONS"] = {**WATCHFUL, **settings["OPTIONS"]}
        if settings["OPTIONS"].get("pool"):
            _check_pooled(alias, settings)


def _is_a_service(settings: dict[str, Any]) -> bool:
    """Whether a file says how to connect: what stands there would give way to what we add."""
    return "service" in settings["OPTIONS"] or "PGSERVICE" in os.environ


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
        timeouts = dict.fromkeys(("read_timeout", "write_timeout"), math.ceil(get_settings().LEASE.total_seconds()))
        options = {"connect_timeout": _connect_timeout(), **timeouts, **options}
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
    if using in _hurried:
        connections[using].settings_dict["OPTIONS"]["connect_timeout"] = LEAST_CONNECT_TIMEOUT

"""Connections of the worker's own threads."""

from __future__ import annotations

import copy

from django.db import connections


def check_pooled_connections() -> None:
    """Let Django's pools hand out no connection that the server has closed, whatever CONN_HEALTH_CHECKS says.

    Between two jobs a pooled connection is not the thread's, which therefore cannot look at it.
    """
    for alias in connections:
        settings = connections.settings[alias]
        if settings["OPTIONS"].get("pool") and not settings["CONN_HEALTH_CHECKS"]:
            settings["CONN_HEALTH_CHECKS"] = True
            # One that was opened before now does not check; the next one will.
            connections[alias].close()
            connections[alias].close_pool()  # type: ignore[attr-defined]


def use_own_connection(using: str) -> None:
    """Let this thread open a connection outside of Django's pool, whose few connections are for the tasks."""
    settings = connections[using].settings_dict
    if not settings["OPTIONS"].get("pool"):
        return
    wrapper = connections.create_connection(using)
    wrapper.settings_dict = copy.deepcopy({**settings, "OPTIONS": {**settings["OPTIONS"], "pool": False}})
    connections[using] = wrapper

"""Connections of the worker's own threads."""

from __future__ import annotations

import copy

from django.db import connections


def use_own_connection(using: str) -> None:
    """Let this thread open a connection outside of Django's pool, whose few connections are for the tasks."""
    settings = connections[using].settings_dict
    if not settings["OPTIONS"].get("pool"):
        return
    wrapper = connections.create_connection(using)
    wrapper.settings_dict = copy.deepcopy({**settings, "OPTIONS": {**settings["OPTIONS"], "pool": False}})
    connections[using] = wrapper

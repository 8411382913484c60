"""Ask the server by its own SQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from django.db import connections


def ask(using: str, sql: str, params: Sequence[Any] = ()) -> list[Any]:
    """The rows of a statement."""
    with connections[using].cursor() as cursor:
        cursor.execute(sql, params)
        return list(cursor.fetchall())


class Setting(NamedTuple):
    """A PostgreSQL setting as new sessions of this role have it, in the unit of pg_settings."""

    value: str
    source: str

    @property
    def is_on(self) -> bool:
        return self.value == "on"


def settings_of(using: str, *names: str) -> dict[str, Setting]:
    """PostgreSQL's settings of these names; those that this version does not know are left out."""
    # reset_val: what the session began with, whatever this transaction has set for itself.
    rows = ask(using, "SELECT name, reset_val, source FROM pg_settings WHERE name = ANY(%s)", [list(names)])
    return {name: Setting(value, source) for name, value, source in rows}

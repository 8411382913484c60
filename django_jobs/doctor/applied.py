"""Which migrations the database lacks: what a worker asks at its start, apart from all else that the doctor knows."""

from __future__ import annotations

import pkgutil
from importlib import import_module

from django.db import connections
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder

APP = "django_jobs"


def unapplied(using: str) -> list[str]:
    """The names of the migrations that this database lacks."""
    # By a worker's start too: Django's loader would import those of every app and keep half a megabyte of them.
    module, _ = MigrationLoader.migrations_module(APP)
    names = pkgutil.iter_modules(import_module(module).__path__) if module else ()
    applied = {name for app, name in MigrationRecorder(connections[using]).applied_migrations() if app == APP}
    return sorted({each.name for each in names} - applied)

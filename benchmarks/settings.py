"""A small Django project. DATABASE_URL names the server; BENCH_DATABASE the database on it, which each run makes."""

import os
from typing import Any

import environ

SECRET_KEY = "nothing is signed here"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "django_jobs", "benchmarks"]

_database: dict[str, Any] = environ.Env().db_url("DATABASE_URL")
BENCH_OUTSET = _database["NAME"]  # where the server is entered; nothing is written there
BENCH_PREFIX = f"{BENCH_OUTSET}_bench"
_database["NAME"] = os.environ.get("BENCH_DATABASE", f"{BENCH_PREFIX}_app")
DATABASES = {"default": {**_database, "CONN_MAX_AGE": None}}

# Every setting of the app is at its default; what a workload changes, it passes as an option of runworker.
DJANGO_JOBS: dict[str, Any] = {}

# A line of log for each of a million no-op jobs is what a project with such jobs would turn off, and no promise.
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"stderr": {"class": "logging.StreamHandler"}},
    "root": {"handlers": ["stderr"], "level": "WARNING"},
}

"""Settings of the test suite. DATABASE_URL chooses the database; without it the suite runs on SQLite files."""

import copy
import os
import tempfile
from pathlib import Path
from typing import Any

import environ

env = environ.Env()
# A shared in-memory database cannot be opened by a second process, and its threads share one lock: files can and do.
SQLITE_FOLDER = Path(env.str("TEST_SQLITE_FOLDER", default=f"{tempfile.gettempdir()}/django_jobs_tests_{os.getpid()}"))


def _sqlite_options() -> dict[str, Any]:
    """Return what the documentation advises, or nothing with SQLITE_DEFAULTS=1: what a new project has."""
    if env.bool("SQLITE_DEFAULTS", default=False):
        return {}
    return {
        "transaction_mode": "IMMEDIATE",
        "timeout": 20,
        "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
    }


def _default_database() -> dict[str, Any]:
    database: dict[str, Any] = env.db_url("DATABASE_URL", default=f"sqlite:///{SQLITE_FOLDER}/default.sqlite3")
    if database["ENGINE"].endswith("sqlite3"):
        database["OPTIONS"] = _sqlite_options()
    if database["ENGINE"].endswith("mysql"):
        import pymysql

        pymysql.install_as_MySQLdb()
        database.setdefault("OPTIONS", {})["charset"] = "utf8mb4"
        database["TEST"] = {"CHARSET": "utf8mb4"}
    return database


def _sibling(database: dict[str, Any]) -> dict[str, Any]:
    """Return a second database of the same kind, on the same server."""
    other = copy.deepcopy(database)
    other["NAME"] = database["NAME"] if database["NAME"] == ":memory:" else f"{database['NAME']}_other"
    return other


DATABASES = {"default": _default_database()}
DATABASES["other"] = _sibling(DATABASES["default"])
for _alias, _database in DATABASES.items():
    if _database["ENGINE"].endswith("sqlite3"):
        _database["TEST"] = {"NAME": str(SQLITE_FOLDER / f"{_alias}.sqlite3")}
    # A process that a test starts opens the test's own database: conftest.process_environment sets these.
    _database["NAME"] = env.str(f"TEST_DATABASE_{_alias.upper()}", default=_database["NAME"])

DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django_jobs",
    "shop",  # The example project's app: its tasks are tested as a user's own would be.
    "tests",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
ROOT_URLCONF = "tests.urls"
SECRET_KEY = "tests-only"
SHOP_PARTNER_TIMEOUT = 2.0
SHOP_PARTNER_URL = "http://127.0.0.1:9"  # Nobody answers there; a test that needs the partner starts one.
STATIC_URL = "static/"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]
TIME_ZONE = "Europe/Berlin"  # Not UTC, so that a forgotten conversion shows.
USE_TZ = env.bool("USE_TZ", default=True)

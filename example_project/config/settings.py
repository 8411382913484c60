"""Settings of the shop. Everything that changes from place to place comes from the environment."""

import secrets
from pathlib import Path
from typing import Any

import environ

from config.mail import mail_settings

BASE_DIR = Path(__file__).resolve().parent.parent
env = environ.Env()

DEBUG = env.bool("DEBUG", default=False)
# Sessions and the basket lie in signed cookies: with a fixed key they outlive a restart of the web server.
SECRET_KEY = env.str("SECRET_KEY", default="") or secrets.token_urlsafe(48)
ALLOWED_HOSTS = env.list("ALLOWED_HOSTS", default=["127.0.0.1", "localhost", "[::1]"])

SQLITE_OPTIONS = {
    # What the documentation of django_jobs advises: readers do not wait for the writer, and a writer waits its turn.
    "transaction_mode": "IMMEDIATE",
    "timeout": 20,
    "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
}


def _database() -> dict[str, Any]:
    database: dict[str, Any] = env.db_url("DATABASE_URL", default=f"sqlite:///{BASE_DIR / 'shop.sqlite3'}")
    database["CONN_MAX_AGE"] = 60
    database["CONN_HEALTH_CHECKS"] = True
    if database["ENGINE"].endswith("sqlite3"):
        database["OPTIONS"] = SQLITE_OPTIONS
    if database["ENGINE"].endswith("mysql"):
        import pymysql

        pymysql.install_as_MySQLdb()
        database.setdefault("OPTIONS", {})["charset"] = "utf8mb4"
    return database


DATABASES = {"default": _database()}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django_jobs",
    "shop",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
ROOT_URLCONF = "config.urls"
WSGI_APPLICATION = "config.wsgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "shop.basket.context",
            ],
        },
    },
]
SESSION_ENGINE = "django.contrib.sessions.backends.signed_cookies"
LOGIN_URL = "admin:login"
LANGUAGE_CODE = "en"
TIME_ZONE = env.str("TIME_ZONE", default="UTC")
USE_TZ = True
STATIC_URL = "static/"

# The demo's mail server is services/smtp.py.
globals().update(mail_settings(env.str("EMAIL_URL", default="smtp://127.0.0.1:1025")))
DEFAULT_FROM_EMAIL = "orders@shop.example"

SHOP_PARTNER_URL = env.str("SHOP_PARTNER_URL", default="http://127.0.0.1:8025")
SHOP_PARTNER_TIMEOUT = env.float("SHOP_PARTNER_TIMEOUT", default=2.0)  # seconds

DJANGO_JOBS = {
    "QUEUES": {
        "default": {"expected_latency": 5},
        "orders": {"expected_latency": 2},
        "mail": {"expected_latency": 30},
        "partner": {"expected_latency": 60},
        "search": {"expected_latency": 60},
        "reports": {"expected_latency": 300},
    },
    # How long a dead worker keeps its jobs. The demo shortens it, to show a rescue without a long wait.
    "LEASE": env.float("JOBS_LEASE", default=30.0),
    "HEARTBEAT": env.float("JOBS_HEARTBEAT", default=10.0),
    # How often an idle worker looks by itself. PostgreSQL wakes it besides.
    "POLL_INTERVAL": env.float("JOBS_POLL_INTERVAL", default=1.0),
}

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"plain": {"format": "%(asctime)s %(levelname)s %(name)s %(message)s"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "plain"}},
    "root": {"handlers": ["console"], "level": env.str("LOG_LEVEL", default="INFO")},
}

"""Settings of the chaos run's processes: a short lease, so that much happens, and a clock that may be wrong."""

import os

import environ

from tests.clocks import skew

skew(float(os.environ.get("CHAOS_SKEW", "0")))

DATABASES = {"default": environ.Env().db_url("CHAOS_DATABASE_URL")}
DATABASES["default"]["CONN_MAX_AGE"] = int(os.environ.get("CHAOS_CONN_MAX_AGE", "0"))
DATABASES["default"]["OPTIONS"] = {"connect_timeout": 5}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DJANGO_JOBS = {"LEASE": 3, "HEARTBEAT": 0.5, "POLL_INTERVAL": 0.2, "GRACE": 2, "THREADS": 3, "PRIORITY_AGEING": 1}
INSTALLED_APPS = ["django.contrib.contenttypes", "django_jobs", "tests.chaos"]
SECRET_KEY = "chaos only"
USE_TZ = True

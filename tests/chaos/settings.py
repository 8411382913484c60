"""Settings of the chaos run's processes: a short lease, so that much happens, and a clock that may be wrong."""

import os
import time
from datetime import timedelta

import environ
from django.utils import timezone

SKEW = float(os.environ.get("CHAOS_SKEW", "0"))  # seconds
if SKEW:
    _time, _time_ns, _now = time.time, time.time_ns, timezone.now
    time.time = lambda: _time() + SKEW
    time.time_ns = lambda: _time_ns() + int(SKEW * 1e9)
    timezone.now = lambda: _now() + timedelta(seconds=SKEW)

DATABASES = {"default": environ.Env().db_url("CHAOS_DATABASE_URL")}
DATABASES["default"]["CONN_MAX_AGE"] = int(os.environ.get("CHAOS_CONN_MAX_AGE", "0"))
DATABASES["default"]["OPTIONS"] = {"connect_timeout": 5}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DJANGO_JOBS = {"LEASE": 3, "HEARTBEAT": 0.5, "POLL_INTERVAL": 0.2, "GRACE": 2, "THREADS": 3}
INSTALLED_APPS = ["django.contrib.contenttypes", "django_jobs", "tests.chaos"]
SECRET_KEY = "chaos only"
USE_TZ = True

"""Settings of the worker processes that tests start: the suite's, the tasks of this folder, and DJANGO_JOBS as JSON."""

import json
import os

from tests.clocks import skew
from tests.settings import *  # noqa: F403

# Only the database that the test has: the other one is made for the tests that ask for it.
DATABASES = {"default": DATABASES["default"]}  # noqa: F405
_max_age = os.environ.get("TEST_CONN_MAX_AGE", "0")
DATABASES["default"]["CONN_MAX_AGE"] = None if _max_age == "None" else int(_max_age)
DJANGO_JOBS = json.loads(os.environ.get("DJANGO_JOBS", "{}"))
if not os.environ.get("TEST_OLD_CODE"):  # that has no tasks of this folder
    INSTALLED_APPS = [*INSTALLED_APPS, "tests.worker"]  # noqa: F405
skew(float(os.environ.get("TEST_SKEW", "0")))
DEBUG = bool(os.environ.get("TEST_DEBUG"))

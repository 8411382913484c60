"""Settings of the worker processes that tests start: the suite's, the tasks of this folder, and some as JSON."""

import json
import os

from tests.clocks import skew
from tests.settings import *  # noqa: F403

# Only the database that the test has: the other one is made for the tests that ask for it.
DATABASES = {"default": DATABASES["default"]}  # noqa: F405
DATABASES["default"].update(json.loads(os.environ.get("TEST_DATABASE", "{}")))
DJANGO_JOBS = json.loads(os.environ.get("DJANGO_JOBS", "{}"))
if not os.environ.get("TEST_OLD_CODE"):  # that has no tasks of this folder
    INSTALLED_APPS = [*INSTALLED_APPS, "tests.worker"]  # noqa: F405
skew(float(os.environ.get("TEST_SKEW", "0")))
DEBUG = bool(os.environ.get("TEST_DEBUG"))

"""Settings of the worker processes that tests start: the suite's, the tasks of this folder, and DJANGO_JOBS as JSON."""

import json
import os

from tests.settings import *  # noqa: F403

INSTALLED_APPS = [*INSTALLED_APPS, "tests.worker"]  # noqa: F405
DJANGO_JOBS = json.loads(os.environ.get("DJANGO_JOBS", "{}"))
for _database in DATABASES.values():  # noqa: F405
    _max_age = os.environ.get("TEST_CONN_MAX_AGE", "0")
    _database["CONN_MAX_AGE"] = None if _max_age == "None" else int(_max_age)

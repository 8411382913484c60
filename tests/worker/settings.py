"""Settings of the worker processes that tests start: the suite's, the tasks of this folder, and DJANGO_JOBS as JSON."""

import json
import os

from tests.settings import *  # noqa: F403

INSTALLED_APPS = [*INSTALLED_APPS, "tests.worker"]  # noqa: F405
DJANGO_JOBS = json.loads(os.environ.get("DJANGO_JOBS", "{}"))

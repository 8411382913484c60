"""python -m benchmarks: the app beside the floor, as a table."""

import os
import sys

import django

if not os.environ.get("DATABASE_URL", "").startswith(("postgres", "pgsql")):
    sys.exit("Set DATABASE_URL to a PostgreSQL server, or run `make bench`, which starts one.")
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "benchmarks.settings")
django.setup()

from benchmarks.cli import main  # noqa: E402  tasks need the settings

sys.exit(main())

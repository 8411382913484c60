#!/usr/bin/env python
"""Django's command line for the shop. `demo` and `serve` bring a database along where DATABASE_URL names none."""

import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
# The shop of a clone runs the django_jobs of that clone, installed or not.
sys.path[:0] = [str(HERE), str(HERE.parent)]
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")


def main() -> None:
    from django.core.management import execute_from_command_line

    if sys.argv[1:2] in (["demo"], ["serve"]) and "--help" not in sys.argv:
        from demo.database import database_for_the_shop

        # Settings are read once, at the first import of anything of Django: the URL has to stand before.
        try:
            with database_for_the_shop():
                execute_from_command_line(sys.argv)
        except KeyboardInterrupt:  # while the database starts or stops
            sys.exit(130)
    else:
        execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()

#!/usr/bin/env python
"""Django's command line for the project in this folder: `runworker` is what the benchmark measures."""

import os
import sys
from pathlib import Path

if __name__ == "__main__":
    from django.core.management import execute_from_command_line

    # The folder above, not this one: modules here are benchmarks.something.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "benchmarks.settings")
    execute_from_command_line(sys.argv)

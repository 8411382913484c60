"""Which database the demo runs on: DATABASE_URL, else an embedded PostgreSQL, else SQLite."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType

from services.postgres import EmbeddedPostgresMissing, embedded_postgres


@contextmanager
def database_for_the_shop() -> Iterator[None]:
    """Set DATABASE_URL where it is not set; a database of our own ends with the block."""
    # A signal that ends the process would leave the servers behind; an exception runs every `finally` on the way out.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    # A shell starts what it puts into the background with SIGINT ignored, and Python leaves it so.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with ExitStack() as stack:
        if not os.environ.get("DATABASE_URL"):
            os.environ["DATABASE_URL"] = _embedded(stack) or _sqlite(stack)
        yield


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _embedded(stack: ExitStack) -> str | None:
    try:
        url = stack.enter_context(embedded_postgres())
    except EmbeddedPostgresMissing as reason:
        sys.stdout.write(f"No embedded PostgreSQL: {reason}. SQLite is used instead.\n")
        return None
    return url


def _sqlite(stack: ExitStack) -> str:
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="django-jobs-shop-", ignore_cleanup_errors=True))
    return f"sqlite:///{Path(folder) / 'shop.sqlite3'}"

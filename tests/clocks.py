"""A process whose clock is wrong."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from django.utils import timezone

_time, _time_ns, _now = time.time, time.time_ns, timezone.now


def skew(seconds: float) -> None:
    """Let this process's clock be so much too fast from now on, or, below 0, too slow."""
    if not seconds:
        return
    time.time = lambda: _time() + seconds
    time.time_ns = lambda: _time_ns() + int(seconds * 1e9)
    timezone.now = lambda: _now() + timedelta(seconds=seconds)


@contextmanager
def skewed(seconds: float) -> Iterator[None]:
    """The same for a block."""
    skew(seconds)
    try:
        yield
    finally:
        time.time, time.time_ns, timezone.now = _time, _time_ns, _now

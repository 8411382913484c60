"""What a job leaves behind: a record of fixed size, which tells lost and doubled jobs without asking the queue.

The standard library alone, for the floor's workers import nothing of the app.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_RECORD = struct.Struct("<qd")
SIZE = _RECORD.size
_descriptor = -1


class Mark(NamedTuple):
    """One start of a job: its number, and when (`time.time()`)."""

    number: int
    at: float


def leave(number: int) -> None:
    """Append a record to the file BENCH_MARKS; O_APPEND keeps those of several threads and workers whole."""
    global _descriptor  # noqa: PLW0603  opened once, at the first job of a worker
    if _descriptor < 0:
        _descriptor = os.open(os.environ["BENCH_MARKS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(_descriptor, _RECORD.pack(number, time.time()))


def count(path: Path) -> int:
    """How many records there are."""
    return path.stat().st_size // SIZE


def read(path: Path) -> list[Mark]:
    """All records, in the order of their time."""
    return sorted(_all(path), key=lambda mark: mark.at)


def _all(path: Path) -> Iterator[Mark]:
    data = path.read_bytes()
    for number, at in _RECORD.iter_unpack(data[: len(data) // SIZE * SIZE]):
        yield Mark(number, at)

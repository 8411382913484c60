"""What every workload is given: the server, how much to do, and databases that look as a queue's do."""

from __future__ import annotations

import math
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.server import Connection, Server
from benchmarks.sides import App, Floor, Side

MARKS_FOLDER = Path("/dev/shm")


@dataclass
class Bench:
    """One run of the benchmark."""

    server: Server
    short: bool = False
    repetitions: int = 3
    until: float = math.inf  # on the scale of time.monotonic(): when the current workload should have ended
    workload: str = ""
    app: App = field(default_factory=App)
    floor: Floor = field(default_factory=Floor)
    remarks: list[str] = field(default_factory=list)

    def of(self, full: int, short: int) -> int:
        """How many, in this kind of run."""
        return short if self.short else full

    def rounds(self, *, share: float = 1.0) -> Iterator[int]:
        """Up to `repetitions` rounds; after the first none that would end after a share of the time that is left."""
        started = time.monotonic()
        end = started + share * max(self.until - started, 0.0)
        for number in range(self.repetitions):
            yield number
            now = time.monotonic()
            if number + 1 < self.repetitions and now + (now - started) / (number + 1) > end:
                self.remark(f"{number + 1} of {self.repetitions} rounds, so that the whole run ends in time.")
                return

    def remark(self, text: str) -> None:
        """Say something that a reader of the numbers has to know."""
        self.remarks.append(f"{self.workload}: {text}")
        self.tell(f"  note: {text}")

    def tell(self, text: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)

    @contextmanager
    def database(self, side: Side, name: str | None = None) -> Iterator[Connection]:
        """A fresh database of a side, through a connection to it; dropped after the block."""
        self._make_template(side)
        name = name or side.name
        with self.server.connect(self.server.create(name, template=f"{side.name}_empty")) as connection:
            yield connection
        self.server.drop(name)

    def _make_template(self, side: Side) -> None:
        template = f"{side.name}_empty"
        if template not in self.server.made:
            with self.server.connect(self.server.create(template)) as connection:
                side.create_tables(connection)
                connection.execute("VACUUM ANALYZE")

    @contextmanager
    def marks(self) -> Iterator[Path]:
        """A file for the marks of jobs, in memory where there is such a folder."""
        folder = MARKS_FOLDER if MARKS_FOLDER.is_dir() else None
        with tempfile.NamedTemporaryFile(prefix="django-jobs-bench-", dir=folder) as file:
            yield Path(file.name)

"""What can go wrong goes wrong, in an order that the seed decides."""

from __future__ import annotations

import contextlib
import heapq
import time
from collections import Counter
from collections.abc import Callable
from random import Random

import psycopg

from services.postgres import Server
from tests.chaos.fleet import Fleet
from tests.wire import Wire

LEASE = 3.0  # seconds, as in the settings
PAUSE = (0.2, 1.4)  # seconds between two faults
_OTHERS = "FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"


class Adversary:
    """Injects faults, and mends after a while what does not mend itself."""

    def __init__(self, rand: Random, fleet: Fleet, wire: Wire, server: Server, say: Callable[[str], None]) -> None:
        self._rand, self._fleet, self._wire, self._server, self._say = rand, fleet, wire, server, say
        self._mends: list[tuple[float, int, Callable[[], object]]] = []
        self.faults: Counter[str] = Counter()
        self._faults: dict[str, tuple[int, Callable[[], str]]] = {
            "SIGKILL": (6, fleet.kill),
            "SIGTERM": (4, fleet.terminate),
            "SIGSTOP past the lease": (4, self._pause_worker),
            "one backend terminated": (8, lambda: self._terminate("ORDER BY random() LIMIT 1")),
            "all backends terminated": (3, lambda: self._terminate("")),
            "PostgreSQL restarted in immediate mode": (3, self._restart),
            "wire cut": (4, lambda: f"{wire.cut()} connections"),
            "wire slow": (3, self._slow_down),
            "wire dead past the lease": (2, self._swallow),
            "rows locked by somebody": (4, self._lock_rows),
        }

    def strike(self) -> float:
        """Let one thing go wrong. Seconds until the next one."""
        names = list(self._faults)
        (name,) = self._rand.choices(names, [self._faults[each][0] for each in names])
        detail = self._faults[name][1]()
        self.faults[name] += 1
        self._say(f"fault {name}: {detail}")
        return self._rand.uniform(*PAUSE)

    def mend_what_is_due(self) -> None:
        while self._mends and self._mends[0][0] <= time.monotonic():
            heapq.heappop(self._mends)[2]()

    def mend_all(self) -> None:
        while self._mends:
            heapq.heappop(self._mends)[2]()
        self._wire.heal()

    def _later(self, seconds: float, mend: Callable[[], object]) -> str:
        heapq.heappush(self._mends, (time.monotonic() + seconds, len(self.faults.keys()) + self.faults.total(), mend))
        return f"for {seconds:.1f} s"

    def _pause_worker(self) -> str:
        detail, pid = self._fleet.pause()
        return f"{detail} {self._later(LEASE + self._rand.uniform(0.5, 3), lambda: self._fleet.resume(pid))}"

    def _slow_down(self) -> str:
        self._wire.delay = self._rand.uniform(0.01, 0.2)
        return f"by {self._wire.delay:.2f} s {self._later(self._rand.uniform(1, 4), self._speed_up)}"

    def _speed_up(self) -> None:
        self._wire.delay = 0.0

    def _swallow(self) -> str:
        self._wire.is_dead = True
        return self._later(LEASE + self._rand.uniform(0, 2), self._wire.heal)

    def _terminate(self, which: str) -> str:
        with self._connect() as server:
            rows = server.execute(f"SELECT pg_terminate_backend(pid) FROM (SELECT pid {_OTHERS} {which}) AS other")
            return f"{len(rows.fetchall())} of them"

    def _restart(self) -> str:
        away = self._rand.uniform(0, 2)
        self._server.stop("immediate")
        time.sleep(away)
        self._server.start()
        return f"after {away:.1f} s"

    def _lock_rows(self) -> str:
        """As an edit by hand, or a cancel(), in somebody's open transaction."""
        somebody = psycopg.connect(self._server.url)
        rows = somebody.execute(
            "SELECT id FROM django_jobs_job ORDER BY random() LIMIT 5 FOR UPDATE SKIP LOCKED"
        ).fetchall()

        def let_go() -> None:
            with contextlib.suppress(psycopg.Error):
                somebody.rollback()
            somebody.close()

        return f"{len(rows)} of them {self._later(self._rand.uniform(0.5, 4), let_go)}"

    def _connect(self) -> psycopg.Connection[tuple[object, ...]]:
        return psycopg.connect(self._server.url, autocommit=True)

"""The workloads: each module measures one thing by its function `measure`, which gives lines of the table."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from benchmarks.bench import Bench
from benchmarks.lines import Line
from benchmarks.workloads import backlog, churn, clients, drain, enqueue, idle, latency, nap, snapshot, statements, wal

Measure = Callable[[Bench], Iterable[Line]]

ALL: dict[str, Measure] = {
    "drain": drain.measure,
    "enqueue": enqueue.measure,
    "latency": latency.measure,
    "idle": idle.measure,
    "nap": nap.measure,
    "backlog": backlog.measure,
    "snapshot": snapshot.measure,
    "churn": churn.measure,
    "clients": clients.measure,
    "wal": wal.measure,
    "statements": statements.measure,
}

"""The workloads: each module measures one thing by its function `measure`, which gives lines of the table."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from benchmarks.bench import Bench
from benchmarks.lines import Line
from benchmarks.workloads import backlog, churn, clients, drain, enqueue, idle, latency, nap, snapshot, statements, wal

Measure = Callable[[Bench], Iterable[Line]]

# Seconds each may take in a full run, and its function. A workload that ends early leaves its time to those behind it.
ALL: dict[str, tuple[float, Measure]] = {
    "drain": (110, drain.measure),
    "enqueue": (25, enqueue.measure),
    "latency": (45, latency.measure),
    "idle": (55, idle.measure),
    "nap": (40, nap.measure),
    "backlog": (190, backlog.measure),
    "snapshot": (60, snapshot.measure),
    "churn": (85, churn.measure),
    "clients": (25, clients.measure),
    "wal": (20, wal.measure),
    "statements": (65, statements.measure),
}

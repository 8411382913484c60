"""The workloads: each module measures one thing by its function `measure`, which gives lines of the table."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from benchmarks.bench import Bench
from benchmarks.lines import Line
from benchmarks.workloads import backlog, drain, enqueue, idle, latency, nap

Measure = Callable[[Bench], Iterable[Line]]

ALL: dict[str, Measure] = {
    "drain": drain.measure,
    "enqueue": enqueue.measure,
    "latency": latency.measure,
    "idle": idle.measure,
    "nap": nap.measure,
    "backlog": backlog.measure,
}

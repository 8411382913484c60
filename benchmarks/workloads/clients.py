"""Clients that commit enqueues side by side, with the workers' wake-ups and without."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection as Pipe

from django.db import connections
from django.test import override_settings

from benchmarks.bench import Bench
from benchmarks.lines import Line, Rule, Sample
from benchmarks.tasks import mark
from benchmarks.workloads.enqueue import own_connection
from django_jobs import enqueue

WITHIN = 0.05
COUNTS = (8, 16)
HEAD_START = 0.1  # seconds for all to hear of a phase


def measure(bench: Bench) -> Iterator[Line]:
    rates = {(count, wakes): Sample("/s") for count in COUNTS for wakes in (True, False)}
    context = multiprocessing.get_context("fork")  # they need the app and its settings, which are loaded here
    with bench.database(bench.app) as connection, own_connection(connection):
        connections.close_all()
        ends = [context.Pipe() for _ in range(max(COUNTS))]
        children = [context.Process(target=_serve, args=(theirs,), daemon=True) for _, theirs in ends]
        for child in children:
            child.start()
        with bench.server.connect(connection.info.dbname) as listener:
            listener.execute("LISTEN django_jobs")  # a NOTIFY that nobody hears costs nothing
            for _ in bench.rounds():
                for (count, wakes), sample in rates.items():
                    sample.add(_phase([ours for ours, _ in ends[:count]], wakes, bench.of(15, 4) / 10))
                    list(listener.notifies(timeout=0))
        for ours, _ in ends:
            ours.send(None)
        for child in children:
            child.join()
    for count in COUNTS:
        on, off = rates[count, True], rates[count, False]
        name = f"{count} clients enqueue, wake-ups on"
        yield Line(name, on, Rule.RATIO_AT_LEAST, 1.0, base=off, base_name="off", tolerance=WITHIN)


def _phase(clients: Sequence[Pipe], wakes: bool, seconds: float) -> float:
    start = time.monotonic() + HEAD_START
    for client in clients:
        client.send((wakes, start, start + seconds))
    counts: list[int] = [client.recv() for client in clients]
    return sum(counts) / seconds


def _serve(orders: Pipe) -> None:
    """A client: do as told, and answer how many jobs it enqueued."""
    while (order := orders.recv()) is not None:
        wakes, start, end = order
        with override_settings(DJANGO_JOBS={"NOTIFY": wakes}):
            time.sleep(max(start - time.monotonic(), 0))
            count = 0
            while time.monotonic() < end:
                enqueue(mark, count)
                count += 1
        orders.send(count)
    connections.close_all()

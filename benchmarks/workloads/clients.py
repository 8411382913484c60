"""Clients that commit enqueues side by side, with the workers' wake-ups and without."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection as Pipe

from django.db import connections
from django.test import override_settings

from benchmarks import drains
from benchmarks.bench import Bench
from benchmarks.lines import Line, Rule, Sample
from benchmarks.server import Connection
from benchmarks.tasks import mark
from benchmarks.workloads.enqueue import own_connection
from django_jobs import enqueue

WITHIN = 0.05
COUNTS = (8, 16)
PHASES = 6  # of each kind
SECONDS = 0.5  # of each
HEAD_START = 0.1  # seconds for all to hear of a phase
NAPS = 10_000  # jobs that keep a worker busy throughout, without much of a processor
FALL_SILENT = 2.5  # seconds until a busy worker has said that it needs no wake-ups


@contextmanager
def _busy(bench: Bench, connection: Connection) -> Iterator[None]:
    """A worker with more to do than it can."""
    bench.app.fill(connection, "nap", NAPS)
    with drains.started(bench, bench.app, connection, "mark") as (crew, path):
        drains.wait_for(path, 1, crew, drains.START_PATIENCE)
        time.sleep(FALL_SILENT)
        yield


def measure(bench: Bench) -> Iterator[Line]:
    rates = {(count, wakes): Sample("/s") for count in COUNTS for wakes in (True, False)}
    for _ in bench.rounds():
        with (
            bench.database(bench.app) as connection,
            own_connection(connection),
            _clients() as clients,
            _busy(bench, connection),
        ):
            for number in range(bench.of(PHASES, 2)):
                for count in COUNTS:
                    # Turn and turn about, so that both meet the same noise and the same backlog.
                    for wakes in (number % 2 == 0, number % 2 == 1):
                        rates[count, wakes].add(_phase(clients[:count], wakes, SECONDS))
    for count in COUNTS:
        on, off = rates[count, True], rates[count, False]
        title = f"{count} clients enqueue, wake-ups on"
        yield Line(title, on, Rule.RATIO_AT_LEAST, 1.0, base=off, base_name="off", tolerance=WITHIN)


@contextmanager
def _clients() -> Iterator[list[Pipe]]:
    """Processes that do as they are told through these ends."""
    context = multiprocessing.get_context("fork")  # they need the app and its settings, which are loaded here
    connections.close_all()
    ends = [context.Pipe() for _ in range(max(COUNTS))]
    children = [context.Process(target=_serve, args=(theirs,), daemon=True) for _, theirs in ends]
    for child in children:
        child.start()
    yield [ours for ours, _ in ends]
    for ours, _ in ends:
        ours.send(None)
    for child in children:
        child.join()


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

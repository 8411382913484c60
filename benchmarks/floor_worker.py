"""A worker of the floor: python -m benchmarks.floor_worker TASK SLOTS. It imports nothing of the app, nor Django."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from queue import SimpleQueue
from typing import Any

import psycopg

from benchmarks import marks
from benchmarks.floor import BATCH, CHANNEL, STEP

NAP = 0.05  # seconds, as in tasks.py
LONGEST_SLEEP = 5.0  # seconds


def nap(number: int) -> None:
    marks.leave(number)
    time.sleep(NAP)


TASKS: dict[str, Callable[[int], None]] = {"mark": marks.leave, "nap": nap}


def serve(step: Callable[[list[int], int], list[Any]], sleep: Callable[[], None], task: Callable[[int], None]) -> None:
    """Claim, run and finish, a batch at a time."""
    done: list[int] = []
    while True:
        rows = step(done, BATCH)
        done = [job for job, _ in rows]
        for _, number in rows:
            task(number)
        if not rows:
            sleep()


def serve_in_threads(
    step: Callable[[list[int], int], list[Any]], sleep: Callable[[], None], task: Callable[[int], None], slots: int
) -> None:
    """The same with so many jobs at once, and as many again waiting for them."""
    todo: SimpleQueue[tuple[int, int]] = SimpleQueue()
    ended: SimpleQueue[int] = SimpleQueue()
    for _ in range(slots):
        threading.Thread(target=_run, args=(todo, ended, task), daemon=True).start()
    held = 0
    done: list[int] = []
    while True:
        rows = step(done, 2 * slots - held)
        held += len(rows)
        for row in rows:
            todo.put(row)
        if not held:
            done = []
            sleep()
            continue
        done = [ended.get(), *_rest(ended)]
        held -= len(done)


def _run(todo: SimpleQueue[tuple[int, int]], ended: SimpleQueue[int], task: Callable[[int], None]) -> None:
    while True:
        job, number = todo.get()
        task(number)
        ended.put(job)


def _rest(ended: SimpleQueue[int]) -> Iterable[int]:
    return [ended.get() for _ in range(ended.qsize())]


def main() -> None:
    name, slots = sys.argv[1], int(sys.argv[2])
    connection = psycopg.connect(os.environ["BENCH_FLOOR"], autocommit=True)
    listener = psycopg.connect(os.environ["BENCH_FLOOR"], autocommit=True)
    listener.execute(f"LISTEN {CHANNEL}")

    def step(done: list[int], limit: int) -> list[Any]:
        return connection.execute(STEP, [done, limit], prepare=True).fetchall()

    def sleep() -> None:
        for _ in listener.notifies(timeout=LONGEST_SLEEP, stop_after=1):
            pass

    if name == "nap":
        serve_in_threads(step, sleep, TASKS[name], slots)
    else:
        serve(step, sleep, TASKS[name])


if __name__ == "__main__":
    main()

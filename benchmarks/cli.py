"""The command line."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from pathlib import Path

from benchmarks import report
from benchmarks.bench import Bench
from benchmarks.drains import WrongCount
from benchmarks.lines import Line
from benchmarks.server import server
from benchmarks.workers import WorkerDied
from benchmarks.workloads import ALL

DESCRIPTION = "Measure, print the table, write it as JSON. Exit 0 only if every line is reached."


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=DESCRIPTION)
    parser.add_argument("--short", action="store_true", help="a minute at most; only gross regressions fail")
    parser.add_argument("--report", action="store_true", help="print, and exit 0 whatever was reached")
    parser.add_argument("--only", metavar="a,b", help="these workloads only")
    parser.add_argument("--repetitions", type=int, metavar="N", help="rounds of each workload (3; with --short 1)")
    parser.add_argument("--json", type=Path, metavar="PATH", default=Path("build/bench.json"), help="(%(default)s)")
    return parser.parse_args()


def main() -> int:
    given = options()
    names = given.only.split(",") if given.only else list(ALL)
    if unknown := [name for name in names if name not in ALL]:
        print(f"There is no workload {unknown[0]!r}. There are {', '.join(ALL)}.", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was made on the server is dropped, then
    started = time.monotonic()
    with server() as postgres:
        bench = Bench(postgres, short=given.short, repetitions=given.repetitions or (1 if given.short else 3))
        conditions = report.conditions(postgres)
        report.print_conditions(conditions)
        lines: list[Line] = []
        failed: list[str] = []
        spent: dict[str, float] = {}
        planned = time.monotonic()
        for name in names:
            seconds, measure = ALL[name]
            planned += seconds
            bench.workload, bench.until = name, planned
            bench.tell(name)
            begun = time.monotonic()
            try:
                lines += list(measure(bench))
            except (WrongCount, WorkerDied) as error:  # the others may still tell something
                failed.append(name)
                bench.remark(f"FAILED. {error}")
            spent[name] = round(time.monotonic() - begun, 1)
    print()
    report.print_table(lines, short=given.short)
    for remark in bench.remarks:
        print(f"note: {remark}")
    seconds = time.monotonic() - started
    print(f"{seconds:.0f} s; written to {given.json}")
    given.json.parent.mkdir(parents=True, exist_ok=True)
    given.json.write_text(
        report.as_json(lines, {**conditions, "seconds": spent}, bench.remarks, short=given.short, seconds=seconds)
        + "\n"
    )
    missed = [line for line in lines if line.verdict(short=given.short) == "MISSED"]
    if failed:
        print(f"FAILED, with jobs lost, doubled or stuck: {', '.join(failed)}")
    return 1 if failed or (missed and not given.report) else 0

"""Say what was measured: on the terminal as a plain table, and in a file as JSON."""

from __future__ import annotations

import json
import math
import os
import platform
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import django_jobs
from benchmarks.lines import Line, Sample, spelt
from benchmarks.server import Server

HEADS = ("workload", "app", "beside", "ratio", "must reach", "spread", "verdict")


def conditions(server: Server) -> dict[str, Any]:
    """What the numbers depend on."""
    return {
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load": _load(),
        "busy": busy_share(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {
            "django_jobs": django_jobs.__version__,
            "django": version("django"),
            "psycopg": version("psycopg"),
        },
        "server": server.configuration(),
        "counted": server.statement_unit,
    }


def _load() -> list[float]:
    return [round(each, 2) for each in os.getloadavg()]


def busy_share(seconds: float = 1.0) -> float | None:
    """How much of the machine others use while this process sleeps."""
    before = _ticks()
    time.sleep(seconds)
    after = _ticks()
    if before is None or after is None:
        return None
    idle, total = after[0] - before[0], after[1] - before[1]
    return round(1 - idle / total, 3) if total else None


def _ticks() -> tuple[int, int] | None:
    try:
        fields = [int(each) for each in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    except OSError:
        return None
    return fields[3] + fields[4], sum(fields)


def print_conditions(found: dict[str, Any]) -> None:
    versions = ", ".join(f"{name} {each}" for name, each in found["versions"].items())
    print(f"{found['system']}, {found['cores']} cores, Python {found['python']}, {versions}")
    print("PostgreSQL " + ", ".join(f"{name}={each}" for name, each in found["server"].items()))
    busy = "unknown" if found["busy"] is None else f"{found['busy']:.0%}"
    print(f"before the run: load {' '.join(map(str, found['load']))}, others use {busy} of the machine")
    if found["busy"] is not None and found["busy"] > 0.1:
        print("THE MACHINE IS NOT QUIET: the numbers below are not to be quoted.")
    print("app: manage.py runworker, default settings, log level WARNING; floor: psycopg, claims of 1,000, no history")
    if "off" in (found["server"]["fsync"], found["server"]["synchronous_commit"]):
        print("COMMITS ARE NOT DURABLE on this server: no number below can be held against another.")
    if found["server"]["autovacuum"] == "off":
        print("AUTOVACUUM IS OFF on this server: dead rows stay, which no server in use would let them.")
    print(f"queries are counted as {found['counted']}", flush=True)


def print_table(lines: Sequence[Line], *, short: bool) -> None:
    rows = [HEADS, *(_row(line, short=short) for line in lines)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADS))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    sys.stdout.flush()


def _row(line: Line, *, short: bool) -> tuple[str, ...]:
    beside = "" if line.base is None else str(line.base) + ("" if line.base_name == "floor" else f" ({line.base_name})")
    spreads = [f"{sample.spread:.0%}" for sample in (line.app, line.base) if sample is not None]
    noisy = " (noisy)" if line.is_noisy else ""
    return (
        line.workload,
        str(line.app),
        beside,
        line.found,
        line.must(short=short),
        "/".join(spreads),
        line.verdict(short=short) + noisy,
    )


def as_json(
    lines: Sequence[Line], found: dict[str, Any], remarks: Sequence[str], *, short: bool, seconds: float
) -> str:
    rows = [
        {
            "workload": line.workload,
            "app": _sample(line.app),
            "beside": line.base and {"name": line.base_name, **_sample(line.base)},
            "ratio": None if line.ratio is None or math.isnan(line.ratio) else line.ratio,
            "rule": line.rule.value,
            "limit": line.limit,
            "tolerance": line.allowance,
            "verdict": str(line.verdict(short=short)),
        }
        for line in lines
    ]
    whole = {"short": short, "seconds": round(seconds), "conditions": {**found, "load_after": _load()}}
    return json.dumps({**whole, "remarks": list(remarks), "lines": rows}, indent=2, default=str)


def _sample(sample: Sample) -> dict[str, Any]:
    values = [None if math.isnan(value) else value for value in sample.values]  # JSON has no NaN
    median = None if None in values else sample.median
    return {"median": median, "unit": sample.unit.strip(), "values": values, "text": spelt(sample.median)}

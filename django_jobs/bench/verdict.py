"""The table of a benchmark, and what limits each rate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from django_jobs.bench.costs import Probes, Rate

PARTS = ("commit", "trips", "CPU", "database")
HEADER = f"{'':31}{'jobs/s':>9}  {'ms/job':>8}  " + "  ".join(f"{part:>8}" for part in PARTS) + f"  {'WAL/job':>8}"
LIMITS = {
    "commit": "The disk, at each commit. Several clients share a flush, and one transaction may hold many jobs.",
    "trips": "The way to the database and back. Bring it nearer, or do more by one call (enqueue_many).",
    "CPU": "This process's CPU. A second process adds as much again, while the machine has cores.",
    "database": "The database: its CPU (and who else uses it), its disk, or locks. See jobs_doctor.",
}


def row(rate: Rate, probes: Probes) -> str:
    """One line of the table."""
    cells = [f"{rate.name:31}{rate.per_second:>9,.0f}", f"{1000 / rate.per_second:>8.3f}"]
    shares = rate.shares(probes)
    cells += [f"{shares[part]:>8.0%}" if part in shares else " " * 8 for part in PARTS]
    cells += [f"{rate.wal / rate.jobs:>8,.0f}" if rate.wal else ""]
    return "  ".join(cells).rstrip()


def limits(rates: Sequence[tuple[Rate, Probes]]) -> Iterator[str]:
    """For each rate, where most of its time goes."""
    for part in PARTS:
        names = [rate.name for rate, probes in rates if limit(rate, probes) == part]
        if names:
            yield ""
            yield f"{LIMITS[part]} It limits"
            yield from (f"    {name}" for name in names)


def limit(rate: Rate, probes: Probes) -> str:
    """The part with the largest share."""
    shares = rate.shares(probes)
    return max(shares, key=lambda part: shares[part])


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which this share of the sorted values lies."""
    return values[min(int(len(values) * share), len(values) - 1)]

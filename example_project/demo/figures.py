"""The figures at the end, and what each of them must be."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime

from django.contrib.admin.models import LogEntry
from django.contrib.auth import get_user_model
from django.contrib.contenttypes.models import ContentType

from django_jobs.models import DeadLetter, Job, JobRun
from shop import search
from shop.models import Invoice, NightlyReport, Order, SearchDocument
from shop.tasks import PAGE

UNFINISHED = ["failed", "timed_out"]


@dataclass(frozen=True)
class Plan:
    """What the demo set out to do; everything else follows from it."""

    orders: int
    accounts: int
    products: int
    probes: int
    deaths: int
    reports: int = 1
    rebuilds: int = 1

    @property
    def jobs(self) -> int:
        """Two for an order, one for an account, a page, a report and a probe, and a new one for each replay."""
        pages = self.rebuilds * (self.products // PAGE + 1)
        return 2 * self.orders + self.accounts + pages + self.reports + self.probes + self.deaths


@dataclass(frozen=True)
class Figures:
    enqueued: int
    succeeded: int
    retried: int
    rescued: int
    died: int
    replayed: int
    audited: int
    unsettled: int
    orders: int
    invoices: int
    missing_numbers: int
    mails: int
    doubled: int
    documents: int
    found: int
    reports: int
    idle: tuple[float, ...]  # milliseconds from commit to start, of probes while the worker was idle
    all_runs: tuple[float, ...]  # the same, of every job's last run


@dataclass(frozen=True)
class Line:
    label: str
    value: str
    must: str = ""  # empty: any value will do
    is_right: bool = True


def judge(figures: Figures, plan: Plan) -> list[Line]:
    """The table, line by line, each with what it must say."""
    return [
        _exactly("jobs enqueued", figures.enqueued, plan.jobs),
        _exactly("  succeeded", figures.succeeded, plan.jobs - plan.deaths),
        _some("  runs retried", figures.retried),
        _some("  runs rescued", figures.rescued),
        _exactly("  died", figures.died, plan.deaths),
        _exactly("  replayed", figures.replayed, plan.deaths),
        _exactly("  in the admin's log", figures.audited, plan.deaths),
        _exactly("  still unsettled", figures.unsettled, 0),
        _exactly("orders placed", figures.orders, plan.orders),
        _exactly("invoices", figures.invoices, plan.orders),
        _exactly("  numbers missing", figures.missing_numbers, 0),
        _exactly("mails received", figures.mails, plan.orders),
        _exactly("  doubled", figures.doubled, 0),
        _exactly("search index rows", figures.documents, plan.products),
        _some("  found by the sample", figures.found),
        _exactly("nightly reports", figures.reports, plan.reports),
        Line("commit to start, idle", _spread(figures.idle), "measured", bool(figures.idle)),
        Line("commit to start, all", _spread(figures.all_runs), "measured", bool(figures.all_runs)),
    ]


def table(lines: Sequence[Line]) -> str:
    """The lines under each other, aligned; what is wrong is marked and says what it must be."""
    widest = max(len(line.label) for line in lines)
    digits = max(len(line.value) for line in lines if " " not in line.value)
    return "\n".join(_row(line, widest, digits) for line in lines)


def _row(line: Line, widest: int, digits: int) -> str:
    value = line.value if " " in line.value else line.value.rjust(digits)
    return f"  {line.label:<{widest}}  {value}" + ("" if line.is_right else f"   WRONG: must be {line.must}")


def _exactly(label: str, value: int, must: int) -> Line:
    return Line(label, f"{value:,}", f"{must:,}", value == must)


def _some(label: str, value: int) -> Line:
    return Line(label, f"{value:,}", "at least 1", value > 0)


def _spread(milliseconds: Sequence[float]) -> str:
    if not milliseconds:
        return "nothing was measured"
    return (
        f"p50 {percentile(milliseconds, 50):,.0f} ms, p99 {percentile(milliseconds, 99):,.0f} ms"
        f" ({len(milliseconds)} jobs)"
    )


def percentile(values: Sequence[float], rank: int) -> float:
    """The smallest of the values that is not below `rank` per cent of them (nearest rank)."""
    return sorted(values)[max(math.ceil(len(values) * rank / 100) - 1, 0)]


def collect(
    *,
    since: datetime,
    day: date,
    mails: int,
    doubled: int,
    query: str,
    probed: Sequence[str],
    tell: Callable[[str], None],
) -> Figures:
    """Count in the database what came of everything after `since`."""
    ended = JobRun.objects.filter(ended_at__gte=since)
    letters = DeadLetter.objects.filter(died_at__gte=since)
    found = search.find(query, limit=3)
    for product in found:
        tell(f"{query!r} finds {product.name} by {product.artist}")
    waits = {str(job): wait for job, wait in _waits(since)}
    jobs = set(ended.values_list("job_id", flat=True)) | set(Job.objects.values_list("pk", flat=True))
    return Figures(
        enqueued=len(jobs),
        succeeded=ended.filter(status="succeeded").count(),
        retried=ended.filter(status__in=UNFINISHED, is_last=False).count(),
        rescued=ended.filter(status="lost").count(),
        died=letters.count(),
        replayed=letters.filter(status="replayed").count(),
        audited=_audited(since),
        unsettled=Job.objects.count() + letters.filter(status="open").count(),
        orders=Order.objects.filter(placed_at__gte=since).count(),
        invoices=Invoice.objects.filter(order__placed_at__gte=since).count(),
        missing_numbers=_missing_numbers(),
        mails=mails,
        doubled=doubled,
        documents=SearchDocument.objects.count(),
        found=len(found),
        reports=NightlyReport.objects.filter(day=day).count(),
        idle=tuple(waits[job] for job in probed if job in waits),
        all_runs=tuple(waits.values()),
    )


def _waits(since: datetime) -> list[tuple[object, float]]:
    """Milliseconds from the moment a job could start to its start, by the database's clock.

    `enqueued_at` is when the row was written, so the rest of the transaction and its commit are part of it: the true
    wait is not longer than this.
    """
    last = JobRun.objects.filter(is_last=True, enqueued_at__gte=since)
    return [
        (job, max((started - max(enqueued, due)).total_seconds() * 1000, 0.0))
        for job, started, enqueued, due in last.values_list("job_id", "started_at", "enqueued_at", "run_at")
        if started and enqueued and due
    ]


def _missing_numbers() -> int:
    numbers = set(Invoice.objects.values_list("number", flat=True))
    return max(numbers, default=0) - len(numbers)


def _audited(since: datetime) -> int:
    """Replays that the admin wrote down, by whom they were ordered."""
    return LogEntry.objects.filter(
        action_time__gte=since,
        content_type=ContentType.objects.get_for_model(DeadLetter),
        user__in=get_user_model().objects.filter(is_superuser=True),
    ).count()

"""The run from its first worker to the auditor's word."""

from __future__ import annotations

import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import TypeVar

from django.core.management import call_command
from django.db import OperationalError, connection
from django.db.models import Model

from django_jobs.api import ONCE_SCOPE
from django_jobs.models import DeadLetter, Job, JobKey, JobRun, Worker
from services.postgres import Server
from tests.chaos import audit
from tests.chaos.adversary import LEASE, Adversary
from tests.chaos.callers import Beside, Caller, Meddler
from tests.chaos.fleet import Fleet
from tests.chaos.models import Asked, Cancelled, Effect, Start
from tests.chaos.observer import Observer
from tests.wire import Wire

T = TypeVar("T")
EMPTY_WITHIN = 60.0  # seconds from the last fault to an empty queue
BEAT = 0.05  # seconds


def run(seed: str, seconds: float, *, folder: Path, server: Server, wire: Wire, wired: str) -> int:
    """Return 0 without a violation; then the logs in `folder` are removed."""
    call_command("migrate", run_syncdb=True, verbosity=0)
    stop_calling, stop_looking = threading.Event(), threading.Event()
    callers = [Caller("direct", seed, stop_calling), Caller("wired", seed, stop_calling, wire.port)]
    meddler = Meddler("meddler", seed, stop_calling)
    observer = Observer("observer", seed, stop_looking)
    fleet = Fleet(Random(f"{seed} fleet"), folder, server.url, wired)
    with (folder / "faults.log").open("w") as log:
        adversary = Adversary(Random(f"{seed} adversary"), fleet, wire, server, _sayer(log.write))
        try:
            for thread in (*callers, meddler, observer):
                thread.start()
            _rage(seconds, fleet, adversary)
            stop_calling.set()
            _join(*callers, meddler)
            drained = _drain(fleet)
            stop_looking.set()
            _join(observer)
            fleet.stop()
        finally:
            adversary.mend_all()  # one that is stopped cannot end
            fleet.end()
            wire.close()
    evidence = _collect(callers, observer)
    violations = [*audit.audit(evidence), *fleet.violations, *meddler.violations, *observer.violations]
    if drained is None:
        violations.append(f"the queue was not empty {EMPTY_WITHIN:g} s after the last fault")
    _report(seconds, adversary, fleet, meddler, evidence)
    print(f"the queue was empty {'never' if drained is None else f'{drained:.1f} s after the last fault'}; seed {seed}")
    return _conclude(violations, folder)


def _sayer(write: Callable[[str], object]) -> Callable[[str], None]:
    started = time.monotonic()
    return lambda text: (write(f"{time.monotonic() - started:7.2f} {text}\n"), None)[1]


def _rage(seconds: float, fleet: Fleet, adversary: Adversary) -> None:
    fleet.refill()
    until = time.monotonic() + seconds
    next_fault = time.monotonic() + 2.0
    while time.monotonic() < until:
        adversary.mend_what_is_due()
        fleet.refill()
        if time.monotonic() >= next_fault:
            next_fault = time.monotonic() + adversary.strike()
        time.sleep(BEAT)
    adversary.mend_all()


def _drain(fleet: Fleet) -> float | None:
    """Seconds until the queue was empty and the rows of dead workers were gone; None if that took too long."""
    started = time.monotonic()
    drained = None
    while time.monotonic() < started + EMPTY_WITHIN:
        fleet.refill()
        if not _exists(Job):
            drained = drained or time.monotonic() - started
            if time.monotonic() > started + 3 * LEASE:
                return drained
        time.sleep(BEAT)
    return drained


def _exists(model: type[Job]) -> bool:
    try:
        return model.objects.exists()
    except OperationalError:  # the session of before a restart
        connection.close()
        return True


def _join(*threads: Beside) -> None:
    for thread in threads:
        thread.join(30)


def _collect(callers: list[Caller], observer: Observer) -> audit.Evidence:
    def rows(model: type[Model], kind: Callable[..., T], *fields: str) -> list[T]:
        return [kind(*row) for row in model._default_manager.order_by("id").values_list(*fields)]

    return audit.Evidence(
        asked=rows(Asked, audit.AskedJob, *audit.AskedJob._fields),
        rolled_back=set().union(*(caller.rolled_back for caller in callers)),
        cancelled=set(Cancelled.objects.values_list("job_id", flat=True)),
        runs=rows(JobRun, audit.Run, *audit.Run._fields),
        letters=rows(DeadLetter, audit.Letter, *audit.Letter._fields),
        effects=rows(Effect, audit.Done, *audit.Done._fields),
        starts=rows(Start, audit.Done, "job_id", "claim_number"),
        keys=rows(JobKey, audit.Key, *audit.Key._fields),
        once_scope=ONCE_SCOPE,
        live=list(Job.objects.values_list("id", flat=True)),
        workers=list(Worker.objects.values_list("name", flat=True)),
        leases=observer.leases,
        gone=observer.gone,
    )


def _report(seconds: float, adversary: Adversary, fleet: Fleet, meddler: Meddler, evidence: audit.Evidence) -> None:
    faults = adversary.faults + Counter({"worker with a clock ten minutes off": fleet.skewed})
    for name, count in sorted(faults.items()):
        print(f"  {count:5} {name}")
    ends = Counter(run.status for run in evidence.last.values())
    runs = Counter(run.status for run in evidence.runs)
    print(f"  {faults.total():5} faults injected; {fleet.started} workers started, endings {dict(fleet.endings)}")
    print(f"jobs: {len(evidence.asked)} committed ({len(evidence.asked) / seconds:.0f} a second), ends {dict(ends)}")
    print(f"      {len(evidence.rolled_back)} rolled back, {meddler.cancelled} cancelled, {meddler.replayed} replays")
    print(f"runs: {dict(runs)}; dead of {dict(Counter(letter.reason for letter in evidence.letters))}")


def _conclude(violations: list[str], folder: Path) -> int:
    print(f"violations: {len(violations)}", flush=True)
    if not violations:
        shutil.rmtree(folder, ignore_errors=True)
        return 0
    for each in violations[:50]:
        print(f"  {each}")
    print(f"The logs are in {folder}", flush=True)
    return 1

"""Do notifications reach a listening worker?"""

from __future__ import annotations

from collections.abc import Iterator

from django_jobs.conf import get_settings
from django_jobs.doctor.findings import Finding, fine, warning
from django_jobs.worker.listener import can_listen, hears_itself


def listening(using: str) -> Iterator[Finding]:
    """Listen on one connection, notify from another."""
    poll = f"{get_settings().POLL_INTERVAL.total_seconds():g} s"
    if not get_settings().NOTIFY:
        yield fine("wakeups", f'DJANGO_JOBS["NOTIFY"] is off: an idle worker looks each {poll}.')
    elif not can_listen(using):
        message = f"Without psycopg 3 workers cannot listen: an idle worker looks each {poll}."
        yield warning("wakeups", message, "pip install 'psycopg[binary]>=3.2'")
    elif hears_itself(using):
        yield fine("wakeups", "LISTEN on one connection hears NOTIFY from another.")
    else:
        message = (
            "LISTEN was accepted, but a NOTIFY from another connection did not arrive within 1 s: a pooler in "
            f"transaction mode is in the way. An idle worker looks each {poll} instead of starting at once."
        )
        mend = "Let the workers' DATABASES name PostgreSQL itself in HOST and PORT, or a pool in session mode."
        yield warning("wakeups", message, mend)

"""How atomic tasks are recorded: what execution is given, as it may not know lifecycle."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from django.db import connections

from django_jobs.execution import Recording
from django_jobs.lifecycle import finish
from django_jobs.runs import Outcome, WorkerIdentity


def recording(identity: Callable[[], WorkerIdentity], *, using: str, lease: float) -> Recording:
    """The recording of a worker; its identity is asked for when it is needed. `lease` is in seconds."""

    def record(outcome: Outcome) -> Any:
        return finish.finish_atomically(outcome, identity(), using=using)

    begin = partial(limit_idle_transaction, using=using, lease=lease)
    return Recording(using, begin, record, partial(finish.announce, using=using), patience=lease)


def limit_idle_transaction(timeout: float, *, using: str, lease: float) -> None:
    """Let the server end the open transaction if its worker vanishes without closing the connection. Seconds."""
    connection = connections[using]
    if connection.vendor == "postgresql":
        milliseconds = min(int((timeout + lease) * 1000), 2**31 - 1)
        with connection.cursor() as cursor:
            cursor.execute("SELECT set_config('idle_in_transaction_session_timeout', %s, true)", [str(milliseconds)])

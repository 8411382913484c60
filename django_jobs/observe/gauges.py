"""What waits in each queue, and for how long, as gauges of statsd.

`queue.<queue>.backlog` (jobs that are due, counted up to 1,000), `queue.<queue>.oldest_age_s` and
`queue.<queue>.priority.<priority>.oldest_age_s` (seconds since the oldest of them was due). Those of a database that is
not the default one begin with `database.<alias>.`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from django.db import DEFAULT_DB_ALIAS

from django_jobs.observe import statsd
from django_jobs.observe.alerts import QueueState, queue_states
from django_jobs.observe.statsd import safe_name


class Gauges:
    """The gauges of one database. statsd repeats the last value for ever: what is gone is sent once more, as 0."""

    def __init__(self, using: str) -> None:
        self._using = using
        self._start = "" if using == DEFAULT_DB_ALIAS else f"database.{safe_name(using)}."
        self._sent: set[str] = set()

    def send(self) -> None:
        """Ask the database, and send to the server in DJANGO_JOBS["STATSD"]."""
        values = {self._start + name: value for name, value in gauges(queue_states(using=self._using))}
        gone = self._sent - values.keys()
        self._sent = set(values)
        statsd.send_gauges(values | dict.fromkeys(gone, 0))


def gauges(states: Iterable[QueueState]) -> Iterator[tuple[str, float]]:
    """Yield (name, value) of each gauge."""
    for state in states:
        start = f"queue.{safe_name(state.name)}"
        yield f"{start}.backlog", state.backlog
        yield f"{start}.oldest_age_s", state.oldest_age.total_seconds()
        for priority, age in state.oldest_ages.items():
            yield f"{start}.priority.{priority}.oldest_age_s", age.total_seconds()

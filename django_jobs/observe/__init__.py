"""What a project can see of its jobs: log lines, statsd, alerts."""

from __future__ import annotations

from typing import Any

from django_jobs import logs, signals
from django_jobs.observe import statsd


def connect() -> None:
    """Let logs and statsd hear of every ended run. Calling it again changes nothing."""
    signals.runs_ended.connect(_log_runs, dispatch_uid="django_jobs.observe.log_runs")
    signals.runs_ended.connect(_send_runs, dispatch_uid="django_jobs.observe.send_runs")
    signals.jobs_died.connect(_log_deaths, dispatch_uid="django_jobs.observe.log_deaths")


def _log_runs(*, runs: Any, **kwargs: Any) -> None:
    logs.runs_ended(runs)


def _send_runs(*, runs: Any, **kwargs: Any) -> None:
    statsd.send(runs)


def _log_deaths(*, letters: Any, **kwargs: Any) -> None:
    for letter in letters:
        logs.letter_written(
            letter.letter_id, job_id=letter.job_id, task_name=letter.task_name, reason=letter.reason.value
        )

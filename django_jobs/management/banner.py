"""What a worker says when it starts."""

from __future__ import annotations

from django.apps import apps
from django.db import connections

from django_jobs import registry
from django_jobs.worker.options import WorkerOptions


def banner(options: WorkerOptions) -> str:
    """A few lines that say who serves what, from where."""
    tasks = registry.all_tasks()
    is_async = any(task.is_async for task in tasks)
    each = f" in each of {options.processes} processes" if options.processes else ""
    places = f"{options.threads} threads" + (f", {options.async_concurrency} async" if is_async else "")
    vendor = getattr(connections[options.using], "display_name", connections[options.using].vendor)
    version = getattr(apps.get_app_config("django_jobs").module, "__version__", "")
    lines = [
        f"django_jobs {version} on database {options.using!r} ({vendor})",
        f"  queues  {', '.join(options.queue_names) if options.queue_names else 'all'}",
        f"  tasks   {len(tasks)}",
        f"  runs    {places}{each}",
        f"  lease   {options.lease.total_seconds():g} s, heartbeat each {options.heartbeat.total_seconds():g} s",
    ]
    return "\n".join(lines)

"""The tasks of this process: how they are declared, found, and made ready to enqueue."""

from django_jobs.registry.definition import (
    Call,
    Enqueued,
    Limits,
    Task,
    install_backend,
    install_enqueuer,
    unknown_queue,
)
from django_jobs.registry.known import (
    all_tasks,
    build,
    declare,
    find,
    get,
    isolated,
    names,
    register,
    task,
    unregister,
)
from django_jobs.registry.options import EnqueueOptions, Options, read_key, read_name, read_ttl

__all__ = [
    "Call",
    "EnqueueOptions",
    "Enqueued",
    "Limits",
    "Options",
    "Task",
    "all_tasks",
    "build",
    "declare",
    "find",
    "get",
    "install_backend",
    "install_enqueuer",
    "isolated",
    "names",
    "read_key",
    "read_name",
    "read_ttl",
    "register",
    "task",
    "unknown_queue",
    "unregister",
]

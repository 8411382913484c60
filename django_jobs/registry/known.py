"""`@task`, and the tasks it has made known to this process. Only these can run: a row never names arbitrary code."""

from __future__ import annotations

import copyreg
import importlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any, Concatenate, Literal, overload

from django_jobs import backoff as backoffs
from django_jobs.conf import did_you_mean
from django_jobs.context import JobContext
from django_jobs.exceptions import InvalidTask, UnknownTask
from django_jobs.registry.definition import P, R, Task
from django_jobs.registry.functions import check_function
from django_jobs.registry.options import (
    EnqueueOptions,
    read_max_attempts,
    read_name,
    read_priority,
    read_queue_name,
    read_timeout,
    read_ttl,
    shown,
)

ExceptionTypes = type[BaseException] | Iterable[type[BaseException]]

_tasks: dict[str, Task] = {}
_by_any_name: dict[str, Task] = {}  # names and aliases


def get(name: str) -> Task:
    """Return the task of this name or alias.

    Raises:
        UnknownTask: no such task is declared in this process.
    """
    found = _by_any_name.get(name)
    if found is None:
        raise UnknownTask(f"No task is registered as {shown(name)}.{did_you_mean(name, _by_any_name)}")
    return found


def find(name: str) -> Task | None:
    """Return the task of this name or alias, or None."""
    return _by_any_name.get(name)


def names() -> list[str]:
    """Return the names and aliases of all tasks, sorted: what a worker can run."""
    return sorted(_by_any_name)


def all_tasks() -> list[Task]:
    """Return every task once, sorted by name."""
    return [declared for _, declared in sorted(_tasks.items())]


def register(declared: Task) -> None:
    """Make the task known. One of the same function and name is replaced: its module was loaded again.

    Raises:
        InvalidTask: another task has the name or an alias.
    """
    former = _tasks.get(declared.name)
    if former is not None and former.module_path != declared.module_path:
        raise InvalidTask(
            f"Task {declared.name!r} of {declared.module_path} is registered already, by {former.module_path}. "
            "Give one of them another name: @task(name=...)."
        )
    for name in (declared.name, *declared.aliases):
        holder = _by_any_name.get(name)
        if holder is not None and holder is not former:
            raise InvalidTask(
                f"{name!r} is a name or alias of task {holder.name!r} already. "
                f"Give {declared.module_path} another name or alias."
            )
    if former is not None:
        unregister(former)
    _tasks[declared.name] = declared
    for name in (declared.name, *declared.aliases):
        _by_any_name[name] = declared


def unregister(declared: Task) -> None:
    """Forget the task; nothing happens if it is not known. For tests."""
    _tasks.pop(declared.name, None)
    for name in (declared.name, *declared.aliases):
        _by_any_name.pop(name, None)


@contextmanager
def isolated() -> Iterator[None]:
    """Restore what is registered at the end of the block. For tests."""
    before = dict(_tasks), dict(_by_any_name)
    try:
        yield
    finally:
        for now, then in zip((_tasks, _by_any_name), before, strict=True):
            now.clear()
            now.update(then)


@overload
def task(
    function: Callable[Concatenate[JobContext, P], R],
    *,
    takes_context: Literal[True],
    queue_name: str = ...,
    priority: int = ...,
    max_attempts: int | None = ...,
    backoff: Any = ...,
    timeout: timedelta | float | None = ...,
    retry_on: ExceptionTypes = ...,
    give_up_on: ExceptionTypes = ...,
    atomic: bool = ...,
    key_ttl: timedelta | float | None = ...,
    sensitive: bool | Iterable[str] = ...,
    name: str | None = ...,
    aliases: Iterable[str] = ...,
) -> Task[P, R]: ...
@overload
def task(
    function: Callable[P, R],
    *,
    takes_context: Literal[False] = ...,
    queue_name: str = ...,
    priority: int = ...,
    max_attempts: int | None = ...,
    backoff: Any = ...,
    timeout: timedelta | float | None = ...,
    retry_on: ExceptionTypes = ...,
    give_up_on: ExceptionTypes = ...,
    atomic: bool = ...,
    key_ttl: timedelta | float | None = ...,
    sensitive: bool | Iterable[str] = ...,
    name: str | None = ...,
    aliases: Iterable[str] = ...,
) -> Task[P, R]: ...
@overload
def task(
    *,
    takes_context: Literal[True],
    queue_name: str = ...,
    priority: int = ...,
    max_attempts: int | None = ...,
    backoff: Any = ...,
    timeout: timedelta | float | None = ...,
    retry_on: ExceptionTypes = ...,
    give_up_on: ExceptionTypes = ...,
    atomic: bool = ...,
    key_ttl: timedelta | float | None = ...,
    sensitive: bool | Iterable[str] = ...,
    name: str | None = ...,
    aliases: Iterable[str] = ...,
) -> Callable[[Callable[Concatenate[JobContext, P], R]], Task[P, R]]: ...
@overload
def task(
    *,
    takes_context: Literal[False] = ...,
    queue_name: str = ...,
    priority: int = ...,
    max_attempts: int | None = ...,
    backoff: Any = ...,
    timeout: timedelta | float | None = ...,
    retry_on: ExceptionTypes = ...,
    give_up_on: ExceptionTypes = ...,
    atomic: bool = ...,
    key_ttl: timedelta | float | None = ...,
    sensitive: bool | Iterable[str] = ...,
    name: str | None = ...,
    aliases: Iterable[str] = ...,
) -> Callable[[Callable[P, R]], Task[P, R]]: ...
def task(function: Any = None, **options: Any) -> Any:
    """Make a function a task: it can still be called, and it can be enqueued.

    Args:
        queue_name: the queue its jobs wait in; "default" unless given.
        priority: -100 to 100, larger first.
        max_attempts: how many failures end in a dead letter; DJANGO_JOBS["MAX_ATTEMPTS"] unless given.
        backoff: how long to wait before a retry; a `Backoff`, a span, or what else `backoff.coerce` takes.
        timeout: the time limit of one run, timedelta or seconds; DJANGO_JOBS["TIMEOUT"] unless given.
        retry_on, give_up_on: exception classes; whatever else is raised, or is in give_up_on, dies at once.
        atomic: run it in one transaction that also finishes the job: its effects on that database happen exactly once.
        key_ttl: how long the key of a succeeded job is held, timedelta or seconds; for ever unless given.
        takes_context: hand it a `JobContext` as first argument.
        sensitive: parameters whose values are masked in errors, logs and results; True for all.
        name: instead of "module.function", by which rows know it.
        aliases: former names, the oldest first, so that rows enqueued under them still run. See `Task.key_scope`.

    Raises:
        InvalidTask, TypeError, ValueError: the callable or an option is of no use; the message says what would be.
    """
    if function is not None:
        return declare(function, **options)
    return lambda func: declare(func, **options)


def declare(func: Callable[..., Any], **options: Any) -> Task:
    """Do what `@task` does, without being a decorator."""
    declared = build(func, **options)
    register(declared)
    return declared


def build(func: Callable[..., Any], **options: Any) -> Task:
    """Return a checked task without registering it."""
    if isinstance(func, Task):
        raise InvalidTask(f"{func.name!r} is a task already. For other options there is .using(...).")
    check_function(func, is_named=options.get("name") is not None)
    path = f"{func.__module__}.{func.__qualname__}"
    try:
        values = {"name": path, "backoff": backoffs.Backoff(), **_read(options)}
        read_name("name", values["name"])
        declared: Task = Task(func=func, **values)
        _check_together(declared)
    except (TypeError, ValueError) as error:
        raise type(error)(f"@task of {path}: {error}") from None
    return declared


def _read(options: dict[str, Any]) -> dict[str, Any]:
    values = {}
    for option, value in options.items():
        reader = _READERS.get(option)
        if reader is None:
            raise TypeError(f"there is no option {option!r}.{_hint(option)}")
        if value is not None:
            values[_FIELDS.get(option, option)] = reader(value)
    return values


def _hint(option: str) -> str:
    if option in {"delay", "run_at", "run_after", "key", "unique", "database"}:
        return f" It belongs to one enqueueing: .using({option}=...)."
    return did_you_mean(option, _READERS)


def _check_together(declared: Task) -> None:
    if declared.atomic and declared.is_async:
        raise InvalidTask("atomic=True needs a plain def, because Django has no transactions in async code.")
    both = set(declared.retry_on) & set(declared.give_up_on)
    if both:
        raise InvalidTask(f"{_listed(each.__name__ for each in both)} is in retry_on and give_up_on. Keep it in one.")
    known = declared.parameters.names()
    missing = set() if declared.sensitive is True else declared.sensitive - known
    if missing and not declared.parameters.any_keyword:
        raise ValueError(
            f"sensitive names {_listed(missing)}, but the function has no such parameter."
            f"{did_you_mean(min(missing), known)}"
        )
    if declared.name in declared.aliases:
        raise ValueError(f"{declared.name!r} is the name and an alias. Leave it out of aliases.")


def _listed(words: Iterable[str]) -> str:
    return ", ".join(repr(word) for word in sorted(words))


def _read_exceptions(option: str, value: object) -> tuple[type[BaseException], ...]:
    classes = (value,) if isinstance(value, type) else _several(option, value, "exception classes, such as (OSError,)")
    for each in classes:
        if not isinstance(each, type) or not issubclass(each, BaseException):
            raise TypeError(f"{option} holds {shown(each)}. Give exception classes, such as (OSError,).")
    return tuple(classes)


def _read_names(option: str, value: object) -> tuple[str, ...]:
    found = _several(option, value, 'strings, such as ("name",)')
    labels = tuple(read_name(option, each) for each in found)
    if len(set(labels)) < len(labels):
        raise ValueError(f"{option}={shown(value)} names something twice. Name it once.")
    return labels


def _several(option: str, value: object, wanted: str) -> tuple[Any, ...]:
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise TypeError(f"{option}={shown(value)} must be a tuple of {wanted}.")
    return tuple(value)


def _read_sensitive(value: object) -> frozenset[str] | bool:
    if isinstance(value, bool):
        return value or frozenset()
    return frozenset(_read_names("sensitive", value))


def _read_flag(option: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{option}={shown(value)} must be True or False.")
    return value


_READERS: dict[str, Callable[[Any], Any]] = {
    "queue_name": read_queue_name,
    "priority": read_priority,
    "max_attempts": read_max_attempts,
    "backoff": backoffs.coerce,
    "timeout": read_timeout,
    "retry_on": partial(_read_exceptions, "retry_on"),
    "give_up_on": partial(_read_exceptions, "give_up_on"),
    "atomic": partial(_read_flag, "atomic"),
    "key_ttl": partial(read_ttl, "key_ttl"),
    "takes_context": partial(_read_flag, "takes_context"),
    "sensitive": _read_sensitive,
    "name": partial(read_name, "name"),
    "aliases": partial(_read_names, "aliases"),
}
_FIELDS = {"max_attempts": "own_max_attempts", "timeout": "own_timeout"}


def _restore(module: str, name: str, options: EnqueueOptions) -> Task:
    importlib.import_module(module)
    return get(name).using(**{key: value for key, value in vars(options).items() if value is not None})


def _reduce(declared: Task) -> tuple[Any, ...]:
    return _restore, (declared.func.__module__, declared.name, declared.options)


# A task is pickled and copied by name. Here and not as __reduce__, because a task does not know the registry.
copyreg.pickle(Task, _reduce)

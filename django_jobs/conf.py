"""settings.DJANGO_JOBS as one frozen, typed object. Read when used, so that override_settings works."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache, partial
from types import MappingProxyType
from typing import Any

from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed

SECOND = timedelta(seconds=1)
DAY = timedelta(days=1)
CENTURY = 36_525 * DAY
# An abandoned atomic task is ended by PostgreSQL's idle_in_transaction_session_timeout of timeout + lease, and that
# holds 24.8 days.
LONGEST_TIMEOUT = 24 * DAY
LONGEST_LEASE = DAY / 2
QUEUE_LENGTH = 64  # as in the models


@dataclass(frozen=True)
class QueueOptions:
    """One entry of QUEUES. A job older than 5 times `expected_latency` raises a warning."""

    expected_latency: timedelta = timedelta(minutes=1)


@dataclass(frozen=True)
class Statsd:
    """Where `observe.statsd` sends to, by UDP."""

    host: str = "127.0.0.1"
    port: int = 8125
    prefix: str = ""


@dataclass(frozen=True)
class Settings:
    """Every key of settings.DJANGO_JOBS with its default. Spans are timedeltas; numbers are taken as seconds."""

    QUEUES: Mapping[str, QueueOptions] = field(default_factory=dict)  # empty: any name may be used
    MAX_PAYLOAD_SIZE: int = 64 * 1024  # bytes of JSON
    MAX_RESULT_SIZE: int = 64 * 1024
    MAX_ATTEMPTS: int = 5
    MAX_CRASHES: int = 3
    TIMEOUT: timedelta = timedelta(hours=1)
    LEASE: timedelta = timedelta(seconds=30)
    HEARTBEAT: timedelta = timedelta(seconds=10)
    POLL_INTERVAL: timedelta = timedelta(seconds=1)
    GRACE: timedelta = timedelta(seconds=25)  # below the 30 s most platforms wait between SIGTERM and SIGKILL
    UNKNOWN_TASK_PATIENCE: timedelta = timedelta(hours=1)
    PRIORITY_AGEING: timedelta | None = None  # due for so long, a job goes before all that are not; None: never
    PROCESSES: int = 0  # of `manage.py runworker`, under a supervisor; 0: one, without
    THREADS: int = 5
    ASYNC_CONCURRENCY: int = 100
    KEEP_SUCCEEDED: timedelta | None = timedelta(days=7)  # None keeps them for ever
    KEEP_OTHER_RUNS: timedelta | None = timedelta(days=90)
    KEEP_CLOSED_LETTERS: timedelta | None = timedelta(days=90)  # replayed or discarded; open ones are kept
    PRUNE_BATCH: int = 1000
    NOTIFY: bool = True  # wake workers by NOTIFY where the database is PostgreSQL
    IMMEDIATE: bool = False  # run each job inside the call that enqueues it: for tests
    STATSD: Statsd | None = None
    ADMIN_BASE: str = "django.contrib.admin.ModelAdmin"
    ALERT_FAILURE_RATE: float = 0.05
    ALERT_WINDOW: timedelta = timedelta(minutes=10)


@cache
def get_settings() -> Settings:
    """Return the settings in force.

    Raises:
        ImproperlyConfigured: a key is unknown, a value has the wrong type or range, or two contradict each other.
    """
    settings, problems = read(getattr(django_settings, "DJANGO_JOBS", {}))
    if problems:
        raise ImproperlyConfigured(" ".join(problems))
    return settings


def _forget(*, setting: str, **kwargs: Any) -> None:
    if setting == "DJANGO_JOBS":
        get_settings.cache_clear()


setting_changed.connect(_forget)


def read(given: object) -> tuple[Settings, list[str]]:
    """Return settings from a dict, and a sentence for each thing wrong with it (those keys keep their default)."""
    if not isinstance(given, Mapping):
        return Settings(), [f"DJANGO_JOBS must be a dict, not {type(given).__name__}."]
    values: dict[str, Any] = {}
    problems: list[str] = []
    for key, value in given.items():
        reader = _READERS.get(key)
        if reader is None:
            problems.append(f'DJANGO_JOBS["{key}"] is not a setting.{did_you_mean(str(key), _READERS)}')
            continue
        try:
            values[key] = reader(value)
        except (TypeError, ValueError) as error:
            problems.append(f'DJANGO_JOBS["{key}"] = {value!r}: {error}')
    settings = Settings(**values)
    # A default that stands in for a wrong value may contradict a right one, which would only confuse.
    return settings, problems or _contradictions(settings)


def did_you_mean(word: str, known: Iterable[object]) -> str:
    """Return a sentence that offers the closest of the known names, or nothing."""
    names = {str(name).casefold(): str(name) for name in known}
    close = difflib.get_close_matches(word.casefold(), names, n=1)
    return f" Did you mean {names[close[0]]!r}?" if close else ""


def _contradictions(settings: Settings) -> list[str]:
    if settings.LEASE >= 2 * settings.HEARTBEAT:
        return []
    lease, heartbeat = _spelt(settings.LEASE), _spelt(settings.HEARTBEAT)
    problem = (
        f'DJANGO_JOBS["LEASE"] ({lease}) must be at least twice DJANGO_JOBS["HEARTBEAT"] ({heartbeat}), '
        "or one late heartbeat loses every lease."
    )
    return [problem]


def span(value: object, *, least: timedelta = timedelta(milliseconds=1), most: timedelta = CENTURY) -> timedelta:
    """Return a timedelta from a timedelta or a number of seconds.

    Raises:
        TypeError: it is neither.
        ValueError: it is below `least`, above `most`, or no number at all (NaN).
    """
    if isinstance(value, bool) or not isinstance(value, (int, float, timedelta)):
        raise TypeError("must be a timedelta or a number of seconds.")
    try:
        result = value if isinstance(value, timedelta) else timedelta(seconds=value)
    except (ValueError, OverflowError):  # NaN, infinity, more than a timedelta holds
        raise ValueError(f"must be from {_spelt(least)} to {_spelt(most)}.") from None
    if not least <= result <= most:
        raise ValueError(f"must be from {_spelt(least)} to {_spelt(most)}.")
    return result


def _spelt(length: timedelta) -> str:
    seconds = length.total_seconds()
    return f"{seconds:g} seconds" if seconds < 86400 else f"{length.days} days"


def label(value: object, *, most: int) -> str:
    """Return a name that people read in logs and type on command lines, as a plain str.

    Raises:
        TypeError: it is no string.
        ValueError: it is empty, longer than `most`, or holds what cannot be seen.
    """
    if not isinstance(value, str):
        raise TypeError("must be a string.")
    if not 1 <= len(value) <= most:
        raise ValueError(f"must have 1 to {most} characters, not {len(value)}.")
    if not value.isprintable() or value != value.strip():
        raise ValueError("must have no control character in it, and no space around it.")
    # A subclass (StrEnum, SafeString) may be unknown to the database driver.
    return str.__str__(value)


def queue_label(value: object) -> str:
    """Like `label`, for the name of a queue."""
    name = label(value, most=QUEUE_LENGTH)
    if "," in name:
        raise ValueError("must have no comma in it, which separates names in --queues.")
    return name


def _optional(reader: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else reader(value)


def _whole(value: Any, *, least: int = 1, most: int = 2**31 - 1) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError("must be a whole number.")
    if not least <= value <= most:
        raise ValueError(f"must be from {least} to {most}.")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError("must be True or False.")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("must be a string.")
    return value


def _some_text(value: Any) -> str:
    if not _text(value):
        raise ValueError("must not be empty.")
    return str(value)


def _share(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError("must be a number from 0 to 1.")
    if not 0 <= value <= 1:
        raise ValueError("must be from 0 to 1, such as 0.05 for 5 %.")
    return float(value)


def _group(kind: Any, readers: Mapping[str, Callable[[Any], Any]], value: Any) -> Any:
    given = vars(value) if isinstance(value, kind) else value
    if not isinstance(given, Mapping):
        raise TypeError(f"must be a dict with any of the keys {', '.join(readers)}.")
    values = {}
    for key, each in given.items():
        if key not in readers:
            raise ValueError(f"has no key {key!r}.{did_you_mean(str(key), readers)}")
        with _inside(key):
            values[key] = readers[key](each)
    return kind(**values)


@contextmanager
def _inside(key: object) -> Iterator[None]:
    """Put the key before what goes wrong in the block."""
    try:
        yield
    except (TypeError, ValueError) as error:
        space = "" if str(error).startswith("[") else " "
        raise type(error)(f"[{key!r}]{space}{error}") from None


def _queues(value: Any) -> Mapping[str, QueueOptions]:
    if not isinstance(value, Mapping):
        raise TypeError('must be a dict such as {"default": {}, "mail": {"expected_latency": 30}}.')
    queues = {}
    for name, each in value.items():
        with _inside(name):
            queues[queue_label(name)] = _group(QueueOptions, {"expected_latency": span}, each)
    return MappingProxyType(queues)


_READERS: dict[str, Callable[[Any], Any]] = {
    "QUEUES": _queues,
    "MAX_PAYLOAD_SIZE": _whole,
    "MAX_RESULT_SIZE": _whole,
    "MAX_ATTEMPTS": partial(_whole, most=32767),
    "MAX_CRASHES": partial(_whole, most=32767),
    "TIMEOUT": partial(span, least=timedelta(milliseconds=1), most=LONGEST_TIMEOUT),
    "LEASE": partial(span, least=SECOND, most=LONGEST_LEASE),
    "HEARTBEAT": partial(span, least=timedelta(milliseconds=100), most=LONGEST_LEASE),
    "POLL_INTERVAL": partial(span, least=timedelta(milliseconds=10), most=DAY),
    "GRACE": partial(span, least=timedelta(0), most=DAY),
    "UNKNOWN_TASK_PATIENCE": partial(span, least=timedelta(0)),
    "PRIORITY_AGEING": _optional(partial(span, least=SECOND)),
    "PROCESSES": partial(_whole, least=0, most=1000),
    "THREADS": partial(_whole, most=1000),
    "ASYNC_CONCURRENCY": partial(_whole, most=100_000),
    "KEEP_SUCCEEDED": _optional(partial(span, least=timedelta(0))),
    "KEEP_OTHER_RUNS": _optional(partial(span, least=timedelta(0))),
    "KEEP_CLOSED_LETTERS": _optional(partial(span, least=timedelta(0))),
    "PRUNE_BATCH": partial(_whole, most=100_000),
    "NOTIFY": _flag,
    "IMMEDIATE": _flag,
    "STATSD": _optional(
        partial(_group, Statsd, {"host": _some_text, "port": partial(_whole, most=65535), "prefix": _text})
    ),
    "ADMIN_BASE": _some_text,
    "ALERT_FAILURE_RATE": _share,
    "ALERT_WINDOW": partial(span, least=SECOND),
}

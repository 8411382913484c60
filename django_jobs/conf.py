"""settings.DJANGO_JOBS as one frozen, typed object. Read when used, so that override_settings works."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed

SECOND = timedelta(seconds=1)


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


def get_settings() -> Settings:
    """The settings in force.

    Raises:
        ImproperlyConfigured: a key is unknown, a value has the wrong type or range, or two contradict each other.
    """
    global _cached
    if _cached is None:
        given = getattr(django_settings, "DJANGO_JOBS", {})
        settings, problems = read(given)
        if problems:
            raise ImproperlyConfigured(" ".join(problems))
        _cached = settings
    return _cached


_cached: Settings | None = None


def _forget(*, setting: str, **kwargs: Any) -> None:
    global _cached
    if setting == "DJANGO_JOBS":
        _cached = None


setting_changed.connect(_forget)


def read(given: object) -> tuple[Settings, list[str]]:
    """Settings from a dict, and a sentence for each thing wrong with it (those keys keep their default)."""
    if not isinstance(given, Mapping):
        return Settings(), [f"DJANGO_JOBS must be a dict, not {type(given).__name__}."]
    values: dict[str, Any] = {}
    problems: list[str] = []
    for key, value in given.items():
        try:
            values[key] = _READERS[key](value)
        except KeyError:
            problems.append(f'DJANGO_JOBS["{key}"] is not a setting.{did_you_mean(str(key), _READERS)}')
        except (TypeError, ValueError, OverflowError) as error:
            problems.append(f'DJANGO_JOBS["{key}"] = {value!r}: {error}')
    settings = Settings(**values)
    return settings, problems + _contradictions(settings)


def did_you_mean(word: str, known: Any) -> str:
    """A sentence that offers the closest of the known names, or nothing."""
    close = difflib.get_close_matches(word, [str(name) for name in known], n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


def _contradictions(settings: Settings) -> list[str]:
    problems = []
    if settings.LEASE < 2 * settings.HEARTBEAT:
        problems.append(
            f'DJANGO_JOBS["LEASE"] ({settings.LEASE}) must be at least twice HEARTBEAT ({settings.HEARTBEAT}), '
            "or one late heartbeat loses every lease."
        )
    return problems


def span(value: Any, *, least: timedelta = timedelta(microseconds=1)) -> timedelta:
    """A timedelta from a timedelta or a number of seconds.

    Raises:
        TypeError: it is neither.
        ValueError: it is below `least`.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float, timedelta)):
        raise TypeError("expected a timedelta or a number of seconds.")
    result = value if isinstance(value, timedelta) else timedelta(seconds=value)
    if result < least:
        raise ValueError(f"must be at least {least.total_seconds():g} seconds.")
    return result


def _optional(reader: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else reader(value)


def _whole(value: Any, *, least: int = 1, most: int = 2**31 - 1) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError("expected a whole number.")
    if not least <= value <= most:
        raise ValueError(f"must be from {least} to {most}.")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError("expected True or False.")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("expected a string.")
    return value


def _share(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise ValueError("expected a number from 0 to 1.")
    return float(value)


def _group(kind: Any, readers: Mapping[str, Callable[[Any], Any]], value: Any) -> Any:
    if isinstance(value, kind):
        return value
    if not isinstance(value, Mapping):
        raise TypeError("expected a dict.")
    for key in value:
        if key not in readers:
            raise ValueError(f"{key!r} is not one of its keys.{did_you_mean(str(key), readers)}")
    return kind(**{key: readers[key](each) for key, each in value.items()})


def _queues(value: Any) -> Mapping[str, QueueOptions]:
    if not isinstance(value, Mapping):
        raise TypeError('expected a dict such as {"default": {}, "mail": {"expected_latency": 30}}.')
    for name in value:
        if not isinstance(name, str) or not 1 <= len(name) <= 64:
            raise ValueError(f"queue name {name!r} must be a string of 1 to 64 characters.")
    return {name: _group(QueueOptions, {"expected_latency": span}, each) for name, each in value.items()}


_READERS: dict[str, Callable[[Any], Any]] = {
    "QUEUES": _queues,
    "MAX_PAYLOAD_SIZE": _whole,
    "MAX_RESULT_SIZE": _whole,
    "MAX_ATTEMPTS": partial(_whole, most=32767),
    "MAX_CRASHES": partial(_whole, most=32767),
    "TIMEOUT": span,
    "LEASE": partial(span, least=SECOND),
    "HEARTBEAT": partial(span, least=timedelta(milliseconds=100)),
    "POLL_INTERVAL": partial(span, least=timedelta(milliseconds=10)),
    "GRACE": partial(span, least=timedelta(0)),
    "UNKNOWN_TASK_PATIENCE": partial(span, least=timedelta(0)),
    "THREADS": partial(_whole, most=1000),
    "ASYNC_CONCURRENCY": partial(_whole, most=100_000),
    "KEEP_SUCCEEDED": _optional(partial(span, least=timedelta(0))),
    "KEEP_OTHER_RUNS": _optional(partial(span, least=timedelta(0))),
    "KEEP_CLOSED_LETTERS": _optional(partial(span, least=timedelta(0))),
    "PRUNE_BATCH": partial(_whole, most=100_000),
    "NOTIFY": _flag,
    "IMMEDIATE": _flag,
    "STATSD": _optional(
        partial(_group, Statsd, {"host": _text, "port": partial(_whole, most=65535), "prefix": _text})
    ),
    "ADMIN_BASE": _text,
    "ALERT_FAILURE_RATE": _share,
    "ALERT_WINDOW": partial(span, least=SECOND),
}
assert set(_READERS) == {each.name for each in dataclasses.fields(Settings)}

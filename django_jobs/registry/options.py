"""What `using()` takes, and the check of every option that it and `@task` share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypedDict, TypeVar

from django.conf import settings
from django.db import connections
from django.utils import timezone

from django_jobs.conf import CENTURY, LONGEST_TIMEOUT, did_you_mean, label, queue_label, span
from django_jobs.statuses import Uniqueness

NAME_LENGTH = KEY_LENGTH = 200  # as in the models
LONGEST_DELAY = CENTURY
MOST_ATTEMPTS = 32_767

T = TypeVar("T")


class Options(TypedDict, total=False):
    """The keywords of `Task.using`. None leaves an option as it is."""

    delay: timedelta | float | None
    run_at: datetime | None
    run_after: datetime | None  # Django's word for run_at
    key: str | None
    unique: str | None
    priority: int | None
    queue_name: str | None
    max_attempts: int | None
    timeout: timedelta | float | None
    database: str | None


@dataclass(frozen=True)
class EnqueueOptions:
    """What one enqueueing asks for beyond its task's declaration. None: nothing was asked."""

    delay: timedelta | None = None
    run_at: datetime | None = None
    key: str | None = None
    unique: Uniqueness | None = None
    priority: int | None = None
    queue_name: str | None = None
    max_attempts: int | None = None
    timeout: timedelta | None = None
    database: str | None = None

    @property
    def uniqueness(self) -> str:
        """The value for `Job.uniqueness`: how long the key is held, or "" where there is none."""
        if self.key is None:
            return ""
        return (self.unique or Uniqueness.EVER).value

    def overrides(self) -> dict[str, Any] | None:
        """The value for `Job.options`: what a worker must know beyond the declaration. `Task.effective` reads it."""
        if self.max_attempts is None and self.timeout is None:
            return None
        stored: dict[str, Any] = {}
        if self.max_attempts is not None:
            stored["max_attempts"] = self.max_attempts
        if self.timeout is not None:
            stored["timeout"] = self.timeout.total_seconds()
        return stored

    def merged(self, changes: Mapping[str, Any]) -> EnqueueOptions:
        """Return these options with the changes, as `read_options` gives them; the later of two start times counts.

        Raises:
            ValueError: `unique` without a key.
        """
        # The generated __init__ of a frozen class takes three times as long.
        merged: EnqueueOptions = object.__new__(EnqueueOptions)
        values = vars(merged)
        values.update(vars(self))
        if "delay" in changes or "run_at" in changes:
            values["delay"] = values["run_at"] = None
        values.update(changes)
        if merged.unique is not None and merged.key is None:
            raise ValueError(f"unique={merged.unique.value!r} needs a key that shall be unique. Give key= as well.")
        return merged


def read_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Check the keywords of `using`, and return those that change something.

    Raises:
        TypeError: an option is unknown, or its value has the wrong type.
        ValueError: a value is out of range, or two contradict each other.
    """
    changes: dict[str, Any] = {}
    for option, value in given.items():
        reader = _READERS.get(option)
        if reader is None:
            raise TypeError(f"using() has no option {option!r}.{did_you_mean(option, _READERS)}")
        if value is None:
            continue
        name = "run_at" if option == "run_after" else option
        if name in changes:
            raise ValueError("run_at= and run_after= mean the same. Give one of them.")
        changes[name] = reader(value)
    if "delay" in changes and "run_at" in changes:
        raise ValueError("Both delay= and run_at= say when to start. Give one of them.")
    return changes


def checked(option: str, value: object, reader: Callable[[Any], T]) -> T:
    """Return what the reader makes of the value; what it raises is said again with the option and the value."""
    try:
        return reader(value)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{option}={shown(value)} {error}") from None


def read_timeout(value: object) -> timedelta:
    return checked("timeout", value, partial(span, least=timedelta(milliseconds=1), most=LONGEST_TIMEOUT))


def read_delay(value: object) -> timedelta:
    return checked("delay", value, partial(span, least=timedelta(0), most=LONGEST_DELAY))


def read_ttl(option: str, value: object) -> timedelta:
    """Check how long a key is held."""
    return checked(option, value, partial(span, least=timedelta(milliseconds=1), most=LONGEST_DELAY))


def read_priority(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not -100 <= value <= 100:
        raise ValueError(f"priority={shown(value)} must be a whole number from -100 to 100; larger goes first.")
    return int(value)


def read_max_attempts(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"max_attempts={shown(value)} must be a whole number.")
    if not 1 <= value <= MOST_ATTEMPTS:
        raise ValueError(f"max_attempts={shown(value)} must be from 1 to {MOST_ATTEMPTS}; 1 means no retry.")
    return int(value)


def read_key(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f'key={shown(value)} must be a string. Make it one, such as f"order:{{order.pk}}".')
    if not value:
        raise ValueError("key='' names nothing. Leave it out, or name the operation, such as f\"order:{order.pk}\".")
    if len(value) > KEY_LENGTH:
        raise ValueError(f"key={shown(value)} has {len(value)} characters. Give it at most {KEY_LENGTH}.")
    if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
        raise ValueError(f"key={shown(value)} holds a NUL or a lone surrogate, which cannot be stored. Leave it out.")
    # A subclass (StrEnum, SafeString) may be unknown to the database driver.
    return str.__str__(value)


def read_queue_name(value: object) -> str:
    return checked("queue_name", value, queue_label)


def read_name(option: str, value: object) -> str:
    """Check the name of a task."""
    return checked(option, value, partial(label, most=NAME_LENGTH))


def read_unique(value: Any) -> Uniqueness:
    try:
        return Uniqueness(value)
    except ValueError:
        hint = did_you_mean(str(value), Uniqueness.values)
        raise ValueError(f"unique={shown(value)} must be 'ever', 'live' or 'queued'.{hint}") from None


def read_database(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"database={shown(value)} must be an alias of settings.DATABASES, as a string.")
    if value not in connections.settings:
        hint = did_you_mean(value, connections.settings)
        raise ValueError(f"database={shown(value)} is not in settings.DATABASES.{hint}")
    return value


def read_run_at(value: object) -> datetime:
    """Return the moment as this project stores it: aware with USE_TZ, else naive and in TIME_ZONE.

    With USE_TZ a naive one is read in the current time zone, as Django's forms do.
    """
    if not isinstance(value, datetime):
        raise TypeError(f"run_at={shown(value)} must be a datetime. For a span from now on give delay=.")
    # Out of these years a conversion between zones overflows, in Python or in a database.
    if not 1000 < value.year < 9999:
        raise ValueError(f"run_at={value!r} must lie in the years 1001 to 9998.")
    is_aware = timezone.is_aware(value)
    if settings.USE_TZ:
        return value if is_aware else timezone.make_aware(value)
    return timezone.make_naive(value, timezone.get_default_timezone()) if is_aware else value


def shown(value: object) -> str:
    """repr() of at most 60 characters."""
    text = repr(value[:100] if isinstance(value, str) else value)
    return text if len(text) <= 60 else f"{text[:57]}..."


_READERS: dict[str, Callable[[Any], Any]] = {
    "delay": read_delay,
    "run_at": read_run_at,
    "run_after": read_run_at,
    "key": read_key,
    "unique": read_unique,
    "priority": read_priority,
    "queue_name": read_queue_name,
    "max_attempts": read_max_attempts,
    "timeout": read_timeout,
    "database": read_database,
}

OPTIONS = frozenset(_READERS)  # of `using`

"""How long to wait before a job is tried again."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal, Protocol, TypeAlias

# random.seed(), called alike in every worker, would make all of them retry at the same moments. This one has no seed,
# and processes that were forked share nothing of it.
_rand = random.SystemRandom().random

LONGEST_DELAY = timedelta(days=366)  # A longer one is a mistake of units.

Span: TypeAlias = timedelta | float
"""A timedelta, or seconds."""


class Policy(Protocol):
    """What `coerce` returns."""

    def delay(
        self, failures: int, *, exception: BaseException | None = None, rand: Callable[[], float] = _rand
    ) -> timedelta:
        """Compute the wait after so many failures, the last one (`exception`) included."""


@dataclass(frozen=True, init=False)
class Backoff:
    """Waits that grow by `factor` from `base` to `cap`, each anywhere between nothing and that ("full" jitter).

    Full jitter spreads jobs that failed together over the whole window, and gets them done with the fewest calls: Marc
    Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015. `jitter="none"` waits the whole span.
    """

    base: timedelta
    factor: float
    cap: timedelta
    jitter: Literal["full", "none"]

    def __init__(
        self,
        base: Span = timedelta(seconds=30),
        factor: float = 2.0,
        cap: Span = timedelta(minutes=10),
        jitter: Literal["full", "none"] = "full",
    ) -> None:
        checked = {
            "base": _span("base", base),
            "factor": _factor(factor),
            "cap": _span("cap", cap),
            "jitter": jitter,
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        if not self.base:
            raise ValueError(f"base={base!r} would never grow. Give a span above zero, or backoff=0 to retry at once.")
        if self.cap < self.base:
            raise ValueError(f"cap={cap!r} is below base={base!r}. Raise cap or lower base.")
        if jitter not in ("full", "none"):
            raise ValueError(f'jitter={jitter!r} is not known. Give "full" or "none".')

    def delay(
        self, failures: int, *, exception: BaseException | None = None, rand: Callable[[], float] = _rand
    ) -> timedelta:
        """Compute `uniform(0, min(cap, base * factor ** (failures - 1)))`; below one failure counts as one."""
        longest = self.longest(failures)
        return longest if self.jitter == "none" else rand() * longest

    def longest(self, failures: int) -> timedelta:
        """Compute the upper end of the wait, without jitter."""
        exponent = min(max(failures, 1), 10**15) - 1  # whole numbers up to here are exact as floats
        try:
            seconds = self.base.total_seconds() * self.factor**exponent
        except OverflowError:
            return self.cap
        return self.cap if seconds >= self.cap.total_seconds() else timedelta(seconds=seconds)


@dataclass(frozen=True)
class Fixed:
    """The same wait each time."""

    wait: timedelta

    def delay(
        self, failures: int, *, exception: BaseException | None = None, rand: Callable[[], float] = _rand
    ) -> timedelta:
        return self.wait


@dataclass(frozen=True)
class Steps:
    """One wait after another; the last one is repeated."""

    waits: tuple[timedelta, ...]

    def delay(
        self, failures: int, *, exception: BaseException | None = None, rand: Callable[[], float] = _rand
    ) -> timedelta:
        return self.waits[min(max(failures, 1), len(self.waits)) - 1]


@dataclass(frozen=True)
class PerException:
    """A policy for each class of exception; the most specific class wins, and the rest get `default`."""

    policies: tuple[tuple[type[BaseException], Policy], ...]
    default: Policy = field(default_factory=Backoff)

    def delay(
        self, failures: int, *, exception: BaseException | None = None, rand: Callable[[], float] = _rand
    ) -> timedelta:
        return self.policy_for(exception).delay(failures, exception=exception, rand=rand)

    def policy_for(self, exception: BaseException | None) -> Policy:
        known = dict(self.policies)
        return next((known[each] for each in type(exception).__mro__ if each in known), self.default)


_POLICIES = (Backoff, Fixed, Steps, PerException)
_MEND = (
    "Give a Backoff(...), a span (a timedelta or seconds), a list of spans, "
    "or a dict from exception classes to any of those."
)


def coerce(value: object) -> Policy:
    """Make a policy of what `@task(backoff=...)` takes.

    That is a `Backoff`, one span for every wait, a sequence of spans (the last one is repeated), or a mapping from
    exception classes to any of these. A span is a timedelta or seconds; only a `Backoff` has jitter.

    Raises:
        TypeError: it is anything else, a function for example.
        ValueError: a span is negative or longer than a year, or there is none.
    """
    if isinstance(value, _POLICIES):
        return value
    if isinstance(value, Mapping):
        return _per_exception(value)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray):
        return _steps(value)
    if isinstance(value, bool) or not isinstance(value, int | float | timedelta):
        raise TypeError(f"backoff={value!r} is of type {type(value).__name__}. {_MEND}")
    return Fixed(_span("backoff", value))


def _per_exception(value: Mapping[object, object]) -> PerException:
    if not value:
        raise ValueError(f"backoff={value!r} names no exception. {_MEND}")
    policies = []
    for each, wanted in value.items():
        if not isinstance(each, type) or not issubclass(each, BaseException):
            raise TypeError(f"backoff has the key {each!r}, which is no exception class. {_MEND}")
        if isinstance(wanted, Mapping | PerException):
            raise TypeError(
                f"backoff has a dict for {each.__name__}. Give it a Backoff(...), a span or a list of spans."
            )
        policies.append((each, coerce(wanted)))
    return PerException(tuple(policies))


def _steps(value: Sequence[object]) -> Steps:
    if not value:
        raise ValueError(f"backoff={value!r} holds no span. {_MEND}")
    return Steps(tuple(_span(f"backoff[{position}]", each) for position, each in enumerate(value)))


def _span(name: str, value: object) -> timedelta:
    if isinstance(value, bool) or not isinstance(value, int | float | timedelta):
        raise TypeError(f"{name}={value!r} is of type {type(value).__name__}. Give a timedelta or a number of seconds.")
    try:
        span = value if isinstance(value, timedelta) else timedelta(seconds=value)
    except (OverflowError, ValueError):  # too large, or not a number
        raise ValueError(f"{name}={value!r} is no span of time. Give a timedelta or a number of seconds.") from None
    if span < timedelta(0):
        raise ValueError(f"{name}={value!r} is negative. Give a span of zero or more.")
    if span > LONGEST_DELAY:
        raise ValueError(f"{name}={value!r} is longer than {LONGEST_DELAY.days} days. Numbers are seconds.")
    return span


def _factor(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"factor={value!r} is of type {type(value).__name__}. Give a number of 1 or more.")
    if not 1 <= value < 1e300:  # false for NaN, too
        raise ValueError(f"factor={value!r} does not let a wait grow. Give a finite number of 1 or more.")
    return float(value)

"""Ids of jobs: UUIDv7 (RFC 9562), so that rows made together lie together in an index."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from uuid import UUID, SafeUUID

_VERSION_AND_VARIANT = (7 << 76) | (2 << 62)
_COUNTER_BITS = 42
_LOW = 2**30 - 1
# A UUID refuses assignment; its slots do not.
_new, _set_int, _set_safety = object.__new__, vars(UUID)["int"].__set__, vars(UUID)["is_safe"].__set__
_SAFETY = SafeUUID.unknown


def job_id() -> UUID:
    """Make an id greater than every id this process made before, whatever the clock does."""
    return _source.make()


def job_ids(count: int) -> list[UUID]:
    """Make so many at once, which costs a third: each is greater than the one before."""
    return _source.make_many(count)


class IdSource:
    """Makes UUIDv7 ids: 48 bits of milliseconds, a counter of 42 bits, 32 random bits (RFC 9562, 6.2, method 1).

    Each millisecond starts the counter at a random value below its half. A clock that stands still or goes back only
    moves the counter on.
    """

    def __init__(self, clock: Callable[[], int] = time.time_ns) -> None:
        self._clock = clock
        self._millisecond = 0
        self._counter = 0
        self.reseed()

    def reseed(self) -> None:
        """Forget whatever a fork has copied: the random state, the counter, and a lock another thread may have held."""
        # An RLock: a signal may be delivered inside make(), and what it runs may enqueue.
        self._lock = threading.RLock()
        # A generator of our own: random.seed(), called in every worker alike, would make the workers' ids alike.
        self._bits = random.Random().getrandbits
        self._counter = self._bits(_COUNTER_BITS - 1)

    def make(self) -> UUID:
        with self._lock:
            return _uuid(self._next() + self._bits(32))

    def make_many(self, count: int) -> list[UUID]:
        """Make so many in one millisecond, as far as the counter reaches."""
        made: list[UUID] = []
        with self._lock:
            bits = self._bits
            while len(made) < count:
                first = self._next()
                # What the counter's low bits hold, which lie together; the high ones are beyond the variant.
                more = min(count - len(made), _LOW + 1 - (self._counter & _LOW))
                self._counter += more - 1
                made += [_uuid(number + bits(32)) for number in range(first, first + (more << 32), 1 << 32)]
        return made

    def _next(self) -> int:
        """Move on, and return the id up to its random bits."""
        millisecond = self._clock() // 1_000_000
        if millisecond > self._millisecond:
            counter = self._bits(_COUNTER_BITS - 1)
        else:
            millisecond, counter = self._millisecond, self._counter + 1
            if counter >> _COUNTER_BITS:
                millisecond, counter = millisecond + 1, self._bits(_COUNTER_BITS - 1)
        self._millisecond, self._counter = millisecond, counter
        number = (millisecond << 80) | ((counter >> 30) << 64) | ((counter & _LOW) << 32)
        return number | _VERSION_AND_VARIANT


def _uuid(number: int) -> UUID:
    # UUID(int=number) checks and copies for three times as long; tests compare the two.
    made: UUID = _new(UUID)
    _set_int(made, number)
    _set_safety(made, _SAFETY)
    return made


_source = IdSource()
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=lambda: _source.reseed())  # noqa: PLW0108 - whichever it is by then

"""A lease on a name, kept in the database: at most one holder, who can die without blocking the next one for long."""

from __future__ import annotations

from datetime import timedelta
from types import TracebackType
from typing import Any, Self
from uuid import UUID, uuid4

from asgiref.sync import sync_to_async
from django.db import connections, router
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import QuerySet

from django_jobs import logs
from django_jobs.conf import span
from django_jobs.database import Clock, clock_after_sql, clock_sql
from django_jobs.exceptions import LockNotAcquired
from django_jobs.models import Lock
from django_jobs.models.job import KEY_LENGTH

SHORTEST = timedelta(milliseconds=1)
LONGEST = timedelta(days=365)


class DatabaseLock:
    """One would-be holder of a lock, which it keeps for at most `ttl` without extending it.

    Give every thread its own. `with lock("nightly-report", ttl=3600):` raises LockNotAcquired if somebody else has it.
    All times are the database's. A holder that was paused for longer than its ttl has lost the lock, and learns so
    from `extend`, `release` or `is_held`. What it wrote in the meantime can be told from its successor's by
    `fencing_number`, which grows with every acquisition of the name: let the receiver refuse a lower number than it
    has seen.

    Inside `atomic()` a lock is acquired, extended and released when that transaction commits, and not if it rolls back;
    until then others who want it wait.

    Raises:
        TypeError, ValueError: the name is not 1 to 200 storable characters, or `ttl` (a timedelta or seconds) is not
            from 1 ms to 365 days.
    """

    def __init__(self, name: str, *, ttl: timedelta | float, using: str | None = None) -> None:
        self.name = _checked_name(name)
        self.ttl = _checked_ttl(ttl)
        self.using = using or router.db_for_write(Lock)
        self._owner: UUID | None = None
        self._fencing_number: int | None = None

    def __repr__(self) -> str:
        return f"<DatabaseLock {self.name!r} fencing_number={self._fencing_number}>"

    @property
    def fencing_number(self) -> int | None:
        """The number of the last acquisition by this object; None before the first."""
        return self._fencing_number

    @property
    def is_held(self) -> bool:
        """Ask the database whether this object holds the lock at this moment."""
        return self._mine().exists()

    def acquire(self) -> bool:
        """Take the lock if it is free or has expired. False if somebody holds it, this object included."""
        if self._is_seen_held():
            return False
        owner = uuid4()
        _insert_or_take_over(connections[self.using], self.name, owner, self.ttl)
        # Read back, for the number, and because a statement that had to wait for longer than the ttl won nothing.
        number = self._held_by(owner).values_list("fencing_number", flat=True).first()
        if number is None:
            return False
        self._owner, self._fencing_number = owner, number
        return True

    def extend(self, ttl: timedelta | float | None = None) -> bool:
        """Keep the lock for `ttl` from now on. False if it is lost; then nothing is changed."""
        after = self.ttl if ttl is None else _checked_ttl(ttl)
        return bool(self._mine().update(expires_at=Clock(after)))

    def release(self) -> bool:
        """Free the lock for the next one. False if it was lost before; then nothing is changed."""
        released = bool(self._mine().update(owner=None, expires_at=Clock()))
        self._owner = None
        return released

    def remaining(self) -> timedelta:
        """Ask the database how long the lock will be held unless extended; zero if it is lost."""
        times = self._mine().annotate(now=Clock()).values_list("expires_at", "now").first()
        return max(times[0] - times[1], timedelta(0)) if times else timedelta(0)

    def __enter__(self) -> Self:
        if not self.acquire():
            raise LockNotAcquired(self._refusal())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        connection = connections[self.using]
        if connection.in_atomic_block and connection.needs_rollback:
            return  # The rollback undoes the acquisition too, and no statement is allowed before it.
        if not self.release():
            logs.lock_lost(self.name, fencing_number=self._fencing_number)

    async def aacquire(self) -> bool:
        return await sync_to_async(self.acquire)()

    async def aextend(self, ttl: timedelta | float | None = None) -> bool:
        return await sync_to_async(self.extend)(ttl)

    async def arelease(self) -> bool:
        return await sync_to_async(self.release)()

    async def __aenter__(self) -> Self:
        return await sync_to_async(self.__enter__)()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await sync_to_async(self.__exit__)(kind, error, trace)

    def _mine(self) -> QuerySet[Lock]:
        return self._row().none() if self._owner is None else self._held_by(self._owner)

    def _held_by(self, owner: UUID) -> QuerySet[Lock]:
        return self._row().filter(owner=owner, expires_at__gt=Clock())

    def _row(self) -> QuerySet[Lock]:
        return Lock.objects.using(self.using).filter(name=self.name)

    def _is_seen_held(self) -> bool:
        """Whether a plain read already says no.

        Asked only inside a transaction on a database with row locks: a refused upsert keeps the row locked until that
        transaction ends, and the holder could not extend.
        """
        connection = connections[self.using]
        if not (connection.in_atomic_block and connection.features.has_select_for_update):
            return False
        return self._row().filter(owner__isnull=False, expires_at__gt=Clock()).exists()

    def _refusal(self) -> str:
        expires_at = self._row().filter(owner__isnull=False).values_list("expires_at", flat=True).first()
        until = f" until {expires_at.isoformat()} at least" if expires_at else ""
        return (
            f"Lock {self.name!r} is held by somebody else{until}. Skip this work, or try again when it is released or "
            "has expired."
        )


def _checked_name(name: str) -> str:
    if not isinstance(name, str):
        raise TypeError(f"The lock's name {name!r} is a {type(name).__name__}. Give a string.")
    if not 1 <= len(name) <= KEY_LENGTH:
        raise ValueError(f"The lock's name has {len(name)} characters. Give 1 to {KEY_LENGTH}.")
    if "\x00" in name or any("\ud800" <= character <= "\udfff" for character in name):
        raise ValueError(f"The lock's name {name!r} holds a NUL or a lone surrogate, which no database stores.")
    return name


def _checked_ttl(ttl: timedelta | float) -> timedelta:
    try:
        return span(ttl, least=SHORTEST, most=LONGEST)
    except (TypeError, ValueError) as error:
        raise type(error)(f"A lock's ttl={ttl!r}: {error}") from None


def _insert_or_take_over(connection: BaseDatabaseWrapper, name: str, owner: UUID, ttl: timedelta) -> None:
    """Write the owner into the lock's row if there is none, or a free or an expired one: one statement, one winner."""
    with connection.cursor() as cursor:
        cursor.execute(*_upsert(connection, name, owner, ttl))


def _upsert(connection: BaseDatabaseWrapper, name: str, owner: UUID, ttl: timedelta) -> tuple[str, list[Any]]:
    token = Lock._meta.get_field("owner").get_db_prep_value(owner, connection)
    now, now_params = clock_sql(connection)
    end, end_params = clock_after_sql(connection, ttl)
    insert = f"{INSERT} VALUES (%s, %s, 1, {now}, {end}) "
    params = [name, token, *now_params, *end_params]
    if connection.vendor != "mysql":
        return insert + ON_CONFLICT, params
    is_free = f"(owner IS NULL OR expires_at <= {now})"
    # Assignments are made from left to right, each seeing those before it: the columns of the condition come last.
    update = (
        f"ON DUPLICATE KEY UPDATE fencing_number = fencing_number + IF({is_free}, 1, 0), "
        f"acquired_at = IF({is_free}, {now}, acquired_at), "
        f"owner = IF({is_free}, %s, owner), "
        f"expires_at = IF({is_free} OR owner = %s, {end}, expires_at)"
    )
    return insert + update, [*params, token, token, *end_params]


INSERT = "INSERT INTO django_jobs_lock (name, owner, fencing_number, acquired_at, expires_at)"
ON_CONFLICT = (
    "ON CONFLICT (name) DO UPDATE SET owner = EXCLUDED.owner, fencing_number = django_jobs_lock.fencing_number + 1, "
    "acquired_at = EXCLUDED.acquired_at, expires_at = EXCLUDED.expires_at "
    "WHERE django_jobs_lock.owner IS NULL OR django_jobs_lock.expires_at <= EXCLUDED.acquired_at"
)

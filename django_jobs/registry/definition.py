"""Task: a declared callable with its options, and what `using` and `bind` make of it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, NamedTuple, Protocol
from uuid import UUID

from asgiref.sync import async_to_sync, iscoroutinefunction, sync_to_async

from django_jobs.backoff import Policy
from django_jobs.conf import LONGEST_TIMEOUT, Settings, did_you_mean, get_settings
from django_jobs.registry.base import BaseTask
from django_jobs.registry.functions import Parameters
from django_jobs.registry.options import (
    MOST_ATTEMPTS,
    OPTIONS,
    EnqueueOptions,
    Options,
    read_options,
)

if TYPE_CHECKING:
    from typing import Unpack

    from typing_extensions import ParamSpec, TypeVar

    P = ParamSpec("P", default=...)
    R = TypeVar("R", default=Any)
else:
    from typing import ParamSpec, TypeVar

    P = ParamSpec("P")
    R = TypeVar("R")

NOTHING_ASKED = EnqueueOptions()
_tuple: Any = tuple.__new__


class Enqueued(Protocol):
    """What the registry knows of api.JobHandle, which stands above it."""

    @property
    def id(self) -> UUID: ...
    @property
    def created(self) -> bool: ...
    @property
    def task_name(self) -> str: ...
    @property
    def database(self) -> str: ...
    @property
    def status(self) -> str: ...
    def get(self) -> Any: ...
    async def aget(self) -> Any: ...
    def result(self) -> Any: ...
    def cancel(self) -> bool: ...


class Call(NamedTuple):
    """One call to enqueue; `Task.bind` makes it."""

    task: Task
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Limits(NamedTuple):
    """What bounds the runs of one job."""

    max_attempts: int
    timeout: timedelta


# eq and repr are off: Django's would compare and print every field.
@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Task(BaseTask, Generic[P, R]):
    """A callable made known with `@task`. Call it like the function it wraps, or enqueue it.

    `queue_name`, `priority`, `max_attempts` and `timeout` are those of the declaration until `using` changes them;
    `options` holds what it changed.
    """

    # Django keeps its fields in slots. A default here hides the slot, so that `using` has one __dict__ to copy.
    priority: int = 0
    backend: str = "django_jobs"
    queue_name: str = "default"
    run_after: datetime | None = None
    takes_context: bool = False
    name: str = ""
    own_max_attempts: int | None = None
    own_timeout: timedelta | None = None
    backoff: Policy
    retry_on: tuple[type[BaseException], ...] = (Exception,)
    give_up_on: tuple[type[BaseException], ...] = ()
    atomic: bool = False
    key_ttl: timedelta | None = None
    sensitive: frozenset[str] | Literal[True] = frozenset()
    aliases: tuple[str, ...] = ()
    options: EnqueueOptions = NOTHING_ASKED
    parameters: Parameters = field(init=False)
    is_async: bool = field(init=False)

    def __post_init__(self) -> None:
        # Django's would look for the backend in settings.TASKS and validate against it.
        values = vars(self)
        values["parameters"] = Parameters.of(self.func, takes_context=self.takes_context)
        values["is_async"] = iscoroutinefunction(self.func)
        for attribute in functools.WRAPPER_ASSIGNMENTS:
            if hasattr(self.func, attribute):
                values[attribute] = getattr(self.func, attribute)
        values["__wrapped__"] = self.func

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        result: R = self.func(*args, **kwargs)
        return result

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Task):
            return NotImplemented
        return self is other or (self.name, self.func, self.options) == (other.name, other.func, other.options)

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        asked = [f"{name}={value!r}" for name, value in vars(self.options).items() if value is not None]
        return f"<Task {self.name}{' using ' if asked else ''}{', '.join(asked)}>"

    @property
    def max_attempts(self) -> int:
        return self.own_max_attempts or get_settings().MAX_ATTEMPTS

    @property
    def timeout(self) -> timedelta:
        return self.own_timeout or get_settings().TIMEOUT

    @property
    def key_scope(self) -> str:
        """The scope of the task's keys: its first alias, else its name.

        Aliases list former names, the oldest first; so a task that is renamed, and lists its old name, keeps its keys.
        """
        return self.aliases[0] if self.aliases else self.name

    @property
    def module_path(self) -> str:
        return f"{self.func.__module__}.{self.func.__qualname__}"

    def effective(self, overrides: object) -> Limits:
        """Return the limits of a job from `Job.options`, as `EnqueueOptions.overrides` wrote it.

        A stored value that is out of its range counts as absent: a row may have been written by another release.
        """
        max_attempts, timeout = limits = self._own_limits
        if overrides is None:
            return limits
        stored: Mapping[str, Any] = overrides if isinstance(overrides, Mapping) else {}
        attempts, seconds = stored.get("max_attempts"), stored.get("timeout")
        if isinstance(attempts, int) and 1 <= attempts <= MOST_ATTEMPTS:
            max_attempts = attempts
        if isinstance(seconds, (int, float)) and 0 < seconds <= LONGEST_TIMEOUT.total_seconds():
            timeout = timedelta(seconds=seconds)
        return Limits(max_attempts, timeout)

    @property
    def _own_limits(self) -> Limits:
        """The limits as declared, made anew only if the settings are others: every run asks for them."""
        settings = get_settings()
        made: tuple[Settings, Limits] | None = vars(self).get("_limits")
        if made is None or made[0] is not settings:
            made = vars(self)["_limits"] = settings, Limits(self.max_attempts, self.timeout)
        return made[1]

    def sensitive_values(self, args: tuple[Any, ...] | list[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """Return the arguments that must not be shown; all of them where they do not fit the parameters."""
        if self.sensitive is True:
            return [*args, *kwargs.values()]
        if not self.sensitive:
            return []
        return list(self.parameters.pick(self.sensitive, args, kwargs))

    def using(self, **options: Unpack[Options]) -> Task[P, R]:
        """Return this task with other options for what is enqueued through it; earlier `using` stays in force.

        Args:
            delay: start no earlier than this span from now, by the database's clock; timedelta or seconds.
            run_at: start no earlier than this datetime; a naive one is read in the current time zone. Also run_after.
            key: the name of the one logical operation; a second job of the task with this key is not created.
            unique: how long the key is held. "ever", the default: success leaves it, for `key_ttl` if the task has
                one. "live": until the job ends. "queued": until it starts.
            priority: -100 to 100, larger first.
            queue_name, max_attempts, timeout: instead of the declared ones.
            database: the alias to write the job to.

        Raises:
            TypeError, ValueError: an option is unknown, or its value is of no use; the message says what would be.
        """
        changes = read_options(options)
        merged = self.options.merged(changes)
        # dataclasses.replace would read the signature again: 20 times the cost.
        copy: Task[P, R] = object.__new__(type(self))
        object.__setattr__(copy, "func", self.func)
        values = vars(copy)
        values.update(vars(self))
        values.pop("_limits", None)
        values["options"] = merged
        values["run_after"] = merged.run_at
        for option, attribute in _SHOWN_BY.items():
            if option in changes:
                values[attribute] = changes[option]
        return copy

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> Call:
        """Return this call as a value, for `enqueue_many`, after checking all but the arguments' own encoding.

        Raises:
            TypeError: the arguments do not fit the parameters. The message holds none of their values.
            ValueError: the queue is not in DJANGO_JOBS["QUEUES"].
        """
        if not self.parameters.fit(args, kwargs):
            raise TypeError(
                f"{self.name}{self.parameters} does not take these arguments: "
                f"{self.parameters.explain(args, kwargs)}. Pass what its signature asks for.{_misplaced(kwargs)}"
            )
        queues = get_settings().QUEUES
        if queues and self.queue_name not in queues:
            raise ValueError(unknown_queue(self.queue_name))
        call: Call = _tuple(Call, (self, args, kwargs))  # Call(…) takes twice as long
        return call

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Enqueued:
        """Enqueue a job that calls this task with the arguments. See `django_jobs.enqueue`."""
        if _installed.sync is None:
            raise RuntimeError("django_jobs.api is not imported yet. Import django_jobs before enqueueing.")
        return _installed.sync(self, *args, **kwargs)

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Enqueued:
        """Like `enqueue`, from async code."""
        if _installed.async_ is None:
            raise RuntimeError("django_jobs.api is not imported yet. Import django_jobs before enqueueing.")
        return await _installed.async_(self, *args, **kwargs)

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Run the function now, from sync code, `async def` or not."""
        return async_to_sync(self.func)(*args, **kwargs) if self.is_async else self.func(*args, **kwargs)

    async def acall(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Run the function now, from async code, `async def` or not."""
        if self.is_async:
            return await self.func(*args, **kwargs)
        return await sync_to_async(self.func)(*args, **kwargs)

    def get_backend(self) -> Any:
        """Return the django.tasks backend of django_jobs, whatever settings.TASKS says of other backends."""
        if _installed.backend is None:
            raise LookupError(f"Task {self.name!r} has no django.tasks backend. Use get_job(id) for what became of it.")
        return _installed.backend(self)


_SHOWN_BY = {
    "priority": "priority",
    "queue_name": "queue_name",
    "max_attempts": "own_max_attempts",
    "timeout": "own_timeout",
}

SyncEnqueuer = Callable[Concatenate[Task, ...], Enqueued]
AsyncEnqueuer = Callable[Concatenate[Task, ...], Coroutine[Any, Any, Enqueued]]


@dataclass
class _Installed:
    """What stands above the registry and is called by a task; put in from there, so that nothing imports upwards."""

    sync: SyncEnqueuer | None = None
    async_: AsyncEnqueuer | None = None
    backend: Callable[[Task], Any] | None = None


_installed = _Installed()


def install_enqueuer(sync: SyncEnqueuer, async_: AsyncEnqueuer) -> None:
    """Say what `Task.enqueue` and `Task.aenqueue` call: f(task, *args, **kwargs)."""
    _installed.sync = sync
    _installed.async_ = async_


def install_backend(backend: Callable[[Task], Any]) -> None:
    """Say what `Task.get_backend` returns: f(task)."""
    _installed.backend = backend


def _misplaced(kwargs: Mapping[str, Any]) -> str:
    """What to do about an option given as an argument."""
    options = sorted(OPTIONS & kwargs.keys())
    return f" Options go to using(): task.using({options[0]}=...)." if options else ""


def unknown_queue(queue_name: str) -> str:
    return f'Queue {queue_name!r} is not in DJANGO_JOBS["QUEUES"].{did_you_mean(queue_name, get_settings().QUEUES)}'

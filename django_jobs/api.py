"""What an application calls. Importable before the app registry is ready: models are imported when they are used."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

from asgiref.sync import sync_to_async
from django.db import DEFAULT_DB_ALIAS, connections, router, transaction

from django_jobs import codec, ids, registry
from django_jobs.conf import get_settings
from django_jobs.exceptions import JobDoesNotExist, NotInTransaction
from django_jobs.registry import Call, Task
from django_jobs.statuses import JobStatus, LetterStatus, RunStatus

if TYPE_CHECKING:
    from django_jobs.lifecycle.enqueue import NewJob
    from django_jobs.lifecycle.lock import DatabaseLock

ONCE_SCOPE = "once()"


@dataclass(frozen=True)
class JobInfo:
    """A job as it is at one moment, live or ended.

    `status` is that of the live job (scheduled, ready, running, waiting), or succeeded, cancelled, dead, replayed or
    discarded. `result` is what a job that succeeded returned; the error is that of the last run. `why` says in a
    sentence what the job waits for, or how it ended.
    """

    id: UUID
    status: str
    task_name: str
    queue_name: str
    priority: int
    attempt: int
    failures: int
    crashes: int
    key: str | None
    enqueued_at: datetime
    run_at: datetime
    started_at: datetime | None = None
    ended_at: datetime | None = None
    result: Any = None
    error_type: str = ""
    error_text: str = ""
    dead_letter_id: int | None = None
    why: str = ""

    @property
    def is_finished(self) -> bool:
        """Whether the machine has done with it; a dead one may still be replayed, as another job."""
        return self.status not in JobStatus.values


@dataclass(frozen=True)
class JobHandle:
    """What `enqueue` answers. `created` is False where the key was held: then `id` is the holder's."""

    id: UUID
    created: bool
    task_name: str
    database: str

    def __init__(self, id: UUID, created: bool, task_name: str, database: str) -> None:  # noqa: A002
        # The generated one of a frozen class takes three times as long, and a bulk call makes thousands.
        fields = self.__dict__
        fields["id"], fields["created"], fields["task_name"], fields["database"] = id, created, task_name, database

    def get(self) -> JobInfo:
        """Look the job up.

        Raises:
            JobDoesNotExist: its transaction was rolled back, or the job has been pruned.
        """
        return get_job(self.id, database=self.database)

    async def aget(self) -> JobInfo:
        """Like `get`, from async code."""
        return await sync_to_async(self.get)()

    @property
    def status(self) -> str:
        """What has become of the job; one query each time. Raises JobDoesNotExist like `get`."""
        return self.get().status

    def result(self) -> Any:
        """What the task returned, or None while there is nothing. Raises JobDoesNotExist like `get`."""
        return self.get().result

    def cancel(self) -> bool:
        """See `cancel`."""
        return cancel(self.id, database=self.database)


def enqueue(task: Task, /, *args: Any, **kwargs: Any) -> JobHandle:
    """Write a job in the current transaction; it is seen by workers once that commits.

    Options come with the task: `enqueue(send_mail.using(delay=60, key="welcome:7"), user_id)`. The arguments are frozen
    now.

    Raises:
        TypeError: an argument cannot be stored, or does not fit the task's signature; the message names it.
        ValueError: an argument or an option has a value that cannot be stored, or the payload is too large.
        SynchronousOnlyOperation: called from async code; use `aenqueue`.
    """
    call = _task(task).bind(*args, **kwargs)
    _refuse_event_loop()
    return _write_one(_new_job(call), _database(call.task))


def enqueue_many(calls: Iterable[Call | tuple[Task, tuple[Any, ...], dict[str, Any]]]) -> list[JobHandle]:
    """Write many jobs, one INSERT per 1,000, and answer in their order.

    A call is `task.bind(*args, **kwargs)`, or a tuple (task, args, kwargs); its arguments are frozen as it is taken.
    Those whose key is held come back with `created=False`. With several databases involved, each has its own
    transaction.

    Raises:
        TypeError, ValueError: like `enqueue`, before anything is written.
    """
    _refuse_event_loop()
    encode, most = codec.encode_call, get_settings().MAX_PAYLOAD_SIZE
    tasks: list[Task] = []
    payloads: list[str] = []
    for call in calls:
        task, args, kwargs = call if isinstance(call, Call) else _bind(call)
        tasks.append(task)
        payloads.append(encode(args, kwargs, max_size=most))
    new_ids = ids.job_ids(len(tasks))
    if tasks and tasks[0].options.key is None and all(task is tasks[0] for task in tasks):
        return _write_alike(tasks[0], new_ids, payloads)
    return _write_all(tasks, new_ids, payloads)


async def aenqueue(task: Task, /, *args: Any, **kwargs: Any) -> JobHandle:
    """Like `enqueue`, from async code."""
    return await sync_to_async(enqueue)(task, *args, **kwargs)


def enqueue_on_commit(task: Task, /, *args: Any, using: str | None = None, **kwargs: Any) -> JobHandle:
    """Write a job after the current transaction on the database `using` has committed.

    For a transaction on another database than the jobs'. A crash between that commit and the write loses the job: where
    the data are on the jobs' database, `enqueue` is the safe one. The arguments are checked and frozen now; nothing is
    written if the transaction rolls back. The handle's id may turn out to be another's if the key is held by then.
    """
    _refuse_event_loop()
    call = _task(task).bind(*args, **kwargs)
    job, database = _new_job(call), _database(call.task)
    transaction.on_commit(partial(_write_one, job, database), using=using or DEFAULT_DB_ALIAS)
    return JobHandle(job.id, True, job.task_name, database)


def once(key: str, *, scope: str = "", ttl: timedelta | float | None = None, using: str | None = None) -> bool:
    """True for the first transaction that commits this key, False ever after: the guard by hand.

    One INSERT in the caller's transaction, so that key and effect commit or roll back together. It waits for an open
    transaction that holds the key: False after that one's commit, True after its rollback. With `ttl` (timedelta or
    seconds) the key is free again after that time.

    Raises:
        NotInTransaction: called outside `transaction.atomic()`.
        TypeError, ValueError: the key is not a string of 1 to 200 storable characters, or scope or ttl is of no use.
    """
    from django_jobs.lifecycle import guard
    from django_jobs.models import JobKey

    database = using or router.db_for_write(JobKey)
    if not connections[database].in_atomic_block:
        raise NotInTransaction(
            f"once({key!r}) needs transaction.atomic(), so that the key and its effect commit together."
        )
    span = None if ttl is None else registry.read_ttl("ttl", ttl)
    wanted = guard.Wanted(_once_scope(scope), registry.read_key(key), uuid4(), span)
    guard.acquire([wanted], using=database)
    pair = (wanted.scope, wanted.key)
    return guard.holders([pair], using=database).get(pair) == wanted.holder_id


def _once_scope(scope: str) -> str:
    if scope == "":
        return ONCE_SCOPE
    return registry.read_name("scope", f"{ONCE_SCOPE} {registry.read_name('scope', scope)}")


def cancel(job_id: UUID | str, *, database: str | None = None) -> bool:
    """End a live job and free its key. False: too late, it had ended before.

    A run under way learns it by `context.is_cancelled`; whatever it returns does not count.

    Raises:
        JobDoesNotExist: no job has this id.
    """
    from django_jobs.lifecycle import cancel as lifecycle
    from django_jobs.models import Job

    return lifecycle.cancel(_uuid(job_id), using=database or router.db_for_write(Job))


def lock(name: str, *, ttl: timedelta | float, using: str | None = None) -> DatabaseLock:
    """A lease on a name, kept in the database: `with lock("nightly-report", ttl=3600): …`. See `DatabaseLock`."""
    from django_jobs.lifecycle.lock import DatabaseLock

    return DatabaseLock(name, ttl=ttl, using=using)


def get_job(job_id: UUID | str, *, database: str | None = None) -> JobInfo:
    """Look a job up by its id: live, ended or dead.

    Raises:
        JobDoesNotExist: it was never committed, or has been pruned.
    """
    from django_jobs.database import the_only
    from django_jobs.models import DeadLetter, Job, JobRun

    # Not where a router sends reads: a replica may not have the job yet that the caller has just enqueued.
    wanted, using = _uuid(job_id), database or router.db_for_write(Job)
    job = the_only(Job.objects.using(using).filter(id=wanted))
    if job is not None:
        runs = JobRun.objects.using(using).filter(job_id=wanted).order_by("-claim_number")
        return _live(job, runs.first() if job.attempt else None)
    # The job's row goes and these come in one transaction: read after it, one of them is there.
    run = the_only(JobRun.objects.using(using).filter(job_id=wanted, is_last=True))
    letter = the_only(DeadLetter.objects.using(using).filter(job_id=wanted))
    if letter is not None:
        return _dead(letter, run)
    if run is not None:
        return _ended(run, _tally(wanted, using))
    raise JobDoesNotExist(f"No job has the id {wanted}. It was never committed, or pruned, or is on another database.")


def _task(task: object) -> Task:
    if isinstance(task, Task):
        return task
    name = getattr(task, "__qualname__", type(task).__name__)
    raise TypeError(
        f"{name!r} is not a task. Put @task above the function, and give the function itself, not its result."
    )


def _bind(call: object) -> Call:
    if isinstance(call, tuple) and len(call) == 3:
        task, args, kwargs = call
        return _task(task).bind(*args, **kwargs)
    raise TypeError(f"enqueue_many() takes task.bind(...) or tuples (task, args, kwargs), not {type(call).__name__}.")


def _refuse_event_loop() -> None:
    # Before anything is written: Django would refuse only at the query, and not where DJANGO_ALLOW_ASYNC_UNSAFE is set.
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    from django.core.exceptions import SynchronousOnlyOperation

    raise SynchronousOnlyOperation("enqueue() was called from async code. Await aenqueue() or task.aenqueue() there.")


def _database(task: Task) -> str:
    from django_jobs.models import Job

    return task.options.database or router.db_for_write(Job)


def _new_job(call: Call) -> NewJob:
    from django_jobs.lifecycle.enqueue import NewJob

    payload = codec.encode_call(call.args, call.kwargs, max_size=get_settings().MAX_PAYLOAD_SIZE)
    return NewJob(ids.job_id(), payload, *_options_of(call.task))


def _options_of(task: Task) -> tuple[Any, ...]:
    """What a NewJob of this task holds after id and payload."""
    options = task.options
    return (
        task.name,
        task.queue_name,
        task.priority,
        _options_text(options.overrides()),
        options.delay,
        options.run_at,
        options.key,
        task.key_scope,
        options.uniqueness,
    )


def _options_text(options: dict[str, Any] | None) -> str | None:
    return None if options is None else json.dumps(options)


def _write_one(job: NewJob, using: str) -> JobHandle:
    from django_jobs.lifecycle.enqueue import enqueue_one

    answer = enqueue_one(job, using=using)
    return JobHandle(answer.id, answer.created, job.task_name, using)


def _write(jobs: list[NewJob], using: str) -> list[JobHandle]:
    from django_jobs.lifecycle import enqueue as lifecycle

    answers = lifecycle.enqueue(jobs, using=using)
    return [JobHandle(each.id, each.created, job.task_name, using) for job, each in zip(jobs, answers, strict=True)]


def _write_alike(task: Task, new_ids: list[UUID], payloads: list[str]) -> list[JobHandle]:
    """Write calls of one task without a key, and make no object for a job but its id and its handle.

    Ten thousand of anything else make the garbage collector look through all that the process holds.
    """
    from django_jobs.lifecycle import enqueue as lifecycle

    name, using = task.name, _database(task)
    pattern = lifecycle.NewJob(new_ids[0], payloads[0], *_options_of(task))
    lifecycle.enqueue_alike(pattern, new_ids, payloads, using=using)
    return [JobHandle(new_id, True, name, using) for new_id in new_ids]


def _write_all(tasks: list[Task], new_ids: list[UUID], payloads: list[str]) -> list[JobHandle]:
    from django_jobs.lifecycle.enqueue import NewJob

    groups: dict[str, list[NewJob]] = {}
    jobs: list[NewJob] = []
    options: tuple[Any, ...] = ()
    former: Task | None = None
    for task, new_id, payload in zip(tasks, new_ids, payloads, strict=True):
        if task is not former:  # several calls of one task in a row ask it once
            former, options, jobs = task, _options_of(task), groups.setdefault(_database(task), [])
        jobs.append(NewJob(new_id, payload, *options))
    handles: dict[UUID, JobHandle] = {}
    for using, jobs in groups.items():
        handles.update(zip((job.id for job in jobs), _write(jobs, using), strict=True))
    return [handles[new_id] for new_id in new_ids]


def _uuid(value: UUID | str) -> UUID:
    if isinstance(value, UUID):
        return value
    try:
        return UUID(value)
    except (ValueError, AttributeError, TypeError):
        raise ValueError(f"{value!r} is not a job's id. Give a UUID, such as handle.id.") from None


def _live(job: Any, last: Any) -> JobInfo:
    return JobInfo(
        id=job.id,
        status=job.status,
        task_name=job.task_name,
        queue_name=job.queue_name,
        priority=job.priority,
        attempt=job.attempt,
        failures=job.failures,
        crashes=job.crashes,
        key=job.key,
        enqueued_at=job.enqueued_at,
        run_at=job.run_at,
        started_at=job.claimed_at if job.status == JobStatus.RUNNING else None,
        error_type=last.error_type if last else "",
        error_text=last.error_text if last else "",
        why=_why(job),
    )


def _why(job: Any) -> str:
    if job.status == JobStatus.SCHEDULED and job.waiting_since is not None:
        return "A worker died while it held this job, so it runs alone, when a worker has nothing else to do."
    if job.status == JobStatus.SCHEDULED:
        retry = f", for try {job.attempt + 1}" if job.attempt else ""
        return f"It is due at {job.run_at.isoformat(timespec='seconds')}{retry}."
    if job.status == JobStatus.WAITING:
        return (
            f"No worker that looked at it knows a task named {job.task_name!r}. Declare it in a module named tasks "
            "of an installed app, or list it in the aliases of the task it has become."
        )
    if job.status == JobStatus.RUNNING:
        return f"It is running, try {job.attempt}."
    return f"It is due, and waits for a worker that serves queue {job.queue_name!r}."


def _tally(job_id: UUID, using: str) -> dict[str, int]:
    """What the runs of an ended job add up to, as its row counted them while it lived."""
    from django.db.models import Count, Max, Q

    from django_jobs.models import JobRun

    runs = JobRun.objects.using(using).filter(job_id=job_id)
    return runs.aggregate(
        attempt=Max("attempt"),
        failures=Count("id", filter=Q(status__in=(RunStatus.FAILED, RunStatus.TIMED_OUT))),
        crashes=Count("id", filter=Q(status=RunStatus.LOST)),
    )


def _ended(run: Any, tally: dict[str, int]) -> JobInfo:
    return JobInfo(
        id=run.job_id,
        status=run.status,
        task_name=run.task_name,
        queue_name=run.queue_name,
        priority=run.priority,
        attempt=tally["attempt"],
        failures=tally["failures"],
        crashes=tally["crashes"],
        key=run.key,
        enqueued_at=run.enqueued_at,
        run_at=run.run_at,
        started_at=run.started_at,
        ended_at=run.ended_at,
        result=codec.decode_value(run.result),
        error_type=run.error_type,
        error_text=run.error_text,
        why="It was cancelled." if run.status == "cancelled" else "It succeeded.",
    )


_DEAD = {LetterStatus.OPEN: "dead", LetterStatus.REPLAYED: "replayed", LetterStatus.DISCARDED: "discarded"}


def _dead(letter: Any, run: Any) -> JobInfo:
    return JobInfo(
        id=letter.job_id,
        status=_DEAD[LetterStatus(letter.status)],
        task_name=letter.task_name,
        queue_name=letter.queue_name,
        priority=letter.priority,
        attempt=letter.attempt,
        failures=letter.failures,
        crashes=letter.crashes,
        key=letter.key,
        enqueued_at=letter.enqueued_at,
        run_at=letter.run_at,
        started_at=run.started_at if run else None,
        ended_at=letter.died_at,
        error_type=letter.error_type,
        error_text=letter.error_text,
        dead_letter_id=letter.id,
        why=f"It died: {letter.get_reason_display()}.",
    )


registry.install_enqueuer(enqueue, aenqueue)

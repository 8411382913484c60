"""What follows from how a task ended: the one place that turns a value or an exception into an Outcome."""

from __future__ import annotations

import json
import time
import types
from collections.abc import Collection
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from django.conf import settings
from django.utils import timezone

from django_jobs import codec, errors, logs
from django_jobs.backoff import Backoff
from django_jobs.conf import get_settings
from django_jobs.errors import ErrorRecord
from django_jobs.exceptions import GiveUp, Retry, Snooze, TimeLimitExceeded, UnreadablePayload, UnstorableResult
from django_jobs.execution.attempt import Attempt
from django_jobs.runs import Charge, Outcome, Then
from django_jobs.statuses import DeathReason, RunStatus

UNDONE_DELAY = timedelta(seconds=1)
LONGEST_CHAIN = 20  # of exceptions raised while another was handled
OWN_FOLDER = str(Path(__file__).parent)


def secrets_of(attempt: Attempt, args: list[Any], kwargs: dict[str, Any]) -> Collection[str]:
    """The texts among the task's sensitive arguments that must not be stored anywhere else."""
    if not attempt.task.sensitive:
        return ()
    return errors.secret_strings(attempt.task.sensitive_values(args, kwargs))


def succeeded(attempt: Attempt, value: Any, secrets: Collection[str] = ()) -> Outcome:
    """The task returned. If the value cannot be stored, the run failed, and the job is never retried by itself."""
    duration = time.monotonic() - attempt.started
    result = None
    if value is not None:
        try:
            result = _result(value, secrets)
        except UnstorableResult as error:
            return _death(attempt, DeathReason.BAD_RESULT, _described(error, secrets))
        except BaseException as error:  # noqa: BLE001  the value's own methods may raise anything
            return _death(attempt, DeathReason.BAD_RESULT, _described(error, secrets))
    # By their order: by their names they take twice as long.
    return Outcome(
        attempt.run, RunStatus.SUCCEEDED, Then.DONE, Charge.NOTHING, attempt.started - attempt.claimed, duration,
        None, None, None, None, result, attempt.task.key_ttl,
    )  # fmt: skip


def raised(attempt: Attempt, error: BaseException, secrets: Collection[str] = ()) -> Outcome:
    """The task raised."""
    if _is_late(error):
        return timed_out(attempt, error.__traceback__, secrets)
    if isinstance(error, Snooze):
        return _outcome(attempt, RunStatus.RELEASED, Then.RETRY, delay=error.delay, until=_aware(error.until))
    if isinstance(error, GiveUp):
        return _death(attempt, DeathReason.GAVE_UP, _described(error, secrets))
    record = _described(error, secrets)
    if not _is_retried(attempt, error):
        return _death(attempt, DeathReason.NOT_RETRIED, record)
    return _failure(attempt, error, record, RunStatus.FAILED)


def timed_out(attempt: Attempt, trace: types.TracebackType | None, secrets: Collection[str] = ()) -> Outcome:
    """The time limit passed, wherever `trace` says the task was then. It is retried unless `give_up_on` names it."""
    limit = attempt.deadline - attempt.started
    error = TimeLimitExceeded(f"The time limit of {limit:g} s passed.").with_traceback(trace)
    record = _described(error, secrets)
    if isinstance(error, attempt.task.give_up_on):
        return _death(attempt, DeathReason.NOT_RETRIED, record, status=RunStatus.TIMED_OUT)
    return _failure(attempt, error, record, RunStatus.TIMED_OUT)


def unreadable(attempt: Attempt, error: UnreadablePayload) -> Outcome:
    """The payload is not what the codec writes."""
    return _death(attempt, DeathReason.BAD_PAYLOAD, _described(error, ()))


def unfit(attempt: Attempt, explanation: str) -> Outcome:
    """The stored arguments do not fit the task's parameters: its code has changed since the job was enqueued."""
    task = attempt.task
    error = TypeError(
        f"{task.name}{task.parameters} does not take the stored arguments: {explanation}. "
        "Let the task take them as well, then replay the job."
    )
    return _death(attempt, DeathReason.BAD_PAYLOAD, _described(error, ()))


def handed_back(attempt: Attempt) -> Outcome:
    """The worker ends, or the lease is lost, before the task does: back to ready, not counted as its failure."""
    return _outcome(attempt, RunStatus.RELEASED, Then.RETURN, charge=Charge.INTERRUPTION)


def undone(attempt: Attempt, error: BaseException) -> Outcome:
    """The connection broke before an atomic task was committed: nothing is left of it, nobody is charged."""
    return _outcome(attempt, RunStatus.RELEASED, Then.RETRY, delay=UNDONE_DELAY, error=_described(error, ()))


def _is_late(error: BaseException) -> bool:
    """Whether it is the time limit, or what the task raised while it handled that."""
    link: BaseException | None = error
    for _ in range(LONGEST_CHAIN):
        if link is None or isinstance(link, TimeLimitExceeded):
            break
        link = link.__cause__ or link.__context__
    return isinstance(link, TimeLimitExceeded)


def _aware(moment: datetime | None) -> datetime | None:
    """The moment as the database takes it: a naive one is read in the current time zone, as Django does."""
    if moment is None or not settings.USE_TZ or timezone.is_aware(moment):
        return moment
    return timezone.make_aware(moment)


def _is_retried(attempt: Attempt, error: BaseException) -> bool:
    task = attempt.task
    if isinstance(error, task.give_up_on):
        return False
    if isinstance(error, (Retry, *task.retry_on)):
        return True
    # SystemExit and the like end a process, not a job: they count as an Exception would.
    return not isinstance(error, Exception) and Exception in task.retry_on


def _failure(attempt: Attempt, error: BaseException, record: ErrorRecord, status: RunStatus) -> Outcome:
    failures = attempt.run.failures + 1
    if failures >= attempt.task.effective(attempt.run.options).max_attempts:
        return _death(attempt, DeathReason.OUT_OF_TRIES, record, status=status)
    delay = error.delay if isinstance(error, Retry) and error.delay is not None else _delay(attempt, failures, error)
    return _outcome(attempt, status, Then.RETRY, charge=Charge.FAILURE, delay=delay, error=record)


def _delay(attempt: Attempt, failures: int, error: BaseException) -> timedelta:
    try:
        return attempt.task.backoff.delay(failures, exception=error)
    except Exception as second:  # noqa: BLE001  a project's own policy must not strand the job
        logs.service_failed(f"backoff of {attempt.task.name}", second)
        return Backoff().delay(failures)


def _death(attempt: Attempt, reason: DeathReason, record: ErrorRecord, status: RunStatus = RunStatus.FAILED) -> Outcome:
    return _outcome(attempt, status, Then.DIE, charge=Charge.FAILURE, reason=reason, error=record)


def _outcome(attempt: Attempt, status: RunStatus, then: Then, **details: Any) -> Outcome:
    started = attempt.started or attempt.claimed
    return Outcome(
        attempt.run,
        status,
        then,
        started_after=started - attempt.claimed,
        duration=time.monotonic() - started,
        **details,
    )


def _result(value: Any, secrets: Collection[str]) -> str:
    text = codec.encode_result(value, max_size=get_settings().MAX_RESULT_SIZE)
    return json.dumps(_masked(json.loads(text), secrets), ensure_ascii=False) if secrets else text


def _masked(value: Any, secrets: Collection[str]) -> Any:
    if isinstance(value, str):
        return errors.mask(value, secrets)
    if isinstance(value, list):
        return [_masked(each, secrets) for each in value]
    if isinstance(value, dict):
        return {errors.mask(key, secrets): _masked(each, secrets) for key, each in value.items()}
    return value


def _described(error: BaseException, secrets: Collection[str]) -> ErrorRecord:
    """The error as it is stored, starting at the task's own frames."""
    try:
        return errors.describe(error.with_traceback(_without_own_frames(error.__traceback__)), secrets=secrets)
    except BaseException as second:  # noqa: BLE001  memory may be short, or the error's own __str__ may raise
        name = type(error).__name__
        return ErrorRecord(name, f"{name} could not be described: {type(second).__name__}.", "", "undescribed")


def _without_own_frames(trace: types.TracebackType | None) -> types.TracebackType | None:
    inner = trace
    while inner is not None and inner.tb_frame.f_code.co_filename.startswith(OWN_FOLDER):
        inner = inner.tb_next
    return inner or trace

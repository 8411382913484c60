"""What becomes of a run, by how its task ended. No database is needed to decide that."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from django_jobs import Backoff, GiveUp, JobContext, Retry, Snooze, TimeLimitExceeded, current_job
from django_jobs.runs import Charge, Then
from django_jobs.statuses import DeathReason, RunStatus
from tests.execution.attempts import declared, run

MINUTE = timedelta(minutes=1)
TOMORROW = datetime(2026, 8, 6, tzinfo=UTC)

RETRIED = (RunStatus.FAILED, Then.RETRY, Charge.FAILURE, None)


def died(reason: DeathReason, status: RunStatus = RunStatus.FAILED) -> tuple[Any, ...]:
    return status, Then.DIE, Charge.FAILURE, reason


ENDINGS: list[tuple[str, BaseException, dict[str, Any], dict[str, Any], tuple[Any, ...]]] = [
    ("an error is retried", ValueError(), {}, {}, RETRIED),
    ("the last try", ValueError(), {"max_attempts": 3}, {"failures": 2}, died(DeathReason.OUT_OF_TRIES)),
    ("one attempt allowed", ValueError(), {"max_attempts": 1}, {}, died(DeathReason.OUT_OF_TRIES)),
    ("the job allows more", ValueError(), {"max_attempts": 1}, {"options": {"max_attempts": 2}}, RETRIED),
    ("the job allows less", ValueError(), {}, {"options": {"max_attempts": 1}}, died(DeathReason.OUT_OF_TRIES)),
    ("crashes are no failures", ValueError(), {"max_attempts": 2}, {"crashes": 2, "attempt": 3}, RETRIED),
    ("of a kind to retry", KeyError(), {"retry_on": (LookupError,)}, {}, RETRIED),
    ("not of a kind to retry", ValueError(), {"retry_on": (LookupError,)}, {}, died(DeathReason.NOT_RETRIED)),
    ("of a kind to give up on", KeyError(), {"give_up_on": (LookupError,)}, {}, died(DeathReason.NOT_RETRIED)),
    ("the task gives up", GiveUp("no such account"), {}, {}, died(DeathReason.GAVE_UP)),
    ("the task asks for a retry", Retry("busy"), {"retry_on": (LookupError,)}, {}, RETRIED),
    ("it asks once too often", Retry("busy"), {"max_attempts": 1}, {}, died(DeathReason.OUT_OF_TRIES)),
    ("SystemExit", SystemExit(1), {}, {}, RETRIED),
    ("KeyboardInterrupt", KeyboardInterrupt(), {}, {}, RETRIED),
    ("GeneratorExit", GeneratorExit(), {}, {}, RETRIED),
    ("MemoryError", MemoryError(), {}, {}, RETRIED),
    ("RecursionError", RecursionError(), {}, {}, RETRIED),
    ("SystemExit, narrow", SystemExit(1), {"retry_on": (LookupError,)}, {}, died(DeathReason.NOT_RETRIED)),
    (
        "too late",
        TimeLimitExceeded(),
        {"retry_on": (LookupError,)},
        {},
        (RunStatus.TIMED_OUT, Then.RETRY, Charge.FAILURE, None),
    ),
    (
        "too late, the last try",
        TimeLimitExceeded(),
        {"max_attempts": 1},
        {},
        died(DeathReason.OUT_OF_TRIES, RunStatus.TIMED_OUT),
    ),
    (
        "too late is given up on",
        TimeLimitExceeded(),
        {"give_up_on": (TimeLimitExceeded,)},
        {},
        died(DeathReason.NOT_RETRIED, RunStatus.TIMED_OUT),
    ),
]


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize(
    ("error", "options", "fields", "expected"), [e[1:] for e in ENDINGS], ids=[e[0] for e in ENDINGS]
)
def test_ending_decides_what_follows(
    error: BaseException, options: dict[str, Any], fields: dict[str, Any], expected: tuple[Any, ...], is_async: bool
) -> None:
    """CL-10, RT-07, WK-04."""

    def end() -> None:
        raise error

    async def aend() -> None:
        raise error

    with declared(aend if is_async else end, **options) as task:
        outcome = run(task, **fields)

    assert (outcome.status, outcome.then, outcome.charge, outcome.reason) == expected
    assert outcome.error is not None


def test_success_carries_the_result() -> None:
    def double(number: int) -> list[int]:
        return [2 * number]

    with declared(double, key_ttl=MINUTE) as task:
        outcome = run(task, 21)

    assert (outcome.status, outcome.then, outcome.charge) == (RunStatus.SUCCEEDED, Then.DONE, Charge.NOTHING)
    assert (outcome.result, outcome.key_ttl) == ("[42]", MINUTE)


@pytest.mark.parametrize(
    ("error", "delay", "until"),
    [(Snooze(delay=60), MINUTE, None), (Snooze(until=TOMORROW), None, TOMORROW)],
    ids=["delay", "until"],
)
def test_snooze_counts_as_nothing(error: Snooze, delay: timedelta | None, until: datetime | None) -> None:
    def doze() -> None:
        raise error

    with declared(doze, max_attempts=1) as task:
        outcome = run(task)

    assert (outcome.status, outcome.then, outcome.charge) == (RunStatus.RELEASED, Then.RETRY, Charge.NOTHING)
    assert (outcome.delay, outcome.until) == (delay, until)


def test_naive_snooze_is_read_in_the_current_time_zone(settings: Any) -> None:
    """RT-05."""
    settings.USE_TZ = True

    def doze() -> None:
        raise Snooze(until=datetime(2026, 8, 6, 2))  # noqa: DTZ001

    with declared(doze) as task:
        outcome = run(task)

    assert outcome.until == TOMORROW  # Berlin, in summer


def test_retry_waits_for_what_the_task_asked_else_for_the_backoff() -> None:
    def again(delay: float | None) -> None:
        raise Retry("busy", delay=delay)

    with declared(again, backoff=Backoff(base=40, factor=3, jitter="none")) as task:
        assert run(task, 7).delay == timedelta(seconds=7)
        assert run(task, None, failures=1).delay == timedelta(seconds=120)


def test_backoff_that_breaks_does_not_strand_the_job() -> None:
    class Broken:
        def delay(self, *args: Any, **kwargs: Any) -> timedelta:
            raise ZeroDivisionError

    def fail() -> None:
        raise ValueError

    with declared(fail) as task:
        object.__setattr__(task, "backoff", Broken())
        outcome = run(task)

    assert outcome.then is Then.RETRY
    assert outcome.delay is not None


@pytest.mark.parametrize(
    "payload", [None, 7, "text", [], {}, {"args": 1}, {"args": [{"$date": "nonsense"}], "kwargs": {}}], ids=repr
)
def test_unreadable_payload_is_dead_at_once(payload: Any) -> None:
    def note(*args: Any, **kwargs: Any) -> None: ...

    with declared(note) as task:
        outcome = run(task, payload=payload)

    if payload != {}:
        assert (outcome.then, outcome.reason) == (Then.DIE, DeathReason.BAD_PAYLOAD)


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("arguments", [(), ("a", "hunter2-secret")], ids=["too few", "too many"])
def test_arguments_that_do_not_fit_are_dead_without_being_told(arguments: tuple[str, ...], is_async: bool) -> None:
    """PL-13: the task's code has changed since the job was enqueued."""

    def note(label: str) -> None: ...

    async def anote(label: str) -> None: ...

    with declared(anote if is_async else note) as task:
        outcome = run(task, *arguments)

    assert outcome.then is Then.DIE
    assert outcome.error is not None
    assert "label" in outcome.error.text
    assert "hunter2-secret" not in repr(outcome.error)


def test_type_error_inside_the_task_is_an_ordinary_failure() -> None:
    def note(label: str) -> None:
        len(label, label)  # type: ignore[call-arg]

    with declared(note) as task:
        assert run(task, "a").then is Then.RETRY


@pytest.mark.parametrize(
    "result", [object(), float("nan"), "x" * 5_000_000, {1, 2}], ids=["object", "nan", "5 MB", "set"]
)
def test_result_that_cannot_be_stored_is_dead_at_once(result: Any) -> None:
    """PL-14."""

    def answer() -> Any:
        return result

    with declared(answer, max_attempts=5) as task:
        outcome = run(task)

    assert (outcome.status, outcome.then) == (RunStatus.FAILED, Then.DIE)
    assert outcome.reason is DeathReason.BAD_RESULT
    assert outcome.error is not None
    assert outcome.error.text


def test_sensitive_arguments_are_masked_in_errors_and_results() -> None:
    """PL-13."""

    def log_in(user: str, password: str, fail: bool) -> dict[str, Any]:
        if fail:
            raise ValueError(f"{user} could not log in with {password}")
        return {"echo": [password, f"<{password}>"], password: 1}

    with declared(log_in, sensitive=["password"]) as task:
        failed, succeeded = (run(task, "ann-smith", 'hunter2-"secret"', fail) for fail in (True, False))

    assert "hunter2" not in repr(failed.error)
    assert "ann-smith" in repr(failed.error)
    assert succeeded.result is not None
    assert "hunter2" not in succeeded.result
    assert succeeded.then is Then.DONE


def test_traceback_begins_in_the_task_and_holds_no_values() -> None:
    def fail(password: str) -> None:
        raise ValueError("no")

    with declared(fail) as task:
        outcome = run(task, "hunter2-secret")

    assert outcome.error is not None
    assert "fail" in outcome.error.traceback
    assert "django_jobs/execution" not in outcome.error.traceback
    assert "hunter2-secret" not in outcome.error.traceback


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_task_sees_its_job(is_async: bool) -> None:
    seen: list[JobContext | None] = []

    def look(context: JobContext) -> None:
        seen.extend([context, current_job()])

    async def alook(context: JobContext) -> None:
        seen.extend([context, current_job()])

    with declared(alook if is_async else look, takes_context=True, timeout=60) as task:
        run(task, attempt=3, failures=2)

    context, current = seen
    assert context is current
    assert context is not None
    assert (context.attempt, context.failures) == (3, 2)
    assert timedelta(seconds=50) < context.remaining() <= MINUTE
    assert not context.should_stop
    assert current_job() is None

"""Time limits in the threads of a worker: an interruption ends its own task, and nothing else."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from django_jobs import JobContext
from django_jobs.execution import Attempt, Recording
from django_jobs.runs import Outcome
from django_jobs.statuses import RunStatus
from django_jobs.worker import watchman
from django_jobs.worker.inbox import Inbox
from django_jobs.worker.threads import Threads
from django_jobs.worker.watchman import Watchman
from tests.execution.attempts import attempt, declared, nothing

LIMIT = 0.001  # seconds: the shortest that a task may have
TASKS = 10_000
AROUND = range(-50, 100)  # microseconds from the limit
PATIENCE = 60.0


@pytest.fixture
def _tight(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the watchman look without a pause, and the threads meet as often as can be."""
    monkeypatch.setattr(watchman, "TICK", 0)
    former = sys.getswitchinterval()
    sys.setswitchinterval(0.00002)
    yield
    sys.setswitchinterval(former)


@pytest.mark.slow
@pytest.mark.usefixtures("_tight")
def test_interruptions_of_ten_thousand_tasks_that_end_at_their_limit_never_stray(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each lands in its task or nowhere: not in the loop of its thread, and not in the next job."""
    inbox = Inbox()
    threads = Threads(6, inbox, Recording("default", nothing, nothing, nothing), lambda: False)
    slots = list(threads.slots)
    watching = Watchman(threads.running, lambda: (), nothing, inbox.put_stuck, lambda: False)

    def end_at_the_limit(context: JobContext, microseconds: int) -> None:
        assert context.deadline is not None
        end = context.deadline + microseconds / 1_000_000
        time.sleep(LIMIT / 2)
        while time.monotonic() < end:
            pass

    def follow(context: JobContext) -> int:
        return sum(range(100))

    with declared(end_at_the_limit, timeout=LIMIT, takes_context=True) as ending:
        late = [attempt(ending, AROUND[number % len(AROUND)]) for number in range(TASKS)]
    with declared(follow, takes_context=True) as following:
        others = [attempt(following) for _ in range(TASKS)]
    try:
        threads.submit([each for pair in zip(late, others, strict=True) for each in pair], len(slots))
        outcomes = _take(inbox, 2 * TASKS)
    finally:
        watching.stop()
        assert threads.end(PATIENCE)

    statuses = Counter(outcomes[each].status for each in late)
    assert set(statuses) == {RunStatus.SUCCEEDED, RunStatus.TIMED_OUT}
    assert min(statuses.values()) > TASKS / 100, "too few of them met their limit"
    assert all(each.sent for each in late if outcomes[each].status == RunStatus.TIMED_OUT)
    assert {(outcomes[each].status, outcomes[each].result, each.sent) for each in others} == {
        (RunStatus.SUCCEEDED, "4950", False)
    }
    assert threads.slots == slots, "no thread had to be replaced"
    assert not caplog.records, "nothing landed in the loop of a thread"


def _take(inbox: Inbox, count: int) -> dict[Attempt, Outcome]:
    """What became of so many; each once."""
    ended: list[tuple[Attempt, Outcome | None]] = []
    until = time.monotonic() + PATIENCE
    while len(ended) < count and time.monotonic() < until:
        inbox.wait(0.1)
        ended += inbox.take_ended()
    outcomes = {each: outcome for each, outcome in ended if outcome is not None}
    assert len(ended) == len(outcomes) == count
    return outcomes

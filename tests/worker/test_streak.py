"""A full queue is claimed from beyond what it gave last, for a while."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest

from django_jobs.runs import ClaimedRun
from django_jobs.worker.streak import LONGEST, SHARE, SHORTEST, Streak

MOMENT = datetime(2030, 1, 1, tzinfo=UTC)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def runs(count: int, queue_name: str = "default") -> list[ClaimedRun]:
    values: dict[str, Any] = {"queue_name": queue_name, "enqueued_at": MOMENT, "run_at": MOMENT, "claimed_at": MOMENT}
    fields: dict[str, Any] = {name: values.get(name, 0) for name in ClaimedRun._fields}
    return [ClaimedRun(**{**fields, "job_id": uuid4()}) for _ in range(count)]


def begun(clock: Clock, seconds: float = 0.001, workers: int = 1) -> Streak:
    streak = Streak(clock=clock)
    streak.looked(runs(5), 5, seconds, workers)
    return streak


def test_full_batch_of_one_queue_begins_one_beyond_its_last_job(clock: Clock) -> None:
    streak = Streak(clock=clock)
    batch = runs(5)
    streak.looked(batch, 5, 0.001)
    assert (streak.queue_name, streak.full, streak.after) == ("default", "default", batch[-1])


@pytest.mark.parametrize("batch", [[], runs(4), [*runs(2), *runs(3, "mail")]])
def test_batch_that_is_short_or_of_several_queues_begins_none(clock: Clock, batch: list[ClaimedRun]) -> None:
    streak = Streak(clock=clock)
    streak.looked(batch, 5, 0.001)
    assert (streak.queue_name, streak.full, streak.after) == (None, None, None)


@pytest.mark.parametrize(
    ("cost", "workers", "length"),
    [(0.0, 1, SHORTEST), (0.05, 1, SHARE * 0.05), (5.0, 1, LONGEST), (0.001, 3, 3 * SHORTEST), (0.001, 40, LONGEST)],
    ids=["cheap", "dear", "dearest", "three take turns", "forty take turns"],
)
def test_it_lasts_the_longer_the_dearer_the_look_before_it_was_and_the_more_look(
    clock: Clock, cost: float, workers: int, length: float
) -> None:
    streak = begun(clock, cost, workers)
    names = []
    for seconds in (length - 0.01, 0.02):
        clock.now += seconds
        streak.claimed(runs(5), 5)
        names.append(streak.queue_name)
    assert names == ["default", None]
    assert streak.full == "default"  # need not be looked for: it gave all that was asked for, to the last


def test_short_batch_is_followed_by_one_from_the_start(clock: Clock) -> None:
    """What it left out may have been locked by others, who might give it back."""
    streak = begun(clock)
    streak.claimed(runs(3), 5)
    assert (streak.queue_name, streak.full, streak.after) == ("default", None, None)


def test_empty_batch_ends_it(clock: Clock) -> None:
    streak = begun(clock)
    streak.claimed([], 5)
    assert (streak.queue_name, streak.full, streak.after) == (None, None, None)

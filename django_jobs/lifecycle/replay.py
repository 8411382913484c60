"""DeadLetter(open) -> DeadLetter(replayed) and a new Job, or DeadLetter(discarded)."""

from __future__ import annotations

import enum
import json
import random
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import NamedTuple
from uuid import UUID

from django.db import connections

from django_jobs import ids, logs
from django_jobs.database import read_clock, write_transaction
from django_jobs.lifecycle.enqueue import Enqueued, NewJob, enqueue
from django_jobs.models import DeadLetter
from django_jobs.registry import Task, find
from django_jobs.statuses import LetterStatus


class ReplayResult(enum.Enum):
    REPLAYED = "replayed"
    ALREADY_REPLAYED = "already_replayed"
    DISCARDED = "discarded"
    KEY_TAKEN = "key_taken"
    UNKNOWN_TASK = "unknown_task"
    MISSING = "missing"


class Replay(NamedTuple):
    """What became of the replay of one letter. `job_id`: the new job; the first replay's; or the key's holder."""

    letter_id: int
    result: ReplayResult
    job_id: UUID | None
    message: str


def replay(letter_id: int, *, by: str, using: str) -> Replay:
    """Send one dead letter back; see `replay_many`."""
    return replay_many([letter_id], by=by, using=using)[0]


def replay_many(
    letter_ids: Sequence[int],
    *,
    by: str,
    using: str,
    spread: timedelta = timedelta(0),
    rand: Callable[[], float] = random.random,
) -> list[Replay]:
    """Make a new job of each of these letters that is open, in one transaction, and say per letter what happened.

    The new job starts its counters afresh and keeps task, queue, priority, arguments, options, key and the time it was first
    enqueued. It goes through the guard: a letter whose key is held stays open. The starts are spread at random over `spread`.
    """
    with write_transaction(using):
        letters = _lock(letter_ids, using=using)
        jobs = {
            letter.id: _as_job(letter, task, spread * rand())
            for letter in letters.values()
            if letter.status == LetterStatus.OPEN and (task := find(letter.task_name))
        }
        answers = dict(zip(jobs, enqueue(list(jobs.values()), using=using), strict=True))
        _close(letters, answers, by=by, using=using)
    replays = [_replay(letter_id, letters.get(letter_id), answers.get(letter_id)) for letter_id in letter_ids]
    for each in replays:
        if each.result is ReplayResult.REPLAYED and each.job_id:
            logs.letter_replayed(each.letter_id, job_id=each.job_id, by=by)
    return replays


def discard(letter_id: int, *, by: str, using: str) -> bool:
    """Close an open letter for good. False if it was not open."""
    rows = DeadLetter.objects.using(using).filter(id=letter_id, status=LetterStatus.OPEN)
    closed = rows.update(status=LetterStatus.DISCARDED, closed_at=read_clock(using), closed_by=by[:254]) == 1
    if closed:
        logs.letter_discarded(letter_id, by=by)
    return closed


def _lock(letter_ids: Sequence[int], *, using: str) -> dict[int, DeadLetter]:
    # In one order, and waiting: a second replay of the same letter reads what the first one left.
    rows = DeadLetter.objects.using(using).filter(id__in=letter_ids).order_by("id")
    if connections[using].features.has_select_for_update:
        rows = rows.select_for_update()
    return {letter.id: letter for letter in rows}


def _as_job(letter: DeadLetter, task: Task, delay: timedelta) -> NewJob:
    return NewJob(
        id=ids.job_id(),
        task_name=letter.task_name,
        queue_name=letter.queue_name,
        priority=letter.priority,
        payload=json.dumps(letter.payload, ensure_ascii=False),
        options=letter.options,
        delay=delay or None,
        key=letter.key,
        scope=task.key_scope,
        uniqueness=letter.uniqueness,
        enqueued_at=letter.enqueued_at,
    )


def _close(letters: dict[int, DeadLetter], answers: dict[int, Enqueued], *, by: str, using: str) -> None:
    now = read_clock(using)
    replayed = [letters[letter_id] for letter_id, answer in answers.items() if answer.created]
    for letter in replayed:
        letter.status, letter.replayed_as = LetterStatus.REPLAYED, answers[letter.id].id
        letter.closed_at, letter.closed_by = now, by[:254]
    fields = ["status", "replayed_as", "closed_at", "closed_by"]
    DeadLetter.objects.using(using).bulk_update(replayed, fields, batch_size=200)


def _replay(letter_id: int, letter: DeadLetter | None, answer: Enqueued | None) -> Replay:
    if letter is None:
        return Replay(letter_id, ReplayResult.MISSING, None, f"Dead letter {letter_id} does not exist any more.")
    if answer is not None and answer.created:
        return Replay(letter_id, ReplayResult.REPLAYED, answer.id, f"Replayed as job {answer.id}.")
    if answer is not None:
        message = f"Not replayed: the key {letter.key!r} is held by job {answer.id}."
        return Replay(letter_id, ReplayResult.KEY_TAKEN, answer.id, message)
    if letter.status == LetterStatus.REPLAYED:
        message = f"Already replayed as job {letter.replayed_as} by {letter.closed_by}."
        return Replay(letter_id, ReplayResult.ALREADY_REPLAYED, letter.replayed_as, message)
    if letter.status == LetterStatus.DISCARDED:
        return Replay(letter_id, ReplayResult.DISCARDED, None, f"Not replayed: it was discarded by {letter.closed_by}.")
    message = f"Not replayed: no task named {letter.task_name!r} is registered here."
    return Replay(letter_id, ReplayResult.UNKNOWN_TASK, None, message)

"""DeadLetter(open) -> DeadLetter(replayed) and a new Job, or DeadLetter(discarded)."""

from __future__ import annotations

import enum
import random
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import NamedTuple
from uuid import UUID

from django.db import connections
from django.db.models import Case, TextField, UUIDField, Value, When
from django.db.models.functions import Cast

from django_jobs import ids, logs
from django_jobs.database import forced_index, lock_rows, read_clock, write_transaction
from django_jobs.lifecycle.enqueue import Enqueued, NewJob, enqueue
from django_jobs.models import DeadLetter
from django_jobs.registry import Task, find
from django_jobs.statuses import LetterStatus

CLOSED_AT_ONCE = 200  # letters


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

    The new job starts its counters afresh and keeps task, queue, priority, arguments, options, key and the time it was
    first enqueued. It goes through the guard: a letter whose key is held stays open. The starts are spread at random
    over `spread`.
    """
    with write_transaction(using):
        letters = _lock(letter_ids, using=using)
        texts = _json_texts(letters, using=using)
        jobs = {
            letter.id: _as_job(letter, *texts[letter.id], task, spread * rand())
            for letter in letters.values()
            if letter.status == LetterStatus.OPEN and (task := find(letter.task_name))
        }
        answers = dict(zip(jobs, enqueue(list(jobs.values()), using=using), strict=True))
        _close(answers, by=by, using=using)
    replays = [_replay(letter_id, letters.get(letter_id), answers.get(letter_id)) for letter_id in letter_ids]
    for each in replays:
        if each.result is ReplayResult.REPLAYED and each.job_id:
            logs.letter_replayed(each.letter_id, job_id=each.job_id, by=by)
    return replays


def discard(letter_id: int, *, by: str, using: str) -> bool:
    """Close an open letter for good. False if it was not open."""
    rows = DeadLetter.objects.using(using).filter(id=letter_id, status=LetterStatus.OPEN)
    changes = {"status": LetterStatus.DISCARDED, "closed_at": read_clock(using), "closed_by": by[:254]}
    with forced_index("PRIMARY", using=using):
        closed = rows.update(**changes) == 1
    if closed:
        logs.letter_discarded(letter_id, by=by)
    return closed


def _lock(letter_ids: Sequence[int], *, using: str) -> dict[int, DeadLetter]:
    # In one order, and waiting: a second replay of the same letter reads what the first one left.
    rows = DeadLetter.objects.using(using).filter(id__in=letter_ids).defer("payload", "options").order_by("id")
    return {letter.id: letter for letter in lock_rows(rows, using=using, wait=True)}


def _json_texts(letter_ids: Iterable[int], *, using: str) -> dict[int, tuple[str, str | None]]:
    """The text of each letter's payload and options: not every value that a column holds survives being parsed."""
    rows = DeadLetter.objects.using(using).filter(id__in=list(letter_ids))
    texts = rows.values_list("id", Cast("payload", TextField()), Cast("options", TextField()))
    return {letter_id: (payload, options) for letter_id, payload, options in texts}


def _as_job(letter: DeadLetter, payload: str, options: str | None, task: Task, delay: timedelta) -> NewJob:
    return NewJob(
        id=ids.job_id(),
        task_name=letter.task_name,
        queue_name=letter.queue_name,
        priority=letter.priority,
        payload=payload,
        options=options,
        delay=delay or None,
        key=letter.key,
        scope=task.key_scope,
        uniqueness=letter.uniqueness,
        enqueued_at=letter.enqueued_at,
    )


def _close(answers: dict[int, Enqueued], *, by: str, using: str) -> None:
    now = read_clock(using)
    replayed = [(letter_id, answer.id) for letter_id, answer in answers.items() if answer.created]
    for start in range(0, len(replayed), CLOSED_AT_ONCE):
        new_ids = dict(replayed[start : start + CLOSED_AT_ONCE])
        # Not bulk_update, which writes a CASE for each column: four times the cost, and three of them are the same.
        changes = {"status": LetterStatus.REPLAYED, "closed_at": now, "closed_by": by[:254]}
        with forced_index("PRIMARY", using=using):
            rows = DeadLetter.objects.using(using).filter(id__in=new_ids)
            rows.update(**changes, replayed_as=_looked_up(new_ids, using=using))


def _looked_up(new_ids: dict[int, UUID], *, using: str) -> Case | Cast:
    whens = (When(id=letter_id, then=Value(job_id, output_field=UUIDField())) for letter_id, job_id in new_ids.items())
    case = Case(*whens, output_field=UUIDField())
    if connections[using].features.requires_casted_case_in_updates:
        return Cast(case, output_field=UUIDField())
    return case


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

"""What a supervisor can still read when a worker's process is dead: who it was, and what it had not started."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Callable, Sequence
from datetime import datetime
from uuid import UUID

from django_jobs.execution import Attempt
from django_jobs.runs import ClaimedRun

SLACK = 50  # microseconds by which a moment may be off that was read as a float; no claim follows another sooner
PLACES = 4096  # more claims than a worker lets wait: whose place is taken by another counts as started
_NEWEST, _HIGH, _LOW, _SPENT, _FIRST = range(5)  # cells of eight bytes: claim, identity, identity, flag, places
_LAST = _FIRST + PLACES - 1
_SIZE = 8 * (_LAST + 1)
_WORD = 2**64 - 1


class Marks:
    """Memory that a worker shares with its supervisor, because what a process knew dies with it.

    A row that a dead worker holds may have been running, or only have been claimed ahead; the database is not told of
    starts, for that would cost a write each. Here a start costs one store: each claim has a place, which holds its
    mark until the claim is started. What is in doubt counts as started.
    """

    def __init__(self, file: int) -> None:
        self._memory = mmap.mmap(file, _SIZE)
        self._cells = memoryview(self._memory).cast("Q")
        self._place = _LAST  # of the latest mark

    @classmethod
    def create(cls) -> tuple[Marks, int]:
        """New marks, and the file that their worker inherits; close it once that has been started."""
        if hasattr(os, "memfd_create"):  # Linux: no folder has to be writable
            descriptor = os.memfd_create("django-jobs-marks")
        else:
            with tempfile.TemporaryFile() as file:
                descriptor = os.dup(file.fileno())
        os.ftruncate(descriptor, _SIZE)
        return cls(descriptor), descriptor

    def close(self) -> None:
        self._cells.release()
        self._memory.close()

    # By the worker.

    def identify(self, worker_id: UUID) -> None:
        """This is who claims from now on."""
        self._cells[_HIGH], self._cells[_LOW] = worker_id.int >> 64, worker_id.int & _WORD

    def note_spent(self) -> None:
        """This process ends to be replaced, not because there is nothing to do."""
        self._cells[_SPENT] = 1

    def note_claimed(self, attempts: Sequence[Attempt]) -> None:
        """These may be started from now on, and are not yet; the last claim last. By the one thread that claims."""
        cells, place = self._cells, self._place
        for attempt in attempts:
            place = place + 1 if place < _LAST else _FIRST
            attempt.place = place
            run = attempt.run
            cells[place] = (run.job_id.int + run.claim_number) & _WORD
        self._place = place
        cells[_NEWEST] = _moment(attempts[-1].run.claimed_at)

    def note_start(self, attempt: Attempt) -> None:
        """This is started now. By any thread."""
        self._cells[attempt.place] = 0

    # By the supervisor.

    @property
    def worker_id(self) -> UUID | None:
        """Who claimed last; None if nobody has registered."""
        number = (self._cells[_HIGH] << 64) | self._cells[_LOW]
        return UUID(int=number) if number else None

    @property
    def is_spent(self) -> bool:
        return self._cells[_SPENT] != 0

    def read_unstarted(self) -> Callable[[ClaimedRun], bool]:
        """A test for what the dead worker held and had certainly not started."""
        newest, marks = self._cells[_NEWEST], frozenset(self._cells[_FIRST:])

        def is_unstarted(run: ClaimedRun) -> bool:
            # A claim newer than all that were marked was committed, but its answer was not yet read.
            mark = (run.job_id.int + run.claim_number) & _WORD  # the fence; the lower half of an id is random
            return _moment(run.claimed_at) > newest + SLACK or mark in marks

        return is_unstarted


def _moment(claimed_at: datetime) -> int:
    return int(claimed_at.timestamp() * 1_000_000)

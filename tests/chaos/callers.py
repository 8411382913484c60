"""Those who ask for jobs, cancel them, and send dead letters back: threads with connections of their own."""

from __future__ import annotations

import threading
from random import Random
from typing import Any

from django.db import DatabaseError, connection, connections, transaction

from django_jobs import JobDoesNotExist, JobHandle, cancel, enqueue, enqueue_many
from django_jobs.lifecycle import replay
from django_jobs.models import DeadLetter, Job
from django_jobs.statuses import LetterStatus
from tests.chaos import tasks
from tests.chaos.models import Asked, Cancelled, Cured

MOST_LIVE = 300  # jobs: callers wait while there are more
KINDS = {
    "plain": 20, "atomic": 20, "guarded": 20, "ever": 12, "live": 8, "queued": 8, "delayed": 10, "slow": 4, "aslow": 4,
    "doomed": 4, "late": 2, "deadly": 0.4,
}  # fmt: skip
PRIORITIES = (0, 0, 10, -5)


class Beside(threading.Thread):
    """Does one `step` after another until it is told to stop; where the database is away, it tries again."""

    pause = 0.1  # seconds, on average

    def __init__(self, name: str, seed: object, stop: threading.Event, port: int | None = None) -> None:
        super().__init__(name=name, daemon=True)
        self.rand = Random(f"{seed} {name}")
        self.violations: list[str] = []
        self._stop_event = stop
        self._port = port

    def run(self) -> None:
        # Its own wrapper of a connection: others may use another way to the database.
        own = connections["default"]
        own.settings_dict = {**own.settings_dict, "PORT": self._port or own.settings_dict["PORT"]}
        while not self._stop_event.wait(self.rand.expovariate(1 / self.pause)):
            try:
                self.step()
            except DatabaseError:
                connection.close()
        connection.close()

    def step(self) -> None:
        raise NotImplementedError


class Caller(Beside):
    """Enqueues, in transactions of which a third roll back."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.rolled_back: set[str] = set()  # labels
        self._count = 0

    def step(self) -> None:
        if Job.objects.count() > MOST_LIVE:
            return
        labels: list[str] = []
        rolls_back = self.rand.random() < 1 / 3
        if rolls_back:
            # Before it is known how it ends: no answer of the server can make it commit.
            labels = self.labels(self.rand.randint(1, 5))
            self.rolled_back.update(labels)
        with transaction.atomic():
            for label in labels or self.labels(self.rand.randint(1, 5)):
                self.ask(label)
            if self.rand.random() < 0.2:
                self._ask_in_savepoint()
            if rolls_back:
                transaction.set_rollback(True)

    def labels(self, count: int) -> list[str]:
        self._count += count
        return [f"{self.name}-{self._count - number}" for number in range(count)]

    def ask(self, label: str) -> None:
        (kind,) = self.rand.choices(list(KINDS), list(KINDS.values()))
        for handle in self._enqueue(kind, label):
            if handle.created:
                Asked.objects.create(job_id=handle.id, kind=kind, label=label)

    def _ask_in_savepoint(self) -> None:
        (label,) = self.labels(1)
        self.rolled_back.add(label)
        with transaction.atomic():
            self.ask(label)
            transaction.set_rollback(True)

    def _enqueue(self, kind: str, label: str) -> list[JobHandle]:
        trouble = self.rand.choice([0, 0, 0, 0, 1, 2])
        task: Any = getattr(tasks, kind, tasks.plain)
        arguments: list[Any] = [label, trouble]
        if kind in {"ever", "live", "queued"}:
            task = task.using(key=f"{kind}-{self.rand.randint(1, 40)}", unique=kind)
        if kind == "delayed":
            task = task.using(delay=self.rand.uniform(0.1, 5))
        if kind in {"slow", "aslow"}:
            arguments = [label, self.rand.uniform(0.2, 5)]
        if kind in {"doomed", "late", "deadly"}:
            arguments = [label]
        task = task.using(priority=self.rand.choice(PRIORITIES))
        if kind in {"plain", "atomic", "guarded"}:
            return enqueue_many([task.bind(*arguments)])
        return [enqueue(task, *arguments)]


class Meddler(Beside):
    """Cancels jobs, and sends dead letters back, some of them with the cure."""

    pause = 0.3

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.cancelled = 0
        self.replayed = 0

    def step(self) -> None:
        if self.rand.random() < 0.6:
            self._cancel()
        else:
            self._replay()

    def _cancel(self) -> None:
        """A live one, mostly; there the fence of a run under way is taken."""
        rows = Job.objects if self.rand.random() < 0.8 else Asked.objects
        field = "id" if rows is Job.objects else "job_id"
        ids = list(rows.order_by("-id").values_list(field, flat=True)[:50])
        if not ids:
            return
        job_id = self.rand.choice(ids)
        try:
            with transaction.atomic():
                if cancel(job_id):
                    Cancelled.objects.create(job_id=job_id)
        except JobDoesNotExist:
            self.violations.append(f"job {job_id} was committed, and cancel() says it does not exist")
        else:
            self.cancelled += 1

    def _replay(self) -> None:
        letters = list(DeadLetter.objects.filter(status=LetterStatus.OPEN).values_list("id", "job_id")[:50])
        if not letters:
            return
        letter_id, job_id = self.rand.choice(letters)
        with transaction.atomic():
            asked = Asked.objects.get(job_id=job_id)
            if self.rand.random() < 0.8:
                Cured.objects.get_or_create(label=asked.label)
            answer = replay.replay(letter_id, by=self.name, using="default")
            if answer.result is replay.ReplayResult.REPLAYED and answer.job_id:
                Asked.objects.create(job_id=answer.job_id, kind=asked.kind, label=asked.label)
        self.replayed += 1

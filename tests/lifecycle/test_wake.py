"""Sleeping workers are told of what they could run, and only they."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import DataError, connection, transaction
from django.test.utils import CaptureQueriesContext

from django_jobs import enqueue, enqueue_many
from django_jobs.database import Clock
from django_jobs.lifecycle import claim, extend, finish, release, rescue, wake
from django_jobs.models import Job, Worker
from django_jobs.runs import Charge, Outcome, Then, WorkerIdentity
from django_jobs.statuses import RunStatus
from tests.doctor.sessions import another_session
from tests.lifecycle.steps import claim_all, failed, finish_all
from tests.lifecycle.threads import OpenTransaction, Threads, at_once
from tests.tasks import mail, note

pytestmark = [pytest.mark.postgres, pytest.mark.django_db(transaction=True)]

Heard = Callable[[], list[str]]


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Iterator[Heard]:
    """What has been notified since it was last called."""
    monkeypatch.setattr(wake, "_until", {})
    with another_session() as session:
        with session.cursor() as cursor:
            cursor.execute("LISTEN django_jobs")
        raw: Any = session.connection

        def take() -> list[str]:
            # What was sent before this is answered has arrived by then.
            raw.execute("SELECT 1")
            return sorted(notice.payload for notice in raw.notifies(timeout=0))

        yield take


def send_again() -> None:
    """Forget what was sent or found needless just now."""
    wake._until.clear()


def asleep(name: str, queue_names: list[str] | None = None) -> WorkerIdentity:
    return extend.register(name, queue_names, [note.name], using="default")


def awake(name: str, queue_names: list[str] | None = None) -> WorkerIdentity:
    worker = asleep(name, queue_names)
    extend.note_awake(worker, True, using="default")
    return worker


class TestWhoIsWoken:
    def test_nobody_where_no_worker_is(self, heard: Heard) -> None:
        enqueue(note, "x")
        assert heard() == []

    def test_one_that_sleeps_among_others_that_do_not(self, heard: Heard) -> None:
        awake("busy")
        asleep("idle")
        enqueue(note, "x")
        assert heard() == ["default"]

    def test_nobody_while_all_are_awake(self, heard: Heard) -> None:
        awake("busy")
        enqueue(note, "x")
        assert heard() == []

    def test_nobody_for_a_queue_that_the_sleeper_does_not_serve(self, heard: Heard) -> None:
        asleep("mail only", ["mail"])
        awake("all")
        enqueue(note, "x")
        enqueue(mail, "x")
        assert heard() == ["mail"]

    def test_worker_of_a_release_that_does_not_say_whether_it_sleeps(self, heard: Heard) -> None:
        with connection.cursor() as cursor:
            cursor.execute(
                "INSERT INTO django_jobs_worker"
                " (id, name, host, pid, started_at, heartbeat_at, lease_expires_at, queue_names, task_names)"
                " VALUES (gen_random_uuid(), 'old', 'h', 1, now(), now(), now(), NULL, '[]')"
            )
        enqueue(note, "x")
        assert heard() == ["default"]

    def test_heartbeat_lets_sleepers_lie(self, heard: Heard) -> None:
        worker = awake("busy")
        assert extend.extend(worker, using="default")
        assert Worker.objects.get().is_awake


class TestWhenNothingIsSent:
    def test_transaction_that_is_rolled_back(self, heard: Heard) -> None:
        asleep("idle")
        with transaction.atomic():
            enqueue(note, "x")
            transaction.set_rollback(True)
        assert heard() == []

    def test_before_the_commit(self, heard: Heard) -> None:
        asleep("idle")
        with transaction.atomic():
            enqueue(note, "x")
            assert heard() == []
        assert heard() == ["default"]

    def test_queue_that_was_notified_just_now_or_had_no_sleeper(
        self, heard: Heard, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(wake, "DEBOUNCE", 60)
        monkeypatch.setattr(wake, "NOBODY", 60)
        enqueue(mail, "x")
        asleep("idle")
        for _ in range(3):
            enqueue(note, "x")
            enqueue(mail, "x")
        assert heard() == ["default"]

    def test_wake_up_that_failed_counts_as_not_sent(self, heard: Heard, monkeypatch: pytest.MonkeyPatch) -> None:
        asleep("idle")
        with monkeypatch.context() as patch:
            patch.setattr(wake, "_WAKE", "SELECT 1/0 WHERE 'a' IN (%s, %s, %s, 'a')")
            with pytest.raises(DataError):
                wake.wake(["default"], using="default")

        wake.wake(["default"], using="default")

        assert heard() == ["default"]


CLIENTS = 16


class TestWhatItCosts:
    """PG-03. What notifies commits alone: sixteen clients must not stand in one line."""

    def _enqueue_at_once(self) -> None:
        """Each client commits five times, and has enqueued fifty jobs then."""

        def client() -> None:
            for number in range(5):
                with transaction.atomic():
                    enqueue_many(note.bind(str(number)) for _ in range(10))

        at_once([client] * CLIENTS)
        assert Job.objects.count() == CLIENTS * 50

    def test_sixteen_clients_send_no_more_than_one_each_and_only_the_name_of_the_queue(
        self, heard: Heard, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(wake, "DEBOUNCE", 60)
        asleep("idle")
        self._enqueue_at_once()
        sent = heard()
        assert 1 <= len(sent) <= CLIENTS
        assert set(sent) == {"default"}

    def test_nothing_is_sent_where_it_is_switched_off(self, heard: Heard, settings: Any) -> None:
        settings.DJANGO_JOBS = {"NOTIFY": False}
        asleep("idle")
        self._enqueue_at_once()
        assert heard() == []

    def test_transaction_that_enqueues_does_not_notify_itself_and_one_statement_follows_it(self, heard: Heard) -> None:
        asleep("idle")
        with CaptureQueriesContext(connection) as captured, transaction.atomic():
            for _ in range(20):
                enqueue(note, "x")
            inside = len(captured)
        texts = [query["sql"] for query in captured]
        assert not any("pg_notify" in text for text in texts[:inside])
        assert sum("pg_notify" in text for text in texts[inside:]) == 1
        assert heard() == ["default"]

    def test_no_trigger_is_on_any_table(self) -> None:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT tgname FROM pg_trigger WHERE NOT tgisinternal AND tgrelid::regclass::text LIKE 'django_jobs_%'"
            )
            assert cursor.fetchall() == []


class TestWhatElseMakesJobsRunnable:
    """A sleeping worker looks seldom: whatever it could run has to be told to it."""

    @pytest.fixture
    def other(self, heard: Heard) -> WorkerIdentity:
        """A busy worker that holds two jobs; another one sleeps."""
        asleep("idle")
        worker = awake("busy")
        enqueue_many(note.bind(str(number)) for number in range(2))
        send_again()
        heard()
        return worker

    def test_retry_that_is_due_soon(self, other: WorkerIdentity, heard: Heard) -> None:
        finish_all([failed(claim_all(other, 1)[0], retry_in=timedelta(seconds=5))], other)
        assert heard() == ["default"]

    def test_not_a_retry_that_is_due_after_every_sleeper_has_looked(self, other: WorkerIdentity, heard: Heard) -> None:
        finish_all([failed(claim_all(other, 1)[0], retry_in=wake.LONGEST_SLEEP)], other)
        assert heard() == []

    def test_longer_interval_means_longer_sleep(self, other: WorkerIdentity, heard: Heard, settings: Any) -> None:
        settings.DJANGO_JOBS = {"POLL_INTERVAL": 60}
        finish_all([failed(claim_all(other, 1)[0], retry_in=timedelta(seconds=59))], other)
        assert heard() == ["default"]

    def test_job_that_was_interrupted(self, other: WorkerIdentity, heard: Heard) -> None:
        run = claim_all(other, 1)[0]
        finish.finish([Outcome(run, RunStatus.RELEASED, Then.RETURN, Charge.NOTHING)], other, using="default")
        assert heard() == ["default"]

    def test_job_that_is_handed_back(self, other: WorkerIdentity, heard: Heard) -> None:
        assert release.release([claim_all(other, 1)[0][:2]], other, using="default") == 1
        assert heard() == ["default"]

    def test_job_that_is_rescued(self, other: WorkerIdentity, heard: Heard, settings: Any) -> None:
        settings.DJANGO_JOBS = {"POLL_INTERVAL": 60}  # longer than its backoff
        claim_all(other, 1)
        Worker.objects.filter(id=other.id).update(lease_expires_at=Clock(timedelta(seconds=-1)))
        assert rescue.rescue(using="default") == 1
        assert heard() == ["default"]

    def test_job_that_was_parked_while_the_one_who_knows_it_looked(self, other: WorkerIdentity, heard: Heard) -> None:
        claim.claim(other, None, 1, frozenset(), using="default")
        assert heard() == ["default"]


class TestRace:
    """A worker falls asleep while a job is being committed: it is woken, or it sees the job."""

    def _see(self) -> list[str]:
        return claim.look(None, using="default").ready

    def test_job_that_was_written_before_and_committed_after_the_worker_fell_asleep(self, heard: Heard) -> None:
        worker = awake("w")
        with Threads() as threads:
            writer = OpenTransaction(threads, lambda: enqueue(note, "x"))
            assert self._see() == []
            extend.note_awake(worker, False, using="default")
            assert self._see() == []  # its look after that: the job is not committed
            writer.end()
        assert heard() == ["default"]

    def test_job_that_was_committed_and_not_notified_before_the_worker_fell_asleep(self, heard: Heard) -> None:
        worker = awake("w")
        assert self._see() == []
        enqueue(note, "x")
        assert heard() == []
        extend.note_awake(worker, False, using="default")
        assert self._see() == ["default"]

    def test_worker_whose_sleep_is_not_committed_yet(self, heard: Heard) -> None:
        """Whoever does not see it comes before its next look."""
        worker = awake("w")
        with Threads() as threads:
            falling = OpenTransaction(threads, lambda: extend.note_awake(worker, False, using="default"))
            enqueue(note, "x")
            assert heard() == []
            falling.end()
        assert self._see() == ["default"]

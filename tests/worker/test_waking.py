"""An idle worker is woken."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any

import pytest
from django.db import connection, connections

from django_jobs import enqueue, enqueue_many
from django_jobs.models import JobRun, Worker
from django_jobs.worker.listener import PATIENCE, Listener
from django_jobs.worker.wirecutter import Wirecutter
from tests.doctor.sessions import deaf_pooler
from tests.processes import Workers, wait_until
from tests.wire import Wire, reached_at
from tests.worker import tasks

pytestmark = [pytest.mark.race, pytest.mark.slow, pytest.mark.postgres]

SLOW_POLL = {"POLL_INTERVAL": 60}


def _is_listening() -> bool:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'"
        )
        return bool(cursor.fetchone()[0])


def test_commit_wakes_a_worker_that_polls_once_a_minute(workers: Workers) -> None:
    workers.start(settings=SLOW_POLL)
    wait_until(_is_listening)

    handles = [enqueue(tasks.plain_effect, "now"), enqueue(tasks.plain_effect.using(delay=0.5), "soon")]
    started = time.monotonic()
    wait_until(lambda: all(handle.get().is_finished for handle in handles), within=10)

    assert time.monotonic() - started < 5


def test_worker_finds_jobs_that_nobody_notifies(workers: Workers, settings: Any) -> None:
    """PG-03: wake-ups can be switched off."""
    settings.DJANGO_JOBS = off = {"NOTIFY": False, "POLL_INTERVAL": 0.1}
    workers.start(settings=off)
    wait_until(Worker.objects.exists, within=60)

    handle = enqueue(tasks.plain_effect, "unheard")

    wait_until(lambda: handle.get().is_finished)


def _end_listeners() -> int:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND query LIKE 'LISTEN%'"
        )
        return len(cursor.fetchall())


class TestListener:
    """Whether it hears: only as long as it does, looks may become rare."""

    @pytest.fixture
    def told(self) -> SimpleQueue[tuple[str, bool]]:
        """What the listener told, and whether it heard by then."""
        return SimpleQueue()

    @pytest.fixture
    def listener(self, transactional_db: None, told: SimpleQueue[tuple[str, bool]]) -> Iterator[Listener]:
        # It may tell before there is a name for it here.
        started: list[Listener] = []
        is_started = threading.Event()

        def tell(queue_name: str) -> None:
            is_started.wait()
            told.put((queue_name, started[0].hears))

        started.append(Listener("default", ["default"], tell))
        is_started.set()
        try:
            yield started[0]
        finally:
            started[0].stop()

    def test_it_hears_from_its_start_and_tells_the_queues_it_serves(
        self, listener: Listener, told: SimpleQueue[tuple[str, bool]]
    ) -> None:
        assert told.get(timeout=20) == ("", True)
        with connection.cursor() as cursor:
            for queue_name in ("other", "default"):
                cursor.execute("SELECT pg_notify('django_jobs', %s)", [queue_name])
        assert told.get(timeout=20) == ("default", True)

    def test_cut_connection_is_told_at_once_and_the_next_one_too(
        self, listener: Listener, told: SimpleQueue[tuple[str, bool]]
    ) -> None:
        assert told.get(timeout=20) == ("", True)
        assert _end_listeners() == 1

        assert told.get(timeout=20) == ("", False)
        assert told.get(timeout=20) == ("", True)

    def test_silence_of_a_connection_that_does_not_answer_ends_it(
        self, listener: Listener, told: SimpleQueue[tuple[str, bool]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert told.get(timeout=20) == ("", True)
        monkeypatch.setattr("django_jobs.worker.listener.ASK_EVERY", -PATIENCE)
        assert not listener.hears

    def test_connection_that_swallows_the_question_is_replaced(
        self, transactional_db: None, told: SimpleQueue[tuple[str, bool]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("django_jobs.worker.listener.ASK_EVERY", 0.3)
        monkeypatch.setattr("django_jobs.worker.listener.PATIENCE", 0.5)
        asked: SimpleQueue[None] = SimpleQueue()
        with Wirecutter(), Wire.to_database() as wire, reached_at(**wire.address):
            listener = Listener("default", None, lambda queue_name: asked.put(None))
            try:
                asked.get(timeout=20)
                wait_until(lambda: listener.hears)
                wire.forget()
                asked.get(timeout=20)  # it is gone
                asked.get(timeout=20)  # the next one
                assert listener.hears
            finally:
                listener.stop()

    def test_pooler_in_the_way_is_noticed(
        self, transactional_db: None, told: SimpleQueue[tuple[str, bool]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with deaf_pooler() as port, monkeypatch.context() as patch:
            patch.setitem(connections.settings["default"], "HOST", "127.0.0.1")
            patch.setitem(connections.settings["default"], "PORT", str(port))
            is_told = threading.Event()
            listener = Listener("default", None, lambda queue_name: is_told.set())
            try:
                assert is_told.wait(20)
                assert not listener.hears
            finally:
                listener.stop()


def test_busy_worker_wants_no_wake_ups_and_is_woken_again_after_that(workers: Workers) -> None:
    workers.start("--threads", "1", settings=SLOW_POLL)
    wait_until(_is_listening)
    enqueue_many(tasks.rest.bind(f"{number}", 0.8) for number in range(3))

    wait_until(lambda: Worker.objects.filter(is_awake=True).exists())
    wait_until(lambda: Worker.objects.filter(is_awake=False).exists())

    assert JobRun.objects.count() >= 2
    handle = enqueue(tasks.plain_effect, "next")
    wait_until(lambda: handle.get().is_finished, within=10)

"""The parts of a supervisor, and of the worker that it holds."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from django_jobs.execution import Attempt
from django_jobs.worker.marks import PLACES, SLACK, Marks
from django_jobs.worker.supervisor import LONGEST_PAUSE, Slot, Supervisor, describe
from django_jobs.worker.tether import Place, Stops, Tether, tell
from tests.execution import attempts
from tests.worker import tasks


def _attempt(number: int, moment: int = 0) -> Attempt:
    claimed_at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(microseconds=moment)
    return attempts.attempt(tasks.rest, "x", 1.0, job_id=UUID(int=number << 70 | number), claimed_at=claimed_at)


class TestMarks:
    @pytest.fixture
    def sides(self) -> Iterator[tuple[Marks, Marks]]:
        """The supervisor's and the worker's, on the same memory."""
        supervisors, file = Marks.create()
        workers = Marks(file)
        os.close(file)
        yield supervisors, workers
        supervisors.close()
        workers.close()

    def test_supervisor_reads_who_claimed(self, sides: tuple[Marks, Marks]) -> None:
        supervisors, workers = sides
        assert supervisors.worker_id is None
        worker_id = UUID("0190f5fe-7c00-7a00-8000-00000000abcd")

        workers.identify(worker_id)

        assert supervisors.worker_id == worker_id

    def test_what_was_claimed_and_not_started_is_known(self, sides: tuple[Marks, Marks]) -> None:
        supervisors, workers = sides
        claimed = [_attempt(number) for number in range(1, 6)]
        workers.note_claimed(claimed)
        workers.note_start(claimed[0])
        workers.note_start(claimed[3])

        is_unstarted = supervisors.read_unstarted()

        assert [is_unstarted(each.run) for each in claimed] == [False, True, True, False, True]
        assert not is_unstarted(claimed[1].run._replace(claim_number=7)), "a later claim of the same job"

    def test_claim_whose_answer_was_not_read_was_not_started(self, sides: tuple[Marks, Marks]) -> None:
        supervisors, workers = sides
        workers.note_claimed([_attempt(1, moment=5)])

        is_unstarted = supervisors.read_unstarted()

        assert is_unstarted(_attempt(2, moment=6 + SLACK).run)
        assert not is_unstarted(_attempt(3, moment=5 + SLACK).run), "what nobody marked may have been started"

    def test_what_is_in_doubt_counts_as_started(self, sides: tuple[Marks, Marks]) -> None:
        """More claims than there are places."""
        supervisors, workers = sides
        claimed = [_attempt(number) for number in range(1, PLACES + 2)]
        workers.note_claimed(claimed)

        is_unstarted = supervisors.read_unstarted()

        assert [is_unstarted(each.run) for each in (claimed[0], claimed[1], claimed[-1])] == [False, True, True]


class TestTether:
    def test_signal_to_a_group_is_one_however_often_it_comes(self) -> None:
        stops: list[str] = []
        level = Stops(stops.append)

        level.signal("SIGTERM")
        level.ask(1, "SIGTERM")
        assert stops == ["SIGTERM"]

        level.ask(2, "SIGINT")
        level.signal("SIGTERM")
        assert stops == ["SIGTERM", "SIGINT"]

    def test_end_of_the_pipe_is_a_stop(self) -> None:
        ours, theirs = os.pipe()
        stops: list[str] = []
        tether = Tether(ours, Stops(stops.append))

        tell(theirs, 2, "SIGTERM")
        os.close(theirs)
        tether.thread.join(10)

        assert stops == ["SIGTERM", "SIGTERM"]
        tell(theirs, 1, "nobody listens any more")

    def test_end_of_the_supervisor_is_a_gentle_stop(self) -> None:
        ours, theirs = os.pipe()
        stops: list[str] = []
        tether = Tether(ours, Stops(stops.append))

        os.close(theirs)
        tether.thread.join(10)

        assert stops == ["the supervisor is gone"]

    def test_place_is_read_as_it_was_written(self) -> None:
        assert Place.parse(str(Place(3, 7, 8))) == Place(3, 7, 8)
        with pytest.raises(ValueError, match=r"invalid literal|not enough"):
            Place.parse("3:x")


class TestSlot:
    def test_first_failure_costs_no_pause_and_further_ones_more_and_more(self) -> None:
        pauses = []
        slot = Slot(1)
        for _ in range(40):
            slot.failed(lambda: 1.0)
            pauses.append(slot.next_start - time.monotonic())

        assert pauses[0] <= 0
        assert pauses[1:5] == pytest.approx([1, 2, 4, 8], abs=0.1)
        assert pauses[-1] == pytest.approx(LONGEST_PAUSE, abs=0.1)

    def test_pauses_are_jittered(self) -> None:
        slot = Slot(1)
        slot.failed(lambda: 0.0)
        slot.failed(lambda: 0.0)

        assert slot.next_start - time.monotonic() == pytest.approx(0.5, abs=0.1)

    def test_change_is_said_once(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO, "django_jobs")
        slot = Slot(2)
        for _ in range(5):
            slot.failed(lambda: 0.5)
        slot.settled()
        slot.settled()

        assert [message.split(" retry_in")[0] for message in caplog.messages] == [
            "process failing place=2",
            "process steady place=2",
        ]


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (0, "exited with code 0"),
        (9, "exited with code 9"),
        (-9, "killed by SIGKILL"),
        (-11, "killed by SIGSEGV"),
        (-40, "killed by signal 40"),
    ],
)
def test_end_of_a_process_is_named(code: int, text: str) -> None:
    assert describe(code) == text


class TestSupervisor:
    """With processes that do something else than to work. `run` wants the main thread."""

    def supervisor(self, code: str, **options: Any) -> Supervisor:
        return Supervisor(1, [sys.executable, "-c", code], using="default", grace=0.1, **options)

    def test_burst_ends_with_the_last_process(self) -> None:
        assert self.supervisor("", ends_when_done=True).run() == 0

    def test_process_that_fails_is_started_again(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        flag = tmp_path / "fails"
        flag.touch()
        code = (
            f"import pathlib, sys; flag = pathlib.Path({str(flag)!r}); sys.exit(flag.exists() and (flag.unlink() or 3))"
        )

        assert self.supervisor(code, ends_when_done=True).run() == 0
        assert "exited with code 3" in caplog.text

    def test_process_that_does_not_end_is_killed(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr("django_jobs.worker.supervisor.PATIENCE", 0.2)
        supervisor = self.supervisor("import time; time.sleep(600)")
        threading.Timer(0.5, supervisor.stop, ["SIGTERM"]).start()

        assert supervisor.run() == 1
        assert "process killed place=1" in caplog.text

    def test_system_that_gives_no_process_is_asked_again(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        calls = 0
        start = subprocess.Popen

        def refuse_once(*arguments: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == 1:
                raise BlockingIOError("Resource temporarily unavailable")
            return start(*arguments, **options)

        monkeypatch.setattr("django_jobs.worker.supervisor.subprocess.Popen", refuse_once)

        assert self.supervisor("", ends_when_done=True, rand=lambda: 0.0).run() == 0
        assert "process refused place=1" in caplog.text

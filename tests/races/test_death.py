"""A worker's process is killed while it writes that a job has died."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from django.db import connection

from django_jobs import enqueue
from django_jobs.models import DeadLetter, Job, JobKey, JobRun
from django_jobs.statuses import DeathReason, JobStatus, RunStatus
from tests.lifecycle.threads import OpenTransaction, Threads, wait_until_blocked
from tests.processes import Workers, wait_until
from tests.worker import tasks

pytestmark = [pytest.mark.race, pytest.mark.slow, pytest.mark.postgres]

NAME = "rt08"  # of the killed worker's sessions
GATE = "SELECT pg_advisory_xact_lock(8)"
WHEN = {
    "between the two writes": f"CREATE TRIGGER {NAME} BEFORE INSERT ON django_jobs_deadletter",
    "in the commit": (
        f"CREATE CONSTRAINT TRIGGER {NAME} AFTER INSERT ON django_jobs_deadletter DEFERRABLE INITIALLY DEFERRED"
    ),
}


@pytest.fixture
def gate() -> Iterator[Callable[[str], None]]:
    """Let whoever writes a letter wait, at the given moment, until nobody holds the gate."""

    def build(when: str) -> None:
        _execute(
            f"CREATE FUNCTION {NAME}() RETURNS trigger LANGUAGE plpgsql"
            f" AS 'BEGIN PERFORM pg_advisory_xact_lock(8); RETURN NEW; END'"
        )
        _execute(f"{WHEN[when]} FOR EACH ROW EXECUTE FUNCTION {NAME}()")

    yield build
    _execute(f"DROP FUNCTION {NAME}() CASCADE")


def _execute(sql: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql)


def _has_sessions() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE application_name = %s", [NAME])
        return bool(cursor.fetchone()[0])


@pytest.mark.parametrize(("when", "left"), [("between the two writes", (1, 0)), ("in the commit", (0, 1))])
def test_process_killed_while_it_writes_a_death_leaves_the_job_or_one_letter(
    workers: Workers, gate: Callable[[str], None], when: str, left: tuple[int, int]
) -> None:
    """RT-08: never neither, never both; and after a restart there is the letter."""
    gate(when)
    (workers.told / "go").touch()
    with Threads() as threads:
        holder = OpenTransaction(threads, lambda: _execute(GATE))
        handle = enqueue(tasks.wait_for_go.using(key="k"), "dying")
        doomed = workers.start_telling(PGAPPNAME=NAME)
        workers.wait_told("dying", within=60)
        wait_until_blocked()
        doomed.kill()
        holder.end()
    wait_until(lambda: not _has_sessions(), what="the server has noticed")

    assert (Job.objects.filter(status=JobStatus.RUNNING).count(), DeadLetter.objects.count()) == left
    assert JobKey.objects.exists() is Job.objects.exists()
    workers.start_telling()
    wait_until(lambda: handle.get().is_finished and not Job.objects.exists(), within=60)
    letter = DeadLetter.objects.get()
    assert (letter.job_id, letter.reason, letter.failures) == (handle.id, DeathReason.OUT_OF_TRIES, 1)
    statuses = [RunStatus.LOST, RunStatus.FAILED] if left == (1, 0) else [RunStatus.FAILED]
    assert list(JobRun.objects.order_by("id").values_list("status", flat=True)) == statuses

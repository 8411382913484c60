"""A dead letter is sent back once, as what it was, and goes through the guard like everything else."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from django_jobs import enqueue, enqueue_many
from django_jobs.database import Clock, read_clock
from django_jobs.lifecycle.replay import Replay, ReplayResult, discard, replay, replay_many
from django_jobs.models import DeadLetter, Job, JobKey
from tests.lifecycle.steps import claim_all, died, failed, finish_all, inserts, start_worker, succeeded
from tests.lifecycle.threads import OpenTransaction, Threads, at_once, wait_until_blocked
from tests.tasks import echo, mail, note

transactional = pytest.mark.django_db(transaction=True)


def die(count: int = 1) -> list[DeadLetter]:
    """Let what is ready die. The new letters."""
    worker = start_worker()
    runs = claim_all(worker, count)
    finish_all([died(run) for run in runs], worker)
    return list(DeadLetter.objects.filter(job_id__in=[run.job_id for run in runs]).order_by("id"))


def send_back(letter: DeadLetter, by: str = "ann") -> Replay:
    return replay(letter.id, by=by, using="default")


@pytest.mark.django_db
def test_replay_makes_a_job_of_the_same_kind_with_fresh_counters() -> None:
    """RT-10"""
    handle = enqueue(
        mail.using(key="k", unique="live", priority=7, queue_name="q", max_attempts=2, timeout=5), label="x"
    )
    DeadLetter.objects.all().delete()
    worker = start_worker()
    (run,) = claim_all(worker)
    finish_all([failed(run, retry_in=None)], worker)
    (letter,) = die()
    first_enqueued_at = letter.enqueued_at
    before = read_clock("default")

    answer = send_back(letter)

    job = Job.objects.get()
    assert (answer.result, answer.job_id, answer.letter_id) == (ReplayResult.REPLAYED, job.id, letter.id)
    assert job.id != handle.id
    assert (job.task_name, job.queue_name, job.priority, job.key, job.uniqueness) == (mail.name, "q", 7, "k", "live")
    assert (job.options, job.payload) == ({"max_attempts": 2, "timeout": 5.0}, {"args": [], "kwargs": {"label": "x"}})
    assert (job.attempt, job.failures, job.crashes, job.interruptions, job.claim_number) == (0, 0, 0, 0, 0)
    assert (job.status, job.enqueued_at) == ("ready", first_enqueued_at)
    assert before <= job.run_at <= read_clock("default")
    assert JobKey.objects.get().holder_id == job.id
    letter.refresh_from_db()
    assert (letter.status, letter.replayed_as, letter.closed_by) == ("replayed", job.id, "ann")
    assert letter.closed_at is not None
    assert before <= letter.closed_at <= read_clock("default")
    assert (handle.status, handle.get().dead_letter_id) == ("replayed", letter.id)


@pytest.mark.django_db
def test_second_death_is_one_new_open_letter() -> None:
    """RT-10"""
    enqueue(note.using(key="k"), "x")
    (first,) = die()
    send_back(first)
    (second,) = die()

    assert DeadLetter.objects.filter(status="open").get() == second
    assert (second.attempt, second.failures, second.key) == (1, 1, "k")
    assert send_back(second).result is ReplayResult.REPLAYED


@pytest.mark.race
@transactional
def test_replay_pressed_by_many_at_once_makes_one_job() -> None:
    """RT-09"""
    enqueue(note, "x")
    (letter,) = die()

    answers = at_once([lambda by=f"user {number}": send_back(letter, by) for number in range(8)])  # type: ignore[misc]

    job = Job.objects.get()
    (made,) = [answer for answer in answers if answer.result is ReplayResult.REPLAYED]
    letter.refresh_from_db()
    assert (made.job_id, letter.replayed_as) == (job.id, job.id)
    others = [answer for answer in answers if answer is not made]
    assert {answer.result for answer in others} == {ReplayResult.ALREADY_REPLAYED}
    assert {answer.job_id for answer in others} == {job.id}
    assert {answer.message for answer in others} == {f"Already replayed as job {job.id} by {letter.closed_by}."}


@pytest.mark.django_db
def test_replay_pressed_twice_in_a_row_is_told_so() -> None:
    """RT-09"""
    enqueue(note, "x")
    (letter,) = die()

    answers = [send_back(letter, "ann"), send_back(letter, "bob")]

    assert [answer.result.value for answer in answers] == ["replayed", "already_replayed"]
    assert answers[1].message == f"Already replayed as job {answers[0].job_id} by ann."
    assert Job.objects.count() == 1


@pytest.mark.django_db
def test_letter_named_twice_in_one_call_is_one_job() -> None:
    enqueue(note, "x")
    (letter,) = die()

    answers = replay_many([letter.id, letter.id], by="ann", using="default")

    assert {answer.result for answer in answers} == {ReplayResult.REPLAYED}
    assert Job.objects.count() == 1


@pytest.mark.django_db
def test_letter_whose_key_is_held_stays_open_and_names_the_holder() -> None:
    enqueue(note.using(key="k"), "x")
    (letter,) = die()
    newer = enqueue(note.using(key="k"), "y")

    answer = send_back(letter)

    assert (answer.result, answer.job_id) == (ReplayResult.KEY_TAKEN, newer.id)
    assert answer.message == f"Not replayed: the key 'k' is held by job {newer.id}."
    letter.refresh_from_db()
    assert (letter.status, letter.closed_at, Job.objects.count()) == ("open", None, 1)
    newer.cancel()
    assert send_back(letter).result is ReplayResult.REPLAYED


@pytest.mark.django_db
def test_letter_whose_operation_succeeded_meanwhile_is_not_repeated() -> None:
    enqueue(note.using(key="k"), "x")
    (letter,) = die()
    enqueue(note.using(key="k"), "y")
    worker = start_worker()
    finish_all([succeeded(run) for run in claim_all(worker)], worker)

    assert send_back(letter).result is ReplayResult.KEY_TAKEN


@pytest.mark.django_db
def test_two_letters_of_one_key_make_one_job() -> None:
    enqueue(note.using(key="k"), "x")
    (first,) = die()
    enqueue(note.using(key="k"), "y")
    (second,) = die()

    answers = replay_many([first.id, second.id], by="ann", using="default")

    assert [answer.result for answer in answers] == [ReplayResult.REPLAYED, ReplayResult.KEY_TAKEN]
    assert answers[1].job_id == answers[0].job_id
    assert DeadLetter.objects.get(status="open") == second


@pytest.mark.django_db
def test_task_that_is_not_registered_here_is_refused_clearly() -> None:
    """RT-12"""
    enqueue(note, "x")
    (letter,) = die()
    DeadLetter.objects.update(task_name="gone.task")

    answer = send_back(letter)

    assert answer.result is ReplayResult.UNKNOWN_TASK
    assert answer.message == "Not replayed: no task named 'gone.task' is registered here."
    assert DeadLetter.objects.get().status == "open"


@pytest.mark.django_db
def test_discarded_letter_is_not_replayed_nor_discarded_again() -> None:
    enqueue(note, "x")
    (letter,) = die()

    assert discard(letter.id, by="bob", using="default")
    assert not discard(letter.id, by="ann", using="default")

    answer = send_back(letter)
    assert (answer.result, answer.message) == (ReplayResult.DISCARDED, "Not replayed: it was discarded by bob.")
    letter.refresh_from_db()
    assert (letter.status, letter.closed_by, letter.replayed_as) == ("discarded", "bob", None)
    assert Job.objects.count() == 0


@pytest.mark.django_db
def test_replayed_letter_cannot_be_discarded() -> None:
    enqueue(note, "x")
    (letter,) = die()
    send_back(letter)

    assert not discard(letter.id, by="bob", using="default")


@pytest.mark.django_db
def test_missing_letter_is_said_to_be_missing() -> None:
    assert replay(4711, by="ann", using="default").result is ReplayResult.MISSING
    assert not discard(4711, by="ann", using="default")


@pytest.mark.django_db
def test_each_of_many_is_answered_in_the_order_asked() -> None:
    enqueue_many(note.bind(str(number)) for number in range(3))
    letters = die(3)
    discard(letters[1].id, by="bob", using="default")

    answers = replay_many([letters[2].id, 4711, letters[1].id, letters[0].id], by="ann", using="default")

    assert [answer.result.value for answer in answers] == ["replayed", "missing", "discarded", "replayed"]
    assert [answer.letter_id for answer in answers] == [letters[2].id, 4711, letters[1].id, letters[0].id]


@pytest.mark.django_db
@pytest.mark.timeout(180)
def test_two_thousand_letters_are_replayed_by_few_statements_and_spread_over_the_window() -> None:
    """RT-13, RT-04"""
    enqueue_many(echo.using(key=str(number)).bind(number) for number in range(2_000))
    letters = die(2_000)
    draws = iter(number / 2_000 for number in range(2_000))
    before = read_clock("default")

    with CaptureQueriesContext(connection) as captured:
        answers = replay_many(
            [letter.id for letter in letters],
            by="ann",
            using="default",
            spread=timedelta(hours=1),
            rand=lambda: next(draws),
        )

    assert {answer.result for answer in answers} == {ReplayResult.REPLAYED}
    assert len(captured) < 40 + inserts(Job, 2_000)
    assert Job.objects.count() == 2_000
    starts = sorted((job.run_at - before).total_seconds() for job in Job.objects.all())
    per_minute = [sum(minute * 60 <= start < (minute + 1) * 60 for start in starts) for minute in range(60)]
    assert max(per_minute) <= 0.05 * 2_000
    assert Job.objects.filter(status="scheduled").count() == 1_999
    assert DeadLetter.objects.filter(status="replayed").count() == 2_000


@pytest.mark.race
@transactional
def test_replay_and_discard_at_once_do_one_of_both() -> None:
    enqueue(note, "x")
    (letter,) = die()

    replayed, discarded = at_once(
        [
            lambda: send_back(letter).result is ReplayResult.REPLAYED,
            lambda: discard(letter.id, by="bob", using="default"),
        ]
    )

    assert replayed is not discarded
    assert Job.objects.count() == replayed


@pytest.mark.race
@transactional
@pytest.mark.parametrize("commits", [True, False])
def test_replay_waits_for_an_open_transaction_that_replays(commits: bool) -> None:
    """RT-09"""
    enqueue(note, "x")
    (letter,) = die()

    with Threads() as threads:
        first = OpenTransaction(threads, lambda: send_back(letter))
        second = threads.start(lambda: send_back(letter))
        wait_until_blocked()
        first.end(commits=commits)

    expected = ReplayResult.ALREADY_REPLAYED if commits else ReplayResult.REPLAYED
    assert second.result().result is expected
    assert Job.objects.count() == 1


@transactional
def test_rolled_back_replay_leaves_the_letter_open() -> None:
    enqueue(note.using(key="k"), "x")
    (letter,) = die()

    with transaction.atomic():
        send_back(letter)
        transaction.set_rollback(True)

    letter.refresh_from_db()
    assert (letter.status, Job.objects.count(), JobKey.objects.count()) == ("open", 0, 0)


@pytest.mark.django_db
def test_replay_is_logged_with_who_did_it(caplog: pytest.LogCaptureFixture) -> None:
    enqueue(note, "x")
    (letter,) = die()
    caplog.clear()

    with caplog.at_level("INFO", logger="django_jobs"):
        answer = send_back(letter, "ann")
        send_back(letter, "bob")

    lines = [record.getMessage() for record in caplog.records if "replayed" in record.getMessage()]
    assert lines == [f"dead letter replayed letter={letter.id} job={answer.job_id} by=ann"]


@pytest.mark.django_db
def test_expired_key_does_not_stop_a_replay() -> None:
    enqueue(note.using(key="k"), "x")
    (letter,) = die()
    enqueue(note.using(key="k"), "y")
    worker = start_worker()
    finish_all([succeeded(run, key_ttl=timedelta(hours=1)) for run in claim_all(worker)], worker)
    JobKey.objects.update(expires_at=Clock(timedelta(seconds=-1)))

    assert send_back(letter).result is ReplayResult.REPLAYED

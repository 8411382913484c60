"""Take out one guard of the engine after the other, and see a test go red for each: `make mutants`.

Each mutant is a copy of the project in which one text is replaced by another. The text must be there exactly once, so
that this list stays true as the code moves. What each is caught by is named with it; those tests are green without it.

    python tools/mutants.py [NUMBER-OR-WORD...]     only these; needs DATABASE_URL of a PostgreSQL
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
COPIED = ("django_jobs", "tests", "example_project", "pyproject.toml")
TIMEOUT = 40  # seconds for one test: what hangs is red too
LIFECYCLE, WORKER = "tests/lifecycle", "tests/worker"
MODEL = f"{LIFECYCLE}/test_model.py"


class Mutant(NamedTuple):
    """`file` is below django_jobs; `tests` are files or test ids; `also` are more replacements in the file."""

    guard: str
    file: str
    text: str
    instead: str
    tests: tuple[str, ...]
    also: tuple[tuple[str, str], ...] = ()

    @property
    def replacements(self) -> tuple[tuple[str, str], ...]:
        return ((self.text, self.instead), *self.also)


MUTANTS = [
    Mutant(
        "SKIP LOCKED in the claim: one locked row would stop it",
        "lifecycle/claim.py",
        "LIMIT {MOST_AT_ONCE} FOR NO KEY UPDATE SKIP LOCKED",
        "LIMIT {MOST_AT_ONCE} FOR NO KEY UPDATE",
        (f"{LIFECYCLE}/test_claim.py::test_row_that_somebody_locks_is_left_out_and_not_waited_for",),
    ),
    Mutant(
        "the lock of the claim, and the place by which a changed row is not found: two workers would take one job",
        "lifecycle/claim.py",
        "LIMIT {MOST_AT_ONCE} FOR NO KEY UPDATE SKIP LOCKED",
        "LIMIT {MOST_AT_ONCE}",
        (f"{LIFECYCLE}/test_claim.py::test_two_workers_never_take_the_same_job",),
        (
            (
                "SELECT ctid AS place FROM django_jobs_job WHERE status",
                "SELECT id AS place FROM django_jobs_job WHERE status",
            ),
            ("WHERE job.ctid = ANY(ARRAY(SELECT place", "WHERE job.id = ANY(ARRAY(SELECT place"),
        ),
    ),
    Mutant(
        "SKIP LOCKED in the finish",
        "lifecycle/finish.py",
        'lock="" if wait else "SKIP LOCKED"',
        'lock=""',
        (f"{LIFECYCLE}/test_finish.py::test_row_that_somebody_locks_is_kept_and_not_waited_for",),
    ),
    Mutant(
        "the fence of the statements that finish",
        "lifecycle/statements.py",
        "ON o.job_id = job.id AND o.claim_number = job.claim_number",
        "ON o.job_id = job.id",
        (f"{LIFECYCLE}/test_finish.py::test_fence_of_the_same_worker_is_its_claim_number",),
    ),
    Mutant(
        "the worker in those statements",
        "lifecycle/statements.py",
        "AND (job.status = 'running') IS TRUE AND (job.worker_id = %s) IS TRUE",
        "AND %s::uuid IS NOT NULL",
        (f"{LIFECYCLE}/test_finish.py::test_late_finisher_of_a_job_that_was_taken_back_changes_nothing",),
    ),
    Mutant(
        "the fence elsewhere",
        "lifecycle/release.py",
        "Q(claim_number=claim_number, id__in=ids)",
        "Q(id__in=ids)",
        (
            f"{LIFECYCLE}/test_rescue.py::test_release_touches_only_claims_that_are_still_the_workers",
            f"{LIFECYCLE}/test_finish.py::test_fence_of_the_same_worker_is_its_claim_number",
        ),
    ),
    Mutant(
        "the growing number of a claim",
        "lifecycle/claim.py",
        "SET status = 'running', claim_number = claim_number + 1,",
        "SET status = 'running', claim_number = greatest(claim_number, attempt + 1),",
        (MODEL,),
    ),
    Mutant(
        "the condition that a rescue repeats under its lock",
        "lifecycle/rescue.py",
        "row = row.filter(lease_expires_at__lt=Clock())",
        "pass",
        (f"{LIFECYCLE}/test_rescue.py::test_heartbeat_that_comes_between_the_look_and_the_lock_saves_the_jobs",),
    ),
    Mutant(
        "the rule that only whose own beat was unbroken for a lease may judge others",
        "worker/services.py",
        "while heartbeat.unbroken_for >= lease.total_seconds() and not should_stop():",
        "while not should_stop():",
        (f"{WORKER}/test_guards.py::test_worker_judges_others_only_after_its_own_lease_was_unbroken_for_a_whole_one",),
    ),
    Mutant(
        "the gap that a late beat leaves",
        "worker/heartbeat.py",
        "self._unbroken_since = started\n        self._last, self.others = started",
        "pass\n        self._last, self.others = started",
        (f"{WORKER}/test_guards.py::test_beat_that_came_after_the_lease_was_over_begins_anew",),
    ),
    Mutant(
        "the bound of crashes",
        "lifecycle/rescue.py",
        "dies = crashes >= get_settings().MAX_CRASHES",
        "dies = False",
        (f"{LIFECYCLE}/test_rescue.py::test_third_crash_is_the_last_one",),
    ),
    Mutant(
        "the quarantine: a suspect that was claimed beside others would be charged without having been started",
        "lifecycle/quarantine.py",
        "return job.crashes > 0 and job.waiting_since is None",
        "return False",
        (f"{LIFECYCLE}/test_quarantine.py", MODEL),
    ),
    Mutant(
        "the comparison after a lost answer: what it says is recorded would be called lost",
        "lifecycle/finish.py",
        "elif _is_own_record(outcome, status := recorded.get(outcome.run[:2])):",
        "elif status := None:",
        (f"{LIFECYCLE}/test_finish.py::test_outcome_given_again_after_a_lost_answer_is_recorded_not_lost",),
    ),
    Mutant(
        "the mark of others in that comparison: a late finisher would be told it was recorded",
        "lifecycle/finish.py",
        "status not in (None, RunStatus.LOST, RunStatus.CANCELLED)",
        "status is not None",
        (f"{LIFECYCLE}/test_finish.py::test_late_finisher_changes_nothing_and_is_logged_once", MODEL),
    ),
    Mutant(
        "the comparison of what a worker holds: a claim whose answer was lost would be held for ever",
        "worker/ledger.py",
        "stray = held - running.keys() - unwritten",
        "stray = held - held",
        (f"{WORKER}/test_guards.py::test_claim_whose_answer_was_lost_is_given_back",),
    ),
    Mutant(
        "what is not written yet in that comparison: a job that has ended would run again",
        "worker/ledger.py",
        "stray = held - running.keys() - unwritten",
        "stray = held - running.keys()",
        (f"{WORKER}/test_guards.py::test_outcome_that_is_not_written_yet_keeps_its_claim",),
    ),
    Mutant(
        "the end that comes second in the ledger",
        "worker/ledger.py",
        "        if identity is None:\n            return False\n",
        "",
        (f"{WORKER}/test_guards.py::test_second_end_of_a_run_is_dropped",),
    ),
    Mutant(
        "the guard of a key",
        "lifecycle/guard.py",
        "ON CONFLICT (key, scope) DO NOTHING\n        RETURNING id",
        "RETURNING id",
        (f"{LIFECYCLE}/test_keys.py::test_taken_key_leaves_the_callers_transaction_usable",),
    ),
    Mutant(
        "the guard of several keys",
        "lifecycle/guard.py",
        "ON CONFLICT (key, scope) DO NOTHING\n        RETURNING holder_id",
        "RETURNING holder_id",
        (f"{LIFECYCLE}/test_enqueue.py::test_duplicate_in_a_bulk_call_is_reported_and_the_rest_is_written",),
    ),
    Mutant(
        "the guard of a key: the job would be written although its key is taken",
        "lifecycle/enqueue.py",
        "SELECT {values} FROM {guard.POSTGRES_GOT_IT}",
        "SELECT {values}",
        (f"{LIFECYCLE}/test_keys.py::test_twenty_callers_at_once_get_one_job",),
    ),
    Mutant(
        "the guard of several keys: their jobs would be written although they are taken",
        "lifecycle/enqueue.py",
        "WHERE {key} IS NULL OR n.id IN (SELECT holder_id FROM taken UNION ALL SELECT holder_id FROM guard)",
        "",
        (f"{LIFECYCLE}/test_enqueue.py::test_duplicate_in_a_bulk_call_is_reported_and_the_rest_is_written",),
    ),
    Mutant(
        "the expiry of a key: one that is held for a while would be taken over at once",
        "lifecycle/guard.py",
        "AND scope = %(scope)s AND expires_at <= statement_timestamp()",
        "AND scope = %(scope)s AND expires_at IS NOT NULL",
        (f"{WORKER}/test_guards.py::test_key_that_a_success_holds_for_a_while_is_taken_until_then",),
    ),
    Mutant(
        "the expiry of several keys",
        "lifecycle/guard.py",
        "AND k.expires_at <= statement_timestamp()",
        "AND k.expires_at IS NOT NULL",
        (f"{WORKER}/test_guards.py::test_key_that_a_success_holds_for_a_while_is_taken_until_then",),
    ),
    Mutant(
        "the order of keys: two callers would wait for each other",
        "lifecycle/guard.py",
        '        ORDER BY key COLLATE "C", scope COLLATE "C"\n        ON CONFLICT',
        "        ON CONFLICT",
        (f"{WORKER}/test_guards.py::test_keys_of_one_call_are_taken_in_one_order_whatever_that_of_the_call",),
    ),
    Mutant(
        "the hold on a debounced key: its job would start before it can see what it stands for",
        "lifecycle/enqueue.py",
        'guard.hold(((job.scope, job.key or "") for job in debounced), using=using)',
        "pass",
        (
            f"{LIFECYCLE}/test_keys.py::test_debounced_job_does_not_start_before_the_transaction_it_stands_for_has_ended",
        ),
    ),
    Mutant(
        "the holder in once(): everybody would be the first",
        "api.py",
        "return guard.holders([pair], using=database).get(pair) == wanted.holder_id",
        "return True",
        (f"{LIFECYCLE}/test_once.py::test_of_twenty_at_once_one_has_the_effect",),
    ),
    Mutant(
        "the key that a cancellation frees",
        "lifecycle/cancel.py",
        "guard.release([job.id], using=using)",
        "pass",
        (MODEL,),
    ),
    Mutant(
        "the lock of a cancellation",
        "lifecycle/cancel.py",
        "job = lock_rows(rows, using=using, wait=True).first()",
        "job = rows.first()",
        (
            f"{LIFECYCLE}/test_cancel.py::test_many_at_once_cancel_once",
            f"{LIFECYCLE}/test_cancel.py::test_cancel_waits_for_a_write_under_way_and_is_then_too_late",
        ),
    ),
    Mutant(
        "the lock of a replay",
        "lifecycle/replay.py",
        "for letter in lock_rows(rows, using=using, wait=True)}",
        "for letter in rows}",
        (f"{LIFECYCLE}/test_replay.py::test_replay_pressed_by_many_at_once_makes_one_job",),
    ),
    Mutant(
        "the end of an atomic task whose lease was lost: its effects would stay",
        "lifecycle/finish.py",
        "        raise LeaseLost(",
        "        LeaseLost(",
        (f"{LIFECYCLE}/test_finish.py::test_atomic_finish_without_the_lease_raises_and_the_effects_roll_back",),
    ),
    Mutant(
        "the transaction of an atomic task",
        "execution/atomic.py",
        "with ExitStack() as ending, transaction.atomic(using=recording.using):",
        "with ExitStack() as ending:",
        ("tests/execution/test_atomic.py::test_effect_of_a_lost_lease_is_rolled_back",),
    ),
    Mutant(
        "the condition that pruning repeats: a key that was taken over meanwhile would go",
        "lifecycle/prune.py",
        'doomed = rows.order_by().filter(**{f"{moment}__lte": last}, pk__in=[pk for pk, _ in batch])',
        "doomed = rows.model._default_manager.using(rows.db).filter(pk__in=[pk for pk, _ in batch])",
        (f"{WORKER}/test_guards.py::test_key_that_is_taken_over_while_it_is_pruned_stays",),
        (("if first.year > EARLIEST:", "if False:"),),
    ),
    Mutant(
        "the lock under which an interruption is sent: it would land where no task runs any more",
        "execution/deadlines.py",
        "if not attempt.is_armed or not attempt.token.acquire(blocking=False):",
        "if False:",
        ("tests/execution/test_deadlines.py::test_run_that_has_ended_cannot_be_interrupted",),
    ),
    Mutant(
        "the cut of a connection that owes an answer",
        "execution/answers.py",
        "own.shutdown(socket.SHUT_RDWR)",
        "pass",
        (f"{WORKER}/test_wirecutter.py::TestCut::test_statement_without_an_answer_ends_after_its_patience",),
    ),
    Mutant(
        "the bytes that came in meanwhile: a step of many statements would be cut",
        "execution/answers.py",
        "min(time.monotonic() - self._quiet, _silence(own))",
        "time.monotonic() - self._quiet",
        (f"{WORKER}/test_wirecutter.py::TestCut::test_step_of_many_statements_may_take_longer_than_each_of_them",),
    ),
    Mutant(
        "the end of patience with a stop signal",
        "worker/wirecutter.py",
        "self._longest = HURRIED",
        "pass",
        (f"{WORKER}/test_wirecutter.py::test_process_that_shall_end_waits_no_longer",),
    ),
    Mutant(
        "the look at how a transaction of an atomic task ends",
        "execution/atomic.py",
        "ending.enter_context(Wait(connection, recording.patience))",
        "pass",
        ("tests/execution/test_atomic.py::test_rollback_that_gets_no_answer_keeps_nobody",),
    ),
    Mutant(
        "distrust of connections that were used before another was lost",
        "execution/hygiene.py",
        "_distrusted_until = time.monotonic()",
        "pass",
        (f"{WORKER}/test_wirecutter.py::test_after_one_connection_was_lost_those_used_before_are_replaced_unasked",),
    ),
    Mutant(
        "the rule that an outage is over when the last one gets through",
        "worker/outage.py",
        "if not rest and self._since is not None:",
        "if self._since is not None:",
        (f"{WORKER}/test_parts.py::TestRetrier::test_part_that_gets_through_lets_the_others_try_at_once",),
    ),
    Mutant(
        "the rule that a heartbeat was written before it is over",
        "worker/outage.py",
        "self._cut_off.add(self.witness)",
        "pass",
        (f"{WORKER}/test_parts.py::TestRetrier::test_database_is_back_when_the_one_who_writes_has_written",),
    ),
    Mutant(
        "the rule that what was begun before its end says nothing",
        "worker/outage.py",
        "return moment < self._ended",
        "return False",
        (
            f"{WORKER}/test_parts.py::TestRetrier::test_failure_of_what_began_before_the_end_of_an_outage_begins_no_other",
        ),
    ),
    Mutant(
        "the look at a database that can only be read",
        "worker/outage.py",
        "return isinstance(error, (OperationalError, InterfaceError)) or _is_read_only(error)",
        "return isinstance(error, (OperationalError, InterfaceError))",
        (
            "tests/races/test_failover.py::test_worker_waits_until_a_database_that_can_only_be_read_can_be_written_again",
        ),
    ),
    Mutant(
        "the limit of a transaction that nobody continues",
        "database.py",
        'elif connection.vendor == "postgresql" and is_ours:',
        "elif False:",
        ("tests/test_database.py::test_rows_of_a_transaction_whose_end_is_swallowed_are_free_again_soon",),
    ),
    Mutant(
        "the end of a lock whose holder died",
        "lifecycle/lock.py",
        "WHERE django_jobs_lock.owner IS NULL OR django_jobs_lock.expires_at <= EXCLUDED.acquired_at",
        "WHERE django_jobs_lock.owner IS NULL",
        ("tests/races/test_leases.py::test_killed_holder_of_the_only_place_of_a_group_frees_it_and_is_run_again",),
    ),
    Mutant(
        "the look whether a plan can be kept: one that the project says a pooler would lose",
        "driver.py",
        'if settings.get("DISABLE_SERVER_SIDE_CURSORS"):',
        "if False:",
        ("tests/test_driver.py::test_nothing_is_prepared_where_the_project_says_that_a_pooler_is_in_the_way",),
    ),
    Mutant(
        "the comparison of process ids, by which a pooler is seen",
        "driver.py",
        "fetchone() == (raw.info.backend_pid,)",
        "fetchone() != ()",
        ("tests/test_driver.py::test_nothing_is_prepared_where_another_session_may_answer",),
    ),
    Mutant(
        "the age of what is raised: a young job would go before a higher priority",
        "lifecycle/ageing.py",
        "priority=head.priority, run_at__lte=Clock(-ageing))",
        "priority=head.priority)",
        (
            f"{LIFECYCLE}/test_ageing.py::test_those_that_waited_so_long_are_claimed_in_the_order_in_which_they_were_due",
        ),
    ),
    Mutant(
        "the lock of what is raised, which leaves out what others hold",
        "database.py",
        'ids = list(lock_rows(rows, using=using).values_list("pk", flat=True)[:limit])',
        'ids = list(rows.values_list("pk", flat=True)[:limit])',
        (f"{LIFECYCLE}/test_ageing.py::test_job_that_somebody_holds_is_left_as_it_is_and_not_waited_for",),
    ),
]


class Failed(Exception):
    """The tests could not be run, or they are red without a mutant."""


def main(words: list[str]) -> int:
    mutants = [(n, m) for n, m in enumerate(MUTANTS, 1) if not words or _is_meant(n, m, words)]
    problems = [problem for number, mutant in mutants if (problem := _misplaced(number, mutant))]
    if problems:
        print("\n".join(problems))
        return 1
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="django-jobs-mutants-") as name:
        folder = Path(name)
        _copy(folder)
        try:
            _require_green(folder, sorted({test for _, mutant in mutants for test in mutant.tests}))
            survivors = [mutant.guard for number, mutant in mutants if not _is_caught(folder, number, mutant)]
            _run(folder, list(mutants[-1][1].tests))  # which drops the database that all of them have used
        except Failed as error:
            print(error)
            return 2
    print(f"{len(mutants) - len(survivors)} of {len(mutants)} caught in {time.monotonic() - started:.0f} s")
    for guard in survivors:
        print(f"NOT CAUGHT: {guard}")
    return 1 if survivors else 0


def _is_meant(number: int, mutant: Mutant, words: list[str]) -> bool:
    return any(word == str(number) or (not word.isdigit() and word in mutant.guard) for word in words)


def _misplaced(number: int, mutant: Mutant) -> str:
    source = (ROOT / "django_jobs" / mutant.file).read_text()
    counts = {text: source.count(text) for text, _ in mutant.replacements}
    wrong = (f"{text!r} is {count} times in {mutant.file}, not once." for text, count in counts.items() if count != 1)
    return " ".join(f"Mutant {number}: {each}" for each in wrong)


def _copy(folder: Path) -> None:
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.sqlite3"))
        else:
            shutil.copy(ROOT / name, folder / name)


def _require_green(folder: Path, tests: list[str]) -> None:
    print(f"All {len(tests)} tests and files without a mutant: ", end="", flush=True)
    code, said = _run(folder, tests, "--reuse-db", "--create-db")
    if code != 0:
        raise Failed(f"red (exit code {code}). A mutant would prove nothing.\n{said}")
    print("green")


def _is_caught(folder: Path, number: int, mutant: Mutant) -> bool:
    path = folder / "django_jobs" / mutant.file
    original = path.read_text()
    mutated = original
    for text, instead in mutant.replacements:
        mutated = mutated.replace(text, instead)
    path.write_text(mutated)
    try:
        code, said = _run(folder, list(mutant.tests), "--reuse-db")
    finally:
        path.write_text(original)
    if code not in (0, 1):
        raise Failed(f"Mutant {number}: the tests could not be run (exit code {code}).\n{said}")
    caught_by = re.findall(r"^(?:FAILED|ERROR) \S*::(\w+)", said, re.MULTILINE) or ["a time-out"]
    print(f"{number:3} {mutant.guard}\n      {'red: ' + caught_by[0] if code else 'STILL GREEN'}", flush=True)
    return code == 1


def _run(folder: Path, tests: list[str], *flags: str) -> tuple[int, str]:
    environment = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "REFUSE_SKIPS"}}
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-x", "--tb=no", "-p", "no:cacheprovider", "-p", "no:randomly"),
            *("--timeout", str(TIMEOUT), *flags, *tests),
        ],
        cwd=folder, env={**environment, "PYTHONDONTWRITEBYTECODE": "1"}, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout[-4000:]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

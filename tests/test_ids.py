"""Ids of jobs: UUIDv7, growing within a process, never the same in two."""

import subprocess
import sys
import threading
import time
from itertools import pairwise
from uuid import RFC_4122, UUID

import pytest

from django_jobs.ids import IdSource, job_id, job_ids


def test_id_is_a_uuid_of_version_7_with_the_time_in_front() -> None:
    before = time.time_ns() // 1_000_000
    made = job_id()
    after = time.time_ns() // 1_000_000

    assert type(made) is UUID
    assert (made.version, made.variant) == (7, RFC_4122)
    assert before - 1000 <= made.int >> 80 <= after + 1000


def test_id_is_like_one_that_uuid_itself_makes() -> None:
    made = job_id()
    same = UUID(str(made))

    assert made == same
    assert hash(made) == hash(same)
    assert made.is_safe is same.is_safe
    assert repr(made) == repr(same)


def test_ids_grow() -> None:
    ids = [job_id() for _ in range(50_000)]

    assert all(one < other for one, other in pairwise(ids))


def test_ids_grow_while_the_clock_stands_or_goes_back() -> None:
    times = iter([5_000_000_000, 5_000_000_000, 4_000_000_000, 1, -3, 5_001_000_000, 5_000_000_000])
    source = IdSource(clock=lambda: next(times))

    ids = [source.make() for _ in range(7)]

    assert all(one < other for one, other in pairwise(ids))
    assert [made.int >> 80 for made in ids] == [5000, 5000, 5000, 5000, 5000, 5001, 5001]
    assert {made.version for made in ids} == {7}


def test_full_counter_moves_on_to_the_next_millisecond() -> None:
    source = IdSource(clock=lambda: 7_000_000)
    first = source.make()
    source._counter = 2**42 - 2

    last, over, after = source.make(), source.make(), source.make()

    assert first < last < over < after
    assert [made.int >> 80 for made in (last, over, after)] == [7, 8, 8]
    assert {made.version for made in (last, over, after)} == {7}


def test_ids_made_at_once_are_like_those_made_one_by_one() -> None:
    before = job_id()
    made = job_ids(10_000)
    after = job_id()

    assert all(one < other for one, other in pairwise([before, *made, after]))
    assert {(each.version, each.variant) for each in made} == {(7, RFC_4122)}
    assert len({each.int & 0xFFFFFFFF for each in made}) > 9_900  # the random bits are each one's own
    assert made[0] == UUID(str(made[0]))
    assert hash(made[0]) == hash(UUID(str(made[0])))
    assert job_ids(0) == []


@pytest.mark.parametrize("counter", [2**30 - 5, 2**30 - 1, 2**30, 5 * 2**30 - 3, 2**42 - 3, 2**42 - 1])
def test_ids_made_at_once_grow_where_the_counter_passes_a_border(counter: int) -> None:
    source = IdSource(clock=lambda: 7_000_000)
    source.make()
    source._counter = counter - 1

    made = source.make_many(8)
    made.append(source.make())

    assert all(one < other for one, other in pairwise(made))
    assert {(each.version, each.variant) for each in made} == {(7, RFC_4122)}
    assert {each.int >> 80 for each in made} <= {7, 8}
    counters = [((each.int >> 64 & 0xFFF) << 30) | (each.int >> 32 & 0x3FFFFFFF) for each in made]
    assert counters[0] == counter
    assert all(other == one + 1 for one, other in pairwise(counters) if one < 2**42 - 1)


def test_threads_get_different_ids_and_each_sees_them_grow() -> None:
    start = threading.Barrier(8)
    made: list[list[UUID]] = [[] for _ in range(8)]

    def make(ids: list[UUID]) -> None:
        start.wait()
        ids.extend(job_id() for _ in range(5_000))

    threads = [threading.Thread(target=make, args=(ids,)) for ids in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(set().union(*made)) == 40_000
    assert all(one < other for ids in made for one, other in pairwise(ids))


def test_id_can_be_made_where_a_signal_interrupts_the_making() -> None:
    ids: list[UUID] = []

    def interrupted_clock() -> int:
        if not ids:
            ids.append(UUID(int=0))
            ids.append(source.make())
        return 9_000_000

    source = IdSource(clock=interrupted_clock)

    ids.append(source.make())

    assert len(set(ids)) == 3


FORK = """
import os, random, threading
from django_jobs import ids

ids._source = ids.IdSource(clock=lambda: 1_786_000_000_000_000_000)
ids.job_id()
ids._source._lock.acquire()  # as if another thread were making an id at that moment
pipes = []
for _ in range(4):
    reading, writing = os.pipe()
    if os.fork() == 0:
        random.seed(1)
        os.write(writing, b"\\n".join(str(ids.job_id()).encode() for _ in range(500)))
        os._exit(0)
    os.close(writing)
    pipes.append(reading)
ids._source._lock.release()
print("\\n".join(str(ids.job_id()) for _ in range(500)))
for reading in pipes:
    print(os.fdopen(reading).read())
"""


def test_forked_processes_never_make_the_same_id() -> None:
    """The clock stands still, the random module is seeded alike, and the lock is held during the fork."""
    run = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, check=True, timeout=30)

    ids = run.stdout.split()
    assert len(ids) == 2_500
    assert len(set(ids)) == 2_500

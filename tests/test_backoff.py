"""Waits before the next try: bounded, spread, and different in each process."""

import json
import pickle
import random
import subprocess
import sys
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from django_jobs.backoff import LONGEST_DELAY, Backoff, Fixed, PerException, Steps, coerce

SECOND = timedelta(seconds=1)


class TestBackoff:
    def test_defaults_are_those_promised(self) -> None:
        assert Backoff() == Backoff(base=30, factor=2, cap=600, jitter="full")
        assert Backoff().base == timedelta(seconds=30)
        assert Backoff().cap == timedelta(minutes=10)

    @pytest.mark.parametrize("failures", [1, 2, 64, 310, 1100, 5000, 10**9, 10**400])
    @pytest.mark.parametrize("factor", [1, 1.0000001, 2, 10, 1e200])
    def test_no_number_of_failures_overflows(self, failures: int, factor: float) -> None:
        """RT-01."""
        backoff = Backoff(factor=factor)

        for draw in (0.0, 0.5, 0.999999999999):
            delay = backoff.delay(failures, rand=lambda draw=draw: draw)  # type: ignore[misc]
            assert timedelta(0) <= delay <= backoff.cap

    @pytest.mark.parametrize(
        ("failures", "seconds"),
        [(-1, 30), (0, 30), (1, 30), (2, 60), (3, 120), (4, 240), (5, 480), (6, 600), (99, 600)],
    )
    def test_longest_wait_doubles_up_to_the_cap(self, failures: int, seconds: int) -> None:
        assert Backoff().longest(failures) == seconds * SECOND
        assert Backoff(jitter="none").delay(failures) == seconds * SECOND

    def test_factor_of_one_stays_at_the_base(self) -> None:
        assert Backoff(base=5, factor=1).longest(10**400) == 5 * SECOND

    @pytest.mark.parametrize("failures", [1, 3, 9])
    def test_draws_fill_the_window_evenly(self, failures: int) -> None:
        """RT-02."""
        longest = min(600, 30 * 2 ** (failures - 1)) * SECOND

        draws = [Backoff().delay(failures) for _ in range(10_000)]

        assert all(timedelta(0) <= draw <= longest for draw in draws)
        assert 0.48 < sum(draws, timedelta()) / 10_000 / longest < 0.52
        assert min(draws) < longest * 0.01
        assert max(draws) > longest * 0.99

    def test_jobs_that_failed_together_are_spread_over_the_window(self) -> None:
        """RT-04."""
        rand = random.Random(4).random

        seconds = Counter(Backoff().delay(1, rand=rand) // SECOND for _ in range(1000))

        assert max(seconds.values()) <= 50
        assert len(seconds) == 30

    @settings(deadline=None)
    @given(
        base=st.timedeltas(timedelta(microseconds=1), LONGEST_DELAY),
        factor=st.floats(1, 1e299),
        more=st.timedeltas(timedelta(0), LONGEST_DELAY),
        failures=st.integers(-5, 10**30),
        draw=st.floats(0, 1, exclude_max=True),
    )
    def test_delay_is_never_outside_of_its_window(
        self, base: timedelta, factor: float, more: timedelta, failures: int, draw: float
    ) -> None:
        """RT-01, RT-02."""
        backoff = Backoff(base, factor, cap=min(base + more, LONGEST_DELAY))

        assert timedelta(0) <= backoff.delay(failures, rand=lambda: draw) <= backoff.longest(failures) <= backoff.cap

    @pytest.mark.parametrize(
        ("options", "error", "part"),
        [
            ({"base": 0}, ValueError, "base=0 would never grow"),
            ({"base": -1}, ValueError, "base=-1 is negative"),
            ({"base": 30, "cap": 29}, ValueError, "cap=29 is below base=30"),
            ({"base": "30"}, TypeError, "base='30' is of type str"),
            ({"base": True}, TypeError, "base=True is of type bool"),
            ({"base": float("nan")}, ValueError, "base=nan is no span"),
            ({"cap": float("inf")}, ValueError, "cap=inf is no span"),
            ({"cap": 10**13}, ValueError, "cap=10000000000000 is longer than 366 days"),
            ({"cap": 10**30}, ValueError, "is no span"),
            ({"cap": None}, TypeError, "cap=None is of type NoneType"),
            ({"factor": 0.5}, ValueError, "factor=0.5 does not let a wait grow"),
            ({"factor": float("nan")}, ValueError, "factor=nan"),
            ({"factor": float("inf")}, ValueError, "factor=inf"),
            ({"factor": 10**400}, ValueError, "factor=1000"),
            ({"factor": "2"}, TypeError, "factor='2' is of type str"),
            ({"jitter": "some"}, ValueError, "jitter='some' is not known"),
            ({"jitter": True}, ValueError, "jitter=True is not known"),
        ],
        ids=lambda value: str(value)[:40],
    )
    def test_nonsense_is_refused_when_it_is_declared(
        self, options: dict[str, Any], error: type[Exception], part: str
    ) -> None:
        with pytest.raises(error) as caught:
            Backoff(**options)

        assert part in str(caught.value)

    def test_it_is_a_frozen_value(self) -> None:
        backoff = Backoff(base=5)

        assert hash(backoff) == hash(Backoff(base=timedelta(seconds=5)))
        assert pickle.loads(pickle.dumps(backoff)) == backoff
        with pytest.raises(AttributeError):
            backoff.cap = timedelta(0)  # type: ignore[misc]


FORK = """
import json, os, random
from django_jobs.backoff import Backoff

for _ in range(2):
    if os.fork() == 0:
        random.seed(1)
        os.write(1, json.dumps([Backoff().delay(3).total_seconds() for _ in range(20)]).encode() + b"\\n")
        os._exit(0)
    os.wait()
"""


def test_forked_workers_draw_different_delays() -> None:
    """RT-02: even where both seed the random module alike."""
    run = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, check=True, timeout=30)

    one, other = map(json.loads, run.stdout.splitlines())
    assert len(set(one) | set(other)) == 40


class TestCoerce:
    def test_backoff_stays_what_it_is(self) -> None:
        backoff = Backoff(base=1)

        assert coerce(backoff) is backoff

    @pytest.mark.parametrize("value", [90, 90.0, timedelta(seconds=90)], ids=repr)
    def test_span_is_the_wait_each_time(self, value: object) -> None:
        policy = coerce(value)

        assert [policy.delay(failures) for failures in (1, 2, 50)] == [90 * SECOND] * 3

    def test_zero_means_at_once(self) -> None:
        assert coerce(0).delay(1) == timedelta(0)

    def test_list_gives_one_wait_after_another_and_repeats_the_last(self) -> None:
        policy = coerce([0, timedelta(minutes=1), 300.5])

        waits = [policy.delay(failures).total_seconds() for failures in (-1, 0, 1, 2, 3, 4, 10**30)]

        assert waits == [0, 0, 0, 60, 300.5, 300.5, 300.5]

    def test_mapping_decides_by_the_most_specific_class(self) -> None:
        policy = coerce({OSError: 10, ConnectionError: [1, 2], Exception: Backoff(jitter="none")})

        assert policy.delay(1, exception=FileNotFoundError()) == 10 * SECOND
        assert policy.delay(2, exception=ConnectionResetError()) == 2 * SECOND
        assert policy.delay(1, exception=ValueError()) == 30 * SECOND

    def test_exception_that_is_not_listed_gets_the_default(self) -> None:
        policy = coerce({OSError: 10})

        for exception in (None, ValueError(), KeyboardInterrupt()):
            assert policy.delay(1, exception=exception, rand=lambda: 0.5) == 15 * SECOND

    def test_policies_are_values(self) -> None:
        for policy in (coerce(5), coerce([1, 2]), coerce({OSError: 5})):
            assert hash(pickle.loads(pickle.dumps(policy))) == hash(policy)
            assert coerce(policy) is policy
        assert coerce(5) == Fixed(5 * SECOND)
        assert coerce((1, 2)) == Steps((SECOND, 2 * SECOND))
        assert coerce({OSError: 5}) == PerException(((OSError, Fixed(5 * SECOND)),))

    @pytest.mark.parametrize(
        ("value", "error", "part"),
        [
            (None, TypeError, "of type NoneType"),
            ("30", TypeError, "of type str"),
            (b"30", TypeError, "of type bytes"),
            (True, TypeError, "of type bool"),
            ({1, 2}, TypeError, "of type set"),
            (abs, TypeError, "of type builtin_function_or_method"),
            (-5, ValueError, "backoff=-5 is negative"),
            (float("nan"), ValueError, "is no span"),
            (10**13, ValueError, "longer than 366 days"),
            ([], ValueError, "holds no span"),
            ([1, -1], ValueError, "backoff[1]=-1 is negative"),
            ([1, [2]], TypeError, "backoff[1]=[2] is of type list"),
            ({}, ValueError, "names no exception"),
            ({"OSError": 1}, TypeError, "no exception class"),
            ({int: 1}, TypeError, "no exception class"),
            ({OSError: {OSError: 1}}, TypeError, "a dict for OSError"),
            ({OSError: "x"}, TypeError, "of type str"),
        ],
        ids=lambda value: str(value)[:40],
    )
    def test_anything_else_is_refused_with_a_sentence(self, value: object, error: type[Exception], part: str) -> None:
        with pytest.raises(error) as caught:
            coerce(value)

        assert part in str(caught.value)
        assert str(caught.value).endswith(".")

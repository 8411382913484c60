"""settings.DJANGO_JOBS: every key, what it refuses, and that it is read when used."""

import dataclasses
from datetime import timedelta
from types import MappingProxyType
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings
from django.utils.safestring import SafeString

from django_jobs import conf
from django_jobs.conf import QueueOptions, Settings, Statsd, did_you_mean, get_settings, label, queue_label, read, span
from django_jobs.models import Job

NAN, INFINITY = float("nan"), float("inf")
SPANS = [
    "TIMEOUT",
    "LEASE",
    "HEARTBEAT",
    "POLL_INTERVAL",
    "GRACE",
    "UNKNOWN_TASK_PATIENCE",
    "PRIORITY_AGEING",
    "KEEP_SUCCEEDED",
    "KEEP_OTHER_RUNS",
    "KEEP_CLOSED_LETTERS",
    "ALERT_WINDOW",
]
NUMBERS = [
    "MAX_PAYLOAD_SIZE",
    "MAX_RESULT_SIZE",
    "MAX_ATTEMPTS",
    "MAX_CRASHES",
    "PROCESSES",
    "THREADS",
    "ASYNC_CONCURRENCY",
    "PRUNE_BATCH",
]
FLAGS = ["NOTIFY", "IMMEDIATE"]
OTHERS = ["QUEUES", "STATSD", "ADMIN_BASE", "ALERT_FAILURE_RATE"]
MAY_BE_NONE = {"PRIORITY_AGEING", "KEEP_SUCCEEDED", "KEEP_OTHER_RUNS", "KEEP_CLOSED_LETTERS", "STATSD"}
MAY_BE_ZERO = {
    "GRACE",
    "UNKNOWN_TASK_PATIENCE",
    "KEEP_SUCCEEDED",
    "KEEP_OTHER_RUNS",
    "KEEP_CLOSED_LETTERS",
    "PROCESSES",
}


def problem_of(key: str, value: object) -> str:
    """The one sentence about this value."""
    (problem,) = read({key: value})[1]
    return problem


def test_every_key_is_tested_here_and_can_be_read() -> None:
    names = {each.name for each in dataclasses.fields(Settings)}

    assert names == {*SPANS, *NUMBERS, *FLAGS, *OTHERS} == set(conf._READERS)


def test_nothing_given_means_the_defaults() -> None:
    assert read({}) == (Settings(), [])


def test_the_defaults_are_values_that_would_be_accepted() -> None:
    assert read(vars(Settings())) == (Settings(), [])


def test_the_setting_may_be_missing(settings: Any) -> None:
    settings.DJANGO_JOBS = {"THREADS": 1}
    del settings.DJANGO_JOBS

    assert get_settings() == Settings()


def test_settings_are_read_when_used() -> None:
    before = get_settings().THREADS

    with override_settings(DJANGO_JOBS={"THREADS": before + 1}):
        assert before + 1 == get_settings().THREADS
    assert before == get_settings().THREADS


def test_settings_cannot_be_changed() -> None:
    settings, _ = read({"QUEUES": {"mail": {}}})

    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.THREADS = 3  # type: ignore[misc]
    assert isinstance(settings.QUEUES, MappingProxyType)


def test_all_that_is_wrong_is_said_at_once() -> None:
    with override_settings(DJANGO_JOBS={"THREDS": 5, "LEASE": 0}), pytest.raises(ImproperlyConfigured) as caught:
        get_settings()

    assert str(caught.value) == (
        "DJANGO_JOBS[\"THREDS\"] is not a setting. Did you mean 'THREADS'? "
        'DJANGO_JOBS["LEASE"] = 0: must be from 1 seconds to 43200 seconds.'
    )


@pytest.mark.parametrize("given", [None, [], "THREADS", 5, [("THREADS", 5)]], ids=repr)
def test_what_is_no_dict_is_refused(given: Any) -> None:
    assert read(given) == (Settings(), [f"DJANGO_JOBS must be a dict, not {type(given).__name__}."])


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("THREDS", " Did you mean 'THREADS'?"),
        ("threads", " Did you mean 'THREADS'?"),
        ("KEEP_SUCCEDED", " Did you mean 'KEEP_SUCCEEDED'?"),
        ("COLOUR", ""),
        (5, ""),
    ],
)
def test_an_unknown_key_is_refused_with_the_closest_one(key: Any, hint: str) -> None:
    assert problem_of(key, 1) == f'DJANGO_JOBS["{key}"] is not a setting.{hint}'


@pytest.mark.parametrize("key", SPANS)
@pytest.mark.parametrize("value", ["60", b"60", True, [60], {"seconds": 60}, object], ids=repr)
def test_a_span_of_the_wrong_type_is_refused(key: str, value: Any) -> None:
    assert problem_of(key, value) == (f'DJANGO_JOBS["{key}"] = {value!r}: must be a timedelta or a number of seconds.')


@pytest.mark.parametrize("key", SPANS)
@pytest.mark.parametrize("value", [-1, -0.001, timedelta(days=-1), NAN, INFINITY, -INFINITY, 10**13, 10**400], ids=repr)
def test_a_span_out_of_range_is_refused(key: str, value: Any) -> None:
    """DP-10."""
    assert problem_of(key, value).startswith(f'DJANGO_JOBS["{key}"] = {value!r}: must be from ')


@pytest.mark.parametrize("key", SPANS)
def test_zero_is_refused_where_it_means_nothing(key: str) -> None:
    """DP-10."""
    settings, problems = read({key: 0})

    assert (not problems) is (key in MAY_BE_ZERO)
    if not problems:
        assert getattr(settings, key) == timedelta(0)


@pytest.mark.parametrize("key", SPANS)
def test_a_number_is_taken_as_seconds(key: str) -> None:
    for value in (21, 21.0, timedelta(seconds=21)):
        given = {"HEARTBEAT": 10, "LEASE": 60, key: value}

        assert getattr(read(given)[0], key) == timedelta(seconds=21)


@pytest.mark.parametrize("key", NUMBERS)
@pytest.mark.parametrize("value", ["5", 5.0, True, None, NAN], ids=repr)
def test_a_whole_number_of_the_wrong_type_is_refused(key: str, value: Any) -> None:
    assert problem_of(key, value) == f'DJANGO_JOBS["{key}"] = {value!r}: must be a whole number.'


@pytest.mark.parametrize("key", NUMBERS)
@pytest.mark.parametrize("below", [1, 2, -(2**31)])
def test_a_whole_number_out_of_range_is_refused(key: str, below: int) -> None:
    """DP-10."""
    least = 0 if key in MAY_BE_ZERO else 1
    value = least - below

    assert problem_of(key, value).startswith(f'DJANGO_JOBS["{key}"] = {value}: must be from {least} to ')


@pytest.mark.parametrize("key", FLAGS)
@pytest.mark.parametrize("value", [1, 0, "yes", None], ids=repr)
def test_a_flag_is_true_or_false(key: str, value: Any) -> None:
    assert problem_of(key, value) == f'DJANGO_JOBS["{key}"] = {value!r}: must be True or False.'


@pytest.mark.parametrize("key", [*SPANS, *NUMBERS, *FLAGS, *OTHERS])
def test_none_means_never_where_that_makes_sense(key: str) -> None:
    assert (not read({key: None})[1]) is (key in MAY_BE_NONE)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("ADMIN_BASE", 5, "must be a string."),
        ("ADMIN_BASE", "", "must not be empty."),
        ("ALERT_FAILURE_RATE", "5%", "must be a number from 0 to 1."),
        ("ALERT_FAILURE_RATE", True, "must be a number from 0 to 1."),
        ("ALERT_FAILURE_RATE", 5, "must be from 0 to 1, such as 0.05 for 5 %."),
        ("ALERT_FAILURE_RATE", -0.1, "must be from 0 to 1"),
        ("ALERT_FAILURE_RATE", NAN, "must be from 0 to 1"),
        ("STATSD", "localhost", "must be a dict with any of the keys host, port, prefix."),
        ("STATSD", {"hots": "a"}, "has no key 'hots'. Did you mean 'host'?"),
        ("STATSD", {"host": ""}, "['host'] must not be empty."),
        ("STATSD", {"host": 1}, "['host'] must be a string."),
        ("STATSD", {"port": "8125"}, "['port'] must be a whole number."),
        ("STATSD", {"port": 0}, "['port'] must be from 1 to 65535."),
        ("STATSD", Statsd(port=70000), "['port'] must be from 1 to 65535."),
        ("QUEUES", ["mail"], 'must be a dict such as {"default": {}, "mail": {"expected_latency": 30}}.'),
        ("QUEUES", {"": {}}, "[''] must have 1 to 64 characters, not 0."),
        ("QUEUES", {"q" * 300: {}}, "must have 1 to 64 characters, not 300."),
        ("QUEUES", {5: {}}, "[5] must be a string."),
        ("QUEUES", {"a,b": {}}, "['a,b'] must have no comma in it"),
        ("QUEUES", {"a\n": {}}, "must have no control character in it, and no space around it."),
        ("QUEUES", {"mail": None}, "['mail'] must be a dict with any of the keys expected_latency."),
        ("QUEUES", {"mail": {"latency": 3}}, "['mail'] has no key 'latency'. Did you mean 'expected_latency'?"),
        ("QUEUES", {"mail": {"expected_latency": 0}}, "['mail']['expected_latency'] must be from"),
        ("QUEUES", {"mail": {"expected_latency": "1m"}}, "['mail']['expected_latency'] must be a timedelta"),
        ("QUEUES", {"mail": QueueOptions(timedelta(0))}, "['mail']['expected_latency'] must be from"),
    ],
    ids=lambda value: str(value)[:40] if not isinstance(value, str) else "",
)
def test_a_value_of_no_use_is_refused_and_the_place_named(key: str, value: Any, words: str) -> None:
    problem = problem_of(key, value)

    assert problem.startswith(f'DJANGO_JOBS["{key}"] = {value!r}: ')
    assert words in problem


def test_groups_become_typed_values() -> None:
    settings, problems = read(
        {
            "QUEUES": {"default": {}, "mail": {"expected_latency": 30}, "bulk": QueueOptions(timedelta(hours=1))},
            "STATSD": {"port": 9125, "prefix": "shop."},
            "ALERT_FAILURE_RATE": 1,
        }
    )

    assert problems == []
    assert {
        "default": QueueOptions(),
        "mail": QueueOptions(timedelta(seconds=30)),
        "bulk": QueueOptions(timedelta(hours=1)),
    } == settings.QUEUES
    assert Statsd("127.0.0.1", 9125, "shop.") == settings.STATSD
    assert type(settings.ALERT_FAILURE_RATE) is float


@pytest.mark.parametrize(
    "given",
    [{"LEASE": 10, "HEARTBEAT": 10}, {"LEASE": 10}, {"HEARTBEAT": 60}, {"LEASE": 19.9, "HEARTBEAT": 10}],
    ids=str,
)
def test_a_lease_that_one_late_heartbeat_would_lose_is_refused(given: dict[str, Any]) -> None:
    """DP-10."""
    (problem,) = read(given)[1]

    assert 'DJANGO_JOBS["LEASE"]' in problem
    assert 'must be at least twice DJANGO_JOBS["HEARTBEAT"]' in problem


def test_a_default_in_place_of_a_wrong_value_contradicts_nothing() -> None:
    assert problem_of("LEASE", "long").endswith("must be a timedelta or a number of seconds.")
    assert len(read({"LEASE": "long", "HEARTBEAT": 60})[1]) == 1


def test_the_length_of_a_queues_name_is_that_of_its_column() -> None:
    column: Any = Job._meta.get_field("queue_name")

    assert column.max_length == conf.QUEUE_LENGTH


def test_a_label_becomes_a_plain_str() -> None:
    assert type(label(SafeString("mail"), most=9)) is str
    assert type(queue_label(SafeString("mail"))) is str


def test_a_span_keeps_its_limits() -> None:
    second = timedelta(seconds=1)

    assert span(1, least=second, most=second) == second
    for value in (0.999999, 1.000001):
        with pytest.raises(ValueError, match=r"must be from 1 seconds to 1 seconds\."):
            span(value, least=second, most=second)


def test_the_closest_name_is_offered_whatever_its_case() -> None:
    assert did_you_mean("EMIAL", ["email", "bulk"]) == " Did you mean 'email'?"
    assert did_you_mean("xyz", ["email", "bulk"]) == ""
    assert did_you_mean("xyz", []) == ""

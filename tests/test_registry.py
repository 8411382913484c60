"""@task: what it accepts and refuses; what using() and bind() make of a task; how tasks are found."""

import copy
import functools
import inspect
import pickle
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import StrEnum
from typing import Any
from zoneinfo import ZoneInfo

import django
import pytest
from asgiref.sync import async_to_sync
from django.conf import settings
from django.db import transaction
from django.test import override_settings
from django.utils import timezone as django_timezone
from django.utils.functional import lazystr
from django.utils.module_loading import import_string
from hypothesis import given
from hypothesis import strategies as st

from django_jobs import once, registry
from django_jobs.backoff import Backoff
from django_jobs.exceptions import InvalidTask, UnknownTask
from django_jobs.models import Job, JobKey
from django_jobs.registry import EnqueueOptions, Task, declare, definition, task
from django_jobs.registry import options as limits
from django_jobs.statuses import Uniqueness

BERLIN = ZoneInfo("Europe/Berlin")
NAIVE = datetime(2030, 7, 1, 12)  # noqa: DTZ001
FIRST, LAST = datetime.min, datetime.max  # noqa: DTZ901


@pytest.fixture(autouse=True)
def nothing_stays_registered() -> Iterator[None]:
    with registry.isolated():
        yield


def send(invoice_id: int, *, locale: str = "de") -> str:
    """Send an invoice."""
    return f"{invoice_id} {locale}"


def reindex(page: int = 1) -> None: ...


def report(context: object, day: str, password: str = "") -> None: ...


def nothing() -> None: ...


async def fetch(url: str) -> str:
    return url


def lines() -> Iterator[int]:
    yield 1


async def chunks() -> AsyncIterator[int]:
    yield 1


@functools.cache
def cached(number: int) -> int:
    return number


def doubling(func: Callable[[int], int]) -> Callable[[int], int]:
    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> int:
        return func(*args, **kwargs) * 2

    return wrapper


@doubling
def doubled(number: int) -> int:
    return number


class Shop:
    def method(self) -> None: ...

    @classmethod
    def of_class(cls) -> None: ...

    @staticmethod
    def static() -> None: ...

    def __call__(self) -> None: ...


def outer() -> Callable[[], None]:
    def inner() -> None: ...

    return inner


class TestDeclaring:
    def test_a_task_can_be_called_like_the_function_it_wraps(self) -> None:
        assert declare(send)(7, locale="en") == "7 en"

    def test_a_task_looks_like_the_function_it_wraps(self) -> None:
        declared: Any = declare(send)

        assert (declared.__name__, declared.__doc__) == ("send", "Send an invoice.")
        assert declared.__wrapped__ is send
        assert inspect.signature(declared) == inspect.signature(send)

    def test_a_task_is_named_by_module_and_function(self) -> None:
        declared = declare(send)

        assert declared.name == declared.module_path == f"{__name__}.send"
        assert registry.get(declared.name) is declared

    def test_the_defaults_are_those_of_the_design(self) -> None:
        declared = declare(send)

        assert (declared.queue_name, declared.priority, declared.max_attempts) == ("default", 0, 5)
        assert (declared.timeout, declared.backoff) == (timedelta(hours=1), Backoff())
        assert (declared.retry_on, declared.give_up_on) == ((Exception,), ())
        assert (declared.atomic, declared.key_ttl, declared.takes_context, declared.is_async) == (
            False,
            None,
            False,
            False,
        )
        assert declared.options == EnqueueOptions()

    def test_options_are_kept_as_typed_values(self) -> None:
        declared = declare(
            report,
            queue_name="mail",
            priority=-100,
            max_attempts=3,
            backoff=5,
            timeout=2.5,
            retry_on=OSError,
            give_up_on=[ValueError],
            key_ttl=60,
            takes_context=True,
            sensitive=["password"],
            name="report",
            aliases=("old", "older"),
        )

        assert (declared.queue_name, declared.priority, declared.max_attempts) == ("mail", -100, 3)
        assert (declared.timeout, declared.key_ttl) == (timedelta(seconds=2.5), timedelta(minutes=1))
        assert declared.backoff.delay(1) == timedelta(seconds=5)
        assert (declared.retry_on, declared.give_up_on) == ((OSError,), (ValueError,))
        assert (declared.name, declared.aliases, declared.sensitive) == (
            "report",
            ("old", "older"),
            frozenset({"password"}),
        )

    def test_the_decorator_works_with_and_without_options(self) -> None:
        assert task(send).name == f"{__name__}.send"
        assert task(name="x")(send).name == "x"

    def test_limits_left_to_the_settings_follow_them(self) -> None:
        declared = declare(send)

        with override_settings(DJANGO_JOBS={"MAX_ATTEMPTS": 9, "TIMEOUT": 5}):
            assert (declared.max_attempts, declared.timeout) == (9, timedelta(seconds=5))

    @pytest.mark.parametrize("func", [cached, doubled])
    def test_a_decorated_function_can_be_a_task(self, func: Any) -> None:
        declared = declare(func)

        assert declared.name == f"{__name__}.{func.__name__}"
        assert declared.bind(2).args == (2,)

    def test_an_async_function_is_known_as_one(self) -> None:
        assert declare(fetch).is_async

    def test_a_task_cannot_be_changed(self) -> None:
        with pytest.raises(AttributeError):
            declare(send).priority = 5  # type: ignore[misc]

    @pytest.mark.parametrize(
        ("func", "words"),
        [
            (lambda: None, "A lambda in tests.test_registry cannot be a task"),
            (outer(), r"inner\(\) is declared inside outer\(\)"),
            (Shop().method, r"Shop.method\(\) is a method"),
            (Shop.method, r"Shop.method\(\) is a method"),
            (Shop.of_class, r"Shop.of_class\(\) is a method"),
            (Shop.static, r"Shop.static\(\) is a method"),
            (Shop.__dict__["static"], r"Shop.static\(\) is a method"),
            (Shop.__dict__["of_class"], "is not a function"),
            (Shop, "Class 'Shop' cannot be a task"),
            (Shop(), "Shop has no module and name"),
            (functools.partial(send, 1), "partial has no module and name"),
            (lines, r"lines\(\) is a generator"),
            (chunks, r"chunks\(\) is a generator"),
            ("send", "'send' is not a function"),
            ("".join, "no module and name"),
        ],
        ids=lambda value: value if isinstance(value, str) else type(value).__name__,
    )
    def test_a_callable_that_no_worker_could_find_or_run_is_refused(self, func: Any, words: Any) -> None:
        with pytest.raises(InvalidTask, match=words):
            declare(func)

        assert f"{__name__}.{getattr(func, '__qualname__', '')}" not in registry.names()

    def test_a_function_of_main_needs_a_name(self) -> None:
        def main() -> None: ...

        main.__module__, main.__qualname__ = "__main__", "main"

        with pytest.raises(InvalidTask, match=r"__main__.*@task\(name="):
            declare(main)
        assert declare(main, name="main").name == "main"

    def test_a_task_of_a_task_is_refused(self) -> None:
        declared = declare(send)

        with pytest.raises(InvalidTask, match="is a task already"):
            declare(declared)

    @pytest.mark.parametrize(
        ("func", "options", "error", "words"),
        [
            (send, {"queue_name": ""}, ValueError, "queue_name='' must have 1 to 64 characters"),
            (send, {"queue_name": "q" * 300}, ValueError, "must have 1 to 64 characters, not 300"),
            (send, {"queue_name": 5}, TypeError, "queue_name=5 must be a string"),
            (send, {"queue_name": "a,b"}, ValueError, "comma"),
            (send, {"queue_name": " mail"}, ValueError, "no space around it"),
            (send, {"name": ""}, ValueError, "name='' must have 1 to 200 characters"),
            (send, {"name": "x" * 201}, ValueError, "must have 1 to 200 characters, not 201"),
            (send, {"name": "a\0b"}, ValueError, r"name='a\\x00b' must have no control character"),
            (send, {"name": "a\ud800b"}, ValueError, "control character"),
            (send, {"name": "a\nb"}, ValueError, "control character"),
            (send, {"name": 7}, TypeError, "name=7 must be a string"),
            (send, {"aliases": "old"}, TypeError, "aliases='old' must be a tuple"),
            (send, {"aliases": 3}, TypeError, "aliases=3 must be a tuple"),
            (send, {"aliases": ("a", "a")}, ValueError, "names something twice"),
            (send, {"aliases": ("",)}, ValueError, "aliases='' must have"),
            (send, {"name": "a", "aliases": ("a",)}, ValueError, "is the name and an alias"),
            (send, {"priority": 2**31}, ValueError, "from -100 to 100"),
            (send, {"priority": 101}, ValueError, "from -100 to 100"),
            (send, {"priority": -101}, ValueError, "from -100 to 100"),
            (send, {"priority": "high"}, ValueError, "priority='high' must be a whole number"),
            (send, {"priority": 1.5}, ValueError, "whole number"),
            (send, {"priority": True}, ValueError, "whole number"),
            (send, {"max_attempts": 0}, ValueError, "from 1 to"),
            (send, {"max_attempts": 2**31}, ValueError, "from 1 to"),
            (send, {"max_attempts": True}, TypeError, "whole number"),
            (send, {"max_attempts": "5"}, TypeError, "whole number"),
            (send, {"timeout": 0}, ValueError, "timeout=0 must be from 0.001 seconds to 24 days"),
            (send, {"timeout": -1}, ValueError, "timeout=-1 must be from"),
            (send, {"timeout": float("nan")}, ValueError, "timeout=nan must be from"),
            (send, {"timeout": float("inf")}, ValueError, "timeout=inf must be from"),
            (send, {"timeout": timedelta(days=25)}, ValueError, "24 days"),
            (send, {"timeout": "60"}, TypeError, "timeout='60' must be a timedelta or a number of seconds"),
            (send, {"timeout": True}, TypeError, "timedelta or a number"),
            (send, {"key_ttl": 0}, ValueError, "key_ttl=0 must be from"),
            (send, {"key_ttl": -timedelta(1)}, ValueError, "key_ttl="),
            (send, {"key_ttl": "1h"}, TypeError, "key_ttl='1h' must be a timedelta"),
            (send, {"retry_on": "OSError"}, TypeError, "retry_on='OSError' must be a tuple of exception classes"),
            (send, {"retry_on": (int,)}, TypeError, "retry_on holds <class 'int'>"),
            (send, {"retry_on": int}, TypeError, "retry_on holds <class 'int'>"),
            (send, {"give_up_on": (ValueError("x"),)}, TypeError, r"give_up_on holds ValueError\('x'\)"),
            (send, {"give_up_on": 5}, TypeError, "give_up_on=5 must be a tuple"),
            (send, {"retry_on": (OSError,), "give_up_on": (OSError,)}, InvalidTask, "'OSError' is in retry_on and"),
            (send, {"sensitive": ("lokale",)}, ValueError, "no such parameter. Did you mean 'locale'?"),
            (send, {"sensitive": "locale"}, TypeError, "sensitive='locale' must be a tuple"),
            (report, {"sensitive": ("context",), "takes_context": True}, ValueError, "sensitive names 'context'"),
            (nothing, {"takes_context": True}, InvalidTask, "needs a first parameter"),
            (send, {"takes_context": 1}, TypeError, "takes_context=1 must be True or False"),
            (send, {"atomic": "yes"}, TypeError, "atomic='yes' must be True or False"),
            (fetch, {"atomic": True}, InvalidTask, "no transactions in async code"),
            (send, {"backoff": "fast"}, TypeError, "backoff='fast'"),
            (send, {"max_atempts": 3}, TypeError, "no option 'max_atempts'. Did you mean 'max_attempts'?"),
            (send, {"delay": 3}, TypeError, r"no option 'delay'. It belongs to one enqueueing: .using\(delay=...\)"),
        ],
        ids=lambda value: str(value)[:40] if isinstance(value, dict) else "",
    )
    def test_an_option_of_no_use_is_refused_with_the_tasks_path(
        self, func: Any, options: Any, error: Any, words: Any
    ) -> None:
        """PL-11, PL-16: the same on every database, at the declaration."""
        with pytest.raises(error, match=words) as caught:
            declare(func, **options)

        assert f"@task of {__name__}.{func.__name__}: " in str(caught.value)
        assert not [each for each in registry.all_tasks() if each.func is func]

    def test_a_path_of_300_characters_is_refused(self) -> None:
        """PL-11."""

        def long() -> None: ...

        long.__qualname__ = "f" * 300

        with pytest.raises(ValueError, match="must have 1 to 200 characters"):
            declare(long)
        assert declare(long, name="long").name == "long"

    def test_a_function_with_free_keywords_may_have_any_sensitive_name(self) -> None:
        def free(**values: object) -> None: ...

        free.__qualname__ = "free"

        assert declare(free, sensitive=["token"]).sensitive_values((), {"token": 1, "other": 2}) == [1]

    def test_the_checked_lengths_are_those_of_the_columns(self) -> None:
        lengths = {
            (Job, "task_name"): limits.NAME_LENGTH,
            (JobKey, "scope"): limits.NAME_LENGTH,
            (Job, "key"): limits.KEY_LENGTH,
            (JobKey, "key"): limits.KEY_LENGTH,
        }

        for (model, name), length in lengths.items():
            column: Any = model._meta.get_field(name)
            assert column.max_length == length


class TestNames:
    def test_two_functions_of_one_name_are_refused(self) -> None:
        declare(send, name="mail")

        with pytest.raises(InvalidTask, match=r"'mail' of .*reindex is registered already, by .*send"):
            declare(reindex, name="mail")
        assert registry.get("mail").func is send

    def test_a_module_that_is_loaded_again_replaces_its_tasks(self) -> None:
        former = declare(send, aliases=["old", "older"])
        latter = declare(send, aliases=["old"])

        assert registry.get(former.name) is registry.get("old") is latter
        assert registry.find("older") is None

    def test_one_function_may_be_two_tasks(self) -> None:
        slow, fast = declare(send, name="slow"), declare(send, name="fast", priority=9)

        assert (registry.get("slow"), registry.get("fast")) == (slow, fast)

    @pytest.mark.parametrize(
        "options",
        [{"name": "a"}, {"name": "b"}, {"name": "x", "aliases": ["a"]}, {"name": "x", "aliases": ["b"]}],
        ids=str,
    )
    def test_a_name_or_alias_of_another_task_is_refused(self, options: Any) -> None:
        declare(send, name="a", aliases=["b"])

        with pytest.raises(InvalidTask, match="already"):
            declare(reindex, **options)
        assert registry.names() == [*sorted({"a", "b", *registry.names()})]
        assert registry.find("x") is None

    def test_an_alias_finds_the_task(self) -> None:
        declared = declare(send, name="new", aliases=["old"])

        assert registry.get("old") is registry.find("old") is declared
        assert {"new", "old"} <= set(registry.names())
        assert [each for each in registry.all_tasks() if each.func is send] == [declared]

    def test_an_unknown_task_is_named_with_the_closest_one(self) -> None:
        declare(send, name="shop.tasks.send")

        with pytest.raises(UnknownTask, match=r"'shop\.task\.send'\. Did you mean 'shop\.tasks\.send'\?"):
            registry.get("shop.task.send")
        assert registry.find("shop.task.send") is None

    def test_the_scope_of_keys_survives_a_rename(self) -> None:
        """ID-09: the scope of a key is the task, not its queue; an alias keeps it."""
        before = declare(send, name="old")
        registry.unregister(before)
        after = declare(send, name="new", aliases=["old"])

        assert before.key_scope == after.key_scope == "old"
        assert after.using(queue_name="other").key_scope == after.key_scope
        assert declare(reindex, name="other").key_scope == "other"

    def test_the_tasks_module_of_an_installed_app_is_found(self) -> None:
        from tests import tasks

        assert registry.get("tests.tasks.note") is tasks.note

    def test_unregistering_twice_is_no_error(self) -> None:
        declared = declare(send, aliases=["old"])

        registry.unregister(declared)
        registry.unregister(declared)

        assert registry.find("old") is registry.find(declared.name) is None


class TestUsing:
    def test_options_are_kept_for_one_enqueueing(self) -> None:
        declared = declare(send, queue_name="mail", priority=1)

        changed = declared.using(
            delay=60, key="k", unique="live", priority=5, queue_name="bulk", max_attempts=2, timeout=3, database="other"
        )

        assert changed.options == EnqueueOptions(
            delay=timedelta(minutes=1),
            key="k",
            unique=Uniqueness.LIVE,
            priority=5,
            queue_name="bulk",
            max_attempts=2,
            timeout=timedelta(seconds=3),
            database="other",
        )
        assert (changed.priority, changed.queue_name) == (5, "bulk")
        assert (changed.max_attempts, changed.timeout) == (2, timedelta(seconds=3))
        assert (declared.priority, declared.queue_name, declared.options) == (1, "mail", EnqueueOptions())
        assert changed(1) == "1 de"

    def test_a_later_using_adds_to_an_earlier_one(self) -> None:
        changed = declare(send).using(key="k", priority=5).using(priority=6, delay=1).using(delay=None)

        assert changed.options == EnqueueOptions(key="k", priority=6, delay=timedelta(seconds=1))

    def test_the_later_of_delay_and_run_at_counts(self, settings: Any) -> None:
        settings.USE_TZ = True
        moment = datetime(2030, 1, 1, tzinfo=UTC)
        declared = declare(send)

        assert declared.using(delay=5).using(run_at=moment).options == EnqueueOptions(run_at=moment)
        assert declared.using(run_at=moment).using(delay=5).options == EnqueueOptions(delay=timedelta(seconds=5))

    @pytest.mark.parametrize(
        ("options", "expected"),
        [({}, ""), ({"key": "k"}, "ever"), ({"key": "k", "unique": "queued"}, "queued"), ({"priority": 3}, "")],
    )
    def test_the_uniqueness_to_store_goes_with_the_key(self, options: Any, expected: Any) -> None:
        stored = declare(send).using(**options).options.uniqueness

        assert (stored, type(stored)) == (expected, str)

    @pytest.mark.parametrize(
        ("options", "error", "words"),
        [
            ({"dealy": 5}, TypeError, r"using\(\) has no option 'dealy'. Did you mean 'delay'?"),
            ({"backend": "x"}, TypeError, "no option 'backend'"),
            ({"delay": -1}, ValueError, "delay=-1 must be from 0 seconds to 36525 days"),
            ({"delay": 10**13}, ValueError, "delay=10000000000000 must be from 0 seconds"),
            ({"delay": 10**400}, ValueError, "must be from 0 seconds"),
            ({"delay": 1e300}, ValueError, r"delay=1e\+300 must be from"),
            ({"delay": float("nan")}, ValueError, "delay=nan must be from"),
            ({"delay": float("inf")}, ValueError, "delay=inf must be from"),
            ({"delay": timedelta(days=-1)}, ValueError, "must be from"),
            ({"delay": timedelta(days=36526)}, ValueError, "36525 days"),
            ({"delay": "soon"}, TypeError, "delay='soon' must be a timedelta or a number of seconds"),
            ({"delay": True}, TypeError, "delay=True must be a timedelta"),
            ({"delay": Decimal(1)}, TypeError, "must be a timedelta"),
            ({"delay": datetime(2030, 1, 1, tzinfo=UTC)}, TypeError, "must be a timedelta"),
            ({"run_at": 5}, TypeError, "run_at=5 must be a datetime. For a span from now on give delay="),
            ({"run_at": timedelta(1)}, TypeError, "must be a datetime"),
            ({"run_at": date(2030, 1, 1)}, TypeError, "must be a datetime"),
            ({"run_at": "2030-01-01"}, TypeError, "must be a datetime"),
            ({"run_at": LAST}, ValueError, "years 1001 to 9998"),
            ({"run_at": FIRST}, ValueError, "years 1001 to 9998"),
            ({"run_at": FIRST.replace(tzinfo=UTC)}, ValueError, "years 1001 to 9998"),
            ({"run_after": LAST}, ValueError, "years 1001 to 9998"),
            ({"run_at": NAIVE, "delay": 1}, ValueError, "Both delay= and run_at="),
            ({"run_after": NAIVE, "delay": 1}, ValueError, "Both delay= and run_at="),
            ({"run_at": NAIVE, "run_after": NAIVE}, ValueError, "mean the same"),
            ({"key": ""}, ValueError, "key='' names nothing"),
            ({"key": "k" * 201}, ValueError, "has 201 characters. Give it at most 200"),
            ({"key": "k" * 6000}, ValueError, "has 6000 characters"),
            ({"key": 7}, TypeError, 'key=7 must be a string. Make it one, such as f"order:{order.pk}"'),
            ({"key": b"k"}, TypeError, "must be a string"),
            ({"key": lazystr("k")}, TypeError, "must be a string"),
            ({"key": "a\0b"}, ValueError, "NUL or a lone surrogate"),
            ({"key": "a\ud800"}, ValueError, "NUL or a lone surrogate"),
            ({"key": "k", "unique": "evr"}, ValueError, "'ever', 'live' or 'queued'. Did you mean 'ever'?"),
            ({"key": "k", "unique": True}, ValueError, "unique=True must be"),
            ({"unique": "live"}, ValueError, "unique='live' needs a key"),
            ({"priority": 2**31}, ValueError, "priority=2147483648 must be a whole number from -100 to 100"),
            ({"priority": "high"}, ValueError, "priority='high' must be a whole number"),
            ({"queue_name": ""}, ValueError, "queue_name=''"),
            ({"queue_name": "q" * 65}, ValueError, "1 to 64 characters, not 65"),
            ({"max_attempts": 0}, ValueError, "max_attempts=0"),
            ({"timeout": 0}, ValueError, "timeout=0"),
            ({"database": "nowhere"}, ValueError, "database='nowhere' is not in settings.DATABASES"),
            ({"database": "othr"}, ValueError, "Did you mean 'other'?"),
            ({"database": 1}, TypeError, "database=1 must be an alias"),
        ],
        ids=lambda value: str(value)[:50] if isinstance(value, dict) else "",
    )
    def test_an_option_of_no_use_is_refused_at_the_call(self, options: Any, error: Any, words: Any) -> None:
        """PL-16, ID-07: TypeError or ValueError at the call, never a database error later."""
        with pytest.raises(error, match=words):
            declare(send).using(**options)

    @pytest.mark.parametrize("key", ["k", "k" * 200, "\U0001f600", "日本", " ", "a b"])
    def test_a_key_may_be_any_text_that_can_be_stored(self, key: Any) -> None:
        assert declare(send).using(key=key).options.key == key

    def test_a_key_of_a_str_subclass_becomes_a_plain_str(self) -> None:
        class Operation(StrEnum):
            INVOICE = "invoice"

        key = declare(send).using(key=Operation.INVOICE).options.key

        assert (key, type(key)) == ("invoice", str)

    @pytest.mark.parametrize("delay", [0, 0.5, timedelta(0), timedelta(days=36525)])
    def test_a_delay_is_a_timedelta_or_seconds(self, delay: Any) -> None:
        expected = delay if isinstance(delay, timedelta) else timedelta(seconds=delay)

        assert declare(send).using(delay=delay).options.delay == expected

    def test_only_what_a_worker_must_know_is_stored_with_the_job(self) -> None:
        declared = declare(send)

        assert declared.using(key="k", priority=3, delay=1).options.overrides() is None
        assert declared.using(max_attempts=2).options.overrides() == {"max_attempts": 2}
        assert declared.using(timeout=90).options.overrides() == {"timeout": 90.0}

    def test_a_worker_reads_back_what_was_stored(self) -> None:
        declared = declare(send, max_attempts=7, timeout=60)
        stored = declared.using(max_attempts=2, timeout=0.5).options.overrides()

        assert declared.effective(stored) == (2, timedelta(seconds=0.5))
        assert declared.effective(None) == declared.effective({}) == (7, timedelta(minutes=1))

    @pytest.mark.parametrize(
        "stored",
        [{"max_attempts": 0, "timeout": -1}, {"max_attempts": "x", "timeout": None}, {"timeout": 1e300}, {"new": 1}],
        ids=str,
    )
    def test_a_stored_option_out_of_range_counts_as_absent(self, stored: Any) -> None:
        declared = declare(send, max_attempts=7, timeout=60)

        assert declared.effective(stored) == (7, timedelta(minutes=1))


class TestRunAt:
    """RT-05."""

    def test_a_naive_datetime_is_read_in_the_current_time_zone(self, settings: Any) -> None:
        settings.USE_TZ = True

        with django_timezone.override("Asia/Tokyo"):
            changed = declare(send).using(run_at=NAIVE)

        assert changed.options.run_at == datetime(2030, 7, 1, 3, tzinfo=UTC)
        assert declare(send).using(run_at=NAIVE).options.run_at == NAIVE.replace(tzinfo=BERLIN)

    @pytest.mark.parametrize("moment", ["2030-03-31T02:30", "2030-10-27T02:30"])
    def test_a_naive_datetime_in_a_clock_change_is_accepted(self, settings: Any, moment: Any) -> None:
        settings.USE_TZ = True
        naive = datetime.fromisoformat(moment)

        run_at = declare(send).using(run_at=naive).options.run_at

        assert run_at is not None
        assert abs(run_at - naive.replace(tzinfo=timezone(timedelta(hours=1)))) <= timedelta(hours=1)

    def test_an_aware_datetime_is_kept(self, settings: Any) -> None:
        settings.USE_TZ = True
        aware = datetime(2030, 7, 1, 12, microsecond=123456, tzinfo=timezone(timedelta(hours=-9)))

        assert declare(send).using(run_at=aware).options.run_at == aware

    @pytest.mark.parametrize(("zone", "hour"), [("America/New_York", 8), ("UTC", 12), ("Asia/Tokyo", 21)])
    def test_without_use_tz_an_aware_datetime_becomes_naive_in_the_projects_zone(
        self, settings: Any, zone: Any, hour: Any
    ) -> None:
        settings.USE_TZ, settings.TIME_ZONE = False, zone
        declared = declare(send)

        assert declared.using(run_at=datetime(2030, 7, 1, 12, tzinfo=UTC)).options.run_at == NAIVE.replace(hour=hour)
        assert declared.using(run_at=NAIVE).options.run_at == NAIVE

    def test_run_after_is_djangos_word_for_it(self, settings: Any) -> None:
        settings.USE_TZ = True
        moment = datetime(2030, 1, 1, tzinfo=UTC)

        changed = declare(send).using(run_after=moment)

        assert changed.options == EnqueueOptions(run_at=moment)
        assert changed.run_after == moment


def one(a: Any, b: Any = 1, *args: Any, c: Any, d: Any = 2, **kwargs: Any) -> None: ...
def two(a: Any, /, b: Any, *, c: Any = 1) -> None: ...
def three(a: Any, b: Any = 1, /, **kwargs: Any) -> None: ...
def four(*args: Any, c: Any) -> None: ...
def five() -> None: ...


class TestBind:
    def test_a_call_holds_the_task_and_its_arguments(self) -> None:
        changed = declare(send).using(key="k")

        call = changed.bind(7, locale="en")

        assert (call.task, call.args, call.kwargs) == (changed, (7,), {"locale": "en"})
        assert tuple(call) == (changed, (7,), {"locale": "en"})

    @pytest.mark.parametrize(
        ("args", "kwargs", "words"),
        [
            ((), {}, "missing a required argument: 'invoice_id'"),
            ((1, "hunter2-secret"), {}, "too many positional arguments"),
            (("hunter2-secret",), {"invoice_id": 1}, "multiple values for argument 'invoice_id'"),
            ((1,), {"password": "hunter2-secret"}, "unexpected keyword argument 'password'"),
        ],
    )
    def test_arguments_that_do_not_fit_are_refused_without_their_values(
        self, args: Any, kwargs: Any, words: Any
    ) -> None:
        """PL-13, EN-10."""
        declared: Task = declare(send, name="send")

        with pytest.raises(TypeError, match=words) as caught:
            declared.bind(*args, **kwargs)

        assert r"send(invoice_id, *, locale=...)" in str(caught.value)
        assert "hunter2" not in str(caught.value)
        assert caught.value.__cause__ is None
        assert caught.value.__context__ is None

    def test_a_secret_default_is_not_shown(self) -> None:
        def f(a: Any, token: str = "hunter2-secret") -> None: ...

        f.__qualname__ = "f"

        with pytest.raises(TypeError, match=r"f\(a, token=...\)") as caught:
            declare(f).bind()
        assert "hunter2" not in str(caught.value)

    def test_an_option_among_the_arguments_is_told_where_it_goes(self) -> None:
        with pytest.raises(TypeError, match=r"'delay'.* Options go to using\(\): task\.using\(delay=\.\.\.\)\."):
            task(send).bind(1, delay=3)  # type: ignore[call-arg]

    def test_the_context_is_not_an_argument_of_the_job(self) -> None:
        declared: Task = declare(report, takes_context=True)

        assert declared.bind("monday").args == ("monday",)
        with pytest.raises(TypeError, match="missing a required argument: 'day'"):
            declared.bind()
        with pytest.raises(TypeError, match="unexpected keyword argument 'context'"):
            declared.bind("monday", context=1)

    @given(
        func=st.sampled_from([one, two, three, four, five, send, reindex]),
        args=st.lists(st.none(), max_size=4),
        kwargs=st.dictionaries(st.sampled_from(["a", "b", "c", "d", "e", "args", "kwargs"]), st.none(), max_size=4),
    )
    def test_the_fast_check_of_arguments_agrees_with_a_call(self, func: Any, args: Any, kwargs: Any) -> None:
        declared = registry.build(func)
        try:
            declared(*args, **kwargs)
            fits = True
        except TypeError:
            fits = False

        assert declared.parameters.fit(args, kwargs) is fits
        if not fits:
            assert declared.parameters.explain(args, kwargs)

    def test_a_queue_that_the_settings_do_not_list_is_refused_when_it_is_used(self) -> None:
        declared = declare(reindex, queue_name="emial")

        with override_settings(DJANGO_JOBS={"QUEUES": {"default": {}, "email": {}}}):
            with pytest.raises(ValueError, match=r"Queue 'emial' is not in DJANGO_JOBS.*Did you mean 'email'\?"):
                declared.bind()
            with pytest.raises(ValueError, match="Queue 'emial'"):
                declared.using(queue_name="emial").bind()
            assert declared.using(queue_name="email").bind().task.queue_name == "email"
        assert declared.bind().task is declared


class TestSensitive:
    @pytest.mark.parametrize(
        ("sensitive", "args", "kwargs", "expected"),
        [
            ((), (1, 2), {"c": 3}, []),
            (False, (1, 2), {"c": 3}, []),
            (True, (1, 2), {"c": 3}, [1, 2, 3]),
            (("b",), (1, 2), {"c": 3}, [2]),
            (("b", "c"), (1,), {"c": 3, "b": 2}, [3, 2]),
            (("b",), (1,), {"c": 3}, []),
            (("args",), (1, 2, 8, 9), {"c": 3}, [8, 9]),
            (("kwargs",), (1,), {"c": 3, "x": 4}, [4]),
            (("x",), (1,), {"c": 3, "x": 4}, [4]),
        ],
        ids=str,
    )
    def test_the_values_of_sensitive_parameters_are_found(
        self, sensitive: Any, args: Any, kwargs: Any, expected: Any
    ) -> None:
        assert registry.build(one, sensitive=sensitive).sensitive_values(args, kwargs) == expected

    def test_everything_is_sensitive_if_the_arguments_do_not_fit(self) -> None:
        """PL-13: a secret may stand in the wrong place."""
        declared = registry.build(report, takes_context=True, sensitive=["password"])

        assert declared.sensitive_values(["monday", "x", "hunter2-secret"], {"y": 1}) == [
            "monday",
            "x",
            "hunter2-secret",
            1,
        ]
        assert declared.sensitive_values(["monday", "hunter2-secret"], {}) == ["hunter2-secret"]


class TestDjangosTask:
    def test_a_task_is_one_of_djangos_where_there_are_such(self) -> None:
        path = "django.tasks.Task" if django.VERSION >= (6, 0) else "django_jobs.registry.base.PlainTask"

        assert isinstance(declare(send), import_string(path))

    def test_no_tasks_setting_is_needed_and_none_is_looked_at(self) -> None:
        with override_settings(TASKS={"default": {"BACKEND": "nowhere.Backend", "QUEUES": ["x"]}}):
            changed = declare(send, priority=5, queue_name="mail").using(run_at=datetime(2030, 1, 1, tzinfo=UTC))

            assert changed.bind(1).task is changed

    def test_it_never_lands_in_djangos_immediate_backend(self) -> None:
        declared = declare(send)
        backend_of = definition._installed.backend

        if backend_of is None:
            with pytest.raises(LookupError, match=r"has no django.tasks backend. Use get_job"):
                declared.get_backend()
        else:
            assert declared.get_backend() == backend_of(declared)

    def test_an_installed_backend_is_asked_for_the_task(self, monkeypatch: Any) -> None:
        monkeypatch.setattr(definition._installed, "backend", None)
        registry.install_backend(lambda asked: ("backend of", asked))
        declared = declare(send)

        assert declared.get_backend() == ("backend of", declared)

    def test_call_runs_the_function_from_sync_code(self) -> None:
        assert declare(fetch).call("u") == "u"
        assert declare(send).call(1) == "1 de"

    @pytest.mark.parametrize(("func", "argument", "expected"), [(fetch, "u", "u"), (send, 1, "1 de")])
    def test_acall_runs_the_function_from_async_code(self, func: Any, argument: Any, expected: Any) -> None:
        assert async_to_sync(declare(func).acall)(argument) == expected


class TestValues:
    def test_tasks_are_equal_if_name_function_and_options_are(self) -> None:
        declared = declare(send)

        assert declared.using(key="k") == declared.using(key="k")
        assert declared.using(key="k") != declared
        assert declared != declare(reindex)
        assert len({declared, declared.using(priority=0), declared.using(priority=0)}) == 2

    def test_repr_shows_name_and_options_only(self) -> None:
        assert repr(declare(send, name="send")) == "<Task send>"
        assert repr(declare(send, name="send").using(key="k", priority=2)) == "<Task send using key='k', priority=2>"

    @pytest.mark.parametrize("duplicate", [lambda x: pickle.loads(pickle.dumps(x)), copy.copy, copy.deepcopy])
    def test_a_task_is_copied_and_pickled_by_name(self, duplicate: Any) -> None:
        moment = datetime(2030, 1, 1, tzinfo=UTC)
        changed = declare(send).using(key="k", unique="live", run_at=moment, timeout=3)

        same = duplicate(changed)

        assert same == changed
        assert (same.func, same.options) == (send, changed.options)


@pytest.mark.django_db
class TestEnqueueing:
    def test_a_task_enqueues_itself_with_its_options(self) -> None:
        handle = declare(send, queue_name="mail").using(priority=7, max_attempts=2, key="k").enqueue(1, locale="en")

        job = Job.objects.get(id=handle.id)
        assert (job.task_name, job.queue_name, job.priority, job.key) == (f"{__name__}.send", "mail", 7, "k")
        assert job.options == {"max_attempts": 2}
        assert (handle.created, handle.task_name, handle.database) == (True, job.task_name, "default")

    def test_a_key_counts_for_its_task_whatever_the_queue(self) -> None:
        """ID-09."""
        first, second = declare(send), declare(reindex)
        holder = first.using(key="k").enqueue(1)

        again = first.using(key="k", queue_name="other").enqueue(2)
        elsewhere = second.using(key="k").enqueue()

        assert (again.created, again.id) == (False, holder.id)
        assert elsewhere.created

    def test_a_key_still_counts_after_its_task_was_renamed(self) -> None:
        """ID-09."""
        before = declare(send, name="old")
        holder = before.using(key="k").enqueue(1)
        registry.unregister(before)

        again = declare(send, name="new", aliases=["old"]).using(key="k").enqueue(1)

        assert (again.created, again.id) == (False, holder.id)

    @pytest.mark.parametrize("zone", ["Pacific/Honolulu", "UTC", "Pacific/Kiritimati"])
    @pytest.mark.parametrize("hours", [-1, 1])
    def test_a_naive_start_is_neither_early_nor_late(self, zone: str, hours: int) -> None:
        """RT-05: with USE_TZ off (see the settings of the suite) a naive datetime is in TIME_ZONE."""
        wanted = datetime.now(UTC) + timedelta(hours=hours)
        with django_timezone.override(zone if settings.USE_TZ else None):
            naive = django_timezone.make_naive(wanted, django_timezone.get_current_timezone())
            handle = declare(send).using(run_at=naive).enqueue(1)

        job = Job.objects.get(id=handle.id)
        run_at = job.run_at if settings.USE_TZ else django_timezone.make_aware(job.run_at)
        assert job.status == ("ready" if hours < 0 else "scheduled")
        assert abs(run_at - wanted) < timedelta(seconds=1) or hours < 0

    @pytest.mark.parametrize(
        ("options", "error", "words"),
        [
            ({"ttl": 0}, ValueError, "ttl=0 must be from"),
            ({"ttl": "1h"}, TypeError, "ttl='1h' must be a timedelta"),
            ({"scope": "s" * 200}, ValueError, "must have 1 to 200 characters"),
            ({"scope": 5}, TypeError, "scope=5 must be a string"),
        ],
    )
    def test_once_refuses_what_it_cannot_store(self, options: Any, error: Any, words: str) -> None:
        with transaction.atomic(), pytest.raises(error, match=words):
            once("k", **options)

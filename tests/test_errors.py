"""Failures as text: stored whatever the exception does, with no secret and no local variable in it."""

import base64
import builtins
import datetime as dt
import json
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn
from uuid import UUID

import pytest
from django.contrib.auth.models import Group
from django.db import connection
from hypothesis import given, settings
from hypothesis import strategies as st

import django_jobs
from django_jobs.errors import (
    MASK,
    TEXT_LIMIT,
    TRACEBACK_LIMIT,
    TYPE_LIMIT,
    ErrorRecord,
    describe,
    mask,
    safe_text,
    secret_strings,
)

SECRET = "hunter2-secret"


class Sneaky(str):
    """A str subclass whose methods lie."""

    __slots__ = ()

    def __str__(self) -> str:
        raise RuntimeError

    def __getitem__(self, index: Any) -> str:
        raise RuntimeError

    def __format__(self, spec: str) -> str:
        raise RuntimeError


class SneakyText(Exception):
    def __str__(self) -> str:
        return Sneaky("sneaky")


def failing_text(error: Callable[[], BaseException]) -> BaseException:
    class FailingText(Exception):
        def __str__(self) -> str:
            raise error()

        __repr__ = __str__

    return FailingText(SECRET)


class FailingAttributes(Exception):
    def __getattribute__(self, name: str) -> NoReturn:
        raise RuntimeError(name)


class FailingTruth(Exception):
    def __bool__(self) -> NoReturn:
        raise RuntimeError

    def __eq__(self, other: object) -> NoReturn:
        raise RuntimeError

    __hash__ = None  # type: ignore[assignment]


class FailingMembers(ExceptionGroup[Exception]):
    @property
    def exceptions(self) -> NoReturn:
        raise RuntimeError


def chain_of(length: int) -> BaseException:
    last: BaseException = ValueError("the root")
    for number in range(length):
        error = RuntimeError(f"link {number}")
        error.__cause__ = last
        last = error
    return last


def cycle() -> BaseException:
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    return one


def deep_group(depth: int, width: int = 1) -> BaseException:
    error: Exception = ValueError("inside")
    for _ in range(depth):
        error = ExceptionGroup("group", [error] * width)
    return error


def noted(*notes: Any) -> BaseException:
    error = ValueError("noted")
    error.__notes__ = list(notes)
    return error


def with_notes_of(value: Any) -> BaseException:
    error = ValueError("noted")
    error.__notes__ = value
    return error


def raised(error: BaseException) -> BaseException:
    try:
        raise error  # noqa: TRY301
    except BaseException as caught:  # noqa: BLE001
        return caught


def dive(depth: int) -> int:
    return dive(depth + 1) + 1


def endless_recursion() -> BaseException:
    try:
        dive(0)
    except RecursionError as error:
        return error
    raise AssertionError


WILD = {
    "nul": lambda: ValueError("a\0b"),
    "lone surrogate": lambda: ValueError("a\ud800b"),
    "escape sequence": lambda: ValueError("\x1b[31mred"),
    "ten megabytes": lambda: ValueError("x" * 10_000_000),
    "ten megabytes of nul": lambda: ValueError("\0" * 10_000_000),
    "str raises": lambda: failing_text(lambda: ValueError(SECRET)),
    "str raises itself recursively": lambda: failing_text(lambda: failing_text(ValueError)),
    "str exits": lambda: failing_text(SystemExit),
    "str interrupts": lambda: failing_text(KeyboardInterrupt),
    "str has no memory": lambda: failing_text(MemoryError),
    "str recurses": lambda: failing_text(endless_recursion),
    "str lies": SneakyText,
    "no attributes": lambda: FailingAttributes("x"),
    "no truth": lambda: FailingTruth("x"),
    "no memory": MemoryError,
    "no arguments": Exception,
    "exit": lambda: SystemExit(3),
    "recursion": endless_recursion,
    "cycle of causes": cycle,
    "long chain": lambda: chain_of(50_000),
    "deep group": lambda: deep_group(300),
    "wide group": lambda: ExceptionGroup("wide", [ValueError(str(number)) for number in range(50_000)]),
    "bushy group": lambda: deep_group(6, 60),
    "group without members": lambda: FailingMembers("x", [ValueError()]),
    "group of chains": lambda: BaseExceptionGroup("chains", [chain_of(1000) for _ in range(50)]),
    "strange notes": lambda: noted(SECRET, 5, None, "\0\ud800", failing_text(ValueError)),
    "notes that are no list": lambda: with_notes_of(7),
    "syntax error": lambda: SyntaxError("bad", ("\0", "a", None, {})),  # type: ignore[arg-type]
    "unicode error": lambda: UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed"),
    "odd name": lambda: type("Odd", (Exception,), {"__module__": 7, "__qualname__": "Odd\0\ud800" * 500})("x"),
}


class TestWhatsoever:
    @pytest.mark.parametrize("make", WILD.values(), ids=WILD)
    def test_any_exception_is_described_and_can_be_stored(self, make: Callable[[], BaseException]) -> None:
        """PL-02, PL-13."""
        error = raised(make())
        started = time.monotonic()

        record = describe(error, secrets={SECRET})

        assert time.monotonic() - started < 10
        for part, limit in [
            (record.error_type, TYPE_LIMIT),
            (record.text, TEXT_LIMIT),
            (record.traceback, TRACEBACK_LIMIT),
            (record.fingerprint, 40),
        ]:
            assert type(part) is str
            assert len(part) <= limit
            assert "\0" not in part
            part.encode()
            assert SECRET not in part
        assert record.error_type
        assert record.traceback
        int(record.fingerprint, 16)

    @pytest.mark.django_db
    @pytest.mark.parametrize("make", WILD.values(), ids=WILD)
    def test_description_is_accepted_by_the_database(self, make: Callable[[], BaseException]) -> None:
        """PL-02."""
        record = describe(make())

        with connection.cursor() as cursor:
            cursor.execute("SELECT %s, %s, %s", [record.error_type, record.text, record.traceback])
            assert cursor.fetchone() == (record.error_type, record.text, record.traceback)
        assert Group.objects.filter(name=record.text[:100]).count() == 0

    @settings(deadline=None)
    @given(text=st.text(), limit=st.integers(0, 30))
    def test_any_text_becomes_storable_within_its_limit(self, text: str, limit: int) -> None:
        shown = safe_text(text, limit)

        assert len(shown) <= limit
        assert "\0" not in shown
        shown.encode()

    def test_failure_at_the_very_end_of_the_stack_is_described(self) -> None:
        records: list[ErrorRecord] = []

        def sink() -> None:
            try:
                sink()
            except RecursionError as error:
                records.append(describe(error))
                raise

        with pytest.raises(RecursionError):
            sink()

        assert records[-1].error_type == "builtins.RecursionError"
        assert all(record.text for record in records)


class TestText:
    @pytest.mark.parametrize(
        ("value", "shown"),
        [
            ("a\0b", "a\\x00b"),
            ("a\ud800b", "a\\ud800b"),
            ("\x1b[31m\x7f", "\\x1b[31m\\x7f"),
            ("line\n\ttab\r\n", "line\n\ttab\r\n"),
            ("\U0001f600 ü", "\U0001f600 ü"),
            (12, "12"),
            (None, "None"),
            (Sneaky("x"), "<Sneaky whose text cannot be read: RuntimeError>"),
            ("x" * 101, "x" * 99 + "…"),
            ("x" * 100, "x" * 100),
        ],
        ids=lambda value: ascii(value)[:30] if type(value) is str else type(value).__name__,
    )
    def test_unstorable_characters_become_visible(self, value: object, shown: str) -> None:
        """PL-02."""
        assert safe_text(value, 100) == shown

    def test_text_that_cannot_be_read_says_so(self) -> None:
        text = describe(failing_text(lambda: KeyError(SECRET))).text

        assert text == "<failing_text.<locals>.FailingText whose text cannot be read: KeyError>"

    def test_long_text_keeps_its_beginning(self) -> None:
        text = describe(ValueError("begin" + "x" * 10**7)).text

        assert text.startswith("begin")
        assert text.endswith("x…")
        assert len(text) == TEXT_LIMIT

    def test_type_is_dotted(self) -> None:
        assert describe(ValueError()).error_type == "builtins.ValueError"
        assert describe(json.JSONDecodeError("x", "", 0)).error_type == "json.decoder.JSONDecodeError"


def load(source: str, name: str, filename: str) -> dict[str, Any]:
    namespace: dict[str, Any] = {"__name__": name}
    exec(builtins.compile(textwrap.dedent(source), filename, "exec"), namespace)
    return namespace


def fails_in(function: Callable[..., object], *args: object, **kwargs: object) -> BaseException:
    try:
        function(*args, **kwargs)
    except BaseException as error:  # noqa: BLE001
        return error
    raise AssertionError("It did not fail.")


def charge(card: str, amount: int) -> None:
    unseen_local = card[::-1]
    raise ValueError(f"cannot charge {amount}: {len(unseen_local)}")


def wrapped(card: str) -> None:
    try:
        charge(card, 5)
    except ValueError as error:
        raise RuntimeError("payment failed") from error


def in_passing(card: str) -> None:
    try:
        charge(card, 5)
    except ValueError:
        raise RuntimeError("while cleaning up")  # noqa: B904


class TestTraceback:
    def test_frames_have_file_line_function_and_source(self) -> None:
        traceback = describe(fails_in(charge, SECRET, 5)).traceback

        assert traceback.startswith("Traceback (most recent call last):\n")
        assert f'File "{__file__}", line ' in traceback
        assert ", in charge\n    raise ValueError(f" in traceback
        assert traceback.endswith("\nValueError: cannot charge 5: 14")

    def test_local_variables_are_not_stored(self) -> None:
        """PL-13."""
        record = describe(fails_in(charge, SECRET, 5))

        assert SECRET not in repr(record)
        assert SECRET[::-1] not in repr(record)

    def test_wrong_number_of_arguments_shows_no_values(self) -> None:
        """PL-13."""
        record = describe(fails_in(charge, SECRET, 1, SECRET))

        assert record.error_type == "builtins.TypeError"
        assert "charge() takes 2 positional arguments but 3 were given" in record.text
        assert "hunter2" not in repr(record)

    def test_cause_and_context_come_first(self) -> None:
        cause = describe(fails_in(wrapped, "x")).traceback
        context = describe(fails_in(in_passing, "x")).traceback

        assert cause.index("ValueError: cannot charge") < cause.index("direct cause") < cause.index("RuntimeError: pay")
        assert "During handling of the above exception" in context
        assert cause.count("Traceback (most recent call last):") == 2

    def test_context_that_was_silenced_is_left_out(self) -> None:
        error = fails_in(in_passing, "x")
        error.__suppress_context__ = True

        assert "cannot charge" not in describe(error).traceback

    def test_members_of_a_group_are_shown(self) -> None:
        group = ExceptionGroup("many", [ValueError("two\nlines"), ExceptionGroup("inner", [KeyError("k")])])

        traceback = describe(raised(group)).traceback

        assert "ExceptionGroup: many (2 sub-exceptions)" in traceback
        assert "  | ValueError: two\n  | lines\n" in traceback
        assert "  |   | KeyError: 'k'" in traceback

    def test_notes_are_shown(self) -> None:
        error = ValueError("x")
        error.add_note("order 17")

        assert describe(error).traceback == "ValueError: x\norder 17"

    def test_long_traceback_keeps_head_and_tail(self) -> None:
        group = ExceptionGroup("g", [ValueError(letter * 20_000) for letter in "abcdefgh"])

        traceback = describe(raised(group)).traceback

        assert TRACEBACK_LIMIT - 10 <= len(traceback) <= TRACEBACK_LIMIT
        assert traceback.startswith("Traceback (most recent call last):\n")
        assert " characters left out …\n" in traceback
        assert "hhh…" in traceback[-20:]

    def test_repeated_frames_are_counted(self) -> None:
        traceback = describe(endless_recursion()).traceback

        assert "[Previous line repeated " in traceback
        assert len(traceback) < 2000

    def test_many_frames_keep_the_first_and_the_last(self) -> None:
        names = [f"f{number}" for number in range(200)]
        lines = [f"def {one}(): {other}()" for one, other in pairwise(names)]
        namespace = load("\n".join([*lines, "def f199(): 1 / 0"]), "many", "many.py")

        traceback = describe(fails_in(namespace["f0"])).traceback

        assert "in f0\n" in traceback
        assert "in f100\n" not in traceback
        assert "frames left out" in traceback
        assert "in f199\n" in traceback

    def test_long_chain_keeps_the_root_and_the_last(self) -> None:
        traceback = describe(chain_of(5000)).traceback

        assert traceback.startswith("ValueError: the root\n")
        assert "exceptions left out" in traceback
        assert traceback.endswith("RuntimeError: link 4999")

    def test_frames_of_ours_before_the_task_are_left_out(self) -> None:
        own = load(
            "def run(task): return task()", "django_jobs.execution.run", f"{Path(django_jobs.__file__).parent}/x.py"
        )
        user = load("def send(): raise OSError('down')", "shop.tasks", "/srv/shop/tasks.py")

        error = fails_in(own["run"], user["send"])
        error.__traceback__ = error.__traceback__.tb_next if error.__traceback__ else None  # from where we caught it

        assert "django_jobs" not in describe(error).traceback
        assert 'File "/srv/shop/tasks.py", line 1, in send' in describe(error).traceback

    def test_frames_of_ours_stay_where_there_are_no_others(self) -> None:
        own = load(
            "def run(task): return task()", "django_jobs.execution.run", f"{Path(django_jobs.__file__).parent}/x.py"
        )

        error = fails_in(own["run"], None)
        error.__traceback__ = error.__traceback__.tb_next if error.__traceback__ else None

        assert ", in run" in describe(error).traceback


class TestFingerprint:
    def fingerprint(self, body: str, filename: str = "/srv/shop/tasks.py", lines_before: int = 0) -> str:
        source = "\n" * lines_before + "def send(value):\n" + textwrap.indent(body, "    ")
        return describe(fails_in(load(source, "shop.tasks", filename)["send"], 1)).fingerprint

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            ("order 17 is gone", "order 4711 is gone"),
            ("user 'bob' is gone", "user 'alice' is gone"),
            ("mail to bob@example.com bounced", "mail to alice@example.org bounced"),
            ("id 01a22c42-7a53-7500-93ce-dd3604416d0c", "id deadbeef-dead-beef-dead-beefdeadbeef"),
            ("at <Order object at 0x7f36bfbb96d0>", "at <Order object at 0x55d0aa01b6d0>"),
            ("order_17 on 2026-08-05", "order_9 on 2027-01-15"),
        ],
    )
    def test_what_differs_from_job_to_job_does_not_count(self, one: str, other: str) -> None:
        assert self.fingerprint(f"raise ValueError({one!r})") == self.fingerprint(f"raise ValueError({other!r})")

    def test_line_numbers_and_the_folder_do_not_count(self) -> None:
        body = "raise ValueError('x')"

        assert self.fingerprint(body) == self.fingerprint(
            body, filename="/app/releases/7/shop/tasks.py", lines_before=9
        )

    def test_depth_of_a_recursion_does_not_count(self) -> None:
        def at(depth: int) -> str:
            namespace = load("def dive(left): return dive(left - 1) if left else 1 / 0", "shop.tasks", "/srv/tasks.py")
            return describe(fails_in(namespace["dive"], depth)).fingerprint

        assert at(1) == at(300)

    @pytest.mark.parametrize(
        "body", ["raise KeyError('x')", "raise ValueError('another reason')", "raise ValueError('x') from OSError()"]
    )
    def test_another_failure_has_another_fingerprint(self, body: str) -> None:
        assert self.fingerprint(body) != self.fingerprint("raise ValueError('x')")

    def test_another_function_has_another_fingerprint(self) -> None:
        assert describe(fails_in(charge, "x", 1)).fingerprint != describe(fails_in(in_passing, "x")).fingerprint

    def test_it_is_the_same_in_every_process(self) -> None:
        """ID-10."""
        script = (
            "from django_jobs.errors import describe\n"
            "def send(value):\n    raise ValueError(f'order {value} is gone: {dict(a=1)}')\n"
            "try:\n    send(5)\n"
            "except ValueError as error:\n    print(describe(error).fingerprint)\n"
        )

        prints = {
            subprocess.run(
                [sys.executable, "-c", script],
                env={"PYTHONHASHSEED": seed},
                cwd=Path(django_jobs.__file__).parent.parent,
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            for seed in ("1", "2", "77")
        }

        assert len(prints) == 1
        assert len(prints.pop().strip()) == 32


class TestSecrets:
    @pytest.mark.parametrize(
        "secret",
        [SECRET, "four", 'it\'s "quoted"', "line\nbreak", "grüße-geheim", "back\\slash", "a b&c=d", "x" * 30_000],
        ids=lambda secret: ascii(secret)[:20],
    )
    def test_secret_is_masked_wherever_it_shows(self, secret: str) -> None:
        """PL-13."""
        shown = [secret, repr(secret), repr([secret]), json.dumps({"a": secret})]
        error = ValueError(" ".join(shown))
        error.add_note(f"note {secret}")
        outer = RuntimeError(f"outer {secret}")
        outer.__cause__ = ExceptionGroup(f"group {secret}", [error])

        record = describe(raised(outer), secrets={secret})

        for part in (record.text, record.traceback):
            assert secret not in part
            assert repr(secret)[1:-1] not in part
            assert json.dumps(secret)[1:-1] not in part
            assert MASK in part

    def test_secret_in_a_source_line_is_masked(self) -> None:
        """PL-13."""
        record = describe(fails_in(lambda: int("hunter2-literal")), secrets={"hunter2-literal"})

        assert "hunter2" not in repr(record)

    def test_short_secret_is_not_masked(self) -> None:
        assert mask("a cat and a dog", {"a", "cat"}) == "a cat and a dog"

    @pytest.mark.parametrize(
        ("text", "secrets", "masked"),
        [
            ("user bob1 pays", {"bob1"}, f"user {MASK} pays"),
            ("aaaaXXXXXbbbbbb", {"aaaaXXXXX", "XXXXXbbbbbb"}, MASK),
            ("abcabcabca", {"abcabca"}, MASK),
            ("secretsecret", {"secret"}, MASK * 2),
            ("long-secret long", {"long", "long-secret"}, f"{MASK} {MASK}"),
            ("nothing", set(), "nothing"),
            ("?q=a%20b%26c", {"a b&c"}, f"?q={MASK}"),
            ("?q=a+b%26c", {"a b&c"}, f"?q={MASK}"),
        ],
    )
    def test_mask_leaves_no_part_of_a_secret(self, text: str, secrets: set[str], masked: str) -> None:
        assert mask(text, secrets) == masked

    @pytest.mark.parametrize("at", [TEXT_LIMIT - 20, TEXT_LIMIT - 5, TEXT_LIMIT - 1, TEXT_LIMIT])
    def test_secret_at_the_limit_is_not_cut_in_two(self, at: int) -> None:
        """PL-13."""
        text = f"{SECRET * 40}{'x' * (at - 560)}{SECRET}"

        shown = describe(ValueError(text), secrets={SECRET}).text

        assert len(shown) <= TEXT_LIMIT
        assert "hun" not in shown

    @settings(deadline=None)
    @given(
        secrets=st.sets(st.text("ab", min_size=4, max_size=8), min_size=1, max_size=4),
        text=st.text("abc", max_size=60),
    )
    def test_no_secret_survives(self, secrets: set[str], text: str) -> None:
        assert not any(secret in mask(text, secrets) for secret in secrets)

    def test_strings_of_nested_values_are_collected(self) -> None:
        value: dict[str, Any] = {
            "card": ["4111111111111111", 4_222, 12, {"pin-code": "ab"}],
            "rest": (b"bytes\xff", Decimal("1234.50"), 3.25159, None, True, UUID(int=1)),
            "on": dt.datetime(2026, 8, 5, 12, 0, tzinfo=dt.UTC),
            "huge": 10**5000,
        }
        value["self"] = value

        found = secret_strings([value])

        assert {"4111111111111111", "4222", "pin-code", "1234.50", "3.25159", "bytes\\xff", str(UUID(int=1))} <= found
        assert {"2026-08-05 12:00:00+00:00", "2026-08-05T12:00:00+00:00", "card"} <= found
        assert not {"12", "ab", "on", "None", "True"} & found

    def test_secret_bytes_are_masked_in_every_form(self) -> None:
        secret = b"k3y\xff-material"

        for form in (repr(secret)[2:-1], secret.hex(), base64.b64encode(secret).decode()):
            assert mask(f"key={form}", secret_strings([secret])) == f"key={MASK}"

    def test_secrets_may_come_from_anything(self) -> None:
        def values() -> Iterator[object]:
            yield object()

        assert secret_strings(values()) == frozenset()
        assert secret_strings("hunter2-secret") == {"hunter2-secret"}
        assert secret_strings(None) == frozenset()

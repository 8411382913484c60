"""The codec: what is enqueued arrives equal in value and type, or is refused at the call with a sentence."""

import contextlib
import dataclasses
import datetime as dt
import enum
import json
import math
import subprocess
import sys
import zoneinfo
from collections import OrderedDict, defaultdict, deque, namedtuple
from decimal import Decimal, localcontext
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from django.contrib.auth.models import User
from django.db import connection, models, transaction
from django.utils.functional import SimpleLazyObject, lazystr
from django.utils.safestring import mark_safe
from django.utils.translation import gettext_lazy
from hypothesis import example, given, settings
from hypothesis import strategies as st

from django_jobs.codec import MAX_DEPTH, decode_call, decode_value, encode_call, encode_result
from django_jobs.exceptions import UnreadablePayload, UnstorableResult

LIMIT = 64 * 1024
VIENNA = ZoneInfo("Europe/Vienna")
UNUSUAL_ZONES = ["Etc/GMT+5", "GMT-0", "EST5EDT", "America/Argentina/ComodRivadavia", "America/Port-au-Prince", "UTC"]


class OtherZone(dt.tzinfo):
    """A zone as pytz has them: neither a ZoneInfo nor a fixed timezone."""

    def utcoffset(self, moment: dt.datetime | None) -> dt.timedelta:
        return dt.timedelta(hours=5, minutes=30)

    def dst(self, moment: dt.datetime | None) -> None:
        return None

    def tzname(self, moment: dt.datetime | None) -> str:
        return "OTHER"


class FoldingZone(OtherZone):
    def utcoffset(self, moment: dt.datetime | None) -> dt.timedelta:
        return dt.timedelta(hours=1 if moment is not None and moment.fold else 2)


class NaiveZone(OtherZone):
    def utcoffset(self, moment: dt.datetime | None) -> Any:
        return None


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


class Answer(models.TextChoices):
    YES = "yes"


@dataclasses.dataclass
class Point:
    x: int


Pair = namedtuple("Pair", "left right")  # noqa: PYI024 - what users have


class Text(str):
    __slots__ = ()


class Number(int):
    pass


class Real(float):
    pass


class Moment(dt.datetime):
    pass


class FrozenMoment(dt.datetime):
    """What freezegun's datetime.now() returns."""


FrozenMoment.__module__ = "freezegun.api"


def through_json(*args: Any, **kwargs: Any) -> tuple[list[Any], dict[str, Any]]:
    return decode_call(json.loads(encode_call(args, kwargs, max_size=LIMIT)))


def through_jsonb(*args: Any, **kwargs: Any) -> tuple[list[Any], dict[str, Any]]:
    return decode_call(json.loads(as_jsonb_prints(encode_call(args, kwargs, max_size=LIMIT))))


def as_jsonb_prints(text: str) -> str:
    """JSON text as PostgreSQL's jsonb gives it back: keys sorted, spaces, numbers without exponent, no minus zero."""

    def number(value: Decimal) -> str:
        return format(abs(value) if value == 0 else value, "f")

    def write(value: object) -> str:
        if isinstance(value, dict):
            keys = sorted(value, key=lambda key: (len(key.encode()), key.encode()))
            return "{" + ", ".join(f"{json.dumps(key)}: {write(value[key])}" for key in keys) + "}"
        if isinstance(value, list):
            return "[" + ", ".join(map(write, value)) + "]"
        return number(value) if isinstance(value, Decimal) else json.dumps(value, ensure_ascii=False)

    return write(json.loads(text, parse_float=Decimal, parse_int=Decimal))


def assert_same(left: object, right: object) -> None:
    """Equal in value and type, to the last digit, fold and zone."""
    assert type(left) is type(right)
    if isinstance(left, list) and isinstance(right, list):
        assert len(left) == len(right)
        for one, other in zip(left, right, strict=True):
            assert_same(one, other)
    elif isinstance(left, dict) and isinstance(right, dict):
        assert left.keys() == right.keys()
        for key in left:
            assert_same(left[key], right[key])
    elif isinstance(left, float | Decimal):
        assert repr(left) == repr(right)
    else:
        assert left == right
    if isinstance(left, dt.datetime | dt.time) and isinstance(right, dt.datetime | dt.time):
        assert (left.fold, left.utcoffset(), left.tzinfo) == (right.fold, right.utcoffset(), right.tzinfo)


def short(value: object) -> str:
    """A test id that is the same in every process."""
    return f"int-{value.bit_length()}-bits" if isinstance(value, int) and abs(value) > 2**63 else ascii(value)[:60]


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


def circle() -> list[Any]:
    value: list[Any] = [1]
    value.append({"me": value})
    return value


VALUES: list[object] = [
    None,
    True,
    0,
    -1,
    2**31,
    2**53 + 1,
    2**63 - 1,
    2**63,
    -(2**63),
    2**64,
    10**100,
    -(10**5000),
    0.0,
    -0.0,
    1.0,
    0.1,
    1e-4,
    9.9e-5,
    1e15,
    1e16,
    -1e16,
    1.5e16,
    9007199254740993.0,
    1e300,
    5e-324,
    sys.float_info.max,
    "",
    "text",
    "a\\u0000b",
    "\\ud800",
    "\x01\x1f\x7f\n\t\"'\\/",
    "\ufeff\ufffe\uffff\u2028",
    "\U0001f600 e\u0301 \u05d0",
    [],
    [[], {}, [None]],
    {},
    {"": 1},
    {"a": {"b": [1, {"c": 2.5}]}},
    {"$date": "2026-08-05"},
    {"$dict": {"$dict": 1}},
    {"$": None},
    {"$x": {"$y": [{"$z": 1}]}},
    {"$date": 1, "other": 2},
    {"args": [], "kwargs": {}},
    dt.datetime(2026, 8, 5, 12, 0, 0, 123456),  # noqa: DTZ001
    dt.datetime(2026, 10, 25, 2, 30, fold=1),  # noqa: DTZ001
    dt.datetime(2026, 8, 5, 12, 0, 0, 123456, tzinfo=dt.UTC),
    dt.datetime(2026, 8, 5, 12, 0, tzinfo=dt.timezone(dt.timedelta(hours=-3, minutes=-30))),
    dt.datetime(2026, 8, 5, 12, 0, tzinfo=dt.timezone(dt.timedelta(seconds=3661, microseconds=1))),
    dt.datetime(2026, 8, 5, 12, 0, 0, 1, tzinfo=VIENNA),
    dt.datetime(2026, 10, 25, 2, 30, tzinfo=VIENNA),
    dt.datetime(2026, 10, 25, 2, 30, tzinfo=VIENNA, fold=1),
    dt.datetime(2026, 3, 29, 2, 30, tzinfo=VIENNA),
    dt.datetime(2026, 3, 29, 2, 30, tzinfo=VIENNA, fold=1),
    dt.datetime(1850, 1, 1, tzinfo=VIENNA),
    *[dt.datetime(2026, 8, 5, tzinfo=ZoneInfo(zone)) for zone in UNUSUAL_ZONES],
    dt.datetime.min,  # noqa: DTZ901
    dt.datetime.max.replace(tzinfo=dt.UTC),
    dt.date(2026, 8, 5),
    dt.date.min,
    dt.time(12, 0),
    dt.time(12, 0, 0, 1, fold=1),
    dt.time(12, 0, tzinfo=dt.UTC),
    dt.time(12, 0, tzinfo=VIENNA),
    dt.time(12, 0, tzinfo=ZoneInfo("UTC")),
    dt.timedelta(0),
    dt.timedelta(days=-1, microseconds=1),
    dt.timedelta.max,
    dt.timedelta.min,
    Decimal("1.10"),
    Decimal("-0"),
    Decimal("0E-10"),
    Decimal("1E+5"),
    Decimal("1E-300"),
    Decimal("123456789012345678901234567890.123456789"),
    UUID("01a22c42-7a53-7500-93ce-dd3604416d0c"),
    b"",
    b"\x00\xff binary",
]


class TestRoundTrip:
    @pytest.mark.parametrize("value", VALUES, ids=short)
    def test_value_comes_back_equal_in_value_and_type(self, value: object) -> None:
        """PL-06, PL-07."""
        for through in (through_json, through_jsonb):
            args, kwargs = through(value, [value], name=value, nest={"deep": [value]})

            assert_same(args, [value, [value]])
            assert_same(kwargs, {"name": value, "nest": {"deep": [value]}})

    @pytest.mark.parametrize("value", VALUES, ids=short)
    def test_result_comes_back_equal_in_value_and_type(self, value: object) -> None:
        stored = as_jsonb_prints(encode_result(value, max_size=LIMIT))

        assert_same(decode_value(json.loads(stored)), value)

    def test_tuple_becomes_a_list(self) -> None:
        assert through_json((1, (2,))) == ([[1, [2]]], {})

    def test_plain_values_are_written_as_plain_json(self) -> None:
        text = encode_call((1, "ü", True, None), {"a": 5}, max_size=LIMIT)

        assert text == '{"args":[1,"ü",true,null],"kwargs":{"a":5}}'

    def test_any_keyword_is_a_name_and_no_tag(self) -> None:
        assert through_json(**{"$date": "x"}) == ([], {"$date": "x"})

    def test_emoji_is_delivered_unchanged(self) -> None:
        """PL-03."""
        assert through_json("\U0001f600") == (["\U0001f600"], {})

    def test_every_known_zone_keeps_its_name(self) -> None:
        for key in zoneinfo.available_timezones():
            moment = dt.datetime(2026, 8, 5, 12, 0, tzinfo=ZoneInfo(key))

            [back], _ = through_json(moment)

            assert_same(back, moment)
            assert isinstance(back, dt.datetime)
            assert back.tzinfo is moment.tzinfo

    def test_zone_of_another_library_becomes_its_fixed_offset(self) -> None:
        moment = dt.datetime(2026, 8, 5, 12, 0, tzinfo=OtherZone())

        [back], _ = through_json(moment)

        assert isinstance(back, dt.datetime)
        assert back == moment
        assert back.tzinfo == dt.timezone(dt.timedelta(hours=5, minutes=30))

    def test_instant_survives_a_change_of_the_zones_rules(self) -> None:
        stored = {"$datetime": "2026-08-05T12:00:00+07:00[Europe/Vienna]"}

        back = decode_value(stored)

        assert back == dt.datetime(2026, 8, 5, 5, 0, tzinfo=dt.UTC)
        assert isinstance(back, dt.datetime)
        assert back.tzinfo is VIENNA

    def test_moment_of_a_frozen_test_counts_as_a_datetime(self) -> None:
        [back], _ = through_json(FrozenMoment(2026, 8, 5, tzinfo=dt.UTC))

        assert type(back) is dt.datetime
        assert back == dt.datetime(2026, 8, 5, tzinfo=dt.UTC)

    def test_decimals_do_not_depend_on_the_context(self) -> None:
        value = Decimal("1.2345678901234567890")
        with localcontext() as context:
            context.prec = 2

            [back], _ = through_json(value)

        assert_same(back, value)


TAGS = ["$int", "$float", "$decimal", "$datetime", "$date", "$time", "$timedelta", "$uuid", "$bytes", "$dict"]
text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
keys = text | st.sampled_from(["$", "$dict", "$date", "$int", "$unknown", "args", "kwargs"])
offsets = st.integers(-86399, 86399).map(lambda seconds: dt.timezone(dt.timedelta(seconds=seconds)))
zones = st.none() | st.just(dt.UTC) | st.timezones() | offsets
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | text
    | st.binary()
    | st.datetimes(timezones=zones, allow_imaginary=True)
    | st.builds(lambda moment: moment.replace(fold=1), st.datetimes(timezones=zones))
    | st.dates()
    | st.times(timezones=zones)
    | st.timedeltas()
    | st.decimals(allow_nan=False, allow_infinity=False)
    | st.uuids()
)
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=3))


class TestProperties:
    @settings(deadline=None)
    @given(args=st.lists(values, max_size=3), kwargs=st.dictionaries(keys, values, max_size=3))
    def test_whatever_is_accepted_comes_back_the_same(self, args: list[Any], kwargs: dict[str, Any]) -> None:
        text = encode_call(args, kwargs, max_size=10**9)
        for stored in (text, as_jsonb_prints(text)):
            back_args, back_kwargs = decode_call(json.loads(stored))

            assert_same(back_args, args)
            assert_same(back_kwargs, kwargs)

    @settings(deadline=None)
    @given(value=st.text() | st.dictionaries(st.text(), st.text()))
    def test_any_text_is_either_stored_or_a_value_error(self, value: object) -> None:
        try:
            text = encode_call((value,), {}, max_size=LIMIT)
        except ValueError as error:
            refused = str(error)
        else:
            assert_same(decode_call(json.loads(text.encode()))[0], [value])
            return
        assert refused.startswith("args[0]")

    @settings(deadline=None)
    @given(
        value=st.recursive(
            st.none()
            | st.booleans()
            | st.integers()
            | st.floats()
            | st.text()
            | st.sampled_from(
                ["0x", "1d2s3us", "9" * 50 + "d0s0us", "2026-08-05", "12:00[_fold=1]", "1E9999999999999999999"]
            )
            | st.from_regex(r"2026-08-05T12:00(\+99:00|\+02:00)?(\[[A-Za-z_/.+-]{0,20}\])?", fullmatch=True),
            lambda inner: (
                st.lists(inner)
                | st.dictionaries(keys, inner)
                | st.dictionaries(
                    st.sampled_from(sorted([*TAGS, "$new"])),
                    inner,
                    max_size=1,
                )
            ),
        )
    )
    @example(value={"$datetime": "0001-01-01T00:00:00+23:59[Pacific/Auckland]"})
    @example(value={"$datetime": "2026-08-05T12:00[Europe/Vienna]"})
    @example(value={"$datetime": "2026-08-05T12:00+00:00[Europe]"})
    @example(value={"$datetime": "2026-08-05T12:00+00:00[__init__]"})
    @example(value={"$datetime": "2026-08-05T12:00+00:00[../../etc/passwd]"})
    @example(value={"$datetime": "2026-08-05T12:00+00:00[zone.tab]"})
    @example(value={"$decimal": "sNaN"})
    @example(value={"$decimal": "1E+9999999999999999999999"})
    @example(value={"$float": "1e999"})
    @example(value={"$bytes": "ä"})
    @example(value={"$timedelta": "999999999d86400s0us"})
    @example(value=math.inf)
    @example(value=object())
    def test_broken_payload_is_unreadable_and_nothing_else(self, value: object) -> None:
        for broken in (value, {"args": value, "kwargs": {}}, {"args": [value], "kwargs": {"x": value}}):
            for read in (decode_call, decode_value):
                with contextlib.suppress(UnreadablePayload):
                    read(broken)


class TestRefusals:
    @pytest.mark.parametrize(
        ("value", "mend"),
        [
            ({1, 2}, "list(...)"),
            (frozenset(), "list(...)"),
            (bytearray(b"x"), "bytes(...)"),
            (memoryview(b"x"), "bytes(...)"),
            (1j, "value.real"),
            (gettext_lazy("Monday"), "str(...)"),
            (lazystr("x"), "str(...)"),
            (SimpleLazyObject(lambda: 1 // 0), ".pk"),
            (mark_safe("<b>"), "value + ''"),
            (Text("x"), "str(...)"),
            (Number(1), "int(...)"),
            (Real(1), "float(...)"),
            (Moment(2026, 8, 5), "datetime.datetime"),
            (Colour.RED, ".value"),
            (Level.LOW, ".value"),
            (Answer.YES, ".value"),
            (Point(1), "dataclasses.asdict"),
            (Pair(1, 2), "list(...)"),
            (OrderedDict(), "dict(...)"),
            (defaultdict(int), "dict(...)"),
            (deque(), "list(...)"),
            (range(3), "list(...)"),
            ((letter for letter in "ab"), "list(...)"),
            ({}.keys(), "list(...)"),
            (ValueError("x"), "str(...)"),
            (len, "function"),
            (nested, "function"),
            (Colour, "name"),
            (VIENNA, "str(...)"),
            (User(pk=1), "primary key"),
            (User.objects.all(), "values_list"),
            (User.objects, "values_list"),
            (object(), "primary key"),
            (dt.datetime(2026, 8, 5, tzinfo=FoldingZone()), "zoneinfo"),
            (dt.datetime(2026, 8, 5, tzinfo=NaiveZone()), "zoneinfo"),
            (dt.datetime(2026, 8, 5, tzinfo=dt.timezone(dt.timedelta(microseconds=1))), "zoneinfo"),
            (dt.time(12, tzinfo=dt.timezone(dt.timedelta(microseconds=1))), "zoneinfo"),
            (dt.time(12, tzinfo=OtherZone()), "zoneinfo"),
            ({1: "x"}, "str keys"),
            ({None: "x"}, "str keys"),
            ({Text("a"): "x"}, "str keys"),
            ({("a", object()): 1}, "str keys"),
            ({10**5000: 1}, "str keys"),
        ],
        ids=lambda value: value if type(value) is str else type(value).__name__,
    )
    def test_value_that_would_change_is_refused_with_its_path_and_a_mend(self, value: object, mend: str) -> None:
        """PL-06, PL-18, EN-10."""
        for args, kwargs, path in [
            ((value,), {}, "args[0] "),
            ((), {"x": value}, "kwargs['x'] "),
            (("plain", [0, {"when": value}]), {}, "args[1][1]['when'] "),
        ]:
            with pytest.raises(TypeError) as caught:
                encode_call(args, kwargs, max_size=LIMIT)

            assert str(caught.value).startswith(path)
            assert mend in str(caught.value)

    @pytest.mark.parametrize(
        "value",
        [
            math.nan,
            math.inf,
            -math.inf,
            Decimal("NaN"),
            Decimal("sNaN"),
            Decimal("-Infinity"),
            "a\0b",
            "\ud800",
            "\ude00x",
        ],
        ids=short,
    )
    def test_value_that_no_database_stores_is_a_value_error_with_its_path(self, value: object) -> None:
        """PL-01, PL-03, PL-05."""
        for args, kwargs, path in [
            ((value,), {}, "args[0] "),
            ((), {"x": [1, 2, 3, value]}, "kwargs['x'][3] "),
            (("ok", {"when": value}), {}, "args[1]['when'] "),
        ]:
            with pytest.raises(ValueError, match=r"^(args|kwargs)\[") as caught:
                encode_call(args, kwargs, max_size=LIMIT)

            assert str(caught.value).startswith(path)
            str(caught.value).encode()

    @pytest.mark.parametrize("key", ["a\0", "\udfff", "$\0"], ids=short)
    def test_bad_character_in_a_key_is_named(self, key: str) -> None:
        """PL-01."""
        for args, kwargs in [(({"a": [{key: 1}]},), {}), ((), {key: 1})]:
            with pytest.raises(ValueError, match=r"is a key that contains"):
                encode_call(args, kwargs, max_size=LIMIT)

    def test_pair_of_surrogates_in_a_string_is_refused_as_python_keeps_them_apart(self) -> None:
        """PL-03."""
        with pytest.raises(ValueError, match="lone surrogate"):
            encode_call(("\ud83d\ude00",), {}, max_size=LIMIT)

    def test_keyword_that_is_no_string_is_refused(self) -> None:
        with pytest.raises(TypeError, match="kwargs has the key 1 of type int"):
            encode_call((), {1: 2}, max_size=LIMIT)  # type: ignore[dict-item]

    def test_circle_is_refused_with_the_path_of_its_start(self) -> None:
        with pytest.raises(ValueError, match=r"^args\[1\]\['x'\] contains itself"):
            encode_call((1, {"x": circle()}), {}, max_size=LIMIT)

    def test_deep_value_is_refused_long_before_the_recursion_limit(self) -> None:
        encode_call((nested(MAX_DEPTH),), {}, max_size=LIMIT)

        for levels in (MAX_DEPTH + 1, 100_000):
            with pytest.raises(ValueError, match=f"deeper than {MAX_DEPTH} levels"):
                encode_call((nested(levels),), {}, max_size=LIMIT)

    def test_lazy_object_is_refused_without_being_evaluated(self) -> None:
        evaluated: list[int] = []

        with pytest.raises(TypeError, match="primary key"):
            encode_call((SimpleLazyObject(lambda: evaluated.append(1)),), {}, max_size=LIMIT)

        assert evaluated == []

    def test_secret_value_is_not_quoted(self) -> None:
        """PL-13."""
        for value in (Text("hunter2-secret"), {"hunter2-secret"}, "hunter2-secret\0"):
            with pytest.raises((TypeError, ValueError)) as caught:
                encode_call((value,), {}, max_size=LIMIT)

            assert "hunter2" not in str(caught.value)


class TestSize:
    @pytest.mark.parametrize("letter", ["x", "ü", "\U0001f600", "\n"], ids=ascii)
    def test_limit_counts_the_bytes_of_the_text(self, letter: str) -> None:
        """PL-09."""
        size = len(encode_call((letter * 100, 1.5), {}, max_size=LIMIT).encode())

        encode_call((letter * 100, 1.5), {}, max_size=size)
        with pytest.raises(ValueError, match=f"{size} bytes as JSON; the limit is {size - 1} bytes"):
            encode_call((letter * 100, 1.5), {}, max_size=size - 1)

    @pytest.mark.parametrize("size", [9_000, 100_000])
    def test_large_value_below_the_limit_is_stored(self, size: int) -> None:
        """PL-09."""
        assert through_json("x" * 9_000) == (["x" * 9_000], {})
        assert len(encode_call(("x" * size,), {}, max_size=size + 30)) > size

    def test_list_shared_many_times_over_is_refused_at_once(self) -> None:
        value: list[Any] = ["x" * 1000]
        for _ in range(MAX_DEPTH - 1):
            value = [value] * 100

        with pytest.raises(ValueError, match=r"more than 1,048,576 bytes as JSON; the limit is 65,536 bytes"):
            encode_call((value,), {}, max_size=LIMIT)


class TestResults:
    @pytest.mark.parametrize(
        ("value", "part"),
        [
            (object(), "result is of type object"),
            ({"x": math.inf}, "result['x'] is inf"),
            ([{1}], "result[0] is of type set"),
            ({"a": "\0"}, "result['a'] contains a NUL"),
            ("\ud800", "result contains the lone surrogate"),
            ("x" * 5_000_000, "takes more than 1,048,576 bytes as JSON; the limit is 65,536"),
            (["x"] * 5_000_000, "takes more than 1,048,576 bytes as JSON; the limit is 65,536"),
            (circle(), "result contains itself"),
        ],
        ids=lambda value: value[:30] if isinstance(value, str) else type(value).__name__,
    )
    def test_result_that_cannot_be_stored_is_named(self, value: object, part: str) -> None:
        """PL-05, PL-14."""
        with pytest.raises(UnstorableResult) as caught:
            encode_result(value, max_size=LIMIT)

        assert part in str(caught.value)

    def test_result_may_be_nothing(self) -> None:
        assert encode_result(None, max_size=LIMIT) == "null"


class TestDecoding:
    @pytest.mark.parametrize(
        "broken",
        [None, [], "x", 1, {}, {"args": []}, {"args": {}, "kwargs": {}}, {"args": [], "kwargs": [], "more": 1}],
        ids=short,
    )
    def test_wrong_shape_is_unreadable(self, broken: object) -> None:
        with pytest.raises(UnreadablePayload):
            decode_call(broken)

    @pytest.mark.parametrize(
        "value",
        [
            {"$new": 1},
            {"$date": 1},
            {"$date": "x"},
            {"$bytes": "?"},
            {"$uuid": "1"},
            {"$int": ""},
            {"$dict": 1},
            math.nan,
        ],
        ids=short,
    )
    def test_unknown_or_broken_tag_is_unreadable(self, value: object) -> None:
        with pytest.raises(UnreadablePayload):
            decode_call({"args": [[value]], "kwargs": {}})

    def test_endless_nesting_is_unreadable_and_no_recursion_error(self) -> None:
        for value in (nested(100_000), circle()):
            with pytest.raises(UnreadablePayload, match="too deep"):
                decode_value(value)

    def test_unreadable_value_is_not_quoted(self) -> None:
        """PL-13."""
        with pytest.raises(UnreadablePayload) as caught:
            decode_value({"$date": "hunter2-secret"})

        assert "hunter2" not in str(caught.value)
        assert caught.value.__cause__ is None
        assert caught.value.__suppress_context__

    def test_decoding_imports_nothing(self) -> None:
        stored = encode_call(tuple(VALUES), {}, max_size=LIMIT)
        script = (
            "import json, sys, zoneinfo\n"
            "from django_jobs.codec import decode_call\n"
            f"parsed = json.loads({stored!r})\n"
            # A zone that the system lacks comes from the package tzdata, whose modules the standard library imports.
            f"zones = [zoneinfo.ZoneInfo(zone) for zone in {[*UNUSUAL_ZONES]!r}]\n"
            "before = set(sys.modules)\n"
            "decode_call(parsed)\n"
            "print(sorted(set(sys.modules) - before))\n"
        )

        run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

        assert run.stdout == "[]\n"


@pytest.mark.django_db
class TestDatabase:
    """The columns are JSONFields; here is what each database makes of the text itself."""

    def stored(self, text: str) -> str:
        if connection.vendor == "postgresql":
            return self.one("SELECT (%s::jsonb)::text", text)
        if connection.vendor == "sqlite":
            return self.one("SELECT json(%s)", text)
        with connection.cursor() as cursor:
            cursor.execute("CREATE TEMPORARY TABLE IF NOT EXISTS codec_payload (payload JSON)")
            cursor.execute("DELETE FROM codec_payload")
            cursor.execute("INSERT INTO codec_payload VALUES (%s)", [text])
        return self.one("SELECT payload FROM codec_payload WHERE JSON_VALID(payload)")

    def one(self, sql: str, *params: str) -> str:
        with connection.cursor() as cursor:
            cursor.execute(sql, params)
            (found,) = cursor.fetchone()
        return str(found)

    @pytest.mark.parametrize("value", VALUES, ids=short)
    def test_value_survives_the_database(self, value: object) -> None:
        """PL-06, PL-07."""
        stored = self.stored(encode_call((value,), {"name": [value]}, max_size=LIMIT))

        args, kwargs = decode_call(json.loads(stored))

        assert_same(args, [value])
        assert_same(kwargs, {"name": [value]})

    def test_deepest_accepted_value_survives_the_database(self) -> None:
        value: Any = dt.date(2026, 8, 5)
        for _ in range(MAX_DEPTH // 2):
            value = {"$tag": value}

        args, _ = decode_call(json.loads(self.stored(encode_call((value,), {}, max_size=LIMIT))))

        assert_same(args, [value])
        with pytest.raises(ValueError, match="deeper"):
            encode_call(([value],), {}, max_size=LIMIT)

    def test_refused_argument_leaves_the_transaction_usable(self) -> None:
        """EN-10, PL-01."""
        with transaction.atomic():
            User.objects.create(username="before")
            for value in ({1, 2}, "a\0b"):
                with pytest.raises((TypeError, ValueError)):
                    encode_call((value,), {}, max_size=LIMIT)
            User.objects.create(username="after")

        assert User.objects.count() == 2

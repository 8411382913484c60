"""Arguments and results as JSON that every database stores, and back, equal in value and type.

Plain JSON stands for itself. What JSON has no word for is an object with one key, a tag:

    {"$datetime": "2026-08-05T12:00:00.123456+02:00[Europe/Vienna]"}    RFC 9557; a fold is "[_fold=1]"
    {"$date": "2026-08-05"}  {"$time": "12:00:00"}  {"$timedelta": "1d3600s5us"}
    {"$decimal": "1.10"}  {"$uuid": "…"}  {"$bytes": "<base64>"}
    {"$float": "1e+16"}    what jsonb would give back as an integer, or without its sign
    {"$int": "0x1f…"}      what does not fit in 64 bits
    {"$dict": {"$x": 1}}   a dict of the user's that looks like a tag

A tuple comes back as a list, and dicts may come back in another order: jsonb sorts keys. A datetime keeps its instant,
UTC offset and fold; a ZoneInfo zone comes back as that zone, any other tzinfo as its fixed offset. Decoding looks tags
up in a table: nothing is imported or called by a name in the payload.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime as dt
import enum
import json
import math
import re
from collections import deque
from collections.abc import Callable, Iterator, KeysView, Mapping, Sequence, ValuesView
from decimal import Decimal
from json.encoder import encode_basestring
from typing import Any, NoReturn
from uuid import UUID
from zoneinfo import ZoneInfo

from django.db.models import Model, QuerySet
from django.db.models.manager import BaseManager
from django.utils.functional import LazyObject, Promise
from django.utils.safestring import SafeData

from django_jobs.exceptions import UnreadablePayload, UnstorableResult

# MariaDB's JSON_VALID refuses 32 levels. A call takes two, a tag one; the rest is room for what a payload is put into.
MAX_DEPTH = 24

_GREATEST_PLAIN_INT = 2**63 - 1  # MySQL turns what is longer than 64 bits into a float
_NUL_IN_JSON = "\\u0000"


# --- Encoding ---------------------------------------------------------------------------------------------------------


def encode_call(args: Sequence[object], kwargs: Mapping[str, object], *, max_size: int) -> str:
    """Write the arguments of a call as `{"args": [...], "kwargs": {...}}`.

    Raises:
        TypeError: a value is of a type that would not come back as it was; the message names its path and the mend.
        ValueError: a value cannot be stored (NUL, lone surrogate, NaN, too deep), or the text exceeds `max_size` bytes.
    """
    try:
        text = _encode_plain_call(args, kwargs)
    except KeyError:  # something is not plain
        text = _encode_call(args, kwargs, max_size)
    if len(text) <= max_size and text.isascii() and _NUL_IN_JSON not in text:
        return text
    if _has_bad_text(text) and (found := _find_bad_text(list(args), "args") or _find_bad_text(dict(kwargs), "kwargs")):
        raise ValueError(found)
    size = len(text.encode())
    if size > max_size:
        raise ValueError(_size_message("The arguments", f"{size:,}", max_size))
    return text


def encode_result(value: object, *, max_size: int) -> str:
    """Write what a task returned as JSON.

    Raises:
        UnstorableResult: it would not come back as it was, cannot be stored, or exceeds `max_size` bytes.
    """
    lowering = _Lowering(max_size)
    try:
        text = _to_json(lowering.lower(value, 0))
    except _Refusal as refusal:
        raise UnstorableResult(refusal.sentence("result")) from None
    except _TooLarge as error:
        raise UnstorableResult(_size_message("The result", error.at_least, max_size)) from None
    if _has_bad_text(text) and (found := _find_bad_text(value, "result")):
        raise UnstorableResult(found)
    size = len(text.encode())
    if size > max_size:
        raise UnstorableResult(_size_message("The result", f"{size:,}", max_size))
    return text


def _int_text(value: int) -> str:
    if -_GREATEST_PLAIN_INT <= value <= _GREATEST_PLAIN_INT:
        return repr(value)
    return f'{{"$int":"{value:#x}"}}'


_PLAIN_TEXT: dict[type, Callable[[Any], str]] = {
    str: encode_basestring,
    int: _int_text,
    bool: {True: "true", False: "false"}.__getitem__,
    type(None): {None: "null"}.__getitem__,
}
_KEY_TEXT = {str: encode_basestring}


def _encode_plain_call(args: Sequence[object], kwargs: Mapping[str, object]) -> str:
    """The hot path: most calls carry a few strings and numbers. KeyError if there is anything else."""
    given = ",".join([_PLAIN_TEXT[type(value)](value) for value in args])
    if not kwargs:
        return f'{{"args":[{given}],"kwargs":{{}}}}'
    named = [f"{_KEY_TEXT[type(name)](name)}:{_PLAIN_TEXT[type(value)](value)}" for name, value in kwargs.items()]
    return f'{{"args":[{given}],"kwargs":{{{",".join(named)}}}}}'


def _encode_call(args: Sequence[object], kwargs: Mapping[str, object], max_size: int) -> str:
    lowering = _Lowering(max_size)
    root = "args"
    try:
        given = lowering.items(args, -1)
        root = "kwargs"
        named = lowering.values(dict(kwargs), -1)
    except _Refusal as refusal:
        raise refusal.error(refusal.sentence(root)) from None
    except _TooLarge as error:
        raise ValueError(_size_message("The arguments", error.at_least, max_size)) from None
    return _to_json({"args": given, "kwargs": named})


_to_json = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":")
).encode  # Circles have been refused by then.


class _Lowering:
    """Turns values into plain JSON ones."""

    def __init__(self, max_size: int) -> None:
        # One list put into another many times over may stand for gigabytes: stop long before writing that down. What is
        # a little too large is written, so that its size can be told.
        self._budget = self._left = max(16 * max_size, 2**20)

    def lower(self, value: object, depth: int) -> object:
        kind = type(value)
        if kind is str:
            self._spend(len(value))  # type: ignore[arg-type]
            return value
        if kind is bool or value is None:
            return value
        if kind is list or kind is tuple:
            _check_depth(depth)
            return self.items(value, depth)  # type: ignore[arg-type]
        if kind is dict:
            return self._dict(value, depth)  # type: ignore[arg-type]
        return (_WRITERS.get(kind) or _imitated_writer(kind))(value)

    def items(self, values: Sequence[object], depth: int) -> list[object]:
        self._spend(len(values))
        lowered: list[object] = []
        try:
            for value in values:
                lowered.append(self.lower(value, depth + 1))  # noqa: PERF401 - its length is the index that failed
        except _Refusal as refusal:
            refusal.pass_through(values, len(lowered))
            raise
        return lowered

    def values(self, values: dict[str, object], depth: int) -> dict[str, object]:
        self._spend(len(values))
        lowered: dict[str, object] = {}
        key: object = None
        try:
            for key, value in values.items():
                if type(key) is not str:
                    break
                self._spend(len(key))
                lowered[key] = self.lower(value, depth + 1)
        except _Refusal as refusal:
            refusal.pass_through(values, key)
            raise
        if len(lowered) < len(values):
            raise _Refusal(TypeError, f"has the key {_short(key)} of type {_name(type(key))}; pass str keys only.")
        return lowered

    def _dict(self, value: dict[str, object], depth: int) -> dict[str, object]:
        _check_depth(depth)
        if len(value) == 1 and _is_tag(next(iter(value))):
            _check_depth(depth + 1)
            return {"$dict": self.values(value, depth + 1)}
        return self.values(value, depth)

    def _spend(self, characters: int) -> None:
        self._left -= characters
        if self._left < 0:
            raise _TooLarge(f"more than {self._budget:,}")


def _is_tag(key: object) -> bool:
    return isinstance(key, str) and key.startswith("$")


def _check_depth(depth: int) -> None:
    if depth >= MAX_DEPTH:
        raise _Refusal(ValueError, f"is nested deeper than {MAX_DEPTH} levels; pass a flatter value.", is_depth=True)


class _TooLarge(Exception):
    def __init__(self, at_least: str) -> None:
        super().__init__(at_least)
        self.at_least = at_least


class _Refusal(Exception):
    """A value that is refused; its path is gathered on the way out, so that accepted values pay nothing for it."""

    def __init__(self, error: type[TypeError | ValueError], problem: str, *, is_depth: bool = False) -> None:
        super().__init__(problem)
        self.error = error
        self._problem = problem
        self._is_depth = is_depth
        self._way: list[tuple[object, object]] = []  # (container, key), innermost first

    def pass_through(self, container: object, key: object) -> None:
        self._way.append((container, key))

    def sentence(self, root: str) -> str:
        way = self._way[::-1]
        if self._is_depth and (circle := _first_repeated([container for container, _ in way])) is not None:
            return f"{_path(root, [key for _, key in way[:circle]])} contains itself; pass a value without circles."
        return f"{_path(root, [key for _, key in way])} {self._problem}"


def _first_repeated(containers: list[object]) -> int | None:
    """Where the first container stands that is met again further in."""
    ids = [id(container) for container in containers]
    return next((position for position, each in enumerate(ids) if each in ids[position + 1 :]), None)


def _path(root: str, keys: list[object]) -> str:
    return root + "".join(f"[{_short(key)}]" for key in keys)


def _short(key: object) -> str:
    if isinstance(key, str) and len(key) > 60:
        return f"{key[:60]!r}…"
    if type(key) in (str, float, bool, type(None)) or (type(key) is int and abs(key) <= _GREATEST_PLAIN_INT):
        return repr(key)
    return f"<{_name(type(key))}>"  # a repr() may be long, or fail


def _name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _size_message(what: str, size: str, max_size: int) -> str:
    return (
        f"{what} take{'s' * (what == 'The result')} {size} bytes as JSON; the limit is {max_size:,} bytes. "
        "Store the data in a model or a file and pass its primary key or name."
    )


# --- Text that databases refuse ---------------------------------------------------------------------------------------


def _has_bad_text(text: str) -> bool:
    """Whether JSON text may hold a NUL or a lone surrogate. (A backslash before "u0000" looks like a NUL here.)"""
    if _NUL_IN_JSON in text:
        return True
    if text.isascii():
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _find_bad_text(value: object, path: str) -> str | None:
    """A sentence about the first NUL or lone surrogate in a value that has been lowered without complaint."""
    if isinstance(value, str):
        if problem := _text_problem(value):
            return f"{path} contains {problem}"
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            if found := _find_bad_text(item, f"{path}[{index}]"):
                return found
    elif isinstance(value, dict):
        for key, item in value.items():
            if problem := _text_problem(key):
                return f"{path}[{_short(key)}] is a key that contains {problem}"
            if found := _find_bad_text(item, f"{path}[{_short(key)}]"):
                return found
    return None


def _text_problem(text: str) -> str | None:
    if (at := text.find("\0")) >= 0:
        return f"a NUL character (at position {at}), which databases do not store in text; remove it, or pass bytes."
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return (
            f"the lone surrogate {text[error.start]!r} (at position {error.start}), which is not a character; "
            "decode the text correctly, or pass bytes."
        )
    return None


# --- Values without a word in JSON: how they are written --------------------------------------------------------------


def _write_int(value: int) -> object:
    return value if -_GREATEST_PLAIN_INT <= value <= _GREATEST_PLAIN_INT else {"$int": f"{value:#x}"}


def _write_float(value: float) -> object:
    if not math.isfinite(value):
        raise _Refusal(ValueError, f"is {value!r}, which is not a number in JSON; pass None or a string.")
    # repr() uses an exponent outside of this range, jsonb never; it drops the sign of zero.
    is_plain = 1e-4 <= abs(value) < 1e16 or (value == 0 and math.copysign(1, value) > 0)
    return value if is_plain else {"$float": repr(value)}


def _write_decimal(value: Decimal) -> object:
    if not value.is_finite():
        raise _Refusal(ValueError, f"is Decimal({str(value)!r}), which is not a number; pass None or a string.")
    return {"$decimal": str(value)}


def _write_datetime(value: dt.datetime) -> object:
    if _is_other_zone(value.tzinfo):
        fixed = value.isoformat()
        # Without an offset it is naive; one whose offset depends on the fold is equal to no other datetime (PEP 495).
        if value.utcoffset() is None or _datetime_from_text(fixed) != value:
            _refuse_zone(value.tzinfo)
    return {"$datetime": value.isoformat() + _suffix(value)}


def _write_time(value: dt.time) -> object:
    if _is_other_zone(value.tzinfo):
        _refuse_zone(value.tzinfo)
    return {"$time": value.isoformat() + _suffix(value)}


def _is_other_zone(zone: dt.tzinfo | None) -> bool:
    if zone is None or _is_named_zone(zone):
        return False
    # fromisoformat() reads an offset below one second as UTC.
    return type(zone) is not dt.timezone or zone.utcoffset(None) % dt.timedelta(seconds=1) != dt.timedelta(0)


def _is_named_zone(zone: dt.tzinfo | None) -> bool:
    return type(zone) is ZoneInfo and _ZONE_KEY.fullmatch(zone.key or "") is not None  # from_file() gives no key


def _refuse_zone(zone: dt.tzinfo | None) -> NoReturn:
    raise _Refusal(
        TypeError,
        f"has a time zone of type {_name(type(zone))} that would not come back as it is; "
        "use zoneinfo.ZoneInfo or datetime.UTC.",
    )


def _suffix(value: dt.datetime | dt.time) -> str:
    zone = value.tzinfo
    name = f"[{zone.key}]" if isinstance(zone, ZoneInfo) and _is_named_zone(zone) else ""
    return f"{name}[_fold=1]" if value.fold else name


def _imitated_writer(kind: type) -> Callable[[Any], object]:
    if kind.__module__ != "freezegun.api":
        return _refuse
    # What datetime.now() returns in a test that freezes time: it stands for the class it imitates.
    return next((_WRITERS[base] for base in kind.__mro__ if base in _WRITERS), _refuse)


_WRITERS: dict[type, Callable[[Any], object]] = {
    int: _write_int,
    float: _write_float,
    Decimal: _write_decimal,
    dt.datetime: _write_datetime,
    dt.date: lambda value: {"$date": value.isoformat()},
    dt.time: _write_time,
    dt.timedelta: lambda value: {"$timedelta": f"{value.days}d{value.seconds}s{value.microseconds}us"},
    UUID: lambda value: {"$uuid": str(value)},
    bytes: lambda value: {"$bytes": base64.b64encode(value).decode("ascii")},
}


# --- Refusals ---------------------------------------------------------------------------------------------------------


def _refuse(value: object) -> NoReturn:
    # Only the type is looked at: repr(), isinstance() and the like may run a query or fail (LazyObject, QuerySet).
    kind = type(value)
    raise _Refusal(TypeError, f"is of type {_name(kind)}, which would not come back as it is; {_mend(kind)}.")


def _mend(kind: type) -> str:
    if dataclasses.is_dataclass(kind):
        return "pass its fields: dataclasses.asdict(...)"
    for bases, mend in _MENDS:
        if issubclass(kind, bases):
            return mend
    return (
        "pass str, int, float, bool, None, list, dict, datetime, date, time, timedelta, Decimal, UUID or bytes, "
        "or a primary key"
    )


_MENDS: Sequence[tuple[type | tuple[type, ...], str]] = [
    (Model, "pass the primary key (.pk) and load the object in the task"),
    ((QuerySet, BaseManager), "pass the primary keys: list(queryset.values_list('pk', flat=True))"),
    (LazyObject, "pass the value itself; of a lazy model instance such as request.user, the primary key (.pk)"),
    (Promise, "pass str(...)"),
    (SafeData, "pass plain text: value + ''"),
    (enum.Enum, "pass .value"),
    (type, "pass its name"),
    (str, "pass str(...)"),
    (int, "pass int(...)"),
    (float, "pass float(...)"),
    (complex, "pass [value.real, value.imag]"),
    (Decimal, "pass Decimal(...)"),
    (dt.datetime, "pass a plain datetime.datetime"),
    (dt.date, "pass a plain datetime.date"),
    (dt.time, "pass a plain datetime.time"),
    (dt.timedelta, "pass a plain datetime.timedelta"),
    (dt.tzinfo, "pass its name: str(...)"),
    (UUID, "pass uuid.UUID(str(...))"),
    ((bytes, bytearray, memoryview), "pass bytes(...)"),
    (Mapping, "pass dict(...)"),
    ((set, frozenset), "pass list(...) or sorted(...)"),
    ((list, tuple, deque, range, Iterator, KeysView, ValuesView), "pass list(...)"),
    (BaseException, "pass str(...)"),
    ((type(_refuse), type(len)), "pass data; a function cannot be stored"),
]


# --- Decoding ---------------------------------------------------------------------------------------------------------

_PLAIN_TYPES = frozenset({str, int, bool, type(None)})


class JSONText(str):
    """JSON that nobody has parsed yet; a plain str is a value."""

    __slots__ = ()


# Past the whitespace that json.loads looks for: what a column of JSON is read back as has none around it.
_scan = json.JSONDecoder().scan_once  # type: ignore[attr-defined]


def decode_call(value: object) -> tuple[list[object], dict[str, object]]:
    """Read JSON that `encode_call` wrote, parsed or as a database gives its text. Parts may be handed on uncopied.

    Raises:
        UnreadablePayload: it is anything else.
    """
    if type(value) is JSONText:
        try:
            value = _scan(value, 0)[0]
        except (ValueError, RecursionError, StopIteration) as error:
            raise UnreadablePayload("A stored call is JSON that Python cannot parse.") from error
    if type(value) is not dict or value.keys() != _CALL_KEYS:
        raise UnreadablePayload('A stored call is not of the form {"args": [...], "kwargs": {...}}.')
    args, kwargs = value["args"], value["kwargs"]
    if type(args) is not list or type(kwargs) is not dict:
        raise UnreadablePayload('In a stored call "args" is not a list or "kwargs" is not an object.')
    if not _PLAIN_TYPES.issuperset(map(type, args)):
        args = [_lift(item, 0) for item in args]
    if kwargs and not _PLAIN_TYPES.issuperset(map(type, kwargs.values())):
        kwargs = {name: _lift(item, 0) for name, item in kwargs.items()}
    return args, kwargs


_CALL_KEYS = {"args", "kwargs"}


def decode_value(value: object) -> object:
    """Read parsed JSON that `encode_result` wrote.

    Raises:
        UnreadablePayload: it is anything else.
    """
    return _lift(value, 0)


def _lift(value: object, depth: int) -> object:
    kind = type(value)
    if kind in _PLAIN_TYPES:
        return value
    if depth > 2 * MAX_DEPTH:  # twice: another release may write deeper
        raise UnreadablePayload("A stored value is nested too deeply.")
    if kind is float and math.isfinite(value):  # type: ignore[arg-type]
        return value
    if isinstance(value, list):
        return [_lift(item, depth + 1) for item in value]
    if isinstance(value, dict):
        if len(value) == 1 and _is_tag(tag := next(iter(value))):
            return _lift_tagged(tag, value[tag], depth)
        return {key: _lift(item, depth + 1) for key, item in value.items()}
    raise UnreadablePayload(f"A stored value is of type {_name(kind)} or not finite, which the codec never writes.")


def _lift_tagged(tag: str, inner: object, depth: int) -> object:
    if tag == "$dict" and isinstance(inner, dict):
        return {key: _lift(item, depth + 2) for key, item in inner.items()}
    read = _READERS.get(tag)
    if read is None or type(inner) is not str:
        raise UnreadablePayload(f"A stored value is tagged {_short(tag)} over {_name(type(inner))}, an unknown form.")
    try:
        return read(inner)
    except _READER_ERRORS:
        # Not chained: the reader's message would quote the value, which may be a secret.
        raise UnreadablePayload(f"A stored value tagged {tag!r} cannot be read.") from None


# OverflowError and decimal's errors are ArithmeticErrors; the last three are ZoneInfo's for a zone unknown here.
_READER_ERRORS = (ValueError, ArithmeticError, KeyError, OSError, ImportError)

_ZONE_KEY = re.compile(r"[A-Za-z][A-Za-z0-9_+-]*(?:/[A-Za-z0-9][A-Za-z0-9_+-]*){0,3}")
_ZONED = re.compile(rf"(?P<text>[^\[\]]+)(?:\[(?P<zone>{_ZONE_KEY.pattern})\])?(?P<fold>\[_fold=1\])?")
_SPAN = re.compile(r"(-?[0-9]{1,9})d([0-9]{1,5})s([0-9]{1,6})us")

# Looked up once: a test that freezes time puts other classes into the module.
_datetime_from_text = dt.datetime.fromisoformat
_time_from_text = dt.time.fromisoformat


def _read_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError
    return value


def _read_decimal(text: str) -> Decimal:
    value = Decimal(text)
    if not value.is_finite():
        raise ValueError
    return value


def _read_datetime(text: str) -> dt.datetime:
    text, zone, fold = _split_zone(text)
    moment = _datetime_from_text(text)
    if zone is None:
        return moment.replace(fold=fold)
    if moment.tzinfo is None:
        raise ValueError
    local = moment.replace(tzinfo=zone, fold=fold)
    # The zone's rules may have changed since; then the instant counts, not the wall clock.
    return local if local.utcoffset() == moment.utcoffset() else moment.astimezone(zone)


def _read_time(text: str) -> dt.time:
    text, zone, fold = _split_zone(text)
    value = _time_from_text(text)
    return value.replace(tzinfo=zone or value.tzinfo, fold=fold)


def _split_zone(text: str) -> tuple[str, ZoneInfo | None, int]:
    match = _ZONED.fullmatch(text)
    if match is None:
        raise ValueError
    return match["text"], ZoneInfo(match["zone"]) if match["zone"] else None, 1 if match["fold"] else 0


def _read_timedelta(text: str) -> dt.timedelta:
    match = _SPAN.fullmatch(text)
    if match is None:
        raise ValueError
    days, seconds, microseconds = map(int, match.groups())
    return dt.timedelta(days, seconds, microseconds)


_READERS: Mapping[str, Callable[[str], object]] = {
    "$int": lambda text: int(text, 16),
    "$float": _read_float,
    "$decimal": _read_decimal,
    "$datetime": _read_datetime,
    "$date": dt.date.fromisoformat,
    "$time": _read_time,
    "$timedelta": _read_timedelta,
    "$uuid": UUID,
    "$bytes": lambda text: base64.b64decode(text, validate=True),
}

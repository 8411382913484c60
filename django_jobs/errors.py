"""A failure as text that any database stores: whatever the exception does, whatever its text holds, and no secrets."""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import itertools
import json
import linecache
import os
import re
import sysconfig
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from types import FrameType, TracebackType
from urllib.parse import quote, quote_plus
from uuid import UUID

TYPE_LIMIT = 200  # characters, as all limits here
TEXT_LIMIT = 10_000
TRACEBACK_LIMIT = 50_000
SHORTEST_SECRET = 4  # Masking "a" would leave nothing to read.
MASK = "********"

_LINE_LIMIT = 500
_MOST_FRAMES = 80
_MOST_LINKS = 20
_MOST_EXCEPTIONS = 60
_MOST_IN_GROUP = 10
_DEEPEST_GROUP = 5


@dataclass(frozen=True, slots=True)
class ErrorRecord:
    """What is stored of an exception. `fingerprint` is alike for alike failures, in every process and release."""

    error_type: str  # dotted
    text: str
    traceback: str
    fingerprint: str


def describe(exc: BaseException, *, secrets: Collection[str] = ()) -> ErrorRecord:
    """Describe an exception, whatever it does. It never raises.

    The traceback has file, line, function and source line of each frame, never local variables. `secrets` are masked.
    """
    try:
        needles = _needles(secrets)
        return ErrorRecord(
            error_type=_attempt(lambda: safe_text(_type_name(exc), TYPE_LIMIT), "builtins.BaseException"),
            text=_attempt(lambda: _message(exc, needles), "<the text of this error cannot be read>"),
            traceback=_attempt(lambda: _traceback(exc, needles), "<the traceback of this error cannot be read>"),
            fingerprint=_attempt(lambda: _fingerprint(exc, needles), _UNDESCRIBED.fingerprint),
        )
    except BaseException:  # noqa: BLE001 - no stack or no memory is left; a job must not stay running for that
        return _UNDESCRIBED


def mask(text: str, secrets: Collection[str]) -> str:
    """Replace each secret of four characters and more, also where it is quoted or escaped."""
    return _masked(text, _needles(secrets), len(text))


def secret_strings(values: object) -> frozenset[str]:
    """Collect what `mask` must hide of sensitive values, nested ones included. Keys of dicts may be secrets as well."""
    found: set[str] = set()
    seen: set[int] = set()
    rest = [values]
    while rest:
        value = rest.pop()
        if isinstance(value, Mapping | list | tuple | set | frozenset):
            if id(value) not in seen:
                seen.add(id(value))
                rest.extend(value)
                rest.extend(value.values() if isinstance(value, Mapping) else ())
        else:
            found.update(_secret_forms(value))
    return frozenset(form for form in found if len(form) >= SHORTEST_SECRET)


def safe_text(value: object, limit: int) -> str:
    """Turn anything into text of at most `limit` characters that any database stores. It never raises.

    NUL, other control characters and lone surrogates become visible, as Python writes them: `\\x00`, `\\ud800`.
    """
    return _clip(_visible(_text(value)[: limit + 1]), limit)


_UNDESCRIBED = ErrorRecord(
    error_type="builtins.BaseException",
    text="<this error cannot be described: no stack or no memory was left>",
    traceback="",
    fingerprint="0" * 32,
)


def _attempt(make: Callable[[], str], otherwise: str) -> str:
    try:
        return make()
    except BaseException:  # noqa: BLE001 - code of the exception's own class ran, and may raise anything
        return otherwise


# --- Text -------------------------------------------------------------------------------------------------------------

# Line breaks and tabs stay.
_UNSTORABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")


def _text(value: object) -> str:
    try:
        text = str(value)
    except BaseException as failure:  # noqa: BLE001 - __str__ may raise anything
        return f"<{type(value).__qualname__} whose text cannot be read: {type(failure).__qualname__}>"
    return str.__str__(text)  # a plain str, whatever subclass __str__ returned


def _visible(text: str) -> str:
    return _UNSTORABLE.sub(lambda match: ascii(match[0])[1:-1], text)


def _clip(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: max(limit - 1, 0)] + "…"[:limit]


def _clip_middle(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    note = f"\n… {len(text) - limit} characters left out …\n"
    half = (limit - len(note)) // 2
    return text[:half] + note + text[-half:]


def _message(exc: BaseException, needles: list[str]) -> str:
    return _safe_masked(_text(exc), needles, TEXT_LIMIT)


def _safe_masked(text: str, needles: list[str], limit: int) -> str:
    shown = _visible(_masked(text, needles, limit))
    return _clip(f"{shown}…" if len(text) > limit else shown, limit)


def _type_name(exc: BaseException) -> str:
    return f"{type(exc).__module__}.{type(exc).__qualname__}"


# --- Secrets ----------------------------------------------------------------------------------------------------------


def _secret_forms(value: object) -> set[str]:
    if value is None or isinstance(value, bool):
        return set()
    if isinstance(value, bytes | bytearray):
        decoded = bytes(value).decode("utf-8", "replace")
        return {decoded, repr(bytes(value))[2:-1], value.hex(), base64.b64encode(value).decode("ascii")}
    if isinstance(value, dt.datetime | dt.date | dt.time):
        return {str(value), value.isoformat()}
    if isinstance(value, UUID):
        return {str(value), value.hex}
    if isinstance(value, str | float | Decimal | dt.timedelta):
        return {str(value)}
    # str() refuses more than 4,300 digits.
    return {str(value) if abs(value) < 10**1000 else hex(value)} if isinstance(value, int) else set()


def _needles(secrets: Collection[str]) -> list[str]:
    """Every form in which a secret is looked for: itself, and as repr(), JSON and URLs write it."""
    forms: set[str] = set()
    for secret in secrets:
        forms.update({secret, repr(secret)[1:-1], ascii(secret)[1:-1], json.dumps(secret)[1:-1]})
        forms.update({quote(secret, errors="replace"), quote_plus(secret, errors="replace")})
    return [form for form in forms if len(form) >= SHORTEST_SECRET]


def _masked(text: str, needles: list[str], stop: int) -> str:
    """Mask the text up to `stop`; a secret that reaches beyond it is masked as well, not cut in two."""
    if not needles:
        return text[:stop]
    reach = max(map(len, needles))
    window = text[: stop + reach]
    parts = []
    at = 0
    for start, end in sorted(_found(window, needles)):
        if start >= stop:
            break
        if start >= at:
            parts += [window[at:start], MASK]
        at = max(at, end)  # overlapping secrets become one
    parts.append(window[at:stop])
    return "".join(parts)


def _found(text: str, needles: list[str]) -> Iterator[tuple[int, int]]:
    for needle in needles:
        start = text.find(needle)
        while start >= 0:
            yield start, start + len(needle)
            start = text.find(needle, start + 1)


# --- Traceback --------------------------------------------------------------------------------------------------------

_CAUSE = "\nThe above exception was the direct cause of the following exception:\n"
_CONTEXT = "\nDuring handling of the above exception, another exception occurred:\n"
_OWN_FOLDER = str(Path(__file__).parent) + os.sep


def _traceback(exc: BaseException, needles: list[str]) -> str:
    text = "\n".join(_Report(needles).lines(exc, 0))
    return _clip_middle(_visible(_masked(text, needles, len(text))), TRACEBACK_LIMIT)


class _Report:
    """Writes an exception as the standard library does, but bounded in all directions.

    traceback.TracebackException follows a chain of any length, and asks objects for names that are like a wrong one.
    """

    def __init__(self, needles: list[str]) -> None:
        self._needles = needles
        self._left = _MOST_EXCEPTIONS

    def lines(self, exc: BaseException, depth: int) -> Iterator[str]:
        chain = _chain(exc)
        for position, (link, joint) in enumerate(chain):
            if len(chain) > _MOST_LINKS and _MOST_LINKS // 2 <= position < len(chain) - _MOST_LINKS // 2:
                if position == _MOST_LINKS // 2:
                    yield f"\n… {len(chain) - _MOST_LINKS} exceptions left out …\n"
                continue
            yield from self._exception(link, depth)
            if joint:
                yield joint

    def _exception(self, exc: BaseException, depth: int) -> Iterator[str]:
        self._left -= 1
        if exc.__traceback__ is not None:
            yield "Traceback (most recent call last):"
            yield from _frame_lines(_without_own(_frames(exc.__traceback__)), self._needles)
        name = _type_name(exc).removeprefix("builtins.")
        message = _message(exc, self._needles)
        yield f"{name}: {message}" if message else name
        notes = getattr(exc, "__notes__", ())
        for note in notes if isinstance(notes, list | tuple) else ():
            yield _safe_masked(_text(note), self._needles, TEXT_LIMIT)
        if isinstance(exc, BaseExceptionGroup):
            yield from self._group(exc.exceptions, depth + 1)

    def _group(self, members: tuple[BaseException, ...], depth: int) -> Iterator[str]:
        for position, member in enumerate(members):
            if position == _MOST_IN_GROUP or depth > _DEEPEST_GROUP or self._left <= 0:
                yield f"  | … {len(members) - position} more exceptions …"
                return
            yield f"  +---------------- {position + 1} ----------------"
            for line in "\n".join(self.lines(member, depth)).split("\n"):
                yield f"  | {line}"


def _chain(exc: BaseException) -> list[tuple[BaseException, str]]:
    """The first cause first; each with the sentence that leads on to the next."""
    links: list[tuple[BaseException, str]] = []
    seen: set[int] = set()
    link: BaseException | None = exc
    joint = ""
    while link is not None and id(link) not in seen and len(links) < 10_000:
        seen.add(id(link))
        links.append((link, joint))
        if link.__cause__ is not None:
            link, joint = link.__cause__, _CAUSE
        else:
            link, joint = None if link.__suppress_context__ else link.__context__, _CONTEXT
    return links[::-1]


def _frames(traceback: TracebackType | None) -> list[tuple[FrameType, int | None]]:
    frames: list[tuple[FrameType, int | None]] = []
    while traceback is not None and len(frames) < 100_000:
        frames.append((traceback.tb_frame, traceback.tb_lineno))
        traceback = traceback.tb_next
    return frames


def _without_own(frames: list[tuple[FrameType, int | None]]) -> list[tuple[FrameType, int | None]]:
    """Leave out how we came to call the task."""
    return list(itertools.dropwhile(lambda each: _is_own(each[0]), frames)) or frames


def _is_own(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(_OWN_FOLDER)


def _frame_lines(frames: list[tuple[FrameType, int | None]], needles: list[str]) -> Iterator[str]:
    alike = [list(group) for _, group in itertools.groupby(frames, key=lambda each: (each[0].f_code, each[1]))]
    for position, group in enumerate(alike):
        if len(alike) > _MOST_FRAMES and _MOST_FRAMES // 2 <= position < len(alike) - _MOST_FRAMES // 2:
            if position == _MOST_FRAMES // 2:
                yield f"  … {len(alike) - _MOST_FRAMES} frames left out …"
            continue
        frame, line_number = group[0]
        yield f'  File "{frame.f_code.co_filename}", line {line_number or "?"}, in {frame.f_code.co_qualname}'
        if source := _source_line(frame, line_number):
            yield f"    {_safe_masked(source, needles, _LINE_LIMIT)}"
        if len(group) > 1:
            yield f"  [Previous line repeated {len(group) - 1} more times]"


def _source_line(frame: FrameType, line_number: int | None) -> str:
    if line_number is None:
        return ""
    return _attempt(lambda: linecache.getline(frame.f_code.co_filename, line_number, frame.f_globals).strip(), "")


# --- Fingerprint ------------------------------------------------------------------------------------------------------

_FOREIGN_FOLDERS = tuple(
    {path + os.sep for path in map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")) if path}
)
_VARIABLE = re.compile(  # quoted text, addresses, UUIDs, words with a digit in them
    r"""'[^'\n]*' | "[^"\n]*" | \S+@\S+ | \b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b | \b\w*[0-9]\w*\b""",
    re.VERBOSE | re.IGNORECASE,
)


def _fingerprint(exc: BaseException, needles: list[str]) -> str:
    """Hash the types of the exception and its causes, the application's functions passed through, and the message.

    Line numbers, and what differs from job to job in the message (numbers, ids, quoted words), are left out.
    """
    where = [
        f"{_module(frame)}.{frame.f_code.co_qualname}" for frame, _ in _frames(exc.__traceback__) if _is_app(frame)
    ]
    message = _VARIABLE.sub("?", _safe_masked(_text(exc), needles, _LINE_LIMIT))
    parts = [*dict.fromkeys(_causes(exc)), "", *dict.fromkeys(where), "", " ".join(message.split())]
    return hashlib.sha256("\n".join(parts).encode("utf-8", "replace")).hexdigest()[:32]


def _causes(exc: BaseException) -> Iterator[str]:
    link: BaseException | None = exc
    for _ in range(_MOST_LINKS):
        if link is None:
            return
        yield _type_name(link)
        link = link.__cause__


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _is_app(frame: FrameType) -> bool:
    return _is_app_file(frame.f_code.co_filename)


@lru_cache(maxsize=1000)
def _is_app_file(path: str) -> bool:
    is_foreign = path.startswith((*_FOREIGN_FOLDERS, "<frozen ")) or "site-packages" in path or "dist-packages" in path
    return not is_foreign and not path.startswith(_OWN_FOLDER)

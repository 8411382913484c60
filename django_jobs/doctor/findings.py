"""What the doctor says: a level, a name, a sentence, and the mend."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

MINUTE, HOUR, DAY = 60, 3600, 86400
SHOWN = 5  # findings of one kind


class Level(enum.Enum):
    """How bad it is, the worst first."""

    PROBLEM = "problem"  # a promise is at risk, or workers stand still
    WARNING = "warning"  # it slows the queue down, or will
    UNSEEN = "unseen"  # the role may not look there
    FINE = "fine"

    @property
    def exit_code(self) -> int:
        """That of `manage.py jobs_doctor`."""
        return {Level.PROBLEM: 2, Level.WARNING: 1}.get(self, 0)


@dataclass(frozen=True)
class Finding:
    """One answer. `mend` holds lines to be pasted or done as they stand."""

    level: Level
    name: str
    message: str
    mend: tuple[str, ...] = ()


Question = Callable[[str], Iterable[Finding]]  # of a database's alias


def fine(name: str, message: str) -> Finding:
    return Finding(Level.FINE, name, message)


def warning(name: str, message: str, *mend: str) -> Finding:
    return Finding(Level.WARNING, name, message, mend)


def problem(name: str, message: str, *mend: str) -> Finding:
    return Finding(Level.PROBLEM, name, message, mend)


def unseen(name: str, message: str, *mend: str) -> Finding:
    return Finding(Level.UNSEEN, name, message, mend)


def or_fine(found: Iterator[Finding], name: str, message: str) -> Iterator[Finding]:
    """What was found, up to `SHOWN` of it by name; or one line that says that nothing was."""
    everything = list(found)
    yield from everything[:SHOWN]
    if len(everything) > SHOWN:
        yield Finding(everything[-1].level, name, f"{len(everything) - SHOWN} more are like those named.")
    if not everything:
        yield fine(name, message)


def span(seconds: float) -> str:
    """A length of time as a person says it."""
    for unit, length in (("days", DAY), ("h", HOUR), ("min", MINUTE)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.2g} s"


def size(count: float) -> str:
    """A number of bytes as a person says it."""
    for unit, length in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= length:
            return f"{count / length:.3g} {unit}"
    return f"{count:.0f} bytes"

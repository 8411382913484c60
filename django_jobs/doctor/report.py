"""The findings as a person reads them: the worst first, aligned, in short lines."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from django_jobs.doctor.findings import Finding, Level

WIDTH = 100  # columns
ORDER = list(Level)


def lines(findings: Sequence[Finding], paint: Callable[[Level, str], str] = lambda level, text: text) -> Iterator[str]:
    """The whole report; `paint` may colour the word in front."""
    level_width = max(len(level.value) for level in Level)
    name_width = max((len(finding.name) for finding in findings), default=0)
    for finding in sorted(findings, key=lambda each: ORDER.index(each.level)):
        head = f"{paint(finding.level, finding.level.value.ljust(level_width))}  {finding.name.ljust(name_width)}  "
        indent = " " * (level_width + name_width + 4)
        yield from _hanging(head, indent, finding)
    yield ""
    yield _total(findings)


def _hanging(head: str, indent: str, finding: Finding) -> Iterator[str]:
    first, *rest = textwrap.wrap(finding.message, WIDTH - len(indent), break_long_words=False) or [""]
    yield head + first
    yield from (indent + line for line in rest)
    # Not wrapped: to be pasted as it is.
    yield from (f"{indent}> {line}" for line in finding.mend)


def _total(findings: Iterable[Finding]) -> str:
    counts = Counter(finding.level for finding in findings)
    words = {Level.PROBLEM: "problem", Level.WARNING: "warning", Level.UNSEEN: "unseen", Level.FINE: "fine"}
    said = []
    for level, word in words.items():
        count = counts[level]
        plural = "s" if level in (Level.PROBLEM, Level.WARNING) and count != 1 else ""
        said.append(f"{count} {word}{plural}")
    return ", ".join(said)

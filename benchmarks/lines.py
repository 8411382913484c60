"""A line of the table: what was measured of the app, what it stands beside, and whether that is enough."""

from __future__ import annotations

import enum
import math
import statistics
from dataclasses import dataclass, field

MOST_TOLERANCE = 0.25  # a floor that is further apart from itself says nothing, and excuses nothing
GROSS = 3.0  # in a short run a line fails only if it is so many times off


@dataclass
class Sample:
    """What the rounds gave for one quantity."""

    unit: str
    values: list[float] = field(default_factory=list)

    def add(self, value: float) -> None:
        self.values.append(value)

    @property
    def median(self) -> float:
        return math.nan if any(map(math.isnan, self.values)) else statistics.median(self.values)

    @property
    def spread(self) -> float:
        """From the least to the largest, as a share of the median."""
        known = [value for value in self.values if not math.isnan(value)]
        return (max(known) - min(known)) / statistics.median(known) if any(known) else 0.0

    def __str__(self) -> str:
        return f"{spelt(self.median)}{self.unit}"


def spelt(value: float) -> str:
    """Three digits that count, with commas."""
    if math.isnan(value):
        return "unknown "
    if abs(value) >= 100:
        return f"{round(value, 2 - math.floor(math.log10(abs(value)))):,.0f}"
    return f"{value:.3g}" if value else "0"


class Rule(enum.Enum):
    """How a line is judged."""

    RATIO_AT_LEAST = "at least"  # app / base
    RATIO_AT_MOST = "at most"
    VALUE_AT_MOST = "value at most"  # the app alone
    EXCESS_AT_MOST = "more, at most"  # app - base
    TOLD = "told"  # and not judged


class Verdict(enum.StrEnum):
    """What becomes of a line."""

    REACHED = "reached"
    MISSED = "MISSED"
    NOT_JUDGED = "not judged"  # and, in a short run, an absolute number


@dataclass
class Line:
    """One line. `tolerance` is the stated one; the base's spread against itself counts where it is larger."""

    workload: str
    app: Sample
    rule: Rule
    limit: float = 0.0
    base: Sample | None = None
    base_name: str = "floor"
    tolerance: float = 0.0
    always_judged: bool = False  # in a short run too, though it is no ratio

    @property
    def ratio(self) -> float | None:
        if self.base is None or not self.base.median:
            return None
        return self.app.median / self.base.median

    @property
    def allowance(self) -> float:
        """The tolerance that is in force."""
        noise = self.base.spread if self.base else 0.0
        return max(self.tolerance, min(noise, MOST_TOLERANCE))

    @property
    def is_noisy(self) -> bool:
        return any(sample is not None and sample.spread > MOST_TOLERANCE for sample in (self.app, self.base))

    def verdict(self, *, short: bool) -> Verdict:
        """Judge it; in a short run only what is grossly off is missed, and absolute numbers are not judged."""
        is_relative = self.rule not in (Rule.VALUE_AT_MOST, Rule.EXCESS_AT_MOST)
        if self.rule is Rule.TOLD or (short and not self.always_judged and not is_relative):
            return Verdict.NOT_JUDGED
        return Verdict.REACHED if self._is_reached(self._limit(short=short)) else Verdict.MISSED

    def _limit(self, *, short: bool) -> float:
        if not short:
            return self.limit
        return self.limit / GROSS if self.rule is Rule.RATIO_AT_LEAST else self.limit * GROSS

    def _is_reached(self, limit: float) -> bool:
        match self.rule:
            case Rule.VALUE_AT_MOST:
                return self.app.median <= limit * (1 + self.allowance)
            case Rule.EXCESS_AT_MOST:
                noise = 0.0 if self.base is None else self.base.median * self.allowance
                return self._excess() <= limit + noise
            case Rule.RATIO_AT_MOST:
                return (self.ratio or 0.0) <= limit * (1 + self.allowance)
            case Rule.RATIO_AT_LEAST:
                return (self.ratio or 0.0) >= limit * (1 - self.allowance)
            case Rule.TOLD:
                return True

    def _excess(self) -> float:
        return self.app.median - (self.base.median if self.base else 0.0)

    def must(self, *, short: bool) -> str:
        """What it must reach, in words for the table."""
        tolerance = f" ±{self.allowance:.0%}" if self.allowance else ""
        match self.rule:
            case Rule.VALUE_AT_MOST:
                return f"at most {spelt(self.limit)}{self.app.unit}{tolerance}"
            case Rule.EXCESS_AT_MOST:
                return f"+{spelt(self.limit)}{self.app.unit}{tolerance}"
            case Rule.TOLD:
                return ""
            case _:
                return f"{self.rule.value} {self._limit(short=short):.2f}{tolerance}"

    @property
    def found(self) -> str:
        """The ratio, or the excess, in words for the table."""
        if self.rule is Rule.EXCESS_AT_MOST:
            return f"+{spelt(self._excess())}{self.app.unit}"
        return "" if self.ratio is None else f"{self.ratio:.2f}"

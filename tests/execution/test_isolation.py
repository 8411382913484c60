"""Nothing passes from one job to the next in the same thread."""

from __future__ import annotations

import contextvars
import decimal
from typing import Any

import pytest
from django.utils import timezone, translation

from tests.execution.attempts import declared, run

colour: contextvars.ContextVar[str] = contextvars.ContextVar("colour", default="none")


@pytest.mark.parametrize("fails", [False, True], ids=["succeeds", "fails"])
def test_language_zone_and_context_variables_stay_in_their_job(fails: bool) -> None:
    def change() -> None:
        translation.activate("nl")
        timezone.activate("Asia/Tokyo")
        colour.set("red")
        decimal.getcontext().prec = 3
        if fails:
            raise ValueError

    def look() -> list[Any]:
        return [
            translation.get_language(),
            timezone.get_current_timezone_name(),
            colour.get(),
            decimal.getcontext().prec,
        ]

    with declared(look) as looking:
        before = run(looking).result
    with declared(change) as changing:
        run(changing)
    with declared(look) as looking:
        after = run(looking).result

    assert after == before
    assert translation.get_language() == "en-us"
    assert colour.get() == "none"

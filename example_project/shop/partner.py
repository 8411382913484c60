"""Client of the partner's API. It turns what HTTP says into three words: later, try again, never."""

from __future__ import annotations

import json
from dataclasses import dataclass
from http.client import HTTPException
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import urlopen

from django.conf import settings


@dataclass(frozen=True)
class AccountState:
    points: int
    tier: str


class Unavailable(Exception):
    """It may work in a moment: no answer in time, no connection, 5xx, or an answer that is cut off."""


class TooManyRequests(Exception):
    """The partner asks us to come back after `retry_after` seconds."""

    def __init__(self, retry_after: float) -> None:
        super().__init__(f"The partner asks us to wait {retry_after:g} s.")
        self.retry_after = retry_after


class Rejected(Exception):
    """The partner understood, and will say the same tomorrow (4xx)."""


def fetch_account(partner_id: str) -> AccountState:
    """What the partner knows of an account.

    Raises:
        TooManyRequests: 429.
        Rejected: another 4xx.
        Unavailable: anything that may pass.
    """
    url = f"{settings.SHOP_PARTNER_URL}/accounts/{quote(partner_id, safe='')}"
    try:
        # Without a time-out a partner that hangs would hold this thread until the task's own time limit.
        with urlopen(url, timeout=settings.SHOP_PARTNER_TIMEOUT) as answer:
            state = json.load(answer)
        return AccountState(points=int(state["points"]), tier=str(state["tier"]))
    except HTTPError as error:
        error.close()  # it holds the connection open
        raise _from_status(error, partner_id) from error
    except (OSError, HTTPException) as error:  # URLError and TimeoutError are OSErrors
        raise Unavailable(f"The partner did not answer about {partner_id!r}: {error}.") from error
    except (ValueError, KeyError, TypeError) as error:
        raise Unavailable(f"The partner's answer about {partner_id!r} cannot be read: {error}.") from error


def _from_status(error: HTTPError, partner_id: str) -> Exception:
    if error.code == 429:
        return TooManyRequests(_seconds(error.headers.get("Retry-After")))
    if 400 <= error.code < 500:
        return Rejected(f"The partner rejects account {partner_id!r}: {error.code} {error.reason}.")
    return Unavailable(f"The partner answered {error.code} {error.reason} about {partner_id!r}.")


def _seconds(retry_after: str | None) -> float:
    """Seconds from a Retry-After header; 1 where it is missing or is a date, which this partner never sends."""
    try:
        return min(max(float(retry_after or ""), 0.0), 300.0)
    except ValueError:
        return 1.0

"""The partner's API: loyalty points over HTTP, from a server that is slow, busy, sometimes down, and sometimes hangs.

    python example_project/services/partner.py [--port 8025]

    GET  /accounts/<id>   {"id": ..., "points": ..., "tier": ...}, or 429 with Retry-After, 503, 410, or nothing
    GET  /control         the faults in force, and how often each answer was given
    POST /control         changes the faults given as JSON, for example {"seed": 7, "busy": 0.3, "gone": ["CHK-0001"]}

What goes wrong is drawn from the seed, the account and the number of its request: the same on every run. After
`patience` requests an account is always answered, so that whoever tries again gets there.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from zlib import crc32

TIERS = ["Bronze", "Silver", "Gold"]


@dataclass(frozen=True)
class Faults:
    """Shares of the requests are from 0 to 1, spans in seconds."""

    seed: int = 1
    busy: float = 0.0  # 429
    down: float = 0.0  # 503
    hang: float = 0.0
    retry_after: int = 1
    fastest: float = 0.0
    slowest: float = 0.0
    hanging_for: float = 8.0
    patience: int = 3
    gone: tuple[str, ...] = ()  # 410

    def draw(self, account: str, number: int) -> tuple[str, float]:
        """The answer to an account's request of that number, and the wait before it."""
        if account in self.gone:
            return "gone", 0.0
        source = random.Random(f"{self.seed} {account} {number}")
        wait, share = source.uniform(self.fastest, self.slowest), source.random()
        if number <= self.patience:
            if share < self.busy:
                return "busy", wait
            if share < self.busy + self.down:
                return "down", wait
            if share < self.busy + self.down + self.hang:
                return "hang", self.hanging_for
        return "ok", wait


@dataclass
class Partner:
    """What the requests' threads share."""

    faults: Faults = field(default_factory=Faults)
    answers: Counter[str] = field(default_factory=Counter)
    requests: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, account: str) -> tuple[str, float]:
        with self.lock:
            self.requests[account] += 1
            kind, wait = self.faults.draw(account, self.requests[account])
            self.answers[kind] += 1
        return kind, wait

    def change(self, changes: dict[str, Any]) -> None:
        with self.lock:
            self.faults = replace(self.faults, **{**changes, "gone": tuple(changes.get("gone", self.faults.gone))})
            self.requests.clear()

    def report(self) -> dict[str, Any]:
        with self.lock:
            return {"faults": asdict(self.faults), "answers": dict(self.answers)}


class Server(ThreadingHTTPServer):
    daemon_threads = True  # a hanging answer does not hold up the end
    request_queue_size = 64

    def __init__(self, port: int, partner: Partner | None = None) -> None:
        super().__init__(("127.0.0.1", port), Conversation)
        self.partner = partner or Partner()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that went away, which is what ours do to a server that hangs."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class Conversation(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        if self.path == "/control":
            self._send(200, self.server.partner.report())
        elif self.path.startswith("/accounts/"):
            self._account(self.path.removeprefix("/accounts/"))
        else:
            self._send(404, {"error": "no such page"})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path != "/control":
            self._send(404, {"error": "no such page"})
            return
        try:
            self.server.partner.change(json.loads(body))
        except (ValueError, TypeError) as error:
            self._send(400, {"error": str(error)})
        else:
            self._send(200, self.server.partner.report())

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Keep quiet: /control counts the answers."""

    def _account(self, account: str) -> None:
        kind, wait = self.server.partner.answer(account)
        time.sleep(wait)
        if kind == "busy":
            self._send(429, {"error": "slow down"}, {"Retry-After": str(self.server.partner.faults.retry_after)})
        elif kind == "down":
            self._send(503, {"error": "down for a moment"})
        elif kind == "gone":
            self._send(410, {"error": "this account was closed"})
        elif kind == "ok":
            points = crc32(account.encode()) % 5000
            self._send(200, {"id": account, "points": points, "tier": TIERS[points // 1700]})

    def _send(self, status: int, body: dict[str, Any], headers: dict[str, str] | None = None) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        for name, value in {
            "Content-Type": "application/json",
            "Content-Length": str(len(content)),
            **(headers or {}),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=8025)
    options = parser.parse_args(arguments)
    with Server(options.port) as server:
        print(f"listening on 127.0.0.1:{server.server_port}", flush=True)
        with suppress(KeyboardInterrupt):
            server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())

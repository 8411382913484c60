"""The shop's mail server: real SMTP on 127.0.0.1, and a SQLite file that says what was received.

    python example_project/services/smtp.py MAILBOX [--port 1025]

Each mail is one row, also one that came twice: whoever counts can tell by the Message-ID.
"""

from __future__ import annotations

import argparse
import asyncio
import sqlite3
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from email import message_from_bytes, policy
from pathlib import Path
from typing import Any

from aiosmtpd.smtp import SMTP, Envelope, Session

ACCEPTED = "250 OK"
SCHEMA = """
CREATE TABLE IF NOT EXISTS mail (
    id INTEGER PRIMARY KEY, message_id TEXT NOT NULL, recipient TEXT NOT NULL, subject TEXT NOT NULL,
    received_at TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS refused (recipient TEXT PRIMARY KEY, reply TEXT NOT NULL);
"""


class Mailbox:
    """What was received and who is refused. The server and whoever looks on share the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._open() as database:
            database.executescript(f"PRAGMA journal_mode=WAL; {SCHEMA}")

    def record(self, message_id: str, recipient: str, subject: str) -> None:
        with self._open() as database:
            database.execute(
                "INSERT INTO mail (message_id, recipient, subject, received_at) VALUES (?, ?, ?, datetime('now'))",
                (message_id, recipient, subject),
            )

    def refuse(self, recipients: Sequence[str], *, reply: str = "550 5.1.1 No such mailbox here") -> None:
        rows = [(each.lower(), reply) for each in recipients]
        with self._open() as database:
            database.executemany("INSERT OR REPLACE INTO refused VALUES (?, ?)", rows)

    def accept_all(self) -> None:
        with self._open() as database:
            database.execute("DELETE FROM refused")

    def reply_to(self, recipient: str) -> str:
        """What the server says to a mail for this address."""
        with self._open() as database:
            found = database.execute("SELECT reply FROM refused WHERE recipient = ?", (recipient.lower(),)).fetchone()
        return str(found[0]) if found else ACCEPTED

    def received(self) -> int:
        with self._open() as database:
            return int(database.execute("SELECT count(*) FROM mail").fetchone()[0])

    def message_ids(self) -> list[str]:
        with self._open() as database:
            return [row[0] for row in database.execute("SELECT message_id FROM mail ORDER BY id")]

    def doubled(self) -> int:
        """How many mails came whose Message-ID had come before."""
        with self._open() as database:
            return int(database.execute("SELECT count(*) - count(DISTINCT message_id) FROM mail").fetchone()[0])

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        # A connection for each call: the file is shared by processes and threads, and this is no busy server.
        database = sqlite3.connect(self.path, timeout=10, isolation_level=None)
        try:
            yield database
        finally:
            database.close()


class Reception:
    """What aiosmtpd asks for at each command of a client."""

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox

    async def handle_RCPT(  # noqa: N802
        self, _server: SMTP, _session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        reply = self._mailbox.reply_to(address)
        if reply != ACCEPTED:
            return reply
        envelope.rcpt_tos.append(address)
        envelope.rcpt_options.extend(options)
        return ACCEPTED

    async def handle_DATA(self, _server: SMTP, _session: Session, envelope: Envelope) -> str:  # noqa: N802
        content: Any = envelope.content
        message = message_from_bytes(content, policy=policy.default)
        self._mailbox.record(
            str(message["Message-ID"] or ""), ", ".join(envelope.rcpt_tos), str(message["Subject"] or "")
        )
        return ACCEPTED


async def serve(mailbox: Mailbox, port: int) -> None:
    """Take mail until cancelled. The first line printed names the port; 0 takes a free one."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: SMTP(Reception(mailbox), hostname="shop.example"), "127.0.0.1", port)
    print(f"listening on 127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    async with server:
        await server.serve_forever()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mailbox", type=Path, help="a SQLite file; made if it is missing")
    parser.add_argument("--port", type=int, default=1025)
    options = parser.parse_args(arguments)
    with suppress(KeyboardInterrupt):
        asyncio.run(serve(Mailbox(options.mailbox), options.port))
    return 0


if __name__ == "__main__":
    sys.exit(main())

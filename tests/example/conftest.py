"""The shop's real servers, in threads of the test's own process, and a few things to sell."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.smtp import SMTP

from config.mail import mail_settings
from services import partner as partner_api
from services.smtp import Mailbox, Reception
from shop.models import Customer, Product


@pytest.fixture
def products(db: None) -> list[Product]:
    return Product.objects.bulk_create(
        Product(name=name, artist=artist, album=album, genre="Jazz", seconds=200, price="0.99", stock=10)
        for name, artist, album in [
            ("So What", "Miles Davis", "Kind of Blue"),
            ("Sonho de Cárcere", "Maria Bethânia", "Ópera"),
            ("Blue in Green", "Bill Evans", "Kind of Blue"),
        ]
    )


@pytest.fixture
def customer(db: None) -> Customer:
    return Customer.objects.create(name="Ella", email="ella@mail.example")


@pytest.fixture
def partner(settings: Any) -> Iterator[partner_api.Server]:
    """A running partner API that the shop's settings point at. It answers at once and always until told otherwise."""
    with partner_api.Server(0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        settings.SHOP_PARTNER_URL = server.url
        settings.SHOP_PARTNER_TIMEOUT = 0.3
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def mailbox(settings: Any, tmp_path: Path) -> Iterator[Mailbox]:
    """The mailbox of a running SMTP server, to which Django's own e-mail backend delivers."""
    box = Mailbox(tmp_path / "mailbox.sqlite3")
    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(loop.create_server(lambda: SMTP(Reception(box)), "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    for name, value in mail_settings(f"smtp://127.0.0.1:{server.sockets[0].getsockname()[1]}").items():
        setattr(settings, name, value)
    yield box
    asyncio.run_coroutine_threadsafe(_close(server), loop).result(timeout=5)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


async def _close(server: asyncio.Server) -> None:
    server.close()
    # The conversations' own tasks end with their connections, which the clients have closed.
    others = [each for each in asyncio.all_tasks() if each is not asyncio.current_task()]
    await asyncio.gather(*others, return_exceptions=True)

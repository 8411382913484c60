"""A statsd server that is a UDP socket."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from django_jobs.observe import statsd


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listening:
        listening.bind(("127.0.0.1", 0))
        listening.settimeout(5)
        yield listening


@pytest.fixture(autouse=True)
def closed_afterwards() -> Iterator[None]:
    yield
    statsd.close()


def config(server: socket.socket, **values: object) -> dict[str, object]:
    return {"STATSD": {"host": "127.0.0.1", "port": server.getsockname()[1], **values}}

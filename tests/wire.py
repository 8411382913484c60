"""A wire between some workers and the database: it can be slow, dead, cut or forgetful, or lose one answer."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

from django.db import connection, connections

CHUNK = 65536
PORTS = {"postgresql": 5432, "mysql": 3306}
READY = b"Z\x00\x00\x00\x05"  # and one letter: with this the server ends its answer, when all is done and committed

Pair = tuple[socket.socket, socket.socket]


@contextmanager
def reached_at(**address: Any) -> Iterator[None]:
    """For the block, this process reaches its database there: keys of DATABASES["default"]."""
    settings = connections.settings["default"]
    former = {key: settings[key] for key in address}
    connection.close()
    settings.update(address)
    try:
        yield
    finally:
        connection.close()
        settings.update(former)


class Loss:
    """An answer that is to be lost: that to the last of these texts, said one after the other on one connection."""

    def __init__(self, texts: tuple[bytes, ...]) -> None:
        self._texts = texts
        self._said: dict[Pair, int] = {}
        self._tails: dict[Pair, bytes] = {}  # a text may come in two pieces
        self._answer = b""
        self.pair: Pair | None = None  # whose answer it is
        self.is_done = False

    def hear(self, pair: Pair, data: bytes) -> None:
        """A client says this."""
        if self.pair is not None:
            return
        heard, said = self._tails.get(pair, b"") + data, self._said.get(pair, 0)
        if self._texts[said] in heard:
            heard, said = b"", said + 1
        self._tails[pair], self._said[pair] = heard[-100:], said
        if said == len(self._texts):
            self.pair = pair

    def takes(self, pair: Pair, data: bytes) -> bool:
        """Whether this, which the server says, is to be lost."""
        if self.pair is not pair or self.is_done:
            return False
        self._answer = (self._answer + data)[-6:]
        self.is_done = self._answer.startswith(READY)
        return True


class Wire:
    """Passes on what comes to its port, in threads, until `close`."""

    def __init__(self, host: str, port: int) -> None:
        self.delay = 0.0  # seconds, of each chunk
        self.is_dead = False  # swallow all that comes
        self.swallowed = 0  # chunks
        self.asked = 0  # connections
        self.said = 0  # chunks, by clients
        self._target = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._pairs: set[Pair] = set()
        self._forgotten: set[Pair] = set()
        self._loss: Loss | None = None
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    @classmethod
    @contextmanager
    def to_database(cls) -> Iterator[Self]:
        """One to the database of this test, for the block."""
        host, port = connection.settings_dict["HOST"], connection.settings_dict["PORT"]
        with contextlib.closing(cls(host or "127.0.0.1", int(port or PORTS[connection.vendor]))) as wire:
            yield wire

    @property
    def address(self) -> dict[str, Any]:
        """How DATABASES names this end of it. What goes over it can be read."""
        options = connection.settings_dict["OPTIONS"]
        if connection.vendor == "postgresql":
            options = {**options, "sslmode": "disable"}
        return {"HOST": "127.0.0.1", "PORT": self.port, "OPTIONS": options}

    def __len__(self) -> int:
        return len(self._pairs)

    def heal(self) -> None:
        """Let it work again. What was swallowed stays lost, so all that is open is cut."""
        self.delay = 0.0
        if self.is_dead:
            self.is_dead = False
            self.cut()

    def forget(self) -> None:
        """Swallow all of the open connections, for ever, as a firewall that has lost its memory does. New ones work."""
        with self._lock:
            self._forgotten |= self._pairs
        self.is_dead = False

    def lose_answer(self, *texts: bytes) -> Loss:
        """Once somebody has said all of these on one connection, lose the answer to the last, and cut it."""
        self._loss = Loss(texts)
        return self._loss

    def cut(self) -> int:
        """End all connections. How many."""
        with self._lock:
            pairs = list(self._pairs)
        for pair in pairs:
            self._drop(pair)
        return len(pairs)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes who accepts
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            self.asked += 1
            threading.Thread(target=self._connect, args=[near], daemon=True).start()

    def _connect(self, near: socket.socket) -> None:
        try:
            far = socket.create_connection(self._target, timeout=5)
        except OSError:
            near.close()
            return
        far.settimeout(None)
        pair = (near, far)
        with self._lock:
            self._pairs.add(pair)
        threading.Thread(target=self._pass_on, args=[far, near, pair], daemon=True).start()
        self._pass_on(near, far, pair)

    def _pass_on(self, source: socket.socket, target: socket.socket, pair: Pair) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(CHUNK):
                if self.delay:
                    time.sleep(self.delay)
                self.said += source is pair[0]
                if self._swallows(pair):
                    self.swallowed += 1
                elif not self._is_lost(source, data, pair):
                    target.sendall(data)
                elif self._loss is None or self._loss.is_done:
                    break
        if not self._swallows(pair):  # that one end is closed, too
            self._drop(pair)

    def _swallows(self, pair: Pair) -> bool:
        return self.is_dead or pair in self._forgotten

    def _is_lost(self, source: socket.socket, data: bytes, pair: Pair) -> bool:
        if self._loss is None:
            return False
        if source is pair[0]:
            self._loss.hear(pair, data)
            return False
        return self._loss.takes(pair, data)

    def _drop(self, pair: Pair) -> None:
        with self._lock:
            self._pairs.discard(pair)
            self._forgotten.discard(pair)
        for end in pair:
            # shutdown wakes the thread that reads; close alone would not.
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

"""A wire between some workers and the database, which can be slow, dead, or cut."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

CHUNK = 65536


class Wire:
    """Passes on what comes to its port, in threads, until `close`."""

    def __init__(self, host: str, port: int) -> None:
        self.delay = 0.0  # seconds, of each chunk
        self.is_dead = False  # swallow all that comes
        self._target = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def __len__(self) -> int:
        return len(self._pairs)

    def heal(self) -> None:
        """Let it work again. What was swallowed stays lost, so all that is open is cut."""
        self.delay = 0.0
        if self.is_dead:
            self.is_dead = False
            self.cut()

    def cut(self) -> int:
        """End all connections. How many."""
        with self._lock:
            pairs = list(self._pairs)
        for pair in pairs:
            self._drop(pair)
        return len(pairs)

    def close(self) -> None:
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
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

    def _pass_on(self, source: socket.socket, target: socket.socket, pair: tuple[socket.socket, socket.socket]) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(CHUNK):
                if self.delay:
                    time.sleep(self.delay)
                if not self.is_dead:
                    target.sendall(data)
        self._drop(pair)

    def _drop(self, pair: tuple[socket.socket, socket.socket]) -> None:
        with self._lock:
            self._pairs.discard(pair)
        for end in pair:
            # shutdown wakes the thread that reads; close alone would not.
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

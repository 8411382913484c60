"""Timings and counts of every task, sent to a statsd server by UDP.

`job.<task>.duration_ms` (a timing), `job.<task>.ok` and `job.<task>.failed` (counters). A run that was handed back or
cancelled is neither; one whose worker died is failed and has no duration.
"""

from __future__ import annotations

import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait

from django_jobs import logs
from django_jobs.conf import Statsd, get_settings
from django_jobs.runs import EndedRun
from django_jobs.statuses import RunStatus

DATAGRAM_SIZE = 1400  # bytes: below an Ethernet frame with its headers, so that no datagram is fragmented
RESOLVE_AGAIN = 10.0  # seconds between tries to reach a server that could not be reached
RESOLVE_WAIT = 0.5  # seconds a caller waits for the name server; meanwhile the numbers are lost
BELIEVED_BACK = 60.0  # seconds without a failure
FAILED = frozenset({RunStatus.FAILED, RunStatus.TIMED_OUT, RunStatus.LOST})
TIMED = frozenset({RunStatus.SUCCEEDED, RunStatus.FAILED, RunStatus.TIMED_OUT})


def send(runs: Sequence[EndedRun]) -> None:
    """Send the runs to the server in DJANGO_JOBS["STATSD"], if there is one. Never raises and never waits for it."""
    target = get_settings().STATSD
    if target is not None:
        _sink_to(target).send(datagrams(lines(runs, prefix=target.prefix)))


def send_gauges(values: Mapping[str, float]) -> None:
    """Send a gauge for each name to the same server."""
    target = get_settings().STATSD
    if target is not None:
        start = _start(target.prefix)
        _sink_to(target).send(datagrams(f"{start}{name}:{value:.3f}|g".encode() for name, value in values.items()))


def lines(runs: Iterable[EndedRun], *, prefix: str = "") -> Iterator[bytes]:
    """Yield one line per timing, and one per counter with its sum over the runs."""
    start = _start(prefix)
    counts: Counter[str] = Counter()
    for run in runs:
        name = f"{start}job.{safe_name(run.task_name)}"
        if run.status in TIMED:
            yield f"{name}.duration_ms:{run.duration * 1000:.3f}|ms".encode()
        if run.status is RunStatus.SUCCEEDED:
            counts[f"{name}.ok"] += 1
        elif run.status in FAILED:
            counts[f"{name}.failed"] += 1
    for name, count in counts.items():
        yield f"{name}:{count}|c".encode()


def _start(prefix: str) -> str:
    return f"{safe_name(prefix).rstrip('.')}." if prefix else ""


def safe_name(name: str) -> str:
    """Replace whatever has a meaning to statsd or Graphite (`:`, `|`, `@`, `/`, blanks, ...) by an underscore."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", name)


def datagrams(rows: Iterable[bytes], size: int = DATAGRAM_SIZE) -> Iterator[bytes]:
    """Join lines by newlines into datagrams of at most `size` bytes; a longer line goes alone."""
    packet = b""
    for row in rows:
        if packet and len(packet) + 1 + len(row) > size:
            yield packet
            packet = b""
        packet = packet + b"\n" + row if packet else row
    if packet:
        yield packet


class Sink:
    """A non-blocking UDP socket to one server. The name is resolved once, and again after a failure."""

    def __init__(self, host: str, port: int) -> None:
        self.address = f"{host}:{port}"
        self._host = host
        self._port = port
        self._socket: socket.socket | None = None
        self._opening: Future[socket.socket] | None = None
        self._failed_at: float | None = None  # monotonic; None while the server is believed to be there
        self._lock = threading.Lock()

    def send(self, packets: Iterable[bytes]) -> None:
        """Send the datagrams, or lose them: numbers are not worth a failed job."""
        with self._lock:
            sock = self._socket or self._open()
            if sock is None:
                return
            for packet in packets:
                if not self._send_one(sock, packet):
                    return

    def close(self) -> None:
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send_one(self, sock: socket.socket, packet: bytes) -> bool:
        try:
            sock.send(packet)
        except BlockingIOError:
            return True  # The kernel's buffer is full: this datagram is lost, the next may not be.
        except OSError as error:
            self._lose(error)
            return False
        self._sent()
        return True

    def _open(self) -> socket.socket | None:
        if self._opening is None:
            if self._failed_at is not None and time.monotonic() - self._failed_at < RESOLVE_AGAIN:
                return None
            self._opening = _connecting(self._host, self._port)
            wait([self._opening], timeout=RESOLVE_WAIT)
        if not self._opening.done():
            return None
        opening, self._opening = self._opening, None
        try:
            self._socket = opening.result()
        except (OSError, UnicodeError, RuntimeError) as error:
            self._lose(error)
            return None
        return self._socket

    def _lose(self, error: Exception) -> None:
        self._close()
        if self._failed_at is None:
            logs.statsd_away(self.address, error)
        self._failed_at = time.monotonic()

    def _sent(self) -> None:
        # Only the send after a lost datagram is told of the loss, so one success proves nothing.
        if self._failed_at is not None and time.monotonic() - self._failed_at > BELIEVED_BACK:
            self._failed_at = None
            logs.statsd_back(self.address)


def _connecting(host: str, port: int) -> Future[socket.socket]:
    """Connect in a thread of its own: a name server that does not answer must not hold up the caller."""
    result: Future[socket.socket] = Future()

    def connect() -> None:
        try:
            result.set_result(_connected(host, port))
        except (OSError, UnicodeError) as error:
            result.set_exception(error)

    try:
        threading.Thread(target=connect, name="django_jobs_statsd", daemon=True).start()
    except RuntimeError as error:  # The interpreter is shutting down.
        result.set_exception(error)
    return result


def _connected(host: str, port: int) -> socket.socket:
    # Connected, because only then does the kernel tell of a server that is not there.
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    result = socket.socket(family, kind, protocol)
    try:
        result.setblocking(False)
        result.connect(address)
    except OSError:
        result.close()
        raise
    return result


_sinks: dict[tuple[str, int], Sink] = {}
_sinks_lock = threading.Lock()


def _sink_to(target: Statsd) -> Sink:
    """The one sink of the settings in force; the socket of earlier settings is closed."""
    address = (target.host, target.port)
    with _sinks_lock:
        if address not in _sinks:
            _close_all()
            _sinks[address] = Sink(*address)
        return _sinks[address]


def close() -> None:
    """Close the socket. The next run opens it again."""
    with _sinks_lock:
        _close_all()


def _close_all() -> None:
    while _sinks:
        _sinks.popitem()[1].close()

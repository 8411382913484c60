"""Stop signals, from the first moment on."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopSignals:
    """Catches SIGTERM and SIGINT; those that came before a worker was there are told to it at once."""

    def __init__(self) -> None:
        self._came: list[str] = []
        self._stop: Callable[[str], None] | None = None
        self._former: dict[signal.Signals, Any] = {}

    def install(self) -> None:
        """Catch them, if this is the main thread; nobody else may."""
        if threading.current_thread() is threading.main_thread():
            self._former = {number: signal.signal(number, self._catch) for number in SIGNALS}

    def restore(self) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)
        self._former = {}

    def attach(self, stop: Callable[[str], None]) -> None:
        """Tell `stop` of every signal."""
        self._stop = stop
        for name in self._came:
            stop(name)

    def _catch(self, number: int, frame: FrameType | None) -> None:
        self.tell(signal.Signals(number).name)

    def tell(self, name: str) -> None:
        """Ask for a stop."""
        if self._stop is None:
            self._came.append(name)
        else:
            self._stop(name)

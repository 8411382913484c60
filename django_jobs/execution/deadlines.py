"""Time limits of sync tasks: an exception set in the task's thread, which can land in the task and nowhere else."""

from __future__ import annotations

import ctypes
import sys
import time
import types

from django_jobs.exceptions import TimeLimitExceeded
from django_jobs.execution.attempt import Attempt

PAUSE = 0.0005  # seconds


def interrupt(attempt: Attempt) -> bool:
    """Raise TimeLimitExceeded in the thread that runs the task. False if it has not begun, or has ended."""
    if not attempt.is_armed or not attempt.token.acquire(blocking=False):
        return False
    _set_exception(attempt.thread_id, TimeLimitExceeded)
    attempt.sent = True
    return True


def disarm(attempt: Attempt) -> None:
    """Call it in the task's thread when the task has ended: once it returns, nothing is raised there from outside.

    Raises:
        TimeLimitExceeded: the interruption landed just now. Call it again.
    """
    if attempt.token.acquire(blocking=False):
        return
    while not attempt.sent:
        time.sleep(PAUSE)
    _set_exception(attempt.thread_id, None)


def _set_exception(thread_id: int, exception: type[BaseException] | None) -> None:
    # A class, not an instance: CPython makes the instance in the thread. None takes a pending one back.
    target = ctypes.py_object(exception) if exception is not None else None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread_id), target)


def whereabouts(thread_id: int) -> types.TracebackType | None:
    """A traceback of what a thread is doing now, None if it is gone."""
    frame = sys._current_frames().get(thread_id)
    trace: types.TracebackType | None = None
    while frame is not None:
        trace = types.TracebackType(trace, frame, frame.f_lasti, frame.f_lineno)
        frame = frame.f_back
    return trace

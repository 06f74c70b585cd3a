"""Signals that end a command in order: what it wrote aside goes, its workers end, one line is said."""

from __future__ import annotations

import _thread
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

ENDINGS = ("SIGINT", "SIGTERM", "SIGHUP")  # Ctrl-C, a batch system's, that of a terminal that was closed
AGAIN_S = 0.05


@contextmanager
def interruptible() -> Iterator[list[int]]:
    """Each of the ENDINGS raises a KeyboardInterrupt; gives the list of those that came.

    One that is ignored, as under nohup, or that someone else hears is left alone, and so are all of them
    outside the main thread, which alone may say what a signal does.
    """
    came: list[int] = []

    def interrupt(number: int, _frame: object) -> None:
        came.append(number)
        raise KeyboardInterrupt

    def interrupt_again(unraisable: UnraisableHookArgs) -> None:
        """An interrupt that Python cannot raise where it came, as in a ``__del__``, comes once more."""
        if came and unraisable.exc_type is KeyboardInterrupt:
            threading.Timer(AGAIN_S, _thread.interrupt_main, [came[-1]]).start()
        else:
            unraised(unraisable)

    unraised = sys.unraisablehook
    before = {number: signal.getsignal(number) for number in _numbers()}
    for number in before:
        signal.signal(number, interrupt)
    sys.unraisablehook = interrupt_again
    try:
        yield came
    finally:
        sys.unraisablehook = unraised
        for number, handler in before.items():
            signal.signal(number, handler)


def _numbers() -> list[signal.Signals]:
    """The signals that nobody else has laid claim to."""
    if threading.current_thread() is not threading.main_thread():
        return []
    known = [signal.Signals[name] for name in ENDINGS if hasattr(signal, name)]
    return [one for one in known if signal.getsignal(one) in (signal.SIG_DFL, signal.default_int_handler)]

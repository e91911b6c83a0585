"""Ctrl-C and SIGTERM as a request that a training run answers at its next step."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from types import FrameType
from typing import Any

from typing_extensions import Self

_ASKED = b"\nthe run is saved after this step; a second signal ends it at once\n"


class Interrupts:
    """While it is entered, the first SIGINT or SIGTERM is recorded, and the second one acts as it did before.

    In a thread other than the main one, signals act as before: Python handles them in the main thread.
    """

    def __init__(self) -> None:
        self.requested: int | None = None
        """The number of the signal that asks the run to stop."""
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._handlers[number] = signal.signal(number, self._record)
        return self

    def __exit__(self, *_: object) -> None:
        while self._handlers:
            signal.signal(*self._handlers.popitem())

    def _record(self, number: int, _frame: FrameType | None) -> None:
        if self.requested is not None:
            self.act("it was ended at once: the steps since the last checkpoint are lost")
        self.requested = number
        os.write(2, _ASKED)

    def act(self, message: str) -> None:
        """Let the signal act as it does without this object: it ends the process, or raises `KeyboardInterrupt`.

        Args:
            message: What happened to the run, as the argument of the exception.

        Raises:
            KeyboardInterrupt: If the process continues.
        """
        number = self.requested
        self.__exit__()
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT if number is None else number)
        raise KeyboardInterrupt(message)

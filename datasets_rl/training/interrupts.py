"""Ctrl-C and SIGTERM as a request that a training run handles at the next step."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from types import FrameType
from typing import Any

from typing_extensions import Self

_SAVING = b"\nthe run is saved after this step: a second signal ends the run at once\n"


class Interrupts:
    """Context manager that records the first SIGINT or SIGTERM. A second signal acts as without the context manager.

    In a thread other than the main thread, all signals act as usual, because Python handles signals in the main thread.
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
            self.act("the run was ended at once: the steps since the last checkpoint are lost")
        self.requested = number
        os.write(2, _SAVING)

    def act(self, message: str) -> None:
        """Let the recorded signal act as without this object: end the process, or raise `KeyboardInterrupt`.

        Args:
            message: The message of the exception.

        Raises:
            KeyboardInterrupt: If the process continues.
        """
        number = self.requested
        self.__exit__()
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT if number is None else number)
        raise KeyboardInterrupt(message)

"""The entry of ``rlds``: readies the streams and the signals before anything slow is imported."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Sequence
from types import FrameType

INTERRUPTED = 130
TERMINATED = 143

_signals: list[int] = []


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    Args:
        argv: The words after ``rlds``. By default the words of this process.
    """
    _open_closed_streams()
    if argv is None:
        _prepare_process()
    try:
        from .frame import run

        code = run(argv)
    except KeyboardInterrupt:
        sys.stderr.write("rlds: interrupted\n")
        code = INTERRUPTED
    return TERMINATED if code == INTERRUPTED and _signals else code


def _open_closed_streams() -> None:
    """Put something in the place of streams that were closed before the start, as by ``>&-``."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115, PTH123 -- until the end


def _prepare_process() -> None:
    for stream in (sys.stdout, sys.stderr):
        # Paths may hold letters that the stream's encoding lacks: better an escape than an error after the work.
        if getattr(stream, "errors", "") == "strict":
            getattr(stream, "reconfigure", _do_nothing)(errors="backslashreplace")
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _raise_interrupt)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, _raise_interrupt)


def _do_nothing(**_: str) -> None:
    """Do nothing, for streams that cannot be reconfigured."""


def _raise_interrupt(number: int, _: FrameType | None) -> None:
    """Raise KeyboardInterrupt. During the import of torch end at once, because an exception would abort the process."""
    spec = getattr(sys.modules.get("torch"), "__spec__", None)
    if getattr(spec, "_initializing", False):
        os.write(2, b"rlds: interrupted\n")
        os._exit(TERMINATED if number == signal.SIGTERM else INTERRUPTED)
    if number == signal.SIGTERM:
        _signals.append(number)
    raise KeyboardInterrupt

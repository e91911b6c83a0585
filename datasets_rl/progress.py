"""How far a long piece of work is: a bar on a terminal or in a notebook, plain lines elsewhere, always on stderr."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tqdm.auto import tqdm
    from typing_extensions import Never

__all__ = ["Counted", "Report", "report", "waiting"]


class Report:
    """Counts what is done, and shows nothing; may be called from several threads."""

    def __call__(self, units: int) -> None:
        """Count further units; a number below 0 takes back what was lost."""

    def expect(self, total: int) -> None:
        """Say how many units there are in all, where that is learned on the way."""


class Counted(Report):
    """Counts a share of the work, for itself and for the whole, which knows the total already.

    Args:
        whole: What counts the whole.
    """

    def __init__(self, whole: Report) -> None:
        self._whole = whole
        self.done = 0
        """Units of this share."""

    def __call__(self, units: int) -> None:
        """Count further units."""
        self.done += units
        self._whole(units)


LINE_EVERY = 10.0
"""Seconds between two lines where there is no terminal."""
SHORT = 1.0
"""Work that takes no longer than these seconds gets no line."""
SILENT = 2.0
"""Seconds after which somebody who sees nothing is told what is waited for."""


@contextmanager
def waiting(what: str, *, show: bool = True) -> Iterator[None]:
    """Say on stderr what is waited for, once, if the block takes longer than `SILENT` seconds.

    Args:
        what: What is being done, as in "waiting for URL".
        show: False says nothing.
    """
    with _after_silence(lambda: print(what, file=sys.stderr, flush=True) if show else None):  # noqa: T201 -- its task
        yield


@contextmanager
def _after_silence(act: Callable[[], None]) -> Iterator[None]:
    timer = threading.Timer(SILENT, act)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def report(label: str, total: int | None, *, unit: str = "B", done: int = 0, show: bool = True) -> Iterator[Report]:
    """Show progress for the length of the block.

    Args:
        label: What is being done.
        total: Units in all, where known.
        unit: "B" for bytes, or the name of what is counted.
        done: Units that an earlier run did already; they count for the total, not for the rate.
        show: False shows nothing.

    Yields:
        A function to call with each number of further units.
    """
    if not show:
        yield Report()
        return
    if not (sys.stderr.isatty() or _in_notebook()):
        lines = _Lines(done, {"total": total, "prefix": label, "unit": unit})
        try:
            with _after_silence(lines.first):
                yield lines
        finally:
            lines.close()
        return
    # Imported here: it brings asyncio, and most commands show no bar.
    from tqdm.auto import tqdm

    bar: tqdm[Never] = tqdm(
        total=total, initial=done, desc=label, unit=unit, unit_scale=True, file=sys.stderr, **_width()
    )
    with bar:
        yield _Bar(bar)


def _width() -> dict[str, Any]:
    """Follow the terminal's size; some terminals (of containers, of CI) report 0, and tqdm would draw nothing."""
    with suppress(OSError, ValueError):
        size = os.get_terminal_size(sys.stderr.fileno())
        if 0 in size:
            return {"ncols": size.columns or 80, "nrows": size.lines or 24}
    return {"dynamic_ncols": True}


def _in_notebook() -> bool:
    return "ipykernel" in sys.modules


class _Bar(Report):
    """A bar of tqdm's, which leaves it to its caller that two threads lose no counts."""

    def __init__(self, bar: tqdm[Never]) -> None:
        self._bar = bar
        self._lock = threading.Lock()

    def __call__(self, units: int) -> None:
        with self._lock:
            self._bar.update(units)

    def expect(self, total: int) -> None:
        with self._lock:
            self._bar.total = total
            self._bar.refresh()


class _Lines(Report):
    """Plain lines for logs: after `SILENT` seconds, every `LINE_EVERY`, and at the end of work that was not `SHORT`."""

    def __init__(self, done: int, look: dict[str, Any]) -> None:
        self._done = self._initial = done
        self._look = look
        self._began = self._shown = time.monotonic()
        self._lock = threading.Lock()

    def expect(self, total: int) -> None:
        with self._lock:
            self._look["total"] = total

    def __call__(self, units: int) -> None:
        with self._lock:
            self._done += units
            if time.monotonic() - self._shown >= LINE_EVERY:
                self._show()

    def first(self) -> None:
        """Show that the work has begun, though nothing may have come yet."""
        with self._lock:
            if self._shown == self._began:
                self._show()

    def close(self) -> None:
        with self._lock:
            if time.monotonic() - self._began > SHORT:
                self._show()

    def _show(self) -> None:
        from tqdm.std import tqdm

        self._shown = time.monotonic()
        elapsed = self._shown - self._began
        line = tqdm.format_meter(
            n=self._done, initial=self._initial, elapsed=elapsed, ncols=0, unit_scale=True, **self._look
        )
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()

"""Progress of long operations on stderr: a bar on a terminal or in a notebook, plain lines elsewhere."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from datasets_rl.notebook import in_notebook

if TYPE_CHECKING:
    from tqdm.std import tqdm
    from typing_extensions import Never


class Report:
    """A progress report that shows nothing, the base of all others. Several threads may call it."""

    silent = True
    """Whether notes are not shown, so that callers need not compute notes."""

    def __call__(self, units: int) -> None:
        """Count further units. A negative number subtracts units that were lost."""

    def set_total(self, total: int) -> None:
        """Set the total number of units, if the total becomes known during the operation."""

    def set_note(self, text: str) -> None:
        """Set a text beside the bar."""

    def write_line(self, text: str) -> None:
        """Write a line to stderr that stays, above the bar, if any."""
        sys.stderr.write(f"{text}\n")


class CountingReport(Report):
    """A report that counts a part of an operation, and passes the units on to the report of the whole.

    Args:
        whole: The report of the whole operation.
    """

    def __init__(self, whole: Report) -> None:
        self._whole = whole
        self.done = 0
        """The number of units of this part."""

    def __call__(self, units: int) -> None:
        """Add units to the counts of this part and of the whole."""
        self.done += units
        self._whole(units)


LINE_EVERY = 10.0
"""Seconds between two lines without a terminal."""
SHORT = 1.0
"""Seconds up to which an operation is too short for a line at its end."""
SILENT = 2.0
"""Seconds without output after which the running operation is shown."""


@contextmanager
def waiting(what: str, *, show: bool = True) -> Iterator[None]:
    """Print a line to stderr, once, if the block takes longer than `SILENT` seconds.

    Args:
        what: The line, as in "waiting for URL".
        show: If False, print nothing.
    """
    with _after_silence(lambda: print(what, file=sys.stderr, flush=True) if show else None):  # noqa: T201 -- output for the user
        yield


@contextmanager
def _after_silence(action: Callable[[], None]) -> Iterator[None]:
    timer = threading.Timer(SILENT, action)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def report(label: str, total: int | None, *, unit: str = "B", done: int = 0, show: bool = True) -> Iterator[Report]:
    """Show progress for the duration of the block.

    Args:
        label: The name of the operation.
        total: The total number of units, or None if unknown.
        unit: "B" for bytes, or the name of the unit.
        done: The number of units that an earlier run completed, which count for the total and not for the rate.
        show: If False, show nothing.

    Yields:
        A report to call with each number of further units.
    """
    if not show:
        yield Report()
        return
    if not (sys.stderr.isatty() or in_notebook()):
        lines = _Lines(done, {"total": total, "prefix": label, "unit": unit})
        try:
            with _after_silence(lines.first):
                yield lines
        finally:
            lines.close()
        return
    bar: tqdm[Never] = _bar_class()(
        total=total, initial=done, desc=label, unit=unit, unit_scale=True, file=sys.stderr, **_width()
    )
    with bar:
        yield _Bar(bar)


def _bar_class() -> Any:
    """Return the class of bars: in a notebook with ipywidgets a widget, otherwise text."""
    # Imported here, because the imports take long, and most commands show no bar.
    if in_notebook() and find_spec("ipywidgets") is not None:
        from tqdm.notebook import tqdm as widget_bar

        return widget_bar
    from tqdm.std import tqdm

    return tqdm


def _width() -> dict[str, Any]:
    """Return options for the width of the bar: terminals of containers and CI report 0, for which tqdm draws nothing."""
    with suppress(OSError, ValueError):
        size = os.get_terminal_size(sys.stderr.fileno())
        if 0 in size:
            return {"ncols": size.columns or 80, "nrows": size.lines or 24}
    return {"dynamic_ncols": True}


class _Bar(Report):
    """A report to a tqdm bar, with a lock, because tqdm is not safe for threads."""

    silent = False

    def __init__(self, bar: tqdm[Never]) -> None:
        self._bar = bar
        self._lock = threading.Lock()

    def __call__(self, units: int) -> None:
        with self._lock:
            self._bar.update(units)

    def set_total(self, total: int) -> None:
        with self._lock:
            self._bar.total = total
            container = getattr(self._bar, "container", None)
            if container is not None:
                # The widget has its own maximum, and is 20 pixels wide while the total is unknown.
                _, widget, _ = container.children
                widget.max, widget.layout.width = total, None
            self._bar.refresh()

    def set_note(self, text: str) -> None:
        with self._lock:
            self._bar.set_postfix_str(text, refresh=False)

    def write_line(self, text: str) -> None:
        with self._lock:
            self._bar.write(text, file=sys.stderr)


class _Lines(Report):
    """Plain lines for logs: the first after `SILENT` seconds, then every `LINE_EVERY` seconds, and at the end.

    An operation of at most `SHORT` seconds prints no line.
    """

    def __init__(self, done: int, format_options: dict[str, Any]) -> None:
        self._done = self._initial = done
        self._format_options = format_options
        self._start = self._shown = time.monotonic()
        self._lock = threading.Lock()

    def set_total(self, total: int) -> None:
        with self._lock:
            self._format_options["total"] = total

    def __call__(self, units: int) -> None:
        with self._lock:
            self._done += units
            if time.monotonic() - self._shown >= LINE_EVERY:
                self._show()

    def first(self) -> None:
        """Show the first line, unless a line was shown already."""
        with self._lock:
            if self._shown == self._start:
                self._show()

    def close(self) -> None:
        with self._lock:
            if time.monotonic() - self._start > SHORT:
                self._show()

    def _show(self) -> None:
        from tqdm.std import tqdm

        self._shown = time.monotonic()
        elapsed = self._shown - self._start
        line = tqdm.format_meter(
            n=self._done, initial=self._initial, elapsed=elapsed, ncols=0, unit_scale=True, **self._format_options
        )
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()

"""How far a long piece of work is: a bar on a terminal or in a notebook, plain lines elsewhere, always on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tqdm.auto import tqdm

__all__ = ["Report", "report"]

Report = Callable[[int], None]
"""Takes the number of units done since the last call; may be called from several threads."""

_LINE_EVERY = 10.0


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
    lines = not (sys.stderr.isatty() or _in_notebook())
    bar: tqdm[None] = tqdm(
        total=total,
        initial=done,
        desc=label,
        unit=unit,
        unit_scale=True,
        unit_divisor=1000,
        disable=not show,
        file=_Lines() if lines else None,
        mininterval=_LINE_EVERY if lines else 0.1,
        maxinterval=_LINE_EVERY,
        leave=True,
        delay=1 if lines else 0,
        ascii=lines or None,
        bar_format="{desc}: {percentage:3.0f}% {n_fmt}/{total_fmt} {rate_fmt} {elapsed} remaining {remaining}"
        if lines and total
        else None,
    )
    try:
        with bar:
            yield lambda units: None if bar.update(units) else None
    finally:
        if lines and show:
            sys.stderr.flush()


def _in_notebook() -> bool:
    return "ipykernel" in sys.modules


class _Lines:
    """A stream for tqdm that ends each refresh with a newline instead of returning the carriage."""

    def __init__(self) -> None:
        self._last = ""
        self._shown = time.monotonic()

    def write(self, text: str) -> None:
        text = text.replace("\r", "").strip()
        if text and text != self._last:
            self._last = text
            print(text, file=sys.stderr)

    def flush(self) -> None:
        sys.stderr.flush()

"""HTML of objects in notebooks: tables, and histograms as SVG images, without scripts or styles of a page."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from html import escape

_LEFT = "style='text-align:left'"
_BAR = 5
_HEIGHT = 48


class Markup(str):
    """HTML that is not escaped, unlike other text."""

    __slots__ = ()


def in_notebook() -> bool:
    """Return whether this process runs the code of a notebook."""
    return "ipykernel" in sys.modules


def facts_html(title: str, facts: Iterable[tuple[str, str]]) -> str:
    """Return a table of names with their values. Names without a value are left out."""
    rows = "".join(
        f"<tr><th {_LEFT}>{escape(name)}</th><td {_LEFT}>{_cell(value)}</td></tr>" for name, value in facts if value
    )
    return f"<table><caption>{escape(title)}</caption>{rows}</table>"


def table_html(title: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of rows under headings."""
    head = "".join(f"<th {_LEFT}>{escape(name)}</th>" for name in header)
    body = "".join("<tr>" + "".join(f"<td {_LEFT}>{_cell(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><caption>{escape(title)}</caption><tr>{head}</tr>{body}</table>"


def histogram_svg(counts: Sequence[int], label: str) -> Markup:
    """Return a histogram as an inline image in the color of the text.

    Args:
        counts: Number of values in each bin. A bin with values is at least a pixel high.
        label: Description of the image for screen readers and as a tooltip.
    """
    most = max(counts, default=0) or 1
    bars = "".join(
        f"<rect x='{_BAR * number}' y='{_HEIGHT - height}' width='{_BAR - 1}' height='{height}'/>"
        for number, count in enumerate(counts)
        if (height := max(round(_HEIGHT * count / most), int(count > 0)))
    )
    size = f"width='{_BAR * len(counts)}' height='{_HEIGHT}'"
    return Markup(
        f"<svg xmlns='http://www.w3.org/2000/svg' {size} role='img' fill='currentColor'>"
        f"<title>{escape(label)}</title>{bars}</svg>"
    )


def _cell(value: str) -> str:
    return value if isinstance(value, Markup) else escape(value)

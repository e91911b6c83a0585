"""The documents and images at the addresses of the page.

overview                                   facts of every dataset
histogram?field=action&start=0             distributions of a field, or of a column of the list of episodes
0/ends                                     how the episodes of dataset 0 end
0/episodes?sort=return&descending=1&where=length > 50&offset=100
0/episodes/7?sort=...                      episode 7, and the previous and next episode in the sorted list
0/episodes/7/curves?field=action&start=0
0/episodes/7/rows?start=64
pairs?offset=50&whole=1                    the difference of datasets 0 and 1, and their pairs of episodes
pairs/3                                    what differs in pair 3
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from datasets_rl.errors import InvalidArgumentError, UnknownKeyError
from datasets_rl.look.page.distributions import histogram
from datasets_rl.look.page.pairs import Pairs
from datasets_rl.look.page.panel import ELEMENTS, Panel

Query = Mapping[str, str]
_SHOWN_CHARACTERS = 40


def answer(panels: Sequence[Panel], path: str, query: Query) -> dict[str, Any] | None:
    """Return the document at an address, as JSON values, or None if there is no such address.

    Args:
        panels: The datasets.
        path: The address without the query, ``0/episodes``.
        query: The names and values of the query.

    Raises:
        InvalidArgumentError: If a value of the query, a dataset or an episode is not valid.
    """
    for pattern, function in _ADDRESSES:
        if match := re.fullmatch(pattern, path):
            return function(panels, [_integer("a number of the address", digits) for digits in match.groups()], query)
    return None


def frame_bytes(panels: Sequence[Panel], path: str) -> bytes | None:
    """Return the image at an address as the bytes of a PNG or JPEG file, or None if there is no such address.

    Args:
        panels: The datasets.
        path: The dataset, the episode, the step and the field: ``0/7/12/observation``.

    Raises:
        InvalidArgumentError: If the dataset, the episode or the image does not exist.
    """
    match = re.fullmatch(f"{_NUMBER}/{_NUMBER}/{_NUMBER}/(.+)", path)
    if match is None:
        return None
    *digits, name = match.groups()
    number, episode, step = (_integer("a number of the address", text) for text in digits)
    return _panel(panels, number).frame(episode, step, name)


def _overview(panels: Sequence[Panel], _: Sequence[int], __: Query) -> dict[str, Any]:
    fields = dict.fromkeys(name for panel in panels for name in panel.curve_fields())
    texts = [] if len(panels) > 1 else [field.name for field in panels[0].stored.schema if field.text]
    return {
        "datasets": [panel.facts() for panel in panels],
        "fields": [*fields, *texts],
        "paired": panels[0].pairs is not None,
    }


def _histogram(panels: Sequence[Panel], _: Sequence[int], query: Query) -> dict[str, Any]:
    name, start = query.get("field", "return"), _integer("start", query.get("start", "0"))
    having = [panel for panel in panels if panel.has(name)]
    if not having:
        raise UnknownKeyError(name, [*panels[0].columns, *panels[0].curve_fields()])
    largest = max(having, key=lambda panel: panel.elements(name))
    labels = largest.labels(name, start)
    samples = [panel.sample(name, start) if panel in having else [] for panel in panels]
    drawn = []
    for number, label in enumerate(labels):
        columns = [sample[number] if number < len(sample) else np.empty(0) for sample in samples]
        drawn.append({"label": label, **histogram(columns)})
    if len(panels) == 1 and (texts := largest.texts(name)) is not None:
        for document in drawn:
            document["names"] = [texts[code] for code in document.get("values", [])]
    return {
        "field": name,
        "start": start,
        "elements": largest.elements(name),
        "shown": ELEMENTS,
        "unit": "episodes" if name in largest.columns else "steps",
        "sampled": [len(sample[0]) if sample else 0 for sample in samples],
        "panels": drawn,
    }


def _ends(panels: Sequence[Panel], numbers: Sequence[int], _: Query) -> dict[str, Any]:
    return {**_panel(panels, numbers[0]).ends()}


def _episodes(panels: Sequence[Panel], numbers: Sequence[int], query: Query) -> dict[str, Any]:
    sort, where, descending = _list_order(query)
    return _panel(panels, numbers[0]).page(
        sort, where, _integer("offset", query.get("offset", "0")), descending=descending
    )


def _episode(panels: Sequence[Panel], numbers: Sequence[int], query: Query) -> dict[str, Any]:
    sort, where, descending = _list_order(query)
    return _panel(panels, numbers[0]).episode(numbers[1], sort, where, descending=descending)


def _curves(panels: Sequence[Panel], numbers: Sequence[int], query: Query) -> dict[str, Any]:
    panel, name = _panel(panels, numbers[0]), query.get("field", "next.reward")
    if name not in panel.curve_fields():
        raise UnknownKeyError(name, panel.curve_fields())
    return panel.curves(numbers[1], name, _integer("start", query.get("start", "0")))


def _rows(panels: Sequence[Panel], numbers: Sequence[int], query: Query) -> dict[str, Any]:
    return _panel(panels, numbers[0]).rows(numbers[1], _integer("start", query.get("start", "0")))


def _pair_list(panels: Sequence[Panel], _: Sequence[int], query: Query) -> dict[str, Any]:
    return _pairs(panels).page(_integer("offset", query.get("offset", "0")), whole=query.get("whole", "") == "1")


def _pair(panels: Sequence[Panel], numbers: Sequence[int], _: Query) -> dict[str, Any]:
    return _pairs(panels).pair(numbers[0])


def _pairs(panels: Sequence[Panel]) -> Pairs:
    if panels[0].pairs is None:
        raise InvalidArgumentError("the datasets of this page were not compared")
    return panels[0].pairs


def _panel(panels: Sequence[Panel], number: int) -> Panel:
    if number >= len(panels):
        raise InvalidArgumentError(f"dataset {number} does not exist, expected 0 to {len(panels) - 1}")
    return panels[number]


def _list_order(query: Query) -> tuple[str, str, bool]:
    return query.get("sort", "episode"), query.get("where", ""), query.get("descending", "") == "1"


def _integer(name: str, text: str) -> int:
    if not re.fullmatch("[0-9]{1,15}", text):
        shown = text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
        raise InvalidArgumentError(f"{name} is {shown!r}, expected an integer >= 0 of at most 15 digits")
    return int(text)


_NUMBER = "([0-9]+)"
_ADDRESSES: Sequence[tuple[str, Callable[[Sequence[Panel], Sequence[int], Query], dict[str, Any]]]] = (
    ("overview", _overview),
    ("histogram", _histogram),
    (f"{_NUMBER}/ends", _ends),
    (f"{_NUMBER}/episodes", _episodes),
    (f"{_NUMBER}/episodes/{_NUMBER}", _episode),
    (f"{_NUMBER}/episodes/{_NUMBER}/curves", _curves),
    (f"{_NUMBER}/episodes/{_NUMBER}/rows", _rows),
    ("pairs", _pair_list),
    (f"pairs/{_NUMBER}", _pair),
)

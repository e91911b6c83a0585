"""The page and the data as a single HTML file, which opens without a server and can be sent to others."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np

from datasets_rl.look.page.documents import answer
from datasets_rl.look.page.images import media_type
from datasets_rl.look.page.panel import ELEMENTS, PAGE_STEPS, Panel
from datasets_rl.look.page.server import asset

_EACH = 3
"""Number of episodes with the greatest, middle and least returns, each."""
_QUESTIONED = 12
"""Maximum number of episodes in which an audit found something."""
_PAIRS = 12
"""Maximum number of pairs of episodes that differ."""
_MAX_STEPS = 1_024
"""Maximum number of rows of an episode in the report."""
_FRAMES = 24
_FRAME_SIDE = 128


def report_page(panels: Sequence[Panel], *, pair: int | None = None) -> bytes:
    """Return the page as an HTML file. The same datasets give the same bytes.

    The page has the distributions, and from each dataset up to nine episodes with the greatest, the middle and the least
    returns, and episodes in which an audit found something. Of two compared datasets, the page has the first 12 pairs of episodes that
    differ. An episode has curves, the first 1,024 rows and up to 24 images of each field, at most 128 pixels wide and high.

    Args:
        panels: The datasets.
        pair: A pair of two compared datasets that the page also has.
    """
    documents: dict[str, Any] = {}
    frames: dict[str, str] = {}
    _add(documents, panels, "overview")
    for name in _histogram_fields(panels, documents["overview"]["fields"]):
        _add(documents, panels, "histogram", field=name, start=0)
    paired = _add_pairs(documents, panels, pair)
    for number, panel in enumerate(panels):
        _add(documents, panels, f"{number}/ends")
        beside = {one["episodes"][number]: one for one in paired} if number < 2 else {}
        chosen = _chosen_episodes(panel, beside)
        documents[f"{number}/episodes"] = {
            "total": len(panel.stored.episodes),
            "matching": len(chosen),
            "offset": 0,
            "rows": panel.summaries(np.array(chosen)),
        }
        for place, episode in enumerate(chosen):
            _add_episode(documents, panels, number, episode)
            near = [chosen[index] if 0 <= index < len(chosen) else None for index in (place - 1, place + 1)]
            documents[f"{number}/episodes/{episode}"].update(previous=near[0], next=near[1])
            frames.update(_frames(panel, number, episode, _steps_of_pair(beside.get(episode))))
    return _html({"documents": documents, "frames": frames}).encode()


def _add_pairs(documents: dict[str, Any], panels: Sequence[Panel], pair: int | None) -> list[dict[str, Any]]:
    """Add the pairs of two compared datasets, with the curves of the elements that differ first, and return the pairs."""
    pairs = panels[0].pairs
    if pairs is None:
        return []
    chosen = sorted({*pairs.different[:_PAIRS].tolist(), *([] if pair is None else [pair])})
    near = {
        one: (previous, after)
        for previous, one, after in zip([None, *chosen], chosen, [*chosen[1:], None], strict=False)
    }
    documents["pairs"] = {**pairs.page(0, whole=False), "rows": [pairs.row(one) for one in chosen]}
    for one in chosen:
        document = {**pairs.pair(one), "previous": near[one][0], "next": near[one][1]}
        documents[f"pairs/{one}"] = document
        for field in document["fields"]:
            start = 0 if field["first"] is None else field["first"]["flat"] // ELEMENTS * ELEMENTS
            sides = zip(panels, document["episodes"], (field["name"], field["other"]), strict=False)
            for number, (panel, episode, name) in enumerate(sides):
                if start and name in panel.curve_fields():
                    _add(documents, panels, f"{number}/episodes/{episode}/curves", field=name, start=start)
    return [documents[f"pairs/{one}"] for one in chosen]


def _steps_of_pair(pair: dict[str, Any] | None) -> list[int]:
    """Return the steps of which both episodes of a pair have images: the first differences, and steps across the shorter episode."""
    if pair is None:
        return []
    firsts = [one["first"]["step"] for one in pair["fields"] if one["first"]]
    return [*firsts, *_across(min(pair["lengths"]))]


def _across(last: int) -> list[int]:
    return np.unique(np.linspace(0, last, min(_FRAMES, last + 1)).astype(int)).tolist()  # type: ignore[no-any-return]


def _histogram_fields(panels: Sequence[Panel], fields: Sequence[str]) -> list[str]:
    columns = dict.fromkeys(name for panel in panels for name in ("return", "score", "length") if name in panel.columns)
    return [*columns, *fields]


def _add(documents: dict[str, Any], panels: Sequence[Panel], path: str, **query: str | int) -> None:
    texts = {name: str(value) for name, value in query.items()}
    address = path + ("?" + "&".join(f"{name}={value}" for name, value in texts.items()) if texts else "")
    documents[address] = answer(panels, path, texts)


def _chosen_episodes(panel: Panel, paired: Collection[int]) -> list[int]:
    """Return paired episodes, and those with the greatest, middle and least returns, and of findings, by descending return."""
    returns = np.nan_to_num(panel.columns["return"], nan=-np.inf)
    falling = np.argsort(-returns, kind="stable")
    if len(falling) <= 3 * _EACH:
        return [int(number) for number in falling]
    middle = (len(falling) - _EACH) // 2
    usual = {int(number) for part in (0, middle, len(falling) - _EACH) for number in falling[part : part + _EACH]}
    found = panel.facts()["findings"]
    beside = [] if found is None or found["usual"] is None else [found["usual"]]
    chosen = usual | {*panel.questioned()[:_QUESTIONED], *beside, *paired}
    return [int(number) for number in falling if int(number) in chosen]


def _add_episode(documents: dict[str, Any], panels: Sequence[Panel], number: int, episode: int) -> None:
    path, panel = f"{number}/episodes/{episode}", panels[number]
    _add(documents, panels, path)
    for name in panel.curve_fields():
        _add(documents, panels, f"{path}/curves", field=name, start=0)
    steps = min(documents[path]["length"], _MAX_STEPS)
    for start in range(0, steps, PAGE_STEPS):
        _add(documents, panels, f"{path}/rows", start=start)


def _frames(panel: Panel, number: int, episode: int, steps: Collection[int]) -> Iterator[tuple[str, str]]:
    """Yield the address of each image, and the image as a data URL: of steps across the episode, and of given steps."""
    length = int(panel.stored.episodes.lengths[episode])
    for name in panel.image_fields():
        field = next(field for field in panel.stored.schema if field.name == name)
        known = field.shared and panel.has_final(name, episode)
        last = length if known else length - 1
        for step in sorted({*_across(last), *(step for step in steps if 0 <= step <= last)}):
            image = panel.frame(episode, step, name, max_side=_FRAME_SIDE)
            encoded = base64.b64encode(image).decode()
            yield f"{number}/{episode}/{step}/{name}", f"data:{media_type(image)};base64,{encoded}"


def _html(report: dict[str, Any]) -> str:
    """Return the page with style, script and data. The policy of the page allows no other content."""
    # No "<" in the data: neither "</script>" nor "<!--" can end the element early.
    data = json.dumps(report, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    style, script = asset("page.css"), asset("page.js")
    policy = (
        f"default-src 'none'; img-src data:; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    page = asset("page.html")
    for old, new in (
        ("<head>", f'<head>\n<meta http-equiv="Content-Security-Policy" content="{policy}">'),
        ('<link rel="stylesheet" href="page.css">', f"<style>{style}</style>"),
        (
            '<script src="page.js"></script>',
            f'<script type="application/json" id="report">{data}</script>\n<script>{script}</script>',
        ),
    ):
        before, _, after = page.partition(old)
        page = before + new + after
    return page


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"

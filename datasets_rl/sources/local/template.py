"""Draft of a ``dataset.toml``: what the files say with certainty, and a question where a person must choose."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from datasets_rl.errors import ConversionError, InvalidArgumentError
from datasets_rl.fetch.schemes import NotServedError, local_path
from datasets_rl.sources.flat.arrays import Array, ArrayFile
from datasets_rl.sources.flat.formats import open_arrays
from datasets_rl.sources.flat.layout import usual_keys
from datasets_rl.sources.flat.plan import plan_layout
from datasets_rl.sources.local.description import Description
from datasets_rl.sources.local.evidence import arranged, speaks_of_episodes, with_evidence
from datasets_rl.ted.keys import NEXT, dotted_name

if TYPE_CHECKING:
    from datasets_rl.fetch.asset import Asset


@dataclass(slots=True)
class Draft:
    """Draft of the description of files without a description."""

    text: str
    is_certain: bool
    """Whether the draft leaves nothing to the user."""


@dataclass(slots=True)
class _Seen:
    """What the first file shows."""

    arrays: Mapping[str, Array] = field(default_factory=dict)
    by: str = ""
    marks: str = ""
    question: str = ""


def draft(name: str, data: Mapping[str, Asset]) -> Draft:
    """Return a draft for files that have no description.

    Args:
        name: The id within the source.
        data: The files by path. The first file is opened if the file is on this machine.
    """
    try:
        form, paths = Description().data_files(data, name)
    except ConversionError:
        form, paths = "", sorted(data)
    lines = [f"name = {json.dumps(name.rpartition('/')[2])}", f'format = "{form or "npz"}"', 'license = ""']
    if not form:
        lines.append(f"# files = [{json.dumps(paths[0])}]    # the files have several formats: select some")
    seen = _look_at(data[paths[0]], form, paths[0]) if form else _Seen()
    if not seen.arrays:
        return Draft("\n".join(lines), is_certain=False)
    lines += ["", "[episodes]", *_episode_lines(seen)]
    keys = usual_keys(array for array, shown in seen.arrays.items() if shown.text or not shown.dtype.hasobject)
    missing = [root for root in ("observation", "action") if not any(root == key[0] for key in keys.values())]
    known = {*keys, seen.marks}
    rows = {seen.arrays[array].rows for array in keys}
    unnamed = [
        array
        for array, shown in seen.arrays.items()
        # An array with another number of rows is not a field, and Python objects are never read.
        if array not in known and shown.rows in rows and (shown.text or not shown.dtype.hasobject)
        if not speaks_of_episodes(array)
    ]
    lines += ["", "[fields]"]
    for array, key in keys.items():
        short = key[1:] if key[0] == NEXT and key[1] != "observation" else key
        lines.append(f"{dotted_name(short)} = {json.dumps(array)}    # {seen.arrays[array]}")
    lines += [f"# {root} = ..." for root in missing]
    if not any("reward" in key for key in keys.values()):
        lines.append("# reward = ...    # without this line, every reward is 0")
    lines += [f"# ... = {json.dumps(array)}    # {seen.arrays[array]}" for array in seen.arrays if array not in known]
    return Draft("\n".join(lines), is_certain=not (missing or unnamed or seen.question))


def _episode_lines(seen: _Seen) -> Iterator[str]:
    if seen.question:
        yield f"# by = ...    # {seen.question}"
        return
    yield f'by = "{seen.by}"' + " " * 20 + "# see the ways in docs/sources/local.md"
    if seen.marks:
        yield f"array = {json.dumps(seen.marks)}"


def _look_at(asset: Asset, file_format: str, name: str) -> _Seen:
    """Return what a file shows, or nothing if the file cannot be opened here."""
    try:
        path = local_path(asset.urls[0])
    except (InvalidArgumentError, NotServedError):
        return _Seen()
    if path is None or not path.is_file():
        return _Seen()
    with open_arrays(path, file_format, name) as file:
        return _judged(file)


def _judged(file: ArrayFile) -> _Seen:
    layout = Description()
    try:
        rows = arranged(file, layout)
    except ConversionError as error:
        return _Seen(file.arrays, question="; ".join(error.problems))
    try:
        plan = plan_layout(rows, layout)
    except ConversionError:  # names are missing, which the draft asks for
        by, marks = (rows.way, "") if rows.way else layout.end_marks(rows.arrays, layout.fields_of(rows.readable))
        return _Seen(rows.arrays, by, marks)
    try:
        plan = with_evidence(rows, plan)
    except ConversionError as error:
        return _Seen(rows.arrays, question="; ".join(error.problems))
    return _Seen(rows.arrays, plan.by, plan.marks)

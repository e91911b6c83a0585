"""Template of a ``dataset.toml``, filled from the files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from datasets_rl.errors import ConversionError, InvalidArgumentError
from datasets_rl.fetch.schemes import NotServedError, local_path
from datasets_rl.sources.flat.arrays import Array, open_arrays
from datasets_rl.sources.flat.layout import usual_keys
from datasets_rl.sources.local.description import Description
from datasets_rl.ted.keys import NEXT, dotted_name

if TYPE_CHECKING:
    from datasets_rl.fetch.asset import Asset


def description_template(name: str, data: Mapping[str, Asset]) -> str:
    """Return a description for files that have none.

    Args:
        name: The id within the source.
        data: The files by path. The first file is opened if the file is on this machine.
    """
    try:
        form, paths = Description().data_files(data, name)
    except ConversionError:
        form, paths = "", sorted(data)
    lines = [f"name = {json.dumps(name)}", f'format = "{form or "npz"}"', 'license = ""']
    lines += (
        [f"# files = [{json.dumps(paths[0])}]    # the files have several formats: select some"] if not form else []
    )
    arrays = _read_arrays(data[paths[0]], form, paths[0]) if form else {}
    if not arrays:
        return "\n".join(lines)
    by, marks = Description().end_marks(arrays, Description().fields_of(arrays))
    lines += ["", "[episodes]", f'by = "{by}"' + " " * 20 + "# or file, flags, column, lengths, ends"]
    lines += [f"array = {json.dumps(marks)}"] if marks else []
    return "\n".join([*lines, "", "[fields]", *_field_lines(arrays, marks)])


def is_complete(template: str) -> bool:
    """Return whether a template leaves nothing to the user: all arrays of the first file have usual names."""
    return "\n[fields]\n" in template and "\n# " not in template


def _field_lines(arrays: Mapping[str, Array], marks: str) -> Iterator[str]:
    keys = usual_keys(arrays)
    for array, key in keys.items():
        short = key[1:] if key[0] == NEXT and key[1] != "observation" else key
        yield f"{dotted_name(short)} = {json.dumps(array)}    # {arrays[array]}"
    for root in ("observation", "action", "reward"):
        if not any(root in key[:2] for key in keys.values()):
            yield f"# {root} = ..."
    for array in arrays:
        if array not in keys and array != marks:
            yield f"# ... = {json.dumps(array)}    # {arrays[array]}"


def _read_arrays(asset: Asset, file_format: str, name: str) -> Mapping[str, Array]:
    try:
        path = local_path(asset.urls[0])
        if path is None:
            return {}
        with open_arrays(path, file_format, name) as file:
            return file.arrays
    except (InvalidArgumentError, NotServedError, ConversionError):
        return {}

"""Names of the files in a store of zarr, versions 2 and 3.

x.zarr/.zgroup, x.zarr/data/action/.zarray, x.zarr/data/action/0.0          version 2
x.zarr/zarr.json, x.zarr/data/action/zarr.json, x.zarr/data/action/c/0/0    version 3
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

ARRAY_2, ARRAY_3, ATTRIBUTES_2, CONSOLIDATED = ".zarray", "zarr.json", ".zattrs", ".zmetadata"
MARKERS = (".zgroup", ARRAY_3, ARRAY_2, ATTRIBUTES_2, CONSOLIDATED)
"""Names of the files of metadata, of which a store has one in its folder."""
_CHUNK = re.compile(r"(.+?)/(?:c/)?\d+(?:[./]\d+)*")


def roots_of(paths: Iterable[str]) -> list[str]:
    """Return the folders of the stores among paths: the topmost folders with metadata of zarr."""
    folders = {path.rpartition("/")[0] for path in paths if path.rpartition("/")[2] in MARKERS}
    return sorted(folder for folder in folders if not any(parent in folders for parent in folders_above(folder)))


def folders_above(path: str) -> Iterator[str]:
    """Yield the folders above a path, the nearest first, and at the end an empty text."""
    while path:
        path = path.rpartition("/")[0]
        yield path


def array_of_chunk(path: str) -> str:
    """Return the path of the array whose chunk a path in a store is by its name, or an empty text for any other path."""
    match = _CHUNK.fullmatch(path)
    return match[1] if match else ""

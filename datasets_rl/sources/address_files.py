"""Files at an address, as far as the layout shows without a look at the values."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, BinaryIO

from datasets_rl.errors import ConversionError, IntegrityError
from datasets_rl.fetch.asset import LOCAL
from datasets_rl.sources.foreign import foreign_files

if TYPE_CHECKING:
    from datasets_rl.fetch.asset import Asset, Folder
    from datasets_rl.fetch.upstream import Upstream
    from datasets_rl.sources.foreign import Foreign

_JSON_MAX_BYTES = 16 << 20


@dataclass(frozen=True)
class AddressFiles:
    """Files at an address, opened only as far as recognizing the layout takes."""

    folder: Folder
    name: str
    upstream: Upstream

    @cached_property
    def paths(self) -> list[str]:
        """The paths relative to the address, sorted."""
        return sorted(self._assets)

    @property
    def is_local(self) -> bool:
        """Whether the files are on this machine, so that any of them can be opened."""
        return all(asset.urls[0].startswith(LOCAL) for asset in self._assets.values())

    @property
    def foreign(self) -> list[tuple[str, Foreign]]:
        """The first file of each format that no source reads, and the format."""
        return [*foreign_files({path: self._assets[path] for path in self.paths})]

    def size_of(self, path: str) -> int | None:
        """Return the bytes of a file, or None if the number of bytes is not known."""
        return self._assets[path].size

    def ending(self, *endings: str) -> list[str]:
        """Return the paths that end with any of some texts."""
        return [path for path in self.paths if path.lower().endswith(endings)]

    def first_in_folder(self, *endings: str) -> str:
        """Return the first path that ends so, or an empty text if such files of several folders, or datasets, exist."""
        found = self.ending(*endings)
        return found[0] if len({path.rpartition("/")[0] for path in found}) == 1 else ""

    def document(self, path: str) -> Mapping[str, Any]:
        """Return the object in a JSON file, or an empty object if there is no such file, or no object in the file."""
        asset = self._assets.get(path)
        if asset is None or (asset.size is not None and asset.size > _JSON_MAX_BYTES):
            return {}
        try:
            value = json.loads(self.upstream.text(asset))
        except (IntegrityError, ValueError, RecursionError):
            return {}
        return value if isinstance(value, dict) else {}

    def arrays(self, path: str) -> Mapping[str, Any]:
        """Return the shapes of the arrays in an HDF5 or npz file by name, see `datasets_rl.read.outline`.

        Empty if the file cannot be read.
        """
        from datasets_rl.read.outline import outline

        return self.inspected(path, outline)

    def rows_of(self, path: str, names: Sequence[str]) -> int | None:
        """Return the number of rows of some arrays in a file, or None if an array is missing, or the numbers differ."""
        arrays = self.arrays(path)
        rows = {tuple(arrays.get(name) or ())[:1] for name in names}
        return next(iter(rows))[0] if len(rows) == 1 and () not in rows else None

    def inspected(self, path: str, inspect: Callable[[BinaryIO], dict[str, Any]]) -> Mapping[str, Any]:
        """Return what a function reads from a file, a JSON object, which is empty if the function cannot read the file."""
        key = (path, inspect.__qualname__)
        if key not in self._inspected:
            try:
                self._inspected[key] = self.upstream.inspected(self._assets[path], inspect)
            except ConversionError:
                self._inspected[key] = {}
        return self._inspected[key]

    @cached_property
    def _assets(self) -> dict[str, Asset]:
        return {asset.path.removeprefix(f"{self.name}/"): asset for asset in self.folder.assets}

    @cached_property
    def _inspected(self) -> dict[tuple[str, str], Mapping[str, Any]]:
        return {}

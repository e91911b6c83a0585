"""Files at an address, as far as their layout shows without reading their values."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, BinaryIO

from datasets_rl.errors import ConversionError, IntegrityError

if TYPE_CHECKING:
    from datasets_rl.fetch.asset import Asset, Folder
    from datasets_rl.fetch.upstream import Upstream

_JSON_MAX_BYTES = 16 << 20


@dataclass(frozen=True)
class AddressFiles:
    """Files at an address, opened only as far as it takes to recognize their layout."""

    folder: Folder
    name: str
    upstream: Upstream

    @cached_property
    def paths(self) -> list[str]:
        """The paths relative to the address, sorted."""
        return sorted(self._assets)

    def ending(self, *endings: str) -> list[str]:
        """Return the paths that end with one of some texts."""
        return [path for path in self.paths if path.lower().endswith(endings)]

    def first_in_folder(self, *endings: str) -> str:
        """Return the first path that ends so, if all of them are in one folder; else they are of several datasets."""
        found = self.ending(*endings)
        return found[0] if len({path.rpartition("/")[0] for path in found}) == 1 else ""

    def document(self, path: str) -> Mapping[str, Any]:
        """Return the object in a JSON file; empty if there is no such file, or it has none."""
        asset = self._assets.get(path)
        if asset is None or (asset.size is not None and asset.size > _JSON_MAX_BYTES):
            return {}
        try:
            value = json.loads(self.upstream.text(asset))
        except (IntegrityError, ValueError, RecursionError):
            return {}
        return value if isinstance(value, dict) else {}

    def arrays(self, path: str) -> Mapping[str, Any]:
        """Return the shapes of the arrays in an HDF5 or npz file by their names; see `datasets_rl.read.outline`.

        Empty if the file cannot be read.
        """
        from datasets_rl.read.outline import outline

        return self.inspected(path, outline)

    def rows_of(self, path: str, names: Sequence[str]) -> int | None:
        """Return the number of rows of some arrays in a file; None if one is missing, or they differ in it."""
        arrays = self.arrays(path)
        rows = {tuple(arrays.get(name) or ())[:1] for name in names}
        return next(iter(rows))[0] if len(rows) == 1 and () not in rows else None

    def inspected(self, path: str, inspect: Callable[[BinaryIO], dict[str, Any]]) -> Mapping[str, Any]:
        """Return what a function reads from a file, a JSON object; empty if it cannot read the file."""
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

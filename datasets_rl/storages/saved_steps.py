"""The steps of a saved state, read some at a time, with compressed leaves decompressed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.storages.frame_ring import SavedFrames
from datasets_rl.storages.row_layout import leaf_tables
from datasets_rl.storages.structure import Path, Structure


class SavedSteps:
    """The leaves of the steps of a saved state that are tensors.

    Args:
        structure: The structure of a step.
        state: The state. Its tables have the shapes of this structure.

    Raises:
        InvalidArgumentError: If the state lacks the frames of compressed leaves.
    """

    def __init__(self, structure: Structure, state: Mapping[str, Any]) -> None:
        tables = state["tables"]
        pieces = leaf_tables(structure, tables) if state["layout"] == "rows" else tables
        leaves = [structure.leaves[number] for number in structure.by_name]
        self._leaves = [leaf for leaf in leaves if leaf.dtype is not None]
        self._pieces = dict(zip([leaf.path for leaf in self._leaves], pieces, strict=True))
        shapes = dict.fromkeys(leaf.shape for leaf in structure.leaves if leaf.compressed)
        frames = state.get("frames", [])
        if not isinstance(frames, list) or len(frames) != len(shapes):
            raise InvalidArgumentError(f"the state has no list of the frames of the shapes {[*map(list, shapes)]}")
        self.frames = {shape: SavedFrames(saved, math.prod(shape)) for shape, saved in zip(shapes, frames, strict=True)}

    def leaves(self, start: int, stop: int) -> dict[Path, Tensor]:
        """Return the leaves of the rows `start` to `stop`, each [n, *shape], by path.

        Raises:
            ConversionError: If a frame is damaged.
        """
        read: dict[Path, Tensor] = {}
        for leaf in self._leaves:
            values = _rows_of(self._pieces[leaf.path], start, stop)
            if leaf.compressed:
                values = torch.from_numpy(self.frames[leaf.shape].read(values.numpy())).view(-1, *leaf.shape)
            read[leaf.path] = values
        return read

    def problems(self) -> list[str]:
        """Return which compressed leaves refer to bytes that the state does not have."""
        return [
            f"frames of {leaf.path} are outside of the compressed bytes"
            for leaf in self._leaves
            if leaf.compressed
            and not all(self.frames[leaf.shape].contains(piece.numpy()) for piece in self._pieces[leaf.path])
        ]


def frame_problems(structure: Structure, state: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with the compressed leaves of a state."""
    if not structure.is_compressed:
        return []
    try:
        return SavedSteps(structure, state).problems()
    except InvalidArgumentError as error:
        return [error.message]


def _rows_of(pieces: list[Tensor], start: int, stop: int) -> Tensor:
    """Return the rows `start` to `stop` of a column in pieces."""
    parts, first = [], 0
    for piece in pieces:
        if first < stop and first + len(piece) > start:
            parts.append(piece[max(start - first, 0) : stop - first])
        first += len(piece)
    return torch.cat(parts).cpu()

"""Parquet and Arrow files, with the packed arrays of RLlib: a column of texts, each a packed array."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datasets_rl.errors import ConversionError
from datasets_rl.sources.flat.arrays import Array, ArrayFile, Rows, TableArrays
from datasets_rl.sources.flat.names import usual_keys
from datasets_rl.sources.flat.rllib import OTHERS, unpack

_PACKED = "BCJNG"
"""First letters of every packed array: the magic number of an lz4 frame, as base64."""
_ROW_MAX_BYTES = 256 << 20
_EPISODES = "item"
_ID = b"\xa3id_"
_WAY = """\
RLlib's episodes are msgpack of its classes. Convert the file where Ray is installed, and give the new file:

import msgpack, msgpack_numpy, pickle, numpy as np, pyarrow.parquet as pq; \
from ray.rllib.env.single_agent_episode import SingleAgentEpisode as Episode
episodes = [Episode.from_state(msgpack.unpackb(item, object_hook=msgpack_numpy.decode)) \
for item in pq.read_table(FILE)["item"].to_pylist()]
pickle.dump([{"obs": np.array(e.get_observations()), "actions": np.array(e.get_actions()), \
"rewards": np.array(e.get_rewards()), "terminated": np.arange(len(e)) == len(e) - e.is_terminated, \
"truncated": np.arange(len(e)) == len(e) - e.is_truncated} for e in episodes], open(RESULT, "wb"))
"""


def open_table(path: Path, name: str) -> ArrayFile:
    """Open a Parquet or Arrow file.

    Raises:
        ConversionError: If the file is damaged, or has RLlib's episodes, which need RLlib's classes.
        MissingDependencyError: If pyarrow is not installed.
    """
    file = TableArrays(path, name)
    try:
        _check_episodes(file, path, name)
        texts = [column for column in usual_keys(file.arrays) if file.arrays[column].text and file.arrays[column].rows]
        packed = [column for column in texts if str(next(file.blocks(column, 1))[0]).startswith(_PACKED)]
        return PackedTable(file, packed) if packed else file
    except BaseException:
        file.__exit__(None, None, None)
        raise


def _check_episodes(file: TableArrays, path: Path, name: str) -> None:
    if [*file.arrays] == [_EPISODES] and _ID in file.first_bytes(_EPISODES)[:64]:
        way = _WAY.replace("FILE", repr(path.name)).replace("RESULT", repr(f"{path.stem}.pkl"))
        raise ConversionError(name, ["the rows are episodes of RLlib, as msgpack, expected rows of steps"], hint=way)


class PackedTable(ArrayFile):
    """Table, of which some columns are packed arrays, one for each row."""

    is_table = True

    def __init__(self, file: ArrayFile, packed: list[str]) -> None:
        self.name, self._file = file.name, file
        self._packed: Mapping[str, Array] = {}
        self.optional = [column for column in file.arrays if column in OTHERS]
        firsts = {column: self._array(column, str(next(file.blocks(column, 1))[0])) for column in packed}
        self._packed = {
            column: Array(file.arrays[column].rows, first.shape, first.dtype) for column, first in firsts.items()
        }
        self.arrays = {**file.arrays, **self._packed}

    @override
    def blocks(self, name: str, rows: int) -> Iterator[Rows]:
        for block in self._file.blocks(name, rows):
            yield np.stack([self._array(name, text) for text in block]) if name in self._packed else block

    def _array(self, name: str, text: Any) -> NDArray[Any]:
        value = unpack(text, f"{self.name}: {name}", _ROW_MAX_BYTES)
        expected = self._packed.get(name)
        if not isinstance(value, np.ndarray) or value.dtype.hasobject:
            problem = f"a row is a {type(value).__name__}, expected an array of numbers"
            raise ConversionError(f"{self.name}: {name}", [problem])
        if expected is not None and (value.shape, value.dtype) != (expected.shape, expected.dtype):
            problem = f"a row is {value.dtype} {list(value.shape)}, expected {expected.dtype} {list(expected.shape)}"
            raise ConversionError(f"{self.name}: {name}", [problem])
        return value

    def __exit__(self, *details: object) -> None:
        self._file.__exit__(*details)

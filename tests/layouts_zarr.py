"""Layouts of zarr and npy that people have, each with the three episodes of `layouts`."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from layouts import ACTION, EPISODES, FLAGS, FLAT, OBS, REWARD, STOPS, Layout

BLOSC = {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0}
CODECS = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "zstd", "configuration": {"level": 1}}]


def write_store(
    folder: Path,
    arrays: Mapping[str, Any],
    version: int = 2,
    chunks: Mapping[str, Any] | None = None,
    *,
    compressor: Any = BLOSC,
    codecs: Any = None,
    every: bool = True,
) -> Path:
    """Write a store of zarr by TensorStore, with the metadata of the groups.

    Args:
        folder: The folder of the store.
        arrays: The arrays by path.
        version: 2 or 3.
        chunks: Shapes of chunks by path, by default four rows.
        compressor: The compressor of version 2.
        codecs: The codecs of version 3, by default those of zarr.
        every: Whether chunks of zeros are written, which zarr 3 leaves out by default.
    """
    tensorstore = pytest.importorskip("tensorstore", reason="pip install tensorstore, with Python 3.11")
    for path, values in ((path, np.asarray(values)) for path, values in arrays.items()):
        chunk = list((chunks or {}).get(path, [min(4, len(values)), *values.shape[1:]]))
        base = {"kvstore": {"driver": "file", "path": f"{folder / path}/"}, "store_data_equal_to_fill_value": every}
        if version == 2:
            options = {
                "chunks": chunk,
                "compressor": compressor,
                "dtype": values.dtype.str,
                "fill_value": values.dtype.type(0).item(),
            }
            spec = {**base, "driver": "zarr", "metadata": options}
        else:
            grid = {"name": "regular", "configuration": {"chunk_shape": chunk}}
            spec = {**base, "driver": "zarr3", "metadata": {"chunk_grid": grid, "codecs": codecs or CODECS}}
        dtype = {} if version == 2 else {"dtype": values.dtype}
        opened = tensorstore.open(spec, create=True, shape=values.shape, **dtype).result()
        opened.write(values).result()
    for group in {
        folder,
        *(parent for path in arrays for parent in (folder / path).parents if folder in parent.parents),
    }:
        if version == 2:
            (group / ".zgroup").write_text('{"zarr_format": 2}')
        else:
            (group / "zarr.json").write_text(json.dumps({"zarr_format": 3, "node_type": "group", "attributes": {}}))
    return folder


def pack(folder: Path, path: Path, below: str = "") -> Path:
    """Pack a store into a zip file as zarr writes one: without compression."""
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                archive.write(file, f"{below}{file.relative_to(folder).as_posix()}")
    return path


def store(arrays: Mapping[str, Any], version: int = 2) -> Callable[[Path], Path]:
    """Return a writer of a store in a folder."""
    return lambda folder: write_store(folder / "data.zarr", arrays, version)


def packed(arrays: Mapping[str, Any]) -> Callable[[Path], Path]:
    """Return a writer of a store in a zip file."""

    def write(folder: Path) -> Path:
        whole = write_store(folder.parent / "aside.zarr", arrays)
        return pack(whole, folder / "data.zarr.zip")

    return write


def npy(arrays: Mapping[str, Any]) -> Callable[[Path], Path]:
    """Return a writer of an npy file for each array."""

    def write(folder: Path) -> Path:
        for name, values in arrays.items():
            np.save(folder / f"{name}.npy", values)
        return folder

    return write


REPLAY_BUFFER = {"data/state": OBS, "data/action": ACTION, "meta/episode_ends": STOPS}
GROUPS = {
    f"demo_{number}/{name}": episode[name]
    for number, episode in enumerate(EPISODES)
    for name in ("observations", "actions", "rewards")
}

LAYOUTS: Mapping[str, Layout] = {
    "diffusion policy's replay buffer, a folder of zarr": Layout(store(REPLAY_BUFFER), rewards=False, terminated=False),
    "a replay buffer of zarr in a zip file": Layout(
        packed({**REPLAY_BUFFER, "data/reward": REWARD[:, None]}), terminated=False
    ),
    "flat arrays in zarr, version 3": Layout(store({**FLAT, **FLAGS}, 3)),
    "a group of zarr for each episode": Layout(store(GROUPS, 3), terminated=False),
    "a folder with an npy file for each array": Layout(npy({**FLAT, **FLAGS})),
}

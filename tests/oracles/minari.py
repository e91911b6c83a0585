"""Comparison of a converted dataset with its raw files, using h5py, pyarrow and pillow but not the converter."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
from numpy.typing import NDArray
from oracles.differences import Column, Differences

from datasets_rl.errors import UnknownKeyError
from datasets_rl.ted.keys import NEXT_REWARD, NEXT_TERMINATED, NEXT_TRUNCATED, Key
from datasets_rl.ted.table import EpisodeTable

_BLOCK_BYTES = 8 << 20
_JPEG = b"\xff\xd8\xff"
_PADDED = ("actions", "rewards", "terminations", "truncations")
_ROOTS: Mapping[str, Key] = {
    "rewards": NEXT_REWARD,
    "terminations": NEXT_TERMINATED,
    "truncations": NEXT_TRUNCATED,
    "observations": ("observation",),
    "actions": ("action",),
    "infos": ("info",),
}


class _RawColumn(NamedTuple):
    """Column of one raw episode."""

    length: int
    read: Callable[[int, int], NDArray[Any]]
    """Function that returns the rows [start, stop)."""
    row_bytes: int = 8


def compare(dataset_id: str, files: Mapping[str, Path], column: Column, episodes: EpisodeTable) -> list[str]:
    """Compare every converted value with the raw files: numbers, pixels and strings."""
    differences = Differences(partial(_converted_rows, column))
    name = dataset_id.partition("/")[2]
    main = next((path for path in files if path.endswith(".hdf5") and name in path), None)
    main = main or next((path for path in files if path.endswith(".hdf5")), None)
    compared: dict[int, int] = {}
    with ExitStack() as stack:
        opened = {
            path: stack.enter_context(h5py.File(place, "r", locking=False))
            for path, place in files.items()
            if path.endswith(".hdf5")
        }
        for row, number in enumerate(episodes["source"].tolist()):
            # An episode with flags inside was converted to several trajectories.
            skip = compared.get(number, 0)
            length, start = int(episodes.lengths[row]), int(episodes.starts[row])
            group = _episode_group(opened, main, number) if main is not None else None
            raw = dict(_columns_of_table(files, number) if main is None else _columns_of_hdf5(group))
            if not raw:
                text = f"source of episode {row:,} is {number}, but the raw files have no episode of this number"
                differences.add("source", text, length)
                continue
            if wrong := _seed_difference(episodes, row, _raw_seed(group, files, number)):
                differences.add("seed", wrong, length)
            steps = raw[NEXT_REWARD].length
            raw[NEXT_TRUNCATED] = _truncations(raw)
            for key, rows in raw.items():
                for stored_key, shift in _stored_keys(key, rows.length - steps):
                    _compare_column(differences, stored_key, rows, skip + shift, start, length)
            compared[number] = skip + length
            if (row == len(episodes) - 1 or episodes["source"][row + 1] != number) and compared[number] != steps:
                text = f"episode {number} has {compared[number]} rows, in the file {steps}"
                differences.add("episode", text)
    return differences.texts()


def _episode_group(opened: Mapping[str, h5py.File], path: str, number: int) -> h5py.Group | None:
    """Return the group of an episode, which can be a link to another file of the dataset, or of one of its parts."""
    link = opened[path].get(f"episode_{number}", getlink=True)
    if not isinstance(link, h5py.ExternalLink):
        return opened[path].get(f"episode_{number}")
    folder = path.rpartition("/")[0]
    target = link.filename if "/" in link.filename else f"/{folder}/{link.filename}"
    found = next(other for other in opened if target.endswith(f"/{other}"))
    return _episode_group(opened, found, int(link.path.rpartition("_")[2]))


def _raw_seed(group: h5py.Group | None, files: Mapping[str, Path], number: int) -> int | None:
    """Return the seed of a raw episode; None if it has no integer seed."""
    if group is not None:
        seed = group.attrs.get("seed")
    else:
        metadata = [file for path, file in files.items() if path.endswith(f"/{number}/metadata.json")]
        seed = json.loads(metadata[0].read_text("utf-8")).get("seed") if metadata else None
    values = np.asarray(seed)
    return int(values.item()) if values.dtype.kind in "biu" and values.size == 1 else None


def _seed_difference(episodes: EpisodeTable, row: int, seed: int | None) -> str:
    expected = (seed is not None, (seed or 0) % (1 << 64))
    converted = (bool(episodes["seeded"][row]), int(episodes["seed"][row]))
    if converted == expected:
        return ""
    return f"seeded and seed of episode {row:,} are {converted}, in the file {expected}"


def _stored_keys(key: Key, extra_rows: int) -> Sequence[tuple[Key, int]]:
    """Return the converted keys of a raw column, with the shift from a converted row to a raw row.

    raw        v_0 v_1 v_2 v_3     one extra row: v_t at row t, and v_t+1 under "next"
    raw            v_1 v_2 v_3     infos without a row for the reset: v_t+1 under "next"
    row         0   1   2
    """
    if extra_rows == 1:
        return [(key, 0), (("next", *key), 1)]
    return [(("next", *key), 0)] if key[0] == "info" else [(key, 0)]


def _truncations(raw: Mapping[Key, _RawColumn]) -> _RawColumn:
    """Return the truncations of an episode, with the last row truncated if it has no end flag."""
    rows = raw[NEXT_TRUNCATED]
    values = rows.read(0, rows.length).astype(bool)
    values[-1] |= not raw[NEXT_TERMINATED].read(rows.length - 1, rows.length)[0]
    return _column_in_memory(values)


def _compare_column(differences: Differences, key: Key, rows: _RawColumn, shift: int, start: int, length: int) -> None:
    block = max(1, _BLOCK_BYTES // max(rows.row_bytes, 1))
    for first in range(0, length, block):
        last = min(first + block, length)
        if not differences.compare(key, start + first, rows.read(shift + first, shift + last)):
            return


def _converted_rows(column: Column, key: Key, start: int, stop: int) -> NDArray[Any]:
    try:
        return np.asarray(column(key, start, stop))
    except UnknownKeyError:
        if not any(name.isdecimal() for name in key):
            raise
        # In tables, the names of the members of a Tuple are numbers.
        return np.asarray(column(tuple(f"_index_{name}" if name.isdecimal() else name for name in key), start, stop))


def _columns_of_hdf5(group: h5py.Group | None) -> Iterator[tuple[Key, _RawColumn]]:
    datasets: list[tuple[str, h5py.Dataset]] = []

    def visit(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            datasets.append((name, item))

    if group is not None:
        group.visititems(visit)
    for name, dataset in datasets:
        yield _key_of_names(name.split("/")), _column_of_dataset(dataset)


def _column_of_dataset(dataset: h5py.Dataset) -> _RawColumn:
    if h5py.check_string_dtype(dataset.dtype) is not None:
        return _RawColumn(len(dataset), lambda start, stop: np.asarray(dataset.asstr()[start:stop], object))
    flat = dataset.dtype.kind == "O" or (dataset.dtype == np.uint8 and dataset.ndim == 2)
    if flat and bytes(dataset[0][:3]) == _JPEG:
        row_bytes = _decode_image(dataset[0]).nbytes
        return _RawColumn(
            len(dataset), lambda start, stop: np.stack([*map(_decode_image, dataset[start:stop])]), row_bytes
        )
    row_bytes = dataset.dtype.itemsize * int(np.prod(dataset.shape[1:]))
    return _RawColumn(len(dataset), lambda start, stop: dataset[start:stop], row_bytes)


def _columns_of_table(files: Mapping[str, Path], number: int) -> Iterator[tuple[Key, _RawColumn]]:
    from pyarrow import feather, parquet

    tables = (
        file for path, file in files.items() if path.rpartition("/")[0].endswith(f"/{number}") and "part-" in path
    )
    file = next(tables, None)
    if file is None:
        return
    table = parquet.read_table(file) if file.suffix == ".parquet" else feather.read_table(file, memory_map=False)
    for name in table.column_names:
        if name != "episode_id":
            array = table.column(name).combine_chunks()
            yield from _columns_of_array([name], array[:-1] if name in _PADDED else array)


def _columns_of_array(names: Sequence[str], array: Any) -> Iterator[tuple[Key, _RawColumn]]:
    import pyarrow as pa

    if pa.types.is_struct(array.type):
        for number in range(array.type.num_fields):
            yield from _columns_of_array([*names, array.type.field(number).name], array.field(number))
    elif pa.types.is_binary(array.type) or pa.types.is_large_binary(array.type):
        images = [scalar.as_buffer() for scalar in array]
        row_bytes = _decode_image(images[0]).nbytes
        yield (
            _key_of_names(names),
            _RawColumn(len(array), lambda start, stop: np.stack([*map(_decode_image, images[start:stop])]), row_bytes),
        )
    elif pa.types.is_fixed_size_list(array.type):
        yield (
            _key_of_names(names),
            _column_in_memory(array.flatten().to_numpy(zero_copy_only=False).reshape(len(array), -1)),
        )
    else:
        yield _key_of_names(names), _column_in_memory(array.to_numpy(zero_copy_only=False))


def _column_in_memory(values: NDArray[Any]) -> _RawColumn:
    return _RawColumn(len(values), lambda start, stop: values[start:stop], values.nbytes // max(len(values), 1))


def _key_of_names(names: Sequence[str]) -> Key:
    root, *rest = (name.replace(".", "_").replace("\\", "_") or "_" for name in names)
    return (*_ROOTS.get(root, (root,)), *rest)


def _decode_image(encoded: Any) -> NDArray[np.uint8]:
    from PIL import Image

    with Image.open(io.BytesIO(bytes(encoded))) as image:
        return np.asarray(image)

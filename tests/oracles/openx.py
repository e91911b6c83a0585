"""Comparison of a converted dataset with its raw files, field by field, with images decoded by pillow."""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from oracles.differences import Column, Differences
from PIL import Image

from datasets_rl.errors import UnknownKeyError
from datasets_rl.read import archive, pickles
from datasets_rl.read.tfrecord import parse_example, read_records
from datasets_rl.sources.openx.reader import stored_key
from datasets_rl.ted.keys import Key, dotted_name
from datasets_rl.ted.table import EpisodeTable

_Raw = Mapping[str, Sequence[Any]]
"""Values of an episode by slash-joined field name: numbers or byte strings, one or more per step."""
_SKIPPED = ("is_last", "is_terminal")
_JPEG = b"\xff\xd8\xff"
_IMAGES = (b"\x89PNG", _JPEG)
_LOSS = 2  # maximum difference of two JPEG decoders
_BLOCK = 64


def compare(_dataset_id: str, files: Mapping[str, Path], column: Column, episodes: EpisodeTable) -> list[str]:
    """Compare every number, string and pixel of the steps of every episode."""
    rows = {int(number): row for row, number in enumerate(episodes["source"])}
    differences = Differences(column, "episodes")
    matched = 0
    recorded = any(path.endswith(".json") for path in files)
    # If last steps have no action, episodes of a single step were left out.
    for number, raw in (
        _episodes_of_records(files)
        if recorded
        else _episodes_of_archives(files, min_episodes=1 + bool(episodes["final_known"].any()))
    ):
        if number in rows:
            matched += 1
            row = rows[number]
            start, length = int(episodes.starts[row]), int(episodes.lengths[row])
            for key, text in _differences(raw, column, start, length, known=bool(episodes["final_known"][row])):
                differences.add(dotted_name(key), text)
    missing = [f"{len(rows) - matched:,} episodes are not in the raw files"] if matched < len(rows) else []
    return missing + differences.texts()


def _episodes_of_records(files: Mapping[str, Path]) -> Iterator[tuple[int, _Raw]]:
    information = next(file for path, file in files.items() if path.endswith("dataset_info.json"))
    splits = json.loads(information.read_text())["splits"]
    lengths = {split["name"]: [*map(int, split["shardLengths"])] for split in splits}
    for path, file in sorted(files.items()):
        if ".tfrecord-" in path:
            split = path.rpartition(".tfrecord-")[0].rpartition("-")[2]
            file_number = int(path.rpartition("-of-")[0].rpartition("-")[2])
            first = sum(lengths[split][:file_number])
            with file.open("rb") as stream:
                for number, payload in enumerate(read_records(stream, path)):
                    flat: Mapping[str, Any] = parse_example(payload, path)
                    yield (
                        first + number,
                        {
                            name.removeprefix("steps/").removesuffix("/ragged_flat_values"): values
                            for name, values in flat.items()
                            if name.startswith("steps/") and "/ragged_row_lengths" not in name
                        },
                    )


def _episodes_of_archives(files: Mapping[str, Path], min_episodes: int) -> Iterator[tuple[int, _Raw]]:
    number = 0
    for path, file in sorted(files.items()):
        for member in archive.members(file, path):
            steps = pickles.load(member.read(), member.name)["steps"]
            if not steps:
                continue
            raw = {name: [_value_at(step, name) for step in steps] for name in _leaf_names(steps[0], "")}
            if len(steps) >= min_episodes or not steps[-1].get("is_last", True):
                yield number, raw
                number += 1


def _leaf_names(node: Mapping[str, Any], prefix: str) -> Iterator[str]:
    for name, value in node.items():
        if isinstance(value, dict) and "bytes" not in value:
            yield from _leaf_names(value, f"{prefix}{name}/")
        elif value is not None:
            yield prefix + name


def _value_at(step: Any, name: str) -> Any:
    for part in name.split("/"):
        step = None if step is None else step.get(part)
    return step["bytes"] if isinstance(step, dict) else step


def _differences(raw: _Raw, column: Column, start: int, length: int, *, known: bool) -> Iterator[tuple[Key, str]]:
    flags = [raw[name] for name in ("is_last", "is_first") if name in raw]
    steps = min(len(values) for values in flags or raw.values() if len(values))
    # If no observation is stored, final_known is True for all episodes.
    if steps not in {length, length + known}:
        yield ("episode",), f"the episode at row {start:,} has {length:,} steps, in the file {steps - known:,}"
        return
    for name, values in raw.items():
        key = stored_key(tuple(name.split("/")))
        if name in _SKIPPED or len(values) < steps:
            continue
        pairs = [(key, 0)]
        if key[0] == "observation":
            pairs.append((("next", *key), 1))
        for stored, shift in pairs:
            stop = min(length, steps - shift)
            try:
                yield from (
                    (stored, text) for text in _value_differences(stored, values, column, start, stop, shift, steps)
                )
            except UnknownKeyError:
                break  # a field that the selection excludes


def _value_differences(
    key: Key, values: Sequence[Any], column: Column, start: int, count: int, shift: int, steps: int
) -> Iterator[str]:
    each = len(values) // steps
    for first in range(0, count, _BLOCK):
        last = min(first + _BLOCK, count)
        converted = np.asarray(column(key, start + first, start + last))
        raw = _as_flat_values(values[(first + shift) * each : (last + shift) * each], converted)
        flat = converted.reshape(raw.shape)
        if raw.dtype == object:
            wrong = np.flatnonzero(flat != raw)
        else:
            loss = _LOSS if bytes(_first_values(values)).startswith(_JPEG) else 0
            with np.errstate(invalid="ignore"):
                far = np.abs(flat.astype(np.float64) - raw) > loss
            wrong = np.flatnonzero((far | (np.isnan(flat) != np.isnan(raw))).any(axis=1))
        if len(wrong):
            at = int(wrong[0])
            yield f"{dotted_name(key)} at row {start + first + at:,} is {converted[at]!s:.80}, in the file {raw[at]!s:.80}"
            return


def _first_values(values: Sequence[Any]) -> Any:
    return values[0][:4] if isinstance(values[0], bytes | memoryview) else b""


def _as_flat_values(values: Sequence[Any], like: NDArray[Any]) -> NDArray[Any]:
    """Return raw values as flat numbers, float64 [rows, values], or as strings."""
    if like.dtype == object:
        return np.array([value if isinstance(value, str) else str(value, "utf-8") for value in values], object)
    if not isinstance(values[0], bytes | memoryview):
        return np.asarray(values, np.float64).reshape(len(like), -1)
    if bytes(_first_values(values)).startswith(_IMAGES):
        pixels = [np.asarray(Image.open(io.BytesIO(encoded))) for encoded in values]
        if like.dtype == np.float32:
            pixels = [np.ascontiguousarray(image).view("<f4") for image in pixels]
        return np.stack(pixels).reshape(len(like), -1).astype(np.float64)
    data = [_decompress(value, like[0].nbytes) for value in values]
    # Unsigned integers were converted to signed integers of twice as many bytes.
    dtype = like.dtype if len(data[0]) == like[0].nbytes else np.dtype(f"<u{like.itemsize // 2}")
    return np.stack([np.frombuffer(row, dtype) for row in data]).reshape(len(like), -1).astype(np.float64)


def _decompress(value: Any, size: int) -> Any:
    try:
        data = zlib.decompress(value)
    except zlib.error:
        return value
    return data if len(data) in {size, size // 2} else value

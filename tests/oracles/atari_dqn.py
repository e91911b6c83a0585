"""Comparison of a converted run with its raw files, using none of the code that converted it."""

from __future__ import annotations

import gzip
import io
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray
from oracles.differences import Column, Differences
from PIL import Image

from datasets_rl.read.tfrecord import parse_example, read_records
from datasets_rl.ted.keys import ACTION, NEXT, NEXT_REWARD, NEXT_TERMINATED, OBSERVATION, Key
from datasets_rl.ted.table import EpisodeTable

_BLOCK = 512
_BLANKS = 3
_LOG = re.compile(r"(?:\$store\$_)?(\w+)_ckpt\.(\d+)\.gz$")
_SMALL = ("action", "reward", "terminal")
_FLAT: Mapping[str, Key] = {
    "action": ACTION,
    "reward": NEXT_REWARD,
    "terminal": NEXT_TERMINATED,
    "observation": OBSERVATION,
}


def compare(_dataset_id: str, files: Mapping[str, Path], column: Column, episodes: EpisodeTable) -> list[str]:
    """Compare every row of every checkpoint, except blank rows, or every step of every record of RL Unplugged."""
    if any(".tfrecord-" in path for path in files):
        return _compare_records(files, column, episodes)
    logs: dict[int, dict[str, Path]] = {}
    for path, file in files.items():
        if (log := _LOG.search(path)) is not None:
            logs.setdefault(int(log[2]), {})[log[1]] = file
    return _compare_logs(logs, column, episodes)


def _compare_logs(files: Mapping[int, Mapping[str, Path]], column: Column, episodes: EpisodeTable) -> list[str]:
    differences = Differences(column)
    at, blanks_left = 0, _BLANKS
    before: tuple[int, int, Mapping[str, NDArray[Any]]] | None = None
    for number, fields in sorted(files.items()):
        if "invalid_range" not in fields:
            continue  # only a neighbor of the selected checkpoints
        added, flat = int(_load_array(fields["add_count"])), {name: _load_array(fields[name]) for name in _SMALL}
        capacity = len(flat["action"])
        cursor = added % capacity
        if number and added == capacity - 1:
            continue
        joined = before is not None and before[0] == number - 1 and _continues(before, added, flat)
        if not joined:
            blanks_left = _initial_blanks(flat, fields) if number or added >= capacity else _BLANKS
        for block in _chronological_blocks(fields, flat, cursor, joined=joined):
            zero = np.logical_and.reduce([_zero_rows(values) for values in block.values()])
            kept, blanks_left = _kept_rows(zero, block["terminal"], blanks_left)
            for name, values in block.items():
                differences.compare(_FLAT[name], at, values[kept])
            at += int(kept.sum())
        before = (number, added, flat) if cursor == capacity - 1 else None
    return [*differences.texts(), *_row_count_difference(at, episodes)]


def _continues(
    before: tuple[int, int, Mapping[str, NDArray[Any]]], added: int, flat: Mapping[str, NDArray[Any]]
) -> bool:
    """Return whether the last row of a checkpoint directly follows the rows of the previous checkpoint."""
    capacity = len(flat["action"])
    if capacity != len(before[2]["action"]) or added >= capacity:
        return added == before[1] + capacity
    return all(before[2][name][added:-1].tobytes() == flat[name][added:-1].tobytes() for name in _SMALL)


def _initial_blanks(flat: Mapping[str, NDArray[Any]], fields: Mapping[str, Path]) -> int:
    """Return how many blank rows may begin a checkpoint, given only its last row, which precedes all others."""
    if flat["terminal"][-1]:
        return _BLANKS
    if flat["action"][-1] or flat["reward"][-1]:
        return 0
    has_frame = False
    for _, frames in _read_frames(fields):
        has_frame = bool(frames[-1].any())
    return 0 if has_frame else _BLANKS - 1


def _zero_rows(values: NDArray[Any]) -> NDArray[np.bool_]:
    return np.asarray(~values.any(axis=tuple(range(1, values.ndim))))


def _kept_rows(zero: NDArray[np.bool_], terminal: NDArray[np.uint8], blanks_left: int) -> tuple[NDArray[np.bool_], int]:
    """Return the mask of rows that are not blank, and the number of blank rows that may still follow."""
    kept = np.ones(len(zero), np.bool_)
    for first, most in [(0, blanks_left), *((int(end) + 1, _BLANKS) for end in np.flatnonzero(terminal))]:
        row = first
        while row < min(first + most, len(zero)) and zero[row]:
            kept[row] = False
            row += 1
        blanks_left = first + most - row if row == len(zero) else 0
    return kept, blanks_left


def _chronological_blocks(
    fields: Mapping[str, Path], flat: Mapping[str, NDArray[Any]], cursor: int, *, joined: bool
) -> Iterator[dict[str, NDArray[Any]]]:
    """Yield the rows of a checkpoint in chronological order; the frames are read twice for the last row."""
    if joined:
        last = {name: values[-1:] for name, values in flat.items()}
        for _, frames in _read_frames(fields):
            last["observation"] = frames[-1:]
        yield last
    if "observation" not in fields:
        yield {name: values[:cursor] for name, values in flat.items()}
    for start, frames in _read_frames(fields):
        block = {name: values[start : min(start + len(frames), cursor)] for name, values in flat.items()}
        yield {**block, "observation": frames[: len(block["action"])]}


def _read_frames(fields: Mapping[str, Path]) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    if "observation" not in fields:
        return
    with gzip.open(fields["observation"]) as stream:
        npy.read_magic(stream)
        (rows, *frame), _, dtype = npy.read_array_header_1_0(stream)
        for start in range(0, rows, _BLOCK):
            count = min(_BLOCK, rows - start)
            yield start, np.frombuffer(stream.read(count * 84 * 84), dtype).reshape(count, *frame)


def _load_array(path: Path) -> NDArray[Any]:
    with gzip.open(path) as stream:
        array: NDArray[Any] = np.load(io.BytesIO(stream.read()), allow_pickle=False)
    return array


def _compare_records(files: Mapping[str, Path], column: Column, episodes: EpisodeTable) -> list[str]:
    differences = Differences(column)
    at = 0
    paths = [path for path in files if ".tfrecord-" in path]
    for path in sorted(paths, key=lambda path: [int(number) for number in re.findall(r"\d+", path)]):
        with files[path].open("rb") as stream:
            for payload in read_records(stream, path):
                raw: Mapping[str, Any] = parse_example(payload, path)
                steps = len(raw["steps/action"]) - 1
                if steps < 1:
                    continue
                images = [np.asarray(Image.open(io.BytesIO(encoded))) for encoded in raw["steps/observation"]]
                frames = np.stack(images).reshape(steps + 1, 84, 84)
                last = np.arange(steps) == steps - 1
                differences.compare(ACTION, at, raw["steps/action"][:-1])
                differences.compare(NEXT_REWARD, at, raw["steps/reward"][:-1])
                differences.compare(NEXT_TERMINATED, at, last & bool(raw["steps/is_terminal"][-1]))
                differences.compare(OBSERVATION, at, frames[:-1])
                differences.compare((NEXT, *OBSERVATION), at, frames[1:])
                at += steps
    return [*differences.texts(), *_row_count_difference(at, episodes)]


def _row_count_difference(rows: int, episodes: EpisodeTable) -> list[str]:
    return [] if episodes.steps == rows else [f"it has {episodes.steps:,} rows, the files have {rows:,}"]

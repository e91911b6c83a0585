"""Comparison of a converted table with its raw file, using `csv` and numpy but none of the code that converted it.

The file is read three times: for the categories, for means and standard deviations, and for the comparison.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from oracles.differences import Column, Differences

from datasets_rl import sources
from datasets_rl.errors import UnknownKeyError

_ROWS = 20_000
_TOLERANCE = 1e-9

_Block = list[list[str]]


def compare(dataset_id: str, files: Mapping[str, Path], column: Column, _episodes: object) -> list[str]:
    """Compare every sample and every class."""
    table = _Table(files, sources.find(dataset_id).params)
    differences = Differences(column)
    for start, samples, classes in table.blocks():
        for key, expected in ((("observation",), samples), (("action",), classes)):
            try:
                converted = np.asarray(column(key, start, start + len(expected)))
            except UnknownKeyError:
                continue  # a field that the selection excludes
            if converted.shape != expected.shape:
                return [f"{key[0]} is {list(converted.shape)} at row {start:,}, by the file {list(expected.shape)}"]
            close = np.isclose(converted, expected, rtol=_TOLERANCE, atol=_TOLERANCE)
            differences.compare_values(key, start, np.where(close, converted, expected), converted)
    return differences.texts()


class _Table:
    """Rows of the file as samples and classes."""

    def __init__(self, files: Mapping[str, Path], recipe: Mapping[str, Any]) -> None:
        self._path = next(file for path, file in files.items() if not path.startswith("api/"))
        answer = next(file for path, file in files.items() if "/features/" in path)
        listed = json.loads(answer.read_text("utf-8"))["data_features"]["feature"]
        listed.sort(key=lambda one: int(one["index"]))
        self._recipe = recipe
        names = [one["name"] for one in listed]
        own = [position for position, one in enumerate(listed) if one["is_target"] == "true"]
        self._target = names.index(recipe["target"]) if recipe.get("target") else own[0]
        left_out = {
            position
            for position, one in enumerate(listed)
            if "true" in {one.get("is_ignore"), one.get("is_row_identifier")}
        }
        self._positions = [
            position for position in range(len(listed)) if position not in {self._target, *own, *left_out}
        ]
        self._nominal = {position for position, one in enumerate(listed) if one["data_type"] == "nominal"}
        coded = self._nominal - ({*self._positions} if recipe["nominal"] == "numbers" else set()) | {self._target}
        values: dict[int, set[str]] = {position: set() for position in coded}
        for block in self._kept_blocks():
            for position, found in values.items():
                found.update(row[position] for row in block)
        # A missing value is a separate category, the last one.
        self._codes = {
            position: {value: code for code, value in enumerate(sorted(found, key=lambda one: (one == "?", one)))}
            for position, found in values.items()
        }
        self._mean, self._scale = self._moments()

    def blocks(self) -> Iterator[tuple[int, NDArray[Any], NDArray[Any]]]:
        """Yield the first row, the samples and the classes of a few thousand rows."""
        start = 0
        for block in self._kept_blocks():
            numbers = (self._numeric_values(block) - self._mean) / self._scale
            yield start, np.hstack([numbers, *self._indicators(block)]), self._category_codes(block, self._target)
            start += len(block)

    def _kept_blocks(self) -> Iterator[_Block]:
        drops = self._recipe["missing"] == "drop"
        needed = [position for position in self._positions if drops or position not in self._nominal] + [self._target]
        with self._path.open(encoding="utf-8", newline="") as stream:
            for line in stream:
                if line.lower().startswith("@data"):
                    break
            rows = csv.reader(
                (line for line in map(_normalize_quotes, stream) if line), skipinitialspace=True, escapechar="\\"
            )
            while block := list(islice(rows, _ROWS)):
                block = [[value.strip() for value in row] for row in block]
                if kept := [row for row in block if all(row[position] != "?" for position in needed)]:
                    yield kept

    @property
    def _scaled_positions(self) -> list[int]:
        onehot = self._recipe["nominal"] == "onehot"
        return [position for position in self._positions if not (onehot and position in self._nominal)]

    def _numeric_values(self, block: _Block) -> NDArray[np.float64]:
        out = np.empty((len(block), len(self._scaled_positions)))
        for at, position in enumerate(self._scaled_positions):
            coded = position in self._codes
            out[:, at] = self._category_codes(block, position) if coded else [float(row[position]) for row in block]
        return out

    def _indicators(self, block: _Block) -> Iterator[NDArray[np.float64]]:
        for position in self._positions:
            if position not in self._scaled_positions:
                yield np.eye(len(self._codes[position]))[self._category_codes(block, position)]

    def _category_codes(self, block: _Block, position: int) -> NDArray[np.int64]:
        codes = self._codes[position]
        return np.array([codes[row[position]] for row in block], np.int64)

    def _moments(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return mean and standard deviation of each number, from sums of the differences to the first row."""
        total, squares, count = 0.0, 0.0, 0
        first: Any = None
        for block in self._kept_blocks():
            numbers = self._numeric_values(block)
            first = numbers[:1] if first is None else first
            total, squares = total + (numbers - first).sum(axis=0), squares + ((numbers - first) ** 2).sum(axis=0)
            count += len(block)
        off = np.asarray(total) / count
        mean, variance = first[0] + off, np.maximum(np.asarray(squares) / count - off**2, 0)
        # A variance within the rounding error of the sums is treated as zero.
        rounding = count * np.finfo(np.float64).eps
        constant = variance <= rounding * variance + (rounding * mean) ** 2
        return mean, np.where(constant, 1.0, np.sqrt(variance))


def _normalize_quotes(line: str) -> str:
    """Return a row with double quotes only; empty for a comment or an empty line."""
    text = line.strip()
    if not text or text.startswith("%"):
        return ""
    return text.replace("'", '"') if "'" in text and '"' not in text else text

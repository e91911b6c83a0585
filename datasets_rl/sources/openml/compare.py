"""A converted table against its raw file, with `csv` and numpy: none of the code that converted it takes part.

The file is read three times: for the values of the categories, for means and deviations, and to compare.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl.errors import UnknownKeyError
from datasets_rl.ted.keys import Key

__all__ = ["compare"]

_ROWS = 20_000
_OFF = 1e-9

_Column = Callable[[Key, int, int], Any]
_Block = list[list[str]]


def compare(files: Mapping[str, Path], column: _Column, recipe: Mapping[str, Any]) -> list[str]:
    """Compare every sample and every class.

    Args:
        files: The raw files by path.
        column: ``column(key, start, stop)`` returns converted values, [stop - start, ...].
        recipe: How samples become numbers; see `OpenMLReader`.

    Returns:
        For each column that differs, its first difference and how many rows differ.
    """
    table = _Table(files, recipe)
    found: dict[str, tuple[str, int]] = {}
    for start, samples, classes in table.blocks():
        for key, wanted in ((("observation",), samples), (("action",), classes)):
            try:
                got = np.asarray(column(key, start, start + len(wanted)))
            except UnknownKeyError:
                continue  # a field that was left out on request
            if got.shape != wanted.shape:
                return [f"{key[0]} is {list(got.shape)} from row {start:,} on, by the file {list(wanted.shape)}"]
            same = np.isclose(got, wanted, rtol=_OFF, atol=_OFF).reshape(len(got), -1).all(axis=1)
            wrong = np.flatnonzero(~same)
            if len(wrong):
                row = int(wrong[0])
                text = f"{key[0]} at row {start + row:,} is {got[row]!s:.80}, by the file {wanted[row]!s:.80}"
                before = found.get(key[0], (text, 0))
                found[key[0]] = (before[0], before[1] + len(wrong))
    return [f"{text} ({count:,} such rows)" for text, count in found.values()]


class _Table:
    """The rows of the file as samples and classes."""

    def __init__(self, files: Mapping[str, Path], recipe: Mapping[str, Any]) -> None:
        self._path = next(place for path, place in files.items() if not path.startswith("api/"))
        answer = next(place for path, place in files.items() if "/features/" in path)
        listed = json.loads(answer.read_text("utf-8"))["data_features"]["feature"]
        listed.sort(key=lambda one: int(one["index"]))
        self._recipe = recipe
        names = [one["name"] for one in listed]
        own = [place for place, one in enumerate(listed) if one["is_target"] == "true"]
        self._target = names.index(recipe["target"]) if recipe.get("target") else own[0]
        left_out = {
            place for place, one in enumerate(listed) if "true" in {one.get("is_ignore"), one.get("is_row_identifier")}
        }
        self._places = [place for place in range(len(listed)) if place not in {self._target, *own, *left_out}]
        self._nominal = {place for place, one in enumerate(listed) if one["data_type"] == "nominal"}
        coded = self._nominal - ({*self._places} if recipe["nominal"] == "numbers" else set()) | {self._target}
        values: dict[int, set[str]] = {place: set() for place in coded}
        for block in self._kept():
            for place, found in values.items():
                found.update(row[place] for row in block)
        # What is missing is a value of its own, the last one.
        self._codes = {
            place: {value: code for code, value in enumerate(sorted(found, key=lambda one: (one == "?", one)))}
            for place, found in values.items()
        }
        self._mean, self._scale = self._moments()

    def blocks(self) -> Iterator[tuple[int, NDArray[Any], NDArray[Any]]]:
        """Yield the first row, the samples and the classes of a few thousand rows."""
        start = 0
        for block in self._kept():
            numbers = (self._numbers(block) - self._mean) / self._scale
            yield start, np.hstack([numbers, *self._indicators(block)]), self._coded(block, self._target)
            start += len(block)

    def _kept(self) -> Iterator[_Block]:
        drops = self._recipe["missing"] == "drop"
        needed = [place for place in self._places if drops or place not in self._nominal] + [self._target]
        with self._path.open(encoding="utf-8", newline="") as stream:
            for line in stream:
                if line.lower().startswith("@data"):
                    break
            rows = csv.reader((line for line in map(_one_kind, stream) if line), skipinitialspace=True, escapechar="\\")
            while block := list(islice(rows, _ROWS)):
                block = [[value.strip() for value in row] for row in block]
                if kept := [row for row in block if all(row[place] != "?" for place in needed)]:
                    yield kept

    @property
    def _scaled(self) -> list[int]:
        onehot = self._recipe["nominal"] == "onehot"
        return [place for place in self._places if not (onehot and place in self._nominal)]

    def _numbers(self, block: _Block) -> NDArray[np.float64]:
        out = np.empty((len(block), len(self._scaled)))
        for at, place in enumerate(self._scaled):
            coded = place in self._codes
            out[:, at] = self._coded(block, place) if coded else [float(row[place]) for row in block]
        return out

    def _indicators(self, block: _Block) -> Iterator[NDArray[np.float64]]:
        for place in self._places:
            if place not in self._scaled:
                yield np.eye(len(self._codes[place]))[self._coded(block, place)]

    def _coded(self, block: _Block, place: int) -> NDArray[np.int64]:
        codes = self._codes[place]
        return np.array([codes[row[place]] for row in block], np.int64)

    def _moments(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return mean and deviation of each number: sums of what is left when the first row is taken away."""
        total, squares, count = 0.0, 0.0, 0
        first: Any = None
        for block in self._kept():
            numbers = self._numbers(block)
            first = numbers[:1] if first is None else first
            total, squares = total + (numbers - first).sum(axis=0), squares + ((numbers - first) ** 2).sum(axis=0)
            count += len(block)
        off = np.asarray(total) / count
        mean, variance = first[0] + off, np.maximum(np.asarray(squares) / count - off**2, 0)
        # What is no more than the rounding of so many sums is no deviation.
        rounding = count * np.finfo(np.float64).eps
        constant = variance <= rounding * variance + (rounding * mean) ** 2
        return mean, np.where(constant, 1.0, np.sqrt(variance))


def _one_kind(line: str) -> str:
    """Write a row with one kind of quotes; nothing for a comment or an empty line."""
    text = line.strip()
    if not text or text.startswith("%"):
        return ""
    return text.replace("'", '"') if "'" in text and '"' not in text else text

"""Reader of a table of samples and classes as episodes of a single step.

    observation   the sample, as numbers
    action        the class of the sample
    reward        1, because the action is correct. The reward of any other action is 0

The table is read two or three times: for the categories, for means and standard deviations if numbers are scaled, and
for the steps. Only a few megabytes of the table are in memory at a time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datasets_rl.errors import ConversionError
from datasets_rl.format.schema import END_COLUMNS, Column
from datasets_rl.read.arff import ArffFile, Rows
from datasets_rl.read.streams import refuse
from datasets_rl.sources.base import EpisodeReader
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.ted.keys import ACTION, NEXT_REWARD, NEXT_TERMINATED, NEXT_TRUNCATED, OBSERVATION, Key

_CHUNK_BYTES = 8 << 20
_TEXTS = {
    "row-is-an-episode": "each row is an episode of one step: the class is the action, with the reward 1",
    "missing-values": "rows with a missing value were left out",
    "missing-is-a-value": "nominal columns have missing values: missing values are a separate category, the last category",
    "constant-column": "columns of the observation are constant: such columns were centered but not scaled",
    "other-class": "the action is a column other than the dataset's default target, which was left out",
}


class OpenMLReader(EpisodeReader):
    """Reader of a table, which determines the categories and the scale on opening.

    Args:
        dataset_id: Id of the dataset, for messages.
        path: The ARFF file.
        features: Name, type ("kind") and role ("part") of each column, as OpenML lists the columns.
        recipe: Conversion of samples to numbers. ``nominal`` is "codes" (categories are numbered in the order of the
            names, and scaled), "onehot" (an indicator for each category, after the scaled numbers) or "numbers" (the
            names of categories are numbers, and scaled). ``missing`` is "drop" (rows with a missing value are left out)
            or "category" (only rows in which a number or the class is missing are left out). ``target`` is the column
            of the class, if this is not the default target of the dataset.

    Raises:
        ConversionError: If the table contradicts the listed columns, or violates the format.
    """

    rules = _TEXTS

    def __init__(
        self, dataset_id: str, path: Path, features: Sequence[Mapping[str, str]], recipe: Mapping[str, Any]
    ) -> None:
        self._dataset_id = dataset_id
        self._file = ArffFile(path)
        self._nominal: str = recipe["nominal"]
        self._drops = recipe["missing"] == "drop"
        self._names = [feature["name"] for feature in features]
        self._target, self._positions = self._positions_by_role(features, recipe.get("target", ""))
        self._seen = {
            position: np.zeros(len(self._file.attributes[position].allowed) + 1, np.bool_)
            for position in (self._target, *self._positions)
            if self._is_nominal(position)
        }
        self.steps = self._count_categories()
        self._values = {position: self._ordered_categories(position) for position in self._seen}
        if self._nominal == "numbers":
            self._parse_numeric_categories()
        self._measure_scale()
        self.columns = self._build_columns()
        self.metadata = self._build_metadata()
        self._count_decisions(recipe)

    @override
    def specs(self) -> Mapping[str, Any]:
        count = len(self._values[self._target])
        return {"action": {"kind": "discrete", "shape": [], "dtype": "int64", "n": count}}

    @override
    def episodes(self, part: Any = None) -> Iterator[EpisodeBatch]:
        del part
        size = max(1, _CHUNK_BYTES // max(8 * self._width, 1))
        for rows in self._file.rows([self._target, *self._positions]):
            kept = np.flatnonzero(self._kept_rows(rows))
            for first in range(0, len(kept), size):
                chosen = kept[first : first + size]
                samples = np.ascontiguousarray((self._design_matrix(rows, chosen) - self._mean) / self._scale)
                classes = self._labels(rows, self._target, chosen)
                steps: dict[Key, NDArray[Any]] = {
                    OBSERVATION: samples,
                    ACTION: classes,
                    NEXT_REWARD: np.ones((len(chosen), 1), np.float32),
                    NEXT_TERMINATED: np.ones((len(chosen), 1), np.bool_),
                    NEXT_TRUNCATED: np.zeros((len(chosen), 1), np.bool_),
                }
                ones = np.ones(len(chosen), np.int64)
                # If no row is dropped, the number of an episode is the number of the row and need not be stored.
                metadata = {"source": rows.start + chosen} if self.counts["missing-values"] else {}
                yield EpisodeBatch(ones, steps, {}, {}, final_known=ones > 0, metadata=metadata)

    def _positions_by_role(self, features: Sequence[Mapping[str, str]], target: str) -> tuple[int, list[int]]:
        """Return the positions of the class and of the columns of a sample."""
        listed = [(feature["name"], feature["kind"]) for feature in features]
        stored = [(attribute.name, attribute.kind) for attribute in self._file.attributes]
        problems = []
        if listed != stored:
            differ = [(a, b) for a, b in zip(listed, stored, strict=False) if a != b][:3]
            problems.append(f"OpenML lists {len(listed)} columns, the file has {len(stored)}, which differ in {differ}")
            raise ConversionError(self._dataset_id, problems)
        targets = [self._names.index(target)] if target in self._names else []
        if not target:
            targets = [position for position, one in enumerate(features) if one["part"] == "target"]
        if len(targets) != 1 or listed[targets[0]][1] != "nominal":
            columns = ", ".join(f"{listed[position][0]} ({listed[position][1]})" for position in targets) or "none"
            problems.append(f"the class is {columns}, expected one nominal column{f' {target}' if target else ''}")
        positions = [
            position
            for position, one in enumerate(features)
            if one["part"] == "feature" and position not in targets[:1]
        ]
        problems += [
            f"{listed[position][0]} is of type {listed[position][1]}, expected numeric or nominal"
            for position in positions
            if listed[position][1] not in {"numeric", "nominal"}
        ]
        if not positions:
            problems.append("it has no column except the class")
        refuse(self._dataset_id, problems)
        return targets[0], positions

    def _is_nominal(self, position: int) -> bool:
        return self._file.attributes[position].kind == "nominal"

    def _count_categories(self) -> int:
        """Read the table to record the categories that occur, and return the number of rows that are kept."""
        total = kept_rows = 0
        for rows in self._file.rows([self._target, *self._positions]):
            kept = self._kept_rows(rows)
            total += rows.count
            kept_rows += int(kept.sum())
            for position, seen in self._seen.items():
                seen[rows.codes[position][kept]] = True
        if not kept_rows:
            raise ConversionError(self._dataset_id, [f"it has {total:,} rows, but no row has all values"])
        self.counts["missing-values"] = total - kept_rows
        return kept_rows

    def _kept_rows(self, rows: Rows) -> NDArray[np.bool_]:
        kept = rows.codes[self._target] >= 0
        for position in self._positions:
            if position in rows.numbers:
                kept &= ~np.isnan(rows.numbers[position])
            elif self._drops:
                kept &= rows.codes[position] >= 0
        return kept

    def _ordered_categories(self, position: int) -> list[str]:
        """Return the categories of a column in the order of the numbers. A missing value is last, and empty."""
        seen = self._seen[position]
        declared = self._file.attributes[position].allowed
        values = sorted(value for value, is_seen in zip(declared, seen, strict=False) if is_seen)
        return [*values, ""] if seen[-1] else values

    def _parse_numeric_categories(self) -> None:
        """Parse the names of the declared categories as numbers, with NaN for categories that no row has."""
        self._read: dict[int, NDArray[np.float64]] = {}
        problems = []
        for position in (one for one in self._positions if self._is_nominal(one)):
            attribute = self._file.attributes[position]
            numbers = np.full(len(attribute.allowed) + 1, np.nan)
            for number, value in enumerate(attribute.allowed):
                if not self._seen[position][number]:
                    continue
                try:
                    numbers[number] = float(value)
                except ValueError:
                    problems.append(f"{attribute.name} has the value {value!r:.60}, expected a number")
            self._read[position] = numbers
        if problems:
            raise ConversionError(self._dataset_id, problems[:20])

    def _measure_scale(self) -> None:
        """Read the table to compute the mean and the standard deviation of every column of the observation."""
        # The import takes a second.
        from sklearn.preprocessing import StandardScaler

        scaled = [
            position for position in self._positions if self._nominal != "onehot" or not self._is_nominal(position)
        ]
        indicators = [position for position in self._positions if position not in scaled]
        self._order = [*scaled, *indicators]
        self._width = len(scaled) + sum(len(self._values[position]) for position in indicators)
        self._mean, self._scale = np.zeros(self._width), np.ones(self._width)
        if not scaled:
            return
        scaler = StandardScaler(copy=False)
        for rows in self._file.rows([self._target, *self._positions]):
            kept = np.flatnonzero(self._kept_rows(rows))
            if len(kept):
                with np.errstate(over="ignore", invalid="ignore"):
                    scaler.partial_fit(np.array([self._numeric_values(rows, position, kept) for position in scaled]).T)
        self._mean[: len(scaled)], self._scale[: len(scaled)] = scaler.mean_, scaler.scale_
        self.counts["constant-column"] = int((scaler.var_ == 0).sum())
        huge = np.flatnonzero(~(np.isfinite(scaler.mean_) & np.isfinite(scaler.var_)))
        if len(huge):
            names = ", ".join(self._names[scaled[at]] for at in huge[:5])
            raise ConversionError(self._dataset_id, [f"{names} cannot be scaled: the numbers are too large"])

    def _design_matrix(self, rows: Rows, row_numbers: NDArray[np.intp]) -> NDArray[np.float64]:
        """Return the unscaled samples of the chosen rows, [T, width]."""
        out = np.zeros((self._width, len(row_numbers)))
        at = 0
        for position in self._order:
            if self._nominal == "onehot" and self._is_nominal(position):
                out[at + self._labels(rows, position, row_numbers), np.arange(len(row_numbers))] = 1
                at += len(self._values[position])
            else:
                out[at] = self._numeric_values(rows, position, row_numbers)
                at += 1
        return out.T

    def _numeric_values(self, rows: Rows, position: int, row_numbers: NDArray[np.intp]) -> NDArray[np.float64]:
        if position in rows.numbers:
            return rows.numbers[position][row_numbers]
        if self._nominal == "numbers":
            return self._read[position][rows.codes[position][row_numbers]]
        return self._labels(rows, position, row_numbers).astype(np.float64)

    def _labels(self, rows: Rows, position: int, row_numbers: NDArray[np.intp]) -> NDArray[np.int64]:
        """Return the categories of the chosen rows as numbers in the order of the names, [T]."""
        numbers = {value: number for number, value in enumerate(self._values[position])}
        declared = self._file.attributes[position].allowed
        # The last entry is for missing values, with the code -1.
        label_of = np.array([numbers.get(value, -1) for value in declared] + [len(numbers) - 1], np.int64)
        labels: NDArray[np.int64] = label_of[rows.codes[position][row_numbers]]
        return labels

    def _build_columns(self) -> list[Column]:
        return [
            Column(OBSERVATION, np.dtype(np.float64), (self._width,)),
            Column(ACTION, np.dtype(np.int64), ()),
            Column(NEXT_REWARD, np.dtype(np.float32), (1,)),
            *END_COLUMNS,
        ]

    def _build_metadata(self) -> dict[str, Any]:
        """Return the metadata to restore raw values: ``observation * scale + mean``, then the categories."""
        names: list[str] = []
        for position in self._order:
            indicators = self._nominal == "onehot" and self._is_nominal(position)
            name = self._names[position]
            names += [f"{name}={value}" for value in self._values[position]] if indicators else [name]
        categories = {
            self._names[position]: self._values[position] for position in self._order if self._is_nominal(position)
        }
        return {
            "mean": self._mean,
            "scale": self._scale,
            "columns": json.dumps(names),
            "categories": json.dumps(categories if self._nominal != "numbers" else {}),
            "classes": json.dumps(self._values[self._target]),
            "class": self._names[self._target],
        }

    def _count_decisions(self, recipe: Mapping[str, Any]) -> None:
        self.counts["row-is-an-episode"] = self.steps or 0
        self.counts["missing-is-a-value"] = sum(bool(seen[-1]) for seen in self._seen.values())
        self.counts["other-class"] = int("target" in recipe)

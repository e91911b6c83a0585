"""A table of samples and classes as episodes of one step.

    observation   the sample, as numbers
    action        its class, which is the one that was chosen
    reward        1: it is the right one. Any other class would have had 0, so that the reward of each is known.

The table is gone through twice, or three times: for the values that there are, for their means and deviations, and for
the steps. Only a few megabytes of it are held.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl.errors import ConversionError
from datasets_rl.format.schema import Column
from datasets_rl.read.arff import ArffFile, Rows
from datasets_rl.sources.base import Decision, EpisodeReader
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.ted.keys import ACTION, NEXT_REWARD, NEXT_TERMINATED, NEXT_TRUNCATED, OBSERVATION, Key

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["OpenMLReader"]

_PIECE_BYTES = 8 << 20
_TEXTS = {
    "row-is-an-episode": "rows became episodes of one step: the class is the action, and its reward is 1",
    "missing-values": "rows in which a value is missing were left out",
    "missing-is-a-value": "columns of categories lack values: that counts as a category of its own, the last one",
    "constant-column": "columns of the observation have one value only: they were centred and not scaled",
    "other-class": "a column that is not the dataset's own class is the action; the dataset's own was left out",
}


class OpenMLReader(EpisodeReader):
    """An opened table: its values are known, and their scale.

    Args:
        what: The dataset, for messages.
        path: The ARFF file.
        features: Name, kind and part of each column, as OpenML lists them.
        recipe: How samples become numbers. ``nominal`` is "codes" (categories are numbered in the order of their
            names, and scaled), "onehot" (an indicator for each category, behind the scaled numbers) or "numbers"
            (their names are numbers, and scaled); ``missing`` is "drop" (rows with a missing value are left out) or
            "category" (only those in which a number or the class is missing); ``target`` is the column of the class,
            where it is not the dataset's own.

    Raises:
        ConversionError: If the table is not the one that is listed, or breaks its own format.
    """

    def __init__(self, what: str, path: Path, features: Sequence[Mapping[str, str]], recipe: Mapping[str, Any]) -> None:
        self._what = what
        self._file = ArffFile(path)
        self._nominal: str = recipe["nominal"]
        self._drops = recipe["missing"] == "drop"
        self._names = [one["name"] for one in features]
        self._target, self._places = self._roles(features, recipe.get("target", ""))
        self._found: Counter[str] = Counter()
        self._seen = {
            place: np.zeros(len(self._file.attributes[place].allowed) + 1, np.bool_)
            for place in (self._target, *self._places)
            if self._is_nominal(place)
        }
        self.steps = self._learn_values()
        self._values = {place: self._ordered(place) for place in self._seen}
        if self._nominal == "numbers":
            self._as_numbers()
        self._learn_scale()
        self.columns = self._columns()
        self.metadata = self._metadata()
        self._count(recipe)
        self.decisions: list[Decision] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        """The file is open only while it is read."""

    def specs(self) -> Mapping[str, Any]:
        """Return the spec of the action: one of the classes."""
        count = len(self._values[self._target])
        return {"action": {"kind": "discrete", "shape": [], "dtype": "int64", "n": count}}

    def episodes(self, part: Any = None) -> Iterator[EpisodeBatch]:
        """Yield a step for each row, many at once."""
        del part
        size = max(1, _PIECE_BYTES // max(8 * self._width, 1))
        for rows in self._file.rows([self._target, *self._places]):
            kept = np.flatnonzero(self._kept(rows))
            for first in range(0, len(kept), size):
                chosen = kept[first : first + size]
                samples = np.ascontiguousarray((self._design(rows, chosen) - self._mean) / self._scale)
                classes = self._labels(rows, self._target, chosen)
                steps: dict[Key, NDArray[Any]] = {
                    OBSERVATION: samples,
                    ACTION: classes,
                    NEXT_REWARD: np.ones((len(chosen), 1), np.float32),
                    NEXT_TERMINATED: np.ones((len(chosen), 1), np.bool_),
                    NEXT_TRUNCATED: np.zeros((len(chosen), 1), np.bool_),
                }
                ones = np.ones(len(chosen), np.int64)
                # Where all rows are there, the number of an episode is that of its row, and need not be held.
                metadata = {"source": rows.start + chosen} if self._found["missing-values"] else {}
                yield EpisodeBatch(ones, steps, {}, {}, final_known=ones > 0, metadata=metadata)
        self.decisions = [Decision(rule, text, self._found[rule]) for rule, text in _TEXTS.items() if self._found[rule]]

    def _roles(self, features: Sequence[Mapping[str, str]], target: str) -> tuple[int, list[int]]:
        """Return the places of the class and of the columns that a sample consists of."""
        listed = [(one["name"], one["kind"]) for one in features]
        there = [(one.name, one.kind) for one in self._file.attributes]
        faults = []
        if listed != there:
            differ = [(a, b) for a, b in zip(listed, there, strict=False) if a != b][:3]
            faults.append(f"OpenML lists {len(listed)} columns, the file has {len(there)}; they differ in {differ}")
            raise ConversionError(self._what, faults)
        targets = [self._names.index(target)] if target in self._names else []
        if not target:
            targets = [place for place, one in enumerate(features) if one["part"] == "target"]
        if len(targets) != 1 or listed[targets[0]][1] != "nominal":
            found = ", ".join(f"{listed[place][0]} ({listed[place][1]})" for place in targets) or "none"
            faults.append(f"its class is {found}; expected one nominal column{f' {target}' if target else ''}")
        places = [place for place, one in enumerate(features) if one["part"] == "feature" and place not in targets[:1]]
        faults += [
            f"{listed[place][0]} is of type {listed[place][1]}; expected numeric or nominal"
            for place in places
            if listed[place][1] not in {"numeric", "nominal"}
        ]
        if not places:
            faults.append("it has no column but the class")
        if faults:
            raise ConversionError(self._what, faults)
        return targets[0], places

    def _is_nominal(self, place: int) -> bool:
        return self._file.attributes[place].kind == "nominal"

    def _learn_values(self) -> int:
        """Go through the table for the values that there are; return how many rows are kept."""
        total = kept_rows = 0
        for rows in self._file.rows([self._target, *self._places]):
            kept = self._kept(rows)
            total += rows.count
            kept_rows += int(kept.sum())
            for place, seen in self._seen.items():
                seen[rows.codes[place][kept]] = True
        if not kept_rows:
            raise ConversionError(self._what, [f"none of its {total:,} rows has all values"])
        self._found["missing-values"] = total - kept_rows
        return kept_rows

    def _kept(self, rows: Rows) -> NDArray[np.bool_]:
        kept = rows.codes[self._target] >= 0
        for place in self._places:
            if place in rows.numbers:
                kept &= ~np.isnan(rows.numbers[place])
            elif self._drops:
                kept &= rows.codes[place] >= 0
        return kept

    def _ordered(self, place: int) -> list[str]:
        """Return the values that a column has, in the order of their numbers; a missing one is last, and empty."""
        seen = self._seen[place]
        declared = self._file.attributes[place].allowed
        found = sorted(value for value, is_there in zip(declared, seen, strict=False) if is_there)
        return [*found, ""] if seen[-1] else found

    def _as_numbers(self) -> None:
        """Read the names of categories as numbers, for each declared one; NaN for those that nothing has."""
        self._read: dict[int, NDArray[np.float64]] = {}
        faults = []
        for place in (one for one in self._places if self._is_nominal(one)):
            attribute = self._file.attributes[place]
            numbers = np.full(len(attribute.allowed) + 1, np.nan)
            for number, value in enumerate(attribute.allowed):
                if not self._seen[place][number]:
                    continue
                try:
                    numbers[number] = float(value)
                except ValueError:
                    faults.append(f"{attribute.name} has the value {value!r:.60}; expected a number")
            self._read[place] = numbers
        if faults:
            raise ConversionError(self._what, faults[:20])

    def _learn_scale(self) -> None:
        """Go through the table for the mean and the deviation of every column of the observation."""
        # It takes a second to import.
        from sklearn.preprocessing import StandardScaler

        scaled = [place for place in self._places if self._nominal != "onehot" or not self._is_nominal(place)]
        indicators = [place for place in self._places if place not in scaled]
        self._order = [*scaled, *indicators]
        self._width = len(scaled) + sum(len(self._values[place]) for place in indicators)
        self._mean, self._scale = np.zeros(self._width), np.ones(self._width)
        if not scaled:
            return
        scaler = StandardScaler(copy=False)
        for rows in self._file.rows([self._target, *self._places]):
            kept = np.flatnonzero(self._kept(rows))
            if len(kept):
                with np.errstate(over="ignore", invalid="ignore"):
                    scaler.partial_fit(np.array([self._numbers(rows, place, kept) for place in scaled]).T)
        self._mean[: len(scaled)], self._scale[: len(scaled)] = scaler.mean_, scaler.scale_
        self._found["constant-column"] = int((scaler.var_ == 0).sum())
        huge = np.flatnonzero(~(np.isfinite(scaler.mean_) & np.isfinite(scaler.var_)))
        if len(huge):
            names = ", ".join(self._names[scaled[at]] for at in huge[:5])
            raise ConversionError(self._what, [f"{names} cannot be scaled: the numbers are too large"])

    def _design(self, rows: Rows, chosen: NDArray[np.intp]) -> NDArray[np.float64]:
        """Return the samples of some rows before they are scaled, [T, width]."""
        out = np.zeros((self._width, len(chosen)))
        at = 0
        for place in self._order:
            if self._nominal == "onehot" and self._is_nominal(place):
                out[at + self._labels(rows, place, chosen), np.arange(len(chosen))] = 1
                at += len(self._values[place])
            else:
                out[at] = self._numbers(rows, place, chosen)
                at += 1
        return out.T

    def _numbers(self, rows: Rows, place: int, chosen: NDArray[np.intp]) -> NDArray[np.float64]:
        if place in rows.numbers:
            return rows.numbers[place][chosen]
        if self._nominal == "numbers":
            return self._read[place][rows.codes[place][chosen]]
        return self._labels(rows, place, chosen).astype(np.float64)

    def _labels(self, rows: Rows, place: int, chosen: NDArray[np.intp]) -> NDArray[np.int64]:
        """Return the numbers of the categories of some rows, in the order of their names, [T]."""
        numbers = {value: number for number, value in enumerate(self._values[place])}
        declared = self._file.attributes[place].allowed
        # The last entry is for what is missing, whose code is -1.
        known = np.array([numbers.get(value, -1) for value in declared] + [len(numbers) - 1], np.int64)
        labels: NDArray[np.int64] = known[rows.codes[place][chosen]]
        return labels

    def _columns(self) -> list[Column]:
        flag = np.dtype(np.bool_)
        return [
            Column(OBSERVATION, np.dtype(np.float64), (self._width,)),
            Column(ACTION, np.dtype(np.int64), ()),
            Column(NEXT_REWARD, np.dtype(np.float32), (1,)),
            Column(NEXT_TERMINATED, flag, (1,)),
            Column(NEXT_TRUNCATED, flag, (1,)),
        ]

    def _metadata(self) -> dict[str, Any]:
        """Return what turns observations and actions back: ``observation * scale + mean``, then the categories."""
        names: list[str] = []
        for place in self._order:
            indicators = self._nominal == "onehot" and self._is_nominal(place)
            name = self._names[place]
            names += [f"{name}={value}" for value in self._values[place]] if indicators else [name]
        categories = {self._names[place]: self._values[place] for place in self._order if self._is_nominal(place)}
        return {
            "mean": self._mean,
            "scale": self._scale,
            "columns": json.dumps(names),
            "categories": json.dumps(categories if self._nominal != "numbers" else {}),
            "classes": json.dumps(self._values[self._target]),
            "class": self._names[self._target],
        }

    def _count(self, recipe: Mapping[str, Any]) -> None:
        self._found["row-is-an-episode"] = self.steps or 0
        self._found["missing-is-a-value"] = sum(bool(seen[-1]) for seen in self._seen.values())
        self._found["other-class"] = int("target" in recipe)

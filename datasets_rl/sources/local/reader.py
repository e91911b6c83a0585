"""Reader of custom datasets: files of flat rows, as ``dataset.toml`` describes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datasets_rl.errors import ConversionError, join_names
from datasets_rl.read.streams import ITEMS_MAX
from datasets_rl.sources.base import NO_TRANSITION, NOT_FINITE
from datasets_rl.sources.flat.arrays import ArrayFile
from datasets_rl.sources.flat.ends import Ends
from datasets_rl.sources.flat.layout import Field
from datasets_rl.sources.flat.plan import ColumnSlice, Plan
from datasets_rl.sources.flat.reader import Block, FlatReader
from datasets_rl.sources.local.description import FILE, Description, no_episode_numbers_error
from datasets_rl.sources.values import WIDENED, WIDENED_INTEGERS
from datasets_rl.ted.keys import Key, dotted_name

_TEXTS = {
    "same-row": "row i has the observation, the action taken in it, and the reward and flags of that action",
    "one-more": "an episode has one more observation than actions: the last one is the observation after the last "
    "action",
    "action-before": "row i has the observation and the action, reward and flags that led to it: these were moved one "
    "row up",
    "next-observation-rounded": "next observations differ from the observation of the next row only by rounding "
    "(docs/sources/d4rl.md states the limit): the observation of the next row was stored for both",
    "no-terminated": "the files have no flag for terminations: no step is marked terminated",
    "done-as-terminated": "the files do not distinguish terminations from time-outs: every end is marked terminated",
    "both-flags": "steps that are terminated and truncated keep both flags",
    "end-without-flag": "episodes end without a flag: their last step was marked truncated",
    **WIDENED_INTEGERS,
    "constant-reward": "the files have no rewards: every reward is the constant in the description",
    **NO_TRANSITION,
    "turned": "the axes of images were transposed as the description states",
    "final-observation-kept": "the observation after the last step of an episode was taken from the files",
    "final-observation-unknown": "the files do not store the observation after the last step of an episode",
    "unwritten-chunks": "chunks that were never written to the file have the fill value of their array",
    **NOT_FINITE,
    "left-out": "arrays that the description does not mention and that have no usual name were left out",
}


class LocalReader(FlatReader):
    """Reader of the files of a custom dataset, one after the other.

    Args:
        dataset_id: Id of the dataset, for messages.
        description: The description of the dataset.
        file_format: The format of the files.
        places: The local files, by name.
        first: Name of the file that defines the columns.
        chosen: Whether episodes were selected by number, which requires one episode per file.

    Raises:
        InvalidArgumentError: If episodes were selected by number, but a file is not a single episode.
        ConversionError: If the first file with a row is damaged, or does not match the description.
    """

    def __init__(
        self,
        dataset_id: str,
        description: Description,
        file_format: str,
        places: Mapping[str, Path],
        first: str,
        *,
        chosen: bool = False,
    ) -> None:
        self._chosen = chosen
        self._fields = description.fields
        paths = {name: path for name, path in places.items() if name != FILE}
        super().__init__(dataset_id, description, file_format, paths, {"first": first})
        self._limits = self._read_limits()
        self.rules = {**_TEXTS, "left-out": f"{_TEXTS['left-out']}: {join_names(self._plan.left_out, ITEMS_MAX)}"}
        self.metadata: Mapping[str, Any] = {"environment": description.environment} if description.environment else {}

    @override
    def specs(self) -> Mapping[str, Any]:
        fields = {field.key: field for field in self._fields}
        pairs = ((part, fields.get(part.column.key)) for part in self._plan.parts)
        return {
            dotted_name(part.column.key): spec
            for part, field in pairs
            if field and (spec := _spec_of_field(part, field))
        }

    @override
    def plan(self, file: ArrayFile) -> Plan:
        plan = super().plan(file)
        if self._chosen and plan.by != "file":
            raise no_episode_numbers_error(plan.by)
        return plan

    @override
    def failure(self, error: ConversionError, others: Sequence[str]) -> ConversionError:
        failure = super().failure(error, others)
        failure.hint = error.remedy or f"correct the files, or {FILE}"
        return failure

    @override
    def count_file(self, file: ArrayFile, plan: Plan, ends: Ends) -> None:
        super().count_file(file, plan, ends)
        arrays = [file.arrays[field.array] for field in plan.layout.fields_of(file.arrays) if field.array]
        # The unit of this rule is an array.
        self.counts["widened"] += sum(array.dtype in WIDENED for array in arrays) - plan.widened * len(ends.terminated)
        self.counts["left-out"] += len(plan.left_out)
        self.counts["turned"] += sum(bool(part.turn) for part in plan.parts)
        self.counts["constant-reward"] += len(ends.terminated) * any(part.constant is not None for part in plan.parts)

    @override
    def before(self, block: Block, ends: Ends, number: int) -> Mapping[str, NDArray[Any]]:
        self._check_limits(block)
        count = len(block.episodes)
        own = np.full(count, number) if self._plan.by == "file" else ends.numbers[block.episodes]
        return {"source": own.astype(np.int64), "file": np.full(count, number, np.int64)}

    def _read_limits(self) -> dict[Key, tuple[NDArray[Any], NDArray[Any]]]:
        """Return the least and the greatest value that the description states of fields, each for one step."""
        limits: dict[Key, tuple[Any, Any]] = {}
        specs = self.specs()
        for field in self._fields:
            spec = specs.get(dotted_name(field.key), {})
            if spec.get("kind") == "bounded":
                limits[field.key] = (spec["low"], spec["high"])
            elif spec:
                limits[field.key] = (0, spec.get("n", 2) - 1)
        return {key: (np.asarray(low), np.asarray(high)) for key, (low, high) in limits.items()}

    def _check_limits(self, block: Block) -> None:
        """Check the values of a block, [T, ...] each; NaN and infinity are in no bounds, and counted elsewhere."""
        problems, columns = [], {**block.steps, **block.states}
        for key, (low, high) in self._limits.items():
            if not isinstance(values := columns.get(key), np.ndarray):
                continue
            outside = (values < low) | (values > high)
            if values.dtype.kind == "f":
                outside &= np.isfinite(values)
            if not outside.any():
                continue
            row, *element = place = tuple(np.argwhere(outside)[0].tolist())
            least, most = (np.broadcast_to(limit, values.shape)[place] for limit in (low, high))
            problems.append(
                f"{dotted_name(key)}{element or ''} is {values[place]} at row {block.start + row:,}; "
                f"{FILE} states {least} to {most} ({outside.sum():,} such values)"
            )
        if problems:
            raise ConversionError(block.name, problems, hint=f"correct the bounds in {FILE}, or the file")


def _spec_of_field(column_slice: ColumnSlice, field: Field) -> dict[str, Any] | None:
    plain = {"dtype": column_slice.column.dtype.name, "shape": list(column_slice.column.shape)}
    if field.n is not None:
        return {"kind": "discrete", **plain, "n": field.n}
    if field.binary:
        return {"kind": "binary", **plain}
    if field.low is None:
        return None
    return {
        "kind": "bounded",
        **plain,
        "low": _bound_of_column(column_slice, field.low),
        "high": _bound_of_column(column_slice, field.high),
    }


def _bound_of_column(column_slice: ColumnSlice, value: Any) -> Any:
    bound = np.asarray(value).astype(column_slice.column.dtype)
    if column_slice.turn and bound.ndim:
        shape = [column_slice.column.shape[column_slice.turn.index(axis)] for axis in range(len(column_slice.turn))]
        bound = np.broadcast_to(bound, shape).transpose(column_slice.turn)
    return bound.tolist()

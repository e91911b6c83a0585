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
from datasets_rl.sources.flat.arrays import ArrayFile
from datasets_rl.sources.flat.ends import Ends
from datasets_rl.sources.flat.plan import Plan
from datasets_rl.sources.flat.reader import Block, FlatReader
from datasets_rl.sources.flat.rules import rules_of
from datasets_rl.sources.local.description import FILE, Description, no_episode_numbers_error
from datasets_rl.sources.values import WIDENED

_RULES = {
    **rules_of(
        "same-row",
        "one-more",
        "action-before",
        "next-observation-rounded",
        "no-terminated",
        "done-as-terminated",
        "both-flags",
        "end-without-flag",
        "widened",
        "no-transition",
        "final-observation-kept",
        "final-observation-unknown",
        "unwritten-chunks",
        "not-finite",
    ),
    "constant-reward": "the files have no rewards: every reward is the constant in the description",
    "turned": "the axes of images were transposed as the description states",
}
_LEFT_OUT = "arrays that the description does not mention and that have no usual name were left out"


class LocalReader(FlatReader):
    """Reader of the files of a custom dataset, in order.

    Args:
        dataset_id: Id of the dataset, for messages.
        files: The local files, by path.
        facts: `Listing.params`: the ``document`` and the ``format``, the name of the ``first`` file, which defines the
            columns, and whether episodes were ``chosen`` by number, which requires an episode per file.

    Raises:
        InvalidArgumentError: If episodes were selected by number, but a file is not a single episode.
        ConversionError: If the first file with a row is damaged, or does not match the description.
    """

    stated_in = FILE

    def __init__(self, dataset_id: str, files: Mapping[str, Path], facts: Mapping[str, Any]) -> None:
        description = Description.read(facts["document"], dataset_id)
        self._chosen: bool = facts["chosen"]
        name = dataset_id.partition("/")[2]
        paths = {path.removeprefix(f"{name}/"): file for path, file in files.items() if path != f"{name}/{FILE}"}
        super().__init__(dataset_id, description, facts["format"], paths, {"first": facts["first"]})
        self.rules = {**_RULES, "left-out": f"{_LEFT_OUT}: {join_names(self._plan.left_out, ITEMS_MAX)}"}
        self.metadata: Mapping[str, Any] = {"environment": description.environment} if description.environment else {}

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
        self.counts["widened"] += sum(array.dtype in WIDENED for array in arrays) - plan.widened * ends.steps
        self.counts["left-out"] += len(plan.left_out)
        self.counts["turned"] += sum(bool(part.turn) for part in plan.parts)
        self.counts["constant-reward"] += ends.steps * any(part.constant is not None for part in plan.parts)

    @override
    def before(self, block: Block, ends: Ends, number: int) -> Mapping[str, NDArray[Any]]:
        count = len(block.episodes)
        own = np.full(count, number) if self._plan.by == "file" else ends.numbers[block.episodes]
        return {"source": own.astype(np.int64), "file": np.full(count, number, np.int64)}

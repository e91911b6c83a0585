"""Reader of the folders of TorchRL as episodes, without a pickle being loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datasets_rl.errors import ConversionError, Remedy
from datasets_rl.read.tensordicts import TensorDictFolder
from datasets_rl.sources.flat import rings
from datasets_rl.sources.flat.arrays import ArrayFile
from datasets_rl.sources.flat.ends import Ends, find_ends, read_flags, union
from datasets_rl.sources.flat.plan import Plan
from datasets_rl.sources.flat.reader import Block, FlatReader
from datasets_rl.sources.flat.rules import rules_of
from datasets_rl.sources.rows import rows_in_chunk
from datasets_rl.sources.torchrl.arrays import STARTS, TensorDictFile, array_name
from datasets_rl.sources.torchrl.fields import Keys, is_compact, key_problems, keys_of
from datasets_rl.sources.torchrl.steps import IN_FILE_ORDER, MASKED, choose, open_steps, read_buffer
from datasets_rl.ted.keys import NEXT_FINAL_KNOWN, NEXT_REWARD, is_observation

__all__ = ["TorchRLReader"]

_RULES = {
    **rules_of(
        "next-observation-rounded",
        "no-terminated",
        "done-as-terminated",
        "done-as-truncated",
        "both-flags",
        "end-without-flag",
        "seam-without-flag",
        "widened",
        "no-transition",
        "final-observation-kept",
        "final-observation-unknown",
        "not-finite",
    ),
    "end-by-index": "an episode ends without a flag, because its number changes, or its sequence ends: the last row was marked "
    "truncated",
    "flag-within-trajectory": "a flag within the rows of a number of an episode ends the episode, too",
    "of-preceding-step": "rewards and flags beside next, which are those of the preceding step, were left out",
    **rings.RULES,
    MASKED: "padding, which the mask of a batch of trajectories marks, was left out",
    IN_FILE_ORDER: "the folder does not state which row of a full buffer is the oldest one: the rows have the order of the file",
    "final-placeholder": "states after the last step that are zeros, or the first state of the following episode, were taken as "
    "unknown",
}
_DENSE_HINT = (
    "write the steps without the hook: from torchrl.data import Flat2TED; buffer.register_load_hook(Flat2TED()); "
    "buffer.loads(FOLDER); buffer[:].memmap(NEW)"
)
_BROKEN_MIN = 4
_KEYS_HINT = "write the steps in TorchRL's format TED: observation, action, and in next observation, reward, done, terminated and truncated"


class TorchRLReader(FlatReader):
    """Reader of folders of TorchRL, each with a TensorDict of steps.

    Args:
        dataset_id: Id of the dataset, for messages.
        files: The local files, by path.
        facts: ``roots``, the paths of ``meta.json`` and of the document of the writer of each folder, by the name of the
            folder, and ``options`` of the source.

    Raises:
        ConversionError: If the first folder with a step is damaged, or its rows or keys are not certain.
    """

    rules = _RULES
    stated_in = "the folder"

    def __init__(self, dataset_id: str, files: Mapping[str, Path], facts: Mapping[str, Any]) -> None:
        self._options: Mapping[str, str] = facts["options"]
        self._writers: Mapping[str, Path | None] = {name: files.get(paths[1]) for name, paths in facts["roots"].items()}
        paths = {name: files[own[0]] for name, own in facts["roots"].items() if own[0] in files}
        folder = TensorDictFolder(next(iter(paths.values())).parent, next(iter(paths)))
        self._keys = self._keys_of(folder)
        self.left_out = self._keys.left_out
        self.metadata = {"/".join(key): value for key, value in folder.values.items()}
        layout = self._keys.layout(seams=self._options.get("order") == "none")
        super().__init__(dataset_id, layout, "tensordict", paths, {})

    def _keys_of(self, folder: TensorDictFolder) -> Keys:
        if is_compact(folder):
            problem = (
                "a save hook such as TED2Flat stored each state once, with the states of all episodes in one array"
            )
            raise ConversionError(folder.name, [problem], hint=_DENSE_HINT)
        keys = keys_of(folder, next_is_following=self._options.get("next") == "following")
        if problems := key_problems(folder, keys):
            is_next = len(problems) == 2 and not keys.following  # a problem, and the keys
            raise ConversionError(folder.name, problems, hint=choose("next", "following") if is_next else _KEYS_HINT)
        return keys

    @property
    @override
    def seams_remedy(self) -> Remedy:
        return Remedy("if the rows are in no order of time, {}", choose("order", "none"))

    @override
    def open_file(self, name: str) -> TensorDictFile:
        place = self._paths[name].parent
        folder = TensorDictFolder(place, name)
        buffer = read_buffer(place, self._writers[name], name)
        file, counts = open_steps(folder, buffer, self._keys_of(folder), self._options)
        file.decisions = counts
        return file

    @override
    def plan(self, file: ArrayFile) -> Plan:
        plan = super().plan(file)
        marks = {STARTS, array_name(self._keys.numbers)}
        return replace(plan, left_out=tuple(name for name in plan.left_out if name not in marks))

    @override
    def find_ends(self, file: ArrayFile, plan: Plan) -> Ends:
        file = cast("TensorDictFile", file)
        flags = read_flags(file, plan)
        ends = find_ends(file, plan, flags)
        if self._keys.numbers and not self._options.get("order"):
            _check_numbers(file, array_name(self._keys.numbers), ends, union(flags.values()))
        if not self._keys.numbers:
            ends.found["flag-within-trajectory"] = 0  # first rows are those of sequences, and not of episodes
        known = self._known_finals(file, plan, ends)
        self._unknown = np.flatnonzero(~known) if known is not None else np.empty(0, np.int64)
        return replace(ends, known=known)

    @override
    def count_file(self, file: ArrayFile, plan: Plan, ends: Ends) -> None:
        super().count_file(file, plan, ends)
        self.counts["of-preceding-step"] += len(self._keys.of_preceding) * ends.steps
        self.counts["final-placeholder"] += len(self._unknown) * (array_name(NEXT_FINAL_KNOWN) not in file.arrays)

    @override
    def before(self, block: Block, ends: Ends, number: int) -> Mapping[str, NDArray[Any]]:
        blank = np.isin(block.episodes, self._unknown)
        last = np.flatnonzero(block.ends)
        for key, after in block.following.items() if blank.any() else ():
            finals = after[last]
            finals[blank] = np.zeros((), finals.dtype)
            block.finals[key] = finals
        return {"file": np.full(len(last), number, np.int64)}

    def _known_finals(self, file: TensorDictFile, plan: Plan, ends: Ends) -> NDArray[np.bool_] | None:
        """Return whether the states after the last steps are states of the episode, [E], or None if all are.

        Raises:
            ConversionError: If some may stand for unknown states.
        """
        if self._options.get("finals") == "stored" or not plan.following or self._layout.seams:
            return None
        last = np.cumsum(ends.lengths) - 1
        if (stated := array_name(NEXT_FINAL_KNOWN)) in file.arrays:
            return file.take(stated, last).reshape(len(last)).astype(np.bool_)
        by_key = {part.column.key: part.array for part in plan.parts}
        pairs = [(by_key[key], name) for key, name in plan.following.items()]
        observed = [(by_key[key], name) for key, name in plan.following.items() if is_observation(key)]
        pairs = observed or pairs
        zeros, resets = _placeholders(file, pairs, last)
        if zeros.any() and _has_zero_rows(file, [own for own, _ in pairs]):
            zeros[:] = False
        doubtful = zeros | resets
        if not doubtful.any():
            return None
        if self._options.get("finals") == "unknown" or _is_of_d4rl(file):
            return ~doubtful
        kinds = [(zeros, "zeros"), (resets & ~zeros, "the first state of the following episode")]
        problems = [
            f"next has {what} after the last step of {mask.sum():,} of {len(last):,} episodes, which may stand for an unknown state"
            for mask, what in kinds
            if mask.any()
        ]
        raise ConversionError(file.name, problems, hint=choose("finals", "unknown", "stored"))


def _placeholders(
    file: TensorDictFile, pairs: Sequence[tuple[str, str]], last: NDArray[np.int64]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which states after the last steps are zeros, and which are the first state of the following episode, [E] each.

    Args:
        file: The file.
        pairs: The arrays of the states before and after a step.
        last: The last rows of the episodes, [E].
    """
    zeros, resets = np.ones(len(last), np.bool_), last < file.rows - 1
    chunk = rows_in_chunk(sum(3 * file.arrays[own].row_bytes for own, _ in pairs))
    for start in range(0, len(last), chunk):
        part = slice(start, start + chunk)
        rows = last[part]
        for own, name in pairs:
            finals, before, begun = (
                file.take(array, at).reshape(len(rows), -1)
                for array, at in ((name, rows), (own, rows), (own, np.minimum(rows + 1, file.rows - 1)))
            )
            zeros[part] &= ~finals.any(axis=1) & before.any(axis=1)
            resets[part] &= (finals == begun).all(axis=1) & (before != begun).any(axis=1)
    return zeros, resets


def _is_of_d4rl(file: TensorDictFile) -> bool:
    """Return whether the reward beside next is that of the preceding row, also at the first row of an episode.

    Only TorchRL's D4RL stores such rewards. It writes zeros where a state after the last step is unknown.
    """
    beside, after = array_name(NEXT_REWARD[1:]), array_name(NEXT_REWARD)
    if beside not in file.arrays:
        return False
    rewards, shifted = (np.asarray(file.read_all(name)).reshape(-1) for name in (after, beside))
    return not shifted[:1].any() and bool((shifted[1:] == rewards[:-1]).all())


def _check_numbers(file: TensorDictFile, name: str, ends: Ends, flagged: NDArray[np.int64]) -> None:
    """Check that most numbers of episodes do not come back after the rows of another episode.

    Raises:
        ConversionError: If they do, as in rows that are in no order.
    """
    stops = np.cumsum(ends.lengths)
    numbers = file.take(name, stops - ends.lengths).reshape(len(stops), -1)[:, 0]
    is_last = np.zeros(len(stops), np.bool_)
    is_last[len(stops) - 1 - np.unique(numbers[::-1], return_index=True)[1]] = True
    broken = np.flatnonzero(~is_last & ~np.isin(stops - 1, flagged))
    if 2 * len(broken) <= max(len(stops), _BROKEN_MIN):
        return
    row = int(stops[broken[0]])
    problem = f"{name} {numbers[broken[0]]} is interrupted at row {row:,} and comes back ({len(broken):,} such rows)"
    hint = Remedy("are the rows in the order of time? {}", choose("order", "file", "none"))
    raise ConversionError(file.name, [problem], hint=hint)


def _has_zero_rows(file: TensorDictFile, names: Sequence[str]) -> bool:
    """Return whether the states before a step are zeros in all of some arrays."""
    rows = rows_in_chunk(sum(file.arrays[name].row_bytes for name in names))
    for start in range(0, file.rows, rows):
        index = np.arange(start, min(start + rows, file.rows))
        blank = np.ones(len(index), np.bool_)
        for name in names:
            blank &= ~file.take(name, index).reshape(len(index), -1).any(axis=1)
        if blank.any():
            return True
    return False

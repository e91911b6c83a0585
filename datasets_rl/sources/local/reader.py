"""Reader of custom datasets: files of flat rows, as ``dataset.toml`` describes them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datasets_rl.errors import ConversionError, join_names
from datasets_rl.read.streams import ITEMS_MAX
from datasets_rl.sources.base import Decision
from datasets_rl.sources.flat import nan_padding, rings
from datasets_rl.sources.flat.arrays import ArrayFile
from datasets_rl.sources.flat.ends import Ends, find_ends, read_flags
from datasets_rl.sources.flat.equal import EQUAL, EqualEpisodes
from datasets_rl.sources.flat.folders import data_folders
from datasets_rl.sources.flat.formats import files_beside
from datasets_rl.sources.flat.image_paths import BY_NAME, NOT_TURNED
from datasets_rl.sources.flat.measured import counted
from datasets_rl.sources.flat.plan import Plan, is_empty
from datasets_rl.sources.flat.reader import Block, FlatReader
from datasets_rl.sources.flat.rules import rules_of
from datasets_rl.sources.flat.videos import QUALITY, TO_JPEG, FilesBeside, VideosFile
from datasets_rl.sources.local import beside, doubts
from datasets_rl.sources.local.checks import check_rows
from datasets_rl.sources.local.description import FILE, Description, no_episode_numbers_error
from datasets_rl.sources.local.evidence import (
    arranged,
    check_files_beside,
    with_evidence,
    with_flags_of_episodes,
    with_success,
)
from datasets_rl.sources.local.several import Tail, check_begun, check_parts, check_same_marks, tail_of
from datasets_rl.sources.values import WIDENED
from datasets_rl.ted.episode import Episode
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.ted.keys import NEXT_REWARD

_RULES = {
    **rules_of(
        "same-row",
        "one-more",
        "action-before",
        "next-observation-rounded",
        "no-terminated",
        "done-as-terminated",
        "done-as-truncated",
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
    "no-reward": "the files have no rewards: every reward is 0",
    "by-starts": "an array marks the first rows of episodes",
    "by-last-rows": "an array marks the last rows of episodes",
    "by-steps": "an array numbers the rows of each episode",
    "by-seams": "an episode ends where the state after a step is not the state of the next row",
    "by-axis": "the first axis of the arrays counts the episodes, and the second axis counts the rows",
    "by-group": "each group of arrays is an episode",
    "by-suffix": "the number at the end of the name of an array is the number of the episode",
    BY_NAME: "paths of images are paths of another place: the images were found by the names of the files",
    NOT_TURNED: "images state another orientation in their EXIF metadata: the pixels were stored as in the file, not turned",
    TO_JPEG: f"frames of videos became JPEG images of quality {QUALITY}, with a loss",
    "missing-records": "numbers are missing in the names of the records of a tub: the records around are consecutive steps",
    "deleted-rows": "rows that the manifest of a tub marks as deleted were left out",
    "session-split": "rows are missing within a session: the rows after them are another episode",
    "time-not-later": "the times in the names of images do not rise: the rows keep the order of the file",
    **doubts.RULES,
    **rings.RULES,
    **nan_padding.RULES,
    **EQUAL,
    "other-delimiter": "the columns of a CSV file are separated by semicolons, tabs or spaces",
    "decimal-comma": "the numbers of a CSV file have a decimal comma",
    "unended-line": "the last line of a CSV file has no line end, as the last line of a truncated file",
    "rows-of-episodes-joined": "rows of episodes that alternate in the file were put together, by eps_id and t",
    "next-observation-measured": "next observations were compared with the observations, and are the observations of the "
    "following rows. The count is that of the compared rows",
    "states-measured": "states of the simulator were compared with the observations, and are from before the action of the row. "
    "The count is that of the compared rows",
    "states-not-measured": "files have too few rows to compare the states of the simulator with the observations: the states "
    "were stored as states before the actions",
    "attributes-of-files": "an attribute of a file, such as its environment or rate, is not that of the first file, which "
    "the metadata has",
    "success-of-episodes": "the success of each episode is in the table of episodes",
    "turned": "the axes of images were transposed as the description states",
}
_RATES = ("fps", "control_frequency", "control_freq")
_ENVIRONMENTS = ("environment", "env_id", "env_name", "environment_id", "environment_name", "env")
"""Names of attributes of a file that hold for the other files of the dataset, too. Others may be those of an episode."""
_MISSING = "numbers are missing in the names of the files: they were taken as deleted files"
_ATTRIBUTES = "attributes of the groups of episodes are columns of the table of episodes"
_LEFT_OUT = "arrays that the description does not mention and that have no usual name were left out"


class LocalReader(FlatReader):
    """Reader of the files of a custom dataset, in order.

    Args:
        dataset_id: Id of the dataset, for messages.
        files: The local files, by path.
        facts: `Listing.params`: the ``document`` and the ``format``, the name of the ``first`` file, which defines the
            columns, whether the dataset is a single file, ``alone``, and whether episodes were ``chosen`` by number, which
            requires an episode per file.

    Raises:
        InvalidArgumentError: If episodes were selected by number, but a file is not a single episode.
        ConversionError: If the first file with a row is damaged, or does not match the description.
    """

    stated_in = FILE

    def __init__(self, dataset_id: str, files: Mapping[str, Path], facts: Mapping[str, Any]) -> None:
        description = Description.read(facts["document"], dataset_id)
        self._chosen: bool = facts["chosen"]
        self._alone: bool = facts["alone"]
        self._first = 0
        """Number of the first episode of the block, where the file does not number the episodes."""
        self._missing: int = facts.get("missing_files", 0)
        self._images: int = facts.get("unnamed_images", 0)
        """Number of the images in the folder that no column names."""
        self._videos: int = facts.get("unnamed_videos", 0)
        self._episodes = EqualEpisodes()
        self._numbers: Mapping[str, NDArray[Any]] = {}
        """Numbers of each episode of the present file, [E] each, that attributes state."""
        self._unused: Sequence[str] = ()
        """Names of the attributes of groups in the first file that are left out."""
        self._attributes: Mapping[str, str | float | bool] = {}
        """Attributes of the first file that hold for all files."""
        self._success: NDArray[Any] | None = None
        """Success of each episode of the present file, [E], if the files have this."""
        name = dataset_id.partition("/")[2]
        paths = {path.removeprefix(f"{name}/"): file for path, file in files.items() if path != f"{name}/{FILE}"}
        folders = data_folders(paths, facts["format"])
        # A file stands for a folder.
        members = {member for folder in folders.values() for member in folder.members} - folders.keys()
        paths = {path: file for path, file in paths.items() if path not in members}
        shown = {*files_beside(facts["format"], paths)}
        others = {path: file for path, file in paths.items() if path in shown}
        paths = {path: file for path, file in paths.items() if path not in shown}
        self._data: Sequence[str] = facts["tables"]
        """Paths of all data files, in order."""
        self._present = ""
        """Path of the present file."""
        self._arrays: Sequence[str] = ()
        """Names of the arrays of the first file."""
        self._tail: Tail | None = None
        """End of the file before."""
        self._beside = FilesBeside(others, facts["tables"], facts["images"])
        super().__init__(dataset_id, description, facts["format"], paths, {"first": facts["first"]})
        self.rules = {
            **_RULES,
            "left-out": f"{_LEFT_OUT}: {join_names([*self._plan.left_out, *self._unused], ITEMS_MAX)}",
            "attributes-of-episodes": f"{_ATTRIBUTES}: {join_names([*self._plan.of_episodes], ITEMS_MAX)}",
        }
        self.metadata: Mapping[str, Any] = self._attributes
        if environment := description.environment or _environment(self._attributes):
            self.metadata = {**self._attributes, "environment": environment}

    @override
    def episodes(self, part: Any = None) -> Iterator[Episode | EpisodeBatch]:
        self._episodes = EqualEpisodes()
        self._tail = self._tail_before(part)
        yield from super().episodes(part)

    def _tail_before(self, part: Any) -> Tail | None:
        """Return the end of the file before the first file of a part, if this file is among the files."""
        number = part[0][1] if part else 0
        before = self._data[number - 1] if number else ""
        if before not in self._paths:
            return None
        with self.open_file(before) as file:
            if is_empty(file, self._layout):
                return None
            plan = self.plan(file)
            return tail_of(file, plan, find_ends(file, plan, read_flags(file, plan)))

    @property
    @override
    def decisions(self) -> Sequence[Decision]:
        own = {"missing-files": self._missing, beside.IMAGES: self._images, beside.VIDEOS: self._videos}
        texts = {"missing-files": _MISSING, **beside.RULES}
        counted = [Decision(rule, texts[rule], count, of_dataset=True) for rule, count in own.items() if count]
        return [*super().decisions, *counted]

    @override
    def open_file(self, name: str) -> ArrayFile:
        file = super().open_file(name)
        self._present = name
        try:
            return self._beside.shown_in(arranged(file, self._layout), name)
        except BaseException:
            file.__exit__(None, None, None)
            raise

    @override
    def plan(self, file: ArrayFile) -> Plan:
        if isinstance(file, VideosFile):
            check_files_beside(file, self._layout)
        plan = super().plan(file)
        plan = with_flags_of_episodes(file, plan) if self._layout.by else with_evidence(file, plan)
        known = {*file.padding, *file.contained}
        plan = replace(plan, left_out=tuple(name for name in plan.left_out if name not in known))
        plan = with_success(file, plan)
        taken = {"success"} if plan.success else set()
        numbers = {name: one.dtype for name, one in file.of_episodes.items() if name not in taken}
        plan = replace(plan, of_episodes=numbers)
        _check_missing_reward(file, plan)
        doubts.check_unreadable(file, self._layout)
        doubts.check_texts(file, self._layout)
        if self._known is not None:
            check_same_marks(file, plan, self._plan, self._arrays)
        if self._known is None:
            self._unused, self._arrays = file.unused, [*file.arrays]
            of_all = {*_RATES, *_ENVIRONMENTS}
            self._attributes = {name: value for name, value in file.attributes.items() if self._alone or name in of_all}
        if self._known is not None and bool(plan.success) != bool(self._plan.success):
            verb = "has the" if plan.success else "lacks the"
            raise ConversionError(file.name, [f"it {verb} success of each episode, unlike the first file"])
        if self._known is not None and plan.of_episodes != self._plan.of_episodes:
            stated, first = (
                join_names([f"{name} {one}" for name, one in each.items()], ITEMS_MAX) or "none"
                for each in (plan.of_episodes, self._plan.of_episodes)
            )
            raise ConversionError(
                file.name, [f"the attributes of groups with numbers are {stated}, but {first} in the first file"]
            )
        if self._chosen and plan.by != "file":
            raise no_episode_numbers_error(plan.by)
        return plan

    @override
    def find_ends(self, file: ArrayFile, plan: Plan) -> Ends:
        ends = find_ends(file, plan, read_flags(file, plan))
        if not self._alone:
            check_parts(file, plan, self._present, self._data)
            check_begun(self._tail, file, plan)
            self._tail = tail_of(file, plan, ends)
        beside.check_shown(file, plan, ends, self._images, len(self._data))
        self._videos = max(self._videos, len(beside.unshown_videos(file)))
        matches = check_rows(file, plan, ends, alone=self._alone)
        self._success = None
        self._numbers = {name: file.of_episodes[name] for name in plan.of_episodes}
        if plan.success:
            values = file.scalars.get(plan.success)
            self._success = np.asarray(file.read_all(plan.success) if values is None else values).reshape(-1)
        return replace(ends, found=Counter({**ends.found, **counted(matches)}))

    @override
    def failure(self, error: ConversionError, others: Sequence[str]) -> ConversionError:
        failure = super().failure(error, others)
        failure.hint = error.remedy or f"correct the files, or {FILE}"
        return failure

    @override
    def count_file(self, file: ArrayFile, plan: Plan, ends: Ends) -> None:
        super().count_file(file, plan, ends)
        arrays = [file.arrays[field.array] for field in plan.layout.fields_of(file.readable) if field.array]
        # The unit of this rule is an array.
        self.counts["widened"] += sum(array.dtype in WIDENED for array in arrays) - plan.widened * ends.steps
        if isinstance(file, VideosFile):
            self.counts.update(file.count_rules([part.array for part in plan.parts if part.column.key in self.kept]))
        self.counts["left-out"] += len(plan.left_out) + len(file.unused)
        self.counts["attributes-of-files"] += sum(
            file.attributes.get(name) != value for name, value in self._attributes.items()
        )
        self.counts["attributes-of-episodes"] += len(plan.of_episodes) * int((ends.lengths > 0).sum())
        self.counts.update(doubts.count_doubts(file, plan, ends))
        self.counts["success-of-episodes"] += 0 if self._success is None else int((ends.lengths > 0).sum())
        self.counts["turned"] += sum(bool(part.turn) for part in plan.parts)
        is_stated = any(not field.array for field in self._layout.fields)
        has_constant = any(part.constant is not None for part in plan.parts)
        self.counts["constant-reward" if is_stated else "no-reward"] += ends.steps * has_constant

    @override
    def before(self, block: Block, ends: Ends, number: int) -> Mapping[str, NDArray[Any]]:
        count = int(block.ends.sum())
        self._count_equal(block)
        if self._plan.by == "file":
            own = np.full(count, number)
        elif self._layout.seams:
            self._first = self._first * (block.start > 0)
            own = self._first + np.arange(count)
            self._first += count
        else:
            own = ends.numbers[block.episodes]
        if f"by-{self._plan.by}" in _RULES:
            self.counts[f"by-{self._plan.by}"] += count
        metadata = {"source": own.astype(np.int64), "file": np.full(count, number, np.int64)}
        metadata |= {name: values[block.episodes] for name, values in self._numbers.items()}
        return metadata if self._success is None else {**metadata, "success": self._success[block.episodes]}

    def _count_equal(self, block: Block) -> None:
        """Count the rows and the episodes of a block that are equal to earlier rows and episodes, in all fields."""
        columns = [*block.steps.values(), *block.states.values()]
        if self.kept != {column.key for column in self.columns}:
            return
        self.counts.update(self._episodes.counts(columns, block.ends))


def _environment(attributes: Mapping[str, Any]) -> str:
    """Return the environment that attributes state, or an empty text."""
    stated = (attributes.get(name) for name in _ENVIRONMENTS)
    return next((name for name in stated if isinstance(name, str)), "")


def _check_missing_reward(file: ArrayFile, plan: Plan) -> None:
    """Check that a file without a known reward has no array that may be the reward.

    Raises:
        ConversionError: If an array without a known name has a number for each row.
    """
    if plan.layout.missing_reward is None or not any(part.constant is not None for part in plan.parts):
        return
    if any(field.key == NEXT_REWARD for field in plan.layout.fields):
        return  # stated by the user
    rows = next(file.arrays[name].rows for name in plan.step_arrays)
    left_out = {name: file.arrays[name] for name in plan.left_out if file.arrays[name].rows == rows}
    maybe = [
        name
        for name, array in left_out.items()
        if array.shape in {(), (1,)} and array.dtype.kind in "iuf" and not array.text and not array.encoded
    ]
    if maybe:
        problem = f"no array is described or named as the reward, and {join_names(maybe, ITEMS_MAX)} may be the reward"
        hint = f"state in {FILE}, [fields], reward = {maybe[0]!r}, or reward = 0.0 for steps without rewards"
        raise ConversionError(file.name, [problem], hint=hint)

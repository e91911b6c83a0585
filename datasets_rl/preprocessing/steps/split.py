"""The split into episodes for training and for validation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.format.copies import first_copies_among, joined, telling_fingerprints
from datasets_rl.format.reader import StoredDataset
from datasets_rl.format.split_mix import GOLDEN
from datasets_rl.preprocessing.base import DataStep
from datasets_rl.preprocessing.steps._fields import random_floats, unit_floats
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.ted.keys import as_key

if TYPE_CHECKING:
    from datasets_rl.preprocessing.merge import Stored

_SILVER = np.uint64(0x6A09E667F3BCC909)
"""The fractional part of the silver ratio, 1 + sqrt(2), times 2^64."""
_BLOCK = 1 << 18

Mask = NDArray[np.bool_]
Numbers = NDArray[np.int64]


@dataclass
class Split(DataStep):
    """Keep the episodes for training, or for validation.

    The number of an episode at its source decides: it is for validation if the fractional part of its product with the
    golden ratio, shifted by the seed, is less than `validation`. These fractional parts fill the unit interval evenly
    (a Weyl sequence), so that the share also holds among a few episodes, and among every second or tenth of them. Where
    each file counts its episodes from 0, the number of the file decides as well, times the silver ratio. In a merge, the
    number is that in the merge.

    Copies of an episode are on one side: the first of them, by its number, decides for all. Two episodes of the dataset that
    the recipe reads are copies if their fingerprints are equal in all observations and actions with information, whatever
    steps are before this one. Episodes without information, such as scripted ones, have no copies.

    With `groups`, whole groups are on one side. In the order of these fractional parts, each group that brings the share closer to
    `validation` is for validation. Groups that have copies of one episode are one group.

    Args:
        part: "train" or "validation". Each episode is in exactly one of these parts.
        validation: The share of episodes for validation, between 0 and 1.
        seed: The seed of the split.
        groups: A column of the episodes, or a field of the steps that does not change within an episode, such as a task. The
            episodes of a value are a group.
    """

    part: Literal["train", "validation"]
    validation: float = 0.1
    seed: int = 0
    groups: str = ""
    _is_validation: Mask | None = field(default=None, init=False, repr=False, compare=False)
    _counts: Mapping[str, int] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 0 < self.validation < 1:
            raise InvalidArgumentError(f"validation is {self.validation}, expected a number between 0 and 1")

    @override
    def prepare(self, stored: Stored) -> None:
        from datasets_rl.preprocessing.merge import MergedDataset, member_datasets

        members = member_datasets(stored)
        sources = stored.numbers if isinstance(stored, MergedDataset) else [stored.episodes["source"]]
        source = np.concatenate(sources)
        has_files = all("file" in member.episodes.names for member in members)
        file = np.concatenate([member.episodes["file"] for member in members]) if has_files else np.zeros_like(source)
        copies = first_copies_among([telling_fingerprints(member) for member in members])
        groups = _groups_of(members, self.groups) if self.groups else None
        self._is_validation = self.assign(source, file, copies, groups)
        self._counts = {
            "copies": int((np.bincount(copies)[copies] > 1).sum()),
            "groups": 0 if groups is None else len(np.unique(groups)),
            "episodes": len(copies),
            "validation_episodes": int(self._is_validation.sum()),
        }

    def assign(
        self, source: NDArray[Any], file: NDArray[Any], copies: NDArray[Any], groups: NDArray[Any] | None = None
    ) -> Mask:
        """Return which of E episodes are for validation, [E].

        Args:
            source: The number of each episode in its file, or at its source, [E].
            file: The number or the name of the file of each episode, [E]. Copies and parts of an episode share both.
            copies: A label of each episode, which copies share, [E].
            groups: A label of the group of each episode, [E]. None without groups.

        Raises:
            InvalidArgumentError: If all episodes are one group.
        """
        order = np.lexsort((source, file))
        is_new = np.append(True, source[order][1:] != source[order][:-1])
        is_new[1:] |= file[order][1:] != file[order][:-1]
        same = np.empty_like(order)
        same[order] = np.cumsum(is_new)
        labels = [copies, same] if groups is None else [copies, same, groups]
        unit = np.unique(joined(labels), return_inverse=True)[1].reshape(-1)
        first = order[np.unique(unit[order], return_index=True)[1]]
        positions = self._positions(source[first], file[first])
        if groups is None:
            chosen = positions < self.validation
        else:
            chosen = self._choose_groups(np.bincount(unit), np.lexsort((source[first], file[first], positions)))
        return chosen[unit]

    @property
    def fitted(self) -> Mapping[str, Any]:
        """The number of episodes, of those with copies, of those for validation, and of groups, in the dataset that the recipe reads."""
        return self._counts

    @override
    def __call__(self, batch: EpisodeBatch) -> EpisodeBatch | None:
        if self._is_validation is not None:
            is_validation = self._is_validation[batch.numbers]
        elif self.groups:
            raise InvalidArgumentError(
                f"the groups of {self.groups} are unknown, expected a recipe that is prepared with the dataset"
            )
        else:
            source = np.asarray(batch.metadata.get("source", batch.numbers))
            file = np.asarray(batch.metadata.get("file", np.zeros_like(source)))
            is_validation = self._positions(source, file) < self.validation
        kept = is_validation == (self.part == "validation")
        return batch.select_episodes(kept) if kept.any() else None

    def _positions(self, source: NDArray[Any], file: NDArray[Any]) -> NDArray[np.float64]:
        """Return a number in [0, 1) of each episode, [E], by which it is for validation or not."""
        offsets = file.astype(np.uint64) * _SILVER if file.dtype.kind in "iu" else np.uint64(0)
        shift = random_floats(self.seed, np.zeros(1, np.int64), np.zeros(1, np.int64))
        positions: NDArray[np.float64] = (unit_floats(source.astype(np.uint64) * GOLDEN + offsets) + shift) % 1
        return positions

    def _choose_groups(self, sizes: Numbers, order: Numbers) -> Mask:
        """Return which groups are for validation, [G], given the number of episodes of each, and the order in which they are asked."""
        if len(sizes) < 2:
            raise InvalidArgumentError(
                f"all {int(sizes[0]):,} episodes are of one group of {self.groups}, or its groups have copies of the same episodes, "
                "expected at least two groups",
                hint="name another column or field",
            )
        chosen, missing = np.zeros(len(sizes), np.bool_), self.validation * int(sizes.sum())
        for group in order.tolist():
            if sizes[group] < 2 * missing:
                chosen[group] = True
                missing -= int(sizes[group])
        smallest = order[np.argmin(sizes[order])]
        if not chosen.any() or chosen.all():
            chosen[smallest] = not chosen[smallest]
        return chosen


def splits_in(steps: Sequence[Mapping[str, Any]], fitted: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a sentence for each split of a recipe: how many episodes there are, and how many were kept together.

    Args:
        steps: The steps as JSON.
        fitted: What the steps were fitted to, by the place and the name of the step: ``0.split/copies``.
    """
    sentences = []
    for place, step in enumerate(steps):
        count = {name.rpartition("/")[2]: value for name, value in fitted.items() if name.startswith(f"{place}.split/")}
        if count:
            parts = [f"{count['validation_episodes']:,} of {count['episodes']:,} episodes are for validation"]
            if step.get("groups"):
                parts.append(f"{count['groups']:,} groups of {step['groups']} are whole")
            if count["copies"]:
                parts.append(f"{count['copies']:,} episodes that are copies of each other are on one side")
            sentences.append(", ".join(parts))
    return tuple(sentences)


def _groups_of(members: Sequence[StoredDataset], name: str) -> Numbers:
    """Return a number for the group of each episode of all datasets, [E].

    Raises:
        InvalidArgumentError: If a dataset has no such column or field, an episode has no value, or the value changes in an episode.
    """
    values = [_values(member, name).reshape(len(member.episodes), -1) for member in members]
    sizes = {one.shape[1] for one in values}
    if len(sizes) > 1:
        raise InvalidArgumentError(
            f"{name} has {' and '.join(map(str, sorted(sizes)))} elements, expected one size in all datasets"
        )
    for member, one in zip(members, values, strict=True):
        is_missing = np.isnan(one) if one.dtype.kind == "f" else one == ("" if one.dtype.kind == "U" else None)
        if missing := np.flatnonzero(is_missing.any(axis=1)).tolist():
            raise InvalidArgumentError(
                f"{len(missing):,} of {len(one):,} episodes of {member.manifest.id} have no {name}, the first is episode {missing[0]:,}, "
                "expected a group for each episode",
                hint="drop these episodes, or name another column or field",
            )
    return np.unique(np.concatenate(values), axis=0, return_inverse=True)[1].reshape(-1)


def _values(stored: StoredDataset, name: str) -> NDArray[Any]:
    """Return the value of each episode of a column of the episodes, or of a field of the steps, [E, ...]."""
    table = stored.episodes
    if name in table.metadata_names:
        return np.asarray(table[name])
    fields = {one.name: one for one in stored.schema if not one.wide}
    if name not in fields:
        raise InvalidArgumentError(
            f"{stored.manifest.id} has no {name}, expected one of its columns of episodes, {', '.join(table.metadata_names)}, or of its "
            f"fields, {', '.join(fields)}"
        )
    key = as_key(name)
    firsts = stored.take_fields([key], table.starts)[0]
    for start in range(0, len(stored), _BLOCK):
        rows = np.arange(start, min(start + _BLOCK, len(stored)))
        episodes = table.episode_of(rows)
        differ = (stored.column(key, start, int(rows[-1]) + 1) != firsts[episodes]).reshape(len(rows), -1).any(axis=1)
        # A NaN differs from itself.
        differ &= rows != table.starts[episodes]
        if differ.any():
            row = int(np.argmax(differ))
            episode = int(episodes[row])
            raise InvalidArgumentError(
                f"{name} changes in episode {episode:,} of {stored.manifest.id}, at step {rows[row] - table.starts[episode]:,}, expected one "
                "value in all steps of an episode",
                hint="divide the episode there with the step split_episodes, or name another column or field",
            )
    if fields[name].text:
        firsts = np.array(stored.texts(key))[firsts]
    return firsts

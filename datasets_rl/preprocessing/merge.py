"""Several stored datasets, one behind the other, as if they were one: what a merge reads."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from datasets_rl.errors import InvalidArgumentError, PreprocessError
from datasets_rl.format.manifest import Manifest
from datasets_rl.format.reader import StoredDataset
from datasets_rl.format.schema import Column, Schema
from datasets_rl.preprocessing.blocks import blocks
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.ted.keys import dotted
from datasets_rl.ted.table import EpisodeTable

__all__ = [
    "DATASET",
    "MergedDataset",
    "Stored",
    "check_alike",
    "check_not_replaced",
    "files_digest",
    "members",
    "merged_manifest",
    "opened",
]

DATASET = ("dataset",)
"""Which of the datasets a step of a merge is from, int64 [N], from 0 in their order."""


def opened(folders: Sequence[str]) -> StoredDataset | MergedDataset:
    """Open a dataset, or several as one.

    Raises:
        InvalidArgumentError: If one of several says itself which dataset its steps are from: that would be lost.
    """
    found = [StoredDataset(Path(folder)) for folder in folders]
    if len(found) == 1:
        return found[0]
    if taken := [str(one.folder) for one in found if DATASET in one.schema]:
        raise InvalidArgumentError(
            f"{', '.join(taken)} has a field {dotted(DATASET)} already; a merge says there which one each step is from",
            hint=f"merge all of them at once, or drop it before: -t exclude:{dotted(DATASET)}",
        )
    return MergedDataset(found)


@dataclass(frozen=True)
class MergedDataset:
    """Datasets one behind the other; episodes are counted through, and no block has some of two of them.

    episode    |  0  1  2  |  3  4  |        datasets of 3 and 2 episodes
    dataset       0  0  0     1  1
    """

    members: Sequence[StoredDataset]

    def __len__(self) -> int:
        """Return N, of all."""
        return sum(map(len, self.members))

    @property
    def schema(self) -> Schema:
        """The fields of the first one, for their order and their size."""
        return self.members[0].schema

    @property
    def folder(self) -> Path:
        """The folder of the first one."""
        return self.members[0].folder

    @cached_property
    def manifest(self) -> Manifest:
        """What is known of all."""
        return merged_manifest([one.manifest for one in self.members], [one.folder for one in self.members])

    @cached_property
    def episodes(self) -> EpisodeTable:
        """Where each episode lies."""
        return EpisodeTable.from_lengths(np.concatenate([one.episodes.lengths for one in self.members]))

    @property
    def firsts(self) -> list[int]:
        """The first episode of each, and the one behind all."""
        return [0, *np.cumsum([len(one.episodes) for one in self.members]).tolist()]

    def blocks(self, first: int, stop: int, most: int) -> Iterator[EpisodeBatch]:
        """Yield the episodes [first, behind) in blocks of about `most` steps, with the number of their dataset."""
        shared = set.intersection(*(set(one.episodes.names) for one in self.members))
        for number, (one, start) in enumerate(zip(self.members, self.firsts, strict=False)):
            low, high = max(first - start, 0), min(stop - start, len(one.episodes))
            for block in blocks(one, low, high, most) if low < high else ():
                yield replace(
                    block,
                    steps={**block.steps, DATASET: np.full(block.count, number)},
                    metadata={name: values for name, values in block.metadata.items() if name in shared},
                    numbers=block.numbers + start,
                )


Stored = StoredDataset | MergedDataset
"""What a recipe reads."""


def members(stored: Stored) -> Sequence[StoredDataset]:
    """Return the datasets that are read: one, or those of a merge."""
    return stored.members if isinstance(stored, MergedDataset) else [stored]


def check_not_replaced(manifests: Sequence[Manifest], digests: Sequence[str]) -> None:
    """Let datasets pass whose bytes are those that a run began with.

    Raises:
        PreprocessError: If another process replaced one.
    """
    for manifest, digest in zip(manifests, digests, strict=True):
        if files_digest(manifest) != digest:
            raise PreprocessError(f"{manifest.id} was replaced by another process meanwhile", hint="run it again")


def merged_manifest(manifests: Sequence[Manifest], folders: Sequence[Path]) -> Manifest:
    """Return what is known of several datasets together: sums, and what is the same in all.

    The specs of a field are kept where they are equal; metadata stands under the number of its dataset. The history
    begins with what each of them was.
    """
    first = manifests[0]
    everything = [(number, one, folder) for number, (one, folder) in enumerate(zip(manifests, folders, strict=True))]
    history = {
        "merged": [
            {
                "id": one.id,
                "steps": one.steps,
                "episodes": one.episodes,
                "files": files_digest(one),
                "history": [dict(done) for done in one.history],
            }
            for one in manifests
        ]
    }
    return replace(
        first,
        id=" + ".join(one.id for one in manifests),
        steps=sum(one.steps for one in manifests),
        episodes=sum(one.episodes for one in manifests),
        final_unknown=sum(one.final_unknown for one in manifests),
        files=tuple(replace(file, path=f"{number}/{file.path}") for number, one, _ in everything for file in one.files),
        raw=tuple(dict.fromkeys(file for one in manifests for file in one.raw)),
        decisions=tuple(decision for one in manifests for decision in one.decisions),
        known_issues=tuple(dict.fromkeys(fault for one in manifests for fault in one.known_issues)),
        specs={
            name: spec for name, spec in first.specs.items() if all(one.specs.get(name) == spec for one in manifests)
        },
        metadata={
            f"{number}/{name}": {"file": str(folder / value["file"])} if isinstance(value, Mapping) else value
            for number, one, folder in everything
            for name, value in one.metadata.items()
        },
        license=_all_of([one.license for one in manifests]),
        citation=_all_of([one.citation for one in manifests]),
        homepage=_all_of([one.homepage for one in manifests]),
        time_limit=first.time_limit if len({one.time_limit for one in manifests}) == 1 else None,
        selection={},
        revision="",
        score=first.score if all(one.score == first.score for one in manifests) else {},
        history=(history,),
    )


def files_digest(manifest: Manifest) -> str:
    """Return what identifies the bytes of a dataset."""
    return hashlib.sha256(json.dumps([[one.path, one.sha256] for one in manifest.files]).encode()).hexdigest()


def check_alike(names: Sequence[str], several: Sequence[Sequence[Column]]) -> None:
    """Let datasets pass whose fields are the same.

    Raises:
        InvalidArgumentError: If they are not; it says of every field that is not what it is in each.
    """
    tables = [{column.key: _told(column) for column in columns} for columns in several]
    keys = dict.fromkeys(key for table in tables for key in table)
    problems = [
        f"{dotted(key)} is "
        + ", ".join(f"{table.get(key, 'not there')} in {name}" for name, table in zip(names, tables, strict=True))
        for key in keys
        if len({table.get(key) for table in tables}) > 1
    ]
    if problems:
        raise InvalidArgumentError(
            f"the datasets are not alike: {'; '.join(problems)}",
            hint="choose fields with -t select:..., cast them with -t cast:..., or preprocess each by itself before",
        )


def _told(column: Column) -> str:
    return f"{'text' if column.text else column.dtype.name} {list(column.shape)}"


def _all_of(texts: Sequence[str]) -> str:
    return "; ".join(dict.fromkeys(text for text in texts if text))

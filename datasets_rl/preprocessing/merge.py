"""Merged datasets: several stored datasets, concatenated into a dataset that preprocessing reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.format.manifest import Manifest, array_file
from datasets_rl.format.reader import StoredDataset
from datasets_rl.format.schema import Column, Schema
from datasets_rl.preprocessing.batches import episode_batches
from datasets_rl.preprocessing.origins import shared_numbering
from datasets_rl.store.layout import dataset_folder
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.ted.keys import dotted_name
from datasets_rl.ted.table import EpisodeTable

DATASET = ("dataset",)
"""The key of the field that has the index of the dataset that each step is from, int64 [N]."""


def open_datasets(folders: Sequence[str]) -> StoredDataset | MergedDataset:
    """Open a dataset, or several as a merged dataset.

    Raises:
        InvalidArgumentError: If a dataset of several has a field "dataset" already, which the merge would overwrite, or
            is a merge with episodes of another dataset.
    """
    datasets = [StoredDataset(Path(folder)) for folder in folders]
    if len(datasets) == 1:
        return datasets[0]
    if conflicting := [str(dataset_folder(dataset.folder)) for dataset in datasets if DATASET in dataset.schema]:
        raise InvalidArgumentError(
            f"{', '.join(conflicting)} has a field {dotted_name(DATASET)} already, in which a merge stores which dataset each "
            "step is from",
            hint=f"merge all of them at once, or drop it before with the step exclude:{dotted_name(DATASET)}",
        )
    return MergedDataset(datasets)


@dataclass(frozen=True)
class MergedDataset:
    """Concatenated datasets, with episodes that are numbered consecutively. No batch has episodes of two datasets.

    episode    |  0  1  2  |  3  4  |  5  6  |        datasets of 3 and 2 episodes, and a third, derived from the first
    dataset       0  0  0     1  1     2  2
    source        0  1  2     3  4     0  2           copies of an episode share the number
    """

    members: Sequence[StoredDataset]

    def __post_init__(self) -> None:
        _ = self.numbers  # before anything is written

    @cached_property
    def numbers(self) -> list[NDArray[np.int64]]:
        """The numbers of the episodes of each dataset, which select them: different for different episodes."""
        own = [member.episodes.numbers for member in self.members]
        groups = shared_numbering([member.manifest for member in self.members])
        sizes = [max(int(own[index].max()) + 1 for index in group) for group in groups]
        firsts = np.cumsum(sizes) - sizes
        first_of = {index: first for group, first in zip(groups, firsts, strict=True) for index in group}
        return [numbers + first_of[index] for index, numbers in enumerate(own)]

    def __len__(self) -> int:
        """Return the total number of steps."""
        return sum(map(len, self.members))

    @property
    def schema(self) -> Schema:
        """The schema of the first dataset, for the order and the sizes of the fields."""
        return self.members[0].schema

    @property
    def folder(self) -> Path:
        """The folder of the first dataset."""
        return self.members[0].folder

    @cached_property
    def manifest(self) -> Manifest:
        """The merged manifest."""
        return merged_manifest([member.manifest for member in self.members], [member.folder for member in self.members])

    @cached_property
    def episodes(self) -> EpisodeTable:
        """The table of the episodes of all datasets."""
        return EpisodeTable.from_lengths(np.concatenate([member.episodes.lengths for member in self.members]))

    @property
    def firsts(self) -> list[int]:
        """The first episode of each dataset, followed by the total number of episodes."""
        return [0, *np.cumsum([len(member.episodes) for member in self.members]).tolist()]

    def episode_batches(self, first: int, stop: int, max_steps: int) -> Iterator[EpisodeBatch]:
        """Yield the episodes [first, stop) in batches of about `max_steps` steps, with the index of the dataset."""
        shared = set.intersection(*(set(member.episodes.names) for member in self.members))
        compressed = frozenset(
            field.key for member in self.members for field in member.schema if field.image_form.has_dictionary
        )
        for index, (member, start) in enumerate(zip(self.members, self.firsts, strict=False)):
            low, high = max(first - start, 0), min(stop - start, len(member.episodes))
            for batch in episode_batches(member, low, high, max_steps) if low < high else ():
                metadata = {name: values for name, values in batch.metadata.items() if name in shared}
                yield replace(
                    batch,
                    steps={**batch.steps, DATASET: np.full(batch.count, index)},
                    metadata={**metadata, "source": self.numbers[index][batch.numbers]},
                    numbers=batch.numbers + start,
                    compressed=compressed,
                )


Stored = StoredDataset | MergedDataset
"""A dataset that a recipe reads."""


def member_datasets(stored: Stored) -> Sequence[StoredDataset]:
    """Return the datasets of a merge, or a single dataset itself."""
    return stored.members if isinstance(stored, MergedDataset) else [stored]


def merged_manifest(manifests: Sequence[Manifest], folders: Sequence[Path]) -> Manifest:
    """Return the manifest of several datasets together: sums of counts, and the values that are equal in all.

    The spec of a field is kept if all datasets have the same spec. Metadata is stored under the index of the dataset.
    The history begins with an entry that describes each dataset.
    """
    first = manifests[0]
    indexed = [
        (index, manifest, folder) for index, (manifest, folder) in enumerate(zip(manifests, folders, strict=True))
    ]
    history = {
        "merged": [
            {
                "id": manifest.id,
                "steps": manifest.steps,
                "episodes": manifest.episodes,
                "files": manifest.files_digest,
                "history": [dict(run) for run in manifest.history],
            }
            for manifest in manifests
        ]
    }
    return replace(
        first,
        id=" + ".join(manifest.id for manifest in manifests),
        steps=sum(manifest.steps for manifest in manifests),
        episodes=sum(manifest.episodes for manifest in manifests),
        final_unknown=sum(manifest.final_unknown for manifest in manifests),
        files=tuple(
            replace(file, path=f"{index}/{file.path}") for index, manifest, _ in indexed for file in manifest.files
        ),
        raw=tuple(dict.fromkeys(file for manifest in manifests for file in manifest.raw)),
        decisions=tuple(decision for manifest in manifests for decision in manifest.decisions),
        known_issues=tuple(dict.fromkeys(issue for manifest in manifests for issue in manifest.known_issues)),
        specs={
            name: spec
            for name, spec in first.specs.items()
            if all(manifest.specs.get(name) == spec for manifest in manifests)
        },
        metadata={
            f"{index}/{name}": {"file": str(folder / file)} if (file := array_file(value)) else value
            for index, manifest, folder in indexed
            for name, value in manifest.metadata.items()
        },
        license=_distinct_texts([manifest.license for manifest in manifests]),
        citation=_distinct_texts([manifest.citation for manifest in manifests]),
        homepage=_distinct_texts([manifest.homepage for manifest in manifests]),
        time_limit=first.time_limit if len({manifest.time_limit for manifest in manifests}) == 1 else None,
        selection={},
        revision="",
        score=first.score if all(manifest.score == first.score for manifest in manifests) else {},
        history=(history,),
        recordings=tuple(dict.fromkeys(name for manifest in manifests for name in manifest.recordings)),
    )


def check_same_fields(names: Sequence[str], columns_by_dataset: Sequence[Sequence[Column]]) -> None:
    """Check that datasets have the same fields.

    Raises:
        InvalidArgumentError: If the fields differ. The error names each field that differs, with the type in each
            dataset.
    """
    tables = [{column.key: _type_name(column) for column in columns} for columns in columns_by_dataset]
    keys = dict.fromkeys(key for table in tables for key in table)
    problems = [
        f"{dotted_name(key)} is "
        + ", ".join(f"{table.get(key, 'missing')} in {name}" for name, table in zip(names, tables, strict=True))
        for key in keys
        if len({table.get(key) for table in tables}) > 1
    ]
    if problems:
        raise InvalidArgumentError(
            f"the datasets have different fields: {'; '.join(problems)}",
            hint="choose fields with the step select, cast them with the step cast, or preprocess each one separately first",
        )


def _type_name(column: Column) -> str:
    return f"{'text' if column.text else column.dtype.name} {list(column.shape)}"


def _distinct_texts(texts: Sequence[str]) -> str:
    return "; ".join(dict.fromkeys(text for text in texts if text))

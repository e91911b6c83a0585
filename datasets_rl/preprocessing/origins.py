"""Which datasets have copies of the same episodes: datasets with the same origin, a dataset or raw files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import chain, combinations
from typing import Any

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.format.manifest import Manifest
from datasets_rl.sources import split_derived

_SAME_NUMBERS = {"episodes", "keys"}
"""Parts of a selection that do not change the numbers of episodes. A choice of files does."""


def shared_numbering(manifests: Sequence[Manifest]) -> list[list[int]]:
    """Return the datasets in groups, by index: the datasets of a group number the same episodes alike.

    Raises:
        InvalidArgumentError: If two datasets have copies of the same episodes under different numbers.
    """
    marks = [_marks_of(manifest) for manifest in manifests]
    groups: list[list[int]] = []
    for index, own in enumerate(marks):
        joined = [group for group in groups if any(own & marks[member] for member in group)]
        groups = [group for group in groups if group not in joined] + [sorted([*chain(*joined), index])]
    origins = [_origins_in(manifest.files_digest, manifest.history) | _recorded_in(manifest) for manifest in manifests]
    for one, two in combinations(range(len(manifests)), 2):
        if origins[one] & origins[two] and not any({one, two} <= {*group} for group in groups):
            raise InvalidArgumentError(
                f"{manifests[one].id} and {manifests[two].id} have copies of the same episodes under different numbers: "
                "a split of the merge could have a copy on each side",
                hint="name each episode once: merge the original datasets, all at once",
            )
    return sorted(groups)


def _marks_of(manifest: Manifest) -> set[str]:
    """Return texts of which datasets with the same numbering of the same episodes have a text in common."""
    history = [run for run in manifest.history if "merged" not in run]
    marks = {_digest_before(manifest.files_digest, history)}
    if len(history) == len(manifest.history):
        upstream = split_derived(str(manifest.copied_from.get("id", manifest.id)))[0]
        files = {name: value for name, value in manifest.selection.items() if name not in _SAME_NUMBERS}
        parts = {file.sha256 for file in manifest.raw} | _recorded_in(manifest)
        marks |= {json.dumps([upstream, files, part], sort_keys=True) for part in parts}
    return marks


def _origins_in(files_digest: str, history: Sequence[Mapping[str, Any]]) -> set[str]:
    """Return the digests of the datasets that a dataset was made of, before any merge and any recipe."""
    if history and "merged" in history[0]:
        return set().union(*(_origins_in(one["files"], one["history"]) for one in history[0]["merged"]))
    return {_digest_before(files_digest, history)}


def _recorded_in(manifest: Manifest) -> set[str]:
    """Return the ids of the recordings, and the digests of the datasets, of appended episodes."""
    return {entry.partition(":")[0] for entry in manifest.recordings}


def _digest_before(files_digest: str, history: Sequence[Mapping[str, Any]]) -> str:
    """Return the digest of the files of a dataset before the recipes were applied."""
    return str(history[0]["of"]["files"]) if history else files_digest

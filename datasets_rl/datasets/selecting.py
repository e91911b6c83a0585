"""Selecting: what a buffer shows of a stored dataset, and where the steps are."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from datasets_rl.errors import InvalidArgumentError, UnknownFinalWarning
from datasets_rl.sources import Selection, select_episodes
from datasets_rl.storages.dataset import DatasetStorage
from datasets_rl.storages.device import DeviceStorage
from datasets_rl.storages.final_states import FinalUnknown, select_final_known
from datasets_rl.storages.trajectories import PaddedTrajectories
from datasets_rl.storages.view import View
from datasets_rl.store.find import shown_id
from datasets_rl.ted.keys import NEXT, NEXT_FINAL_KNOWN, ROOT_FLAGS, Key, as_key
from datasets_rl.ted.row_ranges import RowRanges
from datasets_rl.ted.table import EpisodeTable

Steps = DatasetStorage | View | DeviceStorage
_PACKAGE = str(Path(__file__).parents[1])
_CALLER = 8
"""Before Python 3.12: the `stacklevel` of the caller of `load`, from which `warn_of_unknown_finals` is called."""
_warned: set[tuple[int, str, str]] = set()
"""The warnings about unknown final observations that were issued: process, folder, number of episodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What a buffer shows of the selected steps.

    When the buffer shows other steps, another object replaces this object.
    """

    final_unknown: FinalUnknown | None = None
    split_trajs: bool = False
    """Whether elements are whole episodes."""
    keys: tuple[Key, ...] | None = None
    """Names of the fields of batches, see `load`, or None for all fields."""
    device: torch.device | None = None
    """The device that has a copy of the steps, or None if the steps are read from the files."""

    def visible(self, steps: DatasetStorage | View) -> DatasetStorage | View:
        """Return the steps that remain by the choice of fields and the treatment of unknown final observations.

        Raises:
            UnknownKeyError: If the dataset has no such field.
            InvalidArgumentError: If no step remains.
        """
        steps = select_final_known(steps, self.final_unknown)
        return steps if self.keys is None else View.of(steps).with_keys(steps.keys_named(self.keys))

    def stored_where(self, steps: DatasetStorage | View) -> Steps | PaddedTrajectories:
        """Return the storage of the buffer: the steps in the files or on the device, or whole episodes."""
        if self.split_trajs:
            return PaddedTrajectories(steps)
        return steps if self.device is None else DeviceStorage(steps, self.device)


def select_part(whole: DatasetStorage, selection: Selection) -> DatasetStorage | View:
    """Return the selected episodes and fields of a stored dataset, which has the selection.

    Args:
        whole: The whole stored dataset.
        selection: The selection that is shown, completed from the stored selection.
    """
    stored, part, rows = whole.stored, Selection.from_json(whole.stored.manifest.selection), None
    if selection.episodes != part.episodes:
        selected = select_episodes(selection.episodes, stored.episodes.numbers)
        if not selected.all():
            rows = RowRanges(stored.episodes.starts[selected], stored.episodes.lengths[selected])
    keys = whole.keys()
    masks = {NEXT_FINAL_KNOWN} if whole.masked else set()
    if selection.keys != part.keys:
        kept = selection.kept_keys([field.key for field in stored.schema])
        shared = {(NEXT, *field.key) for field in stored.schema if field.key in kept and field.shared}
        keys = [key for key in keys if key in kept | shared | masks | {*ROOT_FLAGS}]
    return whole if rows is None and keys == whole.keys() else View(whole, rows, dict.fromkeys(keys))


def key_names(keys: Any) -> tuple[Key, ...]:
    """Return the fields that a user named: by a name, or by several names."""
    names: Iterable[Any] = [keys] if isinstance(keys, str) or not isinstance(keys, Iterable) else keys
    return tuple(as_key(name) for name in names)


def usable_device(device: torch.device | str | None) -> torch.device | None:
    """Return the device, with its number.

    Raises:
        InvalidArgumentError: If there is no such device.
    """
    try:
        return None if device is None else torch.empty(0, device=device).device
    except (AssertionError, RuntimeError) as error:
        raise InvalidArgumentError(f"device is {device!r}, which torch cannot use here: {error}") from error


def warn_of_unknown_finals(folder: Path, stated_id: str, table: EpisodeTable) -> None:
    """Warn that the final observations of some episodes are unknown, once for each dataset and process.

    Args:
        folder: The folder of the dataset.
        stated_id: The id in its manifest.
        table: The episodes.
    """
    unknown = int((~table["final_known"]).sum())
    key = (os.getpid(), str(folder), f"{unknown} of {len(table)}")
    if key in _warned:
        return
    warning = UnknownFinalWarning(shown_id(folder, stated_id), unknown, len(table))
    if sys.version_info >= (3, 12):
        warnings.warn(warning, skip_file_prefixes=(_PACKAGE,))
    else:
        warnings.warn(warning, stacklevel=_CALLER)
    _warned.add(key)  # after the call: if a filter turns the warning into an error, the error is raised every time

"""Replay buffers of D4RL datasets, with the constructor and semantics of TorchRL's class, without the d4rl package."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from datasets_rl.datasets.experience_replay import BaseDatasetExperienceReplay
from datasets_rl.datasets.options import DatasetOptions, Download
from datasets_rl.errors import Call, InvalidArgumentError, Remedy
from datasets_rl.format.reader import StoredDataset
from datasets_rl.samplers.base import Sampler
from datasets_rl.storages.dataset import DatasetStorage
from datasets_rl.storages.view import View
from datasets_rl.ted.keys import (
    ACTION,
    EPISODE,
    NEXT,
    NEXT_DONE,
    NEXT_FINAL_KNOWN,
    NEXT_REWARD,
    NEXT_TERMINATED,
    NEXT_TRUNCATED,
    OBSERVATION,
    ROOT_FLAGS,
    Key,
)
from datasets_rl.ted.row_ranges import RowRanges
from datasets_rl.ted.table import concatenated_ranges
from datasets_rl.writers.base import Writer

_CAST = (OBSERVATION, ACTION, (NEXT, *OBSERVATION), NEXT_REWARD)
_UNCHANGED = (EPISODE, *ROOT_FLAGS, NEXT_DONE, NEXT_TERMINATED, NEXT_TRUNCATED, NEXT_FINAL_KNOWN)
_REPAIRED = "repaired"


class D4RLExperienceReplay(BaseDatasetExperienceReplay):
    """Replay buffer of a D4RL dataset. Neither gym, mujoco_py nor d4rl is needed.

        >>> dataset = D4RLExperienceReplay("maze2d-umaze-v1", batch_size=256)
        >>> batch = dataset.sample()

    The observation after the last step of an episode is kept if the file has this observation, at time-outs too.
    Otherwise it reads as zeros, and ``dataset.episodes["final_known"]`` is False. TorchRL replaces all such
    observations with zeros.

    `BaseDatasetExperienceReplay` describes the other arguments and errors.

    Args:
        dataset_id: An id of 183, such as ``"hopper-medium-v2"``.
        from_env: True shows the whole file with info and metadata, as `env.get_dataset()` does. False shows the
            transitions that `d4rl.qlearning_dataset` yields: float32, without info, without the last step of every
            episode that timed out (unless `terminate_on_end`), and without the last row of the file. An episode that
            loses its last step ends, truncated, a step earlier, with the true next observation. In files without
            time-outs, D4RL's rule also drops rows within trajectories: each remaining section is then an episode in
            ``episode``, in `episodes`, in the flags and for the samplers.
        use_truncated_as_done: False excludes time-outs from ``("next", "done")``, which then equals ``("next",
            "terminated")``. The boundaries of episodes do not change.
        terminate_on_end: Whether to keep the last step of episodes that timed out, which `from_env=True` always does.
            By default `from_env=False` drops this step.
        direct_download: As in TorchRL, True shows the whole file, whatever `from_env` is. The file is always read
            directly, without the d4rl package.
        name: Alias of `dataset_id`, as in TorchRL's first release.
        h5path: A copy of the published file, which is read instead of a download, as by `env.get_dataset`.
        **options: Other arguments of `BaseDatasetExperienceReplay`. Arguments of `d4rl.qlearning_dataset` have no
            meaning without its environment: each such argument raises an error that says why.

    Raises:
        InvalidArgumentError: If arguments exclude each other, too.
    """

    source = "d4rl"

    def __init__(
        self,
        dataset_id: str | None = None,
        batch_size: int | None = None,
        sampler: Sampler | None = None,
        writer: Writer | None = None,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        prefetch: int | None = None,
        transform: Callable[[Any], Any] | Sequence[Callable[[Any], Any]] | None = None,
        split_trajs: bool = False,
        from_env: bool = True,
        use_truncated_as_done: bool = True,
        direct_download: bool | None = None,
        terminate_on_end: bool | None = None,
        download: Download = True,
        root: Path | str | None = None,
        *,
        name: str | None = None,
        h5path: Path | str | None = None,
        **options: Any,
    ) -> None:
        _check_env_kwargs([name for name in options if name not in DatasetOptions.__annotations__])
        # In TorchRL a direct download is the whole file, whatever `from_env` is.
        from_env = from_env or bool(direct_download)
        id_or_alias = dataset_id if dataset_id is not None else name
        if id_or_alias is None:
            raise InvalidArgumentError(
                "no dataset_id was given", hint=Remedy("`{}` shows the ids", Call("list_datasets", source="d4rl"))
            )
        if from_env and terminate_on_end is False:
            raise InvalidArgumentError(
                "terminate_on_end=False drops steps, but from_env=True or direct_download=True shows the whole file",
                hint="give from_env=False (without direct_download), or omit terminate_on_end",
            )
        self.from_env = from_env
        self.use_truncated_as_done = use_truncated_as_done
        self.terminate_on_end = bool(terminate_on_end)
        self.h5path = None if h5path is None else Path(h5path)
        super().__init__(
            id_or_alias,
            batch_size,
            sampler,
            writer=writer,
            collate_fn=collate_fn,
            pin_memory=pin_memory,
            prefetch=prefetch,
            transform=transform,
            split_trajs=split_trajs,
            root=root,
            download=download,
            **options,
        )

    def _local_copy(self) -> Path | None:
        return self.h5path

    @override
    def stored_steps(self) -> DatasetStorage:
        return DatasetStorage(self.stored, truncated_as_done=self.use_truncated_as_done)

    @override
    def selected_steps(self) -> DatasetStorage | View:
        steps = super().selected_steps()
        if self.from_env:
            return steps
        view, rows = View.of(steps), qlearning_rows(self.stored, terminate_on_end=self.terminate_on_end)
        casts: dict[Key, torch.dtype | None] = dict.fromkeys(_UNCHANGED) | dict.fromkeys(_CAST, torch.float32)
        fields = {key: dtype for key, dtype in casts.items() if key in view.fields}
        if view.rows is not None:
            rows = np.intersect1d(concatenated_ranges(view.rows.starts, view.rows.lengths), rows)
        return View(view.dataset, RowRanges.from_rows(rows), fields)


def _check_env_kwargs(names: Sequence[str]) -> None:
    """Raise an error for arguments of `d4rl.qlearning_dataset` that have no meaning here."""
    for name in names:
        if name == "dataset":
            raise InvalidArgumentError(
                "dataset= replaces the steps of the file by arrays, and this class reads published files only",
                hint="save the arrays as a file and convert this file with `LocalExperienceReplay`, or write them to a ReplayBuffer",
            )
        raise InvalidArgumentError(
            f"{name}= is an argument of an environment of gym, and this class reads files without an environment",
            hint="omit this argument",
        )


def qlearning_rows(stored: StoredDataset, *, terminate_on_end: bool) -> NDArray[np.int64]:
    """Return the rows that `d4rl.qlearning_dataset` yields, int64 [M].

    The rule is the rule of D4RL 1.1 (d4rl/__init__.py), which selects rows 0 to N - 2. A row is final if the file marks
    a time-out or, in files without time-outs, if the number of steps since the last end equals the time limit. Final
    rows are dropped unless `terminate_on_end`.

    Args:
        stored: The whole dataset.
        terminate_on_end: Whether to keep the final rows.
    """
    keep = np.ones(len(stored), np.bool_)
    keep[-1] = False
    if not terminate_on_end:
        keep &= ~_last_rows(stored)
    return np.flatnonzero(keep)


def _last_rows(stored: StoredDataset) -> NDArray[np.bool_]:
    truncated = stored.column(NEXT_TRUNCATED)[:, 0].copy()
    if not any(decision.rule == "no-timeouts-column" for decision in stored.manifest.decisions):
        if _REPAIRED in stored.episodes.names:
            # The converter detected these ends, which neither the file marks nor D4RL detects.
            ends = stored.episodes.stops - 1
            truncated[ends[stored.episodes[_REPAIRED]]] = False
        return truncated
    limit = stored.manifest.time_limit
    final = np.zeros(len(stored), np.bool_)
    if limit is not None:
        _mark_limits(final, np.flatnonzero(stored.column(NEXT_TERMINATED)[:, 0]), limit)
    return final


def _mark_limits(last_rows: NDArray[np.bool_], terminated: NDArray[np.intp], limit: int) -> None:
    # D4RL counts the step after a termination as the second step: the counter is set to 0 and then incremented.
    start, count = 0, 0
    for end in [*terminated.tolist(), len(last_rows)]:
        first = start + limit - 1 - count
        last_rows[first : end + 1 : limit] = True
        start, count = end + 1, 1
        if end < len(last_rows) and last_rows[end]:
            count = 0

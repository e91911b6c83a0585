"""D4RL as replay buffers: the constructor of the reference, its meanings reproduced without D4RL."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from datasets_rl.datasets.experience_replay import BaseDatasetExperienceReplay, Download
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.format.reader import StoredDataset
from datasets_rl.samplers.base import Sampler
from datasets_rl.sources import Selection
from datasets_rl.storages.dataset import DatasetStorage
from datasets_rl.storages.final_states import FinalUnknown
from datasets_rl.ted.keys import (
    ACTION,
    EPISODE,
    NEXT,
    NEXT_DONE,
    NEXT_REWARD,
    NEXT_TERMINATED,
    NEXT_TRUNCATED,
    OBSERVATION,
    ROOT_FLAGS,
    Key,
)
from datasets_rl.writers.base import Writer

__all__ = ["D4RLExperienceReplay", "qlearning_rows"]

_CAST = (OBSERVATION, ACTION, (NEXT, *OBSERVATION), NEXT_REWARD)
_AS_THEY_ARE = (EPISODE, *ROOT_FLAGS, NEXT_DONE, NEXT_TERMINATED, NEXT_TRUNCATED)
_REPAIRED = "repaired"


class D4RLExperienceReplay(BaseDatasetExperienceReplay):
    """A D4RL dataset as a replay buffer. Neither gym, mujoco_py nor d4rl is needed.

        >>> dataset = D4RLExperienceReplay("maze2d-umaze-v1", batch_size=256)
        >>> batch = dataset.sample()

    The true observation after the last step of an episode is kept wherever the file has it, at time-outs too; where it
    has not, it reads as zeros, and ``dataset.episodes["final_known"]`` is False. TorchRL zeroes all of them.

    Args:
        dataset_id: One of the 183 ids, ``"hopper-medium-v2"``.
        batch_size: Steps (with `split_trajs`, episodes) of a batch where `sample` is not told.
        sampler: Chooses the steps; uniform with replacement by default.
        writer: Refuses writes by default; a dataset cannot be written to.
        collate_fn: Applied to what the storage returns.
        pin_memory: Whether batches are copied to page-locked memory.
        prefetch: Batches made ahead of time by as many threads.
        transform: Applied to every batch.
        split_trajs: Elements are whole episodes, [E, T], padded with zeros, with a `mask`.
        from_env: True shows the whole file with info and metadata, as `env.get_dataset()` does. False shows the
            transitions that `d4rl.qlearning_dataset` yields: float32, without info, without the last step of every
            episode that timed out (unless `terminate_on_end`), and without the last row of the file. An episode that
            loses its last step ends, truncated, one step earlier, with the true observation after it. In files without
            time-outs D4RL's rule also leaves rows out inside of trajectories: each piece is an episode of its own in
            ``episode``, in `episodes`, by its flags and for the samplers.
        use_truncated_as_done: False leaves time-outs out of ``("next", "done")``, which then is ``("next",
            "terminated")``; episodes end where they end all the same.
        root: The source's folder; by default ``<RLDS_HOME>/d4rl``.
        download: True makes the dataset where it is not there; False wants it to be there; "force" makes it anew.
        terminate_on_end: Keep the last step of episodes that timed out, which the whole file does anyway; by default
            `from_env=False` leaves it out.
        direct_download: As in TorchRL, True shows the whole file, whatever `from_env` says. The file is read directly,
            without the d4rl package, in any case.
        name: Another name of `dataset_id`, that of TorchRL's first release.
        selection: The part that is wanted, `Selection(keys=("observation", "action"))`; by default any stored part,
            or the whole dataset if there is none.
        final_unknown: What becomes of transitions whose next observation is unknown, see the base class.

    Raises:
        UnknownIdError: If there is no such id.
        InvalidArgumentError: If arguments exclude each other; or as `BaseDatasetExperienceReplay` does.
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
        final_unknown: FinalUnknown | None = None,
        selection: Selection | None = None,
    ) -> None:
        # In TorchRL a direct download is the whole file, whatever `from_env` says.
        from_env = from_env or bool(direct_download)
        wanted = dataset_id if dataset_id is not None else name
        if wanted is None:
            raise InvalidArgumentError("no dataset_id was given", hint="`rlds list d4rl/*` shows the ids")
        if from_env and terminate_on_end is False:
            raise InvalidArgumentError(
                "terminate_on_end=False leaves steps out, and the whole file is shown",
                hint="give from_env=False (without direct_download), or leave terminate_on_end out",
            )
        self.from_env = from_env
        self.use_truncated_as_done = use_truncated_as_done
        self.terminate_on_end = bool(terminate_on_end)
        super().__init__(
            wanted,
            batch_size,
            sampler,
            writer,
            collate_fn,
            pin_memory,
            prefetch,
            transform,
            split_trajs,
            root=root,
            download=download,
            final_unknown=final_unknown,
            selection=selection,
        )

    def _whole(self) -> DatasetStorage:
        return DatasetStorage(self.stored, truncated_as_done=self.use_truncated_as_done)

    def _shown(self, whole: DatasetStorage) -> tuple[NDArray[np.int64], dict[Key, torch.dtype | None]]:
        rows, fields = super()._shown(whole)
        if self.from_env:
            return rows, fields
        rows = np.intersect1d(rows, qlearning_rows(self.stored, terminate_on_end=self.terminate_on_end))
        casts: dict[Key, torch.dtype | None] = dict.fromkeys(_AS_THEY_ARE) | dict.fromkeys(_CAST, torch.float32)
        return rows, {key: dtype for key, dtype in casts.items() if key in fields}


def qlearning_rows(stored: StoredDataset, *, terminate_on_end: bool) -> NDArray[np.int64]:
    """Return the rows that `d4rl.qlearning_dataset` yields, int64 [M].

    The rule is that of D4RL 1.1 (d4rl/__init__.py): rows 0 to N - 2; a row is final where the file marks a time-out or,
    in files that mark none, where as many steps as the time limit have passed since the last end; final rows are left
    out unless `terminate_on_end`.

    Args:
        stored: The whole dataset.
        terminate_on_end: Keep the final rows.
    """
    keep = np.ones(len(stored), np.bool_)
    keep[-1] = False
    if not terminate_on_end:
        keep &= ~_final_rows(stored)
    return np.flatnonzero(keep)


def _final_rows(stored: StoredDataset) -> NDArray[np.bool_]:
    truncated = stored.column(NEXT_TRUNCATED)[:, 0].copy()
    if not any(one.rule == "no-timeouts-column" for one in stored.manifest.decisions):
        if _REPAIRED in stored.episodes.names:
            # Ends that the file does not mark were found by the converter; D4RL does not know them.
            ends = stored.episodes.stops - 1
            truncated[ends[stored.episodes[_REPAIRED]]] = False
        return truncated
    limit = stored.manifest.time_limit
    final = np.zeros(len(stored), np.bool_)
    if limit is not None:
        _mark_limits(final, np.flatnonzero(stored.column(NEXT_TERMINATED)[:, 0]), limit)
    return final


def _mark_limits(final: NDArray[np.bool_], terminated: NDArray[np.intp], limit: int) -> None:
    # D4RL counts the step after a termination as the second one: it sets its counter to 0 and then adds 1.
    start, count = 0, 0
    for end in [*terminated.tolist(), len(final)]:
        first = start + limit - 1 - count
        final[first : end + 1 : limit] = True
        start, count = end + 1, 1
        if end < len(final) and final[end]:
            count = 0


CLASS = D4RLExperienceReplay

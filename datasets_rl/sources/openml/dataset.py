"""OpenML's tables as contextual bandits: the constructor of the reference."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from datasets_rl.datasets.experience_replay import BaseDatasetExperienceReplay, Download
from datasets_rl.samplers import Sampler, SamplerWithoutReplacement
from datasets_rl.sources import Selection
from datasets_rl.specs import CompositeSpec, from_manifest
from datasets_rl.storages.aliased import AliasedStorage
from datasets_rl.storages.final_states import FinalUnknown
from datasets_rl.storages.subset import SubsetStorage
from datasets_rl.ted.keys import ACTION, OBSERVATION, Key
from datasets_rl.writers.base import Writer

__all__ = ["OpenMLExperienceReplay"]

_SAMPLES: Key = ("X",)
_CLASSES: Key = ("y",)


class OpenMLExperienceReplay(BaseDatasetExperienceReplay):
    """A dataset of OpenML as a replay buffer: samples ``X`` and their classes ``y``, and the same as a bandit's log.

        >>> dataset = OpenMLExperienceReplay("magic", batch_size=256)
        >>> batch = dataset.sample()
        >>> batch["X"], batch["y"]                                  # as TorchRL has them
        >>> batch["observation"], batch["action"]                   # the same tensors
        >>> (guess == batch["y"]).float()                           # the reward that any other action would have had

    Every row is an episode of one step: the observation is the sample, the action its class, and the reward 1. There is
    no next observation.

    Args:
        name: One of ``adult_num``, ``adult_onehot``, ``mushroom_num``, ``mushroom_onehot``, ``covertype``, ``shuttle``
            and ``magic``, or any other dataset of classes with its version, ``"iris@1"``.
        batch_size: Steps of a batch where `sample` is not told.
        root: The source's folder; by default ``<RLDS_HOME>/openml``.
        sampler: Chooses the steps; uniform without replacement by default.
        writer: Refuses writes by default; a dataset cannot be written to.
        collate_fn: Applied to what the storage returns.
        pin_memory: Whether batches are copied to page-locked memory.
        prefetch: Batches made ahead of time by as many threads.
        transform: Applied to every batch.
        download: True makes the dataset where it is not there; False wants it to be there; "force" makes it anew.
        selection: The part that is wanted; by default any stored part, or the whole dataset if there is none.
        final_unknown: What becomes of transitions whose next observation is unknown, see the base class.

    Raises:
        UnknownIdError: If it is no name of a dataset.
        InvalidArgumentError: If the selection contradicts the stored one, or asks for more and `download` is False.
        FetchError: If OpenML does not give it.
    """

    source = "openml"

    def __init__(
        self,
        name: str,
        batch_size: int | None = None,
        root: Path | str | None = None,
        sampler: Sampler | None = None,
        writer: Writer | None = None,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        prefetch: int | None = None,
        transform: Callable[[Any], Any] | Sequence[Callable[[Any], Any]] | None = None,
        *,
        download: Download = True,
        selection: Selection | None = None,
        final_unknown: FinalUnknown | None = None,
    ) -> None:
        super().__init__(
            name,
            batch_size,
            SamplerWithoutReplacement() if sampler is None else sampler,
            writer,
            collate_fn,
            pin_memory,
            prefetch,
            transform,
            root=root,
            download=download,
            selection=selection,
            final_unknown=final_unknown,
        )

    def _steps(self) -> AliasedStorage:
        return AliasedStorage(super()._steps(), {_SAMPLES: OBSERVATION, _CLASSES: ACTION})

    @cached_property
    def specs(self) -> CompositeSpec:
        """What one step may hold: the action, and so ``y``, one of the classes."""
        steps: Any = self._storage
        shown = steps.steps.fields if isinstance(steps.steps, SubsetStorage) else None
        specs = from_manifest(self.manifest, shown)
        for name, key in steps.names.items():
            specs[name] = specs[key].clone()
        return specs

    @cached_property
    def classes(self) -> list[str]:
        """What the numbers of ``y`` stand for."""
        classes: list[str] = json.loads(self.manifest.metadata["classes"])
        return classes

    @property
    def max_outcome_val(self) -> int:
        """The largest ``y``."""
        return len(self.classes) - 1


CLASS = OpenMLExperienceReplay

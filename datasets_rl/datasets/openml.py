"""Replay buffers of OpenML's tables as contextual bandits, with the constructor of TorchRL's class."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from typing_extensions import override

from datasets_rl.datasets.experience_replay import BaseDatasetExperienceReplay
from datasets_rl.datasets.options import Download
from datasets_rl.samplers import Sampler, SamplerWithoutReplacement
from datasets_rl.sources import Selection
from datasets_rl.storages.final_states import FinalUnknown
from datasets_rl.storages.view import View
from datasets_rl.ted.keys import ACTION, OBSERVATION, Key
from datasets_rl.writers.base import Writer

_SAMPLES: Key = ("X",)
_CLASSES: Key = ("y",)


class OpenMLExperienceReplay(BaseDatasetExperienceReplay):
    """Replay buffer of an OpenML dataset: samples ``X`` and classes ``y``, also as the log of a bandit.

        >>> dataset = OpenMLExperienceReplay("magic", batch_size=256)
        >>> batch = dataset.sample()
        >>> batch["X"], batch["y"]                                  # the names in TorchRL
        >>> batch["observation"], batch["action"]                   # the same tensors
        >>> (guess == batch["y"]).float()                           # the reward of any action

    Every row is an episode of a single step: the observation is the sample, the action is its class, and the reward is
    1. Batches have no next observation.

    `BaseDatasetExperienceReplay` describes the other arguments and errors.

    Args:
        name: The name: ``adult_num``, ``adult_onehot``, ``mushroom_num``, ``mushroom_onehot``, ``covertype``,
            ``shuttle`` and ``magic``, or any other classification dataset with its version, ``"iris@1"``.
        sampler: Sampler of the steps, uniform without replacement by default.

    Raises:
        UnknownIdError: If the name is neither in the catalog nor of the form ``name@version``.
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
            writer=writer,
            collate_fn=collate_fn,
            pin_memory=pin_memory,
            prefetch=prefetch,
            transform=transform,
            root=root,
            download=download,
            selection=selection,
            final_unknown=final_unknown,
        )

    @override
    def selected_steps(self) -> View:
        return View.of(super().selected_steps()).with_names({_SAMPLES: OBSERVATION, _CLASSES: ACTION})

    @cached_property
    def classes(self) -> list[str]:
        """Names of the classes, by number in ``y``."""
        classes: list[str] = json.loads(self.manifest.metadata["classes"])
        return classes

    @property
    def max_outcome_val(self) -> int:
        """Largest possible value of ``y``."""
        return len(self.classes) - 1

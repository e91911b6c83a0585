"""Replay buffers of V-D4RL datasets, with the constructor of TorchRL's class."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from datasets_rl.datasets.experience_replay import BaseDatasetExperienceReplay, Download
from datasets_rl.samplers.base import Sampler
from datasets_rl.sources import Selection
from datasets_rl.storages.final_states import FinalUnknown
from datasets_rl.transforms import Compose, Resize, ToTensorImage
from datasets_rl.transforms.base import NestedKey
from datasets_rl.writers.base import Writer

__all__ = ["VD4RLExperienceReplay"]

_PIXELS: list[NestedKey] = ["pixels", ("next", "pixels")]


class VD4RLExperienceReplay(BaseDatasetExperienceReplay):
    """Replay buffer of a V-D4RL dataset: the DeepMind control suite from pixels.

        >>> dataset = VD4RLExperienceReplay("main/walker_walk/random/64px", batch_size=32, image_size=50)
        >>> dataset.sample()["pixels"]            # [32, 3, 50, 50], floats from 0 to 1

    The images are stored as they were published, uint8 [64, 64, 3] or [3, 84, 84], and are converted to channels-first
    floats when they are sampled. ``dataset["pixels"]`` returns the stored integers. Each row has the action that was
    taken on its image.

    Args:
        dataset_id: The folder in the repository, without the prefix ``vd4rl/``: ``"main/walker_walk/random/64px"``.
        batch_size: Number of steps (with `split_trajs`, of episodes) in a batch, unless `sample` gets another number.
        root: Folder of the source; by default ``<RLDS_HOME>/vd4rl``.
        download: True creates the dataset if it is missing, False requires it to exist, "force" creates it again.
        sampler: Sampler of the steps; uniform with replacement by default.
        writer: Writer of the buffer; by default one that raises, because a dataset is read-only.
        collate_fn: Function applied to the output of the storage.
        pin_memory: Whether batches are copied to page-locked memory.
        prefetch: Number of batches prepared in advance, by as many threads.
        transform: Transform applied to every batch, before `totensor` and `image_size`.
        split_trajs: Whether elements are whole episodes, [E, T], padded with zeros, with a `mask`.
        totensor: Whether to append a `ToTensorImage`, unless `transform` has one.
        image_size: Height and width to which images are resized, or a pair of both.
        num_workers: Accepted for compatibility with TorchRL and ignored; files are always fetched in parallel.
        selection: Part of the dataset; by default the stored part, or the whole dataset if nothing is stored.
        final_unknown: Treatment of transitions whose next observation is unknown; see the base class.

    Raises:
        UnknownIdError: If there is no such id.
        InvalidArgumentError: If the selection contradicts the stored one, or exceeds it although `download` is False.
        FetchError: If the hub does not serve the dataset.
    """

    source = "vd4rl"

    def __init__(
        self,
        dataset_id: str,
        batch_size: int | None = None,
        *,
        root: Path | str | None = None,
        download: Download = True,
        sampler: Sampler | None = None,
        writer: Writer | None = None,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        prefetch: int | None = None,
        transform: Callable[[Any], Any] | Sequence[Callable[[Any], Any]] | None = None,
        split_trajs: bool = False,
        totensor: bool = True,
        image_size: int | Sequence[int] | None = None,
        num_workers: int = 0,  # noqa: ARG002 -- TorchRL's code passes it
        selection: Selection | None = None,
        final_unknown: FinalUnknown | None = None,
    ) -> None:
        super().__init__(
            dataset_id,
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
            selection=selection,
            final_unknown=final_unknown,
        )
        if "pixels" not in self:
            return
        transforms = [
            inner
            for transform in self.transforms
            for inner in (transform.transforms if isinstance(transform, Compose) else [transform])
        ]
        if totensor and not any(isinstance(transform, ToTensorImage) for transform in transforms):
            self.append_transform(ToTensorImage(in_keys=_PIXELS, shape_tolerant=True))
        if image_size is not None:
            size = (image_size, image_size) if isinstance(image_size, int) else (image_size[0], image_size[-1])
            self.append_transform(Resize(size, in_keys=_PIXELS))


CLASS = VD4RLExperienceReplay

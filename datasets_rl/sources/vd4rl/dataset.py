"""V-D4RL's datasets as replay buffers: the constructor of the reference."""

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
    """A dataset of V-D4RL as a replay buffer: the DeepMind control suite in pictures.

        >>> dataset = VD4RLExperienceReplay("main/walker_walk/random/64px", batch_size=32, image_size=50)
        >>> dataset.sample()["pixels"]            # [32, 3, 50, 50], fractions from 0 to 1

    The pictures are stored as they were published, [64, 64, 3] or [3, 84, 84], bytes, and are turned into channels first
    and fractions when they are sampled. ``dataset["pixels"]`` gives the bytes. Each action stands beside the picture that
    it was taken in.

    Args:
        dataset_id: The folder in the repository, without the ``vd4rl`` in front: ``"main/walker_walk/random/64px"``.
        batch_size: Steps (with `split_trajs`, episodes) of a batch where `sample` is not told.
        root: The source's folder; by default ``<RLDS_HOME>/vd4rl``.
        download: True makes the dataset where it is not there; False wants it to be there; "force" makes it anew.
        sampler: Chooses the steps; uniform with replacement by default.
        writer: Refuses writes by default; a dataset cannot be written to.
        collate_fn: Applied to what the storage returns.
        pin_memory: Whether batches are copied to page-locked memory.
        prefetch: Batches made ahead of time by as many threads.
        transform: Applied to every batch, before `totensor` and `image_size`.
        split_trajs: Elements are whole episodes, [E, T], padded with zeros, with a `mask`.
        totensor: Whether a `ToTensorImage` follows, unless `transform` has one.
        image_size: The height and width to which pictures are scaled, or a pair of both.
        num_workers: Taken for the sake of TorchRL's signature: several files come at once anyway.
        selection: The part that is wanted; by default any stored part, or the whole dataset if there is none.
        final_unknown: What becomes of transitions whose next observation is unknown, see the base class.

    Raises:
        UnknownIdError: If there is no such id.
        InvalidArgumentError: If the selection contradicts the stored one, or asks for more and `download` is False.
        FetchError: If the hub does not give it.
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
        given = [inner for one in self.transforms for inner in (one.transforms if isinstance(one, Compose) else [one])]
        if totensor and not any(isinstance(one, ToTensorImage) for one in given):
            self.append_transform(ToTensorImage(in_keys=_PIXELS, shape_tolerant=True))
        if image_size is not None:
            size = (image_size, image_size) if isinstance(image_size, int) else (image_size[0], image_size[-1])
            self.append_transform(Resize(size, in_keys=_PIXELS))


CLASS = VD4RLExperienceReplay

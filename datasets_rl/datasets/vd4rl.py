"""Replay buffers of V-D4RL datasets, with the constructor of TorchRL's class."""

from __future__ import annotations

from collections.abc import Sequence

from typing_extensions import Unpack

from datasets_rl.datasets.experience_replay import BaseDatasetExperienceReplay
from datasets_rl.datasets.options import DatasetOptions
from datasets_rl.transforms import Compose, Resize, ToTensorImage
from datasets_rl.transforms.base import NestedKey

_PIXELS: list[NestedKey] = ["pixels", ("next", "pixels")]


class VD4RLExperienceReplay(BaseDatasetExperienceReplay):
    """Replay buffer of a V-D4RL dataset: the DeepMind control suite from pixels.

        >>> dataset = VD4RLExperienceReplay("main/walker_walk/random/64px", batch_size=32, image_size=50)
        >>> dataset.sample()["pixels"]            # [32, 3, 50, 50], floats from 0 to 1

    The published images are stored unchanged, uint8 [64, 64, 3] or [3, 84, 84], and are converted to channels-first
    floats in batches. ``dataset["pixels"]`` returns the stored integers. Each row has the action that was taken on its
    image.

    `BaseDatasetExperienceReplay` describes the other arguments and errors.

    Args:
        dataset_id: The folder in the repository, without the prefix ``vd4rl/``: ``"main/walker_walk/random/64px"``.
        totensor: Whether to append a `ToTensorImage` to `transform`, unless present.
        image_size: Height and width to which images are resized last, or a pair of both.
        num_workers: Accepted for compatibility with TorchRL and ignored. Files are always fetched in parallel.
    """

    source = "vd4rl"

    def __init__(
        self,
        dataset_id: str,
        batch_size: int | None = None,
        *,
        totensor: bool = True,
        image_size: int | Sequence[int] | None = None,
        num_workers: int = 0,  # noqa: ARG002 -- an argument of TorchRL
        **options: Unpack[DatasetOptions],
    ) -> None:
        super().__init__(dataset_id, batch_size, **options)
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

"""Encoding of observations for a network: vectors are normalized by statistics, and images go through convolutions.

observation ("images", "top"), ("images", "wrist"), "state", each [*batch, ...]
    vectors     [*batch, S]                         normalized, side by side
    maps        [*batch, W, h, w] for each camera   a part of the image, through the convolutions of the camera
    forward     [*batch, S + cameras * 2 W]         the vectors, and where each channel of a map is active
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.ted.keys import natural_order
from datasets_rl.training.data import name_of
from datasets_rl.transforms.normalizer import Normalizer

_MIN_SIDE = 16
"""Minimum number of rows and columns of an image. Smaller arrays of floats are vectors."""
_MAX_MAP = 10
"""Maximum number of rows and columns of a feature map."""


class _Entry(NamedTuple):
    """An entry of the observations."""

    key: tuple[str, ...]
    shape: tuple[int, ...]
    channels_first: bool


class ObservationEncoder(nn.Module):
    """Encode the observations of a dataset: a vector, an image, or any number of nested vectors and images.

    Vectors are normalized by the statistics of the dataset. Images, [H, W], [H, W, C] or [C, H, W], become numbers in
    [-1, 1]: bytes by the range of bytes, and other images, such as depths, by the lowest and highest value of the
    dataset. Each camera has a separate network: convolutions with a stride of 2, until a map has at most 10 rows and
    columns, and group norms, trained from scratch. Images are cropped: in training at a random position, the same for
    all images of a window, and otherwise in the middle. Integers other than bytes, and texts, are left out.

    A call returns features [*batch, F]: the vectors, and two coordinates of each channel of each camera. `forward` has
    the details.

    Args:
        dataset: The dataset, with the observations that `select` left.
        kind: The normalization of vectors, as in `Normalizer.from_statistics`.
        width: Channels of the maps, at least 4.
        crop: Share of the height and width of an image that is kept.

    Raises:
        InvalidArgumentError: If observations are neither images nor vectors of floats.
    """

    def __init__(
        self, dataset: Any, kind: Literal["standard", "limits"] = "standard", *, width: int = 64, crop: float = 1.0
    ) -> None:
        super().__init__()
        self.width, self.crop = width, crop
        self.normalizers, self.networks = nn.ModuleDict(), nn.ModuleDict()
        self._vectors: list[_Entry] = []
        self._cameras: list[_Entry] = []
        specs = dataset.specs
        keys = [key if isinstance(key, tuple) else (key,) for key in specs.keys(True, True)]
        for key in sorted((key for key in keys if key[0] == "observation"), key=natural_order):
            spec, statistics = specs[key], dataset.statistics.get(".".join(key))
            entry = _Entry(key, shape := tuple(spec.shape), len(shape) == 3 and shape[-1] > shape[0])
            height, columns = shape[1:] if entry.channels_first else (*shape, 0, 0)[:2]
            is_bytes = spec.dtype == torch.uint8
            if len(shape) in {2, 3} and min(height, columns) >= _MIN_SIDE and (is_bytes or statistics):
                channels = 1 if len(shape) == 2 else shape[0] if entry.channels_first else shape[2]
                sides = [self._seen(height), self._seen(columns)]
                self._cameras.append(entry)
                self.networks[_name(key)] = _make_network(channels, max(sides), width)
                scale = Normalizer(127.5, 127.5) if is_bytes else Normalizer.from_statistics(statistics, "limits")
            elif statistics:
                self._vectors.append(entry)
                scale = Normalizer.from_statistics(statistics, kind)
            else:
                continue
            self.normalizers[_name(key)] = scale
        if not self.normalizers:
            shown = ", ".join(f"{'.'.join(key)} {list(specs[key].shape)}" for key in keys if key[0] != "next")
            raise InvalidArgumentError(
                f"expected observations that are images of at least {_MIN_SIDE} x {_MIN_SIDE} or vectors of floats, and "
                f"{name_of(dataset)} has {shown}"
            )
        self.vector_size = sum(math.prod(entry.shape) for entry in self._vectors)
        """Number of elements of the vectors, S."""
        self.size = self.vector_size + 2 * width * len(self._cameras)
        """Number of features of `forward`."""

    @property
    def choices(self) -> dict[str, str]:
        """The encoded entries with shapes, for the result of a program."""
        entries = self._vectors + self._cameras
        return {"observed": ", ".join(f"{'.'.join(entry.key)} {[*entry.shape]}" for entry in entries)}

    def _seen(self, side: int) -> int:
        return max(1, round(self.crop * side))

    def forward(self, batch: Any) -> Tensor:
        """Return the features of observations: vectors [*batch, S], and 2 W coordinates for each camera.

        The coordinates of a channel are the mean row and column, in [-1, 1], weighted by the softmax of the map (Levine
        et al. 2016, arXiv:1504.00702).

        Args:
            batch: Values by key, where ``batch["observation"]`` is a tensor [*batch, ...], or nested tensors.
        """
        return torch.cat([self.vectors(batch), *map(_coordinates, self.maps(batch))], -1)

    def vectors(self, batch: Any) -> Tensor:
        """Return the normalized vectors, joined, [*batch, S]."""
        parts = []
        for entry in self._vectors:
            values = self.normalizers[_name(entry.key)](_get(batch, entry.key))
            parts.append(values.reshape(*values.shape[: values.ndim - len(entry.shape)], -1))
        if parts:
            return torch.cat(parts, -1)
        images, axes = _get(batch, self._cameras[0].key), len(self._cameras[0].shape)
        return torch.zeros(*images.shape[:-axes], 0, device=images.device)

    def maps(self, batch: Any) -> list[Tensor]:
        """Return the feature maps of the cameras, [*batch, W, h, w] each."""
        maps = []
        for entry in self._cameras:
            images = self.normalizers[_name(entry.key)](self._cropped(_get(batch, entry.key), entry))
            features: Tensor = self.networks[_name(entry.key)](images.flatten(0, -4))
            maps.append(features.reshape(*images.shape[:-3], *features.shape[1:]))
        return maps

    def _cropped(self, images: Tensor, entry: _Entry) -> Tensor:
        """Return the cropped images, [*batch, C, h, w]."""
        if len(entry.shape) == 2:
            images = images.unsqueeze(-3)
        elif not entry.channels_first:
            images = images.movedim(-1, -3)
        height, width = images.shape[-2:]
        rows, columns = self._seen(height), self._seen(width)
        if not self.training:
            top, left = (height - rows) // 2, (width - columns) // 2
            return images[..., top : top + rows, left : left + columns]
        if (rows, columns) == (height, width):
            return images
        count = len(images)
        parts = images.unfold(-2, rows, 1).unfold(-2, columns, 1).movedim((-4, -3), (1, 2))
        sizes = (height - rows + 1, width - columns + 1)
        first_row, first_column = (torch.randint(size, (count,), device=images.device) for size in sizes)
        return parts[torch.arange(count, device=images.device), first_row, first_column]


def stack_observations(past: Sequence[Any]) -> Any:
    """Return observations of N steps, arrays or nested arrays [E, ...], as windows [E, N, ...]."""
    if isinstance(past[0], Mapping):
        return {name: stack_observations([each[name] for each in past]) for name in past[0]}
    return np.stack(past, 1)


def _make_network(channels: int, side: int, width: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    halvings = max(3, math.ceil(math.log2(side / _MAX_MAP)))
    widths = [channels, *(max(4, width >> max(0, 2 - number)) for number in range(halvings))]
    for number, (before, after) in enumerate(pairwise(widths)):
        kernel = 3 if number else 5
        layers += [nn.Conv2d(before, after, kernel, 2, kernel // 2), nn.GroupNorm(math.gcd(8, after), after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Conv2d(width, width, 3, 1, 1))


def _coordinates(maps: Tensor) -> Tensor:
    """Return the mean row and column of each channel of maps [*batch, W, h, w], [*batch, 2 W]."""
    shares = maps.flatten(-2).softmax(-1).reshape(maps.shape)
    means = [
        (shares.sum(other) * torch.linspace(-1, 1, maps.shape[axis], device=maps.device)).sum(-1)
        for axis, other in ((-2, -1), (-1, -2))
    ]
    return torch.cat(means, -1)


def _get(batch: Any, key: tuple[str, ...]) -> Tensor:
    for name in key:
        batch = batch[name]
    return batch  # type: ignore[no-any-return]  # the values of a batch have no type


def _name(key: tuple[str, ...]) -> str:
    return "/".join(key)

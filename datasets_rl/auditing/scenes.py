"""What a camera usually sees, and images that look usual only after a change, such as a flip.

Each image is compared with the usual image of the camera, a median of images that are spread over the dataset. Votes of single
images are counted for each episode, so that an episode is found, too, of which only a part is changed.

All comparisons follow from scalar products of the image with a few patterns: the usual image, flipped, with the channels in the
other order, and the usual images of the other cameras.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from datasets_rl.auditing.base import Measures
from datasets_rl.auditing.block import Block, products
from datasets_rl.auditing.data import Data
from datasets_rl.ted.keys import Key

FEWEST_EPISODES = 8
"""Number of episodes below which nothing is usual."""
VOTES = {"votes": "sum", "steps": "sum"}
"""The measures of a check that counts votes."""
SHARE = 0.3
"""Share of the images of an episode that have to vote."""
MARGIN = 0.15
"""Difference of two correlations above which an image votes."""
FLIPS = {"upside_down": (-1, 1), "mirrored": (1, -1), "turned": (-1, -1)}
"""Steps along the rows and the columns of an image that flip the image."""
_USUAL_SHARE = 0.05
_NOTHING = 1e-6
_ROUNDING = 64.0

Singles = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Likeness:
    """How like the usual images of the cameras the images of a block are.

    Attributes:
        shapes: Correlation with the usual image of the camera, without the mean of each channel: as it is, and after each flip of
            `FLIPS`, float32 [N, 4].
        colors: Correlation of the colors, without the brightness: as they are, and with the channels in the other order, float32
            [N, 2].
        distances: Root mean square difference from the usual image of each camera of `Data.images`, float32 [N, K]. Infinite for a
            camera of another shape.
    """

    shapes: Singles
    colors: Singles
    distances: Singles


class Scene:
    """What the cameras usually see, for comparisons with the images of a camera.

    Args:
        data: The dataset.
        key: The field of images.
    """

    def __init__(self, data: Data, key: Key) -> None:
        self._key = key
        usual = data.usual_image(key)
        images = [data.usual_image(other) for other in data.images]
        self._alike = np.array([image.shape == usual.shape for image in images])
        cameras = [image for image in images if image.shape == usual.shape]
        self._squares = np.array([(image**2).mean() for image in cameras], np.float32)
        shape, colors = usual - usual.mean(axis=(0, 1)), usual - usual.mean(axis=2, keepdims=True)
        self._patterns = [
            _rows(_unit(shape[::rows, ::columns]) for rows, columns in ((1, 1), *FLIPS.values())),
            _rows([_unit(colors), _unit(colors[..., ::-1])]),
            _rows(cameras),
            _rows(np.broadcast_to(channel, usual.shape) for channel in np.eye(usual.shape[2])),
        ]

    def compare(self, block: Block) -> Likeness:
        """Compare the images of a block."""
        pixels = block.pixels(self._key)
        size, channels = self._patterns[0].shape[1], pixels.grids.shape[3]
        shapes, colors, cameras, sums = (products(pixels.grids, patterns) for patterns in self._patterns)
        contrast = pixels.squares - (sums**2).sum(axis=1) * (channels / size)
        color = pixels.squares - pixels.grays / channels
        distances = np.full((len(block), len(self._alike)), np.inf, np.float32)
        apart = (pixels.squares[:, None] - 2 * cameras) / size + self._squares
        distances[:, self._alike] = np.sqrt(np.maximum(apart, 0))
        return Likeness(shapes / _norm(contrast), colors / _norm(color), distances)


def likeness(block: Block, key: Key) -> Likeness:
    """Return how like the usual images the images of a block are, for all checks that ask."""
    return block.once("likeness", key, lambda: block.data.model(Scene, key).compare(block))


def votes(block: Block, flags: NDArray[np.bool_]) -> Measures:
    """Return the measures of votes, a flag for each row, [N]."""
    return {"votes": block.sums(flags), "steps": block.sums(np.ones(len(block), np.int64))}


def elected(measures: Measures) -> Iterator[tuple[int, float]]:
    """Yield the number of each episode with votes, and the share of the votes. None if votes are common in all episodes."""
    shares = measures["votes"] / np.maximum(measures["steps"], 1)
    if np.quantile(shares, 0.75) <= _USUAL_SHARE:
        for episode in np.flatnonzero(shares >= SHARE).tolist():
            yield episode, float(shares[episode])


def _rows(images: Iterable[Singles]) -> Singles:
    return np.stack([image.reshape(-1) for image in images]).astype(np.float32)


def _unit(image: Singles) -> Singles:
    unit: Singles = image / max(float(np.linalg.norm(image)), _NOTHING)
    return unit


def _norm(squares: Singles) -> Singles:
    """Return the norm of each image without a mean, [N, 1], of the sum of the squares, [N], which may have errors of rounding."""
    norms: Singles = np.sqrt(np.maximum(squares, _ROUNDING))[:, None]
    return norms

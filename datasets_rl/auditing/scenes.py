"""What a camera usually sees, and images that look usual only after a change, such as a flip.

Each image is compared with the usual image of the camera, a median of images that are spread over the dataset. Votes of single
images are counted for each episode, so that an episode is found, too, of which only a part is changed.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from datasets_rl.auditing.base import Measures
from datasets_rl.auditing.block import Block

FEWEST_EPISODES = 8
"""Number of episodes below which nothing is usual."""
VOTES = {"votes": "sum", "steps": "sum"}
"""The measures of a check that counts votes."""
SHARE = 0.3
"""Share of the images of an episode that have to vote."""
MARGIN = 0.15
"""Difference of two correlations above which an image votes."""
_USUAL_SHARE = 0.05

Images = NDArray[np.float32]


def correlations(images: Images, usual: Images) -> NDArray[np.float32]:
    """Return the correlation of each image [N, h, w, c] with an image [h, w, c], without the mean of each channel, [N]."""
    one = images - images.mean(axis=(1, 2), keepdims=True)
    two = usual - usual.mean(axis=(0, 1), keepdims=True)
    return _cosines(one, two)


def color_correlations(images: Images, usual: Images) -> NDArray[np.float32]:
    """Return the correlation of the colors, without the brightness, of each image [N, h, w, 3] with an image [h, w, 3], [N]."""
    return _cosines(images - images.mean(axis=3, keepdims=True), usual - usual.mean(axis=2, keepdims=True))


def votes(block: Block, flags: NDArray[np.bool_]) -> Measures:
    """Return the measures of votes, a flag for each row, [N]."""
    return {"votes": block.sums(flags), "steps": block.sums(np.ones(len(block), np.int64))}


def elected(measures: Measures) -> Iterator[tuple[int, float]]:
    """Yield the number of each episode with votes, and the share of the votes. None if votes are common in all episodes."""
    shares = measures["votes"] / np.maximum(measures["steps"], 1)
    if np.quantile(shares, 0.75) <= _USUAL_SHARE:
        for episode in np.flatnonzero(shares >= SHARE).tolist():
            yield episode, float(shares[episode])


def _cosines(images: Images, usual: Images) -> NDArray[np.float32]:
    flat, target = images.reshape(len(images), -1), usual.reshape(-1)
    norms = np.linalg.norm(flat, axis=1) * np.linalg.norm(target)
    # Threads of a matrix library would compete with the threads of the audit.
    cosines: NDArray[np.float32] = np.einsum("nf,f->n", flat, target) / np.maximum(norms, 1e-6)
    return cosines

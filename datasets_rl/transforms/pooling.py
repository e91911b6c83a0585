"""Maxima over time."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from datasets_rl.transforms.base import Keys, NestedKey
from datasets_rl.transforms.frames import CatFrames


class TimeMaxPool(CatFrames):
    """Compute the elementwise maximum of the last T values of an entry.

        step        0          1            2            T = 2
        x           -1         3            2
        result      max(0, -1) max(-1, 3)   max(3, 2)

    As in TorchRL, values before the first step of a trajectory are 0. TorchRL computes the maxima in an environment. In
    a buffer, the values are read from the storage, as by `CatFrames`.

    Args:
        in_keys: Keys of the entries, ``["observation"]`` by default.
        out_keys: Keys of the maxima, `in_keys` by default.
        T: Number of values.
        reset_key: Not used: it is the key of an environment.

    Raises:
        InvalidArgumentError: If `T` is below 1.
    """

    of_images = False
    in_recipes = True

    def __init__(
        self,
        in_keys: Keys | None = None,
        out_keys: Keys | None = None,
        T: int = 1,  # noqa: N803  # the name in the reference
        reset_key: NestedKey | None = None,
    ) -> None:
        del reset_key
        super().__init__(T, -1, ["observation"] if in_keys is None else in_keys, out_keys, padding="zeros")

    @override
    def _stack_frames(self, frames: Tensor, axis: int) -> Tensor:
        return frames.amax(axis)

    @override
    def stack_rows(self, frames: NDArray[Any], last: NDArray[np.int64], first: NDArray[np.int64]) -> NDArray[Any]:
        """Return the maxima of values in memory, for whole episodes, [M, ...]. See `CatFrames.stack_rows`."""
        return reduce(np.maximum, self._taken(frames, last, first))

    def _repr_arguments(self) -> dict[str, Any]:
        return {"T": self.N}

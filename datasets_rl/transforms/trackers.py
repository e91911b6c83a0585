"""Marks and numbers of trajectories."""

from __future__ import annotations

from typing import Any

import torch
from typing_extensions import override

from datasets_rl.specs import CompositeSpec
from datasets_rl.specs.bounded import BoundedTensorSpec
from datasets_rl.transforms.base import NestedKey, under_next
from datasets_rl.transforms.returns import InTrajectory


class InitTracker(InTrajectory):
    """Mark the first step of each trajectory, for networks with a hidden state.

        step               0   1   2 | 0
        is_init            x   .   . | x
        next.is_init       .   .   . | .

    If a ring buffer has overwritten the beginning of a trajectory, its oldest stored step is marked.

        >>> import torch
        >>> from tensordict import TensorDict
        >>> from datasets_rl.transforms import InitTracker
        >>> batch = TensorDict({"next": {"done": torch.tensor([[False], [True], [False], [True]])}}, [4])
        >>> InitTracker()(batch)["is_init"].flatten()
        tensor([ True, False,  True, False])

    Args:
        init_key: Key of the mark, bool [*, 1], at the root and under "next".
    """

    shown = ("init_key",)
    in_recipes = True

    def __init__(self, init_key: NestedKey = "is_init") -> None:
        super().__init__()
        self.init_key = init_key

    @override
    def write_results(self, batch: Any, values: dict[str, Any]) -> Any:
        first = values["count"] == 0
        return batch.set(self.init_key, first).set(under_next(self.init_key), torch.zeros_like(first))


class TrajCounter(InTrajectory):
    """Number the trajectories: 0 for the first trajectory of the storage or of the batch, and so on.

        step                 0   1   2 | 0   1 | 0
        traj_count           0   0   0 | 1   1 | 2
        next.traj_count      0   0   0 | 1   1 | 2

    The oldest stored trajectory is number 0, also in a ring buffer that has overwritten earlier trajectories.

        >>> import torch
        >>> from tensordict import TensorDict
        >>> from datasets_rl.transforms import TrajCounter
        >>> batch = TensorDict({"next": {"done": torch.tensor([[False], [True], [False], [True]])}}, [4])
        >>> TrajCounter()(batch)["traj_count"].flatten()
        tensor([0, 0, 1, 1])

    Args:
        out_key: Key of the number, int64 [*, 1], at the root and under "next".
        repeats: Not used, as in TorchRL.
    """

    shown = ("out_key",)

    def __init__(self, out_key: NestedKey = "traj_count", *, repeats: int | None = None) -> None:
        super().__init__()
        del repeats
        self.out_key = out_key

    @override
    def write_results(self, batch: Any, values: dict[str, Any]) -> Any:
        number = values["trajectory"]
        return batch.set(self.out_key, number).set(under_next(self.out_key), number.clone())

    @override
    def update_specs(self, spec: CompositeSpec) -> None:
        largest = torch.iinfo(torch.int64).max
        for key in (self.out_key, under_next(self.out_key)):
            spec.set(key, BoundedTensorSpec(0, largest, (*spec.shape, 1), dtype=torch.int64))

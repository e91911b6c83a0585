"""A writer that keeps what ranks highest."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import is_tensor_collection, lazy_stack
from torch import Tensor

from datasets_rl.checkpoint import check_start_method
from datasets_rl.errors import InvalidArgumentError, UnknownKeyError
from datasets_rl.ted.keys import NEXT_REWARD, Key, as_key, dotted
from datasets_rl.writers.base import Writer

if TYPE_CHECKING:
    from datasets_rl.specs import TensorSpec
    from datasets_rl.storages.base import Storage

__all__ = ["TensorDictMaxValueWriter"]

_REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda values: values.sum(1),
    "min": lambda values: values.amin(1),
    "max": lambda values: values.amax(1),
    "mean": lambda values: values.mean(1),
    "median": lambda values: values.median(1).values,  # the lower one of two
}


class TensorDictMaxValueWriter(Writer):
    """Keep the elements of the highest rank.

    An element is one slot: a transition, or a trajectory whose ranks are reduced to one. A full storage takes a new
    element if it ranks higher than the lowest, whose slot it gets. Of equals the older stays.

        ranks held   5  1  3      extend   2  9  1      ->      5  2  9      rows  1  2 -1

    Args:
        rank_key: The field to rank by; ``("next", "reward")`` by default.
        reduction: What makes one rank of several values: "sum", "min", "max", "mean" or "median".
        spec: What every element must be; what is not in it is refused.
    """

    _ranks: NDArray[np.float64]
    """Of what each slot holds, [held]."""
    _ages: NDArray[np.int64]
    """The number of its arrival, [held]."""
    _arrived: int
    _seen: tuple[int, int] | None
    """The storage's counts after the last write; None if the ranks are taken to be those of what it holds."""

    def __init__(
        self, rank_key: str | Key | None = None, reduction: str = "sum", *, spec: TensorSpec | None = None
    ) -> None:
        if reduction not in _REDUCTIONS:
            raise InvalidArgumentError(f"reduction is {reduction!r}; expected one of {', '.join(_REDUCTIONS)}")
        self.rank_key = NEXT_REWARD if rank_key is None else as_key(rank_key)
        self.reduction = reduction
        self.spec = spec
        self.empty()

    def __getstate__(self) -> dict[str, Any]:
        check_start_method(self, "the ranks", "write from one process, or with a RoundRobinWriter")
        return self.__dict__.copy()

    def register_storage(self, storage: Storage) -> None:
        """Be told where to write.

        Raises:
            InvalidArgumentError: If a slot has lanes: steps of one time do not rank together.
        """
        if storage.ndim > 1:
            raise InvalidArgumentError(
                f"{type(self).__name__} ranks slots, and one of this storage (ndim {storage.ndim}) holds several steps",
                hint="store whole trajectories with ndim=1",
            )
        super().register_storage(storage)
        self._seen = None

    def add(self, data: Any) -> int | None:
        """Write one element if it ranks high enough.

        Returns:
            The row it took, or None.
        """
        _expect_collection(data)
        row = int(self.extend(data.unsqueeze(0)))
        return row if row >= 0 else None

    def extend(self, data: Any) -> Tensor:
        """Write those of several elements that rank high enough.

        Args:
            data: TensorDict [n, ...], or a list of TensorDicts.

        Returns:
            The row that each took, int64 [n]; -1 for those that were not kept.

        Raises:
            InvalidArgumentError: If the data has no rank, or one is NaN; nothing has changed then.
        """
        if isinstance(data, list) and data:
            for element in data:
                _expect_collection(element)
            data = lazy_stack(data)
        rows = torch.full((len(data),), -1)
        if not len(data):
            return rows
        new = self._ranks_of(data)
        storage = self._target()
        self._look_again(storage)
        held, slots = len(self._ranks), storage.slots
        ranks = np.concatenate([self._ranks, new])
        ages = np.concatenate([self._ages, self._arrived + np.arange(len(new))])
        stays = _highest(ranks, ages, slots)
        kept = np.flatnonzero(stays[held:])
        free = np.arange(held, min(slots, held + len(kept)))
        taken = np.concatenate([free, np.flatnonzero(~stays[:held])])
        rows[kept] = torch.from_numpy(taken)
        # Two writes: what fills free slots goes on in the order of the ring, what replaces others does not.
        for part in (slice(0, len(free)), slice(len(free), None)):
            if len(taken[part]):
                storage.set(torch.from_numpy(taken[part]), data[torch.from_numpy(kept[part])])
        self._ranks = np.resize(self._ranks, held + len(free))
        self._ages = np.resize(self._ages, held + len(free))
        self._ranks[taken], self._ages[taken] = new[kept], ages[held:][kept]
        self._arrived += len(new)
        self._seen = (storage.written, storage.rewritten)
        return rows

    def empty(self) -> None:
        """Forget all ranks."""
        self._ranks = np.zeros(0)
        self._ages = np.zeros(0, np.int64)
        self._arrived = 0
        self._seen = None

    def _look_again(self, storage: Storage) -> None:
        """Read the ranks from the data if somebody else has changed it."""
        seen = (storage.written, storage.rewritten)
        if self._seen == seen or (self._seen is None and len(self._ranks) == storage.held):
            return
        self.empty()
        if storage.held:
            held = storage.get(slice(0, storage.held))
            self._ranks = self._ranks_of(lazy_stack(held) if isinstance(held, list) else held)
            self._ranks[storage.torn_rows().numpy()] = -np.inf  # the first to give way
            self._ages = np.arange(storage.held)
            self._arrived = storage.held

    def _ranks_of(self, data: Any) -> NDArray[np.float64]:
        """Return the rank of each element, [n]."""
        _expect_collection(data)
        values = data.get(self.rank_key, None)
        if values is None:
            raise UnknownKeyError(dotted(self.rank_key), [dotted(as_key(key)) for key in data.keys(True, True)])
        if values.is_complex() or not values.numel():
            raise InvalidArgumentError(
                f"the rank {dotted(self.rank_key)!r} is {values.dtype} {list(values.shape)}; expected real numbers"
            )
        flat = values.detach().to("cpu", torch.float64).reshape(len(values), -1)
        ranks: NDArray[np.float64] = _REDUCTIONS[self.reduction](flat).numpy()
        odd = np.flatnonzero(np.isnan(ranks))
        if len(odd):
            raise InvalidArgumentError(
                f"the rank {dotted(self.rank_key)!r} is NaN in {len(odd)} of {len(ranks)} elements, first in {odd[0]}",
                hint="nothing was written; leave such elements out",
            )
        return ranks

    def state_dict(self) -> dict[str, Any]:
        """Return the rank and the age of what each slot holds."""
        return {
            "rank_key": list(self.rank_key),
            "reduction": self.reduction,
            "ranks": torch.from_numpy(self._ranks.copy()),
            "ages": torch.from_numpy(self._ages.copy()),
            "arrived": self._arrived,
        }

    def misfits(self, state_dict: dict[str, Any]) -> list[str]:
        """Say why a state cannot be taken over: one ranks by something else, or holds more than fits."""
        own = self.state_dict()
        reasons = [f"the writer's state has no {name!r}" for name in own if name not in state_dict]
        if reasons:
            return reasons
        reasons += [
            f"{name} was {state_dict[name]!r} and is {own[name]!r}"
            for name in ("rank_key", "reduction")
            if state_dict[name] != own[name]
        ]
        for name in ("ranks", "ages"):
            got = state_dict[name]
            if not isinstance(got, Tensor) or got.dtype != own[name].dtype or got.shape != (len(state_dict["ranks"]),):
                reasons.append(f"{name} of the writer are not {own[name].dtype} [n]")
        slots = self._storage.slots if self._storage is not None else None
        if not reasons and slots is not None and len(state_dict["ranks"]) > slots:
            reasons.append(f"there are {len(state_dict['ranks'])} ranks and {slots} slots")
        return reasons

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a state."""
        super().load_state_dict(state_dict)
        self._ranks = state_dict["ranks"].cpu().numpy().copy()
        self._ages = state_dict["ages"].cpu().numpy().copy()
        self._arrived = int(state_dict["arrived"])
        self._seen = None

    def renumbered(self, state_dict: dict[str, Any], shift: int, slots: int) -> dict[str, Any]:
        """Move ranks and ages to the slots that the elements come to."""
        del slots
        moved = {name: state_dict[name].roll(-shift) for name in ("ranks", "ages")}
        return {**state_dict, **moved}

    def __repr__(self) -> str:
        return f"{type(self).__name__}(rank_key={self.rank_key!r}, reduction={self.reduction!r})"


def _expect_collection(data: Any) -> None:
    if not is_tensor_collection(data):
        raise InvalidArgumentError(
            f"expected a TensorDict or tensorclass, which has a field to rank by; got {type(data).__name__}"
        )


def _highest(ranks: NDArray[np.float64], ages: NDArray[np.int64], count: int) -> NDArray[np.bool_]:
    """Mark the `count` highest ranks; of equals the oldest."""
    surplus = len(ranks) - count
    if surplus <= 0:
        return np.ones(len(ranks), np.bool_)
    lowest = np.partition(ranks, surplus)[surplus]
    stays: NDArray[np.bool_] = ranks > lowest
    equal = np.flatnonzero(ranks == lowest)
    oldest = np.argsort(ages[equal], kind="stable")[: count - int(stays.sum())]
    stays[equal[oldest]] = True
    return stays

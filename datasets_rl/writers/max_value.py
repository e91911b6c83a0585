"""Writer that keeps the elements with the highest ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import is_tensor_collection, lazy_stack
from torch import Tensor
from typing_extensions import override

from datasets_rl.errors import InvalidArgumentError, UnknownKeyError
from datasets_rl.format.checkpoint import check_start_method
from datasets_rl.ted.keys import NEXT_REWARD, Key, as_key, dotted_name
from datasets_rl.writers.base import Writer

if TYPE_CHECKING:
    from datasets_rl.specs import TensorSpec
    from datasets_rl.storages.base import Storage

_REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda values: values.sum(1),
    "min": lambda values: values.amin(1),
    "max": lambda values: values.amax(1),
    "mean": lambda values: values.mean(1),
    "median": lambda values: values.median(1).values,  # of two middle values, the lower value
}


class TensorDictMaxValueWriter(Writer):
    """Keep the elements with the highest ranks.

    An element fills a slot: a transition, or a trajectory with ranks that are reduced to a single rank. If the storage is
    full, a new element with a rank above the lowest stored rank replaces the element with the lowest rank. Among equal
    ranks, the older element stays.

        stored ranks 5  1  3      extend   2  9  1      ->      5  2  9      rows  1  2 -1

        >>> import torch
        >>> from tensordict import TensorDict
        >>> from datasets_rl import LazyTensorStorage, TensorDictMaxValueWriter, TensorDictReplayBuffer
        >>> writer = TensorDictMaxValueWriter(rank_key="score")
        >>> rb = TensorDictReplayBuffer(storage=LazyTensorStorage(2), writer=writer, batch_size=2)
        >>> rows = rb.extend(TensorDict({"score": torch.tensor([1.0, 5.0, 3.0, 2.0])}, [4]))
        >>> sorted(rb[:]["score"].tolist())
        [3.0, 5.0]

    Args:
        rank_key: Key of the field to rank by, ``("next", "reward")`` by default.
        reduction: Reduction of several values to a rank: "sum", "min", "max", "mean" or "median".
        compilable: Accepted for compatibility with TorchRL, without effect.
        spec: Spec that every element must match. Other data raises an error.

    Raises:
        InvalidArgumentError: If the reduction is unknown.
    """

    _ranks: NDArray[np.float64]
    """Rank of the element in each slot, [held]."""
    _ages: NDArray[np.int64]
    """Arrival number of the element in each slot, [held]."""
    _arrived: int
    _ranked_counts: tuple[int, int] | None
    """The storage's counts after the last write, or None if the ranks are assumed to match the stored elements."""

    def __init__(
        self,
        rank_key: str | Key | None = None,
        reduction: str = "sum",
        *,
        compilable: bool = False,
        spec: TensorSpec | None = None,
    ) -> None:
        del compilable
        if reduction not in _REDUCTIONS:
            raise InvalidArgumentError(f"reduction is {reduction!r}, expected one of {', '.join(_REDUCTIONS)}")
        self.rank_key = NEXT_REWARD if rank_key is None else as_key(rank_key)
        self.reduction = reduction
        self.spec = spec
        self._forget_ranks()

    def __getstate__(self) -> dict[str, Any]:
        check_start_method(self, "the ranks", "write from a single process, or with a RoundRobinWriter")
        return self.__dict__.copy()

    def register_storage(self, storage: Storage) -> None:
        """Set the storage to write to.

        Raises:
            InvalidArgumentError: If a slot has several environments: steps of one time are not ranked together.
        """
        if storage.ndim > 1:
            raise InvalidArgumentError(
                f"{type(self).__name__} ranks slots, but a slot of this storage (ndim {storage.ndim}) has several steps",
                hint="store whole trajectories with ndim=1",
            )
        super().register_storage(storage)
        self._ranked_counts = None

    def add(self, data: Any) -> int | None:
        """Write an element if the rank is high enough, and return the row, or None."""
        _check_collection(data)
        row = int(self.extend(data.unsqueeze(0)))
        return row if row >= 0 else None

    def extend(self, data: Any) -> Tensor:
        """Write the elements with high enough ranks.

        Args:
            data: TensorDict [n, ...], or a list of TensorDicts.

        Returns:
            The row of each element, int64 [n], or -1 for elements that were not stored.

        Raises:
            InvalidArgumentError: If the data has no rank, or a rank is NaN. No element is written.
        """
        if isinstance(data, list) and data:
            for element in data:
                _check_collection(element)
            data = lazy_stack(data)
        rows = torch.full((len(data),), -1)
        if not len(data):
            return rows
        new_ranks = self._ranks_of(data)
        storage = self._require_storage()
        self._refresh_ranks(storage)
        held, slots = len(self._ranks), storage.slot_count
        ranks = np.concatenate([self._ranks, new_ranks])
        ages = np.concatenate([self._ages, self._arrived + np.arange(len(new_ranks))])
        stays = _highest_ranked(ranks, ages, slots)
        accepted = np.flatnonzero(stays[held:])
        free = np.arange(held, min(slots, held + len(accepted)))
        targets = np.concatenate([free, np.flatnonzero(~stays[:held])])
        rows[accepted] = torch.from_numpy(targets)
        # Two writes: elements for free slots are in ring order, elements that replace other elements are not.
        for part in (slice(0, len(free)), slice(len(free), None)):
            if len(targets[part]):
                storage.set(torch.from_numpy(targets[part]), data[torch.from_numpy(accepted[part])])
        self._ranks = np.resize(self._ranks, held + len(free))
        self._ages = np.resize(self._ages, held + len(free))
        self._ranks[targets], self._ages[targets] = new_ranks[accepted], ages[held:][accepted]
        self._arrived += len(new_ranks)
        self._ranked_counts = (storage.write_count, storage.rewrite_count)
        return rows

    def get_insert_index(self, data: Any) -> int | None:
        """Return the slot that `add` would write this element to, or None."""
        _check_collection(data)
        ranks = self._ranks_of(data.unsqueeze(0))
        storage = self._require_storage()
        self._refresh_ranks(storage)
        if len(self._ranks) < storage.slot_count:
            return len(self._ranks)
        lowest = self._ranks.min()
        # Among equal ranks, the newest element is replaced.
        candidates = np.flatnonzero(self._ranks == lowest)
        return int(candidates[self._ages[candidates].argmax()]) if ranks[0] > lowest else None

    @override
    def empty(self, empty_write_count: bool = True) -> None:
        super().empty(empty_write_count)
        self._forget_ranks()

    def _forget_ranks(self) -> None:
        self._ranks = np.zeros(0)
        self._ages = np.zeros(0, np.int64)
        self._arrived = 0
        self._ranked_counts = None

    def _refresh_ranks(self, storage: Storage) -> None:
        """Read the ranks from the stored data again if the storage was changed without this writer."""
        counts = (storage.write_count, storage.rewrite_count)
        if self._ranked_counts == counts or (self._ranked_counts is None and len(self._ranks) == storage.filled_count):
            return
        self._forget_ranks()
        if storage.filled_count:
            stored = storage.get(slice(0, storage.filled_count))
            self._ranks = self._ranks_of(lazy_stack(stored) if isinstance(stored, list) else stored)
            self._ranks[storage.torn_rows().numpy()] = -np.inf  # replaced first
            self._ages = np.arange(storage.filled_count)
            self._arrived = storage.filled_count

    def _ranks_of(self, data: Any) -> NDArray[np.float64]:
        """Return the rank of each element, [n]."""
        _check_collection(data)
        values = data.get(self.rank_key, None)
        if values is None:
            raise UnknownKeyError(
                dotted_name(self.rank_key), [dotted_name(as_key(key)) for key in data.keys(True, True)]
            )
        if values.is_complex() or not values.numel():
            raise InvalidArgumentError(
                f"the rank {dotted_name(self.rank_key)!r} is {values.dtype} {list(values.shape)}, expected real numbers"
            )
        flat = values.detach().to("cpu", torch.float64).reshape(len(values), -1)
        ranks: NDArray[np.float64] = _REDUCTIONS[self.reduction](flat).numpy()
        nan_elements = np.flatnonzero(np.isnan(ranks))
        if len(nan_elements):
            raise InvalidArgumentError(
                f"the rank {dotted_name(self.rank_key)!r} is NaN in {len(nan_elements)} of {len(ranks)} elements, first in {nan_elements[0]}",
                hint="no element was written: remove these elements",
            )
        return ranks

    def state_dict(self) -> dict[str, Any]:
        """Return the rank and the age of the element in each slot."""
        return {
            "rank_key": list(self.rank_key),
            "reduction": self.reduction,
            "ranks": torch.from_numpy(self._ranks.copy()),
            "ages": torch.from_numpy(self._ages.copy()),
            "arrived": self._arrived,
        }

    @override
    def state_problems(self, state_dict: dict[str, Any]) -> list[str]:
        own = self.state_dict()
        reasons = [f"the writer's state has no {name!r}" for name in own if name not in state_dict]
        if reasons:
            return reasons
        reasons += [
            f"{name} is {state_dict[name]!r}, expected {own[name]!r}"
            for name in ("rank_key", "reduction")
            if state_dict[name] != own[name]
        ]
        ranks, arrived = state_dict["ranks"], state_dict["arrived"]
        shape = ranks.shape if isinstance(ranks, Tensor) and ranks.ndim == 1 else None
        if not isinstance(arrived, int) or isinstance(arrived, bool) or arrived < 0:
            reasons.append(f"arrived of the writer is {arrived!r}, expected an integer >= 0")
        for name in ("ranks", "ages"):
            saved = state_dict[name]
            if not isinstance(saved, Tensor) or saved.dtype != own[name].dtype or saved.shape != shape:
                reasons.append(f"{name} of the writer is not a {own[name].dtype} tensor [n]")
        slots = self._storage.slot_count if self._storage is not None else None
        if not reasons and slots is not None and len(ranks) > slots:
            reasons.append(f"the state has {len(ranks)} ranks, expected at most {slots}, the number of slots")
        return reasons

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._ranks = state_dict["ranks"].cpu().numpy().copy()
        self._ages = state_dict["ages"].cpu().numpy().copy()
        self._arrived = int(state_dict["arrived"])
        self._ranked_counts = None

    @override
    def renumbered(self, state_dict: dict[str, Any], shift: int, slots: int) -> dict[str, Any]:
        del slots
        moved = {name: state_dict[name].roll(-shift) for name in ("ranks", "ages")}
        return {**state_dict, **moved}

    def __repr__(self) -> str:
        return f"{type(self).__name__}(rank_key={self.rank_key!r}, reduction={self.reduction!r})"


def _check_collection(data: Any) -> None:
    if not is_tensor_collection(data):
        raise InvalidArgumentError(
            f"TensorDictMaxValueWriter expects data to be a tensor collection, and the data is a {type(data).__name__}",
            hint="pass a TensorDict or tensorclass with a field to rank by",
        )


def _highest_ranked(ranks: NDArray[np.float64], ages: NDArray[np.int64], count: int) -> NDArray[np.bool_]:
    """Return a mask of the elements with the `count` highest ranks. Among equal ranks, the oldest elements are chosen."""
    surplus = len(ranks) - count
    if surplus <= 0:
        return np.ones(len(ranks), np.bool_)
    lowest = np.partition(ranks, surplus)[surplus]
    stays: NDArray[np.bool_] = ranks > lowest
    equal = np.flatnonzero(ranks == lowest)
    oldest = np.argsort(ages[equal], kind="stable")[: count - int(stays.sum())]
    stays[equal[oldest]] = True
    return stays

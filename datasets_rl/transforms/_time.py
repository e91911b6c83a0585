"""Steps in the order of time: as trajectories of a storage, or along an axis of a batch."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from tensordict import is_tensor_collection
from torch import Tensor

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.transforms.base import GATHERED, Keys, NestedKey, Transform, found_keys, under_next

if TYPE_CHECKING:
    from datasets_rl.ted.trajectories import Trajectories

__all__ = ["OverTime", "TimeAxis", "discounted", "positions", "windows"]


class OverTime(Transform):
    """A transform that looks at the steps before or after each step of a batch.

    In a buffer whose rows are steps, those are read from the storage by their rows, while the batch is read: whatever
    the sampler drew, the right steps come, within the trajectory, also where a ring has wrapped. A batch that comes
    from elsewhere, or whose elements are trajectories themselves, has them along its axis of time: the one with the
    name "time", or the last one of the batch size. There, trajectories end where a flag says so, and with the batch.

        gather     storage, rows [B]    ->  found, travels with the batch  ->  put
        apply      batch [..., T]       ->  found                          ->  put

    Args:
        in_keys: Entries that are read.
        out_keys: Where the results are written.
        done_key: The flag under "next" that is True for the last step of a trajectory, if the storage, or the batch,
            is to be asked for another one than ``"done"``.
    """

    def __init__(
        self, in_keys: Keys | None = None, out_keys: Keys | None = None, done_key: NestedKey | None = None
    ) -> None:
        super().__init__(in_keys, out_keys)
        self.done_key = done_key

    @abstractmethod
    def found_in_storage(self, storage: Any, rows: Tensor, data: Any) -> dict[str, Any]:
        """Return what the transform has to know of the steps of these rows: by names, tensors [B, ...]."""

    @abstractmethod
    def found_in_batch(self, batch: Any) -> dict[str, Any]:
        """Return the same of all steps of a batch, tensors [*batch, ...]."""

    @abstractmethod
    def put(self, batch: Any, found: dict[str, Any]) -> Any:
        """Write the results."""

    def gather(self, storage: Any, rows: Tensor, data: Any) -> Any:
        """Read what is needed of a storage, and let it travel with the batch until the turn of this transform comes.

        Raises:
            InvalidArgumentError: If nothing says where trajectories end, or rows cannot be read from such a storage.
        """
        if not self._reads_rows(data):
            return data
        mark = self._mark
        for name, value in self.found_in_storage(storage, rows, data).items():
            data.set(mark + name, value)
        return data

    def _reads_rows(self, data: Any) -> bool:
        """Return whether the elements of a batch are single steps."""
        if is_tensor_collection(data):
            return bool(data.ndim == 1)
        if isinstance(data, list) and data and is_tensor_collection(data[0]) and data[0].ndim:
            return False
        raise InvalidArgumentError(
            f"{type(self).__name__} reads further steps of the storage, and this one gives a {type(data).__name__}",
            hint="hold TensorDicts in a TensorStorage; in an ensemble, give the transform to the buffers",
        )

    def apply(self, batch: Any) -> Any:
        """Transform a batch, with what was found in the storage if it came from there."""
        return self.put(batch, self.travelled(batch) or self.found_in_batch(batch))

    def travelled(self, batch: Any) -> dict[str, Any]:
        """Take out of a batch what was found in the storage; nothing if it does not come from one."""
        mark = self._mark
        return {name.removeprefix(mark): batch.pop(name) for name in found_keys(batch, mark)}

    @property
    def _mark(self) -> str:
        return f"{GATHERED}.{id(self)}."

    def trajectories(self, storage: Any) -> Trajectories:
        """Return which rows of a storage follow each other."""
        usual = self.done_key is None or self.done_key == "done"
        found: Trajectories = storage.trajectories(end_key=None if usual else under_next(self.done_key or ""))
        return found

    def around(self, storage: Any, rows: Tensor, before: int, after: int) -> tuple[Tensor, Tensor]:
        """Return the rows around some, int64 [B, W], and whether another one stands in, see `Trajectories.around`."""
        there, outside = self.trajectories(storage).around(rows.cpu().numpy(), before, after)
        return torch.from_numpy(there), torch.from_numpy(outside)

    def ends(self, batch: Any, axis: TimeAxis) -> Tensor:
        """Return which steps of a batch are the last ones, flat, [M]."""
        done = batch.get(under_next(self.done_key or "done"), None)
        return axis.ends(done)


@dataclass(frozen=True)
class TimeAxis:
    """The axis of time of a batch. Flat, the steps that follow each other lie side by side: [M], M = ... * T.

    batch [2, T]    a_0 a_1 a_2        flat    a_0 a_1 a_2 b_0 b_1 b_2
                    b_0 b_1 b_2        ends     .   .   x   .   .   x
    """

    shape: tuple[int, ...]
    """The batch size."""
    place: int
    """Which of its axes is time."""

    @classmethod
    def of(cls, batch: Any) -> TimeAxis:
        """Find it: the one with the name "time", or the last one.

        Raises:
            InvalidArgumentError: If there is no axis.
        """
        if not batch.ndim:
            raise InvalidArgumentError(
                "the batch is a single step; expected [..., T], with the steps of a trajectory in order"
            )
        names = batch.names
        return cls(tuple(batch.shape), names.index("time") if "time" in names else batch.ndim - 1)

    @property
    def last(self) -> int:
        """The place of the last axis of the batch size."""
        return len(self.shape) - 1

    def flat(self, value: Tensor) -> Tensor:
        """Return an entry [*batch, ...] as [M, ...]."""
        if self.last:
            value = value.movedim(self.place, self.last).flatten(0, self.last)
        return value

    def at(self, value: Tensor, steps: Tensor) -> Tensor:
        """Return an entry [*batch, ...] at numbers of flat steps, [M, W], as [*batch, W, ...]."""
        found = self.flat(value).index_select(0, steps.reshape(-1).to(value.device))
        return self.back(found.reshape(*steps.shape, *found.shape[1:]))

    def back(self, flat: Tensor) -> Tensor:
        """Undo `flat`."""
        if not self.last:
            return flat
        lead = [size for place, size in enumerate(self.shape) if place != self.place]
        return flat.reshape(*lead, self.shape[self.place], *flat.shape[1:]).movedim(self.last, self.place)

    def ends(self, done: Tensor | None) -> Tensor:
        """Return which steps are the last of their trajectory, or of the batch, bool [M]."""
        steps = self.shape[self.place]
        count = math.prod(self.shape)
        flags = torch.zeros(self.shape, dtype=torch.bool) if done is None else done
        ends = self.flat(flags).reshape(count, -1).any(-1)
        ends.view(-1, steps)[:, -1:] = True
        return ends


def positions(ends: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the number of each step, and that of the first and the last one of its trajectory, int64 [M] each."""
    numbers = torch.arange(len(ends), device=ends.device)
    opens = ends.roll(1)
    firsts = torch.where(opens, numbers, 0).cummax(0).values
    lasts = torch.where(ends, numbers, len(ends)).flip(0).cummin(0).values.flip(0)
    return numbers, firsts, lasts


def windows(ends: Tensor, before: int, after: int) -> tuple[Tensor, Tensor]:
    """Do what `Trajectories.around` does, for all steps of a flat batch: int64 and bool, [M, before + 1 + after]."""
    numbers, firsts, lasts = positions(ends)
    wanted = numbers.unsqueeze(1) + torch.arange(-before, after + 1, device=ends.device)
    there = wanted.clamp(firsts.unsqueeze(1), lasts.unsqueeze(1))
    return there, there != wanted


def discounted(values: Tensor, carry: Tensor) -> Tensor:
    """Return x with ``x[t] = values[t] + carry[t] * x[t + 1]``, [M, ...]; `carry` is 0 where one ends, and at the last step.

    The reach doubles with each pass, so that there are as many passes as the longest trajectory has binary digits:

        reach 1    v_0 + c v_1                            v_1 + c v_2     v_2 + c v_3    v_3
        reach 2    v_0 + c v_1 + c^2 (v_2 + c v_3)        v_1 + ...
    """
    sums = _doubled(values, carry)
    # What is no number, or infinite, stays so times 0: then it must be kept to its trajectory.
    return _doubled(values, carry, keep=True) if bool(sums.isnan().any()) else sums


def _doubled(values: Tensor, carry: Tensor, *, keep: bool = False) -> Tensor:
    sums, carry = values.clone(), carry.clone()
    reach = 1
    while reach < len(sums) and bool(carry.any()):
        # The products are new tensors: nothing is read after it was written.
        more = carry[:-reach] * sums[reach:]
        sums[:-reach] += more.masked_fill_(carry[:-reach] == 0, 0) if keep else more
        carry[:-reach] = carry[:-reach] * carry[reach:]
        reach *= 2
    return sums

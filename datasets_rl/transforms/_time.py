"""Chronological order of steps: in the trajectories of a storage, or along the time axis of a batch."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from tensordict import is_tensor_collection
from torch import Tensor
from typing_extensions import override

from datasets_rl.errors import InvalidArgumentError, UnknownKeyError
from datasets_rl.specs import CompositeSpec
from datasets_rl.ted.unchecked import entries_of
from datasets_rl.ted.windows import Windows, steps_of
from datasets_rl.transforms.base import (
    GATHERED,
    Keys,
    NestedKey,
    Transform,
    gathered_keys,
    get_entry,
    is_group,
    pop_entry,
    set_entry,
    under_next,
    update_specs_by_trial,
)

if TYPE_CHECKING:
    from datasets_rl.ted.keys import Key
    from datasets_rl.ted.trajectories import Trajectories

PADDING_MASKS: tuple[NestedKey, ...] = ("mask", ("collector", "mask"))
"""Keys under which padded trajectories have a mask, from `split_trajs`, slice samplers and collectors."""


class OverTime(Transform):
    """Base class of transforms that use the steps before or after each step of a batch.

    If the rows of the storage are steps, the transform reads the neighboring steps from the storage while the batch is
    sampled: for any sampler, it reads the steps of the same trajectory, even if a ring buffer has wrapped around. In
    any other batch, and in a batch of whole trajectories, neighboring steps are adjacent along the time axis: the axis
    named "time", or the last axis of the batch size. There, a trajectory ends at a flag, before padding, which
    ``"mask"`` or ``("collector", "mask")`` marks, or at the end of the batch.

        gather     storage, rows [B]    ->  values, temporary entries of the batch  ->  put
        batch      batch [..., T]       ->  values                                  ->  put

    Args:
        in_keys: Keys of the entries to read.
        out_keys: Keys of the results.
        done_key: Key under "next" of the flag that is True for the last step of a trajectory, "done" by default.
    """

    reads_only_in_keys: ClassVar[bool] = False
    """Whether `in_keys` are all entries that the transform reads of other rows, beside the ends of trajectories."""

    def __init__(
        self, in_keys: Keys | None = None, out_keys: Keys | None = None, done_key: NestedKey | None = None
    ) -> None:
        super().__init__(in_keys, out_keys)
        self.done_key = done_key

    @abstractmethod
    def values_from_storage(self, storage: Any, rows: Tensor, data: Any) -> dict[str, Any]:
        """Return the values that the transform needs for steps of a storage: tensors [B, ...] by name.

        Args:
            storage: Storage to read from.
            rows: Rows of the batch in the storage, int64 [B].
            data: Batch of the steps at these rows.
        """

    @abstractmethod
    def values_from_batch(self, batch: Any) -> dict[str, Any]:
        """Return the values that the transform needs for all steps of a batch: tensors [*batch, ...] by name."""

    @abstractmethod
    def write_results(self, batch: Any, values: dict[str, Any]) -> Any:
        """Compute the results from the values, write the results to a batch, and return the batch."""

    def gather(self, storage: Any, rows: Tensor, data: Any) -> Any:
        """Read the required values from a storage, and add temporary entries for `transform_batch` to a batch.

        Args:
            storage: Storage to read from.
            rows: Rows of the batch in the storage, int64 [B].
            data: Batch of the steps at these rows.

        Raises:
            InvalidArgumentError: If the storage does not record where trajectories end, or does not contain
                TensorDicts.
        """
        if not self._reads_rows(data):
            return data
        mark = self._mark
        for name, value in self.values_from_storage(storage, rows, data).items():
            set_entry(data, mark + name, value)
        return data

    def _reads_rows(self, data: Any) -> bool:
        """Return whether the elements of a batch are single steps, and not trajectories."""
        if is_tensor_collection(data):
            return bool(data.ndim == 1)
        if isinstance(data, list) and data and is_tensor_collection(data[0]) and data[0].ndim:
            return False
        raise InvalidArgumentError(
            f"{type(self).__name__} reads other steps of the storage, but batches of this storage are of type {type(data).__name__},"
            " expected TensorDicts",
            hint="use a TensorStorage of TensorDicts. In an ensemble, add the transform to the member buffers",
        )

    def transform_batch(self, batch: Any) -> Any:
        """Transform a batch in place: use the values from the storage if `gather` has read them, else the time axis."""
        if self._is_done(batch):
            return batch
        return self.write_results(batch, self.pop_gathered(batch) or self.values_from_batch(batch))

    @property
    def can_be_replaced(self) -> bool:
        """Whether a storage may read the results of this transform, see `ReadsInPass`: nothing else sees its input."""
        return not (self._dotted or self._forward_hooks or self._forward_pre_hooks or self._calls)

    def _is_done(self, batch: Any) -> bool:
        """Return whether a storage has read the results, and remove the entry that says so."""
        mark = self._mark
        entries = entries_of(batch)
        if entries is not None:
            return entries.pop(mark, None) is not None
        if batch.get(mark, None) is None:
            return False
        batch.pop(mark)
        return True

    def after_pass(self, storage: Any, rows: Tensor, batch: Any) -> None:
        """Complete a batch of these rows that a storage has read with the results, see `ReadsInPass`.

        A temporary entry says that the batch has the results already.
        """
        del storage
        set_entry(batch, self._mark, rows)

    def pop_gathered(self, batch: Any) -> dict[str, Any]:
        """Remove the temporary entries of this transform from a batch and return the entries, if any."""
        mark = self._mark
        return {name.removeprefix(mark): pop_entry(batch, name) for name in gathered_keys(batch, mark)}

    @property
    def _mark(self) -> str:
        return f"{GATHERED}.{id(self)}."

    def trajectories(self, storage: Any) -> Trajectories:
        """Return the trajectories of a storage, which end at the flag `done_key`."""
        trajectories: Trajectories = storage.trajectories(end_key=self._end_key)
        return trajectories

    @property
    def _end_key(self) -> Any:
        """Key of the flag that ends a trajectory of a storage, or None for the default of the storage."""
        return None if self.done_key in {None, "done"} else under_next(self.done_key or "")

    def own_reads(self, storage: Any) -> Collection[Key]:
        """Return the keys of a batch of a storage that `gather` reads and writes: the batch is read without them."""
        del storage
        return ()

    def take_windows(
        self, storage: Any, keys: Sequence[NestedKey], rows: Tensor, offsets: Sequence[int], data: Any
    ) -> Windows:
        """Return entries of the steps around rows, see `Storage.take_windows`.

        Args:
            storage: Storage, or a view of it, to read from.
            keys: Keys of the entries.
            rows: Rows of the batch in the storage, int64 [B].
            offsets: Steps of a window, relative to its row, [W].
            data: Batch of the steps at these rows. Errors list the keys of this batch.

        Raises:
            UnknownKeyError: If a key is missing.
        """
        for key in keys:
            if is_group(data.get(key, None)):
                self.tensor(data, key)
        paths = [(key,) if isinstance(key, str) else key for key in keys]
        try:
            windows: Windows = storage.take_windows(paths, rows, offsets, end_key=self._end_key)
        except UnknownKeyError:
            for key in keys:
                get_entry(data, key)
            raise
        return windows

    def example(self, storage: Any, rows: Tensor, data: Any) -> Any:
        """Return a batch with the entries that the transform reads: `data`, or a step after the earlier transforms.

        Args:
            storage: Storage, or a view of it, to read from.
            rows: Rows of the batch in the storage, int64 [B].
            data: Batch of the steps at these rows, before all transforms.
        """
        missing = any(data.get(key, None) is None for key in self.in_keys)
        return storage.take(rows[:1]) if missing else data

    def ends(self, batch: Any, axis: TimeAxis) -> Tensor:
        """Return which steps of a batch are the last of a trajectory, in flat order, bool [M].

        A trajectory also ends before the padding, which `padding_mask` marks.
        """
        ends = axis.ends(batch.get(under_next(self.done_key or "done"), None))
        mask = self.padding_mask(batch)
        if mask is None:
            return ends
        real = axis.flatten(mask).to(ends.device)
        return ends | (real != real.roll(-1))

    @override
    def update_specs(self, spec: CompositeSpec) -> None:
        update_specs_by_trial(self.on_own, spec, in_time=True)

    def padding_mask(self, batch: Any) -> Tensor | None:
        """Return which steps of a batch are not padding, bool [*batch], or `None` if the batch has no mask."""
        return find_mask(batch)


def find_mask(batch: Any, keys: Sequence[NestedKey] = PADDING_MASKS) -> Tensor | None:
    """Return the mask of the steps of padded trajectories, False for padding, bool [*batch], or `None` without a mask.

    Entries of another shape, such as the masks of windows, are not masks of the steps.

    Args:
        batch: Batch of trajectories.
        keys: Keys where the mask may be, of which the first is used.
    """
    for key in keys:
        mask = batch.get(key, None)
        if isinstance(mask, Tensor) and mask.shape in {batch.shape, (*batch.shape, 1)}:
            return mask.reshape(batch.shape).bool()
    return None


class OverSlices(OverTime):
    """Base class of transforms along the time axis of batches that consist of slices of trajectories.

    In a batch of a buffer, `continued` tells where the next row of the batch is not the next step of the trajectory.
    """

    @override
    def values_from_storage(self, storage: Any, rows: Tensor, data: Any) -> dict[str, Any]:
        del data
        owner, places = self.trajectories(storage).locate(rows.cpu().numpy())
        # The next step of a trajectory has the next number. No number follows the last step of a trajectory.
        return {"number": torch.from_numpy(places + owner)}

    @override
    def values_from_batch(self, batch: Any) -> dict[str, Any]:
        return {}

    @staticmethod
    def continued(values: dict[str, Any], axis: TimeAxis) -> Tensor:
        """Return whether each step of a batch of a buffer is followed by the next step of the trajectory, bool [*batch].

        Args:
            values: Values from the storage. A batch that no buffer has drawn has no values.
            axis: Time axis of the batch, along which no step follows the last steps.
        """
        numbers: Tensor = values["number"]
        return numbers.diff(dim=axis.place, append=numbers.narrow(axis.place, 0, 1)) == 1


@dataclass(frozen=True)
class TimeAxis:
    """Time axis of a batch, with conversion to a flat order [M] in which consecutive steps are adjacent, M = ... * T.

    batch [2, T]    a_0 a_1 a_2        flat    a_0 a_1 a_2 b_0 b_1 b_2
                    b_0 b_1 b_2        ends     .   .   x   .   .   x
    """

    shape: tuple[int, ...]
    """Batch size."""
    place: int
    """Index of the time axis in the batch size."""

    @classmethod
    def of_batch(cls, batch: Any) -> TimeAxis:
        """Return the time axis of a batch: the axis named "time", or else the last axis of the batch size.

        Raises:
            InvalidArgumentError: If the batch size has no axes.
        """
        if not batch.ndim:
            raise InvalidArgumentError(
                "the batch is a single step, expected batch size [..., T], with the steps of a trajectory in order"
            )
        names = batch.names
        return cls(tuple(batch.shape), names.index("time") if "time" in names else batch.ndim - 1)

    @property
    def last(self) -> int:
        """Index of the last axis of the batch size."""
        return len(self.shape) - 1

    def flatten(self, value: Tensor) -> Tensor:
        """Convert an entry [*batch, ...] to flat order, [M, ...]."""
        if self.last:
            value = value.movedim(self.place, self.last).flatten(0, self.last)
        return value

    def select_steps(self, value: Tensor, steps: Tensor) -> Tensor:
        """Select steps of an entry [*batch, ...] by flat index, [M, W], and return them as [*batch, W, ...]."""
        selected = self.flatten(value).index_select(0, steps.reshape(-1).to(value.device))
        return self.unflatten(selected.reshape(*steps.shape, *selected.shape[1:]))

    def unflatten(self, flat: Tensor) -> Tensor:
        """Convert an entry from flat order, [M, ...], to [*batch, ...]: the inverse of `flatten`."""
        if not self.last:
            return flat
        lead = [size for place, size in enumerate(self.shape) if place != self.place]
        return flat.reshape(*lead, self.shape[self.place], *flat.shape[1:]).movedim(self.last, self.place)

    def ends(self, done: Tensor | None) -> Tensor:
        """Return which steps are the last of their trajectory or of the batch, in flat order, bool [M].

        Args:
            done: Flag of the last step of each trajectory, bool [*batch, ...], or `None` if the batch has no flag.
        """
        steps = self.shape[self.place]
        count = math.prod(self.shape)
        flags = torch.zeros(self.shape, dtype=torch.bool) if done is None else done
        ends = self.flatten(flags).reshape(count, -1).any(-1)
        ends.view(-1, steps)[:, -1:] = True
        return ends


def trajectory_positions(ends: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the flat index of each step, and of the first and the last step of its trajectory, int64 [M] each.

    Args:
        ends: Which steps are the last of their trajectory, in flat order, bool [M].
    """
    numbers = torch.arange(len(ends), device=ends.device)
    opens = ends.roll(1)
    firsts = torch.where(opens, numbers, 0).cummax(0).values
    lasts = torch.where(ends, numbers, len(ends)).flip(0).cummin(0).values.flip(0)
    return numbers, firsts, lasts


def step_windows(ends: Tensor, offsets: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return the window of steps around each step of a flat batch, and which of them are padding.

    The first and the last step of a trajectory pad a window that exceeds it, as in `Trajectories.windows_around`.

    Args:
        ends: Which steps are the last of their trajectory, in flat order, bool [M].
        offsets: Steps of a window, relative to its step, [W].

    Returns:
        Flat indices, int64 [M, W], and whether each is padding, bool of the same shape.
    """
    numbers, firsts, lasts = trajectory_positions(ends)
    unclamped = numbers.unsqueeze(1) + steps_of(offsets, ends.device)
    window = unclamped.clamp(firsts.unsqueeze(1), lasts.unsqueeze(1))
    return window, window != unclamped

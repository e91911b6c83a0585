"""What transforms read from rows of a storage beside the rows of the batch."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from operator import eq
from typing import TYPE_CHECKING, Any

import torch
from tensordict import is_tensor_collection
from torch import Tensor

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.ted.keys import NEXT, EndKey, Key
from datasets_rl.ted.windows import Windows, rows_in
from datasets_rl.transforms.base import get_entry

if TYPE_CHECKING:
    from datasets_rl.storages.base import Storage
    from datasets_rl.ted.trajectories import Trajectories

_CHUNK = 1 << 16
"""Number of steps per chunk when all steps of a storage are read."""


class NotRowsError(Exception):
    """Transforms that make trajectories of single steps, such as `split_trajectories`, so that no row has a result."""


class TransformedStorage:
    """View of a storage after some transforms of the steps, for a later transform that reads other rows.

    rewards in the storage     r_0   r_1   r_2        MultiStepTransform after RewardClipping
    rewards that it reads    c(r_0) c(r_1) c(r_2)     sums clipped rewards, instead of clipping the sum

    Args:
        storage: Storage, or a view of it, to read from.
        transforms: Transforms that are applied to the steps, as a batch [B].
    """

    wide_keys: frozenset[Key] = frozenset()
    wide_states: frozenset[Key] = frozenset()
    """None: steps are transformed as a whole."""

    def __init__(self, storage: Storage | TransformedStorage, transforms: Sequence[Any]) -> None:
        self._storage, self._transforms = storage, transforms

    @property
    def origin(self) -> Any:
        """The underlying storage."""
        return getattr(self._storage, "origin", self._storage)

    @property
    def read_only(self) -> bool:
        """Whether the data of the storage cannot change."""
        return self._storage.read_only

    @property
    def write_count(self) -> int:
        """Value of `written` of the storage."""
        return self._storage.write_count

    @property
    def rewrite_count(self) -> int:
        """Value of `rewritten` of the storage."""
        return self._storage.rewrite_count

    def __len__(self) -> int:
        """Return the number of stored steps, N."""
        return len(self._storage)

    def chronological_rows(self) -> Tensor:
        """Return all stored rows from the oldest to the newest step, int64 [N]."""
        return self._storage.chronological_rows()

    def take(self, rows: Tensor) -> Any:
        """Return the transformed steps at rows, a batch [B].

        Raises:
            NotRowsError: If the transforms make trajectories of the steps.
            InvalidArgumentError: If they return another number of steps.
        """
        data = take_gathered(self._transforms, self._storage, rows)
        for transform in self._transforms:
            data = transform(data)
        if is_tensor_collection(data) and data.shape != rows.shape:
            if data.ndim != rows.ndim:
                raise NotRowsError
            raise InvalidArgumentError(
                f"the transforms return {len(data)} steps for {len(rows)} rows of the storage, expected the same number",
                hint="put transforms that leave steps out after transforms that read other steps",
            )
        return data

    def take_next(self, rows: Tensor) -> Any:
        """Return the entries under "next" of the transformed steps at rows, a batch [B]."""
        return self.take(rows).get(NEXT)

    def take_windows(
        self, keys: Sequence[Key], rows: Tensor, offsets: Sequence[int], *, end_key: EndKey | None = None
    ) -> Windows:
        """Return entries of the windows around rows, see `Storage.take_windows`, of transformed steps."""
        window, outside = self.origin.windows_around(rows, offsets, end_key=end_key)
        batch = self.take(window.reshape(-1))
        values = [get_entry(batch, key) for key in keys]
        # A copy: transforms may return tensors that they keep.
        entries = [value.reshape(*window.shape, *value.shape[1:]).clone() for value in values]
        return Windows(entries, outside, rows_in(window))

    def column(self, key: Key) -> Tensor:
        """Return an entry of all stored steps, [N, ...]. The steps are read in chunks."""
        chunks = _row_chunks(len(self))
        return torch.cat([get_entry(self.take(rows), key) for rows in chunks])

    def pick(self, key: Key, rows: Tensor) -> Tensor:
        """Return a field of some rows, [B, ...]."""
        column = self.column(key)
        return column.index_select(0, rows.to(column.device))

    def trajectories(
        self, *, end_key: EndKey | None = None, traj_key: Key | None = None, step_key: Key | None = None
    ) -> Trajectories:
        """Return the trajectories of the storage. Transforms do not affect them."""
        return self._storage.trajectories(end_key=end_key, traj_key=traj_key, step_key=step_key)


def take_gathered(transforms: Sequence[Any], storage: Any, rows: Tensor) -> Any:
    """Return the steps at rows of a storage, with what the transforms read from other rows, see `add_gathered`.

    The fields that the first transform reads at other rows together with these are read once, by the transform.

    Args:
        transforms: Transforms that will be applied to the batch.
        storage: Storage to read from.
        rows: Rows of the batch, int64 [B].
    """
    data = _take_in_pass(transforms, storage, rows)
    if data is not None:
        return data
    keys = own_reads(transforms, storage)
    data = storage.take_without(rows, tuple(keys)) if keys else storage.take(rows)
    return add_gathered(transforms, storage, rows, data)


def _take_in_pass(transforms: Sequence[Any], storage: Any, rows: Tensor) -> Any:
    """Return the steps at rows as the first transform changes them, or None if the transform has to do so itself.

    Later transforms that read other rows would see its results where they expect the entries of the storage.
    """
    first: Any = transforms[0] if transforms else None
    kind: Any = type(first)
    if not _reads_in_pass(kind) or any(hasattr(type(later), "gather") for later in transforms[1:]):
        return None
    if not first.can_be_replaced or not hasattr(type(storage), "take_in_pass"):
        return None
    data = storage.take_in_pass(rows, first)
    if data is not None:
        first.after_pass(storage, rows, data)
    return data


@lru_cache(maxsize=256)
def _reads_in_pass(kind: type) -> bool:
    """Return whether a pass has the results of transforms of a class: no subclass changes what the transform does."""
    for number, owner in enumerate(kind.__mro__):
        if "pass_over" in vars(owner):
            changed = {
                name
                for part in kind.__mro__[:number]
                for name, value in vars(part).items()
                if callable(value) or isinstance(value, property)
            }
            return changed <= {"__init__"}
    return False


def own_reads(transforms: Sequence[Any], storage: Any) -> Collection[Key]:
    """Return the keys of a batch of a storage that a transform reads and writes separately.

    This is the first transform that reads other rows, unless earlier transforms use the same entries.
    """
    for number, transform in enumerate(transforms):
        if hasattr(type(transform), "own_reads"):
            keys: Collection[Key] = transform.own_reads(storage)
            return keys if _reads_unchanged(transform, transforms[:number]) else ()
    return ()


def _reads_unchanged(transform: Any, earlier: Sequence[Any]) -> bool:
    """Return whether a transform reads only entries that no earlier transform reads or changes."""
    if not earlier:
        return True
    if not getattr(transform, "reads_only_in_keys", False) or transform._dotted:  # noqa: SLF001 - of a transform
        return False
    read = [_path(key) for key in transform.in_keys]
    for other in earlier:
        if not getattr(other, "per_step", False) or hasattr(type(other), "gather") or not other.out_keys:
            return False
        if other._dotted or other._forward_hooks or other._forward_pre_hooks:  # noqa: SLF001 - of a transform and a module
            return False
        used = [_path(key) for key in (*other.in_keys, *other.out_keys)]
        # Either key may be the group of the other.
        if any(all(map(eq, key, path)) for key in read for path in used):
            return False
    return True


def _path(key: Any) -> Key:
    """Return a key of a batch as a tuple of names."""
    return (key,) if isinstance(key, str) else tuple(key)


def add_gathered(transforms: Sequence[Any], storage: Any, rows: Tensor, data: Any) -> Any:
    """Add entries that the transforms with a method `gather` read from other rows of the storage, such as earlier frames.

    Each of them reads the rows as the transforms before it return them: from the storage itself, if those change nothing
    that it reads. If they make trajectories of the steps, as `split_trajectories` does, it reads nothing, and will use the
    steps of the batch.

    The values are stored under temporary keys of the batch until the transform uses them. A buffer calls this function
    while no writes are in progress.

    Args:
        transforms: Transforms that will be applied to the batch.
        storage: Storage to read from.
        rows: Rows of the batch in the storage, int64 [B].
        data: Batch of the steps at these rows, before the transforms.

    Returns:
        The batch with the temporary entries.
    """
    for number, transform in enumerate(transforms):
        # The lookup of a missing attribute of a module takes microseconds, that of a class does not.
        if hasattr(type(transform), "gather"):
            earlier = transforms[:number]
            is_unchanged = _reads_unchanged(transform, earlier)
            view = storage if is_unchanged else TransformedStorage(storage, earlier)
            with suppress(NotRowsError):
                if getattr(transform, "_dotted", None):
                    transform.bind(data if is_unchanged else view.take(rows[:1]))
                data = transform.gather(view, rows, data)
    return data


def _row_chunks(count: int) -> Iterator[Tensor]:
    for start in range(0, count, _CHUNK):
        yield torch.arange(start, min(start + _CHUNK, count))

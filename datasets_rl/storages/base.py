"""Base class of storages: containers of steps that are read and written by index."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from datasets_rl.arguments import check, size_problems
from datasets_rl.errors import InvalidArgumentError, UnknownKeyError
from datasets_rl.format.checkpoint import Stateful, raise_reasons
from datasets_rl.storages.index import TrajectoryIndex
from datasets_rl.storages.items import decode_item, encode_item
from datasets_rl.ted.keys import NEXT, EndKey, Key
from datasets_rl.ted.windows import Windows, rows_in

if TYPE_CHECKING:
    from datasets_rl.storages.packed import RowSlot
    from datasets_rl.storages.record_access import RecordAccess
    from datasets_rl.ted.passes import ReadsInPass
    from datasets_rl.ted.trajectories import Trajectories

Hook = Callable[[Any], Any]
"""A function from the stored data to the data to save, or back."""


class Storage(Stateful, ABC):
    """Container for the steps of a replay buffer.

    Steps are stored in slots. With a single leading axis (`ndim` 1), a slot holds a single step. With more, the first
    axis is time and a slot holds a step of each parallel environment (`envs`) counted by the other leading axes. A row
    is the index of a step after the leading axes are flattened: row = slot * envs + env.

        ndim 2, max_size 6, envs 2       slot 0   (0, 0) (0, 1)      rows  0 1
                                         slot 1   (1, 0) (1, 1)            2 3
                                         slot 2   (2, 0) (2, 1)            4 5

    Args:
        max_size: Maximum number of steps, at least 1.
        ndim: Number of leading axes of the data that index steps.

    Raises:
        InvalidArgumentError: If an argument is not an integer >= 1.
    """

    masked: bool = False
    """Whether batches carry ``("next", "final_known")`` because a final observation of the dataset is unknown."""

    other_writes: Tensor = torch.zeros(0, dtype=torch.int64)
    """Writes per slot that `write_count` does not include, int64 [n]. Never changed in place."""
    wide_keys: frozenset[Key] = frozenset()
    """Keys of the fields of a batch that are in separate files, or compressed."""
    wide_states: frozenset[Key] = frozenset()
    """Keys of the fields in separate files with values at t and t + 1 that are stored once, see
    `EpisodicStorage.pick_states`."""
    _tracks_generations = False
    _save_hooks: tuple[Hook, ...] = ()
    _load_hooks: tuple[Hook, ...] = ()

    def __init__(self, max_size: int, *, ndim: int = 1) -> None:
        check(size_problems(max_size=max_size, ndim=ndim))
        if max_size >= 2**63:
            raise InvalidArgumentError(f"max_size is {max_size}, expected an integer below 2**63")
        self.max_size = int(max_size)
        self.ndim = int(ndim)
        self._indices: dict[tuple[EndKey | None, Key | None, Key | None], TrajectoryIndex] = {}
        self._counts: list[int] | memoryview[int] = [0, 0, 0, 0]
        """Counts of slots held, written, rewritten and torn. The memory of a `Ledger` if processes share the
        storage."""

    @property
    def checkpointer(self) -> None:
        """None: `dumps` has a single format, so TorchRL's checkpointers do not apply."""

    @checkpointer.setter
    def checkpointer(self, checkpointer: Any) -> None:
        if checkpointer is not None:
            raise InvalidArgumentError(
                f"checkpointer is {type(checkpointer).__name__}, expected None: dumps writes .npy files and JSON",
                hint="omit the argument, or export the data that rb[:] returns",
            )

    @property
    def envs(self) -> int:
        """Steps per slot: 1, or the product of the leading axis sizes after the first. 1 before the first write."""
        return 1

    @property
    def slot_count(self) -> int:
        """Capacity of the storage in slots."""
        return self.max_size // self.envs

    @property
    def filled_count(self) -> int:
        """Number of slots that currently hold data."""
        return self._counts[0]

    @property
    def write_count(self) -> int:
        """Number of slots written in ring order since the storage was last empty.

        The write index is ``write_count % slot_count``: that slot is free or holds the oldest data.
        """
        return self._counts[1]

    @property
    def rewrite_count(self) -> int:
        """Number of changes made out of ring order. Each of them makes cached information about the rows stale."""
        return self._counts[2]

    def _counted(self) -> tuple[int, int, int]:
        counts = self._counts
        return counts[0], counts[1], counts[2]

    def _count(self, filled: int, written: int, rewritten: int) -> None:
        counts = self._counts
        counts[0], counts[1], counts[2] = filled, written, rewritten

    @property
    def torn(self) -> int:
        """Number of stored steps that a process was writing when it died.

        Torn steps hold zeros, samplers skip them, and the next write to their slots makes the steps valid again. Only a
        storage that processes share can have torn steps.
        """
        torn = self._counts[3]
        return torn * self.envs if torn else 0

    def torn_rows(self) -> Tensor:
        """Return the rows of the torn steps in ascending order, int64 [torn]."""
        return torch.empty(0, dtype=torch.int64)

    def before_torn(self, rows: Tensor) -> Tensor:
        """Return which of these rows [n] are followed by a torn row, bool [n]. A trajectory ends there."""
        slots, torn = rows // self.envs, self.torn_rows() // self.envs
        # The slot after the newest slot is the write index: even if that slot is torn, no trajectory continues into it.
        return torch.isin((slots + 1) % self.slot_count, torn) & (slots != (self.write_count - 1) % self.slot_count)

    def recover(self) -> None:
        """Roll back or complete a write that another process left unfinished. The caller holds the buffer's lock.

        The slots of a write that is rolled back become torn. The counts are restored from before that write.
        """

    def rewriting(self) -> Iterator[slice]:
        """Yield slices that cover all slots held, for a change in place. Each slice is marked while in use.

        If the process dies, a slice is torn and the slices before it have been changed.
        """
        yield slice(0, self.filled_count)
        self.changed()

    @property
    def lock_path(self) -> Path | None:
        """Lock file of all buffers over this storage in all processes, or None for a lock file per buffer."""
        return None

    def __len__(self) -> int:
        """Return the number of steps stored, including torn steps."""
        return self.filled_count * self.envs

    @abstractmethod
    def get(self, index: Any) -> Any:
        """Return the data at an index along the leading axes.

        Raises:
            IndexError: If the index is out of range.
        """

    def take(self, rows: Tensor) -> Any:
        """Return the steps of these rows, int64 [B], as a batch [B] that does not share memory with the storage."""
        return self.get(rows if self.ndim == 1 else self.unravel(rows))

    def take_fields(self, rows: Tensor, keys: Sequence[Key]) -> Any:
        """Return some fields of these rows, int64 [B], as a batch [B], see `take`.

        Args:
            rows: The rows.
            keys: Keys of the fields.

        Raises:
            KeyError: If there is no such key.
        """
        return self.take(rows).select(*keys)

    @abstractmethod
    def set(self, cursor: Any, data: Any, *, set_cursor: bool = True) -> None:
        """Write data into slots.

        Args:
            cursor: An integer for the data of a single slot, a slice, range or index tensor [n] for the data of n
                slots, stacked along the first axis.
            data: The data to write.
            set_cursor: Whether the write counts. If False, neither the number of slots held nor the write index
                changes: a slot that was free still counts as free, and may hold anything of the right structure.

        Raises:
            InvalidArgumentError: If the data does not match the stored structure. The message lists all problems, and
                nothing is written.
        """

    def overwrite(self, index: Any, data: Any) -> None:
        """Overwrite stored steps without moving the write index.

        Raises:
            InvalidArgumentError: If the data does not match the stored structure. Nothing is written then.
            IndexError: If a slot does not hold data yet.
        """
        held, written, rewritten = self._counted()
        self.set(index, data)
        held_after = self._counts[0]
        self._count(held, written, rewritten + 1)
        if held_after != held:
            raise IndexError(f"index {index!r} is out of range, expected one of {held:,} slots")

    def size_of(self, data: Any) -> int:
        """Return the number of slots that `data` fills, where `data` is as for `set` with several slots."""
        return len(data)

    def unravel(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Return an index per leading axis for these rows [...]."""
        return (rows,)

    def ravel(self, index: Any) -> Tensor:
        """Return rows, int64 [...], for the result of `unravel`, or for that result stacked along the last axis."""
        if isinstance(index, tuple):
            index = index[0]
        return torch.as_tensor(index, dtype=torch.int64)

    def column(self, key: Key) -> Tensor:
        """Return a field of all stored steps, [rows, ...], a view where the memory layout allows this.

        Raises:
            UnknownKeyError: If there is no such key.
        """
        raise InvalidArgumentError(
            f"{type(self).__name__} holds no fields, and therefore no key {key!r}",
            hint="store TensorDicts in a LazyTensorStorage, or pass `ends` or `trajectories` to the slice sampler",
        )

    def writable_column(self, key: Key) -> Tensor:
        """Return `column` of a field for a change in place.

        Raises:
            UnknownKeyError: If there is no such key.
            InvalidArgumentError: If the field cannot be changed in place.
        """
        return self.column(key)

    def has_field(self, key: Key) -> bool:
        """Return whether `column` returns a field for this key."""
        try:
            self.column(key)
        except UnknownKeyError:
            return False
        return True

    def pick(self, key: Key, rows: Tensor) -> Tensor:
        """Return a field of some rows, [B, ...], without computing the field for the other rows.

        Raises:
            UnknownKeyError: If there is no such key.
        """
        column = self.column(key)
        # Several times as fast as indexing, even for a column of packed rows.
        return column.index_select(0, rows.to(column.device))

    def pick_all(self, keys: Sequence[Key], rows: Tensor) -> list[Tensor]:
        """Return several fields of some rows, each as `pick` does."""
        return [self.pick(key, rows) for key in keys]

    def record_access(self, key: Key) -> tuple[RecordAccess, RowSlot] | None:
        """Return the records for compiled loops, and where a field is in a record.

        Returns:
            The records, of which the rows are those of this storage, and the position. None if the storage has no records,
            or the field is not in the records.
        """
        del key
        return None

    def take_in_pass(self, rows: Tensor, transform: ReadsInPass) -> Any:
        """Return the steps of these rows, int64 [B], as a transform changes them, read in one pass.

        Args:
            rows: The rows.
            transform: The transform, of which the data of other storages is read by the transform itself.

        Returns:
            A batch [B] that does not share memory with the storage, or None if the transform has to read and to change
            the steps itself.
        """
        del rows, transform
        return None

    def take_next(self, rows: Tensor) -> Any:
        """Return the entries under "next" of these rows, int64 [B], as a TensorDict [B]."""
        return self.take(rows).get(NEXT)

    def windows_around(
        self, rows: Tensor, offsets: Sequence[int], *, end_key: EndKey | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return windows of rows that stay within their trajectories, see `Trajectories.windows_around`.

        Args:
            rows: Row of each window, int64 [B].
            offsets: Steps of a window, relative to its row, [W].
            end_key: The flag that ends a trajectory. By default, as for `trajectories`.

        Returns:
            Rows, int64 [B, W], and whether each is filled in, bool, in the same shape.
        """
        window, outside = self.trajectories(end_key=end_key).windows_around(rows.cpu().numpy(), offsets)
        return torch.from_numpy(window), torch.from_numpy(outside)

    def take_windows(
        self, keys: Sequence[Key], rows: Tensor, offsets: Sequence[int], *, end_key: EndKey | None = None
    ) -> Windows:
        """Return some fields of the windows around rows, see `windows_around`.

        Args:
            keys: Keys of the fields.
            rows: Row of each window, int64 [B].
            offsets: Steps of a window, relative to its row, [W].
            end_key: The flag that ends a trajectory. By default, as for `trajectories`.

        Raises:
            UnknownKeyError: If a key is missing.
        """
        window, outside = self.windows_around(rows, offsets, end_key=end_key)
        flat = window.reshape(-1)
        entries = [values.reshape(*window.shape, *values.shape[1:]) for values in self.pick_all(keys, flat)]
        return Windows(entries, outside, rows_in(window))

    def chronological_rows(self) -> Tensor:
        """Return all rows that are not torn, from the oldest to the newest, int64 [N].

        The rows of a slot belong to the same time step.
        """
        slots = torch.arange(self.filled_count)
        if self.filled_count == self.slot_count:
            slots = (slots + self.write_count) % self.slot_count
        rows = slots if self.envs == 1 else (slots.unsqueeze(1) * self.envs + torch.arange(self.envs)).reshape(-1)
        return rows[~torch.isin(rows, self.torn_rows())] if self.torn else rows

    def trajectories(
        self, *, end_key: EndKey | None = None, traj_key: Key | None = None, step_key: Key | None = None
    ) -> Trajectories:
        """Return which rows follow each other in time, updated with each write and never by a full scan.

        By default, rows are grouped by ``("collector", "traj_ids")`` or ``("episode",)``, if the data has either key,
        and a trajectory ends where ``("next", "done")`` is True, if the data has this key.

        Args:
            end_key: Flag that is True on the last step of a trajectory. If only this key is given, no other key is
                used. With several keys, a True flag of any key ends a trajectory.
            traj_key: Key of the trajectory id. Rows of an environment with the same id form a trajectory, even if
                other rows are between them, until an end flag is True. With an end key, the data may lack it.
            step_key: Key of the step index within a trajectory. A gap starts a new trajectory. A writable storage
                needs the steps in order. A read-only storage accepts any order.

        Raises:
            InvalidArgumentError: If no key of the data marks where trajectories end.
            UnknownKeyError: If there is no such key.
        """
        keys = (end_key, traj_key, step_key)
        if keys not in self._indices:
            self._indices[keys] = TrajectoryIndex(*keys)
        return self._indices[keys].trajectories(self)

    def changed(self) -> None:
        """Invalidate everything cached about the rows, after data were changed in place through a view."""
        self._counts[2] += 1

    def share(self) -> None:
        """Move the data to shared memory.

        Processes that receive the storage after this call read and write the same steps.

        Raises:
            InvalidArgumentError: If this storage cannot be shared.
        """
        raise InvalidArgumentError(f"{type(self).__name__} cannot be shared between processes")

    @property
    def shared(self) -> bool:
        """Whether other processes may read and write the same memory."""
        return False

    @property
    def read_only(self) -> bool:
        """Whether the data can never change."""
        return False

    @property
    def rows_device(self) -> torch.device | None:
        """The device on which samplers should draw rows, if they can. None for main memory."""
        return None

    def __getitem__(self, index: Any) -> Any:
        return self.get(index)

    def __setitem__(self, index: Any, data: Any) -> None:
        self.set(index, data)

    def __iter__(self) -> Iterator[Any]:
        return (self.get(index) for index in range(self.filled_count))

    def contains(self, item: Any) -> Any:
        """Return whether there is data at an index.

        Args:
            item: An integer, which may count from the end, or integers [...].

        Returns:
            A bool for an integer, else bool [...].

        Raises:
            InvalidArgumentError: If the index has another type.
        """
        index = torch.as_tensor(item) if isinstance(item, (int, np.integer, np.ndarray, list, Tensor)) else None
        if index is None or index.dtype == torch.bool or index.is_floating_point() or index.is_complex():
            raise InvalidArgumentError(f"the index is {item!r}, expected integers")
        found = (index >= -self.filled_count) & (index < self.filled_count)
        return found if isinstance(item, Tensor) or index.ndim else bool(found)

    def __contains__(self, item: Any) -> bool:
        return bool(torch.as_tensor(self.contains(item)).all())

    def flatten(self) -> Storage:
        """Return a storage of the same steps with a single leading axis, which may be this storage.

        Raises:
            InvalidArgumentError: If this storage holds no steps yet.
        """
        return self

    def track_generations(self) -> None:
        """Count all later writes to each slot, see `generations`."""
        self._tracks_generations = True

    def generations(self, slots: Tensor) -> Tensor:
        """Return how often slots [...] were written before their current content, int64 [...], -1 for an unused slot.

            slots 4, written 6     slot        0  1  2  3
                                   written     2  2  1  1     times
                                   generation  1  1  0  0

        Writes in ring order follow from the write count, which processes share. Only other writes are counted
        individually.
        """
        count = self.slot_count
        times = torch.div(self.write_count - 1 - slots, count, rounding_mode="floor") + 1
        if len(self.other_writes):
            others = self.other_writes[slots.clamp(0, len(self.other_writes) - 1)]
            times = times + others.where(slots < len(self.other_writes), 0)
        return (times - 1).where((slots >= 0) & (slots < count), -1)

    def count_other_writes(self, slots: Tensor) -> None:
        """Count a write to each of these slots, int64 [n], that the write count does not include."""
        if not self._tracks_generations or not len(slots):
            return
        counts = torch.zeros(max(int(slots.max()) + 1, len(self.other_writes)), dtype=torch.int64)
        counts[: len(self.other_writes)] = self.other_writes
        self.other_writes = counts.index_add_(0, slots, torch.ones_like(slots))

    def retire_generations(self) -> None:
        """Give every used slot another generation, before the storage is emptied and its write count restarts."""
        if self._tracks_generations:
            used = torch.arange(max(self.filled_count, len(self.other_writes)))
            generations = self.generations(used)
            self.other_writes = (generations + 2).where(generations >= 0, 0)

    def register_save_hook(self, hook: Hook) -> None:
        """Add a function that is applied to the stored data when the state is saved, after those added before.

        Args:
            hook: A function of the data in the order of the storage, whose result is saved instead: tensors,
                TensorDicts, JSON values, and dicts, lists and tuples of such values. If the hook has the attributes
                `shift` and `is_full`, the attributes are set to the write index, and to whether the storage is full:
                then the oldest step is at the write index. Hooks are not saved.
        """
        self._save_hooks += (hook,)

    def register_load_hook(self, hook: Hook) -> None:
        """Add a function that is applied to the data that save hooks produced, when it is loaded.

        Args:
            hook: A function of the saved data. The last function returns the steps to store, in the same order.
        """
        self._load_hooks += (hook,)

    def _hooked_state(self) -> dict[str, Any]:
        """Return the state of a storage with save hooks."""
        held, written, _ = self._counted()
        data = self.get(slice(None))
        for hook in self._save_hooks:
            for name, value in (("shift", written % self.slot_count), ("is_full", held == self.slot_count)):
                if hasattr(hook, name):
                    setattr(hook, name, value)
            data = hook(data)
        hooked = encode_item(data, "the result of the save hooks")
        return {"hooked": hooked, "held": held, "written": written, "slots": self.slot_count, "env_shape": [self.envs]}

    def _hooked_problems(self, state_dict: dict[str, Any]) -> list[str]:
        try:
            decode_item(state_dict["hooked"])
        except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
            return [f"the result of the save hooks cannot be read: {error}"]
        counts = [state_dict.get(name) for name in ("held", "written", "slots")]
        if not all(type(count) is int and count >= 0 for count in counts):
            return [f"the counts held, written and slots are {counts}, expected integers"]
        return (
            [] if self._load_hooks else ["save hooks changed the state: register the load hooks that undo this change"]
        )

    def _load_hooked_state(self, state_dict: dict[str, Any]) -> None:
        raise_reasons(self._hooked_problems(state_dict))
        data = decode_item(state_dict["hooked"])
        for hook in self._load_hooks:
            data = hook(data)
        self.empty()
        count = self.size_of(data)
        self.set(range(count), data)
        shift = state_dict.get("shift", 0)
        if shift:
            data = self.get((torch.arange(count) + shift) % count)
            self.set(range(count), data)
        elif state_dict["held"] == count == self.slot_count:
            self._recount(count, max(state_dict["written"], count))

    def _renumbered_hooked_state(self, state_dict: dict[str, Any], shift: int) -> dict[str, Any]:
        return {**state_dict, "shift": shift, "written": state_dict["held"]}

    def _recount(self, held: int, written: int) -> None:
        """Set the counts after all stored data were replaced. No step is torn after this call."""
        self._count(held, written, self.rewrite_count + 1)

    save = dump = Stateful.dumps
    load = Stateful.loads

    def attach(self, buffer: Any) -> None:
        """Register a buffer that reads from this storage. Several buffers may register."""

    def empty(self) -> None:
        """Remove all steps.

        Raises:
            InvalidArgumentError: If the storage is read-only.
        """
        raise InvalidArgumentError(f"{type(self).__name__} cannot be emptied: the storage is read-only")


class ReadOnlyStorage(Storage):
    """Storage of steps that never change."""

    # Attributes, because every batch reads them.
    read_only: ClassVar[bool] = True
    """Whether the data can never change: always True."""
    torn: ClassVar[int] = 0
    """Number of torn steps: always 0."""
    rows_device: torch.device | None = None
    """The device on which samplers should draw rows, if they can. None for main memory."""

    @property
    def filled_count(self) -> int:
        """Number of slots: all slots hold data."""
        return self.max_size

    def set(self, cursor: Any, data: Any, *, set_cursor: bool = True) -> None:
        """Raise: the storage is read-only."""
        del set_cursor
        raise InvalidArgumentError(
            f"{self!r} is read-only: cannot write {type(data).__name__} at {cursor!r}",
            hint="write to a separate ReplayBuffer, or create a modified copy of the dataset",
        )


def device_of(device: torch.device | str | int) -> torch.device:
    """Parse the `device` argument of a storage.

    Raises:
        InvalidArgumentError: If the argument does not name a device.
    """
    try:
        return torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise InvalidArgumentError(f"device is {device!r}, expected a device such as 'cpu' or 'cuda:0'") from error

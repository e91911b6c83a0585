"""What a storage is: a container of steps that is read and written by index."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from datasets_rl.checkpoint import Stateful
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.storages.index import EndKey, TrajectoryIndex
from datasets_rl.ted.keys import Key

if TYPE_CHECKING:
    from datasets_rl.ted.trajectories import Trajectories

__all__ = ["Storage", "device_of"]


class Storage(Stateful, ABC):
    """Where the steps of a replay buffer are held.

    Steps lie in slots. With one axis (`ndim` 1) a slot is one step; with more, the first axis is time and a slot holds
    one step of each of the `envs` (environments) that the further axes count. A row is the number of a step when all
    axes are flattened: row = slot * lanes + lane.

        ndim 2, max_size 6, lanes 2      slot 0   (0, 0) (0, 1)      rows  0 1
                                         slot 1   (1, 0) (1, 1)            2 3
                                         slot 2   (2, 0) (2, 1)            4 5

    Args:
        max_size: Steps that fit, at least 1.
        ndim: Leading axes of the data that count positions.
    """

    masked: bool = False
    """Whether batches carry ``("next", "final_known")``, because some final observation of a dataset is unknown."""

    def __init__(self, max_size: int, *, ndim: int = 1) -> None:
        sizes: dict[str, Any] = {"max_size": max_size, "ndim": ndim}
        faults = [
            f"{name} is {size!r}; expected a whole number from 1"
            for name, size in sizes.items()
            if not isinstance(size, (int, np.integer)) or isinstance(size, bool) or size < 1
        ]
        if not faults and max_size >= 2**63:
            faults.append(f"max_size is {max_size}; expected less than 2**63")
        if faults:
            raise InvalidArgumentError("; ".join(faults))
        self.max_size = int(max_size)
        self.ndim = int(ndim)
        self._indices: dict[tuple[EndKey | None, Key | None, Key | None], TrajectoryIndex] = {}
        self._counts: list[int] | memoryview[int] = [0, 0, 0, 0]
        """Slots held, written, rewritten and torn; memory of a `Ledger` where processes share it."""

    @property
    def checkpointer(self) -> None:
        """None: `dumps` has one format, and TorchRL's checkpointers do not apply."""

    @checkpointer.setter
    def checkpointer(self, checkpointer: Any) -> None:
        if checkpointer is not None:
            raise InvalidArgumentError(
                f"checkpointer is {type(checkpointer).__name__}; expected None: dumps writes .npy files and JSON",
                hint="leave it out, or export what rb[:] returns",
            )

    @property
    def envs(self) -> int:
        """Steps of one slot: 1, or the product of the sizes of the axes after the first; 1 while nothing is known."""
        return 1

    @property
    def slots(self) -> int:
        """Slots that fit."""
        return self.max_size // self.envs

    @property
    def held(self) -> int:
        """Slots that are held now."""
        return self._counts[0]

    @property
    def written(self) -> int:
        """Slots written in the order of the ring since the storage was empty.

        The next one in that order is slot ``written % slots``: it is free, or the oldest.
        """
        return self._counts[1]

    @property
    def rewritten(self) -> int:
        """Changes that were not in the order of the ring: what was known of the rows must be read again."""
        return self._counts[2]

    def _counted(self) -> tuple[int, int, int]:
        counts = self._counts
        return counts[0], counts[1], counts[2]

    def _count(self, held: int, written: int, rewritten: int) -> None:
        counts = self._counts
        counts[0], counts[1], counts[2] = held, written, rewritten

    @property
    def torn(self) -> int:
        """Steps held whose writer died in the middle of writing them.

        They hold zeros, no sampler draws them, and the next write to their slots makes them valid again. Only a storage
        that processes share can have any.
        """
        torn = self._counts[3]
        return torn * self.envs if torn else 0

    def torn_rows(self) -> Tensor:
        """Return the rows of the torn steps in ascending order, int64 [torn]."""
        return torch.empty(0, dtype=torch.int64)

    def before_torn(self, rows: Tensor) -> Tensor:
        """Return which of these rows, [n], are followed by a torn one, bool [n]: a trajectory goes no further there."""
        slots, torn = rows // self.envs, self.torn_rows() // self.envs
        # After the newest slot comes the one that is written next, also where the ring holds its oldest steps there.
        return torch.isin((slots + 1) % self.slots, torn) & (slots != (self.written - 1) % self.slots)

    def recover(self) -> None:
        """Find the write that a process began and did not end; the caller excludes all other readers and writers.

        The slots of that write become torn, and the storage counts the others as before it.
        """

    def rewriting(self) -> Iterator[slice]:
        """Yield all slots held, part by part, for a change in place; the iterator marks a part while it is out.

        A process that dies leaves one part torn, and the parts before it changed.
        """
        yield slice(0, self.held)
        self.changed()

    @property
    def lock_path(self) -> Path | None:
        """The lock file of all buffers over this storage, in all processes; None if each buffer makes its own."""
        return None

    def __len__(self) -> int:
        """Return the number of steps held, including torn ones."""
        return self.held * self.envs

    @abstractmethod
    def get(self, index: Any) -> Any:
        """Return the data at an index along the leading axes.

        Raises:
            IndexError: If the index reaches outside the data.
        """

    def take(self, rows: Tensor) -> Any:
        """Return the steps of these rows, int64 [B], as one batch [B] in memory of its own."""
        return self.get(rows if self.ndim == 1 else self.unravel(rows))

    @abstractmethod
    def set(self, cursor: Any, data: Any) -> None:
        """Write data into slots.

        Args:
            cursor: A whole number for the data of one slot; a slice, range or index tensor [n] for that of n slots,
                stacked along the first axis.
            data: What to write.

        Raises:
            InvalidArgumentError: If the data does not fit what is stored; all faults at once, and nothing has been written.
        """

    def replace(self, index: Any, data: Any) -> None:
        """Write data over steps that are held; which slot is the next one stays as it is.

        Raises:
            InvalidArgumentError: If the data does not fit what is stored; nothing has been written then.
            IndexError: If a slot is not held.
        """
        held, written, rewritten = self._counted()
        self.set(index, data)
        reached = self._counts[0]
        self._count(held, written, rewritten + 1)
        if reached != held:
            raise IndexError(f"{index!r} reaches outside the {held:,} slots held")

    def size_of(self, data: Any) -> int:
        """Return how many slots `data` fills, given as for `set` with several slots."""
        return len(data)

    def unravel(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Return rows, [...], as one index for each of the leading axes."""
        return (rows,)

    def ravel(self, index: Any) -> Tensor:
        """Return as rows, int64 [...], what `unravel` returned, or the same stacked along the last axis."""
        if isinstance(index, tuple):
            index = index[0]
        return torch.as_tensor(index, dtype=torch.int64)

    def column(self, key: Key) -> Tensor:
        """Return one field of all steps held, [rows, ...]; a view where it lies as such.

        Raises:
            UnknownKeyError: If there is no such key.
        """
        raise InvalidArgumentError(
            f"{type(self).__name__} holds no fields, so there is no {key!r}",
            hint="hold TensorDicts in a LazyTensorStorage; or tell a slice sampler its `ends` or `trajectories`",
        )

    def pick(self, key: Key, rows: Tensor) -> Tensor:
        """Return one field of some rows, [B, ...], without making the rest of it.

        Raises:
            UnknownKeyError: If there is no such key.
        """
        column = self.column(key)
        # Several times as fast as indexing, also where the column is part of packed rows.
        return column.index_select(0, rows.to(column.device))

    def chronological_rows(self) -> Tensor:
        """Return all rows that are not torn, from the oldest to the newest, int64 [N]; rows of one slot are of one time."""
        slots = torch.arange(self.held)
        if self.held == self.slots:
            slots = (slots + self.written) % self.slots
        rows = slots if self.envs == 1 else (slots.unsqueeze(1) * self.envs + torch.arange(self.envs)).reshape(-1)
        return rows[~torch.isin(rows, self.torn_rows())] if self.torn else rows

    def trajectories(
        self, *, end_key: EndKey | None = None, traj_key: Key | None = None, step_key: Key | None = None
    ) -> Trajectories:
        """Return which rows follow each other in time; kept up to date with the writes, never scanned again.

        By default rows belong together by ``("collector", "traj_ids")`` or ``("episode",)``, where the data has one of
        them, and end where ``("next", "done")`` is True, where it has that.

        Args:
            end_key: The flag that is True for the last step of a trajectory; if only this is given, nothing else
                counts. Several keys: any of their flags.
            traj_key: The number of the trajectory. Rows of one lane with the same number belong together, even if
                others lie between them, up to a True end flag.
            step_key: The number of the step in its trajectory: a gap parts it. Steps of a storage that is written to
                must come in order; those of a read-only one may lie in any order.

        Raises:
            InvalidArgumentError: If nothing says where trajectories end.
            UnknownKeyError: If there is no such key.
        """
        keys = (end_key, traj_key, step_key)
        if keys not in self._indices:
            self._indices[keys] = TrajectoryIndex(*keys)
        return self._indices[keys].current(self)

    def changed(self) -> None:
        """Be told that data were changed in place, through a view: what was known of the rows is read again."""
        self._counts[2] += 1

    def share(self) -> None:
        """Let processes that get this storage from now on read and write the same memory."""
        raise InvalidArgumentError(f"{type(self).__name__} cannot be shared between processes")

    @property
    def shared(self) -> bool:
        """Whether other processes may read and write the same memory."""
        return False

    @property
    def read_only(self) -> bool:
        """Whether nothing can change the data."""
        return False

    def __getitem__(self, index: Any) -> Any:
        return self.get(index)

    def __setitem__(self, index: Any, data: Any) -> None:
        self.set(index, data)

    def __iter__(self) -> Iterator[Any]:
        return (self.get(index) for index in range(self.held))

    def attach(self, buffer: Any) -> None:
        """Be told which buffer reads from this storage; several may."""

    def empty(self) -> None:
        """Forget all steps."""
        raise InvalidArgumentError(f"{type(self).__name__} cannot be emptied")


def device_of(device: torch.device | str | int) -> torch.device:
    """Read the argument of a storage.

    Raises:
        InvalidArgumentError: If it names no device.
    """
    try:
        return torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise InvalidArgumentError(f"device is {device!r}; expected a device such as 'cpu' or 'cuda:0'") from error

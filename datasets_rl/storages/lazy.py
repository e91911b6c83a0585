"""A storage that allocates its memory at the first write: packed rows, in RAM or on a device."""

from __future__ import annotations

import math
import weakref
from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import NonTensorData, NonTensorStack
from torch import Tensor
from typing_extensions import override

from datasets_rl.disk import ScratchFolder
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.storages.base import Storage, device_of
from datasets_rl.storages.compressed import CompressedLeaves
from datasets_rl.storages.frame_ring import anonymous_memory
from datasets_rl.storages.items import decode_item, encode_item
from datasets_rl.storages.ledger import Ledger
from datasets_rl.storages.mapped import MappedRows
from datasets_rl.storages.non_tensor import Objects, as_non_tensor, write_leaf
from datasets_rl.storages.packed import RowViews
from datasets_rl.storages.row_layout import row_layout
from datasets_rl.storages.saved_steps import SavedSteps
from datasets_rl.storages.structure import Structure
from datasets_rl.storages.tensor import TensorStorage, Write, check_only_tensors
from datasets_rl.ted.keys import NEXT, EndKey, Key, as_key, dotted_name
from datasets_rl.ted.windows import Windows, rows_in

_GAPS_PER_WINDOW = 4
"""If more windows than this share have gaps, as with several environments, all windows are read row by row."""


class LazyTensorStorage(TensorStorage):
    """Steps in memory that is allocated when the first data are written.

    All narrow leaves of a step are stored in a single record, so that a batch takes a single gather and views of the
    result. A leaf of 4,096 bytes or more has separate records. Integers and slices give views, which the caller can
    write to. Other indices give copies.

        slot    | observation | action | reward | flags | pad |      table 0, int64 [slots, *envs, W]
                | image ..................................... |      table 1

        >>> import torch
        >>> from datasets_rl import LazyTensorStorage, ReplayBuffer
        >>> rb = ReplayBuffer(storage=LazyTensorStorage(1_000), batch_size=4)
        >>> rows = rb.extend({"observation": torch.zeros(10, 3), "action": torch.zeros(10, 1)})
        >>> len(rb), rb.sample()["observation"].shape
        (10, torch.Size([4, 3]))

    Args:
        max_size: Maximum number of steps. With several environments, the number is rounded up to whole slots at the
            first write.
        device: Device of the memory, "auto" for the device of the first data.
        ndim: Number of leading axes of the data that index steps.
        compilable: Accepted for compatibility with TorchRL. Has no effect.
        consolidated: Accepted for compatibility with TorchRL. The records are contiguous in any case.
        shared_init: Whether several processes may write the first data: each process that receives the storage, from
            then on or later, shares its steps. The memory is then that of mapped files in a temporary folder. `share`
            does the same for a storage without data.
        cleanup_memmap: Accepted for compatibility with TorchRL: the temporary folder is always removed in the end.
        compress: Keys of images, uint8, to store compressed in main memory, such as ``("pixels", ("next", "pixels"))``:
            frames of a game take a thirtieth of their bytes. Every read of such images is a copy, also for an integer
            or a slice, and writes replace whole steps.

    Raises:
        InvalidArgumentError: If a size is below 1, there is no such device, or `shared_init` is combined with a device
            other than the CPU. At the first write, if the steps do not fit in memory, or a key of `compress` is not
            the key of a uint8 tensor.
    """

    _layout = "rows"
    _views: Sequence[RowViews] = ()
    _in_first_table: frozenset[int] = frozenset()
    """The numbers of the leaves that share the first table."""
    _objects: Mapping[int, Objects] = MappingProxyType({})
    """The columns of non-tensor leaves, by leaf number."""
    _files: MappedRows | None = None
    """The files that hold the steps, if processes share the storage before its first data."""
    _scratch: ScratchFolder | None = None
    _frames = CompressedLeaves({}, {}, lambda _, nbytes: anonymous_memory(nbytes), lambda _: None)
    """The compressed leaves. Their columns hold references."""
    _frame_offsets: Mapping[int, int] = MappingProxyType({})
    """The words of the references in a record of the first table, by leaf number."""
    _frame_files: MappedRows | None = None
    """The files that hold the frames, once processes share the storage."""
    _continued: tuple[int, int, int] | None = None
    """The counts after the last write of this object."""
    _sender_structure: Structure | None = None
    """Structure in the process that sent this storage, with the classes that the files only name."""
    _derived = frozenset({"_views", "_columns", "_ledger", "_shared_words", "_frames", "_frame_offsets", "_continued"})

    def __init__(
        self,
        max_size: int,
        *,
        device: torch.device | str = "cpu",
        ndim: int = 1,
        compilable: bool = False,
        consolidated: bool = False,
        shared_init: bool = False,
        cleanup_memmap: bool = True,
        compress: Sequence[str | Key] = (),
    ) -> None:
        del compilable, consolidated, cleanup_memmap
        Storage.__init__(self, max_size, ndim=ndim)
        self.device = None if device == "auto" else device_of(device)
        if not isinstance(compress, Collection):
            raise InvalidArgumentError(
                f"compress is {compress!r}, expected keys of images",
                hint='pass compress=("pixels", ("next", "pixels"))',
            )
        keys = [compress] if isinstance(compress, str) else compress
        self._compress = tuple(key if isinstance(key, tuple) else as_key(key) for key in keys)
        if shared_init:
            self.share()

    @property
    @override
    def initialized(self) -> bool:
        if self._structure is None and self._files is not None:
            self._open_files(self._files)
        return self._structure is not None

    @property
    def _storage(self) -> Any:
        # TorchRL's name for the memory of all slots, and for the file of a leaf, which its tutorials read.
        if not self.initialized or self._structure is None:
            return None
        leaves = [*self._columns]
        for number, column in enumerate(leaves):
            if number in self._frame_offsets:
                leaves[number] = self._frames.read({number: column})[number]
            elif number in self._objects:
                leaves[number] = as_non_tensor(column)
            elif self._files is not None:
                tables = [table.untyped_storage().data_ptr() for table in self._tables]
                leaves[number] = column[:]
                leaves[number].filename = str(
                    self._files.folder / f"rows.{tables.index(column.untyped_storage().data_ptr())}.bin"
                )
        return self._structure.build(leaves, torch.Size((self.slot_count, *self._env_shape)), self.device)

    def _use_files(self, files: MappedRows) -> None:
        """Keep the steps in files, which this process or another process creates with the first data."""
        self._files = files
        ledger = files.map_ledger(0)
        self._use_ledger(ledger)
        self._counts = _CountsBeforeFirstData(self)  # type: ignore[assignment]  # only read
        self._open_files(files)

    def _open_files(self, files: MappedRows) -> None:
        mapped = files.open_tables(self._sender_structure)
        if mapped is not None:
            if self._compress and mapped[0].compressing(self._compress).leaves != mapped[0].leaves:
                raise InvalidArgumentError(
                    f"compress is {self._compress}, expected {mapped[0]} as in the storage in {files.folder}",
                    hint="omit compress to continue with this storage, or choose an empty folder",
                )
            if self.device is None:
                self.device = torch.device("cpu")
            self._use_tables(*mapped)
            self._use_ledger(files.map_ledger(self.slot_count))

    @override
    def _allocate(self, structure: Structure, env_shape: tuple[int, ...], device: torch.device) -> None:
        if self.device is None:
            self.device = device
        if self._files is not None:
            check_only_tensors(structure, "be stored in a memory-mapped file")
            self._use_tables(*self._files.create_tables(structure, env_shape, self._slots_for(env_shape)))
            self._use_ledger(self._files.map_ledger(self.slot_count))
            return
        if structure.is_compressed and self.device.type != "cpu":
            raise InvalidArgumentError(
                f"compressed frames are in main memory, but device is {self.device}, expected the CPU",
                hint="pass device='cpu', and move the batches to the device",
            )
        shape = (self._slots_for(env_shape), *env_shape)
        self._use_tables(
            structure, env_shape, [self._zero_tensor((*shape, words)) for words, _ in row_layout(structure)]
        )

    def _zero_tensor(self, shape: tuple[int, ...]) -> Tensor:
        if self.device is None or self.device.type == "cpu":
            try:
                return torch.from_numpy(np.zeros(shape, np.int64))  # the system allocates a page at its first write
            except (MemoryError, OverflowError, ValueError) as error:
                raise InvalidArgumentError(
                    f"{self.max_size:,} steps need {8 * math.prod(shape):,} bytes of memory, which is not available",
                    hint="choose a smaller max_size, or a LazyMemmapStorage on a disk with enough space",
                ) from error
        return torch.zeros(shape, dtype=torch.int64, device=self.device)

    def _use_tables(self, structure: Structure, env_shape: tuple[int, ...], tables: Sequence[Tensor]) -> None:
        self._structure, self._env_shape, self._tables = structure, env_shape, tables
        self.max_size = len(tables[0]) * self.envs
        self._views = [views for _, views in row_layout(structure)]
        slots = (self._slots_for(env_shape), *env_shape)
        self._objects = {
            number: np.empty(slots, object) for number, leaf in enumerate(structure.leaves) if leaf.dtype is None
        }
        self._columns = self._unpack_leaves(tables)
        first: list[Any] = [None] * len(structure.leaves)
        self._views[0](tables[0], first)
        self._in_first_table = frozenset(
            number for number, leaf in enumerate(first) if leaf is not None and not structure.leaves[number].compressed
        )
        for number, column in self._objects.items():
            self._columns[number] = column
        references = {number: self._columns[number] for number, leaf in enumerate(structure.leaves) if leaf.compressed}
        if references:
            self._frame_offsets = {number: column.storage_offset() for number, column in references.items()}
            paths = {structure.leaves[number].path for number in references}
            self.wide_keys = frozenset(paths)
            self.wide_states = frozenset(path for path in paths if (NEXT, *path) in paths)
            self._frames = CompressedLeaves(
                {number: structure.leaves[number] for number in references},
                references,
                self._allocate_frames,
                self._require_space,
            )

    def _allocate_frames(self, number: int, nbytes: int) -> NDArray[np.uint8]:
        """Return memory for compressed frames, of which the system allocates a page at its first write."""
        files = self._files or self._frame_files
        if files is None:
            return anonymous_memory(nbytes)
        is_used = files is self._files and self._ledger is not None and self._ledger.head[0] > 0
        return files.map_frames(number, nbytes, exists=is_used)

    def _require_space(self, nbytes: int) -> None:
        if files := self._files or self._frame_files:
            files.require_space(nbytes)

    @property
    def compressed_bytes(self) -> int:
        """Bytes of memory that the compressed frames use."""
        return self._frames.nbytes

    def _unpack_leaves(self, parts: Sequence[Tensor]) -> list[Any]:
        leaves: list[Any] = [None] * len(self._initialized_structure().leaves)
        for views, part in zip(self._views, parts, strict=True):
            views(part, leaves)
        return leaves

    @property
    @override
    def part_shapes(self) -> list[tuple[torch.dtype, tuple[int, ...]]]:
        leaves = self._initialized_structure().leaves
        return super().part_shapes + [(torch.uint8, leaves[number].shape) for number in self._frame_offsets]

    @override
    def _finish(self, rows: list[Tensor], left_out: Collection[int] = ()) -> list[Tensor]:
        return [self._move_to_device(table) for table in rows] + self._read_frames(rows[0], left_out)

    def _read_frames(self, records: Tensor, left_out: Collection[int] = ()) -> list[Tensor]:
        """Return the frames of each compressed leaf, [*axes, *shape], of records of the first table, [*axes, words].

        Leaves that are left out are references.
        """
        if not self._frame_offsets:
            return []
        references = {number: records[..., word] for number, word in self._frame_offsets.items()}
        frames = self._frames.read({number: references[number] for number in references if number not in left_out})
        return [self._move_to_device(frames.get(number, references[number])) for number in self._frame_offsets]

    @override
    def pick(self, key: Key, rows: Tensor) -> Tensor:
        return self.pick_all([key], rows)[0]

    @override
    def pick_all(self, keys: Sequence[Key], rows: Tensor) -> list[Tensor]:
        numbers = [self._leaves_under(key).get((), -1) for key in keys]
        compressed = [number for number in numbers if number in self._frame_offsets]
        if not compressed:
            return [super(LazyTensorStorage, self).pick(key, rows) for key in keys]
        frames = self._frames.read({number: self._references(number, rows) for number in compressed})
        return [
            self._move_to_device(frames[number]) if number in frames else super(LazyTensorStorage, self).pick(key, rows)
            for key, number in zip(keys, numbers, strict=True)
        ]

    def _references(self, number: int, rows: Tensor) -> Tensor:
        """Return the references to the frames of a leaf in some rows, int64 [B]."""
        references: Tensor = self._flat(self._columns[number][: self.filled_count]).index_select(0, rows.cpu())
        return references

    def pick_states(self, key: Key, rows: Tensor, following: Tensor) -> Tensor:
        """Return frames of some rows, or the frames under "next". Each distinct frame is decompressed once.

        Args:
            key: A key in `wide_states`.
            rows: The rows, int64 [...].
            following: Whether to return the frame under "next" of each row, bool [...].

        Returns:
            The frames, uint8 [..., *shape].

        Raises:
            InvalidArgumentError: If the storage does not compress the key and its copy under "next".
        """
        if key not in self.wide_states:
            raise InvalidArgumentError(f"{dotted_name(key)!r} is not compressed together with the key under 'next'")
        now, after = (self._leaves_under(path)[()] for path in (key, (NEXT, *key)))
        flat = rows.reshape(-1)
        references = torch.where(following.reshape(-1), self._references(after, flat), self._references(now, flat))
        return self._move_to_device(self._frames.read({now: references.view(rows.shape)})[now])

    def take_without(self, rows: Tensor, keys: tuple[Key, ...]) -> Any:
        """Return the steps of these rows, int64 [B], as a batch without some fields, which are not decompressed."""
        return self._take_some(rows, self._numbers_under(keys)).exclude(*keys)

    @override
    def take_fields(self, rows: Tensor, keys: Sequence[Key]) -> Any:
        if not self._frame_offsets:
            return super().take_fields(rows, keys)
        left_out = self._frame_offsets.keys() - self._numbers_under(keys)
        return self._take_some(rows, left_out).select(*keys)

    def _numbers_under(self, keys: Sequence[Key]) -> set[int]:
        return {number for key in keys for number in self._leaves_under(key).values()}

    def _take_some(self, rows: Tensor, left_out: Collection[int]) -> Any:
        """Return the steps of these rows, int64 [B], with references in place of the frames of some leaves."""
        leaves = self._leaves(self._select_rows(rows.cpu(), len(self), left_out), rows)
        return self._initialized_structure().build(leaves, rows.shape, self.device)

    @override
    def take_next(self, rows: Tensor) -> Any:
        return super().take_next(rows) if not self._frame_offsets else self.take_fields(rows, [(NEXT,)]).get(NEXT)

    @override
    def _flat_column(self, number: int) -> Any:
        column = super()._flat_column(number)
        if number not in self._frame_offsets:
            return column
        return self._move_to_device(self._frames.read({number: column})[number])

    @override
    def writable_column(self, key: Key) -> Any:
        if not self._frame_offsets.keys().isdisjoint(self._leaves_under(key).values()):
            raise InvalidArgumentError(
                f"{dotted_name(key)!r} is stored compressed, expected a field that can be changed in place",
                hint="write whole steps instead: rb[index] = steps",
            )
        return super().writable_column(key)

    @override
    def take_windows(
        self, keys: Sequence[Key], rows: Tensor, offsets: Sequence[int], *, end_key: EndKey | None = None
    ) -> Windows:
        structure, table = self._initialized_structure(), self._tables[0]
        found = [structure.leaves_under(tuple(key)) for key in keys]
        numbers = [leaves.get((), -1) for leaves in found]
        # A single field takes fewer bytes than the records that contain it.
        if len(keys) == 1 or not table.is_cpu or not self._in_first_table.issuperset(numbers) or not len(rows):
            return super().take_windows(keys, rows, offsets, end_key=end_key)
        window, outside = self.windows_around(rows, offsets, end_key=end_key)
        leaves: list[Any] = [None] * len(structure.leaves)
        self._views[0](_records_of(table.view(-1, table.shape[-1])[: len(self)], window), leaves)
        return Windows([leaves[number] for number in numbers], outside, rows_in(window))

    @override
    def _leaves(self, parts: Sequence[Tensor], index: Tensor | tuple[Any, ...]) -> Sequence[Any]:
        leaves = self._unpack_leaves(parts[: len(self._tables)])
        for number, column in self._objects.items():
            if isinstance(index, Tensor):
                leaves[number] = as_non_tensor(column.reshape(-1)[index.numpy()])
            else:
                leaves[number] = as_non_tensor(column[: self.filled_count][index])
        for number, frames in zip(self._frame_offsets, parts[len(self._tables) :], strict=True):
            leaves[number] = frames
        return leaves

    def _move_to_device(self, part: Tensor) -> Tensor:
        """Move rows gathered from a table to the device of the batches."""
        return part

    @override
    def _store(self, write: Write) -> None:
        if not self._frame_offsets:
            super()._store(write)
            return
        follows = self._continued == self._counted()
        for part, rows in write.parts(self.slot_count, self._env_shape, CompressedLeaves.slots_per_write(self.envs)):
            chosen = {number: part.leaves[number] for number in self._frame_offsets}
            with self._frames.writing(rows, chosen, follows=follows) as references:
                super()._store(part._replace(leaves=[references.get(*pair) for pair in enumerate(part.leaves)]))
            follows = True
        self._continued = write.counts

    @override
    def _load_steps(self, steps: SavedSteps, held: int) -> None:
        self._frames.use_dictionaries(steps.frames.values())
        super()._load_steps(steps, held)

    @override
    def _load_slots(self, start: int, stop: int, leaves: dict[int, Tensor]) -> None:
        rows = np.arange(start * self.envs, stop * self.envs)
        chosen = {number: leaves[number] for number in self._frame_offsets}
        with self._frames.writing(rows, chosen, follows=start > 0) as references:
            super()._load_slots(start, stop, leaves | references)

    def _scatter(self, slots: Tensor, leaves: Sequence[Any]) -> None:
        new_rows = [table.new_zeros((len(slots), *table.shape[1:])) for table in self._tables]
        for number, (column, leaf) in enumerate(zip(self._unpack_leaves(new_rows), leaves, strict=True)):
            if number in self._objects:
                write_leaf(self._objects[number], slots, leaf)
            else:
                column.copy_(leaf)
        for table, rows in zip(self._tables, new_rows, strict=True):
            table.index_copy_(0, slots.to(table.device), rows)

    def _saved_tables(self) -> Sequence[Tensor]:
        return self._tables

    def share(self) -> None:
        """Move the data to shared memory, or reserve shared memory for the first data.

        Raises:
            InvalidArgumentError: If a leaf is not a tensor, or the storage has no data yet and another device.
        """
        if self.initialized:
            if self._files is None:
                check_only_tensors(self._initialized_structure(), "be shared between processes")
                super().share()
            return
        if self.device is not None and self.device.type != "cpu":
            raise InvalidArgumentError(
                f"the storage has no data yet and is on {self.device}, expected the CPU, where processes can share memory "
                "before the first data",
                hint="share the storage after the first data, or pass device='cpu'",
            )
        if self._files is None:
            self._scratch = ScratchFolder()
            self._use_files(MappedRows(self._scratch.path, self.max_size, self.ndim))

    @override
    def _share_tables(self) -> None:
        super()._share_tables()
        structure = self._structure
        if structure is not None and self._frame_offsets:
            self._scratch = ScratchFolder()
            self._frame_files = MappedRows(self._scratch.path, self.max_size, self.ndim)
            memories = self._frames.memories
            self._use_tables(structure, self._env_shape, self._tables)
            self._frames.restore(memories)

    @override
    def empty(self) -> None:
        super().empty()
        self._frames.clear()

    @property
    @override
    def shared(self) -> bool:
        return self._files is not None or super().shared

    @property
    @override
    def lock_path(self) -> Path | None:
        return None if self._files is None else self._files.lock_path

    @override
    def recover(self) -> None:
        if self._ledger is not None and self._ledger.unfinished and self.initialized:
            super().recover()
            self._frames.invalidate()

    def state_dict(self) -> dict[str, Any]:
        """Return the structure of a step and all stored steps. The tensors are views of this storage's memory.

        Leaves that are not tensors are saved if they are JSON values, tensors, or dicts, lists and tuples of such
        values.

        Raises:
            InvalidArgumentError: If such a leaf has another type.
        """
        state = super().state_dict()
        if "hooked" in state:
            return state
        if self._frame_offsets:
            state["frames"] = self._frames.state_dict()
        if not self._objects:
            return state
        steps = len(self)
        objects = [
            [encode_item(_unwrapped(item), f"step {row}") for row, item in enumerate(column.reshape(-1)[:steps])]
            for column in self._object_columns()
        ]
        return {**state, "objects": objects}

    def _object_columns(self) -> list[Objects]:
        return [self._objects[number] for number in self._initialized_structure().by_name if number in self._objects]

    @override
    def _object_problems(self, structure: Structure, state: Mapping[str, Any]) -> list[str]:
        objects = [leaf for leaf in structure.leaves if leaf.dtype is None]
        if not objects or self._files is not None:
            return super()._object_problems(structure, state)
        saved, steps = state.get("objects"), state["held"] * math.prod(state["env_shape"])
        if not isinstance(saved, list) or not all(isinstance(items, list) for items in saved):
            return [f"the leaf {leaf.path} is not a tensor, and there are no objects" for leaf in objects]
        if [len(items) for items in saved] != [steps] * len(objects):
            return [f"the state has {len(saved)} lists of objects, expected {len(objects)} of {steps} objects"]
        try:
            for items in saved:
                list(map(decode_item, items))
        except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
            return [f"an object cannot be read: {error}"]
        return []

    @override
    def _load_objects(self, state: Mapping[str, Any]) -> None:
        for column, items in zip(self._object_columns(), state.get("objects", []), strict=True):
            flat = column.reshape(-1)
            for row, entry in enumerate(items):
                item = decode_item(entry)
                flat[row] = item if isinstance(item, (NonTensorData, NonTensorStack)) else NonTensorData(item)

    @override
    def __getstate__(self) -> dict[str, Any]:
        if self._files is not None:
            derived = self._derived | {"_tables", "_objects", "_counts", "_structure"}
            state = {name: value for name, value in self.__dict__.items() if name not in derived}
            return {**state, "_sender_structure": self._structure or self._sender_structure, "_indices": {}}
        state = super().__getstate__()
        if not self.shared:
            # The pickler of torch.multiprocessing would share the tables, but not the counts.
            state["_tables"] = [table.clone() for table in self._tables]
        if self._frame_files is None:
            state["_frame_memories"] = [memory.copy() for memory in self._frames.memories]
        return state

    @override
    def __setstate__(self, state: dict[str, Any]) -> None:
        if state.get("_files") is None:
            super().__setstate__(state)
        else:
            self.__dict__.update(state)
            self._use_files(state["_files"])

    def __deepcopy__(self, memo: dict[int, Any]) -> LazyTensorStorage:
        """Copy the steps too. Unlike a pickle, a copy does not share steps, and files are in a temporary folder."""
        if self._files is None:
            copied = memo[id(self)] = type(self).__new__(type(self))
            copied.__setstate__(deepcopy(self.__getstate__(), memo))
            return copied
        device = "auto" if self.device is None else self.device
        copied = memo[id(self)] = type(self)(self.max_size, device=device, ndim=self.ndim, compress=self._compress)
        copied._sender_structure = self._structure or self._sender_structure  # noqa: SLF001 - of this class
        copied.load_state_dict(self.state_dict())
        return copied

    def _restore_views(self) -> None:
        if self._structure is not None:
            objects = self._objects
            self._use_tables(self._structure, self._env_shape, self._tables)
            for number, column in objects.items():
                self._objects[number][...] = column
            self._frames.restore(self.__dict__.pop("_frame_memories", self._frames.memories))


def _records_of(table: Tensor, window: Tensor) -> Tensor:
    """Return the records of a table, [N, words], at the rows of windows, int64 [B, W], as [B, W, words].

    Most windows are runs of consecutive rows, and to copy a run takes hardly longer than to copy a row.
    """
    from datasets_rl.storages.windows import find_gaps  # deferred: imports numba

    (count, length), words = window.shape, table.shape[1]
    others = np.empty(count, np.int64)
    gaps = find_gaps(window.numpy(), others)
    if gaps > count // _GAPS_PER_WINDOW:
        return table.index_select(0, window.view(-1)).view(count, length, words)
    limit = len(table) - length
    runs = table.as_strided((limit + 1, length * words), (words, 1), table.storage_offset())
    records = runs.index_select(0, window[:, 0].clamp(max=limit)).view(count, length, words)
    if gaps:
        chosen = torch.from_numpy(others[:gaps])
        records[chosen] = table[window[chosen]]
    return records


def _unwrapped(item: Any) -> Any:
    """Return the object in non-tensor data without axes, which needs no description."""
    return item.data if isinstance(item, NonTensorData) and not item.batch_size else item


class _CountsBeforeFirstData(Sequence[int]):
    """The counts of a storage in files while another process may write the first data at any time.

    The first access after that write maps the files, and the storage then has the counts themselves. A storage whose
    memory exists therefore needs no check.
    """

    def __init__(self, storage: LazyTensorStorage) -> None:
        self._storage = weakref.ref(storage)

    def __len__(self) -> int:
        return Ledger.WORDS

    def __getitem__(self, number: Any) -> Any:
        storage = self._storage()
        return storage._counts[number] if storage is not None and storage.initialized else 0  # noqa: SLF001 - see above

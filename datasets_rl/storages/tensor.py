"""A storage over existing tensors: a tensor, a TensorDict, a tensorclass or a pytree."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from multiprocessing.context import get_spawning_popen
from typing import Any, NamedTuple

import numpy as np
import torch
from tensordict import MemoryMappedTensor, TensorDict, TensorDictBase
from torch import Tensor
from torch.compiler import is_dynamo_compiling
from typing_extensions import override

from datasets_rl.errors import InvalidArgumentError, UnknownKeyError
from datasets_rl.format.checkpoint import map_pages, raise_reasons, row_chunks
from datasets_rl.format.schema import short_text
from datasets_rl.storages.base import Storage
from datasets_rl.storages.dataset import wrap_negative_rows
from datasets_rl.storages.graph_writes import register_writer, write_in_graph
from datasets_rl.storages.ledger import Ledger, Slots
from datasets_rl.storages.non_tensor import as_non_tensor, write_leaf
from datasets_rl.storages.positions import Segment, counts_after_write, explicit_index, is_single_slot, written_slots
from datasets_rl.storages.row_layout import leaf_tables, table_shapes
from datasets_rl.storages.saved_steps import SavedSteps, frame_problems
from datasets_rl.storages.structure import Structure, leading_sizes, stack_elements
from datasets_rl.ted.keys import Key, dotted_name, nest_keys

_MAX_CHUNKS, _MAX_CHUNK_SLOTS = 64, 4096
"""Maximum number of chunks of a change in place, and of slots in a chunk, which bounds what a dead process can tear."""


_OBJECTS_HINT = "use a LazyTensorStorage, which also stores objects"
_LOADED_STEPS = 1024
"""Number of steps of a saved state that are decompressed at once."""


class Write(NamedTuple):
    """Leaves to write, and the counts of the storage after the write."""

    place: Segment | Tensor | tuple[Tensor, ...]
    """Consecutive slots, or slots, int64 [n], or single steps: an index per axis, int64 [n] each."""
    leaves: Sequence[Any]
    """The data, each [n, ...]."""
    counts: tuple[int, int, int]
    single: bool = False
    """Whether the leaves have no axis of slots, as the data of a single slot."""

    def slots(self, capacity: int) -> list[slice | Slots]:
        """Return the slots that change, as a `Ledger` records slots."""
        if isinstance(self.place, Segment):
            return [*self.place.where(capacity)]
        return [self.place.numpy() if isinstance(self.place, Tensor) else np.unique(self.place[0].numpy())]

    def parts(self, capacity: int, envs: tuple[int, ...], size: int) -> Iterator[tuple[Write, Slots]]:
        """Yield writes with the same result, each of at most `size` slots or steps, and the rows that each changes."""
        place, leaves, counts, single = self
        count = math.prod(envs)
        if isinstance(place, Segment):
            for first, begin, length in place.pieces(capacity):
                for start in range(0, length, size):
                    segment, begun = Segment(first + start, min(size, length - start)), begin + start
                    whole = segment.count == place.count
                    chunk = leaves if whole else [leaf[begun : begun + segment.count] for leaf in leaves]
                    rows = np.arange(segment.first * count, (segment.first + segment.count) * count)
                    yield Write(segment, chunk, counts, single), rows
            return
        steps = np.arange(count)
        axes = (place,) if isinstance(place, Tensor) else place
        rows = np.ravel_multi_index([axis.numpy() for axis in axes], (capacity, *envs[: len(axes) - 1]))
        # Of several elements for the same place, the last element stays.
        kept = np.sort(len(rows) - 1 - np.unique(rows[::-1], return_index=True)[1])
        for start in range(0, len(kept), size):
            chosen = torch.from_numpy(kept[start : start + size])
            where = tuple(axis[chosen] for axis in axes)
            changed = rows[chosen.numpy()]
            if isinstance(place, Tensor):
                changed = (changed[:, None] * count + steps).reshape(-1)
            part = where[0] if isinstance(place, Tensor) else where
            yield Write(part, [leaf[chosen] for leaf in leaves], counts), changed


class TensorStorage(Storage):
    """Steps in tensors that the caller has created. Writes change these tensors. The storage is full from the start.

    Integers and slices give views, which the caller can write to. Other indices give copies.

        >>> import torch
        >>> from tensordict import TensorDict
        >>> from datasets_rl import ReplayBuffer, TensorStorage
        >>> steps = TensorDict({"observation": torch.zeros(10, 3)}, [10])
        >>> rb = ReplayBuffer(storage=TensorStorage(steps), batch_size=4)
        >>> len(rb), rb.sample()["observation"].shape
        (10, torch.Size([4, 3]))

    Args:
        storage: A tensor, a TensorDict, a tensorclass, or a pytree of such values, [slots, *envs, ...]. A TensorDict
            without entries holds no steps: the first written data determines the entries, which are added to the
            TensorDict.
        max_size: Number of steps. If given, the number must equal the number of steps in `storage`.
        device: Accepted for compatibility with TorchRL. Batches are on the device of `storage`.
        ndim: Number of leading axes that index steps.
        compilable: Accepted for compatibility with TorchRL. Has no effect.

    Raises:
        InvalidArgumentError: If `storage` is None, a leaf of `storage` is not a tensor, or the sizes differ.
    """

    _layout = "leaves"
    """Layout of the tables in a saved state: a table per leaf."""
    _structure: Structure | None = None
    _compress: tuple[Key, ...] = ()
    """Keys of the leaves to compress."""
    _env_shape: tuple[int, ...] = ()
    _tables: Sequence[Tensor] = ()
    """The memory of all steps, each [slots, *envs, ...]."""
    _columns: Sequence[Any] = ()
    """All leaves, [slots, *envs, *shape], as views of the tables."""
    _ledger: Ledger | None = None
    """Record of writes, once other processes may read the same memory."""
    _shared_words: Tensor | None = None
    """Memory of the ledger, as a tensor that can be sent to processes."""
    _derived = frozenset({"_tables", "_columns", "_ledger", "_shared_words"})
    """The attributes that an unpickled storage makes from the others."""

    def __init__(
        self,
        storage: Any,
        max_size: int | None = None,
        *,
        device: torch.device | str = "cpu",
        ndim: int = 1,
        compilable: bool = False,
    ) -> None:
        del device, compilable
        if storage is None:
            raise InvalidArgumentError(
                "Expected storage to be non-null: a TensorStorage holds tensors that exist",
                hint="use a LazyTensorStorage, which allocates its tensors",
            )
        if isinstance(storage, TensorDictBase) and storage.is_empty():
            self._prepare_empty(storage, max_size, ndim)
            return
        structure = Structure.from_data(storage, ndim)
        sizes, columns = structure.flatten(storage, [None] * ndim)
        steps = math.prod(sizes)
        if max_size is not None and max_size != steps:
            raise InvalidArgumentError(
                f"max_size is {max_size}, but the storage has {list(sizes)} steps, expected {steps}"
            )
        check_only_tensors(structure, "be held by a TensorStorage", _OBJECTS_HINT)
        super().__init__(steps, ndim=ndim)
        self._storage: Any = storage
        self._structure, self._env_shape = structure, sizes[1:]
        self._tables = self._columns = columns
        self.device: torch.device | None = columns[0].device
        self._count(sizes[0], sizes[0], 0)

    def _prepare_empty(self, storage: TensorDictBase, max_size: int | None, ndim: int) -> None:
        """Prepare to add entries to a TensorDict that has none, when the first data is written."""
        sizes = tuple(storage.batch_size)
        if len(sizes) != ndim or max_size not in {None, math.prod(sizes)}:
            raise InvalidArgumentError(
                f"the storage is an empty TensorDict {list(sizes)}, expected {ndim} axes and "
                f"{'at least 1 step' if max_size is None else f'{max_size} steps'}"
            )
        super().__init__(math.prod(sizes), ndim=ndim)
        self._storage = storage
        self._env_shape = sizes[1:]
        self.device = storage.device or torch.device("cpu")

    @property
    def initialized(self) -> bool:
        """Whether the structure of an element is known."""
        return self._structure is not None

    @property
    @override
    def envs(self) -> int:
        return math.prod(self._env_shape)

    @property
    @override
    def slot_count(self) -> int:
        return -(-self.max_size // self.envs)

    @property
    def shape(self) -> torch.Size:
        """Number of slots held, and the sizes of the environment axes."""
        return torch.Size((self.filled_count, *self._env_shape))

    def _initialized_structure(self) -> Structure:
        if not self.initialized or self._structure is None:
            raise IndexError(f"this {type(self).__name__} is empty: nothing has been written yet")
        return self._structure

    def get(self, index: Any) -> Any:
        """Return the data at an index along the leading axes, [held, *envs].

        Args:
            index: Integers, slices with a positive step, None and Ellipsis give a view. Lists, masks and index tensors
                give a copy in the shape of the index. A tuple has an index per axis.

        Raises:
            IndexError: If the index is out of range.
        """
        structure = self._initialized_structure()
        location = explicit_index(index, (self.filled_count, *self._env_shape))
        if isinstance(location, Tensor):
            return self._gather(location)
        parts = self._finish([table[: self.filled_count][location] for table in self._tables])
        batch = parts[0].shape[: parts[0].ndim - self._tables[0].ndim + self.ndim]
        return structure.build(self._leaves(parts, location), batch, self.device)

    @override
    def take(self, rows: Tensor) -> Any:
        return self._gather(rows)

    def _gather(self, rows: Tensor) -> Any:
        structure, steps = self._initialized_structure(), len(self)
        flat = rows if rows.ndim == 1 else rows.reshape(-1)
        if not flat.is_cpu:
            flat = flat.cpu()
        try:
            parts = self._select_rows(flat, steps)
        except IndexError:
            flat = wrap_negative_rows(flat, steps)
            parts = self._select_rows(flat, steps)
        if rows.ndim != 1:
            parts = [part.view((*rows.shape, *part.shape[1:])) for part in parts]
            flat = flat.view(rows.shape)
        return structure.build(self._leaves(parts, flat), rows.shape, self.device)

    def take_parts(self, rows: Tensor) -> list[Tensor]:
        """Return the parts of a batch of rows, int64 [B], such as the rows of each table, which `batch_of_parts` combines."""
        self._initialized_structure()
        parts, tables = self._select_rows(rows.cpu(), len(self)), len(self._tables)
        # The results of a compiled operator may not be views of the same memory, as decompressed frames are.
        return parts[:tables] + [frames.clone() for frames in parts[tables:]]

    def batch_of_parts(self, parts: Sequence[Tensor], rows: Tensor) -> Any:
        """Return the batch [B] of the result of `take_parts`. Runs in a compiled function."""
        leaves = self._leaves(parts, rows)
        return self._initialized_structure().build(leaves, rows.shape, self.device)

    @property
    def part_shapes(self) -> list[tuple[torch.dtype, tuple[int, ...]]]:
        """The dtype and the shape of a row of each of the `take_parts`."""
        return [(table.dtype, tuple(table.shape[self.ndim :])) for table in self._tables]

    def _select_rows(self, flat: Tensor, steps: int, left_out: Collection[int] = ()) -> list[Tensor]:
        if self._tables and not self._tables[0].is_cpu:
            # An out-of-range index in a CUDA kernel would make the device unusable for the whole process.
            flat = wrap_negative_rows(flat, steps).to(self._tables[0].device, non_blocking=True)
        last, filled = self.ndim - 1, self.filled_count
        return self._finish([table[:filled].flatten(0, last).index_select(0, flat) for table in self._tables], left_out)

    def _finish(self, rows: list[Tensor], left_out: Collection[int] = ()) -> list[Tensor]:
        """Return the parts of a batch from rows of all tables, without what must be decompressed for some leaves."""
        del left_out
        return rows

    def _leaves(self, parts: Sequence[Tensor], index: Tensor | tuple[Any, ...]) -> Sequence[Any]:
        """Return all leaves, [*batch, *shape], from the parts of rows [*batch] or of an index of the leading axes."""
        del index
        return parts

    def set(self, cursor: Any, data: Any, *, set_cursor: bool = True) -> None:
        """Write data into slots.

        Consecutive slots may wrap around the end of the ring. If the data fills more slots than the capacity, only the
        last slots are stored. The first data determines the structure of an element.

        Args:
            cursor: The slots, see `Storage.set`.
            data: An element [*envs], or several elements [n, *envs]. A list of elements is stacked.
            set_cursor: Whether the write counts. If False, any slots may be written.

        Raises:
            InvalidArgumentError: If the data does not match the structure. Nothing is written then.
            IndexError: If a slot is out of range, or the write would leave a gap of unwritten slots.
        """
        if is_dynamo_compiling():
            write_in_graph(self._graph_number(), cursor, data, set_cursor=set_cursor)
        else:
            self._write(cursor, data, set_cursor=set_cursor)

    @torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]  # untyped in torch
    def _graph_number(self) -> int:
        return register_writer(self._write)

    def overwrite(self, index: Any, data: Any) -> None:
        """Overwrite stored steps without moving the write index, see `Storage.overwrite`.

        Args:
            index: Slots, as for `set`, or a tuple with an index per axis, [slots, *envs].
            data: The steps, of the shape that `get` returns for this index.
        """
        if isinstance(index, tuple) and len(index) > 1:
            self._overwrite_steps(index, data)
        else:
            self._write(index, data, replacing=True)

    def _overwrite_steps(self, index: tuple[Any, ...], data: Any) -> None:
        """Overwrite single environments of slots."""
        self.recover()
        structure, shape = self._initialized_structure(), (self.filled_count, *self._env_shape)
        where = explicit_index(index, shape)
        rows = where if isinstance(where, Tensor) else torch.arange(math.prod(shape)).view(shape)[where]
        _, leaves = structure.flatten(data, rows.shape)
        flat = wrap_negative_rows(rows.reshape(-1), math.prod(shape))
        flat_leaves = [leaf.reshape(len(flat), *leaf.shape[rows.ndim :]) for leaf in leaves]
        counts = (*self._counted()[:2], self.rewrite_count + 1)
        self._commit(Write(torch.unravel_index(flat, shape), flat_leaves, counts))

    def _write(self, cursor: Any, data: Any, *, replacing: bool = False, set_cursor: bool = True) -> None:
        if isinstance(cursor, tuple):
            if len(cursor) != 1:
                raise IndexError(f"index {cursor!r} selects single environments, expected whole slots: use replace()")
            (cursor,) = cursor
        if self._ledger is not None and self._ledger.unfinished:
            self.recover()
        single = is_single_slot(cursor)
        structure, sizes, leaves = self._read_data(data, single=single)
        env_shape = sizes if single else sizes[1:]
        slots = self._slots_for(env_shape)
        before = self._counted()
        place = written_slots(cursor, 1 if single else sizes[0], filled=before[0], slots=slots, gaps=not set_cursor)
        after = counts_after_write(before, place, slots)
        if replacing and after[0] != before[0]:
            raise IndexError(f"index {cursor!r} is out of range, expected one of {before[0]:,} slots")
        if replacing or not set_cursor:
            after = *before[:2], before[2] + 1
        if not self.initialized:
            self._allocate(structure, env_shape, leaves[0].device)
        self._commit(Write(place, leaves, after, single))

    def _commit(self, write: Write) -> None:
        """Write leaves and count the write. If processes share the memory, a record of the write comes first."""
        ledger = self._ledger
        if ledger is None:
            self._store(write)
            self._count(*write.counts)
        else:
            slots = write.slots(self.slot_count)
            ledger.begin(slots)
            self._store(write)
            ledger.commit(write.counts, slots)

    def _store(self, write: Write) -> None:
        place, leaves, _, single = write
        with torch.no_grad():
            if isinstance(place, Segment):
                for first, begin, count in place.pieces(self.slot_count):
                    index = first if single else slice(first, first + count)
                    chunk = leaves if count == place.count else [leaf[begin : begin + count] for leaf in leaves]
                    for column, leaf in zip(self._columns, chunk, strict=True):
                        write_leaf(column, index, leaf)
            elif isinstance(place, Tensor):
                self._scatter(place, leaves)
            else:
                for column, leaf in zip(self._columns, leaves, strict=True):
                    write_leaf(column, place, leaf)

    def _read_data(self, data: Any, *, single: bool) -> tuple[Structure, tuple[int, ...], list[Any]]:
        if type(data) is list and not single:
            data = stack_elements(data)
        envs: tuple[int | None, ...] = self._env_shape if self.initialized else (None,) * (self.ndim - 1)
        lead = envs if single else (None, *envs)
        structure = self._structure or Structure.from_data(data, len(lead)).compressing(self._compress)
        return structure, *structure.flatten(data, lead)

    def _slots_for(self, env_shape: tuple[int, ...]) -> int:
        """Return the number of slots, which is rounded up: the last slot is whole, too."""
        envs = math.prod(env_shape)
        if not envs:
            raise InvalidArgumentError(
                f"the axes of the environments are {list(env_shape)}, expected at least 1 environment"
            )
        return -(-self.max_size // envs)

    def size_of(self, data: Any) -> int:
        """Return the number of slots that `data` fills, where `data` is as for `set` with several slots.

        Before the first write, this data fixes the environment axes of the storage.

        Raises:
            InvalidArgumentError: If the data has too few axes.
        """
        count, env_shape = leading_sizes(data, self.ndim)
        if count and not self.initialized:
            self._slots_for(env_shape)
            self._env_shape = env_shape
        return count

    def _allocate(self, structure: Structure, env_shape: tuple[int, ...], device: torch.device) -> None:
        """Allocate the memory for data on a device: entries of zeros in the TensorDict of the caller, which has none."""
        del device
        if env_shape != self._env_shape:
            raise InvalidArgumentError(
                f"the data has the environment axes {list(env_shape)}, expected {list(self._env_shape)}"
            )
        check_only_tensors(structure, "be held by a TensorStorage", _OBJECTS_HINT)
        shape = torch.Size((self.slot_count, *env_shape))
        columns = [
            torch.zeros((*shape, *leaf.shape), dtype=leaf.dtype, device=self.device) for leaf in structure.leaves
        ]
        self._storage.update(structure.build(columns, shape, self.device))
        self._structure, self._tables, self._columns = structure, columns, columns

    def _scatter(self, slots: Tensor, leaves: Sequence[Any]) -> None:
        for column, leaf in zip(self._columns, leaves, strict=True):
            column.index_copy_(0, slots.to(column.device), leaf.to(column.device))

    def column(self, key: Key) -> Any:
        """Return a field of all stored rows, [rows, ...], or a TensorDict of the fields under a key, as views."""
        views = {path: self._flat_column(number) for path, number in self._leaves_under(key).items()}
        return views[()] if () in views else TensorDict(nest_keys(views), batch_size=[len(self)])

    def _leaves_under(self, key: Key) -> dict[Any, int]:
        """Return the numbers of the leaves under a key by the rest of the path."""
        structure = self._initialized_structure()
        numbers = structure.leaves_under(tuple(key))
        if not numbers:
            raise UnknownKeyError(dotted_name(key), [".".join(map(str, leaf.path)) for leaf in structure.leaves])
        return numbers

    def _flat_column(self, number: int) -> Any:
        """Return a leaf of all stored rows, [rows, *shape]."""
        return self._flat(self._columns[number][: self.filled_count])

    def _flat(self, column: Any) -> Any:
        is_tensor = isinstance(column, Tensor)
        return column.flatten(0, self.ndim - 1) if is_tensor else as_non_tensor(column.reshape(-1))

    @override
    def unravel(self, rows: Tensor) -> tuple[Tensor, ...]:
        return (rows,) if self.ndim == 1 else tuple(torch.unravel_index(rows, (self.slot_count, *self._env_shape)))

    @override
    def ravel(self, index: Any) -> Tensor:
        if self.ndim == 1:
            return super().ravel(index)
        parts = index if isinstance(index, tuple) else torch.as_tensor(index).unbind(-1)
        rows = torch.as_tensor(parts[0], dtype=torch.int64)
        for part, size in zip(parts[1:], self._env_shape, strict=True):
            rows = rows * size + torch.as_tensor(part, dtype=torch.int64)
        return rows

    @override
    def flatten(self) -> Storage:
        if self.ndim == 1:
            return self
        structure = self._initialized_structure()
        leaves = [self._flat_column(number) for number in range(len(structure.leaves))]
        return TensorStorage(structure.build(leaves, torch.Size([len(self)]), self.device))

    def empty(self) -> None:
        """Remove all steps. The memory and the structure of an element stay."""
        self._recount(0, 0)

    @override
    def _recount(self, held: int, written: int) -> None:
        if self._ledger is None:
            super()._recount(held, written)
        else:
            self._ledger.reset(held, written)

    @override
    def torn_rows(self) -> Tensor:
        if not self.torn or self._ledger is None:
            return super().torn_rows()
        slots = torch.from_numpy(self._ledger.torn_slots())
        return slots if self.envs == 1 else (slots.unsqueeze(1) * self.envs + torch.arange(self.envs)).reshape(-1)

    @override
    def recover(self) -> None:
        if self._ledger is not None and self._ledger.unfinished:
            self._ledger.recover(self._clear)

    def _clear(self, slots: Slots) -> None:
        """Fill slots with zeros, so that a direct read never returns a partially written step."""
        with torch.no_grad():
            for table in self._tables:
                table[torch.from_numpy(slots).to(table.device)] = 0

    @override
    def rewriting(self) -> Iterator[slice]:
        if self._ledger is None:
            yield from super().rewriting()
            return
        self.recover()
        chunk_size = min(-(-self.filled_count // _MAX_CHUNKS), _MAX_CHUNK_SLOTS)
        for start in range(0, self.filled_count, max(chunk_size, 1)):
            chunk = slice(start, min(start + chunk_size, self.filled_count))
            where = self._ledger.begin_change(chunk)
            yield chunk
            self._ledger.commit((self.filled_count, self.write_count, self.rewrite_count + 1), where)

    def share(self) -> None:
        """Move the data to shared memory.

        Processes that receive the storage after this call read and write the same steps.

        Raises:
            InvalidArgumentError: If no data has been written yet, or a leaf is not a tensor.
        """
        if not self.initialized:
            raise InvalidArgumentError(
                f"this {type(self).__name__} cannot be shared before the first write: each process would "
                "then allocate separate memory",
                hint="write some data first, or create a LazyTensorStorage with shared_init=True",
            )
        if self._shared_words is None:
            self._share_tables()
            words = torch.from_numpy(self._ensure_ledger().words).clone()
            words.untyped_storage().share_memory_()
            self._shared_words = words
            self._use_ledger(Ledger(words.numpy(), self.slot_count))

    def _share_tables(self) -> None:
        for table in self._tables:
            if table.is_cpu and not isinstance(table, MemoryMappedTensor):
                table.untyped_storage().share_memory_()

    def _ensure_ledger(self) -> Ledger:
        """Return the ledger. A storage without a ledger creates a ledger from the current counts."""
        if self._ledger is None:
            ledger = Ledger.for_slots(self.slot_count)
            ledger.words[:4] = self._counts
            self._use_ledger(ledger)
            return ledger
        return self._ledger

    def _use_ledger(self, ledger: Ledger) -> None:
        self._ledger, self._counts = ledger, ledger.head

    @property
    @override
    def shared(self) -> bool:
        return self._shared_words is not None

    def state_dict(self) -> dict[str, Any]:
        """Return the structure of a step and all stored steps. The tensors are views of this storage's memory."""
        if self._save_hooks:
            return self._hooked_state()
        steps = len(self)
        torn = {"torn": torch.from_numpy(self._ledger.torn_slots())} if self.torn and self._ledger is not None else {}
        return {
            "layout": self._layout,
            "structure": self._structure.to_json() if self.initialized and self._structure is not None else None,
            "ndim": self.ndim,
            "env_shape": list(self._env_shape),
            "slots": self.slot_count,
            "held": self.filled_count,
            "written": self.write_count,
            "tables": [row_chunks(table.flatten(0, self.ndim - 1)[:steps]) for table in self._saved_tables()],
            **torn,
        }

    def _saved_tables(self) -> Sequence[Tensor]:
        """Return the tables in the order of a saved state."""
        return self._leaf_columns()

    def _leaf_columns(self) -> Sequence[Tensor]:
        """Return the leaves that are tensors, [slots, *envs, *shape], sorted by path."""
        structure = self._initialized_structure()
        return [self._columns[number] for number in structure.by_name if structure.leaves[number].dtype is not None]

    @override
    def state_problems(self, state_dict: dict[str, Any]) -> list[str]:
        if "hooked" in state_dict:
            return self._hooked_problems(state_dict)
        reasons = _document_problems(state_dict, self.ndim)
        if reasons or state_dict["structure"] is None:
            return reasons
        try:
            structure = Structure.from_json(state_dict["structure"], self._structure if self.initialized else None)
            if not self.initialized:
                self._restored_structure(state_dict)
        except InvalidArgumentError as error:
            return [error.message]
        env_shape = tuple(state_dict["env_shape"])
        reasons += self._object_problems(structure, state_dict)
        if self.initialized:
            reasons += self._initialized_structure().differences(structure)
            if env_shape != self._env_shape:
                reasons.append(f"its environment axes are {list(env_shape)}, expected {list(self._env_shape)}")
        slots = self._slots_for(env_shape)
        if state_dict["held"] > slots:
            reasons.append(f"the state holds {state_dict['held']:,} slots, expected at most {slots:,}")
        return reasons or self._table_problems(structure, state_dict) or frame_problems(structure, state_dict)

    def _object_problems(self, structure: Structure, state: Mapping[str, Any]) -> list[str]:
        """Return what is wrong with the leaves of a state that are not tensors."""
        del state
        return [f"the leaf {leaf.path} is not a tensor" for leaf in structure.leaves if leaf.dtype is None]

    def _table_problems(self, structure: Structure, state: Mapping[str, Any]) -> list[str]:
        expected = table_shapes(structure, state["layout"])
        envs = math.prod(state["env_shape"])
        steps = state["held"] * envs
        if len(expected) != len(state["tables"]):
            return [f"the state has {len(state['tables'])} tables, expected {len(expected)}"]
        return [
            f"table {number} has another dtype or shape, expected {dtype} {[steps, *shape]}"
            for number, (parts, (dtype, shape)) in enumerate(zip(state["tables"], expected, strict=True))
            if sum(len(part) for part in parts) != steps
            or any(part.dtype != dtype or part.shape[1:] != shape or len(part) % envs for part in parts)
        ]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a state. A full ring that is restored into a larger ring starts with the oldest step."""
        if "hooked" in state_dict:
            self._load_hooked_state(state_dict)
            return
        raise_reasons(self.state_problems(state_dict))
        self.empty()
        if state_dict["structure"] is None:
            return
        if not self.initialized:
            parts = state_dict["tables"][0]
            device = parts[0].device if parts else torch.device("cpu")
            self._allocate(self._restored_structure(state_dict), tuple(state_dict["env_shape"]), device)
        held, written = state_dict["held"], state_dict["written"]
        if written > held and held != self.slot_count:
            state_dict = self.renumbered(state_dict, written % held, held)
            written = held
        self._load_tables(state_dict)
        self._load_objects(state_dict)
        self._recount(held, written)
        torn = state_dict.get("torn")
        if torn is not None:
            self._ensure_ledger().tear(torn.cpu().numpy())

    def _load_tables(self, state: Mapping[str, Any]) -> None:
        """Restore the leaves that are tensors."""
        saved = Structure.from_json(state["structure"], self._structure)
        if saved.is_compressed or self._initialized_structure().is_compressed:
            self._load_steps(SavedSteps(saved, state), state["held"])
            return
        targets, tables = self._saved_tables(), state["tables"]
        if state["layout"] != self._layout:
            targets = self._leaf_columns()
            tables = tables if self._layout == "rows" else leaf_tables(saved, tables)
        for table, parts in zip(targets, tables, strict=True):
            start = 0
            for part in parts:
                map_pages(part)
                rows = part.reshape(len(part) // self.envs, *table.shape[1:])
                table[start : start + len(rows)].copy_(rows)
                start += len(rows)

    def _load_steps(self, steps: SavedSteps, held: int) -> None:
        """Restore the leaves that are tensors, some slots at a time."""
        numbers = {leaf.path: number for number, leaf in enumerate(self._initialized_structure().leaves)}
        size = max(_LOADED_STEPS // self.envs, 1)
        for start in range(0, held, size):
            stop = min(start + size, held)
            leaves = steps.leaves(start * self.envs, stop * self.envs)
            self._load_slots(start, stop, {numbers[path]: leaf for path, leaf in leaves.items()})

    def _load_slots(self, start: int, stop: int, leaves: dict[int, Tensor]) -> None:
        """Restore leaves, each [rows, *shape], of the slots `start` to `stop`."""
        for number, leaf in leaves.items():
            column = self._columns[number]
            column[start:stop].copy_(leaf.view(stop - start, *column.shape[1:]))

    def _load_objects(self, state: Mapping[str, Any]) -> None:
        """Restore the leaves that are not tensors."""

    def _restored_structure(self, state: Mapping[str, Any]) -> Structure:
        """Return the structure of this storage after a saved state is loaded into an empty storage."""
        return Structure.from_json(state["structure"]).compressing(self._compress)

    def renumbered(self, state_dict: dict[str, Any], shift: int, slots: int) -> dict[str, Any]:
        """Rotate a full ring, so that the oldest step comes first. No data are copied."""
        del slots
        if "hooked" in state_dict:
            return self._renumbered_hooked_state(state_dict, shift)
        rows = shift * math.prod(state_dict["env_shape"])
        tables = [_rotate(parts, rows) for parts in state_dict["tables"]]
        objects = {
            name: [items[rows:] + items[:rows] for items in state_dict[name]]
            for name in state_dict
            if name == "objects"
        }
        held, torn = state_dict["held"], state_dict.get("torn")
        moved = {} if torn is None else {"torn": ((torn - shift) % held).sort().values}
        return {**state_dict, "tables": tables, "written": held, **moved, **objects}

    def __getstate__(self) -> dict[str, Any]:
        if get_spawning_popen() is not None:
            TensorStorage.share(self)
        state = {name: value for name, value in self.__dict__.items() if name not in self._derived}
        state |= {"_indices": {}, "_counts": [*self._counts[:4]]}
        if self._ledger is not None:
            words = self._shared_words
            state["_words"] = torch.from_numpy(self._ledger.words).clone() if words is None else words
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        words: Tensor | None = state.pop("_words", None)
        self.__dict__.update(state)
        if words is not None:
            self._shared_words = words if words.untyped_storage().is_shared() else None
            self._use_ledger(Ledger(words.numpy(), self.slot_count))
        self._restore_views()

    def _restore_views(self) -> None:
        if self._structure is None:
            return
        _, columns = self._structure.flatten(self._storage, [None] * self.ndim)
        self._tables = self._columns = columns

    def __repr__(self) -> str:
        held = f"{len(self):,} of {self.max_size:,} steps"
        return f"{type(self).__name__}({held}, {self._structure if self.initialized else 'no data yet'})"


def check_only_tensors(
    structure: Structure, verb: str, hint: str = "drop these keys, or encode the values as tensors"
) -> None:
    """Check that no leaf is an object.

    Raises:
        InvalidArgumentError: If a leaf holds objects. The message says what objects cannot do.
    """
    names = [repr(leaf.path) for leaf in structure.leaves if leaf.dtype is None]
    if names:
        raise InvalidArgumentError(f"non-tensor data cannot {verb}: {', '.join(names)}", hint=hint)


def _document_problems(state: Mapping[str, Any], ndim: int) -> list[str]:
    """Return what is wrong with the document of a state, before the values are checked."""
    rules: tuple[tuple[str, Any, str], ...] = (
        ("layout", lambda value: value in {"rows", "leaves"}, "'rows' or 'leaves'"),
        ("ndim", lambda value: value == ndim, str(ndim)),
        ("structure", lambda value: value is None or isinstance(value, Mapping), "a description of the data"),
        ("env_shape", lambda value: isinstance(value, list) and all(map(_is_size, value)), "a list of sizes"),
        ("slots", _is_size, "an integer >= 1"),
        ("held", _is_count, "an integer >= 0"),
        ("written", _is_count, "an integer >= 0"),
        ("tables", _are_tables, "lists of tensors"),
        ("torn", lambda value: value is None or _are_slots(value, state.get("held")), "ascending slots that are held"),
    )
    problems = [
        f"{name} is {short_text(state.get(name))}, expected {expected}"
        for name, is_valid, expected in rules
        if not is_valid(state.get(name))
    ]
    if "structure" not in state:
        problems.append("structure is missing, expected a description of the data, or None")
    if not problems and state["written"] != state["held"] and not state["held"] == state["slots"] < state["written"]:
        problems.append(
            f"the counts are inconsistent: held {state['held']}, slots {state['slots']}, written {state['written']}"
        )
    if not problems and state["structure"] is None and state["held"]:
        problems.append(f"held is {state['held']}, but the structure is missing, expected a description of the data")
    return problems


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _are_slots(value: Any, held: Any) -> bool:
    if not isinstance(value, Tensor) or value.dtype != torch.int64 or value.ndim != 1 or not _is_count(held):
        return False
    slots: list[int] = [-1, *value.tolist(), held]
    return bool((np.diff(slots) > 0).all())


def _is_size(value: Any) -> bool:
    return _is_count(value) and value > 0


def _are_tables(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(parts, list) and all(isinstance(part, Tensor) and part.ndim for part in parts) for parts in value
    )


def _rotate(parts: Sequence[Tensor], shift: int) -> list[Tensor]:
    """Move the first `shift` rows of a table to its end."""
    front: list[Tensor] = []
    back: list[Tensor] = []
    for part in parts:
        front.append(part[:shift])
        back.append(part[shift:])
        shift = max(shift - len(part), 0)
    return [part for part in (*back, *front) if len(part)]

"""A storage over tensors that are there already: a tensor, a TensorDict, a tensorclass or a pytree."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.context import get_spawning_popen
from typing import Any

import numpy as np
import torch
from tensordict import MemoryMappedTensor, TensorDict
from torch import Tensor

from datasets_rl.checkpoint import pieces, refuse
from datasets_rl.errors import InvalidArgumentError, UnknownKeyError
from datasets_rl.format.schema import shorten
from datasets_rl.storages.base import Storage
from datasets_rl.storages.dataset import wrapped
from datasets_rl.storages.ledger import Ledger, Slots
from datasets_rl.storages.positions import Segment, names_one, outcome, positions, target
from datasets_rl.storages.structure import Structure, leading, stacked
from datasets_rl.ted.keys import Key, dotted, nested

__all__ = ["TensorStorage"]

_PARTS, _LARGEST_PART = 64, 4096
"""Into how many parts a change in place is cut, and the most slots of one: what the death of a process costs."""


class TensorStorage(Storage):
    """Steps in tensors that the caller has made; writes reach them, and it is full from the start.

    Whole numbers and slices give views, which can be written to; other indices give memory of its own.

    Args:
        storage: A tensor, a TensorDict, a tensorclass, or a pytree of these, [slots, *lanes, ...].
        max_size: Steps that fit; if given, the number of those in `storage`.
        device: Taken because the reference has it: batches come from where `storage` is.
        ndim: Leading axes that count positions.
        compilable: Taken because the reference has it; nothing here stands in the way of a compiler or a process.

    Raises:
        InvalidArgumentError: If `storage` has a leaf that is no tensor, or the sizes differ.
    """

    _layout = "leaves"
    """What the tables of a saved state are: one for each leaf."""
    _structure: Structure | None = None
    _lane_shape: tuple[int, ...] = ()
    _tables: Sequence[Tensor] = ()
    """The memory of all steps, each [slots, *lanes, ...]."""
    _columns: Sequence[Any] = ()
    """Every leaf, [slots, *lanes, *shape]: views of the tables."""
    _ledger: Ledger | None = None
    """Where writes are recorded once other processes may read the same memory."""
    _shared_words: Tensor | None = None
    """Its memory, as a tensor that can be sent to processes."""

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
        structure = Structure.of(storage, ndim)
        sizes, columns = structure.flatten(storage, [None] * ndim)
        steps = math.prod(sizes)
        if max_size is not None and max_size != steps:
            raise InvalidArgumentError(
                f"max_size is {max_size}, and the storage has {list(sizes)} steps; expected {steps}"
            )
        objects = [leaf.path for leaf in structure.leaves if leaf.dtype is None]
        if objects:
            raise InvalidArgumentError(
                f"{objects} are no tensors", hint="LazyTensorStorage holds objects beside tensors"
            )
        super().__init__(steps, ndim=ndim)
        self._storage = storage
        self._structure, self._lane_shape = structure, sizes[1:]
        self._tables = self._columns = columns
        self.device: torch.device | None = columns[0].device
        self._count(sizes[0], sizes[0], 0)

    @property
    def initialized(self) -> bool:
        """Whether it is known what one element is."""
        return self._structure is not None

    @property
    def envs(self) -> int:
        """Steps of one slot: 1, or the product of the sizes of the axes after the first; 1 while nothing is known."""
        return math.prod(self._lane_shape)

    @property
    def shape(self) -> torch.Size:
        """Slots held, and the axes of the lanes."""
        return torch.Size((self.held, *self._lane_shape))

    def _known(self) -> Structure:
        if not self.initialized or self._structure is None:
            raise IndexError(f"this {type(self).__name__} is empty: nothing has been written to it")
        return self._structure

    def get(self, index: Any) -> Any:
        """Return the data at an index along the leading axes, [held, *lanes].

        Args:
            index: Whole numbers, slices with a step above 0, None and Ellipsis give a view; lists, masks, and index
                tensors give a batch of its own in their shape. A tuple has one of them for each axis.

        Raises:
            IndexError: If the index reaches outside the steps held.
        """
        structure = self._known()
        where = positions(index, (self.held, *self._lane_shape))
        if isinstance(where, Tensor):
            return self._gather(where)
        return structure.build(*self._view(where), self.device)

    def take(self, rows: Tensor) -> Any:
        """Return the steps of these rows, int64 [B], as one batch [B] in memory of its own."""
        return self._gather(rows)

    def _gather(self, rows: Tensor) -> Any:
        structure, steps = self._known(), len(self)
        flat = rows if rows.ndim == 1 else rows.reshape(-1)
        if not flat.is_cpu:
            flat = flat.cpu()
        try:
            parts = self._selected(flat, steps)
        except IndexError:
            flat = wrapped(flat, steps)
            parts = self._selected(flat, steps)
        if rows.ndim != 1:
            parts = [part.view((*rows.shape, *part.shape[1:])) for part in parts]
        return structure.build(self._leaves(parts, flat, rows.shape), rows.shape, self.device)

    def _selected(self, flat: Tensor, steps: int) -> list[Tensor]:
        if self._tables and not self._tables[0].is_cpu:
            # A CUDA kernel that reads outside takes the whole process with it.
            flat = wrapped(flat, steps).to(self._tables[0].device, non_blocking=True)
        last = self.ndim - 1
        return [table[: self.held].flatten(0, last).index_select(0, flat) for table in self._tables]

    def _leaves(self, parts: Sequence[Tensor], rows: Tensor, batch: torch.Size) -> Sequence[Any]:
        """Return all leaves, [*batch, *shape], of parts of the tables."""
        del rows, batch
        return parts

    def _view(self, where: tuple[Any, ...]) -> tuple[Sequence[Any], torch.Size]:
        leaves = [column[: self.held][where] for column in self._columns]
        return leaves, leaves[0].shape[: leaves[0].ndim - len(self._known().leaves[0].shape)]

    def set(self, cursor: Any, data: Any) -> None:
        """Write data into slots.

        A run of slots may go through the end of the ring to its start; of more data than there are slots the last
        is kept. The first data fixes what one element is.

        Args:
            cursor: A whole number for the data of one slot; a slice, range, list or index tensor [n] for that of n.
            data: One element [*lanes], or several [n, *lanes]; a list of elements is stacked.

        Raises:
            InvalidArgumentError: If the data does not fit; all faults at once, and nothing has been written.
            IndexError: If a slot is out of range, or slots before it would be left unwritten.
        """
        self._write(cursor, data)

    def replace(self, index: Any, data: Any) -> None:
        """Write data over steps that are held; which slot is the next one stays as it is.

        Raises:
            InvalidArgumentError: If the data does not fit what is stored; nothing has been written then.
            IndexError: If a slot is not held; nothing has been written then.
        """
        self._write(index, data, replacing=True)

    def _write(self, cursor: Any, data: Any, *, replacing: bool = False) -> None:
        if isinstance(cursor, tuple):
            if len(cursor) != 1:
                raise IndexError(f"{cursor!r} names steps of lanes; whole slots are written")
            (cursor,) = cursor
        if self._ledger is not None and self._ledger.unfinished:
            self.recover()
        one = names_one(cursor)
        structure, sizes, leaves = self._read(data, one=one)
        lane_shape = sizes if one else sizes[1:]
        slots = self._slots_for(lane_shape)
        before = self._counted()
        goal = target(cursor, 1 if one else sizes[0], held=before[0], slots=slots)
        after = outcome(before, goal, slots)
        if replacing:
            if after[0] != before[0]:
                raise IndexError(f"{cursor!r} reaches outside the {before[0]:,} slots held")
            after = *before[:2], before[2] + 1
        if not self.initialized:
            self._make(structure, lane_shape, leaves)
        ledger = self._ledger
        if ledger is None:
            self._store(goal, leaves, slots, one=one)
            self._count(*after)
        else:
            where = goal.where(slots) if isinstance(goal, Segment) else [goal.numpy()]
            ledger.begin(where)
            self._store(goal, leaves, slots, one=one)
            ledger.commit(after, where)

    def _store(self, goal: Segment | Tensor, leaves: Sequence[Any], slots: int, *, one: bool) -> None:
        with torch.no_grad():
            if isinstance(goal, Segment):
                for first, begin, count in goal.pieces(slots):
                    some = leaves if count == goal.count else [leaf[begin : begin + count] for leaf in leaves]
                    self._copy(first if one else slice(first, first + count), some)
            else:
                self._scatter(goal, leaves)

    def _read(self, data: Any, *, one: bool) -> tuple[Structure, tuple[int, ...], list[Any]]:
        if type(data) is list and not one:
            data = stacked(data)
        envs: tuple[int | None, ...] = self._lane_shape if self.initialized else (None,) * (self.ndim - 1)
        lead = envs if one else (None, *envs)
        structure = self._structure or Structure.of(data, len(lead))
        return structure, *structure.flatten(data, lead)

    def _slots_for(self, lane_shape: tuple[int, ...]) -> int:
        envs = math.prod(lane_shape)
        if not 0 < envs <= self.max_size:
            raise InvalidArgumentError(f"one slot has {list(lane_shape)} steps, and max_size is {self.max_size}")
        return self.max_size // envs

    def size_of(self, data: Any) -> int:
        """Return how many slots `data` fills, given as for `set` with several slots.

        Before the first write, the lanes are from now on those of this data.

        Raises:
            InvalidArgumentError: If it has fewer axes than count positions, or one slot is more than fits.
        """
        count, lane_shape = leading(data, self.ndim)
        if count and not self.initialized:
            self._slots_for(lane_shape)
            self._lane_shape = lane_shape
        return count

    def _make(self, structure: Structure, lane_shape: tuple[int, ...], leaves: Sequence[Any]) -> None:
        """Make the memory, when the first data comes."""

    def _copy(self, slots: int | slice, leaves: Sequence[Any]) -> None:
        """Write leaves into slots that lie in one."""
        for column, leaf in zip(self._columns, leaves, strict=True):
            column[slots].copy_(leaf)

    def _scatter(self, slots: Tensor, leaves: Sequence[Any]) -> None:
        for column, leaf in zip(self._columns, leaves, strict=True):
            column.index_copy_(0, slots.to(column.device), leaf.to(column.device))

    def column(self, key: Key) -> Any:
        """Return one field of all rows held, [rows, ...], or a TensorDict of those below a key; views, not copies.

        Raises:
            UnknownKeyError: If there is no such key.
        """
        structure, held = self._known(), self.held
        found = structure.under(tuple(key))
        if not found:
            raise UnknownKeyError(dotted(key), [".".join(map(str, leaf.path)) for leaf in structure.leaves])
        views = {path: self._flat(self._columns[number][:held]) for path, number in found.items()}
        return views[()] if () in views else TensorDict(nested(views), batch_size=[len(self)])

    def _flat(self, column: Any) -> Any:
        return column.flatten(0, self.ndim - 1)

    def unravel(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Return rows, [...], as one index for each of the leading axes."""
        return (rows,) if self.ndim == 1 else tuple(torch.unravel_index(rows, (self.slots, *self._lane_shape)))

    def ravel(self, index: Any) -> Tensor:
        """Return as rows, int64 [...], what `unravel` returned, or the same stacked along the last axis."""
        if self.ndim == 1:
            return super().ravel(index)
        parts = index if isinstance(index, tuple) else torch.as_tensor(index).unbind(-1)
        rows = torch.as_tensor(parts[0], dtype=torch.int64)
        for part, size in zip(parts[1:], self._lane_shape, strict=True):
            rows = rows * size + torch.as_tensor(part, dtype=torch.int64)
        return rows

    def empty(self) -> None:
        """Forget all steps; the memory stays, and so does what one element is."""
        self._recount(0, 0)

    def _recount(self, held: int, written: int) -> None:
        """Set the counts after what is held has been replaced as a whole; no step is torn then."""
        if self._ledger is None:
            self._count(held, written, self.rewritten + 1)
        else:
            self._ledger.reset(held, written)

    def torn_rows(self) -> Tensor:
        """Return the rows of the torn steps in ascending order, int64 [torn]."""
        if not self.torn or self._ledger is None:
            return super().torn_rows()
        slots = torch.from_numpy(self._ledger.torn_slots())
        return slots if self.envs == 1 else (slots.unsqueeze(1) * self.envs + torch.arange(self.envs)).reshape(-1)

    def recover(self) -> None:
        """Find the write that a process began and did not end; the caller excludes all other readers and writers.

        The slots of that write become torn, and the storage counts the others as before it.
        """
        if self._ledger is not None and self._ledger.unfinished:
            self._ledger.recover(self._clear)

    def _clear(self, slots: Slots) -> None:
        """Fill slots with zeros, so that what reads them without a sampler finds no half of a step either."""
        with torch.no_grad():
            for table in self._tables:
                table[torch.from_numpy(slots).to(table.device)] = 0

    def rewriting(self) -> Iterator[slice]:
        """Yield all slots held, part by part, for a change in place; the iterator marks a part while it is out.

        A process that dies leaves one part torn, and the parts before it changed.
        """
        if self._ledger is None:
            yield from super().rewriting()
            return
        self.recover()
        step = min(-(-self.held // _PARTS), _LARGEST_PART)
        for start in range(0, self.held, max(step, 1)):
            part = slice(start, min(start + step, self.held))
            where = self._ledger.begin_change(part)
            yield part
            self._ledger.commit((self.held, self.written, self.rewritten + 1), where)

    def share(self) -> None:
        """Let processes that get this storage from now on read and write the same memory.

        Raises:
            InvalidArgumentError: If there is no memory yet.
        """
        if not self.initialized:
            raise InvalidArgumentError(
                f"this {type(self).__name__} cannot be shared: its memory is made when the first data comes, and each "
                "process would make its own",
                hint="write some data first, or use a LazyMemmapStorage",
            )
        if self._shared_words is None:
            for table in self._tables:
                if table.is_cpu and not isinstance(table, MemoryMappedTensor):
                    table.untyped_storage().share_memory_()
            words = torch.from_numpy(self._recorded().words).clone()
            words.untyped_storage().share_memory_()
            self._shared_words = words
            self._record_in(Ledger(words.numpy(), self.slots))

    def _recorded(self) -> Ledger:
        """Return the ledger; a storage that no other process reads gets one here, with its counts."""
        if self._ledger is None:
            ledger = Ledger.of(self.slots)
            ledger.words[:4] = self._counts
            self._record_in(ledger)
            return ledger
        return self._ledger

    def _record_in(self, ledger: Ledger) -> None:
        self._ledger, self._counts = ledger, ledger.head

    @property
    def shared(self) -> bool:
        """Whether other processes may read and write the same memory."""
        return self._shared_words is not None

    def state_dict(self) -> dict[str, Any]:
        """Return what one element is and all steps held; the tensors are views of this storage's memory."""
        steps = len(self)
        torn = {"torn": torch.from_numpy(self._ledger.torn_slots())} if self.torn and self._ledger is not None else {}
        return {
            "layout": self._layout,
            "structure": self._structure.to_json() if self.initialized and self._structure is not None else None,
            "ndim": self.ndim,
            "lanes": list(self._lane_shape),
            "slots": self.slots,
            "held": self.held,
            "written": self.written,
            "tables": [pieces(table.flatten(0, self.ndim - 1)[:steps]) for table in self._saved()],
            **torn,
        }

    def _saved(self) -> Sequence[Tensor]:
        """Return the tables in the order in which a state has them."""
        return [self._tables[number] for number in self._known().by_name]

    def misfits(self, state_dict: dict[str, Any]) -> list[str]:
        """Say why a state cannot be taken over, all reasons at once; empty if it can."""
        reasons = _faults(state_dict, self._layout, self.ndim)
        if reasons or state_dict["structure"] is None:
            return reasons
        try:
            structure = Structure.from_json(state_dict["structure"], self._structure if self.initialized else None)
        except InvalidArgumentError as error:
            return [error.message]
        lane_shape = tuple(state_dict["lanes"])
        reasons += [f"it has no tensor at {leaf.path}" for leaf in structure.leaves if leaf.dtype is None]
        if self.initialized:
            reasons += self._known().misfits(structure)
            if lane_shape != self._lane_shape:
                reasons.append(f"it has {list(lane_shape)} lanes; expected {list(self._lane_shape)}")
        slots = self.max_size // max(math.prod(lane_shape), 1)
        if state_dict["held"] > slots:
            reasons.append(f"it holds {state_dict['held']:,} slots; {slots:,} fit")
        return reasons or self._table_faults(structure, state_dict)

    def _table_faults(self, structure: Structure, state: Mapping[str, Any]) -> list[str]:
        wanted = self._table_shapes(structure)
        envs = math.prod(state["lanes"])
        steps = state["held"] * envs
        if len(wanted) != len(state["tables"]):
            return [f"it has {len(state['tables'])} tables; expected {len(wanted)}"]
        return [
            f"table {number} is not {dtype} {[steps, *shape]}"
            for number, (parts, (dtype, shape)) in enumerate(zip(state["tables"], wanted, strict=True))
            if sum(len(part) for part in parts) != steps
            or any(part.dtype != dtype or part.shape[1:] != shape or len(part) % envs for part in parts)
        ]

    def _table_shapes(self, structure: Structure) -> list[tuple[torch.dtype | None, tuple[int, ...]]]:
        """Return the dtype and the axes of one step of each table."""
        leaves = [structure.leaves[number] for number in structure.by_name]
        return [(leaf.dtype, leaf.shape) for leaf in leaves]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a state; of a full ring that comes into a larger one, the oldest step becomes the first.

        Raises:
            InvalidArgumentError: If it does not fit; nothing has changed then.
        """
        refuse(self.misfits(state_dict))
        self.empty()
        if state_dict["structure"] is None:
            return
        if not self.initialized:
            self._restore(state_dict)
        held, written = state_dict["held"], state_dict["written"]
        if written > held and held != self.slots:
            state_dict = self.renumbered(state_dict, written % held, held)
            written = held
        for table, parts in zip(self._saved(), state_dict["tables"], strict=True):
            at = 0
            for part in parts:
                some = part.reshape(len(part) // self.envs, *table.shape[1:])
                table[at : at + len(some)].copy_(some)
                at += len(some)
        self._recount(held, written)
        torn = state_dict.get("torn")
        if torn is not None:
            self._recorded().tear(torn.cpu().numpy())

    def _restore(self, state: Mapping[str, Any]) -> None:
        """Make the memory for a saved state."""

    def renumbered(self, state_dict: dict[str, Any], shift: int, slots: int) -> dict[str, Any]:
        """Turn a full ring, so that the oldest step comes first; nothing is copied."""
        del slots
        at = shift * math.prod(state_dict["lanes"])
        tables = [_turned(parts, at) for parts in state_dict["tables"]]
        held, torn = state_dict["held"], state_dict.get("torn")
        moved = {} if torn is None else {"torn": ((torn - shift) % held).sort().values}
        return {**state_dict, "tables": tables, "written": held, **moved}

    def __getstate__(self) -> dict[str, Any]:
        if get_spawning_popen() is not None:
            self.share()
        state = {**self.__dict__, "_indices": {}, "_counts": [*self._counts[:4]]}
        if self._ledger is not None:
            words = self._shared_words
            state["_words"] = torch.from_numpy(self._ledger.words).clone() if words is None else words
        return self._pickled(state)

    def _pickled(self, state: dict[str, Any]) -> dict[str, Any]:
        return {
            name: value
            for name, value in state.items()
            if name not in {"_tables", "_columns", "_ledger", "_shared_words"}
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        words: Tensor | None = state.pop("_words", None)
        self.__dict__.update(state)
        if words is not None:
            self._shared_words = words if words.untyped_storage().is_shared() else None
            self._record_in(Ledger(words.numpy(), self.slots))
        self._remake()

    def _remake(self) -> None:
        _, columns = self._known().flatten(self._storage, [None] * self.ndim)
        self._tables = self._columns = columns

    def __repr__(self) -> str:
        held = f"{len(self):,} of {self.max_size:,} steps"
        return f"{type(self).__name__}({held}, {self._structure if self.initialized else 'of no kind yet'})"


def _faults(state: Mapping[str, Any], layout: str, ndim: int) -> list[str]:
    """Say what is wrong with a state as a document, before its content is looked at."""
    rules: tuple[tuple[str, Any, str], ...] = (
        ("layout", lambda value: value == layout, repr(layout)),
        ("ndim", lambda value: value == ndim, str(ndim)),
        ("structure", lambda value: value is None or isinstance(value, Mapping), "a description of the data"),
        ("lanes", lambda value: isinstance(value, list) and all(map(_is_size, value)), "a list of sizes"),
        ("slots", _is_size, "a whole number from 1"),
        ("held", _is_count, "a whole number"),
        ("written", _is_count, "a whole number"),
        ("tables", _are_tables, "lists of tensors"),
        ("torn", lambda value: value is None or _are_slots(value, state.get("held")), "ascending slots that are held"),
    )
    faults = [
        f"{name} is {shorten(state.get(name))}; expected {wanted}"
        for name, right, wanted in rules
        if not right(state.get(name))
    ]
    if "structure" not in state:
        faults.append("structure is missing; expected a description of the data, or None")
    if not faults and state["written"] != state["held"] and not state["held"] == state["slots"] < state["written"]:
        faults.append(f"it says that {state['written']} slots were written and {state['held']} are held")
    if not faults and state["structure"] is None and state["held"]:
        faults.append(f"it says that {state['held']} slots are held, and not of what")
    return faults


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


def _turned(parts: Sequence[Tensor], shift: int) -> list[Tensor]:
    """Move the first `shift` rows of a table behind the others."""
    front: list[Tensor] = []
    back: list[Tensor] = []
    for part in parts:
        front.append(part[:shift])
        back.append(part[shift:])
        shift = max(shift - len(part), 0)
    return [part for part in (*back, *front) if len(part)]

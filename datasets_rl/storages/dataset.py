"""Read-only storage over a dataset on disk. A batch takes a single gather."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict
from torch import Tensor
from typing_extensions import override

from datasets_rl.errors import IntegrityError
from datasets_rl.format.images.base import Items
from datasets_rl.format.images.cache import COPIED_BYTES
from datasets_rl.format.images.columns import ImageColumn
from datasets_rl.format.npy import advise_random_reads
from datasets_rl.format.reader import StoredDataset
from datasets_rl.format.schema import ROWS_FILE, Field, Schema
from datasets_rl.read.threads import run_on_all_cores
from datasets_rl.settings import Settings, memory_bytes
from datasets_rl.storages.episodic import EpisodicStorage
from datasets_rl.storages.packed import Column, RowArrays, RowSlot, as_array, as_tensor, row_slots
from datasets_rl.storages.record_access import RecordAccess
from datasets_rl.storages.record_pass import PassEpisodes, RecordPass
from datasets_rl.storages.records import Records, Words
from datasets_rl.ted.keys import (
    EPISODE,
    NEXT,
    NEXT_DONE,
    NEXT_FINAL_KNOWN,
    NEXT_TERMINATED,
    NEXT_TRUNCATED,
    EndKey,
    Key,
    dotted_name,
    nest_keys,
)
from datasets_rl.ted.passes import Pass, ReadsInPass
from datasets_rl.ted.table import EpisodeTable
from datasets_rl.ted.unchecked import Groups, nest_leaves
from datasets_rl.ted.windows import Windows

_WORD = 8
_MAX_PASSES = 64
_ROW = ""
"""A name that no field has."""
_STORED = np.empty(0, np.int64)
"""The episodes of rows, for the stored episodes."""


class DatasetStorage(EpisodicStorage):
    """The steps of a stored dataset.

    Every read returns new memory that the caller may modify. The files never change. `column` returns views of a
    private, copy-on-write mapping of the files.

    If the final observation of some episode is missing from the dataset, batches carry ``("next", "final_known")``,
    bool [*B, 1]. The flag is False exactly on the last transition of such an episode, where the next observation reads
    as zeros.

        >>> from datasets_rl import DatasetStorage, ReplayBuffer, load
        >>> rb = ReplayBuffer(storage=DatasetStorage(load("demo/pendulum").stored), batch_size=32)
        >>> rb.sample()["observation"].shape
        torch.Size([32, 3])

    Args:
        stored: The opened dataset.
        truncated_as_done: Whether ``("next", "done")`` is also True at time-outs. If False, the flag equals ``("next",
            "terminated")``.
        masked: Whether batches carry the mask even if every final observation is known. The shards of a stream need
            this, because other shards may need the mask.
        image_cache: Maximum size in bytes of the decoded images that stay in memory, of any form. 0 keeps no image. By
            default PNG and JPEG images stay, in as many megabytes as the environment variable ``RLDS_IMAGE_CACHE``
            states: 256. Decompressing an image takes little longer than copying it, and frames of videos are large.
    """

    def __init__(
        self,
        stored: StoredDataset,
        *,
        truncated_as_done: bool = True,
        masked: bool = False,
        image_cache: int | None = None,
    ) -> None:
        super().__init__(max(len(stored), 1))
        self.stored = stored
        self.image_cache = image_cache
        self.truncated_as_done = truncated_as_done
        self.masked = masked or bool(stored.manifest.final_unknown)
        self._open()

    def _open(self) -> None:
        stored = self.stored
        schema = stored.schema
        self._length = len(stored)
        self._slots = {slot.name: slot for slot in row_slots(schema)}
        self._window_arrays: dict[tuple[Key, ...], RowArrays] = {}
        self._columns: dict[Key, Tensor] = {}
        # Files larger than the memory are read row by row. Smaller files load faster with read-ahead.
        scattered = stored.manifest.bytes > memory_bytes() / 2
        self._windows = _record_windows(stored, scattered=scattered)
        self._records = Records(stored, self._windows)
        self._wide = {
            field.key: (field, self._indexable(field, stored.items(field.key), scattered=scattered))
            for field in schema.wide
        }
        self._finals: dict[Key, _Items] | None = None
        self._plans: dict[tuple[Key, ...], _BatchPlan] = {}
        self._whole = self._plan_of(tuple(self.keys()))
        self._following = tuple(key for key in self.keys() if key[0] == NEXT)

    def _indexable(self, field: Field, items: Items, *, scattered: bool = False) -> _Items:
        if isinstance(items, ImageColumn):
            for file in field.image_form.scattered_files() if scattered else ():
                advise_random_reads(self.stored.map(file))
            return _DecodedImages(items, self._cached_part if self._is_cached(field) else 0)
        values = _as_read_only_tensor(items, scattered=scattered)
        return _WideArray(values, COPIED_BYTES if scattered else _BYTES_PER_THREAD)

    def _is_cached(self, field: Field) -> bool:
        form = field.image_form
        return form.holds_files or (not form.is_array and self.image_cache is not None)

    @cached_property
    def _cached_part(self) -> float:
        """The part of the images that stays in memory, the same for each field. 1 or more for all images."""
        manifest = self.stored.manifest
        default = Settings.from_env().image_cache * 1_000_000
        total = sum(
            math.prod(field.shape) * (manifest.steps + manifest.episodes * field.shared)
            for field in self.schema
            if self._is_cached(field)
        )
        return (default if self.image_cache is None else self.image_cache) / max(total, 1)

    @property
    @override
    def episodes(self) -> EpisodeTable:
        return self.stored.episodes

    @property
    @override
    def schema(self) -> Schema:
        return self.stored.schema

    @property
    @override
    def filled_count(self) -> int:
        return self._length

    def get(self, index: Any) -> TensorDict:
        """Return the transitions at an index in [-N, N), as strict TED, in the shape of the index."""
        rows = as_rows(index, len(self))
        return self.take(rows)

    def __len__(self) -> int:
        return self._length

    @override
    def _batch_of(
        self, rows: Tensor, keys: tuple[Key, ...] | None, more: Mapping[str, Tensor] | None = None
    ) -> TensorDict:
        plan = self._whole if keys is None else self._plan_of(keys)
        shape = rows.shape
        if plan.groups is None or len(shape) != 1:
            return super()._batch_of(rows, keys, more)
        return plan.groups.of_arrays(plan.arrays.records(self._gather(rows)[0]), shape, more)

    @override
    def take_named(
        self, rows: Tensor, keys: tuple[Key, ...] | None, rows_name: str = "", *, arrays: bool = False
    ) -> dict[str, Column]:
        plan = self._whole if keys is None else self._plan_of(keys)
        if plan.named is None:
            return super().take_named(rows, keys, rows_name, arrays=arrays)
        columns = plan.named(self._gather(rows)[0])
        numbers = columns.pop(_ROW)
        if rows_name:
            columns[rows_name] = numbers  # an array of the tensor of rows would take longer than the gather
        return columns

    def _gather(self, rows: Tensor) -> tuple[Words, int, Tensor]:
        """Return the records of some rows, and how many end an episode, see `Records.gather`, and the rows in [0, N)."""
        try:
            words, ends = self._records.gather(rows)
        except IndexError:
            rows = wrap_negative_rows(rows, len(self))
            words, ends = self._records.gather(rows)
        return words, ends, rows

    @override
    def take_columns(self, rows: Tensor, keys: Sequence[Key] | None = None) -> dict[Key, Column]:
        plan = self._whole if keys is None else self._plan_of(tuple(keys))
        words, ends, rows = self._gather(rows)
        columns = plan.arrays(words)
        if plan.is_narrow:
            return columns
        for part in plan.wide:
            self._read_wide(part, rows, columns)
        if ends and plan.following:
            self._fill_final_states(columns, plan)
        if plan.done_is_terminated:
            columns[NEXT_DONE] = as_array(columns[NEXT_TERMINATED]).copy()
        for key in plan.hidden:
            del columns[key]
        return columns

    def _plan_of(self, keys: tuple[Key, ...]) -> _BatchPlan:
        """Return how the fields of a batch are read. A plan is made once for the same keys."""
        plan = self._plans.get(keys)
        if plan is None:
            plan = self._plans[keys] = self._new_plan(keys)
        return plan

    def _new_plan(self, keys: tuple[Key, ...]) -> _BatchPlan:
        parts = (
            _WidePart(field, items, root=field.key in keys, following=field.shared and (NEXT, *field.key) in keys)
            for field, items in self._wide.values()
        )
        wide = tuple(part for part in parts if part.root or part.following)
        following = any(part.following for part in wide)
        done_is_terminated = NEXT_DONE in keys and not self.truncated_as_done
        needed = {NEXT_DONE, EPISODE} if following else set()
        if done_is_terminated:
            needed |= {NEXT_DONE, NEXT_TERMINATED}
        slots = self._records.slots([*self._slots.values()])
        slots, row_bytes = [slot for slot in slots if slot.name in needed.union(keys)], self._records.gathered_bytes
        arrays = RowArrays(slots, row_bytes)
        is_narrow = not wide and not done_is_terminated
        return _BatchPlan(
            arrays=arrays,
            is_narrow=is_narrow,
            groups=Groups(nest_keys(arrays.fields)) if is_narrow and arrays.are_views else None,
            named=RowArrays([*_named(slots), self._records.row_slot(_ROW)], row_bytes) if is_narrow else None,
            wide=wide,
            following=following,
            done_is_terminated=done_is_terminated,
            hidden=tuple(needed.difference(keys)),
        )

    @override
    def record_access(self, key: Key) -> tuple[RecordAccess, RowSlot] | None:
        if key not in self._accesses:
            is_stored = self._is_in_record(key) and self._slots[key].memory_dtype is None
            self._accesses[key] = (self._access, self._slots[key]) if is_stored else None
        return self._accesses[key]

    @cached_property
    def _access(self) -> RecordAccess:
        return self._records.access(self._bounds)

    @cached_property
    def _accesses(self) -> dict[Key, tuple[RecordAccess, RowSlot] | None]:
        return {}

    @override
    def take_in_pass(self, rows: Tensor, transform: ReadsInPass) -> TensorDict | None:
        columns = self.columns_in_pass(rows, transform, None)
        return None if columns is None else nest_leaves(columns, rows.shape)

    def columns_in_pass(
        self,
        rows: Tensor,
        transform: ReadsInPass | None,
        keys: tuple[Key, ...] | None,
        episodes: PassEpisodes | None = None,
        owners: NDArray[np.int64] = _STORED,
    ) -> dict[Key, Column] | None:
        """Return the leaves of what `take_in_pass` returns, for some fields and for parts of the episodes.

        Args:
            rows: The rows.
            transform: The transform, or None for the fields alone.
            keys: Keys of the fields, or None for all.
            episodes: The parts of the episodes, or None for the stored episodes.
            owners: The part of each row, [B].
        """
        if rows.ndim != 1 or not rows.is_cpu or rows.dtype is not torch.int64:
            return None
        episodes = episodes or self._pass_episodes
        name = (type(transform), () if transform is None else transform.pass_arguments(), keys)
        try:
            found = episodes.passes[name]
        except KeyError:
            if len(episodes.passes) >= _MAX_PASSES:  # of a transform that changes with each batch
                episodes.passes.clear()
            found = self._new_pass(transform, tuple(self.keys()) if keys is None else keys, episodes)
            episodes.passes[name] = found
        if found is None or not found.suits(rows.shape[0]):
            return None
        columns, result = found.read(rows.contiguous(), owners)
        if result == -1:
            columns, result = found.read(wrap_negative_rows(rows, len(self)), owners)
        if result < 0:
            raise self._records.unknown_episode()
        return columns

    @cached_property
    def _pass_episodes(self) -> PassEpisodes:
        return PassEpisodes(*self._bounds)

    def _new_pass(
        self, transform: ReadsInPass | None, keys: tuple[Key, ...], episodes: PassEpisodes
    ) -> RecordPass | None:
        """Return the pass that reads some fields, and the results of a transform, or None if there is no such pass."""
        if self.wide_keys.intersection(keys) or not self.truncated_as_done:
            return None
        fields = {key: self._slots[key] for key in keys if key in self._slots and self._slots[key].memory_dtype is None}
        wanted = Pass(()) if transform is None else transform.pass_over(fields)
        if wanted is None:
            return None
        names = {*keys, *(entry.key for entry in wanted.entries)}
        read = {getattr(part, "field", None) for entry in wanted.entries for part in entry.parts}
        # An entry would be within another, or the flags of an episode that was cut would be those of the record.
        if any(name[:length] in names for name in names for length in range(1, len(name))):
            return None
        if len(episodes.cut) and read & {NEXT_DONE, NEXT_TRUNCATED}:
            return None
        return RecordPass(self._records, episodes, self._slots, keys, wanted, masked=NEXT_FINAL_KNOWN in keys)

    def _read_wide(self, part: _WidePart, rows: Tensor, columns: dict[Key, Column]) -> None:
        key, items = part.field.key, part.items
        if not part.following:
            columns[key] = items.index_select(0, rows)
            return
        # After the last row of an episode comes its final state, which `_fill_final_states` reads.
        next_rows = torch.where(as_tensor(columns[NEXT_DONE]).view(-1), rows, rows + 1)
        if part.root:  # a single call, so that an image in both is read once
            both = items.index_select(0, torch.cat([rows, next_rows]))
            columns[key], columns[(NEXT, *key)] = both[: len(rows)], both[len(rows) :]
        else:
            columns[(NEXT, *key)] = items.index_select(0, next_rows)

    def _fill_final_states(self, columns: dict[Key, Column], plan: _BatchPlan) -> None:
        # The row after the last row of an episode belongs to the next episode.
        last = as_tensor(columns[NEXT_DONE]).view(-1).nonzero().squeeze(1)
        episodes = as_tensor(columns[EPISODE]).index_select(0, last)
        for part in plan.wide:
            if part.following:
                final = self._final_states()[part.field.key].index_select(0, episodes)
                as_tensor(columns[(NEXT, *part.field.key)]).index_copy_(0, last, final)

    def _final_states(self) -> dict[Key, _Items]:
        if self._finals is None:
            stored = self.stored
            self._finals = {
                field.key: self._indexable(field, stored.final_states(field.key))
                for field in stored.schema
                if field.shared
            }
        return self._finals

    def pick(self, key: Key, rows: Tensor) -> Tensor:
        """Return a field of some rows, [B, ...]. Fields under "next" are computed for these rows only."""
        if key in self._wide:
            return self._wide[key][1].index_select(0, rows)
        if (column := self._narrow_column(key)) is not None:
            values, memory_dtype = column.index_select(0, rows), self._slots[key].memory_dtype
            return values if memory_dtype is None else values.to(memory_dtype)
        if key == NEXT_FINAL_KNOWN and self.masked:
            return torch.from_numpy(self.episodes.next_known(wrap_negative_rows(rows, len(self)).numpy())).unsqueeze(1)
        root_key, schema = key[1:], self.schema
        if key[0] != NEXT or root_key not in schema or not schema[root_key].shared:
            return super().pick(key, rows)
        return self.pick_states(root_key, rows, torch.ones_like(rows, dtype=torch.bool))

    @override
    def pick_all(self, keys: Sequence[Key], rows: Tensor) -> list[Tensor]:
        picked: dict[Key, Tensor] = {}
        for key in keys:
            if key in self._wide and (NEXT, *key) in keys:  # most values are the same
                following = torch.tensor([[False], [True]]).expand(2, len(rows))
                picked[key], picked[(NEXT, *key)] = self.pick_states(key, rows.expand(2, -1), following)
        return [picked[key] if key in picked else self.pick(key, rows) for key in keys]

    @override
    def pick_states(self, key: Key, rows: Tensor, following: Tensor) -> Tensor:
        states, positions = rows.reshape(-1).clone(), following.reshape(-1).nonzero().squeeze(1)
        before = states.index_select(0, positions)
        numbers = self.episodes.episode_of(before.numpy())
        last = torch.from_numpy(self.episodes.stops[numbers] - 1) == before
        # After the last row of an episode comes its final state, which is in another file.
        states.index_copy_(0, positions, torch.where(last, before, before + 1))
        values = self.pick(key, states)
        if last.any():
            final_states = self._final_states()[key].index_select(0, torch.from_numpy(numbers)[last])
            values.index_copy_(0, positions[last], final_states)
        return values.view(*rows.shape, *values.shape[1:])

    def _narrow_column(self, key: Key) -> Tensor | None:
        """Return a read-only view of a narrow field, in the stored dtype, or None if the field has a separate file."""
        if key not in self._columns and self._is_in_record(key):
            self._columns[key] = _as_read_only_tensor(np.asarray(self.stored.rows[dotted_name(key)]))
        return self._columns.get(key)

    @override
    def take_next(self, rows: Tensor) -> TensorDict:
        following: TensorDict = self.take_fields(rows, self._following).get(NEXT)
        return following

    @override
    def take_windows(
        self, keys: Sequence[Key], rows: Tensor, offsets: Sequence[int], *, end_key: EndKey | None = None
    ) -> Windows:
        in_record = [key for key in keys if self._is_in_record(key)]
        is_run = isinstance(offsets, range) and offsets.step == 1 and 0 in offsets
        if not in_record or not is_run or len(offsets) > len(self) or not len(rows) or end_key not in {None, NEXT_DONE}:
            return super().take_windows(keys, rows, offsets, end_key=end_key)
        windows = self._take_runs(in_record, rows.contiguous(), -offsets[0], len(offsets))
        if len(in_record) < len(keys):
            others = [key for key in keys if key not in in_record]
            picked = dict(zip(in_record, windows.entries, strict=True))
            picked.update(zip(others, super().take_windows(others, rows, offsets).entries, strict=True))
            windows.entries[:] = [picked[key] for key in keys]
        return windows

    def _take_runs(self, keys: Sequence[Key], rows: Tensor, before: int, length: int) -> Windows:
        """Return windows of narrow fields, which are in the records."""
        try:
            found = self._records.gather_windows(rows, before, length, self._bounds)
        except IndexError:
            rows = wrap_negative_rows(rows, len(self))
            found = self._records.gather_windows(rows, before, length, self._bounds)
        names = tuple(keys)
        if names not in self._window_arrays:
            slots = [self._slots[key] for key in keys]
            self._window_arrays[names] = RowArrays(slots, self.schema.record_bytes)
        arrays = self._window_arrays[names](found.words)

        def rows_at(step: int | Tensor) -> Tensor:
            steps = step if isinstance(step, int) else step.numpy()
            anchors, first, last = (
                value if isinstance(steps, int) or steps.ndim < 2 else value[:, None]
                for value in (rows.numpy(), found.low, found.high)
            )
            return torch.from_numpy(np.minimum(np.maximum(anchors + (steps - before), first), last))

        entries = [as_tensor(arrays[key]) for key in keys]
        return Windows(entries, found.outside, rows_at, rows - before if before else rows)

    def _is_in_record(self, key: Key) -> bool:
        """Return whether a field is narrow: the record of a row contains narrow fields."""
        schema = self.stored.schema
        renamed = key == NEXT_DONE and not self.truncated_as_done
        return key in schema and not schema[key].wide and not renamed

    def column(self, key: Key) -> Tensor:
        """Return a field of all rows, [N, ...]: a view if the file stores the values as returned, else a copy."""
        stored = self.stored
        if key == NEXT_FINAL_KNOWN and self.masked:
            return self.pick(key, torch.arange(len(self)))
        key = NEXT_TERMINATED if key == NEXT_DONE and not self.truncated_as_done else key
        if key in stored.schema and stored.schema[key].memory_dtype is None:
            field = stored.schema[key]
            if not field.image_form.is_array:
                return torch.from_numpy(stored.column(key))
            items = stored.map(field.file, writable=True)
            return torch.from_numpy(np.asarray(items if field.wide else items[field.name]))
        return torch.from_numpy(stored.column(key))

    def keys(self) -> list[Key]:
        """Return the keys of a batch."""
        keys = self.stored.keys()
        return [*keys, NEXT_FINAL_KNOWN] if self.masked and NEXT_FINAL_KNOWN not in keys else keys

    def __reduce__(self) -> tuple[Any, ...]:
        factory = partial(
            DatasetStorage, truncated_as_done=self.truncated_as_done, masked=self.masked, image_cache=self.image_cache
        )
        return factory, (self.stored,)

    def __repr__(self) -> str:
        return f"DatasetStorage({self.stored!r})"


def _record_windows(stored: StoredDataset, *, scattered: bool) -> Tensor:
    """Return a view of rows.npy, words of 8 bytes [N, W]: window i is record i and the start of record i + 1.

    Windows overlap, and the record of zeros at the end of rows.npy completes the last window. The elements are words of
    8 bytes because torch decides by the number of elements whether to gather with several threads.
    """
    schema = stored.schema
    count, path = len(stored.rows), stored.folder / ROWS_FILE
    # Mapped again, with the trailing record of zeros: numpy maps only the array that the header describes.
    offset = int(stored.rows.offset)  # type: ignore[attr-defined]  # a memmap
    flat = stored.open_file(ROWS_FILE, lambda path: np.memmap(path, np.uint8, mode="r", offset=offset))
    if flat.size < (count + 1) * schema.record_bytes:
        raise IntegrityError(str(path), ["the record of zeros after the last row is missing"])
    words = _as_read_only_tensor(flat[: (count + 1) * schema.record_bytes].view(np.int64), scattered=scattered)
    return words.as_strided((count, schema.window_bytes // _WORD), (schema.record_bytes // _WORD, 1))


class _DecodedImages:
    """Images with the gather method of a tensor: `index_select` decodes the selected images.

    Args:
        images: The images.
        cached_part: The part of the images that stays in memory after decoding, see `ImageColumn.new_cache`.
    """

    def __init__(self, images: ImageColumn, cached_part: float) -> None:
        self._images, self._cache = images, images.new_cache(cached_part)

    def index_select(self, dim: int, rows: Tensor) -> Tensor:
        """Return the images of these rows, uint8 [B, height, width, channels]."""
        del dim
        return torch.from_numpy(self._images.take(rows.numpy(), self._cache))


_BYTES_BEFORE_LOADING = 16 << 20
"""The compiled loop takes half a second to load: only for a program that reads more bytes."""
_BYTES_PER_THREAD = 16 << 20
"""A thread copies these from the memory in less than a millisecond, which is as long as the wait for another thread."""


class _WideArray:
    """Values in an array with the gather method of a tensor, which copies the values in the threads of the decoders.

    Torch copies in as many threads as it computes in, and each batch waits for all of them: while other programs use
    the cores, a batch of images takes a hundred times as long.

    Args:
        values: The values, read-only, [N, ...].
        bytes_per_thread: Number of bytes up to which a thread alone copies a batch.
    """

    def __init__(self, values: Tensor, bytes_per_thread: int) -> None:
        self._values, self._bytes_per_thread = values, bytes_per_thread
        self._item_bytes = values[0].nbytes if len(values) else 0
        self._bytes_read = 0

    def index_select(self, dim: int, rows: Tensor) -> Tensor:
        """Return the values of these rows, [B, ...].

        Raises:
            IndexError: If a row is outside of [0, N).
        """
        self._bytes_read += len(rows) * self._item_bytes
        if self._bytes_read <= _BYTES_BEFORE_LOADING or not len(rows):
            return self._values.index_select(dim, rows)
        from datasets_rl.format.images.loops import copy_rows  # deferred: loads numba

        numbers, source = np.ascontiguousarray(rows.numpy()), self._bytes
        values = torch.empty((len(numbers), *self._values.shape[1:]), dtype=self._values.dtype)
        out = values.view(-1).view(torch.uint8).numpy().reshape(len(numbers), -1)

        def copy_range(first: int, last: int) -> None:
            if not copy_rows(source, numbers, out, first, last):
                raise IndexError(f"a row is out of range, expected one of {len(self._values):,} rows")

        run_on_all_cores(copy_range, len(numbers), max(self._bytes_per_thread // self._item_bytes, 1))
        return values

    @cached_property
    def _bytes(self) -> NDArray[np.uint8]:
        """The values as bytes, read-only, [N, bytes]."""
        return self._values.view(-1).view(torch.uint8).numpy().reshape(len(self._values), -1)


_Items: TypeAlias = "_WideArray | _DecodedImages"


@dataclass(frozen=True, slots=True)
class _WidePart:
    """A wide field of a batch."""

    field: Field
    items: _Items
    root: bool
    """Whether the batch contains the field."""
    following: bool
    """Whether the batch contains the field under "next"."""


@dataclass(frozen=True, slots=True)
class _BatchPlan:
    """How the fields of a batch are read, compiled once for a set of keys."""

    arrays: RowArrays
    """The views of the narrow fields of a gathered row."""
    is_narrow: bool
    """Whether the fields of the batch are these views."""
    groups: Groups | None
    """The batch as a TensorDict of the fields of gathered rows, or None if the batch needs more than views."""
    named: RowArrays | None
    """The views by dotted name, and the row as `_ROW`, or None if the batch needs more than views."""
    wide: tuple[_WidePart, ...]
    following: bool
    """Whether the batch contains a wide field under "next". The last value of an episode is then the final state."""
    done_is_terminated: bool
    hidden: tuple[Key, ...]
    """Keys of narrow fields that are read but are not fields of the batch."""


def _as_read_only_tensor(array: NDArray[Any], *, scattered: bool = False) -> Tensor:
    """Return a tensor that shares the memory of a read-only array.

    Callers only gather from this tensor and never return it.
    """
    if scattered:
        advise_random_reads(array)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(array)


def _named(slots: Sequence[RowSlot]) -> list[RowSlot]:
    """Return slots by dotted name."""
    return [replace(slot, name=dotted_name(slot.name)) for slot in slots]


def as_rows(index: Any, count: int) -> Tensor:
    """Convert an index of `count` rows to integers, int64, in the shape of the result.

    Numbers may be negative or out of range: the gather checks them.

    Raises:
        IndexError: If the index is not made of integers, a slice or a mask.
    """
    if isinstance(index, Tensor):
        return index if index.dtype == torch.int64 and index.is_cpu else _row_numbers(index.cpu(), count)
    if isinstance(index, tuple) and len(index) == 1:
        return as_rows(index[0], count)
    if index is Ellipsis or index is None:
        index = slice(None)
    if isinstance(index, (slice, range)):
        rows = range(count)[index] if isinstance(index, slice) else index
        return torch.arange(len(rows)) * rows.step + rows.start
    # A copy: torch accepts neither read-only arrays nor negative strides. An empty list selects nothing.
    array = np.array(index, order="C")
    if array.dtype.kind not in "biu" and array.size:
        raise IndexError(f"{index!r} is not an index, expected integers, a slice or a mask")
    return _row_numbers(torch.from_numpy(array if array.size else array.astype(np.int64)), count)


def _row_numbers(rows: Tensor, count: int) -> Tensor:
    if rows.dtype == torch.bool:
        if rows.shape != (count,):
            raise IndexError(f"the mask has shape {list(rows.shape)}, expected [{count}]")
        return rows.nonzero().squeeze(1)
    if rows.is_floating_point() or rows.is_complex():
        raise IndexError(f"the index has dtype {rows.dtype}, expected integers, a slice or a mask")
    return rows.to(torch.int64)


def wrap_negative_rows(rows: Tensor, count: int) -> Tensor:
    """Resolve negative rows, which count from the end.

    Raises:
        IndexError: If a row is outside [-count, count).
    """
    outside = rows[(rows < -count) | (rows >= count)]
    if len(outside):
        raise IndexError(f"row {int(outside[0])} is out of range, expected one of {count:,} rows")
    return torch.where(rows < 0, rows + count, rows)

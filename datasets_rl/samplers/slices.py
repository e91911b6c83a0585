"""Sampler of trajectory slices, with replacement: the base of all slice samplers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor
from typing_extensions import override

from datasets_rl.arguments import check, choice_problems, size_problems, unless
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.samplers.base import Sampler
from datasets_rl.samplers.share import Share
from datasets_rl.storages.index import default_trajectory_key
from datasets_rl.ted.keys import NEXT_TRUNCATED, EndKey, Key, as_key
from datasets_rl.ted.trajectories import Slices, Trajectories, TrajectoryMarkers

if TYPE_CHECKING:
    from datasets_rl.storages.base import Storage

SLICE_ID = "slice_id"
"""The key of the slice numbers in a batch."""

MASK_KEY = ("collector", "mask")
"""The key of the mask in a batch: False for repeated steps."""

AnyKey = str | tuple[Any, ...]
Index = NDArray[np.int64]
Span = bool | int | Sequence[bool | int]


class SliceOptions(TypedDict, total=False):
    """Arguments that all slice samplers have, see `SliceSampler`."""

    num_slices: int | None
    slice_len: int | None
    end_key: AnyKey | None
    end_keys: Sequence[AnyKey] | None
    traj_key: AnyKey | None
    step_key: AnyKey | None
    fragmented: bool
    ends: Tensor | None
    trajectories: Tensor | None
    cache_values: bool
    truncated_key: AnyKey | None
    init_key: AnyKey | None
    strict_length: bool
    pad_output: bool
    compile: bool | dict[str, Any]
    use_gpu: torch.device | bool
    starts: str
    generator: Generator | None
    rank: int | None
    world_size: int | None


@dataclass(eq=False)
class _StorageIndex:
    """Trajectories and slices of a storage, valid until the next write."""

    storage: Storage
    trajectories: Trajectories
    own: Trajectories
    """The trajectories of this process's share."""
    slices: dict[int, Slices] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class BatchLayout:
    """Layout of a batch of B steps, determined by the lengths of its slices."""

    numbers: Tensor
    """Number of the slice of each step, starting at 0, int64 [B]."""
    firsts: Tensor
    """Position of the first step of each slice in the batch, int64 [n]."""
    ends: Tensor
    """True for the last step of each slice, bool [B, 1]."""
    mask: Tensor | None
    """False for repeated steps, bool [B], or None if no slice is shorter than the others."""

    @classmethod
    def from_lengths(cls, lengths: Index, pad: int | None) -> BatchLayout:
        """Create the layout of slices of these lengths, padded to `pad` steps if given."""
        sizes = lengths if pad is None else np.full_like(lengths, pad)
        firsts = np.cumsum(sizes) - sizes
        ends = np.zeros((int(sizes.sum()), 1), np.bool_)
        ends[firsts + lengths - 1] = True
        mask = None if pad is None else torch.from_numpy((np.arange(pad) < lengths[:, None]).reshape(-1))
        numbers = torch.from_numpy(np.repeat(np.arange(len(lengths)), sizes))
        return cls(numbers, torch.from_numpy(firsts), torch.from_numpy(ends), mask)


class SliceSampler(Sampler):
    """Draw slices of consecutive steps, each within a trajectory, with replacement.

    All possible starts of all trajectories are equally likely. A batch of B steps contains n consecutive slices of T
    steps: B = n T.

        trajectory     |<---- 0 ---->|<- 1 ->|<-- 2 -->|
        step            0 1 2 3 4 5 6 0 1 2 3 0 1 2 3 4
        starts, T = 4   x x x x . . . x . . . x x . . .

        >>> from datasets_rl import SliceSampler, load
        >>> batch = load("demo/pendulum", batch_size=256, sampler=SliceSampler(slice_len=32)).sample()
        >>> batch.reshape(8, 32)["observation"].shape
        torch.Size([8, 32, 3])

    Trajectories of fewer than T steps are treated as follows:

    | strict_length | pad_output | short trajectories                                  | the batch       |
    | ------------- | ---------- | --------------------------------------------------- | --------------- |
    | True          | False      | never drawn, and an error if alone        | B steps         |
    | False         | False      | returned whole, with a single start each        | B steps or less |
    | False         | True       | padded to T steps with the last step    | B steps         |

    The sampler adds these keys to the batch, or to the info of a buffer of data without keys:

    * ``"slice_id"``, int64 [B]: the number of the slice, unique over all batches;
    * `truncated_key`, bool [B, 1]: True for the last step of every slice, because the batch does not contain the next
      step. The sibling key ``"done"`` is also True there. The sibling key ``"terminated"`` is the flag of the data, or
      False. The info lacks this key where the batch has it at the default place, ``("next", "terminated")``;
    * `init_key`, if the data has this key: also True for the first step of every slice;
    * ``("collector", "mask")``, bool [B], with `pad_output`, while the storage has a trajectory of fewer than T steps:
      False for repeated steps.

    The storage maintains the trajectories (see `Storage.trajectories`), so that the cost of a batch does not depend on
    the size of the storage.

    Args:
        num_slices: Number of slices in a batch, n.
        slice_len: Number of steps in a slice, T. Either `num_slices` or `slice_len` is given, and the batch
            size is a multiple of this number.
        end_key: Key of the flag that is True for the last step of a trajectory, by default ``("next", "done")``.
        end_keys: Several such keys. Any of the flags ends a trajectory.
        traj_key: Key of the trajectory id. By default ``("collector", "traj_ids")`` or ``"episode"``, if the data has
            such a key and no end key is given. With an end key, the data may lack the trajectory key.
        step_key: Key of the step index within a trajectory. Used only if `fragmented` is True.
        fragmented: Whether a gap in the step indices splits a trajectory.
        ends: End flags of all steps, bool [N], instead of a key.
        trajectories: Trajectory ids of all steps, int64 [N], instead of a key.
        cache_values: No effect: the trajectories are always cached.
        truncated_key: Key that marks the last steps of slices. None adds no marks.
        init_key: Key that marks the first steps of slices if the data has this key. None leaves the key unchanged.
        strict_length: Whether trajectories of fewer than T steps are left out.
        pad_output: Whether such trajectories are padded.
        compile: No effect: there is nothing to compile.
        span: Number of steps by which a slice may extend past the start and the end of its trajectory, so that the
            steps there are drawn as often as others. The part outside is cut off, and the slice is shorter. True for up
            to T - 1, a tuple or a list for start and end.
        use_gpu: No effect: sampling takes microseconds on the CPU.
        starts: "any", or "episode" for slices that start at the first stored step of a trajectory.
        generator: Random generator. By default torch's global generator.
        rank: With `world_size`: draw only from every `world_size`-th trajectory, starting with this trajectory, so that
            processes started by torchrun draw from disjoint trajectories.
        world_size: Number of processes.
        replacement: False creates a `SliceSamplerWithoutReplacement` from the other arguments instead.

    Raises:
        InvalidArgumentError: If arguments are mutually exclusive or out of range. The message lists all problems.
    """

    draws_ahead = True
    draws_at_random = True

    def __init__(
        self,
        *,
        num_slices: int | None = None,
        slice_len: int | None = None,
        end_key: AnyKey | None = None,
        end_keys: Sequence[AnyKey] | None = None,
        traj_key: AnyKey | None = None,
        step_key: AnyKey | None = "step_count",
        fragmented: bool = False,
        ends: Tensor | None = None,
        trajectories: Tensor | None = None,
        cache_values: bool = False,
        truncated_key: AnyKey | None = ("next", "truncated"),
        init_key: AnyKey | None = "is_init",
        strict_length: bool = True,
        pad_output: bool = False,
        compile: bool | dict[str, Any] = False,  # noqa: A002 - the name in the reference
        span: Span = False,
        use_gpu: torch.device | bool = False,
        starts: str = "any",
        generator: Generator | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        replacement: bool = True,
    ) -> None:
        del cache_values, compile, use_gpu, replacement
        keys = {"end_key": end_key, "end_keys": end_keys, "traj_key": traj_key}
        extends = span and span not in ((False, False), [False, False])
        check(
            slice_size_problems(num_slices, slice_len),
            _marker_problems({"ends": ends, "trajectories": trajectories}, keys),
            _span_problems(span, slice_len),
            unless(
                not (pad_output and strict_length),
                "pad_output and strict_length are mutually exclusive: short trajectories are either padded or left out",
            ),
            unless(
                not fragmented or step_key is not None,
                "fragmented=True requires a step_key, expected the key of the step index",
            ),
            choice_problems("any", "episode", starts=starts),
            unless(
                not (starts == "episode" and extends),
                "starts='episode' and span are mutually exclusive: span adds other starts",
            ),
        )
        self.num_slices = num_slices
        self.slice_len = slice_len
        self.unit = slice_len or num_slices or 1
        self._end_key: EndKey | None = None if end_key is None else as_key(end_key)
        if end_keys is not None:
            self._end_key = tuple(map(as_key, end_keys))
        self._traj_key = None if traj_key is None else as_key(traj_key)
        self._step_key = as_key(step_key) if fragmented and step_key is not None else None
        self._init_key = None if init_key is None else as_key(init_key)
        # As in TorchRL, the attributes have the form of the arguments, and `traj_key` is the key in use after a draw.
        self.end_key, self.end_keys, self.traj_key = (
            end_key,
            end_keys if end_keys is None else tuple(end_keys),
            traj_key,
        )
        self.step_key, self.truncated_key, self.init_key = step_key, truncated_key, init_key
        self.strict_length = strict_length
        self.pad_output = pad_output
        self.span = (span, span) if isinstance(span, int) else tuple(span)
        self.starts = starts
        self.generator = generator
        self._ends = ends
        self._ids = trajectories
        self._share = Share.from_rank(rank, world_size)
        self._drawn = 0
        self._marks: tuple[Key, ...] = ()
        if truncated_key is not None:
            truncated = as_key(truncated_key)
            self._marks = (truncated, (*truncated[:-1], "done"), (*truncated[:-1], "terminated"))
        self._view: _StorageIndex | None = None
        self._columns: dict[Key, Tensor | None] = {}
        self._cached_layout: tuple[tuple[int, int], BatchLayout] | None = None
        self._scanned: tuple[Any, Trajectories] | None = None

    def sample(self, storage: Storage, batch_size: int) -> tuple[Tensor, dict[Any, Any]]:
        """Sample the slices of a batch.

        Raises:
            InvalidArgumentError: If the batch size is not a multiple of the length or the number of slices, no
                trajectory is long enough, or no key marks where trajectories end.
        """
        count, length = self._slice_count_and_length(batch_size)
        slices = self._slices(storage, length)
        return self._batch_of_slices(storage, slices, *self._choose_slices(slices, count))

    @override
    def sample_batches(self, storage: Storage, batch_size: int, count: int) -> tuple[Tensor, dict[Any, Any]] | None:
        own, base = type(self), SliceSampler
        if own.sample is not base.sample or own._choose_slices is not base._choose_slices:  # noqa: SLF001 - its own
            return None
        slice_count, length = self._slice_count_and_length(batch_size)
        slices = self._slices(storage, length)
        if not slices.whole:  # then batches have several sizes
            return None
        return self._batch_of_slices(storage, slices, *self._choose_slices(slices, slice_count * count))

    def _choose_slices(self, slices: Slices, count: int) -> tuple[Index, Index | None]:
        """Return the first places and the numbers of steps of the slices of a batch, at most `count`, see `Slices.at`.

        TorchRL draws the trajectory first, so that the steps of short trajectories are drawn more often.
        """
        return slices.at(torch.randint(slices.total, (count,), generator=self.generator).numpy())

    def _slice_count_and_length(self, batch_size: int) -> tuple[int, int]:
        """Return the number of slices in a batch, and the number of steps in a slice."""
        divisor, name = (self.num_slices, "num_slices") if self.slice_len is None else (self.slice_len, "slice_len")
        if divisor is None or batch_size % divisor:
            raise InvalidArgumentError(f"batch_size is {batch_size}, expected a multiple of {name}, {divisor}")
        return (divisor, batch_size // divisor) if self.slice_len is None else (batch_size // divisor, divisor)

    def _slices(self, storage: Storage, length: int) -> Slices:
        """Return all slices of this length that may be drawn."""
        view = self._storage_index(storage)
        slices = view.slices.get(length)
        if slices is None:
            before, after = (length - 1 if steps is True else int(steps) for steps in self.span)
            if max(before, after) >= length:
                raise InvalidArgumentError(f"span is {self.span}, expected less than the {length} steps of a slice")
            slices = view.own.slices(
                length, short=not self.strict_length, before=before, after=after, at_start=self.starts == "episode"
            )
            slices.check_any_left()
            view.slices[length] = slices
        return slices

    def _storage_index(self, storage: Storage) -> _StorageIndex:
        trajectories = self._find_trajectories(storage) if self._ends is not None or self._ids is not None else None
        if trajectories is None:
            trajectories = storage.trajectories(end_key=self._end_key, traj_key=self._traj_key, step_key=self._step_key)
        if self._view is None or self._view.trajectories is not trajectories:
            own = (
                trajectories
                if self._share.world_size == 1
                else trajectories.share(self._share.rank, self._share.world_size)
            )
            if len(trajectories) and not len(own):
                raise InvalidArgumentError(
                    f"rank {self._share.rank} of {self._share.world_size} has no trajectory: there are only {len(trajectories)}",
                    hint="start fewer processes, or let each process draw from all trajectories",
                )
            # A missing field stays missing, and another look-up costs more than a draw of a batch.
            same_storage = self._view is not None and self._view.storage is storage
            self._columns = {key: column for key, column in self._columns.items() if same_storage and column is None}
            self._view = _StorageIndex(storage, trajectories, own)
            is_named = self._traj_key or self._end_key or self._ends is not None or self._ids is not None
            if len(trajectories) and not is_named:
                key = default_trajectory_key(storage)
                self.traj_key = key[0] if key is not None and len(key) == 1 else key
        return self._view

    def _find_trajectories(self, storage: Storage) -> Trajectories:
        """Find the trajectories from the `ends` or `trajectories` tensor."""
        version = (storage, storage.write_count, storage.rewrite_count)
        if self._scanned is None or self._scanned[0] != version:
            markers = self._ends if self._ids is None else self._ids
            name = "ends" if self._ids is None else "trajectories"
            if markers is None or markers.numel() != len(storage):
                raise InvalidArgumentError(
                    f"{name} has {0 if markers is None else markers.numel()} elements, expected {len(storage)}, the number of stored steps"
                )
            rows = storage.chronological_rows()
            values = markers.reshape(-1).cpu()[rows]
            env = (rows % storage.envs).numpy()
            bounds = (
                TrajectoryMarkers((env,), values.bool().numpy())
                if self._ids is None
                else TrajectoryMarkers((values.numpy(), env))
            )
            if storage.torn:
                bounds = bounds.with_ends(storage.before_torn(rows).numpy())
            self._scanned = version, Trajectories.from_markers(bounds, rows.numpy())
        return self._scanned[1]

    def _batch_of_slices(
        self, storage: Storage, slices: Slices, starts: Index, lengths: Index | None
    ) -> tuple[Tensor, dict[Any, Any]]:
        """Return the rows of the slices that start at these places, and the info of the batch."""
        rows = torch.from_numpy(slices.rows(starts, lengths, pad=self.pad_output))
        layout = self._layout(slices, len(starts), lengths)
        info = self._info(storage, slices.trajectories, rows, layout)
        self._drawn += len(starts)
        return rows, info

    def info_of(self, storage: Storage, rows: Tensor) -> dict[Any, Tensor]:
        """Return the info of a slice of these rows."""
        layout = BatchLayout.from_lengths(np.array([len(rows)]), len(rows) if self.pad_output else None)
        trajectories = self._storage_index(storage).trajectories
        return {**super().info_of(storage, rows), **self._info(storage, trajectories, rows, layout)}

    def _info(self, storage: Storage, trajectories: Trajectories, rows: Tensor, layout: BatchLayout) -> dict[Any, Any]:
        info: dict[Any, Any] = {SLICE_ID: layout.numbers + self._drawn}
        if layout.mask is not None:
            info[MASK_KEY] = layout.mask.clone()
        if self._marks:
            self._mark_ends(storage, trajectories, rows, layout, info)
        if self._init_key is not None and (is_init := self._read_field(storage, self._init_key, rows)) is not None:
            is_init[layout.firsts] = True
            info[_unnested_key(self._init_key)] = is_init
        return info

    def _layout(self, slices: Slices, count: int, lengths: Index | None) -> BatchLayout:
        if lengths is not None:
            return BatchLayout.from_lengths(lengths, slices.length if self.pad_output else None)
        if self._cached_layout is None or self._cached_layout[0] != (count, slices.length):
            layout = BatchLayout.from_lengths(np.full(count, slices.length), None)
            self._cached_layout = (count, slices.length), layout
        return self._cached_layout[1]

    def _mark_ends(
        self, storage: Storage, trajectories: Trajectories, rows: Tensor, layout: BatchLayout, info: dict[Any, Any]
    ) -> None:
        truncated, done, terminated = self._marks
        info[_unnested_key(truncated)] = layout.ends.clone()
        if done in trajectories.ended_by and layout.mask is None:
            info[_unnested_key(done)] = layout.ends.clone()
        else:
            flags = self._read_field(storage, done, rows)
            ends = layout.ends if flags is None else layout.ends.view(-1, *[1] * (flags.ndim - 1))
            info[_unnested_key(done)] = ends.clone() if flags is None else flags.logical_or(ends)
        # Under the default key, the flag of the data is in the batch already: another read would take a tenth of
        # the time of a large batch.
        if self._column(storage, terminated) is None:
            info[_unnested_key(terminated)] = torch.zeros_like(layout.ends)
        elif truncated != NEXT_TRUNCATED:
            info[_unnested_key(terminated)] = self._read_field(storage, terminated, rows)

    def _read_field(self, storage: Storage, key: Key, rows: Tensor) -> Tensor | None:
        """Return a copy of a field of these rows on the CPU, or None if there is no such field."""
        column = self._column(storage, key)
        return None if column is None else column.index_select(0, rows.to(column.device)).cpu()

    def _column(self, storage: Storage, key: Key) -> Tensor | None:
        columns = self._columns
        if key not in columns:
            try:
                columns[key] = storage.column(key)
            except InvalidArgumentError:  # no such field, or a storage without fields
                columns[key] = None
        return columns[key]

    def empty(self) -> None:
        """Forget the trajectories of the storage."""
        self._view = self._scanned = None
        self._columns = {}

    def state_dict(self) -> dict[str, Any]:
        """Return the number of slices drawn, which determines the next slice number, and the generator state."""
        return {**super().state_dict(), "drawn": self._drawn}

    @override
    def state_problems(self, state_dict: dict[str, Any]) -> list[str]:
        drawn = state_dict.get("drawn")
        is_valid = isinstance(drawn, int) and drawn >= 0
        return super().state_problems(state_dict) + (
            [] if is_valid else [f"drawn is {drawn!r}, expected an integer >= 0"]
        )

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._drawn = state_dict["drawn"]

    def __getstate__(self) -> dict[str, Any]:
        # Views of the storage would be pickled as copies.
        return {**super().__getstate__(), "_view": None, "_columns": {}, "_cached_layout": None, "_scanned": None}

    def __repr__(self) -> str:
        arguments = {
            "num_slices": self.num_slices,
            "slice_len": self.slice_len,
            "end_key": self.end_key,
            "end_keys": self.end_keys,
            "traj_key": self.traj_key,
            "step_key": None if self._step_key is None else self.step_key,
            "truncated_key": self.truncated_key,
        }
        texts = [f"{name}={value!r}" for name, value in arguments.items() if value is not None]
        texts += [f"strict_length={self.strict_length}", f"pad_output={self.pad_output}", str(self._share)]
        return f"{type(self).__name__}({', '.join(filter(None, texts))})"


def _unnested_key(key: Key) -> str | Key:
    return key[0] if len(key) == 1 else key


def slice_size_problems(num_slices: Any, slice_len: Any) -> list[str]:
    """Return what is wrong with the `num_slices` and `slice_len` arguments of a slice sampler."""
    sizes = {"num_slices": num_slices, "slice_len": slice_len}
    given_sizes = {name: size for name, size in sizes.items() if size is not None}
    return size_problems(**given_sizes) + unless(
        len(given_sizes) == 1, f"num_slices is {num_slices} and slice_len is {slice_len}, expected exactly one"
    )


def _marker_problems(tensors: dict[str, Any], keys: dict[str, Any]) -> list[str]:
    marker_names = [name for name, value in tensors.items() if value is not None]
    named = [name for name, value in keys.items() if value is not None]
    problems = [
        f"{name} is {value!r}, expected a tensor [N]"
        for name, value in tensors.items()
        if value is not None and not isinstance(value, Tensor)
    ]
    if len(marker_names) > 1:
        problems.append("ends and trajectories are mutually exclusive")
    if marker_names and named:
        problems.append(
            f"{' and '.join(marker_names)} and {' and '.join(named)} are mutually exclusive: pass tensors or keys"
        )
    if "end_key" in named and "end_keys" in named:
        problems.append("end_key and end_keys are mutually exclusive")
    return problems


def _span_problems(span: Any, slice_len: int | None) -> list[str]:
    sides = span if isinstance(span, (tuple, list)) else (span, span)
    if len(sides) != 2 or not all(isinstance(steps, (bool, int)) and steps >= 0 for steps in sides):
        return [f"span is {span!r}, expected True, False, an integer >= 0, or a tuple of two of these"]
    longest = max((steps for steps in sides if not isinstance(steps, bool)), default=0)
    if longest and isinstance(slice_len, int) and longest >= slice_len:
        return [f"span is {span!r}, expected less than slice_len, {slice_len}"]
    return []

"""Slices of trajectories, with replacement: the core of all slice samplers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.samplers.base import Sampler
from datasets_rl.samplers.share import Share
from datasets_rl.ted.keys import Key, as_key
from datasets_rl.ted.trajectories import Slices, Trajectories, TrajectoryMarkers

if TYPE_CHECKING:
    from datasets_rl.storages.base import Storage

__all__ = ["MASK_KEY", "SLICE_ID", "SliceSampler", "size_faults"]

SLICE_ID = "slice_id"
"""The key of the numbers of slices in a batch."""

MASK_KEY = ("collector", "mask")
"""The key under which repetitions are False in a batch."""

AnyKey = str | tuple[Any, ...]
Index = NDArray[np.int64]
Span = bool | int | tuple[bool | int, bool | int]


@dataclass(eq=False)
class _View:
    """What is known of a storage until it is written to."""

    storage: Storage
    trajectories: Trajectories
    mine: Trajectories
    slices: dict[int, Slices] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class _Frame:
    """What is the same for all batches of slices of these lengths, B steps."""

    numbers: Tensor
    """The number of its slice for each step, from 0, int64 [B]."""
    firsts: Tensor
    """Where each slice starts in the batch, int64 [n]."""
    ends: Tensor
    """True for the last step of each slice, bool [B, 1]."""
    mask: Tensor | None
    """False for repetitions, bool [B]; None if nothing is filled up."""

    @classmethod
    def of(cls, lengths: Index, pad: int | None) -> _Frame:
        """Lay out slices of these lengths, filled up to `pad` steps if given."""
        sizes = lengths if pad is None else np.full_like(lengths, pad)
        firsts = np.cumsum(sizes) - sizes
        ends = np.zeros((int(sizes.sum()), 1), np.bool_)
        ends[firsts + lengths - 1] = True
        mask = None if pad is None else torch.from_numpy((np.arange(pad) < lengths[:, None]).reshape(-1))
        numbers = torch.from_numpy(np.repeat(np.arange(len(lengths)), sizes))
        return cls(numbers, torch.from_numpy(firsts), torch.from_numpy(ends), mask)


class SliceSampler(Sampler):
    """Draw slices of consecutive steps, each within one trajectory, with replacement.

    Every admissible start of every trajectory is equally likely. A batch of B steps holds its slices one after the
    other: n slices of T steps, B = n T.

        trajectory     |<---- 0 ---->|<- 1 ->|<-- 2 -->|
        step            0 1 2 3 4 5 6 0 1 2 3 0 1 2 3 4
        starts, T = 4   x x x x . . . x . . . x x . . .

    What becomes of trajectories of fewer than T steps:

    | strict_length | pad_output | they are                                           | the batch       |
    | ------------- | ---------- | -------------------------------------------------- | --------------- |
    | True          | False      | never drawn; an error if there are no others       | B steps         |
    | False         | False      | taken whole, one start each                        | B steps or less |
    | False         | True       | filled up to T steps with their last step repeated | B steps         |

    The batch, or the info of a buffer that has no keys, gets

    * ``"slice_id"``, int64 [B]: a number for each slice, never given twice;
    * `truncated_key`, bool [B, 1]: True for the last step of every slice, because what follows is not in the batch;
      ``"done"`` beside it, True there too; ``"terminated"`` beside it, as in the data, or False;
    * `init_key`, if the data has it: True for the first step of every slice too;
    * ``("collector", "mask")``, bool [B], with `pad_output`: False where a step is a repetition.

    Where trajectories lie is kept by the storage (see `Storage.trajectories`), so that a batch costs no more in a large
    storage than in a small one.

    Args:
        num_slices: Slices of a batch, n.
        slice_len: Steps of a slice, T. Exactly one of the two is given, and the batch size is a multiple of it.
        end_key: The flag that is True for the last step of a trajectory, by default ``("next", "done")``.
        end_keys: Several such flags, any of which ends a trajectory.
        traj_key: The number of the trajectory. By default ``("collector", "traj_ids")`` or ``"episode"``, where the
            data has one of them and no end key is given.
        step_key: The number of the step in its trajectory; counts only if `fragmented`.
        fragmented: Whether a gap in the numbers of the steps parts a trajectory.
        ends: The end flags of all steps, bool [N], instead of a key.
        trajectories: The numbers of the trajectories of all steps, int64 [N], instead of a key.
        cache_values: Without effect: the trajectories are always known.
        truncated_key: Where the ends of slices are marked; None marks none.
        init_key: Where the starts of slices are marked if the data has it; None leaves it as it is.
        strict_length: Whether trajectories of fewer than T steps are left out.
        pad_output: Whether they are filled up.
        compile: Without effect: there is nothing left to compile.
        span: Steps by which a slice may reach over the start and the end of its trajectory, so that the steps there are
            drawn as often as others; the slice is shorter by what would lie outside. True for up to T - 1; a tuple for
            start and end.
        use_gpu: Without effect: a choice costs microseconds on the CPU.
        starts: "any", or "episode" for slices that start with the first step that is held of a trajectory.
        generator: Where the randomness comes from; by default torch's global generator.
        rank: With `world_size`: draw only from every `world_size`-th trajectory, starting with this one, so that
            processes started by torchrun draw from disjoint trajectories.
        world_size: How many processes there are.

    Raises:
        InvalidArgumentError: If arguments exclude each other; all problems at once.
    """

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
    ) -> None:
        del cache_values, compile, use_gpu
        keys = {"end_key": end_key, "end_keys": end_keys, "traj_key": traj_key}
        problems = [
            *size_faults(num_slices, slice_len),
            *_sign_problems({"ends": ends, "trajectories": trajectories}, keys),
            *_span_problems(span, slice_len),
        ]
        if pad_output and strict_length:
            problems.append("pad_output fills up short trajectories, and strict_length leaves them out")
        if fragmented and step_key is None:
            problems.append("fragmented needs step_key")
        if starts not in {"any", "episode"}:
            problems.append(f"starts is {starts!r}; expected 'any' or 'episode'")
        if starts == "episode" and span not in {False, (False, False)}:
            problems.append("starts='episode' allows one start, and span adds others")
        if problems:
            raise InvalidArgumentError("; ".join(problems))
        self.num_slices = num_slices
        self.slice_len = slice_len
        self.unit = slice_len or num_slices or 1
        self.end_key = as_key(end_key) if end_key is not None else None
        self.end_keys = tuple(map(as_key, end_keys)) if end_keys is not None else None
        self.traj_key = as_key(traj_key) if traj_key is not None else None
        self.step_key = as_key(step_key) if fragmented and step_key is not None else None
        self.truncated_key = as_key(truncated_key) if truncated_key is not None else None
        self.init_key = as_key(init_key) if init_key is not None else None
        self.strict_length = strict_length
        self.pad_output = pad_output
        self.span = span if isinstance(span, tuple) else (span, span)
        self.starts = starts
        self.generator = generator
        self._ends = ends
        self._ids = trajectories
        self._share = Share.of(rank, world_size)
        self._drawn = 0
        self._marks: tuple[Key, ...] = ()
        if self.truncated_key is not None:
            self._marks = (
                self.truncated_key,
                (*self.truncated_key[:-1], "done"),
                (*self.truncated_key[:-1], "terminated"),
            )
        self._view: _View | None = None
        self._columns: dict[Key, Tensor | None] = {}
        self._whole: tuple[tuple[int, int], _Frame] | None = None
        self._scanned: tuple[Any, Trajectories] | None = None

    def sample(self, storage: Storage, batch_size: int) -> tuple[Tensor, dict[Any, Any]]:
        """Draw the slices of a batch.

        Raises:
            InvalidArgumentError: If the batch size is no multiple of the length or the number of slices, no trajectory is long
                enough, or nothing says where trajectories end.
        """
        count, length = self._cut(batch_size)
        slices = self._slices(storage, length)
        return self._batch(storage, slices, *slices.at(self._choose(slices, count)))

    def _choose(self, slices: Slices, count: int) -> Index:
        """Return the numbers of the slices of a batch, at most `count`.

        The reference draws the trajectory first, so that a step of a short one comes more often.
        """
        return torch.randint(slices.total, (count,), generator=self.generator).numpy()

    def _cut(self, batch_size: int) -> tuple[int, int]:
        """Return how many slices there are in a batch, and their steps."""
        part, name = (self.num_slices, "num_slices") if self.slice_len is None else (self.slice_len, "slice_len")
        if part is None or batch_size % part:
            raise InvalidArgumentError(f"batch_size is {batch_size}; expected a multiple of {name}, {part}")
        return (part, batch_size // part) if self.slice_len is None else (batch_size // part, part)

    def _slices(self, storage: Storage, length: int) -> Slices:
        """Return all slices of this length that may be drawn.

        Raises:
            InvalidArgumentError: If there is none.
        """
        view = self._look(storage)
        slices = view.slices.get(length)
        if slices is None:
            before, after = (length - 1 if one is True else int(one) for one in self.span)
            if max(before, after) >= length:
                raise InvalidArgumentError(f"span is {self.span}; expected less than the {length} steps of a slice")
            slices = view.mine.slices(
                length, short=not self.strict_length, before=before, after=after, at_start=self.starts == "episode"
            )
            slices.check_any_left()
            view.slices[length] = slices
        return slices

    def _look(self, storage: Storage) -> _View:
        trajectories = self._scan(storage) if self._ends is not None or self._ids is not None else None
        if trajectories is None:
            end_key = self.end_keys if self.end_key is None else self.end_key
            trajectories = storage.trajectories(end_key=end_key, traj_key=self.traj_key, step_key=self.step_key)
        if self._view is None or self._view.trajectories is not trajectories:
            mine = (
                trajectories
                if self._share.world_size == 1
                else trajectories.share(self._share.rank, self._share.world_size)
            )
            if len(trajectories) and not len(mine):
                raise InvalidArgumentError(
                    f"of {len(trajectories)} trajectories none is for rank {self._share.rank} of {self._share.world_size}",
                    hint="start fewer processes, or let each of them draw from all",
                )
            # A field that is not there stays so, and to be told costs more than to draw.
            same = self._view is not None and self._view.storage is storage
            self._columns = {key: column for key, column in self._columns.items() if same and column is None}
            self._view = _View(storage, trajectories, mine)
        return self._view

    def _scan(self, storage: Storage) -> Trajectories:
        """Find the trajectories by what was given instead of keys."""
        now = (storage, storage.written, storage.rewritten)
        if self._scanned is None or self._scanned[0] != now:
            given = self._ends if self._ids is None else self._ids
            name = "ends" if self._ids is None else "trajectories"
            if given is None or given.numel() != len(storage):
                raise InvalidArgumentError(
                    f"{name} has {0 if given is None else given.numel()} elements; the storage holds {len(storage)} steps"
                )
            rows = storage.chronological_rows()
            said = given.reshape(-1).cpu()[rows]
            env = (rows % storage.envs).numpy()
            signs = (
                TrajectoryMarkers((env,), said.bool().numpy())
                if self._ids is None
                else TrajectoryMarkers((said.numpy(), env))
            )
            if storage.torn:
                signs = signs.ending(storage.before_torn(rows).numpy())
            self._scanned = now, Trajectories.scan(signs, rows.numpy())
        return self._scanned[1]

    def _batch(
        self, storage: Storage, slices: Slices, starts: Index, lengths: Index | None
    ) -> tuple[Tensor, dict[Any, Any]]:
        """Return the rows of slices that start at these places, and what the batch says of them."""
        rows = torch.from_numpy(slices.rows(starts, lengths, pad=self.pad_output))
        frame = self._frame(slices, len(starts), lengths)
        info = self._info(storage, slices.trajectories, rows, frame)
        self._drawn += len(starts)
        return rows, info

    def info_of(self, storage: Storage, rows: Tensor) -> dict[Any, Tensor]:
        """Return the info of one slice of these rows."""
        frame = _Frame.of(np.array([len(rows)]), len(rows) if self.pad_output else None)
        trajectories = self._look(storage).trajectories
        return {**super().info_of(storage, rows), **self._info(storage, trajectories, rows, frame)}

    def _info(self, storage: Storage, trajectories: Trajectories, rows: Tensor, frame: _Frame) -> dict[Any, Any]:
        info: dict[Any, Any] = {SLICE_ID: frame.numbers + self._drawn}
        if frame.mask is not None:
            info[MASK_KEY] = frame.mask.clone()
        if self._marks:
            self._mark_ends(storage, trajectories, rows, frame, info)
        if self.init_key is not None and (begun := self._read(storage, self.init_key, rows)) is not None:
            begun[frame.firsts] = True
            info[_name(self.init_key)] = begun
        return info

    def _frame(self, slices: Slices, count: int, lengths: Index | None) -> _Frame:
        if lengths is not None:
            return _Frame.of(lengths, slices.length if self.pad_output else None)
        if self._whole is None or self._whole[0] != (count, slices.length):
            frame = _Frame.of(np.full(count, slices.length), slices.length if self.pad_output else None)
            self._whole = (count, slices.length), frame
        return self._whole[1]

    def _mark_ends(
        self, storage: Storage, trajectories: Trajectories, rows: Tensor, frame: _Frame, info: dict[Any, Any]
    ) -> None:
        truncated, done, terminated = self._marks
        info[_name(truncated)] = frame.ends.clone()
        if done in trajectories.ended_by and not self.pad_output:
            info[_name(done)] = frame.ends.clone()
        else:
            flags = self._read(storage, done, rows)
            ends = frame.ends if flags is None else frame.ends.view(-1, *[1] * (flags.ndim - 1))
            info[_name(done)] = ends.clone() if flags is None else flags.logical_or(ends)
        # The reference repeats the flag of the data here; the batch has that already.
        if self._column(storage, terminated) is None:
            info[_name(terminated)] = torch.zeros_like(frame.ends)

    def _read(self, storage: Storage, key: Key, rows: Tensor) -> Tensor | None:
        """Return one field of these rows on the CPU, in memory of its own; None if there is no such field."""
        column = self._column(storage, key)
        return None if column is None else column.index_select(0, rows.to(column.device)).cpu()

    def _column(self, storage: Storage, key: Key) -> Tensor | None:
        columns = self._columns
        if key not in columns:
            try:
                columns[key] = storage.column(key)
            except InvalidArgumentError:  # no such field, or no fields at all
                columns[key] = None
        return columns[key]

    def empty(self) -> None:
        """Forget what is known of the storage."""
        self._view = self._scanned = None
        self._columns = {}

    def state_dict(self) -> dict[str, Any]:
        """Return how many slices were drawn, for their numbers, and the state of the generator, if there is one."""
        return {**super().state_dict(), "drawn": self._drawn}

    def misfits(self, state_dict: dict[str, Any]) -> list[str]:
        """Say what of a state is not that of a slice sampler."""
        drawn = state_dict.get("drawn")
        fits = isinstance(drawn, int) and drawn >= 0
        return super().misfits(state_dict) + ([] if fits else [f"drawn is {drawn!r}; expected a number of slices"])

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where a sampler was."""
        super().load_state_dict(state_dict)
        self._drawn = state_dict["drawn"]

    def __getstate__(self) -> dict[str, Any]:
        # Views of the storage would travel as copies.
        return {**super().__getstate__(), "_view": None, "_columns": {}, "_whole": None, "_scanned": None}

    def __repr__(self) -> str:
        named = {
            "num_slices": self.num_slices,
            "slice_len": self.slice_len,
            "end_key": self.end_key,
            "end_keys": self.end_keys,
            "traj_key": self.traj_key,
            "step_key": self.step_key,
            "truncated_key": self.truncated_key,
        }
        said = [f"{name}={value}" for name, value in named.items() if value is not None]
        said += [f"strict_length={self.strict_length}", f"pad_output={self.pad_output}", str(self._share)]
        return f"{type(self).__name__}({', '.join(filter(None, said))})"


def _name(key: Key) -> str | Key:
    return key[0] if len(key) == 1 else key


def size_faults(num_slices: Any, slice_len: Any) -> list[str]:
    """Say what is wrong with the numbers that slices are asked for by."""
    sizes = {"num_slices": num_slices, "slice_len": slice_len}
    given = {name: size for name, size in sizes.items() if size is not None}
    problems = [
        f"{name} is {size!r}; expected a whole number from 1"
        for name, size in given.items()
        if not isinstance(size, (int, np.integer)) or isinstance(size, bool) or size < 1
    ]
    if len(given) != 1:
        problems.append(f"num_slices is {num_slices} and slice_len is {slice_len}; expected exactly one of them")
    return problems


def _sign_problems(tensors: dict[str, Any], keys: dict[str, Any]) -> list[str]:
    given = [name for name, value in tensors.items() if value is not None]
    named = [name for name, value in keys.items() if value is not None]
    problems = [
        f"{name} is {value!r}; expected a tensor [N]"
        for name, value in tensors.items()
        if value is not None and not isinstance(value, Tensor)
    ]
    if len(given) > 1:
        problems.append("ends and trajectories exclude each other")
    if given and named:
        problems.append(f"{' and '.join(given)} stands instead of keys, so it excludes {' and '.join(named)}")
    if "end_key" in named and "end_keys" in named:
        problems.append("end_key and end_keys exclude each other")
    return problems


def _span_problems(span: Any, slice_len: int | None) -> list[str]:
    sides = span if isinstance(span, tuple) else (span, span)
    if len(sides) != 2 or not all(isinstance(one, (bool, int)) and one >= 0 for one in sides):
        return [f"span is {span!r}; expected True, False, a number of steps from 0, or two of these"]
    longest = max((one for one in sides if not isinstance(one, bool)), default=0)
    if longest and isinstance(slice_len, int) and longest >= slice_len:
        return [f"span is {span!r}; expected less than slice_len, {slice_len}"]
    return []

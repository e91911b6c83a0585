"""Windows of steps around each step, with padding."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor
from typing_extensions import Self, override

from datasets_rl.arguments import check, choice_problems, size_problems, unless
from datasets_rl.errors import InvalidArgumentError, WrongTypeError
from datasets_rl.specs import CompositeSpec
from datasets_rl.ted.keys import NEXT, Key, as_key
from datasets_rl.ted.passes import Entry, Field, Outside, Pass, Values
from datasets_rl.transforms._bounds import include_value, repeat_bounds
from datasets_rl.transforms._time import OverTime, TimeAxis, step_windows
from datasets_rl.transforms.base import (
    Keys,
    NestedKey,
    any_like,
    dotted_text,
    entries_below,
    expand_right,
    flat_key,
    get_entry,
    is_group,
    set_entry,
    suffixed_key,
)

if TYPE_CHECKING:
    from torch import Generator

    from datasets_rl.samplers.windows import WindowSampler

_LOOP_NDIM, _LOOP_DTYPES = 3, (torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool)
"""Axes and dtypes of the windows, [B, W, K], that the compiled loop supports."""

_MAX_SHARED_BYTES = 1024
"""Number of bytes per step up to which an entry is read together with entries of other windows, in a common window."""

_MAX_RUN = 4
"""Number of consecutive steps for each step that is needed, up to which the steps are read by a single copy."""

WindowPadding = Literal["repeat", "zero", "drop"]
WindowMask = Literal["valid", "is_pad"]


class WindowTransform(OverTime):
    """Replace entries by the window of their values around each step, such as the last observations and next actions.

        step of the episode     0        1        2
        x, window (1, 2)        0 0 1 2  0 1 2 2  1 2 2 2      one step before, two steps after, pad = "repeat"
        x_is_pad                x . . .  . . . x  . . x x

    `delta_timestamps` takes the steps at given seconds from each step instead, which need not be consecutive.

    In a buffer of single steps, the values are read from the storage, so that every sampler works. Small
    entries are read at once. Values under "next" are taken at the steps of the window. In a batch of slices [..., T],
    windows are taken along the time axis. The key of a group, such as an observation of several sensors, stands for
    every entry of the group. Each entry has a mask, unless `mask_keys` has one for the group.

    Args:
        windows: Number of steps before and after each step, ``(before, after)``, by key, or the range of the steps,
            ``range(-before, after + 1)``. A window has W = before + 1 + after steps, and its entry the shape
            [*batch, W, ...].
        pad: Steps of the window outside of the trajectory: "repeat" its first or last step, "zero", or "drop", with
            which no window may leave its trajectory. `sampler` returns a sampler that draws such steps.
        mask: Convention of the masks, bool [*batch, W]: "valid" writes ``x_valid``, True for steps of the trajectory,
            and "is_pad" ``x_is_pad``, True for padding, or `None` for no masks.
        mask_keys: Keys of the masks by key of the entry, instead of ``x_valid`` or ``x_is_pad``.
        out_keys: Keys of the windows, in the order of `windows`, the same keys by default.

    Raises:
        InvalidArgumentError: If an argument is invalid. The message lists all problems.
    """

    per_step: ClassVar[bool] = True
    shown: ClassVar[tuple[str, ...]] = ("offsets", "pad")
    reads_only_in_keys: ClassVar[bool] = True

    def __init__(
        self,
        windows: Mapping[Any, Sequence[int] | range],
        pad: WindowPadding = "repeat",
        mask: WindowMask | None = "valid",
        *,
        mask_keys: Mapping[Any, NestedKey] | None = None,
        out_keys: Keys | None = None,
        done_key: NestedKey | None = None,
    ) -> None:
        if not isinstance(windows, Mapping):
            raise WrongTypeError(f"windows is {windows!r:.60}, expected a mapping, such as {{'action': (0, 7)}}")
        super().__init__(list(windows), out_keys, done_key)
        problems = [
            f"the window of {key!r} is {span!r}, expected two integers >= 0, or a range of steps"
            for key, span in windows.items()
            if not _is_window(span)
        ]
        check(
            problems,
            unless(bool(windows), "windows is empty, expected at least one key"),
            choice_problems("repeat", "zero", "drop", pad=pad),
            choice_problems("valid", "is_pad", None, mask=mask),
        )
        self.pad, self.mask = pad, mask
        self._offsets: list[Sequence[int]] = [
            _as_range(span if isinstance(span, range) else range(-int(span[0]), int(span[1]) + 1))
            for span in windows.values()
        ]
        self.mask_keys = {flat_key(key): flat_key(name) for key, name in (mask_keys or {}).items()}
        # Numbers of steps before and after a drawn step that must be in its trajectory.
        steps = {0, *(step for offsets in self._offsets for step in offsets if pad == "drop")}
        self._inside = -min(steps), max(steps)

    @property
    def offsets(self) -> dict[NestedKey, Sequence[int]]:
        """The steps of the windows by key, relative to the step of the batch: a range if their distances are equal."""
        return dict(zip(self.in_keys, self._offsets, strict=True))

    @classmethod
    def delta_timestamps(
        cls, delta_timestamps: Mapping[Any, Sequence[float]], fps: float, tolerance_s: float = 1e-4
    ) -> Self:
        """Return the windows of LeRobot's `delta_timestamps`: the steps at given seconds from each step.

            fps 10, seconds [-0.2, 0, 0.1], steps -2, 0 and 1

            step of the episode     0      1      2      3
            x                       0 0 1  0 1 2  0 2 3  1 3 3
            x_is_pad                x . .  x . .  . . .  . . x

        The values are taken at the nearest step of the episode. ``x_is_pad``, bool [*batch, W], is True where the
        window leaves the episode. Entries without seconds keep their shape.

        Args:
            delta_timestamps: Seconds from each step by key, [W] each, such as ``{"action": [0, 0.1, 0.2]}``. A number of
                seconds stands for ``round(seconds * fps)`` steps.
            fps: Steps per second, above 0.
            tolerance_s: Largest difference between a number of seconds and that of its steps.

        Raises:
            InvalidArgumentError: If no seconds are given for a key, or they are not of a number of steps, or `fps` or
                `tolerance_s` is invalid. The message lists all problems.
        """
        seconds = {key: _finite_numbers(numbers) for key, numbers in delta_timestamps.items()}
        problems = [
            f"delta_timestamps of {dotted_text(flat_key(key))!r} is {delta_timestamps[key]!r}, expected a list of finite numbers of seconds"
            for key, numbers in seconds.items()
            if not numbers
        ]
        check(
            unless(0 < fps < math.inf, f"fps is {fps}, expected a number of steps per second above 0"),
            unless(
                0 <= tolerance_s < math.inf, f"tolerance_s is {tolerance_s}, expected a number of seconds of at least 0"
            ),
            unless(bool(delta_timestamps), "delta_timestamps is empty, expected at least one key"),
            problems,
        )
        steps = {key: [round(number * fps) for number in numbers] for key, numbers in seconds.items()}
        for key, numbers in seconds.items():
            apart = [
                f"{number:g} (nearest: {step / fps:.6g})"
                for number, step in zip(numbers, steps[key], strict=True)
                if abs(number * fps - step) / fps > tolerance_s
            ]
            if apart:
                problems.append(f"delta_timestamps of {dotted_text(flat_key(key))!r} has {', '.join(apart)}")
        if problems:
            raise InvalidArgumentError(
                f"{'; '.join(problems)}, expected multiples of 1/{fps:g} s, up to a difference of {tolerance_s:g} s",
                hint="take the nearest multiples, to which a larger tolerance_s rounds",
            )
        made = cls(dict.fromkeys(delta_timestamps, (0, 0)), "repeat", "is_pad")
        made._offsets = [*map(_as_range, steps.values())]
        return made

    @classmethod
    def diffusion_policy(
        cls,
        horizon: int,
        pad_before: int = 0,
        pad_after: int = 0,
        keys: Sequence[NestedKey] = ("observation", "action"),
        *,
        key_first_k: Mapping[Any, int] | None = None,
    ) -> Self:
        """Return the sequences of Diffusion Policy (`SequenceSampler`): all keys have the same window, without a mask.

        A sequence of `horizon` steps starts at most `pad_before` steps before its episode, and ends at most `pad_after`
        steps after it. The batch has the step at position `pad_before`. Use the sampler that `sampler` returns.

        Args:
            horizon: Number of steps of a sequence.
            pad_before: Number of steps that a sequence may start before the episode.
            pad_after: Number of steps that a sequence may end after the episode.
            keys: Keys of the entries.
            key_first_k: Number of first steps that are read of an entry, by key, such as the steps of the images that a
                policy observes. By default all steps are read.

        Raises:
            InvalidArgumentError: If the padding exceeds the horizon minus one, so that a sequence might have no step
                at that position, or if that position is not among the first steps of an entry.
        """
        pad_before, pad_after = (min(max(count, 0), horizon - 1) for count in (pad_before, pad_after))
        inside = horizon - 1 - pad_before - pad_after
        if inside < 0:
            raise InvalidArgumentError(
                f"pad_before is {pad_before} and pad_after is {pad_after}, expected at most {horizon - 1} in total",
                hint="as in the configurations of Diffusion Policy: the numbers of observed and executed steps, minus 1",
            )
        firsts = {key: min((key_first_k or {}).get(key, horizon), horizon) for key in keys}
        if short := {key: first for key, first in firsts.items() if first <= pad_before}:
            raise InvalidArgumentError(f"key_first_k is {short}, expected more than pad_before = {pad_before}")
        made = cls({key: (pad_before, first - 1 - pad_before) for key, first in firsts.items()}, mask=None)
        made._inside = (0, inside)
        return made

    @classmethod
    def act(cls, chunk_size: int, action_key: NestedKey = "action") -> Self:
        """Return the chunks of ACT: the next `chunk_size` actions, zeros after the end, and the mask `is_pad`."""
        return cls({action_key: (0, chunk_size - 1)}, "zero", "is_pad", mask_keys={action_key: "is_pad"})

    @classmethod
    def lerobot(
        cls,
        horizon: int,
        n_obs_steps: int = 1,
        observation_keys: Sequence[NestedKey] = ("observation",),
        action_key: NestedKey = "action",
    ) -> Self:
        """Return the windows of LeRobot's diffusion policy: observations 1 - n_obs_steps to 0, and `horizon` actions.

        The actions start with the first observation. The first and the last step are repeated, and ``x_is_pad`` is True
        for padding.
        """
        windows: dict[NestedKey, tuple[int, int]] = dict.fromkeys(observation_keys, (n_obs_steps - 1, 0))
        windows[action_key] = (n_obs_steps - 1, horizon - n_obs_steps)
        return cls(windows, "repeat", "is_pad")

    @classmethod
    def robomimic(
        cls, seq_length: int, frame_stack: int = 1, keys: Sequence[NestedKey] = ("observation", "action")
    ) -> Self:
        """Return the sequences of robomimic's `SequenceDataset`, with padding at both ends.

        All keys have `frame_stack` - 1 steps before each step and `seq_length` steps from it. ``pad_mask`` is True for
        steps of the episode. The mask of robomimic has a last axis of size 1.
        """
        span = (frame_stack - 1, seq_length - 1)
        return cls(dict.fromkeys(keys, span), mask_keys=dict.fromkeys(keys, "pad_mask"))

    @classmethod
    def octo(
        cls,
        window_size: int,
        action_horizon: int,
        observation_keys: Sequence[NestedKey] = ("observation",),
        action_key: NestedKey = "action",
    ) -> Self:
        """Return the windows of Octo's `chunk_act_obs`: the last observations, and the next actions of each step.

        ``timestep_pad_mask`` and ``action_pad_mask`` are True for steps of the episode. Octo also returns the chunks of
        the earlier steps of the window, and does not mask the first two actions that are repeated after the end.
        """
        windows: dict[NestedKey, tuple[int, int]] = dict.fromkeys(observation_keys, (window_size - 1, 0))
        names: dict[NestedKey, NestedKey] = dict.fromkeys(observation_keys, "timestep_pad_mask")
        windows[action_key], names[action_key] = (0, action_horizon - 1), "action_pad_mask"
        return cls(windows, mask_keys=names)

    def sampler(self, generator: Generator | None = None) -> WindowSampler:
        """Return a sampler of the steps that the windows admit.

        These are all steps, unless `pad` is "drop" or the preset is `diffusion_policy`.

        Args:
            generator: Random generator of the sampler. By default torch's global generator.
        """
        from datasets_rl.samplers.windows import WindowSampler

        before, after = self._inside
        return WindowSampler(before, after, generator, end_key=self._end_key)

    @override
    def values_from_storage(self, storage: Any, rows: Tensor, data: Any) -> dict[str, Any]:
        # The batch was read without these entries, which arrive together with the windows.
        own = [key for key in self.own_reads(storage) if data.get(key, None) is None]
        values = self._values_of_wide(storage, rows, data, own) if own else {}
        limit, own_keys = _MAX_SHARED_BYTES * len(rows), {*map(flat_key, own)}
        groups: dict[Sequence[int] | None, list[_Entry]] = {}
        for entry in self._entries(self.example(storage, rows, data)):
            if entry.key not in own_keys:
                groups.setdefault(None if _bytes_of(data, entry.key) <= limit else entry.offsets, []).append(entry)
        for shared, together in groups.items():
            offsets = _common_offsets(entry.offsets for entry in together) if shared is None else shared
            windows = self.take_windows(storage, [entry.key for entry in together], rows, offsets, data)
            if self.pad == "zero":
                for value in windows.entries:
                    fill_windows(value, windows.outside, 0)
            for entry, value in zip(together, windows.entries, strict=True):
                values.update(entry.part(value, windows.outside, offsets))
        return values

    def _values_of_wide(self, storage: Any, rows: Tensor, data: Any, own: Sequence[Key]) -> dict[str, Any]:
        """Return the windows of wide fields, and write the entries of the batch: each field is read once."""
        values: dict[str, Any] = {}
        entries = {entry.key: entry for entry in self._entries(data, own)}
        for field in dict.fromkeys(key[1:] if key[0] == NEXT else key for key in own):
            keys = [key for key in (field, (NEXT, *field)) if key in own]
            reads: list[tuple[Key, _Entry | None]] = [(key, entries.get(flat_key(key))) for key in keys]
            # A window under another key leaves the entry in the batch.
            reads += [(key, None) for key, entry in reads if entry is not None and entry.out_key != entry.key]
            windows = [
                storage.windows_around(rows, range(1) if entry is None else entry.offsets, end_key=self._end_key)
                for _, entry in reads
            ]
            flat = torch.cat([window.reshape(-1) for window, _ in windows])
            if len(keys) > 1:
                sizes = torch.tensor([window.numel() for window, _ in windows])
                following = torch.tensor([key[0] == NEXT for key, _ in reads]).repeat_interleave(sizes)
                found = storage.pick_states(field, flat, following)
            else:
                found = storage.pick(keys[0], flat)
            parts = found.split([window.numel() for window, _ in windows])
            for (key, entry), (window, outside), part in zip(reads, windows, parts, strict=True):
                value = part.view(*window.shape, *part.shape[1:])
                if entry is None or entry.out_key == entry.key:
                    set_entry(data, flat_key(key), value[:, 0])
                if entry is not None:
                    if self.pad == "zero":
                        fill_windows(value, outside, 0)
                    values.update(entry.part(value, outside, entry.offsets))
        return values

    def time_axis(self, batch: Any) -> TimeAxis:
        """Return the time axis of the entries of a batch of trajectories."""
        return TimeAxis.of_batch(batch)

    @override
    def values_from_batch(self, batch: Any) -> dict[str, Any]:
        axis = self.time_axis(batch)
        ends, values = self.ends(batch, axis), {}
        for entry in self._entries(batch):
            window, outside = step_windows(ends, entry.offsets)
            value = axis.select_steps(get_entry(batch, entry.key), window)
            outside = axis.unflatten(outside)
            if self.pad == "zero":
                fill_values(value, outside, 0)
            values.update(entry.part(value, outside, entry.offsets))
        return values

    def pass_arguments(self) -> tuple[Any, ...]:
        """Return what the pass follows from, see `ReadsInPass`."""
        return (
            *(tuple(self.in_keys), tuple(self.out_keys), tuple(self._offsets), self.pad, self.mask, self.done_key),
            tuple(self.mask_keys.items()),
        )

    def pass_over(self, fields: Mapping[Key, Field]) -> Pass | None:
        """Return the windows and their masks as entries of a pass, see `ReadsInPass`."""
        entries: dict[Key, Entry] = {}
        if self._end_key is not None or self.pad == "drop":
            return None
        for key, out_key, offsets in zip(self.in_keys, self.out_keys, self._offsets, strict=True):
            field, mask_key = as_key(key), self.mask_keys.get(key)
            if field not in fields:
                return None
            if mask_key is None and self.mask is not None:
                mask_key = suffixed_key(key, self.mask)
            entries[as_key(out_key)] = Entry(as_key(out_key), (Values(field, offsets, self.pad == "zero"),))
            if mask_key is not None:
                part = Outside(offsets, inverted=self.mask != "is_pad")
                entries[as_key(mask_key)] = Entry(as_key(mask_key), (part,))
        return Pass(tuple(entries.values()))

    @override
    def own_reads(self, storage: Any) -> Collection[Key]:
        wide = storage.wide_keys
        if not wide:
            return ()
        paths = [(key,) if isinstance(key, str) else key for key in self.in_keys]
        fields = {key[1:] if key[0] == NEXT else key for key in wide for path in paths if key[: len(path)] == path}
        return [key for field in sorted(fields) for key in (field, (NEXT, *field)) if key in wide]

    def _entries(self, batch: Any, missing: Sequence[Key] = ()) -> list[_Entry]:
        """Return the entries of a batch, or of its spec, that get windows: the entries of the keys, and of their groups.

        Args:
            batch: The batch, or its spec.
            missing: Keys of entries that the batch does not have yet.
        """
        entries = []
        for key, out_key, offsets in zip(self.in_keys, self.out_keys, self._offsets, strict=True):
            path = (key,) if isinstance(key, str) else key
            below: list[NestedKey] = [other[len(path) :] for other in missing if other[: len(path)] == path]
            if not below or is_group(batch.get(key, None)):
                below += entries_below(batch, key)
            for inner in below:
                leaf, out = (flat_key((name, inner)) if inner else name for name in (key, out_key))
                mask_key = self.mask_keys.get(key)
                if mask_key is None and self.mask is not None:
                    mask_key = suffixed_key(leaf, self.mask)
                entries.append(_Entry(leaf, out, offsets, mask_key))
        return entries

    @override
    def write_results(self, batch: Any, values: dict[str, Any]) -> Any:
        for entry in self._entries(batch):
            value, outside = values[entry.name], values[f"outside {entry.name}"]
            if self.pad == "drop" and outside.any():
                raise InvalidArgumentError(
                    f"{int(outside.any(-1).sum())} of {outside[..., 0].numel()} windows leave their trajectory",
                    hint="draw the batch with the sampler that WindowTransform.sampler() returns",
                )
            set_entry(batch, entry.out_key, value)
            if entry.mask_key is not None:
                set_entry(batch, entry.mask_key, outside if self.mask == "is_pad" else ~outside)
        return batch

    @override
    def update_specs(self, spec: CompositeSpec) -> None:
        entries = self._entries(spec)
        axis, specs = spec.ndim, [spec[entry.key] for entry in entries]
        for entry, inner in zip(entries, specs, strict=True):
            length = len(entry.offsets)
            window = repeat_bounds(inner, length, axis)
            spec.set(entry.out_key, include_value(window, 0) if self.pad == "zero" else window)
            if entry.mask_key is not None:
                spec.set(entry.mask_key, any_like(torch.zeros(*spec.shape, length, dtype=torch.bool)))


@dataclass(frozen=True)
class _Entry:
    """An entry of a batch that gets a window."""

    key: NestedKey
    out_key: NestedKey
    offsets: Sequence[int]
    """Steps of the window, [W]."""
    mask_key: NestedKey | None

    @property
    def name(self) -> str:
        """Name of the window among the values of the transform."""
        return dotted_text(self.key)

    def part(self, value: Tensor, outside: Tensor, offsets: Sequence[int]) -> dict[str, Tensor]:
        """Return the window as a part of a longer window, and the padding, by name.

        Args:
            value: The entry in the other window, [*batch, V, ...].
            outside: Which steps of that window are padding, bool [*batch, V].
            offsets: Steps of that window, [V].
        """
        axis, parts = outside.ndim - 1, {self.name: value, f"outside {self.name}": outside}
        if self.offsets == offsets:
            return parts
        if isinstance(self.offsets, range) and isinstance(offsets, range):
            first, last = self.offsets[0] - offsets[0], self.offsets[-1] - offsets[0]
            chosen = (*[slice(None)] * axis, slice(first, last + 1, self.offsets.step))
            return {name: part[chosen] for name, part in parts.items()}
        places = torch.tensor([offsets.index(step) for step in self.offsets], device=value.device)
        return {name: part.index_select(axis, places.to(part.device)) for name, part in parts.items()}


def _finite_numbers(values: Any) -> list[float]:
    """Return numbers as floats, or an empty list if a number is not finite, or the values are not numbers."""
    try:
        numbers = [float(value) for value in values]
    except (TypeError, ValueError):
        return []
    return numbers if all(map(math.isfinite, numbers)) else []


def _as_range(steps: Sequence[int]) -> Sequence[int]:
    """Return steps as a range if the distances between them are equal."""
    distance = steps[1] - steps[0] if len(steps) > 1 else 1
    if distance > 0 and all(after - before == distance for before, after in pairwise(steps)):
        return range(steps[0], steps[-1] + 1, distance)
    return tuple(steps)


def _common_offsets(windows: Iterable[Sequence[int]]) -> Sequence[int]:
    """Return the steps of all of some windows, as a range around 0 unless most of its steps would be read in vain."""
    steps = sorted({step for offsets in windows for step in offsets})
    run = range(min(steps[0], 0), max(steps[-1], 0) + 1)
    return run if len(run) <= _MAX_RUN * len(steps) else tuple(steps)


def _bytes_of(batch: Any, key: NestedKey) -> int:
    """Return the number of bytes of an entry, or 0 if only an earlier transform writes it."""
    value = batch.get(key, None)
    return 0 if value is None else value.nbytes


def fill_windows(values: Tensor, outside: Tensor, value: float) -> None:
    """Set the padding of windows that were read from a storage to a value, in place.

    Args:
        values: Windows, [B, W, ...].
        outside: Which steps are padding, at the ends of a window, bool [B, W].
        value: Value of the padding.
    """
    from datasets_rl.transforms._sums import fill_padding  # deferred: it imports numba

    flat = values.unsqueeze(-1) if values.ndim < _LOOP_NDIM else values.flatten(2)
    if values.is_cpu and values.dtype in _LOOP_DTYPES and flat.data_ptr() == values.data_ptr():
        fill_padding(flat.numpy(), outside.numpy(), value)
    else:
        fill_values(values, outside, value)


def fill_values(values: Tensor, mask: Tensor, value: float) -> None:
    """Set the values where a mask is True, in place.

    Args:
        values: Windows, [*batch, W, ...].
        mask: bool [*batch, W].
        value: The new value.
    """
    values.masked_fill_(expand_right(mask.to(values.device), values.shape), value)


def _is_window(span: Any) -> bool:
    """Return whether it is a nonempty range of steps, or the numbers of steps before and after."""
    if isinstance(span, range):
        return len(span) > 0
    return isinstance(span, Sequence) and len(span) == 2 and not size_problems(0, before=span[0], after=span[1])

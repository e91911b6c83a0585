"""Windows of steps around each step, with padding."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from typing_extensions import Self, override

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.specs import CompositeSpec
from datasets_rl.ted.keys import NEXT, Key
from datasets_rl.transforms._bounds import bounds_of, spec_between
from datasets_rl.transforms._time import OverTime, TimeAxis, step_windows
from datasets_rl.transforms.base import (
    Keys,
    NestedKey,
    any_like,
    entries_below,
    expand_right,
    flat_key,
    get_entry,
    set_entry,
    under_next,
)

if TYPE_CHECKING:
    from torch import Generator

    from datasets_rl.samplers.windows import WindowSampler

__all__ = ["WindowTransform", "fill_values", "fill_windows"]

_LOOP_NDIM, _LOOP_DTYPES = 3, (torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool)
"""Axes and dtypes of the windows, [B, W, K], that the compiled loop supports."""

_MAX_SHARED_BYTES = 1024
"""Number of bytes per step up to which an entry is read together with entries of other windows, in a common window."""

WindowPadding = Literal["repeat", "zero", "drop"]
WindowMask = Literal["valid", "is_pad"]


class WindowTransform(OverTime):
    """Replace entries by the window of their values around each step, such as the last observations and next actions.

        step of the episode     0        1        2
        x, window (1, 2)        0 0 1 2  0 1 2 2  1 2 2 2      one step before, two steps after; pad = "repeat"
        x_is_pad                x . . .  . . . x  . . x x

    In a buffer of single steps, the values are read from the storage, so that every sampler works; small
    entries are read at once. Values under "next" are those of the steps of the window. In a batch of slices [..., T],
    windows are taken along the time axis. The key of a group, such as an observation of several sensors, stands for
    every entry of the group; each has its mask, unless `mask_keys` has one for the group.

    Args:
        windows: Number of steps before and after each step, ``(before, after)``, by key. A window has
            W = before + 1 + after steps, and its entry the shape [*batch, W, ...].
        pad: Steps of the window outside of the trajectory: "repeat" its first or last step, "zero", or "drop", with
            which no window may leave its trajectory; `sampler` returns a sampler that draws such steps.
        mask: Convention of the masks, bool [*batch, W]: "valid" writes ``x_valid``, True for steps of the trajectory,
            and "is_pad" ``x_is_pad``, True for padding; `None` for no masks.
        mask_keys: Keys of the masks by key of the entry, instead of ``x_valid`` or ``x_is_pad``.
        out_keys: Keys of the windows, in the order of `windows`; the same keys by default.
        done_key: Key under "next" of the flag that ends a trajectory; "done" by default.

    Raises:
        InvalidArgumentError: If an argument is invalid; the message lists all problems.
    """

    shown = ("windows", "pad")

    def __init__(
        self,
        windows: Mapping[Any, Sequence[int]],
        pad: WindowPadding = "repeat",
        mask: WindowMask | None = "valid",
        *,
        mask_keys: Mapping[Any, NestedKey] | None = None,
        out_keys: Keys | None = None,
        done_key: NestedKey | None = None,
    ) -> None:
        super().__init__(list(windows), out_keys, done_key)
        problems = [
            f"the window of {key!r} is {span!r}; expected two integers >= 0"
            for key, span in windows.items()
            if len(span) != 2 or min(span) < 0
        ]
        if not windows:
            problems.append("windows is empty; expected at least one key")
        if pad not in {"repeat", "zero", "drop"}:
            problems.append(f"pad is {pad!r}; expected 'repeat', 'zero' or 'drop'")
        if mask not in {"valid", "is_pad", None}:
            problems.append(f"mask is {mask!r}; expected 'valid', 'is_pad' or None")
        if problems:
            raise InvalidArgumentError("; ".join(problems))
        self.pad, self.mask = pad, mask
        self._spans = [(int(before), int(after)) for before, after in windows.values()]
        self.mask_keys = {flat_key(key): flat_key(name) for key, name in (mask_keys or {}).items()}
        # Numbers of steps before and after a drawn step that must be in its trajectory.
        spans = self._spans if pad == "drop" else [(0, 0)]
        self._inside = max(before for before, _ in spans), max(after for _, after in spans)

    @property
    def windows(self) -> dict[NestedKey, tuple[int, int]]:
        """Number of steps before and after each step, by key."""
        return dict(zip(self.in_keys, self._spans, strict=True))

    @classmethod
    def diffusion_policy(
        cls,
        horizon: int,
        pad_before: int = 0,
        pad_after: int = 0,
        keys: Sequence[NestedKey] = ("observation", "action"),
    ) -> Self:
        """Return the sequences of Diffusion Policy (`SequenceSampler`): all keys have one window, without a mask.

        A sequence of `horizon` steps starts at most `pad_before` steps before its episode, and ends at most `pad_after`
        steps after it. The batch has the step at position `pad_before`. Use the sampler that `sampler` returns.

        Raises:
            InvalidArgumentError: If the padding exceeds the horizon minus one, so that a sequence might have no step
                at that position.
        """
        pad_before, pad_after = (min(max(count, 0), horizon - 1) for count in (pad_before, pad_after))
        inside = horizon - 1 - pad_before - pad_after
        if inside < 0:
            raise InvalidArgumentError(
                f"pad_before is {pad_before} and pad_after is {pad_after}; expected at most {horizon - 1} in total",
                hint="as in the configurations of Diffusion Policy: the numbers of observed and executed steps, minus 1",
            )
        made = cls(dict.fromkeys(keys, (pad_before, horizon - 1 - pad_before)), mask=None)
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
        steps of the episode; robomimic's has a last axis of size 1.
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
            generator: Random generator of the sampler; by default torch's global generator.
        """
        from datasets_rl.samplers.windows import WindowSampler

        end_key: Any = None if self.done_key in {None, "done"} else under_next(self.done_key or "")
        before, after = self._inside
        return WindowSampler(before, after, generator, end_key=end_key)

    @override
    def values_from_storage(self, storage: Any, rows: Tensor, data: Any) -> dict[str, Any]:
        # The batch was read without these: it gets them from their windows.
        own = {flat_key(key) for key in self.own_reads(storage) if data.get(key, None) is None}
        entries = self._entries(data if own else self.example(storage, rows, data), own)
        limit = _MAX_SHARED_BYTES * len(rows)
        values: dict[str, Any] = {}
        groups: dict[tuple[int, int] | None, list[_Entry]] = {}
        for entry in entries:
            small = entry.key not in own and _bytes_of(data, entry.key) <= limit
            groups.setdefault(None if small else entry.span, []).append(entry)
        for together in groups.values():
            before, after = (max(entry.span[side] for entry in together) for side in (0, 1))
            keys = [entry.key for entry in together]
            windows = self.take_windows(storage, keys, rows, before, after, data)
            for entry, value in zip(together, windows.entries, strict=True):
                if entry.key in own:
                    step = value[:, before]
                    set_entry(data, entry.key, step if entry.out_key == entry.key else step.clone())
            if self.pad == "zero":
                for value in windows.entries:
                    fill_windows(value, windows.outside, 0)
            for entry, value in zip(together, windows.entries, strict=True):
                values.update(entry.part(value, windows.outside, before))
        return values

    @override
    def values_from_batch(self, batch: Any) -> dict[str, Any]:
        axis = TimeAxis.of_batch(batch)
        ends, values = self.ends(batch, axis), {}
        for entry in self._entries(batch):
            window, outside = step_windows(ends, *entry.span)
            value = axis.select_steps(get_entry(batch, entry.key), window)
            outside = axis.unflatten(outside)
            if self.pad == "zero":
                fill_values(value, outside, 0)
            values.update(entry.part(value, outside, entry.span[0]))
        return values

    @override
    def own_reads(self, storage: Any) -> Collection[Key]:
        keys = [(key,) if isinstance(key, str) else key for key in self.in_keys]
        return [key for key in keys if (key[1:] if key[0] == NEXT else key) in storage.wide_states]

    def _entries(self, batch: Any, missing: Collection[NestedKey] = ()) -> list[_Entry]:
        """Return the entries of a batch, or of its spec, that get windows: those of `windows`, and of its groups.

        Args:
            batch: The batch, or its spec.
            missing: Keys of entries that the batch does not have yet.
        """
        entries = []
        for key, out_key, span in zip(self.in_keys, self.out_keys, self._spans, strict=True):
            for path in [()] if key in missing else entries_below(batch, key):
                leaf, out = (flat_key((name, path)) if path else name for name in (key, out_key))
                mask_key = self.mask_keys.get(key)
                if mask_key is None and self.mask is not None:
                    mask_key = _mask_key(leaf, self.mask)
                entries.append(_Entry(leaf, out, span, mask_key))
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
            length, bounds = sum(entry.span) + 1, bounds_of(inner)
            low, high = (torch.stack([bound] * length, axis) for bound in bounds or (inner.zero(),) * 2)
            if self.pad == "zero":
                low, high = low.clamp(max=0), high.clamp(min=0)
            spec.set(entry.out_key, any_like(low) if bounds is None else spec_between(low, high))
            if entry.mask_key is not None:
                spec.set(entry.mask_key, any_like(torch.zeros(*spec.shape, length, dtype=torch.bool)))


@dataclass(frozen=True)
class _Entry:
    """An entry of a batch that gets a window."""

    key: NestedKey
    out_key: NestedKey
    span: tuple[int, int]
    """Number of steps before and after each step."""
    mask_key: NestedKey | None

    @property
    def name(self) -> str:
        """Name of the window among the values of the transform."""
        return self.key if isinstance(self.key, str) else ".".join(self.key)

    def part(self, value: Tensor, outside: Tensor, before: int) -> dict[str, Tensor]:
        """Return the window in a longer one, and its padding, by name.

        Args:
            value: The entry in the longer window, [*batch, W, ...].
            outside: Which steps of that window are padding, bool [*batch, W].
            before: Number of steps before each step in that window.
        """
        axis, first, length = outside.ndim - 1, before - self.span[0], sum(self.span) + 1
        return {
            self.name: value.narrow(axis, first, length),
            f"outside {self.name}": outside.narrow(axis, first, length),
        }


def _bytes_of(batch: Any, key: NestedKey) -> int:
    """Return the number of bytes of an entry; 0 if only an earlier transform writes it."""
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


def _mask_key(key: NestedKey, mask: str) -> NestedKey:
    return f"{key}_{mask}" if isinstance(key, str) else (*key[:-1], f"{key[-1]}_{mask}")

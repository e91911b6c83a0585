"""Sequences of steps with returns to go, for Decision Transformers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor
from typing_extensions import Self, override

from datasets_rl.arguments import check, choice_problems, size_problems
from datasets_rl.returns import discounted, float_rewards
from datasets_rl.ted.keys import MASK, NEXT_REWARD, NEXT_TERMINATED, Key, as_key
from datasets_rl.ted.passes import Entry, Field, Outside, Pass, TimeSteps, Values
from datasets_rl.ted.windows import Windows, rows_in
from datasets_rl.transforms._time import TimeAxis, step_windows, trajectory_positions
from datasets_rl.transforms.base import NestedKey, flat_key, get_entry, number_tensor, set_entry
from datasets_rl.transforms.returns import RewardSums
from datasets_rl.transforms.windows import fill_values, fill_windows

_Shift = tuple[Tensor, Tensor]
"""Numbers of windows, int64 [n], and the step that is moved to each step of them, int64 [n, W]."""


class SequenceTransform(RewardSums):
    """Replace each step by the sequence of K steps that starts with it, with returns to go, for Decision Transformers.

        step of the episode     0          1          2         K = 2, rewards 1 2 4, padding on the right
        observation             o0 o1      o1 o2      o2 0
        returns_to_go           7  6       6  4       4  0
        timesteps               0  1       1  2       2  3
        mask                    x  x       x  x       x  .

    A return to go is the sum of the rewards from a step to the end of its trajectory, not only to the end of the
    sequence. The sums are computed once, and cached until the storage changes: at once for all steps of a small storage,
    and of more than 2**20 steps by trajectory, when a batch needs them.

    Entries: ``"observation"`` and ``"action"``, [*batch, K, ...], ``"returns_to_go"``, [*batch, K, 1], ``"timesteps"``,
    int64 [*batch, K], counted from the first stored step of the trajectory, and ``"mask"``, bool [*batch, K], False for
    padding. With `pad_done`, also ``"rewards"``, [*batch, K, 1], and ``"dones"``, int64 [*batch, K], 1 where the
    episode terminates.

    The padding of observations is 0 after normalization. The code of Chen et al. pads before it normalizes, so that its
    padding is ``-mean / std``. The mask hides the padding from the attention of the network.

        >>> from datasets_rl import load
        >>> from datasets_rl.transforms import SequenceTransform
        >>> rb = load("demo/pendulum", transform=SequenceTransform.dt_corl(20), batch_size=8)
        >>> rb.sample()["observation"].shape
        torch.Size([8, 20, 3])

    Args:
        length: Number of steps of a sequence, K, at least 1.
        pad_side: Side of the padding of a sequence that exceeds its trajectory, "left" or "right".
        reward_scale: Factor of the returns to go.
        mean: Mean to subtract from observations, 0 by default.
        std: Divisor of observations after that, 1 by default.
        pad_action: Value of the padding of actions.
        pad_done: Value of the padding of ``"dones"``, or `None` for neither ``"rewards"`` nor ``"dones"``.
        max_timestep: Largest time step, unlimited by default.
        extra_return: Whether ``"returns_to_go"`` has K + 1 entries: also the entry after the last step of the sequence,
            which is 0 at the end of the trajectory.
        observation_key: Key of the observations.
        action_key: Key of the actions.

    Raises:
        InvalidArgumentError: If `length` is below 1 or `pad_side` is unknown.
    """

    shown = ("length", "pad_side")

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        length: int,
        *,
        pad_side: Literal["left", "right"] = "right",
        reward_scale: float = 1.0,
        mean: Tensor | float = 0.0,
        std: Tensor | float = 1.0,
        pad_action: float = 0.0,
        pad_done: int | None = None,
        max_timestep: int | None = None,
        extra_return: bool = False,
        observation_key: NestedKey = "observation",
        action_key: NestedKey = "action",
        done_key: NestedKey | None = None,
    ) -> None:
        super().__init__([NEXT_REWARD], ["returns_to_go"], done_key)
        check(size_problems(length=length), choice_problems("left", "right", pad_side=pad_side))
        self.length, self.pad_side, self.reward_scale, self.extra_return = length, pad_side, reward_scale, extra_return
        self.normalizes = not all(isinstance(value, (int, float)) for value in (mean, std)) or (mean, std) != (0, 1)
        self.register_buffer("mean", number_tensor(mean, "mean", torch.float32))
        self.register_buffer("std", number_tensor(std, "std", torch.float32))
        self.pad_action, self.pad_done, self.max_timestep = pad_action, pad_done, max_timestep
        self.observation_key, self.action_key = flat_key(observation_key), flat_key(action_key)

    @classmethod
    def dt_kzl(
        cls,
        length: int = 20,
        *,
        mean: Tensor | float = 0.0,
        std: Tensor | float = 1.0,
        scale: float = 1000.0,
        max_timestep: int | None = 999,
    ) -> Self:
        """Return the sequences of `get_batch` of Chen et al.: padding on the left, actions -10, dones 2.

        Args:
            length: Number of steps of a sequence, K.
            mean: Mean of the observations of the dataset.
            std: Standard deviation of the observations, with the authors' 1e-6 added to it.
            scale: Divisor of the returns to go.
            max_timestep: Largest time step: the maximum length of an episode, minus 1.
        """
        return cls(
            length,
            pad_side="left",
            reward_scale=1 / scale,
            mean=mean,
            std=std,
            pad_action=-10,
            pad_done=2,
            max_timestep=max_timestep,
            extra_return=True,
        )

    @classmethod
    def dt_corl(
        cls, length: int = 20, *, mean: Tensor | float = 0.0, std: Tensor | float = 1.0, reward_scale: float = 0.001
    ) -> Self:
        """Return the sequences of CORL's `SequenceDataset`: padding on the right with zeros, after normalization.

        Time steps continue after the end of the episode.

        Args:
            length: Number of steps of a sequence, K.
            mean: Mean of the observations of the dataset.
            std: Standard deviation of the observations, with CORL's 1e-6 added to it.
            reward_scale: Factor of the returns to go.
        """
        return cls(length, pad_side="right", reward_scale=reward_scale, mean=mean, std=std)

    @override
    def sums(self, rewards: Tensor, ends: Tensor) -> Tensor:
        return discounted(rewards, (~ends).to(rewards.dtype).reshape(-1, *[1] * (rewards.ndim - 1)))

    @override
    def values_from_storage(self, storage: Any, rows: Tensor, data: Any) -> dict[str, Any]:
        table = self.sums_by_row(storage, rows)
        trajectories = self.trajectories(storage)
        owners, places = trajectories.locate(rows.cpu().numpy())
        windows = self.take_windows(storage, [*self._keys.values()], rows, range(self._reach + 1), data)
        to_go = _select_windows(table["0"], windows)
        shift, outside, after = self._align(windows.outside)
        entries = (_shifted(entry, shift, self.length) for entry in windows.entries)
        values = {
            **dict(zip(self._keys, entries, strict=True)),
            "to_go": _shifted(to_go, shift, self._reach + 1),
            "start": torch.from_numpy(places - trajectories.firsts[owners]),
            "outside": outside,
        }
        return self._padded(values, after, fill_windows)

    def pass_arguments(self) -> tuple[Any, ...]:
        """Return what the pass follows from, see `ReadsInPass`."""
        return (
            *(self.length, self.pad_side, self.pad_action, self.pad_done, self.max_timestep, self.extra_return),
            *(self.normalizes, self.observation_key, self.action_key, self.done_key, self.out_keys[0]),
        )

    def pass_over(self, fields: Mapping[Key, Field]) -> Pass | None:
        """Return the sequences as entries of a pass, without returns to go, see `ReadsInPass`."""
        observation, action = as_key(self.observation_key), as_key(self.action_key)
        others = self.pad_done is not None or self.max_timestep is not None or self.extra_return or self.pad_action
        if self._end_key is not None or others or self.pad_side == "left" or not {observation, action} <= fields.keys():
            return None
        steps = range(self.length)
        return Pass(
            (
                Entry(observation, (Values(observation, steps, zeros=not self.normalizes),)),
                Entry(action, (Values(action, steps, zeros=True),)),
                Entry(("timesteps",), (TimeSteps(steps),)),
                Entry(MASK, (Outside(steps, inverted=True),)),
            )
        )

    @override
    def after_pass(self, storage: Any, rows: Tensor, batch: Any) -> None:
        outside = ~get_entry(batch, MASK)
        table = self.sums_by_row(storage, rows)
        windows = Windows([], outside, _rows_around(storage, rows, self.length), rows)
        to_go = _select_windows(table["0"], windows)
        fill_windows(to_go, outside, 0)
        set_entry(batch, self.out_keys[0], to_go if self.reward_scale == 1 else to_go * self.reward_scale)
        if self.normalizes:
            observation = self._normalized(get_entry(batch, self.observation_key))
            fill_windows(observation, outside, 0)
            set_entry(batch, self.observation_key, observation)
        super().after_pass(storage, rows, batch)

    @override
    def values_from_batch(self, batch: Any) -> dict[str, Any]:
        axis = TimeAxis.of_batch(batch)
        ends = self.ends(batch, axis)
        numbers, firsts, _ = trajectory_positions(ends)
        to_go = self.sums(axis.flatten(float_rewards(self.tensor(batch, NEXT_REWARD))), ends)
        window, outside = step_windows(ends, range(self._reach + 1))
        shift, outside, after = self._align(outside)
        window = _shifted(window, shift, self._reach + 1)
        steps = window[:, : self.length]
        values = {
            **{name: axis.select_steps(self.tensor(batch, key), steps) for name, key in self._keys.items()},
            "to_go": axis.unflatten(to_go[window.to(to_go.device)]),
            "start": axis.unflatten(numbers - firsts),
            "outside": axis.unflatten(outside),
        }
        return self._padded(values, axis.unflatten(after), fill_values)

    def _padded(
        self, values: dict[str, Tensor], after: Tensor, fill: Callable[[Tensor, Tensor, float], None]
    ) -> dict[str, Tensor]:
        """Normalize observations and set the padding, in place: the windows are not used elsewhere.

        Args:
            values: Windows by name, [*batch, K, ...].
            after: Which returns to go are 0, bool [*batch, W].
            fill: Function that sets values where a mask is True.
        """
        outside, observation = values["outside"], values["observation"]
        if self.normalizes:
            values["observation"] = self._normalized(observation)
        if self.pad_done is not None:
            dones = values.pop("terminated").flatten(outside.ndim)
            values["dones"] = (dones.squeeze(-1) if dones.shape[-1] == 1 else dones.any(-1)).long()
            fill(values["dones"], outside, self.pad_done)
            fill(values["reward"], outside, 0)
        fill(values["observation"], outside, 0)
        fill(values["action"], outside, self.pad_action)
        fill(values["to_go"], after, 0)
        start = values.pop("start")
        values["timesteps"] = timesteps = start.unsqueeze(-1) + torch.arange(self.length, device=start.device)
        if self.pad_side == "left":
            timesteps -= outside.sum(-1, keepdim=True).to(start.device)
            fill(timesteps, outside, 0)
        if self.max_timestep is not None:
            timesteps.clamp_(max=self.max_timestep)
        return values

    def _normalized(self, observation: Tensor) -> Tensor:
        """Return normalized observations, in the same memory if it can hold them."""
        mean, std = (value.to(observation.device) for value in (self.mean, self.std))
        floats = observation.dtype == torch.float32
        return observation.sub_(mean).div_(std) if floats else (observation - mean) / std

    @property
    def _keys(self) -> dict[str, NestedKey]:
        """Keys of the entries that are read, by name."""
        keys = {"observation": self.observation_key, "action": self.action_key}
        return keys if self.pad_done is None else {**keys, "reward": NEXT_REWARD, "terminated": NEXT_TERMINATED}

    @property
    def _reach(self) -> int:
        """Number of steps after the first that are read."""
        return self.length if self.extra_return else self.length - 1

    def _align(self, outside: Tensor) -> tuple[_Shift | None, Tensor, Tensor]:
        """Return how to shift the steps of windows, so that their padding is at the side `pad_side`.

            window, K = 4     2 3 4 4        4 is the last step of the trajectory
            aligned left      2 2 3 4        padding first

        Args:
            outside: Which steps are padding before the shift, bool [M, W].

        Returns:
            The shift, or `None` for no shift, which steps are padding afterwards, bool [M, K], and which returns to go
            are 0, bool [M, W].
        """
        padding, after = outside[:, : self.length], outside
        if self.pad_side == "right":
            return None, padding, after
        # Most windows of a batch have no padding.
        chosen = padding[:, -1].nonzero().squeeze(1)
        if not len(chosen):
            return None, padding, after
        padding, after = padding.clone(), after.clone()
        counts = padding[chosen].sum(1, keepdim=True)
        positions = torch.arange(outside.shape[1], device=outside.device) - counts
        sources = positions.clamp(min=0)
        after[chosen] = after[chosen].gather(1, sources) | (positions < 0)
        padding[chosen] = positions[:, : self.length] < 0
        return (chosen, sources), padding, after

    @override
    def write_results(self, batch: Any, values: dict[str, Any]) -> Any:
        to_go = values["to_go"]
        set_entry(batch, self.observation_key, values["observation"])
        set_entry(batch, self.action_key, values["action"])
        if self.pad_done is not None:
            set_entry(batch, "rewards", float_rewards(values["reward"]))
            set_entry(batch, "dones", values["dones"])
        set_entry(batch, self.out_keys[0], to_go if self.reward_scale == 1 else to_go * self.reward_scale)
        set_entry(batch, "timesteps", values["timesteps"])
        set_entry(batch, MASK, ~values["outside"])
        return batch


def _shifted(values: Tensor, shift: _Shift | None, length: int) -> Tensor:
    """Return the first steps of windows, [M, length, ...], after a shift of some of them, in place.

    Args:
        values: Windows, [M, W, ...].
        shift: Numbers of windows, int64 [n], and the step that is moved to each step of them, int64 [n, W].
        length: Number of steps to return.
    """
    values = values[:, :length]
    if shift is not None:
        chosen, sources = (part.to(values.device) for part in shift)
        values[chosen] = values[chosen.unsqueeze(1), sources[:, :length]]
    return values


def _rows_around(storage: Any, rows: Tensor, length: int) -> Callable[[int | Tensor], Tensor]:
    """Return `Windows.rows_at` for the windows from rows, of a small storage."""

    def rows_at(step: int | Tensor) -> Tensor:
        return rows_in(storage.windows_around(rows, range(length))[0])(step)

    return rows_at


def _select_windows(table: Tensor, windows: Windows) -> Tensor:
    """Return the values of windows, [M, W, ...], a copy. Values outside of a trajectory are arbitrary.

    To copy a run of consecutive rows takes hardly longer than to copy a row.

    Args:
        table: Values by row, [N, ...].
        windows: The windows, of which each inside of a trajectory has its rows in the table.
    """
    count, length = windows.outside.shape
    if windows.starts is None or len(table) < length:
        steps = torch.arange(length).expand(count, length)
        return table[windows.rows_at(steps).to(table.device)]
    table, limit, size = table.contiguous(), len(table) - length, table[0].numel()
    starts = windows.starts.to(table.device)
    runs = table.as_strided((limit + 1, length * size), (size, 1)).index_select(0, starts.clamp(max=limit))
    selected = runs.view(count, length, *table.shape[1:])
    others = (starts > limit).nonzero().squeeze(1)
    if len(others):
        rows = starts[others].unsqueeze(1) + torch.arange(length, device=table.device)
        selected[others] = table[rows.clamp_(max=len(table) - 1)]
    return selected

"""Entries under "next" that are not stored, or stored as differences."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor
from typing_extensions import override

from datasets_rl.errors import InvalidArgumentError, WrongTypeError
from datasets_rl.specs import CompositeSpec
from datasets_rl.ted.keys import NEXT
from datasets_rl.transforms.base import (
    Keys,
    NestedKey,
    Transform,
    any_like,
    expand_right,
    flat_key,
    get_entry,
    key_list,
    remove_entry,
    under_next,
)

_EXCLUDED = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool)


class NextObservationDelta(Transform):
    """Store entries under "next" as differences to the entries at the root, in a narrow dtype.

        written     observation  s_t      next.observation  s_t+1
        stored      observation  s_t      next.delta.observation  s_t+1 - s_t, float16
        sampled     observation  s_t      next.observation  s_t + delta

    The differences are rounded. TorchRL writes them in an environment. Here, `inv` computes them when data is written
    to the buffer. Missing entries are ignored.

    Args:
        in_keys: Keys of the entries at the root. By default all tensors at the root and under "next" that have a
            floating-point dtype.
        delta_dtype: Dtype of the stored differences.
        restore_dtype: Dtype of the sampled entries under "next", or "root" for the dtype of the entry at the root.
        drop_delta: Whether to remove the differences from sampled batches.
        excluded_dtypes: Dtypes that the default of `in_keys` leaves out.

    Raises:
        InvalidArgumentError: If a dtype is not a floating-point dtype.
    """

    shown = ("delta_dtype",)

    def __init__(
        self,
        in_keys: Keys | None = None,
        *,
        delta_dtype: torch.dtype = torch.float16,
        restore_dtype: torch.dtype | Literal["root"] = "root",
        drop_delta: bool = True,
        excluded_dtypes: tuple[torch.dtype, ...] = _EXCLUDED,
    ) -> None:
        roots = key_list(in_keys)
        super().__init__(roots, [under_next(key) for key in roots])
        for name, dtype in (("delta_dtype", delta_dtype), ("restore_dtype", restore_dtype)):
            if not (isinstance(dtype, torch.dtype) and dtype.is_floating_point) and (name, dtype) != (
                "restore_dtype",
                "root",
            ):
                raise InvalidArgumentError(f"{name} is {dtype!r}, expected a floating-point dtype")
        self.delta_dtype, self.restore_dtype = delta_dtype, restore_dtype
        self.drop_delta, self.excluded_dtypes = drop_delta, excluded_dtypes
        self._all_keys = in_keys is None

    def _keys(self, batch: Any, *group: str) -> list[NestedKey]:
        """Return the keys of entries at the root that are also in a group under "next"."""
        entries = dict(batch.items(include_nested=True, leaves_only=True))
        keys = list(entries) if self._all_keys else self.in_keys
        return [
            key
            for key in keys
            if key in entries
            and flat_key((NEXT, *group, key)) in entries
            and not (
                self._all_keys
                and (entries[key].dtype in self.excluded_dtypes or not entries[key].dtype.is_floating_point)
            )
        ]

    @override
    def transform_batch(self, batch: Any) -> Any:
        for key in self._keys(batch, "delta"):
            value, delta_key = get_entry(batch, key), flat_key((NEXT, "delta", key))
            dtype = value.dtype if isinstance(self.restore_dtype, str) else self.restore_dtype
            batch.set(under_next(key), value.to(dtype) + get_entry(batch, delta_key).to(dtype))
            if self.drop_delta:
                remove_entry(batch, delta_key)
        return batch

    @override
    def _inv_call(self, tensordict: Any) -> Any:
        for key in self._keys(tensordict):
            delta = (get_entry(tensordict, under_next(key)) - get_entry(tensordict, key)).to(self.delta_dtype)
            remove_entry(tensordict, under_next(key))
            tensordict.set(flat_key((NEXT, "delta", key)), delta)
        return tensordict

    @override
    def update_specs(self, spec: CompositeSpec) -> None:
        for key in {*self._keys(spec), *self._keys(spec, "delta")}:
            value, delta_key = spec[key].zero(), flat_key((NEXT, "delta", key))
            # Rounding may move the values beyond the bounds of the states.
            spec.set(
                under_next(key),
                any_like(value if isinstance(self.restore_dtype, str) else value.to(self.restore_dtype)),
            )
            if self.drop_delta and delta_key in spec:
                remove_entry(spec, delta_key)


class NextStateReconstructor(Transform):
    """Write entries under "next" that were not stored, from the following row of the batch.

        observation          a_0  a_1  a_2 | b_0  b_1        slices of two trajectories
        next.observation     a_1  a_2  nan | b_1  nan

    A row is the next step if it has the same trajectory number, and the row before is not the end of a trajectory.
    Elsewhere, and in the last row, the result is `fill_value`. To read the next steps from the storage instead, use a
    dataset, which stores each state once.

    Args:
        keys: Keys of the entries at the root.
        traj_key: Key of the trajectory number, or `None` for no check.
        done_key: Key of the flag that ends a trajectory, or `None` for no check.
        step_count_key: Key of a step count, which must increase by 1, or `None` for no check.
        fill_value: Value where the next step is not in the batch. For integers, pass a number.
        strict: Whether a missing key is an error. If not, its check is left out.
    """

    shown = ("traj_key",)

    def __init__(
        self,
        keys: Keys = ("observation",),
        *,
        traj_key: NestedKey | None = ("collector", "traj_ids"),
        done_key: NestedKey | None = (NEXT, "done"),
        step_count_key: NestedKey | None = None,
        fill_value: float = math.nan,
        strict: bool = True,
    ) -> None:
        roots = key_list(keys)
        super().__init__(roots, [under_next(key) for key in roots])
        self.traj_key, self.done_key, self.step_count_key = traj_key, done_key, step_count_key
        self.fill_value, self.strict = fill_value, strict

    @override
    def transform_batch(self, batch: Any) -> Any:
        if batch.ndim != 1:
            raise InvalidArgumentError(
                f"the batch size is {list(batch.shape)}, expected a flat batch size, [B]: rows of trajectories"
            )
        continued = self._continued(batch)
        for in_key, out_key in zip(self.in_keys, self.out_keys, strict=True):
            value = self.tensor(batch, in_key)
            if math.isnan(self.fill_value) and not value.is_floating_point():
                raise WrongTypeError(
                    f"{in_key} has the non-floating dtype {value.dtype}, which has no NaN", hint="pass fill_value=0"
                )
            following = value.roll(-1, 0)
            mask = expand_right(~continued.to(value.device), value.shape)
            batch.set(out_key, following.masked_fill(mask, self.fill_value))
        return batch

    def _continued(self, batch: Any) -> Tensor:
        """Return whether the next row of a batch is the next step, bool [B]."""
        continued = torch.ones(len(batch), dtype=torch.bool)
        continued[-1:] = False

        def column(key: NestedKey | None) -> Tensor | None:
            value = None if key is None else (get_entry(batch, key) if self.strict else batch.get(key, None))
            return None if value is None else value.reshape(len(batch), -1)[:, 0].cpu()

        numbers, done, counts = map(column, (self.traj_key, self.done_key, self.step_count_key))
        if numbers is not None:
            continued &= numbers == numbers.roll(-1)
        if done is not None:
            continued &= ~done.bool()
        if counts is not None:
            continued &= counts.roll(-1) == counts + 1
        return continued

    @override
    def update_specs(self, spec: CompositeSpec) -> None:
        for in_key, out_key in zip(self.in_keys, self.out_keys, strict=True):
            spec.set(out_key, any_like(spec[in_key].zero()))

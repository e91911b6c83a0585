"""Stacking and expansion of entries."""

from __future__ import annotations

from typing import Any

import torch
from typing_extensions import override

from datasets_rl.arguments import axis_problems, check
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.specs import CompositeSpec
from datasets_rl.transforms._bounds import join_bounds
from datasets_rl.transforms.base import Keys, NestedKey, Transform, expand_right, get_entry, remove_entry


class ExpandAs(Transform):
    """Append axes to an entry and expand it to the shape of another entry, such as a flag [*, 1] to [*, 1, agents].

        >>> import torch
        >>> from tensordict import TensorDict
        >>> from datasets_rl.transforms import ExpandAs
        >>> batch = TensorDict({"task": torch.ones(2, 1), "action": torch.zeros(2, 3)}, [2])
        >>> ExpandAs("task", "action")(batch)["task"].shape
        torch.Size([2, 3])

    Args:
        in_key: Key of the entry.
        ref_key: Key of the entry that has the shape.
        out_key: Key of the result, `in_key` by default.
    """

    shown = ("ref_key",)
    in_recipes = True

    def __init__(self, in_key: NestedKey, ref_key: NestedKey, out_key: NestedKey | None = None) -> None:
        super().__init__([in_key], [in_key if out_key is None else out_key])
        self.ref_key = ref_key

    @override
    def transform_batch(self, batch: Any) -> Any:
        value, reference = self.tensor(batch, self.in_keys[0]), self.tensor(batch, self.ref_key)
        return batch.set(self.out_keys[0], expand_right(value, reference.shape))

    @override
    def update_specs(self, spec: CompositeSpec) -> None:
        inner, shape = spec[self.in_keys[0]], spec[self.ref_key].shape
        spec.set(self.out_keys[0], inner.rearranged(lambda value: expand_right(value, shape)))


class Stack(Transform):
    """Stack entries of the same shape along a new axis. `inv` splits an entry.

        >>> import torch
        >>> from tensordict import TensorDict
        >>> from datasets_rl.transforms import Stack
        >>> batch = TensorDict({"left": torch.zeros(4, 2), "right": torch.zeros(4, 2)}, [4])
        >>> Stack(in_keys=["left", "right"], out_key="arms", dim=-2)(batch)["arms"].shape
        torch.Size([4, 2, 2])

    Args:
        in_keys: Keys of the entries to stack, tensors or TensorDicts.
        out_key: Key of the result.
        in_key_inv: Key of the entry that `inv` splits and removes. Written data without this entry is not changed.
        out_keys_inv: Keys of the parts that `inv` writes.
        dim: Index of the new axis, negative: counted from the last axis of the result.
        allow_positive_dim: Whether `dim` may be counted from the first axis, including the batch size.
        del_keys: Whether to remove the entries from the batch.

    Raises:
        InvalidArgumentError: If `dim` is not negative, unless `allow_positive_dim` is set, if only one of `in_key_inv`
            and `out_keys_inv` is given, or if `out_key` is one of `in_keys`.
    """

    shown = ("dim",)
    in_recipes = True

    def __init__(
        self,
        in_keys: Keys,
        out_key: NestedKey,
        in_key_inv: NestedKey | None = None,
        out_keys_inv: Keys | None = None,
        dim: int = -1,
        allow_positive_dim: bool = False,
        *,
        del_keys: bool = True,
    ) -> None:
        super().__init__(in_keys)
        hint = "" if allow_positive_dim else "to count from the first axis, pass allow_positive_dim=True"
        check(axis_problems(allow_positive=allow_positive_dim, dim=dim), hint=hint)
        if (in_key_inv is None) != (out_keys_inv is None):
            raise InvalidArgumentError("expected both in_key_inv and out_keys_inv, or none of them")
        if out_key in self.in_keys:
            raise InvalidArgumentError(f"out_key is {out_key!r}, which is in in_keys, expected another key")
        parts = Transform(in_keys_inv=out_keys_inv)
        self.out_keys, self.out_keys_inv = [out_key], parts.in_keys_inv
        self.in_keys_inv = [] if in_key_inv is None else [in_key_inv]
        self.dim, self.del_keys = dim, del_keys

    @override
    def transform_batch(self, batch: Any) -> Any:
        values = [get_entry(batch, key) for key in self.in_keys]
        try:
            batch.set(self.out_keys[0], torch.stack(values, self.dim))
        except (AttributeError, IndexError, RuntimeError, TypeError) as error:
            raise self.misfit(self.in_keys[0], values[0], error) from error
        for key in self.in_keys if self.del_keys else ():
            remove_entry(batch, key)
        return batch

    @override
    def invert_batch(self, batch: Any) -> Any:
        stacked = batch.get(self.in_keys_inv[0], None)
        if stacked is None:
            return batch
        parts = stacked.unbind(self.dim)
        if len(parts) != len(self.out_keys_inv):
            raise InvalidArgumentError(
                f"{self.in_keys_inv[0]} has {len(parts)} parts, expected {len(self.out_keys_inv)}, one for each key"
            )
        remove_entry(batch, self.in_keys_inv[0])
        for key, part in zip(self.out_keys_inv, parts, strict=True):
            batch.set(key, part)
        return batch

    @override
    def update_specs(self, spec: CompositeSpec) -> None:
        specs = [spec[key] for key in self.in_keys]
        result = join_bounds(specs, lambda values: torch.stack(values, self.dim))
        if self.del_keys:
            for key in self.in_keys:
                remove_entry(spec, key)
        spec.set(self.out_keys[0], result)

"""Renaming, selection and exclusion of entries."""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from datasets_rl.specs import CompositeSpec
from datasets_rl.transforms.base import Keys, NestedKey, Transform, gathered_keys, get_entry, key_list, remove_entry

_REWARDS = ("reward",)
_ENDS = ("done", "terminated", "truncated")


class RenameTransform(Transform):
    """Rearrange entries to other keys.

        >>> import torch
        >>> from tensordict import TensorDict
        >>> from datasets_rl.transforms import RenameTransform
        >>> batch = TensorDict({"state": torch.zeros(4, 2)}, [4])
        >>> list(RenameTransform(in_keys=["state"], out_keys=["observation"])(batch).keys())
        ['observation']

    Args:
        in_keys: Keys of the entries.
        out_keys: New keys of the entries.
        in_keys_inv: New keys that `inv` gives to entries that are written to the buffer.
        out_keys_inv: Keys of these entries before `inv`.
        create_copy: Whether to keep the entries under their old keys as well.
    """

    per_step = True

    def __init__(
        self,
        in_keys: Keys,
        out_keys: Keys,
        in_keys_inv: Keys | None = None,
        out_keys_inv: Keys | None = None,
        create_copy: bool = False,
    ) -> None:
        super().__init__(in_keys, out_keys, in_keys_inv, out_keys_inv)
        self.create_copy = create_copy

    def transform_batch(self, batch: Any) -> Any:
        """Move all entries at once, so that two entries may swap keys."""
        return self._move(batch, self.in_keys, self.out_keys)

    @override
    def invert_batch(self, batch: Any) -> Any:
        return self._move(batch, self.out_keys_inv, self.in_keys_inv)

    def _move(self, batch: Any, ins: list[NestedKey], outs: list[NestedKey]) -> Any:
        values = [get_entry(batch, key) for key in ins]
        return _move_entries(batch, ins, outs, values, keep=self.create_copy)

    @override
    def update_specs(self, spec: CompositeSpec) -> None:
        specs = [spec[key] for key in self.in_keys]
        _move_entries(spec, self.in_keys, self.out_keys, specs, keep=self.create_copy)

    def _repr_arguments(self) -> dict[str, Any]:
        return {"create_copy": True} if self.create_copy else {}


class SelectTransform(Transform):
    """Keep only the selected entries. Missing keys are ignored.

        >>> import torch
        >>> from tensordict import TensorDict
        >>> from datasets_rl.transforms import SelectTransform
        >>> batch = TensorDict({"observation": torch.zeros(4, 2), "info": torch.zeros(4)}, [4])
        >>> list(SelectTransform("observation")(batch).keys())
        ['observation']

    Args:
        *selected_keys: Keys of the entries to keep. The key of a group keeps the whole group.
        keep_rewards: Whether to keep the reward at the root as well.
        keep_dones: Whether to keep the flags at the root that end an episode as well.
    """

    shown = ("selected_keys",)
    per_step = True

    def __init__(self, *selected_keys: NestedKey, keep_rewards: bool = True, keep_dones: bool = True) -> None:
        super().__init__()
        self.selected_keys = key_list(selected_keys)
        self._others = [*(_REWARDS if keep_rewards else ()), *(_ENDS if keep_dones else ())]

    @property
    def _kept_keys(self) -> list[NestedKey]:
        return [*self.selected_keys, *self._others]

    @override
    def transform_batch(self, batch: Any) -> Any:
        return batch.select(*self._kept_keys, *gathered_keys(batch), strict=False)

    @override
    def update_specs(self, spec: CompositeSpec) -> None:
        kept_paths = {(key,) if isinstance(key, str) else key for key in self._kept_keys}
        for key in list(spec.keys(include_nested=True, leaves_only=True)):
            path = (key,) if isinstance(key, str) else key
            if not any(path[:depth] in kept_paths for depth in range(1, len(path) + 1)):
                remove_entry(spec, key)


class ExcludeTransform(Transform):
    """Remove entries. Missing keys are ignored.

        >>> import torch
        >>> from tensordict import TensorDict
        >>> from datasets_rl.transforms import ExcludeTransform
        >>> batch = TensorDict({"observation": torch.zeros(4, 2), "info": torch.zeros(4)}, [4])
        >>> list(ExcludeTransform("info")(batch).keys())
        ['observation']

    Args:
        *excluded_keys: Keys of the entries to remove.
        inverse: Whether to remove the entries from data that is written to the buffer, instead of from sampled batches.
    """

    per_step = True

    def __init__(self, *excluded_keys: NestedKey, inverse: bool = False) -> None:
        super().__init__()
        self.excluded_keys = key_list(excluded_keys)
        self.inverse = inverse

    @override
    def transform_batch(self, batch: Any) -> Any:
        return batch if self.inverse else batch.exclude(*self.excluded_keys)

    def inv(self, data: Any) -> Any:
        """With `inverse`, remove the entries from data that is written to the buffer.

        Else return the data unchanged.
        """
        if not self.inverse:
            return data
        if isinstance(data, list):
            return [self.inv(item) for item in data]
        self.bind(data)
        return data.exclude(*self.excluded_keys)

    @override
    def update_specs(self, spec: CompositeSpec) -> None:
        for key in () if self.inverse else self.excluded_keys:
            if key in spec:
                remove_entry(spec, key)

    def _repr_arguments(self) -> dict[str, Any]:
        return {"excluded_keys": self.excluded_keys, **({"inverse": True} if self.inverse else {})}


def _move_entries(container: Any, ins: list[NestedKey], outs: list[NestedKey], values: list[Any], *, keep: bool) -> Any:
    if not keep:
        for key in ins:
            if key not in outs:
                remove_entry(container, key)
    for key, value in zip(outs, values, strict=True):
        container.set(key, value)
    return container

"""Which entries a batch has, and what they are called."""

from __future__ import annotations

from typing import Any

from datasets_rl.specs import CompositeSpec
from datasets_rl.transforms.base import Keys, NestedKey, Transform, drop, found_keys, listed, taken

__all__ = ["ExcludeTransform", "RenameTransform", "SelectTransform"]

_REWARDS = ("reward",)
_ENDS = ("done", "terminated", "truncated")


class RenameTransform(Transform):
    """Move entries to other keys.

    Args:
        in_keys: Their keys.
        out_keys: Their new keys.
        in_keys_inv: The keys that `inv` gives to entries on their way into the buffer.
        out_keys_inv: The keys that those have before.
        create_copy: Whether the entries stay under their old keys as well.
    """

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

    def apply(self, batch: Any) -> Any:
        """Move the entries, all at once: two may change places."""
        return self._move(batch, self.in_keys, self.out_keys)

    def apply_inv(self, batch: Any) -> Any:
        """Move the entries of `inv`."""
        return self._move(batch, self.out_keys_inv, self.in_keys_inv)

    def _move(self, batch: Any, ins: list[NestedKey], outs: list[NestedKey]) -> Any:
        values = [taken(batch, key) for key in ins]
        return _moved(batch, ins, outs, values, keep=self.create_copy)

    def respec(self, spec: CompositeSpec) -> None:
        """Move the specs."""
        specs = [spec[key] for key in self.in_keys]
        _moved(spec, self.in_keys, self.out_keys, specs, keep=self.create_copy)

    def _facts(self) -> dict[str, Any]:
        return {"create_copy": True} if self.create_copy else {}


class SelectTransform(Transform):
    """Keep these entries only. Keys that are not there do not matter.

    Args:
        *selected_keys: Their keys; one of a group keeps the group.
        keep_rewards: Whether the reward at the root stays, if there is one.
        keep_dones: Whether the flags at the root that end an episode stay, if there are any.
    """

    def __init__(self, *selected_keys: NestedKey, keep_rewards: bool = True, keep_dones: bool = True) -> None:
        super().__init__()
        self.selected_keys = listed(selected_keys)
        self._kept = [*self.selected_keys, *(_REWARDS if keep_rewards else ()), *(_ENDS if keep_dones else ())]

    def apply(self, batch: Any) -> Any:
        """Return the selected entries."""
        return batch.select(*self._kept, *found_keys(batch), strict=False)

    def respec(self, spec: CompositeSpec) -> None:
        """Remove the specs of all other entries."""
        kept = {(key,) if isinstance(key, str) else key for key in self._kept}
        for key in list(spec.keys(include_nested=True, leaves_only=True)):
            path = (key,) if isinstance(key, str) else key
            if not any(path[:depth] in kept for depth in range(1, len(path) + 1)):
                drop(spec, key)

    def _facts(self) -> dict[str, Any]:
        return {"selected_keys": self.selected_keys}


class ExcludeTransform(Transform):
    """Leave entries out. Keys that are not there do not matter.

    Args:
        *excluded_keys: Their keys.
        inverse: Leave them out of what is written instead of what is sampled.
    """

    def __init__(self, *excluded_keys: NestedKey, inverse: bool = False) -> None:
        super().__init__()
        self.excluded_keys = listed(excluded_keys)
        self.inverse = inverse

    def apply(self, batch: Any) -> Any:
        """Return the other entries."""
        return batch if self.inverse else batch.exclude(*self.excluded_keys)

    def inv(self, data: Any) -> Any:
        """Leave the entries out of what is written, with `inverse`."""
        if not self.inverse:
            return data
        return [self.inv(one) for one in data] if isinstance(data, list) else data.exclude(*self.excluded_keys)

    def respec(self, spec: CompositeSpec) -> None:
        """Remove the specs of the entries."""
        for key in () if self.inverse else self.excluded_keys:
            if key in spec:
                drop(spec, key)

    def _facts(self) -> dict[str, Any]:
        return {"excluded_keys": self.excluded_keys, **({"inverse": True} if self.inverse else {})}


def _moved(box: Any, ins: list[NestedKey], outs: list[NestedKey], values: list[Any], *, keep: bool) -> Any:
    if not keep:
        for key in ins:
            if key not in outs:
                drop(box, key)
    for key, value in zip(outs, values, strict=True):
        box.set(key, value)
    return box

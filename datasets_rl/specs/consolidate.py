"""Keys that only some composites of a stack have."""

from __future__ import annotations

from typing import Any

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.specs.base import TensorSpec
from datasets_rl.specs.composite import CompositeSpec
from datasets_rl.specs.lazy import LazyStackedCompositeSpec, LazyStackedTensorSpec
from datasets_rl.specs.non_tensor import NonTensorSpec
from datasets_rl.specs.unbounded import Unbounded

__all__ = ["check_no_exclusive_keys", "consolidate_spec", "contains_lazy_spec"]


def consolidate_spec(spec: TensorSpec, recurse_through_entries: bool = True, recurse_through_stack: bool = True) -> Any:
    """Return a copy in which every composite of a stack has the keys of all, as specs of tensors of size 0.

    An axis in which the specs of a key differ has size 0 then; where they agree, every axis behind the batch size.

    Args:
        spec: Any spec.
        recurse_through_entries: Whether composites inside composites come too.
        recurse_through_stack: Whether the composites of a stack come themselves.

    Raises:
        InvalidArgumentError: If a key that some lack has specs of different kinds.
    """
    if isinstance(spec, LazyStackedCompositeSpec):
        members = [one.clone() for one in spec.unbind(spec.dim)]
        if recurse_through_stack:
            members = [consolidate_spec(one, recurse_through_entries, recurse_through_stack) for one in members]
        for name in dict.fromkeys(name for one in members for name in one):
            there = [one[name] for one in members if name in one]
            for one in members:
                if name not in one:
                    one[name] = _sizeless(name, there, one)
        return LazyStackedCompositeSpec(*members, dim=spec.dim)
    copy = spec.clone()
    if isinstance(copy, CompositeSpec) and recurse_through_entries:
        for name, inner in copy.items():
            if isinstance(inner, CompositeSpec):
                copy[name] = consolidate_spec(inner, recurse_through_entries, recurse_through_stack)
    return copy


def _sizeless(name: str, there: list[Any], parent: CompositeSpec) -> Any:
    first = there[0]
    if any(type(one) is not type(first) for one in there):
        kinds = ", ".join(sorted({type(one).__name__ for one in there}))
        raise InvalidArgumentError(f"{name} is {kinds} in the composites that have it; expected one kind")
    if first is None:
        return None
    if isinstance(first, CompositeSpec):
        return first.empty()
    if isinstance(first, LazyStackedTensorSpec):
        raise InvalidArgumentError(f"{name} is itself a stack of unlike specs, and only some composites have it")
    alike = all(one.shape == first.shape for one in there)
    shape = [
        0 if (axis >= parent.ndim if alike else len({one.shape[axis] for one in there}) > 1) else size
        for axis, size in enumerate(first.shape)
    ]
    # Of no numbers at all, whatever numbers the others allow.
    return NonTensorSpec(shape) if first.dtype is None else Unbounded(shape, first.device, first.dtype)


def check_no_exclusive_keys(spec: TensorSpec | None, recurse: bool = True) -> bool:
    """Say whether all composites of every stack have the same keys.

    Args:
        spec: Any spec.
        recurse: Whether composites inside composites come too.
    """
    if isinstance(spec, LazyStackedCompositeSpec):
        members = spec.unbind(spec.dim)
        return all(set(one) == set(spec) and (not recurse or check_no_exclusive_keys(one, recurse)) for one in members)
    if isinstance(spec, CompositeSpec) and recurse:
        return all(check_no_exclusive_keys(one, recurse) for one in spec.values())
    return True


def contains_lazy_spec(spec: TensorSpec | None) -> bool:
    """Say whether a spec is a lazy stack or has one inside."""
    if isinstance(spec, (LazyStackedTensorSpec, LazyStackedCompositeSpec)):
        return True
    return isinstance(spec, CompositeSpec) and any(contains_lazy_spec(one) for one in spec.values())

"""Consolidation of lazy stacks of composites with different keys."""

from __future__ import annotations

from typing import Any

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.specs.base import TensorSpec
from datasets_rl.specs.composite import CompositeSpec
from datasets_rl.specs.lazy import LazyStackedCompositeSpec, LazyStackedTensorSpec
from datasets_rl.specs.non_tensor import NonTensorSpec
from datasets_rl.specs.unbounded import Unbounded


def consolidate_spec(spec: TensorSpec, recurse_through_entries: bool = True, recurse_through_stack: bool = True) -> Any:
    """Return a copy in which all composites of a stack have the same keys: missing keys get specs of empty tensors.

    In the shape of such a spec, the axes along which the specs of the key differ have size 0. If the specs have the same
    shape, all axes after the batch size have size 0.

    Args:
        spec: Any spec.
        recurse_through_entries: Whether to consolidate nested composites too.
        recurse_through_stack: Whether to consolidate each composite of a stack too.

    Raises:
        InvalidArgumentError: If a key is missing in some composites, and has specs of different classes in others.
    """
    if isinstance(spec, LazyStackedCompositeSpec):
        members = [member.clone() for member in spec.unbind(spec.dim)]
        if recurse_through_stack:
            members = [consolidate_spec(member, recurse_through_entries, recurse_through_stack) for member in members]
        for name in dict.fromkeys(name for member in members for name in member):
            specs = [member[name] for member in members if name in member]
            for member in members:
                if name not in member:
                    member[name] = _empty_spec(name, specs, member)
        copy: Any = LazyStackedCompositeSpec(*members, dim=spec.dim)
    else:
        copy = spec.clone()
    if isinstance(copy, CompositeSpec) and recurse_through_entries:
        for name, inner in copy.items():
            if isinstance(inner, CompositeSpec):
                copy[name] = consolidate_spec(inner, recurse_through_entries, recurse_through_stack)
    return copy


def _empty_spec(name: str, specs: list[Any], parent: CompositeSpec) -> Any:
    first = specs[0]
    if any(type(spec) is not type(first) for spec in specs):
        classes = ", ".join(sorted({type(spec).__name__ for spec in specs}))
        raise InvalidArgumentError(f"the specs of {name} are of the classes {classes}, expected a single class")
    if first is None:
        return None
    if isinstance(first, CompositeSpec):
        return first.empty()
    # A lazy stack has size -1 along axes where specs differ. A spec of empty tensors has size 0 along these axes.
    same_shape = -1 not in first.shape and all(spec.shape == first.shape for spec in specs)
    shape = [
        0
        if (axis >= parent.ndim if same_shape else size == -1 or len({spec.shape[axis] for spec in specs}) > 1)
        else size
        for axis, size in enumerate(first.shape)
    ]
    # Unbounded, because empty tensors are in all bounds.
    return NonTensorSpec(shape) if first.dtype is None else Unbounded(shape, first.device, first.dtype)


def check_no_exclusive_keys(spec: TensorSpec | None, recurse: bool = True) -> bool:
    """Return whether the composites of every lazy stack in a spec have the same keys.

    Args:
        spec: Any spec.
        recurse: Whether to check nested composites too.
    """
    if isinstance(spec, LazyStackedCompositeSpec):
        members = spec.unbind(spec.dim)
        return all(
            set(member) == set(spec) and (not recurse or check_no_exclusive_keys(member, recurse)) for member in members
        )
    if isinstance(spec, CompositeSpec) and recurse:
        return all(check_no_exclusive_keys(inner, recurse) for inner in spec.values())
    return True


def contains_lazy_spec(spec: TensorSpec | None) -> bool:
    """Return whether a spec is or contains a lazy stack."""
    if isinstance(spec, (LazyStackedTensorSpec, LazyStackedCompositeSpec)):
        return True
    return isinstance(spec, CompositeSpec) and any(contains_lazy_spec(inner) for inner in spec.values())

"""Lazy stacks of specs that differ, in which each spec is stored separately."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from tensordict import LazyStackedTensorDict
from torch import Tensor
from typing_extensions import override

from datasets_rl.errors import InvalidArgumentError, UnknownKeyError
from datasets_rl.specs._document import SpecDocument
from datasets_rl.specs._errors import NotSupportedBySpecError
from datasets_rl.specs.base import LeafSpec, Rearrange, TensorSpec, as_device, parse_shape, without_ellipsis
from datasets_rl.specs.composite import CompositeSpec


class _Stacked(TensorSpec):
    """Base class of lazy stacks: specs stacked along a new axis. Operations on the other axes apply to each spec.

    Only axes before the stack axis can be reshaped, and only the stack axis can be indexed with a tensor. Removing the
    stack axis by `squeeze` returns the only spec.

    Args:
        *specs: Specs with the same number of axes and device, not empty. Specs without a device get the device of the
            other specs.
        dim: Axis of the stack along which the specs are stacked.

    Raises:
        InvalidArgumentError: If no spec is given, or the specs differ in number of axes, device or another attribute
            that must be equal.
    """

    def __init__(self, *specs: Any, dim: int = 0) -> None:
        members = on_one_device(specs)
        if not members:
            raise InvalidArgumentError("no specs to stack, expected at least one")
        for name in ("ndim", "device", *self._shared_attributes):
            values = [getattr(spec, name) for spec in members]
            if any(value != values[0] for value in values):
                raise InvalidArgumentError(f"the specs differ in {name}: {', '.join(map(str, values))}")
        self._members = members
        self.device = members[0].device
        self.dim = normalized_axis(dim, members[0].ndim + 1)

    _shared_attributes: ClassVar[tuple[str, ...]] = ()
    """Names of further attributes that must be equal for all specs."""

    @property
    def stack_dim(self) -> int:
        """Axis along which the specs are stacked."""
        return self.dim

    @property
    def shape(self) -> torch.Size:
        """Shape of the stack. An axis along which the sizes of the specs differ, or are -1, has size -1."""
        columns = zip(*[spec.shape for spec in self._members], strict=True)
        shape = [column[0] if len(set(column)) == 1 else -1 for column in columns]
        return torch.Size([*shape[: self.dim], len(self._members), *shape[self.dim :]])

    @shape.setter
    def shape(self, shape: Sequence[int]) -> None:
        self._resized(parse_shape(shape))

    def __len__(self) -> int:
        """Return the size of the first axis."""
        return self.shape[0]

    @override
    def numel(self) -> int:
        return sum(spec.numel() for spec in self._members)

    # --- the set

    def _stack_values(self, values: list[Any], lead: Sequence[int]) -> Any:
        """Stack the values of the specs, each with the leading axes `lead`."""
        raise NotImplementedError

    def _filled(self, fill: Callable[[Any], Any], lead: torch.Size) -> Any:
        return self._stack_values([fill(spec) for spec in self._members], lead)

    def _components(self, value: Any) -> list[Any] | None:
        """Return a component of a value for each spec, or `None` if the value is not stacked like the specs."""
        if isinstance(value, (list, tuple)):
            components = list(value)
        else:
            lead = value.ndim - self.ndim if hasattr(value, "ndim") else -1
            components = list(value.unbind(lead + self.dim)) if lead >= 0 else []
        return components if len(components) == len(self._members) else None

    def _pairs(self, value: Any) -> list[tuple[Any, Any]]:
        """Return the pairs of spec and component of a value."""
        components = self._components(value)
        if components is None:
            raise InvalidArgumentError(
                f"a {type(value).__name__} is not stacked like {self._named()},"
                f" expected {len(self._members)} components along axis {self.dim}"
            )
        return list(zip(self._members, components, strict=True))

    def _stack_components(self, components: list[Any]) -> Any:
        return self._stack_values(components, components[0].shape[: components[0].ndim - self._members[0].ndim])

    @override
    def is_in(self, value: Any) -> bool:
        return self._components(value) is not None and all(spec.is_in(item) for spec, item in self._pairs(value))

    @override
    def problems(self, value: Any, place: str = "value") -> list[str]:
        if self._components(value) is None:
            shape = list(value.shape) if hasattr(value, "shape") and not getattr(value, "is_nested", False) else None
            described = f"a {type(value).__name__}" if shape is None else f"of shape {shape}"
            return [f"{place} is {described}, expected {len(self._members)} components along axis {self.dim}"]
        pairs = enumerate(self._pairs(value))
        return [reason for row, (spec, item) in pairs for reason in spec.problems(item, f"{place}[{row}]")]

    def _projected(self, value: Any) -> Any:
        return self._stack_components([spec.project(component) for spec, component in self._pairs(value)])

    @override
    def type_check(self, value: Any, key: Any = None) -> None:
        for spec, component in self._pairs(value):
            spec.type_check(component, key)

    @override
    def cardinality(self) -> float:
        count: float = _only_count([spec.cardinality() for spec in self._members])
        return count

    @override
    def enumerate(self, use_mask: bool = False) -> Any:
        outcomes = [spec.enumerate(use_mask) for spec in self._members]
        return self._stack_values(outcomes, (_only_count(sorted({len(of_spec) for of_spec in outcomes})),))

    @override
    def encode(self, val: Any, *, ignore_device: bool = False) -> Any:
        pairs = self._pairs(torch.as_tensor(val) if hasattr(val, "__array__") else val)
        return self._stack_components([spec.encode(item, ignore_device=ignore_device) for spec, item in pairs])

    def _to_numpy(self, val: Any) -> Any:
        return [spec.to_numpy(component) for spec, component in self._pairs(val)]

    # --- shapes: operations on other axes than that of the stack apply to each spec

    def _each(self, function: Callable[[Any], Any], dim: int | None = None) -> Any:
        """Return the stack of the results of a function of each spec."""
        return type(self)(*map(function, self._members), dim=self.dim if dim is None else dim)

    @override
    def rearranged(self, rearrange: Rearrange) -> Any:
        return rearrange(self)  # the stack has the shape methods of a tensor that operations call

    def _reshape_error(self) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"{self._named()} cannot be reshaped at the stack axis {self.dim}",
            hint="`unbind` the stack, reshape the specs, and stack the specs again",
        )

    def _inner(self, axis: int) -> int:
        """Return the axis of the specs that corresponds to an axis of the stack."""
        return axis - (axis > self.dim)

    @override
    def reshape(self, *shape: Any) -> Any:
        new_shape = parse_shape(*shape)
        dim = len(new_shape) - (self.ndim - self.dim)
        if dim < 0 or new_shape[dim:] != self.shape[self.dim :] or -1 in new_shape[:dim]:
            raise self._reshape_error()
        return self._each(lambda spec: spec.reshape((*new_shape[:dim], *spec.shape[self.dim :])), dim)

    @override
    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Any:
        start, end = self._axis(start_dim), self._axis(end_dim)
        if not start <= end < self.dim:
            raise self._reshape_error()
        return self._each(lambda spec: spec.flatten(start, end), self.dim - (end - start))

    @override
    def unflatten(self, dim: int, sizes: Sequence[int]) -> Any:
        axis = self._axis(dim)
        if axis == self.dim:
            raise self._reshape_error()
        before = axis < self.dim
        return self._each(lambda spec: spec.unflatten(self._inner(axis), sizes), self.dim + before * (len(sizes) - 1))

    @override
    def expand(self, *shape: Any) -> Any:
        new_shape = parse_shape(*shape)
        extra = len(new_shape) - self.ndim
        dim = extra + self.dim
        if extra < 0 or new_shape[dim] not in {-1, len(self._members)}:
            raise InvalidArgumentError(f"{self._named()} cannot be expanded to {list(new_shape)}")
        inner = [*new_shape[:dim], *new_shape[dim + 1 :]]

        def expanded(spec: Any) -> Any:
            pairs = zip(inner[extra:], spec.shape, strict=True)
            return spec.expand(*inner[:extra], *[size if new_size == -1 else new_size for new_size, size in pairs])

        return self._each(expanded, dim)

    @override
    def make_neg_dim(self, dim: int) -> None:
        axis = self._axis(dim)
        if axis == self.dim:
            raise InvalidArgumentError(
                f"the size of the stack axis {axis} is the number of specs, expected another axis"
            )
        for spec in self._members:
            spec.make_neg_dim(self._inner(axis))

    @override
    def unsqueeze(self, dim: int) -> Any:
        axis = self._axis(dim, self.ndim + 1)
        return self._each(lambda spec: spec.unsqueeze(self._inner(axis)), self.dim + (axis <= self.dim))

    @override
    def squeeze(self, dim: int | None = None) -> Any:
        if dim is None:
            spec: Any = self
            for axis in reversed(range(self.ndim)):
                spec = spec.squeeze(axis)
            return spec
        axis = self._axis(dim)
        if self.shape[axis] != 1:
            return self
        if axis == self.dim:
            return self._members[0]
        return self._each(lambda spec: spec.squeeze(self._inner(axis)), self.dim - (axis < self.dim))

    @override
    def unbind(self, dim: int = 0) -> tuple[Any, ...]:
        axis = self._axis(dim)
        if axis == self.dim:
            return tuple(self._members)
        if self.shape[axis] == -1:
            raise InvalidArgumentError(
                f"{self._named()} cannot be unbound along axis {axis}: the specs have different sizes"
            )
        columns = zip(*[spec.unbind(self._inner(axis)) for spec in self._members], strict=True)
        return tuple(stack_specs(list(column), self.dim - (axis < self.dim)) for column in columns)

    @override
    def index_select(self, dim: int, index: Tensor) -> Any:
        return self[(*(slice(None),) * self._axis(dim), index)]

    def __getitem__(self, index: Any) -> Any:
        entries = without_ellipsis(index, self.ndim)
        entries += (slice(None),) * (self.ndim - sum(entry is not None for entry in entries))
        places = [place for place, entry in enumerate(entries) if entry is not None]
        # The entry of the stack axis indexes the list of specs, and the other entries index each spec.
        place = places[self.dim]
        selected, inner = entries[place], (*entries[:place], *entries[place + 1 :])
        if len(places) > self.ndim or any(isinstance(entry, Tensor) for entry in inner):
            raise IndexError(
                f"{self._named()} cannot be indexed with {index!r}: only axis {self.dim} supports tensor indices"
            )
        while inner and inner[-1] == slice(None):  # the last axis of a one-hot spec does not support slices
            inner = inner[:-1]
        if isinstance(selected, Tensor) and selected.dtype != torch.bool and not selected.ndim:
            selected = int(selected)
        if isinstance(selected, Tensor) and selected.ndim != 1:
            raise IndexError(f"the tensor index of the stack axis has {selected.ndim} axes, expected 1")
        numbers = torch.arange(len(self._members))[selected].tolist()
        if isinstance(numbers, int):
            return self._members[numbers][inner] if inner else self._members[numbers]
        if not numbers:
            raise IndexError(f"the index selects none of the {len(self._members)} specs of the stack")
        members = [self._members[number][inner] if inner else self._members[number] for number in numbers]
        return stack_specs(members, sum(not isinstance(entry, int) for entry in entries[:place]))

    # --- copies and JSON

    @override
    def to(self, dest: Any) -> Any:
        if dest is None:
            return self
        stacked = self._each(lambda spec: spec.to(dest))
        if not isinstance(dest, torch.dtype):
            stacked.device = as_device(dest)
        return stacked

    @override
    def clear_device_(self) -> Any:
        for spec in self._members:
            spec.clear_device_()
        self.device = self._members[0].device
        return self

    @override
    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "dim": self.dim, "specs": [spec.to_json() for spec in self._members]}

    @classmethod
    @override
    def read(cls, document: SpecDocument) -> Any:
        dim, specs = document.integer("dim", 0), document.specs("specs")
        return cls(*specs, dim=dim) if document.valid else None

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.dim == other.dim and self._members == other._members

    __hash__ = TensorSpec.__hash__

    def __repr__(self) -> str:
        members = "".join(f"\n    {str(spec).replace(chr(10), chr(10) + '    ')}," for spec in self._members)
        return f"{type(self).__name__}({members}\n    dim={self.dim})"


class LazyStackedTensorSpec(_Stacked):
    """Lazy stack of tensor specs that differ in shape or domain.

    Values are stacked tensors if the shapes of the specs are equal, and nested tensors otherwise. Torch can stack nested
    tensors along the first axis only. An axis along which the sizes of the specs differ has size -1.

        >>> import torch
        >>> from datasets_rl import Bounded
        >>> arms = torch.stack([Bounded(-1, 1, (2,)), Bounded(-5, 5, (2,))])
        >>> arms.shape
        torch.Size([2, 2])
        >>> arms[1].high
        tensor([5., 5.])

    Args:
        *specs: Specs of tensors with the same number of axes, dtype and device, not empty.
        dim: Axis of the stack along which the specs are stacked.

    Raises:
        InvalidArgumentError: If no spec is given, a spec is a composite, or the specs differ in number of axes, dtype
            or device.
    """

    kind = "stacked"
    _shared_attributes = ("dtype",)
    space = None

    def __init__(self, *specs: Any, dim: int = 0) -> None:
        invalid = next((spec for spec in specs if not isinstance(spec, (LeafSpec, LazyStackedTensorSpec))), None)
        if invalid is not None:
            raise InvalidArgumentError(f"cannot stack a {type(invalid).__name__}, expected specs of tensors")
        super().__init__(*specs, dim=dim)

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of every spec."""
        dtype: torch.dtype = self._members[0].dtype
        return dtype

    @property
    def domain(self) -> str:  # type: ignore[override]  # a constant of the other classes
        """Domain of the first spec."""
        domain: str = self._members[0].domain
        return domain

    def _stack_values(self, values: list[Any], lead: Sequence[int]) -> Tensor:
        if len({tuple(value.shape) for value in values}) == 1:
            return torch.stack(values, len(lead) + self.dim)
        if lead or self.dim:
            raise InvalidArgumentError(
                f"the shapes of {self._named()} differ, and torch stacks such tensors along the first axis only",
                hint="stack along axis 0 without extra leading axes, or `unbind` the spec",
            )
        nested: Tensor = torch.nested.nested_tensor(values)
        return nested


class LazyStackedCompositeSpec(_Stacked, CompositeSpec):
    """Lazy stack of composites with different keys or specs.

    Values are lazily stacked TensorDicts. The keys of the stack are the keys that all composites have, and the spec of a
    key is the stack of the specs of this key in the composites.

    Args:
        *specs: Composites with the same batch size and device, not empty.
        dim: Axis of the stack along which the composites are stacked.

    Raises:
        InvalidArgumentError: If no spec is given, a spec is not a composite, or the composites differ in batch size or
            device.
    """

    kind = "stacked_composite"
    _shared_attributes = ("shape",)

    def __init__(self, *specs: Any, dim: int = 0) -> None:
        invalid = next((spec for spec in specs if not isinstance(spec, CompositeSpec)), None)
        if invalid is not None:
            raise InvalidArgumentError(f"cannot stack a {type(invalid).__name__}, expected composites")
        super().__init__(*specs, dim=dim)
        self._specs, self._names, self._locked = {}, None, False
        self.data_cls = None
        self.step_mdp_static = False

    def _stack_values(self, values: list[Any], lead: Sequence[int]) -> Any:
        return LazyStackedTensorDict.maybe_dense_stack(values, len(lead) + self.dim)

    # --- entries

    def _entries(self) -> list[str]:
        return [name for name in self._members[0] if all(name in spec for spec in self._members[1:])]

    def _entry(self, name: str) -> Any:
        entries = [spec[name] for spec in self._members]
        return None if any(entry is None for entry in entries) else stack_specs(entries, self.dim)

    def set(self, name: str | Sequence[Any], spec: Any) -> LazyStackedCompositeSpec:
        """Unbind a spec along the stack axis, set component i in composite i, and return the stack.

        Raises:
            InvalidArgumentError: If the size of the spec along the stack axis is not the number of composites, or the
                stack is locked.
        """
        for member, component in self._unbind_entry(name, spec):
            member.set(name, component)
        return self

    @override
    def update(self, dict_or_spec: Mapping[Any, Any] | CompositeSpec) -> LazyStackedCompositeSpec:
        for key, spec in dict_or_spec.items():
            for member, component in self._unbind_entry(key, spec):
                member.update({key: component})
        return self

    def _unbind_entry(self, name: Any, spec: Any) -> list[tuple[CompositeSpec, Any]]:
        """Return the pairs of a composite and a component of a spec, as for `set`."""
        self._check_unlocked()
        if isinstance(spec, Mapping):
            spec = CompositeSpec(spec, shape=self.shape, device=self.device)
        components = [None] * len(self._members) if spec is None else spec.unbind(self.dim)
        if len(components) != len(self._members):
            raise InvalidArgumentError(
                f"{name} has {len(components)} specs along axis {self.dim}, expected {len(self._members)}"
            )
        return list(zip(self._members, components, strict=True))

    def _remove(self, name: str) -> None:
        for spec in self._members:
            del spec[name]

    def __delitem__(self, key: str | Sequence[Any]) -> None:
        members = [spec for spec in self._members if key in spec]
        if not members:
            raise UnknownKeyError(str(key), [str(name) for name in self.keys(True)])
        for spec in members:
            del spec[key]

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, (str, tuple)) and index in self:
            return self._at((index,) if isinstance(index, str) else index)
        if isinstance(index, str):
            raise UnknownKeyError(index, [str(name) for name in self.keys(True)])
        return _Stacked.__getitem__(self, index)

    @override
    def empty(self) -> Any:
        return self._each(lambda spec: spec.empty())

    @override
    def is_empty(self, recurse: bool = False) -> bool:
        return all(spec.is_empty(recurse) for spec in self._members)

    def _lock(self, locked: bool, *, recurse: bool) -> None:
        self._locked = locked
        for spec in self._members:
            spec._lock(locked, recurse=recurse)  # noqa: SLF001  # same class

    @override
    def clone(self) -> Any:
        return self._each(lambda spec: spec.clone())


def _only_count(counts: list[Any]) -> Any:
    """Return the number of outcomes of all specs of a stack."""
    if len(set(counts)) > 1:
        raise InvalidArgumentError(f"the specs have {counts} outcomes, expected the same number of each")
    return counts[0]


def on_one_device(specs: Sequence[Any]) -> list[Any]:
    """Return the specs. If all specs with a device have the same device, specs without a device get this device."""
    devices = {spec.device for spec in specs}
    if len(devices) == 2 and None in devices:
        device = (devices - {None}).pop()
        return [spec.to(device) for spec in specs]
    return list(specs)


def normalized_axis(dim: int, ndim: int) -> int:
    """Return the non-negative index of an axis."""
    if not -ndim <= dim < ndim:
        raise InvalidArgumentError(f"dim is {dim}, expected {-ndim} to {ndim - 1}")
    return dim % ndim


@TensorSpec.implements_for_spec(torch.stack)
def stack_specs(specs: Sequence[TensorSpec], dim: int = 0, *, out: Any = None) -> Any:
    """Stack specs along a new axis. Return an expanded spec if all specs are equal, and a lazy stack otherwise.

    Args:
        specs: The specs, not empty.
        dim: Axis of the stack along which the specs are stacked.
        out: An argument of `torch.stack` that has no meaning for specs.

    Raises:
        InvalidArgumentError: If no spec is given, the specs differ in number of axes, dtype or device, or only some
            specs are composites.
        NotSupportedBySpecError: If `out` is given.
    """
    if out is not None:
        raise NotSupportedBySpecError("torch.stack of specs has no argument out", hint="use the returned spec")
    specs = on_one_device(specs)
    if not specs:
        raise InvalidArgumentError("no specs to stack, expected at least one")
    first = specs[0]
    if all(spec == first for spec in specs[1:]) and not isinstance(first, _Stacked):
        axis = normalized_axis(dim, first.ndim + 1)
        single = first.clone().unsqueeze(axis)
        return single.expand(*first.shape[:axis], len(specs), *first.shape[axis:])
    if isinstance(first, CompositeSpec):
        return LazyStackedCompositeSpec(*specs, dim=dim)
    return LazyStackedTensorSpec(*specs, dim=dim)

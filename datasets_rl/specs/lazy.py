"""Specs that are unlike, stacked: each stays what it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from tensordict import LazyStackedTensorDict
from torch import Generator, Tensor

from datasets_rl.errors import InvalidArgumentError, UnknownKeyError
from datasets_rl.specs._document import Entry
from datasets_rl.specs.base import Lead, LeafSpec, Move, TensorSpec, as_device, sizes, without_ellipsis
from datasets_rl.specs.composite import CompositeSpec

__all__ = ["LazyStackedCompositeSpec", "LazyStackedTensorSpec", "stack"]


class _Stacked(TensorSpec):
    """Specs along an axis of their own. What is done to the others axes is done to each of them.

    Args:
        *specs: At least one, all with the same number of axes.
        dim: Which axis of the stack they are along.

    Raises:
        InvalidArgumentError: If there is none, or they differ in what they must have in common.
    """

    def __init__(self, *specs: Any, dim: int = 0) -> None:
        if not specs:
            raise InvalidArgumentError("there is no spec to stack")
        for name in ("ndim", "device", *self._alike):
            there = [getattr(spec, name) for spec in specs]
            if any(other != there[0] for other in there):
                raise InvalidArgumentError(f"the specs differ in their {name}: {', '.join(map(str, there))}")
        self._members = list(specs)
        self.device = specs[0].device
        self.dim = counted(dim, specs[0].ndim + 1)

    _alike: ClassVar[tuple[str, ...]] = ()
    """What else the specs must have in common."""

    @property
    def stack_dim(self) -> int:
        """Which axis the specs are along."""
        return self.dim

    @property
    def shape(self) -> torch.Size:
        """Of the stack; an axis in which the specs differ has size -1."""
        columns = zip(*[spec.shape for spec in self._members], strict=True)
        shape = [column[0] if len(set(column)) == 1 else -1 for column in columns]
        return torch.Size([*shape[: self.dim], len(self._members), *shape[self.dim :]])

    def numel(self) -> int:
        """Return how many numbers a member of the set has."""
        return sum(spec.numel() for spec in self._members)

    # --- the set

    def _gathered(self, drawn: list[Any], lead: torch.Size) -> Any:
        """Stack what came of each spec."""
        raise NotImplementedError

    def rand(self, shape: Lead = None, *, generator: Generator | None = None) -> Any:
        """Draw from each spec, and stack the draws."""
        lead = sizes(shape)
        return self._gathered([spec.rand(lead, generator=generator) for spec in self._members], lead)

    def zero(self, shape: Lead = None) -> Any:
        """Return the zeros of each spec, stacked."""
        lead = sizes(shape)
        return self._gathered([spec.zero(lead) for spec in self._members], lead)

    def one(self, shape: Lead = None) -> Any:
        """Return the ones of each spec, stacked."""
        lead = sizes(shape)
        return self._gathered([spec.one(lead) for spec in self._members], lead)

    def _parts(self, value: Any) -> list[Any] | None:
        """Return what a value has for each spec; None if it is not stacked like them."""
        if isinstance(value, (list, tuple)):
            parts = list(value)
        else:
            lead = value.ndim - self.ndim if hasattr(value, "ndim") else -1
            parts = list(value.unbind(lead + self.dim)) if lead >= 0 else []
        return parts if len(parts) == len(self._members) else None

    def _expected_parts(self, value: Any) -> list[Any]:
        parts = self._parts(value)
        if parts is None:
            raise InvalidArgumentError(f"a {type(value).__name__} is not stacked like {self._named()}")
        return parts

    def is_in(self, value: Any) -> bool:
        """Say whether each part of a value is in its spec."""
        parts = self._parts(value)
        return parts is not None and all(spec.is_in(part) for spec, part in zip(self._members, parts, strict=True))

    def misfits(self, value: Any, place: str = "value") -> list[str]:
        """Say why a value is not in the set, for each part of it."""
        parts = self._parts(value)
        if parts is None:
            shape = list(value.shape) if hasattr(value, "shape") and not getattr(value, "is_nested", False) else None
            described = f"a {type(value).__name__}" if shape is None else f"of shape {shape}"
            return [f"{place} is {described}; expected {len(self._members)} parts along axis {self.dim}"]
        numbered = enumerate(zip(self._members, parts, strict=True))
        return [reason for number, (spec, part) in numbered for reason in spec.misfits(part, f"{place}[{number}]")]

    def project(self, value: Any) -> Any:
        """Return the value with each part projected by its spec, or the value itself if it is in the set.

        Raises:
            InvalidArgumentError: If it is not stacked like the specs, or a part has another shape.
        """
        if self.is_in(value):
            return value
        parts = self._expected_parts(value)
        near = [spec.project(part) for spec, part in zip(self._members, parts, strict=True)]
        return self._gathered(near, near[0].shape[: near[0].ndim - self._members[0].ndim])

    def type_check(self, value: Any, key: Any = None) -> None:
        """Refuse a value with a part of another dtype."""
        for spec, part in zip(self._members, self._expected_parts(value), strict=True):
            spec.type_check(part, key)

    def cardinality(self) -> float:
        """Return how many outcomes every spec has.

        Raises:
            InvalidArgumentError: If that differs.
        """
        counts: list[float] = [spec.cardinality() for spec in self._members]
        if len(set(counts)) > 1:
            raise InvalidArgumentError(f"the specs have {counts} outcomes; expected the same number of each")
        return counts[0]

    def enumerate(self, use_mask: bool = False) -> Any:
        """Return the outcomes of each spec side by side, behind the new first axis.

        Raises:
            InvalidArgumentError: If they have different numbers of them.
        """
        outcomes = [spec.enumerate(use_mask) for spec in self._members]
        counts = {len(one) for one in outcomes}
        if len(counts) > 1:
            raise InvalidArgumentError(f"the specs have {sorted(counts)} outcomes; expected the same number of each")
        return self._gathered(outcomes, torch.Size(counts))

    def encode(self, val: Any, *, ignore_device: bool = False) -> Any:
        """Encode each part of a value, and stack them."""
        parts = self._expected_parts(torch.as_tensor(val) if hasattr(val, "__array__") else val)
        encoded = [
            spec.encode(part, ignore_device=ignore_device) for spec, part in zip(self._members, parts, strict=True)
        ]
        return self._gathered(encoded, encoded[0].shape[: encoded[0].ndim - self._members[0].ndim])

    def to_numpy(self, val: Any, safe: bool | None = None) -> Any:
        """Undo `encode`: what each part is, in a list."""
        if safe:
            self.assert_is_in(val)
        return [spec.to_numpy(part) for spec, part in zip(self._members, self._expected_parts(val), strict=True)]

    # --- shapes

    def moved(self, move: Move) -> Any:
        """Do to the stack what `move` does to tensors of its shape: a stack has the methods that it calls."""
        return move(self)

    def _refused(self) -> InvalidArgumentError:
        return InvalidArgumentError(f"{self._named()} cannot be reshaped", hint="`unbind` it, and reshape the specs")

    def _inner(self, axis: int) -> int:
        """Return which axis of a spec an axis of the stack is."""
        return axis - (axis > self.dim)

    def reshape(self, *shape: Any) -> Any:
        """Arrange the axes before that of the stack in another shape.

        Raises:
            InvalidArgumentError: If the others do not stay as they are.
        """
        wanted, kept = sizes(*shape), self.ndim - self.dim
        dim = len(wanted) - kept
        if dim < 0 or wanted[dim:] != self.shape[self.dim :] or -1 in wanted[:dim]:
            raise self._refused()
        members = [spec.reshape((*wanted[:dim], *spec.shape[self.dim :])) for spec in self._members]
        return type(self)(*members, dim=dim)

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Any:
        """Make one axis of several before that of the stack.

        Raises:
            InvalidArgumentError: If they are not all before it.
        """
        start, end = self._axis(start_dim), self._axis(end_dim)
        if not start <= end < self.dim:
            raise self._refused()
        members = [spec.flatten(start, end) for spec in self._members]
        return type(self)(*members, dim=self.dim - (end - start))

    def unflatten(self, dim: int, sizes: Sequence[int]) -> Any:
        """Make several axes of one that is not that of the stack."""
        axis = self._axis(dim)
        if axis == self.dim:
            raise self._refused()
        members = [spec.unflatten(self._inner(axis), sizes) for spec in self._members]
        return type(self)(*members, dim=self.dim + (axis < self.dim) * (len(sizes) - 1))

    def expand(self, *shape: Any) -> Any:
        """Repeat along axes of size 1 and new leading axes; -1 leaves an axis as it is."""
        wanted = sizes(*shape)
        extra = len(wanted) - self.ndim
        dim = extra + self.dim
        if extra < 0 or wanted[dim] not in {-1, len(self._members)}:
            raise InvalidArgumentError(f"{self._named()} cannot be expanded to {list(wanted)}")
        others = [*wanted[:dim], *wanted[dim + 1 :]]
        members = []
        for spec in self._members:
            own = [size if want == -1 else want for want, size in zip(others[extra:], spec.shape, strict=True)]
            members.append(spec.expand(*others[:extra], *own))
        return type(self)(*members, dim=dim)

    def unsqueeze(self, dim: int) -> Any:
        """Insert an axis of size 1."""
        axis = self._axis(dim, self.ndim + 1)
        if axis <= self.dim:
            return type(self)(*[spec.unsqueeze(axis) for spec in self._members], dim=self.dim + 1)
        return type(self)(*[spec.unsqueeze(axis - 1) for spec in self._members], dim=self.dim)

    def squeeze(self, dim: int | None = None) -> Any:
        """Remove an axis of size 1, or all of them; without the axis of the stack, what was stacked is left."""
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
        return type(self)(
            *[spec.squeeze(self._inner(axis)) for spec in self._members], dim=self.dim - (axis < self.dim)
        )

    def unbind(self, dim: int = 0) -> tuple[Any, ...]:
        """Return the specs along an axis, without it."""
        axis = self._axis(dim)
        if axis == self.dim:
            return tuple(self._members)
        if self.shape[axis] == -1:
            raise InvalidArgumentError(f"{self._named()} differs along axis {axis}, and has no specs along it")
        columns = zip(*[spec.unbind(self._inner(axis)) for spec in self._members], strict=True)
        return tuple(stack(list(column), self.dim - (axis < self.dim)) for column in columns)

    def index_select(self, dim: int, index: Tensor) -> Any:
        """Take places along an axis."""
        return self[(*(slice(None),) * self._axis(dim), index)]

    def __getitem__(self, index: Any) -> Any:
        entries = without_ellipsis(index, self.ndim)
        axis, own = 0, None
        before: list[Any] = []
        after: list[Any] = []
        missing = self.dim + 1 - sum(entry is not None for entry in entries)
        for entry in (*entries, *(slice(None),) * missing):
            if entry is not None and axis == self.dim:
                own = entry
            else:
                (before if axis <= self.dim and own is None else after).append(entry)
            axis += entry is not None
        if axis > self.ndim or any(isinstance(one, Tensor) for one in (*before, *after)):
            raise IndexError(
                f"{self._named()} cannot be indexed with {index!r}: only its axis {self.dim} takes tensors"
            )
        inner = (*before, *after)
        while inner and inner[-1] == slice(None):  # which the last axis of a one-hot spec does not take either
            inner = inner[:-1]
        if isinstance(own, Tensor) and not own.ndim and own.dtype != torch.bool:
            own = int(own)
        if isinstance(own, int):
            return self._members[own][inner] if inner else self._members[own]
        chosen = (
            range(len(self._members)) if own is None else torch.arange(len(self._members))[own].reshape(-1).tolist()
        )
        if isinstance(own, Tensor) and own.ndim != 1:
            raise IndexError(f"an index of the stack has {own.ndim} axes; expected one")
        members = [self._members[number][inner] if inner else self._members[number] for number in chosen]
        if not members:
            raise IndexError("the index leaves nothing of the stack")
        return stack(members, sum(not isinstance(one, int) for one in before))

    # --- copies and documents

    def to(self, dest: Any) -> Any:
        """Return the stack of the specs for a dtype or a device."""
        if dest is None:
            return self
        stacked = type(self)(*[spec.to(dest) for spec in self._members], dim=self.dim)
        if not isinstance(dest, torch.dtype):
            stacked.device = as_device(dest)
        return stacked

    def clear_device_(self) -> Any:
        """Forget the devices of composites."""
        for spec in self._members:
            spec.clear_device_()
        self.device = self._members[0].device
        return self

    def to_json(self) -> dict[str, Any]:
        """Describe the spec as JSON that `from_json` reads."""
        return {"kind": self.kind, "dim": self.dim, "specs": [spec.to_json() for spec in self._members]}

    @classmethod
    def read(cls, entry: Entry) -> Any:
        """Read a spec of this kind."""
        dim, specs = entry.whole("dim", 0), entry.specs("specs")
        return cls(*specs, dim=dim) if entry.sound else None

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.dim == other.dim and self._members == other._members

    __hash__ = TensorSpec.__hash__

    def __repr__(self) -> str:
        members = "".join(f"\n    {str(spec).replace(chr(10), chr(10) + '    ')}," for spec in self._members)
        return f"{type(self).__name__}({members}\n    dim={self.dim})"


class LazyStackedTensorSpec(_Stacked):
    """Specs of tensors that are unlike, along an axis of their own.

    Its members are stacked tensors where the shapes are the same, and nested tensors otherwise, which torch can only
    stack along the first axis. An axis in which the specs differ has size -1.

    Args:
        *specs: At least one, all with the same number of axes, dtype and device, and none a composite.
        dim: Which axis of the stack they are along.

    Raises:
        InvalidArgumentError: If there is none, or they differ in that.
    """

    kind = "stacked"
    _alike = ("dtype",)
    space = None

    def __init__(self, *specs: Any, dim: int = 0) -> None:
        wrong = next((spec for spec in specs if not isinstance(spec, (LeafSpec, LazyStackedTensorSpec))), None)
        if wrong is not None:
            raise InvalidArgumentError(f"a {type(wrong).__name__} is among the specs; expected specs of tensors")
        super().__init__(*specs, dim=dim)

    @property
    def dtype(self) -> torch.dtype:
        """Of every spec."""
        dtype: torch.dtype = self._members[0].dtype
        return dtype

    @property
    def domain(self) -> str:  # type: ignore[override]  # of the other kinds it is a constant
        """Of the first spec."""
        domain: str = self._members[0].domain
        return domain

    def _gathered(self, drawn: list[Any], lead: torch.Size) -> Tensor:
        if len({tuple(one.shape) for one in drawn}) == 1:
            return torch.stack(drawn, len(lead) + self.dim)
        if lead or self.dim:
            raise InvalidArgumentError(
                f"the shapes of {self._named()} differ, and torch stacks such tensors along the first axis only",
                hint="stack along axis 0 and give no leading axes, or `unbind` the spec",
            )
        nested: Tensor = torch.nested.nested_tensor(drawn)
        return nested


class LazyStackedCompositeSpec(_Stacked, CompositeSpec):
    """Composites that are unlike, along an axis of their own.

    Its members are TensorDicts that are stacked lazily. Its keys are those that every composite has, and the spec of a
    key is the stack of those there.

    Args:
        *specs: At least one composite, all of one batch size and device.
        dim: Which axis of the stack they are along.

    Raises:
        InvalidArgumentError: If there is none, or they differ in that.
    """

    kind = "stacked_composite"
    _alike = ("shape",)

    def __init__(self, *specs: Any, dim: int = 0) -> None:
        wrong = next((spec for spec in specs if not isinstance(spec, CompositeSpec)), None)
        if wrong is not None:
            raise InvalidArgumentError(f"a {type(wrong).__name__} is among the specs; expected composites")
        super().__init__(*specs, dim=dim)
        self._specs, self._names, self._locked = {}, None, False
        self.data_cls = None
        self.step_mdp_static = False

    @property
    def shape(self) -> torch.Size:
        """Batch size of the stack."""
        shape: torch.Size = _Stacked.shape.__get__(self)
        return shape

    @shape.setter
    def shape(self, shape: Sequence[int]) -> None:
        raise InvalidArgumentError(f"the batch size of a stack cannot be set to {list(shape)}", hint="`expand` it")

    def __len__(self) -> int:
        """Return the first axis of the batch size, as in TorchRL; a plain composite returns the number of its keys."""
        return self.shape[0]

    def _gathered(self, drawn: list[Any], lead: torch.Size) -> Any:
        return LazyStackedTensorDict.maybe_dense_stack(drawn, len(lead) + self.dim)

    # --- its entries

    def _entries(self) -> list[str]:
        return [name for name in self._members[0] if all(name in spec for spec in self._members[1:])]

    def _entry(self, name: str) -> Any:
        entries = [spec[name] for spec in self._members]
        return None if any(one is None for one in entries) else stack(entries, self.dim)

    def set(self, name: str | Sequence[Any], spec: Any) -> LazyStackedCompositeSpec:
        """Set the specs along the axis of the stack, each in its composite."""
        for member, part in zip(self._members, self._along(name, spec), strict=True):
            member.set(name, part)
        return self

    def update(self, dict_or_spec: Mapping[Any, Any] | CompositeSpec) -> LazyStackedCompositeSpec:
        """Set every spec of another composite, along the axis of the stack, each in its composite."""
        for key, spec in dict_or_spec.items():
            for member, part in zip(self._members, self._along(key, spec), strict=True):
                member.update({key: part})
        return self

    def _along(self, name: Any, spec: Any) -> Sequence[Any]:
        """Return the specs along the axis of the stack.

        Raises:
            InvalidArgumentError: If there are more or fewer than there are composites.
        """
        self._expect_unlocked()
        if spec is None:
            return [None] * len(self._members)
        if isinstance(spec, Mapping):
            spec = CompositeSpec(spec, shape=self.shape, device=self.device)
        parts: Sequence[Any] = spec.unbind(self.dim)
        if len(parts) != len(self._members):
            raise InvalidArgumentError(
                f"{name} has {len(parts)} specs along axis {self.dim}; expected {len(self._members)}"
            )
        return parts

    def _remove(self, name: str) -> None:
        for spec in self._members:
            del spec[name]

    def __delitem__(self, key: str | Sequence[Any]) -> None:
        holders = [spec for spec in self._members if key in spec]
        if not holders:
            raise UnknownKeyError(str(key), [str(one) for one in self.keys(True)])
        for spec in holders:
            del spec[key]

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, (str, tuple)) and index in self:
            return self._at((index,) if isinstance(index, str) else index)
        if isinstance(index, str):
            raise UnknownKeyError(index, [str(one) for one in self.keys(True)])
        return _Stacked.__getitem__(self, index)

    def empty(self) -> LazyStackedCompositeSpec:
        """Return a stack of composites without entries."""
        return LazyStackedCompositeSpec(*[spec.empty() for spec in self._members], dim=self.dim)

    def is_empty(self, recurse: bool = False) -> bool:
        """Say whether no composite has entries."""
        return all(spec.is_empty(recurse) for spec in self._members)

    def _lock(self, locked: bool, *, recurse: bool) -> None:
        self._locked = locked
        for spec in self._members:
            spec._lock(locked, recurse=recurse)  # noqa: SLF001  # of its own kind

    def type_check(self, value: Any, key: Any = None) -> None:
        """Refuse a value with an entry of another dtype."""
        _Stacked.type_check(self, value, key)

    def clone(self) -> LazyStackedCompositeSpec:
        """Return a copy that shares nothing with this one, and is not locked."""
        return LazyStackedCompositeSpec(*[spec.clone() for spec in self._members], dim=self.dim)


def counted(dim: int, ndim: int) -> int:
    """Count an axis from the front.

    Raises:
        InvalidArgumentError: If there is none.
    """
    if not -ndim <= dim < ndim:
        raise InvalidArgumentError(f"dim is {dim}; expected {-ndim} to {ndim - 1}")
    return dim % ndim


def stack(specs: Sequence[TensorSpec], dim: int = 0) -> Any:
    """Return specs along a new axis: one spec if they are equal, a lazy stack otherwise.

    Args:
        specs: At least one.
        dim: Which axis of the stack they are along.

    Raises:
        InvalidArgumentError: If there is none, or they differ in number of axes, dtype or device, or only some are composites.
    """
    specs = list(specs)
    if not specs:
        raise InvalidArgumentError("there is no spec to stack")
    first = specs[0]
    if all(spec == first for spec in specs[1:]) and not isinstance(first, _Stacked):
        axis = counted(dim, first.ndim + 1)
        single = first.clone().unsqueeze(axis)
        return single.expand(*first.shape[:axis], len(specs), *first.shape[axis:])
    if isinstance(first, CompositeSpec):
        return LazyStackedCompositeSpec(*specs, dim=dim)
    return LazyStackedTensorSpec(*specs, dim=dim)


TensorSpec.torch_functions[torch.stack] = stack

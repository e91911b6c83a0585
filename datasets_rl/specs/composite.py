"""Composite spec: a mapping of keys to specs."""

from __future__ import annotations

import math
from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping, Sequence, ValuesView
from typing import Any

import torch
from tensordict import TensorDict, is_tensor_collection
from typing_extensions import Self, override

from datasets_rl.errors import InvalidArgumentError, UnknownKeyError
from datasets_rl.notebook import facts_html
from datasets_rl.specs._document import SpecDocument
from datasets_rl.specs._errors import AttributeNameError
from datasets_rl.specs.base import Rearrange, TensorSpec, as_device, created_shape, meta_tensor, parse_shape
from datasets_rl.specs.non_tensor import NonTensorSpec
from datasets_rl.ted.keys import Key, as_key, dotted_name

Child = TensorSpec | None
IsLeaf = Callable[[type], bool] | None
_MISSING: Any = object()
_ATTRIBUTES = {"device", "dtype", "shape", "space"}


class _Keys(KeysView[Any]):
    """Keys of a composite, where ``"a"`` and ``("a",)`` are the same key."""

    def __contains__(self, key: object) -> bool:
        if isinstance(key, tuple) and key and _is_path(key):
            path = _as_path(key)
            key = path if len(path) > 1 else path[0]
        return super().__contains__(key)

    def __repr__(self) -> str:
        return f"keys({list(self)})"


class CompositeSpec(TensorSpec):
    """Spec of TensorDicts: the value of every key must be in the spec of the key. Keys without a spec are ignored.

    A key is a name or a tuple of names. If the spec of a key is `None`, the key may have any value or be missing. The
    draws, zeros and ones are TensorDicts of batch size [*shape, *self.shape]. Copies and reshaped composites are
    unlocked. The JSON omits devices, locks and `data_cls`.

        >>> from datasets_rl import Bounded, Composite, UnboundedContinuous
        >>> spec = Composite(observation=UnboundedContinuous((3,)), action=Bounded(-1, 1, (2,)))
        >>> spec["action"].shape
        torch.Size([2])
        >>> batch = spec.zero([4])
        >>> batch["observation"].shape
        torch.Size([4, 3])

    Args:
        specs: Specs, `None`, or nested mappings of specs, by key.
        shape: Batch size: the leading axes that all specs share.
        device: Device of all specs. By default each spec has a separate device.
        batch_size: Alias of `shape`.
        data_cls: Class of the values that `rand`, `zero`, `one` and `encode` return, instead of TensorDict. Values of
            other classes are not in the set.
        step_mdp_static: Flag for the code that steps an environment. The JSON of the spec includes the flag.
        names: Names of the axes of the batch size.
        **kwargs: More specs by name.

    Raises:
        InvalidArgumentError: If a spec has other leading axes or another device than the composite.
    """

    domain = "composite"
    kind = "composite"
    space = None

    def __init__(
        self,
        specs: Mapping[Any, Any] | CompositeSpec | None = None,
        /,
        *,
        shape: Sequence[int] | int | None = None,
        device: torch.device | str | int | None = None,
        batch_size: Sequence[int] | int | None = None,
        data_cls: type | None = None,
        step_mdp_static: bool = False,
        names: Sequence[str | None] | None = None,
        **kwargs: Any,
    ) -> None:
        if shape is not None and batch_size is not None:
            raise InvalidArgumentError(
                f"shape is {shape} and batch_size is {batch_size}, expected shape or batch_size, not both"
            )
        super().__init__(parse_shape(batch_size if shape is None else shape), device)
        self._specs: dict[str, Child] = {}
        self._names: list[str | None] | None = None
        self._locked = False
        self.data_cls = data_cls
        self.step_mdp_static = step_mdp_static
        for key, spec in {**(dict(specs.items()) if specs is not None else {}), **kwargs}.items():
            self.set(key, spec)
        self.names = names

    # --- shape

    @property
    def shape(self) -> torch.Size:
        """Batch size: the leading axes that all specs share."""
        return self._shape

    @shape.setter
    def shape(self, shape: Sequence[int]) -> None:
        self._check_unlocked()
        batch_size = parse_shape(shape)
        specs = {name: _with_lead(name, spec, batch_size) for name, spec in self._specs.items()}
        self._shape, self._specs, self._names = batch_size, specs, None

    @override
    def make_neg_dim(self, dim: int) -> None:
        self._check_unlocked()
        axis = self._axis(dim)
        for _, spec in self._present():
            spec.make_neg_dim(axis)
        self._shape = torch.Size([*self.shape[:axis], -1, *self.shape[axis + 1 :]])

    @property
    def batch_size(self) -> torch.Size:
        """Alias of `shape`."""
        return self.shape

    @batch_size.setter
    def batch_size(self, batch_size: Sequence[int]) -> None:
        self.shape = parse_shape(batch_size)

    @property
    def names(self) -> list[str | None]:
        """Names of the axes of the batch size, `None` for an axis without a name."""
        return [None] * self.ndim if self._names is None else list(self._names)

    @names.setter
    def names(self, names: Sequence[str | None] | None) -> None:
        if names is not None and len(names) != self.ndim:
            raise InvalidArgumentError(f"Expected {self.ndim} names, but got {len(names)} names: {list(names)}")
        self._names = None if names is None else list(names)
        for spec in self._specs.values():
            if names is not None and isinstance(spec, CompositeSpec):
                spec.names = [*names, *spec.names[self.ndim :]]

    def refine_names(self, *names: Any) -> Self:
        """Name axes that have no name yet, in place, and return the composite.

        Args:
            *names: A name for each axis, `None` for no name, and at most one ellipsis for several axes without a name.

        Raises:
            InvalidArgumentError: If an axis has another name already, or the number of names is not the number of axes.
        """
        refined = list(names)
        if Ellipsis in refined:
            place = refined.index(Ellipsis)
            refined[place : place + 1] = [None] * (self.ndim - len(refined) + 1)
        if any(old not in {None, new} for old, new in zip(self.names, refined, strict=False)):
            raise InvalidArgumentError(
                f"cannot coerce Composite names {self.names} to {list(names)}, expected the same names"
            )
        self.names = refined
        return self

    # --- entries

    def set(self, name: str | Sequence[Any], spec: Any) -> Self:
        """Set the spec of a key, and return the composite.

        Composites and non-tensor specs with a shorter batch size are expanded to the batch size of this composite.

        Raises:
            InvalidArgumentError: If `spec` is not a spec, has other leading axes or another device, or the composite is
                locked. The composite is unchanged then.
        """
        head, *rest = _as_path(name)
        inner = self._specs.get(head)
        if rest and isinstance(inner, CompositeSpec):
            inner.set(tuple(rest), spec)
            return self
        self._check_unlocked()
        if rest:
            if inner is not None:
                raise InvalidArgumentError(
                    f"{head} is a {type(inner).__name__}, expected a composite to set {'.'.join(rest)} in"
                )
            spec = CompositeSpec({tuple(rest): spec}, shape=self.shape, device=self.device)
        if isinstance(spec, Mapping):
            spec = CompositeSpec(spec, shape=self.shape, device=self.device)
        if not (spec is None or isinstance(spec, TensorSpec)):
            if head in _ATTRIBUTES:
                raise AttributeNameError(
                    f"{head!r} cannot be set to {spec!r} as a key: it is an attribute of Composite",
                    hint=f"set the attribute: spec.{head} = ...",
                )
            raise InvalidArgumentError(
                f"{head} is a {type(spec).__name__}, expected a spec, a mapping or None",
                hint="`from_torchrl` converts specs of TorchRL" if type(spec).__module__.startswith("torchrl") else "",
            )
        self._specs[head] = self._adapted(head, spec)
        return self

    def _adapted(self, name: str, spec: Child) -> Child:
        """Return a spec with the batch size and device of the composite."""
        spec = _with_lead(name, spec, self.shape)
        if spec is None or self.device is None or spec.device == self.device:
            return spec
        if spec.device is not None:
            raise InvalidArgumentError(
                f"{name} is on {spec.device}, expected {self.device}", hint="move the spec with `to`"
            )
        moved: TensorSpec = spec.to(self.device)
        return moved

    def _with_batch_size(self, shape: torch.Size) -> Self:
        """Return the composite with a longer batch size. Specs that already have these leading axes are unchanged."""
        specs = {
            name: spec
            if spec is None or spec.shape[: len(shape)] == shape
            else _with_longer_lead(spec, self.ndim, shape)
            for name, spec in self._specs.items()
        }
        names = None if self._names is None else [*self._names, *[None] * (len(shape) - self.ndim)]
        return self._changed(_shape=shape, _specs=specs, _names=names, _locked=False)

    def __setitem__(self, key: str | Sequence[Any], spec: Any) -> None:
        self.set(key, spec)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, str) or (isinstance(index, tuple) and index and _is_path(index)):
            return self._at(_as_path(index))
        return super().__getitem__(index)

    def _at(self, path: Key) -> Any:
        spec: Any = self
        for name in path:
            if not isinstance(spec, CompositeSpec) or name not in spec:
                raise UnknownKeyError(".".join(path), [".".join(_as_path(key)) for key in self.keys(True)])
            spec = spec._entry(name)  # noqa: SLF001  # same class
        return spec

    def _entry(self, name: str) -> Child:
        return self._specs[name]

    def get(self, item: str | Sequence[Any], default: Any = _MISSING) -> Any:
        """Return the spec of a key, or the default if the key is missing.

        Raises:
            UnknownKeyError: If the key is missing and no default is given.
        """
        if item in self or default is _MISSING:
            return self[item]
        return default

    def pop(self, key: str | Sequence[Any], default: Any = _MISSING) -> Any:
        """Remove a key and return the spec, or the default if the key is missing.

        Raises:
            UnknownKeyError: If the key is missing and no default is given.
            InvalidArgumentError: If the composite is locked.
        """
        self._check_unlocked()
        spec = self.get(key, default)
        if key in self:
            del self[key]
        return spec

    def __delitem__(self, key: str | Sequence[Any]) -> None:
        path = _as_path(key)
        self._at(path)
        parent = self._at(path[:-1])
        parent._check_unlocked()  # noqa: SLF001  # same class
        parent._remove(path[-1])  # noqa: SLF001  # same class

    def _remove(self, name: str) -> None:
        del self._specs[name]

    def separates(self, *keys: str | Sequence[Any], default: Any = None) -> CompositeSpec | None:
        """Move the specs of some keys to a new composite, and return the new composite, or `None` without specs.

        Args:
            *keys: Keys to remove from this composite.
            default: Spec of a missing key. `None` leaves the key out.
        """
        specs = {key: self.pop(key, default) for key in keys}
        specs = {key: spec for key, spec in specs.items() if spec is not None}
        return CompositeSpec(specs, shape=self.shape, device=self.device) if specs else None

    def update(self, dict_or_spec: Mapping[Any, Any] | CompositeSpec) -> Self:
        """Set every spec of another composite in this composite, recursively, and return this composite."""
        for key, spec in dict_or_spec.items():
            current = self.get(key, None)
            if isinstance(current, CompositeSpec) and isinstance(spec, (CompositeSpec, Mapping)):
                current.update(spec)
            else:
                self.set(key, spec if self.device is None or not isinstance(spec, TensorSpec) else spec.to(self.device))
        return self

    def empty(self) -> Self:
        """Return a copy without entries."""
        return self._changed(_specs={}, _locked=False)

    def is_empty(self, recurse: bool = False) -> bool:
        """Return whether the composite is empty.

        Args:
            recurse: Whether a composite that contains only empty composites and `None` counts as empty.
        """
        if not recurse:
            return not self._specs
        return all(isinstance(spec, CompositeSpec) and spec.is_empty(recurse=True) for _, spec in self._present())

    def keys(self, include_nested: bool = False, leaves_only: bool = False, *, is_leaf: IsLeaf = None) -> KeysView[Any]:
        """Return the keys: names, and tuples of names with `include_nested`.

        Args:
            include_nested: Whether to include the keys of nested composites.
            leaves_only: Whether to leave out the keys of composites themselves.
            is_leaf: Function of a spec class that returns whether specs of the class are leaves. By default, all specs
                but composites are leaves.
        """
        return _Keys(self._tree(include_nested, leaves_only, is_leaf))

    def values(
        self, include_nested: bool = False, leaves_only: bool = False, *, is_leaf: IsLeaf = None
    ) -> ValuesView[Any]:
        """Return the specs. The arguments are the arguments of `keys`."""
        return self._tree(include_nested, leaves_only, is_leaf).values()

    def items(
        self, include_nested: bool = False, leaves_only: bool = False, *, is_leaf: IsLeaf = None
    ) -> ItemsView[Any, Any]:
        """Return the pairs of key and spec. The arguments are the arguments of `keys`."""
        return self._tree(include_nested, leaves_only, is_leaf).items()

    def _tree(self, include_nested: bool, leaves_only: bool, is_leaf: IsLeaf) -> dict[Any, Any]:
        specs: dict[Any, Any] = {}
        for name in self._entries():
            spec = self._entry(name)
            # As in a TensorDict, the keys in a composite precede the key of the composite: keys can be deleted in order.
            if include_nested and isinstance(spec, CompositeSpec):
                inner = spec.items(include_nested, leaves_only, is_leaf=is_leaf)
                specs |= {(name, *_as_path(key)): inner_spec for key, inner_spec in inner}
            leaf = not isinstance(spec, CompositeSpec) if is_leaf is None else is_leaf(type(spec))
            if leaf or not leaves_only:
                specs[name] = spec
        return specs

    def _entries(self) -> list[str]:
        """Return the names of the first level of keys."""
        return list(self._specs)

    def _present(self) -> list[tuple[str, TensorSpec]]:
        """Return the first level of items with a spec that is not `None`."""
        return [(name, spec) for name, spec in self._specs.items() if spec is not None]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries())

    def __len__(self) -> int:
        return len(self._entries())

    def __contains__(self, key: object) -> bool:
        if not (isinstance(key, str) or (isinstance(key, tuple) and key and _is_path(key))):
            return False
        return (path[0] if len(path := _as_path(key)) == 1 else path) in self.keys(include_nested=len(path) > 1)

    # --- lock

    @property
    def is_locked(self) -> bool:
        """Whether setting and removing entries raises an error. Assignment applies to nested composites too."""
        return self._locked

    @is_locked.setter
    def is_locked(self, locked: bool) -> None:
        self._lock(locked, recurse=True)

    @property
    def locked(self) -> bool:
        """Alias of `is_locked`."""
        return self.is_locked

    @locked.setter
    def locked(self, locked: bool) -> None:
        self.is_locked = locked

    def lock_(self, recurse: bool | None = None) -> Self:
        """Make setting and removing entries an error, and return the composite.

        Args:
            recurse: Whether to lock nested composites too. `None` means True.
        """
        self._lock(True, recurse=recurse is not False)
        return self

    def unlock_(self, recurse: bool | None = None) -> Self:
        """Allow setting and removing entries again, and return the composite. This is the inverse of `lock_`."""
        self._lock(False, recurse=recurse is not False)
        return self

    def _lock(self, locked: bool, *, recurse: bool) -> None:
        self._locked = locked
        for spec in self._specs.values() if recurse else ():
            if isinstance(spec, CompositeSpec):
                spec._lock(locked, recurse=True)  # noqa: SLF001  # same class

    def _check_unlocked(self) -> None:
        if self.is_locked:
            raise InvalidArgumentError(
                f"Cannot modify a locked Composite of the keys {[*self._specs]}",
                hint="call `unlock_` first, or change a copy that `clone` returns",
            )

    # --- the set

    def _build_value(self, entries: Mapping[str, Any], lead: Sequence[int]) -> Any:
        """Return a TensorDict, or an instance of `data_cls`, of batch size [*lead, *self.shape]."""
        batch_size = (*lead, *created_shape(self.shape))
        if self.data_cls is not None:
            from_dict: Any = self.data_cls.from_dict  # type: ignore[attr-defined]  # all tensorclasses have this method
            return from_dict(dict(entries), batch_size=batch_size, device=self.device)
        names: Any = None if self._names is None else [*[None] * len(lead), *self._names]
        return TensorDict(dict(entries), batch_size=batch_size, device=self.device, names=names)

    def _filled(self, fill: Callable[[Any], Any], lead: torch.Size) -> Any:
        return self._build_value({name: fill(spec) for name, spec in self._present()}, lead)

    @override
    def is_in(self, value: Any) -> bool:
        if not self._is_container(value):
            return False
        return all(
            (entry := value.get(name, _MISSING)) is not _MISSING and spec.is_in(entry) for name, spec in self._present()
        )

    def _is_container(self, value: Any) -> bool:
        """Return whether a value is an instance of `data_cls`, or by default a mapping or a TensorDict."""
        if self.data_cls is not None:
            return type(value) is self.data_cls
        return isinstance(value, Mapping) or is_tensor_collection(value)

    @override
    def problems(self, value: Any, place: str = "value") -> list[str]:
        if not self._is_container(value):
            expected = "a TensorDict" if self.data_cls is None else f"a {self.data_cls.__name__}"
            return [f"{place} is a {type(value).__name__}, expected {expected}"]
        outer = "" if place == "value" else f"{place}."
        reasons = []
        for name, spec in self._present():
            entry = value.get(name, _MISSING)
            missing = entry is _MISSING
            reasons += [f"{outer}{name} is missing"] if missing else spec.problems(entry, f"{outer}{name}")
        return reasons

    def _projected(self, value: Any) -> Any:
        if not self._is_container(value) or any(name not in value for name, _ in self._present()):
            raise InvalidArgumentError("; ".join(self.problems(value)), hint="`project` cannot add missing keys")
        projected = dict(value) if isinstance(value, Mapping) else value.copy()
        for name, spec in self._present():
            projected[name] = spec.project(value.get(name))
        return projected

    def type_check(self, value: Any, key: Any = None) -> None:
        """Raise an error if an entry has another dtype than the spec of the entry.

        Args:
            value: A TensorDict, or if `key` is a name, the tensor of this entry.
            key: Name or names of the entries to check, all by default.

        Raises:
            InvalidArgumentError: If a dtype differs.
        """
        if isinstance(value, torch.Tensor) and isinstance(key, str):
            value = {key: value}
        selected = self.keys() if key is None else [key] if isinstance(key, str) else key
        for name in self.keys():
            if name in selected and (spec := self._entry(name)) is not None:
                spec.type_check(value[name], None if isinstance(spec, CompositeSpec) else name)

    def cardinality(self) -> float:
        """Return the product of the numbers of outcomes of the entries, or 0 without entries, as in TorchRL."""
        counts = [spec.cardinality() for _, spec in self._present()]
        return math.prod(counts) if counts else 0

    @override
    def enumerate(self, use_mask: bool = False) -> Any:
        single = self[(0,) * self.ndim] if self.ndim else self
        outcomes = {name: spec.enumerate(use_mask) for name, spec in single._present()}  # noqa: SLF001  # same class
        if not outcomes:
            return self._build_value({}, ())
        grids = torch.meshgrid(*[torch.arange(len(of_entry)) for of_entry in outcomes.values()], indexing="ij")
        pairs = zip(outcomes.items(), grids, strict=True)
        entries = {name: of_entry[grid.flatten()] for (name, of_entry), grid in pairs}
        count = grids[0].numel()
        combinations = TensorDict(entries, batch_size=[count], device=self.device)
        combinations = combinations.reshape(count, *(1,) * self.ndim).expand(count, *created_shape(self.shape))
        return self._build_value(dict(combinations.items()), (count,))

    def rand_update(self, val: Any) -> Any:
        """Overwrite the entries of a TensorDict with random draws, and return the TensorDict."""
        return val.update(self.rand())

    def zeros_update(self, val: Any) -> Any:
        """Overwrite the entries of a TensorDict with zeros, and return the TensorDict."""
        return val.update(self.zero())

    def ones_update(self, val: Any) -> Any:
        """Overwrite the entries of a TensorDict with ones, and return the TensorDict."""
        return val.update(self.one())

    # --- conversion to and from Python and NumPy values

    def encode(self, val: Any, *, ignore_device: bool = False) -> Any:
        """Convert a mapping of numbers, lists, arrays and nested mappings to a TensorDict. Keys may be missing.

        Args:
            val: Mapping from an environment or a file. The values may have extra leading axes.
            ignore_device: Whether to leave the tensors on the current devices.

        Raises:
            UnknownKeyError: If a key has no spec.
            InvalidArgumentError: If an entry is `None`, or cannot be encoded.
        """
        encoded, lead = {}, ()
        for key, entry in val.items():
            spec = self[key]
            if entry is None or spec is None:
                raise InvalidArgumentError(
                    f"{key} is {entry!r} and its spec is {spec!r}, expected a value and a spec that are not None"
                )
            encoded[key] = spec.encode(entry, ignore_device=ignore_device)
            lead = encoded[key].shape[: len(encoded[key].shape) - spec.ndim]
        return self._build_value(encoded, lead)

    def _to_numpy(self, val: Any) -> dict[str, Any]:
        return {key: self[key].to_numpy(entry) for key, entry in val.items()}

    # --- shapes and copies

    @override
    def rearranged(self, rearrange: Rearrange) -> Self:
        shape = self._rearranged_shape(rearrange)
        specs = {name: None if spec is None else spec.rearranged(rearrange) for name, spec in self._specs.items()}
        names: Any = self._names
        if names is not None:
            names = rearrange(TensorDict({}, batch_size=meta_tensor(self.shape).shape, names=names)).names
        return self._changed(_shape=shape, _specs=specs, _names=names, _locked=False)

    @override
    def to(self, dest: torch.dtype | torch.device | str | int | None) -> Self:
        if dest is None:
            return self
        device = self.device if isinstance(dest, torch.dtype) else as_device(dest)
        if device == self.device and not isinstance(dest, torch.dtype):
            return self
        specs = {name: None if spec is None else spec.to(dest) for name, spec in self._specs.items()}
        return self._changed(_specs=specs, device=device, _locked=False)

    @override
    def clone(self) -> Self:
        return super().clone().unlock_()

    def clear_device_(self) -> Self:
        """Remove the devices of this composite and of nested composites in place, and return the composite."""
        self.device = None
        for _, spec in self._present():
            spec.clear_device_()
        return self

    @override
    def to_json(self) -> dict[str, Any]:
        document: dict[str, Any] = {"kind": self.kind, "shape": list(self.shape)}
        if self._names is not None:
            document["names"] = self._names
        if self.step_mdp_static:
            document["step_mdp_static"] = True
        return {
            **document,
            "specs": {name: None if spec is None else spec.to_json() for name, spec in self._specs.items()},
        }

    @classmethod
    @override
    def read(cls, document: SpecDocument) -> CompositeSpec | None:
        shape, specs = document.shape(), document.spec_map("specs")
        names = document.field("names", _are_names, "a list of names")
        static = document.field("step_mdp_static", lambda value: isinstance(value, bool), "true or false", False)
        if not document.valid:
            return None
        composite = CompositeSpec(shape=shape, names=names, step_mdp_static=static)
        for name, spec in specs.items():
            composite.set((name,), spec)
        return composite

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CompositeSpec) or type(other) is not type(self):
            return False
        return self._comparison_key() == other._comparison_key()

    def _comparison_key(self) -> tuple[Any, ...]:
        """Return the attributes that equal composites share. The names of the axes are not compared, as in TorchRL."""
        return self.shape, self.device, self.data_cls, self._specs

    __hash__ = TensorSpec.__hash__

    def _repr_html_(self) -> str:
        """Return a row for each leaf, for notebooks."""
        leaves = self.items(include_nested=True, leaves_only=True)
        rows = ((dotted_name(as_key(key)), "" if spec is None else str(spec)) for key, spec in leaves)
        return facts_html(f"{type(self).__name__} {list(self.shape)}", rows)

    def __repr__(self) -> str:
        lines = "".join(f"\n    {name}: {str(spec).replace(chr(10), chr(10) + '    ')}," for name, spec in self.items())
        device = [] if self.device is None else [f"device={self.device}"]
        return f"{type(self).__name__}({lines}\n    {', '.join([f'shape={list(self.shape)}', *device])})"


def _with_lead(name: str, spec: Child, shape: torch.Size) -> Child:
    """Return a spec with the batch size `shape` as the leading axes."""
    if spec is None or spec.shape[: len(shape)] == shape:
        return spec
    if isinstance(spec, (CompositeSpec, NonTensorSpec)) and spec.shape == shape[: spec.ndim]:
        return _with_longer_lead(spec, spec.ndim, shape)
    raise InvalidArgumentError(
        f"{name} has shape {list(spec.shape)}, expected the leading axes {list(shape)} of the composite",
        hint="`expand` the spec to the batch size of the composite",
    )


def _with_longer_lead(spec: TensorSpec, count: int, shape: torch.Size) -> TensorSpec:
    """Return a spec with the first `count` axes, which are axes of `shape`, replaced by all axes of `shape`."""
    if type(spec) is CompositeSpec and spec.shape == shape[: spec.ndim]:
        return spec._with_batch_size(shape)  # noqa: SLF001  # same class
    ones = (1,) * (len(shape) - count)
    reshaped: TensorSpec = spec.reshape((*spec.shape[:count], *ones, *spec.shape[count:]))
    return reshaped.expand(*shape, *spec.shape[count:])


def _as_path(key: Any) -> Key:
    """Return a key as a flat tuple of names. Dots in a name do not separate names."""
    if isinstance(key, str):
        return (key,)
    if not isinstance(key, Sequence):
        raise InvalidArgumentError(
            f"{key!r} is not a key of a composite: a key should be a Sequence<NestedKey>, a name or a tuple of names"
        )
    return tuple(name for part in key for name in ([part] if isinstance(part, str) else _as_path(part)))


def _is_path(index: tuple[Any, ...]) -> bool:
    return all(isinstance(item, str) or (isinstance(item, tuple) and _is_path(item)) for item in index)


def _are_names(value: Any) -> bool:
    return value is None or (isinstance(value, list) and all(name is None or isinstance(name, str) for name in value))

"""Specs by key."""

from __future__ import annotations

import math
from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping, Sequence, ValuesView
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDict, is_tensor_collection
from torch import Generator

from datasets_rl.errors import InvalidArgumentError, UnknownKeyError
from datasets_rl.specs._document import Entry
from datasets_rl.specs.base import Lead, Move, TensorSpec, as_device, probe, sizes
from datasets_rl.specs.non_tensor import NonTensorSpec
from datasets_rl.ted.keys import Key

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["CompositeSpec"]

Child = TensorSpec | None
_MISSING: Any = object()


class _Keys(KeysView[Any]):
    """Keys of a composite, in which a name and a tuple of it are the same."""

    def __contains__(self, key: object) -> bool:
        if isinstance(key, tuple) and key and _is_path(key):
            path = _path(key)
            key = path if len(path) > 1 else path[0]
        return super().__contains__(key)

    def __repr__(self) -> str:
        return f"keys({list(self)})"


class CompositeSpec(TensorSpec):
    """The set of TensorDicts whose entries are in the specs of their keys. Further entries do not matter.

    A key is a name or a tuple of names. A spec that is None lets anything stand there, or nothing.

    Args:
        specs: Specs, None, or mappings of further ones, by key.
        shape: Batch size: the leading axes that all the specs have in common.
        device: Of all the specs; each has its own by default.
        batch_size: The same as `shape`.
        data_cls: What `rand`, `zero` and `encode` make in place of a TensorDict; `is_in` then wants one.
        step_mdp_static: A note for whoever steps an environment, kept and passed on.
        names: Of the axes of the batch size.
        **kwargs: More specs by name.

    Raises:
        InvalidArgumentError: If a spec has other leading axes or another device.
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
            raise InvalidArgumentError(f"shape is {shape} and batch_size is {batch_size}; expected one of them")
        super().__init__(sizes(batch_size if shape is None else shape), device)
        self._specs: dict[str, Child] = {}
        self._names: list[str | None] | None = None
        self._locked = False
        self.data_cls = data_cls
        self.step_mdp_static = step_mdp_static
        for key, spec in {**(dict(specs.items()) if specs is not None else {}), **kwargs}.items():
            self.set(key, spec)
        self.names = names

    # --- its shape

    @property
    def shape(self) -> torch.Size:
        """Batch size: the leading axes that all the specs have in common."""
        return self._shape

    @shape.setter
    def shape(self, shape: Sequence[int]) -> None:
        self._expect_unlocked()
        wanted = sizes(shape)
        specs = {name: _with_lead(name, spec, wanted) for name, spec in self._specs.items()}
        self._shape, self._specs, self._names = wanted, specs, None

    @property
    def batch_size(self) -> torch.Size:
        """The same as `shape`."""
        return self.shape

    @batch_size.setter
    def batch_size(self, batch_size: Sequence[int]) -> None:
        self.shape = sizes(batch_size)

    @property
    def names(self) -> list[str | None]:
        """The names of the axes of the batch size, None where there is none."""
        return [None] * self.ndim if self._names is None else list(self._names)

    @names.setter
    def names(self, names: Sequence[str | None] | None) -> None:
        if names is not None and len(names) != self.ndim:
            raise InvalidArgumentError(f"names are {list(names)}; expected one for each of {self.ndim} axes")
        self._names = None if names is None else list(names)
        for spec in self._specs.values():
            if names is not None and isinstance(spec, CompositeSpec):
                spec.names = [*names, *spec.names[self.ndim :]]

    # --- its entries

    def set(self, name: str | Sequence[Any], spec: Any) -> Self:
        """Set the spec of a key, and return this one.

        Composites and specs of what is no tensor are expanded to the batch size, if theirs is shorter.

        Raises:
            InvalidArgumentError: If it is no spec, has other leading axes or another device, or this spec is locked; nothing has
                changed then.
        """
        head, *rest = _path(name)
        inner = self._specs.get(head)
        if rest and isinstance(inner, CompositeSpec):
            inner.set(tuple(rest), spec)
            return self
        self._expect_unlocked()
        if rest:
            if inner is not None:
                raise InvalidArgumentError(
                    f"{head} is a {type(inner).__name__}; expected a composite to set {'.'.join(rest)} in"
                )
            spec = CompositeSpec({tuple(rest): spec}, shape=self.shape, device=self.device)
        if isinstance(spec, Mapping):
            spec = CompositeSpec(spec, shape=self.shape, device=self.device)
        if not (spec is None or isinstance(spec, TensorSpec)):
            raise InvalidArgumentError(f"{head} is a {type(spec).__name__}; expected a spec")
        self._specs[head] = self._fitted(head, spec)
        return self

    def _fitted(self, name: str, spec: Child) -> Child:
        spec = _with_lead(name, spec, self.shape)
        if spec is None or self.device is None or spec.device == self.device:
            return spec
        if spec.device is not None:
            raise InvalidArgumentError(f"{name} is on {spec.device}; expected {self.device}", hint="move it with `to`")
        moved: TensorSpec = spec.to(self.device)
        return moved

    def _led_by(self, shape: torch.Size) -> Self:
        """Return the composite with a longer batch size; what has these leading axes already keeps its shape."""
        specs = {
            name: spec if spec is None or spec.shape[: len(shape)] == shape else _led(spec, self.ndim, shape)
            for name, spec in self._specs.items()
        }
        names = None if self._names is None else [*self._names, *[None] * (len(shape) - self.ndim)]
        return self._changed(_shape=shape, _specs=specs, _names=names, _locked=False)

    def __setitem__(self, key: str | Sequence[Any], spec: Any) -> None:
        self.set(key, spec)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, str) or (isinstance(index, tuple) and index and _is_path(index)):
            return self._at(_path(index))
        return super().__getitem__(index)

    def _at(self, path: Key) -> Any:
        spec: Any = self
        for name in path:
            if not isinstance(spec, CompositeSpec) or name not in spec:
                raise UnknownKeyError(".".join(path), [".".join(_path(key)) for key in self.keys(True)])
            spec = spec._entry(name)  # noqa: SLF001  # of its own kind
        return spec

    def _entry(self, name: str) -> Child:
        return self._specs[name]

    def get(self, item: str | Sequence[Any], default: Any = _MISSING) -> Any:
        """Return the spec of a key, or the default if there is none."""
        if item in self or default is _MISSING:
            return self[item]
        return default

    def pop(self, key: str | Sequence[Any], default: Any = _MISSING) -> Any:
        """Remove the spec of a key and return it, or the default if there is none."""
        self._expect_unlocked()
        found = self.get(key, default)
        if key in self:
            del self[key]
        return found

    def __delitem__(self, key: str | Sequence[Any]) -> None:
        path = _path(key)
        self._at(path)
        parent = self._at(path[:-1])
        parent._expect_unlocked()  # noqa: SLF001  # of its own kind
        parent._remove(path[-1])  # noqa: SLF001  # of its own kind

    def _remove(self, name: str) -> None:
        del self._specs[name]

    def separates(self, *keys: str | Sequence[Any], default: Any = None) -> CompositeSpec | None:
        """Move the specs of some keys into a composite of their own; None if none is there."""
        found = {key: self.pop(key, default) for key in keys}
        found = {key: spec for key, spec in found.items() if spec is not None}
        return CompositeSpec(found, shape=self.shape, device=self.device) if found else None

    def update(self, dict_or_spec: Mapping[Any, Any] | CompositeSpec) -> Self:
        """Set every spec of another composite; those inside a composite that is there already are set inside it."""
        for key, spec in dict_or_spec.items():
            there = self.get(key, None)
            if isinstance(there, CompositeSpec) and isinstance(spec, (CompositeSpec, Mapping)):
                there.update(spec)
            else:
                self.set(key, spec if self.device is None or not isinstance(spec, TensorSpec) else spec.to(self.device))
        return self

    def empty(self) -> Self:
        """Return a spec like this without entries."""
        return self._changed(_specs={}, _locked=False)

    def is_empty(self, recurse: bool = False) -> bool:
        """Say whether there are no entries; with `recurse`, none but empty composites and None."""
        if not recurse:
            return not self._specs
        specs = (spec for spec in self._specs.values() if spec is not None)
        return all(isinstance(spec, CompositeSpec) and spec.is_empty(recurse=True) for spec in specs)

    def keys(
        self,
        include_nested: bool = False,
        leaves_only: bool = False,
        *,
        is_leaf: Callable[[type], bool] | None = None,
    ) -> KeysView[Any]:
        """Return the keys: names, and tuples of names with `include_nested`.

        Args:
            include_nested: Whether those inside composites come too.
            leaves_only: Whether composites are left out.
            is_leaf: Says of a type of spec whether it is a leaf; all but composites are by default.
        """
        return _Keys(self._tree(include_nested, leaves_only, is_leaf))

    def values(
        self,
        include_nested: bool = False,
        leaves_only: bool = False,
        *,
        is_leaf: Callable[[type], bool] | None = None,
    ) -> ValuesView[Any]:
        """Return the specs; for the arguments see `keys`."""
        return self._tree(include_nested, leaves_only, is_leaf).values()

    def items(
        self,
        include_nested: bool = False,
        leaves_only: bool = False,
        *,
        is_leaf: Callable[[type], bool] | None = None,
    ) -> ItemsView[Any, Any]:
        """Return the keys with their specs; for the arguments see `keys`."""
        return self._tree(include_nested, leaves_only, is_leaf).items()

    def _tree(self, include_nested: bool, leaves_only: bool, is_leaf: Callable[[type], bool] | None) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        for name in self._entries():
            spec = self._entry(name)
            leaf = not isinstance(spec, CompositeSpec) if is_leaf is None else is_leaf(type(spec))
            if leaf or not leaves_only:
                found[name] = spec
            if include_nested and isinstance(spec, CompositeSpec):
                inner = spec.items(include_nested, leaves_only, is_leaf=is_leaf)
                found |= {(name, *_path(key)): one for key, one in inner}
        return found

    def _entries(self) -> list[str]:
        """Return the names of the first level."""
        return list(self._specs)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries())

    def __len__(self) -> int:
        return len(self._entries())

    def __contains__(self, key: object) -> bool:
        if not (isinstance(key, str) or (isinstance(key, tuple) and key and _is_path(key))):
            return False
        return (path[0] if len(path := _path(key)) == 1 else path) in self.keys(include_nested=len(path) > 1)

    # --- its lock

    @property
    def is_locked(self) -> bool:
        """Whether entries cannot be set or removed."""
        return self._locked

    @is_locked.setter
    def is_locked(self, locked: bool) -> None:
        self._lock(locked, recurse=True)

    def lock_(self, recurse: bool | None = None) -> Self:
        """Let entries be neither set nor removed, here and, unless `recurse` is False, in composites inside."""
        self._lock(True, recurse=recurse is not False)
        return self

    def unlock_(self, recurse: bool | None = None) -> Self:
        """Let entries be set and removed again, here and, unless `recurse` is False, in composites inside."""
        self._lock(False, recurse=recurse is not False)
        return self

    def _lock(self, locked: bool, *, recurse: bool) -> None:
        self._locked = locked
        for spec in self._specs.values() if recurse else ():
            if isinstance(spec, CompositeSpec):
                spec._lock(locked, recurse=True)  # noqa: SLF001  # of its own kind

    def _expect_unlocked(self) -> None:
        if self.is_locked:
            raise InvalidArgumentError("the composite is locked", hint="`unlock_` it, or change a `clone`")

    # --- the set

    def _made(self, entries: Mapping[str, Any], lead: Sequence[int]) -> Any:
        batch_size = (*lead, *self.shape)
        if self.data_cls is not None:
            from_dict: Any = self.data_cls.from_dict  # type: ignore[attr-defined]  # every class of tensordict has it
            return from_dict(dict(entries), batch_size=batch_size, device=self.device)
        names: Any = None if self._names is None else [*[None] * len(lead), *self._names]
        return TensorDict(dict(entries), batch_size=batch_size, device=self.device, names=names)

    def rand(self, shape: Lead = None, *, generator: Generator | None = None) -> Any:
        """Draw a TensorDict of batch size [*shape, *self.shape]."""
        lead = sizes(shape)
        specs = {name: spec for name, spec in self._specs.items() if spec is not None}
        return self._made({name: spec.rand(lead, generator=generator) for name, spec in specs.items()}, lead)

    def zero(self, shape: Lead = None) -> Any:
        """Return a TensorDict of zeros of batch size [*shape, *self.shape]."""
        lead = sizes(shape)
        return self._made({name: spec.zero(lead) for name, spec in self._specs.items() if spec is not None}, lead)

    def one(self, shape: Lead = None) -> Any:
        """Return a TensorDict of ones of batch size [*shape, *self.shape]."""
        lead = sizes(shape)
        return self._made({name: spec.one(lead) for name, spec in self._specs.items() if spec is not None}, lead)

    def is_in(self, value: Any) -> bool:
        """Say whether every key is there and its value is in its spec; further keys do not matter."""
        if not self._holds(value):
            return False
        return all(
            spec is None or ((entry := value.get(name, _MISSING)) is not _MISSING and spec.is_in(entry))
            for name, spec in self._specs.items()
        )

    def _holds(self, value: Any) -> bool:
        """Return whether a value is of a type that has entries."""
        if self.data_cls is not None:
            return type(value) is self.data_cls
        return isinstance(value, Mapping) or is_tensor_collection(value)

    def misfits(self, value: Any, place: str = "value") -> list[str]:
        """Say why a value is not in the set, for every key with its path."""
        if not self._holds(value):
            wanted = "a TensorDict" if self.data_cls is None else f"a {self.data_cls.__name__}"
            return [f"{place} is a {type(value).__name__}; expected {wanted}"]
        outer = "" if place == "value" else f"{place}."
        reasons = []
        for name, spec in self._specs.items():
            if spec is None:
                continue
            entry = value.get(name, _MISSING)
            missing = entry is _MISSING
            reasons += [f"{outer}{name} is missing"] if missing else spec.misfits(entry, f"{outer}{name}")
        return reasons

    def project(self, value: Any) -> Any:
        """Return a TensorDict with the entries that are not in their specs projected; the value itself if all are.

        Raises:
            InvalidArgumentError: If a key is missing, or an entry has another shape.
        """
        # A new one: the reference overwrites the entries of the value that it is given.
        if self.is_in(value):
            return value
        if not self._holds(value) or any(spec is not None and name not in value for name, spec in self._specs.items()):
            raise InvalidArgumentError("; ".join(self.misfits(value)), hint="only numbers can be projected, not keys")
        near = dict(value) if isinstance(value, Mapping) else value.copy()
        for name, spec in self._specs.items():
            if spec is not None:
                near[name] = spec.project(value.get(name))
        return near

    def type_check(self, value: Any, key: Any = None) -> None:
        """Refuse values of other dtypes.

        Args:
            value: A TensorDict; with a name as `key`, what stands there.
            key: The name or names to look at; all by default.

        Raises:
            InvalidArgumentError: If a dtype differs.
        """
        if isinstance(value, torch.Tensor) and isinstance(key, str):
            value = {key: value}
        wanted = self.keys() if key is None else [key] if isinstance(key, str) else key
        for name in self.keys():
            if name in wanted and (spec := self._entry(name)) is not None:
                spec.type_check(value[name], None if isinstance(spec, CompositeSpec) else name)

    def cardinality(self) -> float:
        """Return how many outcomes the entries have together; 0 without entries, as in the reference."""
        specs = [spec for spec in self._specs.values() if spec is not None]
        return math.prod(spec.cardinality() for spec in specs) if specs else 0

    def enumerate(self, use_mask: bool = False) -> Any:
        """Return a TensorDict of all combinations of outcomes along a new first axis."""
        single = self[(0,) * self.ndim] if self.ndim else self
        specs = {name: spec for name, spec in single.items() if spec is not None}
        outcomes = {name: spec.enumerate(use_mask) for name, spec in specs.items()}
        if not outcomes:
            return self._made({}, ())
        choices = torch.meshgrid(*[torch.arange(len(one)) for one in outcomes.values()], indexing="ij")
        chosen = {name: one[number.flatten()] for (name, one), number in zip(outcomes.items(), choices, strict=True)}
        count = choices[0].numel()
        together = TensorDict(chosen, batch_size=[count], device=self.device)
        together = together.reshape(count, *(1,) * self.ndim).expand(count, *self.shape)
        return self._made(dict(together.items()), (count,))

    def rand_update(self, val: Any) -> Any:
        """Overwrite the entries of a TensorDict with draws, and return it."""
        return val.update(self.rand())

    def zeros_update(self, val: Any) -> Any:
        """Overwrite the entries of a TensorDict with zeros, and return it."""
        return val.update(self.zero())

    def ones_update(self, val: Any) -> Any:
        """Overwrite the entries of a TensorDict with ones, and return it."""
        return val.update(self.one())

    # --- values from outside

    def encode(self, val: Any, *, ignore_device: bool = False) -> Any:
        """Turn a mapping of numbers, lists, arrays and mappings into a TensorDict; keys may be left out.

        Raises:
            UnknownKeyError: If a key has no spec.
            InvalidArgumentError: If an entry is None or cannot be encoded.
        """
        encoded, lead = {}, ()
        for key, entry in val.items():
            spec = self[key]
            if entry is None or spec is None:
                raise InvalidArgumentError(
                    f"{key} is {entry!r} and its spec {spec!r}; a missing value cannot be encoded"
                )
            encoded[key] = spec.encode(entry, ignore_device=ignore_device)
            lead = encoded[key].shape[: len(encoded[key].shape) - spec.ndim]
        return self._made(encoded, lead)

    def to_numpy(self, val: Any, safe: bool | None = None) -> dict[str, Any]:
        """Undo `encode`: a dict of arrays."""
        if safe:
            self.assert_is_in(val)
        return {key: self[key].to_numpy(entry) for key, entry in val.items()}

    # --- shapes and copies

    def moved(self, move: Move) -> Self:
        """Do to the batch size, and to every spec, what `move` does to tensors of it."""
        try:
            shape = move(probe(self.shape)).shape
        except (RuntimeError, TypeError) as error:
            raise InvalidArgumentError(f"{self._named()}: {error}") from None
        specs = {name: None if spec is None else spec.moved(move) for name, spec in self._specs.items()}
        names: Any = self._names
        if names is not None:
            names = move(TensorDict({}, batch_size=self.shape, names=names)).names
        return self._changed(_shape=shape, _specs=specs, _names=names, _locked=False)

    def to(self, dest: torch.dtype | torch.device | str | int | None) -> Self:
        """Return the spec with all entries for a dtype or a device; the spec itself if it has the device."""
        if dest is None:
            return self
        device = self.device if isinstance(dest, torch.dtype) else as_device(dest)
        if device == self.device and not isinstance(dest, torch.dtype):
            return self
        specs = {name: None if spec is None else spec.to(dest) for name, spec in self._specs.items()}
        return self._changed(_specs=specs, device=device, _locked=False)

    def clone(self) -> Self:
        """Return a copy that shares nothing with this one, and is not locked."""
        return super().clone().unlock_()

    def clear_device_(self) -> Self:
        """Forget the device of this composite and of those inside; entries keep theirs."""
        self.device = None
        for spec in self._specs.values():
            if spec is not None:
                spec.clear_device_()
        return self

    def to_json(self) -> dict[str, Any]:
        """Describe the spec as JSON that `from_json` reads; everything but devices, locks and `data_cls` is in it."""
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
    def read(cls, entry: Entry) -> CompositeSpec | None:
        """Read a spec of this kind."""
        shape, specs = entry.shape(), entry.spec_map("specs")
        names = entry.field("names", _are_names, "a list of names")
        static = entry.field("step_mdp_static", lambda value: isinstance(value, bool), "true or false", False)
        if not entry.sound:
            return None
        composite = CompositeSpec(shape=shape, names=names, step_mdp_static=static)
        for name, spec in specs.items():
            composite.set((name,), spec)
        return composite

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CompositeSpec) or type(other) is not type(self):
            return False
        return self._facts() == other._facts()  # of its own kind

    def _facts(self) -> tuple[Any, ...]:
        """Return what counts for equality; the names of the axes do not, as in TorchRL."""
        return self.shape, self.device, self.data_cls, self._specs

    __hash__ = TensorSpec.__hash__

    def __repr__(self) -> str:
        lines = "".join(f"\n    {name}: {str(spec).replace(chr(10), chr(10) + '    ')}," for name, spec in self.items())
        facts = [] if self.device is None else [f"device={self.device}"]
        return f"{type(self).__name__}({lines}\n    {', '.join([f'shape={list(self.shape)}', *facts])})"


def _with_lead(name: str, spec: Child, shape: torch.Size) -> Child:
    """Return a spec with leading axes.

    Raises:
        InvalidArgumentError: If it has others.
    """
    if spec is None or spec.shape[: len(shape)] == shape:
        return spec
    if isinstance(spec, (CompositeSpec, NonTensorSpec)) and spec.shape == shape[: spec.ndim]:
        return spec._led_by(shape) if type(spec) is CompositeSpec else _expanded(spec, spec.ndim, shape)  # noqa: SLF001  # of its own kind
    raise InvalidArgumentError(
        f"{name} has shape {list(spec.shape)}; expected the leading axes {list(shape)} of the composite",
        hint="`expand` it",
    )


def _led(spec: TensorSpec, count: int, shape: torch.Size) -> TensorSpec:
    if type(spec) is CompositeSpec and spec.shape == shape[: spec.ndim]:
        return spec._led_by(shape)  # noqa: SLF001  # of its own kind
    return _expanded(spec, count, shape)


def _expanded(spec: TensorSpec, count: int, shape: torch.Size) -> TensorSpec:
    """Return a spec that has the first `count` of some leading axes with all of them."""
    ones = (1,) * (len(shape) - count)
    wide: TensorSpec = spec.reshape((*spec.shape[:count], *ones, *spec.shape[count:]))
    return wide.expand(*shape, *spec.shape[count:])


def _path(key: Any) -> Key:
    """Read a key; the dots in a name mean nothing."""
    if isinstance(key, str):
        return (key,)
    return tuple(name for part in key for name in ([part] if isinstance(part, str) else _path(part)))


def _is_path(index: tuple[Any, ...]) -> bool:
    return all(isinstance(one, str) or (isinstance(one, tuple) and _is_path(one)) for one in index)


def _are_names(value: Any) -> bool:
    return value is None or (isinstance(value, list) and all(one is None or isinstance(one, str) for one in value))

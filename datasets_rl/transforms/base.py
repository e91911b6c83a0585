"""Base class of the transforms, composition of transforms, and helpers for keys and specs."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from tensordict import TensorDict, is_non_tensor, is_tensor_collection
from torch import Tensor, nn
from typing_extensions import Self, override

from datasets_rl.errors import DatasetsRLError, InvalidArgumentError, UnknownKeyError
from datasets_rl.format.checkpoint import read_state, write_state
from datasets_rl.specs import CompositeSpec, TensorSpec
from datasets_rl.specs.infer import spec_from_data
from datasets_rl.ted.keys import NEXT, EndKey, Key
from datasets_rl.ted.windows import Windows, rows_in

if TYPE_CHECKING:
    from datasets_rl.storages.base import Storage
    from datasets_rl.ted.trajectories import Trajectories

__all__ = [
    "GATHERED",
    "Compose",
    "Keys",
    "NestedKey",
    "NotRowsError",
    "Transform",
    "TransformedStorage",
    "add_gathered",
    "any_like",
    "apply_transforms",
    "check_callable",
    "entries_below",
    "expand_right",
    "flat_key",
    "gathered_keys",
    "get_entry",
    "has_dots",
    "is_group",
    "key_list",
    "pop_entry",
    "prefixed_key",
    "remove_entry",
    "require_entry",
    "resolve_key",
    "resolve_keys",
    "set_entry",
    "under_next",
]

NestedKey = str | tuple[str, ...]
Keys = Sequence[NestedKey] | NestedKey
GATHERED = "_gathered"
"""Prefix of the temporary keys that hold values from other rows of the storage until a transform uses them."""
_CALLING_MODULES = frozenset({__name__, "torch.nn.modules.module", "torch._dynamo.eval_frame"})
"""Modules between a transform and what calls it."""
_CHUNK = 1 << 16
"""Number of steps per chunk when all steps of a storage are read."""


class Transform(nn.Module):
    """Base class of the transforms, which map a batch to a batch: they read `in_keys` and write `out_keys`.

        batch  --- in_keys ------- forward ---> out_keys       sampling: from the buffer to the caller
        data   --- out_keys_inv -- inv -------> in_keys_inv    writing: from the caller to the buffer

    A key is a name, a tuple of names, or a name with dots: ``"observation.state"`` is ``("observation", "state")``, unless
    the data has an entry of that very name, see `resolve_key`.

    The key of a group, such as an observation of several sensors, stands for every entry of the group where a transform
    changes each entry separately. A transform that combines entries or steps names the group in an error instead.

    A transform modifies neither its input TensorDict nor the memory of the tensors in it: it returns a new TensorDict
    that shares all unchanged tensors with the input.

    Transforms are modules of torch: a `nn.Sequential` can contain them, and statistics are buffers.

    A custom transform overrides the hooks that TorchRL documents: `_apply_transform` and `_inv_apply_transform` for one
    entry, `_call` and `_inv_call` for the TensorDict, or `forward` and `inv`. A hook may modify its TensorDict, but not
    the memory of the tensors in it. `_inv_call` runs on all data that is written to the buffer, with or without
    `in_keys_inv`. `_call` runs on every batch, unless the transform has `in_keys` and overrides `_apply_transform`;
    TorchRL does not call it when sampling.

        class Double(Transform):
            def _apply_transform(self, obs):
                return 2 * obs

    Args:
        in_keys: Keys of the entries to read; one key or a sequence.
        out_keys: Keys of the results; `in_keys` by default.
        in_keys_inv: Keys of the entries that `inv` writes.
        out_keys_inv: Keys of the entries that `inv` reads; `in_keys_inv` by default.

    Raises:
        InvalidArgumentError: If the numbers of input and output keys differ.
    """

    in_keys: list[NestedKey]
    out_keys: list[NestedKey]
    in_keys_inv: list[NestedKey]
    out_keys_inv: list[NestedKey]

    per_step: ClassVar[bool] = False
    """Whether the result for a step depends on nothing else of its batch, and on no random numbers: several batches may
    then be transformed at once."""

    _key_arguments: ClassVar[frozenset[str]] = frozenset({"in_keys", "out_keys", "in_keys_inv", "out_keys_inv"})
    """Names of the attributes that hold keys: those of the arguments that the constructors annotate as keys."""
    _dotted: Mapping[str, Any] = {}
    """Values of these attributes before `bind`, of those that have names with dots."""

    axes: int = 0
    """Number of the last axes of an entry, after those of the batch, that the transform combines."""

    def __init__(
        self,
        in_keys: Keys | None = None,
        out_keys: Keys | None = None,
        in_keys_inv: Keys | None = None,
        out_keys_inv: Keys | None = None,
    ) -> None:
        super().__init__()
        for name, ins, outs in (("keys", in_keys, out_keys), ("keys_inv", in_keys_inv, out_keys_inv)):
            pair = key_list(ins), key_list(ins if outs is None else outs)
            if len(pair[0]) != len(pair[1]):
                raise InvalidArgumentError(
                    f"in_{name} are {pair[0]} and out_{name} are {pair[1]}; expected the same number of keys"
                )
            for attribute, given, keys in zip((f"in_{name}", f"out_{name}"), (ins, outs), pair, strict=True):
                # The keys may be properties of a subclass, as of some in TorchRL.
                if given is not None or not isinstance(getattr(type(self), attribute, None), property):
                    setattr(self, attribute, keys)

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        kinds = getattr(cls.__init__, "__annotations__", {})
        cls._key_arguments |= {name for name, kind in kinds.items() if "Key" in str(kind)}

    @override
    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._key_arguments and (name in self._dotted or has_dots(value)):
            others = {other: keys for other, keys in self._dotted.items() if other != name}
            self.__dict__["_dotted"] = {**others, name: value} if has_dots(value) else others
            value = resolve_keys(value, None)
        super().__setattr__(name, value)

    def bind(self, data: Any) -> None:
        """Resolve the keys with dots in a TensorDict or a composite spec, see `resolve_key`.

        Args:
            data: Data that the transform will be applied to.
        """
        for name, keys in self._dotted.items():
            super().__setattr__(name, resolve_keys(keys, data))

    def forward(self, data: Any = None, **entries: Any) -> Any:
        """Return the transformed batch, a TensorDict of any batch size; the input is unchanged.

            >>> ObservationNorm(0.0, 2.0, in_keys=["observation"])(observation=torch.ones(3))    # a tensor [3]

        Args:
            data: The batch.
            **entries: The entries `in_keys` by name, instead of a batch; names of nested keys are joined by "_". The
                result is then the entry of `out_keys`, or a tuple of several.

        Raises:
            UnknownKeyError: If one of `in_keys` is missing.
            InvalidArgumentError: If the data is not a TensorDict, a name is not one of `in_keys`, or an environment of
                TorchRL calls the transform.
        """
        if "torchrl" in sys.modules:
            check_caller(self)
        return self.on_own(self.own(data)) if data is not None or not entries else self._transform_entries(entries)

    def _transform_entries(self, entries: dict[str, Any]) -> Any:
        keys = {key if isinstance(key, str) else "_".join(key): key for key in self.in_keys}
        unknown = sorted(entries.keys() - keys.keys())
        if unknown:
            raise InvalidArgumentError(f"the entries {unknown} are not in_keys; expected {sorted(keys)}")
        batch = TensorDict()
        for name, value in entries.items():
            batch.set(keys[name], value)
        result = self(batch)
        values = tuple(get_entry(result, key) for key in self.out_keys)
        return values[0] if len(values) == 1 else values

    def on_own(self, batch: Any) -> Any:
        """Transform a TensorDict and return it. The method may set entries, but not modify the memory of tensors."""
        if self._dotted:
            self.bind(batch)
        return self._call(batch) if self._calls else self.transform_batch(batch)

    @property
    def _calls(self) -> bool:
        """Whether the hook for the TensorDict runs instead of the hook for each entry."""
        return self._overrides("_call") and not (self.in_keys and self._overrides("_apply_transform"))

    def _overrides(self, hook: str) -> bool:
        return getattr(type(self), hook) is not getattr(Transform, hook)

    def _call(self, next_tensordict: Any) -> Any:
        """Transform a batch in place and return it: a hook for subclasses, see `Transform`."""
        return self.transform_batch(next_tensordict)

    def _apply_transform(self, obs: Any) -> Any:
        """Return one transformed entry of a batch: a hook for subclasses, see `Transform`."""
        return obs.apply(self.transform_value) if is_group(obs) else self.transform_value(obs)

    def _inv_call(self, tensordict: Any) -> Any:
        """Transform data for the buffer in place and return it: a hook for subclasses, see `Transform`."""
        return self.invert_batch(tensordict)

    def _inv_apply_transform(self, state: Any) -> Any:
        """Return one transformed entry of data for the buffer: a hook for subclasses, see `Transform`."""
        return state.apply(self.invert_value) if is_group(state) else self.invert_value(state)

    def inv(self, data: Any) -> Any:
        """Apply the inverse transform to data that is written to the buffer.

        Without `in_keys_inv` and `_inv_call`, the data is returned unchanged.

        Raises:
            UnknownKeyError: If one of `out_keys_inv` is missing.
        """
        if not self.in_keys_inv and not self._overrides("_inv_call"):
            return data
        if isinstance(data, list) and data and is_tensor_collection(data[0]):
            data = torch.stack(data)
        return self._inv_call(self.own(data))

    def own(self, data: Any) -> Any:
        """Return a shallow copy of a TensorDict.

        Raises:
            InvalidArgumentError: If the data is not a TensorDict.
        """
        if not is_tensor_collection(data):
            raise InvalidArgumentError(
                f"the input of {type(self).__name__} is a {type(data).__name__}; expected a TensorDict",
                hint="to transform other types, use a plain function",
            )
        if self._dotted:
            self.bind(data)
        return data.copy()

    def transform_batch(self, batch: Any) -> Any:
        """Transform every entry of a TensorDict and return it. The memory of its tensors must not be modified."""
        own_hook = self._overrides("_apply_transform")
        for in_key, out_key in zip(self.in_keys, self.out_keys, strict=True):
            value = get_entry(batch, in_key)
            if self.axes:
                self._check_axes(in_key, value, batch.ndim)
            try:
                batch.set(out_key, self._apply_transform(value))
            except (AttributeError, IndexError, RuntimeError, TypeError) as error:
                if own_hook or isinstance(error, (DatasetsRLError, NotImplementedError, torch.OutOfMemoryError)):
                    raise
                raise self.misfit(in_key, value, error) from error
        return batch

    def _check_axes(self, key: NestedKey, value: Any, ndim: int) -> None:
        """Check that an entry, or every entry of a group, has `axes` axes after the `ndim` axes of the batch."""
        for leaf in value.values(include_nested=True, leaves_only=True) if is_group(value) else (value,):
            if leaf.ndim - ndim < self.axes:
                raise InvalidArgumentError(
                    f"{type(self).__name__} reads {_dotted_name(key)}, which has shape {list(leaf.shape[ndim:])} for each"
                    f" step; expected at least {self.axes} axes",
                    hint="name other entries: in_keys=[...]",
                )

    def misfit(self, key: NestedKey, value: Any, error: Exception) -> InvalidArgumentError:
        """Return the error of an entry that the transform cannot be applied to.

        Args:
            key: Key of the entry.
            value: The entry.
            error: Error of torch.
        """
        kind = f"{value.dtype} {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        return InvalidArgumentError(
            f"{type(self).__name__} cannot be applied to {_dotted_name(key)}, {kind}: {' '.join(str(error).split())}",
            hint="name other entries: in_keys=[...]",
        )

    def tensor(self, batch: Any, key: NestedKey) -> Tensor:
        """Return an entry of a batch that must be a tensor.

        Raises:
            UnknownKeyError: If the key is missing.
            InvalidArgumentError: If the entry is a group of entries.
        """
        value = get_entry(batch, key)
        if is_group(value):
            names = ", ".join(_dotted_name(name) for name in value.keys(include_nested=True, leaves_only=True))
            raise InvalidArgumentError(
                f"{type(self).__name__} reads {_dotted_name(key)}, which is a group of {names}; expected a tensor",
                hint="name an entry of the group, as ('group', 'name'), or concatenate them with CatTensors first",
            )
        tensor: Tensor = value
        return tensor

    def invert_batch(self, batch: Any) -> Any:
        """Apply the inverse transform to every entry of a TensorDict and return it: the inverse of `transform_batch`."""
        for in_key, out_key in zip(self.in_keys_inv, self.out_keys_inv, strict=True):
            batch.set(in_key, self._inv_apply_transform(get_entry(batch, out_key)))
        return batch

    def transform_value(self, value: Any) -> Any:
        """Return one transformed entry."""
        del value
        raise NotImplementedError(
            f"{type(self).__name__} has in_keys {self.in_keys}, but does not implement the transform: "
            "override _apply_transform, _call or forward"
        )

    def invert_value(self, value: Any) -> Any:
        """Return one entry with the transform inverted: the inverse of `transform_value`."""
        del value
        raise InvalidArgumentError(f"{type(self).__name__} has no inverse", hint="remove the argument in_keys_inv")

    def transform_spec(self, spec: CompositeSpec) -> CompositeSpec:
        """Return the spec of transformed batches, given the spec of the input.

        Raises:
            UnknownKeyError: If one of `in_keys` has no spec.
        """
        spec = spec.clone()
        self.bind(spec)
        self.update_specs(spec)
        return spec

    def update_specs(self, spec: CompositeSpec) -> None:
        """Transform a spec in place, as `transform_batch` transforms a batch of that spec."""
        if self._calls:
            _update_specs_by_trial(self.on_own, spec)
            return
        for in_key, out_key in zip(self.in_keys, self.out_keys, strict=True):
            for path in entries_below(spec, in_key):
                key, target = (flat_key((name, path)) if path else name for name in (in_key, out_key))
                spec.set(target, self.transformed_spec(spec[key]))

    def transformed_spec(self, spec: TensorSpec) -> TensorSpec:
        """Return the spec of one entry after `transform_value`; by default an unbounded spec of the resulting shape and dtype."""
        return any_like(self._apply_transform(spec.zero()))

    @property
    def parent(self) -> None:
        """The environment of the transform in TorchRL; always `None`, as this package has no environments."""
        return

    def clone(self) -> Self:
        """Return a copy that shares tensors with the transform until one of the two replaces them."""
        other = copy(self)
        for name in ("_parameters", "_buffers", "_modules"):
            other.__dict__[name] = copy(self.__dict__[name])
        return other

    @override
    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Restore a state that `state_dict` returned.

        Args:
            state_dict: The state.
            strict: Whether missing and unexpected keys are errors.
            assign: Whether to use the tensors of the state instead of copying them.

        Returns:
            The missing and the unexpected keys.

        Raises:
            InvalidArgumentError: If the state does not fit; nothing has changed.
        """
        restore = _restorer(self)
        try:
            return super().load_state_dict(state_dict, strict, assign)
        except RuntimeError as error:
            restore()
            raise InvalidArgumentError(f"the saved state does not fit: {' '.join(str(error).split())}") from None

    @override
    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, local_metadata: dict[str, Any], *args: Any
    ) -> None:
        for name, buffer in self._buffers.items():
            value = state_dict.get(prefix + name, buffer)
            if value is None:
                state_dict.pop(prefix + name, None)
                self._buffers[name] = None
            elif isinstance(value, Tensor) and (buffer is None or buffer.shape != value.shape):
                self._buffers[name] = torch.empty_like(value, device=None if buffer is None else buffer.device)
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *args)

    def dumps(self, path: Path | str) -> None:
        """Write the state into a folder, see `ReplayBuffer.dumps`."""
        write_state(path, type(self).__name__, self.state_dict())

    def loads(self, path: Path | str) -> None:
        """Restore a state that `dumps` wrote.

        Raises:
            InvalidArgumentError: If the state does not fit, or the folder has no checkpoint; nothing has changed.
            IntegrityError: If files are missing or damaged; nothing has changed.
        """
        self.load_state_dict(read_state(path))

    def __repr__(self) -> str:
        arguments = [f"{name}={value!r}" for name, value in self._repr_arguments().items()]
        keys = (
            [f"keys={self.in_keys}"] if self.in_keys == self.out_keys else [f"keys={self.in_keys} to {self.out_keys}"]
        )
        return f"{type(self).__name__}({', '.join(arguments + (keys if self.in_keys else []))})"

    def _repr_arguments(self) -> dict[str, Any]:
        """Return the arguments that `repr` shows in addition to the keys."""
        return {}


class Compose(Transform):
    """Sequence of transforms and plain functions, applied in order.

        >>> rb.append_transform(Compose(ToTensorImage(in_keys=["pixels"]), Resize(64, in_keys=["pixels"]),
        print_shapes)) >>> transform[0], transform[1:], len(transform)

    `inv` applies the inverse transforms from the last to the first, and skips functions without an `inv`.

    Args:
        *transforms: Functions of a batch that return a batch.

    Raises:
        InvalidArgumentError: If an argument is not callable.
    """

    transforms: nn.ModuleList

    def __init__(self, *transforms: Any, **keywords: Any) -> None:
        super().__init__()
        if "transforms" in keywords and not transforms:
            transforms = (list(keywords.pop("transforms")),)
        if keywords:
            raise TypeError(f"Compose got unexpected arguments: {', '.join(keywords)}")
        listed = transforms[0] if len(transforms) == 1 and isinstance(transforms[0], list) else transforms
        self.transforms = _module_list(listed)

    def _replace(self, transforms: list[Any]) -> None:
        """Replace all transforms of the sequence."""
        self.transforms = _module_list(transforms)

    def append(self, transform: Any) -> Compose:
        """Append a transform, and return the sequence."""
        return self.insert(len(self), transform)

    def insert(self, index: int, transform: Any) -> Compose:
        """Insert a transform before an index, and return the sequence.

        Raises:
            InvalidArgumentError: If the transform is not callable, or the index is out of range.
        """
        transforms, count = list(self), len(self)
        if not -count <= index <= count:
            raise InvalidArgumentError(f"index is {index}; expected {-count} to {count}")
        transforms.insert(index, transform)
        self._replace(transforms)
        return self

    def pop(self, index: int | None = None) -> Any:
        """Remove the transform at an index, by default the last one, and return it."""
        transforms = list(self)
        transform = transforms.pop(-1 if index is None else index)
        self._replace(transforms)
        return transform

    def __setitem__(self, index: Any, transform: Any) -> None:
        """Replace the transform at an index, or those of a slice."""
        transforms = list(self)
        transforms[index] = transform
        self._replace(transforms)

    def __delitem__(self, index: int | slice) -> None:
        """Remove the transform at an index, or those of a slice."""
        transforms = list(self)
        del transforms[index]
        self._replace(transforms)

    @override
    def clone(self) -> Compose:
        return Compose(*(item.clone() if isinstance(item, Transform) else item for item in self))

    @override
    def forward(self, data: Any) -> Any:  # type: ignore[override]  # a sequence has no entries with names
        if "torchrl" in sys.modules:
            check_caller(self)
        return self.transform_batch(data.copy() if is_tensor_collection(data) else data)

    def transform_batch(self, batch: Any) -> Any:
        """Apply all transforms to a batch and return the result. The memory of its tensors must not be modified."""
        return apply_transforms(self.transforms, batch, is_own=True)

    def inv(self, data: Any) -> Any:
        """Apply the inverse transforms; return `None`, for nothing to write, as soon as one of them does."""
        for transform in reversed(self.transforms):
            inverse = getattr(transform, "inv", None)
            if inverse is not None and data is not None:
                data = inverse(data)
        return data

    def gather(self, storage: Any, rows: Tensor, data: Any) -> Any:
        """Let each transform read other rows of the storage, see `add_gathered`."""
        return add_gathered(list(self.transforms), storage, rows, data)

    def update_specs(self, spec: CompositeSpec) -> None:
        """Transform a spec in place with all transforms; functions are applied to zeros to find the resulting spec."""
        for transform in self.transforms:
            if isinstance(transform, Transform):
                transform.bind(spec)
                transform.update_specs(spec)
            else:
                _update_specs_by_trial(transform, spec)

    def __getitem__(self, index: int | slice) -> Any:
        """Return the transform at an index, or a `Compose` of the transforms in a slice."""
        return Compose(*list(self)[index]) if isinstance(index, slice) else _unwrapped(self.transforms[index])

    def __len__(self) -> int:
        return len(self.transforms)

    def __iter__(self) -> Iterator[Any]:
        return map(_unwrapped, self.transforms)

    def __repr__(self) -> str:
        return f"Compose({''.join(chr(10) + '    ' + repr(item).replace(chr(10), chr(10) + '    ') + ',' for item in self)})"


def _restorer(module: nn.Module) -> Callable[[], None]:
    """Return a function that restores the present parameters and buffers of a module."""

    def copied(tensors: Mapping[str, Any]) -> dict[str, Any]:
        return {name: None if value is None else value.detach().clone() for name, value in tensors.items()}

    saved = [(part, part._buffers, copied(part._buffers), copied(part._parameters)) for part in module.modules()]  # noqa: SLF001 - of torch

    @torch.no_grad()
    def restore() -> None:
        for part, buffers, former_buffers, former_parameters in saved:
            buffers.update(former_buffers)
            for name, parameter in part.named_parameters(recurse=False):
                parameter.copy_(former_parameters[name])

    return restore


class _Function(Transform):
    """A plain function, or another callable, as a module of a `Compose`."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = check_callable(function)

    @override
    def forward(self, data: Any) -> Any:  # type: ignore[override]  # a function has no entries with names
        return self.function(data)

    @override
    def inv(self, data: Any) -> Any:
        inverse = getattr(self.function, "inv", None)
        return data if inverse is None else inverse(data)

    def gather(self, storage: Any, rows: Tensor, data: Any) -> Any:
        """Let the function read other rows of the storage, if it has a method `gather`."""
        return add_gathered([self.function], storage, rows, data)

    @override
    def update_specs(self, spec: CompositeSpec) -> None:
        _update_specs_by_trial(self.function, spec)


@torch.compiler.disable  # type: ignore[untyped-decorator]  # torch does not annotate it
def check_caller(transform: Transform) -> None:
    """Check that no environment of TorchRL calls a transform.

    `torchrl.envs.TransformedEnv` takes what is not its own transform for a function of the data of a step, and calls
    neither `inv` nor `transform_spec`. TorchRL's buffers call the wrapper of the function, and are accepted.

    Raises:
        InvalidArgumentError: If one does.
    """
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__") in _CALLING_MODULES:
        frame = frame.f_back
    if frame is None or frame.f_code.co_name != "_call" or not str(frame.f_globals["__name__"]).startswith("torchrl."):
        return
    name = type(transform).__name__
    own = getattr(sys.modules.get("torchrl.envs"), name, None)
    raise InvalidArgumentError(
        f"{name} of {type(transform).__module__} transforms batches of steps; TorchRL's environments need a transform of"
        " torchrl.envs, which also transforms specs and actions",
        hint=f"use torchrl.envs.{name} in the environment"
        if own is not None
        else "apply it to the collected batches, or derive a class from torchrl.envs.Transform",
    )


def _module_list(transforms: Sequence[Any]) -> nn.ModuleList:
    return nn.ModuleList(item if isinstance(item, nn.Module) else _Function(item) for item in transforms)


def _unwrapped(module: nn.Module) -> Any:
    return module.function if isinstance(module, _Function) else module


class NotRowsError(Exception):
    """Transforms that make trajectories of single steps, such as `split_trajectories`, so that no row has a result."""


class TransformedStorage:
    """View of a storage whose steps have passed through some transforms, for a later transform that reads other rows.

    rewards in the storage     r_0   r_1   r_2        MultiStepTransform after RewardClipping
    rewards that it reads    c(r_0) c(r_1) c(r_2)     sums clipped rewards, instead of clipping the sum

    Args:
        storage: Storage, or a view of it, to read from.
        transforms: Transforms that are applied to the steps, as a batch [B].
    """

    def __init__(self, storage: Storage | TransformedStorage, transforms: Sequence[Any]) -> None:
        self._storage, self._transforms = storage, transforms

    @property
    def origin(self) -> Any:
        """The underlying storage."""
        return getattr(self._storage, "origin", self._storage)

    @property
    def read_only(self) -> bool:
        """Whether the data of the storage cannot change."""
        return self._storage.read_only

    @property
    def write_count(self) -> int:
        """Value of `written` of the storage."""
        return self._storage.write_count

    @property
    def rewrite_count(self) -> int:
        """Value of `rewritten` of the storage."""
        return self._storage.rewrite_count

    def __len__(self) -> int:
        """Return the number of stored steps, N."""
        return len(self._storage)

    def chronological_rows(self) -> Tensor:
        """Return all stored rows from the oldest to the newest step, int64 [N]."""
        return self._storage.chronological_rows()

    def take(self, rows: Tensor) -> Any:
        """Return the transformed steps at rows, a batch [B].

        Raises:
            NotRowsError: If the transforms make trajectories of the steps.
            InvalidArgumentError: If they return another number of steps.
        """
        data = add_gathered(self._transforms, self._storage, rows, self._storage.take(rows))
        for transform in self._transforms:
            data = transform(data)
        if is_tensor_collection(data) and data.shape != rows.shape:
            if data.ndim != rows.ndim:
                raise NotRowsError
            raise InvalidArgumentError(
                f"the transforms return {len(data)} steps for {len(rows)} rows of the storage; expected the same number",
                hint="put transforms that leave steps out after those that read other steps",
            )
        return data

    def take_next(self, rows: Tensor) -> Any:
        """Return the entries under "next" of the transformed steps at rows, a batch [B]."""
        return self.take(rows).get(NEXT)

    def take_windows(
        self, keys: Sequence[Key], rows: Tensor, before: int, after: int, *, end_key: EndKey | None = None
    ) -> Windows:
        """Return entries of the windows around rows, see `Storage.take_windows`, of transformed steps."""
        window, outside = self.origin.windows_around(rows, before, after, end_key=end_key)
        batch = self.take(window.reshape(-1))
        values = [get_entry(batch, key) for key in keys]
        # A copy: transforms may return tensors that they keep.
        entries = [value.reshape(*window.shape, *value.shape[1:]).clone() for value in values]
        return Windows(entries, outside, rows_in(window))

    def column(self, key: Key) -> Tensor:
        """Return one entry of all stored steps, [N, ...]; the steps are read in chunks."""
        chunks = _row_chunks(len(self))
        return torch.cat([get_entry(self.take(rows), key) for rows in chunks])

    def trajectories(
        self, *, end_key: EndKey | None = None, traj_key: Key | None = None, step_key: Key | None = None
    ) -> Trajectories:
        """Return the trajectories of the storage; transforms do not affect them."""
        return self._storage.trajectories(end_key=end_key, traj_key=traj_key, step_key=step_key)


def add_gathered(transforms: Sequence[Any], storage: Any, rows: Tensor, data: Any) -> Any:
    """Add entries that the transforms with a method `gather` read from other rows of the storage, such as earlier frames.

    Each of them reads the rows as the transforms before it return them. If these make trajectories of the steps, as
    `split_trajectories` does, it reads nothing, and will use the steps of the batch.

    The values are stored under temporary keys of the batch until the transform uses them. A buffer calls this function
    while no writes are in progress.

    Args:
        transforms: Transforms that will be applied to the batch.
        storage: Storage to read from.
        rows: Rows of the batch in the storage, int64 [B].
        data: Batch of the steps at these rows, before the transforms.

    Returns:
        The batch with the temporary entries.
    """
    for number, transform in enumerate(transforms):
        # The lookup of a missing attribute of a module takes microseconds, that of a class does not.
        if hasattr(type(transform), "gather"):
            view = TransformedStorage(storage, transforms[:number]) if number else storage
            with suppress(NotRowsError):
                if getattr(transform, "_dotted", None):
                    transform.bind(view.take(rows[:1]) if number else data)
                data = transform.gather(view, rows, data)
    return data


def _row_chunks(count: int) -> Iterator[Tensor]:
    for start in range(0, count, _CHUNK):
        yield torch.arange(start, min(start + _CHUNK, count))


def apply_transforms(transforms: Iterable[Any], batch: Any, *, is_own: bool = False) -> Any:
    """Apply transforms and plain functions to a batch, in order.

    Args:
        transforms: Transforms and functions of a batch that return a batch.
        batch: The batch, a TensorDict or other data.
        is_own: Whether nobody else uses the TensorDict, so that its entries may be replaced.

    Raises:
        InvalidArgumentError: If one of them returns None.
    """
    for transform in transforms:
        in_place = (
            isinstance(transform, Transform)
            and type(transform).forward in {Transform.forward, Compose.forward}
            and not (transform._forward_hooks or transform._forward_pre_hooks)  # noqa: SLF001 - of torch
            # Functions accept values that are not TensorDicts; for such values, calling a transform raises the error.
            and is_tensor_collection(batch)
        )
        batch = transform.on_own(batch if is_own else transform.own(batch)) if in_place else transform(batch)
        # A function may keep what it returns.
        is_own = in_place
        if batch is None:
            raise InvalidArgumentError(
                f"the transform {_unwrapped(transform)!r} returned None", hint="return the batch from the transform"
            )
    return batch


def set_entry(batch: Any, key: NestedKey, value: Any) -> None:
    """Set an entry whose leading axes and device are those of the batch; `TensorDict.set` costs more than a small gather.

    Args:
        batch: The batch, which belongs to the caller.
        key: Key of the entry.
        value: A tensor, or a TensorDict with the batch size of the batch.
    """
    path: tuple[str, ...] = (key,) if isinstance(key, str) else key
    node, last = batch, len(path) - 1
    for number, name in enumerate(path):
        if type(node) is not TensorDict or node.is_locked or node.device is not None:
            batch.set(key, value)
            return
        entries: dict[str, Any] = node._tensordict  # noqa: SLF001 - see above
        if number == last:
            entries[name] = value
        elif name in entries:
            node = entries[name]
        else:
            entries[name] = node = TensorDict._new_unsafe(  # noqa: SLF001 - the same
                source={}, batch_size=node.batch_size, device=None, names=None
            )


def pop_entry(batch: Any, name: str) -> Any:
    """Remove an entry of a batch that belongs to the caller, and return it."""
    if type(batch) is TensorDict and not batch.is_locked:
        return batch._tensordict.pop(name)  # noqa: SLF001 - see `set_entry`
    return batch.pop(name)


def gathered_keys(batch: Any, mark: str = GATHERED) -> list[str]:
    """Return the temporary keys of a batch, which hold values from other rows of the storage."""
    return [name for name in batch.keys() if isinstance(name, str) and name.startswith(mark)]  # noqa: SIM118 - a TensorDict iterates over its steps


def require_entry(value: Any, key: NestedKey, batch: Any) -> Any:
    """Return the value of a key.

    Raises:
        UnknownKeyError: If the value is `None`; the error lists the keys of the TensorDict `batch`.
    """
    if value is None:
        keys = batch.keys(include_nested=True, leaves_only=True)
        raise UnknownKeyError(_dotted_name(key), [_dotted_name(name) for name in keys])
    return value


def get_entry(batch: Any, key: NestedKey) -> Any:
    """Return an entry of a TensorDict.

    Raises:
        UnknownKeyError: If the key is missing; the error lists the existing keys.
    """
    return require_entry(batch.get(key, None), key, batch)


def is_group(value: Any) -> bool:
    """Return whether an entry of a TensorDict or a composite spec is a group of entries."""
    if isinstance(value, Tensor):
        return False
    return isinstance(value, CompositeSpec) or (is_tensor_collection(value) and not is_non_tensor(value))


def entries_below(batch: Any, key: NestedKey) -> list[NestedKey]:
    """Return the keys of the entries of a group, relative to it; an empty key for an entry that is not a group.

    Args:
        batch: A TensorDict or a composite spec.
        key: Key of an entry.

    Raises:
        UnknownKeyError: If the key is missing.
    """
    value = batch[key] if isinstance(batch, CompositeSpec) else get_entry(batch, key)
    return list(value.keys(include_nested=True, leaves_only=True)) if is_group(value) else [()]


def flat_key(key: Any) -> NestedKey:
    """Return a key without nested tuples; a single name is returned as a string."""
    if isinstance(key, str):
        return key
    path = tuple(name for item in map(flat_key, key) for name in ([item] if isinstance(item, str) else item))
    return path if len(path) > 1 else path[0]


def has_dots(keys: Any) -> bool:
    """Return whether a key, or one of a list or mapping of keys, has a name with a dot."""
    if isinstance(keys, str):
        return "." in keys
    if isinstance(keys, Mapping):
        return any(map(has_dots, keys)) or any(map(has_dots, keys.values()))
    return isinstance(keys, (tuple, list)) and any(map(has_dots, keys))


def resolve_keys(keys: Any, data: Any) -> Any:
    """Return a key, or the keys of a list or of a mapping of keys to keys, see `resolve_key`."""
    if isinstance(keys, list):
        return [resolve_key(key, data) for key in keys]
    if isinstance(keys, Mapping):
        return {resolve_key(key, data): resolve_key(name, data) for key, name in keys.items()}
    return keys if keys is None else resolve_key(keys, data)


def resolve_key(key: NestedKey, data: Any) -> NestedKey:
    """Return the key of an entry whose name may have dots, as the data spells it.

    The dots separate the names of groups, unless the data has an entry of that very name. A new entry is named like the
    others: with dots, if the data has no such group, but entries whose names begin with it and a dot.

        "observation.state"        data                                  result
                                   {"observation": {"state": ...}}       ("observation", "state")
                                   {"observation.state": ...}            "observation.state"
                                   {"observation.image": ...}            "observation.state", a new entry

    Args:
        key: A name, or a tuple of names.
        data: A TensorDict or a composite spec; `None` if it is not known yet.
    """
    path: list[str] = []
    for name in (key,) if isinstance(key, str) else key:
        rest = name
        while "." in rest and all(rest.split(".")):
            names = list(data.keys()) if is_group(data) else []
            group, _, others = rest.partition(".")
            if rest in names or (group not in names and any(other.startswith(f"{group}.") for other in names)):
                break
            path.append(group)
            data, rest = _child(data, group), others
        path.append(rest)
        data = _child(data, rest)
    return tuple(path) if len(path) > 1 else path[0]


def _child(data: Any, name: str) -> Any:
    return data.get(name, None) if is_group(data) else None


def remove_entry(container: Any, key: NestedKey) -> None:
    """Remove an entry of a TensorDict or a composite spec, and all parent groups that are empty afterwards."""
    path: Any = (key,) if isinstance(key, str) else key
    del container[path]
    while len(path := path[:-1]) and container[path].is_empty():
        del container[path]


def _dotted_name(key: NestedKey) -> str:
    return key if isinstance(key, str) else ".".join(key)


def key_list(keys: Keys | None) -> list[NestedKey]:
    """Return keys as a list; a string is a single key."""
    if keys is None:
        return []
    return [flat_key(key) for key in ([keys] if isinstance(keys, str) else keys)]


def prefixed_key(prefix: str, key: NestedKey) -> NestedKey:
    """Return a key with a prefix of its last name."""
    groups, last = ((), key) if isinstance(key, str) else (key[:-1], key[-1])
    start, dot, name = last.rpartition(".")
    return flat_key((*groups, f"{start}{dot}{prefix}{name}"))


def expand_right(value: Tensor, shape: Sequence[int]) -> Tensor:
    """Append axes to a tensor and expand them, so that it has a shape."""
    return value.reshape(*value.shape, *(1,) * (len(shape) - value.ndim)).expand(*shape)


@lru_cache(maxsize=1024)
def under_next(key: NestedKey) -> NestedKey:
    """Return the key of an entry of the next step, under "next"."""
    return flat_key((NEXT, key))


def any_like(value: Any) -> TensorSpec:
    """Return the unbounded spec of the shape and dtype of a value."""
    spec: TensorSpec = spec_from_data(value)
    return spec


def _update_specs_by_trial(function: Any, spec: CompositeSpec) -> None:
    """Transform a spec in place by a function of batches: apply it to zeros, and infer the specs of changed entries."""
    before = spec.zero()
    after = function(before.copy())
    for key in list(spec.keys()):
        if after.get(key, None) is None:
            del spec[key]
    for key, value in after.items():
        if value is not before.get(key, None):
            spec.set(key, any_like(value))


def check_callable(transform: Any) -> Any:
    """Return a transform or function unchanged.

    Raises:
        InvalidArgumentError: If it is not callable.
    """
    if not callable(transform):
        raise InvalidArgumentError(f"{transform!r} is not callable; expected a transform or a function")
    return transform

"""Base class of the transforms, and their use of keys, entries and specs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from functools import lru_cache, wraps
from pathlib import Path
from typing import Any, ClassVar

import torch
from tensordict import TensorDict, is_leaf_nontensor, is_non_tensor, is_tensor_collection
from torch import Tensor, nn
from typing_extensions import Self, override

from datasets_rl.arguments import check
from datasets_rl.errors import DatasetsRLError, InvalidArgumentError, UnknownKeyError, WrongTypeError
from datasets_rl.format.checkpoint import read_state, write_state
from datasets_rl.specs import CompositeSpec, TensorSpec
from datasets_rl.specs.infer import spec_from_data
from datasets_rl.ted.keys import NEXT, Key, spelled_key
from datasets_rl.ted.unchecked import entries_of, unchecked

NestedKey = str | tuple[str, ...]
Keys = Sequence[NestedKey] | NestedKey
GATHERED = "_gathered"
"""Prefix of the temporary keys that hold values from other rows of the storage until a transform uses them."""
STEPS_TO_NEXT = "steps_to_next_obs"
"""Key of the number of steps from each step to the step under "next", which `MultiStepTransform` writes."""


class Transform(nn.Module):
    """Base class of the transforms, which map a batch to a batch. A transform reads `in_keys` and writes `out_keys`.

        batch  --- in_keys ------- forward ---> out_keys       sampling: from the buffer to the caller
        data   --- out_keys_inv -- inv -------> in_keys_inv    writing: from the caller to the buffer

    A key is a name, a tuple of names, or a name with dots: ``"observation.state"`` is ``("observation", "state")``, unless
    the data has an entry of that very name, see `resolve_key`.

    The key of a group, such as an observation of several sensors, stands for every entry of the group where a transform
    changes each entry separately. A transform that combines entries or steps names the group in an error instead.

    A transform modifies neither the input TensorDict nor the memory of its tensors. The result is a new TensorDict
    that shares all unchanged tensors with the input.

    Transforms are modules of torch: a `nn.Sequential` can contain them, and statistics are buffers.

    A custom transform overrides the hooks that TorchRL documents: `_apply_transform` and `_inv_apply_transform` for one
    entry, `_call` and `_inv_call` for the TensorDict, or `forward` and `inv`. A hook may modify its TensorDict, but not
    the memory of the tensors in it. `_inv_call` runs on all data that is written to the buffer, with or without
    `in_keys_inv`. `_call` runs on every batch, unless the transform has `in_keys` and overrides `_apply_transform`.
    TorchRL does not call it when sampling.

        class Double(Transform):
            def _apply_transform(self, obs):
                return 2 * obs

    These arguments are the same in all transforms. The class of a transform describes other arguments and defaults.

    Args:
        in_keys: Keys of the entries to read, a single key or a sequence.
        out_keys: Keys of the results, `in_keys` by default.
        in_keys_inv: Keys of the entries that `inv` writes.
        out_keys_inv: Keys of the entries that `inv` reads, `in_keys_inv` by default.

    Raises:
        InvalidArgumentError: If the numbers of input and output keys differ.
    """

    in_keys: list[NestedKey]
    out_keys: list[NestedKey]
    in_keys_inv: list[NestedKey]
    out_keys_inv: list[NestedKey]

    per_step: ClassVar[bool] = False
    """Whether the result for a step depends on nothing else of the batch, and on no random numbers: several batches may
    then be transformed at once."""

    shown: ClassVar[tuple[str, ...]] = ()
    """Names of the attributes that `repr` shows in addition to the keys."""

    _key_arguments: ClassVar[frozenset[str]] = frozenset({"in_keys", "out_keys", "in_keys_inv", "out_keys_inv"})
    """Names of the attributes that hold keys, after the arguments that the constructors annotate as keys."""
    _dotted: Mapping[str, Any] = {}
    """Values of these attributes before `bind`, if they have names with dots."""

    in_recipes: ClassVar[bool] = False
    """Whether recipes can name the transform.

    Each class states this attribute in a line that `preprocessing.steps` reads.
    """

    of_images: ClassVar[bool] = False
    """Whether a recipe that names no keys applies the transform to all images of a dataset."""

    in_double: ClassVar[bool] = False
    """Whether a recipe computes in float64 and rounds the results once.

    A batch is computed in the dtype of the batch.
    """

    instead: ClassVar[str] = ""
    """Name of the step of recipes that does for whole episodes what the transform does for batches, if that is another rule."""

    axes: int = 0
    """Number of the last axes of an entry, after the batch axes, that the transform combines."""

    def __init__(
        self,
        in_keys: Keys | None = None,
        out_keys: Keys | None = None,
        in_keys_inv: Keys | None = None,
        out_keys_inv: Keys | None = None,
    ) -> None:
        super().__init__()
        self.__dict__.setdefault("_arguments", ((in_keys, out_keys, in_keys_inv, out_keys_inv), {}))
        for name, ins, outs in (("keys", in_keys, out_keys), ("keys_inv", in_keys_inv, out_keys_inv)):
            pair = key_list(ins), key_list(ins if outs is None else outs)
            if len(pair[0]) != len(pair[1]):
                raise InvalidArgumentError(
                    f"in_{name} are {pair[0]} and out_{name} are {pair[1]}, expected the same number of keys"
                )
            for attribute, given, keys in zip((f"in_{name}", f"out_{name}"), (ins, outs), pair, strict=True):
                # The keys may be properties of a subclass, as of some in TorchRL.
                if given is not None or not isinstance(getattr(type(self), attribute, None), property):
                    setattr(self, attribute, keys)

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if "__init__" in vars(cls):
            cls.__init__ = _keeping_arguments(cls.__init__)  # type: ignore[method-assign]  # of the same signature
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
        """Return the transformed batch, a TensorDict of any batch size. The input is unchanged.

            >>> ObservationNorm(0.0, 2.0, in_keys=["observation"])(observation=torch.ones(3))    # a tensor [3]

        Args:
            data: The batch.
            **entries: The entries `in_keys` by name, instead of a batch. Names of nested keys are joined by "_". The
                result is then the entry of `out_keys`, or a tuple of several.

        Raises:
            UnknownKeyError: If one of `in_keys` is missing.
            InvalidArgumentError: If the data is not a TensorDict, or a name is not one of `in_keys`.
        """
        return self.on_own(self.own(data)) if data is not None or not entries else self._transform_entries(entries)

    def _transform_entries(self, entries: dict[str, Any]) -> Any:
        keys = {key if isinstance(key, str) else "_".join(key): key for key in self.in_keys}
        unknown = sorted(entries.keys() - keys.keys())
        if unknown:
            raise InvalidArgumentError(f"the entries {unknown} are not in_keys, expected {sorted(keys)}")
        batch = TensorDict()
        for name, value in entries.items():
            batch.set(keys[name], value)
        result = self(batch)
        values = tuple(get_entry(result, key) for key in self.out_keys)
        return values[0] if len(values) == 1 else values

    def on_own(self, batch: Any) -> Any:
        """Transform a TensorDict and return the result.

        The method may set entries, but not modify the memory of tensors.
        """
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
        """Return a transformed entry of a batch: a hook for subclasses, see `Transform`."""
        return obs.apply(self.transform_value) if is_group(obs) else self.transform_value(obs)

    def _inv_call(self, tensordict: Any) -> Any:
        """Transform data for the buffer in place and return it: a hook for subclasses, see `Transform`."""
        return self.invert_batch(tensordict)

    def _inv_apply_transform(self, state: Any) -> Any:
        """Return a transformed entry of data for the buffer: a hook for subclasses, see `Transform`."""
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
                f"the input of {type(self).__name__} is a {type(data).__name__}, expected a TensorDict",
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
                    f"{type(self).__name__} reads {dotted_text(key)}, which has shape {list(leaf.shape[ndim:])} for each"
                    f" step, expected at least {self.axes} axes",
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
            f"{type(self).__name__} cannot be applied to {dotted_text(key)}, {kind}: {' '.join(str(error).split())}",
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
            names = ", ".join(dotted_text(name) for name in value.keys(include_nested=True, leaves_only=True))
            raise InvalidArgumentError(
                f"{type(self).__name__} reads {dotted_text(key)}, which is a group of {names}, expected a tensor",
                hint="name an entry of the group, as ('group', 'name'), or concatenate them with CatTensors first",
            )
        tensor: Tensor = value
        return tensor

    def invert_batch(self, batch: Any) -> Any:
        """Apply the inverse transform to every entry of a TensorDict and return it: the inverse of `transform_batch`."""
        for in_key, out_key in zip(self.in_keys_inv, self.out_keys_inv, strict=True):
            batch.set(in_key, self._inv_apply_transform(get_entry(batch, out_key)))
        return batch

    def read_keys(self) -> Sequence[NestedKey] | None:
        """Return the keys of all entries that the results depend on, without the ends of trajectories.

        None is unknown.
        """
        return None

    def transform_value(self, value: Any) -> Any:
        """Return a transformed entry."""
        del value
        raise NotImplementedError(
            f"{type(self).__name__} has in_keys {self.in_keys}, but does not implement the transform: "
            "override _apply_transform, _call or forward"
        )

    def invert_value(self, value: Any) -> Any:
        """Return an entry with the transform inverted: the inverse of `transform_value`."""
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
        """Transform a spec in place, as `transform_batch` transforms a batch of that spec.

        A transform of single entries implements `transformed_spec`. For a transform of whole batches, the results for
        zeros show which entries change, with shapes and dtypes.
        """
        per_entry = self._overrides("transformed_spec") or not self._overrides("transform_batch")
        if self._calls or not per_entry:
            update_specs_by_trial(self.on_own, spec)
            return
        for in_key, out_key in zip(self.in_keys, self.out_keys, strict=True):
            for path in entries_below(spec, in_key):
                key, target = (flat_key((name, path)) if path else name for name in (in_key, out_key))
                spec.set(target, self.transformed_spec(spec[key]))

    def transformed_spec(self, spec: TensorSpec) -> TensorSpec:
        """Return the spec of an entry after `transform_value`, by default an unbounded spec of the resulting shape."""
        return any_like(self._apply_transform(spec.zero()))

    @property
    def parent(self) -> None:
        """The environment of the transform in TorchRL, always `None` because this package has no environments."""
        return

    def clone(self) -> Self:
        """Return a copy that shares tensors with the transform until the copy or the transform replaces them."""
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
            InvalidArgumentError: If the state does not fit. Nothing has changed.
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
            InvalidArgumentError: If the state does not fit, or the folder has no checkpoint. Nothing has changed.
            IntegrityError: If files are missing or damaged. Nothing has changed.
        """
        self.load_state_dict(read_state(path))

    def __repr__(self) -> str:
        arguments = [f"{name}={value!r}" for name, value in self._repr_arguments().items()]
        keys = (
            [f"keys={self.in_keys}"] if self.in_keys == self.out_keys else [f"keys={self.in_keys} to {self.out_keys}"]
        )
        return f"{type(self).__name__}({', '.join(arguments + (keys if self.in_keys else []))})"

    def _repr_arguments(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.shown}


def _keeping_arguments(init: Callable[..., None]) -> Callable[..., None]:
    """Return a constructor that keeps its arguments, by which a manifest describes the transform."""

    @wraps(init)
    def keeping(self: Any, *args: Any, **keywords: Any) -> None:
        self.__dict__.setdefault("_arguments", (args, keywords))
        init(self, *args, **keywords)

    return keeping


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


def set_entry(batch: Any, key: NestedKey, value: Any) -> None:
    """Set an entry with the leading axes and the device of the batch.

    `TensorDict.set` costs more than a small gather.

    Args:
        batch: The batch, which belongs to the caller.
        key: Key of the entry.
        value: A tensor, or a TensorDict with the batch size of the batch.
    """
    path: tuple[str, ...] = (key,) if isinstance(key, str) else key
    node, last = batch, len(path) - 1
    for number, name in enumerate(path):
        entries = entries_of(node)
        if entries is None or node.device is not None:
            batch.set(key, value)
            return
        if number == last:
            entries[name] = value
        elif name in entries:
            node = entries[name]
        else:
            entries[name] = node = unchecked({}, node.batch_size)


def pop_entry(batch: Any, name: str) -> Any:
    """Remove an entry of a batch that belongs to the caller, and return it."""
    entries = entries_of(batch)
    return batch.pop(name) if entries is None else entries.pop(name)


def gathered_keys(batch: Any, mark: str = GATHERED) -> list[str]:
    """Return the temporary keys of a batch, which hold values from other rows of the storage."""
    return [name for name in batch.keys() if isinstance(name, str) and name.startswith(mark)]  # noqa: SIM118 - a TensorDict iterates over its steps


def require_entry(value: Any, key: NestedKey, batch: Any) -> Any:
    """Return the value of a key.

    Raises:
        UnknownKeyError: If the value is `None`. The error lists the keys of the TensorDict `batch`.
    """
    if value is None:
        keys = batch.keys(include_nested=True, leaves_only=True)
        raise UnknownKeyError(dotted_text(key), [dotted_text(name) for name in keys])
    return value


def get_entry(batch: Any, key: NestedKey) -> Any:
    """Return an entry of a TensorDict.

    Raises:
        UnknownKeyError: If the key is missing. The error lists the existing keys.
    """
    return require_entry(batch.get(key, None), key, batch)


def is_group(value: Any) -> bool:
    """Return whether an entry of a TensorDict or a composite spec is a group of entries."""
    if isinstance(value, Tensor):
        return False
    return isinstance(value, CompositeSpec) or (is_tensor_collection(value) and not is_non_tensor(value))


def entries_below(batch: Any, key: NestedKey) -> list[NestedKey]:
    """Return the keys of the entries of a group, relative to the group. An entry that is not a group has an empty key.

    Args:
        batch: A TensorDict or a composite spec.
        key: Key of an entry.

    Raises:
        UnknownKeyError: If the key is missing.
    """
    value = batch[key] if isinstance(batch, CompositeSpec) else get_entry(batch, key)
    return list(value.keys(include_nested=True, leaves_only=True)) if is_group(value) else [()]


def flat_key(key: Any) -> NestedKey:
    """Return a key without nested tuples. A single name is returned as a string."""
    if isinstance(key, str):
        return key
    if not isinstance(key, Sequence) or not key:
        raise WrongTypeError(f"a key is {key!r:.60}, expected a name, or a tuple of names")
    path = tuple(name for item in map(flat_key, key) for name in ([item] if isinstance(item, str) else item))
    return path if len(path) > 1 else path[0]


def has_dots(keys: Any) -> bool:
    """Return whether a key, or a key of a list or mapping, has a name with a dot."""
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
    """Return the key of an entry as the data spells it, see `spelled_key`.

    Args:
        key: A name, or a tuple of names.
        data: A TensorDict or a composite spec, or `None` if it is not known yet.
    """
    if not has_dots(key):
        return key

    def names_at(path: Key) -> list[str]:
        group = data
        for name in path:
            group = group.get(name, None) if is_group(group) else None
        return list(group.keys()) if is_group(group) else []

    path = spelled_key(key, names_at)
    return path if len(path) > 1 else path[0]


def remove_entry(container: Any, key: NestedKey) -> None:
    """Remove an entry of a TensorDict or a composite spec, and all parent groups that are empty afterwards."""
    path: Any = (key,) if isinstance(key, str) else key
    del container[path]
    while len(path := path[:-1]) and container[path].is_empty():
        del container[path]


def dotted_text(key: NestedKey) -> str:
    """Return a key as a text, with the names joined by dots."""
    return key if isinstance(key, str) else ".".join(key)


def key_list(keys: Keys | None) -> list[NestedKey]:
    """Return keys as a list. A string is a single key.

    Raises:
        WrongTypeError: If it is neither a string nor a list of keys.
    """
    if keys is None:
        return []
    given: Any = keys
    if not isinstance(given, Iterable) or isinstance(given, Tensor):
        raise WrongTypeError(f"the keys are {keys!r:.60}, expected a string, or a list of keys")
    return [flat_key(key) for key in ([keys] if isinstance(keys, str) else keys)]


def number_tensor(value: Any, name: str, dtype: torch.dtype | None = None) -> Tensor:
    """Return a number or numbers as a tensor.

    Raises:
        WrongTypeError: If it is something else.
    """
    try:
        return torch.as_tensor(value, dtype=dtype)
    except (TypeError, ValueError, RuntimeError) as error:
        raise WrongTypeError(f"{name} is {value!r:.60}, expected a number, or a tensor of numbers") from error


def prefixed_key(prefix: str, key: NestedKey) -> NestedKey:
    """Return a key with a prefix of its last name."""
    groups, last = ((), key) if isinstance(key, str) else (key[:-1], key[-1])
    start, dot, name = last.rpartition(".")
    return flat_key((*groups, f"{start}{dot}{prefix}{name}"))


def suffixed_key(key: NestedKey, suffix: str) -> NestedKey:
    """Return a key with a suffix of its last name, after an underscore."""
    return f"{key}_{suffix}" if isinstance(key, str) else (*key[:-1], f"{key[-1]}_{suffix}")


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


def update_specs_by_trial(function: Any, spec: CompositeSpec, *, in_time: bool = False) -> None:
    """Transform a spec in place by a function of batches: apply it to zeros, and infer the specs of changed entries.

    Args:
        function: The function.
        spec: The spec.
        in_time: Whether the function needs a time axis, along which the zeros are then a single step.
    """
    zeros = spec.zero().unsqueeze(-1) if in_time else spec.zero()
    before = _leaves(zeros)
    after = _leaves(function(zeros.copy()))
    for key in before.keys() - after.keys():
        remove_entry(spec, key)
    for key, value in after.items():
        if value is not before.get(key):
            spec.set(key, any_like(value.squeeze(spec.ndim) if in_time else value))


def _leaves(batch: Any) -> dict[NestedKey, Any]:
    return dict(batch.items(include_nested=True, leaves_only=True, is_leaf=is_leaf_nontensor))


def transform_problems(transform: Any) -> list[str]:
    """Return why something is neither a transform nor a function."""
    if isinstance(transform, type) and issubclass(transform, nn.Module):
        return [f"transform is the class {transform.__name__}, expected an instance, {transform.__name__}(...)"]
    if callable(transform):
        return []
    named = " (names are for steps, which `preprocess` and `derive` apply)" if isinstance(transform, str) else ""
    return [
        f"transform {transform!r} is not callable, expected a transform or a function, as RewardScaling(0, 0.1){named}"
    ]


def check_callable(transform: Any) -> Any:
    """Return a transform or function unchanged.

    Raises:
        InvalidArgumentError: If it is neither.
    """
    check(transform_problems(transform))
    return transform

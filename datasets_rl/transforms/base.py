"""Base class of the transforms, composition of transforms, and helpers for keys and specs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from tensordict import is_tensor_collection
from torch import Tensor
from typing_extensions import Self, override

from datasets_rl.checkpoint import Stateful, raise_reasons
from datasets_rl.errors import InvalidArgumentError, UnknownKeyError
from datasets_rl.specs import CompositeSpec, TensorSpec
from datasets_rl.specs.infer import spec_from_data
from datasets_rl.ted.keys import NEXT, Key

if TYPE_CHECKING:
    from datasets_rl.storages.base import Storage
    from datasets_rl.storages.index import EndKey
    from datasets_rl.ted.trajectories import Trajectories

__all__ = [
    "GATHERED",
    "Compose",
    "Keys",
    "NestedKey",
    "Transform",
    "TransformedStorage",
    "add_gathered",
    "any_like",
    "check_callable",
    "entry_reader",
    "expand_right",
    "flat_key",
    "gathered_keys",
    "get_entry",
    "key_list",
    "remove_entry",
    "require_entry",
    "under_next",
]

NestedKey = str | tuple[str, ...]
Keys = Sequence[NestedKey] | NestedKey
GATHERED = "_gathered"
"""Prefix of the temporary keys that hold values from other rows of the storage until a transform uses them."""
_CHUNK = 1 << 16
"""Number of steps per chunk when all steps of a storage are read."""


class Transform(Stateful):
    """Base class of the transforms, which map a batch to a batch: they read `in_keys` and write `out_keys`.

        batch  --- in_keys ------- forward ---> out_keys       sampling: from the buffer to the caller
        data   --- out_keys_inv -- inv -------> in_keys_inv    writing: from the caller to the buffer

    A transform modifies neither its input TensorDict nor the memory of the tensors in it: it returns a new TensorDict
    that shares all unchanged tensors with the input.

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

    def __init__(
        self,
        in_keys: Keys | None = None,
        out_keys: Keys | None = None,
        in_keys_inv: Keys | None = None,
        out_keys_inv: Keys | None = None,
    ) -> None:
        self.in_keys = key_list(in_keys)
        self.out_keys = key_list(in_keys if out_keys is None else out_keys)
        self.in_keys_inv = key_list(in_keys_inv)
        self.out_keys_inv = key_list(in_keys_inv if out_keys_inv is None else out_keys_inv)
        self._check_pairs()

    def _check_pairs(self) -> None:
        for ins, outs, name in (
            (self.in_keys, self.out_keys, "keys"),
            (self.in_keys_inv, self.out_keys_inv, "keys_inv"),
        ):
            if len(ins) != len(outs):
                raise InvalidArgumentError(
                    f"in_{name} are {ins} and out_{name} are {outs}; expected the same number of keys"
                )

    def __call__(self, data: Any) -> Any:
        """Transform a batch; an alias of `forward`."""
        return self.forward(data)

    def forward(self, data: Any) -> Any:
        """Return the transformed batch, a TensorDict of any batch size; the input is unchanged.

        Raises:
            UnknownKeyError: If one of `in_keys` is missing.
        """
        return self.on_own(self.own(data))

    def on_own(self, batch: Any) -> Any:
        """Transform a TensorDict and return it. The method may set entries, but not modify the memory of tensors."""
        return self._call(batch) if self._calls else self.apply(batch)

    @property
    def _calls(self) -> bool:
        """Whether the hook for the TensorDict runs instead of the hook for each entry."""
        return self._overrides("_call") and not (self.in_keys and self._overrides("_apply_transform"))

    def _overrides(self, hook: str) -> bool:
        return getattr(type(self), hook) is not getattr(Transform, hook)

    def _call(self, next_tensordict: Any) -> Any:
        """Transform a batch in place and return it: a hook for subclasses, see `Transform`."""
        return self.apply(next_tensordict)

    def _apply_transform(self, obs: Any) -> Any:
        """Return one transformed entry of a batch: a hook for subclasses, see `Transform`."""
        return self.transform_value(obs)

    def _inv_call(self, tensordict: Any) -> Any:
        """Transform data for the buffer in place and return it: a hook for subclasses, see `Transform`."""
        return self.apply_inv(tensordict)

    def _inv_apply_transform(self, state: Any) -> Any:
        """Return one transformed entry of data for the buffer: a hook for subclasses, see `Transform`."""
        return self.invert_value(state)

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
        return data.copy()

    def apply(self, batch: Any) -> Any:
        """Transform every entry of a TensorDict and return it. The memory of its tensors must not be modified."""
        for in_key, out_key in zip(self.in_keys, self.out_keys, strict=True):
            batch.set(out_key, self._apply_transform(get_entry(batch, in_key)))
        return batch

    def apply_inv(self, batch: Any) -> Any:
        """Apply the inverse transform to every entry of a TensorDict and return it: the inverse of `apply`."""
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
        self.update_specs(spec)
        return spec

    def update_specs(self, spec: CompositeSpec) -> None:
        """Transform a spec in place, as `apply` transforms a batch of that spec."""
        if self._calls:
            _update_specs_by_trial(self.on_own, spec)
            return
        for in_key, out_key in zip(self.in_keys, self.out_keys, strict=True):
            spec.set(out_key, self.transformed_spec(spec[in_key]))

    def transformed_spec(self, spec: TensorSpec) -> TensorSpec:
        """Return the spec of one entry after `transform_value`; by default an unbounded spec of the resulting shape and dtype."""
        return any_like(self._apply_transform(spec.zero()))

    def eval(self) -> Self:
        """Stop updating running statistics from batches, and return the transform."""
        return self.train(mode=False)

    def train(self, mode: bool = True) -> Self:
        """Set whether running statistics are updated from batches, and return the transform."""
        del mode
        return self

    def to(self, device: Any) -> Self:
        """Rearrange the tensors of the transform to a device, and return the transform."""
        self.__dict__.update(
            {name: value.to(device) for name, value in self.__dict__.items() if isinstance(value, Tensor)}
        )
        return self

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

    def __init__(self, *transforms: Any) -> None:
        super().__init__()
        self.transforms = [check_callable(transform) for transform in transforms]

    def append(self, transform: Any) -> Compose:
        """Append a transform, and return the sequence."""
        self.insert(len(self.transforms), transform)
        return self

    def insert(self, index: int, transform: Any) -> Compose:
        """Insert a transform before an index, and return the sequence.

        Raises:
            InvalidArgumentError: If the transform is not callable, or the index is out of range.
        """
        self._check_index(index)
        self.transforms.insert(index, check_callable(transform))
        return self

    def _check_index(self, index: int) -> None:
        count = len(self.transforms)
        if not -count <= index <= count:
            raise InvalidArgumentError(f"index is {index}; expected {-count} to {count}")

    @override
    def forward(self, data: Any) -> Any:
        return self.apply(data.copy() if is_tensor_collection(data) else data)

    def apply(self, batch: Any) -> Any:
        """Apply all transforms to a batch and return the result. The memory of its tensors must not be modified."""
        for transform in self.transforms:
            # Functions accept values that are not TensorDicts; for such values, calling a transform raises the error.
            copies = isinstance(transform, Transform) and type(transform).forward in {
                Transform.forward,
                Compose.forward,
            }
            batch = transform.on_own(batch) if copies and is_tensor_collection(batch) else transform(batch)
        return batch

    def inv(self, data: Any) -> Any:
        """Apply the inverse transforms; return `None`, for nothing to write, as soon as one of them does."""
        for transform in reversed(self.transforms):
            inverse = getattr(transform, "inv", None)
            if inverse is not None and data is not None:
                data = inverse(data)
        return data

    def gather(self, storage: Any, rows: Tensor, data: Any) -> Any:
        """Let each transform read other rows of the storage, see `add_gathered`."""
        return add_gathered(self.transforms, storage, rows, data)

    def update_specs(self, spec: CompositeSpec) -> None:
        """Transform a spec in place with all transforms; functions are applied to zeros to find the resulting spec."""
        for transform in self.transforms:
            if isinstance(transform, Transform):
                transform.update_specs(spec)
            else:
                _update_specs_by_trial(transform, spec)

    @override
    def eval(self) -> Compose:
        return self.train(mode=False)

    @override
    def train(self, mode: bool = True) -> Compose:
        for transform in self._transform_instances:
            transform.train(mode)
        return self

    @override
    def to(self, device: Any) -> Compose:
        for transform in self._transform_instances:
            transform.to(device)
        return self

    @property
    def _transform_instances(self) -> list[Transform]:
        return [transform for transform in self.transforms if isinstance(transform, Transform)]

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the transforms that have one, by their index as text."""
        states = {
            str(number): transform.state_dict()
            for number, transform in enumerate(self.transforms)
            if hasattr(transform, "state_dict")
        }
        return {number: state for number, state in states.items() if state}

    def state_problems(self, state_dict: dict[str, Any]) -> list[str]:
        """Return why a state cannot be loaded: the reasons of the transforms, or different transforms with a state."""
        current = self.state_dict()
        if set(current) != set(state_dict):
            return [
                f"the state is for transforms {sorted(state_dict)}; expected a state for transforms {sorted(current)}"
            ]
        return [
            f"transform {number}: {reason}"
            for number, state in state_dict.items()
            for reason in self.transforms[int(number)].state_problems(state)
        ]

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        raise_reasons(self.state_problems(state_dict))
        for number, state in state_dict.items():
            self.transforms[int(number)].load_state_dict(state)

    def __getitem__(self, index: int | slice) -> Any:
        """Return the transform at an index, or a `Compose` of the transforms in a slice."""
        return Compose(*self.transforms[index]) if isinstance(index, slice) else self.transforms[index]

    def __len__(self) -> int:
        return len(self.transforms)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.transforms)

    def __repr__(self) -> str:
        return f"Compose({''.join(chr(10) + '    ' + repr(item).replace(chr(10), chr(10) + '    ') + ',' for item in self)})"


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
        """Return the transformed steps at rows, a batch [B]."""
        data = add_gathered(self._transforms, self._storage, rows, self._storage.take(rows))
        for transform in self._transforms:
            data = transform(data)
        return data

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

    Each of them reads the rows as the transforms before it return them.

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
        gather = getattr(transform, "gather", None)
        if gather is not None:
            data = gather(TransformedStorage(storage, transforms[:number]) if number else storage, rows, data)
    return data


def entry_reader(storage: Any, rows: Tensor) -> Callable[[NestedKey], Tensor | None]:
    """Return a function that reads the entry of a key at rows of a storage, [B, ...]; `None` for a missing key."""
    if isinstance(storage, TransformedStorage):
        batch = storage.take(rows)
        return lambda key: batch.get(key, None)

    def entry(key: NestedKey) -> Tensor | None:
        try:
            values: Tensor = storage.pick((key,) if isinstance(key, str) else key, rows)
        except UnknownKeyError:
            return None
        return values

    return entry


def _row_chunks(count: int) -> Iterator[Tensor]:
    for start in range(0, count, _CHUNK):
        yield torch.arange(start, min(start + _CHUNK, count))


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


def flat_key(key: Any) -> NestedKey:
    """Return a key without nested tuples; a single name is returned as a string."""
    if isinstance(key, str):
        return key
    path = tuple(name for item in map(flat_key, key) for name in ([item] if isinstance(item, str) else item))
    return path if len(path) > 1 else path[0]


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


def expand_right(value: Tensor, shape: Sequence[int]) -> Tensor:
    """Append axes to a tensor and expand them, so that it has a shape."""
    return value.reshape(*value.shape, *(1,) * (len(shape) - value.ndim)).expand(*shape)


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

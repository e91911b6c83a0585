"""What a transform is, and several of them in a row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from tensordict import is_tensor_collection
from torch import Tensor

from datasets_rl.checkpoint import Stateful, refuse
from datasets_rl.errors import InvalidArgumentError, UnknownKeyError
from datasets_rl.specs import CompositeSpec, TensorSpec
from datasets_rl.specs.infer import spec_from_data
from datasets_rl.ted.keys import NEXT, Key

if TYPE_CHECKING:
    from typing_extensions import Self

    from datasets_rl.storages.base import Storage
    from datasets_rl.storages.index import EndKey
    from datasets_rl.ted.trajectories import Trajectories

__all__ = [
    "GATHERED",
    "Compose",
    "Keys",
    "NestedKey",
    "Seen",
    "Transform",
    "any_like",
    "drop",
    "expand_right",
    "expect_callable",
    "flat_key",
    "found_keys",
    "gathered",
    "listed",
    "need",
    "reader",
    "taken",
    "under_next",
]

NestedKey = str | tuple[str, ...]
Keys = Sequence[NestedKey] | NestedKey
GATHERED = "_gathered"
"""How the entries begin in which further rows travel with a batch."""
_BLOCK = 1 << 16
"""Steps that are read at once where all are read."""


class Transform(Stateful):
    """A step from batch to batch: entries are read at `in_keys` and written at `out_keys`.

        batch  --- in_keys ------- forward ---> out_keys       what is sampled
        data   --- out_keys_inv -- inv -------> in_keys_inv    what is written, on its way into the buffer

    A transform changes neither the TensorDict that it is given nor the memory of its tensors: it returns another one,
    which shares what has not changed.

    A transform of one's own overrides the hooks that TorchRL documents: `_apply_transform` and `_inv_apply_transform` for
    one entry, `_call` and `_inv_call` for the TensorDict, or `forward` and `inv`. The TensorDict may be changed; the
    memory of its tensors may not. `_inv_call` is called for everything that is written, with and without `in_keys_inv`.
    `_call` is called for every batch, unless there are `in_keys` and an `_apply_transform` for them; TorchRL leaves it
    out on reads.

        class Double(Transform):
            def _apply_transform(self, obs):
                return 2 * obs

    Args:
        in_keys: Entries that are read; one key or a sequence.
        out_keys: Where the results are written; `in_keys` by default.
        in_keys_inv: Entries that `inv` writes.
        out_keys_inv: Entries that `inv` reads; `in_keys_inv` by default.

    Raises:
        InvalidArgumentError: If there are not as many keys in as out.
    """

    def __init__(
        self,
        in_keys: Keys | None = None,
        out_keys: Keys | None = None,
        in_keys_inv: Keys | None = None,
        out_keys_inv: Keys | None = None,
    ) -> None:
        self.in_keys = listed(in_keys)
        self.out_keys = listed(in_keys if out_keys is None else out_keys)
        self.in_keys_inv = listed(in_keys_inv)
        self.out_keys_inv = listed(in_keys_inv if out_keys_inv is None else out_keys_inv)
        self._expect_pairs()

    def _expect_pairs(self) -> None:
        for ins, outs, name in (
            (self.in_keys, self.out_keys, "keys"),
            (self.in_keys_inv, self.out_keys_inv, "keys_inv"),
        ):
            if len(ins) != len(outs):
                raise InvalidArgumentError(f"in_{name} are {ins} and out_{name} are {outs}; expected as many")

    def __call__(self, data: Any) -> Any:
        """Transform a batch, see `forward`."""
        return self.forward(data)

    def forward(self, data: Any) -> Any:
        """Return the transformed batch: a TensorDict of any batch size.

        Raises:
            UnknownKeyError: If one of `in_keys` is not there.
        """
        return self.on_own(self.own(data))

    def on_own(self, batch: Any) -> Any:
        """Transform a TensorDict whose entries, but not their memory, may be changed."""
        return self._call(batch) if self._calls else self.apply(batch)

    @property
    def _calls(self) -> bool:
        """Whether a subclass wants the whole TensorDict, and not one entry after the other."""
        return self._overrides("_call") and not (self.in_keys and self._overrides("_apply_transform"))

    def _overrides(self, hook: str) -> bool:
        return getattr(type(self), hook) is not getattr(Transform, hook)

    def _call(self, next_tensordict: Any) -> Any:
        """Transform a TensorDict whose entries may be changed, see `Transform`."""
        return self.apply(next_tensordict)

    def _apply_transform(self, obs: Any) -> Any:
        """Transform one entry, see `Transform`."""
        return self.each(obs)

    def _inv_call(self, tensordict: Any) -> Any:
        """Transform a TensorDict that is going to be written and whose entries may be changed, see `Transform`."""
        return self.apply_inv(tensordict)

    def _inv_apply_transform(self, state: Any) -> Any:
        """Transform one entry that is going to be written, see `Transform`."""
        return self.each_inv(state)

    def inv(self, data: Any) -> Any:
        """Transform what is going to be written the other way round; without `in_keys_inv` and `_inv_call`, nothing happens.

        Raises:
            UnknownKeyError: If one of `out_keys_inv` is not there.
        """
        if not self.in_keys_inv and not self._overrides("_inv_call"):
            return data
        if isinstance(data, list) and data and is_tensor_collection(data[0]):
            data = torch.stack(data)
        return self._inv_call(self.own(data))

    def own(self, data: Any) -> Any:
        """Return a TensorDict of its own over the same tensors."""
        if not is_tensor_collection(data):
            raise InvalidArgumentError(
                f"{type(self).__name__} was given a {type(data).__name__}; expected a TensorDict",
                hint="a plain function transforms anything else",
            )
        return data.copy()

    def apply(self, batch: Any) -> Any:
        """Transform a TensorDict whose entries, but not their memory, may be changed."""
        for in_key, out_key in zip(self.in_keys, self.out_keys, strict=True):
            batch.set(out_key, self._apply_transform(taken(batch, in_key)))
        return batch

    def apply_inv(self, batch: Any) -> Any:
        """Do the inverse of `apply`."""
        for in_key, out_key in zip(self.in_keys_inv, self.out_keys_inv, strict=True):
            batch.set(in_key, self._inv_apply_transform(taken(batch, out_key)))
        return batch

    def each(self, value: Any) -> Any:
        """Transform one entry."""
        del value
        raise NotImplementedError(
            f"{type(self).__name__} does not say how to transform an entry of {self.in_keys}: "
            "override _apply_transform, _call or forward"
        )

    def each_inv(self, value: Any) -> Any:
        """Do the inverse of `each`."""
        del value
        raise InvalidArgumentError(f"{type(self).__name__} has no inverse", hint="leave in_keys_inv out")

    def transform_spec(self, spec: CompositeSpec) -> CompositeSpec:
        """Return the spec of what comes out where data of this spec goes in.

        Raises:
            UnknownKeyError: If one of `in_keys` has no spec.
        """
        spec = spec.clone()
        self.respec(spec)
        return spec

    def respec(self, spec: CompositeSpec) -> None:
        """Change a spec as `apply` changes its data."""
        if self._calls:
            _respec_by_trial(self.on_own, spec)
            return
        for in_key, out_key in zip(self.in_keys, self.out_keys, strict=True):
            spec.set(out_key, self.spec_of(spec[in_key]))

    def spec_of(self, spec: TensorSpec) -> TensorSpec:
        """Return the spec of one entry after `each`; by default, any values in its shape and dtype."""
        return any_like(self._apply_transform(spec.zero()))

    def eval(self) -> Self:
        """Return the transform: one that learns from its batches stops doing so."""
        return self.train(mode=False)

    def train(self, mode: bool = True) -> Self:
        """Return the transform: one that learns from its batches goes on doing so."""
        del mode
        return self

    def to(self, device: Any) -> Self:
        """Return the transform, its tensors moved to a device."""
        self.__dict__.update(
            {name: part.to(device) for name, part in self.__dict__.items() if isinstance(part, Tensor)}
        )
        return self

    def __repr__(self) -> str:
        facts = [f"{name}={value!r}" for name, value in self._facts().items()]
        keys = (
            [f"keys={self.in_keys}"] if self.in_keys == self.out_keys else [f"keys={self.in_keys} to {self.out_keys}"]
        )
        return f"{type(self).__name__}({', '.join(facts + (keys if self.in_keys else []))})"

    def _facts(self) -> dict[str, Any]:
        """Return what `repr` shows besides the keys."""
        return {}


class Compose(Transform):
    """Transforms one after the other; plain functions too.

        >>> rb.append_transform(Compose(ToTensorImage(in_keys=["pixels"]), Resize(64, in_keys=["pixels"]), print_shapes))
        >>> transform[0], transform[1:], len(transform)

    `inv` goes through them from the last to the first, those without an `inv` left out.

    Args:
        *transforms: Callables on a batch.

    Raises:
        InvalidArgumentError: If one is no callable.
    """

    def __init__(self, *transforms: Any) -> None:
        super().__init__()
        self.transforms = [expect_callable(one) for one in transforms]

    def append(self, transform: Any) -> Compose:
        """Add a transform at the end, and return this."""
        self.insert(len(self.transforms), transform)
        return self

    def insert(self, index: int, transform: Any) -> Compose:
        """Add a transform at a place of the order, and return this.

        Raises:
            InvalidArgumentError: If it is no callable, or there is no such place.
        """
        self._expect_place(index)
        self.transforms.insert(index, expect_callable(transform))
        return self

    def _expect_place(self, index: int) -> None:
        count = len(self.transforms)
        if not -count <= index <= count:
            raise InvalidArgumentError(f"index is {index}; expected one from {-count} to {count}")

    def forward(self, data: Any) -> Any:
        """Return what comes out of the last one."""
        return self.apply(data.copy() if is_tensor_collection(data) else data)

    def apply(self, batch: Any) -> Any:
        """Transform a batch whose entries, but not their memory, may be changed."""
        for one in self.transforms:
            # What is no TensorDict goes to functions, and is refused by transforms.
            plain = isinstance(one, Transform) and type(one).forward in {Transform.forward, Compose.forward}
            batch = one.on_own(batch) if plain and is_tensor_collection(batch) else one(batch)
        return batch

    def inv(self, data: Any) -> Any:
        """Transform what is going to be written; None if one of them wants nothing written."""
        for one in reversed(self.transforms):
            inverse = getattr(one, "inv", None)
            if inverse is not None and data is not None:
                data = inverse(data)
        return data

    def gather(self, storage: Any, rows: Tensor, data: Any) -> Any:
        """Let each one that wants to read further rows of the storage do so, see `gathered`."""
        return gathered(self.transforms, storage, rows, data)

    def respec(self, spec: CompositeSpec) -> None:
        """Change a spec as all of them change its data; of a function, by what it makes of zeros."""
        for one in self.transforms:
            if isinstance(one, Transform):
                one.respec(spec)
            else:
                _respec_by_trial(one, spec)

    def eval(self) -> Compose:
        """Return this; none of the transforms learns from its batches any more."""
        return self.train(mode=False)

    def train(self, mode: bool = True) -> Compose:
        """Return this; see `eval`."""
        for one in self._own:
            one.train(mode)
        return self

    def to(self, device: Any) -> Compose:
        """Return this, the tensors of all transforms moved to a device."""
        for one in self._own:
            one.to(device)
        return self

    @property
    def _own(self) -> list[Transform]:
        return [one for one in self.transforms if isinstance(one, Transform)]

    def state_dict(self) -> dict[str, Any]:
        """Return the states of those that have one, by their numbers."""
        states = {
            str(number): one.state_dict() for number, one in enumerate(self.transforms) if hasattr(one, "state_dict")
        }
        return {number: state for number, state in states.items() if state}

    def misfits(self, state_dict: dict[str, Any]) -> list[str]:
        """Say why a state cannot be taken over: any of the transforms' reasons, or another number of them."""
        mine = self.state_dict()
        if set(mine) != set(state_dict):
            return [f"transforms {sorted(state_dict)} had a state, and here {sorted(mine)} have one"]
        return [
            f"transform {number}: {reason}"
            for number, state in state_dict.items()
            for reason in self.transforms[int(number)].misfits(state)
        ]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the states of the transforms."""
        refuse(self.misfits(state_dict))
        for number, state in state_dict.items():
            self.transforms[int(number)].load_state_dict(state)

    def __getitem__(self, index: int | slice) -> Any:
        """Return one transform by its number, some by a slice."""
        return Compose(*self.transforms[index]) if isinstance(index, slice) else self.transforms[index]

    def __len__(self) -> int:
        return len(self.transforms)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.transforms)

    def __repr__(self) -> str:
        return (
            f"Compose({''.join(chr(10) + '    ' + repr(one).replace(chr(10), chr(10) + '    ') + ',' for one in self)})"
        )


class Seen:
    """A storage as it looks through transforms: what a later transform reads has gone through the earlier ones.

    rewards in the storage     r_0   r_1   r_2        MultiStepTransform behind RewardClipping
    rewards that it reads    c(r_0) c(r_1) c(r_2)     sums what was clipped, and does not clip the sum

    Args:
        storage: What is read.
        transforms: What each step goes through, as a batch [B].
    """

    def __init__(self, storage: Storage | Seen, transforms: Sequence[Any]) -> None:
        self._storage, self._transforms = storage, transforms

    @property
    def origin(self) -> Any:
        """The storage itself."""
        return getattr(self._storage, "origin", self._storage)

    @property
    def read_only(self) -> bool:
        """Whether nothing can change the data."""
        return self._storage.read_only

    @property
    def written(self) -> int:
        """As the storage says."""
        return self._storage.written

    @property
    def rewritten(self) -> int:
        """As the storage says."""
        return self._storage.rewritten

    def __len__(self) -> int:
        """Return the number of steps held, N."""
        return len(self._storage)

    def chronological_rows(self) -> Tensor:
        """Return all rows held, from the oldest to the newest, int64 [N]."""
        return self._storage.chronological_rows()

    def take(self, rows: Tensor) -> Any:
        """Return the steps of these rows, [B], transformed."""
        data = gathered(self._transforms, self._storage, rows, self._storage.take(rows))
        for one in self._transforms:
            data = one(data)
        return data

    def column(self, key: Key) -> Tensor:
        """Return one entry of all steps held, [rows, ...]; they are read block by block."""
        blocks = _blocks(len(self))
        return torch.cat([taken(self.take(rows), key) for rows in blocks])

    def trajectories(
        self, *, end_key: EndKey | None = None, traj_key: Key | None = None, step_key: Key | None = None
    ) -> Trajectories:
        """Return which rows follow each other in time: as it is stored, whatever transforms do."""
        return self._storage.trajectories(end_key=end_key, traj_key=traj_key, step_key=step_key)


def gathered(transforms: Sequence[Any], storage: Any, rows: Tensor, data: Any) -> Any:
    """Let each transform that has a method `gather` read further rows, as they look through those before it.

    What it found travels with the batch until its turn comes. Inside a buffer this runs while nothing is written.

    Args:
        transforms: Those that the batch is going to pass.
        storage: Where the rows are.
        rows: Those of the batch, int64 [B].
        data: The batch as it was read.

    Returns:
        The batch, with what was found.
    """
    for place, one in enumerate(transforms):
        gather = getattr(one, "gather", None)
        if gather is not None:
            data = gather(Seen(storage, transforms[:place]) if place else storage, rows, data)
    return data


def reader(storage: Any, rows: Tensor) -> Callable[[NestedKey], Tensor | None]:
    """Return what gives an entry of these rows of a storage by its key, [B, ...]; None where there is no such key."""
    if isinstance(storage, Seen):
        batch = storage.take(rows)
        return lambda key: batch.get(key, None)

    def entry(key: NestedKey) -> Tensor | None:
        try:
            found: Tensor = storage.pick((key,) if isinstance(key, str) else key, rows)
        except UnknownKeyError:
            return None
        return found

    return entry


def _blocks(count: int) -> Iterator[Tensor]:
    for start in range(0, count, _BLOCK):
        yield torch.arange(start, min(start + _BLOCK, count))


def found_keys(batch: Any, mark: str = GATHERED) -> list[str]:
    """Return the keys of what was found in a storage, and travels with a batch."""
    return [name for name in batch.keys() if isinstance(name, str) and name.startswith(mark)]  # noqa: SIM118 - a TensorDict iterates over its steps


def need(value: Any, key: NestedKey, known: Any) -> Any:
    """Return what was found under a key.

    Raises:
        UnknownKeyError: If nothing was; the error names the keys of the TensorDict `known`.
    """
    if value is None:
        raise UnknownKeyError(_named(key), [_named(one) for one in known.keys(include_nested=True, leaves_only=True)])
    return value


def taken(batch: Any, key: NestedKey) -> Any:
    """Return an entry of a TensorDict.

    Raises:
        UnknownKeyError: If it is not there; the error names those that are.
    """
    return need(batch.get(key, None), key, batch)


def flat_key(key: Any) -> NestedKey:
    """Return a key without tuples in it; one name is no tuple."""
    if isinstance(key, str):
        return key
    path = tuple(name for part in map(flat_key, key) for name in ([part] if isinstance(part, str) else part))
    return path if len(path) > 1 else path[0]


def drop(box: Any, key: NestedKey) -> None:
    """Remove an entry of a TensorDict, or of a spec, and the groups that are empty then."""
    path: Any = (key,) if isinstance(key, str) else key
    del box[path]
    while len(path := path[:-1]) and box[path].is_empty():
        del box[path]


def _named(key: NestedKey) -> str:
    return key if isinstance(key, str) else ".".join(key)


def listed(keys: Keys | None) -> list[NestedKey]:
    """Return keys as a list; a string is one key."""
    if keys is None:
        return []
    return [flat_key(key) for key in ([keys] if isinstance(keys, str) else keys)]


def expand_right(value: Tensor, shape: Sequence[int]) -> Tensor:
    """Return a tensor with further axes at its end, so that it has a shape."""
    return value.reshape(*value.shape, *(1,) * (len(shape) - value.ndim)).expand(*shape)


def under_next(key: NestedKey) -> NestedKey:
    """Return where an entry stands for the next step."""
    return flat_key((NEXT, key))


def any_like(value: Any) -> TensorSpec:
    """Return the spec of all values of a shape and a dtype."""
    spec: TensorSpec = spec_from_data(value)
    return spec


def _respec_by_trial(function: Any, spec: CompositeSpec) -> None:
    before = spec.zero()
    after = function(before.copy())
    for key in list(spec.keys()):
        if after.get(key, None) is None:
            del spec[key]
    for key, value in after.items():
        if value is not before.get(key, None):
            spec.set(key, any_like(value))


def expect_callable(transform: Any) -> Any:
    """Return a transform.

    Raises:
        InvalidArgumentError: If it cannot be called.
    """
    if not callable(transform):
        raise InvalidArgumentError(f"{transform!r} is no callable; expected a transform or a function")
    return transform

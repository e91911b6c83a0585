"""The query language for trajectories: conditions, and the trajectories that fulfill a condition."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorClass, TensorDict, TensorDictBase
from torch import Tensor

from datasets_rl.errors import InvalidArgumentError, UnknownKeyError, WrongTypeError
from datasets_rl.storages.ensemble import StorageEnsemble
from datasets_rl.storages.list import ListStorage
from datasets_rl.ted.boundaries import DEFAULT_DONE_KEYS, find_start_stop_traj
from datasets_rl.ted.keys import NEXT, Key, as_key, dotted_name, nest_keys
from datasets_rl.ted.table import concatenated_ranges
from datasets_rl.transforms.base import NestedKey, flat_key, resolve_key
from datasets_rl.transforms.compose import Compose

if TYPE_CHECKING:
    from datasets_rl.storages.base import Storage
    from datasets_rl.ted.trajectories import Trajectories

_ID_KEYS: tuple[Key, ...] = (("collector", "traj_ids"), ("traj_ids",), ("episode",))
_FLAG_KEYS: tuple[tuple[Key, ...], ...] = (
    tuple((NEXT, name) for name in DEFAULT_DONE_KEYS),
    tuple((name,) for name in DEFAULT_DONE_KEYS),
)
_MAX_STEPS = 1 << 16
"""Number of steps that are read at once, unless a trajectory has more."""


_TensorClass: Any = TensorClass["nocast"]  # type: ignore[misc]  # its index is an option


class Trajectory(_TensorClass):  # type: ignore[misc]  # any attribute may be an entry
    """A trajectory: T consecutive steps with entries as attributes.

        >>> trajectory = rb.query(traj.length >= 50)[0]
        >>> trajectory.observation, trajectory.reward       # [T, ...] each
        >>> trajectory.length, trajectory.total_reward
        >>> trajectory[:10], trajectory["next", "done"]

    A name that the steps lack is looked up under "next": `reward` is ``("next", "reward")``. An index of steps gives a
    trajectory, a key gives an entry. `tensordict.lazy_stack` stacks trajectories of different lengths.

    Raises:
        InvalidArgumentError: If the steps have several batch dimensions.
    """

    data: TensorDictBase
    """The steps, [T]."""

    if TYPE_CHECKING:
        batch_size: torch.Size

    def __post_init__(self) -> None:
        steps: Any = self.data
        if self.batch_size or steps is None or not steps.ndim:
            return
        if steps.ndim != 1:
            raise InvalidArgumentError(
                f"the steps have the batch size {list(steps.batch_size)}, expected a single batch dimension, time"
            )
        self.batch_size = steps.batch_size

    @property
    def length(self) -> int:
        """Number of steps, T."""
        return int(self.batch_size[0])

    @property
    def total_reward(self) -> Tensor:
        """Return of the trajectory: the undiscounted sum of the rewards, a scalar. Sums of integers are int64.

        Floating-point rewards keep their dtype. The sum is in float64, so that only the result is rounded.
        """
        rewards: Tensor = self.reward
        return rewards.double().sum().to(rewards.dtype) if rewards.is_floating_point() else rewards.sum()

    def get(self, key: NestedKey, default: Any = None) -> Any:
        """Return the entry of a key, or the entry of the same name under "next", or `default`."""
        value = self.data.get(resolve_key(key, self.data), None)
        if value is None and isinstance(key, str):
            value = self.data.get(resolve_key((NEXT, key), self.data), None)
        return default if value is None else value

    def keys(self, *args: Any, **kwargs: Any) -> Any:
        """Return the keys of the steps, like `TensorDict.keys`."""
        return self.data.keys(*args, **kwargs)


def _make_entries_attributes(cls: Any) -> None:
    """Let attributes and keys of a trajectory find its entries.

    tensordict replaces the methods of these names when the class is created.
    """
    attribute_of, item_of = cls.__getattr__, cls.__getitem__

    def find_attribute(self: Any, name: str) -> Any:
        try:
            return attribute_of(self, name)
        except AttributeError:
            value = None if name.startswith("_") else self.get(name)
            if value is None:
                known = ", ".join(sorted(_leaf_names(self.data)))
                raise AttributeError(f"the trajectory has no entry {name!r} among {known}") from None
            return value

    def find_item(self: Any, index: Any) -> Any:
        path = index if isinstance(index, tuple) else (index,)
        is_key = bool(path) and all(isinstance(name, str) for name in path)
        return self.data[index] if is_key else item_of(self, index)

    def describe(self: Any) -> str:
        shape = f"length={self.length}" if self.ndim == 1 else f"batch_size={list(self.batch_size)}"
        return f"Trajectory({shape}, keys={sorted(map(str, self.data.keys()))})"

    cls.__getattr__, cls.__getitem__, cls.__repr__ = find_attribute, find_item, describe


_make_entries_attributes(Trajectory)


class _Expression:
    """A value that depends on a trajectory.

    Args:
        fn: Computes the value from a `Trajectory`.
        description: Text for messages.
        keys: The keys of the entries that the value depends on. None if unknown.
    """

    def __init__(
        self, fn: Callable[[Any], Any], description: str = "predicate", keys: frozenset[NestedKey] | None = None
    ) -> None:
        self.value = fn
        self.description = description
        self.keys = keys

    def __bool__(self) -> bool:
        """Refuse: `and`, `or`, `not` and chained comparisons would take the truth of a part, and drop the other part.

        Raises:
            WrongTypeError: Always.
        """
        raise WrongTypeError(
            f"{self.description} has a truth value only for a trajectory: `and`, `or`, `not` and "
            "comparisons such as 0 < x < 1 need a truth value",
            hint="combine conditions with & (and), | (or) and ~ (not), each in parentheses: (0 < x) & (x < 1)",
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__.lstrip('_')}({self.description})"


class TrajectoryPredicate(_Expression):
    """Condition on a trajectory. Conditions are combined with ``&`` (and), ``|`` (or) and ``~`` (not).

    The words `and`, `or` and `not`, and chained comparisons, raise an error: Python would drop a condition.

        >>> good = (traj.reward.sum() > 100) & ~(traj.length < 50)
        >>> rb.query(good), good(trajectory), good.required_keys()

    Args:
        fn: Maps a `Trajectory` to a bool.
        description: Text for messages.
        keys: The keys of the entries that the condition reads. None if unknown.
    """

    def required_keys(self) -> frozenset[NestedKey] | None:
        """Return the keys of the entries that the condition reads, or None if unknown."""
        return self.keys

    def __call__(self, trajectory: Any) -> bool:
        """Return whether a trajectory fulfills the condition."""
        return bool(self.value(trajectory))

    def __and__(self, other: TrajectoryPredicate) -> TrajectoryPredicate:
        return self._joined(other, "&", lambda item: self(item) and other(item))

    def __or__(self, other: TrajectoryPredicate) -> TrajectoryPredicate:
        return self._joined(other, "|", lambda item: self(item) or other(item))

    def __invert__(self) -> TrajectoryPredicate:
        return TrajectoryPredicate(lambda item: not self(item), f"~{self.description}", self.keys)

    def _joined(self, other: TrajectoryPredicate, symbol: str, fn: Callable[[Any], bool]) -> TrajectoryPredicate:
        if not isinstance(other, _Expression):
            return NotImplemented
        return TrajectoryPredicate(fn, f"({self.description} {symbol} {other.description})", _joined_keys(self, other))


class _ConditionOnSteps(_Expression):
    """A condition on every step of a trajectory, which `any` or `all` reduces to a condition on the trajectory."""

    def any(self) -> TrajectoryPredicate:
        """Return the condition that at least one step fulfills this condition."""
        return TrajectoryPredicate(lambda item: self.value(item).any(), f"{self.description}.any()", self.keys)

    def all(self) -> TrajectoryPredicate:
        """Return the condition that every step fulfills this condition."""
        return TrajectoryPredicate(lambda item: self.value(item).all(), f"{self.description}.all()", self.keys)

    def __call__(self, trajectory: Any = None) -> bool:
        """Refuse: the condition holds for steps.

        Raises:
            InvalidArgumentError: Always.
        """
        del trajectory
        raise WrongTypeError(
            f"{self.description} is a condition on every step, expected a condition on the whole trajectory",
            hint="call .any() or .all() on the condition",
        )


def _comparison(symbol: str, compare: Callable[[Any, Any], Any]) -> Any:
    def condition(self: _Comparable, other: Any) -> Any:
        if not isinstance(other, _Expression):
            text = f"({self.description} {symbol} {other!r})"
            return self.condition(lambda item: compare(self.value(item), other), text, self.keys)
        of_steps = isinstance(self, _Field) or isinstance(other, _Field)
        return (_ConditionOnSteps if of_steps else TrajectoryPredicate)(
            lambda item: compare(self.value(item), other.value(item)),
            f"({self.description} {symbol} {other.description})",
            _joined_keys(self, other),
        )

    return condition


def _joined_keys(one: _Expression, other: _Expression) -> frozenset[NestedKey] | None:
    return None if one.keys is None or other.keys is None else one.keys | other.keys


class _Comparable(_Expression):
    """An expression. A comparison with a value, or with another expression, is a condition."""

    condition: type[_Expression]
    """The class of the condition."""
    __gt__ = _comparison(">", operator.gt)
    __ge__ = _comparison(">=", operator.ge)
    __lt__ = _comparison("<", operator.lt)
    __le__ = _comparison("<=", operator.le)
    __eq__ = _comparison("==", operator.eq)
    __ne__ = _comparison("!=", operator.ne)
    __hash__ = None  # type: ignore[assignment]  # a comparison is a condition, whatever is compared


class _Number(_Comparable):
    """A number per trajectory."""

    condition = TrajectoryPredicate


def _reduction(name: str, reduce: Callable[[Any], Any]) -> Any:
    def reduced(self: _Field) -> _Number:
        return _Number(lambda item: reduce(self.value(item)), f"{self.description}.{name}()", self.keys)

    reduced.__doc__ = f"Return the {name} of the values of all steps."
    return reduced


class _Field(_Comparable):
    """An entry of a trajectory: a value per step."""

    condition = _ConditionOnSteps
    sum = _reduction("sum", Tensor.sum)
    mean = _reduction("mean", lambda values: (values if values.is_floating_point() else values.float()).mean())
    max = _reduction("max", Tensor.max)
    min = _reduction("min", Tensor.min)
    first = _reduction("first", lambda values: values[0])
    last = _reduction("last", lambda values: values[-1])


class _TrajectoryExpression:
    """Expressions of a query: entries of trajectories by name or key.

        >>> from datasets_rl import load, traj
        >>> rb = load("demo/pendulum")
        >>> len(rb.query((traj.total_reward > -200) & (traj.length >= 50)))
        17
        >>> len(rb.query((traj.reward > -0.1).all() | (traj["action"].max() < 0)))
        2
        >>> len(rb.query((traj["episode"] == 3).all()))
        1

    Names are looked up in the steps, and then under "next". An entry has the reductions `sum`, `mean`, `max`, `min`,
    `first` and `last`. A comparison of an entry has `any` and `all`.
    """

    @property
    def length(self) -> _Number:
        """The number of steps."""
        return _Number(lambda item: item.length, "traj.length", frozenset())

    @property
    def total_reward(self) -> _Number:
        """The return: the undiscounted sum of the rewards."""
        return _Number(lambda item: item.total_reward, "traj.total_reward", frozenset({"reward"}))

    def __getattr__(self, name: str) -> _Field:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._field(name, f"traj.{name}")

    def __getitem__(self, key: NestedKey) -> _Field:
        return self._field(flat_key(key), f"traj[{key!r}]")

    def _field(self, key: NestedKey, description: str) -> _Field:
        def values_of(trajectory: Any) -> Any:
            value = trajectory.get(key)
            if value is None:
                raise UnknownKeyError(_name(key), _leaf_names(trajectory.data))
            return value

        return _Field(values_of, description, frozenset({key}))

    def __repr__(self) -> str:
        return "traj"


traj = _TrajectoryExpression()
"""The trajectory in a condition, see `TrajectoryPredicate`."""

Predicate = Callable[[Any], Any]


def iter_trajectories(data: Any, trajectory_key: NestedKey | None = None) -> Iterator[Trajectory]:
    """Yield the trajectories of consecutive steps, as views of the steps.

    A trajectory ends where the id of the next step differs. Without ids, a trajectory ends where a flag is True, with a
    warning, because a trajectory that ends without a flag cannot be distinguished from the next trajectory.

        >>> from datasets_rl import iter_trajectories, load
        >>> steps = load("demo/pendulum")[:400]
        >>> [trajectory.length for trajectory in iter_trajectories(steps)]
        [200, 200]

    Args:
        data: Steps in chronological order, a TensorDict [N].
        trajectory_key: Key of the trajectory id. By default the first existing key of ``("collector", "traj_ids")``,
            ``"traj_ids"`` and ``"episode"``. Without an id, the flags "done", "truncated" and "terminated" under
            "next", or else in the steps themselves.

    Raises:
        InvalidArgumentError: If `data` is not a TensorDict with a single batch dimension.
        UnknownKeyError: If the steps lack `trajectory_key`, or have neither an id nor a flag.
    """
    if not isinstance(data, TensorDictBase):
        raise WrongTypeError(f"the data is a {type(data).__name__}, expected steps in a TensorDict [N]")
    if data.ndim != 1:
        raise InvalidArgumentError(
            f"the data has the batch size {list(data.batch_size)}, expected a single dimension, [N]"
        )
    if not len(data):
        return
    ids, flags = _bound_keys(lambda key: data.get(key, None) is not None, trajectory_key, lambda: _leaf_names(data))
    bounds = (
        {"trajectory": data.get(ids).reshape(len(data))}
        if ids is not None
        else {"end": torch.stack([data.get(key).reshape(len(data)) for key in flags]).any(0)}
    )
    start, stop, _ = find_start_stop_traj(**bounds, at_capacity=False)
    for first, last in zip(start[:, 0].tolist(), stop[:, 0].tolist(), strict=True):
        yield Trajectory(data[first : last + 1])


def filter_trajectories(
    data: Any, predicate: Predicate | None = None, *, trajectory_key: NestedKey | None = None
) -> list[Trajectory]:
    """Return the trajectories of consecutive steps that fulfill a condition, as views of the steps.

        >>> good = filter_trajectories(data, traj.reward.sum() > 100)

    Args:
        data: Steps in chronological order, a TensorDict [N].
        predicate: A condition, or any function that maps a `Trajectory` to a bool. None for all trajectories.
        trajectory_key: Key of the trajectory id, see `iter_trajectories`.

    Raises:
        InvalidArgumentError: As for `iter_trajectories`, and if the condition is on single steps.
        UnknownKeyError: If a key is missing.
    """
    _check_predicate(predicate)
    return [
        trajectory
        for trajectory in iter_trajectories(data, trajectory_key)
        if predicate is None or predicate(trajectory)
    ]


def query_storage(
    storage: Storage,
    read: Callable[[Tensor], Any],
    transforms: Sequence[Any],
    predicate: Predicate | None = None,
    trajectory_key: NestedKey | None = None,
) -> list[Trajectory]:
    """Return the trajectories of a storage that fulfill a condition, see `ReplayBuffer.query`.

    If the keys that the condition reads are known, and no transform can change these keys, only these entries are read
    of trajectories that do not fulfill the condition.

    Args:
        storage: The storage. No write is in progress.
        read: Returns the steps at rows, int64 [B], as a batch after all transforms.
        transforms: The transforms that `read` applies.
        predicate: The condition.
        trajectory_key: Key of the trajectory id.
    """
    _check_predicate(predicate)
    if not len(storage):
        return []
    if isinstance(storage, StorageEnsemble):
        raise InvalidArgumentError(
            f"an ensemble of {len(storage)} storages was queried, expected a single storage",
            hint="query a buffer of the ensemble: rb[i].query(...)",
        )
    if isinstance(storage, ListStorage):
        return filter_trajectories(read(storage.chronological_rows()), predicate, trajectory_key=trajectory_key)
    found = _trajectories_of(storage, trajectory_key)
    keys = _separate_keys(storage, transforms, predicate)
    results: list[Trajectory] = []
    for numbers in _chunks(storage, found):
        if keys is not None:
            rows = _rows_of(found, numbers)
            entries = nest_keys({key: storage.pick(key, rows) for key in keys})
            parts = _split(TensorDict(entries, [len(rows)]), found.lengths[numbers])
            numbers = numbers[[bool(predicate is None or predicate(part)) for part in parts]]  # noqa: PLW2901
        if not len(numbers):
            continue
        parts = _split(read(_rows_of(found, numbers)), found.lengths[numbers])
        kept = parts if keys is not None or predicate is None else [part for part in parts if predicate(part)]
        # A view would keep the memory of all trajectories that were read together.
        results += kept if len(kept) == len(parts) else [part.clone() for part in kept]
    return results


def _check_predicate(predicate: Any) -> None:
    if isinstance(predicate, _ConditionOnSteps):
        predicate()
    if predicate is not None and not callable(predicate):
        raise InvalidArgumentError(f"predicate is {predicate!r}, expected a condition on trajectories or a function")


def _bound_keys(
    has: Callable[[Key], bool], trajectory_key: NestedKey | None, names: Callable[[], list[str]]
) -> tuple[Key | None, tuple[Key, ...]]:
    """Return the key of the trajectory id, or None and the keys of the flags at the ends of trajectories."""
    candidates = _ID_KEYS if trajectory_key is None else (as_key(trajectory_key),)
    ids = next((key for key in candidates if has(key)), None)
    if ids is not None:
        return ids, ()
    flags = next(filter(None, (tuple(filter(has, keys)) for keys in _FLAG_KEYS)), ())
    if trajectory_key is not None or not flags:
        error = UnknownKeyError(dotted_name(candidates[-1]), names())
        error.hint = "pass the key of an id that divides the steps into trajectories: trajectory_key=..."
        raise error
    warnings.warn(
        f"the data has no trajectory id, so the end-of-episode flags {', '.join(map(dotted_name, flags))} divide it: a "
        "trajectory that ends without a flag is joined with the next trajectory. Store an id, or pass trajectory_key",
        stacklevel=4,
    )
    return None, flags


def _trajectories_of(storage: Storage, trajectory_key: NestedKey | None) -> Trajectories:
    ids, flags = _bound_keys(
        lambda key: _has_entry(storage, key), trajectory_key, lambda: _leaf_names(storage.get([0]))
    )
    return storage.trajectories(traj_key=ids) if ids is not None else storage.trajectories(end_key=flags)


def _has_entry(storage: Storage, key: Key) -> bool:
    try:
        return isinstance(storage.pick(key, torch.zeros(1, dtype=torch.int64)), Tensor)
    except UnknownKeyError:
        return False


def _separate_keys(storage: Storage, transforms: Sequence[Any], predicate: Any) -> list[Key] | None:
    """Return the keys of the stored entries that a condition reads, or None if the condition needs complete batches."""
    required = getattr(predicate, "required_keys", lambda: None)()
    if required is None:
        return None
    changed = _changed_keys(transforms)
    keys: list[Key] = []
    for name in required:
        places = [as_key(name), (NEXT, *as_key(name))][: 2 if isinstance(name, str) else 1]
        stored = next((key for key in places if _has_entry(storage, key)), None)
        if stored is None or changed is None or any(_overlap(key, place) for key in changed for place in places):
            return None
        keys.append(stored)
    return keys


def _changed_keys(transforms: Sequence[Any]) -> list[Key] | None:
    """Return the keys that transforms may change or remove, or None if a transform does not say."""
    keys: list[Key] = []
    for transform in transforms:
        if isinstance(transform, Compose):
            inner = _changed_keys(list(transform))
        elif getattr(transform, "out_keys", None):
            inner = [as_key(key) for key in (*transform.in_keys, *transform.out_keys)]
        else:
            return None
        if inner is None:
            return None
        keys += inner
    return keys


def _overlap(key: Key, other: Key) -> bool:
    """Return whether a key is the other key, or a group that contains the other key."""
    return all(name == name_of_other for name, name_of_other in zip(key, other, strict=False))


def _chunks(storage: Storage, found: Trajectories) -> list[NDArray[np.int64]]:
    """Return the numbers of all trajectories, by environment and then from the oldest, in parts to read at once."""
    first_rows = found.rows(found.firsts)
    is_full = storage.filled_count == storage.slot_count
    oldest = storage.write_count % storage.slot_count if is_full else 0
    ages = (first_rows // storage.envs - oldest) % storage.slot_count
    order = np.lexsort((ages, first_rows % storage.envs))
    starts = np.cumsum(found.lengths[order]) - found.lengths[order]
    return np.split(order, np.flatnonzero(np.diff(starts // _MAX_STEPS)) + 1)


def _rows_of(found: Trajectories, numbers: NDArray[np.int64]) -> Tensor:
    return torch.from_numpy(found.rows(concatenated_ranges(found.firsts[numbers], found.lengths[numbers])))


def _split(steps: Any, lengths: NDArray[np.int64]) -> list[Trajectory]:
    if not isinstance(steps, TensorDictBase):
        raise WrongTypeError(
            f"the buffer returns a {type(steps).__name__}, expected a TensorDict", hint="store the steps as TensorDicts"
        )
    return [Trajectory(part) for part in steps.split(lengths.tolist())]


def _name(key: NestedKey) -> str:
    return key if isinstance(key, str) else dotted_name(key)


def _leaf_names(steps: TensorDictBase) -> list[str]:
    return [_name(key) for key in steps.keys(include_nested=True, leaves_only=True)]

"""The contract of transforms."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import pytest
import torch
from tensordict import TensorDict, is_tensor_collection
from torch import Tensor

from datasets_rl.buffers import TensorDictReplayBuffer
from datasets_rl.errors import InvalidArgumentError, UnknownKeyError
from datasets_rl.samplers import RandomSampler, SliceSampler
from datasets_rl.specs import (
    BoundedTensorSpec,
    CompositeSpec,
    DiscreteTensorSpec,
    UnboundedContinuousTensorSpec,
)
from datasets_rl.storages.lazy import LazyTensorStorage
from datasets_rl.testing.contract import Contract, listed, only, refusal
from datasets_rl.transforms.base import Transform

__all__ = ["TransformCase", "TransformContract", "spec_of_steps"]

NEXT_REWARD = ("next", "reward")
REWARDS = {
    "bool": [0, 1, 1, 0, 0, 1, 1, 1, 0, 1, 0, 0],
    "uint8": [200, 100, 0, 3, 255, 1, 0, 7, 130, 2, 90, 40],
    "int64": [-3, 0, 5, 1, -1, 700, 0, 2, -40, 11, 0, 1],
}
"""Rewards of two rows of six steps: sums of uint8 exceed 255, and sums of bool exceed 1."""
LENGTHS = (5, 4, 3)
WHICH = torch.repeat_interleave(torch.arange(len(LENGTHS)), torch.tensor(LENGTHS))
"""The episode of each step."""
FLAGS = {("next", "done"), ("next", "terminated"), ("next", "truncated")}
"""Flags that a slice sampler sets at the ends of slices."""
LAYOUTS = {"bytes": (0, 3, 1, 2), "pixels": (0, 2, 3, 1), "picture": (0, 2, 3, 1)}
"""The images, and the order of the axes that has the channels at the other end."""


def spec_of_steps(*batch: int) -> CompositeSpec:
    """Return the spec of the steps of an environment with a camera: the entries that the cases of transforms name.

    Args:
        *batch: The batch size, [*batch].

    Returns:
        ``observation`` [3], ``free`` [3], ``wide`` [2] of float64, ``action`` [2], ``single`` [1], ``state_value`` [1],
        images of integers, ``bytes`` [8, 6, 3] and ``pixels`` [3, 8, 6], and of floats, ``picture`` [3, 8, 6], ``done``,
        and under ``next`` the observation, the value, the reward and the flags.
    """

    def bounded(low: float, high: float, *shape: int, dtype: torch.dtype = torch.float32) -> BoundedTensorSpec:
        return BoundedTensorSpec(low, high, (*batch, *shape), dtype=dtype)

    flag = DiscreteTensorSpec(2, (*batch, 1), dtype=torch.bool)
    return CompositeSpec(
        {
            "observation": bounded(-3, 2, 3),
            "free": UnboundedContinuousTensorSpec((*batch, 3)),
            "wide": bounded(-1, 1, 2, dtype=torch.float64),
            "action": bounded(-1, 1, 2),
            "single": bounded(0, 1, 1),
            "bytes": bounded(0, 255, 8, 6, 3, dtype=torch.uint8),
            "pixels": bounded(0, 255, 3, 8, 6, dtype=torch.uint8),
            "picture": bounded(0, 1, 3, 8, 6),
            "state_value": bounded(-9, 9, 1),
            "done": flag,
            "next": {
                "observation": bounded(-3, 4, 3),
                "state_value": bounded(-9, 9, 1),
                "reward": bounded(-5, 5, 1),
                "done": flag,
                "terminated": flag,
            },
        },
        shape=batch,
    )


@dataclass(frozen=True)
class TransformCase:
    """A transform, and the properties of the transform. A transform that maps each step alone needs only `make`."""

    make: Callable[[], Transform]
    """Returns a new transform of entries of `spec_of_steps`."""
    over_time: bool = False
    """Whether the transform reads other steps of a trajectory."""
    inverts: Collection[Any] = ()
    """Keys of the values that `inv` restores."""
    missing: bool = True
    """Whether a missing key is an error."""
    axes: bool = False
    """Whether the transform changes the batch size, and needs [B, T]."""
    encodes: bool = False
    """Whether `inv` accepts only what the transform returns."""
    random: bool = False
    """Whether the transform draws random numbers."""
    writes: bool = False
    """Whether the transform changes written data and does not change sampled data."""
    removes: bool = False
    """Whether the transform removes entries that no argument names."""
    counts: bool = False
    """Whether the results of the transform depend on earlier batches."""
    of_slices: bool = False
    """Whether the results of the transform change where a slice ends."""
    in_order: bool = False
    """Whether the transform refuses steps that are not in the order of the trajectory."""
    whole_groups: bool = False
    """Whether a function of the user receives a group of entries as a single argument."""
    accepts_pytrees: bool = False
    """Whether the transform accepts data other than a TensorDict, for functions among the transforms."""
    own_keys: bool = False
    """Whether the arguments do not name all keys of the transform: the keys of parts, modules, statistics, or further results."""


def drawn(spec: CompositeSpec, *batch: int) -> TensorDict:
    """Return steps drawn from a spec, with flags that are consistent at the ends of trajectories."""
    data: TensorDict = spec.rand(batch)
    data["next", "done"][..., -1, :] = True
    return data


def leaves(data: Any) -> dict[Any, Tensor]:
    """Return the tensors of a TensorDict by key."""
    return dict(data.items(include_nested=True, leaves_only=True))


def differences(one: Any, other: Any) -> list[Any]:
    """Return the keys that only one of two batches has, and the keys of different values or dtypes."""
    left, right = leaves(one), leaves(other)
    return [
        key
        for key in {**left, **right}
        if key not in left
        or key not in right
        or left[key].dtype != right[key].dtype
        or not torch.equal(left[key], right[key])
    ]


def close(one: Tensor, other: Tensor, tolerance: float = 1e-5) -> bool:
    """Return whether two tensors have the same shape and nearly the same values, NaN included."""
    return one.shape == other.shape and torch.allclose(
        one.double(), other.double(), rtol=tolerance, atol=tolerance, equal_nan=True
    )


def episodes() -> TensorDict:
    """Return three episodes of 5, 4 and 3 steps, one after the other, [12], with the rows of the steps."""
    return _drawn_episodes().clone()


@cache
def _drawn_episodes() -> TensorDict:
    torch.manual_seed(0)
    data: TensorDict = spec_of_steps().rand([sum(LENGTHS)])
    data["next", "done"] = torch.cat([torch.arange(length) == length - 1 for length in LENGTHS]).unsqueeze(-1)
    data["next", "terminated"] = data["next", "done"] & (WHICH == 1).unsqueeze(-1)
    data["row"] = torch.arange(sum(LENGTHS))
    return data


@cache
def _drawn_rows() -> TensorDict:
    torch.manual_seed(5)
    data: TensorDict = spec_of_steps().rand([2, 6])
    terminated = torch.tensor([[0, 0, 1, 0, 0, 0], [0, 0, 0, 1, 0, 0]], dtype=torch.bool)
    last = torch.tensor([0, 0, 0, 0, 0, 1], dtype=torch.bool)
    data["next", "terminated"] = terminated[..., None]
    data["next", "done"] = (terminated | last)[..., None]
    return data


def padded(data: Any) -> Any:
    """Return the episodes as [E, T], padded with zeros, with a mask."""
    mask = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS).unsqueeze(1)

    def in_rows(leaf: Tensor) -> Tensor:
        rows = leaf.new_zeros(*mask.shape, *leaf.shape[1:])
        rows[mask] = leaf
        return rows

    return data.apply(in_rows, batch_size=mask.shape).set("mask", mask)


def transformed(case: TransformCase, transform: Any, data: Any) -> Any:
    """Return data as a buffer returns it."""
    return transform(transform.inv(data) if case.writes else data)


def whole(case: TransformCase) -> tuple[Any, Any]:
    """Return a new transform, and the three transformed episodes."""
    transform = case.make()
    return transform, transformed(case, transform, episodes())


def sampled(case: TransformCase, transform: Any, sampler: Any) -> Any:
    """Return 24 of the steps, sampled from a buffer with the transform."""
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(12), sampler=sampler, batch_size=24)
    if case.writes:
        buffer.append_transform(transform)
        buffer.extend(episodes())
    else:
        buffer.extend(episodes())
        buffer.append_transform(transform)
    return buffer.sample()


def rows_of_a_buffer(case: TransformCase, data: TensorDict, rows: Sequence[int]) -> Any:
    """Return the steps of a buffer at rows, as batches that a sampler draws."""
    transform = case.make()
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(len(data)))
    buffer.extend(transform.inv(data) if case.writes else data)
    buffer.append_transform(transform)
    return buffer.sample(rows=rows)


def check_rows(batch: Any, expected: Any, way: str, *, without: Collection[Any] = ()) -> None:
    """Compare the steps of a batch with the same rows of the transformed episodes."""
    if "row" not in expected:
        return  # selected entries only
    rows = batch["row"]
    for key, value in leaves(expected).items():
        if key not in without:
            assert key in leaves(batch), f"of {way}, the transform returns no {key}"
            assert close(batch[key], value[rows]), (
                f"of {way}, the transform returns another {key} for a step than of whole episodes in order"
            )


def names_it(error: Exception, transform: Transform, *more: str) -> bool:
    """Return whether an error names the class of a transform, or a base class that a user knows."""
    names = [
        kind.__name__
        for kind in type(transform).__mro__
        if kind.__module__ not in {"builtins", torch.nn.Module.__module__}
    ]
    return any(name in str(error) for name in (*names, *more))


def key_arguments(transform: Transform) -> list[str]:
    """Return the attributes that hold the keys of the arguments that constructors annotate as keys."""
    hints = [getattr(vars(kind).get("__init__"), "__annotations__", {}) for kind in type(transform).__mro__]
    names = {name for one in hints for name, text in one.items() if "Key" in str(text)}
    properties = {name for name in names if isinstance(getattr(type(transform), name, None), property)}
    return [name for name in sorted(names - properties) if getattr(transform, name, None)]


def respelled(keys: Any, spell: Callable[[Any], Any]) -> Any:
    """Return a key, or the keys of a list or a mapping, in another spelling."""
    if isinstance(keys, list):
        return [spell(key) for key in keys]
    return {spell(key): spell(name) for key, name in keys.items()} if isinstance(keys, dict) else spell(keys)


def in_group(key: Any) -> Any:
    """Return the key of an entry that was moved into the group ``g``."""
    path = (key,) if isinstance(key, str) else key
    return ("next", "g", *path[1:]) if path[0] == "next" else ("g", *path)


def with_dots(key: Any) -> Any:
    """Return the key of an entry of a name with dots."""
    path = (key,) if isinstance(key, str) else key
    return ("next", f"g.{'.'.join(path[1:])}") if path[0] == "next" else f"g.{'.'.join(path)}"


SPELLINGS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "dots": (in_group, lambda key: ".".join(in_group(key))),
    "tuple": (in_group, in_group),
    "dots in the name": (with_dots, lambda key: ".".join(in_group(key))),
}
"""Where an entry is moved to, and how the transform names the entry."""


class TransformContract(Contract):
    """What every transform must do. A subclass has `cases`, each with a transform of entries of `spec_of_steps`."""

    cases: ClassVar[dict[str, TransformCase]] = {}
    example = 'cases = {"double": TransformCase(lambda: Double(["observation"]))}'

    @pytest.mark.parametrize(
        ("axes", "batch"),
        [
            pytest.param(0, (5,), id="spec of a step-steps"),
            pytest.param(2, (2, 4), id="spec of the batch-trajectories"),
        ],
    )
    def test_the_output_is_in_the_transformed_spec(
        self, case: TransformCase, axes: int, batch: tuple[int, ...]
    ) -> None:
        """Networks and buffers are built from the spec."""
        if case.axes and (axes or len(batch) == 1):
            batch, axes = (2, 4), 2
        spec = spec_of_steps(*batch) if axes else spec_of_steps()
        out = case.make().transform_spec(spec)
        for _ in range(3):
            transform, data = case.make(), drawn(spec, *(() if axes else batch))
            made = transformed(case, transform, data)
            specs = dict(out.items(include_nested=True, leaves_only=True))

            assert specs.keys() == leaves(made).keys(), (
                f"transform_spec and the output differ in {listed(specs.keys() ^ leaves(made).keys())}. Add or remove the same"
                " entries in both"
            )
            assert out.is_in(made), f"the output is not in the spec of transform_spec: {'; '.join(out.problems(made))}"
            assert made.shape[len(made.shape) - out.ndim :] == out.shape, (
                f"the output has the batch size {list(made.shape)}, and transform_spec says {list(out.shape)}"
            )

    def test_the_given_spec_does_not_change(self, case: TransformCase) -> None:
        spec = spec_of_steps(2, 4)
        case.make().transform_spec(spec)

        assert spec == spec_of_steps(2, 4), "transform_spec changes the argument. Clone the spec first"

    @pytest.mark.parametrize("batch", [(5,), (2, 4)], ids=["steps", "trajectories"])
    def test_the_input_does_not_change(self, case: TransformCase, batch: tuple[int, ...]) -> None:
        """Sampling must not change the entries of a buffer."""
        if case.axes:
            batch = (2, 4)
        data = drawn(spec_of_steps(), *batch)
        before, copies = leaves(data), data.clone()
        case.make()(data)
        if not (case.inverts or case.encodes):
            case.make().inv(data)
        changed = differences(data, copies)

        assert not changed, (
            f"the transform changes {listed(changed)} of the input. Set new tensors, and never modify a tensor in place"
        )
        replaced = [key for key, value in before.items() if data.get(key) is not value]
        assert not replaced, f"the transform replaces {listed(replaced)} of the input. Return another TensorDict"

    @only(lambda case: not case.axes)
    def test_other_entries_are_unchanged(self, case: TransformCase) -> None:
        if case.removes:
            return
        data = spec_of_steps().rand([2, 4]).set("other", torch.randint(9, (2, 4, 7)))

        assert case.make()(data).get("other", None) is data.get("other"), (
            "an entry that the transform does not name is copied or missing in the output. Return that very tensor"
        )

    def test_a_pickled_transform_gives_the_same_output(self, case: TransformCase) -> None:
        """Buffers go to other processes."""
        transform = case.make()
        data = spec_of_steps().rand([2, 4])
        other = pickle.loads(pickle.dumps(transform))
        torch.manual_seed(0)
        expected = transform(data)
        torch.manual_seed(0)
        changed = differences(other(data), expected)

        assert not changed, f"a pickled transform returns another {listed(changed)}. Keep all arguments as attributes"
        assert repr(other) == repr(transform), (
            f"the repr of a pickled transform is {other!r}, expected {transform!r} as before"
        )

    @only(lambda case: bool(case.inverts))
    def test_its_inverse_undoes_it(self, case: TransformCase) -> None:
        transform, data = case.make(), spec_of_steps().rand([2, 4])
        back: Any = transform.inv(transform(data))

        for key in case.inverts:
            assert close(back[key], data[key]), f"inv does not restore {key}. Invert the transform of this entry"

    def test_a_state_loads_into_another_transform(self, case: TransformCase) -> None:
        transform, other = case.make(), case.make()
        torch.manual_seed(1)
        data = spec_of_steps().rand([2, 4])
        other.load_state_dict(transform.state_dict())
        torch.manual_seed(0)
        expected = transform(data)
        torch.manual_seed(0)
        changed = differences(other(data), expected)

        assert not changed, (
            f"a transform that loaded the state of another returns another {listed(changed)}. Register statistics as"
            " buffers, so that state_dict has these values"
        )

    @only(lambda case: not case.axes and not case.random and not case.counts)
    def test_part_of_a_batch_is_transformed_as_in_the_whole(self, case: TransformCase) -> None:
        """Single steps do not depend on other steps, and trajectories do not depend on other trajectories."""
        transform, data = case.make(), spec_of_steps().rand([4, 3])
        batch, part = transform(data), transform(data[1:3])
        expected = leaves(batch[1:3])
        found = leaves(part)
        changed = [key for key in expected if key not in found or not close(found[key], expected[key])]

        assert not changed, (
            f"{listed(changed)} of two trajectories depends on the other trajectories of the batch. Compute each alone"
        )
        if not case.over_time:
            flat = leaves(transform(data.reshape(-1)).reshape(4, 3))
            changed = [key for key, value in leaves(batch).items() if not close(flat[key], value)]
            assert not changed, (
                f"{listed(changed)} of single steps differs from that of trajectories. Compute each step alone, or state"
                " over_time=True in the case"
            )

    @only(lambda case: case.missing)
    def test_a_missing_key_is_named(self, case: TransformCase) -> None:
        with refusal(
            UnknownKeyError,
            "among something",
            "a batch without an entry that the transform reads must raise an UnknownKeyError with the keys. Read entries"
            " by get_entry of datasets_rl.transforms.base, or state missing=False in the case",
        ):
            case.make()(TensorDict({"something": torch.zeros(2, 3)}, [2, 3]))

    @only(lambda case: case.over_time and (case.in_order or not case.of_slices))
    def test_random_steps_of_a_buffer_are_transformed_as_in_order_or_refused(self, case: TransformCase) -> None:
        data = spec_of_steps().rand([12])
        last = torch.isin(torch.arange(12), torch.tensor([3, 8, 11]))[:, None]
        data["next", "done"] = data["next", "terminated"] = last
        ordered = leaves(rows_of_a_buffer(case, data, list(range(12))))
        order = [7, 3, 0, 11, 8, 2, 6, 7]
        if case.in_order:
            with refusal(
                InvalidArgumentError,
                "step 0 of the batch is not followed by the next step of the traj",
                "steps that do not follow each other must raise an InvalidArgumentError that names the step",
            ):
                rows_of_a_buffer(case, data, order)
            return
        mixed = leaves(rows_of_a_buffer(case, data, order))

        assert mixed.keys() == ordered.keys(), (
            f"of random steps, the entries differ in {listed(mixed.keys() ^ ordered.keys())}"
        )
        changed = [key for key, value in mixed.items() if not close(value, ordered[key][order])]
        assert not changed, (
            f"{listed(changed)} of a step in random order differs from that in order. Read the other steps from the"
            " storage, or state in_order=True in the case and refuse such a batch"
        )

    @only(lambda case: not case.accepts_pytrees)
    def test_only_tensordicts_are_accepted(self, case: TransformCase) -> None:
        """Plain functions can transform other pytrees."""
        with refusal(
            InvalidArgumentError,
            "is a dict, expected a TensorDict",
            "a dict must raise an InvalidArgumentError that says 'expected a TensorDict'. Leave __call__ and forward to"
            " the base class, and override _apply_transform or _call",
        ):
            case.make()({"observation": torch.zeros(3)})

    def test_its_repr_names_it(self, case: TransformCase) -> None:
        transform = case.make()

        assert repr(transform).startswith(f"{type(transform).__name__}("), (
            f"the repr is {transform!r}. Begin it with the name of the class, as the base class does"
        )
        assert "object at" not in repr(transform).replace("function", ""), (
            f"the repr is {transform!r}, with an address. Give the attributes in `shown` a repr"
        )

    def test_it_has_the_modes_and_devices_of_a_module(self, case: TransformCase) -> None:
        """Programs written for TorchRL call these methods."""
        transform = case.make()

        for name, result in (("eval", transform.eval()), ("train", transform.train()), ("to", transform.to("cpu"))):
            assert result is transform, f"{name} returns another object. Return self, as the base class does"

    @only(lambda case: not case.axes and not case.random)
    @pytest.mark.parametrize("dtype", REWARDS)
    def test_rewards_of_every_dtype_give_the_results_of_float64(self, case: TransformCase, dtype: str) -> None:
        """Rewards of a user's buffer may be integers. Sums must not overflow."""
        rewards = torch.tensor(REWARDS[dtype]).reshape(2, 6, 1).to(getattr(torch, dtype))
        results = []
        for one in (rewards, rewards.double()):
            torch.manual_seed(0)
            data = _drawn_rows().clone(recurse=False).set(NEXT_REWARD, one)
            results.append(leaves(transformed(case, case.make(), data)))
        found, expected = results
        changed = [
            key for key in {**found, **expected} if key not in found or not close(found[key], expected[key], 1e-4)
        ]

        assert not changed, (
            f"{listed(changed)} differs for the same rewards in {dtype} and in float64. Convert rewards by float_rewards of"
            " datasets_rl.returns first"
        )

    @only(lambda case: not case.axes and not case.random)
    def test_random_steps_have_the_results_of_whole_episodes(self, case: TransformCase) -> None:
        transform, expected = whole(case)
        if case.in_order:
            with refusal(
                InvalidArgumentError, type(transform).__name__, "random steps must raise an error that names the class"
            ):
                sampled(case, transform, RandomSampler())
            return
        batch = sampled(case, transform, RandomSampler())
        if case.of_slices:
            missing = leaves(expected).keys() - leaves(batch).keys()
            assert not missing, f"of random steps, the transform returns no {listed(missing)}"
        else:
            check_rows(batch, expected, "random steps of a buffer")

    @only(lambda case: not case.axes and not case.random)
    def test_slices_have_the_results_of_whole_episodes(self, case: TransformCase) -> None:
        transform, expected = whole(case)
        batch = sampled(case, transform, SliceSampler(slice_len=3))

        assert batch.shape == (24,), f"of 24 steps in slices, the transform returns a batch {list(batch.shape)}"
        if not case.of_slices:
            check_rows(batch, expected, "slices of a buffer", without=FLAGS)

    @only(lambda case: not case.axes and not case.random)
    def test_padded_episodes_have_the_results_of_whole_episodes(self, case: TransformCase) -> None:
        transform, expected = whole(case)
        batch = transformed(case, transform, padded(episodes()))

        assert batch.shape == (3, 5), f"of episodes [3, 5], the transform returns a batch {list(batch.shape)}"
        check_rows(batch[padded(episodes())["mask"]], expected, "padded episodes")

    @only(lambda case: not case.axes and not case.random and not case.whole_groups)
    def test_a_group_of_entries_is_transformed_entry_by_entry_or_refused(self, case: TransformCase) -> None:
        """Each entry that the transform names is a group of two: itself, and the same again."""
        transform, expected = whole(case)
        named = {key for key in (*transform.in_keys, *transform.in_keys_inv) if isinstance(key, str)} - {"done"}
        data = episodes()
        for key in named:
            data[key] = TensorDict({"a": data[key], "b": data[key].clone()}, data.shape)
        try:
            batch = transformed(case, transform, data)
        except InvalidArgumentError as raised:
            is_named = names_it(raised, transform)
            refused = str(raised)
        else:
            for key in transform.out_keys if named else ():
                group: Any = batch.get(key)
                if is_tensor_collection(group):
                    for name in ("a", "b"):
                        assert close(group[name], expected.get(key)), (
                            f"{name} of the group {key} is transformed in another way than {key} alone. Transform each entry"
                        )
            return
        assert is_named, f"the error about a group of entries does not name {type(transform).__name__}: {refused}"

    @only(lambda case: not case.axes and not case.random)
    def test_images_of_the_other_layout_are_transformed_or_refused(self, case: TransformCase) -> None:
        transform, expected = whole(case)
        data = episodes()
        for name, order in LAYOUTS.items():
            data[name] = data[name].permute(order).contiguous()
        try:
            batch = transformed(case, transform, data)
        except InvalidArgumentError as raised:
            is_named = names_it(raised, transform, "image")
            refused = str(raised)
        else:
            for name, order in LAYOUTS.items():
                if name in transform.out_keys and batch[name].ndim == len(order):
                    converted = batch[name].shape == expected[name].shape  # to the layout that the transform returns
                    assert close(batch[name], expected[name] if converted else expected[name].permute(order)), (
                        f"{name} with the channels at the other end is transformed into another image. Refuse the layout"
                    )
            return
        assert is_named, f"the error about the layout of an image names neither an image nor the transform: {refused}"

    @pytest.mark.parametrize("spelling", SPELLINGS)
    @only(lambda case: not (case.axes or case.random or case.own_keys or case.removes))
    def test_keys_are_accepted_in_every_spelling(self, case: TransformCase, spelling: str) -> None:
        """All entries are also in a group, and all keys of the transform name the entries of the group."""
        moved, spelled = SPELLINGS[spelling]
        transform, other = case.make(), case.make()
        expected = transformed(case, transform, episodes())
        for name in key_arguments(other):
            setattr(other, name, respelled(getattr(other, name), spelled))
        data = episodes()
        for key, value in list(leaves(data).items()):
            data.set(moved(key), value)
        batch = transformed(case, other, data)

        for key in transform.out_keys:
            value = expected.get(key, None)
            if isinstance(value, Tensor):
                found = batch.get(moved(key), None)
                assert isinstance(found, Tensor), (
                    f"the transform does not write {key} where the arguments spell the key as {spelled(key)!r}. Annotate the"
                    " arguments that are keys as NestedKey or Keys, and keep the keys in attributes of the same names"
                )
                assert close(found, value), (
                    f"{key} has another value where the arguments spell the key as {spelled(key)!r}"
                )

"""Lazy stacks of different specs, and keys that some composites lack."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tensordict import LazyStackedTensorDict

from datasets_rl.errors import InvalidArgumentError, UnknownKeyError
from datasets_rl.specs import (
    BoundedTensorSpec,
    CompositeSpec,
    DiscreteTensorSpec,
    LazyStackedCompositeSpec,
    LazyStackedTensorSpec,
    OneHotDiscreteTensorSpec,
    Unbounded,
    UnboundedContinuousTensorSpec,
    check_no_exclusive_keys,
    consolidate_spec,
    contains_lazy_spec,
)

nested_tensors = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")


def boxes(*greatest, dim=0, shape=(3, 4)):
    return torch.stack([BoundedTensorSpec(0, high, shape) for high in greatest], dim)


def test_equal_specs_stack_to_one_spec_and_different_ones_to_a_stack():
    assert boxes(1, 1) == BoundedTensorSpec(0, 1, (2, 3, 4))
    assert boxes(1, 1, dim=-1).shape == (3, 4, 2)
    assert isinstance(boxes(1, 2), LazyStackedTensorSpec)
    assert isinstance(torch.stack([CompositeSpec(), CompositeSpec(a=None)]), LazyStackedCompositeSpec)
    assert boxes(1, 2) != boxes(1, 2, dim=1)


@pytest.mark.parametrize("dim", [0, 1, 2, -1])
def test_each_component_is_checked_against_its_own_spec(dim):
    spec = boxes(1, 5, dim=dim)
    axis = dim % 3
    assert spec.stack_dim == axis
    drawn = spec.rand((200,))

    assert drawn.shape == (200, *spec.shape)
    assert float(drawn.select(axis + 1, 0).max()) <= 1 < float(drawn.select(axis + 1, 1).max())
    assert spec.is_in(drawn)
    assert not spec.is_in(drawn.flip(axis + 1))
    near = spec.project(drawn.flip(axis + 1))
    assert spec.is_in(near)
    assert torch.equal(near.select(axis + 1, 1), drawn.select(axis + 1, 0))
    assert "value[0] is" in spec.problems(drawn.flip(axis + 1))[0]


INDICES = [0, -1, slice(1, None), slice(None, None, 2), torch.tensor([1, 0]), [1], torch.tensor([True, False, True])]


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_an_index_along_the_stack_is_that_of_a_list(index):
    spec = boxes(1, 2, 3)
    highs = torch.tensor([1.0, 2.0, 3.0])[index]
    part = spec[index]

    if highs.ndim == 0:
        assert part == BoundedTensorSpec(0, highs, (3, 4))
    else:
        assert [one.high[0, 0].item() for one in part.unbind(0)] == highs.tolist()


@pytest.mark.parametrize(
    "index",
    [
        (slice(None), 0),
        (0, 1),
        (..., 2),
        (slice(None), slice(1, 3), 1),
        (None, 1),
        (1, None, 2),
        (slice(None), ..., None),
        (0, 0, 0),
    ],
    ids=str,
)
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_other_axes_are_indexed_as_those_of_tensors(index, dim):
    spec = boxes(1, 2, 3, dim=dim, shape=(3, 4))
    value = torch.stack([torch.full((3, 4), high) for high in (1.0, 2.0, 3.0)], dim)

    assert tuple(spec[index].shape) == tuple(value[index].shape)
    assert spec[index].is_in(value[index])
    assert not spec[index].is_in(value[index] + 1)


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_axes_are_added_and_removed_beside_the_stack(dim):
    spec = boxes(1, 2, dim=dim)
    value = torch.stack([torch.full((3, 4), high) for high in (1.0, 2.0)], dim)
    for rearrange in (
        lambda it: it.unsqueeze(0),
        lambda it: it.unsqueeze(-1),
        lambda it: it.unsqueeze(1).squeeze(1),
        lambda it: it.unsqueeze(2).squeeze(),
        lambda it: it.expand(5, *it.shape),
        lambda it: it.unbind((dim + 1) % 3)[1],
        lambda it: it.unflatten(dim - 1, (2, -1) if it.shape[dim - 1] == 4 else (1, 3)),
        lambda it: torch.index_select(it, dim, torch.tensor([1])),
    ):
        assert tuple(rearrange(spec).shape) == tuple(rearrange(value).shape)
        assert rearrange(spec).is_in(rearrange(value))


def test_a_stack_of_one_is_the_spec():
    only = BoundedTensorSpec(0, 1, (2,))

    assert LazyStackedTensorSpec(only).squeeze(0) is only
    assert LazyStackedTensorSpec(only, dim=1).squeeze() == only


@nested_tensors
def test_different_shapes_give_nested_tensors_only_along_the_first_axis():
    spec = torch.stack([BoundedTensorSpec(0, 1, (2, 3)), BoundedTensorSpec(0, 1, (2, 5))])

    assert spec.shape == (2, 2, -1)
    assert spec.rand().is_nested
    assert spec.numel() == 16
    assert spec.is_in(spec.rand())
    assert spec.is_in([torch.zeros(2, 3), torch.ones(2, 5)])
    assert not spec.is_in([torch.zeros(2, 3), torch.ones(2, 3)])
    assert not spec.is_in([torch.zeros(2, 3)])
    with pytest.raises(InvalidArgumentError, match="first axis only"):
        spec.rand((4,))
    with pytest.raises(InvalidArgumentError, match="cannot be unbound along axis 2"):
        spec.unbind(2)


@pytest.mark.parametrize(
    "specs",
    [
        [],
        [BoundedTensorSpec(0, 1, (2,)), BoundedTensorSpec(0, 1, (2, 2))],
        [BoundedTensorSpec(0, 1, (2,)), BoundedTensorSpec(0, 1, (2,), dtype=torch.int64)],
        [DiscreteTensorSpec(2), DiscreteTensorSpec(3, device="meta")],
        [BoundedTensorSpec(0, 1, (2,)), CompositeSpec(shape=(2,))],
        [CompositeSpec(shape=(2,)), BoundedTensorSpec(0, 1, (2,))],
        [CompositeSpec(shape=(2,)), CompositeSpec(shape=(3,))],
    ],
    ids=len,
)
def test_incompatible_specs_are_not_stacked(specs):
    with pytest.raises((InvalidArgumentError, TypeError, RuntimeError)):
        torch.stack(specs)
    with pytest.raises(InvalidArgumentError):
        LazyStackedTensorSpec(*specs)


def pair():
    return torch.stack(
        [
            CompositeSpec(a=UnboundedContinuousTensorSpec((3,)), b=OneHotDiscreteTensorSpec(4)),
            CompositeSpec(a=UnboundedContinuousTensorSpec((5,)), c=CompositeSpec(d=DiscreteTensorSpec(2))),
        ]
    )


def test_a_stack_of_composites_has_the_keys_of_all():
    spec = pair()

    assert list(spec.keys()) == ["a"]
    assert "a" in spec
    assert "b" not in spec
    assert spec["a"].shape == (2, -1)
    assert spec.get("b", 5) == 5
    with pytest.raises(UnknownKeyError):
        _ = spec["b"]
    drawn = spec.rand((3,))
    assert isinstance(drawn, LazyStackedTensorDict)
    assert tuple(drawn.batch_size) == (3, 2)
    assert spec.is_in(drawn)
    assert spec[1]["c", "d"] == DiscreteTensorSpec(2)


def test_entries_are_set_along_the_stack_and_removed_from_each_composite():
    spec = pair()
    spec["e"] = boxes(1, 2)
    spec["f", "g"] = DiscreteTensorSpec(3, (2,))
    spec.update({"a": UnboundedContinuousTensorSpec((2, 1)), "n": None})

    assert spec[1]["e"] == BoundedTensorSpec(0, 2, (3, 4))
    assert spec["f", "g"] == DiscreteTensorSpec(3, (2,))
    assert spec["a"].shape == (2, 1)
    assert spec["n"] is None
    del spec["b"]
    assert "b" not in spec[0]
    with pytest.raises(UnknownKeyError):
        del spec["b"]
    with pytest.raises(InvalidArgumentError, match="has 3 specs along axis 0"):
        spec["e"] = boxes(1, 2, 3)
    assert spec.pop("e") == boxes(1, 2)


def test_locks_reach_the_composites_of_a_stack():
    spec = pair().lock_()

    assert spec.is_locked
    assert spec[0].is_locked
    with pytest.raises(InvalidArgumentError, match="locked"):
        spec["e"] = boxes(1, 2)
    assert not spec.clone().is_locked
    assert spec.unlock_().empty().is_empty()


def test_missing_keys_become_empty_specs():
    spec = pair()
    same = consolidate_spec(spec)

    assert not check_no_exclusive_keys(spec)
    assert check_no_exclusive_keys(same)
    assert set(same.keys()) == {"a", "b", "c"}
    assert same[1]["b"].shape == (0,)
    assert set(same[0]["c"].keys()) == {"d"}
    assert list(spec.keys()) == ["a"]
    assert same.is_in(same.rand())


def test_only_the_axes_that_differ_are_emptied():
    spec = torch.stack(
        [
            CompositeSpec(a=UnboundedContinuousTensorSpec((3, 4))),
            CompositeSpec(a=UnboundedContinuousTensorSpec((5, 4))),
            CompositeSpec(),
        ]
    )

    assert consolidate_spec(spec)[2]["a"].shape == (0, 4)


def test_different_classes_under_one_key_are_refused():
    spec = torch.stack([CompositeSpec(a=DiscreteTensorSpec(2)), CompositeSpec(a=CompositeSpec()), CompositeSpec()])

    with pytest.raises(
        InvalidArgumentError, match="the specs of a are of the classes CompositeSpec, DiscreteTensorSpec"
    ):
        consolidate_spec(spec)


def test_nested_stacks_are_detected():
    inside = CompositeSpec(x=pair(), shape=(2,))

    assert contains_lazy_spec(inside)
    assert contains_lazy_spec(boxes(1, 2))
    assert not contains_lazy_spec(CompositeSpec(a=None, b=DiscreteTensorSpec(2)))
    assert not check_no_exclusive_keys(inside)
    assert check_no_exclusive_keys(inside, recurse=False)
    assert check_no_exclusive_keys(consolidate_spec(inside))
    assert not check_no_exclusive_keys(consolidate_spec(inside, recurse_through_entries=False))


@nested_tensors
def test_operations_on_a_composite_apply_to_its_stacks():
    spec = CompositeSpec(x=pair(), y=boxes(1, 2), shape=(2,))

    assert spec[0]["x"] == pair()[0]
    assert spec[torch.tensor(1)]["y"] == BoundedTensorSpec(0, 2, (3, 4))
    assert spec[np.int64(1)]["x", "c", "d"] == DiscreteTensorSpec(2)
    assert spec.unsqueeze(0)["x"].shape == (1, 2)
    assert spec.unsqueeze(0)[0] == spec
    assert spec.expand(6, 2)["y"].shape == (6, 2, 3, 4)
    assert spec.expand(6, 2).reshape(3, 2, 2)["y"].shape == (3, 2, 2, 3, 4)
    assert spec.expand(6, 2).reshape(3, 2, 2)[0, 1] == spec
    assert spec.expand(3, 4, 2)["x"].flatten(0, 1).shape == (12, 2)
    assert torch.stack([spec, spec])[1] == spec
    assert spec.is_in(spec.rand())
    with pytest.raises(InvalidArgumentError, match="cannot be reshaped"):
        spec.reshape(2, 1)


def test_a_stack_of_one_hot_specs_is_indexed_along_the_stack():
    masks = torch.tensor([[True, False, True], [True, True, True]])
    spec = torch.stack([OneHotDiscreteTensorSpec(3, mask=one) for one in masks])

    assert spec[0, ...] == OneHotDiscreteTensorSpec(3, mask=masks[0])
    assert spec[..., :] == spec


@pytest.mark.parametrize(
    ("entry", "empty", "shape"),
    [
        (torch.stack([Unbounded((2, 5)), Unbounded((3, 5))]), (2, 0, 5), (3, 2, -1, 5)),
        (torch.stack([BoundedTensorSpec(0, 1, (3, 4)), BoundedTensorSpec(0, 2, (3, 4))]), (2, 0, 0), (3, 2, -1, -1)),
    ],
    ids=["shapes", "bounds"],
)
def test_an_entry_that_is_a_lazy_stack_is_consolidated_by_empty_tensors(entry, empty, shape):
    """TorchRL's consolidate_spec replaces -1 by 0, too."""
    made = consolidate_spec(
        torch.stack([CompositeSpec(a=entry, shape=(2,)), CompositeSpec(a=entry, shape=(2,)), CompositeSpec(shape=(2,))])
    )

    assert check_no_exclusive_keys(made)
    assert made[2]["a"].shape == empty
    assert made["a"].shape == shape
    assert made[2].is_in(made[2].rand())
    assert made[2].rand()["a"].shape == empty


def test_values_that_do_not_fit_a_stack_are_reported():
    spec = boxes(1, 2)

    assert spec.problems(torch.zeros(3, 3, 4)) == ["value is of shape [3, 3, 4], expected 2 components along axis 0"]
    assert spec.problems(5) == ["value is a int, expected 2 components along axis 0"]
    assert spec.domain == "continuous"
    spec.type_check(torch.zeros(2, 3, 4))
    for call in (
        lambda: spec.project(torch.zeros(3, 3, 4)),
        lambda: spec.type_check(torch.zeros(2, 3, 4, dtype=torch.int64)),
        lambda: spec.expand(3, 3, 4),
        lambda: spec.unflatten(0, (1, 2)),
        lambda: setattr(pair(), "shape", (3,)),
        lambda: torch.stack([DiscreteTensorSpec(2), DiscreteTensorSpec(3)]).enumerate(),
        lambda: torch.stack([DiscreteTensorSpec(2), DiscreteTensorSpec(3)]).cardinality(),
    ):
        with pytest.raises(InvalidArgumentError):
            call()
    for index in ((0, torch.tensor([1])), torch.tensor([[0, 1]]), slice(0, 0), (0, 0, 0, 0)):
        with pytest.raises(IndexError):
            _ = spec[index]

"""Membership, projection and encoding of values for each spec class, with results computed by hand."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import NonTensorData

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.specs import (
    BinaryDiscreteTensorSpec,
    BoundedTensorSpec,
    ChoiceSpec,
    DiscreteTensorSpec,
    MultiDiscreteTensorSpec,
    MultiOneHotDiscreteTensorSpec,
    NonTensorSpec,
    OneHotDiscreteTensorSpec,
    TensorSpec,
    Unbounded,
    UnboundedContinuousTensorSpec,
    UnboundedDiscreteTensorSpec,
)
from datasets_rl.specs.space import BoxList, CategoricalBox, ContinuousBox

NAN = math.nan


def bits(text):
    return torch.tensor([letter == "1" for letter in text])


@pytest.mark.parametrize(
    ("spec", "value", "nearest"),
    [
        (BoundedTensorSpec(-1, 1, (4,)), [-3.0, 0.5, 7.0, NAN], [-1.0, 0.5, 1.0, 0.0]),
        (BoundedTensorSpec(2, 3, (2,)), [NAN, math.inf], [2.0, 3.0]),
        (BoundedTensorSpec(2, math.inf, (2,)), [1.0, math.inf], [2.0, math.inf]),
        (BoundedTensorSpec(0, 255, (3,), dtype=torch.uint8), [-1.0, 2.6, 256.0], [0, 3, 255]),
        (BoundedTensorSpec([0, 5], [3, 5], dtype=torch.int64), [4, 4], [3, 5]),
        (DiscreteTensorSpec(3, (4,)), [-1, 0, 2, 3], [0, 0, 2, 2]),
        (DiscreteTensorSpec(3, (4,)), [-0.4, 1.4, 1.6, NAN], [0, 1, 2, 0]),
        (DiscreteTensorSpec(5, (4,), mask=bits("10010")), [0, 1, 2, 4], [0, 0, 3, 3]),
        (BinaryDiscreteTensorSpec(3), [0.2, 0.8, -5.0], [0, 1, 0]),
        (MultiDiscreteTensorSpec((3, 2)), [7, -7], [2, 0]),
        (MultiDiscreteTensorSpec((3, 2), mask=bits("01101")), [0, 0], [1, 1]),
        (OneHotDiscreteTensorSpec(3, dtype=torch.int64), [5, 9, 7], [0, 1, 0]),
        (OneHotDiscreteTensorSpec(3, dtype=torch.int64, mask=bits("101")), [5, 9, 7], [0, 0, 1]),
        (OneHotDiscreteTensorSpec(3, dtype=torch.int64, mask=bits("010")), [NAN, NAN, NAN], [0, 1, 0]),
        (MultiOneHotDiscreteTensorSpec((3, 2), dtype=torch.int64), [1, 2, 3, 9, 4], [0, 0, 1, 1, 0]),
        (UnboundedDiscreteTensorSpec((3,), dtype=torch.int8), [300.0, -300.0, 1.5], [127, -128, 2]),
        (UnboundedContinuousTensorSpec((1,)), [3], [3.0]),
    ],
    ids=str,
)
def test_projection_goes_to_the_nearest_member(spec, value, nearest):
    value = torch.tensor(value)
    near = spec.project(value)

    assert near.tolist() == nearest
    assert near.dtype == spec.dtype
    assert spec.is_in(near)


@pytest.mark.parametrize(
    ("spec", "value", "inside"),
    [
        (BoundedTensorSpec(-1, 1, (2,)), [-1.0, 1.0], True),
        (BoundedTensorSpec(-1, 1, (2,)), [-1.0, NAN], False),
        (BoundedTensorSpec([-1, 0], [1, 0], (2,)), [0.5, 0.5], False),
        (DiscreteTensorSpec(3, (2,), dtype=torch.float32), [1.0, 0.5], False),
        (DiscreteTensorSpec(3, (2,), mask=bits("101")), [0, 1], False),
        (DiscreteTensorSpec(3, (2,), mask=bits("101")), [0, 3], False),
        (DiscreteTensorSpec(3, (2,), mask=bits("101")), [0, 2], True),
        (MultiDiscreteTensorSpec((3, 2)), [2, 1], True),
        (MultiDiscreteTensorSpec((3, 2)), [1, 2], False),
        (OneHotDiscreteTensorSpec(3, dtype=torch.int64), [0, 0, 0], False),
        (OneHotDiscreteTensorSpec(3, dtype=torch.int64), [1, 1, 0], False),
        (OneHotDiscreteTensorSpec(3, dtype=torch.int64), [2, -1, 0], False),
        (OneHotDiscreteTensorSpec(3, dtype=torch.int64), [1, 2, -2], False),
        (OneHotDiscreteTensorSpec(3, mask=bits("110")), [False, False, True], False),
        (OneHotDiscreteTensorSpec(3, mask=bits("110")), [False, True, False], True),
        (MultiOneHotDiscreteTensorSpec((2, 3), dtype=torch.int64), [1, 0, 0, 0, 1], True),
        (MultiOneHotDiscreteTensorSpec((2, 3), dtype=torch.int64), [1, 0, 1, 0, 1], False),
        (MultiOneHotDiscreteTensorSpec((2, 3), dtype=torch.int64), [1, 1, 0, 0, 0], False),
        (BinaryDiscreteTensorSpec(3), torch.tensor([1, 1, 2], dtype=torch.int8), False),
        (BoundedTensorSpec(0, 1, (0,)), torch.zeros(5, 0), True),
        (DiscreteTensorSpec(2, (0,)), torch.zeros(0, dtype=torch.int64), True),
    ],
    ids=str,
)
def test_members_are_distinguished_from_other_values(spec, value, inside):
    assert spec.is_in(torch.as_tensor(value)) is inside
    assert (not spec.problems(torch.as_tensor(value))) is inside


@pytest.mark.parametrize(
    ("spec", "value", "message"),
    [
        (BoundedTensorSpec(0, 1, ()), torch.tensor(2.0), "value is 2.0, expected a number in [0.0, 1.0]"),
        (
            BoundedTensorSpec([0, 5], [3, 9], dtype=torch.int64),
            torch.tensor([[0, 7], [4, 4]]),
            "value is 4 at [1, 0] (and 1 more of 4), expected an integer in [0, 3]",
        ),
        (
            DiscreteTensorSpec(3, mask=bits("101")),
            torch.tensor(1),
            "value is 1, expected an integer in [0, 3) that the mask allows",
        ),
        (MultiDiscreteTensorSpec((3, 2)), torch.tensor([0, 5]), "value is 5 at [1], expected an integer in [0, 2)"),
        (
            OneHotDiscreteTensorSpec(2, (2, 2)),
            torch.tensor([[True, False], [True, True]]),
            "value is [True, True] at [1], expected a one-hot vector of size 2",
        ),
        (
            MultiOneHotDiscreteTensorSpec((1, 2)),
            bits("011"),
            "value is [False, True, True], expected concatenated one-hot vectors of sizes [1, 2]",
        ),
        (NonTensorSpec((2,)), torch.zeros(2), "value is a Tensor, expected a non-tensor value"),
        (NonTensorSpec((2,)), NonTensorData("a", batch_size=[3]), "value has batch size [3], expected [..., 2]"),
        (
            ChoiceSpec([BoundedTensorSpec(0, 1, ()), BoundedTensorSpec(5, 6, ())]),
            torch.tensor(3.0),
            (
                "value is not in any of 2 choices: value is 3.0, expected a number in [0.0, 1.0]; "
                "or value is 3.0, expected a number in [5.0, 6.0]"
            ),
        ),
        (
            ChoiceSpec([NonTensorData("a"), NonTensorData("b")]),
            NonTensorData("c"),
            "value is 'c', expected one of ['a', 'b']",
        ),
    ],
    ids=str,
)
def test_a_value_outside_is_reported_with_its_position_and_bound(spec, value, message):
    assert spec.problems(value) == [message]
    with pytest.raises(InvalidArgumentError) as error:
        spec.assert_is_in(value)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: BoundedTensorSpec(0), "high is None and maximum is None"),
        (lambda: BoundedTensorSpec(0, 1, (), minimum=0), "low is 0 and minimum is 0"),
        (lambda: BoundedTensorSpec(0, 1), "shape is missing"),
        (lambda: BoundedTensorSpec(1, 0, (2,)), "no torch.float32 value is between low 1.0 and high 0.0"),
        (lambda: BoundedTensorSpec([0, 2], [1, 1]), r"low 2.0 and high 1.0 at \[1\]"),
        (lambda: BoundedTensorSpec(0.2, 0.8, (), dtype=torch.int64), "no torch.int64 value is between"),
        (lambda: BoundedTensorSpec(300, 400, (), dtype=torch.uint8), "no torch.uint8 value is between"),
        (lambda: BoundedTensorSpec(NAN, 1, ()), "low is NaN"),
        (lambda: BoundedTensorSpec("a", 1, ()), "low is 'a'"),
        (lambda: BoundedTensorSpec([0, 0, 0], 1, (2,)), "do not broadcast"),
        (lambda: BoundedTensorSpec(0, 1, (-2,)), "expected sizes >= 0"),
        (lambda: BoundedTensorSpec(0, 1, (1,), dtype=torch.complex64), "dtype is torch.complex64"),
        (lambda: DiscreteTensorSpec(-2), "n is -2"),
        (lambda: DiscreteTensorSpec(2, mask=torch.tensor([1, 0])), "the mask has dtype torch.int64"),
        (lambda: DiscreteTensorSpec(2, mask=bits("111")), r"a mask of shape \[3\] does not fit"),
        (lambda: OneHotDiscreteTensorSpec(-1), "n is -1"),
        (lambda: OneHotDiscreteTensorSpec(3, (3, 2)), "expected a last axis of size 3"),
        (lambda: OneHotDiscreteTensorSpec(3, ()), "expected a last axis of size 3"),
        (lambda: MultiDiscreteTensorSpec((3, -1)), "expected integers >= 0"),
        (lambda: MultiDiscreteTensorSpec((3, 2), (2, 3)), "expected the same last axis"),
        (lambda: MultiDiscreteTensorSpec([[3, 2]] * 2, (3, 2)), "does not fit"),
        (lambda: MultiOneHotDiscreteTensorSpec(()), "expected integers >= 0"),
        (BinaryDiscreteTensorSpec, "n and shape are missing"),
        (lambda: BinaryDiscreteTensorSpec(3, (4,)), "expected a last axis of size n"),
        (lambda: NonTensorSpec((2,), batched=True, feature_dims=1), "expected batched or feature_dims, not both"),
        (lambda: NonTensorSpec((2,), feature_dims=2), "expected 0 to 1"),
        (lambda: ChoiceSpec([]), "expected specs"),
        (lambda: ChoiceSpec([5]), "expected specs"),
        (lambda: ChoiceSpec([DiscreteTensorSpec(2), Unbounded(())]), "differ in class"),
        (lambda: ChoiceSpec([DiscreteTensorSpec(2), DiscreteTensorSpec(2, (1,))]), "differ in shape"),
        (lambda: ChoiceSpec([NonTensorData("a")]).project(NonTensorData("b")), "only tensors can be projected"),
        (lambda: OneHotDiscreteTensorSpec(3).encode(3), r"expected integers in \[0, 3\)"),
        (lambda: OneHotDiscreteTensorSpec(3).encode(-1), r"expected integers in \[0, 3\)"),
        (lambda: OneHotDiscreteTensorSpec(3, (2, 3)).encode([0, 1, 2]), "cannot be encoded"),
        (
            lambda: MultiOneHotDiscreteTensorSpec((3, 2)).encode([0, 2]),
            r"expected non-negative integers below \[3, 2\]",
        ),
        (lambda: Unbounded((2,)).index(torch.zeros(2), torch.zeros(2)), "cannot be used as indices"),
        (lambda: DiscreteTensorSpec(2).to_numpy(torch.tensor(2), safe=True), "value is 2"),
    ],
    ids=[str(number) for number in range(37)],
)
def test_contradictory_arguments_are_refused(call, message):
    with pytest.raises(InvalidArgumentError, match=message):
        call()


def test_a_mask_that_does_not_fit_changes_nothing():
    spec = DiscreteTensorSpec(3, mask=bits("101"))
    with pytest.raises(InvalidArgumentError):
        spec.update_mask(bits("1011"))

    assert spec.mask.tolist() == [True, False, True]
    spec.update_mask(None)
    assert spec.mask is None
    assert spec.is_in(torch.tensor(1))


def test_outcomes_are_listed_in_order():
    assert DiscreteTensorSpec(3, (2,)).enumerate().tolist() == [[0, 0], [1, 1], [2, 2]]
    assert DiscreteTensorSpec(3, mask=bits("101")).enumerate(use_mask=True).tolist() == [0, 2]
    assert OneHotDiscreteTensorSpec(2, (1, 2), dtype=torch.int64).enumerate().tolist() == [[[1, 0]], [[0, 1]]]
    assert MultiDiscreteTensorSpec((2, 2)).enumerate().tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]
    assert MultiDiscreteTensorSpec((3, 2), mask=bits("10101")).enumerate(use_mask=True).tolist() == [[0, 1], [2, 1]]
    hot = MultiOneHotDiscreteTensorSpec((2, 1), dtype=torch.int64)
    assert hot.enumerate().tolist() == [[1, 0, 1], [0, 1, 1]]
    assert BinaryDiscreteTensorSpec(2).enumerate().tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]
    with pytest.raises(InvalidArgumentError, match="differs along the leading axes"):
        DiscreteTensorSpec(2, (2,), mask=torch.tensor([[True, False], [False, True]])).enumerate(use_mask=True)


def test_members_select_along_the_last_axis():
    values = torch.arange(12.0).reshape(3, 4)
    chosen = torch.tensor([0, 3, 1])
    plain, hot = DiscreteTensorSpec(4), OneHotDiscreteTensorSpec(4)

    assert plain.index(chosen, values).tolist() == [0, 7, 9]
    assert plain.index(torch.tensor(2), values).tolist() == [2, 6, 10]
    assert DiscreteTensorSpec(4, (1,)).index(chosen[:, None], values).tolist() == [[0], [7], [9]]
    assert hot.index(plain.to_one_hot(chosen), values).tolist() == [0, 7, 9]
    assert hot.index(hot.encode(50 % 4), torch.arange(4)).item() == 2
    pair = MultiDiscreteTensorSpec((3, 1))
    picked = torch.tensor([[0, 0], [2, 0], [1, 0]])
    assert pair.index(picked, values).tolist() == [[0, 3], [6, 7], [9, 11]]
    assert pair.to_one_hot_spec().index(pair.to_one_hot(picked), values).tolist() == [[0, 3], [6, 7], [9, 11]]


def test_one_hot_encoding_matches_values_computed_by_hand():
    spec = MultiDiscreteTensorSpec((2, 3))

    assert spec.to_one_hot(torch.tensor([1, 2])).long().tolist() == [0, 1, 0, 0, 1]
    assert spec.to_one_hot_spec().encode([1, 2]).long().tolist() == [0, 1, 0, 0, 1]
    assert DiscreteTensorSpec(3).to_one_hot(torch.tensor(1)).tolist() == [False, True, False]


def test_masks_are_converted_between_the_two_encodings():
    plain = MultiDiscreteTensorSpec((3, 2), (4, 2), mask=bits("10101"))

    assert plain.to_one_hot_spec().mask.long().tolist() == [[1, 0, 1, 0, 1]] * 4
    assert plain.mask.long().tolist() == [[1, 0, 1, 0, 1]] * 4
    assert plain[1:, 0].is_in(torch.tensor([0, 2, 0]))
    assert not plain[1:, 0].is_in(torch.tensor([0, 1, 0]))
    assert plain.unbind(-1)[1].is_in(torch.ones(4, dtype=torch.int64))


def test_spaces_have_the_range_of_each_number():
    assert DiscreteTensorSpec(3).space == OneHotDiscreteTensorSpec(3).space == CategoricalBox(3)
    assert MultiDiscreteTensorSpec((3, 2)).space == BoxList([CategoricalBox(3), CategoricalBox(2)])
    assert [box.n for box in MultiOneHotDiscreteTensorSpec((3, 2)).space] == [3, 2]
    assert len(MultiDiscreteTensorSpec([[3, 2]]).space) == 2
    low, high = BoundedTensorSpec(0, [1.0, 2.0]).space
    assert low.tolist() == [0, 0]
    assert high.tolist() == [1, 2]
    assert BoundedTensorSpec(0, 1, (2,)).space == ContinuousBox(torch.zeros(2), torch.ones(2))
    assert BoundedTensorSpec(0, 1, (2,)).space != BoundedTensorSpec(0, 2, (2,)).space
    assert hash(BoundedTensorSpec(0, 1, (2,)).space) == hash(BoundedTensorSpec(0, 2, (2,)).space)
    assert UnboundedDiscreteTensorSpec((1,), dtype=torch.int8).space.low.tolist() == [-128]


def test_bounds_of_integers_are_limited_to_the_dtype():
    spec = BoundedTensorSpec(-0.5, 300.5, (), dtype=torch.uint8)
    free = BoundedTensorSpec(-math.inf, math.inf, (), dtype=torch.int64)

    assert (spec.low.item(), spec.high.item()) == (0, 255)
    assert (free.low.item(), free.high.item()) == (-(2**63), 2**63 - 1)
    assert BoundedTensorSpec(-1.5, 1.5, (2,)).to(torch.int64).high.tolist() == [1, 1]


def test_the_dtype_determines_the_class_of_an_unbounded_spec():
    assert type(Unbounded(3)) is UnboundedContinuousTensorSpec
    assert type(Unbounded(3, dtype=torch.uint8)) is UnboundedDiscreteTensorSpec
    assert type(UnboundedContinuousTensorSpec(3, dtype=torch.uint8)) is UnboundedDiscreteTensorSpec
    assert type(Unbounded(3).to(torch.int64)) is UnboundedDiscreteTensorSpec
    assert Unbounded(3).domain == "continuous"
    assert BoundedTensorSpec(0, 1, (), dtype=torch.int64).domain == DiscreteTensorSpec(2).domain == "discrete"


def test_a_choice_projects_onto_the_nearest():
    spec = ChoiceSpec([BoundedTensorSpec(0, 1, ()), BoundedTensorSpec(10, 11, ())])

    assert spec.project(torch.tensor([0.5, 3.0, 8.0, 20.0])).tolist() == [0.5, 1.0, 10.0, 11.0]
    assert spec.num_choices == 2
    assert spec == spec.clone()
    assert spec != ChoiceSpec([BoundedTensorSpec(0, 1, ())])
    assert spec.to(torch.float64).dtype == torch.float64
    spec.type_check(torch.tensor(5.0))


def test_values_that_are_not_tensors():
    spec = ChoiceSpec([NonTensorData(text) for text in "ab"])

    assert spec.zero().data == "a"
    assert spec.one((2,)).tolist() == ["b", "b"]
    assert spec.enumerate().tolist() == ["a", "b"]
    assert not spec.is_in("a")
    assert spec.encode("b").data == "b"
    assert NonTensorSpec((2,), example_data="x", batched=True).rand((3,)).tolist() == [["x", "x"]] * 3
    assert NonTensorSpec((2,), example_data="x").rand().data == "x"
    assert NonTensorSpec((2,), example_data="x", batched=True).unsqueeze(0).batched
    assert not NonTensorSpec((2,), example_data="x").unsqueeze(0).batched


SHAPES = st.lists(st.integers(1, 3), max_size=4).map(tuple)


@given(SHAPES, st.data())
def test_bounds_and_masks_are_indexed_like_tensors(shape, data):
    low = torch.arange(math.prod(shape), dtype=torch.float32).reshape(shape)
    allowed = (torch.arange(math.prod(shape) * 3).reshape(*shape, 3) % 4) != 1
    bounded, masked = BoundedTensorSpec(low, low + 0.5, shape), DiscreteTensorSpec(3, shape, mask=allowed)
    index = tuple(
        data.draw(
            st.integers(-size, size - 1)
            | st.slices(size).filter(lambda one: one.step is None or one.step > 0)
            | st.just(torch.tensor([0, size - 1]))
        )
        for size in shape[: data.draw(st.integers(0, len(shape)))]
    )
    index = (None,) * data.draw(st.integers(0, 1)) + index + (..., None)[: data.draw(st.integers(0, 2))]

    assert torch.equal(bounded[index].low, low[index])
    picked = DiscreteTensorSpec(3, low[index].shape)
    places = torch.arange(math.prod(shape)).reshape(shape)[index]
    assert torch.equal(masked[index].mask, allowed.reshape(-1, 3)[places])
    assert masked[index].shape == picked.shape
    dim = data.draw(st.integers(-len(shape) - 1, len(shape)))
    assert torch.equal(bounded.unsqueeze(dim).low, low.unsqueeze(dim))
    assert torch.equal(bounded.squeeze().low, low.squeeze())
    assert torch.equal(bounded.expand(2, *shape).high, (low + 0.5).expand(2, *shape))
    assert torch.equal(bounded.flatten().low, low.flatten())
    if shape:
        axis = data.draw(st.integers(-len(shape), len(shape) - 1))
        assert all(torch.equal(one.low, two) for one, two in zip(bounded.unbind(axis), low.unbind(axis), strict=True))
        assert torch.equal(bounded.squeeze(axis).low, low.squeeze(axis))
        start = data.draw(st.integers(0, len(shape) - 1))
        assert torch.equal(masked.flatten(start).mask, allowed.flatten(start, -2))
        assert TensorSpec.from_json(masked.to_json()) == masked
        assert TensorSpec.from_json(bounded.to_json()) == bounded


def test_two_ellipses_are_refused():
    with pytest.raises(IndexError, match="expected at most one"):
        _ = BoundedTensorSpec(0, 1, (2, 3))[..., ...]

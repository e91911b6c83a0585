"""Draws are uniform over the spec: chi-square tests of the counts, with a fixed seed."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.specs import (
    BinaryDiscreteTensorSpec,
    BoundedTensorSpec,
    ChoiceSpec,
    CompositeSpec,
    DiscreteTensorSpec,
    MultiDiscreteTensorSpec,
    MultiOneHotDiscreteTensorSpec,
    OneHotDiscreteTensorSpec,
    UnboundedContinuousTensorSpec,
    UnboundedDiscreteTensorSpec,
)

DRAWS = 12_000


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def assert_uniform(drawn, outcomes):
    """Chi-square statistic of the counts, with mean k and standard deviation sqrt(2 k) for k + 1 outcomes."""
    found, counts = np.unique(np.asarray(drawn).reshape(len(drawn), -1), axis=0, return_counts=True)
    assert sorted(map(tuple, found.tolist())) == sorted(outcomes)
    expected = len(drawn) / len(outcomes)
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    freedom = len(outcomes) - 1
    assert chi_square < freedom + 4 * math.sqrt(2 * freedom) + 1e-9


def singles(*values):
    return [(value,) for value in values]


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64, torch.uint8])
def test_integers_are_drawn_including_both_bounds(dtype):
    assert_uniform(BoundedTensorSpec(3, 9, (), dtype=dtype).rand((DRAWS,)), singles(*range(3, 10)))


def test_each_element_has_its_own_bounds():
    drawn = BoundedTensorSpec(torch.tensor([-2, 5, 0]), torch.tensor([2, 5, 1]), dtype=torch.int64).rand((DRAWS,))

    assert_uniform(drawn[:, 0], singles(-2, -1, 0, 1, 2))
    assert_uniform(drawn[:, 1:], [(5, 0), (5, 1)])


@pytest.mark.parametrize(("low", "high"), [(-(2**62), 2**63 - 1), (0, 2**62 + 2**61), (-(2**63), 2**63 - 1)])
def test_integers_of_a_wide_range_are_drawn_uniformly(low, high):
    """A remainder of 64 random bits would draw the lower part of the first range twice as often."""
    drawn = BoundedTensorSpec(low, high, (), dtype=torch.int64).rand((DRAWS,))
    tenths = [(int(one) - low) * 10 // (high - low + 1) for one in drawn]

    assert_uniform(tenths, singles(*range(10)))


def test_the_maximum_and_the_minimum_can_be_drawn():
    assert BoundedTensorSpec(2**63 - 1, 2**63 - 1, (2,), dtype=torch.int64).rand().tolist() == [2**63 - 1] * 2
    assert set(BoundedTensorSpec(2**63 - 2, 2**63 - 1, (50,), dtype=torch.int64).rand().tolist()) == {
        2**63 - 2,
        2**63 - 1,
    }


def test_floats_are_drawn_uniformly_between_the_bounds():
    for spec in (
        BoundedTensorSpec(-3, 7, ()),
        BoundedTensorSpec(-3, 7, (), dtype=torch.bfloat16),
        BoundedTensorSpec(torch.tensor([-3.0, 0.0]), torch.tensor([7.0, 0.0]), (2,))[0],
    ):
        drawn = spec.rand((DRAWS,)).double()
        assert_uniform(((drawn + 3).clamp(max=9.999)).floor().long(), singles(*range(10)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize(("low", "high"), [(0.1, 0.1 + 1e-7), (1e-30, 1e30), (-6e4, 6e4), (0.3, 0.7)])
def test_rounding_never_leaves_the_box(dtype, low, high):
    if dtype == torch.float16 and high > 65504:
        high = 65504
    for spec in (
        BoundedTensorSpec(low, high, (), dtype=dtype),
        BoundedTensorSpec([low, 0.0], [high, 1.0], dtype=dtype),
    ):
        assert spec.is_in(spec.rand((2000,)))


def test_a_box_as_wide_as_the_dtype_is_filled():
    greatest = torch.finfo(torch.float32).max
    drawn = BoundedTensorSpec(-greatest, greatest, ()).rand((DRAWS,))

    assert_uniform((drawn.double() / greatest * 2).floor().long(), singles(-2, -1, 0, 1))


def test_with_one_infinite_bound_the_distance_from_the_other_is_exponential():
    drawn = BoundedTensorSpec([2.0, -math.inf, -math.inf], [math.inf, -2.0, math.inf], (3,)).rand((DRAWS,)).double()
    median = math.log(2)

    assert_uniform((drawn[:, 0] - 2 > median).long(), singles(0, 1))
    assert_uniform((-2 - drawn[:, 1] > median).long(), singles(0, 1))
    assert_uniform((drawn[:, 2] > 0).long(), singles(0, 1))
    assert abs(float(drawn[:, 2].std()) - 1) < 0.03


def test_every_number_of_a_dtype_is_drawn():
    assert_uniform(UnboundedDiscreteTensorSpec((), dtype=torch.uint8).rand((DRAWS,)), singles(*range(256)))
    assert_uniform(UnboundedDiscreteTensorSpec((), dtype=torch.bool).rand((DRAWS,)).long(), singles(0, 1))
    drawn = UnboundedDiscreteTensorSpec((), dtype=torch.int64).rand((DRAWS,))
    assert_uniform(drawn >> 61, singles(*range(-4, 4)))


def test_unbounded_floats_are_normally_distributed():
    drawn = UnboundedContinuousTensorSpec(()).rand((DRAWS,))

    assert abs(float(drawn.mean())) < 0.03
    assert abs(float(drawn.std()) - 1) < 0.03


def test_categories_are_drawn_uniformly_and_masked_ones_never():
    mask = torch.tensor([[True, False, True, True], [False, True, False, False]])
    plain = DiscreteTensorSpec(4, (2,), mask=mask)
    hot = OneHotDiscreteTensorSpec(4, (2, 4), mask=mask)

    assert_uniform(DiscreteTensorSpec(6).rand((DRAWS,)), singles(*range(6)))
    assert_uniform(plain.rand((DRAWS,)), [(0, 1), (2, 1), (3, 1)])
    assert_uniform(hot.to_categorical(hot.rand((DRAWS,))), [(0, 1), (2, 1), (3, 1)])


def test_combinations_are_drawn_uniformly():
    mask = torch.tensor([True, False, True, True, True])
    product = list(itertools.product(range(3), range(2)))

    assert_uniform(MultiDiscreteTensorSpec((3, 2)).rand((DRAWS,)), product)
    assert_uniform(MultiDiscreteTensorSpec((3, 2), mask=mask).rand((DRAWS,)), [one for one in product if one[0] != 1])
    hot = MultiOneHotDiscreteTensorSpec((3, 2), mask=mask)
    assert_uniform(hot.to_categorical(hot.rand((DRAWS,))), [one for one in product if one[0] != 1])
    assert_uniform(BinaryDiscreteTensorSpec(3).rand((DRAWS,)), list(itertools.product((0, 1), repeat=3)))


def test_elements_of_a_batch_are_drawn_independently():
    choices = ChoiceSpec([BoundedTensorSpec(low, low, (), dtype=torch.int64) for low in (4, 8, 15)])

    assert_uniform(choices.rand((DRAWS,)), singles(4, 8, 15))
    assert_uniform(torch.stack([choices.rand() for _ in range(1500)]), singles(4, 8, 15))


def test_entries_of_a_composite_are_drawn_independently():
    spec = CompositeSpec(a=DiscreteTensorSpec(2), b=CompositeSpec(c=DiscreteTensorSpec(3)))
    drawn = spec.rand((DRAWS,))

    assert_uniform(torch.stack([drawn["a"], drawn["b", "c"]], -1), list(itertools.product(range(2), range(3))))


def test_a_mask_that_allows_no_category_is_an_error():
    spec = DiscreteTensorSpec(2, (2,), mask=torch.tensor([[True, True], [False, False]]))

    with pytest.raises(InvalidArgumentError, match=r"allows no category at \[1\]"):
        spec.rand()
    with pytest.raises(InvalidArgumentError, match=r"allows no category at \[1\]"):
        spec.project(torch.tensor([0, 7]))

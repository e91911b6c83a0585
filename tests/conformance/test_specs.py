"""Properties of every spec, over all spec classes."""

from __future__ import annotations

import copy
import json
import math

import numpy as np
import pytest
import torch
from tensordict import LazyStackedTensorDict, NonTensorData, is_non_tensor, is_tensor_collection

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.specs import (
    BinaryDiscreteTensorSpec,
    BoundedTensorSpec,
    ChoiceSpec,
    CompositeSpec,
    DiscreteTensorSpec,
    LazyStackedCompositeSpec,
    LazyStackedTensorSpec,
    MultiDiscreteTensorSpec,
    MultiOneHotDiscreteTensorSpec,
    NonTensorSpec,
    OneHotDiscreteTensorSpec,
    TensorSpec,
    Unbounded,
    UnboundedContinuousTensorSpec,
    UnboundedDiscreteTensorSpec,
)
from datasets_rl.specs.base import LeafSpec

INF = math.inf
LEADS = [(), (4,), (2, 3)]
MOVES = [
    lambda it: it.reshape(6, *it.shape[3:]),
    lambda it: it.view(3, 2, *it.shape[3:]),
    lambda it: it.reshape(-1, *it.shape[3:]),
    lambda it: it.flatten(0, 2),
    lambda it: it.flatten(1, 2),
    lambda it: it.unflatten(2, (3, 1)),
    lambda it: it.squeeze(1),
    lambda it: it.unsqueeze(2),
    lambda it: it.expand(4, 2, 5, 3, *it.shape[3:]),
    lambda it: it[1],
    lambda it: it[-1, 0],
    lambda it: it[:, 0, 1:],
    lambda it: it[0, :, None, 1:],
    lambda it: it[None],
    lambda it: it[torch.tensor([1, 0, 1])],
    lambda it: it[:, :, torch.tensor([2, 0])],
    lambda it: it[torch.tensor([True, False])],
    lambda it: it[[0, 1]],
    lambda it: torch.index_select(it, 2, torch.tensor([2, 2])),
    lambda it: it.unbind(2)[1],
    lambda it: it.unbind(0)[1],
]
"""Operations on leading axes [2, 1, 3]."""


def mask(text):
    return torch.tensor([[letter == "1" for letter in row] for row in text.split()]).squeeze(0)


def tree(value):
    """Return the content of a value as plain Python values with dtypes, comparable with ==."""
    if is_non_tensor(value):
        return value.tolist()
    if isinstance(value, LazyStackedTensorDict):
        return [tree(one) for one in value.unbind(value.stack_dim)]
    if is_tensor_collection(value):
        return {key: tree(value.get(key)) for key in value.keys()}  # noqa: SIM118
    if isinstance(value, torch.Tensor) and value.is_nested:
        return [tree(one) for one in value.unbind()]
    dtype = value.dtype if isinstance(value, torch.Tensor) else None
    return dtype, value.tolist()


def specs(*made):
    """Return a fixture with a new spec from each of these functions."""

    @pytest.fixture(params=made, ids=[f"{number}" for number in range(len(made))])
    def spec(self, request):
        del self
        return copy.deepcopy(request.param)

    return spec


@pytest.mark.first(4)
class SpecContract:
    """Properties of a spec. A subclass has the fixture `spec`, and disables the operations that its class lacks."""

    in_json = True
    takes_leads = LEADS
    moves = True
    countable = True

    @pytest.fixture(autouse=True)
    def seed(self):
        torch.manual_seed(0)

    def test_a_draw_is_in_the_spec_and_has_its_shape(self, spec):
        for lead in self.takes_leads:
            drawn = spec.rand(lead)
            assert spec.is_in(drawn)
            assert spec.contains(drawn)
            assert spec.problems(drawn) == []
            spec.assert_is_in(drawn)
            if -1 not in spec.shape:
                assert tuple(drawn.shape) == (*lead, *spec.shape)

    def test_a_generator_determines_the_draws(self, spec):
        first = spec.rand(generator=torch.Generator().manual_seed(7))
        torch.manual_seed(1)
        state = torch.get_rng_state()
        second = spec.sample(generator=torch.Generator().manual_seed(7))

        assert tree(first) == tree(second)
        assert torch.equal(torch.get_rng_state(), state)

    def test_the_global_generator_determines_draws_without_a_generator(self, spec):
        torch.manual_seed(3)
        first = spec.rand()
        torch.manual_seed(3)

        assert tree(spec.sample()) == tree(first)

    def test_zeros_and_ones_have_the_shape(self, spec):
        for lead in self.takes_leads:
            for made, other in ((spec.zero(lead), spec.zeros(lead)), (spec.one(lead), spec.ones(lead))):
                assert tree(made) == tree(other)
                if -1 not in spec.shape:
                    assert tuple(made.shape) == (*lead, *spec.shape)

    def test_a_member_is_its_own_projection(self, spec):
        drawn = spec.rand()

        assert spec.project(drawn) is drawn

    def test_to_numpy_undoes_encode(self, spec):
        for lead in self.takes_leads:
            drawn = spec.rand(lead)
            assert tree(spec.encode(spec.to_numpy(drawn, safe=True))) == tree(drawn)

    def test_a_clone_is_equal_and_shares_nothing(self, spec):
        for twin in (spec.clone(), copy.deepcopy(spec)):
            assert twin == spec
            assert twin is not spec
            assert hash(twin) == hash(spec)
            assert pointers(spec).isdisjoint(pointers(twin))

    def test_it_equals_no_spec_of_another_shape(self, spec):
        assert spec.unsqueeze(0) != spec
        assert spec != "a spec"

    def test_json_restores_it(self, spec):
        if not self.in_json:
            with pytest.raises(InvalidArgumentError):
                spec.to_json()
            return
        text = json.dumps(spec.to_json(), allow_nan=False)
        back = TensorSpec.from_json(json.loads(text), spec.device)

        assert back == spec
        assert json.dumps(back.to_json()) == text

    def test_its_repr_names_it(self, spec):
        assert repr(spec).startswith(type(spec).__name__)
        assert spec.ndim == spec.ndimension() == len(spec.shape)

    def test_moving_to_its_own_device_changes_nothing(self, spec):
        assert spec.to("cpu").rand() is not None
        assert spec.to(None) is spec
        assert spec.cpu().to("cpu") == spec.to("cpu")

    def test_memoizing_changes_nothing(self, spec):
        spec.memoize_encode()
        spec.memoize_cardinality()
        spec.erase_memoize_cache()

        assert spec == spec.clone()

    @pytest.mark.parametrize("function", [torch.squeeze, torch.unsqueeze])
    def test_torch_functions_equal_the_methods(self, spec, function):
        assert function(spec.unsqueeze(0), 0) == getattr(spec.unsqueeze(0), function.__name__)(0)

    def test_equal_specs_stack_to_a_single_spec(self, spec):
        stacked = torch.stack([spec, spec.clone(), spec])

        assert tuple(stacked.shape) == (3, *spec.shape)
        assert all(one == spec for one in stacked.unbind(0))
        assert stacked[1] == spec
        assert stacked[-1] == spec

    def test_leading_axes_are_indexed_like_those_of_tensors(self, spec):
        assert spec.unsqueeze(0)[0] == spec
        assert spec.unsqueeze(0).squeeze(0) == spec
        assert spec.expand(5, *spec.shape)[3] == spec
        assert spec.expand(2, 3, *spec.shape)[1][2] == spec
        assert tuple(spec.expand(2, 3, *spec.shape).shape) == (2, 3, *spec.shape)
        assert [*spec.expand(3, *spec.shape)[1:].unbind(0)] == [spec, spec]

    def test_operations_on_leading_axes_match_those_on_tensors(self, spec):
        if not self.moves:
            return
        spec = spec.expand(2, 1, 3, *spec.shape)
        shaped = torch.zeros(tuple(spec.shape))
        for rearrange in MOVES:
            moved = rearrange(spec)
            assert tuple(moved.shape) == tuple(rearrange(shaped).shape)
            assert moved.is_in(moved.rand())
            if isinstance(moved, LeafSpec):
                assert moved.is_in(rearrange(spec.rand()))

    def test_a_stack_of_different_specs_is_not_reshaped(self, spec):
        if not self.moves:
            with pytest.raises(InvalidArgumentError, match="cannot be reshaped"):
                spec.unsqueeze(0).flatten()

    @pytest.mark.parametrize("wrong", [9, -9])
    def test_an_index_out_of_range_is_an_index_error(self, spec, wrong):
        with pytest.raises(IndexError):
            _ = spec.expand(2, *spec.shape)[wrong]
        with pytest.raises(IndexError):
            spec.unsqueeze(wrong)

    def test_impossible_shapes_are_refused(self, spec):
        with pytest.raises(InvalidArgumentError):
            spec.expand(2, *spec.shape).reshape(7, 11)
        with pytest.raises(InvalidArgumentError):
            spec.expand(2, *spec.shape).expand(3, *spec.shape)

    def test_the_outcomes_are_as_many_as_the_cardinality_and_in_the_set(self, spec):
        if not self.countable:
            with pytest.raises(InvalidArgumentError):
                spec.enumerate()
            return
        outcomes = spec.enumerate()

        assert len(outcomes) == spec.cardinality()
        assert len({str(tree(one)) for one in outcomes}) == len(outcomes)
        spec = unmasked(spec)
        assert all(spec.is_in(one) for one in outcomes)
        assert spec.is_in(outcomes)


def pointers(spec):
    """Return the memory addresses of the tensors of a spec."""
    found = set()
    for part in vars(spec).values():
        if isinstance(part, torch.Tensor):
            found |= {part.untyped_storage().data_ptr()} - {0}
        elif isinstance(part, (dict, list)):
            for one in part.values() if isinstance(part, dict) else part:
                found |= pointers(one) if isinstance(one, TensorSpec) else set()
    return found


def unmasked(spec):
    spec = spec.clone()
    if hasattr(spec, "update_mask"):
        spec.update_mask(None)
    return spec


class LeafContract(SpecContract):
    """Additional properties of specs of tensors."""

    def test_any_numbers_are_projected_into_the_spec(self, spec):
        shape = (50, *spec.shape)
        for value in (
            torch.randn(shape) * 100,
            torch.randn(shape, dtype=torch.float64) * 1e300,
            torch.randint(-300, 300, shape),
            torch.full(shape, INF),
            torch.full(shape, -INF),
            torch.full(shape, torch.nan),
            torch.zeros(shape, dtype=torch.bool),
        ):
            if isinstance(spec, UnboundedContinuousTensorSpec) and not value.isfinite().all():
                continue
            before = value.clone()
            near = spec.project(value)
            assert spec.is_in(near)
            assert spec.project(near) is near
            assert torch.equal(value.nan_to_num(), before.nan_to_num())

    def test_other_shapes_dtypes_and_types_are_outside(self, spec):
        drawn = spec.rand((2,))

        assert not spec.is_in(drawn.to(torch.complex64))
        assert not spec.is_in(drawn.numpy())
        assert not spec.is_in(None)
        assert not spec.expand(3, *spec.shape).is_in(drawn)
        if spec.ndim:
            assert not spec.is_in(drawn[..., :0])
            with pytest.raises(InvalidArgumentError, match="shape"):
                spec.project(drawn[..., :0])

    def test_a_value_of_another_dtype_does_not_pass_the_type_check(self, spec):
        spec.type_check(spec.rand())
        with pytest.raises(InvalidArgumentError, match=r"speed has dtype torch\.complex64"):
            spec.type_check(spec.rand().to(torch.complex64), "speed")

    def test_lists_and_arrays_and_flat_ones_are_encoded(self, spec):
        drawn = spec.rand()
        plain = spec.to_numpy(drawn)
        for value in (plain, plain.tolist(), np.ascontiguousarray(plain).reshape(-1)[:, None]):
            if plain.shape[-1:] in {(), (1,)} and isinstance(value, np.ndarray):
                continue  # its last axis may be a leading axis
            assert torch.equal(spec.encode(value), drawn)
        if len(plain.shape):
            with pytest.raises(InvalidArgumentError, match="cannot be encoded"):
                spec.encode(np.zeros((5, 7)))
        with pytest.raises(InvalidArgumentError):
            spec.encode("text")

    def test_a_tensor_that_fits_is_not_copied(self, spec):
        drawn = spec.rand()

        if not isinstance(spec, OneHotDiscreteTensorSpec) or spec.dtype == torch.bool:
            assert spec.encode(drawn) is drawn

    def test_draws_in_reversed_memory_are_encoded(self, spec):
        plain = spec.to_numpy(spec.rand((3,)))

        assert torch.equal(spec.encode(plain[::-1]), spec.encode(plain[::-1].copy()))

    def test_a_spec_for_another_dtype_draws_that(self, spec):
        for dtype in (torch.float64, torch.int64):
            other = spec.to(dtype)
            assert other.dtype == dtype
            assert other.is_in(other.rand((5,)))
            assert other.to(dtype) is other


class TestBounded(LeafContract):
    countable = False
    spec = specs(
        BoundedTensorSpec(-1, 1, (3,)),
        BoundedTensorSpec(torch.tensor([-1.0, 0.0, -INF, -INF]), torch.tensor([1.0, INF, 2.0, INF])),
        BoundedTensorSpec(-3.4e38, 3.4e38, (2,)),
        BoundedTensorSpec(-1, 1, (3,), dtype=torch.float16),
        BoundedTensorSpec(2, 2, (), dtype=torch.float64),
        BoundedTensorSpec(0, 255, (2, 3), dtype=torch.uint8),
        BoundedTensorSpec(0, 255, (2, 3), dtype=torch.uint8, domain="continuous"),
        BoundedTensorSpec(torch.tensor([0, -5, 7]), torch.tensor([3, 5, 7]), dtype=torch.int16),
        BoundedTensorSpec(-(2**63), 2**63 - 1, (4,), dtype=torch.int64),
        BoundedTensorSpec(False, True, (2,), dtype=torch.bool),
        BoundedTensorSpec(minimum=-INF, maximum=5, shape=(2,), dtype=torch.int32),
    )

    def test_zero_is_in_the_spec_if_it_is_between_the_bounds(self, spec):
        inside = bool((spec.low.double() <= 0).all() and (spec.high.double() >= 0).all())

        assert spec.is_in(spec.zero()) == inside


class TestUnbounded(LeafContract):
    countable = False
    spec = specs(
        UnboundedContinuousTensorSpec((3,)),
        UnboundedContinuousTensorSpec((), dtype=torch.float64),
        UnboundedDiscreteTensorSpec((2,)),
        UnboundedDiscreteTensorSpec((2, 2), dtype=torch.bool),
        Unbounded((1,), dtype=torch.uint8),
        Unbounded((2,), dtype=torch.uint8, domain="continuous"),
    )

    def test_zero_is_in(self, spec):
        assert spec.is_in(spec.zero((2,)))


class TestDiscrete(LeafContract):
    spec = specs(
        DiscreteTensorSpec(5),
        DiscreteTensorSpec(1, (2,)),
        DiscreteTensorSpec(2, (1,), dtype=torch.bool),
        DiscreteTensorSpec(4, (2, 3), dtype=torch.uint8),
        DiscreteTensorSpec(4, (2,), dtype=torch.float32),
        DiscreteTensorSpec(5, (3,), mask=mask("10101")),
        DiscreteTensorSpec(3, (2,), mask=mask("101 010")),
        DiscreteTensorSpec(3, mask=mask("001")),
    )

    def test_one_hot_and_back(self, spec):
        hot = spec.to_one_hot_spec()
        drawn = spec.rand((4,))

        assert hot.is_in(spec.to_one_hot(drawn, safe=True))
        assert torch.equal(hot.to_categorical(spec.to_one_hot(drawn)), drawn.long())
        assert hot.to_categorical_spec() == spec.to(torch.int64)
        assert spec.to_categorical_spec() is spec
        assert spec.to_categorical(drawn, safe=True) is drawn


class TestBinary(TestDiscrete):
    spec = specs(
        BinaryDiscreteTensorSpec(4),
        BinaryDiscreteTensorSpec(shape=(2, 3), dtype=torch.bool),
        BinaryDiscreteTensorSpec(shape=()),
    )

    def test_one_hot_and_back(self, spec):
        drawn = spec.rand()

        assert torch.equal(spec.to_one_hot(drawn)[..., 1], drawn == 1)


class TestMultiDiscrete(TestDiscrete):
    spec = specs(
        MultiDiscreteTensorSpec((3, 2, 4)),
        MultiDiscreteTensorSpec(3, remove_singleton=False),
        MultiDiscreteTensorSpec((3, 2), (2, 2), dtype=torch.int32),
        MultiDiscreteTensorSpec((3, 2), (5, 2), mask=mask("01110")),
        MultiDiscreteTensorSpec((3, 2), (2, 2), mask=mask("01110 10001")),
    )


class TestMultiDiscreteOfUnlikeRows(LeafContract):
    countable = False
    spec = specs(MultiDiscreteTensorSpec([[2, 3], [4, 5]]), MultiDiscreteTensorSpec([[2, 3], [4, 5]], (3, 2, 2)))

    def test_operations_that_need_equal_rows_are_refused(self, spec):
        for call in (
            spec.cardinality,
            spec.to_one_hot_spec,
            lambda: spec.to_one_hot(spec.rand()),
            lambda: spec.update_mask(mask("11111")),
        ):
            with pytest.raises(InvalidArgumentError, match="differs along the leading axes"):
                call()


class TestOneHot(LeafContract):
    spec = specs(
        OneHotDiscreteTensorSpec(4),
        OneHotDiscreteTensorSpec(1),
        OneHotDiscreteTensorSpec(4, (2, 4), dtype=torch.int64),
        OneHotDiscreteTensorSpec(3, (3, 3), dtype=torch.float32),
        OneHotDiscreteTensorSpec(4, (3, 4), mask=mask("1011")),
        OneHotDiscreteTensorSpec(3, (2, 3), mask=mask("101 010")),
    )

    def test_categorical_and_back(self, spec):
        plain = spec.to_categorical_spec()
        drawn = spec.rand((4,))

        assert plain.is_in(spec.to_categorical(drawn, safe=True))
        assert torch.equal(plain.to_one_hot(spec.to_categorical(drawn)), drawn.bool())
        assert plain.to_one_hot_spec() == spec.to(torch.bool)
        assert spec.to_one_hot_spec() is spec
        assert spec.to_one_hot(drawn, safe=True) is drawn

    def test_the_last_axis_does_not_change(self, spec):
        stacked = spec.expand(2, *spec.shape)
        for call in (
            lambda: stacked.unbind(-1),
            lambda: torch.index_select(stacked, -1, torch.tensor([0])),
            lambda: stacked.reshape(-1) if stacked.shape[-1] > 1 else stacked.unbind(stacked.ndim - 1),
        ):
            with pytest.raises(InvalidArgumentError, match="cannot be changed"):
                call()


class TestMultiOneHot(TestOneHot):
    spec = specs(
        MultiOneHotDiscreteTensorSpec((3, 2, 4)),
        MultiOneHotDiscreteTensorSpec((3,), dtype=torch.int64),
        MultiOneHotDiscreteTensorSpec((3, 2), (2, 5), mask=mask("01110")),
        MultiOneHotDiscreteTensorSpec((3, 2), (2, 5), mask=mask("01110 10001")),
    )


class TestNonTensor(SpecContract):
    countable = False
    spec = specs(
        NonTensorSpec((3,), example_data="text"),
        NonTensorSpec((3,), example_data="text", batched=True),
        NonTensorSpec((), example_data=5),
        NonTensorSpec((2, 3), example_data=["a", {"b": 1.5}], feature_dims=1),
        NonTensorSpec((2,)),
    )

    def test_to_numpy_undoes_encode(self, spec):
        drawn = spec.rand()

        assert tree(spec.encode(drawn)) == tree(drawn)
        if spec.feature_dims == spec.ndim:
            assert spec.to_numpy(spec.encode("other")) == "other"


class TestChoiceOfSpecs(SpecContract):
    spec = specs(
        ChoiceSpec([DiscreteTensorSpec(3, (2,)), DiscreteTensorSpec(5, (2,))]),
        ChoiceSpec([BoundedTensorSpec(0, 1, (2,)), BoundedTensorSpec(10, 11, (2,))]),
        ChoiceSpec([CompositeSpec(a=BoundedTensorSpec(0, 1, (2,))), CompositeSpec(a=BoundedTensorSpec(4, 5, (2,)))]),
    )

    def test_the_outcomes_are_as_many_as_the_cardinality_and_in_the_set(self, spec):
        del spec
        choices = ChoiceSpec([DiscreteTensorSpec(3), DiscreteTensorSpec(2)])

        assert choices.enumerate().tolist() == [0, 1, 2, 0, 1]
        assert choices.cardinality() == 5


class TestChoiceOfValues(SpecContract):
    in_json = False
    spec = specs(ChoiceSpec([NonTensorData(text) for text in ("a", "b", "c")]))


class TestComposite(SpecContract):
    countable = False
    spec = specs(
        CompositeSpec(a=BoundedTensorSpec(0, 1, (3,)), b=CompositeSpec(c=DiscreteTensorSpec(4), d=None)),
        CompositeSpec(
            {"a": UnboundedContinuousTensorSpec((2, 3)), ("b", "c"): OneHotDiscreteTensorSpec(4, (2, 4))}, shape=(2,)
        ),
        CompositeSpec(shape=(2, 1), names=["time", None], device="cpu", a=UnboundedContinuousTensorSpec((2, 1))),
        CompositeSpec(step_mdp_static=True, a=CompositeSpec(), b=UnboundedContinuousTensorSpec(())),
    )

    def test_a_projection_changes_only_what_is_outside(self, spec):
        spec["wild"] = BoundedTensorSpec(-1, 1, (*spec.shape, 2))
        value = spec.rand((5,))
        value["wild"] += 9
        before = value.clone()
        near = spec.project(value)

        assert spec.is_in(near)
        assert (near["wild"] == 1).all()
        assert tree(value) == tree(before)
        assert all(tree(near.get(key)) == tree(value.get(key)) for key in spec if key != "wild" and spec[key])


class TestCompositeWithText(SpecContract):
    countable = False
    takes_leads = ((),)  # a list could be one value or several
    spec = specs(
        CompositeSpec(t=NonTensorSpec((2,), example_data="hi"), a=UnboundedDiscreteTensorSpec((2,)), shape=(2,)),
    )


class TestCountableComposite(TestComposite):
    countable = True
    spec = specs(
        CompositeSpec(a=DiscreteTensorSpec(3), b=CompositeSpec(c=MultiDiscreteTensorSpec((2, 2)), d=None)),
        CompositeSpec(a=DiscreteTensorSpec(3, (2,)), h=OneHotDiscreteTensorSpec(2, (2, 2)), shape=(2,)),
    )


class TestStackedTensors(SpecContract):
    moves = False
    spec = specs(
        LazyStackedTensorSpec(DiscreteTensorSpec(3, (2,)), MultiDiscreteTensorSpec((3, 1)), dim=1),
        LazyStackedTensorSpec(DiscreteTensorSpec(3), MultiDiscreteTensorSpec((3, 4))[0]),
    )

    def test_torch_functions_equal_the_methods(self, spec):
        assert torch.unsqueeze(spec, 0).squeeze(0) == spec


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
class TestStackedTensorsOfUnlikeShapes(TestStackedTensors):
    takes_leads = ((),)
    countable = False
    spec = specs(
        LazyStackedTensorSpec(BoundedTensorSpec(0, 1, (2,)), BoundedTensorSpec(0, 1, (3,))),
        LazyStackedTensorSpec(UnboundedContinuousTensorSpec((2, 4)), UnboundedContinuousTensorSpec((3, 4))),
    )

    def test_leading_axes_are_indexed_like_those_of_tensors(self, spec):
        assert spec.unsqueeze(0)[0] == spec
        assert spec.unsqueeze(0).squeeze(0) == spec
        assert spec.shape[:2] == (2, -1)
        assert spec.expand(4, 2, *spec.shape[1:])[1] == spec


class TestStackedComposites(SpecContract):
    moves = False
    countable = False
    spec = specs(
        LazyStackedCompositeSpec(
            CompositeSpec(a=DiscreteTensorSpec(3), b=UnboundedContinuousTensorSpec((2,))),
            CompositeSpec(a=DiscreteTensorSpec(4)),
        ),
        LazyStackedCompositeSpec(
            CompositeSpec(a=UnboundedContinuousTensorSpec((2, 3)), shape=(2,)),
            CompositeSpec(a=UnboundedContinuousTensorSpec((2, 4)), shape=(2,)),
            dim=1,
        ),
    )

    def test_to_numpy_undoes_encode(self, spec):
        drawn = spec.rand()

        assert spec.is_in(spec.encode(spec.to_numpy(drawn)))

    def test_torch_functions_equal_the_methods(self, spec):
        assert torch.unsqueeze(spec, 0).squeeze(0) == spec

    def test_zeros_and_ones_have_the_shape(self, spec):
        for lead in LEADS:
            assert tuple(spec.zero(lead).shape) == tuple(spec.one(lead).shape) == (*lead, *spec.shape)

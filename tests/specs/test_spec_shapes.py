"""Shapes with axes of any size, shapes that are set, and indices that torch does not have; expected as in TorchRL 0.14.1."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, reject, settings
from hypothesis import strategies as st

import datasets_rl as rl
from datasets_rl.errors import InvalidArgumentError


class TestAxesOfAnySize:
    def test_values_of_every_size_are_members(self):
        spec = rl.Bounded(0, 1, (-1, 1, 2))

        assert spec.shape == (-1, 1, 2)
        assert spec.is_in(torch.zeros(7, 1, 2))
        assert spec.is_in(torch.zeros(3, 7, 1, 2))
        assert not spec.is_in(torch.zeros(7, 1, 3))
        assert spec.problems(torch.full((7, 1, 2), 2.0))[0].endswith("expected a number in [0.0, 1.0]")

    @pytest.mark.parametrize(
        "spec",
        [
            rl.Unbounded((-1, 3)),
            rl.Bounded(0, 1, (-1, 3)),
            rl.Categorical(4, (-1, 3)),
            rl.Categorical(4, (-1, 3), mask=torch.tensor([True, False, True, True])),
            rl.OneHot(3, (-1, 3)),
            rl.MultiCategorical([2, 3, 4], (-1, 3)),
            rl.Binary(shape=(-1, 3)),
            rl.Composite(a=rl.Unbounded((-1, 3)), shape=(-1,)),
        ],
        ids=lambda spec: type(spec).__name__,
    )
    def test_created_values_have_size_1(self, spec):
        assert spec.zero().shape[0] == spec.one().shape[0] == spec.rand().shape[0] == 1
        assert spec.rand((2,)).shape[:2] == (2, 1)
        assert spec.is_in(spec.rand((5,)))
        assert spec[0].shape == spec.shape[1:]
        assert spec[:].shape == spec.shape
        assert spec.unsqueeze(0).shape == (1, *spec.shape)
        assert spec.expand(4, *spec.shape).shape == (4, *spec.shape)
        assert rl.TensorSpec.from_json(spec.to_json()) == spec
        assert pickle.loads(pickle.dumps(spec)) == spec

    def test_shapes_are_computed(self):
        spec = rl.Unbounded((-1, 1, 2))

        assert spec.squeeze().shape == (-1, 2)
        assert spec.reshape(-1).shape == (-1,)
        assert spec.expand(-1, -1, 5, 2).shape == (-1, -1, 5, 2)
        assert torch.stack([spec, spec.clone()]).shape == (2, -1, 1, 2)

    @pytest.mark.parametrize(
        "spec",
        [
            rl.Categorical(4, (1, 1, 2)),
            rl.Bounded(0, 1, (1, 1, 2)),
            rl.Unbounded((1, 1, 2)),
            rl.Composite(a=rl.OneHot(3, (1, 1, 2, 3)), shape=(1, 1, 2)),
        ],
        ids=lambda spec: type(spec).__name__,
    )
    def test_an_axis_of_size_1_is_expanded_to_any_size(self, spec):
        expanded = spec.expand(1, -1, 2)

        assert expanded.shape == (1, -1, 2)
        assert expanded[0].shape == (-1, 2)
        assert all(expanded.is_in(spec.expand(1, size, 2).rand()) for size in (1, 5))
        assert spec.expand(-1, 3, -1).shape == (-1, 3, 2)  # -1 keeps an axis that has another size

    @pytest.mark.parametrize("shape", [(3, 3, 1, 2), (1, 1, 3), (2,)], ids=str)
    def test_other_axes_cannot_be_expanded(self, shape):
        with pytest.raises(ValueError, match=r"^The last 3 of the expanded shape \[.*\] do not fit Unbounded"):
            rl.Unbounded((-1, 1, 2)).expand(shape)

    def test_only_the_whole_axis_can_be_sliced(self):
        with pytest.raises(IndexError, match=r"axis 0 has any size"):
            rl.Unbounded((-1, 2))[1:]

    def test_smaller_sizes_are_refused(self):
        with pytest.raises(InvalidArgumentError, match=r"expected sizes >= 0, or -1"):
            rl.Unbounded((-2,))


class TestShapesThatAreSet:
    @pytest.mark.parametrize(
        "spec",
        [rl.Unbounded((4,)), rl.Bounded(-1, 1, (4,)), rl.Categorical(3, (4,)), rl.OneHot(4), rl.Binary(4)],
        ids=lambda spec: type(spec).__name__,
    )
    def test_the_set_follows(self, spec):
        spec = spec.clone()
        spec.shape = (2, 4)

        assert spec.shape == spec.rand().shape == (2, 4)
        assert spec.is_in(spec.rand((3,)))

    def test_an_axis_becomes_one_of_any_size(self):
        spec = rl.Bounded(torch.tensor([0.0, 1.0]), torch.tensor([2.0, 3.0]), (5, 2))
        spec.make_neg_dim(0)

        assert spec.shape == (-1, 2)
        assert spec.is_in(torch.tensor([2.0, 1.0]).expand(9, 2))

    def test_entries_and_stacks_follow(self):
        composite = rl.Composite(
            a=rl.Unbounded((5, 3)), n=rl.Composite(b=rl.Binary(shape=(5, 2)), shape=(5,)), shape=(5,)
        )
        composite.make_neg_dim(-1)
        stack = torch.stack([rl.Unbounded((5, 3)), rl.Bounded(0, 1, (5, 3))], 1)
        stack.make_neg_dim(2)

        assert composite.shape == (-1,)
        assert composite["n", "b"].shape == (-1, 2)
        assert composite.is_in(composite.rand())
        assert stack.shape == (5, 2, -1)
        with pytest.raises(InvalidArgumentError, match="the stack axis 1"):
            stack.make_neg_dim(1)

    def test_elements_that_differ_forbid_it(self):
        spec = rl.Bounded(torch.tensor([0.0, 1.0]), torch.tensor([2.0, 3.0]))

        with pytest.raises(InvalidArgumentError, match="do not fit"):
            spec.make_neg_dim(0)
        with pytest.raises(InvalidArgumentError, match="one-hot vectors and cannot be changed"):
            rl.OneHot(4).shape = (3,)
        assert spec.shape == (2,)
        with pytest.raises(IndexError, match="has no axis 3"):
            spec.make_neg_dim(3)


def test_slices_run_backwards():
    low = torch.arange(10.0).reshape(5, 2)
    spec = rl.Bounded(low, low + 1)

    assert torch.equal(spec[10:1:-1].low, low.flip(0)[:3])
    assert torch.equal(spec[::-1, ::-1].low, low.flip(0, 1))
    assert torch.equal(spec[..., None, ::-1].low, low.flip(1)[:, None])


@st.composite
def shapes_and_indices(draw):
    """Draw a shape, and an index of slices, integers, new axes and one ellipsis for it."""
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    bound, step = st.one_of(st.none(), st.integers(-5, 5)), st.sampled_from([None, -3, -2, -1, 1, 2])
    entries = [draw(st.one_of(st.builds(slice, bound, bound, step), st.integers(-size, size - 1))) for size in shape]
    entries = entries[: draw(st.integers(0, len(shape)))]
    for extra in (None, Ellipsis):
        if draw(st.booleans()):
            entries.insert(draw(st.integers(0, len(entries))), extra)
    try:
        np.zeros(shape)[tuple(entries)]
    except IndexError:  # after an ellipsis, an integer belongs to another axis than the one that it was drawn for
        reject()
    return shape, tuple(entries)


@given(shapes_and_indices())
@settings(max_examples=30, deadline=None)
def test_an_index_selects_what_it_selects_in_numpy(case):
    shape, index = case
    low = torch.arange(math.prod(shape), dtype=torch.float64).reshape(shape)

    assert np.array_equal(rl.Bounded(low, low + 1, dtype=torch.float64)[index].low.numpy(), low.numpy()[index])


@given(shapes_and_indices(), st.data())
@settings(max_examples=30, deadline=None)
def test_an_axis_of_any_size_stays_one(case, data):
    shape, index = case
    axis = data.draw(st.integers(0, len(shape) - 1))
    entries = [slice(None) if isinstance(entry, slice) else entry for entry in index]
    spec, largest = rl.Unbounded(shape), max(shape) + 1
    spec.make_neg_dim(axis)
    sizes = [largest if number == axis else size for number, size in enumerate(shape)]
    expected = torch.zeros(sizes)[tuple(entries)].shape

    assert spec[tuple(entries)].shape == torch.Size([-1 if size == largest else size for size in expected])
    assert spec.is_in(torch.zeros(sizes))


class TestNumbersOfCategories:
    def test_no_category_is_a_set_without_members(self):
        spec = rl.Categorical(0)

        assert not spec.is_in(torch.tensor(0))
        assert spec.enumerate().shape == (0,)
        with pytest.raises(InvalidArgumentError, match="has no categories"):
            spec.rand()
        with pytest.raises(InvalidArgumentError, match="has no categories"):
            spec.project(torch.tensor(3))

    @pytest.mark.parametrize(
        "spec",
        [rl.OneHot(0), rl.OneHot(0, (5, 0)), rl.MultiOneHot([0]), rl.MultiOneHot([2, 0]), rl.MultiCategorical([2, 0])],
        ids=repr,
    )
    def test_an_encoding_of_no_category_is_a_set_without_members_too(self, spec):
        assert not spec.is_in(torch.zeros(spec.shape, dtype=spec.dtype))
        assert spec.cardinality() == len(spec.enumerate()) == 0
        assert spec[None].shape == (1, *spec.shape)
        assert rl.TensorSpec.from_json(spec.to_json()) == spec
        for call in (spec.rand, lambda: spec.project(torch.zeros(spec.shape, dtype=spec.dtype))):
            with pytest.raises(InvalidArgumentError, match="has no categories"):
                call()

    def test_an_unknown_number_is_set_later(self):
        spec = rl.Categorical(-1, (2,))

        assert spec.is_in(torch.tensor([7, 0]))
        with pytest.raises(RuntimeError, match="not known yet"):
            spec.rand()
        spec.set_provisional_n(3)
        assert spec.rand((50,)).max() < 3
        assert spec.n == 3


def test_a_list_of_one_value_is_that_value_except_of_one_hot_vectors():
    assert rl.Unbounded(()).encode([3]).shape == ()
    assert rl.Bounded(0, 1, (2,)).encode([[0.0, 1.0]]).shape == (2,)
    assert rl.OneHot(4).encode([3]).shape == (1, 4)


class TestErrors:
    """The classes are those of TorchRL, and `InvalidArgumentError` in each case."""

    @pytest.mark.parametrize(
        ("call", "classes"),
        [
            (lambda: rl.Unbounded((3,)).assert_is_in(torch.zeros(2)), AssertionError),
            (lambda: rl.Unbounded((3,)).to_numpy(torch.zeros(2), safe=True), AssertionError),
            (lambda: rl.Unbounded((3,)).type_check(torch.zeros(3).double()), TypeError),
            (lambda: rl.Unbounded((3,)).enumerate(), NotImplementedError),
            (lambda: rl.Bounded(0, 1, (3,)).index(torch.zeros(3), torch.zeros(3)), NotImplementedError),
            (lambda: rl.Unbounded((3,)).unsqueeze(7), (ValueError, IndexError)),
            (lambda: rl.Composite(a=rl.Unbounded((3,)), shape=(2,)), (ValueError, RuntimeError)),
            (lambda: rl.Composite().lock_().set("a", rl.Unbounded((3,))), RuntimeError),
            (lambda: rl.Composite().set("shape", 42), AttributeError),
            (lambda: torch.stack([rl.Unbounded((3,))] * 2, out=rl.Unbounded((3,))), NotImplementedError),
            (lambda: rl.Unbounded(())[::0], ValueError),
            (lambda: rl.Unbounded((-1,)).unbind(), ValueError),
            (lambda: setattr(torch.stack([rl.Unbounded((3,)), rl.Unbounded((4,))]), "shape", (3,)), RuntimeError),
        ],
    )
    def test_an_error_is_of_both_classes(self, call, classes):
        for builtin in classes if isinstance(classes, tuple) else (classes,):
            with pytest.raises(builtin) as caught:
                call()
            assert isinstance(caught.value, InvalidArgumentError)


class TestSpecsOfSpaces:
    @pytest.mark.parametrize(
        "spec",
        [
            rl.Bounded(-1, 1, (2, 3)),
            rl.Bounded(0, 255, (2,), dtype=torch.uint8),
            rl.Categorical(4, (2,)),
            rl.OneHot(4, (2, 4)),
            rl.MultiCategorical([[2, 3], [4, 5]]),
            rl.MultiOneHot([2, 3]),
        ],
        ids=lambda spec: type(spec).__name__,
    )
    def test_a_spec_is_made_of_its_attributes(self, spec):
        again = rl.TensorSpec(spec.shape, spec.space, spec.device, spec.dtype, spec.domain)

        assert type(again) is type(spec)
        assert again == spec

    def test_without_a_space_any_number_is_valid(self):
        assert rl.TensorSpec((3,), None) == rl.Unbounded((3,))
        assert rl.TensorSpec((3,), None, domain="discrete").domain == "discrete"
        assert rl.TensorSpec((3,), rl.BinaryBox(3)) == rl.Binary(3)

    def test_other_spaces_are_refused(self):
        with pytest.raises(InvalidArgumentError, match="space is a str, expected a ContinuousBox"):
            rl.TensorSpec((3,), "box")

    def test_a_bounded_spec_of_floats_is_continuous(self):
        assert isinstance(rl.Bounded(0, 1, (3,)), rl.BoundedContinuous)
        assert not isinstance(rl.Bounded(0, 1, (3,), dtype=torch.int64), rl.BoundedContinuous)
        assert rl.BoundedContinuous(0, 1, (3,)) == rl.Bounded(0, 1, (3,))

    def test_boxes_move_and_unbind(self):
        box = rl.Bounded(torch.tensor([0.0, 1.0]), torch.tensor([2.0, 3.0])).space

        assert [float(one.high) for one in box.unbind()] == [2.0, 3.0]
        assert box.to(torch.float64).low.dtype == torch.float64
        assert box.clone() == box
        nvec = torch.tensor([[2, 3], [4, 5]])
        assert torch.equal(rl.BoxList.from_nvec(nvec).nvec(), nvec)


class TestComposites:
    def test_names_are_refined_in_place(self):
        spec = rl.Composite(n=rl.Composite(shape=(3, 4, 5)), shape=(3, 4))

        assert spec.refine_names(..., "b") is spec
        assert spec.names == [None, "b"]
        assert spec.refine_names("a", "b").names == ["a", "b"]
        assert spec["n"].names == ["a", "b", None]
        with pytest.raises(RuntimeError, match=r"cannot coerce Composite names \['a', 'b'\] to \['c', 'b'\]"):
            spec.refine_names("c", "b")

    def test_locked_is_is_locked(self):
        spec = rl.Composite(n=rl.Composite())
        spec.locked = True

        assert spec.locked
        assert spec["n"].is_locked

    @pytest.mark.parametrize("device", ["cpu", None])
    def test_a_stack_has_the_device_that_a_member_has(self, device):
        first = rl.Composite(n=rl.Composite(a=rl.Unbounded((3,))), device=device)
        other = rl.Composite(n=rl.Composite(b=rl.Unbounded(())), device=None if device else "cpu")
        stack = rl.consolidate_spec(torch.stack([first, other]))

        assert stack.device == torch.device("cpu")
        assert rl.check_no_exclusive_keys(stack)
        assert set(stack["n"].keys()) == {"a", "b"}

"""Where specs once differed from TorchRL without an error; the expected values are those of TorchRL 0.14.1."""

from __future__ import annotations

import importlib.util
import types
import warnings

import pytest
import torch

import datasets_rl

HAS_TORCHRL = importlib.util.find_spec("torchrl") is not None


@pytest.fixture(
    params=[
        "datasets_rl",
        pytest.param("torchrl", marks=pytest.mark.skipif(not HAS_TORCHRL, reason="torchrl is not installed")),
    ]
)
def lib(request):
    """The names of this library, and of the one whose behavior is expected."""
    if request.param == "datasets_rl":
        return datasets_rl
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torchrl import data
    return types.SimpleNamespace(**vars(data))


class TestCompositesInComposites:
    def test_a_leaf_that_has_the_batch_size_keeps_its_shape(self, lib):
        spec = lib.Composite(a=lib.Composite(f=lib.Unbounded(shape=(2, 3))), shape=(2, 3))

        assert spec["a", "f"].shape == (2, 3)
        assert spec["a"].shape == (2, 3)

    def test_it_is_the_same_as_when_set_by_its_path(self, lib):
        spec = lib.Composite(shape=(2, 3))
        spec["a", "f"] = lib.Unbounded(shape=(2, 3))

        assert spec["a", "f"].shape == (2, 3)
        assert spec["a"].shape == (2, 3)

    def test_deeper_ones_too(self, lib):
        inner = lib.Composite(b=lib.Composite(f=lib.Unbounded(shape=(2, 3, 4))))
        spec = lib.Composite(a=inner, shape=(2, 3))

        assert spec["a", "b", "f"].shape == (2, 3, 4)
        assert spec["a", "b"].shape == (2, 3)
        assert spec.rand()["a", "b", "f"].shape == (2, 3, 4)

    def test_a_batch_size_that_is_set_later_counts_too(self, lib):
        spec = lib.Composite(a=lib.Composite(f=lib.Unbounded(shape=(2, 3, 4))))
        spec.shape = (2, 3)

        assert spec["a"].shape == (2, 3)
        assert spec["a", "f"].shape == (2, 3, 4)

    def test_a_leaf_that_lacks_the_batch_size_is_expanded_here(self):
        """TorchRL raises an error."""
        inner = datasets_rl.Composite(f=datasets_rl.Unbounded((2, 3, 4)), g=datasets_rl.Unbounded((4,)))
        spec = datasets_rl.Composite(a=inner, shape=(2, 3))

        assert spec["a", "f"].shape == (2, 3, 4)
        assert spec["a", "g"].shape == (2, 3, 4)


class TestOneCategory:
    def test_a_single_number_is_drawn_without_an_axis(self, lib):
        for spec in (
            lib.MultiCategorical(5),
            lib.MultiCategorical([5]),
            lib.MultiCategorical([5], remove_singleton=True),
        ):
            assert spec.rand().shape == ()
            assert spec.rand((3,)).shape == (3,)
            assert spec.shape == (1,)
            assert spec.zero().shape == (1,)
            assert spec.is_in(spec.rand())

    def test_the_axis_stays_on_demand(self, lib):
        assert lib.MultiCategorical(5, remove_singleton=False).rand().shape == (1,)
        assert lib.MultiCategorical([5], remove_singleton=False).rand((3,)).shape == (3, 1)

    def test_other_shapes_keep_their_axes(self, lib):
        assert lib.MultiCategorical([2, 3]).rand((3,)).shape == (3, 2)
        assert lib.MultiCategorical([[2], [3]]).rand((3,)).shape == (3, 2, 1)
        assert lib.MultiCategorical(5).expand(4, 1).rand().shape == (4, 1)

    def test_a_draw_is_used_like_any_member(self):
        spec = datasets_rl.MultiCategorical(5)
        drawn = spec.rand((3,))

        assert spec.misfits(drawn) == []
        assert spec.project(drawn) is drawn
        assert torch.equal(spec.project(drawn + 100), torch.full((3,), 4))
        assert spec.to_one_hot(drawn).shape == (3, 5)
        assert spec.to_one_hot(spec.rand()).shape == (5,)
        assert spec.index(drawn, torch.arange(5.0).expand(3, 5)).tolist() == drawn.tolist()
        assert spec.encode(3).tolist() == [3]
        assert not spec.is_in(torch.tensor(5))

    @pytest.mark.parametrize("remove", [True, False])
    def test_a_document_says_whether_the_axis_stays(self, remove):
        spec = datasets_rl.MultiCategorical(5, remove_singleton=remove)

        assert datasets_rl.TensorSpec.from_json(spec.to_json()).rand().shape == (() if remove else (1,))


class TestCompositesAsContainers:
    def test_names_of_axes_do_not_count_for_equality(self, lib):
        named = lib.Composite(a=lib.Unbounded((3,)), shape=(3,), names=["time"])

        assert named == lib.Composite(a=lib.Unbounded((3,)), shape=(3,))

    def test_the_length_of_a_lazy_stack_is_its_first_axis(self, lib):
        one, other = lib.Composite(a=lib.Unbounded((3,))), lib.Composite(a=lib.Unbounded((4,)))

        assert len(torch.stack([one, other], 0)) == 2
        assert len(torch.stack([one, one.clone()], 0)) == 1  # a plain composite: the number of its keys

    def test_a_tuple_of_one_name_is_that_name(self, lib):
        keys = lib.Composite(a=lib.Unbounded((3,)), n=lib.Composite(b=lib.Unbounded(()))).keys

        assert ("a",) in keys()
        assert ("a",) in keys(True)
        assert ("n", "b") in keys(True)
        assert (("n",), "b") in keys(True)
        assert ("n", "b") not in keys()
        assert "b" not in keys(True)

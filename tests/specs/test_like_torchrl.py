"""Compatibility of specs with TorchRL; the expected values are those of TorchRL 0.14.1."""

from __future__ import annotations

import importlib.util
import types
import warnings

import pytest
import torch

import datasets_rl
from datasets_rl.errors import InvalidArgumentError

HAS_TORCHRL = importlib.util.find_spec("torchrl") is not None


@pytest.fixture(
    params=[
        "datasets_rl",
        pytest.param("torchrl", marks=pytest.mark.skipif(not HAS_TORCHRL, reason="torchrl is not installed")),
    ]
)
def lib(request):
    """The module under test: this library, and TorchRL as the reference."""
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

    def test_it_equals_an_entry_set_by_its_path(self, lib):
        spec = lib.Composite(shape=(2, 3))
        spec["a", "f"] = lib.Unbounded(shape=(2, 3))

        assert spec["a", "f"].shape == (2, 3)
        assert spec["a"].shape == (2, 3)

    def test_deeper_composites_keep_their_shape(self, lib):
        inner = lib.Composite(b=lib.Composite(f=lib.Unbounded(shape=(2, 3, 4))))
        spec = lib.Composite(a=inner, shape=(2, 3))

        assert spec["a", "b", "f"].shape == (2, 3, 4)
        assert spec["a", "b"].shape == (2, 3)
        assert spec.rand()["a", "b", "f"].shape == (2, 3, 4)

    def test_a_batch_size_that_is_set_later_applies(self, lib):
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

    def test_the_axis_is_kept_on_request(self, lib):
        assert lib.MultiCategorical(5, remove_singleton=False).rand().shape == (1,)
        assert lib.MultiCategorical([5], remove_singleton=False).rand((3,)).shape == (3, 1)

    def test_other_shapes_keep_their_axes(self, lib):
        assert lib.MultiCategorical([2, 3]).rand((3,)).shape == (3, 2)
        assert lib.MultiCategorical([[2], [3]]).rand((3,)).shape == (3, 2, 1)
        assert lib.MultiCategorical(5).expand(4, 1).rand().shape == (4, 1)

    def test_a_draw_is_used_like_any_member(self):
        spec = datasets_rl.MultiCategorical(5)
        drawn = spec.rand((3,))

        assert spec.problems(drawn) == []
        assert spec.project(drawn) is drawn
        assert torch.equal(spec.project(drawn + 100), torch.full((3,), 4))
        assert spec.to_one_hot(drawn).shape == (3, 5)
        assert spec.to_one_hot(spec.rand()).shape == (5,)
        assert spec.index(drawn, torch.arange(5.0).expand(3, 5)).tolist() == drawn.tolist()
        assert spec.encode(3).tolist() == [3]
        assert not spec.is_in(torch.tensor(5))

    @pytest.mark.parametrize("remove", [True, False])
    def test_a_document_has_the_option_that_keeps_the_axis(self, remove):
        spec = datasets_rl.MultiCategorical(5, remove_singleton=remove)

        assert datasets_rl.TensorSpec.from_json(spec.to_json()).rand().shape == (() if remove else (1,))


class TestCompositesAsContainers:
    def test_equality_ignores_names_of_axes(self, lib):
        named = lib.Composite(a=lib.Unbounded((3,)), shape=(3,), names=["time"])

        assert named == lib.Composite(a=lib.Unbounded((3,)), shape=(3,))

    def test_the_length_of_a_lazy_stack_is_its_first_axis(self, lib):
        one, other = lib.Composite(a=lib.Unbounded((3,))), lib.Composite(a=lib.Unbounded((4,)))

        assert len(torch.stack([one, other], 0)) == 2
        assert (
            len(torch.stack([one, one.clone()], 0)) == 1
        )  # a composite that is not a stack: the length is its number of keys

    def test_a_tuple_of_one_name_is_that_name(self, lib):
        keys = lib.Composite(a=lib.Unbounded((3,)), n=lib.Composite(b=lib.Unbounded(()))).keys

        assert ("a",) in keys()
        assert ("a",) in keys(True)
        assert ("n", "b") in keys(True)
        assert (("n",), "b") in keys(True)
        assert ("n", "b") not in keys()
        assert "b" not in keys(True)


class TestDomains:
    def test_a_domain_is_the_given_one(self, lib):
        for kind in (lib.Unbounded, lambda *args, **kwargs: lib.Bounded(-1, 1, *args, **kwargs)):
            assert kind((2,), dtype=torch.int32, domain="continuous").domain == "continuous"
            assert kind((2,), domain="discrete").domain == "discrete"
            assert kind((2,), dtype=torch.int32).domain == "discrete"
            assert kind((2,), dtype=torch.int32, domain="continuous").rand().dtype == torch.int32

    def test_bounds_keep_it_and_another_dtype_does_not(self, lib):
        spec = lib.Bounded(-1, 1, (2,), domain="discrete")

        assert [one.domain for one in (spec.expand(3, 2), spec.clone(), spec[0])] == ["discrete"] * 3
        assert spec.to(torch.float64).domain == "continuous"

    def test_equality_includes_the_domain_of_bounded_specs(self, lib):
        assert lib.Bounded(-1, 1, (2,), domain="discrete") != lib.Bounded(-1, 1, (2,))
        assert lib.Unbounded((2,), domain="discrete") == lib.Unbounded((2,))

    def test_the_domain_determines_the_class_of_an_unbounded_spec(self):
        spec = datasets_rl.Unbounded((2,), dtype=torch.int32, domain="continuous")

        assert type(spec) is datasets_rl.UnboundedContinuousTensorSpec
        assert hash(spec) == hash(datasets_rl.Unbounded((2,), dtype=torch.int32))
        assert spec.expand(3, 2).domain == "continuous"
        assert spec.to(torch.int64).domain == "discrete"

    @pytest.mark.parametrize("domain", ["continuous", "discrete"])
    def test_a_document_has_the_domain(self, domain):
        for spec in (datasets_rl.Unbounded((2,), domain=domain), datasets_rl.Bounded(0, 1, (2,), domain=domain)):
            assert datasets_rl.TensorSpec.from_json(spec.to_json()).domain == domain
            assert ("domain" in spec.to_json()) == (domain == "discrete")

    def test_only_two_domains_are_valid(self):
        with pytest.raises(InvalidArgumentError, match="expected 'continuous' or 'discrete'"):
            datasets_rl.Unbounded((2,), domain="both")
        for wrong in ("both", ["discrete"]):
            with pytest.raises(InvalidArgumentError, match=r"spec\.domain is"):
                datasets_rl.TensorSpec.from_json({"kind": "unbounded", "shape": [], "dtype": "int8", "domain": wrong})


class TestRegisters:
    """TorchRL documents a register; its `encode` raises an AttributeError (0.14.1)."""

    def test_the_constructors_take_it_before_the_mask(self, lib):
        mask = torch.tensor([True, False, True])
        spec = lib.OneHot(3, None, None, torch.bool, True, mask)

        assert spec.use_register
        assert torch.equal(spec.mask, mask)
        assert lib.MultiOneHot([2, 3], use_register=True).use_register
        assert not lib.MultiOneHot([2, 3]).use_register

    def test_equality_includes_the_register(self, lib):
        assert lib.OneHot(3, use_register=True) == lib.OneHot(3, use_register=True)
        assert lib.OneHot(3, use_register=True) != lib.OneHot(3)
        assert lib.OneHot(3, use_register=True).clone().use_register

    def test_numbers_become_categories_in_order_of_first_use(self):
        spec = datasets_rl.OneHot(3, use_register=True)

        assert spec.encode(70).tolist() == [True, False, False]
        assert spec.encode(torch.tensor([-5, 70])).int().tolist() == [[0, 1, 0], [1, 0, 0]]
        assert spec.to_numpy(spec.encode([70, -5, 9])).tolist() == [70, -5, 9]
        assert spec.expand(2, 3).encode([9, 9]).int().tolist() == [[0, 0, 1]] * 2
        assert spec.encode(spec.encode(9)).int().tolist() == [0, 0, 1]
        assert spec == datasets_rl.OneHot(3, use_register=True)

    def test_too_many_numbers_are_refused_and_none_is_registered(self):
        spec = datasets_rl.OneHot(2, use_register=True)
        spec.encode(4)

        with pytest.raises(InvalidArgumentError, match="value 8 cannot be registered: all 2 categories are in use"):
            spec.encode([6, 8])
        assert spec.encode(7).tolist() == [False, True]

    def test_a_category_without_a_number_is_refused(self):
        spec = datasets_rl.OneHot(2, use_register=True)
        spec.encode(4)

        with pytest.raises(InvalidArgumentError, match="category 1 has no value"):
            spec.to_numpy(torch.tensor([False, True]))

    def test_each_group_counts_its_own(self):
        spec = datasets_rl.MultiOneHot([2, 3], use_register=True)

        assert spec.encode([7, 7]).int().tolist() == [1, 0, 1, 0, 0]
        assert spec.encode([7, 8]).int().tolist() == [1, 0, 0, 1, 0]
        assert spec.to_numpy(spec.encode([[9, 9], [7, 8]])).tolist() == [[9, 9], [7, 8]]

    @pytest.mark.parametrize(
        "spec",
        [datasets_rl.OneHot(3, use_register=True), datasets_rl.MultiOneHot([3], use_register=True)],
        ids=["one-hot", "multi-one-hot"],
    )
    def test_a_document_has_the_numbers(self, spec):
        spec = spec.clone()
        before = spec.encode([[7], [-2]])
        again = datasets_rl.TensorSpec.from_json(spec.to_json())

        assert spec.to_json()["register"] == [[7, -2]]
        assert torch.equal(again.encode([[7], [-2]]), before)
        assert "register" not in datasets_rl.OneHot(3).to_json()

    @pytest.mark.parametrize("wrong", [[], [[1, 1]], [[1, 2, 3]], [["a"]], [1], [[True]], "no"], ids=repr)
    def test_a_document_with_another_register_is_refused(self, wrong):
        document = {**datasets_rl.OneHot(2).to_json(), "register": wrong}

        with pytest.raises(InvalidArgumentError, match=r"spec\.register is"):
            datasets_rl.TensorSpec.from_json(document)

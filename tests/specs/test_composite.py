"""Composite specs: nested mappings of specs that share leading axes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from datasets_rl.errors import InvalidArgumentError, UnknownKeyError
from datasets_rl.specs import (
    BoundedTensorSpec,
    CompositeSpec,
    DiscreteTensorSpec,
    NonTensorSpec,
    UnboundedContinuousTensorSpec,
)

NAMES = st.sampled_from("abcd")
LEAVES = st.integers(1, 9).map(DiscreteTensorSpec) | st.none()
TREES = st.recursive(LEAVES, lambda inner: st.dictionaries(NAMES, inner, max_size=3), max_leaves=8)
DICTS = st.dictionaries(NAMES, TREES, max_size=4)
KEYS = st.lists(NAMES, min_size=1, max_size=3).map(tuple)


def flat(tree, before=()):
    """Return every path of a nested dict, including inner ones."""
    found = {}
    for name, inner in tree.items():
        found[(*before, name)] = inner
        if isinstance(inner, dict):
            found |= flat(inner, (*before, name))
    return found


def short(path):
    return path[0] if len(path) == 1 else path


@given(DICTS)
def test_keys_values_and_items_are_those_of_a_nested_dict(tree):
    spec, paths = CompositeSpec(tree), flat(tree)
    leaves = {path for path, inner in paths.items() if not isinstance(inner, dict)}

    assert list(spec) == list(tree) == list(spec.keys())
    assert len(spec) == len(tree)
    assert set(spec.keys(True)) == {short(path) for path in paths}
    assert set(spec.keys(True, True)) == {short(path) for path in leaves}
    assert set(spec.keys(False, True)) == {path[0] for path in leaves if len(path) == 1}
    assert dict(spec.items(True, True)) == {short(path): paths[path] for path in leaves}
    assert len(spec.values(True)) == len(paths)
    for path, inner in paths.items():
        assert path in spec
        assert spec[path] == (CompositeSpec(inner) if isinstance(inner, dict) else inner)
    assert spec.is_empty() == (not tree)
    assert spec.is_empty(recurse=True) == all(paths[path] is None for path in leaves)


@given(DICTS, KEYS, LEAVES)
def test_a_set_entry_is_returned_and_nothing_else_changes(tree, key, leaf):
    spec = CompositeSpec(tree)
    inner = tree
    blocked = False
    for name in key[:-1]:
        inner = inner.get(name, {})
        blocked = not (inner is None or isinstance(inner, dict))
        if inner is None or blocked:
            break
    before = dict(spec.items(True, True))
    if blocked:
        with pytest.raises(InvalidArgumentError, match="expected a composite"):
            spec.set(key, leaf)
        assert dict(spec.items(True, True)) == before
        return
    assert spec.set(key, leaf) is spec
    assert spec[key] == leaf
    paths = {one: one if isinstance(one, tuple) else (one,) for one in before}
    apart = [one for one, path in paths.items() if path[: len(key)] != key and key[: len(path)] != path]
    assert all(spec[one] == before[one] for one in apart)


@given(DICTS, KEYS)
def test_a_removed_entry_is_missing(tree, key):
    spec = CompositeSpec(tree)
    if key not in flat(tree):
        with pytest.raises(UnknownKeyError):
            del spec[key]
        with pytest.raises(UnknownKeyError):
            spec.pop(key)
        assert spec.pop(key, 5) == 5
        assert spec.get(key, 7) == 7
        assert spec == CompositeSpec(tree)
        return
    there = spec[key]
    assert spec.pop(key) == there
    assert key not in spec
    assert set(spec.keys(True)) == {short(one) for one in flat(tree) if one[: len(key)] != key}


@given(DICTS, DICTS)
@settings(max_examples=50)
def test_update_merges_as_nested_dicts_do(left, right):
    def merged(one, other):
        out = dict(one)
        for name, inner in other.items():
            both = isinstance(inner, dict) and isinstance(out.get(name), dict)
            out[name] = merged(out[name], inner) if both else inner
        return out

    assert CompositeSpec(left).update(right) == CompositeSpec(merged(left, right))
    assert CompositeSpec(left).update(CompositeSpec(right)) == CompositeSpec(merged(left, right))


@given(DICTS)
def test_a_draw_has_the_entries_of_the_spec(tree):
    spec = CompositeSpec(tree)
    drawn = spec.rand((2,))

    assert tuple(drawn.batch_size) == (2,)
    assert set(drawn.keys(True, True)) == {key for key, leaf in spec.items(True, True) if leaf is not None}
    assert spec.is_in(drawn)
    assert spec.is_in(drawn.to_dict())
    for key in drawn.keys(True, True):
        assert not spec.is_in(drawn.exclude(key))
        assert spec.problems(drawn.exclude(key)) == [f"{'.'.join([key] if isinstance(key, str) else key)} is missing"]


def toy(**options):
    return CompositeSpec(
        action=BoundedTensorSpec(-1, 1, (2, 3)), next={"flag": DiscreteTensorSpec(2, (2, 1))}, shape=(2,), **options
    )


def test_values_outside_of_the_spec_are_reported_with_path_value_and_bound():
    spec, value = toy(), toy().zero((4,))
    value["action"][3, 1, 2] = 1.5
    value["action"][3, 1, 1] = -9
    value["next", "flag"][0, 1] = 7

    assert spec.problems(value) == [
        "action is -9.0 at [3, 1, 1] (and 1 more of 24), expected a number in [-1.0, 1.0]",
        "next.flag is 7 at [0, 1, 0], expected an integer in [0, 2)",
    ]
    with pytest.raises(InvalidArgumentError, match=r"not in the spec: action is -9\.0 at \[3, 1, 1\]"):
        spec.assert_is_in(value)
    assert spec.problems(5) == ["value is a int, expected a TensorDict"]
    assert spec.problems(TensorDict({"action": torch.zeros(3), "next": {"flag": torch.zeros(2, 1)}})) == [
        "action has shape [3], expected [..., 2, 3]",
        "next.flag has dtype torch.float32, expected torch.int64",
    ]


def test_a_spec_with_other_leading_axes_or_another_device_is_refused():
    spec = toy(device="cpu")
    before = spec.clone()

    with pytest.raises(InvalidArgumentError, match=r"more has shape \[3, 2\], expected the leading axes \[2\]"):
        spec["more"] = UnboundedContinuousTensorSpec((3, 2))
    with pytest.raises(InvalidArgumentError, match="more is on meta, expected cpu"):
        spec["more"] = UnboundedContinuousTensorSpec((2,), device="meta")
    with pytest.raises(InvalidArgumentError, match="more is a int"):
        spec["more"] = 5
    assert spec == before


def test_composites_and_text_get_the_leading_axes():
    spec = CompositeSpec(shape=(4, 2))
    spec["a"] = CompositeSpec(shape=(4,), b=NonTensorSpec((4,), example_data="x"))
    spec["t"] = NonTensorSpec(())

    assert spec["a"].shape == spec["a", "b"].shape == spec["t"].shape == (4, 2)
    assert spec.is_in(spec.rand())


def test_the_batch_size_can_be_set_where_the_entries_have_it():
    spec = CompositeSpec(a=UnboundedContinuousTensorSpec((4, 2)), b=CompositeSpec())
    spec.shape = (4,)

    assert spec.batch_size == spec["b"].shape == (4,)
    with pytest.raises(InvalidArgumentError):
        spec.batch_size = (3,)
    assert spec.shape == (4,)


def test_a_locked_composite_does_not_change():
    spec = toy().lock_()
    for change in (
        lambda: spec.set("more", None),
        lambda: spec.set(("next", "more"), None),
        lambda: spec.pop("action"),
        lambda: spec.update({"action": None}),
        lambda: spec.__delitem__(("next", "flag")),
        lambda: setattr(spec, "shape", ()),
    ):
        with pytest.raises(InvalidArgumentError, match="locked"):
            change()

    assert spec.is_locked
    assert spec["next"].is_locked
    assert spec == toy()
    assert not spec.clone().is_locked
    assert not spec.expand(3, 2).is_locked
    spec.unlock_()
    spec["next", "more"] = None
    assert ("next", "more") in spec


def test_a_lock_without_recursion_does_not_lock_entries():
    spec = toy().lock_(recurse=False)
    spec["next", "more"] = None

    with pytest.raises(InvalidArgumentError, match="locked"):
        spec["more"] = None
    spec.is_locked = False
    spec["more"] = None


def test_entries_are_separated():
    spec = toy()
    apart = spec.separates("action", ("next", "nothing"))

    assert list(apart) == ["action"]
    assert apart.shape == (2,)
    assert list(spec) == ["next"]
    assert spec.separates("nothing") is None


def test_names_follow_the_axes():
    spec = toy(names=["env"])

    assert spec.rand((3,)).names == [None, "env"]
    assert spec.unsqueeze(0).names == [None, "env"]
    assert spec.expand(5, 2).names == [None, "env"]
    assert spec[0].names == []
    assert spec["next"].names == ["env"]
    assert spec.clone().names == ["env"]
    with pytest.raises(InvalidArgumentError, match="Expected 1 names, but got 2 names"):
        spec.names = ["a", "b"]


def test_empty_keeps_all_but_the_entries():
    assert toy(device="cpu").empty() == CompositeSpec(shape=(2,), device="cpu")
    assert toy().cardinality() == float("inf")
    assert CompositeSpec().cardinality() == 0
    assert tuple(CompositeSpec().enumerate().batch_size) == ()


def test_an_index_beyond_the_batch_size_is_refused():
    with pytest.raises(IndexError):
        _ = toy()[0, 0]
    with pytest.raises(IndexError):
        _ = toy()[2]
    assert toy()[..., None].shape == (2, 1)
    assert toy()[..., None]["action"].shape == (2, 1, 3)


def test_missing_values_and_unknown_keys_are_not_encoded():
    with pytest.raises(UnknownKeyError, match="acton"):
        toy().encode({"acton": 5})
    with pytest.raises(InvalidArgumentError, match="expected a value and a spec that are not None"):
        toy().encode({"action": None})
    assert list(toy().encode({"next": {"flag": [[1], [0]]}}).keys(True, True)) == [("next", "flag")]


def test_only_numbers_are_projected():
    with pytest.raises(InvalidArgumentError, match="next is missing"):
        toy().project(TensorDict({"action": torch.zeros(2, 3)}, [2]))


def test_dtypes_are_checked_by_key():
    spec = toy()
    spec.type_check(spec.zero())
    spec.type_check(torch.zeros(2, 3), "action")
    with pytest.raises(InvalidArgumentError, match="flag has dtype"):
        spec.type_check({**spec.zero(), "next": {"flag": torch.zeros(2, 1)}})
    spec.type_check({"action": torch.zeros(2, 3), "next": None}, ["action"])


def test_entries_are_overwritten_in_place():
    spec, value = toy(), TensorDict({"more": torch.zeros(2)}, [2])

    assert spec.ones_update(value) is value
    assert (value["action"] == 1).all()
    assert (spec.zeros_update(value)["action"] == 0).all()
    assert spec.is_in(spec.rand_update(value))


def test_its_device_is_that_of_all_entries():
    spec = toy().to("meta")

    assert spec["action"].device == spec["next"].device == torch.device("meta")
    assert spec.update({"more": UnboundedContinuousTensorSpec((2,))})["more"].device == torch.device("meta")
    assert spec.clear_device_().device is None
    assert spec["next"].device is None
    assert toy().to(torch.float64)["action"].dtype == torch.float64


class Named(TensorDict):
    pass


def test_a_spec_with_a_data_class_draws_and_requires_it():
    spec = toy(data_cls=Named)

    assert type(spec.zero()) is Named
    assert spec.is_in(spec.rand())
    assert not spec.is_in(toy().rand())
    assert spec != toy()


def test_only_one_of_two_names_of_an_argument_is_accepted():
    assert CompositeSpec(batch_size=(3,)).shape == (3,)
    with pytest.raises(InvalidArgumentError, match="expected shape or batch_size, not both"):
        CompositeSpec(shape=(3,), batch_size=(3,))


def test_all_keys_can_be_deleted_in_their_order():
    nested = CompositeSpec(
        a=CompositeSpec(b=UnboundedContinuousTensorSpec(3), c=CompositeSpec(d=UnboundedContinuousTensorSpec(2))),
        e=UnboundedContinuousTensorSpec(1),
    )
    stacked = torch.stack(
        [nested, CompositeSpec(a=CompositeSpec(b=UnboundedContinuousTensorSpec(3)), f=UnboundedContinuousTensorSpec(1))]
    )

    assert list(nested.keys(True)) == list(nested.zero().keys(True))
    for spec in (nested, stacked[0], stacked[1]):
        for key in list(spec.keys(True)):
            del spec[key]
        assert list(spec.keys(True)) == []
    with pytest.raises(KeyError, match="b"):
        del stacked["a", "b"]


@pytest.mark.parametrize("name", ["shape", "device", "dtype", "space"])
def test_an_attribute_cannot_be_set_as_a_key(name):
    spec = CompositeSpec(a=UnboundedContinuousTensorSpec(3))

    with pytest.raises(AttributeError, match=f"^'{name}' cannot be set to 42 as a key"):
        spec[name] = 42


def test_a_number_is_not_a_key():
    with pytest.raises(InvalidArgumentError, match="0 is not a key of a composite"):
        CompositeSpec(a=UnboundedContinuousTensorSpec(3))[0] = UnboundedContinuousTensorSpec(2)


def test_a_new_box_replaces_the_bounds():
    spec = BoundedTensorSpec(-1.0, 1.0, (3,))

    spec.space = BoundedTensorSpec(0.0, 3.0, (3,)).space

    assert spec.is_in(torch.full((3,), 2.5))
    assert not spec.is_in(torch.full((3,), -0.5))
    assert spec == BoundedTensorSpec(0.0, 3.0, (3,))
    with pytest.raises(InvalidArgumentError, match="do not broadcast to"):
        spec.space = BoundedTensorSpec(0.0, 3.0, (2,)).space
    with pytest.raises(TypeError, match="cannot be set to CategoricalBox, expected a ContinuousBox"):
        spec.space = DiscreteTensorSpec(3).space
    assert spec == BoundedTensorSpec(0.0, 3.0, (3,))

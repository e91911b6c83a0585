"""Comparison with TorchRL, where it is installed: `pip install torchrl`, or a checkout on the path."""

from __future__ import annotations

import math

import pytest
import torch

from datasets_rl import specs as ours

theirs = pytest.importorskip("torchrl.data")

pytestmark = pytest.mark.filterwarnings("ignore")


def mask(text):
    return torch.tensor([letter == "1" for letter in text])


KINDS = {
    "box": lambda lib: lib.Bounded(-1, 1, (2, 3)),
    "box by place": lambda lib: lib.Bounded(torch.tensor([-1.0, 0.0]), torch.tensor([1.0, 5.0])),
    "whole box": lambda lib: lib.Bounded(-3, 4, (2,), dtype=torch.int64),
    "image": lambda lib: lib.Bounded(0, 255, (3, 2, 2), dtype=torch.uint8),
    "reals": lambda lib: lib.Unbounded((3,)),
    "integers": lambda lib: lib.Unbounded((3,), dtype=torch.int32),
    "categories": lambda lib: lib.Categorical(4, (2,)),
    "masked": lambda lib: lib.Categorical(4, (2,), mask=mask("1011")),
    "one-hot": lambda lib: lib.OneHot(4, (2, 4)),
    "one-hot integers": lambda lib: lib.OneHot(4, dtype=torch.int64),
    "masked one-hot": lambda lib: lib.OneHot(4, (2, 4), mask=mask("1011")),
    "multi": lambda lib: lib.MultiCategorical((3, 2)),
    "multi by rows": lambda lib: lib.MultiCategorical((3, 2), (5, 2)),
    "multi one-hot": lambda lib: lib.MultiOneHot((3, 2)),
    "binary": lambda lib: lib.Binary(3),
    "composite": lambda lib: lib.Composite(
        a=lib.Bounded(-1, 1, (2, 3)), b=lib.Composite(c=lib.Categorical(4, (2, 1)), shape=(2,)), d=None, shape=(2,)
    ),
}


@pytest.fixture(params=KINDS.values(), ids=list(KINDS))
def pair(request):
    torch.manual_seed(0)
    return request.param(ours), request.param(theirs)


def equal(left, right):
    if isinstance(left, torch.Tensor):
        return left.dtype == right.dtype and torch.equal(left, right)
    return set(left.keys(True, True)) == set(right.keys(True, True)) and bool((left == right).all())


def test_each_library_accepts_draws_of_the_other(pair):
    mine, other = pair
    for lead in ((), (7,), (2, 3)):
        assert mine.is_in(other.rand(lead))
        assert other.is_in(mine.rand(lead))
        assert equal(mine.zero(lead), other.zero(lead))
        assert mine.rand(lead).shape == other.rand(lead).shape


def test_shapes_dtypes_domains_and_devices_are_the_same(pair):
    mine, other = pair

    assert mine.shape == other.shape
    assert mine.device == other.device
    if mine.domain != "composite":
        assert mine.dtype == other.dtype
        assert mine.domain == other.domain


@pytest.mark.first(8, of="rearrange")
@pytest.mark.parametrize(
    "rearrange",
    [
        lambda spec: spec.expand(4, *spec.shape),
        lambda spec: spec.unsqueeze(0),
        lambda spec: spec.unsqueeze(0).squeeze(0),
        lambda spec: spec.expand(4, *spec.shape)[1:3],
        lambda spec: spec.expand(4, *spec.shape)[-1],
        lambda spec: spec.expand(4, *spec.shape)[torch.tensor([0, 2])],
        lambda spec: spec.expand(4, *spec.shape)[None],
        lambda spec: spec.expand(4, *spec.shape).reshape(2, 2, *spec.shape),
        lambda spec: spec.expand(4, *spec.shape).unbind(0)[2],
        lambda spec: torch.stack([spec, spec.clone()]),
        lambda spec: spec.to(torch.device("cpu")),
    ],
    ids=[str(number) for number in range(11)],
)
def test_operations_on_shapes_agree(pair, rearrange, request):
    mine, other = pair
    if "composite" in request.node.callspec.id:
        del mine["d"], other["d"]  # TorchRL cannot reshape or unbind an entry of None
    try:
        expected = rearrange(other)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        pytest.skip(f"TorchRL cannot: {error!r:.80}")

    assert rearrange(mine).shape == expected.shape
    assert expected.is_in(rearrange(mine).rand())


def test_numbers_of_the_right_dtype_are_accepted_equally(pair):
    mine, other = pair
    for _ in range(20):
        value = mine.rand((3,))
        if not isinstance(value, torch.Tensor) or value.dtype == torch.bool:
            continue
        place = tuple(int(torch.randint(size, ())) for size in value.shape)
        value[place] = 1 if torch.rand(()) < 0.3 else 7
        if isinstance(mine, ours.OneHot) or getattr(mine, "mask", None) is not None:
            continue  # TorchRL treats [2, -1, 0] as one-hot, and raises an error for indices out of range of a mask
        assert mine.is_in(value) == bool(other.is_in(value))


def test_projections_agree_where_there_is_one_nearest(pair):
    mine, other = pair
    if isinstance(mine, (ours.OneHot, ours.Composite)) or getattr(mine, "mask", None) is not None:
        return  # TorchRL returns a random draw here
    value = mine.rand((3,))
    wild = value + 9 if value.dtype.is_floating_point or value.dtype == torch.int64 else value

    assert equal(mine.project(wild.clone()), other.project(wild.clone()))


def test_categories_have_the_same_encoding(pair):
    mine, other = pair
    drawn = mine.rand((5,))
    if isinstance(mine, ours.OneHot):
        assert equal(mine.to_categorical(drawn), other.to_categorical(drawn))
        assert mine.to_categorical_spec().shape == other.to_categorical_spec().shape
        assert (mine.to_numpy(drawn) == other.to_numpy(drawn)).all()
    elif isinstance(mine, ours.Categorical) and not isinstance(mine, ours.Binary):
        assert equal(mine.to_one_hot(drawn), other.to_one_hot(drawn))
        assert mine.to_one_hot_spec().shape == other.to_one_hot_spec().shape


def test_outcomes_agree(pair, request):
    mine, other = pair
    known = {"categories", "one-hot integers", "multi", "multi by rows", "multi one-hot"}
    if not any(request.node.callspec.id == name for name in known):
        return
    assert mine.cardinality() == other.cardinality()
    if request.node.callspec.id != "multi one-hot":
        assert equal(mine.enumerate(), other.enumerate())
    else:
        assert equal(mine.enumerate(), other.enumerate().to(torch.bool))


def test_encoding_agrees(pair):
    mine, other = pair
    plain = mine.to_numpy(mine.rand())

    if isinstance(plain, dict):
        plain.pop("d", None)
    assert equal(mine.encode(plain), other.encode(plain))


def test_composites_have_the_same_keys(pair):
    mine, other = pair
    if not isinstance(mine, ours.Composite):
        return
    for nested in (False, True):
        for leaves in (False, True):
            assert set(mine.keys(nested, leaves)) == set(other.keys(nested, leaves))
    assert mine.is_empty() == other.is_empty()
    assert mine["b", "c"].shape == other["b", "c"].shape
    assert math.isinf(mine.cardinality()) == math.isinf(KINDS["box"](theirs).cardinality())


def test_lazy_stacks_agree():
    mine, other = (
        torch.stack([lib.Composite(a=lib.Unbounded((3,)), b=lib.Unbounded(())), lib.Composite(a=lib.Unbounded((4,)))])
        for lib in (ours, theirs)
    )

    assert mine.shape == other.shape
    assert set(mine.keys()) == set(other.keys())
    assert mine["a"].shape == other["a"].shape
    assert other.is_in(mine.rand())
    assert mine.is_in(other.rand())
    assert mine.unsqueeze(0).shape == other.unsqueeze(0).shape
    assert mine.expand(3, 2).shape == other.expand(3, 2).shape

"""The number of steps per buffer in a batch: its share, in every batch and on average."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from datasets_rl import (
    LazyTensorStorage,
    MixtureSampler,
    RandomSampler,
    SamplerWithoutReplacement,
    SliceSampler,
    StorageEnsemble,
)
from datasets_rl.errors import InvalidArgumentError


def storage(count=50):
    made = LazyTensorStorage(count)
    made.set(torch.arange(count), TensorDict({"next": {"done": torch.arange(count)[:, None] % 10 == 9}}, [count]))
    return made


def several(count):
    return StorageEnsemble(*(storage() for _ in range(count)))


def counts(sampler, batches, size):
    """Return the number of steps of each buffer, int64 [batches, buffers]."""
    of = several(len(sampler))
    drawn = [sampler.sample(of, size)[0]["buffer_ids"] for _ in range(batches)]
    return torch.stack([torch.bincount(one, minlength=len(sampler)) for one in drawn])


def plain(number, **options):
    return MixtureSampler(*(RandomSampler() for _ in range(number)), **options)


def test_fractional_shares_are_carried_over():
    """The example in the class docstring, computed by hand."""
    assert counts(plain(2, p=[0.7, 0.3]), 10, 4)[:, 0].tolist() == [3, 3, 2, 3, 3] * 2


def test_integer_shares_are_the_same_in_every_batch():
    assert counts(plain(3, p=[5, 3, 2]), 4, 10).tolist() == [[5, 3, 2]] * 4


@settings(max_examples=60, deadline=None)
@given(
    p=st.lists(st.floats(0, 1), min_size=1, max_size=6).filter(lambda p: sum(p) > 0.01),
    size=st.integers(1, 40),
)
def test_a_batch_is_off_by_less_than_one_step_and_many_by_no_more_than_a_few(p, size):
    given = counts(plain(len(p), p=p), 60, size).double()
    wanted = torch.tensor(p, dtype=torch.float64) / sum(p) * size

    assert ((given - wanted).abs() < 1 + 1e-9).all()
    assert (given.sum(1) == size).all()
    assert ((given.cumsum(0) - wanted * torch.arange(1, 61)[:, None]).abs() < max(len(p), 2)).all()


def test_a_buffer_without_a_share_gives_nothing():
    assert counts(plain(3, p=[0.45, 0, 0.55]), 30, 7)[:, 1].sum() == 0


def test_annealed_shares_change_linearly():
    sampler = plain(2, p=[1, 0], final_p=[0, 1], anneal=4)
    given = counts(sampler, 6, 8)

    assert given[:, 0].tolist() == [8, 6, 4, 2, 0, 0]
    assert sampler.shares.tolist() == [0, 1]


def test_random_shares_are_exact_on_average():
    torch.manual_seed(0)
    given = counts(plain(2, p=[0.8, 0.2], exact=False), 400, 10).double()

    assert given[:, 0].mean() / 10 == pytest.approx(0.8, abs=0.02)
    # The variance of a binomial distribution, 10 * 0.8 * 0.2.
    assert given[:, 0].var() == pytest.approx(1.6, abs=0.4)


def test_slices_are_complete_and_have_different_numbers():
    sampler = MixtureSampler(*(SliceSampler(slice_len=4) for _ in range(3)), p=[0.5, 0.3, 0.2], unit=4)
    index, info = sampler.sample(several(3), 40)

    assert torch.bincount(index["buffer_ids"]).tolist() == [20, 12, 8]
    assert torch.bincount(info["slice_id"]).unique().tolist() == [0, 4]
    assert info["slice_id"].unique().numel() == 10
    assert (index["index"].reshape(-1, 4).diff(dim=1) == 1).all()
    assert info["next", "truncated"][3::4].all()


def test_a_batch_that_cannot_be_cut_into_slices_is_refused():
    with pytest.raises(InvalidArgumentError, match="multiple of 4"):
        MixtureSampler(SliceSampler(slice_len=4), unit=4).sample(several(1), 10)


def test_an_epoch_of_one_buffer_continues_in_the_next():
    sampler = MixtureSampler(*(SamplerWithoutReplacement() for _ in range(2)), p=[0.9, 0.1])
    of = several(2)
    drawn = [sampler.sample(of, 10)[0] for _ in range(50)]
    rows = torch.cat([one["index"][one["buffer_ids"] == 0] for one in drawn])

    assert torch.bincount(rows).tolist() == [9] * 50


def test_a_loaded_state_gives_the_next_batch():
    def made():
        return plain(3, p=[5, 2, 1], final_p=[1, 1, 1], anneal=20, generator=torch.Generator().manual_seed(3))

    first = made()
    counts(first, 7, 9)
    second = made()
    second.load_state_dict(first.state_dict())
    of = several(3)

    for _ in range(10):
        one, other = first.sample(of, 9)[0], second.sample(of, 9)[0]
        assert torch.equal(one["index"], other["index"])
        assert torch.equal(one["buffer_ids"], other["buffer_ids"])


@pytest.mark.parametrize(
    "change", [{"batches": -1}, {"behind": torch.zeros(3)}, {"behind": None}, {"p": [-1, 2]}], ids=str
)
def test_an_invalid_state_is_refused(change):
    sampler = plain(2)

    with pytest.raises(InvalidArgumentError, match="does not fit"):
        sampler.load_state_dict({**sampler.state_dict(), **change})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"unit": 0}, "unit is 0"),
        ({"anneal": 3}, "expected both, with anneal >= 1, or neither"),
        ({"final_p": [1, 2]}, "expected both, with anneal >= 1, or neither"),
        ({"final_p": [1, 2, 3], "anneal": 3}, r"shape \[3\]"),
        ({"p": [1, -1]}, "finite numbers >= 0"),
    ],
    ids=str,
)
def test_contradictory_arguments_are_refused(options, said):
    with pytest.raises(InvalidArgumentError, match=said):
        plain(2, **options)


def test_a_slice_of_the_samplers_is_a_mixture_of_them():
    some = plain(3, p=[1, 2, 5], unit=2)[1:]

    assert isinstance(some, MixtureSampler)
    assert some.shares.tolist() == pytest.approx([2 / 7, 5 / 7])
    assert isinstance(some[0], RandomSampler)

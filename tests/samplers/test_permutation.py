"""Permutations that are computed position by position, and epochs that draw from them."""

from __future__ import annotations

import itertools
import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.samplers import SamplerWithoutReplacement
from datasets_rl.samplers.permutation import permuted
from datasets_rl.storages import LazyTensorStorage

LARGE = (1 << 20) + 5
"""A number of rows whose order is computed."""


def chi_square(counts) -> float:
    """Return how many standard deviations the chi-square statistic of counts is from its mean, if all are equally likely."""
    counts = np.asarray(counts, np.float64).reshape(-1)
    freedom, mean = counts.size - 1, counts.mean()
    return (((counts - mean) ** 2 / mean).sum() - freedom) / np.sqrt(2 * freedom)


def cipher(position: int, count: int, seed: int) -> int:
    """The permutation of the docstring of the module, in Python's integers."""
    bits = 2**64 - 1
    rows = next(rows for rows in itertools.count(math.isqrt(count)) if rows * rows >= count)
    columns = -(-count // rows)

    def drawn(value: int, size: int) -> int:
        value = ((value ^ value >> 30) * 0xBF58476D1CE4E5B9) & bits
        value = ((value ^ value >> 27) * 0x94D049BB133111EB) & bits
        return ((value ^ value >> 31) >> 32) * size >> 32

    keys = [(seed + number * 0x9E3779B97F4A7C15) & bits for number in range(1, 9)]
    while True:
        left, right = divmod(position, columns)
        for number, key in enumerate(keys):
            if number % 2:
                right = (right + drawn(left + key & bits, columns)) % columns
            else:
                left = (left + drawn(right + key & bits, rows)) % rows
        position = left * columns + right
        if position < count:
            return position


@settings(deadline=None)
@given(
    count=st.one_of(st.integers(1, 70), st.integers(1, 2**62)),
    first=st.integers(0, 2**62),
    seed=st.integers(0, 2**64 - 1),
)
def test_the_order_is_that_of_the_cipher(count, first, seed):
    """The positions fill two blocks."""
    start = first % count
    positions = range(start, min(start + 300, count))

    assert permuted(positions, count, seed).tolist() == [cipher(position, count, seed) for position in positions]


@settings(deadline=None, max_examples=200)
@given(count=st.integers(1, 3000), seed=st.integers(0, 2**64 - 1))
def test_each_number_is_at_one_position(count, seed):
    assert sorted(permuted(range(count), count, seed)) == [*range(count)]


@settings(deadline=None)
@given(count=st.integers(1, 2**62), first=st.integers(0, 2**62), seed=st.integers(0, 2**64 - 1))
def test_numbers_of_any_range_are_within_it_and_differ(count, first, seed):
    start = first % count
    numbers = permuted(range(start, min(start + 500, count)), count, seed)

    assert 0 <= numbers.min() <= numbers.max() < count
    assert len(np.unique(numbers)) == len(numbers)
    again = permuted(range(start + len(numbers) // 2, start + len(numbers)), count, seed)
    assert again.tolist() == numbers[len(numbers) // 2 :].tolist()


@pytest.mark.parametrize("count", [7, 100, 1000, LARGE, 10**9])
def test_every_number_is_equally_likely_at_every_position(count):
    """The numbers and the positions are counted in at most 10 classes each; the seeds are fixed, so that the test is, too."""
    classes, seeds = min(count, 10), 1500
    positions = [part * count // classes for part in range(classes)]
    counts = np.zeros((classes, classes))
    for seed in range(seeds):
        for row, position in enumerate(positions):
            number = int(permuted(range(position, position + 1), count, seed)[0])
            counts[row, number * classes // count] += 1
    edges = [-(-part * count // classes) for part in range(classes + 1)]
    expected = seeds * np.diff(edges) / count

    freedom = classes * (classes - 1)
    assert abs(((counts - expected) ** 2 / expected).sum() - freedom) < 4 * np.sqrt(2 * freedom)


@pytest.mark.parametrize("count", [LARGE, 10**9, 2**40 + 1])
def test_neighbors_and_strides_are_independent(count):
    """A pair of numbers falls into each of 32 x 32 cells of [0, N) x [0, N) equally often, and differences are uniform."""
    numbers = permuted(range(1 << 20), count, 11)
    for distance in (1, 2, 32, 1024, 1025):
        left, right = numbers[:-distance], numbers[distance:]
        cells = left * 32 // count * 32 + right * 32 // count
        assert abs(chi_square(np.bincount(cells, minlength=1024))) < 4, distance
        differences = (right - left) % count * 64 // count
        assert abs(chi_square(np.bincount(differences, minlength=64)[1:63])) < 4, distance
    if count > LARGE:  # of which all numbers are here
        for divisor in (2, 16, 1000):
            assert abs(chi_square(np.bincount(numbers % divisor, minlength=divisor))) < 4, divisor


def test_orders_of_neighboring_seeds_are_independent():
    first, second = (permuted(range(1 << 18), 10**9, seed) for seed in (0, 1))

    assert abs(chi_square(np.bincount(first * 32 // 10**9 * 32 + second * 32 // 10**9, minlength=1024))) < 4
    assert (first == second).sum() <= 2


def test_positions_outside_are_refused():
    with pytest.raises(ValueError, match=r"not within \[0, 5\)"):
        permuted(range(3, 6), 5, 0)


@pytest.fixture(scope="module")
def storage():
    steps = LazyTensorStorage(LARGE + 100)
    steps.set(range(LARGE), torch.arange(LARGE))
    return steps


def epoch(sampler, storage, batch_size=1 << 17):
    batches = []
    sampler.ran_out = False
    while not sampler.ran_out:
        batches.append(sampler.sample(storage, batch_size)[0])
    return batches


class TestEpochs:
    def test_epochs_have_every_step_once_in_other_orders(self, storage):
        sampler = SamplerWithoutReplacement(generator=torch.Generator().manual_seed(0))
        first, second = (torch.cat(epoch(sampler, storage)) for _ in range(2))

        assert torch.equal(first.sort().values, torch.arange(LARGE))
        assert torch.equal(second.sort().values, torch.arange(LARGE))
        assert (first == second).sum() < 20

    def test_ranks_draw_every_step_once(self):
        """Two ranks have fewer rows than are listed, so these shares are of a storage of twice the size."""
        double = LazyTensorStorage(2 * LARGE + 1)
        double.set(range(2 * LARGE + 1), torch.zeros(2 * LARGE + 1, dtype=torch.bool))
        shares = [
            torch.cat(epoch(SamplerWithoutReplacement(rank=rank, world_size=2), double, 1 << 18)) for rank in range(2)
        ]

        assert [len(share) for share in shares] == [LARGE + 1, LARGE]
        assert torch.equal(torch.cat(shares).sort().values, torch.arange(2 * LARGE + 1))

    def test_a_state_within_an_epoch_is_small_and_continues_it(self, storage):
        sampler = SamplerWithoutReplacement()
        for _ in range(5):
            sampler.sample(storage, 1000)
        state = sampler.state_dict()
        other = SamplerWithoutReplacement()
        other.load_state_dict(state)

        assert len(pickle.dumps(state)) < 10_000
        for _ in range(3):
            assert torch.equal(other.sample(storage, 1000)[0], sampler.sample(storage, 1000)[0])
        assert torch.equal(
            torch.cat(epoch(other, storage)).sort().values, torch.cat(epoch(sampler, storage)).sort().values
        )

    def test_steps_written_during_an_epoch_are_added_to_it(self):
        grown = LazyTensorStorage(LARGE + 100)
        grown.set(range(LARGE), torch.arange(LARGE))
        sampler = SamplerWithoutReplacement()
        seen = [sampler.sample(grown, 1000)[0]]
        grown.set(range(LARGE, LARGE + 100), torch.arange(100))
        batches = epoch(sampler, grown)

        assert torch.equal(torch.cat(seen + batches).sort().values, torch.arange(LARGE + 100))
        assert (torch.cat(batches[:-1]) >= LARGE).sum() > 50  # not only at the end

    def test_the_remaining_rows_are_moved_into_a_larger_ring(self, storage):
        sampler = SamplerWithoutReplacement()
        seen = sampler.sample(storage, 1000)[0]
        state = sampler.renumbered(sampler.state_dict(), 10, LARGE)
        other = SamplerWithoutReplacement()
        other.load_state_dict(state)
        rows = torch.cat(epoch(other, storage))

        assert torch.equal(torch.cat([rows, (seen - 10) % LARGE]).sort().values, torch.arange(LARGE))

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"position": LARGE + 1}, "order is .*expected None, or how the rows are computed"),
            ({"seed": -1}, "order is "),
            ({"count": 7, "position": 3}, f"order has 7 rows, expected {LARGE:,}, the rows of this rank"),
        ],
    )
    def test_an_invalid_order_is_refused(self, storage, change, message):
        sampler = SamplerWithoutReplacement()
        sampler.sample(storage, 10)
        state = sampler.state_dict()

        with pytest.raises(InvalidArgumentError, match=message):
            SamplerWithoutReplacement().load_state_dict({**state, "order": {**state["order"], **change}})

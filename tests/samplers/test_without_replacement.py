"""Sampling without replacement: every step is drawn once per epoch."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.samplers import RandomSampler, SamplerWithoutReplacement
from datasets_rl.storages import LazyTensorStorage


def filled(count, size=None, **kwargs):
    storage = LazyTensorStorage(size or max(count, 1), **kwargs)
    storage.set(range(count), torch.arange(count))
    return storage


def epoch(sampler, storage, batch_size):
    """Return the batches of one epoch."""
    batches = []
    sampler.ran_out = False
    while not sampler.ran_out:
        batches.append(sampler.sample(storage, batch_size)[0].tolist())
    return batches


@settings(deadline=None)
@given(count=st.integers(1, 40), batch_size=st.integers(1, 45), shuffle=st.booleans(), seed=st.integers(0, 1000))
def test_an_epoch_has_every_step_once(count, batch_size, shuffle, seed):
    storage = filled(count)
    sampler = SamplerWithoutReplacement(shuffle=shuffle, generator=torch.Generator().manual_seed(seed))

    for _ in range(3):
        batches = epoch(sampler, storage, batch_size)
        assert sorted(itertools.chain(*batches)) == list(range(count))
        assert [len(batch) for batch in batches[:-1]] == [batch_size] * (len(batches) - 1)


@settings(deadline=None)
@given(count=st.integers(1, 40), batch_size=st.integers(1, 40), shuffle=st.booleans())
def test_drop_last_gives_whole_batches_only(count, batch_size, shuffle):
    storage = filled(count)
    sampler = SamplerWithoutReplacement(drop_last=True, shuffle=shuffle)
    if batch_size > count:
        with pytest.raises(InvalidArgumentError, match=f"batch size is {batch_size}, but there are {count} steps"):
            sampler.sample(storage, batch_size)
        return

    for _ in range(2):
        batches = epoch(sampler, storage, batch_size)
        rows = list(itertools.chain(*batches))
        assert len(batches) == count // batch_size
        assert all(len(batch) == batch_size for batch in batches)
        assert len(set(rows)) == len(rows)


def test_every_order_is_equally_likely():
    """Chi-square with 23 degrees of freedom exceeds 49.7 once in a thousand runs; this run is seeded."""
    storage = filled(4)
    sampler = SamplerWithoutReplacement(generator=torch.Generator().manual_seed(0))
    counts = dict.fromkeys(itertools.permutations(range(4)), 0)
    for _ in range(12_000):
        counts[tuple(itertools.chain(*epoch(sampler, storage, 3)))] += 1

    assert sum((count - 500) ** 2 / 500 for count in counts.values()) < 49.7


@pytest.mark.first(1)
@pytest.mark.parametrize(
    ("before", "come", "orders", "limit"),
    # Values of chi-square that are exceeded once in a thousand runs; these runs are seeded.
    [(2, 2, 24, 49.7), (4, 1, 120, 172.0), (8, 2, 90, 135.9)],
    ids=["as many again", "one more", "some more"],
)
def test_steps_added_to_an_epoch_may_be_drawn_at_any_time(before, come, orders, limit):
    """Only the positions of the added rows are counted."""
    generator = torch.Generator().manual_seed(0)
    storage, counts = filled(before + 1, 20), Counter()
    grown = filled(before + 1 + come, 20)
    for _ in range(50 * orders):
        sampler = SamplerWithoutReplacement(generator=generator)
        first = sampler.sample(storage, 1)[0].item()
        rows = sampler.sample(grown, 20)[0].tolist()
        rows = [(row - first) % (before + 1) if row <= before else row for row in rows]
        counts[tuple(map(rows.index, range(before + 1, before + 1 + come))) if before > 4 else tuple(rows)] += 1

    assert len(counts) == orders
    assert sum((count - 50) ** 2 / 50 for count in counts.values()) < limit


def test_without_shuffling_the_order_is_that_of_the_storage():
    assert epoch(SamplerWithoutReplacement(shuffle=False), filled(7), 3) == [[0, 1, 2], [3, 4, 5], [6]]


def test_without_shuffling_a_full_ring_begins_with_its_oldest_step():
    storage = filled(5)
    storage.set(range(2), torch.arange(2))

    assert epoch(SamplerWithoutReplacement(shuffle=False), storage, 3) == [[2, 3, 4], [0, 1]]


def test_without_shuffling_lanes_are_consecutive():
    storage = LazyTensorStorage(6, ndim=2)
    storage.set(range(3), torch.zeros(3, 2))
    storage.set(range(1), torch.zeros(1, 2))

    assert epoch(SamplerWithoutReplacement(shuffle=False), storage, 4) == [[2, 3, 4, 5], [0, 1]]


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=5),
    batch_size=st.integers(1, 12),
    shuffle=st.booleans(),
    at=st.integers(0, 3),
)
def test_steps_written_during_an_epoch_are_added_to_it(sizes, batch_size, shuffle, at):
    """TorchRL restarts the epoch at every write, so a buffer with writes between batches never ends one."""
    sampler = SamplerWithoutReplacement(shuffle=shuffle)
    storage = filled(sizes[0], 200)
    seen = []
    for size in sizes[1:]:
        for _ in range(at):
            if len(seen) + batch_size < len(storage):
                seen += sampler.sample(storage, batch_size)[0].tolist()
        storage.set(range(storage.filled_count, storage.filled_count + size), torch.arange(size))
    if not seen:
        return
    seen += itertools.chain(*epoch(sampler, storage, batch_size))

    assert sorted(seen) == list(range(len(storage)))


def test_an_emptied_storage_starts_an_epoch():
    sampler, storage = SamplerWithoutReplacement(), filled(10)
    sampler.sample(storage, 4)
    storage.empty()
    sampler.empty()
    storage.set(range(3), torch.arange(3))

    assert sorted(sampler.sample(storage, 10)[0].tolist()) == [0, 1, 2]


def test_a_smaller_storage_starts_an_epoch():
    sampler = SamplerWithoutReplacement()
    sampler.sample(filled(10), 4)

    assert sorted(sampler.sample(filled(3), 10)[0].tolist()) == [0, 1, 2]


def test_changes_to_a_batch_do_not_change_the_sampler():
    for shuffle in (True, False):
        sampler, storage = SamplerWithoutReplacement(shuffle=shuffle), filled(6)
        first = sampler.sample(storage, 3)[0]
        kept = first.tolist()
        first.fill_(99)

        assert sorted(kept + sampler.sample(storage, 3)[0].tolist()) == list(range(6))


def state(*, left=(), held, joining=(), envs=1):
    rows = {name: torch.tensor(rows, dtype=torch.int64) for name, rows in {"left": left, "joining": joining}.items()}
    return {**rows, "held": held, "envs": envs, "ran_out": False}


class TestState:
    def test_the_remaining_rows_are_moved_into_a_larger_ring(self):
        """The slots by age are 2 3 0 1; rows 3 and 0 remain, and move to slots 1 and 2."""
        sampler = SamplerWithoutReplacement()
        new = sampler.renumbered(state(left=[3, 0], held=4), 2, 4)
        sampler.load_state_dict(new)

        assert new["left"].tolist() == [1, 2]
        assert sorted(itertools.chain(*epoch(sampler, filled(6, 8), 1))) == [1, 2, 4, 5]

    def test_rows_of_lanes_added_since_the_last_sample_are_moved(self):
        """3 slots of 2 lanes, of which slot 1 is the oldest; rows 4 and 5 were written after the last sample."""
        sampler = SamplerWithoutReplacement(shuffle=False)
        new = sampler.renumbered(state(left=[1], held=4, envs=2), 1, 3)
        sampler.load_state_dict(new)

        assert new["held"] == 6
        assert sampler.sample(filled(6), 6)[0].tolist() == [5, 2, 3]

    def test_rows_added_since_the_last_sample_may_be_drawn_at_any_time(self):
        """They are not drawn only after the remaining rows."""
        torch.manual_seed(0)
        sampler, first = SamplerWithoutReplacement(), Counter()
        for _ in range(3000):
            sampler.load_state_dict(sampler.renumbered(state(left=[0, 1], held=2), 0, 3))
            first[sampler.sample(filled(3), 3)[0].tolist().index(2)] += 1

        assert all(900 < first[place] < 1100 for place in range(3))

    def test_a_finished_epoch_stays_finished(self):
        new = SamplerWithoutReplacement().renumbered(state(left=[], held=4) | {"ran_out": True}, 2, 4)

        assert new["left"].tolist() == new["joining"].tolist() == []

    @pytest.mark.parametrize(
        ("state", "message"),
        [
            ({}, "held is None.*envs is None.*left is not an int64 tensor.*joining is not an int64 tensor"),
            (state(held=4) | {"left": torch.tensor([0.5])}, "left is not an int64 tensor"),
            (state(left=[4], held=4), "left has rows from 4 to 4, expected 0 to 3"),
            (state(left=[0], held=4, joining=[-1]), "joining has rows from -1 to -1"),
        ],
        ids=["nothing", "floats", "outside", "below"],
    )
    def test_an_invalid_state_is_refused(self, state, message):
        with pytest.raises(InvalidArgumentError, match=message):
            SamplerWithoutReplacement().load_state_dict(state)


class TestShares:
    @settings(deadline=None)
    @given(count=st.integers(1, 30), world_size=st.integers(1, 4), batch_size=st.integers(1, 9))
    def test_the_processes_together_draw_every_step_once(self, count, world_size, batch_size):
        storage = filled(count)
        shares = [
            list(
                itertools.chain(
                    *epoch(SamplerWithoutReplacement(rank=rank, world_size=world_size), storage, batch_size)
                )
            )
            for rank in range(min(world_size, count))
        ]

        assert sorted(itertools.chain(*shares)) == list(range(count))
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
        assert all(row % world_size == rank for rank, rows in enumerate(shares) for row in rows)

    def test_steps_written_during_an_epoch_are_divided_among_ranks(self):
        storage = filled(5, 20)
        sampler = SamplerWithoutReplacement(rank=1, world_size=3)
        seen = sampler.sample(storage, 1)[0].tolist()
        storage.set(range(5, 11), torch.arange(6))

        assert sorted(seen + list(itertools.chain(*epoch(sampler, storage, 4)))) == [1, 4, 7, 10]

    def test_drawing_with_replacement_is_limited_to_the_rows_of_the_rank(self):
        rows = RandomSampler(rank=2, world_size=3).sample(filled(12), 1000)[0]

        assert set(rows.tolist()) == {2, 5, 8, 11}

    @pytest.mark.parametrize("make", [RandomSampler, SamplerWithoutReplacement])
    @pytest.mark.parametrize(
        ("rank", "world_size", "message"),
        [
            (0, None, "rank is 0 and world_size is None, expected both"),
            (None, 2, "rank is None and world_size is 2"),
            (2, 2, "rank is 2, expected at least 0 and below world_size 2"),
            (-1, 2, "rank is -1"),
            (0, 0, "below world_size 0"),
        ],
        ids=repr,
    )
    def test_a_rank_without_a_world_size_is_refused(self, make, rank, world_size, message):
        with pytest.raises(InvalidArgumentError, match=message):
            make(rank=rank, world_size=world_size)

    @pytest.mark.parametrize("make", [RandomSampler, SamplerWithoutReplacement])
    def test_a_rank_without_steps_cannot_sample(self, make):
        with pytest.raises(InvalidArgumentError, match="empty storage"):
            make(rank=3, world_size=4).sample(filled(3), 1)
        assert "rank=3, world_size=4" in repr(make(rank=3, world_size=4))

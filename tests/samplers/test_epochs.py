"""Ranks share epochs of whole episodes: each once, in any number of ranks, resumed exactly."""

from __future__ import annotations

import pickle
import tracemalloc
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from stored_data import trajectory, write_dataset

from datasets_rl import EpisodeSampler, EpisodeSliceSampler, SampledBatches, StoredDataset, TensorDictReplayBuffer, load
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.samplers.epochs import Epochs, Items
from datasets_rl.samplers.share import Share
from datasets_rl.storages import DatasetStorage, LazyTensorStorage

LENGTHS = [7, 1, 12, 3, 9, 4, 30, 2, 5, 8, 6, 11]
STEPS = sum(LENGTHS)


@pytest.fixture(scope="module")
def storage(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "some"
    write_dataset(folder, [trajectory(length) for length in LENGTHS])
    return DatasetStorage(StoredDataset(folder))


@pytest.fixture
def ranks(storage):
    """A function that returns the buffers of all ranks."""

    def made(world_size, batch_size=5, sampler=EpisodeSampler, prefetch=None, **options):
        options = {"pool_steps": 20, **options} if sampler is EpisodeSampler else options
        return [
            TensorDictReplayBuffer(
                storage=storage,
                sampler=sampler(rank=rank, world_size=world_size, **options),
                batch_size=batch_size,
                prefetch=prefetch,
            )
            for rank in range(world_size)
        ]

    return made


def rows_of(batches):
    return [batch["index"].tolist() for batch in batches]


def flat(batches):
    return [row for batch in batches for row in batch]


def epoch_of(buffers):
    """Return the rows of the batches of an epoch, by rank."""
    return [rows_of(buffer) for buffer in buffers]


# --- an epoch


@pytest.mark.parametrize("world_size", [1, 2, 4, 12])
@pytest.mark.parametrize("pool_steps", [1, 20, 1000])
def test_every_step_is_drawn_once_and_every_episode_by_one_rank(storage, ranks, world_size, pool_steps):
    drawn = [flat(batches) for batches in epoch_of(ranks(world_size, pool_steps=pool_steps))]

    assert sorted(flat(drawn)) == list(range(STEPS))
    episodes = storage.get(slice(None))["episode"]
    owners = [set(episodes[rows].tolist()) for rows in drawn]
    assert sum(map(len, owners)) == len(LENGTHS)
    assert [len(owned) for owned in owners] == [12 // world_size] * world_size


def test_epochs_differ_and_follow_from_the_seed_and_the_number(ranks):
    (buffer,), (again,), (other,) = ranks(1, seed=3), ranks(1, seed=3), ranks(1, seed=4)
    epochs = [rows_of(buffer) for _ in range(3)]

    assert [rows_of(again) for _ in range(3)] == epochs
    assert len({str(epoch) for epoch in [*epochs, rows_of(other)]}) == 4
    again.sampler.set_epoch(1)
    assert rows_of(again) == epochs[1]
    assert again.sampler.epoch == 2


def test_without_shuffling_the_order_is_that_of_the_dataset(ranks):
    assert flat(flat(epoch_of(ranks(1, shuffle=False)))) == list(range(STEPS))
    first, second = epoch_of(ranks(2, shuffle=False))
    assert flat(first)[:10] == [*range(7), 8, 9, 10]
    assert flat(second)[:4] == [7, 20, 21, 22]


def test_a_pool_mixes_the_steps_of_its_episodes_only(storage, ranks):
    (rows,) = (flat(batches) for batches in epoch_of(ranks(1, pool_steps=20)))
    episodes = storage.get(slice(None))["episode"][rows].tolist()

    ends = [at + 1 for at in range(STEPS) if not set(episodes[: at + 1]) & set(episodes[at + 1 :])]
    assert 3 <= len(ends) < len(LENGTHS)
    assert max(np.diff([0, *ends])) < 20 + max(LENGTHS)
    assert episodes != sorted(episodes, key=episodes.index)


@pytest.mark.parametrize("world_size", [2, 5])
def test_uneven_ranks_are_made_equal_by_dropping_or_padding(ranks, world_size):
    kept = epoch_of(ranks(world_size))
    dropped, padded = (epoch_of(ranks(world_size, uneven=uneven)) for uneven in ("drop", "pad"))

    assert len({len(batches) for batches in kept}) > 1
    for found, count in ((dropped, min(sum(map(len, one)) // 5 for one in kept)), (padded, max(map(len, kept)))):
        assert [[len(batch) for batch in batches] for batches in found] == [[5] * count] * world_size
    assert len(set(flat(flat(dropped)))) == len(flat(flat(dropped)))
    assert set(flat(flat(padded))) == set(range(STEPS))


def test_slices_are_one_of_each_episode(ranks):
    buffers = ranks(3, batch_size=8, sampler=EpisodeSliceSampler, slice_len=4)
    found = [torch.cat(list(buffer)) for buffer in buffers]

    episodes = [one["episode"].reshape(-1, 4) for one in found]
    assert all((one == one[:, :1]).all() for one in episodes)
    assert sorted(torch.cat(episodes)[:, 0].tolist()) == [number for number, size in enumerate(LENGTHS) if size >= 4]
    starts = {tuple(sorted(flat(rows_of(buffers[0])))) for _ in range(3)}
    assert len(starts) == 3


def test_padded_slices_include_short_episodes(ranks):
    buffers = ranks(2, batch_size=8, sampler=EpisodeSliceSampler, slice_len=4, strict_length=False, pad_output=True)
    found = torch.cat([batch for buffer in buffers for batch in buffer])

    assert sorted(found["episode"].reshape(-1, 4)[:, 0].tolist()) == list(range(len(LENGTHS)))
    assert sorted(found["collector", "mask"].reshape(-1, 4).sum(1).tolist()) == sorted(min(size, 4) for size in LENGTHS)


# --- resuming


@pytest.mark.first(4)
@pytest.mark.parametrize("prefetch", [None, 3])
@pytest.mark.parametrize("batches", [0, 1, 4, 6, 13])
def test_as_many_ranks_continue_with_the_batches_that_would_have_followed(ranks, batches, prefetch):
    ranks = partial(ranks, uneven="drop")
    buffers = ranks(2, prefetch=prefetch)
    for buffer in buffers:
        for _ in range(batches):
            buffer.sample()
    state = buffers[0].state_dict()
    expected = [rows_of(buffer.sample() for _ in range(20)) for buffer in buffers]

    restored = ranks(2, prefetch=prefetch)
    for buffer in restored:
        buffer.load_state_dict(state)
    assert [rows_of(buffer.sample() for _ in range(20)) for buffer in restored] == expected


@pytest.mark.first(4)
@pytest.mark.parametrize("prefetch", [None, 2])
@pytest.mark.parametrize(("before", "after"), [(4, 2), (2, 4), (1, 3), (3, 1), (4, 12)])
@pytest.mark.parametrize("sampler", [EpisodeSampler, EpisodeSliceSampler])
def test_other_numbers_of_ranks_draw_what_is_left(ranks, before, after, sampler, prefetch):
    slices = {"slice_len": 1, "batch_size": 1} if sampler is EpisodeSliceSampler else {}
    options = {"sampler": sampler, "seed": 0, "prefetch": prefetch, **slices}
    buffers = ranks(before, **options)
    drawn = [flat(rows_of(buffer.sample() for _ in range(2))) for buffer in buffers]
    states = [buffer.state_dict() for buffer in buffers]
    whole = sorted(flat(flat(epoch_of(ranks(1, **options)))))

    restored = ranks(after, **options)
    for buffer in restored:
        buffer.load_state_dict(states[-1])
    assert [state["sampler"] for state in states] == [states[0]["sampler"]] * before
    assert sorted(flat(drawn) + flat(flat(epoch_of(restored)))) == whole
    second = epoch_of(restored)
    assert len(set(flat(flat(second)))) == len(whole)


def test_a_rank_without_steps_in_a_restored_epoch_iterates_over_nothing(ranks):
    """So a loop over the epochs that are left has the same epoch in every rank."""
    buffers = ranks(2, batch_size=30)
    for buffer in buffers:
        buffer.sample()
    state = buffers[0].sampler.state_dict()
    restored = ranks(12, batch_size=30)
    for buffer in restored:
        buffer.sampler.load_state_dict(state)

    found = epoch_of(restored)
    assert sorted(map(len, found))[:2] == [0, 0]
    assert sum(map(len, flat(found))) == STEPS - 60
    assert {buffer.sampler.epoch for buffer in restored if buffer.sampler.epochs.drawn == 0} <= {1}
    assert set(flat(flat(epoch_of(restored)))) == set(range(STEPS))


def test_a_state_at_the_end_of_an_epoch_is_the_start_of_the_next(ranks):
    (buffer,) = ranks(1, seed=0)
    rows_of(buffer)
    state = buffer.state_dict()
    expected = rows_of(buffer)

    (restored,) = ranks(1)
    restored.load_state_dict(state)
    assert restored.sampler.epoch == 1
    assert rows_of(restored) == expected


def test_a_state_is_saved_as_json_beside_the_policy(ranks, tmp_path):
    (buffer, _) = ranks(2)
    buffer.sample()
    buffer.dumps(tmp_path)
    expected = rows_of(buffer)

    (restored, _) = ranks(2)
    restored.loads(tmp_path)
    assert rows_of(restored) == expected
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".npy"] == []


@pytest.mark.first(1)
@pytest.mark.parametrize("workers", [0, 2])
def test_the_workers_of_a_loader_share_the_epochs_of_a_rank(ranks, workers):
    expected = [epoch_of(ranks(2, seed=5))]
    loaded = [
        SampledBatches(buffer).loader(num_workers=workers, persistent_workers=bool(workers))
        for buffer in ranks(2, seed=5)
    ]
    assert [rows_of(loader) for loader in loaded] == expected[0]
    assert sorted(flat(flat([rows_of(loader) for loader in loaded]))) == list(range(STEPS))
    assert [rows_of(loader) for loader in loaded] != expected[0]


@pytest.mark.slow
def test_a_loader_with_workers_is_resumed_exactly(ranks):
    (buffer,) = ranks(1, seed=5)
    iterator = iter(SampledBatches(buffer).loader(num_workers=2))
    for _ in range(3):
        next(iterator)
    state = buffer.state_dict()
    expected = rows_of(iterator)

    (restored,) = ranks(1)
    restored.load_state_dict(state)
    assert rows_of(SampledBatches(restored).loader(num_workers=2)) == expected
    assert restored.sampler.epoch == 1


# --- against a plain model


@st.composite
def lives(draw):
    """The lengths of episodes, and a list of lives of a job: ranks, units in a batch, and batches until it is killed."""
    lengths = draw(st.lists(st.integers(1, 9), min_size=4, max_size=25))
    ranks = st.integers(1, 4)
    return lengths, draw(st.lists(st.tuples(ranks, st.integers(1, 8), st.integers(0, 9)), min_size=1, max_size=4))


def _job(lengths, world_size, state, *, pool, uneven="keep"):
    epochs = [Epochs(seed=7, pool=pool, rank=rank, world_size=world_size, uneven=uneven) for rank in range(world_size)]
    for one in epochs:
        one.bind(Items("model", np.array(lengths)))
        if state is not None:
            assert one.state_problems(state) == []
            one.load_state(state)
    return epochs


@given(lives(), st.integers(1, 40), st.integers(0, 3), st.booleans())
@settings(deadline=None, max_examples=200)
def test_no_unit_is_drawn_twice_or_lost_in_any_lives_of_a_job(life, pool, epoch, lazy):
    lengths, parts = life
    drawn: list[tuple[int, int]] = []
    state = None
    for world_size, batch, batches in [*parts, (2, 3, 1000)]:
        job = _job(lengths, world_size, state, pool=pool)
        begun = []
        for one in job:
            if lazy:
                one.bind(Items("model", np.full(len(lengths), -1), lengths.__getitem__))
            if state is None:
                one.set_epoch(epoch)
            if one.skip_epoch(batch):
                continue
            begun.append(one)
            for _ in range(batches):
                items, units = one.next(batch)
                assert one.epoch in {epoch, epoch + 1}
                assert len(items) == batch or one.ran_out
                drawn += zip(items.tolist(), units.tolist(), strict=True)
                if one.ran_out:
                    break
        if not begun:  # the lengths were unknown when the last unit was drawn
            break
        # Ranks that ended early drew fewer units: the state is that of one that drew the most.
        state = max((one.state_at(one.position) for one in begun), key=lambda found: (found["epoch"], found["drawn"]))
        if state["epoch"] != epoch:
            break

    assert sorted(drawn) == [(item, unit) for item, length in enumerate(lengths) for unit in range(length)]


@given(lives(), st.sampled_from(["drop", "pad"]))
@settings(deadline=None, max_examples=100)
def test_equal_ranks_have_equal_batches(life, uneven):
    lengths, ((world_size, batch, _), *_) = life
    job = _job(lengths, world_size, None, pool=6, uneven=uneven)
    totals = [sum(lengths[item] for item in job[0]._left()[0].items[rank::world_size]) for rank in range(world_size)]
    count = min(totals) // batch if uneven == "drop" else -(-max(totals) // batch)
    for one in job if count else ():
        sizes = []
        while not one.ran_out:
            sizes.append(len(one.next(batch)[0]))
        if world_size > 1:
            assert sizes == [batch] * count


def test_ranks_of_which_one_never_has_a_full_batch_are_refused():
    for one in _job([1, 1, 1], 3, None, pool=6, uneven="drop"):
        with pytest.raises(InvalidArgumentError, match="drops all units"):
            one.next(2)


# --- bounds


def test_the_memory_of_a_rank_is_that_of_its_pool():
    """A hundred million steps; the table of lengths and the permutation take 16 bytes for each episode."""
    lengths = np.full(100_000, 1000)
    epochs = Epochs(seed=0, pool=10_000, rank=1, world_size=4)
    epochs.bind(Items("large", lengths))
    tracemalloc.start()
    for _ in range(100):
        epochs.next(1000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak < 8_000_000


def test_a_sampler_is_pickled_without_the_dataset(ranks):
    (buffer,) = ranks(1, seed=0)
    buffer.sample()
    data = pickle.dumps(buffer.sampler)

    assert len(data) < 10_000
    assert rows_of(buffer)[0] == pickle.loads(data).sample(buffer.storage, 5)[0].tolist()


# --- which rank a process has


def test_the_rank_is_that_of_the_arguments_or_of_torchrun(monkeypatch):
    assert Share.of_process(None, None) == Share(0, 1)
    monkeypatch.setenv("RANK", "2")
    with pytest.raises(InvalidArgumentError, match="RANK is '2' and WORLD_SIZE is '', expected two integers"):
        Share.of_process(None, None)
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert Share.of_process(None, None) == Share(2, 4)
    assert Share.of_process(0, 1) == Share(0, 1)
    assert repr(EpisodeSampler(seed=1, uneven="drop")) == "EpisodeSampler(seed=1, uneven='drop', rank=2, world_size=4)"


# --- errors


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"rank": 2, "world_size": 2}, "rank is 2, expected at least 0 and below world_size 2"),
        ({"rank": 1}, "expected both, or neither"),
        ({"seed": -1}, "seed is -1, expected None or an integer >= 0"),
        ({"uneven": "cut"}, "uneven is 'cut', expected 'keep', 'drop' or 'pad'"),
        ({"pool_steps": 0}, "pool_steps is 0, expected an integer >= 1"),
    ],
)
def test_wrong_arguments_are_named(options, says):
    with pytest.raises(InvalidArgumentError, match=says):
        EpisodeSampler(**options)


def test_more_ranks_than_episodes_are_an_error(ranks):
    with pytest.raises(InvalidArgumentError, match=r"12 episodes, .* cannot be divided among 13 ranks"):
        ranks(13)


def test_a_batch_that_no_rank_has_is_an_error(ranks):
    with pytest.raises(InvalidArgumentError, match="has no batch of 90 in an epoch: uneven='drop' drops all units"):
        ranks(2, uneven="drop", batch_size=90)[0].sample()


def test_a_storage_that_can_be_written_is_refused():
    with pytest.raises(
        InvalidArgumentError, match="samples the episodes of a stored dataset, and the storage is a LazyTensorStorage"
    ):
        TensorDictReplayBuffer(storage=LazyTensorStorage(10), sampler=EpisodeSampler(), batch_size=2)


@pytest.mark.parametrize("attached", [True, False])
def test_the_state_of_another_dataset_is_refused(ranks, attached):
    state = load("demo/pendulum", batch_size=2, sampler=EpisodeSampler(seed=0, pool_steps=20))
    state.sample()
    state = state.sampler.state_dict()
    (buffer,) = ranks(1)
    if attached:
        with pytest.raises(InvalidArgumentError, match="the state is of other episodes"):
            buffer.sampler.load_state_dict(state)
        return
    sampler = EpisodeSampler(pool_steps=20)
    sampler.load_state_dict(state)
    with pytest.raises(InvalidArgumentError, match="the restored position is in the episodes"):
        sampler.sample(buffer.storage, 2)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"seed": 1}, "seed is 1, expected 0, the seed of this sampler"),
        ({"pool": 7}, "pool is 7, expected 20"),
        ({"shuffle": False}, "shuffle is False, expected True"),
        ({"drawn": -1}, "drawn is -1, expected an integer >= 0"),
        ({"world_size": 0}, "world_size is 0, expected an integer >= 1"),
        ({"history": [[0, 1]]}, "history is .*expected a list of pairs"),
    ],
)
def test_a_state_of_another_seed_or_order_is_refused_and_changes_nothing(ranks, changed, says):
    (buffer,) = ranks(1, seed=0)
    before = rows_of(buffer.sample() for _ in range(2))
    state = buffer.sampler.state_dict()
    with pytest.raises(InvalidArgumentError, match=says):
        buffer.sampler.load_state_dict({"epochs": {**state["epochs"], **changed}})
    assert buffer.sampler.state_dict() == state
    (again,) = ranks(1, seed=0)
    assert rows_of(again.sample() for _ in range(2)) == before

"""Batches have a fixed share of a dataset, and the rest is new experience."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from datasets_rl import (
    LazyTensorStorage,
    LinearScheduler,
    OfflineToOnlineReplayBuffer,
    ReplayBuffer,
    TensorDictReplayBuffer,
    load,
    prefill_replay_buffer,
)
from datasets_rl.errors import InvalidArgumentError


def steps(count, source, **fields):
    data = {"t": torch.arange(count), "source": torch.full((count,), source), **fields}
    return TensorDict({**data, "next": {"reward": torch.randn(count, 1)}}, [count])


def dataset(count=100, kind=TensorDictReplayBuffer, **fields):
    rb = kind(storage=LazyTensorStorage(count))
    rb.extend(steps(count, 0, **fields))
    return rb


def mixed(offline=None, **kwargs):
    arguments = {"online_capacity": 50, "batch_size": 20, **kwargs}
    return OfflineToOnlineReplayBuffer(dataset() if offline is None else offline, **arguments)


def shares(rb, *sizes):
    """Return the number of steps of the dataset in batches of these sizes."""
    return [int((rb.sample(size)["source"] == 0).sum()) for size in sizes]


@pytest.mark.parametrize("kind", [ReplayBuffer, TensorDictReplayBuffer])
def test_every_batch_has_exactly_its_share_of_the_dataset(kind):
    rb = mixed(dataset(kind=kind), offline_fraction=0.3)
    rb.extend(steps(30, 1))
    batch = rb.sample()

    assert shares(rb, 20, 20, 10, 5, 1) == [6, 6, 3, 2, 0]
    assert torch.equal(batch["source"], batch["index", "buffer_ids"])
    assert torch.equal(batch["t"], batch["index", "index"])


def test_steps_of_both_alternate_on_request():
    rb = mixed(interleave=True)
    assert shares(rb, 8) == [8]
    rb.extend(steps(30, 1))

    assert rb.sample(6)["source"].tolist() == [0, 1, 0, 1, 0, 1]


def test_without_experience_all_steps_are_those_of_the_dataset():
    rb = mixed()

    assert shares(rb, 20) == [20]
    rb.add(steps(1, 1)[0])
    assert shares(rb, 20) == [10]


def test_experience_does_not_change_the_dataset():
    offline = dataset()
    rb = mixed(offline)
    rb.extend(steps(60, 1))

    assert rb.offline_buffer is offline
    assert (len(offline), len(rb.online_buffer), len(rb)) == (100, 50, 150)
    assert not offline["source"].any()


def test_a_given_storage_holds_the_experience():
    storage = LazyTensorStorage(7)

    assert mixed(online_storage=storage, online_capacity=None).online_buffer.storage is storage


def test_the_share_decreases_linearly_to_0():
    rb = mixed(offline_fraction=0.8)
    rb.extend(steps(50, 1))
    found = []
    for step in (0, 50, 100, 200):
        rb.anneal(step, 100)
        found.append(shares(rb, 20)[0])

    assert found == [16, 8, 0, 0]
    assert rb.offline_fraction == 0


def test_a_scheduler_changes_the_share():
    rb = mixed()
    scheduler = LinearScheduler(rb, "offline_fraction", 0.0, 2)
    scheduler.step()

    assert rb.offline_fraction == 0.25
    rb.offline_fraction = 1.0
    with pytest.raises(InvalidArgumentError, match=r"offline_fraction is 1\.5"):
        rb.offline_fraction = 1.5


def test_a_loaded_state_has_the_share_and_the_experience(tmp_path):
    rb = mixed()
    rb.extend(steps(30, 1))
    rb.anneal(1, 4)
    rb.dumps(tmp_path)
    other = mixed()
    other.loads(tmp_path)

    assert other.offline_fraction == 0.375
    assert len(other.online_buffer) == 30


def test_keys_that_only_the_dataset_has_are_an_error_or_dropped():
    rb = mixed(dataset(episode=torch.zeros(100)))
    rb.extend(steps(10, 1))
    with pytest.raises(InvalidArgumentError, match=r"only some have episode.*(?s:.)*missing='drop'"):
        rb.sample()
    rb = mixed(
        dataset(episode=torch.zeros(100)), missing="drop", transform=lambda batch: batch.set("two", batch["t"] * 2)
    )
    rb.extend(steps(10, 1))

    assert sorted(rb.sample().keys()) == ["index", "next", "source", "t", "two"]


def test_an_id_opens_the_dataset(tmp_path):
    rb = OfflineToOnlineReplayBuffer("demo:pendulum", online_capacity=10, root=tmp_path)
    target = prefill_replay_buffer(TensorDictReplayBuffer(storage=LazyTensorStorage(10_000)), rb.offline_buffer, 70)

    assert len(rb.offline_buffer) == len(load("demo/pendulum", root=tmp_path))
    assert len(target) == 70


def test_invalid_arguments_are_reported_together():
    with pytest.raises(
        InvalidArgumentError, match=r"both given.*offline_fraction is 1\.0.*split_trajs are only forwarded"
    ):
        mixed(online_storage=LazyTensorStorage(3), offline_fraction=1.0, split_trajs=True)
    with pytest.raises(InvalidArgumentError, match="neither given"):
        mixed(online_capacity=None)


class TestPrefill:
    def test_a_whole_dataset_is_copied_in_its_order(self):
        target = TensorDictReplayBuffer(storage=LazyTensorStorage(200))

        assert prefill_replay_buffer(target, dataset(), chunk_size=30) is target
        assert target["t"].tolist() == list(range(100))

    def test_fewer_steps_are_chosen_at_random_each_once(self):
        def copied(seed):
            torch.manual_seed(seed)
            target = TensorDictReplayBuffer(storage=LazyTensorStorage(200))
            return prefill_replay_buffer(target, dataset(), n_samples=33, chunk_size=10)["t"].tolist()

        assert len(set(copied(0))) == 33
        assert copied(0) == sorted(copied(0))
        assert copied(0) != copied(1)

    def test_more_steps_than_there_are_give_all(self):
        target = TensorDictReplayBuffer(storage=LazyTensorStorage(200))

        assert len(prefill_replay_buffer(target, dataset(), n_samples=500)) == 100

    def test_invalid_numbers_are_refused(self):
        with pytest.raises(InvalidArgumentError, match=r"n_samples is 0.*chunk_size is -1"):
            prefill_replay_buffer(dataset(), dataset(), 0, -1)

"""A replay buffer in a process of Ray: the same steps as in this process, several clients, and a process that dies."""

import os
import pickle
import signal
import time
from functools import partial

import pytest
import torch
from tensordict import TensorDict

from datasets_rl import (
    LazyTensorStorage,
    ListStorage,
    PrioritizedSampler,
    RayReplayBuffer,
    ReplayBuffer,
    SamplesPerInsert,
    TensorDictReplayBuffer,
)
from datasets_rl.errors import InvalidArgumentError, TimedOutError
from datasets_rl.transforms import RewardScaling

ray = pytest.importorskip("ray", reason="pip install 'datasets-rl[ray]'")

pytestmark = [
    pytest.mark.usefixtures("ray_node"),
    pytest.mark.filterwarnings("ignore::FutureWarning:ray", "ignore::ResourceWarning"),
]


@pytest.fixture
def remote():
    """A function that creates a remote buffer with 1,000 slots, which ends with the test."""
    made = []

    def make(**arguments):
        made.append(RayReplayBuffer(**{"storage": partial(LazyTensorStorage, 1_000), "batch_size": 8, **arguments}))
        return made[-1]

    yield make
    for buffer in made:
        buffer.shutdown()


def steps(count, first=0):
    """Return steps whose fields are functions of their number."""
    number = torch.arange(first, first + count)
    after = {"reward": number[:, None].double(), "done": number[:, None] % 5 == 4}
    return TensorDict({"number": number, "observation": {"x": number[:, None] * torch.ones(3)}, "next": after}, [count])


@pytest.mark.slow
def test_a_remote_buffer_has_the_bytes_of_a_local_one(remote):
    local = TensorDictReplayBuffer(storage=LazyTensorStorage(1_000), batch_size=8)
    there = remote()
    for first in (0, 700):
        assert torch.equal(there.extend(steps(700, first)), local.extend(steps(700, first)))
    assert there.add(steps(1, 5)[0]) == local.add(steps(1, 5)[0])

    assert len(there) == len(local) == 1_000
    assert (there[:] == local[:]).all()
    assert there[:].sorted_keys == local[:].sorted_keys
    assert there.write_count == local.write_count
    batch, info = there.sample(16, return_info=True)
    assert torch.equal(info["index"], batch["index"])
    assert (batch.exclude("index") == local[batch["index"]]).all()
    there[3] = steps(1, 77)[0]
    assert there[3]["number"] == 77
    there.empty()
    assert len(there) == 0


@pytest.mark.slow
def test_a_remote_buffer_of_compressed_images_has_the_bytes_of_a_local_one(remote):
    compressed = partial(LazyTensorStorage, 1_000, compress=("image", ("next", "image")))
    images = torch.arange(701, dtype=torch.uint8)[:, None, None].expand(701, 64, 64)
    data = steps(700).set("image", images[:-1]).set(("next", "image"), images[1:])
    local, there = TensorDictReplayBuffer(storage=compressed(), batch_size=8), remote(storage=compressed)
    for buffer in (local, there, local, there):
        buffer.extend(data)

    assert (there[:] == local[:]).all()
    batch = there.sample(16)
    assert (batch.exclude("index") == local[batch["index"]].exclude("index")).all()


@pytest.mark.slow
def test_batches_requested_ahead_are_of_the_default_size_and_follow_later_steps(remote):
    for options in ({"prefetch": 3, "batches_per_call": 4}, {"prefetch": 0}, {"prefetch": None}):
        there = remote(**options)
        there.extend(steps(10))
        batches = [there.sample() for _ in range(10)]
        assert {len(batch) for batch in batches} == {8}
        assert len(there.sample(3)) == 3
        there.extend(steps(900, first=1_000))
        assert any((there.sample()["number"] >= 1_000).any() for _ in range(40))
        assert len(next(iter(there))) == 8


@pytest.mark.slow
def test_several_processes_write_and_sample(remote):
    there = remote()

    @ray.remote(num_cpus=0)
    def work(client, first):
        for start in range(first, first + 100, 20):
            client.extend(steps(20, start))
        return client.sample()["number"].tolist()

    seen = ray.get([work.remote(there.client(), first) for first in (0, 100, 200)])
    assert there[:]["number"].sort().values.tolist() == list(range(300))
    assert all(number in range(300) for numbers in seen for number in numbers)
    assert len(pickle.loads(pickle.dumps(there.client()))) == 300


@pytest.mark.slow
def test_priorities_transforms_and_other_buffers_work_remotely(remote):
    there = remote(
        sampler=partial(PrioritizedSampler, 1_000, alpha=1.0, beta=1.0),
        transform_factory=partial(RewardScaling, 0.0, 2.0, in_keys=[("next", "reward")]),
        prefetch=0,
    )
    index = there.extend(steps(10))
    there.update_priority(index, torch.tensor([1.0] + 9 * [1e-9]))
    assert set(there.sample()["number"].tolist()) == {0}
    batch = there.sample()
    batch["td_error"] = torch.full((8,), 1e-9)
    there.update_tensordict_priority(batch)
    assert there.sample()["next", "reward"].max() <= 18

    listed = remote(replay_buffer_cls=ReplayBuffer, storage=partial(ListStorage, 10), batch_size=2)
    listed.extend(list(range(5)))
    assert all(number in range(5) for number in listed.sample().tolist())


@pytest.mark.slow
def test_the_limiter_makes_the_faster_side_wait(remote):
    there = remote(limiter=SamplesPerInsert(1.0, min_size=10, tolerance=16), prefetch=0)
    with pytest.raises(TimedOutError, match="sampling waited"):
        there.sample(timeout=0.01)
    there.extend(steps(10))
    there.sample(timeout=1)
    there.sample(timeout=1)
    with pytest.raises(TimedOutError):
        there.sample(timeout=0.01)
    there.extend(steps(50), timeout=1)
    with pytest.raises(TimedOutError, match="inserting waited"):
        there.extend(steps(1), timeout=0.01)
    assert (there.stats()["inserted"], there.stats()["sampled"]) == (60, 16)


@pytest.mark.slow
def test_errors_of_the_buffer_are_raised_here(remote):
    there = remote()
    with pytest.raises(InvalidArgumentError, match="empty"):
        there.sample()
    with pytest.raises(InvalidArgumentError, match="expected both or neither"):
        remote(checkpoint="somewhere")
    with pytest.raises(TypeError, match="no_such"):
        remote(no_such=1)


@pytest.mark.slow
def test_a_buffer_that_dies_continues_with_its_last_checkpoint(remote, tmp_path):
    options = {"checkpoint": tmp_path / "checkpoint", "checkpoint_every": 100}
    there = remote(**options)
    for first in range(0, 250, 50):
        there.extend(steps(50, first))
    assert len(there.sample()) == 8

    os.kill(there.stats()["pid"], signal.SIGKILL)
    time.sleep(0.1)
    assert len(there.sample()) == 8
    assert there[:]["number"].tolist() == list(range(200))
    assert (there.stats()["restarted"], there.stats()["restored"]) == (True, 200)
    there.extend(steps(50, 200))
    assert len(there) == 250

    again = remote(**options)
    assert len(again) == 200

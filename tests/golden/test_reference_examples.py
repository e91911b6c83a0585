"""Every example of TorchRL's pages on replay buffers, with the imports changed to this library.

Missing imports are added and mistakes are corrected (`torch.unit8`). Gymnasium and a few lines of code replace
TorchRL's environments and collectors, with the same output.
"""

from __future__ import annotations

import tempfile

import gymnasium
import pytest
import torch
from tensordict import TensorDict
from torch import multiprocessing as mp
from torch.utils._pytree import tree_map

from datasets_rl import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    PrioritizedSampler,
    RandomSampler,
    ReplayBuffer,
    SliceSampler,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
    TensorStorage,
)


def test_a_seed_gives_the_printed_numbers():
    torch.manual_seed(0)
    rb = ReplayBuffer(
        storage=ListStorage(max_size=1000),
        batch_size=5,
    )
    data = range(10)
    indices = rb.extend(data)
    assert indices.tolist() == list(range(10))

    sample = rb.sample()
    assert sample.tolist() == [4, 9, 3, 0, 3]
    sample = rb.sample(batch_size=3)
    assert sample.tolist() == [9, 7, 3]
    printed = []
    for i, batch in enumerate(rb):
        printed.append(batch.tolist())
        if i == 3:
            break
    assert printed == [[7, 3, 1, 6, 6], [9, 8, 6, 6, 8], [4, 3, 6, 9, 1], [4, 4, 1, 9, 9]]


def test_data_of_any_type():
    torch.manual_seed(0)
    buffer = ReplayBuffer(storage=ListStorage(100), collate_fn=lambda x: x)
    buffer.extend(["a", 1, None])

    assert buffer.sample(3) == [None, "a", None]


def test_a_pytree_with_a_callable_transform():
    def transform(x):
        return tree_map(lambda y: y * 0, x)

    rb = ReplayBuffer(storage=LazyMemmapStorage(100), transform=transform)
    data = {
        "a": torch.randn(3),
        "b": {"c": (torch.zeros(2), [torch.ones(1)])},
        30: -torch.ones(()),
    }
    rb.add(data)
    s = rb.sample(10)

    def assert0(x):
        assert (x == 0).all()

    tree_map(assert0, s)
    assert s["a"].shape == (10, 3)
    assert s["b"]["c"][1][0].shape == (10, 1)
    assert s[30].shape == (10,)


def test_saving_and_loading_a_buffer():
    S = 1_000_000  # noqa: N806 - the name in the example
    sampler = PrioritizedSampler(S, 1.1, 1.0)
    storage = LazyMemmapStorage(S)
    rb = TensorDictReplayBuffer(storage=storage, sampler=sampler)
    for _ in range(100):
        td = TensorDict(
            {
                "obs": torch.randn(100, 3, 4),
                "next": {"obs": torch.randn(100, 3, 4)},
                "td_error": torch.rand(100),
            },
            [100],
        )
        rb.extend(td)
        sample = rb.sample(32)
        rb.update_tensordict_priority(sample)
    with tempfile.TemporaryDirectory() as tmpdir:
        rb.dumps(tmpdir)
        sampler = PrioritizedSampler(S, 1.1, 1.0)
        storage = LazyMemmapStorage(S)
        rb_load = TensorDictReplayBuffer(storage=storage, sampler=sampler)
        rb_load.loads(tmpdir)
        assert len(rb) == len(rb_load) == 10_000
    assert (rb_load[:] == rb[:]).all()


def test_adding_along_the_time_axis_is_extending():
    data = torch.arange(12.0).reshape(3, 4)
    added, extended = (ReplayBuffer(storage=LazyTensorStorage(12, ndim=2), dim_extend=1) for _ in range(2))
    for d in data.unbind(1):
        added.add(d)
    extended.extend(data)

    assert torch.equal(added[:], extended[:])
    assert torch.equal(added[:], data.T)


def test_a_list_storage_holds_a_string_a_number_and_none():
    rb = ReplayBuffer(storage=ListStorage(10))
    rb.add("a string!")
    rb.extend([30, None])

    assert [rb[0], rb[1], rb[2]] == ["a string!", 30, None]


def test_storages_accept_tensordicts_and_tensorclasses():
    container = torch.empty(10, 3, 64, 64, dtype=torch.uint8)
    rb = ReplayBuffer(storage=TensorStorage(container))
    img = torch.randint(255, (3, 64, 64), dtype=torch.uint8)
    rb.add(img)

    assert torch.equal(container[0], img)
    assert torch.equal(rb[0], img)


@pytest.fixture
def rb_td():
    rb_td = ReplayBuffer(storage=LazyMemmapStorage(10), batch_size=1)
    rb_td.add(
        TensorDict(
            {"img": torch.randint(255, (3, 64, 64), dtype=torch.uint8), "labels": torch.randint(100, ())},
            batch_size=[],
        )
    )
    return rb_td


def test_a_pytree_is_extended_along_the_leading_axis_of_its_leaves():
    rb_pytree = ReplayBuffer(storage=LazyMemmapStorage(10))
    rb_pytree.extend({"a": {"b": torch.randn(3), "c": [torch.zeros(3, 2), (torch.ones(3, 10),)]}})

    assert len(rb_pytree) == 3


def test_getting_data_out_of_a_buffer(rb_td):
    first_elt = rb_td[0]
    storage = rb_td[:]
    sample = rb_td.sample(128)

    assert first_elt.batch_size == ()
    assert storage.batch_size == (1,)
    assert sample.batch_size == (128,)
    assert (sample["img"] == first_elt["img"]).all()
    for number, data in enumerate(rb_td):
        assert data.batch_size == (1,)
        if number == 2:
            break


def worker(rb):
    td = TensorDict({"a": torch.ones(10)}, [10])
    rb.extend(td)


@pytest.mark.usefixtures("warm_python")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_process_extends_a_shared_buffer(method):
    rb = TensorDictReplayBuffer(storage=LazyMemmapStorage(21))
    td = TensorDict({"a": torch.zeros(10)}, [10])
    rb.extend(td)
    proc = mp.get_context(method).Process(target=worker, args=(rb,))
    proc.start()
    proc.join()

    assert proc.exitcode == 0
    assert len(rb) == 20
    assert (rb["_data", "a"][:10] == 0).all()
    assert (rb["_data", "a"][10:20] == 1).all()


class Collector:
    """Random play in `environments` parallel CartPole environments, `frames` steps at a time, [B, T] or [T].

    Like a SyncDataCollector with a StepCounter.
    """

    def __init__(self, environments, frames):
        self.environments = [gymnasium.make("CartPole-v1") for _ in range(environments)]
        self.frames = frames

    def __iter__(self):
        observations = [environment.reset(seed=seed)[0] for seed, environment in enumerate(self.environments)]
        steps, ids, next_id = [0] * len(observations), list(range(len(observations))), len(observations)
        chance = torch.Generator().manual_seed(0)
        while True:
            frames = []
            for _ in range(self.frames):
                moment = []
                for lane, environment in enumerate(self.environments):
                    action = int(torch.randint(2, (), generator=chance))
                    following, reward, terminated, truncated, _ = environment.step(action)
                    moment.append(
                        self.step(
                            observations[lane], action, following, reward, terminated, truncated, steps[lane], ids[lane]
                        )
                    )
                    observations[lane], steps[lane] = following, steps[lane] + 1
                    if terminated or truncated:
                        observations[lane], steps[lane], ids[lane] = environment.reset()[0], 0, next_id
                        next_id += 1
                frames.append(torch.stack(moment))
            batch = torch.stack(frames, 1)
            yield batch if len(self.environments) > 1 else batch.squeeze(0)

    def step(self, observation, action, following, reward, terminated, truncated, step, traj_id):
        return TensorDict(
            {
                "observation": torch.as_tensor(observation),
                "action": torch.tensor(action),
                "collector": {"traj_ids": torch.tensor(traj_id)},
                "step_count": torch.tensor([step]),
                "next": {
                    "observation": torch.as_tensor(following),
                    "reward": torch.tensor([reward]),
                    "terminated": torch.tensor([terminated]),
                    "truncated": torch.tensor([truncated]),
                    "done": torch.tensor([terminated or truncated]),
                    "step_count": torch.tensor([step + 1]),
                },
            }
        )


def runs_of(sample):
    """Check that every slice of a batch is consecutive steps of one trajectory, and return the slices."""
    pieces = [sample[sample["slice_id"] == number] for number in sample["slice_id"].unique()]
    for piece in pieces:
        assert len(piece["collector", "traj_ids"].unique()) == 1
        assert (piece["step_count"].diff(dim=0) == 1).all()
        assert len(piece) <= 8
    return pieces


def test_slices_of_one_environment():
    collector = Collector(1, 10)
    rb = TensorDictReplayBuffer(
        storage=LazyTensorStorage(100),
        sampler=SliceSampler(num_slices=8, traj_key=("collector", "traj_ids"), truncated_key=None, strict_length=False),
        batch_size=64,
    )
    for i, data in enumerate(collector):
        rb.extend(data)
        if i == 10:
            break
    assert len(rb) == 100, len(rb)
    assert rb[:]["next", "step_count"].shape == (100, 1)
    assert len(runs_of(rb.sample())) == 8


def test_slices_of_two_parallel_environments():
    collector = Collector(2, 1)
    rb = TensorDictReplayBuffer(
        storage=LazyTensorStorage(100, ndim=2),
        sampler=SliceSampler(num_slices=8, traj_key=("collector", "traj_ids"), truncated_key=None, strict_length=False),
        batch_size=64,
    )
    for i, data in enumerate(collector):
        rb.extend(data)
        if i == 100:
            break
    assert len(rb) == 100, len(rb)
    # As in the documentation: rows are time steps, columns are environments, and the ring has wrapped once.
    counts = rb[:]["next", "step_count"].squeeze()
    assert counts.shape == (50, 2)
    rises = counts.diff(dim=0)
    assert ((rises == 1) | (counts[1:] == 1) | (torch.arange(1, 50) == 1).unsqueeze(1)).all()
    assert len(runs_of(rb.sample())) == 8


def test_a_prioritized_buffer_of_tensordicts_with_threads(tmp_path):
    storage = LazyMemmapStorage(1000, scratch_dir=tmp_path)
    buffer = TensorDictPrioritizedReplayBuffer(
        alpha=0.7,
        beta=0.5,
        collate_fn=lambda x: x,
        pin_memory=torch.cuda.is_available(),
        prefetch=10,
        storage=storage,
        batch_size=16,
    )
    buffer.extend(TensorDict({"obs": torch.randn(100, 3)}, [100]))

    assert buffer.sample().batch_size == (16,)


def test_another_sampler_in_the_example_of_saving():
    rb = TensorDictReplayBuffer(storage=LazyMemmapStorage(1000), sampler=RandomSampler())
    rb.extend(TensorDict({"obs": torch.randn(100, 3), "td_error": torch.rand(100)}, [100]))
    rb.update_tensordict_priority(rb.sample(32))

    assert len(rb) == 100

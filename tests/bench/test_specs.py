"""What drawing from a spec, checking and projecting cost: against TorchRL's, in a single run."""

import pytest
import torch

from datasets_rl import specs as ours

GOALS = {"rand": 1, "is_in": 1.5, "project": 1}


def five_leaves(lib):
    low, high = torch.full((6,), -1.0), torch.arange(6.0)
    return lib.Composite(
        observation=lib.Bounded(-1, 1, (17,)),
        action=lib.Bounded(low, high),
        option=lib.Categorical(7, (1,)),
        choice=lib.OneHot(5),
        state=lib.Unbounded((3,)),
    )


@pytest.mark.parametrize("name", list(GOALS))
def test_a_composite_of_five_is_no_slower_than_torchrls(name, torchrl_data, compare, expect):
    specs = {"ours": five_leaves(ours), "torchrl": five_leaves(torchrl_data)}
    value = specs["ours"].rand((256,))
    wild = value.clone()
    wild["observation"][3, 4] = 2
    wild["action"][0, 0] = -9
    calls = {
        "rand": lambda spec: lambda: spec.rand((256,)),
        "is_in": lambda spec: lambda: spec.is_in(value),
        "project": lambda spec: lambda: spec.project(wild.clone()),
    }

    took = compare({who: calls[name](spec) for who, spec in specs.items()}, repeat=50)

    ratio = took["torchrl"] / took["ours"]
    expect(f"{name} of 5 leaves, 256 rows, times TorchRL's speed", ratio, at_least=GOALS[name])

"""What collated items in the form of other projects cost, against batches of the same windows as TensorDicts."""

import pytest
import torch
from torch.utils.data import default_collate

from datasets_rl import TensorDictReplayBuffer
from datasets_rl.transforms import WindowTransform

SIZE, WINDOW = 64, 16
LIMITS = {"lerobot": 5, "robomimic": 1.5}
"""Largest ratio to a batch of the same windows. The items of LeRobot have counters, flags and texts beside the windows."""


def items_of(dataset, project):
    if project == "lerobot":
        seconds = {"observation.state": [-0.1, 0], "action": [step / 10 for step in range(WINDOW)]}
        return dataset.as_lerobot(seconds, fps=10)
    return dataset.as_robomimic(["observation"], seq_length=WINDOW, load_next_obs=False)


def windows_of(project):
    if project == "lerobot":
        return WindowTransform.lerobot(WINDOW + 1, 2)
    return WindowTransform.robomimic(WINDOW, keys=["observation", "action", ("next", "reward"), ("next", "done")])


@pytest.mark.parametrize("project", list(LIMITS))
def test_collated_items_cost_a_few_batches_of_windows(ours, project, compare, expect):
    items = items_of(ours, project)
    positions = torch.randint(len(items), (SIZE,), generator=torch.Generator().manual_seed(0)).tolist()
    buffer = TensorDictReplayBuffer(storage=ours.storage, transform=windows_of(project), batch_size=SIZE)

    took = compare(
        {"windows": buffer.sample, "items": lambda: default_collate(items.__getitems__(positions))}, repeat=10
    )

    name = f"a batch of {SIZE} items of {project}, over a batch of windows"
    expect(name, took["items"] / took["windows"], at_most=LIMITS[project])

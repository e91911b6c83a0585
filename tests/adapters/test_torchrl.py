"""The steps of TorchRL's `decision_transformer` program: a copy of whole episodes with their returns to go, in a buffer."""

from __future__ import annotations

import pytest
import torch

from datasets_rl import TensorDictReplayBuffer, TensorStorage, load
from datasets_rl.transforms import Reward2GoTransform


def classes_of(project):
    if project == "ours":
        return TensorDictReplayBuffer, TensorStorage, Reward2GoTransform
    data = pytest.importorskip("torchrl.data", reason="pip install torchrl", exc_type=ImportError)
    envs = pytest.importorskip("torchrl.envs", reason="pip install torchrl", exc_type=ImportError)
    return data.TensorDictReplayBuffer, data.TensorStorage, envs.Reward2GoTransform


@pytest.mark.parametrize("project", ["ours", "torchrl"])
def test_a_copy_of_whole_episodes_has_the_returns_to_go_of_each_step(project):
    buffer, storage, transform = classes_of(project)
    r2g = transform(
        gamma=1.0,
        in_keys=[("next", "reward"), ("next", "reward")],
        out_keys=[("next", "return_to_go"), "return_to_go"],
    )
    dataset = load("demo/pendulum", 8, split_trajs=True)

    whole = dataset[:]
    with whole.unlock_():
        whole = r2g.inv(whole)
    copy = buffer(storage=storage(whole), batch_size=4)
    batch = copy.sample()

    expected = whole["next", "reward"].flip(1).cumsum(1).flip(1)
    assert len(copy) == len(dataset.episodes)
    for key in ("return_to_go", ("next", "return_to_go")):
        torch.testing.assert_close(whole[key], expected, rtol=1e-4, atol=1e-3)
        assert batch[key].shape == (4, *expected.shape[1:])

"""Comparison with TorchRL's transforms where the behavior is the same; requires TorchRL."""

from __future__ import annotations

import warnings

import pytest
import torch
from tensordict import TensorDict

from datasets_rl import transforms

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    torchrl = pytest.importorskip("torchrl.envs.transforms", reason="pip install --no-deps torchrl hoptorch")
    from torchrl.collectors.utils import split_trajectories
    from torchrl.data.postprocs import MultiStep
    from torchrl.envs.utils import step_mdp
KEY = "observation"


def rollouts():
    torch.manual_seed(0)
    done = torch.rand(3, 12, 1) < 0.2
    done[:, -1] = True
    return TensorDict(
        {
            KEY: torch.randn(3, 12, 4),
            "action": torch.randn(3, 12, 2),
            "pixels": torch.randint(255, (3, 12, 8, 6, 3), dtype=torch.uint8),
            "reward": torch.randn(3, 12, 1),
            "next": {
                "reward": torch.randn(3, 12, 1),
                "done": done,
                "terminated": done.clone(),
                KEY: torch.randn(3, 12, 4),
            },
        },
        [3, 12],
        names=[None, "time"],
    )


SAME = {
    "rename": lambda m: m.RenameTransform([KEY], [("deep", "name")]),
    "rename, copy": lambda m: m.RenameTransform([KEY], ["name"], create_copy=True),
    "select": lambda m: m.SelectTransform(KEY, "next"),
    "exclude": lambda m: m.ExcludeTransform(KEY, ("next", "done")),
    "cat": lambda m: m.CatTensors([KEY, "action"]),
    "cat, unsorted": lambda m: m.CatTensors([KEY, "action"], sort=False, del_keys=False),
    "unsqueeze": lambda m: m.UnsqueezeTransform(-2, in_keys=[KEY]),
    "squeeze": lambda m: m.SqueezeTransform(-1, in_keys=["reward"]),
    "permute": lambda m: m.PermuteTransform((-1, -3, -2), in_keys=["pixels"]),
    "flatten": lambda m: m.FlattenObservation(-3, -1),
    "cast": lambda m: m.DTypeCastTransform(torch.float32, torch.float64),
    "cast, keys": lambda m: m.DTypeCastTransform(torch.float32, torch.float64, in_keys=[KEY]),
    "to tensor": lambda m: m.ToTensorImage(),
    "to tensor, not from int": lambda m: m.ToTensorImage(from_int=False),
    "norm": lambda m: m.ObservationNorm(0.5, 2.0, in_keys=[KEY]),
    "norm, standard": lambda m: m.ObservationNorm(0.5, 2.0, in_keys=[KEY], standard_normal=True),
    "scaling": lambda m: m.RewardScaling(0.5, 2.0, in_keys=[("next", "reward")]),
    "scaling, standard": lambda m: m.RewardScaling(0.5, 2.0, in_keys=["reward"], standard_normal=True),
    "clipping": lambda m: m.RewardClipping(-0.5, 0.5, in_keys=["reward"]),
    "binarize": lambda m: m.BinarizeReward(in_keys=["reward"]),
    "sign": lambda m: m.SignTransform(in_keys=["reward"]),
    "frames": lambda m: m.CatFrames(3, -1, in_keys=[KEY]),
    "frames, constant": lambda m: m.CatFrames(3, -1, in_keys=[KEY], padding="constant", padding_value=5, mask_key="m"),
    "frames, future": lambda m: m.CatFrames(3, -1, in_keys=[KEY], future=True),
    "chunks": lambda m: m.ActionChunkTransform(4),
    "reward sum": lambda m: m.RewardSum(in_keys=["reward"], out_keys=["sum"]),
    "compose": lambda m: m.Compose(m.ToTensorImage(), m.PermuteTransform((-2, -1), in_keys=["pixels"])),
}
DIFFERENT = {"reward sum": "TorchRL sums on over the ends of episodes"}


def alike(one, other):
    ones, others = (dict(data.items(True, True)) for data in (one, other))
    assert ones.keys() == others.keys()
    for key, value in ones.items():
        torch.testing.assert_close(value, others[key], msg=lambda said, key=key: f"{key}: {said}")


@pytest.mark.parametrize("name", [name for name in SAME if name not in DIFFERENT])
def test_transformed_batches_are_the_same(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = SAME[name](torchrl)(rollouts())

    alike(SAME[name](transforms)(rollouts()), theirs)


def test_written_data_is_transformed_to_the_same():
    def make(module):
        return module.Reward2GoTransform(0.9, out_keys=["to_go"])

    alike(make(transforms).inv(rollouts()), make(torchrl).inv(rollouts()))


def test_targets_are_the_same_except_for_the_flags():
    """TorchRL keeps the flags of the first step; all other entries are those of the last step."""
    mine, theirs = transforms.MultiStep(0.9, 3)(rollouts()), MultiStep(0.9, 3)(rollouts())
    flags = ["nonterminal", ("next", "done"), ("next", "terminated")]

    alike(mine.exclude(*flags), theirs.exclude(*flags))


def test_trajectories_are_split_the_same():
    data = rollouts().reshape(-1)
    mine, theirs = transforms.split_trajectories(data.copy()), split_trajectories(data.copy())

    alike(mine, theirs)


@pytest.mark.parametrize("options", [{}, {"keep_other": False}, {"exclude_reward": False}, {"exclude_action": False}])
def test_the_next_step_is_the_same(options):
    alike(transforms.step_mdp(rollouts(), **options), step_mdp(rollouts(), **options))

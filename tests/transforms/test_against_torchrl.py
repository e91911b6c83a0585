"""Comparison with TorchRL's transforms where the behavior is the same; requires TorchRL."""

from __future__ import annotations

import warnings

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule

from datasets_rl import BoundedTensorSpec, transforms
from datasets_rl.transforms import functional

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    torchrl = pytest.importorskip("torchrl.envs.transforms", reason="pip install --no-deps torchrl hoptorch")
    from torchrl.collectors.utils import split_trajectories
    from torchrl.data.postprocs import DensifyReward, MultiStep
    from torchrl.envs.transforms import functional as their_functional
    from torchrl.envs.transforms.rb_transforms import NextStateReconstructor
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
    "clip": lambda m: m.ClipTransform([KEY], low=-0.5, high=1.0),
    "clip, one side": lambda m: m.ClipTransform([KEY], ["cut"], low=0.0),
    "action scaling": lambda m: m.ActionScaling(loc=torch.tensor([0.5, 1.0]), scale=2.0),
    "action scaling, 0 to 1": lambda m: m.ActionScaling.from_stats(low=[-1, 0], high=[1, 3], standard_normal=False),
    "flatten action": lambda m: m.FlattenAction(-3, -1, in_keys=["pixels"]),
    "discrete action": lambda m: m.DiscreteActionProjection(2, 5),
    "expand": lambda m: m.ExpandAs("reward", "pixels", "wide"),
    "stack": lambda m: m.Stack(["reward", ("next", "reward")], "rewards", dim=-2),
    "stack, kept": lambda m: m.Stack([KEY, ("next", KEY)], ("deep", "both"), del_keys=False),
    "weighted rewards": lambda m: m.LineariseRewards([KEY], weights=[1.0, -2.0, 0.5, 0.0]),
    "summed rewards": lambda m: m.LineariseRewards([KEY], ["sum"]),
    "success": lambda m: m.SuccessReward(("next", "done"), scale=3.0, reward_key="sparse"),
    "finite": lambda m: m.FiniteTensorDictCheck(),
    "module": lambda m: m.ModuleTransform(
        module=TensorDictModule(lambda value: value * 2, [KEY], ["double"]), no_grad=True
    ),
    "policy age": lambda m: m.PolicyAgeFilter(1, 3, policy_version_key="action"),
    "no empty groups": lambda m: m.RemoveEmptySpecs(),
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


WRITTEN = {
    "reward to go": lambda m: m.Reward2GoTransform(0.9, out_keys=["to_go"]),
    "clip": lambda m: m.ClipTransform(in_keys_inv=["action"], high=0.1),
    "action scaling": lambda m: m.ActionScaling(loc=1.0, scale=torch.tensor([2.0, 4.0]), standard_normal=False),
    "flatten action": lambda m: m.FlattenAction(-2, -1, in_keys_inv=[KEY], action_shape=(2, 2)),
    "split": lambda m: m.Stack(["a", "b"], "action", "action", ["a", "b"]),
    "policy age": lambda m: m.PolicyAgeFilter(1, 3, policy_version_key="action"),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_written_data_is_transformed_to_the_same(name):
    alike(WRITTEN[name](transforms).inv(rollouts()), WRITTEN[name](torchrl).inv(rollouts()))


def test_next_states_are_reconstructed_the_same():
    data = rollouts().reshape(-1).exclude(("next", KEY))
    data["collector", "traj_ids"] = torch.arange(36) // 12
    for options in ({}, {"done_key": None}, {"traj_key": None, "fill_value": 7.0}):
        results = [
            library(**options)(data.copy()).get(("next", KEY)).nan_to_num(99)
            for library in (transforms.NextStateReconstructor, NextStateReconstructor)
        ]
        assert torch.equal(*results)


def test_differences_are_restored_the_same():
    data = transforms.NextObservationDelta([KEY]).inv(rollouts())

    alike(transforms.NextObservationDelta([KEY])(data.copy()), torchrl.NextObservationDelta([KEY])(data.copy()))


@pytest.mark.parametrize("options", [{"reduce_batch_dims": True}, {"decay": 1.0}, {"stateful": False}, {}])
def test_moving_averages_are_the_same(options):
    """TorchRL's class normalizes the steps of an environment, and cannot be called."""
    options = {"decay": 0.5, **options}  # closer to 1, the bias correction of TorchRL loses digits
    ours = transforms.VecNormV2([KEY], ["normal"], **options)
    theirs = torchrl.VecNormV2([KEY], ["normal"], **options)
    data, reference = rollouts(), rollouts()
    for _ in range(3):
        data = ours(data.set(KEY, data[KEY] + 1))
        reference = theirs._step(reference, reference.copy().set(KEY, reference[KEY] + 1))
        torch.testing.assert_close(data["normal"], reference["normal"])


def test_novelty_is_the_same():
    """TorchRL's class computes it for the steps of an environment, and cannot be called."""
    networks = [torch.nn.Linear(4, 3) for _ in range(2)]
    ours, theirs = (
        library(*networks, in_keys=[KEY], out_keys=["novelty"])
        for library in (transforms.RNDTransform, torchrl.RNDTransform)
    )
    for _ in range(3):
        data = rollouts()
        torch.testing.assert_close(ours(data)["novelty"], theirs._step(data, data.copy())["novelty"])


def test_intervals_have_the_same_values():
    """TorchRL's class reads the bounds from the spec of an environment."""
    action_spec = BoundedTensorSpec(-1, 2, (2,))
    for sampling in range(3):
        ours = transforms.ActionDiscretizer(5, sampling=sampling, action_spec=action_spec)
        theirs = torchrl.ActionDiscretizer(5, sampling=sampling)
        theirs.dtype, theirs.nvec = torch.float32, torch.tensor([5, 5])
        theirs.intervals = -1 + theirs.custom_arange(5, None).expand(2, 5) * 3
        numbers = TensorDict(action=torch.randint(5, (7, 2)), batch_size=[7])
        torch.testing.assert_close(ours.inv(numbers)["action"], theirs.inv(numbers)["action"])


def test_the_maximum_over_time_is_that_of_the_steps():
    """TorchRL's class computes it step by step."""
    data = rollouts()[0]
    ours, theirs = transforms.TimeMaxPool([KEY], T=3), torchrl.TimeMaxPool([KEY], T=3)
    data["next", "done"].zero_()
    expected = torch.stack([theirs._call(step.copy())[KEY] for step in data.unbind(0)])

    assert torch.equal(ours(data)[KEY], expected)


def test_dense_rewards_are_the_same():
    options = {"reward_key_out": "dense", "discount": 0.9}

    alike(transforms.DensifyReward(**options)(rollouts()), DensifyReward(**options)(rollouts()))


def test_stacks_of_frames_are_the_same_function():
    frames = torch.randn(2, 7, 3, 4)
    mask = torch.tensor([[True, True, False]] * 2 + [[True, False, False]] * 2 + [[False] * 3] * 3).expand(2, 7, 3)
    for options in (
        {"time_dim": -3},
        {"time_dim": -3, "padding": "constant", "padding_value": 5.0},
        {"time_dim": -3, "done_mask": mask.unsqueeze(-2)},
        {"time_dim": -1, "padding": "constant"},
    ):
        ours, theirs = (library.cat_frames(frames, 3, -2, **options) for library in (functional, their_functional))
        assert torch.equal(ours, theirs)
    images = torch.rand(2, 3, 5, 4)
    for count in (1, 3):
        torch.testing.assert_close(
            functional.rgb_to_grayscale(images, count), their_functional.rgb_to_grayscale(images, count)
        )


def test_targets_are_the_same_except_for_the_flags():
    """TorchRL keeps the flags of the first step; all other entries are those of the last step."""
    mine, theirs = transforms.MultiStep(0.9, 3)(rollouts()), MultiStep(0.9, 3)(rollouts())
    flags = ["nonterminal", ("next", "done"), ("next", "terminated")]

    alike(mine.exclude(*flags), theirs.exclude(*flags))


def test_numbers_in_names_are_sorted_as_numbers():
    """TorchRL sorts names by their characters, so that the tenth joint comes before the second one."""
    data = TensorDict({f"joint_{number}": torch.full((1,), number) for number in (0, 1, 2, 10)}, [])
    mine, theirs = (
        library.CatTensors(list(data.keys()))(data.copy())["observation_vector"].tolist()
        for library in (transforms, torchrl)
    )

    assert (mine, theirs) == ([0, 1, 2, 10], [0, 1, 10, 2])


def test_trajectories_are_split_the_same():
    data = rollouts().reshape(-1)
    mine, theirs = transforms.split_trajectories(data.copy()), split_trajectories(data.copy())

    alike(mine, theirs)


@pytest.mark.parametrize("options", [{}, {"keep_other": False}, {"exclude_reward": False}, {"exclude_action": False}])
def test_the_next_step_is_the_same(options):
    alike(transforms.step_mdp(rollouts(), **options), step_mdp(rollouts(), **options))

"""What transforms cost, against TorchRL's on the same batches."""

import importlib

import pytest
import torch
from tensordict import TensorDict

from datasets_rl import LazyTensorStorage, TensorDictReplayBuffer, transforms

BATCH, LENGTH = 256, 32
BOTH = ["observation", ("next", "observation")]
IMAGES = 64
NAMES = [None, "time"]


@pytest.fixture(scope="module")
def torchrl(torchrl_data):  # noqa: ARG001 - skips where it is not installed
    return importlib.import_module("torchrl.envs.transforms")


def halfcheetah(*batch):
    """HalfCheetah-shaped steps; every 100th ends an episode."""
    flag = torch.zeros(*batch, 1, dtype=torch.bool)
    done = flag.clone()
    done.view(-1)[99::100] = True
    done[..., -1, :] = True
    return TensorDict(
        {
            "observation": torch.randn(*batch, 17),
            "action": torch.randn(*batch, 6),
            "done": flag,
            "next": {
                "observation": torch.randn(*batch, 17),
                "reward": torch.randn(*batch, 1),
                "done": done,
                "terminated": flag.clone(),
                "truncated": done.clone(),
            },
        },
        batch,
        names=NAMES[-len(batch) :],
    )


def atari(*batch):
    return TensorDict(
        {
            "pixels": torch.randint(255, (*batch, 1, 84, 84), dtype=torch.uint8),
            "next": {"done": torch.zeros(*batch, 1, dtype=torch.bool)},
        },
        batch,
        names=NAMES[-len(batch) :],
    )


def five(module):
    return module.Compose(
        module.DTypeCastTransform(torch.float32, torch.float64, in_keys=["action"]),
        module.ObservationNorm(0.5, 2.0, in_keys=BOTH),
        module.RewardScaling(0.0, 0.1, in_keys=[("next", "reward")]),
        module.RenameTransform(["action"], ["act"]),
        module.CatTensors(["observation", "act"], "input", del_keys=False),
    )


CASES = {
    "Compose of 5, 256 steps": (lambda: halfcheetah(BATCH), five),
    "ObservationNorm, 256 steps": (
        lambda: halfcheetah(BATCH),
        lambda module: module.ObservationNorm(0.5, 2.0, in_keys=BOTH, standard_normal=True),
    ),
    "ObservationNorm, 64 images of 84 x 84": (
        lambda: atari(IMAGES).apply(lambda leaf: leaf.float()),
        lambda module: module.ObservationNorm(0.5, 2.0, in_keys=["pixels"]),
    ),
    "ToTensorImage, 64 images of 84 x 84 x 3": (
        lambda: TensorDict({"pixels": torch.randint(255, (IMAGES, 84, 84, 3), dtype=torch.uint8)}, [IMAGES]),
        lambda module: module.ToTensorImage(),
    ),
    "CatFrames of 4, 8 slices of 32 steps": (
        lambda: halfcheetah(BATCH // LENGTH, LENGTH),
        lambda module: module.CatFrames(4, -1, in_keys=BOTH),
    ),
    "CatFrames of 4, 8 slices of 32 images": (
        lambda: atari(BATCH // LENGTH, LENGTH),
        lambda module: module.CatFrames(4, -3, in_keys=["pixels"]),
    ),
    "ActionChunk of 8, 8 slices of 32 steps": (
        lambda: halfcheetah(BATCH // LENGTH, LENGTH),
        lambda module: module.ActionChunkTransform(8),
    ),
}


@pytest.mark.parametrize("name", list(CASES))
def test_a_batch_is_transformed_at_least_as_fast_as_by_torchrl(name, torchrl, compare, expect):
    make, build = CASES[name]
    mine, others, ours, theirs = make(), make(), build(transforms), build(torchrl)
    # TorchRL's write into the batch that they are given; ours are given it anew as well.
    took = compare({"ours": lambda: ours(mine.copy()), "torchrl": lambda: theirs(others.copy())}, rounds=36, repeat=12)

    expect(f"{name}, of TorchRL's time", took["ours"] / took["torchrl"], at_most=1)


@pytest.mark.parametrize("name", ["multi-step of 3", "reward to go"])
def test_what_is_written_is_transformed_at_least_as_fast_as_by_torchrl(name, torchrl, size, compare, expect):
    """100 rollouts of 1,000 steps. TorchRL's multi-step keeps a buffer, so that each call gets a new transform."""
    data = halfcheetah(100, size(full=1000, small=10))
    if name == "reward to go":
        ours, theirs = transforms.Reward2GoTransform(0.99), torchrl.Reward2GoTransform(0.99)
        calls = {"ours": lambda: ours.inv(data), "torchrl": lambda: theirs.inv(data.copy())}
    else:
        calls = {
            "ours": lambda: transforms.MultiStepTransform(3, 0.99)(data),
            "torchrl": lambda: torchrl.MultiStepTransform(3, 0.99).inv(data.copy()),
        }
    took = compare(calls, rounds=5, repeat=3)

    expect(f"{name} of 100 rollouts, of TorchRL's time", took["ours"] / took["torchrl"], at_most=1)


def test_stacks_of_images_are_no_slower_than_torchrls_slices(torchrl, torchrl_data, size, compare, expect):
    """64 stacks of 4 images of 84 x 84: TorchRL's recipe samples 64 slices of 4, stacks them, and keeps the last."""
    steps = size(full=8_000, small=400)
    data = atari(steps)
    data["next", "done"][99::100] = True
    mine = TensorDictReplayBuffer(
        storage=LazyTensorStorage(steps), batch_size=IMAGES, transform=transforms.CatFrames(4, -3)
    )
    mine.extend(data)
    sampler = torchrl_data.SliceSampler(slice_len=4, end_key=("next", "done"), cache_values=True)
    transform = torchrl.Compose(
        lambda batch: batch.reshape(-1, 4).refine_names(None, "time"),
        torchrl.CatFrames(4, -3, in_keys=["pixels"]),
        lambda batch: batch[:, -1],
    )
    theirs = torchrl_data.ReplayBuffer(  # its recipe fails in a TensorDictReplayBuffer
        storage=torchrl_data.LazyTensorStorage(steps), sampler=sampler, transform=transform, batch_size=4 * IMAGES
    )
    theirs.extend(data)
    took = compare({"ours": mine.sample, "torchrl": lambda: theirs.sample(4 * IMAGES)}, rounds=7, repeat=20)

    expect("64 stacks of 4 images of a buffer, of TorchRL's time", took["ours"] / took["torchrl"], at_most=1)

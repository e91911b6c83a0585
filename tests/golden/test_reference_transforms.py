"""The examples with transforms in TorchRL's documentation, as printed there."""

from __future__ import annotations

import torch
from tensordict import TensorDict

from datasets_rl import DemoExperienceReplay, LazyMemmapStorage, ReplayBufferEnsemble, TensorDictReplayBuffer
from datasets_rl.transforms import Compose, ObservationNorm, RenameTransform, Resize, ToTensorImage


def test_two_datasets_of_different_keys_and_sizes(tmp_path):
    """Unlike in the example, the storages have folders."""
    rb0 = TensorDictReplayBuffer(
        storage=LazyMemmapStorage(10, scratch_dir=tmp_path / "0"),
        transform=Compose(
            ToTensorImage(in_keys=["pixels", ("next", "pixels")]),
            Resize(32, in_keys=["pixels", ("next", "pixels")]),
            RenameTransform([("some", "key")], ["renamed"]),
        ),
    )
    rb1 = TensorDictReplayBuffer(
        storage=LazyMemmapStorage(10, scratch_dir=tmp_path / "1"),
        transform=Compose(
            ToTensorImage(in_keys=["pixels", ("next", "pixels")]),
            Resize(32, in_keys=["pixels", ("next", "pixels")]),
            RenameTransform(["another_key"], ["renamed"]),
        ),
    )
    rb = ReplayBufferEnsemble(
        rb0,
        rb1,
        p=[0.5, 0.5],
        transform=Resize(33, in_keys=["pixels"], out_keys=["pixels33"]),
    )
    data0 = TensorDict(
        {
            "pixels": torch.randint(255, (10, 244, 244, 3)),
            ("next", "pixels"): torch.randint(255, (10, 244, 244, 3)),
            ("some", "key"): torch.randn(10),
        },
        batch_size=[10],
    )
    data1 = TensorDict(
        {
            "pixels": torch.randint(255, (10, 64, 64, 3)),
            ("next", "pixels"): torch.randint(255, (10, 64, 64, 3)),
            "another_key": torch.randn(10),
        },
        batch_size=[10],
    )
    rb[0].extend(data0)
    rb[1].extend(data1)
    for _ in range(2):
        sample = rb.sample(10)
        assert sample["next", "pixels"].shape == torch.Size([2, 5, 3, 32, 32])
        assert sample["pixels"].shape == torch.Size([2, 5, 3, 32, 32])
        assert sample["pixels33"].shape == torch.Size([2, 5, 3, 33, 33])
        assert sample["renamed"].shape == torch.Size([2, 5])

    sources = sample["index", "buffer_ids"]
    values = torch.stack([data0["some", "key"], data1["another_key"]])
    assert torch.equal(sample["renamed"], values[sources, sample["index", "index"]])


def test_a_transform_appended_to_a_dataset(tmp_path):
    plain = DemoExperienceReplay("pendulum", root=tmp_path)
    data = DemoExperienceReplay("pendulum", root=tmp_path)
    # we can append transforms to the dataset
    data.append_transform(ObservationNorm(loc=-1, scale=1.0))
    torch.manual_seed(0)
    sample = data.sample(128)
    torch.manual_seed(0)
    before = plain.sample(128)

    for key in ("observation", ("next", "observation")):
        torch.testing.assert_close(sample[key], before[key] - 1)


def test_a_norm_uses_the_statistics_of_the_stored_dataset(tmp_path):
    """No data is read: the statistics were computed during the conversion."""
    data = DemoExperienceReplay("pendulum", root=tmp_path)
    data.append_transform(ObservationNorm(standard_normal=True).init_stats(data))
    observation = data[:]["observation"]

    torch.testing.assert_close(observation.mean(0), torch.zeros(observation.shape[1]), atol=1e-4, rtol=0)
    torch.testing.assert_close(observation.std(0, correction=0), torch.ones(observation.shape[1]), atol=1e-4, rtol=0)

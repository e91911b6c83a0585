"""The examples with transforms in TorchRL's documentation, as printed there."""

from __future__ import annotations

import torch

from datasets_rl import DemoExperienceReplay
from datasets_rl.transforms import ObservationNorm


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

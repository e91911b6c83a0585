"""The normalizer of a policy: the formulas of other programs, the inverse, and the state."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from datasets_rl import Normalizer
from datasets_rl.errors import InvalidArgumentError

VALUES = np.random.default_rng(0).normal(3, [1, 20, 0.5], (1000, 3)).astype(np.float32)
CONSTANT = np.concatenate([VALUES, np.full((1000, 1), 0.25, np.float32)], axis=1)


def test_standard_is_the_rule_of_corl():
    """`compute_mean_std(states, eps=1e-3)`."""
    expected = (CONSTANT - CONSTANT.mean(0)) / (CONSTANT.std(0) + 1e-3)
    normalized = Normalizer.standard(CONSTANT)(torch.from_numpy(CONSTANT))

    assert normalized.dtype == torch.float32
    assert np.allclose(normalized, expected, atol=1e-5)
    assert Normalizer.standard(VALUES, eps=1e-6).scale.numpy() == pytest.approx(VALUES.astype(float).std(0) + 1e-6)


def test_limits_is_the_rule_of_diffusion_policy():
    """`_fit(mode="limits")`, with output from -1 to 1 and range_eps 1e-4."""
    low, high = CONSTANT.min(0), CONSTANT.max(0)
    size = np.where(high - low < 1e-4, 2, high - low)
    scale = 2 / size
    offset = np.where(high - low < 1e-4, -low, -1 - scale * low)
    normalized = Normalizer.limits(CONSTANT)(torch.from_numpy(CONSTANT))

    assert np.allclose(normalized, CONSTANT * scale + offset, atol=1e-5)
    assert normalized[:, :3].amin(0).tolist() == pytest.approx([-1] * 3)
    assert normalized[:, :3].amax(0).tolist() == pytest.approx([1] * 3)


def test_quantile_is_the_rule_of_openvla():
    """`BOUNDS_Q99` with a mask: the gripper is not normalized, and constant elements become 0."""
    low, high = np.quantile(CONSTANT.astype(np.float64), [0.01, 0.99], axis=0)
    expected = np.clip(2 * (CONSTANT - low) / (high - low + 1e-8) - 1, -1, 1)
    expected[:, 3], expected[:, 1] = 0, CONSTANT[:, 1]
    normalized = Normalizer.quantile(CONSTANT, mask=[True, False, True, True])(torch.from_numpy(CONSTANT))

    assert np.allclose(normalized, expected, atol=1e-5)


@pytest.mark.parametrize("kind", ["standard", "limits", "quantile"])
def test_denormalize_is_the_inverse_within_the_bounds(kind):
    normalizer = getattr(Normalizer, kind)(CONSTANT)
    normalized = normalizer.normalize(torch.from_numpy(CONSTANT).reshape(10, 100, 4))
    restored = normalizer.denormalize(normalized).reshape(1000, 4)
    inside = (normalized.abs() < 1).reshape(1000, 4)

    assert inside.float().mean() > 0.7
    assert torch.allclose(restored[inside], torch.from_numpy(CONSTANT)[inside], atol=1e-4)


def test_the_state_is_saved_with_the_policy(tmp_path):
    def policy(normalizer):
        return nn.Sequential(normalizer, nn.Linear(4, 2))

    saved = policy(Normalizer.quantile(CONSTANT))
    torch.save(saved.state_dict(), tmp_path / "policy.pt")
    loaded = policy(Normalizer(torch.zeros(4), torch.ones(4)))
    loaded.load_state_dict(torch.load(tmp_path / "policy.pt", weights_only=True))

    observations = torch.from_numpy(CONSTANT)
    assert torch.equal(loaded(observations), saved(observations))
    assert not list(loaded[0].parameters())
    assert repr(loaded[0]) == "Normalizer(shape=[4], clip=True)"


def test_integers_become_floats_and_doubles_stay():
    normalizer = Normalizer(2.0, 4.0)

    assert normalizer(torch.tensor([6, 10])).tolist() == [1, 2]
    assert normalizer(torch.zeros(2, dtype=torch.float64)).dtype == torch.float64


def test_invalid_arguments_are_refused():
    with pytest.raises(InvalidArgumentError, match="other than 0"):
        Normalizer([0.0, 1.0], [1.0, 0.0])
    with pytest.raises(InvalidArgumentError, match="the same shape"):
        Normalizer([0.0, 1.0], [1.0])
    with pytest.raises(InvalidArgumentError, match="at least one step"):
        Normalizer.limits(np.zeros((0, 3)))
    with pytest.raises(InvalidArgumentError, match="low < high"):
        Normalizer.quantile(VALUES, 0.9, 0.1)

"""Normalised scores are D4RL's."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from datasets_rl.errors import BadArgument, UnknownId
from datasets_rl.scores import normalized_score


def test_the_random_policy_is_0_and_the_expert_1():
    assert normalized_score("d4rl/hopper-medium-v2", -20.272305) == 0
    assert normalized_score("d4rl/hopper-medium-v2", 3234.3) == 1


def test_a_return_between_them_lies_between_0_and_1():
    """Worked out by hand: (5900 + 280.178953) / (12135 + 280.178953)."""
    assert normalized_score("d4rl/halfcheetah-expert-v0", 5900) == pytest.approx(0.4978, abs=1e-4)


@pytest.mark.parametrize("version", ["v0", "v1", "v2"])
def test_versions_share_their_scores(version):
    assert normalized_score(f"d4rl/walker2d-random-{version}", 1000.0) == pytest.approx(0.217479, abs=1e-6)


@pytest.mark.parametrize(
    "returns",
    [
        [0.5, 1.0],
        (0.5, 1),
        np.array([0.5, 1.0], np.float32),
        torch.tensor([0.5, 1.0]),
        torch.tensor([0.5, 1.0], requires_grad=True),
    ],
    ids=["list", "tuple", "array", "tensor", "tensor with gradient"],
)
def test_many_returns_give_an_array(returns):
    scores = normalized_score("d4rl/antmaze-umaze-v2", returns)

    assert isinstance(scores, np.ndarray)
    assert scores.dtype == np.float64
    assert scores.tolist() == [0.5, 1.0]


@pytest.mark.parametrize("returns", [2, 2.0, np.float32(2), np.array(2), torch.tensor(2.0)])
def test_one_return_gives_a_float(returns):
    score = normalized_score("d4rl/kitchen-mixed-v0", returns)

    assert type(score) is float
    assert score == 0.5


def test_the_shape_is_kept():
    assert normalized_score("demo/pendulum", np.zeros((2, 3))).shape == (2, 3)
    assert normalized_score("demo/pendulum", []).shape == (0,)


def test_what_has_no_scores_is_refused():
    with pytest.raises(BadArgument, match="carla-town-render-v0 has no reference scores"):
        normalized_score("d4rl/carla-town-render-v0", 1.0)
    with pytest.raises(UnknownId):
        normalized_score("d4rl/hopper-medium-v9", 1.0)
    with pytest.raises(BadArgument, match="expected numbers"):
        normalized_score("demo/pendulum", "many")


def test_torch_is_not_loaded():
    script = "import sys; from datasets_rl.scores import normalized_score as n; n('demo/pendulum', [1.0]); print('torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout

    assert out.strip() == "False"

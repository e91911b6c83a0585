"""Normalized scores are those of D4RL, and of datasets with their own reference scores."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from raw.minari import SPACES, episodes, write

from datasets_rl import downloading
from datasets_rl.catalog.scores import normalized_score, reference_score
from datasets_rl.errors import InvalidArgumentError, NotADatasetError, UnknownIdError
from datasets_rl.settings import Settings
from datasets_rl.sources import Score


def test_the_random_policy_is_0_and_the_expert_1():
    assert normalized_score("d4rl/hopper-medium-v2", -20.272305) == 0
    assert normalized_score("d4rl/hopper-medium-v2", 3234.3) == 1


def test_a_return_between_them_has_a_score_between_0_and_1():
    """Computed by hand: (5900 + 280.178953) / (12135 + 280.178953)."""
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


def test_a_dataset_without_reference_scores_is_refused():
    with pytest.raises(InvalidArgumentError, match="carla-town-render-v0 has no reference scores"):
        normalized_score("d4rl/carla-town-render-v0", 1.0)
    with pytest.raises(UnknownIdError):
        normalized_score("d4rl/hopper-medium-v9", 1.0)
    with pytest.raises(InvalidArgumentError, match="expected numbers"):
        normalized_score("demo/pendulum", "many")


@pytest.fixture
def drawn(tmp_path):
    """A Minari dataset with reference scores in its metadata."""
    folder = write(
        tmp_path / "cache",
        "test/drawn-v0",
        episodes(SPACES["box"], (2,)),
        space=SPACES["box"],
        ref_min_score=-10.0,
        ref_max_score=30.0,
    )
    settings = Settings(home=tmp_path / "home", progress=False)
    return settings, downloading.download("minari/test/drawn-v0", from_local=folder, settings=settings)


def test_a_stored_dataset_has_its_own_reference_scores(drawn):
    settings, folder = drawn

    assert normalized_score("minari/test/drawn-v0", [0.0, 30.0], settings=settings).tolist() == [0.25, 1.0]
    assert normalized_score("minari/test/drawn-v0", -10, root=settings.home / "minari") == 0
    assert normalized_score(folder, 50.0) == normalized_score(str(folder), 50.0) == 1.5
    assert reference_score(folder) == Score(-10.0, 30.0, "the dataset's own metadata")


def test_a_dataset_that_is_not_downloaded_is_an_error_with_a_remedy(tmp_path):
    settings = Settings(home=tmp_path)

    with pytest.raises(InvalidArgumentError, match=r"no reference scores in the catalog") as caught:
        normalized_score("minari/mujoco/hopper/expert-v0", 1.0, settings=settings)
    assert "datasets_rl.download('minari/mujoco/hopper/expert-v0')" in caught.value.hint
    assert "low=... and high=..." in caught.value.hint
    with pytest.raises(NotADatasetError):
        normalized_score(tmp_path, 1.0)


def test_a_dataset_whose_authors_published_none_has_none(drawn, tmp_path):
    settings, _ = drawn
    cache = write(tmp_path / "cache", "test/plain-v0", episodes(SPACES["box"], (2,)), space=SPACES["box"])
    folder = downloading.download("minari/test/plain-v0", from_local=cache, settings=settings)

    with pytest.raises(InvalidArgumentError, match="the authors published no scores"):
        normalized_score(folder, 1.0)


def test_torch_is_not_loaded():
    script = "import sys; from datasets_rl.catalog.scores import normalized_score as n; n('demo/pendulum', [1.0]); print('torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout

    assert out.strip() == "False"


def test_papers_print_a_hundred_times_the_score():
    assert normalized_score("d4rl/kitchen-mixed-v0", [2, 4], percent=True).tolist() == [50, 100]


def test_own_returns_replace_the_published_ones():
    assert normalized_score(None, 3, low=0, high=6) == 0.5
    assert normalized_score("minari/mujoco/hopper/expert-v0", 3, low=0, high=6) == 0.5
    assert normalized_score("d4rl/kitchen-mixed-v0", 2, high=8) == 0.25
    assert reference_score("d4rl/kitchen-mixed-v0", low=-1) == Score(
        -1, 4.0, "d4rl/infos.py, REF_MIN_SCORE and REF_MAX_SCORE, and the return that you gave"
    )
    for dataset, own in ((None, {"low": 1}), ("demo/pendulum", {"low": 3, "high": 3})):
        with pytest.raises(InvalidArgumentError, match="low"):
            normalized_score(dataset, 1.0, **own)


def test_a_mixture_has_the_reference_scores_that_its_members_share(tmp_path):
    path = tmp_path / "mix.toml"
    path.write_text("".join(f'[[member]]\ndataset = "d4rl/hopper-{name}-v2"\n' for name in ("medium", "expert")))
    assert normalized_score(path, 3234.3) == 1

    path.write_text('[[member]]\ndataset = "d4rl/hopper-medium-v2"\n[[member]]\ndataset = "openx/bridge"\n')
    with pytest.raises(InvalidArgumentError, match="openx/bridge: none"):
        normalized_score(path, 1.0)


def test_own_metadata_goes_before_the_catalog_where_the_upstream_states_it(tmp_path):
    folder = write(
        tmp_path / "cache",
        "D4RL/kitchen/partial-v2",
        episodes(SPACES["box"], (2,)),
        space=SPACES["box"],
        ref_min_score=1.0,
        ref_max_score=3.0,
    )
    settings = Settings(home=tmp_path / "home", progress=False)
    assert normalized_score("minari/D4RL/kitchen/partial-v2", 1, settings=settings) == 0.25

    downloading.download("minari/D4RL/kitchen/partial-v2", from_local=folder, settings=settings)
    assert normalized_score("minari/D4RL/kitchen/partial-v2", 1, settings=settings) == 0

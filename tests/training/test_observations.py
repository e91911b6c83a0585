"""The encoder of observations: which entries it sees, how it normalizes and crops them, and what it refuses."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from datasets_rl import EpisodeWriter, load
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.training import ObservationEncoder, stack_observations


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("RLDS_HOME", str(tmp_path))


def record(name, observe):
    """Record two episodes of four steps; `observe` returns the observation from a generator of random numbers."""
    draw = np.random.default_rng(0)
    with EpisodeWriter(f"local/{name}") as writer:
        for _ in range(2):
            writer.start(observe(draw))
            for step in range(4):
                writer.step(np.zeros(2, np.float32), observe(draw), 0.0, step == 3)
    return load(f"local/{name}")


def image(draw, *shape):
    return draw.integers(0, 256, shape).astype(np.uint8)


def robot(draw):
    return {
        "images": {"top": image(draw, 40, 48, 3), "wrist": image(draw, 32, 32, 3)},
        "depth": draw.uniform(1, 3, (20, 24, 1)).astype(np.float32),
        "state": draw.normal(5, 2, 6).astype(np.float32),
        "gripper": np.float32(draw.uniform()),
        "count": np.int64(3),
        "task": "push",
    }


def test_nested_images_and_vectors_are_encoded_and_integers_and_texts_left_out():
    dataset = record("robot", robot)
    encoder = ObservationEncoder(dataset, width=16)
    batch = dataset[:5]
    maps, features = encoder.maps(batch), encoder(batch)

    assert encoder.choices["observed"] == (
        "observation.gripper [], observation.state [6], observation.depth [20, 24, 1], observation.images.top [40, 48, 3], "
        "observation.images.wrist [32, 32, 3]"
    )
    assert encoder.vector_size == 7
    assert [tuple(one.shape) for one in maps] == [(5, 16, 3, 3), (5, 16, 5, 6), (5, 16, 4, 4)]
    assert tuple(features.shape) == (5, encoder.size) == (5, 7 + 3 * 2 * 16)
    assert features[:, 7:].abs().max() <= 1


def test_only_selected_keys_are_seen():
    dataset = record("robot", robot).select(["observation.images.top", "action"])

    assert ObservationEncoder(dataset).choices["observed"] == "observation.images.top [40, 48, 3]"


def test_vectors_are_normalized_by_the_statistics_of_the_dataset():
    dataset = record("vectors", lambda draw: draw.normal(5, 2, 6).astype(np.float32))
    values = dataset[:]["observation"]
    stated = {name: torch.tensor(numbers) for name, numbers in dataset.statistics["observation"].items()}

    standard, limits = (ObservationEncoder(dataset, kind).vectors(dataset[:]) for kind in ("standard", "limits"))
    torch.testing.assert_close(standard, ((values - stated["mean"]) / (stated["std"] + 1e-3)).float())
    span = stated["max"] - stated["min"]
    torch.testing.assert_close(limits, (2 * (values - stated["min"]) / span - 1).float(), atol=1e-5, rtol=0)


@pytest.mark.parametrize("layout", ["H W C", "C H W", "H W"])
def test_the_layout_of_images_makes_no_difference(layout):
    def observe(draw):
        frame = np.repeat(image(draw, 32, 40, 1), 1 if layout == "H W" else 3, axis=2)
        return {"H W C": frame, "C H W": frame.transpose(2, 0, 1), "H W": frame[:, :, 0]}[layout]

    dataset = record("frames", observe)
    seen = []
    encoder = ObservationEncoder(dataset, crop=0.5).eval()
    encoder.networks["observation"].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    encoder(dataset[:3])

    draw = np.random.default_rng(0)
    frames = np.stack([image(draw, 32, 40, 1) for _ in range(3)]).transpose(0, 3, 1, 2)
    expected = (frames[..., 8:24, 10:30].astype(np.float32) - 127.5) / 127.5  # the middle
    channels = 1 if layout == "H W" else 3
    np.testing.assert_allclose(seen[0].numpy(), np.repeat(expected, channels, axis=1), atol=1e-6)


def test_training_crops_a_window_at_one_random_place():
    dataset = record("frames", lambda draw: image(draw, 32, 32, 3))
    encoder, seen = ObservationEncoder(dataset, crop=0.75), []
    encoder.networks["observation"].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    frame = torch.arange(32 * 32, dtype=torch.uint8).reshape(32, 32)  # a pixel tells its place
    encoder({"observation": frame[None, None, :, :, None].expand(64, 2, 32, 32, 3)})

    parts = seen[0].reshape(64, 2, 3, 24, 24)
    assert torch.equal(parts[:, 0], parts[:, 1])
    assert len(parts[:, 0, 0, 0, 0].unique()) > 20


def test_large_images_get_more_layers():
    dataset = record("large", lambda draw: image(draw, 240, 320, 3))

    (found,) = ObservationEncoder(dataset, width=8).maps(dataset[:1])
    assert max(found.shape[-2:]) == math.ceil(320 / 32)


def test_observations_without_images_and_floats_are_refused():
    dataset = record("counts", lambda draw: np.int64(draw.integers(5)))

    with pytest.raises(InvalidArgumentError, match=r"expected observations that are images .* local/counts has "):
        ObservationEncoder(dataset)


def test_past_observations_become_windows():
    steps = [{"image": np.full((2, 4, 4), step), "robot": {"state": np.full((2, 3), step)}} for step in range(3)]
    windows = stack_observations(steps)

    assert windows["image"].shape == (2, 3, 4, 4)
    assert windows["robot"]["state"][1, :, 0].tolist() == [0, 1, 2]

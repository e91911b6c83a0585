"""Windows of steps agree with loops over the steps, in every storage and in slices."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from stored_data import trajectory, write_dataset
from tensordict import TensorDict

from datasets_rl import DatasetStorage, LazyTensorStorage, ReplayBuffer, TensorDictReplayBuffer, WindowSampler
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.specs.infer import spec_from_data
from datasets_rl.storages.view import View
from datasets_rl.transforms import (
    ActionChunkTransform,
    CatFrames,
    Compose,
    MultiStepTransform,
    QChunkTransform,
    RandomShift,
    RenameTransform,
    RewardScaling,
    SequenceTransform,
    WindowTransform,
)

LENGTHS = [4, 1, 7, 2, 1]
NEXT_OBSERVATION = ("next", "observation")
SPANS = {"observation": (2, 0), "action": (1, 3), ("next", "reward"): (1, 3), NEXT_OBSERVATION: (0, 2)}


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stored")
    ends = [{}, {"terminated": True}, {"known": False}, {"terminated": True}, {"known": False}]
    episodes = [trajectory(LENGTHS[number], seed=number, **end) for number, end in enumerate(ends)]
    return write_dataset(folder, episodes)


@pytest.fixture
def plain(stored):
    """All steps, in order."""
    return DatasetStorage(stored).get(slice(None))


def wrapped(data, transform):
    """Return a full ring that starts in the middle of its memory, and the rows of the steps in order."""
    rb = TensorDictReplayBuffer(storage=LazyTensorStorage(len(data)), transform=transform, batch_size=4)
    rb.extend(data[:6])
    rb.extend(data)
    return rb, (torch.arange(len(data)) + 6) % len(data)


def every_way(stored, plain, transform):
    """Return the transformed steps from a dataset, its subset, a ring that has wrapped, through a transform, and of a slice."""
    rb, rows = wrapped(plain.exclude("episode"), transform)
    reader = ReplayBuffer(storage=DatasetStorage(stored), transform=transform, batch_size=4)
    through = Compose(RewardScaling(0, 1), transform)
    reader_through = ReplayBuffer(storage=DatasetStorage(stored), transform=through, batch_size=4)
    subset = ReplayBuffer(
        storage=View(DatasetStorage(stored), np.arange(len(plain))), transform=transform, batch_size=4
    )
    return {
        "dataset": reader[:],
        "subset": subset[:],
        "ring": rb[rows],
        "through": reader_through[:],
        "slice": transform(plain),
    }


def bounds(row):
    stops = np.cumsum(LENGTHS)
    stop = int(stops[stops > row][0])
    return stop - LENGTHS[int(np.flatnonzero(stops == stop)[0])], stop - 1


@pytest.mark.parametrize("pad", ["repeat", "zero"])
def test_a_window_has_the_steps_around_its_step(stored, plain, pad):
    for way, batch in every_way(stored, plain, WindowTransform(SPANS, pad)).items():
        for key, (before, after) in SPANS.items():
            mask_key = f"{key}_valid" if isinstance(key, str) else ("next", f"{key[1]}_valid")
            for row in range(len(plain)):
                first, last = bounds(row)
                wanted = list(range(row - before, row + after + 1))
                inside = [first <= at <= last for at in wanted]
                expected = torch.stack([plain[key][min(max(at, first), last)] for at in wanted])
                if pad == "zero":
                    expected[~torch.tensor(inside)] = 0

                assert torch.equal(batch[key][row], expected), (way, key, row)
                assert batch[mask_key][row].tolist() == inside


def nested(steps):
    """Return steps whose observation is a group of two entries, one of them in a group of its own."""
    for path in ((), ("next",)):
        value = steps[(*path, "observation")]
        group = TensorDict({"state": value, "camera": {"top": value.unsqueeze(-1) * 2}}, steps.shape)
        steps = steps.exclude((*path, "observation")).set((*path, "observation"), group)
    return steps


PRESETS = {
    "diffusion_policy": (WindowTransform.diffusion_policy(4, 1, 1), (1, 2), None),
    "lerobot": (WindowTransform.lerobot(5, 2), (1, 0), "{}_is_pad"),
    "robomimic": (WindowTransform.robomimic(3, 2), (1, 2), "pad_mask"),
    "octo": (WindowTransform.octo(2, 3), (1, 0), "timestep_pad_mask"),
    "act": (WindowTransform.act(3), None, None),
    "delta_timestamps": (
        WindowTransform.delta_timestamps({"observation": [-0.1, 0], "action": [0, 0.1, 0.2]}, fps=10),
        (1, 0),
        "{}_is_pad",
    ),
}


def test_every_preset_of_windows_has_a_case():
    made = {name for name, value in vars(WindowTransform).items() if isinstance(value, classmethod)}

    assert made == set(PRESETS)


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_take_windows_of_every_entry_of_a_nested_observation(plain, preset):
    transform, span, mask = PRESETS[preset]
    flat = WindowTransform({"observation": span or (0, 0), "action": transform.offsets["action"]})(plain)
    data = nested(plain.copy())
    rb, rows = wrapped(data.exclude("episode"), transform)
    for batch in (transform(data), rb[rows]):
        state, top = batch["observation", "state"], batch["observation", "camera", "top"]
        if span is None:
            assert torch.equal(state, plain["observation"])
            continue
        assert torch.equal(state, flat["observation"])
        assert torch.equal(top, 2 * flat["observation"].unsqueeze(-1))
        if mask is not None:
            names = [("observation", "camera", mask.format("top")), ("observation", mask.format("state"))]
            for name in names if "{" in mask else [mask]:
                assert torch.equal(batch[name], flat["observation_valid"] ^ ("is_pad" in mask))
        assert torch.equal(batch["action"], flat["action"])
    assert transform.transform_spec(spec_from_data(data[:2])).is_in(transform(data[:2]))


@pytest.mark.parametrize("make", [SequenceTransform.dt_kzl, SequenceTransform.dt_corl, lambda: QChunkTransform(2, 0.9)])
def test_other_sequences_name_the_group_that_they_cannot_read(plain, make):
    transform = make()
    data = nested(plain.copy())
    if isinstance(transform, QChunkTransform):
        transform.in_keys = ["observation"]
    for batch in (lambda: transform(data), lambda: wrapped(data.exclude("episode"), transform)[0][:]):
        with pytest.raises(InvalidArgumentError, match=r"reads observation, which is a group of .*state"):
            batch()


def test_windows_follow_a_transform_that_renames_their_entry(plain):
    rb, rows = wrapped(plain.exclude("episode"), RenameTransform(["observation", "action"], ["obs", "act"]))
    rb.append_transform(WindowTransform({"obs": (1, 0)}))
    rb.append_transform(ActionChunkTransform(2, action_key="act"))
    expected = WindowTransform({"observation": (1, 0), "action": (0, 1)})(plain)

    assert torch.equal(rb[rows]["obs"], expected["observation"])
    assert torch.equal(rb[rows]["vla_action", "chunk"], expected["action"])


def test_sequences_and_chunks_are_the_same_in_every_way(stored, plain):
    transforms = [
        SequenceTransform.dt_kzl(3, mean=1.5, std=0.5),
        SequenceTransform.dt_corl(5),
        QChunkTransform(3, 0.9),
        WindowTransform.robomimic(4, 2),
        MultiStepTransform(3, 0.9),
        ActionChunkTransform(4),
        CatFrames(3, -1, ["observation", NEXT_OBSERVATION], padding="zeros"),
    ]
    for transform in transforms:
        ways = every_way(stored, plain, transform)
        reference = ways.pop("slice").exclude("episode")
        for way, batch in ways.items():
            for key, value in reference.items(include_nested=True, leaves_only=True):
                torch.testing.assert_close(batch[key], value, msg=f"{transform}, {way}, {key}")


def test_time_steps_count_from_the_start_of_the_trajectory_and_are_0_in_the_padding(stored, plain):
    for pad_side in ("left", "right"):
        transform = SequenceTransform(3, pad_side=pad_side)
        for way, batch in every_way(stored, plain, transform).items():
            for row in range(len(plain)):
                first, last = bounds(row)
                steps = [row - first + ahead for ahead in range(3)]
                if pad_side == "left":
                    inside = [step for step in steps if first + step <= last]
                    steps = [0] * (3 - len(inside)) + inside
                assert batch["timesteps"][row].tolist() == steps, (way, row)


def test_returns_to_go_reach_the_end_of_the_trajectory(stored, plain):
    batch = ReplayBuffer(storage=DatasetStorage(stored), transform=SequenceTransform(2), batch_size=4)[:]
    rewards = plain["next", "reward"].squeeze(-1).double()
    for row in range(len(plain)):
        assert batch["returns_to_go"][row, 0].item() == pytest.approx(float(rewards[row : bounds(row)[1] + 1].sum()))


def test_returns_to_go_follow_the_writes_to_a_ring(plain):
    rb, rows = wrapped(plain.exclude("episode"), SequenceTransform(2))
    before = rb[rows]["returns_to_go"][:, 0]
    rb.extend(plain.exclude("episode"))
    after = rb[(rows + len(plain)) % len(plain)]["returns_to_go"][:, 0]

    assert torch.equal(before, after)


def test_a_sampler_draws_every_step_whose_window_fits_and_no_other(stored):
    windows = WindowTransform({"observation": (1, 0), "action": (0, 2)}, "drop")
    sampler = windows.sampler(torch.Generator().manual_seed(0))
    rb = ReplayBuffer(storage=DatasetStorage(stored), transform=windows, sampler=sampler, batch_size=300)
    rows = sampler.sample(rb.storage, 600)[0]
    expected = [row for row in range(sum(LENGTHS)) if bounds(row)[0] < row < bounds(row)[1] - 1]

    assert rows.unique().tolist() == expected
    assert rows.bincount(minlength=15)[expected].min() > 50
    assert rb.sample()["action_valid"].all()


def test_a_sampler_follows_the_writes_to_a_ring(plain):
    rb, _ = wrapped(plain.exclude("episode"), None)
    sampler = WindowSampler(after=6)
    assert sampler.sample(rb.storage, 5)[0].tolist() == [11] * 5
    rb.extend(plain.exclude("episode")[2:12])

    assert sampler.sample(rb.storage, 5)[0].tolist() == [9] * 5


def test_windows_that_do_not_fit_are_an_error(stored):
    rb = ReplayBuffer(
        storage=DatasetStorage(stored), transform=WindowTransform({"action": (0, 2)}, "drop"), batch_size=4
    )
    with pytest.raises(InvalidArgumentError, match="15 windows leave their trajectory"):
        rb[:]
    with pytest.raises(InvalidArgumentError, match="no trajectory has 9 steps"):
        WindowSampler(after=8).sample(rb.storage, 1)


def test_all_invalid_arguments_are_named():
    with pytest.raises(InvalidArgumentError, match=r"window of 'x' is \(-1, 0\).*pad is 'same'.*mask is 'yes'"):
        WindowTransform({"x": (-1, 0)}, "same", "yes")
    with pytest.raises(InvalidArgumentError, match="windows is empty"):
        WindowTransform({})
    with pytest.raises(InvalidArgumentError, match="expected at most 3 in total"):
        WindowTransform.diffusion_policy(4, 2, 2)
    with pytest.raises(InvalidArgumentError, match=r"key_first_k is \{'x': 1\}, expected more than pad_before = 1"):
        WindowTransform.diffusion_policy(4, 1, keys=["x"], key_first_k={"x": 1})
    with pytest.raises(InvalidArgumentError, match=r"length is 0.*pad_side is 'top'"):
        SequenceTransform(0, pad_side="top")
    with pytest.raises(InvalidArgumentError, match=r"chunk_size is 0.*at_end is 'stop'"):
        QChunkTransform(0, 0.9, "stop")
    with pytest.raises(InvalidArgumentError, match=r"pad is -1.*p is 2.*same_for has \['x'\]"):
        RandomShift(-1, ["pixels"], same_for=["x"], p=2)
    with pytest.raises(InvalidArgumentError, match="before is -1"):
        WindowSampler(-1)


def test_images_with_other_leading_axes_are_not_shifted_together():
    batch = TensorDict({"one": torch.zeros(2, 3, 4, 4), "two": torch.zeros(2, 5, 3, 4, 4)}, [2])
    with pytest.raises(InvalidArgumentError, match="2 shifts for 10 images"):
        RandomShift(1, same_for=["one", "two"])(batch)


def test_rewards_of_several_components_have_no_cumulative_reward():
    batch = TensorDict(
        {
            "action": torch.zeros(3, 2),
            "next": {
                "reward": torch.zeros(3, 2),
                "done": torch.ones(3, 1).bool(),
                "terminated": torch.ones(3, 1).bool(),
            },
        },
        [3],
    )
    with pytest.raises(InvalidArgumentError, match="2 components"):
        QChunkTransform(2, 0.9)(batch)

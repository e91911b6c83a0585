"""Windows, sequences, chunks, targets and stacks agree with the code of the papers, except for its known faults.

`sequences.json` has inputs and outputs of the functions of their authors, which were run unchanged.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torch.nn.functional import grid_sample, pad

from datasets_rl import LazyTensorStorage, TensorDictReplayBuffer
from datasets_rl.transforms import (
    CatFrames,
    MultiStepTransform,
    QChunkTransform,
    RandomShift,
    SequenceTransform,
    WindowTransform,
)

GOLDEN = json.loads((Path(__file__).parent / "sequences.json").read_text())


def column(values, dtype=torch.float32):
    return torch.tensor(values, dtype=dtype).unsqueeze(1)


def flags(count, rows):
    return column([row in rows for row in range(count)], torch.bool)


def steps(count, *, done, terminated=(), rewards=None, next_observation=None):
    """Return steps whose observation is the row, and whose action is 10 more."""
    rows = torch.arange(count, dtype=torch.float32).unsqueeze(1)
    return TensorDict(
        {
            "observation": rows,
            "action": rows + 10,
            "next": {
                "observation": rows + 1 if next_observation is None else column(next_observation),
                "reward": torch.ones(count, 1) if rewards is None else column(rewards),
                "done": flags(count, done),
                "terminated": flags(count, terminated),
            },
        },
        [count],
    )


def buffer(data, transform, sampler=None):
    """Return a buffer of single steps, which reads windows by row."""
    rb = TensorDictReplayBuffer(
        storage=LazyTensorStorage(len(data)), transform=transform, batch_size=64, sampler=sampler
    )
    rb.extend(data)
    return rb


def numbers(value):
    return value.squeeze(-1).tolist()


class TestDiffusionPolicy:
    given = GOLDEN["diffusion_policy_create_indices"]

    @pytest.fixture
    def preset(self):
        given = self.given
        return WindowTransform.diffusion_policy(given["sequence_length"], given["pad_before"], given["pad_after"])

    def test_the_sequences_and_their_padding_are_equal(self, preset):
        rb = buffer(steps(8, done=[4, 7]), preset)
        sampler = preset.sampler()
        rows = sampler.sample(rb.storage, 500)[0].unique()

        assert numbers(rb[rows]["observation"]) == GOLDEN["diffusion_policy_sequences"]
        assert numbers(rb[rows]["action"] - 10) == GOLDEN["diffusion_policy_sequences"]

    def test_only_the_first_steps_of_a_key_are_read(self):
        given = self.given
        numbers_of_steps = given["sequence_length"], given["pad_before"], given["pad_after"]
        preset = WindowTransform.diffusion_policy(*numbers_of_steps, key_first_k={"observation": 2})
        rb = buffer(steps(8, done=[4, 7]), preset)
        rows = preset.sampler().sample(rb.storage, 500)[0].unique()

        expected = GOLDEN["diffusion_policy_sequences"]
        assert numbers(rb[rows]["observation"]) == [sequence[:2] for sequence in expected]
        assert numbers(rb[rows]["action"] - 10) == expected

    def test_fewer_starts_are_admitted_with_less_padding(self):
        """One step before and none after: starts from -1 to L - H, as the code counts them."""
        preset = WindowTransform.diffusion_policy(4, 1, 0)
        rb = buffer(steps(8, done=[4, 7]), preset, preset.sampler())
        drawn = {tuple(one) for one in numbers(rb.sample(200)["observation"])}

        assert drawn == {(0, 0, 1, 2), (0, 1, 2, 3), (1, 2, 3, 4), (5, 5, 6, 7)}


def test_octo_also_leaves_the_first_repeated_actions_unmasked():
    """Octo masks (t - (window + 1) + w + h), which is two steps late; the mask by index is ours."""
    given = GOLDEN["octo_task_completed"]
    rb = buffer(steps(5, done=[4]), WindowTransform.octo(given["window"], given["horizon"]))
    padding = (~rb[:]["action_pad_mask"]).tolist()

    assert padding == given["padding_by_index"]
    assert padding != given["completed_as_written"]
    assert rb[:]["timestep_pad_mask"].tolist() == [[True]] * 5


def test_the_last_frame_of_lerobot_repeats_its_action():
    """Offsets 0 to 3 at the last frame: the last action four times, of which three are padding."""
    last = buffer(steps(5, done=[4]), WindowTransform.lerobot(4))[4:5]

    assert numbers(last["action"]) == [[14, 14, 14, 14]]
    assert last["action_is_pad"].tolist() == [[False, True, True, True]]


def test_windows_of_robomimic_have_one_mask():
    first = buffer(steps(5, done=[4]), WindowTransform.robomimic(2, frame_stack=3))[:1]

    assert numbers(first["observation"]) == [[0, 0, 0, 1]]
    assert first["pad_mask"].tolist() == [[False, False, True, True]]


def test_chunks_of_act_are_filled_with_zeros():
    last = buffer(steps(5, done=[4]), WindowTransform.act(3))[3:4]

    assert numbers(last["action"]) == [[13, 14, 0]]
    assert last["is_pad"].tolist() == [[False, False, True]]


class TestDecisionTransformer:
    def test_a_sequence_of_corl_is_equal(self):
        given = GOLDEN["corl_dt_prepare_sample"]
        preset = SequenceTransform.dt_corl(
            given["seq_len"], mean=given["mean"], std=given["std"], reward_scale=given["reward_scale"]
        )
        batch = buffer(steps(5, done=[4]), preset)[given["start"] : given["start"] + 1]
        names = {
            "states": "observation",
            "actions": "action",
            "returns": "returns_to_go",
            "time_steps": "timesteps",
            "mask": "mask",
        }

        for name, key in names.items():
            expected = torch.tensor([given["result"][name]], dtype=torch.float32)
            torch.testing.assert_close(batch[key].float().reshape(expected.shape), expected)

    @pytest.mark.parametrize("in_slices", [False, True])
    def test_sequences_of_chen_are_equal_except_for_the_padding_of_states(self, in_slices):
        """Their padding of states is -mean / std, because they normalize after padding."""
        lengths, size = [5, 1, 3], 4
        rng, count = np.random.default_rng(0), sum(lengths)
        rewards, ends = rng.integers(1, 9, count).astype(float), np.cumsum(lengths)
        data = steps(count, done=ends - 1, terminated=[ends[0] - 1], rewards=rewards.tolist())
        preset = SequenceTransform.dt_kzl(size, mean=2.0, std=4.0, scale=10, max_timestep=3)
        batch = preset(data) if in_slices else buffer(data, preset)[:]
        for row in range(count):
            stop = int(ends[ends > row][0])
            start = stop - lengths[int(np.flatnonzero(ends == stop)[0])]
            real = np.arange(row, min(row + size, stop))
            left = [0] * (size - len(real))
            to_go = [rewards[at:stop].sum() / 10 for at in range(row, row + len(real) + 1)]

            assert batch["mask"][row].tolist() == [False] * len(left) + [True] * len(real)
            assert numbers(batch["observation"][row]) == left + ((real - 2) / 4).tolist()
            assert numbers(batch["action"][row]) == [-10] * len(left) + (real + 10.0).tolist()
            assert numbers(batch["rewards"][row]) == left + rewards[real].tolist()
            assert batch["dones"][row].tolist() == [2] * len(left) + (real == ends[0] - 1).astype(int).tolist()
            assert batch["timesteps"][row].tolist() == left + np.minimum(real - start, 3).tolist()
            np.testing.assert_allclose(numbers(batch["returns_to_go"][row]), left + to_go, rtol=1e-6)


class TestQChunks:
    given = GOLDEN["qc_sample_sequence"]

    @pytest.fixture
    def data(self):
        terminated = np.flatnonzero(np.array(self.given["masks_in"]) == 0)
        return steps(10, done=np.flatnonzero(self.given["terminals"]), terminated=terminated)

    def test_chunks_that_cross_the_ends_of_trajectories_are_equal(self, data):
        batch = buffer(data, QChunkTransform(4, 0.9, "cross"))[torch.tensor(self.given["idxs"])]["chunk"]
        names = {"rewards": "reward", "masks": "mask", "terminals": "terminal", "valid": "valid"}

        for name, key in names.items():
            torch.testing.assert_close(batch[key].float(), torch.tensor(self.given["batch"][name]))
        assert numbers(batch["action"] - 10) == self.given["actions"]
        assert numbers(batch["next_action"] - 10) == self.given["next_actions"]

    @pytest.mark.parametrize("in_slices", [False, True])
    def test_by_default_nothing_of_another_trajectory_is_read(self, data, in_slices):
        transform = QChunkTransform(4, 0.9)
        batch = transform(data) if in_slices else buffer(data, transform)[:]
        chunk = batch["chunk"]

        torch.testing.assert_close(chunk["reward"][3:5], torch.tensor([[1, 1.9, 1.9, 1.9], [1, 1, 1, 1]]))
        assert numbers(chunk["action"][3]) == [13, 14, 14, 14]
        assert numbers(chunk["next_action"][3]) == [14, 14, 14, 14]
        assert chunk["valid"][4].tolist() == [True, False, False, False]
        assert numbers(batch["next", "observation"])[:6] == [4, 5, 5, 5, 5, 9]
        torch.testing.assert_close(batch["gamma"][:6], 0.9 ** torch.tensor([4.0, 4, 3, 2, 1, 4]))
        assert batch["nonterminal"].tolist() == [True] * 5 + [False] * 3 + [True] * 2


class TestTargetsOfSeveralSteps:
    """d3rlpy: 5 steps with rewards 1 to 5, n = 3. Its episodes have no final observation."""

    def batch(self, *, terminated, known=True):
        data = steps(5, done=[4], terminated=[4] if terminated else [], rewards=[1, 2, 3, 4, 5])
        if not known:
            data["next", "final_known"] = ~data["next", "done"]
        return buffer(data, MultiStepTransform(3, 0.9))[:]

    def check(self, batch, expected, rows):
        for row in rows:
            one = expected[str(row)]
            assert batch["next", "reward"][row].item() == pytest.approx(one["reward"][0])
            assert batch["steps_to_next_obs"][row] == one["interval"]
            assert batch["gamma"][row].item() == pytest.approx(0.9 ** one["interval"])
            assert bool(batch["nonterminal"][row]) != bool(one["terminal"])
            if not one["terminal"]:
                assert batch["next", "observation"][row].tolist() == one["next_obs"]

    def test_a_termination_ends_the_sum(self):
        self.check(self.batch(terminated=True), GOLDEN["d3rlpy_multistep3"]["True"], range(5))

    def test_with_a_known_final_observation_a_timeout_only_differs_in_the_flag(self):
        batch, ended = (self.batch(terminated=flag) for flag in (False, True))

        for key in ("steps_to_next_obs", "gamma", ("next", "reward"), ("next", "observation")):
            assert torch.equal(batch[key], ended[key])
        assert batch["nonterminal"].all()
        assert numbers(batch["next", "observation"]) == [3, 4, 5, 5, 5]

    def test_with_an_unknown_final_observation_a_timeout_ends_at_the_last_known_one(self):
        """As in d3rlpy, which has no transition for the last step."""
        batch = self.batch(terminated=False, known=False)

        self.check(batch, GOLDEN["d3rlpy_multistep3"]["False"], range(4))
        assert not batch["nonterminal"][4]
        assert not batch["next", "final_known"][4]

    @pytest.mark.parametrize("terminated", [False, True])
    def test_the_starts_of_drqv2_have_equal_targets(self, terminated):
        """Its replay buffer draws starts with n steps left, and multiplies the stored discounts: 0 at a termination."""
        batch, rewards, n = self.batch(terminated=terminated), [1, 2, 3, 4, 5], 3
        for start in range(5 - n + 1):
            reward, discount = 0.0, 1.0
            for step in range(n):
                reward += discount * rewards[start + step]
                discount *= 0.9 * (0 if terminated and start + step == 4 else 1)
            assert batch["next", "reward"][start].item() == pytest.approx(reward)
            assert (batch["gamma"] * batch["nonterminal"])[start].item() == pytest.approx(discount)
            assert batch["next", "observation"][start].item() == start + n

    def test_a_timeout_ends_the_sum_unlike_in_fasttd3(self):
        """FastTD3 adds the rewards of the next episode to the targets before a time-out."""
        given = GOLDEN["fasttd3_nstep3"]
        data = steps(8, done=[3, 5], terminated=[3])
        batch = buffer(data, MultiStepTransform(3, given["gamma"]))[:]
        ours = {
            row: (batch["next", "reward"][row].item(), batch["next", "observation"][row].item(), int(k))
            for row, k in enumerate(batch["steps_to_next_obs"])
        }
        theirs = {
            int(row): (one["reward"][0], one["next_obs"][0], one["eff"][0]) for row, one in given["by_start"].items()
        }

        for row in range(4):
            assert ours[row] == pytest.approx(theirs[row])
        assert theirs[5] == pytest.approx((2.71, 6, 3))
        assert ours[5] == (1, 6, 1)
        assert ours[4] == pytest.approx((1.9, 6, 2))
        assert ours[6] == pytest.approx((1.9, 8, 2))


def test_stacks_are_right_at_both_ends_unlike_in_ogbench():
    """In its compact files, the last state of a trajectory counts as a trajectory, so that its stack repeats it."""
    given = GOLDEN["stack_compact"]["stack"]
    states = [0, 1, 2, 3, 5, 6, 7, 8]
    data = steps(8, done=[3, 7], next_observation=[1, 2, 3, 4, 6, 7, 8, 9])
    data["observation"] = column(states)
    batch = buffer(data, CatFrames(3, -1, ["observation", ("next", "observation")]))[:]
    after = batch["next", "observation"].tolist()

    assert batch["observation"].tolist() == [given[str(state)] for state in states]
    assert [after[row] for row in (0, 1, 2, 4, 5, 6)] == [given[str(state)] for state in (1, 2, 3, 6, 7, 8)]
    assert given["4"] == [4, 4, 4]
    assert [after[3], after[7]] == [[2, 3, 4], [7, 8, 9]]


class TestRandomShift:
    def of_drqv2(self, x, size, shift):
        """Return images shifted as by `RandomShiftsAug.forward` of DrQ-v2, by `grid_sample`."""
        count, _, height, _ = x.shape
        x = pad(x, (size,) * 4, "replicate")
        eps = 1.0 / (height + 2 * size)
        line = torch.linspace(-1.0 + eps, 1.0 - eps, height + 2 * size)[:height]
        line = line.unsqueeze(0).repeat(height, 1).unsqueeze(2)
        grid = torch.cat([line, line.transpose(1, 0)], dim=2).unsqueeze(0).repeat(count, 1, 1, 1)
        moved = grid + shift.reshape(count, 1, 1, 2) * 2.0 / (height + 2 * size)
        return grid_sample(x, moved, padding_mode="zeros", align_corners=False)

    def test_images_of_bytes_equal_those_of_drqv2_with_the_same_seed(self):
        images = torch.randint(256, (9, 3, 20, 20), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
        torch.manual_seed(1)
        ours = RandomShift(4)(TensorDict({"pixels": images}, [9]))["pixels"]
        torch.manual_seed(1)
        shift = torch.randint(0, 9, (9, 1, 1, 2))
        theirs = self.of_drqv2(images.float(), 4, shift)

        assert ours.dtype == torch.uint8
        torch.testing.assert_close(ours.float(), theirs, rtol=1e-5, atol=0.01)

    def test_the_images_of_a_row_are_shifted_together_if_asked(self):
        """As OGBench's: channels last, pad 3, and the same shift for the observation and the next one."""
        images = torch.randint(256, (50, 8, 7, 3), dtype=torch.uint8)
        keys = ["pixels", ("next", "pixels")]
        batch = TensorDict({"pixels": images, "next": {"pixels": images}, "other": images}, [50])
        shifted = RandomShift(3, [*keys, "other"], same_for=keys, channels_last=True)(batch)
        edges = np.pad(images.numpy(), ((0, 0), (3, 3), (3, 3), (0, 0)), mode="edge")
        crops = np.lib.stride_tricks.sliding_window_view(edges, (8, 7), (1, 2))

        assert torch.equal(shifted["pixels"], shifted["next", "pixels"])
        assert not torch.equal(shifted["pixels"], shifted["other"])
        for number, image in enumerate(shifted["pixels"].numpy()):
            assert (crops[number] == image.transpose(2, 0, 1)).all((-3, -2, -1)).any()

    def test_a_batch_is_shifted_with_a_probability(self):
        batch = TensorDict({"pixels": torch.randint(256, (20, 3, 9, 9), dtype=torch.uint8)}, [20])
        torch.manual_seed(0)
        unchanged = sum(RandomShift(4, p=0.5)(batch)["pixels"] is batch["pixels"] for _ in range(200))

        assert 70 < unchanged < 130
        assert RandomShift(4, p=0)(batch)["pixels"] is batch["pixels"]

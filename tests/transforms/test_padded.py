"""Slices and rollouts as padded trajectories: the shape, the mask, and the input of a Decision Transformer."""

from __future__ import annotations

import importlib.util
import warnings

import numpy as np
import pytest
import torch
from stored_data import trajectory, write_dataset
from tensordict import TensorDict

from datasets_rl import (
    LazyTensorStorage,
    MultiStep,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    TensorDictReplayBuffer,
    load,
)
from datasets_rl.errors import InvalidArgumentError, UnknownKeyError
from datasets_rl.preprocessing import Recipe
from datasets_rl.transforms import (
    GAE,
    MultiStepTransform,
    Reward2GoTransform,
    StepCounter,
    TrajCounter,
    WindowTransform,
    split_trajectories,
)

NEEDS_TORCHRL = pytest.mark.skipif(importlib.util.find_spec("torchrl") is None, reason="torchrl is not installed")
SAMPLERS = [SliceSampler, SliceSamplerWithoutReplacement]


def episodes(*lengths):
    steps = torch.cat([torch.arange(length) for length in lengths])
    done = torch.cat([torch.arange(length) == length - 1 for length in lengths]).unsqueeze(-1)
    numbers = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    fields = {"observation": 1.0 + steps.unsqueeze(-1), "step": steps, "episode": numbers}
    return TensorDict({**fields, "next": {"done": done, "reward": done.float()}}, [sum(lengths)])


def buffer(sampler, *lengths, batch_size=64):
    rb = TensorDictReplayBuffer(storage=LazyTensorStorage(1000), sampler=sampler, batch_size=batch_size)
    rb.extend(episodes(*lengths))
    return rb


def check(batch, count, longest):
    """Compare the padded form of a batch of slices with a loop over its steps."""
    mask = batch.get(("collector", "mask"), torch.ones(len(batch), dtype=torch.bool))
    slices = [batch[batch["slice_id"] == number] for number in dict.fromkeys(batch["slice_id"].tolist())]
    real = [int(mask[batch["slice_id"] == int(one["slice_id"][0])].sum()) for one in slices]
    longest = max(map(len, slices)) if longest is None else longest

    out = split_trajectories(batch)

    assert out.shape == (count, longest)
    where = ("collector", "mask") if "collector" in batch else "mask"
    for number, (one, length) in enumerate(zip(slices, real, strict=True)):
        assert out[where][number].tolist() == [True] * length + [False] * (longest - length)
        assert torch.equal(out["observation"][number, :length], one["observation"][:length])
        assert not out["observation"][number, length:].any()
        assert not out["next", "done"][number, length:].any()
        assert (one["episode"] == one["episode"][0]).all()


class TestPaddedSlices:
    def test_episodes_shorter_than_the_slice_give_the_full_shape(self):
        sampler = SliceSampler(slice_len=16, strict_length=False, pad_output=True)
        out = split_trajectories(buffer(sampler, 10, 10, 10).sample())

        assert out.shape == (4, 16)
        assert out["collector", "mask"].tolist() == [[True] * 10 + [False] * 6] * 4
        assert out["step"].tolist() == [[*range(10), *[0] * 6]] * 4

    @pytest.mark.parametrize("span", [False, True, 3, (False, True), (True, False), (2, 5)])
    @pytest.mark.parametrize(("strict", "pad"), [(True, False), (False, False), (False, True)])
    def test_every_type_of_slice_is_split_into_itself(self, span, strict, pad):
        for seed in range(5):
            torch.manual_seed(seed)
            sampler = SliceSampler(slice_len=16, strict_length=strict, pad_output=pad, span=span)
            batch = buffer(sampler, 3, 20, 10, 1, 40).sample()
            check(batch, 4, 16 if pad or (not span and strict) else None)

    @pytest.mark.parametrize("strict", [True, False])
    @pytest.mark.parametrize("pad", [True, False])
    def test_slices_without_replacement_are_split_into_themselves(self, strict, pad):
        if strict and pad:
            with pytest.raises(InvalidArgumentError, match="pad_output"):
                SliceSamplerWithoutReplacement(slice_len=16, strict_length=strict, pad_output=pad)
            return
        sampler = SliceSamplerWithoutReplacement(slice_len=16, strict_length=strict, pad_output=pad)
        batch = buffer(sampler, 20, 30, 10, 5, 40, 16).sample()
        check(batch, 4, 16 if pad or strict else None)

    def test_given_trajectory_numbers_keep_the_padding_with_its_slice(self):
        sampler = SliceSampler(slice_len=16, strict_length=False, pad_output=True)
        batch = buffer(sampler, 10).sample()

        out = split_trajectories(batch, trajectory_key="slice_id")
        assert out.shape == (4, 16)
        assert out["mask"].sum(-1).tolist() == [10] * 4
        assert split_trajectories(batch.exclude("slice_id", "episode")).shape == (4, 16)

    @pytest.mark.parametrize("span", [True, 3, (False, True)])
    def test_with_strict_length_a_span_does_not_allow_short_episodes(self, span):
        sampler = SliceSampler(slice_len=16, strict_length=True, span=span)

        assert set(buffer(sampler, 10, 20, batch_size=16 * 200).sample()["episode"].tolist()) == {1}


def rollout():
    """Six steps of two trajectories, as a collector returns them."""
    collector = {"traj_ids": torch.tensor([0, 0, 0, 0, 1, 1])}
    done = torch.zeros(6, 1, dtype=torch.bool)
    return TensorDict({"obs": torch.arange(6.0), "collector": collector, "next": {"done": done}}, [6])


class TestLikeTorchRL:
    """The expected values are those of TorchRL 0.14.1."""

    def test_the_mask_is_next_to_the_numbers(self):
        out = split_trajectories(rollout())

        assert out["collector", "mask"].tolist() == [[True] * 4, [True, True, False, False]]
        assert "mask" not in out.keys()  # noqa: SIM118 - a TensorDict iterates over its steps
        assert out["obs"].tolist() == [[0, 1, 2, 3], [4, 5, 0, 0]]
        assert out["collector", "traj_ids"].tolist() == [[0, 0, 0, 0], [1, 1, 0, 0]]

    def test_a_prefix_determines_the_keys_of_numbers_and_mask(self):
        named = rollout().rename_key_("collector", "worker")
        out = split_trajectories(named, prefix="worker")
        assert out["worker", "mask"].tolist() == [[True] * 4, [True, True, False, False]]

        flags = rollout().exclude("collector")
        flags["next", "done"][2] = True
        out = split_trajectories(flags, prefix="worker")
        assert out["worker", "traj_ids"].tolist() == [[0, 0, 0], [1, 1, 1]]
        assert out["obs"].tolist() == [[0, 1, 2], [3, 4, 5]]
        out = split_trajectories(flags)
        assert out["traj_ids"].tolist() == [[0, 0, 0], [1, 1, 1]]
        assert out["mask"].all()

    def test_numbers_take_precedence_over_flags(self):
        steps = rollout()
        steps["next", "done"][1] = True

        assert split_trajectories(steps).shape == (2, 4)
        assert split_trajectories(steps, trajectory_key=("collector", "traj_ids")).shape == (2, 4)

    @pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
    @pytest.mark.parametrize("layout", [True, torch.strided, torch.jagged])
    def test_nested_tensors_have_the_same_steps_without_padding(self, layout):
        nested = split_trajectories(rollout(), as_nested=layout)

        assert nested["obs"].is_nested
        assert [part.tolist() for part in nested["obs"].unbind()] == [[0, 1, 2, 3], [4, 5]]
        padded = torch.nested.to_padded_tensor(nested["obs"], 0.0)
        assert torch.equal(padded, split_trajectories(rollout())["obs"])

    @pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
    def test_nested_slices_have_no_padding(self):
        sampler = SliceSampler(slice_len=16, strict_length=False, pad_output=True)
        torch.manual_seed(0)
        nested = split_trajectories(buffer(sampler, 10, 12).sample(), as_nested=True)

        assert {len(part) for part in nested["step"].unbind()} == {10, 12}

    @NEEDS_TORCHRL
    @pytest.mark.parametrize("options", [{}, {"prefix": "collector"}, {"trajectory_key": ("collector", "traj_ids")}])
    def test_torchrl_gives_the_same(self, options):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from torchrl.collectors.utils import split_trajectories as theirs

            expected = theirs(rollout(), **options)
        out = split_trajectories(rollout(), **options)

        assert set(out.keys(True)) == set(expected.keys(True))
        assert (out == expected).all()


class TestWholeEpisodes:
    """`split_trajs`: batches [E, T], padded with zeros, with a mask."""

    @pytest.fixture
    def stored(self, tmp_path):
        return write_dataset(tmp_path / "stored", [trajectory(3), trajectory(5, seed=1), trajectory(1, seed=2)]).folder

    @pytest.mark.parametrize("out_key", [("next", "reward"), ("to_go",)])
    def test_rewards_to_go_are_those_of_each_episode(self, stored, out_key):
        transform = Reward2GoTransform(0.5, out_keys=[out_key])
        plain, dataset = (load(stored, split_trajs=True, transform=chosen) for chosen in (None, transform))
        expected = plain[:]["next", "reward"].clone()
        for step in range(3, -1, -1):  # rewards of padding are 0
            expected[:, step] += 0.5 * expected[:, step + 1]

        torch.testing.assert_close(dataset[:][out_key], expected)
        torch.testing.assert_close(dataset[1][out_key], expected[1])
        batch, info = dataset.sample(8, return_info=True)
        torch.testing.assert_close(batch[out_key], expected[info["index"]])

    def test_rewards_to_go_are_written_under_two_keys_as_torchrls_decision_transformer_reads_them(self, stored):
        """TorchRL's own D4RL data has a second reward, which no dataset here has."""
        reward = ("next", "reward")
        transform = Reward2GoTransform(in_keys=[reward] * 2, out_keys=[("next", "return_to_go"), "return_to_go"])
        batch, plain = (load(stored, split_trajs=True, transform=chosen)[:] for chosen in (transform, None))
        expected = plain[reward].flip(1).cumsum(1).flip(1)  # rewards of padding are 0

        torch.testing.assert_close(batch["return_to_go"], expected)
        torch.testing.assert_close(batch["next", "return_to_go"], expected)
        missing = Reward2GoTransform(in_keys=[reward, "reward"], out_keys=[("next", "return_to_go"), "return_to_go"])
        with pytest.raises(UnknownKeyError, match="no key 'reward' among"):
            load(stored, split_trajs=True, transform=missing).sample(2)

    def test_trajectories_are_numbered_without_their_padding(self, stored):
        batch = load(stored, split_trajs=True, transform=TrajCounter())[:]

        assert batch["traj_count"][..., 0][batch["mask"]].tolist() == [0] * 3 + [1] * 5 + [2]

    @pytest.mark.parametrize("where", ["mask", ("collector", "mask")])
    def test_windows_end_before_the_padding_without_a_flag(self, where):
        data = TensorDict({"action": torch.tensor([[1.0, 2, 0], [3, 4, 5]]).unsqueeze(-1)}, [2, 3])
        data[where] = torch.tensor([[True, True, False], [True, True, True]])
        out = WindowTransform({"action": (0, 1)})(data)

        assert out["action"].squeeze(-1).tolist() == [[[1, 2], [2, 2], [0, 0]], [[3, 4], [4, 5], [5, 5]]]
        assert out["action_valid"][0, :2].tolist() == [[True, True], [True, False]]

    def test_advantages_end_before_the_padding_without_a_flag(self):
        value = torch.zeros(1, 3, 1)
        later = torch.tensor([[[0.0], [2.0], [0.0]]])
        data = {"state_value": value, "next": {"state_value": later, "reward": torch.tensor([[[1.0], [1.0], [9.0]]])}}
        batch = TensorDict({**data, "mask": torch.tensor([[True, True, False]])}, [1, 3])

        assert GAE(gamma=0.5, lmbda=1.0)(batch)["advantage"][0, :2, 0].tolist() == [2.0, 2.0]

    def test_rewards_to_go_that_were_not_written_are_reported(self):
        with pytest.raises(InvalidArgumentError, match=r"no rewards to go, \['to_go'\]: Reward2GoTransform computes"):
            Reward2GoTransform(out_keys=["to_go"])(episodes(3))


class TestMultiStepOfSplitTrajectories:
    """Rewards 1, discount 0.5, two steps: 1.5, and 1 for the last step of a trajectory."""

    @pytest.mark.parametrize("where", ["mask", ("collector", "mask"), "other"])
    @pytest.mark.parametrize("make", [MultiStep, lambda gamma, n, **keys: MultiStepTransform(n, gamma, **keys)])
    def test_the_mask_is_found_and_padding_is_terminal(self, where, make):
        reward = torch.ones(2, 3, 1)
        data = TensorDict({"next": {"reward": reward, "terminated": torch.zeros_like(reward).bool()}}, [2, 3])
        data[where] = torch.tensor([[True, True, True], [True, False, False]])
        out = make(0.5, 2, **({"mask_key": where} if where == "other" else {}))(data)

        assert out["nonterminal"].tolist() == [[True, True, True], [True, False, False]]
        assert out["next", "reward"][0].flatten().tolist() == [1.5, 1.5, 1]
        assert out["next", "reward"][1, 0].item() == 1

    @pytest.mark.parametrize("transform", [MultiStep(0.5, 2), MultiStepTransform(2, 0.5)])
    def test_in_a_buffer_it_follows_the_function(self, transform):
        sampler = SliceSampler(slice_len=6, strict_length=False, pad_output=True)
        rb = TensorDictReplayBuffer(storage=LazyTensorStorage(20), sampler=sampler, batch_size=60)
        rb.extend(episodes(10, 4).apply(lambda leaf: torch.ones_like(leaf) if leaf.dtype == torch.float32 else leaf))
        rb.append_transform(split_trajectories)
        rb.append_transform(transform)
        torch.manual_seed(0)
        for batch in (rb.sample(), rb[:]):
            mask = batch.get(("collector", "mask"), None)
            mask = batch["mask"] if mask is None else mask
            last = mask.sum(1) - 1
            expected = torch.where(torch.arange(mask.shape[1]) == last.unsqueeze(1), 1.0, 1.5)

            assert torch.equal(batch["next", "reward"].squeeze(-1)[mask], expected[mask])
            assert not batch["nonterminal"][~mask].any()

    def test_steps_that_a_function_leaves_out_are_reported(self):
        rb = buffer(None, 10, 10)
        rb.append_transform(lambda batch: batch[batch["step"] > 2])
        rb.append_transform(MultiStep(0.5, 2))

        with pytest.raises(InvalidArgumentError, match="steps for 128 rows of the storage, expected the same number"):
            rb.sample()


def test_trajectories_of_several_environments_are_whole():
    rb = TensorDictReplayBuffer(storage=LazyTensorStorage(40, ndim=2))
    rb.extend(torch.stack([episodes(3, 2), episodes(5)]))
    expected = [[0, 1, 2, 0, 0], [0, 1, 0, 0, 0], [0, 1, 2, 3, 4]]

    assert split_trajectories(rb[:])["step"].tolist() == expected
    assert split_trajectories(rb[1:4])["step"].tolist() == [[1, 2, 0], [0, 0, 0], [1, 2, 3]]
    rb.append_transform(split_trajectories)
    assert rb[:]["step"].tolist() == expected


@pytest.mark.parametrize("transform", [MultiStep(0.9, 3), MultiStepTransform(3, 0.9)])
def test_multi_step_targets_have_the_shape_of_the_batch(transform):
    flags = torch.zeros(5, 11, 1, dtype=torch.bool)
    obs = torch.randn(5, 11, 1)
    out = transform(
        TensorDict({"obs": obs, "done": flags, "next": {"obs": obs, "done": flags, "reward": obs}}, [5, 11])
    )

    assert {out[name].shape for name in ("gamma", "nonterminal", "steps_to_next_obs")} == {(5, 11)}
    torch.testing.assert_close(out["gamma"][0, -3:], torch.tensor([0.9**3, 0.9**2, 0.9]))


def test_multi_step_targets_from_a_storage_have_the_shape_of_the_batch():
    rb = buffer(None, 10, 10)
    rb.append_transform(MultiStepTransform(3, 0.9))
    batch = rb.sample(32)

    assert {batch[name].shape for name in ("gamma", "nonterminal", "steps_to_next_obs")} == {(32,)}


def test_a_decision_transformer_gets_windows_with_returns_timesteps_and_mask(tmp_path):
    """From a stored dataset to [B, K] windows, compared with a plain loop over the episodes."""
    given = [trajectory(length, terminated=length % 2 == 0) for length in (5, 12, 30, 9)]
    write_dataset(tmp_path / "plain", given)
    load(tmp_path / "plain").preprocess(Recipe.inline(["returns_to_go"]), dest=tmp_path / "ready")
    sampler = SliceSampler(slice_len=10, strict_length=False, pad_output=True)
    dataset = load(tmp_path / "ready", sampler=sampler, transform=StepCounter(), batch_size=80)

    starts = [0, 5, 17, 47]
    rewards = [one.steps["next", "reward"][:, 0].astype(np.float64) for one in given]
    for seed in range(3):
        torch.manual_seed(seed)
        out = split_trajectories(dataset.sample())

        assert out.shape == (8, 10)
        mask = out["collector", "mask"]
        for row in range(8):
            episode, first = int(out["episode"][row, 0]), int(out["index"][row, 0])
            first -= starts[episode]
            length = min(10, len(rewards[episode]))
            assert mask[row].tolist() == [True] * length + [False] * (10 - length)
            for step in range(length):
                at = first + step
                assert int(out["step_count"][row, step]) == at
                assert float(out["returns_to_go"][row, step].squeeze()) == pytest.approx(
                    sum(rewards[episode][at:]), rel=1e-5, abs=1e-5
                )
                state = given[episode].states["observation",][at]
                assert torch.equal(out["observation"][row, step], torch.from_numpy(state))
            assert not out["returns_to_go"][row, length:].any()

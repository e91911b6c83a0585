"""Stacks, targets, returns and counts at the starts and ends of episodes, with hand-computed results."""

from __future__ import annotations

import os
import pickle

import numpy as np
import pytest
import torch
from stored_data import Column, columns, trajectory, write_dataset
from tensordict import TensorDict

from datasets_rl import (
    DatasetStorage,
    LazyTensorStorage,
    ListStorage,
    MultiStep,
    ReplayBuffer,
    ReplayBufferEnsemble,
    SliceSampler,
    TensorDictReplayBuffer,
    load,
)
from datasets_rl.errors import InvalidArgumentError, UnknownKeyError
from datasets_rl.ted.trajectories import Trajectories
from datasets_rl.transforms import (
    ActionChunkTransform,
    CatFrames,
    Compose,
    MultiStepTransform,
    ObservationNorm,
    QChunkTransform,
    Reward2GoTransform,
    RewardScaling,
    RewardSum,
    SelectTransform,
    StepCounter,
    TargetReturn,
    TimeMaxPool,
)

STACKED = ["observation", ("next", "observation")]


def steps(rewards, ends, *, terminated=True):
    """Consecutive steps with observations 0, 1, ...; the final observation of an episode is 100 larger."""
    count = len(rewards)
    done = torch.tensor(ends, dtype=torch.bool).unsqueeze(1)
    observation = torch.arange(count, dtype=torch.float32).unsqueeze(1)
    return TensorDict(
        {
            "observation": observation,
            "action": observation * 10,
            "next": {
                "observation": observation + 1 + 99 * done,
                "reward": torch.tensor(rewards, dtype=torch.float32).unsqueeze(1),
                "done": done,
                "terminated": done & terminated,
                "truncated": done & (not terminated),
            },
        },
        [count],
    )


def buffer(data, transform, *, size=None):
    rb = TensorDictReplayBuffer(storage=LazyTensorStorage(size or len(data)), transform=transform, batch_size=32)
    rb.extend(data)
    return rb


def row(value):
    return value.reshape(len(value), -1).tolist() if value[0].numel() > 1 else value.reshape(-1).tolist()


class TestMultiStep:
    """Rewards 1, 2, 4 in one episode and 8, 16 in the next; gamma = 1/2, three steps."""

    @pytest.fixture
    def data(self):
        return buffer(steps([1, 2, 4, 8, 16], [0, 0, 1, 0, 1]), MultiStepTransform(3, 0.5))[:]

    def test_rewards_are_summed_to_the_end_of_the_episode(self, data):
        assert row(data["next", "reward"]) == [1 + 1 + 1, 2 + 2, 4, 8 + 8, 16]
        assert row(data["next", "original_reward"]) == [1, 2, 4, 8, 16]

    def test_the_first_step_of_a_buffer_is_not_lost(self):
        """TorchRL's transform holds back steps at each write."""
        rb = buffer(steps([1, 2], [0, 0]), MultiStepTransform(3, 0.5), size=10)
        rb.extend(steps([4, 8], [0, 0]))

        assert len(rb) == 4
        assert row(rb[:]["next", "reward"]) == [1 + 1 + 1, 2 + 2 + 2, 4 + 4, 8]

    def test_the_newest_step_of_a_full_ring_does_not_reach_the_oldest(self):
        rb = buffer(steps([1, 2, 4, 8], [0, 0, 0, 0]), MultiStepTransform(2, 0.5), size=3)

        assert sorted(row(rb[:]["next", "reward"])) == [2 + 2, 4 + 4, 8]

    def test_the_number_of_steps_can_change(self):
        transform = MultiStepTransform(1, 0.5)
        rb = buffer(steps([1, 2, 4], [0, 0, 1]), transform)
        assert row(rb[:]["next", "reward"]) == [1, 2, 4]
        transform.n_steps = 2

        assert row(rb[:]["next", "reward"]) == [2, 4, 4]
        with pytest.raises(InvalidArgumentError, match="n_steps is 0"):
            transform.n_steps = 0

    def test_targets_exclude_the_padding_of_trajectories(self):
        data = steps([1, 2, 0, 4, 8, 16], [0] * 6).reshape(2, 3)
        data["mask"] = torch.tensor([[True, True, False], [True, True, True]])
        made = MultiStep(0.5, 2)(data)

        assert made["next", "reward"].squeeze(-1).tolist() == [[2, 2, 0], [8, 16, 16]]

    def test_rewards_of_other_names_and_of_integers(self):
        data = steps([1, 2], [0, 1])
        data["next", "deep"] = TensorDict({"points": torch.tensor([[1], [2]])}, [2])
        made = MultiStepTransform(2, 0.5, reward_keys=[("deep", "points")])(data)

        assert row(made["next", "deep", "points"]) == [2, 2]
        assert row(made["next", "deep", "original_points"]) == [1, 2]

    def test_without_a_termination_flag_done_is_used(self):
        data = steps([1, 2], [0, 1]).exclude(("next", "terminated"), ("next", "truncated"))
        bare = data.exclude(("next", "done"))

        assert row(MultiStepTransform(1, 0.5)(data)["nonterminal"]) == [True, False]
        assert row(MultiStepTransform(1, 0.5)(bare)["nonterminal"]) == [True, True]


class TestFrames:
    """Episodes of 3 and 2 steps, 3 frames."""

    def test_the_first_frame_is_repeated(self):
        data = buffer(steps([0] * 5, [0, 0, 1, 0, 1]), CatFrames(3, -1, STACKED, mask_key="padded"))[:]

        assert row(data["observation"]) == [[0, 0, 0], [0, 0, 1], [0, 1, 2], [3, 3, 3], [3, 3, 4]]
        assert row(data["next", "observation"]) == [[0, 0, 1], [0, 1, 2], [1, 2, 102], [3, 3, 4], [3, 4, 104]]
        assert row(data["padded"].int()) == [[1, 1, 0], [1, 0, 0], [0, 0, 0], [1, 1, 0], [1, 0, 0]]

    @pytest.mark.parametrize(("padding", "value"), [("constant", -7), ("zeros", 0)])
    def test_missing_frames_can_be_a_constant(self, padding, value):
        transform = CatFrames(3, -1, STACKED, padding=padding, padding_value=-7)
        data = buffer(steps([0] * 3, [0, 0, 1]), transform)[:]

        assert row(data["observation"]) == [[value, value, 0], [value, 0, 1], [0, 1, 2]]
        assert row(data["next", "observation"]) == [[value, 0, 1], [0, 1, 2], [1, 2, 102]]

    def test_frames_under_next_are_stacked(self):
        data = buffer(steps([0] * 3, [0, 0, 1]), CatFrames(2, -1, STACKED, future=True))[:]

        assert row(data["observation"]) == [[0, 1], [1, 2], [2, 2]]
        assert row(data["next", "observation"]) == [[1, 2], [2, 102], [102, 102]]

    def test_without_current_frames_those_under_next_are_stacked(self):
        data = steps([0] * 3, [0, 0, 1]).exclude("observation")
        rb = buffer(data, CatFrames(2, -1, [("next", "observation")]))

        assert row(rb[:]["next", "observation"]) == [[1, 1], [1, 2], [2, 102]]

    def test_the_axis_of_image_stacks(self):
        data = steps([0] * 2, [0, 1]).set("pixels", torch.arange(24).reshape(2, 2, 3, 2))
        first, second = data["pixels"]

        assert torch.equal(CatFrames(2, -3)(data)["pixels"][1], torch.cat([first, second]))
        assert torch.equal(CatFrames(2, -2)(data)["pixels"][1], torch.cat([first, second], 1))
        assert torch.equal(CatFrames(2, -1)(data)["pixels"][1], torch.cat([first, second], 2))
        assert torch.equal(CatFrames(2, -4)(data)["pixels"][1], torch.stack([first, second]))
        with pytest.raises(InvalidArgumentError, match="dim is -5, expected at least -4 for frames of shape"):
            CatFrames(2, -5)(data)

    def test_frames_can_be_stacked_on_write(self):
        rb = buffer(steps([0] * 3, [0, 0, 1]), CatFrames(2, -1, ["observation"], as_inverse=True))

        assert row(rb.storage.column(("observation",))) == [[0, 0], [0, 1], [1, 2]]
        assert row(rb[:]["observation"]) == [[0, 0], [0, 1], [1, 2]]

    def test_stacked_frames_pass_the_preceding_transforms(self):
        """Including the older frames, and only once."""
        rb = buffer(steps([0] * 3, [0, 0, 1]), Compose(ObservationNorm(0.0, 2.0), CatFrames(2, -1, STACKED)))
        rb.append_transform(CatFrames(2, -2, ["observation"], ["twice"]))

        assert row(rb[:]["observation"]) == [[0, 0], [0, 2], [2, 4]]
        assert rb[:]["twice"].tolist() == [[[0, 0], [0, 0]], [[0, 0], [0, 2]], [[0, 2], [2, 4]]]

    def test_all_invalid_arguments_are_reported_at_once(self):
        with pytest.raises(InvalidArgumentError, match=r"N is 0.*; dim is 1.*; padding is 'odd'"):
            CatFrames(0, 1, padding="odd")

    def test_a_missing_entry_is_named(self):
        with pytest.raises(UnknownKeyError, match="no key 'pixels' among"):
            buffer(steps([0], [1]), CatFrames(2, -1)).sample()


class TestAround:
    def test_windows_repeat_the_first_and_the_last_step(self):
        """The example in its docstring."""
        rows, outside = Trajectories(np.array([0, 4]), np.array([4, 3])).windows_around(np.array([1, 6]), range(-2, 2))

        assert rows.tolist() == [[0, 0, 1, 2], [4, 5, 6, 6]]
        assert outside.astype(int).tolist() == [[1, 0, 0, 0], [0, 0, 0, 1]]

    def test_rows_need_not_be_in_chronological_order(self):
        """Two environments that take turns: rows 0, 2, 4 and 1, 3."""
        order, places = np.array([0, 2, 4, 1, 3]), np.array([0, 3, 1, 4, 2])
        rows, _ = Trajectories(np.array([0, 3]), np.array([3, 2]), order, places).windows_around(
            np.arange(5), range(-1, 2)
        )

        assert rows.tolist() == [[0, 0, 2], [1, 1, 3], [0, 2, 4], [1, 3, 3], [2, 4, 4]]

    def test_prefetching_threads_between_writes(self):
        """After each write all threads request the trajectories, and one of them computes the index."""
        rb = TensorDictReplayBuffer(
            storage=LazyTensorStorage(40), transform=CatFrames(3, -1, ["observation"]), batch_size=8, prefetch=4
        )
        for start in range(0, 200, 10):
            piece = steps([0] * 10, [0] * 9 + [1])
            piece["observation"] += start
            rb.extend(piece)
            for _ in range(4):
                early, middle, late = rb.sample()["observation"].unbind(1)
                assert torch.equal(middle, (late - 1).maximum(late - late % 10))
                assert torch.equal(early, (late - 2).maximum(late - late % 10))
        lengths = rb.storage.trajectories().lengths

        assert lengths.tolist() == [10] * 4

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
    def test_a_forked_process_does_not_wait_for_a_thread_of_its_parent(self):
        rb = buffer(steps([1, 2], [0, 1]), CatFrames(2, -1, ["observation"]))
        rb.sample()
        index = rb.storage._indices[None, None, None]
        with index._lock:
            child = os.fork()
            if not child:
                os._exit(rb.storage.trajectories().lengths.tolist() != [2])
        _, status = os.waitpid(child, 0)

        assert status == 0


class TestIndices:
    """Indexing returns the same as a batch of the same rows."""

    @pytest.mark.parametrize(
        "index", [2, -1, slice(1, 4), slice(None, None, 2), [0, 3], torch.tensor([[1, 2], [4, 0]]), torch.arange(5) > 2]
    )
    def test_indexing_with_one_axis(self, index):
        rb = buffer(steps([1, 2, 4, 8, 16], [0, 0, 1, 0, 1]), Compose(CatFrames(2, -1, STACKED), RewardSum()))
        whole = rb[:]

        assert torch.equal(rb[index]["observation"], whole["observation"][index])
        assert torch.equal(rb[index]["next", "episode_reward"], whole["next", "episode_reward"][index])

    @pytest.mark.parametrize("index", [1, slice(1, None), (0, 1), (slice(None), 0)])
    def test_indexing_with_two_axes(self, index):
        """Time is the first axis of a storage: two environments of three steps."""
        data = torch.stack([steps([1, 2, 4], [0, 0, 1]), steps([8, 16, 32], [1, 0, 0])])
        rb = TensorDictReplayBuffer(storage=LazyTensorStorage(6, ndim=2), transform=RewardSum())
        rb.extend(data)
        sums = torch.tensor([[1, 8], [3, 16], [7, 48]]).unsqueeze(-1)

        assert torch.equal(rb[index]["next", "episode_reward"], sums[index])

    def test_fields(self):
        rb = buffer(steps([1, 2, 4], [0, 0, 1]), CatFrames(2, -1, STACKED))

        assert row(rb["observation"]) == [[0, 0], [0, 1], [1, 2]]


class TestReturns:
    """Rewards 1, 2, 4 and 8."""

    @pytest.fixture
    def data(self):
        return steps([1, 2, 4, 8], [0, 0, 1, 1])

    def test_rewards_to_go_of_written_data(self, data):
        rb = buffer(data, Reward2GoTransform(0.5, out_keys=["to_go"]))

        assert row(rb.storage.column(("to_go",))) == [3, 4, 4, 8]
        assert row(rb[:]["to_go"]) == [3, 4, 4, 8]
        assert row(rb[:]["next", "reward"]) == [1, 2, 4, 8]

    def test_rewards_to_go_along_the_axis_of_time(self, data):
        made = Reward2GoTransform().inv(data[[0, 1, 2, 3, 3, 3]].reshape(2, 3))

        assert made["next", "reward"].squeeze(-1).tolist() == [[7, 6, 4], [8, 8, 8]]

    def test_an_axis_named_time_is_used(self, data):
        across = TensorDict({"next": data["next"].clone().reshape(2, 2).transpose(0, 1).contiguous()}, [2, 2])
        across["next", "done"] = torch.tensor([[[False], [False]], [[True], [True]]])
        across.names = ["time", None]

        assert Reward2GoTransform().inv(across)["next", "reward"].squeeze(-1).tolist() == [[3, 12], [2, 8]]

    def test_rewards_to_go_of_a_list(self, data):
        rb = TensorDictReplayBuffer(storage=LazyTensorStorage(4), transform=Reward2GoTransform())
        rb.extend(list(data.unbind(0)))

        assert row(rb[:]["next", "reward"]) == [7, 6, 4, 8]

    def test_unfinished_episodes_are_refused(self, data):
        with pytest.raises(InvalidArgumentError, match="no episode ends in the written data"):
            buffer(data[:2], Reward2GoTransform())

    def test_the_cumulative_reward(self, data):
        assert row(buffer(data, RewardSum())[:]["next", "episode_reward"]) == [1, 3, 7, 8]

    def test_a_nan_reward_affects_only_its_episode(self, data):
        data["next", "reward"][3] = float("inf")

        assert row(buffer(data, RewardSum())[:]["next", "episode_reward"]) == [1, 3, 7, float("inf")]
        assert row(Reward2GoTransform().inv(data)["next", "reward"]) == [7, 6, 4, float("inf")]

    def test_the_sum_follows_the_writes(self, data):
        rb = buffer(data[:1], RewardSum(), size=3)
        assert row(rb[:]["next", "episode_reward"]) == [1]
        rb.extend(data[1:3])
        assert row(rb[:]["next", "episode_reward"]) == [1, 3, 7]
        rb.extend(data[3:])

        assert row(rb[:]["next", "episode_reward"]) == [8, 2, 6]

    def test_the_remaining_target_return(self, data):
        made = buffer(data, TargetReturn(10.0, reset_key="_reset"))[:]

        assert row(made["target_return"]) == [10, 9, 7, 10]
        assert row(made["next", "target_return"]) == [9, 7, 3, 2]

    def test_a_constant_target_return(self, data):
        made = buffer(data, TargetReturn(10.0, "constant", out_keys=["wanted"]))[:]

        assert row(made["wanted"]) == row(made["next", "wanted"]) == [10] * 4
        with pytest.raises(InvalidArgumentError, match="mode is 'falling'"):
            TargetReturn(10.0, "falling")

    def test_numbers_of_steps_and_a_limit(self, data):
        made = buffer(data, StepCounter(max_steps=2))[:]

        assert row(made["step_count"]) == [0, 1, 2, 0]
        assert row(made["next", "step_count"]) == [1, 2, 3, 1]
        assert row(made["next", "truncated"]) == [False, True, True, False]
        assert row(made["next", "done"]) == [False, True, True, True]

    def test_a_limit_that_leaves_done_alone(self, data):
        made = StepCounter(2, "cut", "n", update_done=False)(data)

        assert row(made["next", "cut"]) == [False, True, True, False]
        assert torch.equal(made["next", "done"], data["next", "done"])
        with pytest.raises(InvalidArgumentError, match="max_steps is 0"):
            StepCounter(0)


class TestChunks:
    """Actions 0, 10, 20 and 30, 40."""

    def test_chunks_of_single_steps(self):
        data = buffer(steps([0] * 5, [0, 0, 1, 0, 1]), ActionChunkTransform(3))[:]

        assert row(data["vla_action", "chunk"]) == [[0, 10, 20], [10, 20, 20], [20, 20, 20], [30, 40, 40], [40, 40, 40]]
        assert data["vla_action", "chunk"].shape == (5, 3, 1)
        assert row(data["action_is_pad"].int()) == [[0, 0, 0], [0, 0, 1], [0, 1, 1], [0, 0, 1], [0, 1, 1]]

    def test_chunks_of_scalar_actions_stay_in_their_episode(self, tmp_path):
        """Discrete actions have no axis of their own, so that time is the last axis of the batch."""
        episodes = [trajectory(3), trajectory(2, seed=1)]
        actions = [np.arange(3) + 1, np.arange(2) + 7]
        episodes = [
            type(one)({**one.steps, ("action",): numbers}, one.states)
            for one, numbers in zip(episodes, actions, strict=True)
        ]
        scalar = Column(("action",), np.dtype(np.int64), ())
        write_dataset(tmp_path, episodes, [scalar if one.key == scalar.key else one for one in columns()])
        wanted = [[[1, 2], [2, 3], [3, 3]], [[7, 8], [8, 8]]]

        padded = load(tmp_path, split_trajs=True, transform=ActionChunkTransform(2))[:]
        for episode, chunks in enumerate(wanted):
            assert padded["vla_action", "chunk"][episode, : len(chunks)].tolist() == chunks
            assert padded["action_is_pad"][episode, len(chunks) - 1].tolist() == [False, True]
        steps_of_both = load(tmp_path, transform=ActionChunkTransform(2))[:]
        assert steps_of_both["vla_action", "chunk"].tolist() == wanted[0] + wanted[1]
        rows = ActionChunkTransform(2)(TensorDict({"action": torch.arange(3)}, [3]))
        assert rows["vla_action", "chunk"].tolist() == [[0, 1], [1, 2], [2, 2]]

    def test_chunks_of_elements_that_are_windows(self):
        """As in TorchRL's example, only the action has an axis of time."""
        windows = TensorDict({"action": torch.arange(8.0).reshape(2, 4, 1)}, [2])
        data = buffer(windows, ActionChunkTransform(3))[:]

        assert data["vla_action", "chunk"][0, :, :, 0].tolist() == [[0, 1, 2], [1, 2, 3], [2, 3, 3], [3, 3, 3]]
        assert data["action_is_pad"][1].int().tolist() == [[0, 0, 0], [0, 0, 0], [0, 0, 1], [0, 1, 1]]

    def test_invalid_arguments_are_refused(self):
        with pytest.raises(InvalidArgumentError, match="chunk_size is 0"):
            ActionChunkTransform(0)
        with pytest.raises(InvalidArgumentError, match="expected a negative axis"):
            ActionChunkTransform(2, time_dim=1)
        with pytest.raises(InvalidArgumentError, match="expected a time axis at -3"):
            ActionChunkTransform(2, time_dim=-3)(TensorDict({"action": torch.zeros(3, 1)}, [3]))
        data = TensorDict({"action": torch.zeros(4, 3, 2), "next": {"done": torch.zeros(4, 3, 1).bool()}}, [4, 3])
        with pytest.raises(InvalidArgumentError, match=r"up to time_dim = -1 are \[4, 3, 2\], and done under next"):
            ActionChunkTransform(2, time_dim=-1)(data)

    def test_chunks_of_actions_that_are_numbers_stay_in_their_trajectory(self):
        mask = torch.tensor([[True, True, True], [True, True, False]])
        data = TensorDict({"action": torch.arange(6.0).reshape(2, 3), "mask": mask}, [2, 3])
        made = ActionChunkTransform(2)(data)

        assert made["vla_action", "chunk"].tolist()[0] == [[0, 1], [1, 2], [2, 2]]
        assert made["vla_action", "chunk"].tolist()[1][:2] == [[3, 4], [4, 4]]
        assert made["action_is_pad"].tolist()[0] == [[False, False], [False, False], [False, True]]


class TestDatasets:
    """Stored datasets, which are read-only."""

    @pytest.fixture
    def stored(self, tmp_path):
        return write_dataset(tmp_path, [trajectory(3), trajectory(2, seed=1)])

    def test_transforms_read_stored_datasets_by_rows(self, stored):
        plain = ReplayBuffer(storage=DatasetStorage(stored))[:]
        rb = ReplayBuffer(
            storage=DatasetStorage(stored),
            transform=Compose(
                Reward2GoTransform(0.5, out_keys=["to_go"]), CatFrames(2, -1, STACKED), MultiStepTransform(2, 0.5)
            ),
            batch_size=64,
            prefetch=2,
        )
        batch, info = rb.sample(return_info=True)
        reward, observation = plain["next", "reward"], plain["observation"]
        to_go = [
            reward[0] + reward[1] / 2 + reward[2] / 4,
            reward[1] + reward[2] / 2,
            reward[2],
            reward[3] + reward[4] / 2,
            reward[4],
        ]
        ahead = [reward[0] + reward[1] / 2, reward[1] + reward[2] / 2, reward[2], reward[3] + reward[4] / 2, reward[4]]
        index = info["index"]

        torch.testing.assert_close(batch["to_go"], torch.stack(to_go)[index])
        torch.testing.assert_close(batch["next", "reward"], torch.stack(ahead)[index])
        assert torch.equal(batch["observation"], torch.cat([observation[[0, 0, 1, 3, 3]], observation], 1)[index])
        final = plain["next", "observation"][[1, 2, 2, 4, 4]]
        assert torch.equal(batch["next", "observation"][:, 3:], final[index])

    @pytest.mark.parametrize("side", [2, 40])  # beside the other fields of a step, and in a file of their own
    def test_n_step_targets_have_stacks_of_images(self, tmp_path, side):
        """An episode of 4 images and the final one, all pixels of which are the number of the image."""
        pixels = Column(("pixels",), np.dtype(np.uint8), (side, side, 3), shared=True)
        one = trajectory(4)
        images = np.arange(5, dtype=np.uint8)[:, None, None, None].repeat(side, 1).repeat(side, 2).repeat(3, 3)
        episode = type(one)(one.steps, {**one.states, pixels.key: images})
        stored = write_dataset(tmp_path, [episode], columns(pixels))
        transform = Compose(CatFrames(3, -1, ["pixels", ("next", "pixels")]), MultiStepTransform(2, 0.5))

        batch = ReplayBuffer(storage=DatasetStorage(stored), transform=transform)[torch.arange(4)]

        assert (batch["pixels"] == batch["pixels"][:, :1, :1]).all()
        assert batch["pixels"][:, 0, 0, ::3].tolist() == [[0, 0, 0], [0, 0, 1], [0, 1, 2], [1, 2, 3]]
        assert batch["next", "pixels"][:, 0, 0, ::3].tolist() == [[0, 1, 2], [1, 2, 3], [2, 3, 4], [2, 3, 4]]

    @pytest.mark.parametrize("sampler", [None, SliceSampler(slice_len=2)])
    @pytest.mark.parametrize("several", [MultiStepTransform(2, 0.5), QChunkTransform(2, 0.5)], ids=["n-step", "chunk"])
    def test_stacks_of_frames_after_targets_of_several_steps_are_refused(self, stored, sampler, several):
        """The frames o0 and o2 of step 0 with n = 2 would be a stack without the frame between them."""
        for stack in (CatFrames(2, -1, STACKED), TimeMaxPool(STACKED, T=2)):
            rb = ReplayBuffer(
                storage=DatasetStorage(stored), sampler=sampler, transform=Compose(several, stack), batch_size=32
            )
            with pytest.raises(InvalidArgumentError, match="up to 2 steps after the frames of the steps"):
                rb.sample()

        rb = ReplayBuffer(storage=DatasetStorage(stored), transform=several, batch_size=32)
        rb.append_transform(CatFrames(2, -1, ["observation"]))
        assert rb.sample()["observation"].shape == (32, 6)

    def test_returns_use_the_transformed_rewards(self, stored):
        rb = ReplayBuffer(
            storage=DatasetStorage(stored), transform=Compose(RewardScaling(0.0, 10.0), Reward2GoTransform())
        )
        rewards = ReplayBuffer(storage=DatasetStorage(stored))[:]["next", "reward"]

        torch.testing.assert_close(rb[0]["next", "reward"], 10 * rewards[:3].sum(0))

    def test_a_pickled_buffer_recomputes_the_sums(self, stored):
        rb = ReplayBuffer(storage=DatasetStorage(stored), transform=RewardSum())
        rb.sample(4)

        assert pickle.loads(pickle.dumps(rb.transforms[0]))._cache is None


class TestErrors:
    def test_steps_in_a_list_cannot_be_read_by_rows(self):
        rb = ReplayBuffer(storage=ListStorage(3), transform=CatFrames(2, -1, ["observation"]), batch_size=2)
        rb.extend(list(steps([0, 0], [0, 1]).unbind(0)))

        with pytest.raises(
            InvalidArgumentError, match="reads other steps of the storage, but batches of this storage are of type list"
        ):
            rb.sample()

    def test_trajectories_in_a_list_are_read_along_their_axis(self):
        rb = ReplayBuffer(storage=ListStorage(3), transform=CatFrames(2, -1, ["observation"]), batch_size=2)
        rb.extend([steps([0, 0, 0], [0, 0, 1])])

        assert rb.sample()["observation"].tolist() == [[[0, 0], [0, 1], [1, 2]]] * 2

    def test_the_error_in_an_ensemble_names_the_members(self):
        member = TensorDictReplayBuffer(storage=LazyTensorStorage(2))
        member.extend(steps([0, 0], [0, 1]))
        rb = ReplayBufferEnsemble(member, member, transform=CatFrames(2, -1, ["observation"]), batch_size=4)

        with pytest.raises(InvalidArgumentError, match="add the transform to the member buffers"):
            rb.sample()

    def test_data_without_ends_of_trajectories_is_refused(self):
        rb = buffer(TensorDict({"observation": torch.zeros(3, 1)}, [3]), CatFrames(2, -1, ["observation"]))

        with pytest.raises(InvalidArgumentError, match="the ends of trajectories are unknown"):
            rb.sample()

    def test_a_list_may_be_indexed_through_other_transforms(self):
        rb = ReplayBuffer(storage=ListStorage(3), transform=Compose(ObservationNorm(0.0, 2.0)))
        rb.extend(list(steps([0, 0], [0, 1]).unbind(0)))

        assert rb[1]["observation"].tolist() == [2]

    def test_another_flag_can_mark_the_ends(self):
        data = steps([1, 2, 4], [0, 0, 0])
        data["next", "over"] = torch.tensor([[True], [False], [True]])
        rb = buffer(data, MultiStepTransform(2, 0.5, done_key="over"))

        assert row(rb[:]["next", "reward"]) == row(MultiStepTransform(2, 0.5, done_key="over")(data)["next", "reward"])
        assert row(rb[:]["next", "reward"]) == [1, 4, 4]

    def test_a_single_step_has_no_time(self):
        with pytest.raises(InvalidArgumentError, match="the batch is a single step"):
            CatFrames(2, -1, ["observation"])(steps([0], [1])[0])

    def test_read_values_remain_valid_after_a_selection(self):
        transform = Compose(SelectTransform("observation"), CatFrames(2, -1, ["observation"]))
        rb = buffer(steps([0, 0, 0], [0, 0, 1]), transform)
        batch = rb.sample()

        assert set(batch.keys()) == {"observation", "index"}
        assert all(row == [max(row[1] - 1, 0), row[1]] for row in batch["observation"].tolist())

"""Queries find the trajectories that fulfill a condition, and read little of the others."""

from __future__ import annotations

import warnings

import pytest
import torch
from stored_data import trajectory, write_dataset
from tensordict import TensorDict, lazy_stack

from datasets_rl import (
    LazyTensorStorage,
    ListStorage,
    ReplayBuffer,
    ReplayBufferEnsemble,
    SliceSampler,
    TensorDictReplayBuffer,
    Trajectory,
    filter_trajectories,
    iter_trajectories,
    traj,
)
from datasets_rl.errors import InvalidArgumentError, UnknownKeyError
from datasets_rl.storages import DatasetStorage
from datasets_rl.transforms import StepCounter, Transform


def steps(*lengths, first=0):
    """Return trajectories of these lengths; the reward of every step is the number of the trajectory."""
    ids = torch.cat([torch.full((length,), first + number) for number, length in enumerate(lengths)])
    done = torch.cat([torch.arange(length) == length - 1 for length in lengths])[:, None]
    return TensorDict(
        {
            "t": torch.cat([torch.arange(length) for length in lengths]),
            "collector": {"traj_ids": ids},
            "next": {"reward": ids.float()[:, None], "done": done},
        },
        [len(ids)],
    )


def ring(data, size=None, **kwargs):
    rb = TensorDictReplayBuffer(storage=LazyTensorStorage(size or len(data)), **kwargs)
    rb.extend(data)
    return rb


def lengths_of(trajectories):
    return [one.length for one in trajectories]


class Scale(Transform):
    """Multiplies an entry, and counts the steps that it sees."""

    def __init__(self, key):
        super().__init__(in_keys=[key])
        self.seen = 0

    def _apply_transform(self, value):
        self.seen += len(value)
        return 2 * value


class TestTrajectory:
    def test_entries_are_attributes_and_names_are_also_found_under_next(self):
        one = Trajectory(steps(4))

        assert one.t.tolist() == [0, 1, 2, 3]
        assert one.reward.shape == one["next", "reward"].shape == (4, 1)
        assert one["t"] is one.data["t"]
        assert (one.length, len(one), float(one.total_reward)) == (4, 4, 0.0)
        assert one.get("nothing", 3) == 3
        assert repr(one) == "Trajectory(length=4, keys=['collector', 'next', 't'])"

    def test_a_missing_entry_is_an_attribute_error_with_the_keys(self):
        with pytest.raises(AttributeError, match=r"no entry 'pixels' among .*next\.reward"):
            _ = Trajectory(steps(4)).pixels

    def test_an_index_of_steps_gives_a_trajectory(self):
        one = Trajectory(steps(4))

        assert isinstance(one[1:3], Trajectory)
        assert one[1:3].t.tolist() == [1, 2]
        assert isinstance(one.clone(), Trajectory)

    def test_trajectories_of_different_lengths_can_be_stacked(self):
        both = lazy_stack([Trajectory(steps(4)), Trajectory(steps(2))])

        assert isinstance(both[1], Trajectory)
        assert lengths_of([both[0], both[1]]) == [4, 2]

    def test_steps_of_several_dimensions_are_refused(self):
        with pytest.raises(InvalidArgumentError, match="single batch dimension"):
            Trajectory(steps(4).reshape(2, 2))


class TestConditions:
    @pytest.mark.parametrize(
        ("condition", "expected"),
        [
            (None, [5, 3, 7]),
            (traj.length >= 5, [5, 7]),
            (traj.length != 5, [3, 7]),
            (traj.reward.sum() > 6, [7]),
            (traj.total_reward == 3, [3]),
            (traj.reward.mean() < 2, [5, 3]),
            (traj.t.max() <= 4, [5, 3]),
            ((traj.t.min() == 0) & (traj.t.last() == 6), [7]),
            ((traj.length < 5) | (traj.reward.first() > 1), [3, 7]),
            (~(traj.length < 5), [5, 7]),
            ((traj.t > 4).any(), [7]),
            ((traj.t < 4).all(), [3]),
            ((traj["collector", "traj_ids"] == 1).all(), [3]),
            pytest.param(lambda one: one.length == 3, [3], id="function"),
        ],
        ids=str,
    )
    def test_a_buffer_and_a_batch_give_the_same_trajectories(self, condition, expected):
        data = steps(5, 3, 7)

        assert lengths_of(filter_trajectories(data, condition)) == expected
        assert lengths_of(ring(data).query(condition)) == expected

    def test_a_condition_knows_its_keys(self):
        good = (traj.reward.sum() > 1) & ((traj.t > 3).any() | ~(traj["collector", "traj_ids"].last() == 2))

        assert good.required_keys() == {"reward", "t", ("collector", "traj_ids")}
        assert (traj.length > 3).required_keys() == frozenset()

    def test_a_condition_is_printed_as_it_was_written(self):
        assert repr((traj.reward.sum() > 1) & ~(traj.t == 3).any()) == (
            "TrajectoryPredicate(((traj.reward.sum() > 1) & ~(traj.t == 3).any()))"
        )

    def test_a_condition_on_steps_is_refused(self):
        for call in (lambda: filter_trajectories(steps(3), traj.t > 1), lambda: ring(steps(3)).query(traj.t > 1)):
            with pytest.raises(InvalidArgumentError, match=r"any\(\) or \.all\(\)") as caught:
                call()
            assert isinstance(caught.value, TypeError)

    def test_an_unknown_name_is_an_error(self):
        with pytest.raises(UnknownKeyError, match="rewards"):
            ring(steps(3)).query(traj.rewards.sum() > 1)


class TestBounds:
    def test_flags_divide_data_without_ids_and_issue_a_warning(self):
        data = steps(5, 3).exclude("collector")
        data["next", "truncated"] = torch.arange(8)[:, None] == 1
        with pytest.warns(UserWarning, match=r"end-of-episode flags next\.done, next\.truncated"):
            assert lengths_of(iter_trajectories(data)) == [2, 3, 3]
        with pytest.warns(UserWarning, match="end-of-episode"):
            assert lengths_of(ring(data).query()) == [2, 3, 3]

    def test_ids_issue_no_warning(self):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert lengths_of(iter_trajectories(steps(5, 3))) == [5, 3]

    def test_any_key_can_be_the_id(self):
        data = steps(5, 3).exclude("collector", ("next", "done")).set("number", steps(5, 3)["collector", "traj_ids"])

        assert lengths_of(iter_trajectories(data, "number")) == [5, 3]
        assert lengths_of(ring(data).query(trajectory_key="number")) == [5, 3]

    def test_data_that_nothing_divides_is_refused(self):
        data = steps(5).select("t")
        for call in (ring(data).query, lambda: [*iter_trajectories(data)]):
            with pytest.raises(UnknownKeyError, match="trajectory_key"):
                call()
        for call in (lambda: ring(steps(5)).query(trajectory_key="no"), lambda: [*iter_trajectories(steps(5), "no")]):
            with pytest.raises(UnknownKeyError, match="no key 'no'"):
                call()

    def test_other_data_is_refused(self):
        with pytest.raises(InvalidArgumentError, match="TensorDict"):
            [*iter_trajectories(torch.zeros(3))]
        with pytest.raises(InvalidArgumentError, match="batch size"):
            [*iter_trajectories(steps(4).reshape(2, 2))]
        rb = ReplayBuffer(storage=ListStorage(4))
        rb.extend([1, 2])
        with pytest.raises(InvalidArgumentError, match="TensorDict"):
            rb.query()


class TestStorages:
    def test_a_wrapped_ring_gives_whole_trajectories_from_the_oldest(self):
        rb = ring(steps(5, 3), 10)
        rb.extend(steps(4, first=2))
        found = rb.query()

        assert [one.t.tolist() for one in found] == [[2, 3, 4], [0, 1, 2], [0, 1, 2, 3]]
        assert lengths_of(found) == rb.storage.trajectories().lengths.tolist()

    def test_environments_follow_each_other(self):
        rb = TensorDictReplayBuffer(storage=LazyTensorStorage(12, ndim=2))
        rb.extend(torch.stack([steps(3, 3), steps(4, 2, first=2)]))

        assert [one.reward[0].item() for one in rb.query()] == [0, 1, 2, 3]

    def test_a_list_of_steps_can_be_queried(self):
        rb = ReplayBuffer(storage=ListStorage(7))
        rb.extend([*steps(5, 3).unbind(0)])

        assert [one.t.tolist() for one in rb.query(traj.reward.last() >= 0)] == [[1, 2, 3, 4], [0, 1, 2]]

    def test_a_dataset_can_be_queried(self, tmp_path):
        episodes = [trajectory(4), trajectory(6), trajectory(5)]
        rb = TensorDictReplayBuffer(storage=DatasetStorage(write_dataset(tmp_path, episodes)))
        (found,) = rb.query(traj.length == 6)

        assert torch.equal(found.observation, torch.from_numpy(episodes[1].states["observation",][:6]))
        assert lengths_of(rb.query(traj.reward.sum() > -1e9)) == [4, 6, 5]

    def test_an_empty_buffer_has_no_trajectories(self):
        assert TensorDictReplayBuffer(storage=LazyTensorStorage(3)).query() == []

    def test_an_ensemble_refers_to_its_buffers(self):
        rb = ReplayBufferEnsemble(ring(steps(3)), ring(steps(4)))

        with pytest.raises(InvalidArgumentError, match=r"rb\[i\]\.query"):
            rb.query()
        assert lengths_of(rb[1].query()) == [4]

    def test_results_are_copies(self):
        rb = ring(steps(5, 3))
        rb.query(traj.length == 3)[0].reward.fill_(-1)

        assert rb["next", "reward"].min() == 0

    def test_queries_and_slice_samplers_agree(self):
        rb = ring(steps(5, 3, 7, 1), 12, sampler=SliceSampler(slice_len=7, strict_length=False), batch_size=700)
        batch = rb.sample()

        assert set(batch["slice_id"].unique(return_counts=True)[1].tolist()) == set(lengths_of(rb.query()))


class TestTransforms:
    def test_conditions_and_results_see_transformed_steps(self):
        rb = ring(steps(5, 3, 7), transform=Scale(("next", "reward")))
        found = rb.query(traj.reward.sum() > 6)

        assert lengths_of(found) == [7]
        assert found[0].total_reward == 28
        assert lengths_of(rb.query(traj.reward.sum() > 5)) == [3, 7]

    def test_transforms_of_other_entries_run_on_results_only(self):
        scale = Scale("t")
        rb = ring(steps(5, 3, 7), transform=scale)

        assert rb.query(traj.reward.sum() > 100) == []
        assert scale.seen == 0
        assert rb.query(traj.reward.sum() > 6)[0].t.tolist() == [0, 2, 4, 6, 8, 10, 12]
        assert scale.seen == 7

    def test_a_function_sees_all_transforms(self):
        rb = ring(steps(5, 3), transform=[Scale("t"), StepCounter(step_count_key="steps")])

        assert lengths_of(rb.query(lambda one: int(one.steps.max()) == 4 and int(one.t.max()) == 8)) == [5]


@pytest.mark.parametrize(
    "combine",
    [
        lambda: (traj.length >= 3) and (traj.total_reward > 2),
        lambda: (traj.length >= 3) or (traj.total_reward > 2),
        lambda: not traj.length >= 3,
        lambda: 3 <= traj.length <= 5,
        lambda: 0 < traj.reward.max() < 2,
        lambda: (traj.reward > 0) and (traj.t < 2),
        lambda: max(traj.reward.first(), traj.reward.last()),
    ],
    ids=["and", "or", "not", "chain of lengths", "chain of numbers", "and of steps", "max"],
)
def test_words_that_would_drop_a_condition_are_refused_and_the_signs_are_named(combine):
    with pytest.raises(TypeError, match="has a truth value only for a trajectory") as raised:
        combine()
    assert all(sign in raised.value.hint for sign in "&|~")


def test_two_values_of_a_trajectory_are_compared():
    rb = ring(steps(3, 5, 2))

    assert lengths_of(rb.query(traj.total_reward < traj.length)) == [3]  # the returns are 0, 5 and 4
    assert lengths_of(rb.query(traj.total_reward == traj.length)) == [5]
    assert lengths_of(rb.query((traj.t > traj.reward).any())) == [3, 5]
    with pytest.raises(TypeError):
        (traj.length > 2) & 5

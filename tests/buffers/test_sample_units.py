"""Sample units replace the steps that a sampler draws by windows of steps."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from stored_data import trajectory, write_dataset
from tensordict import TensorDict

from datasets_rl import (
    LazyTensorStorage,
    ListStorage,
    Mixture,
    PrioritizedSampler,
    ReplayBuffer,
    ReplayBufferEnsemble,
    SampleUnit,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
    Transition,
)
from datasets_rl.buffers import Sequence
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.storages import DatasetStorage


def steps(count, *ends):
    """Return steps numbered by "t" whose episodes end at these numbers."""
    t = torch.arange(count)
    done = torch.zeros(count, 1, dtype=torch.bool)
    done[list(ends)] = True
    return TensorDict({"t": t, "next": {"done": done}}, [count])


def storage(size=10, count=10, ends=(5, 9)):
    result = LazyTensorStorage(size)
    result.set(range(count), steps(count, *ends))
    return result


def wrapped():
    """Return a ring of 10 slots after 14 steps of one episode: slots 0 to 3 hold steps 10 to 13."""
    rb = TensorDictReplayBuffer(storage=LazyTensorStorage(10))
    rb.extend(steps(14))
    return rb.storage


def window(unit, anchor, of=None):
    """Return the rows and the validity of the window of an anchor."""
    index, info = unit.expand(torch.tensor([anchor]), {}, storage() if of is None else of)
    return index.tolist(), [*map(int, info["validity_mask"])]


class TestWindows:
    """Expected windows follow from the drawings in the documentation of `Sequence`."""

    @pytest.mark.parametrize(
        ("kwargs", "anchor", "rows", "valid"),
        [
            ({"length": 4}, 1, [1, 2, 3, 4], [1, 1, 1, 1]),
            ({"length": 4}, 4, [4, 5, 5, 5], [1, 1, 0, 0]),
            ({"length": 4, "episode_boundary": "stop"}, 4, [2, 3, 4, 5], [1, 1, 1, 1]),
            ({"length": 5, "episode_boundary": "stop"}, 8, [6, 7, 8, 9, 9], [1, 1, 1, 1, 0]),
            ({"length": 4, "episode_boundary": "include_reset"}, 4, [4, 5, 6, 7], [1, 1, 1, 1]),
            ({"length": 4, "episode_boundary": "include_reset"}, 8, [8, 9, 9, 9], [1, 1, 0, 0]),
            ({"length": 4, "done_key": None}, 4, [4, 5, 6, 7], [1, 1, 1, 1]),
            ({"length": 2, "burn_in": 2}, 8, [6, 7, 8, 9], [1, 1, 1, 1]),
            ({"length": 2, "burn_in": 2}, 6, [6, 6, 6, 7], [0, 0, 1, 1]),
            ({"length": 2, "bootstrap": 1}, 8, [8, 9, 9], [1, 1, 0]),
            ({"length": 2, "bootstrap": 1, "episode_boundary": "stop"}, 4, [3, 4, 5], [1, 1, 1]),
            ({"length": 3, "dilation": 2}, 1, [1, 3, 5], [1, 1, 1]),
            ({"length": 3, "burn_in": 1, "dilation": 2, "episode_boundary": "stop"}, 3, [0, 1, 3, 5], [0, 1, 1, 1]),
        ],
        ids=lambda value: " ".join(f"{key} {item}" for key, item in value.items()) if isinstance(value, dict) else "",
    )
    def test_a_window_is_as_drawn(self, kwargs, anchor, rows, valid):
        assert window(Sequence(**kwargs), anchor) == (rows, valid)

    def test_no_window_crosses_the_oldest_step_of_a_ring(self):
        crossing = Sequence(2, "include_reset", burn_in=2)

        assert window(Sequence(4, "include_reset"), 8, wrapped()) == ([8, 9, 0, 1], [1, 1, 1, 1])
        assert window(Sequence(4, "include_reset"), 2, wrapped()) == ([2, 3, 3, 3], [1, 1, 0, 0])
        assert window(crossing, 5, wrapped()) == ([4, 4, 5, 6], [0, 1, 1, 1])
        assert window(Sequence(3, burn_in=1), 3, wrapped()) == ([2, 3, 3, 3], [1, 1, 0, 0])

    def test_slots_without_a_step_are_not_read(self):
        partly = storage(size=20, ends=())

        assert window(Sequence(3, "include_reset", burn_in=2), 0, partly) == ([0, 0, 0, 1, 2], [0, 0, 1, 1, 1])
        assert window(Sequence(3), 8, partly) == ([8, 9, 9], [1, 1, 0])

    def test_environments_are_separate(self):
        ring = LazyTensorStorage(8, ndim=2)
        ring.set(range(4), torch.stack([steps(4, 1), steps(4)], 1))
        index, info = Sequence(3).expand((torch.tensor([1, 1]), torch.tensor([0, 1])), {}, ring)

        assert torch.stack(index, -1).tolist() == [[1, 0], [1, 0], [1, 0], [1, 1], [2, 1], [3, 1]]
        assert info["validity_mask"].tolist() == [True, False, False, True, True, True]
        assert info["anchor_index"].tolist() == [[1, 0]] * 3 + [[1, 1]] * 3

    def test_a_dataset_has_the_windows_of_its_episodes(self, tmp_path):
        dataset = DatasetStorage(write_dataset(tmp_path, [trajectory(4), trajectory(6)]))

        assert window(Sequence(3, burn_in=1), 4, dataset) == ([4, 4, 5, 6], [0, 1, 1, 1])
        assert window(Sequence(3, "stop"), 9, dataset) == ([7, 8, 9], [1, 1, 1])

    @settings(max_examples=50, deadline=None)
    @given(st.data())
    def test_valid_steps_are_those_at_their_distance_in_the_episode(self, data):
        count = data.draw(st.integers(1, 12), "count")
        ends = data.draw(st.sets(st.integers(0, count - 1)), "ends")
        unit = Sequence(
            data.draw(st.integers(1, 4), "length"),
            burn_in=data.draw(st.integers(0, 3), "burn_in"),
            bootstrap=data.draw(st.integers(0, 2), "bootstrap"),
            dilation=data.draw(st.integers(1, 3), "dilation"),
        )
        anchor = data.draw(st.integers(0, count - 1), "anchor")
        rows, valid = window(unit, anchor, storage(size=12, count=count, ends=tuple(ends)))
        first = max([end + 1 for end in ends if end < anchor], default=0)
        last = min([end for end in ends if end >= anchor], default=count - 1)
        offsets = range(-unit.burn_in, unit.length + unit.bootstrap)
        goals = [anchor + unit.dilation * offset for offset in offsets]

        assert rows == [min(max(goal, first), last) for goal in goals]
        assert valid == [int(first <= goal <= last) for goal in goals]


class TestBatches:
    def test_a_batch_has_the_windows_one_after_the_other(self):
        unit = Sequence(3, burn_in=2, bootstrap=1)
        rb = TensorDictReplayBuffer(storage=LazyTensorStorage(50), sample_unit=unit, batch_size=4)
        rb.extend(steps(50, 20, 49))
        batch = rb.sample()

        assert batch.shape == (24,)
        assert batch["sequence_id"].tolist() == [0] * 6 + [1] * 6 + [2] * 6 + [3] * 6
        assert batch["step_in_sequence"].tolist() == [*range(6)] * 4
        assert batch["learning_mask"].tolist() == [False, False, True, True, True, False] * 4
        assert torch.equal(batch["t"], batch["index"])
        assert torch.equal(batch["anchor_index"], batch["index"][2::6].repeat_interleave(6))

    def test_the_unit_does_not_change_what_the_sampler_draws(self):
        def anchors(unit):
            torch.manual_seed(0)
            rb = TensorDictReplayBuffer(storage=storage(), sample_unit=unit, batch_size=7)
            batch = rb.sample()
            return batch.get("anchor_index", batch["index"]).unique_consecutive().tolist()

        assert anchors(Sequence(1)) == anchors(Transition()) == anchors(None)

    def test_info_of_the_sampler_is_repeated(self):
        rb = ReplayBuffer(
            storage=storage(), sampler=PrioritizedSampler(10, 1.0, 1.0), sample_unit=Sequence(2), batch_size=3
        )
        rb.update_priority(torch.arange(10), torch.arange(1.0, 11.0))
        _, info = rb.sample(return_info=True)

        weights = info["priority_weight"].view(3, 2)
        assert torch.equal(weights[:, 0], weights[:, 1])
        index, info = Sequence(2).expand(torch.tensor([1, 6]), {"all": 3.0, "each": [1, 2]}, rb.storage)
        assert (index.tolist(), info["all"], info["each"].tolist()) == ([1, 2, 6, 7], 3.0, [1, 1, 2, 2])

    @pytest.mark.parametrize("ndim", [1, 2])
    def test_a_batch_of_several_environments_and_prefetched_batches_have_windows(self, ndim):
        data = steps(20, 7)
        rb = TensorDictReplayBuffer(
            storage=LazyTensorStorage(40, ndim=ndim), sample_unit=Sequence(3), batch_size=5, prefetch=2
        )
        rb.extend(data if ndim == 1 else torch.stack([data, data]))
        batch = rb.sample()

        moves = batch["t"].view(5, 3).diff(dim=1)
        assert torch.equal(moves == 1, batch["validity_mask"].view(5, 3)[:, 1:])
        assert batch["index"].shape == ((15,) if ndim == 1 else (15, 2))
        rb._prefetch.close()

    def test_anchors_get_the_largest_priority_of_their_valid_steps(self):
        rb = TensorDictPrioritizedReplayBuffer(
            alpha=1.0, beta=1.0, storage=LazyTensorStorage(20), sample_unit=Sequence(4), batch_size=2
        )
        rb.extend(steps(20, 9, 19))
        rb.update_priority(torch.arange(20), torch.ones(20))
        index, info = Sequence(4).expand(torch.tensor([7, 7]), {}, rb.storage)
        batch = TensorDict({"index": index, **info, "td_error": torch.tensor([1.0, 2, 3, 50, 4, 5, 6, 60])}, [8])
        rb.update_tensordict_priority(batch.reshape(2, 4))

        assert rb.sampler.priorities.tolist() == [1.0] * 7 + [6.0] + [1.0] * 12

    def test_a_unit_of_ones_own_chooses_the_steps(self):
        class WithNext(SampleUnit):
            """Each anchor, and the step after it."""

            def expand(self, index, info, storage):
                return (torch.stack([index, (index + 1) % len(storage)], 1).flatten(), info)

        rb = ReplayBuffer(storage=storage(), sample_unit=WithNext(), batch_size=3)

        assert (rb.sample()["t"].view(3, 2).diff(dim=1) % 10 == 1).all()


def test_all_invalid_arguments_are_reported_together():
    with pytest.raises(
        InvalidArgumentError, match=r"length is 0.*dilation.*burn_in is -1.*bootstrap.*episode_boundary"
    ):
        Sequence(0, "teleport", burn_in=-1, bootstrap=-1, dilation=0)
    with pytest.raises(InvalidArgumentError, match="sample_unit"):
        ReplayBuffer(sample_unit=Sequence)


def test_data_without_the_flag_is_refused():
    rb = ReplayBuffer(storage=LazyTensorStorage(10))
    rb.extend(torch.arange(5))
    objects = ListStorage(3)
    objects.set(0, "a")
    with pytest.raises(InvalidArgumentError, match="no fields"):
        Sequence(3).expand(torch.tensor([0]), {}, objects)
    with pytest.raises(InvalidArgumentError, match=r"no next\.done"):
        Sequence(3).expand(torch.tensor([0]), {}, rb.storage)


@pytest.mark.parametrize("empty", [LazyTensorStorage(3), ListStorage(3)])
@pytest.mark.parametrize("done_key", [("next", "done"), None])
def test_an_empty_storage_is_refused(empty, done_key):
    with pytest.raises(InvalidArgumentError, match="Cannot sample from an empty storage"):
        Sequence(2, done_key=done_key).expand(torch.tensor([0]), {}, empty)


@pytest.mark.parametrize("kind", [ReplayBufferEnsemble, Mixture])
def test_buffers_that_are_sampled_as_one_have_no_sample_unit(kind):
    plain = TensorDictReplayBuffer(storage=storage())
    with pytest.raises(InvalidArgumentError, match=r"buffers \[1\]"):
        kind(plain, TensorDictReplayBuffer(storage=storage(), sample_unit=Sequence(3)))
    with pytest.raises(InvalidArgumentError, match="sample_unit"):
        kind(plain, plain, sample_unit=Sequence(3))

"""The writer keeps the elements of highest rank; among equal ranks, the older."""

from __future__ import annotations

import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict, tensorclass

from datasets_rl.errors import InvalidArgumentError, UnknownKeyError
from datasets_rl.storages import LazyTensorStorage, ListStorage, TensorStorage
from datasets_rl.writers import TensorDictMaxValueWriter


def writing_to(storage, rank_key="rank", reduction="sum"):
    writer = TensorDictMaxValueWriter(rank_key, reduction)
    writer.register_storage(storage)
    return writer


def data(ranks, first=0):
    """Return steps with these ranks, numbered in order of arrival."""
    ranks = torch.tensor(ranks, dtype=torch.float64)
    return TensorDict({"rank": ranks, "number": torch.arange(first, first + len(ranks))}, [len(ranks)])


def held(storage):
    return sorted(storage.get(slice(None))["number"].tolist()) if len(storage) else []


RANKS = st.integers(-3, 3).map(float) | st.sampled_from([float("inf"), float("-inf"), 1e300, 5e-324])
STEPS = st.lists(st.just("empty") | RANKS | st.lists(RANKS, max_size=9), max_size=12)


@settings(deadline=None, max_examples=100)
@given(slots=st.integers(1, 5), steps=STEPS)
def test_it_keeps_the_first_elements_of_a_sort_by_rank(slots, steps):
    """The model sorts by rank; Python's sort is stable, so older elements come first."""
    storage = LazyTensorStorage(slots)
    writer = writing_to(storage)
    arrived = []
    count = 0
    for step in steps:
        if step == "empty":
            storage.empty()
            writer.empty()
            arrived = []
            continue
        ranks = step if isinstance(step, list) else [step]
        new = data(ranks, count)
        rows = writer.extend(new).tolist() if isinstance(step, list) else [writer.add(new[0])]
        arrived += [(rank, count + number) for number, rank in enumerate(ranks)]
        count += len(ranks)
        best = sorted(number for _, number in sorted(arrived, key=lambda one: -one[0])[:slots])

        assert held(storage) == best
        for row, number in zip(rows, range(count - len(ranks), count), strict=True):
            kept = number in best
            assert (row is not None and row >= 0) == kept
            if kept:
                assert int(storage.get(row)["number"]) == number


def test_a_write_that_fills_and_replaces_goes_to_the_returned_rows():
    storage = LazyTensorStorage(4)
    writer = writing_to(storage)
    writer.extend(data([5, 1]))

    assert writer.extend(data([2, 9, 0, 3], 2)).tolist() == [2, 3, -1, 1]
    assert storage.get(slice(None))["number"].tolist() == [0, 5, 2, 3]
    assert (storage.filled_count, storage.write_count) == (4, 4)


@pytest.mark.parametrize(
    ("reduction", "of"),
    [("sum", sum), ("min", min), ("max", max), ("mean", statistics.mean), ("median", statistics.median_low)],
)
def test_the_rank_of_a_trajectory_is_a_reduction(reduction, of):
    values = [[3.0, 1.0, 2.0, 9.0], [4.0, 4.0, 4.0, 0.0], [-5.0, 20.0, 1.0, 0.0], [7.0, 7.0, -20.0, 7.0]]
    storage = LazyTensorStorage(1)
    writer = writing_to(storage, reduction=reduction)
    writer.extend(TensorDict({"rank": torch.tensor(values).unsqueeze(-1), "number": torch.arange(4)}, [4]))

    assert held(storage) == [max(range(4), key=lambda number: of(values[number]))]


def test_the_reward_is_the_rank_by_default():
    storage = LazyTensorStorage(1)
    writer = TensorDictMaxValueWriter()
    writer.register_storage(storage)
    rewards = torch.tensor([[1.0], [3.0], [2.0]])
    writer.extend(TensorDict({"number": torch.arange(3), "next": {"reward": rewards}}, [3]))

    assert held(storage) == [1]
    assert repr(writer) == "TensorDictMaxValueWriter(rank_key=('next', 'reward'), reduction='sum')"


def test_sums_of_ranks_are_computed_in_float64():
    """float32 cannot represent 2**24 + 1."""
    storage = LazyTensorStorage(1)
    writer = writing_to(storage)
    values = torch.tensor([[2.0**24, 0.0], [2.0**24, 1.0]])
    writer.extend(TensorDict({"rank": values, "number": torch.arange(2)}, [2]))

    assert held(storage) == [1]


def test_a_list_storage_can_be_ranked():
    storage = ListStorage(2)
    writer = writing_to(storage)

    assert writer.extend(data([3, 1, 2])).tolist() == [0, -1, 1]
    assert writer.add(data([9.0], 7)[0]) == 1
    assert [int(one["number"]) for one in storage.get(slice(None))] == [0, 7]


def test_a_list_of_steps_is_stacked_and_an_empty_list_writes_nothing():
    writer = writing_to(LazyTensorStorage(2))

    assert writer.extend([*data([3, 1, 2])]).tolist() == [0, -1, 1]
    assert writer.extend(data([])).tolist() == []
    assert writer.extend([]).tolist() == []


def test_a_tensorclass_is_ranked_by_its_field():
    @tensorclass
    class Step:
        rank: torch.Tensor
        number: torch.Tensor

    storage = LazyTensorStorage(2)
    writer = writing_to(storage)
    steps = Step(rank=torch.tensor([3.0, 1.0, 2.0]), number=torch.arange(3), batch_size=[3])

    assert writer.extend(steps).tolist() == [0, -1, 1]
    assert writer.add(Step(rank=torch.tensor(4.0), number=torch.tensor(3), batch_size=[])) == 1


class TestRefusals:
    def test_a_rank_that_is_nan_changes_nothing(self):
        storage = LazyTensorStorage(2)
        writer = writing_to(storage)
        writer.extend(data([1, 2]))
        for ranks in ([3, float("nan"), 4], [[float("inf"), float("-inf")]]):
            with pytest.raises(InvalidArgumentError, match="NaN in 1 of"):
                writer.extend(data(ranks))

        assert held(storage) == [0, 1]
        assert writer.extend(data([1.5])).tolist() == [0]

    def test_a_missing_rank_is_an_error_with_the_existing_keys(self):
        with pytest.raises(UnknownKeyError, match=r"no key 'next\.reward' among rank, number"):
            writing_to(LazyTensorStorage(2), None).extend(data([1, 2]))

    @pytest.mark.parametrize("ranks", [torch.ones(2, 0), torch.ones(2, dtype=torch.complex64)], ids=["none", "complex"])
    def test_ranks_are_real_numbers(self, ranks):
        with pytest.raises(InvalidArgumentError, match="expected real numbers"):
            writing_to(LazyTensorStorage(2)).extend(TensorDict({"rank": ranks}, [2]))

    @pytest.mark.parametrize("verb", ["add", "extend"])
    def test_data_without_fields_has_no_rank(self, verb):
        with pytest.raises(InvalidArgumentError, match="expects data to be a tensor collection"):
            getattr(writing_to(LazyTensorStorage(2)), verb)(torch.arange(3))

    def test_lanes_are_refused(self):
        with pytest.raises(InvalidArgumentError, match="ndim 2"):
            writing_to(LazyTensorStorage(4, ndim=2))

    def test_an_unknown_reduction_is_an_error_with_the_known_ones(self):
        with pytest.raises(InvalidArgumentError, match="'first', expected one of sum, min, max, mean, median"):
            TensorDictMaxValueWriter("rank", "first")


class TestRanksOfOthers:
    def test_existing_data_of_a_storage_is_ranked(self):
        storage = TensorStorage(data([5, 1, 3]))
        writer = writing_to(storage)

        assert writer.extend(data([2, 0, 4], 10)).tolist() == [-1, -1, 1]
        assert held(storage) == [0, 2, 12]

    def test_elements_of_another_writer_are_ranked(self):
        storage = LazyTensorStorage(2)
        first, second = writing_to(storage), writing_to(storage)
        first.extend(data([1, 2]))
        second.extend(data([8, 9], 2))

        assert first.extend(data([7, 8.5], 4)).tolist() == [-1, 0]
        assert held(storage) == [3, 5]

    def test_ranks_changed_in_place_apply_after_the_storage_is_notified(self):
        storage = LazyTensorStorage(2)
        writer = writing_to(storage)
        writer.extend(data([1, 2]))
        storage.get(slice(None))["rank"].neg_()
        storage.changed()

        assert writer.extend(data([-1.5], 2)).tolist() == [1]


class TestState:
    def test_a_loaded_state_has_the_same_ranks_and_ages(self):
        storage, again = LazyTensorStorage(3), LazyTensorStorage(3)
        writer = writing_to(storage)
        writer.extend(data([1, 1, 1]))
        writer.extend(data([2], 3))
        again.set(range(3), storage.get(slice(None)))
        other = writing_to(again)
        other.load_state_dict(writer.state_dict())
        new = data([2, 2, 0], 4)

        assert other.extend(new).tolist() == writer.extend(new).tolist()
        assert (again.get(slice(None)) == storage.get(slice(None))).all()
        assert other.state_dict()["ages"].tolist() == writer.state_dict()["ages"].tolist()

    def test_a_state_is_a_copy(self):
        writer = writing_to(LazyTensorStorage(2))
        writer.extend(data([1, 2]))
        state = writer.state_dict()
        writer.extend(data([5]))

        assert state["ranks"].tolist() == [1, 2]

    def test_states_that_do_not_fit_are_refused_with_all_reasons(self):
        writer = writing_to(LazyTensorStorage(3))
        writer.extend(data([1, 2, 3]))
        state = writer.state_dict()
        before = {**state}

        other = writing_to(LazyTensorStorage(3), ("next", "reward"), "max")
        with pytest.raises(InvalidArgumentError, match=r"rank_key is \['rank'\].*; reduction is 'sum', expected 'max'"):
            other.load_state_dict(state)
        with pytest.raises(InvalidArgumentError, match="the state has 3 ranks, expected at most 2"):
            writing_to(LazyTensorStorage(2)).load_state_dict(state)
        with pytest.raises(InvalidArgumentError, match=r"no 'ranks'; .* no 'arrived'"):
            writer.load_state_dict({"rank_key": ["rank"]})
        with pytest.raises(InvalidArgumentError, match="ages of the writer is not"):
            writer.load_state_dict({**state, "ages": torch.zeros(2, dtype=torch.int64)})
        assert writer.state_dict()["ranks"].tolist() == before["ranks"].tolist()

    def test_ranks_are_moved_with_a_full_ring(self):
        writer = writing_to(LazyTensorStorage(4))
        writer.extend(data([10, 11, 12, 13]))
        state = writer.renumbered(writer.state_dict(), 1, 6)

        assert state["ranks"].tolist() == [11, 12, 13, 10]
        assert state["ages"].tolist() == [1, 2, 3, 0]

    def test_changed_elements_of_a_list_are_ranked_again(self):
        writer = writing_to(ListStorage(3))
        writer.extend([*data([1, 2, 3])])
        writer._storage.overwrite(0, data([9])[0])

        assert writer.extend(data([5, 4])).tolist() == [1, 2]

"""Prioritized sampling: probabilities, weights, invalid priorities, and the state."""

from __future__ import annotations

import copy
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.samplers import PrioritizedSampler
from datasets_rl.storages import LazyTensorStorage

NAN, INF = float("nan"), float("inf")


def filled(count, size=None, **kwargs):
    storage = LazyTensorStorage(size or count, **kwargs)
    storage.set(range(count), torch.arange(count))
    return storage


def with_priorities(priorities, *, alpha=1.0, beta=1.0, **kwargs):
    """Return a sampler with these priorities, and a storage with as many rows."""
    sampler = PrioritizedSampler(len(priorities), alpha, beta, **kwargs)
    sampler.extend(torch.arange(len(priorities)))
    sampler.update_priority(torch.arange(len(priorities)), torch.tensor(priorities, dtype=torch.float64))
    return sampler, filled(len(priorities))


class TestProbabilities:
    @pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0, 2.0])
    def test_they_are_priorities_to_the_power_of_alpha(self, alpha):
        """Chi-square with 7 degrees of freedom exceeds 24.3 once in a thousand runs; this run is seeded."""
        priorities = [1.0, 2.0, 3.0, 4.0, 0.5, 6.0, 7.0, 2.5]
        sampler, storage = with_priorities(priorities, alpha=alpha, generator=torch.Generator().manual_seed(0))
        index, _ = sampler.sample(storage, 200_000)
        counts = torch.bincount(index, minlength=8).double()
        expected = torch.tensor(priorities).double() ** alpha
        expected *= 200_000 / expected.sum()

        assert float(((counts - expected) ** 2 / expected).sum()) < 24.3

    def test_a_priority_of_zero_is_never_drawn_without_eps(self):
        sampler, storage = with_priorities([0.0, 1.0, 0.0, 1e-12, 0.0], eps=0.0)
        sampler.update_priority([1], 1e-12)

        assert set(sampler.sample(storage, 10_000)[0].tolist()) == {1, 3}

    def test_eps_gives_priorities_of_zero_a_probability(self):
        sampler, storage = with_priorities([0.0, 0.0, 1.0], eps=0.5)
        counts = torch.bincount(sampler.sample(storage, 100_000)[0], minlength=3)

        assert counts[0] == pytest.approx(20_000, rel=0.05)
        assert counts[2] == pytest.approx(60_000, rel=0.05)

    @settings(deadline=None)
    @given(
        st.lists(st.floats(0, 1e300), min_size=1, max_size=30).filter(any),
        st.floats(0, 3),
        st.integers(0, 2**63 - 1),
    )
    def test_no_row_is_outside_and_no_weight_above_one(self, priorities, alpha, seed):
        sampler = PrioritizedSampler(64, alpha, 0.5, generator=torch.Generator().manual_seed(seed))
        sampler.extend(torch.arange(len(priorities)))
        try:
            sampler.update_priority(range(len(priorities)), priorities)
        except InvalidArgumentError:
            return
        index, info = sampler.sample(filled(len(priorities), 64), 50)

        assert 0 <= int(index.min()) <= int(index.max()) < len(priorities)
        assert info["priority_weight"].isfinite().all()
        assert 0 <= float(info["priority_weight"].min()) <= float(info["priority_weight"].max()) <= 1


class TestWeights:
    def test_they_match_the_formula_computed_by_hand(self):
        """Masses sqrt(4) = 2, sqrt(16) = 4, sqrt(64) = 8; against the smallest 1, 2, 4; to the power of -2."""
        sampler, storage = with_priorities([4.0, 16.0, 64.0], alpha=0.5, beta=2.0, eps=0.0)
        index, info = sampler.sample(storage, 1000)

        assert set(info) == {"priority_weight"}
        assert info["priority_weight"].dtype == torch.float32
        assert set(zip(index.tolist(), info["priority_weight"].tolist(), strict=True)) == {
            (0, 1.0),
            (1, 0.25),
            (2, 0.0625),
        }

    def test_weights_are_relative_to_the_smallest_priority_of_all_stored_steps(self):
        sampler, storage = with_priorities([1e-6, 1.0, 1.0], eps=0.0)
        _, info = sampler.sample(storage, 4)

        assert info["priority_weight"].tolist() == pytest.approx([1e-6] * 4)

    def test_they_have_the_requested_dtype(self):
        sampler, storage = with_priorities([1.0, 3.0], dtype=torch.float64)

        assert sampler.sample(storage, 4)[1]["priority_weight"].dtype == torch.float64

    def test_beta_can_be_raised_during_training(self):
        sampler, storage = with_priorities([1.0, 4.0], beta=0.0, eps=0.0)

        assert set(sampler.sample(storage, 50)[1]["priority_weight"].tolist()) == {1.0}
        sampler.beta = 0.5
        assert set(sampler.sample(storage, 50)[1]["priority_weight"].tolist()) == {1.0, 0.5}
        assert sampler.beta == 0.5

    def test_a_new_alpha_applies_to_stored_priorities(self):
        """Also after alpha 0, where TorchRL has lost the priorities."""
        sampler, storage = with_priorities([1.0, 4.0], alpha=0.0, eps=0.0)

        assert set(sampler.sample(storage, 50)[1]["priority_weight"].tolist()) == {1.0}
        sampler.alpha = 0.5
        assert set(sampler.sample(storage, 50)[1]["priority_weight"].tolist()) == {1.0, 0.5}


class TestDefaultPriority:
    def test_new_rows_get_the_largest_priority_ever_given(self):
        sampler, _ = with_priorities([2.0, 5.0, 3.0])
        sampler.update_priority([1], 0.1)
        sampler.extend(torch.tensor([0]))

        assert sampler.default_priority == 5.0
        assert sampler.priorities.tolist() == [5.0, 0.1, 3.0]

    def test_or_the_largest_priority_of_the_stored_steps(self):
        """An early outlier must not be the priority of all later steps."""
        sampler, _ = with_priorities([2.0, 500.0, 3.0], max_priority_within_buffer=True)
        assert sampler.default_priority == 500.0
        sampler.update_priority([1], 0.1)
        assert sampler.default_priority == 3.0
        sampler.extend(torch.tensor([2]))

        assert sampler.priorities.tolist() == [2.0, 0.1, 2.0]
        assert sampler.default_priority == 2.0

    def test_it_is_one_at_the_start_and_after_everything_was_replaced(self):
        sampler = PrioritizedSampler(3, 1.0, 1.0, max_priority_within_buffer=True)
        assert sampler.default_priority == 1.0
        sampler.extend(torch.arange(3))
        sampler.update_priority([0, 1, 2], 7.0)
        sampler.extend(torch.arange(3))

        assert sampler.priorities.tolist() == [1.0, 1.0, 1.0]

    def test_an_overwritten_row_loses_its_priority(self):
        sampler, storage = with_priorities([0.0, 0.0, 9.0], eps=0.0)
        sampler.add(torch.tensor([0]))

        assert set(sampler.sample(storage, 100)[0].tolist()) == {0, 2}

    def test_rows_of_a_loaded_storage_get_it(self):
        """In TorchRL, a new sampler over a loaded storage fails."""
        sampler = PrioritizedSampler(5, 0.6, 0.4)

        assert set(sampler.sample(filled(5), 500)[0].tolist()) == set(range(5))
        assert sampler.priorities.tolist() == [1.0] * 5

    def test_a_priority_before_the_first_sample_is_kept(self):
        sampler = PrioritizedSampler(5, 1.0, 0.4, eps=0.0)
        storage = filled(5)
        sampler.update_priority([0, 1, 2, 4], 0.0, storage=storage)

        assert set(sampler.sample(storage, 100)[0].tolist()) == {3}


class TestRows:
    def test_rows_that_a_storage_no_longer_has_lose_their_priority(self):
        sampler, _ = with_priorities([1.0, 2.0, 3.0, 1000.0])
        smaller = filled(2, 4)

        assert set(sampler.sample(smaller, 1000)[0].tolist()) == {0, 1}
        assert sampler.priorities.tolist() == [1.0, 2.0]

    def test_a_storage_that_holds_more_than_its_capacity_is_refused(self):
        sampler = PrioritizedSampler(5, 1.0, 1.0)

        for use in (sampler.attach, lambda storage: sampler.sample(storage, 2)):
            with pytest.raises(InvalidArgumentError, match="max_capacity is 5, and the storage holds up to 6 steps"):
                use(filled(3, 6))
        assert set(sampler.sample(filled(3, 4), 100)[0].tolist()) == {0, 1, 2}

    def test_an_index_that_no_memory_can_hold_is_refused(self):
        with pytest.raises(InvalidArgumentError, match="index 0 of 1 is 1125899906842624"):
            PrioritizedSampler(5, 1.0, 1.0).extend(torch.tensor([2**50]))

    def test_after_emptying_it_starts_again(self):
        sampler, storage = with_priorities([2.0, 5.0])
        sampler.empty()

        assert sampler.default_priority == 1.0
        assert len(sampler.priorities) == 0
        sampler.sample(storage, 1)
        assert sampler.priorities.tolist() == [1.0, 1.0]

    def test_with_several_lanes_rows_are_numbered_consecutively(self):
        storage = LazyTensorStorage(6, ndim=2)
        storage.set(range(3), torch.arange(6).reshape(3, 2))
        sampler = PrioritizedSampler(6, 1.0, 1.0, eps=0.0)
        sampler.update_priority(torch.arange(6), 0.0, storage=storage)
        sampler.update_priority((torch.tensor([2]), torch.tensor([1])), 1.0, storage=storage)
        sampler.update_priority(torch.tensor([[0, 1], [1, 0]]), torch.tensor([2.0, 3.0]), storage=storage)

        assert sampler.priorities.tolist() == [0.0, 2.0, 3.0, 0.0, 0.0, 1.0]
        assert set(sampler.sample(storage, 100)[0].tolist()) == {1, 2, 5}

    def test_a_sampler_without_positive_priorities_is_an_error(self):
        sampler, storage = with_priorities([0.0, 0.0], eps=0.0)

        with pytest.raises(InvalidArgumentError, match="priorities of all 2 steps are 0"):
            sampler.sample(storage, 1)
        with pytest.raises(InvalidArgumentError, match="empty storage"):
            PrioritizedSampler(3, 1.0, 1.0).sample(filled(0, 3), 1)


class TestInvalidPriorities:
    @pytest.mark.parametrize(
        ("index", "priority", "message"),
        [
            ([0, 1], [1.0, NAN], "priority 1 of 2 is nan, one of 1"),
            ([0, 1, 2], [-1.0, 1.0, -2.0], "priority 0 of 3 is -1.0, one of 2"),
            ([0, 1], [INF, 1.0], "priority 0 of 2 is inf"),
            ([0, 1], [1.0, 1e308], "priority 1 of 2 is 1e[+]308"),
            ([0], -0.5, "priority 0 of 1 is -0.5"),
            ([0, 1], [1.0, 2.0, 3.0], r"shape \[3\], expected a single number, or the shape of the index, \[2\]"),
            ([0, 1], [[1.0, 2.0]], r"shape \[1, 2\]"),
            ([0, 3], 1.0, "index 1 of 2 is 3, one of 1 outside the 3 rows"),
            ([-2, 0], 1.0, "index 0 of 2 is -2"),
            ([0, 9], [NAN, 1.0], "outside the 3 rows; priority 0 of 2 is nan"),
            ([0.5], 1.0, "index is torch.float64"),
            ([True, False, True], 1.0, "index is torch.bool"),
            ([0, 1], [1j, 2.0], "priority is torch.complex128"),
            ([0, 1], ["a", "b"], "priority is list"),
            ("a", 1.0, "index is str"),
        ],
        ids=repr,
    )
    def test_bad_priorities_change_nothing(self, index, priority, message):
        """In other libraries, all later weights are NaN."""
        sampler, storage = with_priorities([1.0, 2.0, 3.0])
        before = copy.deepcopy(sampler.state_dict())

        with pytest.raises(InvalidArgumentError, match=message):
            sampler.update_priority(index, priority, storage=storage)

        after = sampler.state_dict()
        assert after.pop("priorities").tolist() == before.pop("priorities").tolist()
        assert after == before
        assert sampler.sample(storage, 10)[1]["priority_weight"].isfinite().all()

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"alpha": -1.0}, "alpha is -1.0"),
            ({"beta": NAN}, "beta is nan"),
            ({"eps": INF}, "eps is inf"),
            ({"eps": 1e308}, "eps 1e[+]308: the mass of a priority of 1 would be too large"),
            ({"eps": 1.0, "alpha": 1e5}, "alpha is 100000.0 and eps 1.0"),
            ({"max_capacity": 0}, "max_capacity is 0"),
            ({"reduction": "sum"}, "reduction is 'sum', expected one of max, mean, median, min"),
            ({"dtype": torch.int64}, "dtype is torch.int64"),
            ({"alpha": "a", "beta": -1}, "alpha is 'a'.*beta is -1"),
        ],
        ids=repr,
    )
    def test_all_invalid_arguments_are_reported_at_once(self, arguments, message):
        with pytest.raises(InvalidArgumentError, match=message):
            PrioritizedSampler(**{"max_capacity": 3, "alpha": 0.5, "beta": 0.5, **arguments})

    def test_bad_exponents_are_refused_later_too(self):
        sampler, _ = with_priorities([1e200, 1.0])

        with pytest.raises(InvalidArgumentError, match="beta is -1"):
            sampler.beta = -1
        with pytest.raises(InvalidArgumentError, match="alpha is nan"):
            sampler.alpha = NAN
        with pytest.raises(InvalidArgumentError, match=r"priority 0 of 2 is 1e[+]200"):
            sampler.alpha = 2.0
        assert sampler.alpha == 1.0


class TestValidPriorities:
    @pytest.mark.parametrize(
        ("index", "priority"),
        [
            (torch.tensor([0, 2]), torch.tensor([4.0, 6.0])),
            (torch.tensor([0, 2], dtype=torch.int32), torch.tensor([[4.0], [6.0]], dtype=torch.float16)),
            (np.array([0, 2]), np.array([4.0, 6.0])),
            ([0, 2], [4, 6]),
            (torch.tensor([[0], [2]]), torch.tensor([[4.0], [6.0]])),
            (torch.tensor([0, 2]), torch.tensor([4.0, 6.0], requires_grad=True)),
            (torch.tensor([0, 1, 2])[::2], torch.tensor([4.0, 0.0, 6.0], dtype=torch.float64)[::2]),
            (np.array([2, 1, 0])[::-2], torch.tensor([[4.0, 1.0], [6.0, 5.0]])),
        ],
        ids=["tensors", "int32-half-column", "numpy", "lists", "two-axes", "with-gradient", "strided", "reduced"],
    )
    def test_tensors_arrays_and_lists_of_any_matching_shape(self, index, priority):
        sampler, storage = with_priorities([1.0, 1.0, 1.0])
        sampler.update_priority(index, priority, storage=storage)

        assert sampler.priorities.tolist() == [4.0, 1.0, 6.0]

    @pytest.mark.parametrize(
        ("reduction", "expected"), [("max", 8.0), ("min", 1.0), ("mean", 4.0), ("median", 3.0)], ids=str
    )
    def test_several_priorities_of_a_step_become_one(self, reduction, expected):
        sampler, _ = with_priorities([1.0, 1.0], reduction=reduction)
        sampler.update_priority([1], torch.tensor([[[1.0, 8.0], [3.0, 4.0]]]))

        assert sampler.priorities.tolist() == [1.0, expected]

    def test_one_number_for_all_and_one_row_by_its_number(self):
        sampler, _ = with_priorities([1.0, 1.0, 1.0])
        sampler.update_priority([0, 1], 3)
        sampler.update_priority(2, torch.tensor([5.0]))

        assert sampler.priorities.tolist() == [3.0, 3.0, 5.0]

    def test_rows_of_minus_one_are_ignored(self):
        """`extend` returns -1 for steps that it did not keep; users pass its result to `update_priority` unchanged."""
        sampler, storage = with_priorities([1.0, 1.0])
        sampler.update_priority([-1, 1, -1], [5.0, 6.0, 7.0], storage=storage)
        sampler.update_priority([-1, 0], 4.0, storage=storage)
        sampler.update_priority([-1, -1], [8.0, 9.0], storage=storage)

        assert sampler.priorities.tolist() == [4.0, 6.0]
        assert sampler.default_priority == 6.0

    def test_empty_rows_are_accepted(self):
        sampler, _ = with_priorities([1.0])
        sampler.update_priority([], [])
        sampler.extend(torch.empty(0, dtype=torch.int64))

        assert sampler.priorities.tolist() == [1.0]

    @pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
    def test_tensors_on_any_device(self):
        sampler, _ = with_priorities([1.0, 1.0])
        sampler.update_priority(torch.tensor([1], device="cuda"), torch.tensor([4.0], device="cuda"))

        assert sampler.priorities.tolist() == [1.0, 4.0]


class TestState:
    def test_a_state_does_not_change_with_the_sampler(self):
        sampler, _ = with_priorities([1.0, 2.0])
        state = sampler.state_dict()
        sampler.update_priority([0], 9.0)

        assert state["priorities"].tolist() == [1.0, 2.0]

    def test_all_invalid_entries_are_reported_at_once_and_change_nothing(self):
        sampler, _ = with_priorities([1.0, 2.0])
        state = with_priorities([1.0, -0.0, 3.0])[0].state_dict() | {"alpha": -1.0}
        state["priorities"][2] = NAN

        with pytest.raises(InvalidArgumentError, match=r"alpha is -1.*priority 2 of 3 is nan"):
            sampler.load_state_dict(state)
        with pytest.raises(InvalidArgumentError, match="priorities are not a float64 tensor"):
            sampler.load_state_dict({})
        assert sampler.priorities.tolist() == [1.0, 2.0]

    def test_priorities_move_with_their_rows_into_a_larger_ring(self):
        sampler, _ = with_priorities([1.0, 2.0, 3.0, 4.0])

        one = sampler.renumbered(sampler.state_dict(), 3, 4)["priorities"]
        two = sampler.renumbered(sampler.state_dict(), 1, 2)["priorities"]

        assert one.tolist() == [4.0, 1.0, 2.0, 3.0]
        assert two.tolist() == [3.0, 4.0, 1.0, 2.0]
        assert sampler.priorities.tolist() == [1.0, 2.0, 3.0, 4.0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    [
        "c.CacheImpl._locator_classes = []",
        "c.IndexDataCacheFile._save_data = lambda *_: open('/dev/full', 'wb', 0).write(b'a')",
    ],
    ids=["read-only", "disk full"],
)
def test_compilation_works_without_a_writable_cache(tmp_path, fault):
    """As in a container with another user, or with a full home folder."""
    code = (
        f"import numba.core.caching as c; {fault}\n"
        "from datasets_rl.samplers import PrioritizedSampler\n"
        "PrioritizedSampler(3, 1., 1.).extend(__import__('torch').arange(3))"
    )
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, cwd=tmp_path, env=environment)

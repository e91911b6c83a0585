"""The same programs with TorchRL and with this library, where the documentation is ambiguous.

Where the libraries differ on purpose, a test asserts both results and explains the difference. Requires TorchRL:
`make bench` installs it.
"""

from __future__ import annotations

import itertools
import os
import types
import warnings

import numpy as np
import pytest
import torch
from tensordict import TensorDict

import datasets_rl as ours
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.transforms import Compose, Transform

os.environ.setdefault("RL_LOGGING_LEVEL", "ERROR")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    theirs = pytest.importorskip("torchrl.data", reason="pip install --no-deps torchrl hoptorch")
    from torchrl.data.replay_buffers import samplers as _samplers
    from torchrl.data.replay_buffers.samplers import prioritized as _prioritized

LIBRARIES = {
    "ours": ours,
    "theirs": types.SimpleNamespace(**(vars(_samplers) | vars(theirs))),
}

pytestmark = pytest.mark.filterwarnings("ignore")  # warnings of TorchRL


@pytest.fixture(params=[*LIBRARIES.values()], ids=[*LIBRARIES])
def library(request):
    return request.param


def both(program):
    """Return the results of a program with each library, under the same seed."""
    results = []
    for library in LIBRARIES.values():
        torch.manual_seed(0)
        results.append(program(library))
    return results


def steps(count, *, episode=5, terminated=False, start=0):
    """Return steps whose observation is their number, in episodes of `episode` steps."""
    number = torch.arange(start, start + count)
    last = ((number + 1) % episode == 0).unsqueeze(1)
    flags = {"done": last, "terminated": last & terminated, "truncated": last & (not terminated)}
    tree = {"obs": number.float(), "episode": number // episode, "next": {"reward": number.float()[:, None], **flags}}
    return TensorDict({**tree, "done": torch.zeros_like(last)}, [count])


def ring(library, size=20, ndim=1, **kwargs):
    return library.TensorDictReplayBuffer(storage=library.LazyTensorStorage(size, ndim=ndim), **kwargs)


def rejected(call):
    """Return whether a call raises; the type of the exception may differ between the libraries."""
    try:
        call()
    except (ValueError, RuntimeError, TypeError, InvalidArgumentError):
        return True
    return False


class TestRandomness:
    def test_uniform_draws_are_the_same_under_a_seed(self):
        def program(library):
            rb = ring(library, sampler=library.RandomSampler(), batch_size=7)
            rb.extend(steps(13))
            return [rb.sample()["obs"].tolist() for _ in range(5)]

        assert program(ours) != program(ours)
        assert len({str(result) for result in both(program)}) == 1

    @pytest.mark.parametrize("batch_size", [4, 5, 20])
    def test_an_epoch_is_the_same_under_a_seed(self, batch_size):
        def program(library):
            rb = ring(library, sampler=library.SamplerWithoutReplacement(), batch_size=batch_size)
            rb.extend(steps(20))
            return [rb.sample()["obs"].tolist() for _ in range(20 // batch_size)]

        mine, other = both(program)
        assert mine == other

    def test_torchrl_draws_the_next_epoch_with_the_last_batch_and_this_library_before_the_first(self):
        """This library uses the generator only when a batch is requested; both draw every step once."""

        def program(library):
            rb = ring(library, sampler=library.SamplerWithoutReplacement(), batch_size=20)
            rb.extend(steps(20))
            rb.sample()
            following = torch.rand(1).item()
            return sorted(rb.sample()["obs"].tolist()), following

        (mine, ahead), (other, stop) = both(program)
        assert mine == other == list(range(20))
        assert ahead != stop

    @pytest.mark.parametrize(("drop_last", "sizes"), [(False, [6, 6, 1]), (True, [6, 6])])
    def test_epochs_end_at_the_same_batch(self, library, drop_last, sizes):
        rb = ring(library, sampler=library.SamplerWithoutReplacement(drop_last=drop_last), batch_size=6)
        rb.extend(steps(13))

        for _ in range(2):
            assert [len(batch) for batch in rb] == sizes

    def test_steps_written_during_an_epoch_join_it_and_restart_it_in_torchrl(self):
        """In TorchRL, a buffer that is written to between batches never reaches the end of an epoch."""

        def program(library):
            rb = ring(library, sampler=library.SamplerWithoutReplacement(), batch_size=5)
            rb.extend(steps(10))
            seen = rb.sample()["obs"].tolist()
            rb.extend(steps(5, start=10))
            return seen + rb.sample()["obs"].tolist() + rb.sample()["obs"].tolist()

        mine, other = both(program)
        assert sorted(mine) == list(range(15))
        assert len(set(other[5:])) == 10
        assert len(set(other)) < 15


SLICES = {
    "length": {"slice_len": 3},
    "number": {"num_slices": 4},
    "by episode number": {"slice_len": 3, "traj_key": "episode"},
    "by flag": {"slice_len": 3, "end_key": ("next", "done")},
}


class TestSlices:
    @pytest.mark.parametrize("kwargs", [*SLICES.values()], ids=[*SLICES])
    @pytest.mark.parametrize("without", [False, True], ids=["with replacement", "without"])
    def test_slices_are_consecutive_and_flat_and_marked_at_their_ends(self, library, kwargs, without):
        kind = library.SliceSamplerWithoutReplacement if without else library.SliceSampler
        rb = ring(library, 40, sampler=kind(**kwargs), batch_size=12)
        rb.extend(steps(40))
        batch = rb.sample()

        assert batch.shape == (12,)
        rows = batch["obs"].view(4, 3)
        assert (rows.diff(dim=1) == 1).all()
        assert (rows // 5 == rows[:, :1] // 5).all()
        ends = torch.tensor([[False, False, True]] * 4)
        assert torch.equal(batch["next", "truncated"].view(4, 3), ends)
        assert torch.equal(batch["next", "done"].view(4, 3), ends)
        assert not batch["next", "terminated"].any()
        assert batch["next", "done"].shape == (12, 1)
        # TorchRL adds an axis here, and with no other sampler.
        assert batch["index"].shape == ((12,) if library is ours else (12, 1))
        assert torch.equal(batch["index"].flatten(), batch["obs"].long())

    @pytest.mark.parametrize(
        "kwargs",
        [
            {},
            {"slice_len": 2, "num_slices": 2},
            {"slice_len": 2, "end_key": "a", "ends": torch.ones(3, dtype=torch.bool)},
            {"slice_len": 2, "traj_key": "a", "trajectories": torch.ones(3)},
            {"slice_len": 2, "span": (2, 1)},
        ],
        ids=["none", "both sizes", "ends and key", "trajectories and key", "span"],
    )
    def test_arguments_that_exclude_each_other_are_refused(self, kwargs):
        assert rejected(lambda: ours.SliceSampler(**kwargs))
        # TorchRL allows a span as long as the slice, which gives empty slices.
        assert rejected(lambda: LIBRARIES["theirs"].SliceSampler(**kwargs)) == ("span" not in kwargs)

    def test_the_possible_slices_are_the_same(self):
        """Their frequencies differ: TorchRL draws the trajectory first, so steps of short ones are more frequent."""

        def program(library):
            rb = ring(library, 20, sampler=library.SliceSampler(slice_len=3), batch_size=3000)
            rb.extend(torch.cat([steps(4, episode=4), steps(12, episode=12, start=12)]))
            rows, counts = rb.sample()["obs"].view(-1, 3)[:, 0].unique(return_counts=True)
            return rows.tolist(), (counts[:2].sum() / counts.sum()).item()

        (mine, share), (other, more) = both(program)
        assert mine == other == [0, 1, *range(12, 22)]
        assert abs(share - 2 / 12) < 0.05
        assert abs(more - 1 / 2) < 0.05

    @pytest.mark.parametrize("span", [(False, True), (False, 1), (False, 2), (2, False), (1, 1), (1, 2), True], ids=str)
    def test_slices_with_a_span_are_cut_at_the_ends_of_trajectories(self, span):
        def program(library):
            sampler = library.SliceSampler(slice_len=3, span=span, traj_key="episode")
            rb = ring(library, 20, sampler=sampler, batch_size=3000)
            rb.extend(steps(10))
            batch = rb.sample()
            rows, ends = batch["obs"].long().tolist(), batch["next", "truncated"].squeeze(1).nonzero().squeeze(1)
            starts = [0, *(ends[:-1] + 1).tolist()]
            return {tuple(rows[first : last + 1]) for first, last in zip(starts, ends.tolist(), strict=True)}

        mine, other = both(program)
        # The documentation promises "at least slice_len - i steps"; at the end TorchRL keeps at least i.
        short = {(3, 4), (4,), (8, 9), (9,)} if isinstance(span, tuple) and span[1] == 2 else set()
        assert mine - short == other
        assert short <= mine

    @pytest.mark.parametrize("span", [(False, True), 3, True], ids=str)
    def test_with_a_span_short_trajectories_are_still_left_out(self, library, span):
        sampler = library.SliceSampler(slice_len=6, span=span, traj_key="episode", strict_length=True)
        rb = ring(library, 20, sampler=sampler, batch_size=600)
        rb.extend(torch.cat([steps(5, episode=5), steps(8, episode=8, start=8)]))

        assert set(rb.sample()["obs"].tolist()) == set(range(8, 16))


class TestLayouts:
    def test_wrapped_writes_have_the_same_rows(self):
        def program(library):
            rb = ring(library, 5)
            indices = [rb.extend(steps(count, start=start)).tolist() for count, start in [(3, 0), (4, 3), (2, 7)]]
            added = rb.add(steps(1, start=9)[0])
            return indices, added, rb[:]["obs"].tolist(), len(rb)

        mine, other = both(program)
        assert mine == other

    def test_the_rows_of_overwritten_steps_are_minus_one(self):
        """TorchRL returns the same row for two steps, the earlier of which is overwritten."""

        def program(library):
            rb = ring(library, 4)
            return rb.extend(steps(6)).tolist(), rb[:]["obs"].tolist()

        (mine, here), (other, there) = both(program)
        assert mine == [-1, -1, 2, 3, 0, 1]
        assert other == [0, 1, 2, 3, 0, 1]
        assert here == there == [4, 5, 2, 3]

    def test_the_highest_ranked_steps_are_the_same(self):
        def program(library):
            rb = ring(library, 4, writer=library.TensorDictMaxValueWriter(rank_key=("next", "reward")))
            for start in (0, 20, 5):
                rb.extend(steps(6, start=start))
            return sorted(rb[:]["obs"].tolist()), rb.add(steps(1, start=1)[0]), len(rb)

        mine, other = both(program)
        assert mine == other == ([22, 23, 24, 25], None, 4)


class FakeTree(list):
    """A Python version of TorchRL's compiled tree, which may fail to load."""

    def __init__(self, combine, neutral, size):
        super().__init__([neutral] * size)
        self.combine = combine

    def query(self, start, stop):
        return float(self.combine(list.__getitem__(self, slice(start, stop))))

    def __getitem__(self, index):
        return torch.tensor([list.__getitem__(self, one) for one in torch.as_tensor(index).reshape(-1).tolist()])

    def __setitem__(self, index, value):
        index = torch.as_tensor(index).reshape(-1)
        for one, mass in zip(index.tolist(), torch.as_tensor(value).expand(index.shape).tolist(), strict=True):
            list.__setitem__(self, one, mass)

    def update(self, index, value):
        self[index] = value

    def scan_lower_bound(self, mass):
        sums = list(itertools.accumulate(list.__iter__(self)))
        return np.searchsorted(sums, mass)


@pytest.fixture
def fake_trees(monkeypatch):
    for name in ("Fp32", "Fp64"):
        monkeypatch.setattr(_prioritized, f"SumSegmentTree{name}", lambda size: FakeTree(sum, 0.0, size))
        monkeypatch.setattr(_prioritized, f"MinSegmentTree{name}", lambda size: FakeTree(min, float("inf"), size))


@pytest.mark.usefixtures("fake_trees")
class TestPriorities:
    @pytest.mark.parametrize(("alpha", "beta"), [(0.7, 0.9), (1.0, 1.0), (0.0, 0.5), (0.5, 0.0)], ids=str)
    def test_weights_are_the_same(self, alpha, beta):
        def program(library):
            sampler = library.PrioritizedSampler(20, alpha=alpha, beta=beta)
            rb = ring(library, 20, sampler=sampler, batch_size=400)
            rb.extend(steps(10))
            rb.update_priority(torch.arange(10), torch.arange(1.0, 11.0))
            batch = rb.sample()
            rows, places = np.unique(batch["index"].numpy(), return_index=True)
            return rows.tolist(), batch["priority_weight"][places]

        (mine, weights), (other, expected) = both(program)
        assert mine == other == list(range(10))
        assert weights.dtype == expected.dtype == torch.float32
        torch.testing.assert_close(weights, expected)

    def test_new_steps_have_the_largest_priority_so_far(self):
        def program(library):
            rb = ring(library, 4, sampler=library.PrioritizedSampler(4, alpha=1.0, beta=1.0), batch_size=400)
            rb.extend(steps(2))
            rb.update_priority(torch.arange(2), torch.tensor([1.0, 4.0]))
            rb.extend(steps(1, start=2))
            batch = rb.sample()
            return {
                int(row): weight.item() for row, weight in zip(batch["index"], batch["priority_weight"], strict=True)
            }

        mine, other = both(program)
        assert mine == pytest.approx(other)
        assert mine == pytest.approx({0: 1.0, 1: 0.25, 2: 0.25})

    def test_rows_that_were_not_kept_are_ignored(self):
        def program(library):
            sampler = library.PrioritizedSampler(4, alpha=1.0, beta=1.0)
            rb = ring(library, 4, sampler=sampler, batch_size=400)
            rb.extend(steps(2))
            rb.update_priority(torch.tensor([-1, 1]), torch.tensor([9.0, 3.0]))
            return {round(weight, 4) for weight in rb.sample()["priority_weight"].tolist()}

        mine, other = both(program)
        assert mine == other == {1.0, 0.3333}


def test_what_is_appended_to_a_compose_that_was_given():
    """This library does not append it to the given Compose, which another buffer may share."""
    lengths = []
    for library, doubled, composed in ((ours, Doubled, Compose), (theirs, theirs_doubled, theirs_composed)):
        compose = composed(doubled())
        buffer = ring(library, transform=compose)
        buffer.append_transform(doubled())
        lengths.append((len(compose), len(buffer.transform)))

    assert lengths == [(1, 2), (2, 2)]


class Doubled(Transform):
    def __init__(self):
        super().__init__(in_keys=["obs"])

    def _apply_transform(self, obs):
        return 2 * obs


def theirs_doubled():
    from torchrl.envs.transforms import Transform

    class TheirDoubled(Transform):
        def __init__(self):
            super().__init__(in_keys=["obs"], out_keys=["obs"])

        def _apply_transform(self, obs):
            return 2 * obs

    return TheirDoubled()


def theirs_composed(*transforms):
    from torchrl.envs.transforms import Compose

    return Compose(*transforms)


def test_generations_count_the_same_writes():
    def program(library):
        writer = library.TensorDictRoundRobinWriter(track_generations=True)
        rb = ring(library, 4, writer=writer)
        index = rb.extend(steps(4))
        sampled = writer.generations_of(index)
        rb.extend(steps(6))
        writer.write_at(torch.tensor([0, 3]), steps(2))
        counts = [writer.generations_of(torch.tensor([0, 1, 2, 3, 4]))]
        patch = {"obs": torch.full((4,), 9.0)}
        result = rb.update_if_present(index=index, generation=sampled + torch.tensor([3, 2, 0, 0]), patch=patch)
        rb.empty()
        rb.add(steps(1)[0])
        return [one.tolist() for one in (*counts, result.updated, writer.generations_of(torch.arange(4)))]

    ours_result, theirs_result = both(program)
    assert ours_result == theirs_result


def test_the_capacity_is_rounded_up_to_whole_time_steps_of_all_environments():
    def program(library):
        rb = ring(library, 100, ndim=2)
        rb.extend(torch.stack([steps(40)] * 3))
        return rb.storage.max_size, len(rb), rb.write_count

    ours_result, theirs_result = both(program)
    assert ours_result == theirs_result == (102, 102, 40)


def test_statistics_are_the_same_before_and_after_emptying():
    def program(library):
        rb = ring(library, 10)
        rb.extend(steps(15))
        full = rb.stats()
        rb.empty(empty_write_count=False)
        return [{name: value for name, value in one.items() if name != "latency"} for one in (full, rb.stats())]

    ours_result, theirs_result = both(program)
    assert ours_result == theirs_result

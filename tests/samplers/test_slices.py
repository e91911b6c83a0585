"""Slices of trajectories: which are drawn, with which probability, and their marks in the batch."""

from __future__ import annotations

import pytest
import torch
from stored_data import trajectory, write_dataset
from tensordict import TensorDict

from datasets_rl import (
    DatasetStorage,
    LazyTensorStorage,
    ListStorage,
    ReplayBuffer,
    Sampler,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    TensorDictReplayBuffer,
)
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.storages import PaddedTrajectories

KINDS = [SliceSampler, SliceSamplerWithoutReplacement]
LENGTHS = [7, 3, 5, 1, 4]
"""Lengths of the episodes: steps 0-6, 7-9, 10-14, 15 and 16-19."""
EPISODES = [list(range(7)), list(range(7, 10)), list(range(10, 15)), [15], list(range(16, 20))]


def steps(lengths=LENGTHS, *, start=0, **more):
    """Return consecutive episodes; `t` numbers all steps."""
    count = sum(lengths)
    done = torch.zeros(count, 1, dtype=torch.bool)
    done[torch.tensor(lengths).cumsum(0) - 1] = True
    return TensorDict(
        {"t": torch.arange(start, start + count), **more, "next": {"done": done, "terminated": done.clone()}}, [count]
    )


def ring(data, size=None, **kwargs):
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(size or len(data)), **kwargs)
    buffer.extend(data)
    return buffer


def slices(batch):
    """Return the steps of each slice of a batch, in order."""
    mask = batch.get(("collector", "mask"), torch.ones(len(batch), dtype=torch.bool))
    return [
        batch["t"][(batch["slice_id"] == one) & mask].tolist()
        for one in batch["slice_id"].unique_consecutive().tolist()
    ]


def order_of(buffer):
    """Return the first steps of the slices of an epoch."""
    return [one[0] for batch in buffer for one in slices(batch)]


def starts_of(sampler, data, *, batch_size, batches):
    """Return the number of draws of each slice."""
    buffer = ring(data, sampler=sampler, batch_size=batch_size)
    found = {}
    for _ in range(batches):
        for one in slices(buffer.sample()):
            found[tuple(one)] = found.get(tuple(one), 0) + 1
    return found


def assert_even(found, expected):
    """Check uniformity by chi-square at a level of one in a thousand; the draws are seeded."""
    from scipy.stats import chi2

    assert set(found) == {tuple(one) for one in expected}
    mean = sum(found.values()) / len(found)
    assert sum((count - mean) ** 2 / mean for count in found.values()) < chi2.ppf(0.999, len(found) - 1)


def runs(length, episodes=EPISODES):
    return [one[at : at + length] for one in episodes for at in range(len(one) - length + 1)]


def seeded():
    return torch.Generator().manual_seed(0)


class TestDraws:
    def test_every_admissible_start_has_the_same_probability(self):
        """Including the last start of an episode, and for episodes of any length."""
        found = starts_of(SliceSampler(slice_len=3, generator=seeded()), steps(), batch_size=300, batches=100)

        assert_even(found, runs(3))

    @pytest.mark.parametrize("pad", [False, True])
    def test_a_short_episode_that_is_kept_has_one_start(self, pad):
        sampler = SliceSampler(slice_len=4, strict_length=False, pad_output=pad, generator=seeded())

        assert_even(starts_of(sampler, steps(), batch_size=400, batches=100), [*runs(4), [7, 8, 9], [15]])

    @pytest.mark.parametrize(
        ("span", "more"),
        [
            ((True, False), [[0], [0, 1], [10], [10, 11], [7], [7, 8], [16], [16, 17]]),
            ((False, 1), [[5, 6], [13, 14], [8, 9], [18, 19]]),
            ((1, 1), [[0, 1], [5, 6], [10, 11], [13, 14], [7, 8], [8, 9], [16, 17], [18, 19]]),
        ],
        ids=["start", "end by one", "both by one"],
    )
    def test_a_span_adds_starts_outside_the_episode(self, span, more):
        sampler = SliceSampler(slice_len=3, span=span, generator=seeded())

        assert_even(starts_of(sampler, steps(), batch_size=300, batches=100), [*runs(3), *more])

    def test_with_a_full_span_every_step_of_an_episode_has_the_same_probability(self):
        """Without a span, the first and the last steps are drawn less often than those in the middle."""
        buffer = ring(steps([9]), sampler=SliceSampler(slice_len=4, span=True, generator=seeded()), batch_size=4000)
        found = torch.bincount(torch.cat([buffer.sample()["t"] for _ in range(20)]), minlength=9).double()

        assert float(found.max() / found.min()) < 1.1

    def test_slices_can_begin_where_episodes_do(self):
        sampler = SliceSampler(slice_len=3, starts="episode", generator=seeded())

        assert_even(
            starts_of(sampler, steps(), batch_size=300, batches=50), [one[:3] for one in EPISODES if len(one) > 2]
        )

    @pytest.mark.slow
    def test_the_start_of_the_slice_of_an_epoch_is_uniform(self):
        sampler = SliceSamplerWithoutReplacement(slice_len=3, generator=seeded())
        found = starts_of(sampler, steps([6, 6]), batch_size=6, batches=4000)

        assert_even(found, runs(3, [list(range(6)), list(range(6, 12))]))

    @pytest.mark.parametrize("kind", KINDS)
    def test_the_number_of_slices_determines_their_length(self, kind):
        batch = ring(steps(), sampler=kind(num_slices=2)).sample(6)

        assert [len(one) for one in slices(batch)] == [3, 3]

    def test_a_reused_number_is_another_episode_after_an_end_flag(self):
        data = steps([4, 4], episode=torch.zeros(8))
        batch = ring(data, sampler=SliceSampler(slice_len=4, traj_key="episode", generator=seeded())).sample(400)

        assert {tuple(one) for one in slices(batch)} == {(0, 1, 2, 3), (4, 5, 6, 7)}

    def test_a_gap_in_the_steps_divides_a_trajectory(self):
        data = TensorDict(
            {"t": torch.arange(6), "episode": torch.zeros(6), "step_count": torch.tensor([0, 1, 2, 5, 6, 7])}, [6]
        )
        batch = ring(data, sampler=SliceSampler(slice_len=2, traj_key="episode", fragmented=True)).sample(200)

        assert {tuple(one) for one in slices(batch)} == {(0, 1), (1, 2), (3, 4), (4, 5)}

    def test_any_of_several_flags_ends_a_trajectory(self):
        a, b = torch.zeros(2, 6, 1, dtype=torch.bool)
        a[1], b[3] = True, True
        data = TensorDict({"t": torch.arange(6), "a": a, "b": b}, [6])
        sampler = SliceSampler(slice_len=2, end_keys=["a", "b", "absent"])

        assert {tuple(one) for one in slices(ring(data, sampler=sampler).sample(200))} == {(0, 1), (2, 3), (4, 5)}

    def test_an_unfinished_episode_is_sampled_with_its_stored_steps(self):
        data = steps([4, 9])[:8]
        buffer = ring(data, size=20, sampler=SliceSampler(slice_len=3))

        assert {tuple(one) for one in slices(buffer.sample(600))} == {(0, 1, 2), (1, 2, 3), (4, 5, 6), (5, 6, 7)}
        buffer.extend(steps([4, 9])[8:9])
        assert (6, 7, 8) in {tuple(one) for one in slices(buffer.sample(600))}

    @pytest.mark.parametrize(
        "given",
        [{"ends": steps()["next", "done"]}, {"trajectories": torch.tensor(LENGTHS).cumsum(0)}],
        ids=["ends", "trajectories"],
    )
    def test_given_ends_or_trajectories_replace_a_key(self, given):
        if "trajectories" in given:
            given = {"trajectories": torch.repeat_interleave(torch.arange(5), torch.tensor(LENGTHS))}
        data = TensorDict({"t": torch.arange(20)}, [20])
        buffer = ring(data, sampler=SliceSampler(slice_len=4, cache_values=True, **given))

        assert {tuple(one) for one in slices(buffer.sample(800))} == {tuple(one) for one in runs(4)}

    def test_data_without_fields_is_divided_by_given_ends(self):
        buffer = ReplayBuffer(
            storage=ListStorage(6),
            sampler=SliceSampler(slice_len=2, ends=torch.arange(6) % 3 == 2),
            collate_fn=lambda listed: listed,
        )
        buffer.extend(list("abcdef"))
        found = {"".join(buffer.sample(2)) for _ in range(200)}

        assert found == {"ab", "bc", "de", "ef"}

    def test_given_ends_must_cover_all_steps(self):
        with pytest.raises(InvalidArgumentError, match="ends has 3 elements, expected 20, the number of stored steps"):
            ring(steps(), sampler=SliceSampler(slice_len=2, ends=torch.tensor([True, False, True]))).sample(2)


class TestMarksInTheBatch:
    def test_slices_of_one_episode_have_different_numbers(self):
        """A number is never reused, so that adjacent slices can be distinguished."""
        buffer = ring(steps([9]), sampler=SliceSampler(slice_len=3))
        numbers = torch.cat([buffer.sample(12)["slice_id"] for _ in range(3)])

        assert numbers.tolist() == [number for number in range(12) for _ in range(3)]

    @pytest.mark.parametrize("kind", KINDS)
    def test_the_last_step_of_a_slice_is_truncated_and_done(self, kind):
        """The flags of the data are kept, and terminated does not change."""
        buffer = ring(steps([6, 6]), sampler=kind(slice_len=3, generator=seeded()))
        for _ in range(20):
            batch = buffer.sample(6)
            last = torch.tensor([False, False, True] * (len(batch) // 3)).view(-1, 1)

            assert torch.equal(batch["next", "truncated"], last)
            assert torch.equal(batch["next", "done"], last)
            assert torch.equal(batch["next", "terminated"].squeeze(1), (batch["t"] == 5) | (batch["t"] == 11))

    def test_flags_of_the_data_inside_a_slice_are_kept(self):
        """Where done does not end a trajectory."""
        data = steps([2, 2], episode=torch.zeros(4), stop=torch.tensor([False, False, False, True]))
        batch = ring(data, sampler=SliceSampler(slice_len=4, end_key="stop")).sample(4)

        assert batch["next", "done"].squeeze(1).tolist() == [False, True, False, True]
        assert batch["next", "truncated"].squeeze(1).tolist() == [False, False, False, True]

    def test_data_without_flags_gets_them(self):
        data = TensorDict({"t": torch.arange(6), "episode": torch.zeros(6)}, [6])
        batch = ring(data, sampler=SliceSampler(slice_len=3, traj_key="episode")).sample(3)

        assert batch["next", "truncated"].squeeze(1).tolist() == [False, False, True]
        assert batch["next", "done"].squeeze(1).tolist() == [False, False, True]
        assert not batch["next", "terminated"].any()

    def test_without_a_key_there_are_no_marks(self):
        _, info = ring(steps(), sampler=SliceSampler(slice_len=3, truncated_key=None)).sample(3, return_info=True)

        assert set(info) == {"slice_id", "index"}

    def test_marks_are_at_the_given_key(self):
        _, info = ring(steps(), sampler=SliceSampler(slice_len=3, truncated_key=("end", "cut"))).sample(
            3, return_info=True
        )

        assert {("end", "cut"), ("end", "done"), ("end", "terminated")} <= set(info)

    def test_the_first_step_of_a_slice_has_is_init_where_the_data_has_that_key(self):
        begun = torch.zeros(20, 1, dtype=torch.bool)
        begun[1] = True
        data = steps(is_init=begun)
        batch = ring(data, sampler=SliceSampler(slice_len=4, generator=seeded())).sample(400)

        first = torch.tensor([True, False, False, False] * 100)
        assert torch.equal(batch["is_init"].squeeze(1), first | (batch["t"] == 1))
        plain = ring(data, sampler=SliceSampler(slice_len=4, init_key=None)).sample(400)
        assert torch.equal(plain["is_init"].squeeze(1), plain["t"] == 1)

    def test_padding_repeats_the_last_step_and_is_marked(self):
        sampler = SliceSampler(slice_len=4, strict_length=False, pad_output=True)
        batch = ring(steps([2]), sampler=sampler).sample(8)

        assert batch["t"].tolist() == [0, 1, 1, 1] * 2
        assert batch["collector", "mask"].tolist() == [True, True, False, False] * 2
        assert batch["next", "truncated"].squeeze(1).tolist() == [False, True, False, False] * 2

    def test_without_a_short_episode_nothing_is_padded_and_there_is_no_mask(self):
        sampler = SliceSampler(slice_len=2, strict_length=False, pad_output=True)

        assert ("collector", "mask") not in ring(steps([2, 5]), sampler=sampler).sample(8).keys(include_nested=True)

    def test_a_short_episode_that_is_kept_makes_the_batch_shorter(self):
        batch = ring(steps([2]), sampler=SliceSampler(slice_len=4, strict_length=False)).sample(8)

        assert batch["t"].tolist() == [0, 1, 0, 1]
        assert batch["next", "truncated"].squeeze(1).tolist() == [False, True] * 2

    def test_a_write_to_a_batch_does_not_change_other_batches(self):
        sampler = SliceSampler(slice_len=4, strict_length=False, pad_output=True)
        buffer = ring(steps([4]), sampler=sampler)
        for value in buffer.sample(8).values(include_nested=True, leaves_only=True):
            value.fill_(1)
        again = buffer.sample(8)

        assert again["slice_id"].tolist() == [2] * 4 + [3] * 4
        assert again["next", "truncated"].squeeze(1).tolist() == [False, False, False, True] * 2

    def test_a_buffer_without_keys_has_them_in_the_info(self):
        buffer = ReplayBuffer(storage=LazyTensorStorage(20), sampler=SliceSampler(slice_len=3))
        buffer.extend(steps())
        _, info = buffer.sample(3, return_info=True)

        assert info["next", "truncated"].squeeze(1).tolist() == [False, False, True]


class TestEpochs:
    def test_every_episode_is_drawn_once_per_epoch(self):
        """The last batch has the remaining episodes; episodes shorter than a slice are never drawn."""
        buffer = ring(steps(), sampler=SliceSamplerWithoutReplacement(slice_len=3, generator=seeded()), batch_size=9)
        for _ in range(10):
            batches = [slices(batch) for batch in buffer]

            assert [len(one) for one in batches] == [3, 1]
            homes = [
                next(number for number, one in enumerate(EPISODES) if piece[0] in one)
                for one in batches
                for piece in one
            ]
            assert sorted(homes) == [0, 1, 2, 4]

    @pytest.mark.parametrize("length", [1, 4], ids=["every episode has a slice", "three episodes do"])
    def test_a_computed_order_draws_each_episode_once_and_continues(self, monkeypatch, length):
        monkeypatch.setattr("datasets_rl.samplers.slices_without_replacement.LISTED_MAX", 2)
        sampler, restored = (SliceSamplerWithoutReplacement(slice_len=length, generator=seeded()) for _ in range(2))
        buffer, other = (ring(steps(), sampler=one, batch_size=length) for one in (sampler, restored))
        drawn = slices(buffer.sample())
        restored.load_state_dict(sampler.state_dict())

        rest = [one for batch in buffer for one in slices(batch)]

        assert [one for batch in other for one in slices(batch)] == rest
        homes = [next(n for n, steps in enumerate(EPISODES) if one[0] in steps) for one in drawn + rest]
        assert sorted(homes) == [n for n, steps in enumerate(EPISODES) if len(steps) >= length]
        assert len({tuple(homes), *(tuple(order_of(buffer)) for _ in range(8))}) > 2

    def test_whole_episodes_are_shuffled_and_their_steps_are_in_order(self):
        sampler = SliceSamplerWithoutReplacement(slice_len=7, strict_length=False, generator=seeded())
        orders = set()
        for _ in range(10):
            batch = slices(ring(steps(), sampler=sampler).sample(35))
            orders.add(tuple(one[0] for one in batch))

            assert sorted(batch) == EPISODES
        assert len(orders) > 5

    def test_without_shuffling_they_come_in_order(self):
        sampler = SliceSamplerWithoutReplacement(num_slices=2, shuffle=False)
        buffer = ring(steps(), sampler=sampler, batch_size=2)
        homes = [
            [next(n for n, one in enumerate(EPISODES) if piece[0] in one) for piece in slices(batch)]
            for batch in buffer
        ]

        assert homes == [[0, 1], [2, 3], [4]]

    def test_a_last_batch_can_be_left_out(self):
        sampler = SliceSamplerWithoutReplacement(num_slices=2, drop_last=True)

        assert [len(batch) for batch in ring(steps(), sampler=sampler, batch_size=2)] == [2, 2]

    def test_an_epoch_without_any_batch_is_an_error(self):
        with pytest.raises(InvalidArgumentError, match="needs 6 slices, but there are 5 trajectories"):
            ring(steps(), sampler=SliceSamplerWithoutReplacement(num_slices=6, drop_last=True)).sample(6)

    def test_a_write_begins_a_new_epoch(self):
        buffer = ring(steps([3, 3]), size=9, sampler=SliceSamplerWithoutReplacement(slice_len=3), batch_size=3)
        buffer.sample()
        buffer.extend(steps([3], start=6))

        assert sorted(slices(buffer.sample())[0][0] for _ in range(3)) == [0, 3, 6]

    @pytest.mark.parametrize(
        ("change", "match"),
        [
            ({"drawn": -1}, "drawn is -1"),
            ({"left": torch.zeros(2)}, "left is not"),
            ({"left": torch.tensor([5]), "of": [5, 20, 1]}, "left has trajectory numbers outside"),
            ({"of": "all", "left": torch.tensor([0])}, "left has trajectory numbers outside"),
        ],
        ids=["count", "dtype", "range", "outline"],
    )
    def test_a_state_that_does_not_fit_is_refused(self, change, match):
        sampler = SliceSamplerWithoutReplacement(slice_len=1)

        with pytest.raises(InvalidArgumentError, match=match):
            sampler.load_state_dict({**sampler.state_dict(), **change})


class TestShares:
    @pytest.mark.parametrize("kind", KINDS)
    def test_ranks_draw_from_disjoint_episodes_and_leave_none_out(self, kind):
        seen = []
        for rank in range(3):
            buffer = ring(steps(), sampler=kind(slice_len=1, rank=rank, world_size=3, generator=seeded()))
            mine = torch.cat([buffer.sample(100)["t"] for _ in range(20)]).tolist()
            seen.append({number for number, one in enumerate(EPISODES) if set(one) & set(mine)})

        assert seen == [{0, 3}, {1, 4}, {2}]

    def test_a_rank_without_an_episode_is_an_error(self):
        with pytest.raises(InvalidArgumentError, match="rank 5 of 6 has no trajectory: there are only 5"):
            ring(steps(), sampler=SliceSampler(slice_len=1, rank=5, world_size=6)).sample(1)


class TestDatasets:
    @pytest.fixture
    def storage(self, tmp_path):
        return DatasetStorage(write_dataset(tmp_path, [trajectory(6, terminated=True), trajectory(2), trajectory(5)]))

    def test_slices_of_a_dataset_are_those_of_its_table(self, storage):
        batch = TensorDictReplayBuffer(storage=storage, sampler=SliceSampler(slice_len=3, generator=seeded())).sample(
            300
        )
        found = {tuple(one.tolist()) for one in batch["index"].view(-1, 3)}

        assert found == {tuple(one) for one in runs(3, [list(range(6)), list(range(8, 13))])}
        assert torch.equal(batch["next", "terminated"].squeeze(1), batch["index"] == 5)

    def test_another_trajectory_key_is_read_once(self, storage, monkeypatch):
        sampler = SliceSampler(slice_len=3, end_key=("next", "terminated"))
        sampler.sample(storage, 3)
        monkeypatch.setattr(DatasetStorage, "column", None)
        rows = sampler.sample(storage, 3000)[0].view(-1, 3)

        assert {6, 7} <= set(rows[:, 0].tolist())
        assert not {4, 5} & set(rows[:, 0].tolist())

    def test_padded_trajectories_have_no_slices(self, storage):
        with pytest.raises(InvalidArgumentError, match="whole trajectories, which slices cannot") as caught:
            SliceSampler(slice_len=3).sample(PaddedTrajectories(storage), 3)
        assert "steps" in caught.value.hint


class TestErrors:
    @pytest.mark.parametrize(
        ("arguments", "match"),
        [
            ({}, "exactly one"),
            ({"num_slices": 2, "slice_len": 3}, "exactly one"),
            ({"slice_len": 0}, "slice_len is 0"),
            ({"num_slices": True}, "num_slices is True"),
            ({"slice_len": 3, "pad_output": True}, "pad_output"),
            (
                {"slice_len": 3, "end_key": "a", "ends": torch.zeros(3)},
                "ends and end_key are mutually exclusive",
            ),
            (
                {"slice_len": 3, "traj_key": "a", "trajectories": torch.zeros(3)},
                "trajectories and traj_key are mutually exclusive",
            ),
            ({"slice_len": 3, "ends": torch.zeros(3), "trajectories": torch.zeros(3)}, "mutually exclusive"),
            ({"slice_len": 3, "end_key": "a", "end_keys": ["b"]}, "end_key and end_keys"),
            ({"slice_len": 3, "span": 3}, "span is 3, expected less than slice_len, 3"),
            ({"slice_len": 3, "span": -1}, "span is -1"),
            ({"slice_len": 3, "span": (1, 2, 3)}, "span is"),
            ({"slice_len": 3, "starts": "middle"}, "starts is 'middle'"),
            ({"slice_len": 3, "starts": "episode", "span": True}, "span adds"),
            ({"slice_len": 3, "fragmented": True, "step_key": None}, "step_key"),
            ({"slice_len": 3, "rank": 1}, "world_size"),
        ],
        ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
    )
    def test_contradictory_arguments_are_refused(self, arguments, match):
        with pytest.raises(InvalidArgumentError, match=match):
            SliceSampler(**arguments)

    def test_all_errors_are_reported_at_once(self):
        with pytest.raises(InvalidArgumentError, match=r"exactly one.*pad_output.*starts"):
            SliceSampler(pad_output=True, starts="never")

    @pytest.mark.parametrize(
        ("size", "match"),
        [
            ({"slice_len": 3}, "batch_size is 10, expected a multiple of slice_len, 3"),
            ({"num_slices": 4}, "multiple of num_slices, 4"),
        ],
        ids=["length", "number"],
    )
    def test_a_batch_size_that_is_not_divisible_is_refused(self, size, match):
        with pytest.raises(InvalidArgumentError, match=match):
            ring(steps(), sampler=SliceSampler(**size)).sample(10)

    @pytest.mark.parametrize("kind", KINDS)
    def test_data_without_a_long_enough_episode_is_refused(self, kind):
        with pytest.raises(
            InvalidArgumentError, match="no trajectory has 8 steps, and the longest of 5 has 7"
        ) as caught:
            ring(steps(), sampler=kind(slice_len=8)).sample(8)
        assert "strict_length=False" in caught.value.hint

    def test_a_span_as_long_as_the_slice_is_refused(self):
        with pytest.raises(InvalidArgumentError, match="expected less than the 2 steps"):
            ring(steps(), sampler=SliceSampler(num_slices=2, span=2)).sample(4)

    def test_data_without_trajectories_is_refused(self):
        with pytest.raises(InvalidArgumentError, match="the ends of trajectories are unknown"):
            ring(TensorDict({"t": torch.arange(3)}, [3]), sampler=SliceSampler(slice_len=1)).sample(1)

    @pytest.mark.parametrize("key", ["end_key", "traj_key"])
    def test_a_missing_given_key_is_an_error(self, key):
        """TorchRL falls back on other keys, and divides the steps elsewhere."""
        with pytest.raises(InvalidArgumentError, match="abent"):
            ring(steps(), sampler=SliceSampler(slice_len=1, **{key: "abent"})).sample(1)

    def test_a_trajectory_key_with_several_values_is_refused(self):
        with pytest.raises(InvalidArgumentError, match="episode has 2 values per step"):
            ring(steps(episode=torch.zeros(20, 2)), sampler=SliceSampler(slice_len=1)).sample(1)

    def test_a_trajectory_key_that_is_not_an_integer_is_refused(self):
        with pytest.raises(InvalidArgumentError, match="not integers"):
            ring(steps(episode=torch.full((20,), 0.5)), sampler=SliceSampler(slice_len=1)).sample(1)


def test_a_users_sampler_needs_one_method():
    class Last(Sampler):
        def sample(self, storage, batch_size):
            return torch.full((batch_size,), len(storage) - 1), {}

    assert ring(steps(), sampler=Last()).sample(3)["t"].tolist() == [19, 19, 19]


def test_the_repr_has_the_arguments():
    assert repr(SliceSampler(slice_len=4, traj_key="episode", rank=0, world_size=2)) == (
        "SliceSampler(slice_len=4, traj_key='episode', truncated_key=('next', 'truncated'), strict_length=True, "
        "pad_output=False, rank=0, world_size=2)"
    )


def test_the_attributes_have_the_form_of_the_arguments():
    sampler = SliceSampler(slice_len=4, traj_key="episode", end_key=("next", "done"), truncated_key="truncated")

    assert (sampler.traj_key, sampler.end_key, sampler.truncated_key) == ("episode", ("next", "done"), "truncated")
    assert (sampler.init_key, sampler.step_key, sampler.end_keys) == ("is_init", "step_count", None)


@pytest.mark.parametrize(
    ("ids", "found"),
    [
        ({"episode": 0, ("collector", "traj_ids"): 1}, ("collector", "traj_ids")),
        ({"episode": 1}, "episode"),
        ({}, None),
    ],
)
def test_after_a_draw_traj_key_is_the_key_that_was_found(ids, found):
    """As in TorchRL. Only the ids of factor 1 divide the steps."""
    numbers = torch.arange(len(EPISODES)).repeat_interleave(torch.tensor(LENGTHS))
    data = TensorDict({key: numbers * factor for key, factor in ids.items()}, [20])
    sampler = SliceSampler(slice_len=3)
    buffer = ring(steps().update(data), sampler=sampler)
    assert sampler.traj_key is None

    buffer.sample(30)
    assert sampler.traj_key == found
    assert SliceSampler(slice_len=3, end_key=("next", "done")).traj_key is None


@pytest.mark.parametrize("kind", [SliceSampler, SliceSamplerWithoutReplacement])
def test_the_info_has_the_stored_terminated_flag_beside_a_truncated_key_at_the_root(kind):
    ended = torch.zeros(20, 1, dtype=torch.bool)
    ended[[9, 19]] = True
    buffer = ring(
        steps(done=ended, terminated=ended), sampler=kind(slice_len=10, end_key="done", truncated_key="truncated")
    )

    rows, info = buffer.sampler.sample(buffer.storage, 10)

    assert info["truncated"].squeeze(1).tolist() == info["terminated"].squeeze(1).tolist() == [False] * 9 + [True]
    assert int(rows[-1]) in {9, 19}


def test_a_field_of_another_storage_is_detected():
    """One sampler may serve two storages in turn."""
    sampler = SliceSampler(slice_len=3)
    buffer = ring(steps(), sampler=sampler)
    assert "is_init" not in buffer.sample(3).keys()  # noqa: SIM118 - a TensorDict iterates over its steps

    marked = steps(is_init=torch.zeros(20, 1, dtype=torch.bool))
    assert ring(marked, sampler=sampler).sample(3)["is_init"].squeeze(1).tolist() == [True, False, False]
    assert "is_init" not in buffer.sample(3).keys()  # noqa: SIM118 - the same


def test_the_error_for_a_list_names_ends_and_trajectories():
    buffer = ReplayBuffer(storage=ListStorage(3), sampler=SliceSampler(slice_len=1), batch_size=1)
    buffer.extend([1, 2, 3])
    with pytest.raises(InvalidArgumentError, match=r"ListStorage holds no fields.*\n.*pass `ends` or `trajectories`"):
        buffer.sample()

"""Known issues of other replay buffers, one regression test each, with a reference to the report."""

from __future__ import annotations

import multiprocessing
import pickle
import pickletools
import threading

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torch.utils.data import DataLoader

from datasets_rl import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    PrioritizedSampler,
    PrioritizedSliceSampler,
    RandomSampler,
    ReplayBuffer,
    ReplayBufferEnsemble,
    Sampler,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
    TensorStorage,
)
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.transforms import CatFrames, MultiStepTransform

BOTH = [SliceSampler, SliceSamplerWithoutReplacement]


def episodes(*lengths, first=0, terminated=False):
    """Return consecutive episodes of these lengths; every step has its episode and its index in the episode."""
    episode = torch.cat([torch.full((length,), first + number) for number, length in enumerate(lengths)])
    step = torch.cat([torch.arange(length) for length in lengths])
    done = torch.zeros(len(step), 1, dtype=torch.bool)
    done[torch.tensor(lengths).cumsum(0) - 1] = True
    flags = {"done": done, "terminated": done & terminated, "truncated": done & (not terminated)}
    reward = torch.ones(len(step), 1)
    return TensorDict({"episode": episode, "step": step, "next": {"reward": reward, **flags}}, [len(step)])


def filled(size, *parts, storage=LazyTensorStorage, sampler=None, **options):
    rb = TensorDictReplayBuffer(storage=storage(size, **options), sampler=sampler)
    for part in parts:
        rb.extend(part)
    return rb


def slices_of(batch):
    return [batch[batch["slice_id"] == number] for number in batch["slice_id"].unique()]


def assert_no_crossing(batch):
    for piece in slices_of(batch):
        assert len(piece["episode"].unique()) == 1
        assert (piece["step"].diff() == 1).all()


class TestSlices:
    @pytest.mark.parametrize("kind", BOTH)
    def test_slices_can_be_drawn_from_a_full_ring(self, kind):  # pytorch/rl#1969
        rb = filled(20, episodes(7, 7), episodes(7, 7, first=2), sampler=kind(slice_len=3))
        for _ in range(20):
            assert_no_crossing(rb.sample(6))

    @pytest.mark.parametrize("kind", BOTH)
    def test_slices_do_not_mix_environments_that_take_turns(self, kind):  # pytorch/rl#3194
        turns = torch.stack([episodes(10), episodes(10, first=1)], 1).reshape(-1)
        rb = filled(40, turns, sampler=kind(slice_len=4, traj_key="episode"))
        for _ in range(20):
            assert_no_crossing(rb.sample(8))

    def test_two_slices_of_one_episode_have_different_numbers(self):  # pytorch/rl#2588
        rb = filled(10, episodes(10), sampler=SliceSampler(slice_len=5))
        seen = torch.cat([rb.sample(20)["slice_id"].unique() for _ in range(5)])

        assert len(seen) == len(seen.unique()) == 20

    def test_prioritized_slices_stay_within_their_episode(self):  # pytorch/rl#2208
        rb = filled(40, episodes(7, 3, 9, 8), sampler=PrioritizedSliceSampler(40, 1.0, 1.0, slice_len=3))
        rb.update_priority(torch.arange(27), torch.rand(27) + 0.1)
        for _ in range(50):
            assert_no_crossing(rb.sample(12))

    def test_both_samplers_draw_the_same_starts(self):  # pytorch/rl#2193, #2202
        starts = []
        for kind in BOTH:
            rb = filled(12, episodes(5, 3, 4), sampler=kind(slice_len=3))
            batches = torch.cat([rb.sample(3)[:1] for _ in range(200)])
            starts.append({tuple(pair) for pair in torch.stack([batches["episode"], batches["step"]], 1).tolist()})

        assert starts[0] == starts[1] == {(0, 0), (0, 1), (0, 2), (1, 0), (2, 0), (2, 1)}

    @pytest.mark.parametrize("kind", BOTH)
    def test_the_last_step_of_an_episode_is_drawn(self, kind):  # pytorch/rl#1762, #1774
        rb = filled(10, episodes(6, 4), sampler=kind(slice_len=4))
        drawn = torch.cat([rb.sample(4) for _ in range(100)])

        assert {(0, 5), (1, 3)} <= {tuple(pair) for pair in torch.stack([drawn["episode"], drawn["step"]], 1).tolist()}

    @pytest.mark.parametrize("kind", BOTH)
    def test_the_flags_of_termination_are_those_of_the_data(self, kind):  # pytorch/rl#1877, #1884
        rb = filled(10, episodes(5, 5, terminated=True), sampler=kind(slice_len=5))
        batch = rb.sample(10)

        assert torch.equal(batch["next", "terminated"][:, 0], batch["step"] == 4)
        assert torch.equal(batch["next", "done"][:, 0], batch["step"] == 4)

    def test_short_episodes_are_left_out_kept_or_padded(self):  # pytorch/rl#2011
        data = episodes(2, 6)
        strict = filled(8, data, sampler=SliceSampler(slice_len=4))
        kept = filled(8, data, sampler=SliceSampler(slice_len=4, strict_length=False))
        padded = filled(8, data, sampler=SliceSampler(slice_len=4, strict_length=False, pad_output=True))

        assert set(strict.sample(80)["episode"].tolist()) == {1}
        assert {len(piece) for piece in slices_of(kept.sample(400))} == {2, 4}
        batch = padded.sample(400)
        assert len(batch) == 400
        assert torch.equal(batch["collector", "mask"].view(-1, 4).sum(1) == 2, batch["episode"][::4] == 0)

    def test_slices_can_start_where_episodes_start(self):  # pytorch/rl#2056
        rb = filled(20, episodes(8, 12), sampler=SliceSampler(slice_len=4, starts="episode"))

        assert set(rb.sample(80)["step"].tolist()) == {0, 1, 2, 3}

    def test_a_custom_sampler_needs_one_method(self):  # nicklashansen/tdmpc2#29
        class Newest(Sampler):
            def sample(self, storage, batch_size):
                return torch.full((batch_size,), len(storage) - 1), {}

        rb = filled(10, episodes(4), sampler=Newest())
        rb.add(episodes(1)[0])

        assert rb.sample(3)["index"].tolist() == [4, 4, 4]

    def test_episodes_are_shuffled_and_their_steps_are_not(self):  # huggingface/lerobot#2576
        rb = filled(24, episodes(4, 4, 4, 4, 4, 4), sampler=SliceSamplerWithoutReplacement(slice_len=4))
        batch = rb.sample(24)

        assert sorted(batch["episode"][::4].tolist()) == list(range(6))
        assert batch["step"].tolist() == [0, 1, 2, 3] * 6
        assert_no_crossing(batch)


class TestPriorities:
    def made(self, count=10, size=10, **options):
        rb = TensorDictPrioritizedReplayBuffer(alpha=1.0, beta=1.0, eps=0.0, storage=LazyTensorStorage(size), **options)
        rb.extend(episodes(count))
        return rb

    def test_new_steps_need_not_inherit_a_priority_of_an_overwritten_step(self):  # pytorch/rl#2210
        sampler = PrioritizedSampler(4, 1.0, 1.0, max_priority_within_buffer=True)
        rb = filled(4, episodes(4), sampler=sampler)
        rb.update_priority(torch.arange(4), torch.tensor([1000.0, 1.0, 1.0, 1.0]))
        rb.extend(episodes(1))  # the step of priority 1000 is overwritten
        rb.extend(episodes(1))

        assert sampler.default_priority == 1.0

    def test_no_index_is_outside_of_the_stored_steps(self):  # pytorch/rl#2230, #2239
        rb = self.made(count=3, size=1000)
        rb.update_priority(torch.arange(3), torch.tensor([1e-12, 1.0, 1e12]))

        assert max(rb.sample(256)["index"].max() for _ in range(200)) < 3

    def test_not_all_indices_are_zero(self):  # pytorch/rl#1129
        torch.manual_seed(0)
        counts = self.made().sample(10_000)["index"].bincount(minlength=10)

        assert (counts > 800).all()

    def test_the_weights_are_in_the_batch(self):  # pytorch/rl#3235
        rb = self.made()
        rb.update_priority(torch.arange(10), torch.arange(1.0, 11.0))
        batch = rb.sample(50)

        assert torch.allclose(batch["priority_weight"], 1.0 / (batch["index"] + 1.0))

    @pytest.mark.parametrize(
        "kind", [list, np.array, torch.tensor, lambda numbers: torch.tensor(numbers, dtype=torch.float16)]
    )
    def test_priorities_may_have_any_numeric_type(self, kind):  # LucasAlegre/morl-baselines#185, pytorch/rl#2206
        rb = self.made()
        rb.update_priority([0, 1, 2], kind([4.0, 5.0, 6.0]))

        assert rb.sampler.priorities[:3].tolist() == [4, 5, 6]

    @pytest.mark.parametrize("wrong", [-1.0, float("nan"), float("inf")])
    def test_invalid_priorities_are_refused_and_change_nothing(self, wrong):  # cpnota/autonomous-learning-library#106
        rb = self.made()
        before = rb.sampler.priorities.clone()

        with pytest.raises(InvalidArgumentError, match="priority 1 of 2"):
            rb.update_priority([0, 1], [3.0, wrong])
        assert torch.equal(rb.sampler.priorities, before)
        assert rb.sample(64)["priority_weight"].isfinite().all()

    def test_a_seed_alone_reproduces_the_draws(self):  # numpy's global generator was used elsewhere
        draws = []
        for _ in range(2):
            torch.manual_seed(7)
            draws.append(self.made().sample(20)["index"].tolist())

        assert draws[0] == draws[1]


class TestSaving:
    def test_a_mapped_storage_is_dumped_and_loaded(self, tmp_path):  # pytorch/rl#2390
        rb = filled(20, episodes(7, 8), storage=LazyMemmapStorage)
        rb.dumps(tmp_path / "dump")
        other = filled(20, storage=LazyMemmapStorage)
        other.loads(tmp_path / "dump")

        assert (other[:] == rb[:]).all()

    def test_a_prioritized_buffer_is_dumped_loaded_and_used(
        self, tmp_path
    ):  # pytorch/rl#3055, #3056, thu-ml/tianshou#728
        rb, other = (
            TensorDictPrioritizedReplayBuffer(alpha=0.6, beta=0.4, storage=LazyTensorStorage(20)) for _ in range(2)
        )
        rb.extend(episodes(10))
        rb.update_priority(torch.arange(10), torch.rand(10))
        rb.dumps(tmp_path / "dump")
        other.loads(tmp_path / "dump")
        samples = []
        for one in (rb, other):
            torch.manual_seed(0)
            samples.append(one.sample(30)["index"].tolist())
            one.update_tensordict_priority(one.sample(4).set("td_error", torch.ones(4)))

        assert samples[0] == samples[1]

    def test_a_new_prioritized_sampler_works_over_a_loaded_storage(self, tmp_path):  # pytorch/rl#3120
        rb = filled(10, episodes(10))
        rb.dumps(tmp_path / "dump")
        other = filled(10)
        other.loads(tmp_path / "dump")
        other.set_sampler(PrioritizedSampler(10, 0.7, 0.9))

        assert set(other.sample(300)["index"].tolist()) == set(range(10))

    def test_the_position_in_an_epoch_is_saved(self, tmp_path):  # pytorch/rl#2506, #2226
        def made():
            sampler = SamplerWithoutReplacement(generator=torch.Generator().manual_seed(1))
            return filled(12, episodes(12), sampler=sampler)

        rb, other = made(), made()
        first = rb.sample(5)["index"].tolist()
        rb.save(tmp_path / "dump")
        other.load(tmp_path / "dump")
        rest = [other.sample(size)["index"].tolist() for size in (4, 3)]

        assert rest == [rb.sample(size)["index"].tolist() for size in (4, 3)]
        assert sorted(first + rest[0] + rest[1]) == list(range(12))

    def test_a_scratch_folder_with_other_files_is_not_used_silently(self, tmp_path):  # pytorch/rl#2437
        filled(10, episodes(5), storage=lambda size: LazyMemmapStorage(size, scratch_dir=tmp_path))

        with pytest.raises(InvalidArgumentError, match="earlier storage"):
            LazyMemmapStorage(10, scratch_dir=tmp_path)

    def test_loading_twice_is_loading_once(self, tmp_path):  # danijar/dreamerv3#103
        rb = filled(10, episodes(5))
        rb.dumps(tmp_path / "dump")
        for _ in range(2):
            rb.loads(tmp_path / "dump")

        assert len(rb) == 5
        assert rb.extend(episodes(1)).tolist() == [5]

    def test_no_file_of_a_dump_is_a_pickle(self, tmp_path):  # thu-ml/tianshou#260, DLR-RM/stable-baselines3#239
        filled(10, episodes(5), sampler=PrioritizedSampler(10, 1.0, 1.0)).dumps(tmp_path / "dump")

        for path in (tmp_path / "dump").iterdir():
            with pytest.raises((ValueError, EOFError, pickle.UnpicklingError)):
                list(pickletools.genops(path.read_bytes()))

    def test_episodes_end_where_they_ended_after_loading(self, tmp_path):  # DLR-RM/stable-baselines3#1543
        rb = filled(20, episodes(7, 9), episodes(8, first=2), sampler=SliceSampler(slice_len=4))
        rb.dumps(tmp_path / "dump")
        other = filled(20, sampler=SliceSampler(slice_len=4))
        other.loads(tmp_path / "dump")
        samples = []
        for one in (rb, other):
            torch.manual_seed(0)
            samples.append(one.sample(40)["index"].tolist())

        assert samples[0] == samples[1]
        assert_no_crossing(other.sample(40))

    def test_a_newer_format_names_both_versions(self, tmp_path):  # takuseno/d3rlpy#312, #334
        rb = filled(10, episodes(5))
        rb.dumps(tmp_path / "dump")
        state = tmp_path / "dump" / "state.json"
        state.write_text(state.read_text().replace('"version": 1', '"version": 99'))

        with pytest.raises(InvalidArgumentError, match=r"version 99.*version 1"):
            rb.loads(tmp_path / "dump")

    def test_a_state_loads_with_weights_only(self, tmp_path):  # NVIDIA-NeMo/RL#2651
        rb = filled(10, episodes(5), sampler=PrioritizedSampler(10, 1.0, 1.0))
        torch.save(rb.state_dict(), tmp_path / "state.pt")
        other = filled(10, sampler=PrioritizedSampler(10, 1.0, 1.0))
        other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))

        assert (other[:] == rb[:]).all()


def worker_sees(rb, queue):
    queue.put(rb.sample(4)["step"].tolist())


class TestProcesses:
    def test_prefetching_prepares_the_next_batch(self):  # pytorch/rl#3870
        ahead = threading.Event()
        made = []

        def transform(batch):
            made.append(threading.current_thread() is not threading.main_thread())
            if len(made) == 2:
                ahead.set()
            return batch

        rb = TensorDictReplayBuffer(storage=LazyTensorStorage(10), batch_size=2, prefetch=1, transform=transform)
        rb.extend(episodes(10))
        rb.sample()

        assert ahead.wait(20)  # the second batch is prepared before it is requested
        assert all(made)
        rb._prefetch.close()

    @pytest.mark.parametrize("kind", [RandomSampler, SamplerWithoutReplacement])
    def test_ranks_read_disjoint_steps_and_together_all_of_them(
        self, kind
    ):  # pytorch/rl#1397, Physical-Intelligence/openpi#920
        shares = []
        for rank in range(3):
            rb = filled(30, episodes(30), sampler=kind(rank=rank, world_size=3))
            shares.append(set(torch.cat([rb.sample(10)["index"] for _ in range(20)]).tolist()))

        assert sum(map(len, shares)) == len(set.union(*shares)) == 30

    def test_ranks_read_disjoint_episodes_in_shuffled_order(self):  # NVIDIA/cosmos-framework#37
        shares = []
        for rank in range(2):
            rb = filled(
                40, episodes(*[4] * 10), sampler=SliceSamplerWithoutReplacement(slice_len=4, rank=rank, world_size=2)
            )
            shares.append(rb.sample(20)["episode"][::4].tolist())

        assert sorted(shares[0] + shares[1]) == list(range(10))
        assert any(share != sorted(share) for share in shares)

    def test_a_loader_over_a_buffer_works(self):  # pytorch/rl#4387
        batches = list(DataLoader(filled(10, episodes(10)), batch_size=4))

        assert torch.cat([batch["step"] for batch in batches]).tolist() == list(range(10))

    def test_a_forked_process_uses_its_own_file_handles(self):  # huggingface/lerobot#2488
        rb = TensorDictReplayBuffer(storage=LazyMemmapStorage(10), prefetch=2, batch_size=4)
        rb.extend(episodes(10))
        rb.sample()  # opens file handles and starts threads
        context = multiprocessing.get_context("fork")
        queue = context.Queue()
        process = context.Process(target=worker_sees, args=(rb, queue))
        process.start()

        assert len(queue.get(timeout=60)) == 4
        process.join(30)
        assert process.exitcode == 0
        rb._prefetch.close()


class TestSurprises:
    def test_adding_one_and_extending_with_one_are_the_same(self):  # pytorch/rl#2948
        added, extended = filled(5), filled(5)
        added.add(episodes(1)[0])
        extended.extend(episodes(1))

        assert (added[:] == extended[:]).all()
        extended.add(episodes(1)[0])
        added.extend(episodes(1))
        assert (added[:] == extended[:]).all()

    def test_a_list_of_tensors_is_one_element_per_tensor(self):  # pytorch/rl#1934
        rb = ReplayBuffer(storage=LazyTensorStorage(5))
        rb.extend([torch.zeros(3), torch.ones(3)])

        assert rb[:].tolist() == [[0, 0, 0], [1, 1, 1]]

    def test_data_of_another_shape_is_an_error_with_both_shapes(self):  # pytorch/rl#3146, #1885, #1585
        rb = filled(5, TensorDict({"a": torch.zeros(2, 3)}, [2]))

        with pytest.raises(InvalidArgumentError, match=r"'a' has shape \[2, 4\], expected \[2, 3\]"):
            rb.extend(TensorDict({"a": torch.zeros(2, 4)}, [2]))
        assert len(rb) == 2

    def test_episodes_of_any_length_fit(self):  # pytorch/rl#1671
        rb = filled(20, episodes(3), episodes(9, first=1), episodes(1, first=2))

        assert rb["episode"].bincount().tolist() == [3, 9, 1]

    def test_a_mapped_storage_gives_batches_on_its_device(self):  # pytorch/rl#2515
        rb = filled(5, episodes(5), storage=lambda size: LazyMemmapStorage(size, device="meta"))

        assert rb.sample(3)["step"].device.type == "meta"

    def test_members_of_different_sizes_are_sampled_together(self):  # pytorch/rl#1768
        rb = ReplayBufferEnsemble(filled(5, episodes(5)), filled(50, episodes(50)), sample_from_all=True)

        assert rb.sample(12).batch_size == (2, 6)

    def test_a_full_container_is_not_an_empty_buffer(self):
        rb = ReplayBuffer(storage=TensorStorage(torch.arange(4)))

        assert len(rb) == 4
        assert set(rb.sample(100).tolist()) == {0, 1, 2, 3}

    def test_items_that_cannot_be_stacked_are_an_error_with_a_remedy(self):
        rb = ReplayBuffer(storage=ListStorage(3))
        rb.extend([None, None])

        with pytest.raises(InvalidArgumentError) as caught:
            rb.sample(2)
        assert "collate_fn" in caught.value.hint


def observed(*lengths, first=0):
    """Return episodes with observations of ten times the episode plus the step, and rewards of 1."""
    data = episodes(*lengths, first=first)
    number = (data["episode"] * 100 + data["step"]).float().unsqueeze(-1)
    return data.set("observation", number).set(("next", "observation"), number + 1)


class TestTimeAndStacks:
    def test_multi_step_targets_stay_within_the_episode_in_a_full_ring(
        self,
    ):  # younggyoseo/FastTD3#6, tensorflow/agents#939
        rb = TensorDictReplayBuffer(storage=LazyTensorStorage(20), transform=MultiStepTransform(3, 0.5))
        for first in range(0, 6, 2):
            rb.extend(observed(7, 6, first=first))
        for _ in range(20):
            batch = rb.sample(32)
            episode = batch["episode"].unsqueeze(-1)
            assert torch.equal(batch["next", "observation"] // 100, episode.float())
            ahead = batch["steps_to_next_obs"].unsqueeze(-1)
            assert torch.equal(batch["next", "observation"] - batch["observation"], ahead.float())
            assert torch.allclose(batch["gamma"].unsqueeze(-1), 0.5**ahead)
            assert torch.allclose(batch["next", "reward"], (1 - 0.5**ahead) / 0.5)

    def test_the_first_step_of_an_episode_is_not_dropped(self):  # pytorch/rl#3036
        rb = TensorDictReplayBuffer(storage=LazyTensorStorage(20), transform=MultiStepTransform(3, 0.9))
        rb.extend(observed(5))

        assert set(rb.sample(200)["step"].tolist()) == {0, 1, 2, 3, 4}

    def test_stacks_of_frames_are_not_stored_and_stay_within_the_episode(
        self,
    ):  # DLR-RM/stable-baselines3#37, google/dopamine#213
        rb = TensorDictReplayBuffer(
            storage=LazyTensorStorage(20), transform=CatFrames(3, dim=-1, in_keys=["observation"], padding="same")
        )
        rb.extend(observed(5, 6))
        batch = rb.sample(200)
        steps = batch["step"].unsqueeze(-1) + torch.tensor([-2, -1, 0])

        assert torch.equal(batch["observation"], batch["episode"].unsqueeze(-1) * 100.0 + steps.clamp(min=0))
        assert rb.storage.column(("observation",)).shape == (11, 1)

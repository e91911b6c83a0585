"""Arguments and methods with which programs for TorchRL call buffers, storages, samplers and writers."""

from __future__ import annotations

import functools
import json
import multiprocessing
import pickle

import pytest
import torch
from tensordict import LazyStackedTensorDict, TensorDict

from datasets_rl import (
    ImmutableDatasetWriter,
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    PrioritizedReplayBuffer,
    PrioritizedSampler,
    RandomSampler,
    ReplayBuffer,
    ReplayBufferEnsemble,
    RoundRobinWriter,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    StorageEnsemble,
    TensorDictMaxValueWriter,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
    TensorStorage,
)
from datasets_rl.errors import InvalidArgumentError, UnknownKeyError
from datasets_rl.transforms import MultiStepTransform


def steps(count, start=0):
    """Return steps whose observation is their number."""
    number = torch.arange(start, start + count)
    return TensorDict({"obs": number.float(), "next": {"reward": number[:, None].float()}}, [count])


def filled(count=10, size=10, **options):
    rb = TensorDictReplayBuffer(storage=LazyTensorStorage(size), batch_size=4, **options)
    rb.extend(steps(count))
    return rb


class TestConstructors:
    def test_no_batches_are_prefetched_with_a_prefetch_of_0(self):
        rb = ReplayBuffer(storage=ListStorage(5), prefetch=0, batch_size=3)
        rb.extend(torch.arange(5))

        assert rb.sample().shape == (3,)
        assert rb.stats()["prefetch_queue_size"] == 0

    @pytest.mark.parametrize("compilable", [True, False, None])
    def test_every_component_takes_compilable(self, compilable):
        writers = [writer(compilable=compilable) for writer in (RoundRobinWriter, TensorDictMaxValueWriter)]
        writers.append(ImmutableDatasetWriter(compilable=compilable))
        storages = [
            storage(5, compilable=compilable) for storage in (LazyTensorStorage, LazyMemmapStorage, ListStorage)
        ]
        for rb in (ReplayBuffer, TensorDictReplayBuffer):
            assert rb(storage=storages[0], writer=writers[0], compilable=compilable).initialized

    @pytest.mark.parametrize(
        ("options", "says"),
        [
            ({"consume_after_n_samples": 0}, "max_sample_count is 0, expected an integer >= 1"),
            ({"consume_after_n_samples": 1, "prefetch": 1, "batch_size": 2}, "Prefetching is not supported"),
            (
                {"consume_after_n_samples": 1, "sampler": SamplerWithoutReplacement()},
                "expected the default RandomS",
            ),
            ({"consume_after_n_samples": 1, "storage": LazyTensorStorage(4, ndim=2)}, "1-dimensional storages"),
            ({"transform": abs, "transform_factory": lambda: abs, "delayed_init": False}, "are mutually exclusive"),
            ({"transform_factory": 5, "delayed_init": False}, "transform_factory 5 is not callable"),
        ],
    )
    def test_what_is_not_supported_is_refused_by_name(self, options, says):
        with pytest.raises(InvalidArgumentError, match=says):
            ReplayBuffer(**options)

    def test_an_empty_buffer_is_a_runtime_error(self):
        with pytest.raises(RuntimeError, match="Cannot sample from an empty storage"):
            ReplayBuffer(batch_size=3).sample()

    def test_an_ensemble_refuses_a_delayed_creation_of_its_components(self):
        with pytest.raises(InvalidArgumentError, match="delayed_init is True, expected False"):
            ReplayBufferEnsemble(filled(), delayed_init=True)
        doubled = ReplayBufferEnsemble(
            filled(), batch_size=2, transform_factory=lambda: lambda td: td.set("two", td["obs"])
        )
        assert "two" in doubled.sample()


class TestDelayedInit:
    def test_components_are_created_at_the_first_use(self):
        created = []
        rb = ReplayBuffer(
            storage=lambda: created.append("storage") or LazyTensorStorage(10),
            transform_factory=lambda: created.append("transform") or (lambda data: data * 2),
            batch_size=3,
        )
        assert (rb.initialized, created) == (False, [])
        assert rb.stats() == {"size": 0, "write_count": 0, "prefetch_queue_size": 0, "initialized": False}
        rb.extend(torch.ones(5))

        assert rb.initialized
        assert created == ["storage", "transform"]
        assert rb.sample().tolist() == [2, 2, 2]

    def test_a_given_storage_reports_its_capacity_before(self):
        rb = ReplayBuffer(storage=LazyTensorStorage(10), delayed_init=True)

        assert (rb.stats()["capacity"], rb.stats()["utilization"], rb.initialized) == (10, 0.0, False)

    def test_it_is_created_where_it_is_used_after_pickling(self):
        rb = pickle.loads(pickle.dumps(ReplayBuffer(storage=functools.partial(ListStorage, 4), delayed_init=True)))
        assert not rb.initialized
        rb.extend(torch.arange(3))

        assert len(rb) == 3

    def test_an_invalid_argument_is_reported_at_every_use(self):
        rb = ReplayBuffer(storage=int, delayed_init=True)
        for _ in range(2):
            with pytest.raises(InvalidArgumentError, match="has no method get"):
                len(rb)


class TestFields:
    def test_fields_are_overwritten_in_place(self):
        rb = filled(6)
        assert rb.set_("obs", torch.full((6,), 3.0)) is rb
        assert rb.set_at_("obs", torch.tensor([7.0, 8.0]), torch.tensor([1, -1])) is rb
        assert rb.update_({"next": {"reward": torch.ones(6, 1)}}) is rb

        assert rb["obs"].tolist() == [3, 7, 3, 3, 3, 8]
        assert rb["next", "reward"].tolist() == [[1.0]] * 6

    def test_only_the_chosen_keys_are_updated(self):
        rb = filled(2)
        rb.update_(
            TensorDict({"obs": torch.ones(2), "next": {"reward": torch.ones(2, 1)}}, [2]), keys_to_update=["obs"]
        )

        assert rb["obs"].tolist() == [1, 1]
        assert rb["next", "reward"].tolist() == [[0.0], [1.0]]

    def test_steps_of_single_environments_are_overwritten(self):
        rb = TensorDictReplayBuffer(storage=LazyTensorStorage(12, ndim=2))
        rb.extend(torch.stack([steps(4), steps(4, 10), steps(4, 20)]))
        rb[0, 1:3] = steps(2, 50)
        rb[torch.tensor([2, 3]), torch.tensor([0, 1])] = steps(2, 60)
        rb.set_at_("obs", -1.0, (1, 2))

        assert rb["obs"].tolist() == [[0, 50, 51], [1, 11, -1], [60, 12, 22], [3, 61, 23]]
        with pytest.raises(InvalidArgumentError, match="shape"):
            rb[0, 1:3] = steps(3)

    @pytest.mark.parametrize("call", ["set_", "set_at_", "update_"])
    def test_a_value_that_does_not_fit_changes_nothing(self, call):
        rb = filled(3)
        options = {"set_": ("obs", torch.zeros(5)), "set_at_": ("obs", torch.zeros(5), [0, 1])}
        with pytest.raises(InvalidArgumentError, match=r"has shape \[5\]"):
            getattr(rb, call)(*options.get(call, [{"next": {"reward": torch.zeros(3, 1)}, "obs": torch.zeros(5)}]))
        with pytest.raises(KeyError):
            rb.set_("nothing", torch.zeros(3))

        assert rb["obs"].tolist() == [0, 1, 2]
        assert rb["next", "reward"].tolist() == [[0.0], [1.0], [2.0]]

    @pytest.mark.parametrize("end", [None, 3])
    def test_the_first_slots_are_read_and_written_in_their_order(self, end):
        rb = filled(5)
        data = rb.read_all_in_order(end).clone()
        data["obs"] += 10
        rb.write_all(data, end)

        assert rb["obs"].tolist() == [10, 11, 12, *([13, 14] if end is None else [3, 4])]

    def test_priorities_may_have_the_shape_of_the_data(self):
        rb = TensorDictReplayBuffer(storage=LazyTensorStorage(6, ndim=2), sampler=PrioritizedSampler(6, 1.0, 1.0))
        index = rb.extend(torch.stack([steps(3), steps(3)]))
        rb.update_priority(index, torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]))

        assert rb.sampler.priorities.tolist() == [1, 4, 2, 5, 3, 6]


class TestConsumption:
    @pytest.mark.parametrize("make", [ListStorage, LazyTensorStorage])
    def test_a_step_leaves_after_its_last_draw_and_its_slot_is_written_first(self, make):
        rb = ReplayBuffer(storage=make(5), consume_after_n_samples=1, batch_size=3)
        rb.extend(torch.arange(4))
        batch, info = rb.sample(return_info=True)
        assert len(set(batch.tolist())) == 3
        assert len(rb) == 1

        rows = rb.extend(torch.arange(10, 12))
        assert rows.tolist() == info["index"][:2].tolist()
        assert rb.add(torch.tensor(12)) == info["index"][2]
        assert len(rb) == 4
        assert sorted(step for batch in rb for step in batch.tolist()) == sorted(
            [*{0, 1, 2, 3} - set(batch.tolist()), 10, 11, 12]
        )
        with pytest.raises(InvalidArgumentError, match="empty storage"):
            rb.sample()

    def test_no_slot_is_written_twice_by_one_write(self):
        rb = ReplayBuffer(storage=LazyTensorStorage(20), consume_after_n_samples=1)
        rb.extend(torch.arange(20))
        rb.sample(6)
        for count in (5, 9, 13, 20):
            rows = rb.extend(torch.arange(100, 100 + count))

            assert len(set(rows.tolist())) == count
            assert rb.storage.get(rows).tolist() == list(range(100, 100 + count))

    def test_two_draws_of_each_step_survive_a_dump(self, tmp_path):
        rb = ReplayBuffer(storage=LazyTensorStorage(4), consume_after_n_samples=2, batch_size=4)
        rb.extend(torch.arange(4))
        rb.sample()
        rb.dumps(tmp_path)
        again = ReplayBuffer(storage=LazyTensorStorage(4), consume_after_n_samples=2, batch_size=4)
        again.loads(tmp_path)

        assert len(again) == 4
        assert sorted(again.sample().tolist()) == [0, 1, 2, 3]
        assert len(again) == 0


class TestStats:
    def test_they_count_steps_and_writes(self):
        rb = filled(15)
        expected = {"size": 10, "write_count": 15, "prefetch_queue_size": 0, "initialized": True, "capacity": 10}

        assert json.loads(json.dumps(rb.stats())) == {**expected, "utilization": 1.0}

    def test_they_count_the_batches_in_progress(self):
        rb = filled(prefetch=2)
        rb.sample()

        assert rb.stats()["prefetch_queue_size"] == 2

    def test_the_write_count_may_go_on_after_emptying(self):
        rb = filled(6)
        rb.empty(empty_write_count=False)
        assert (len(rb), rb.write_count) == (0, 6)
        rb.extend(steps(3))
        assert (len(rb), rb.write_count) == (3, 9)
        rb.empty()
        assert rb.write_count == 0


class TestGenerations:
    def tracked(self, size=4, **options):
        return TensorDictReplayBuffer(
            storage=LazyTensorStorage(size, **options),
            writer=TensorDictRoundRobinWriter(track_generations=True),
            batch_size=4,
        )

    def test_they_count_the_writes_to_each_slot(self):
        rb = self.tracked()
        assert rb.writer.generations_of(torch.arange(4)).tolist() == [-1, -1, -1, -1]
        rb.extend(steps(6))
        assert rb.writer.generations_of(torch.tensor([[0, 1], [2, 7]])).tolist() == [[1, 1], [0, -1]]
        rb.writer.write_at(torch.tensor([3, 0]), steps(2))
        assert rb.writer.generations_of(torch.arange(4)).tolist() == [2, 1, 0, 1]
        assert (rb.write_count, rb.writer.write_at(1, steps(1)[0])) == (8, 1)

    def test_they_rise_when_the_storage_is_emptied(self):
        rb = self.tracked()
        rb.extend(steps(3))
        rb.empty()
        rb.extend(steps(4))

        assert rb.writer.generations_of(torch.arange(4)).tolist() == [2, 2, 2, 0]

    def test_they_are_in_batches_and_survive_a_dump(self, tmp_path):
        rb = self.tracked()
        rb.extend(steps(6))
        rb.writer.write_at(torch.tensor([2]), steps(1))
        rb.dumps(tmp_path)
        again = self.tracked()
        again.loads(tmp_path)
        batch = again.sample()

        assert again.writer.generations_of(torch.arange(4)).tolist() == [1, 1, 1, 0]
        assert batch["index_generation"].tolist() == again.writer.generations_of(batch["index"]).tolist()

    def test_a_writer_that_does_not_track_them_does_not_know_them(self):
        rb = filled()

        assert rb.writer.generations_of(torch.arange(3)).tolist() == [-1, -1, -1]
        assert not rb.writer.tracks_generations
        assert "index_generation" not in rb.sample()

    def test_only_steps_that_are_still_present_are_updated(self):
        rb = self.tracked()
        index = rb.extend(steps(4))
        generation = rb.writer.generations_of(index)
        rb.extend(steps(1, 50))
        result = rb.update_if_present(index=index, generation=generation, patch={"obs": torch.full((4,), 9.0)})

        assert result.updated.tolist() == [False, True, True, True]
        assert (result.updated_count, result.stale_count, result.version_rejected) == (3, 1, None)
        assert rb["obs"].tolist() == [50, 9, 9, 9]

    def test_the_highest_version_of_a_step_wins(self):
        rb = self.tracked()
        rb.extend(steps(4).set("version", torch.tensor([5, 5, 5, 9])))
        index = torch.tensor([0, 1, 1, 3])
        result = rb.update_if_present(
            index=index,
            generation=rb.writer.generations_of(index),
            patch={"obs": torch.tensor([10.0, 20.0, 30.0, 40.0])},
            version_key="version",
            version=torch.tensor([5, 8, 7, 8]),
            require_newer=True,
        )

        assert result.updated.tolist() == [False, True, False, False]
        assert result.version_rejected.tolist() == [True, False, True, True]
        assert (rb["obs"].tolist(), rb["version"].tolist()) == ([0, 20, 2, 3], [5, 8, 5, 9])

    def test_values_may_have_the_shape_of_data_with_environments(self):
        rb = self.tracked(6, ndim=2)
        index = rb.extend(torch.stack([steps(3), steps(3, 10)]))
        new = torch.arange(6.0).reshape(2, 3)
        result = rb.update_if_present(
            index=index, generation=rb.writer.generations_of(index), patch={("next", "reward"): new[..., None]}
        )

        assert result.updated.all()
        assert rb["next", "reward"][..., 0].tolist() == new.T.tolist()

    @pytest.mark.parametrize(
        ("options", "says"),
        [
            ({"patch": {"obs": torch.zeros(4, 2)}}, r"has shape \[4, 2\], expected \[4\]"),
            ({"patch": {"obs": torch.zeros(4).int()}}, "is torch.int32, expected torch.float32"),
            ({"version": 3}, "version_key or version was given alone"),
            ({"version_key": "obs", "version": 3}, "may not appear in patch"),
            ({"version_key": "next.reward", "version": 3}, "Dotted-string"),
            ({"version_key": "wide", "version": 3}, "does not hold a single number per step"),
            ({"generation": torch.zeros(3)}, "3 generations for 4 steps"),
        ],
    )
    def test_an_update_that_does_not_fit_changes_nothing(self, options, says):
        rb = self.tracked()
        index = rb.extend(steps(4).set("wide", torch.zeros(4, 2)))
        arguments = {"generation": torch.zeros(4), "patch": {"obs": torch.ones(4)}} | options
        with pytest.raises(InvalidArgumentError, match=says):
            rb.update_if_present(index=index, **arguments)
        with pytest.raises(UnknownKeyError):
            rb.update_if_present(index=index, generation=torch.zeros(4), patch={"nothing": torch.ones(4)})

        assert rb["obs"].tolist() == [0, 1, 2, 3]

    @pytest.mark.parametrize("make", [filled, lambda: ReplayBuffer(storage=ListStorage(5))])
    def test_a_conditional_update_needs_fields_and_generations(self, make):
        with pytest.raises(RuntimeError, match="conditional updates need"):
            make().update_if_present(index=torch.tensor([0]), generation=torch.tensor([0]), patch={})


class TestStorages:
    def test_a_write_that_does_not_count_leaves_the_counts_alone(self):
        storage = LazyTensorStorage(5)
        storage.set(3, steps(1)[0], set_cursor=False)
        assert (len(storage), storage.write_count, storage.initialized) == (0, 0, True)
        storage.set(range(5), steps(5))
        storage.set(torch.tensor([0, 4]), steps(2, 70), set_cursor=False)

        assert (len(storage), storage.write_count) == (5, 5)
        assert storage.get(slice(None))["obs"].tolist() == [70, 1, 2, 3, 71]

    @pytest.mark.parametrize("make", [LazyTensorStorage, LazyMemmapStorage, ListStorage])
    def test_it_knows_which_slots_hold_data(self, make):
        storage = make(5)
        storage.set(range(3), steps(3))

        assert [storage.contains(slot) for slot in (0, 2, 3, -3, -4)] == [True, True, False, True, False]
        assert storage.contains(torch.tensor([[0, 5], [-1, 2]])).tolist() == [[True, False], [True, True]]
        assert 1 in storage
        with pytest.raises(InvalidArgumentError, match="expected integers"):
            storage.contains("a")

    def test_environments_can_be_flattened(self):
        storage = LazyTensorStorage(12, ndim=2)
        storage.set(range(2), torch.stack([steps(3), steps(3, 10)]))
        flat = storage.flatten()

        assert (flat.ndim, len(flat)) == (1, 6)
        assert flat.get(slice(None))["obs"].tolist() == [0, 1, 2, 10, 11, 12]
        assert flat.flatten() is flat

    def test_an_empty_tensordict_is_filled_by_the_first_data(self):
        container = TensorDict(batch_size=[4])
        rb = ReplayBuffer(storage=TensorStorage(container), batch_size=2)
        rb.extend(steps(3))

        assert (len(rb), rb[:]["obs"].tolist()) == (3, [0, 1, 2])
        assert container["obs"].tolist() == [0, 1, 2, 0]
        with pytest.raises(InvalidArgumentError, match="Expected storage to be non-null"):
            TensorStorage(None)

    @pytest.mark.parametrize(("source", "target"), [("rows", "leaves"), ("leaves", "rows")])
    def test_the_layouts_load_the_states_of_each_other(self, source, target):
        storages = {"rows": LazyTensorStorage(4), "leaves": TensorStorage(steps(4).zero_())}
        storages[source].set(torch.arange(6) % 4, steps(6))
        storages[target].load_state_dict(storages[source].state_dict())

        assert storages[target].get(slice(None))["obs"].tolist() == [4, 5, 2, 3]

    @pytest.mark.parametrize("make", [LazyTensorStorage, ListStorage])
    @pytest.mark.parametrize("size", [4, 6])
    def test_hooks_change_what_is_saved_and_change_it_back(self, make, size, tmp_path):
        class Doubled:
            shift = is_full = None

            def __call__(self, data):
                return [item["obs"] * 2 for item in data]

        def halved(data):
            return [TensorDict({"obs": obs / 2}) for obs in data]

        hook, rb = Doubled(), ReplayBuffer(storage=make(4), batch_size=2)
        rb.register_save_hook(hook)
        rb.extend(steps(6).select("obs"))
        rb.dumps(tmp_path)
        again = ReplayBuffer(storage=make(size), batch_size=2)
        with pytest.raises(InvalidArgumentError, match="register the load hooks"):
            again.loads(tmp_path)
        again.register_load_hook(halved)
        again.loads(tmp_path)

        assert (hook.shift, hook.is_full) == (2, True)
        assert [item["obs"].item() for item in again.storage] == ([4, 5, 2, 3] if size == 4 else [2, 3, 4, 5])
        again.extend(steps(1, 90).select("obs"))
        assert [item["obs"].item() for item in again.storage] == ([4, 5, 90, 3] if size == 4 else [2, 3, 4, 5, 90])

    def test_the_names_of_the_reference_save_and_load(self, tmp_path):
        storage, again = LazyTensorStorage(3), LazyTensorStorage(3)
        storage.set(range(2), steps(2))
        storage.save(tmp_path)
        storage.dump(tmp_path)
        again.load(tmp_path)

        assert again.get(slice(None))["obs"].tolist() == [0, 1]

    @pytest.mark.parametrize("verb", ["add", "extend"])
    def test_an_ensemble_of_storages_refuses_writes(self, verb):
        with pytest.raises(RuntimeError, match="cannot write TensorDict to an ensemble"):
            getattr(StorageEnsemble(LazyTensorStorage(3)), verb)(steps(2))

    def test_the_memory_of_all_slots_has_the_name_of_the_reference(self):
        storage = LazyMemmapStorage(5)
        assert storage._storage is None
        storage.set(0, steps(1)[0])

        assert storage._storage["obs"].filename == str(storage.scratch_dir / "rows.0.bin")
        assert storage._storage.shape == (5,)

    def test_lazy_stacks_of_unlike_shapes_are_refused_with_a_message(self):
        data = torch.stack([TensorDict({"a": torch.zeros(3)}), TensorDict({"a": torch.zeros(4)})][:1]).contiguous()
        other = TensorDict.lazy_stack([TensorDict({"a": torch.zeros(3)}), TensorDict({"a": torch.zeros(4)})])
        rb = ReplayBuffer(storage=LazyTensorStorage(5))
        rb.extend(data)
        with pytest.raises(InvalidArgumentError, match="differ in shape"):
            rb.extend(other)

    @pytest.mark.parametrize("storage", [LazyTensorStorage, LazyMemmapStorage])
    @pytest.mark.parametrize("kind", [ReplayBuffer, TensorDictReplayBuffer])
    def test_a_lazy_stack_within_each_step_is_stored_and_read_as_one(self, storage, kind, tmp_path):
        """Two agents that see 4 and 3 numbers: step t has t and -t."""

        def steps(*times):
            times = torch.tensor(times, dtype=torch.float32)[:, None]
            agents = [
                TensorDict(a=sign * times.repeat(1, size), batch_size=len(times)) for sign, size in ((1, 4), (-1, 3))
            ]
            return LazyStackedTensorDict(*agents, stack_dim=1)

        rb = kind(storage=storage(6), batch_size=50)
        rb.extend(steps(0, 1, 2, 3, 4))
        rb.extend(steps(5, 6, 7, 8, 9))

        for batch in (rb.sample(), rb[:], rb[torch.tensor([2, 0])]):
            assert isinstance(batch, LazyStackedTensorDict)
            assert batch[:, 0]["a"].shape == (len(batch), 4)
            assert batch[:, 1]["a"].shape == (len(batch), 3)
            assert torch.equal(batch[:, 0]["a"][:, 0], -batch[:, 1]["a"][:, 0])
        assert set(rb[:][:, 0]["a"][:, 0].tolist()) == {4, 5, 6, 7, 8, 9}
        rb.dumps(tmp_path / "dump")
        again = kind(storage=storage(6), batch_size=50)
        again.loads(tmp_path / "dump")
        assert torch.equal(again[:][:, 1]["a"], rb[:][:, 1]["a"])
        for other in (steps(1)[:, :1], steps(1)[:, [1, 0]], TensorDict(a=torch.zeros(2, 2, 4), batch_size=[2, 2])):
            with pytest.raises(InvalidArgumentError, match="does not match the stored structure"):
                rb.extend(other)
        with pytest.raises(InvalidArgumentError, match="does not match the stored structure"):
            rb.add(TensorDict(a=torch.zeros(4)))


class TestSamplers:
    def test_without_replacement_is_an_argument(self):
        assert type(RandomSampler(replacement=False)) is SamplerWithoutReplacement
        assert type(SliceSampler(slice_len=2, replacement=False)) is SliceSamplerWithoutReplacement
        assert type(SamplerWithoutReplacement(replacement=False)) is SamplerWithoutReplacement
        assert type(RandomSampler(replacement=True)) is RandomSampler
        with pytest.raises(InvalidArgumentError, match="PrioritizedSampler always draws with replacement"):
            PrioritizedSampler(5, 1.0, 1.0, replacement=False)

    def test_numbers_may_be_tensors_and_pairs_lists(self):
        sampler = PrioritizedSampler(5, alpha=torch.tensor(0.5), beta=torch.tensor([0.25]))

        assert (sampler.alpha, sampler.beta) == (0.5, 0.25)
        assert SliceSampler(slice_len=5, span=[False, 3]).span == (False, 3)

    def test_the_priorities_are_on_the_cpu(self):
        rb = PrioritizedReplayBuffer(alpha=1, beta=1, storage=LazyTensorStorage(5), sampler_device="cpu")

        assert rb.prioritized_sampler.device == torch.device("cpu")
        with pytest.raises(InvalidArgumentError, match="device is cuda:0, expected cpu"):
            PrioritizedReplayBuffer(alpha=1, beta=1, sampler_device="cuda:0")

    def test_a_reported_update_gives_the_default_priority(self):
        rb = ReplayBuffer(storage=LazyTensorStorage(5), sampler=PrioritizedSampler(5, 1.0, 1.0))
        rb.extend(torch.arange(3))
        rb.update_priority(torch.arange(3), torch.tensor([0.1, 5.0, 0.2]))
        rb.mark_update(torch.tensor([0]))

        assert rb.sampler.priorities.tolist() == [5, 5, pytest.approx(0.2)]
        assert RandomSampler().default_priority == 1.0

    def test_without_sync_writes_are_processed_at_the_next_draw(self):
        rb = TensorDictPrioritizedReplayBuffer(alpha=1, beta=1, storage=LazyTensorStorage(4), batch_size=2, sync=False)
        index = rb.extend(steps(4))
        rb.update_priority(index, torch.tensor([1.0, 2.0, 3.0, 4.0]))
        rb.extend(steps(2))
        assert rb.sampler.priorities.tolist() == [1, 2, 3, 4]
        rb.sample()

        assert rb.sampler.priorities.tolist() == [4, 4, 3, 4]

    @pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
    def test_without_sync_another_process_writes_and_this_one_samples(self):
        rb = TensorDictPrioritizedReplayBuffer(
            alpha=1, beta=1, storage=LazyMemmapStorage(8), batch_size=2, sync=False, shared=True
        )
        process = multiprocessing.get_context("fork").Process(target=_extend_elsewhere, args=(rb,))
        process.start()
        process.join(60)

        assert (process.exitcode, len(rb), rb.write_count) == (0, 4, 4)
        assert rb.sample()["priority_weight"].tolist() == [1, 1]


def _extend_elsewhere(rb):
    torch.set_num_threads(1)
    rb.extend(steps(4))


class TestWriters:
    def test_the_slot_of_the_next_element_is_told_without_writing(self):
        writer = TensorDictMaxValueWriter(rank_key="obs")
        rb = TensorDictReplayBuffer(storage=LazyTensorStorage(2), writer=writer)
        assert writer.get_insert_index(steps(1)[0]) == 0
        rb.extend(steps(2, 5))

        assert [writer.get_insert_index(steps(1, rank)[0]) for rank in (9, 5)] == [0, None]
        assert rb["obs"].tolist() == [5, 6]

    def test_only_ring_writers_write_at_given_slots(self):
        with pytest.raises(InvalidArgumentError, match="the writer chooses the slots"):
            TensorDictMaxValueWriter().write_at(0, steps(1))


class TestSharing:
    def test_share_takes_its_argument(self):
        rb = filled()
        assert rb.share(False) is rb
        assert not rb.storage.shared
        assert rb.share(True).storage.shared
        with pytest.raises(InvalidArgumentError, match="is shared already"):
            rb.share(False)

    @pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
    def test_a_buffer_shared_before_its_first_data_gets_it_from_another_process(self):
        rb = TensorDictReplayBuffer(storage=LazyTensorStorage(8), batch_size=2, shared=True)
        process = multiprocessing.get_context("fork").Process(target=_extend_elsewhere, args=(rb,))
        process.start()
        process.join(60)
        rb.extend(steps(2, 10))

        assert process.exitcode == 0
        assert rb["obs"].tolist() == [0, 1, 2, 3, 10, 11]


def _slices():
    done = torch.zeros(40, 1, dtype=torch.bool)
    done[9::10] = True
    return steps(40).set(("next", "done"), done)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize(
    "make",
    [
        lambda: ReplayBuffer(storage=LazyTensorStorage(60, compilable=True), batch_size=4, compilable=True),
        lambda: TensorDictReplayBuffer(storage=LazyMemmapStorage(60), batch_size=4),
        lambda: TensorDictReplayBuffer(storage=LazyTensorStorage(60), sampler=SliceSampler(slice_len=2), batch_size=4),
        lambda: TensorDictPrioritizedReplayBuffer(alpha=1, beta=1, storage=LazyTensorStorage(60), batch_size=4),
        lambda: TensorDictReplayBuffer(
            storage=LazyTensorStorage(60), batch_size=4, transform=lambda td: td.set("twice", td["obs"] * 2)
        ),
        lambda: TensorDictReplayBuffer(
            storage=LazyTensorStorage(60), batch_size=4, transform=MultiStepTransform(2, 0.9)
        ),
    ],
    ids=["plain", "memmap", "slices", "priorities", "transform", "n-step"],
)
def test_a_compiled_function_samples_without_a_graph_break(make, backend):
    torch._dynamo.reset()
    rb = make()
    rb.extend(_slices())
    compiled = torch.compile(rb.sample, fullgraph=True, backend=backend)
    torch.manual_seed(0)
    batch = compiled()
    torch.manual_seed(0)
    expected = rb.sample()

    assert set(batch.keys(True, True)) == set(expected.keys(True, True))
    assert (batch.exclude("slice_id") == expected.exclude("slice_id")).all()
    rb.extend(_slices()[:20].set("obs", torch.full((20,), 99.0)))
    assert any((compiled()["obs"] == 99).any() for _ in range(30))


@pytest.mark.filterwarnings("ignore")
def test_a_compiled_function_samples_what_was_written_later_and_writes():
    """The default tests compile once, without a compiler backend."""
    torch._dynamo.reset()
    storage = LazyTensorStorage(20, compilable=True)
    rb = ReplayBuffer(storage=storage, batch_size=3, compilable=True)
    rb.extend(torch.zeros(5))

    def write_and_sample(cursor, data):
        storage.set(cursor, data)
        return rb.sample()

    compiled = torch.compile(write_and_sample, fullgraph=True, backend="eager")
    compiled(torch.arange(5, 10), torch.ones(5))
    compiled(torch.arange(0, 10), torch.full((10,), 7.0))

    assert len(rb) == 10
    assert compiled(torch.arange(10, 15), torch.full((5,), 7.0)).tolist() == [7, 7, 7]

"""Batches of given rows and of some fields, and batches as flat dicts of torch, numpy and jax."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from stored_data import Column, columns, trajectory, write_dataset
from tensordict import TensorDict

from datasets_rl import (
    GoalSampler,
    LazyTensorStorage,
    ListStorage,
    RandomSampler,
    ReplayBuffer,
    ReplayBufferEnsemble,
    SamplerWithoutReplacement,
    SliceSampler,
    TensorDictReplayBuffer,
    load,
)
from datasets_rl.errors import InvalidArgumentError, MissingDependencyError, UnknownKeyError
from datasets_rl.transforms import CatFrames, RewardScaling

TRAJECTORIES = [trajectory(4, terminated=True), trajectory(1), trajectory(5, seed=2), trajectory(2, seed=3)]
WIDE = Column(("image",), np.dtype(np.uint8), (64, 65), shared=True)
"""A field with a file of its own."""


def names(batch):
    return {key if isinstance(key, str) else ".".join(key) for key in batch.keys(True, True)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("toy")
    rng = np.random.default_rng(0)
    for one in TRAJECTORIES:
        one.states["image",] = rng.integers(1, 255, (len(one) + 1, 64, 65), np.uint8)
    write_dataset(folder, TRAJECTORIES, [*columns(), WIDE])
    return folder


@pytest.fixture
def dataset(folder):
    return load(folder, 6)


def written(count=10):
    return TensorDict({"a": torch.arange(count), "next": {"b": torch.arange(count) * 2.0}}, [count])


class TestFields:
    @pytest.mark.parametrize(
        ("keys", "expected"),
        [
            ("action", {"action"}),
            (["next.observation"], {"next.observation"}),
            ([("next", "image")], {"next.image"}),
            (["image"], {"image"}),
            (["episode", "done", "next.done"], {"episode", "done", "next.done"}),
            (
                ["action", "next"],
                {"action"}
                | {f"next.{name}" for name in ("observation", "image", "reward", "done", "terminated", "truncated")},
            ),
        ],
        ids=lambda value: str(value) if not isinstance(value, set) else "",
    )
    def test_a_batch_has_the_chosen_fields_with_the_values_of_a_whole_batch(self, dataset, keys, expected):
        torch.manual_seed(0)
        whole = [dataset.sample() for _ in range(4)]
        torch.manual_seed(0)

        for batch in whole:
            some = dataset.sample(keys=keys)
            assert names(some) == expected | {"index"}
            assert all(torch.equal(some[key], batch[key]) for key in some.keys(True, True))
        assert names(dataset.sample(keys=keys, include_info=False)) == expected

    def test_a_dataset_shows_the_chosen_fields_only(self, folder, dataset):
        shown = load(folder, 6).select(["observation", ("next", "reward")])

        assert names(shown[:]) == {"observation", "next.reward"}
        assert torch.equal(shown[:]["observation"], dataset[:]["observation"])
        assert ("next", "reward") in shown
        assert "action" not in shown
        with pytest.raises(UnknownKeyError, match="action"):
            shown["action"]

    def test_whole_episodes_have_the_chosen_fields(self, folder):
        shown = load(folder, 2, split_trajs=True).select("action")

        assert names(shown.sample()) == {"action", "mask", "index"}

    def test_samplers_and_transforms_of_a_part_of_the_fields_still_find_the_episodes(self, folder):
        shown = load(folder, 6, sampler=SliceSampler(slice_len=2)).select(["observation"])
        stacked = load(folder, 6, transform=CatFrames(2, -1, ["observation"])).select("observation")
        whole = load(folder, transform=CatFrames(2, -1, ["observation"]))

        batch = shown.sample()
        assert torch.equal(batch["index"][1::2], batch["index"][::2] + 1)
        assert torch.equal(stacked[:]["observation"], whole[:]["observation"])

    def test_the_mask_of_unknown_observations_stays_with_a_next_observation(self, tmp_path):
        write_dataset(tmp_path, [trajectory(3, known=False), trajectory(2)])
        dataset = load(tmp_path, 4)

        assert names(dataset.sample(keys=["next.observation"])) == {"next.observation", "next.final_known", "index"}
        assert names(dataset.sample(keys=["action"])) == {"action", "index"}
        assert dataset.sample(rows=[1, 2], keys="next.observation")["next", "final_known"].tolist() == [[True], [False]]

    def test_done_without_time_outs_is_the_flag_of_terminations(self, folder):
        from datasets_rl.format.reader import StoredDataset
        from datasets_rl.storages import DatasetStorage

        storage = DatasetStorage(StoredDataset(folder), truncated_as_done=False)
        some = storage.take_fields(torch.arange(12), (("next", "done"), ("next", "observation")))

        assert some["next", "done"].view(-1).nonzero().view(-1).tolist() == [3]
        assert (some == storage.get(slice(None)).select(*some.keys(True, True))).all()

    def test_unknown_fields_are_named_with_the_nearest(self, dataset):
        with pytest.raises(UnknownKeyError, match=r"no key 'acton', 'next\.rewrd' among") as caught:
            dataset.sample(keys=["acton", "observation", "next.rewrd"])
        assert caught.value.hint == "did you mean action, next.reward?"
        with pytest.raises(InvalidArgumentError, match="keys are empty"):
            dataset.sample(keys=[])
        for wrong in (5, [5]):
            with pytest.raises(InvalidArgumentError, match="5 is not a key"):
                dataset.sample(keys=wrong)
            with pytest.raises(InvalidArgumentError, match="5 is not a key"):
                dataset.select(wrong)
        with pytest.raises(UnknownKeyError, match="acton"):
            dataset.select("acton")
        assert names(dataset[:2]) > {"action", "observation"}

    def test_fields_are_chosen_after_the_transforms(self, folder):
        scaled = load(folder, 6, transform=[RewardScaling(0, 2), lambda data: data.set("new", data["action"])])

        batch = scaled.sample(keys=["next.reward", "new"])
        assert names(batch) == {"next.reward", "new", "index"}
        assert torch.equal(batch["next", "reward"], scaled[batch["index"]]["next", "reward"])

    def test_info_that_replaces_fields_is_a_field(self, folder):
        dataset = load(folder, 6, sampler=SliceSampler(slice_len=2))

        assert "next.truncated" not in names(dataset.sample(keys=["action"]))
        assert dataset.sample(keys=["action", "next.truncated"])["next", "truncated"][1::2].all()

    @pytest.mark.parametrize("prefetch", [None, 2])
    def test_a_written_buffer_has_fields_too(self, prefetch):
        rb = TensorDictReplayBuffer(storage=LazyTensorStorage(10), batch_size=4, prefetch=prefetch)
        rb.extend(written())

        batch = rb.sample(keys=[("next", "b")])
        assert names(batch) == {"next.b", "index"}
        assert torch.equal(batch["next", "b"], batch["index"] * 2.0)
        numbers = ReplayBuffer(storage=LazyTensorStorage(10), batch_size=4)
        numbers.extend(torch.arange(5))
        with pytest.raises(InvalidArgumentError, match="the batch is a Tensor"):
            numbers.sample(keys="a")


class TestRows:
    @pytest.mark.parametrize("rows", [[3, 0, 11, 3], np.array([3, 0, 11, 3], np.uint8), torch.tensor([3, 0, 11, 3])])
    def test_given_rows_are_those_of_an_index_with_the_transforms(self, folder, rows):
        dataset = load(folder, 6, transform=[CatFrames(2, -1, ["observation"]), RewardScaling(0, 2)])

        batch, info = dataset.sample(rows=rows, return_info=True)
        assert batch["index"].tolist() == info["index"].tolist() == [3, 0, 11, 3]
        assert (batch.exclude("index") == dataset[[3, 0, 11, 3]]).all()
        assert dataset.sample(rows=[]).batch_size == (0,)

    def test_the_state_of_the_sampler_does_not_change(self, folder):
        dataset = load(folder, 4, sampler=SamplerWithoutReplacement())
        seen = []
        for _ in range(3):
            seen += dataset.sample()["index"].tolist()
            dataset.sample(rows=[0, 1])

        assert sorted(seen) == list(range(12))

    @pytest.mark.parametrize(
        ("rows", "message"),
        [
            (
                [0, 12, -1],
                "2 of 3 rows are out of range, the first at position 1: 12, expected integers in \\[0, 12\\)",
            ),
            ([0.5], "float64"),
            (torch.tensor([1.0]), "float32"),
            (torch.tensor([True]), "bool"),
            (["a"], "integers"),
            ([[0, 1], [2, 3]], "shape \\[2, 2\\], expected \\[B\\]"),
            (3, "shape \\[\\]"),
        ],
        ids=str,
    )
    def test_wrong_rows_are_refused(self, dataset, rows, message):
        with pytest.raises(InvalidArgumentError, match=message):
            dataset.sample(rows=rows)

    def test_rows_and_a_batch_size_exclude_each_other(self, dataset):
        with pytest.raises(InvalidArgumentError, match="rows and batch_size"):
            dataset.sample(4, rows=[0])

    def test_rows_of_several_environments_have_one_number_per_axis(self):
        rb = TensorDictReplayBuffer(storage=LazyTensorStorage(12, ndim=2), batch_size=4)
        rb.extend(TensorDict({"a": torch.arange(10).view(2, 5)}, [2, 5]))
        batch = rb.sample()

        again = rb.sample(rows=batch["index"])
        assert torch.equal(again["a"], batch["a"])
        assert torch.equal(again["index"], batch["index"])
        with pytest.raises(InvalidArgumentError, match="expected integers in \\[0, 5, 2\\)"):
            rb.sample(rows=[[0, 2]])

    def test_a_written_buffer_gives_rows(self):
        rb = TensorDictReplayBuffer(storage=LazyTensorStorage(20), batch_size=4)
        rb.extend(written())

        assert rb.sample(rows=[9, 0], format="numpy")["next.b"].tolist() == [18.0, 0.0]
        with pytest.raises(InvalidArgumentError, match="out of range"):
            rb.sample(rows=[10])

    def test_buffers_sampled_as_one_have_no_rows_of_their_own(self):
        members = [TensorDictReplayBuffer(storage=LazyTensorStorage(20), batch_size=4) for _ in range(2)]
        for member in members:
            member.extend(written())
        with pytest.raises(InvalidArgumentError, match="several buffers"):
            ReplayBufferEnsemble(*members, batch_size=4).sample(rows=[0])


class TestForms:
    def test_arrays_of_numpy_share_the_memory_of_the_batch(self, dataset):
        torch.manual_seed(0)
        batch = dataset.sample()
        torch.manual_seed(0)
        tensors = dataset.sample(format="dict")
        arrays = {name: leaf.numpy() for name, leaf in tensors.items()}
        torch.manual_seed(0)
        numbers = dataset.sample(format="numpy")

        assert numbers.keys() == arrays.keys() == names(batch)
        for name, array in numbers.items():
            assert isinstance(array, np.ndarray)
            assert np.array_equal(array, arrays[name])
            assert torch.equal(torch.from_numpy(array), batch[tuple(name.split("."))])
        seen = []
        load(dataset.data_path, transform=lambda data: seen.append(data) or data).sample(2, format="numpy")[
            "next.observation"
        ].fill(7)
        assert (seen[0]["next", "observation"] == 7).all()

    @pytest.mark.first(1, of=("options", "include_info"))
    @pytest.mark.parametrize("keys", [None, ["next.observation", "action"], "image"], ids=["all", "two", "wide"])
    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"final_unknown": "drop"},
            {"device": "cpu"},
            {"sampler": lambda: SliceSampler(slice_len=2)},
            {"sampler": GoalSampler},
            {"transform": CatFrames(2, -1, ["observation"])},
            {"prefetch": 2},
            {"pin_memory": True},
        ],
        ids=lambda options: next(iter(options), "plain"),
    )
    @pytest.mark.parametrize("include_info", [True, False], ids=["info", "no info"])
    def test_every_form_has_the_entries_of_the_tensordict(self, tmp_path, options, keys, include_info):
        one = trajectory(4, known=False)
        two = trajectory(5, terminated=True)
        for part in (one, two):
            part.states["image",] = np.random.default_rng(0).integers(1, 255, (len(part) + 1, 64, 65), np.uint8)
        write_dataset(tmp_path, [one, two], [*columns(), WIDE])
        options = {"final_unknown": "keep"} | options
        device = options.pop("device", None)
        batches = {}

        for form in ("tensordict", "dict", "numpy"):
            torch.manual_seed(0)
            dataset = load(tmp_path, 6, **options)
            dataset = dataset if device is None else dataset.to(device)
            batches[form] = [
                dataset.sample(keys=keys, format=form, include_info=include_info, return_info=True) for _ in range(3)
            ]

        for (batch, info), (tensors, _), (arrays, other_info) in zip(*batches.values(), strict=True):
            assert names(batch) == tensors.keys() == arrays.keys()
            assert info.keys() == other_info.keys()
            for name, tensor in tensors.items():
                assert torch.equal(tensor, batch[tuple(name.split("."))])
                assert np.array_equal(arrays[name], tensor.numpy())
                assert arrays[name].flags.writeable

    def test_an_index_of_several_axes_has_the_same_form(self, folder):
        class Pairs(RandomSampler):
            def sample(self, storage, batch_size):
                rows, info = super().sample(storage, batch_size)
                return rows.reshape(-1, 2), info

        batches = {}
        for form in ("tensordict", "numpy"):
            torch.manual_seed(0)
            batches[form] = load(folder, 6, sampler=Pairs()).sample(format=form)

        assert batches["numpy"]["action"].shape[:2] == (3, 2)
        assert np.array_equal(batches["numpy"]["action"], batches["tensordict"]["action"].numpy())
        assert np.array_equal(batches["numpy"]["index"], batches["tensordict"]["index"].numpy())

    def test_arrays_of_jax_have_the_same_values(self, dataset):
        jax = pytest.importorskip("jax", reason="pip install jax")
        numbers = dataset.sample(rows=range(12), format="numpy")
        arrays = dataset.sample(rows=range(12), format="jax")

        assert all(isinstance(array, jax.Array) for array in arrays.values())
        assert all(np.array_equal(arrays[name], numbers[name]) for name in numbers)

    def test_without_jax_the_error_says_what_to_install(self, dataset, monkeypatch):
        monkeypatch.setitem(sys.modules, "jax", None)
        with pytest.raises(MissingDependencyError, match="jax") as caught:
            dataset.sample(format="jax")
        assert "pip install" in str(caught.value.hint)

    def test_the_default_form_has_a_name(self, dataset):
        batch, info = dataset.sample(format="tensordict", return_info=True)

        assert names(batch) > {"index", "next.reward"}
        assert torch.equal(batch["index"], info["index"])

    def test_other_forms_are_refused(self, dataset):
        with pytest.raises(InvalidArgumentError, match="format is 'tf', expected one of 'tensordict', 'dict'"):
            dataset.sample(format="tf")
        rb = ReplayBuffer(storage=ListStorage(10), batch_size=4)
        rb.extend([{"a": torch.zeros(1)}] * 4)
        with pytest.raises(InvalidArgumentError, match="the batch is a dict"):
            rb.sample(format="numpy")

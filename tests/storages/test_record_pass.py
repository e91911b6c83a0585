"""Windows and n-step targets that a storage reads in one pass equal those that the transform itself makes."""

from __future__ import annotations

import gc
import pickle
import tracemalloc

import numpy as np
import pytest
import torch
from stored_data import Column, Trajectory, columns, trajectory, write_dataset

from datasets_rl import GoalSampler, TensorDictReplayBuffer
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.storages import DatasetStorage
from datasets_rl.storages.final_states import select_final_known
from datasets_rl.storages.view import View
from datasets_rl.transforms import (
    ActionChunkTransform,
    CatFrames,
    MultiStepTransform,
    QChunkTransform,
    RewardScaling,
    SequenceTransform,
    WindowTransform,
)

MORE = [
    Column(("bytes",), np.dtype(np.uint8), (3,), shared=True),
    Column(("wide", "double"), np.dtype(np.float64), (2, 2)),
    Column(("next", "costs"), np.dtype(np.float64), (2,)),
    Column(("next", "number"), np.dtype(np.int64), (1,)),
]
STEPS = {
    "action": range(-3, 4, 3),
    "observation": range(-4, 2),
    ("next", "observation"): (1, 1),
    ("wide", "double"): (0, 2),
}
TRANSFORMS = {
    "one step": lambda: MultiStepTransform(1, 0.9),
    "three steps": lambda: MultiStepTransform(3, 0.9),
    "many steps": lambda: MultiStepTransform(50, 0.99),
    "two rewards": lambda: MultiStepTransform(3, 0.9, reward_keys=["costs", "reward"], done_keys=["done"]),
    "stacks": lambda: CatFrames(4, -1, ["observation"]),
    "stacks of next": lambda: CatFrames(3, -1, ["observation", ("next", "observation"), ("next", "reward")]),
    "zeros": lambda: CatFrames(3, -1, ["bytes", ("next", "bytes")], padding="zeros", mask_key="pad"),
    "a new axis": lambda: CatFrames(3, -2, ["observation"], ["frames"]),
    "one frame": lambda: CatFrames(1, -1, ["observation", ("next", "observation")]),
    "chunks": lambda: ActionChunkTransform(5),
    "windows": lambda: WindowTransform({"observation": (2, 0), "action": (0, 9), ("next", "reward"): (1, 1)}, "zero"),
    "steps": lambda: WindowTransform(STEPS, mask="is_pad", out_keys=["a", "o", ("next", "n"), "d"]),
    "seconds": lambda: WindowTransform.delta_timestamps({"action": [-2, 0, 3], "observation": [0, 1]}, fps=1),
    "Q-chunks": lambda: QChunkTransform(4, 0.9),
    "long Q-chunks": lambda: QChunkTransform(11, 0.99, action_key="observation", chunk_key=("a", "b")),
    "sequences": lambda: SequenceTransform.dt_corl(3),
    "long sequences": lambda: SequenceTransform.dt_corl(100, mean=torch.tensor([1.0, 2, 3]), std=2.0),
    "a mask of both": lambda: WindowTransform.robomimic(4, 2),
}
OTHERS = {
    "whole numbers": lambda: MultiStepTransform(3, 0.9, reward_keys=["number"]),
    "no dropped windows": lambda: WindowTransform({"action": (0, 0)}, "drop"),
    "another axis": lambda: CatFrames(3, -1, [("wide", "double")]),
    "another value": lambda: CatFrames(3, -1, ["observation"], padding="constant", padding_value=7),
    "the future": lambda: CatFrames(3, -1, ["observation"], future=True),
    "another flag": lambda: MultiStepTransform(3, 0.9, done_key="terminated"),
    "sequences with padding first": lambda: SequenceTransform.dt_kzl(4),
    "Q-chunks that cross": lambda: QChunkTransform(4, 0.9, "cross"),
    "a hook": lambda: hooked(ActionChunkTransform(5)),
    "a subclass": lambda: Doubled(3, 0.9),
    "a flag of the root": lambda: WindowTransform({"done": (1, 0)}),
}
"""Transforms that make their results themselves."""


class Doubled(MultiStepTransform):
    """A transform of a user, which changes the results."""

    def write_results(self, batch, values):
        batch = super().write_results(batch, values)
        return batch.set(("next", "reward"), 2 * batch["next", "reward"])


def hooked(transform):
    transform.register_forward_hook(lambda *_: None)
    return transform


def with_more(one, number):
    rng = np.random.default_rng(number)
    steps = {
        ("wide", "double"): rng.normal(size=(len(one), 2, 2)),
        ("next", "costs"): rng.normal(size=(len(one), 2)),
        ("next", "number"): rng.integers(0, 9, (len(one), 1)),
    }
    states = {("bytes",): rng.integers(1, 255, (len(one.states["observation",]), 3), np.uint8)}
    return Trajectory({**one.steps, **steps}, {**one.states, **states})


@pytest.fixture(scope="module", params=["known", "unknown"])
def stored(request, tmp_path_factory):
    given = [
        with_more(trajectory(1 + number % 8, seed=number, known=known, terminated=number % 3 == 0), number)
        for number in range(20)
        for known in [request.param == "known" or number % 4 > 0]
    ]
    return write_dataset(tmp_path_factory.mktemp("toy") / "data", given, [*columns(), *MORE])


def assert_equal(batch, expected):
    assert set(batch.keys(True, True)) == set(expected.keys(True, True))
    for key, value in expected.items(True, True):
        assert batch[key].dtype == value.dtype, key
        assert batch[key].shape == value.shape, key
        assert torch.equal(batch[key], value), key


@pytest.mark.first(2, of="name")
@pytest.mark.parametrize("name", list(TRANSFORMS))
@pytest.mark.parametrize("kind", ["dataset", "view", "rows", "without ends"])
def test_the_pass_reads_what_the_transform_makes(stored, name, kind, monkeypatch):
    storage = DatasetStorage(stored)
    if kind != "dataset":
        storage = View(storage)
    if kind == "rows":  # some steps are gone, and the states after the steps before them are those of the dataset
        storage = View(storage.dataset, np.flatnonzero(np.arange(len(storage)) % 7 > 0))
    if kind == "without ends":
        storage = select_final_known(storage, "drop_truncated")
    rows = torch.randint(len(storage), (300,), generator=torch.Generator().manual_seed(0))
    rb = TensorDictReplayBuffer(storage=storage, transform=TRANSFORMS[name]())
    # The flags of the first step of n steps are not those of the records, where an episode was cut.
    is_read = not (isinstance(storage, View) and storage.rows is not None and name == "two rewards")
    assert (storage.take_in_pass(rows, rb.transforms[0]) is not None) == is_read

    batch = rb.sample(rows=rows)
    monkeypatch.setattr(type(storage), "take_in_pass", lambda *_: None)

    assert_equal(batch, rb.sample(rows=rows))


def test_an_empty_batch_has_all_entries(stored):
    storage, transform = DatasetStorage(stored), MultiStepTransform(3, 0.9)

    assert_equal(storage.take_in_pass(torch.arange(0), transform), storage.take_in_pass(torch.arange(2), transform)[:0])


@pytest.mark.parametrize("name", list(OTHERS))
def test_other_transforms_make_their_results_themselves(stored, name, monkeypatch):
    storage = DatasetStorage(stored)
    rows = torch.arange(len(storage))
    rb = TensorDictReplayBuffer(storage=storage, transform=OTHERS[name]())
    batch = rb.sample(rows=rows)

    monkeypatch.setattr(DatasetStorage, "take_in_pass", lambda *_: None)

    assert_equal(batch, rb.sample(rows=rows))


def test_a_transform_after_the_first_sees_its_results(stored, monkeypatch):
    storage = DatasetStorage(stored)
    rows = torch.arange(len(storage))
    buffers = [
        TensorDictReplayBuffer(storage=storage, transform=transforms)
        for transforms in (
            [CatFrames(2, -1, ["observation"]), RewardScaling(0, 2)],
            [CatFrames(2, -1, ["observation"]), MultiStepTransform(2, 0.9)],
            [RewardScaling(0, 2), MultiStepTransform(2, 0.9)],
        )
    ]
    batches = [rb.sample(rows=rows) for rb in buffers]

    monkeypatch.setattr(DatasetStorage, "take_in_pass", lambda *_: None)

    for rb, batch in zip(buffers, batches, strict=True):
        assert_equal(batch, rb.sample(rows=rows))


def test_a_changed_transform_changes_the_pass(stored):
    transform = MultiStepTransform(1, 0.9)
    rb = TensorDictReplayBuffer(storage=DatasetStorage(stored), transform=transform)
    rows = torch.arange(20)
    one = rb.sample(rows=rows)
    transform.n_steps = 3

    assert_equal(
        rb.sample(rows=rows),
        TensorDictReplayBuffer(storage=DatasetStorage(stored), transform=MultiStepTransform(3, 0.9)).sample(rows=rows),
    )
    assert one["steps_to_next_obs"].max() == 1


def test_a_transform_that_changes_with_each_batch_takes_no_more_memory(stored):
    storage, transform = DatasetStorage(stored), MultiStepTransform(2, 0.5)
    rows = torch.arange(4)
    tracemalloc.start()
    held = []
    for number in range(300):
        transform.gamma = 0.5 + number / 1000
        storage.take_in_pass(rows, transform)
        if number in {150, 280}:
            gc.collect()
            held.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()

    assert held[1] < held[0] + 500_000


def test_rows_are_checked_and_may_count_from_the_end(stored):
    storage, chunks = DatasetStorage(stored), ActionChunkTransform(3)
    rows = torch.arange(10)

    assert_equal(storage.take_in_pass(rows - len(storage), chunks), storage.take_in_pass(rows, chunks))
    with pytest.raises(IndexError, match="out of range"):
        storage.take_in_pass(torch.tensor([0, len(storage)]), chunks)


def test_a_batch_of_large_windows_is_read_by_a_copy_of_records(stored):
    storage = DatasetStorage(stored)
    large = WindowTransform({"observation": (0, 99)})

    assert storage.take_in_pass(torch.zeros(800, dtype=torch.int64), large) is not None
    assert storage.take_in_pass(torch.zeros(8_000, dtype=torch.int64), large) is None


@pytest.mark.parametrize("kind", ["dataset", "rows"])
def test_a_storage_that_has_read_in_one_pass_can_be_pickled(stored, kind):
    storage = DatasetStorage(stored)
    if kind == "rows":
        storage = View(storage, np.flatnonzero(np.arange(len(storage)) % 7 > 0))
    chunks, rows = ActionChunkTransform(3), torch.arange(20)
    expected = storage.take_in_pass(rows, chunks)
    TensorDictReplayBuffer(storage=storage, sampler=GoalSampler()).sample(3)

    assert_equal(pickle.loads(pickle.dumps(storage)).take_in_pass(rows, chunks), expected)


def test_an_entry_within_another_is_refused_as_by_the_transform(stored):
    rb = TensorDictReplayBuffer(
        storage=DatasetStorage(stored), transform=WindowTransform({"action": (0, 1)}, out_keys=[("observation", "x")])
    )

    with pytest.raises((InvalidArgumentError, KeyError, AttributeError, RuntimeError)):
        rb.sample(rows=[0])

"""The two gathers of a stored dataset, by torch and by a compiled loop, read the same."""

import numpy as np
import pytest
import torch
from stored_data import Trajectory, columns, trajectory, write_dataset

from datasets_rl.errors import IntegrityError
from datasets_rl.format.schema import Column
from datasets_rl.storages import dataset as dataset_module
from datasets_rl.storages import records
from datasets_rl.storages.dataset import DatasetStorage

FRAME = Column(("frame",), np.dtype(np.uint8), (64, 64, 1), shared=True)


@pytest.fixture(params=["torch", "compiled"])
def way(request, monkeypatch):
    """The gather that the test uses."""
    before_loading = 1 << 60 if request.param == "torch" else 0
    monkeypatch.setattr(records, "_ROWS_BEFORE_LOADING", before_loading)
    monkeypatch.setattr(dataset_module, "_BYTES_BEFORE_LOADING", before_loading)
    return request.param


def with_frames(one, number):
    frames = np.random.default_rng(number).integers(1, 256, (len(one.states["observation",]), 64, 64, 1), np.uint8)
    return Trajectory(one.steps, {**one.states, ("frame",): frames})


def dataset(folder, kind):
    """Write a dataset of 12 episodes with 1 to 7 steps."""
    known = [number % 3 > 0 or kind == "known" for number in range(12)]
    given = [
        trajectory(1 + number % 7, seed=number, known=known[number], terminated=number % 2 > 0) for number in range(12)
    ]
    if kind == "wide":
        given = [with_frames(one, number) for number, one in enumerate(given)]
    return given, write_dataset(folder / "toy" / "data", given, columns(*([FRAME] if kind == "wide" else [])))


def expected(given, key):
    """Return the values of a key of all steps, zeros for unknown final states."""
    values = []
    for one in given:
        if key in one.steps:
            values.append(one.steps[key])
            continue
        states = one.states[key[1:] if key[0] == "next" else key]
        if key[0] == "next":
            states = np.concatenate([states, np.zeros_like(states[:1])])[1:]
        values.append(states[: len(one)])
    return torch.from_numpy(np.concatenate(values))


@pytest.mark.parametrize("kind", ["known", "unknown", "wide"])
@pytest.mark.usefixtures("way")
def test_a_batch_has_what_was_written(tmp_path, kind):
    given, stored = dataset(tmp_path, kind)
    storage = DatasetStorage(stored)
    rows = torch.randint(len(storage), (200,), generator=torch.Generator().manual_seed(0))
    batch = storage.get(rows)

    for key in (("action",), ("observation",), ("next", "observation"), ("next", "reward"), ("next", "terminated")):
        assert batch[key].equal(expected(given, key)[rows])
    if kind == "wide":
        assert batch["next", "frame"].equal(expected(given, ("next", "frame"))[rows])
    ends = torch.from_numpy(np.cumsum([len(one) for one in given]) - 1)
    assert batch["next", "done"][:, 0].equal(torch.isin(rows, ends))
    assert batch["episode"].equal(torch.searchsorted(ends, rows))
    assert batch["episode"].dtype == torch.int64
    assert not (batch["done"] | batch["terminated"] | batch["truncated"]).any()
    assert (("next", "final_known") in batch.keys(True)) is (kind != "known")
    if kind != "known":
        unknown = ends[[number for number, one in enumerate(given) if len(one.states["observation",]) == len(one)]]
        assert batch["next", "final_known"][:, 0].equal(~torch.isin(rows, unknown))


@pytest.mark.usefixtures("way")
def test_rows_count_from_the_end_and_may_be_strided(tmp_path):
    storage = DatasetStorage(dataset(tmp_path, "known")[1])
    everything = storage.get(slice(None))

    assert (storage.get(torch.tensor([-1, 0, -len(storage)])) == everything[[len(storage) - 1, 0, 0]]).all()
    assert (storage.get(torch.arange(len(storage))[::3]) == everything[::3]).all()
    assert storage.get(torch.empty(0, dtype=torch.int64)).shape == (0,)


@pytest.mark.parametrize("row", [10**6, -(10**6), 2**62])
@pytest.mark.usefixtures("way")
def test_a_row_that_does_not_exist_is_an_error(tmp_path, row):
    storage = DatasetStorage(dataset(tmp_path, "known")[1])
    with pytest.raises(IndexError, match="out of range"):
        storage.get(torch.tensor([0, row]))


@pytest.mark.parametrize("row", [-1, 10**6, 2**62])
@pytest.mark.usefixtures("way")
def test_an_image_that_does_not_exist_is_an_error(tmp_path, row):
    """The last of many rows, which another thread copies."""
    storage = DatasetStorage(dataset(tmp_path, "wide")[1])
    with pytest.raises(IndexError, match="out of range"):
        storage.pick(("frame",), torch.tensor([0] * 2000 + [row]))


@pytest.mark.usefixtures("way")
def test_rows_of_images_may_be_strided_or_none(tmp_path):
    given, stored = dataset(tmp_path, "wide")
    storage = DatasetStorage(stored)

    assert storage.pick(("frame",), torch.arange(12)[::3]).equal(expected(given, ("frame",))[0:12:3])
    assert storage.pick(("frame",), torch.tensor(3).expand(2)).equal(expected(given, ("frame",))[[3, 3]])
    assert storage.pick(("frame",), torch.empty(0, dtype=torch.int64)).shape == (0, 64, 64, 1)


@pytest.mark.usefixtures("way")
def test_a_batch_is_memory_of_its_own(tmp_path):
    storage = DatasetStorage(dataset(tmp_path, "unknown")[1])
    before = storage.get(slice(None))
    changed = storage.get(slice(None))
    for value in changed.values(include_nested=True, leaves_only=True):
        value.zero_()

    assert (storage.get(slice(None)) == before).all()


@pytest.mark.usefixtures("way")
def test_an_episode_that_does_not_exist_is_damage(tmp_path):
    """An altered file must not make the loop read memory that is not its own."""
    stored = dataset(tmp_path, "known")[1]
    rows = np.lib.format.open_memmap(stored.folder / "rows.npy", mode="r+")
    rows["episode"] = 10**6
    rows.flush()
    del rows

    with pytest.raises(IntegrityError, match="does not belong to any of the 12 episodes"):
        DatasetStorage(stored).get(slice(None))


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(
    "layout",
    [lambda rows: rows.int(), lambda rows: rows.repeat_interleave(2)[::2], lambda rows: rows - 43],
    ids=["int32", "with gaps", "negative"],
)
def test_rows_of_any_layout_are_read(tmp_path, layout):
    """The loop reads the memory of the rows, and the compiler checks neither its dtype nor its strides."""
    _, stored = dataset(tmp_path, "known")
    storage = DatasetStorage(stored)
    rows = torch.arange(20, 40)
    assert len(storage) == 43

    batch = storage.take(layout(rows))

    assert (batch == storage.take(rows)).all()
    assert len(storage.take(rows[:0])) == 0
    with pytest.raises(IndexError, match="43"):
        storage.take(torch.tensor([0, 43]))

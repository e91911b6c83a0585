"""Reading any trajectories returns the written values: with the reader, with plain NumPy, and with any index."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from property.strategies import Data, datasets, indices
from stored_data import Model, plain, write_dataset

from datasets_rl.format import writer
from datasets_rl.format.check import check_rules
from datasets_rl.format.integrity import check_files
from datasets_rl.format.reader import StoredDataset
from datasets_rl.format.schema import WIDE_BYTES
from datasets_rl.storages import DatasetStorage
from datasets_rl.ted.keys import dotted_name

FEW = settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
MANY = settings(FEW, max_examples=200)


def assert_same(got: Any, expected: np.ndarray) -> None:
    got = got.numpy() if isinstance(got, torch.Tensor) else np.asarray(got)

    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    np.testing.assert_array_equal(got, expected)


def as_numpy(index: Any) -> Any:
    """Return the same index for NumPy, where an empty list would be an array of floats."""
    if isinstance(index, torch.Tensor):
        return index.numpy()
    if isinstance(index, (list, range)):
        return np.array(index, bool if index and isinstance(index[0], bool) else np.int64)
    return index


def check_columns(stored: StoredDataset, model: Model, start: int, stop: int) -> None:
    assert set(stored.keys()) == set(model.rows)
    for key in model.rows:
        assert_same(stored.column(key), model.column(key))
        assert_same(stored.column(key, start, stop), model.column(key)[start:stop])


def check_with_numpy_alone(stored: StoredDataset, model: Model, data: Data) -> None:
    """The format can be read without this library."""
    files = {path.name: np.load(path, mmap_mode="r") for path in stored.folder.glob("*.npy")}
    for column in data.columns:
        name = ".".join(column.key)
        wide = f"{name}.npy" in files
        assert wide == (column.dtype.itemsize * int(np.prod(column.shape)) >= WIDE_BYTES)
        assert_same(files[f"{name}.npy"] if wide else files["rows.npy"][name], model.column(column.key))
        if column.shared:
            final_states = files[f"final.{name}.npy"] if wide else files["final.npy"][name]
            assert_same(final_states, np.stack(model.final_states[column.key]))
    table = files["episodes.npy"]
    assert table["start"].tolist() == model.starts
    assert table["length"].tolist() == model.lengths
    assert table["return"].tolist() == model.returns
    assert table["final_known"].tolist() == model.known
    assert table["seed"].tolist() == [one.metadata["seed"] for one in data.trajectories]
    assert table["source"].tolist() == [one.metadata["source"] for one in data.trajectories]
    assert files["rows.npy"].dtype.itemsize % 8 == 0


def check_statistics(stored: StoredDataset, model: Model, data: Data) -> None:
    for column in data.columns:
        written = model.column(column.key)
        if written.dtype.kind != "f":
            assert dotted_name(column.key) not in stored.manifest.statistics
            continue
        got = stored.manifest.statistics[dotted_name(column.key)]
        flat = written.astype(np.float64).reshape(len(model), -1)
        flat = flat.reshape(-1, 1) if flat.shape[1] > 256 else flat
        for element, values in enumerate(flat.T):
            finite = values[np.isfinite(values)]
            shown = {name: np.ravel(np.array(got[name], object))[element] for name in got}
            assert shown.pop("not_finite", 0) == len(values) - len(finite)
            if not len(finite):
                assert {"min", "max", "mean", "std"} <= shown.keys()
                assert {*shown.values()} == {None}
                continue
            assert shown["min"] == finite.min()
            assert shown["max"] == finite.max()
            if np.abs(finite).max() < 1e100:
                scale = np.abs(finite).max()
                assert shown["mean"] == pytest.approx(finite.mean(), rel=1e-9, abs=1e-9 * scale)
                assert shown["std"] == pytest.approx(finite.std(), rel=1e-6, abs=1e-7 * scale)
                for name in shown.keys() - {"min", "max", "mean", "std"}:
                    quantile = np.quantile(finite, int(name.removeprefix("q")) / 100)
                    assert shown[name] == pytest.approx(quantile, rel=1e-9, abs=1e-9 * scale)


def round_trip(data: Data, choose: st.DataObject) -> None:
    model = Model(data.trajectories)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "_BLOCK_STEPS", choose.draw(st.sampled_from([1, 2, 3, 5, 1 << 16]), "steps of a block"))
        stored = write_dataset(Path(folder), data.trajectories, data.columns)
        start, stop = sorted(choose.draw(st.tuples(*[st.integers(0, len(model))] * 2), "rows"))

        assert (len(stored), len(stored.episodes)) == (len(model), len(data.trajectories))
        assert stored.manifest.final_unknown == model.known.count(False)
        check_columns(stored, model, start, stop)
        check_with_numpy_alone(stored, model, data)
        check_statistics(stored, model, data)
        assert check_files(Path(folder), lambda _: None) == []
        assert check_rules(stored.schema, stored.episodes, stored.column).problems == []
        storage = DatasetStorage(stored)
        for _ in range(4):
            index = choose.draw(indices(len(model)), "index")
            rows = np.arange(len(model))[as_numpy(index)]
            batch = storage.get(index)
            got = plain(batch)
            assert tuple(batch.batch_size) == np.shape(rows)
            assert set(got) == set(model.rows)
            for key, values in got.items():
                assert_same(values, model.column(key)[rows])
        for key in model.rows:
            assert_same(storage.column(key), model.column(key))


@FEW
@given(datasets(), st.data())
def test_reading_returns_the_written_values(data, choose):
    round_trip(data, choose)


@pytest.mark.slow
@MANY
@given(datasets(), st.data())
def test_reading_returns_the_written_values_for_many_examples(data, choose):
    round_trip(data, choose)

"""Parquet and Arrow files give NumPy columns block by block, with the values that pyarrow wrote."""

from __future__ import annotations

import sys

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from datasets_rl.errors import ConversionError, MissingDependencyError
from datasets_rl.read.parquet import TableFile
from datasets_rl.read.ragged import Ragged

N = 50
STATE = np.arange(N * 3, dtype=np.float32).reshape(N, 3)
FRAMES = np.arange(N * 4, dtype=np.uint8).reshape(N, 2, 2)
LENGTHS = np.arange(N) % 4


def fixed(values, *sizes):
    array = pa.array(values.ravel())
    for size in reversed(sizes):
        array = pa.FixedSizeListArray.from_arrays(array, size)
    return array


def table():
    struct = {"position": fixed(STATE, 3), "deep": pa.StructArray.from_arrays([pa.array(range(N))], ["x"])}
    return pa.table(
        {
            "reward": np.arange(N) / 7,
            "done": np.arange(N) % 5 == 0,
            "action": np.arange(N, dtype=np.int16),
            "state": fixed(STATE, 3),
            "frames": fixed(FRAMES, 2, 2),
            "text": [f"é{number % 3}" for number in range(N)],
            "bytes": [bytes([number]) for number in range(N)],
            "category": pa.array(["a", "b"] * (N // 2)).dictionary_encode(),
            "ragged": [list(range(length)) for length in LENGTHS],
            "equal": [[1.5, 2.5]] * N,
            "info": pa.StructArray.from_arrays(list(struct.values()), list(struct)),
        }
    )


def written(path, kind, data=None, rows=20):
    data = table() if data is None else data
    if kind == "parquet":
        parquet.write_table(data, path, row_group_size=rows)
    else:
        with pa.ipc.new_file(path, data.schema) as out:
            out.write_table(data, max_chunksize=rows)
    return path


@pytest.fixture(params=["parquet", "arrow"])
def file(request, tmp_path):
    with TableFile(written(tmp_path / f"x.{request.param}", request.param)) as opened:
        yield opened


def column(file, name, rows=7):
    parts = [block[name] for block in file.blocks([name], rows=rows)]
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    if isinstance(parts[0], list):
        return [value for part in parts for value in part]
    return parts


@pytest.mark.parametrize("rows", [1, 7, 20, 1000])
def test_columns_join_to_what_was_written(file, rows):
    wanted = {"reward": np.arange(N) / 7, "done": np.arange(N) % 5 == 0, "action": np.arange(N, dtype=np.int16)}
    wanted |= {"state": STATE, "frames": FRAMES, "info/position": STATE, "info/deep/x": np.arange(N)}

    assert file.rows == N
    for name, values in wanted.items():
        got = column(file, name, rows)
        np.testing.assert_array_equal(got, values)
        assert got.dtype == values.dtype


def test_texts_and_bytes_are_lists(file):
    assert column(file, "text") == [f"é{number % 3}" for number in range(N)]
    assert column(file, "bytes") == [bytes([number]) for number in range(N)]
    assert column(file, "category") == ["a", "b"] * (N // 2)


def test_lists_have_their_lengths(file):
    parts = column(file, "ragged", 9)

    assert all(isinstance(part, Ragged) for part in parts)
    np.testing.assert_array_equal(np.concatenate([part.lengths for part in parts]), LENGTHS)
    np.testing.assert_array_equal(
        np.concatenate([part.values for part in parts]), [value for length in LENGTHS for value in range(length)]
    )


def test_lists_of_one_length_stack_and_others_do_not(file):
    np.testing.assert_array_equal(column(file, "equal")[0].stacked("equal"), [[1.5, 2.5]] * 7)
    with pytest.raises(ConversionError, match="ragged cannot be converted: the rows have 0 to 3 values"):
        column(file, "ragged")[0].stacked("ragged")


def test_columns_of_a_block_can_be_combined(file):
    for block in file.blocks(["info/deep/x", "action"], rows=6):
        np.testing.assert_array_equal(block["info/deep/x"], block["action"])


def test_all_missing_columns_are_named(file):
    with pytest.raises(ConversionError, match="no column image, nothing, only reward, done"):
        next(file.blocks(["image", "reward", "nothing"], rows=3))


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_empty_cells_are_refused_in_all_columns_at_once(tmp_path, kind):
    data = pa.table(
        {
            "a": [1, None, 3],
            "b": [[1], [None], [2]],
            "c": pa.array([{"x": 1}, None, {"x": 2}]),
            "d": [1, 2, 3],
            "e": pa.array([None] * 3),
            "f": pa.array([1, 2, 3], pa.timestamp("s")),
        }
    )
    with TableFile(written(tmp_path / "x", kind, data)) as opened, pytest.raises(ConversionError) as caught:
        list(opened.blocks(["a", "b", "c/x", "d", "f"], rows=3))

    assert [problem.partition(":")[0] for problem in caught.value.problems] == [
        "a rows 0 to 2",
        "b rows 0 to 2",
        "c/x rows 0 to 2",
        "f rows 0 to 2",
    ]
    assert "1 of 3 cells are empty" in caught.value.problems[0]


@pytest.mark.parametrize(
    ("data", "says"),
    [(b"", "empty"), (b"<html>", "web page"), (b"PK\x03\x04", "is not a Parquet"), (b"PAR1....PAR1", "Arrow reports")],
)
def test_data_that_is_not_a_table_is_reported(tmp_path, data, says):
    (tmp_path / "x").write_bytes(data)

    with pytest.raises(ConversionError, match=says):
        TableFile(tmp_path / "x")


def test_the_checksum_of_a_page_is_verified(tmp_path):
    values = np.arange(1000, dtype=np.int64)
    options = {"write_page_checksum": True, "compression": "none", "use_dictionary": False}
    parquet.write_table(pa.table({"a": values}), tmp_path / "x", **options)
    data = bytearray((tmp_path / "x").read_bytes())
    data[data.index(values.tobytes()) + 4001] ^= 1
    (tmp_path / "x").write_bytes(data)

    with pytest.raises(ConversionError, match="CRC"), TableFile(tmp_path / "x") as file:
        list(file.blocks(["a"], rows=300))


def test_without_pyarrow_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)

    with pytest.raises(MissingDependencyError, match="needs pyarrow") as caught:
        TableFile(tmp_path / "x.parquet")
    assert "datasets-rl[pyarrow]" in caught.value.hint

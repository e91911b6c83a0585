"""The layout of fields in a record, computed by hand, and schemas that are refused."""

from __future__ import annotations

import json

import numpy as np
import pytest

from datasets_rl import disk
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.format.schema import WIDE_BYTES, Column, Field, Schema

F4, F8, I1, BOOL = (np.dtype(name) for name in ("f4", "f8", "i1", "?"))


def test_shared_fields_come_first_and_then_the_largest_items():
    """Shared fields start a record, so they follow the previous one without a gap; sizes descend to align fields."""
    schema = Schema.layout(
        [
            Column(("flag",), BOOL, (1,)),
            Column(("action",), F4, (3,)),
            Column(("time",), F8, ()),
            Column(("observation",), F4, (3,), shared=True),
            Column(("info", "id"), I1, (), shared=True),
        ]
    )
    #  observation 0-12, info.id 12, gap to 16, time 16-24, action 24-36, flag 36, padded to 40

    assert {field.name: field.offset for field in schema} == {
        "observation": 0,
        "info.id": 12,
        "time": 16,
        "action": 24,
        "flag": 36,
    }
    assert (schema.record_bytes, schema.final_record_bytes, schema.window_bytes) == (40, 16, 56)
    assert schema.record.itemsize == 40
    assert schema.final_record.names == ("observation", "info.id")


def test_fields_keep_the_order_in_which_they_were_listed():
    names = [("z",), ("a",), ("next", "reward")]

    assert [field.key for field in Schema.layout(Column(key, F4, (1,)) for key in names)] == names


@pytest.mark.parametrize(("size", "wide"), [(WIDE_BYTES - 1, False), (WIDE_BYTES, True)])
def test_a_field_of_the_minimum_size_gets_a_separate_file(size, wide):
    schema = Schema.layout([Column(("pixels",), np.dtype("u1"), (size,), shared=True), Column(("action",), F4, (1,))])

    assert schema["pixels",].wide is wide
    assert schema["pixels",].file == ("pixels.npy" if wide else "rows.npy")
    assert schema["pixels",].final_file == ("final.pixels.npy" if wide else "final.npy")


def test_a_schema_survives_json():
    schema = Schema.layout(
        [
            Column(("observation", "a"), F4, (2, 3), shared=True),
            Column(("episode",), np.dtype("i4"), (), memory_dtype=np.dtype("i8")),
            Column(("pixels",), np.dtype("u1"), (64, 64)),
        ]
    )

    assert Schema.from_json(json.loads(json.dumps(schema.to_json()))) == schema


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ([Field(("a",), F4, ()), Field(("a",), F4, (), offset=4)], "twice"),
        ([Field(("a",), F8, ()), Field(("b",), F4, (), offset=4)], "overlap"),
        ([Field(("a",), I1, (2,)), Field(("b",), I1, (), offset=1)], "overlap"),
        ([Field(("a",), F4, (), offset=2)], "multiple of 4"),
        ([Field(("a",), F4, (), offset=-4)], "multiple of 4"),
        ([Field(("a",), F4, (3, 0))], "sizes above 0"),
        ([Field(("a",), np.dtype(">f4"), ())], "dtype"),
        ([Field(("a",), np.dtype("O"), ())], "dtype"),
        ([Field(("a",), np.dtype("u2"), ())], "dtype"),
        ([Field(("a",), np.dtype("S3"), ())], "dtype"),
        ([Field(("a.b",), F4, ())], "name"),
        ([Field(("a/b",), F4, ())], "name"),
        ([Field(("..",), F4, ())], "name"),
        ([Field(("",), F4, ())], "name"),
        ([Field(("next", "x"), F4, (), shared=True)], "shared"),
        ([Field(("a",), F4, ()), Field(("a", "b"), F4, (), offset=4)], "other fields"),
        ([Field(("a",), F4, (), shared=True), Field(("next", "a"), F4, (), offset=4)], "shared field"),
        ([Field(("done",), BOOL, (1,))], "format uses"),
        ([Field(("final", "x"), F4, ())], "format uses"),
        ([Field(("a",), F4, (), shared=True, memory_dtype=F8)], "memory_dtype"),
        ([Field(("a",), F4, (600,), memory_dtype=F8, file="a.npy")], "memory_dtype"),
    ],
)
def test_fields_that_contradict_each_other_or_the_format_are_refused(fields, problem):
    with pytest.raises(InvalidArgumentError, match=problem):
        Schema(fields)


@pytest.mark.parametrize(("shape", "text"), [((1 << 16,), False), ((), True)], ids=["wide", "text"])
def test_a_key_that_is_too_long_for_a_file_name_is_refused(tmp_path, shape, text):
    dtype = np.dtype("<i4")
    fits = Schema.layout([Column(("k" * 200,), dtype, shape, text=text)]).fields[0]
    for name in (fits.file, fits.final_file, f"final.{fits.name}.ends.npy", fits.texts_file):
        disk.write_json(tmp_path / name, {})

    with pytest.raises(InvalidArgumentError, match=r"k{40}\.\.\. has a name of 201 bytes, expected 200 at most"):
        Schema.layout([Column(("k" * 201,), dtype, shape, text=text)])


def test_all_errors_of_a_schema_are_reported_at_once():
    with pytest.raises(InvalidArgumentError) as caught:
        Schema([Field(("a",), F4, (0,)), Field(("b",), np.dtype("O"), ()), Field(("c",), F4, (), offset=3)])
    for part in ("a has shape", "b has dtype", "c has offset"):
        assert part in str(caught.value)

"""The measurements of format/FORMAT.md: a gather of windows or two of records, and where wide fields begin."""

import numpy as np
import pytest
import torch

from datasets_rl.format.manifest import Manifest
from datasets_rl.format.reader import StoredDataset
from datasets_rl.format.schema import Column, Schema
from datasets_rl.format.writer import DatasetWriter
from datasets_rl.storages import DatasetStorage
from datasets_rl.ted.episode import Episode

RECORD, CARRIED = 104, 72


@pytest.mark.parametrize("batch_size", [256, 4096])
def test_one_gather_of_windows_beats_two_gathers_of_records(batch_size, size, compare, expect):
    steps = size(full=1_000_000, small=1_000)
    data = torch.randint(0, 255, ((steps + 1) * RECORD,), dtype=torch.uint8)
    rows = data.view(torch.int64).view(-1, RECORD // 8)
    # As words: torch counts elements when it decides whether a gather is worth several threads.
    words = data.view(torch.int64)
    windows = words.as_strided((steps, (RECORD + CARRIED) // 8), (RECORD // 8, 1))
    in_bytes = data.as_strided((steps, RECORD + CARRIED), (RECORD, 1))
    leaves = [torch.rand(steps, width) for width in (17, 6, 1, 17)] + [torch.rand(steps, 1) > 0.5 for _ in range(7)]

    def draw():
        return torch.randint(steps, (batch_size,))

    def two():
        index = draw()
        return rows.index_select(0, index), rows.index_select(0, index + 1)

    def each():
        index = draw()
        return [leaf.index_select(0, index) for leaf in leaves]

    took = compare(
        {
            "a row": lambda: rows.index_select(0, draw()),
            "a window": lambda: windows.index_select(0, draw()),
            "a window of bytes": lambda: in_bytes.index_select(0, draw()),
            "two rows": two,
            "eleven leaves": each,
        },
        repeat=25 if batch_size < 1000 else 8,
    )

    expect(f"{batch_size} windows, of the time of two gathers", took["a window"] / took["two rows"], at_most=1)


def build(folder, width, steps, wide_bytes, monkeypatch):
    """A dataset with an observation that has `width` bytes, in the record or in a file of its own."""
    layout = Schema.layout.__func__
    flag = np.dtype(bool)
    columns = [
        Column(("observation",), np.dtype(np.uint8), (width,), shared=True),
        Column(("action",), np.dtype(np.float32), (6,)),
        Column(("next", "reward"), np.dtype(np.float32), (1,)),
        Column(("next", "terminated"), flag, (1,)),
        Column(("next", "truncated"), flag, (1,)),
    ]
    folder.mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(Schema, "layout", classmethod(lambda cls, columns: layout(cls, columns, wide_bytes=wide_bytes)))
        writer = DatasetWriter(folder, columns, name="bench", steps=steps)
    ends = np.arange(1000)[:, None] == 999
    generator = np.random.default_rng(0)
    for _ in range(steps // 1000):
        states = {("observation",): generator.integers(0, 255, (1001, width), np.uint8)}
        moves = {
            ("action",): np.zeros((1000, 6), np.float32),
            ("next", "reward"): np.zeros((1000, 1), np.float32),
            ("next", "terminated"): np.zeros((1000, 1), bool),
            ("next", "truncated"): ends,
        }
        writer.append(Episode(moves, states))
    done = writer.finish()
    writer.discard()
    Manifest("bench/x", done.steps, done.episodes, done.final_unknown, done.schema, done.files).write(folder)
    storage = DatasetStorage(StoredDataset(folder))
    storage.column(("observation",)).sum()
    return storage


def test_a_field_of_4096_bytes_is_better_stored_separately(tmp_path, monkeypatch, size, compare, expect):
    """A batch costs about the same, and reading all rewards much less, because no observation is between them."""
    steps = size(full=32_000, small=1_000)
    storages = {
        "in the record": build(tmp_path / "inside", 4096, steps, 1 << 30, monkeypatch),
        "separate": build(tmp_path / "separate", 4096, steps, 100, monkeypatch),
    }

    def batch(storage):
        return lambda: storage.get(torch.randint(steps, (1024,)))

    def rewards(storage):
        return lambda: storage.column(("next", "reward")).sum()

    batches = compare({name: batch(storage) for name, storage in storages.items()}, rounds=11, repeat=10)
    scans = compare({name: rewards(storage) for name, storage in storages.items()}, rounds=5, repeat=2)

    expect("a batch, separate to in the record", batches["separate"] / batches["in the record"], at_most=2)
    expect("all rewards, separate to in the record", scans["separate"] / scans["in the record"], at_most=0.5)

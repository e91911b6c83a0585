"""The measurements behind format/FORMAT.md: window or two gathers, and where wide fields begin."""

import numpy as np
import pytest
import torch
from bench_data import compare

from datasets_rl.format.manifest import Manifest
from datasets_rl.format.reader import StoredDataset
from datasets_rl.format.schema import Column, Schema
from datasets_rl.format.writer import DatasetWriter
from datasets_rl.storages import DatasetStorage
from datasets_rl.ted.episode import Episode

RECORD, CARRIED = 104, 72
STEPS = 1_000_000


@pytest.mark.parametrize("batch_size", [256, 4096])
def test_one_gather_of_windows_beats_two_gathers_of_records(batch_size, show):
    data = torch.randint(0, 255, ((STEPS + 1) * RECORD,), dtype=torch.uint8)
    rows = data.view(torch.int64).view(-1, RECORD // 8)
    # As words: torch counts elements when it decides whether a gather is worth several threads.
    words = data.view(torch.int64)
    windows = words.as_strided((STEPS, (RECORD + CARRIED) // 8), (RECORD // 8, 1))
    in_bytes = data.as_strided((STEPS, RECORD + CARRIED), (RECORD, 1))
    leaves = [torch.rand(STEPS, width) for width in (17, 6, 1, 17)] + [torch.rand(STEPS, 1) > 0.5 for _ in range(7)]

    def draw():
        return torch.randint(STEPS, (batch_size,))

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
        repeat=100 if batch_size < 1000 else 30,
    )

    show(f"\n{batch_size}: { {name: round(value * 1e6, 1) for name, value in took.items()} } us")
    assert took["a window"] < took["two rows"]


def build(folder, width, wide_bytes, monkeypatch):
    """A dataset of about 128 MB whose observation has `width` bytes, in the record or in a file of its own."""
    steps = max(4000, (128 << 20) // width // 1000 * 1000)
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
        writer = DatasetWriter(folder, columns, what="bench", steps=steps)
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


@pytest.mark.parametrize("width", [256, 1024, 2048, 4096, 7056, 27648])
def test_where_wide_fields_begin(width, tmp_path, monkeypatch, show):
    inside = build(tmp_path / "inside", width, 1 << 30, monkeypatch)
    apart = build(tmp_path / "apart", width, 100, monkeypatch)
    steps = len(inside)

    for batch_size in (256, 1024):
        took = compare(
            {
                "in the record": lambda size=batch_size: inside.get(torch.randint(steps, (size,))),
                "a file of its own": lambda size=batch_size: apart.get(torch.randint(steps, (size,))),
            },
            rounds=11,
            repeat=10,
        )
        scan = compare(
            {
                "in the record": lambda: inside.column(("next", "reward")).sum(),
                "a file of its own": lambda: apart.column(("next", "reward")).sum(),
            },
            rounds=5,
            repeat=2,
        )
        ratio = took["in the record"] / took["a file of its own"]
        columns = scan["in the record"] / scan["a file of its own"]
        show(
            f"\n{width} bytes, batch {batch_size}: {took['in the record'] * 1e6:.0f} us in the record, "
            f"{took['a file of its own'] * 1e6:.0f} us apart, ratio {ratio:.2f}; reading all rewards {columns:.2f}"
        )
    assert len(inside) == len(apart)

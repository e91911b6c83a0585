"""What the page of a dataset takes until it can be read, whatever the size of the dataset."""

import time

import pytest
import view_data

from datasets_rl.format.reader import StoredDataset
from datasets_rl.look.page import Panel
from datasets_rl.look.page.documents import answer

FIRST = (
    ("overview", {}),
    ("0/ends", {}),
    ("histogram", {"field": "return"}),
    ("histogram", {"field": "length"}),
    ("histogram", {"field": "next.reward"}),
    ("histogram", {"field": "action"}),
    ("histogram", {"field": "observation"}),
)
"""What the page asks for when it opens."""


@pytest.mark.parametrize("length", [1_000, 25])
def test_a_dataset_of_50_million_steps_opens_in_two_seconds(length, size, expect_exactly, tmp_path):
    """Readers notice the limit, hence in seconds."""
    steps = size(full=50_000_000, small=50_000)
    folder = view_data.sparse_dataset(tmp_path / "large", steps // length, length).folder

    began = time.perf_counter()
    panel = Panel(StoredDataset(folder))
    documents = [answer([panel], path, query) for path, query in FIRST]
    opened = time.perf_counter()
    page = answer([panel], "0/episodes", {"sort": "return", "descending": "1", "where": "length > 5"})
    listed = time.perf_counter()
    answer([panel], f"0/episodes/{steps // length // 2}/rows", {})
    read = time.perf_counter()

    assert documents[0]["datasets"][0]["steps"] == steps
    assert page["rows"][0]["episode"] == steps // length - 1
    expect_exactly(f"seconds until the overview of {steps:,} steps in episodes of {length}", opened - began, at_most=2)
    expect_exactly("seconds until the sorted and filtered list", listed - opened, at_most=1)
    expect_exactly("seconds until the rows of an episode", read - listed, at_most=0.1)

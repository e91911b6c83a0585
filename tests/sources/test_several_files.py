"""Several files of a folder: copies, parts, and episodes that two files may share are asked about, and answers are used."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from layouts_images import encoded

from datasets_rl import download
from datasets_rl.errors import ConversionError
from datasets_rl.format.reader import StoredDataset
from datasets_rl.read.exif import orientation
from datasets_rl.settings import Settings
from datasets_rl.sources import local


@pytest.fixture
def settings(tmp_path):
    return Settings(home=tmp_path / "home", progress=False, jobs=1)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "mine").mkdir()
    return tmp_path / "mine"


def write(path, rows, **columns):
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = np.arange(*rows)
    pd.DataFrame({"obs_0": rows * 1.0, "action_0": -1.0 * rows, **columns}).to_csv(path, index=False)


def lengths(folder, settings, toml=""):
    if toml:
        (folder / "dataset.toml").write_text(toml)
    return StoredDataset(download(str(folder), settings=settings)).episodes.lengths.tolist()


def refused(folder, settings):
    with pytest.raises(ConversionError) as error:
        download(str(folder), settings=settings)
    return f"{error.value}"


def test_an_episode_that_may_be_in_two_files_is_asked_about_and_the_answer_is_used(folder, settings):
    write(folder / "a.csv", (0, 5), episode=[0, 0, 1, 1, 1])
    write(folder / "b.csv", (5, 9), episode=[1, 1, 2, 2])

    assert "b.csv: episode is 1 in the first row, as in the last row of a.csv" in refused(folder, settings)

    assert lengths(folder, settings, '[episodes]\nby = "column"\narray = "episode"') == [2, 3, 2, 2]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"step": [0, 1, 0, 1, 2]}, {"step": [0, 1, 0, 1]}),
        ({"done": [0, 1, 0, 0, 1]}, {"done": [0, 1, 0, 1]}),
    ],
)
def test_a_number_of_a_row_or_a_flag_says_that_an_episode_begins_with_the_next_file(folder, settings, first, second):
    write(folder / "a.csv", (0, 5), episode=[0, 0, 1, 1, 1], **first)
    write(folder / "b.csv", (5, 9), episode=[1, 1, 2, 2], **second)

    assert lengths(folder, settings) == [2, 3, 2, 2]


def test_an_episode_that_may_be_in_the_files_of_two_shards_is_asked_about(folder, settings, monkeypatch):
    monkeypatch.setattr(local, "_SHARD_BYTES", 1)
    write(folder / "a.csv", (0, 5), episode=[0, 0, 1, 1, 1])
    write(folder / "b.csv", (5, 9), episode=[2, 2, 3, 3])
    write(folder / "c.csv", (9, 12), episode=[3, 4, 4])

    assert "c.csv: episode is 3 in the first row, as in the last row of b.csv" in refused(folder, settings)


def test_a_copy_by_its_name_is_asked_about_and_the_answer_is_used(folder, settings):
    write(folder / "ep_0.csv", (0, 4))
    write(folder / "ep_1.csv", (4, 7))
    write(folder / "ep_1 (1).csv", (8, 10))
    write(folder / "backup/ep_0.csv", (10, 15))

    problem = refused(folder, settings)

    assert "ep_1 (1).csv may be a copy of ep_1.csv" in problem
    assert "backup/ep_0.csv may be a copy of ep_0.csv" in problem
    assert sorted(lengths(folder, settings, 'files = "*"')) == [2, 3, 4, 5]


@pytest.mark.parametrize("names", [("ep_1", "ep_10"), ("run", "run_2"), ("a/log", "b/log"), ("walk", "walk old man")])
def test_files_with_other_numbers_or_folders_are_not_copies(folder, settings, names):
    for number, name in enumerate(names):
        write(folder / f"{name}.csv", (0, 3 + number))

    assert sorted(lengths(folder, settings)) == [3, 4]


def test_a_part_by_its_name_is_asked_about_unless_the_part_is_alone_in_the_folder_of_an_episode(folder, settings):
    write(folder / "part-0.csv", (0, 4))
    write(folder / "part-1.csv", (4, 7))
    assert "the name speaks of a part of the rows: is the file an episode?" in refused(folder, settings)
    assert lengths(folder, settings, '[episodes]\nby = "file"') == [4, 3]

    other = folder.parent / "other"
    write(other / "episode=2" / "part-0.csv", (0, 4))
    write(other / "episode=10" / "part-0.csv", (4, 7))
    assert lengths(other, settings) == [4, 3]


def test_images_that_no_column_names_are_asked_about_and_left_out_if_the_fields_are_stated(folder, settings):
    write(folder / "log.csv", (0, 4))
    for row in range(4):
        (folder / f"{row}.png").write_bytes(encoded(np.full((8, 8, 3), row, np.uint8)))

    assert "log.csv: 4 images are in the folder, and no column has their paths" in refused(folder, settings)

    (folder / "dataset.toml").write_text('[fields]\nobservation = ["obs_0"]\naction = ["action_0"]')
    stored = StoredDataset(download(str(folder), settings=settings))
    assert {one.rule: one.count for one in stored.manifest.decisions}["images-left-out"] == 4


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("value", [1, 3, 6, 8])
def test_the_orientation_is_read_in_both_byte_orders(order, value):
    def number(one, size):
        return one.to_bytes(size, "little" if order == "<" else "big")

    head = (b"II" if order == "<" else b"MM") + number(42, 2) + number(8, 4)
    entry = number(0x0112, 2) + number(3, 2) + number(1, 4) + number(value, 2) + bytes(2)
    tiff = head + number(1, 2) + entry
    payload = b"Exif\0\0" + tiff
    jpeg = b"\xff\xd8\xff\xe0\0\4ab\xff\xe1" + (len(payload) + 2).to_bytes(2, "big") + payload + b"\xff\xda"

    assert orientation(jpeg) == value
    for stop in range(len(jpeg)):
        assert orientation(jpeg[:stop]) in {1, value}

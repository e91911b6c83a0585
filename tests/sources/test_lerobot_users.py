"""LeRobot's folders as users have them: of GR00T, copied in part, with empty files, or with pointers of git-LFS."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from raw.lerobot import FPS, LENGTHS, LOSS, NEW, OLD, draw, write_new, write_old, write_video

from datasets_rl import Selection, downloading, verify
from datasets_rl.errors import ConversionError, DatasetsRLError
from datasets_rl.format.reader import StoredDataset

pytest.importorskip("av", reason="pip install av")
TOP = ("observation", "image", "top")
CAMERA = "observation.images.top"
UNUSED = "observation.images.topview"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 123\n"


@pytest.fixture
def drawn():
    return [draw(length, seed) for seed, length in enumerate(LENGTHS)]


@pytest.fixture
def convert(folder, settings):
    """A function that converts the files in the folder, twice with equal results, and returns the dataset."""

    def run(name=OLD, **selection):
        wanted = Selection(**selection)
        made = downloading.download(
            f"lerobot/{name}", from_local=folder, settings=settings, selection=wanted, force=True
        )
        assert verify(made, deep=True, settings=settings).problems == ()
        return StoredDataset(made)

    return run


def decisions(stored):
    return {decision.rule: decision for decision in stored.manifest.decisions}


def edit(folder, change):
    path = folder / "meta/info.json"
    info = json.loads(path.read_text())
    change(info)
    path.write_text(json.dumps(info))


def edit_tables(folder, change):
    for path in (folder / "data").rglob("*.parquet"):
        parquet.write_table(change(parquet.read_table(path)), path)


def declare_unused(folder, *, named=(CAMERA,)):
    """Declare a second camera without files, and name cameras as GR00T does."""
    edit(folder, lambda info: info["features"].update({UNUSED: info["features"][CAMERA]}))
    videos = {name.rpartition(".")[2]: {"original_key": name} for name in named}
    (folder / "meta/modality.json").write_text(json.dumps({"state": {"arm": {"start": 0, "end": 3}}, "video": videos}))


def drop_frame_index(folder):
    edit(folder, lambda info: info["features"].pop("frame_index"))
    edit_tables(folder, lambda table: table.drop_columns(["frame_index"]))


def put(name, change):
    """Return a change of a table that replaces a column by what a function makes of it."""

    def changed(table):
        values = pa.array(change(table[name].to_numpy().copy()))
        return table.set_column(table.column_names.index(name), name, values)

    return changed


def is_equal(stored, drawn):
    """Return whether each row has the action and the frame of the row."""
    frames = np.concatenate([one.top for one in drawn]).astype(int)
    actions = np.concatenate([one.action for one in drawn])
    return (
        np.array_equal(stored.column(("action",)), actions)
        and np.abs(stored.column(TOP, 0, len(stored)) - frames).max() <= LOSS
    )


def test_a_folder_of_groot_is_read_by_one_call(convert, folder, drawn):
    write_old(folder, drawn)
    declare_unused(folder)
    drop_frame_index(folder)
    edit_tables(folder, put("timestamp", lambda seconds: seconds + np.float32(1 / FPS)))

    def place_all_in_one_folder(info):
        info["data_path"] = info["data_path"].replace("{episode_chunk", "{episode_index")
        info["video_path"] = info["video_path"].replace("{episode_chunk", "{episode_index")

    edit(folder, place_all_in_one_folder)

    stored = convert()

    assert stored.episodes.lengths.tolist() == list(LENGTHS)
    assert is_equal(stored, drawn)
    found = decisions(stored)
    assert found[f"left-out {UNUSED}"].text.endswith("it has no file, and meta/modality.json does not name it")
    assert found["order-of-rows"].count == sum(LENGTHS)
    assert found["late-times"].count == len(LENGTHS)
    assert found["file-elsewhere"].count == 8  # of episodes 1 to 4, in chunks 0, 1, 1 and 2


def test_fields_of_a_folder_of_groot_can_be_selected(convert, folder, drawn):
    write_old(folder, drawn)
    declare_unused(folder)

    stored = convert(keys=("action",))

    assert np.array_equal(stored.column(("action",)), np.concatenate([one.action for one in drawn]))
    assert not [rule for rule in decisions(stored) if rule.startswith("left-out")]


def test_a_camera_that_groot_names_is_not_left_out(convert, folder, drawn):
    write_old(folder, drawn)
    declare_unused(folder, named=(CAMERA, UNUSED))

    with pytest.raises(
        ConversionError, match=f"it has no file of {UNUSED}, such as videos/chunk-000/{UNUSED}/"
    ) as lost:
        convert()

    assert "observation.image.topview" not in str(lost.value.remedy)


@pytest.mark.parametrize("write", [write_old, write_new])
def test_a_copy_without_the_videos_names_the_camera_and_the_keys_to_read(convert, folder, drawn, write):
    write(folder, drawn)
    shutil.rmtree(folder / "videos")

    with pytest.raises(ConversionError, match=f"it has no file of {CAMERA}, such as videos/") as lost:
        convert()
    (keys,) = (value for name, value in _arguments(lost.value) if name == "keys")
    stored = convert(keys=tuple(keys.split(",")))

    assert np.array_equal(stored.column(("action",)), np.concatenate([one.action for one in drawn]))
    assert ("observation", "image", "wrist") in stored.schema
    assert ("language_instruction",) in stored.schema


def _arguments(error):
    return [(one.name, one.value) for one in error.remedy.actions]


@pytest.mark.parametrize("late", [0.5, 1, 2.25])
def test_times_that_begin_late_are_matched_by_order_if_each_row_has_a_frame(convert, folder, drawn, late):
    write_old(folder, drawn)
    edit_tables(folder, put("timestamp", lambda seconds: seconds + np.float32(late / FPS)))

    stored = convert()

    assert is_equal(stored, drawn)
    assert decisions(stored)["late-times"].count == len(LENGTHS)


def test_times_of_a_file_with_many_episodes_that_begin_late_are_matched_by_order(convert, folder, drawn):
    write_new(folder, drawn)
    edit_tables(folder, put("timestamp", lambda seconds: seconds + np.float32(1 / FPS)))

    stored = convert(NEW)

    assert is_equal(stored, drawn)
    assert decisions(stored)["late-times"].count == len(LENGTHS)


def test_times_that_begin_late_and_are_uneven_are_not_matched(convert, folder, drawn):
    write_old(folder, drawn)

    def skip(seconds):
        seconds += np.float32(1 / FPS)
        seconds[5:] += np.float32(1 / FPS) * (len(seconds) == 12)
        return seconds

    edit_tables(folder, put("timestamp", skip))

    stored = convert()

    assert stored.episodes["source"].tolist() == [0, 1, 2, 4]
    text = decisions(stored)["video-of-episode-3"].text
    assert text.endswith(
        "the frame of row 5 is at 0.5000 s, but the table has 0.7000 s. The times of the table begin at 0.1000 s"
    )


@pytest.mark.parametrize(("frames", "kind"), [(13, "longer"), (11, "shorter")])
def test_the_message_states_the_number_of_frames_and_where_the_times_begin(convert, folder, drawn, frames, kind):
    write_old(folder, drawn)
    edit_tables(folder, put("timestamp", lambda seconds: seconds + np.float32(1 / FPS)))
    path = folder / f"videos/chunk-001/{CAMERA}/episode_000003.mp4"
    write_video(path, np.concatenate([drawn[3].top, drawn[3].top])[:frames])

    text = decisions(convert())["video-of-episode-3"].text

    assert text.endswith(
        f"the video is {kind} than the table: {frames} frames for 12 rows, and the times of the table begin at 0.1000 s"
    )


def test_rows_without_numbers_whose_times_do_not_rise_are_refused(convert, folder, drawn):
    write_old(folder, drawn, video=False)
    drop_frame_index(folder)
    edit_tables(folder, put("timestamp", lambda seconds: seconds[::-1].copy()))

    with pytest.raises(
        ConversionError, match=r"no frame_index, and the order of the rows is not known: the timestamp of row 1"
    ):
        convert()


def test_a_folder_is_named_chunk_index_by_some(convert, folder, drawn):
    write_old(folder, drawn)

    def rename(info):
        for name in ("data_path", "video_path"):
            info[name] = info[name].replace("episode_chunk", "chunk_index")

    edit(folder, rename)

    assert is_equal(convert(), drawn)


@pytest.mark.parametrize("write", [write_old, write_new])
def test_a_folder_is_named_video_by_some(convert, folder, drawn, write):
    write(folder, drawn)
    (folder / "videos").rename(folder / "video")

    stored = convert()

    assert is_equal(stored, drawn)
    assert decisions(stored)["file-elsewhere"].count == len(LENGTHS)


def test_a_file_of_another_number_never_takes_the_place_of_a_missing_file(convert, folder, drawn):
    write_new(folder, drawn)
    (folder / "data/chunk-001/file-000.parquet").unlink()

    with pytest.raises(ConversionError, match="it has the files of 4 of 5 episodes"):
        convert(NEW)


@pytest.mark.parametrize("name", ["info.json", "episodes.jsonl", "tasks.jsonl"])
def test_empty_files_in_meta_are_named(convert, folder, drawn, settings, name):
    write_old(folder, drawn, video=False)
    (folder / "meta" / name).write_bytes(b"")

    for download in (convert, lambda: downloading.download(str(folder), settings=settings)):
        with pytest.raises(ConversionError, match=rf"meta/{name} is empty \(0 bytes\)") as empty:
            download()
        assert "git lfs pull" in str(empty.value.remedy)


@pytest.mark.parametrize("name", ["meta/info.json", "meta/episodes.jsonl", "data/chunk-000/episode_000000.parquet"])
def test_the_remedy_of_a_pointer_is_to_pull_the_file(convert, folder, drawn, name):
    write_old(folder, drawn, video=False)
    (folder / name).write_bytes(POINTER)

    with pytest.raises(DatasetsRLError, match=f"{name.rpartition('/')[2]}.*git-LFS pointer") as pointer:
        convert()

    assert "git lfs pull" in str(pointer.value.remedy)
    assert "hash" not in str(pointer.value.remedy)

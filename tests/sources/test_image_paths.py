"""Images by path in a column of a table: every pixel and every row is stored, or all problems are named."""

from __future__ import annotations

import os
import shutil
import tarfile
import tracemalloc

import numpy as np
import pytest
from layouts_images import (
    ACTION,
    LAYOUTS,
    LENGTHS,
    NUMBERS,
    PIXELS,
    ROWS,
    SPEED,
    STEPS,
    WITHIN,
    encoded,
    filmed,
    frame,
    jpeg,
    tub_rows,
    write_tub,
)
from PIL import Image
from raw.lerobot import write_video

from datasets_rl import Selection, download, verification
from datasets_rl.errors import ConversionError
from datasets_rl.format.reader import StoredDataset
from datasets_rl.settings import Settings
from datasets_rl.sources.flat.formats import open_arrays
from datasets_rl.sources.flat.image_paths import ImageFolder, ImagePathsFile
from datasets_rl.sources.local.files import check_files, draft_description


@pytest.fixture
def settings(tmp_path):
    return Settings(home=tmp_path / "home", progress=False, jobs=1)


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_image_and_every_row_of_a_layout_is_stored(tmp_path, settings, name):
    layout = LAYOUTS[name]
    (tmp_path / "mine").mkdir()
    folder = layout.write(tmp_path / "mine")
    if layout.toml:
        (folder / "dataset.toml").write_text(layout.toml)

    stored = StoredDataset(download(str(folder), settings=settings))

    assert stored.episodes.lengths.tolist() == LENGTHS
    images = np.asarray(stored.column(tuple(layout.images.split(".")))[:])
    expected = np.stack([layout.decoded(row) for row in range(STEPS)])
    assert np.abs(images.astype(int) - expected).max() <= layout.loss
    np.testing.assert_allclose(stored.column(("action",)), layout.action, rtol=1e-6)
    assert verification.verify(stored.folder, deep=True, settings=settings).problems == ()


def counts(stored):
    return {decision.rule: decision.count for decision in stored.manifest.decisions}


def table(folder, paths, text="image,action,episode\n"):
    folder.mkdir(exist_ok=True)
    (folder / "log.csv").write_text(text + "".join(f"{path},{row},0\n" for row, path in enumerate(paths)))
    return folder


def images(folder, names, shape=(16, 24, 3), kind="png"):
    for row, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(np.full(shape, 10 * row, np.uint8), kind))
    return names


def refused(folder, settings):
    with pytest.raises(ConversionError) as error:
        download(str(folder), settings=settings)
    assert not (settings.home / "url").exists() or not list((settings.home / "url").rglob("dataset.json"))
    return str(error.value)


def test_all_paths_and_images_that_are_wrong_are_named_in_one_error(tmp_path, settings):
    folder, outside = tmp_path / "mine", tmp_path / "outside"
    images(folder, ["0.png", "b/same.png", "c/same.png", "linked.png"])
    images(outside, ["secret.png"])
    images(folder, ["big.png"], (32, 24, 3))
    images(folder, ["gray.png"], (16, 24))
    (folder / "text.png").write_text("not an image")
    (folder / "linked.png").unlink()
    (folder / "linked.png").symlink_to(outside / "secret.png")
    names = ["0.png", "gone.png", "../outside/secret.png", "https://host/0.png", "same.png", "linked.png"]
    table(folder, [*names, "big.png", "gray.png", "text.png", str(outside / "secret.png")])

    problem = refused(folder, settings)

    for found in (
        "'gone.png' in row 1 does not exist",
        "'../outside/secret.png' in row 2 leads out of the folder",
        "'https://host/0.png' in row 3 is an address",
        "'same.png' in row 4 may be b/same.png and c/same.png",
        "linked.png in row 5 of image is a link that leads out of the folder",
        "big.png in row 6 of image is [32, 24, 3] of uint8, expected [16, 24, 3] of uint8",
        "gray.png in row 7 of image is [16, 24, 1] of uint8",
        "text.png in row 8 of image",
        "secret.png' in row 9 does not exist",
    ):
        assert found in problem


def test_a_link_within_the_folder_is_read(tmp_path, settings):
    folder = tmp_path / "mine"
    images(folder, ["frames/0.png", "frames/1.png"])
    (folder / "second.png").symlink_to(folder / "frames/1.png")
    table(folder, ["frames/0.png", "second.png"])

    stored = StoredDataset(download(str(folder), settings=settings))

    assert np.asarray(stored.column(("observation", "image"))[:])[:, 0, 0, 0].tolist() == [0, 10]


@pytest.mark.parametrize("kind", ["png", "jpeg"])
@pytest.mark.parametrize("form", ["", "raw"])
def test_a_truncated_image_is_refused_with_its_row(tmp_path, settings, kind, form):
    folder = tmp_path / "mine"
    folder.mkdir()
    names = [f"{row}.{kind}" for row in range(5)]
    for row, name in enumerate(names):
        (folder / name).write_bytes(encoded(PIXELS[row], kind)[: -20 if row == 3 else None])
    table(folder, names)

    with pytest.raises(ConversionError, match=r"image 3 .*(truncated|Premature end)"):
        download(str(folder), settings=settings, selection=Selection(options={"images": form} if form else {}))


def test_an_image_that_declares_too_many_pixels_is_refused_before_it_is_decoded(tmp_path, settings):
    folder = tmp_path / "mine"
    names = images(folder, ["0.png", "1.png"])
    bomb = bytearray((folder / "1.png").read_bytes())
    bomb[16:24] = (60_000).to_bytes(4, "big") * 2
    (folder / "1.png").write_bytes(bomb)

    assert "declares 60,000 by 60,000 pixels" in refused(table(folder, names), settings)


def test_a_file_that_is_far_larger_than_its_pixels_is_refused(tmp_path, settings):
    folder = tmp_path / "mine"
    names = images(folder, ["0.png", "1.png"])
    with (folder / "1.png").open("ab") as stream:
        stream.truncate(1 << 25)

    assert "has 33,554,432 bytes for [16, 24, 3] pixels" in refused(table(folder, names), settings)


def test_two_paths_of_one_image_are_refused_and_one_path_in_two_rows_is_not(tmp_path, settings):
    folder = tmp_path / "mine"
    names = images(folder, ["0.png", "1.png"])
    table(folder, ["/a/0.png", "/b/0.png"])
    assert "'/b/0.png' in row 1 and '/a/0.png' are both 0.png" in refused(folder, settings)

    table(folder, [*names, "1.png"])
    stored = StoredDataset(download(str(folder), settings=settings))
    assert np.asarray(stored.column(("observation", "image"))[:])[:, 0, 0, 0].tolist() == [0, 10, 10]
    assert "image-by-name" not in counts(stored)


@pytest.mark.parametrize(
    ("prefix", "used"),
    [("frames/", r", which row 1 names"), ("C:\\data\\", r", which row 1 names"), ("", ", which row 1 names")],
)
def test_an_image_that_is_missing_is_never_replaced_by_the_image_of_another_episode(tmp_path, settings, prefix, used):
    folder = tmp_path / "mine"
    names = images(folder, ["frames/ep0/0.png", "frames/ep0/1.png", "frames/ep1/0.png", "frames/ep1/1.png"])
    table(folder, [prefix + name.removeprefix("frames/") for name in names])
    assert StoredDataset(download(str(folder), settings=settings)).episodes.lengths.tolist() == [4]
    shutil.rmtree(settings.home)
    (folder / "frames/ep1/1.png").unlink()

    problem = refused(folder, settings)

    assert "ep1/1.png' in row 3 does not exist: a file of this name is only frames/ep0/1.png" in problem
    assert used in problem
    assert problem.count("ep0/1.png") == 1


@pytest.mark.parametrize("prefix", ["frames/", "C:\\data\\"])
def test_an_image_that_is_missing_is_never_replaced_by_an_image_that_no_row_names(tmp_path, settings, prefix):
    folder = tmp_path / "mine"
    names = images(folder, ["frames/ep0/0.png", "frames/ep1/0.png", "frames/ep1/1.png"])
    table(folder, [prefix + name.removeprefix("frames/") for name in names])
    (folder / "frames/ep1/1.png").rename(folder / "frames/ep0/1.png")

    problem = refused(folder, settings)

    assert "ep1/1.png' in row 2 does not exist: a file of this name is only frames/ep0/1.png" in problem


def test_a_video_that_is_missing_is_never_replaced_by_a_video_of_the_same_name(tmp_path, settings):
    paths = np.array([f"ep{number}/{number}.mp4" for number in NUMBERS])
    videos = {"ep0/0.mp4": ROWS[0], "ep1/1.mp4": ROWS[1], "other/2.mp4": ROWS[2]}
    (tmp_path / "mine").mkdir()
    folder = filmed(videos, episode=NUMBERS, video=paths)(tmp_path / "mine")

    problem = refused(folder, settings)

    assert "'ep2/2.mp4' in row 10 does not exist: a file of this name is only other/2.mp4" in problem


def test_of_files_with_equal_names_the_one_with_the_most_equal_folders_is_read_and_counted(tmp_path, settings):
    folder = tmp_path / "mine"
    images(folder, ["run1/IMG/0.png", "run2/IMG/0.png"])
    table(folder, ["D:\\data\\run2\\IMG\\0.png", "D:\\data\\run1\\IMG\\0.png"])

    stored = StoredDataset(download(str(folder), settings=settings))

    assert np.asarray(stored.column(("observation", "image"))[:])[:, 0, 0, 0].tolist() == [10, 0]
    assert counts(stored)["image-by-name"] == 2


def test_a_table_without_its_images_says_which_folder_to_give(tmp_path, settings):
    folder = table(tmp_path / "mine", ["0.png", "1.png"])

    with pytest.raises(ConversionError, match=r"'0\.png' in row 0 does not exist") as error:
        download(str(folder / "log.csv"), settings=settings)
    assert "give the folder with the images" in str(error.value.hint)


def test_images_of_16_bits_become_numbers(tmp_path, settings):
    folder = tmp_path / "mine"
    folder.mkdir()
    depths = np.arange(2 * 16 * 24, dtype=np.uint16).reshape(2, 16, 24) * 50
    for row in range(2):
        Image.fromarray(depths[row]).save(folder / f"{row}.png")
    table(folder, ["0.png", "1.png"])

    stored = StoredDataset(download(str(folder), settings=settings))

    np.testing.assert_array_equal(stored.column(("observation", "image"))[:][..., 0], depths)


@pytest.mark.parametrize("form", ["raw", "encoded"])
def test_images_are_stored_in_the_form_that_the_user_chooses(tmp_path, settings, form):
    (tmp_path / "mine").mkdir()
    folder = LAYOUTS["a tub of Donkeycar"].write(tmp_path / "mine")

    stored = StoredDataset(download(str(folder), settings=settings, selection=Selection(options={"images": form})))

    (field,) = [field for field in stored.schema if field.key == ("observation", "image")]
    assert field.form == form
    expected = np.stack([jpeg(row) for row in range(STEPS)])
    np.testing.assert_array_equal(np.asarray(stored.column(field.key)[:]), expected)


@pytest.mark.parametrize("column", ["image", "image_path"])
def test_an_image_beside_a_vector_is_a_part_of_the_observation(tmp_path, settings, column):
    folder = tmp_path / "mine"
    names = images(folder, ["0.png", "1.png"])
    rows = "".join(f"{name},{row},{row},0\n" for row, name in enumerate(names))
    (folder / "log.csv").write_text(f"{column},obs,action,episode\n{rows}")

    stored = StoredDataset(download(str(folder), settings=settings))

    observed = [field.name for field in stored.schema if field.key[0] == "observation"]
    assert sorted(observed) == ["observation.image", "observation.state"]
    np.testing.assert_array_equal(stored.column(("observation", "state")).reshape(-1), [0, 1])


def test_rows_that_were_deleted_separate_the_episodes_of_a_session(tmp_path, settings):
    (tmp_path / "mine").mkdir()
    folder = write_tub(tmp_path / "mine", deleted=(0, 6, 12))

    stored = StoredDataset(download(str(folder), settings=settings))

    assert stored.episodes.lengths.tolist() == [3, 2, 3, 2]
    kept = [row for row in range(STEPS) if row not in {0, 6, 12}]
    np.testing.assert_array_equal(stored.column(("info", "index"))[:].reshape(-1), kept)
    np.testing.assert_allclose(stored.column(("action",)), ACTION[kept])
    assert (counts(stored)["deleted-rows"], counts(stored)["session-split"]) == (3, 1)
    assert not stored.episodes["final_known"].any()


def changed(change):
    rows = tub_rows()
    change(rows)
    return lambda folder: write_tub(folder, rows)


def edited(name, change):
    def write(folder):
        path = write_tub(folder) / name
        path.write_text(change(path.read_text()))

    return write


BROKEN_TUBS = {
    "a catalog that is cut": (
        edited("catalog_1.catalog", lambda text: "".join(text.splitlines(keepends=True)[:-1])),
        "catalog_1.catalog has 4 rows, but catalog_1.catalog_manifest states 5",
    ),
    "a row that is cut": (edited("catalog_2.catalog", lambda text: text[:-20]), "catalog_2.catalog: row 2 is not JSON"),
    "a missing catalog": (
        lambda folder: (write_tub(folder) / "catalog_1.catalog").unlink(),
        "do not have the same catalogs: catalog_1.catalog",
    ),
    "fewer rows than stated": (
        edited("manifest.json", lambda text: text.replace('"current_index": 13', '"current_index": 20')),
        "the last row is 12, but the manifest states 20 rows",
    ),
    "a path out of the tub": (
        edited("manifest.json", lambda text: text.replace("catalog_0.catalog", "../catalog_0.catalog")),
        "expected names such as catalog_0.catalog",
    ),
    "a manifest that is cut": (edited("manifest.json", lambda text: text[:-9]), "the last line is not JSON"),
    "rows in another order": (changed(lambda rows: rows.reverse()), "_index is 11 after 12 in row 1"),
    "a session that comes back": (
        changed(lambda rows: rows[12].update({"_session_id": rows[0]["_session_id"]})),
        "3 sessions are in 4 ranges of rows",
    ),
    "a row without its number": (changed(lambda rows: rows[2].pop("_index")), "_index is missing in 1 rows"),
    "a number that no array holds": (
        changed(lambda rows: rows[2].update({"user/angle": 10**400})),
        "which array is the action?",
    ),
    "a row without its angle": (
        changed(lambda rows: rows[3].pop("user/angle")),
        "user/angle is missing in 1 of 13 rows",
    ),
    "a missing image": (
        lambda folder: (write_tub(folder) / "images/7_cam_image_array_.jpg").unlink(),
        "'images/7_cam_image_array_.jpg' in row 7 does not exist",
    ),
    "a pilot that drives": (changed(lambda rows: rows[4].update({"user/mode": "local"})), "which array is the action?"),
    "no session": (
        changed(lambda rows: [row.pop("_session_id") for row in rows]),
        "does not state where an episode ends. The array recording numbers",
    ),
}


@pytest.mark.parametrize("name", BROKEN_TUBS)
def test_a_tub_with_a_fault_is_refused_with_its_place(tmp_path, settings, name):
    write, problem = BROKEN_TUBS[name]
    (tmp_path / "mine").mkdir()
    write(tmp_path / "mine")

    assert problem in refused(tmp_path / "mine", settings)


def test_a_driving_log_asks_for_its_episodes_and_takes_either_answer(tmp_path, settings):
    (tmp_path / "mine").mkdir()
    folder = LAYOUTS["Udacity's driving_log.csv"].write(tmp_path / "mine")
    problem = refused(folder, settings)
    assert "a driving log does not state where an episode ends" in problem
    assert "without a pause of 1 s: 3 by the times" in problem
    assert 'array = "recording"' not in draft_description(folder).questions[0]
    assert draft_description(folder).questions[0].startswith("how do the episodes end?")

    (folder / "dataset.toml").write_text('[episodes]\nby = "file"')
    stored = StoredDataset(download(str(folder), settings=settings))

    assert stored.episodes.lengths.tolist() == [STEPS]
    for shift, camera in enumerate(("center", "left", "right")):
        shown = np.asarray(stored.column(("observation", camera))[:])
        np.testing.assert_array_equal(shown, np.stack([jpeg((row + shift) % STEPS) for row in range(STEPS)]))
    np.testing.assert_allclose(stored.column(("observation", "speed")).reshape(-1), SPEED)
    assert counts(stored)["image-by-name"] == 3 * STEPS


@pytest.mark.parametrize(
    ("first", "problem"),
    [
        ("IMG/a.jpg,IMG/a.jpg,0.5,0.5\n", "the first row has 4 cells and no names, expected center, left, right"),
        ("center,steering\nIMG/a.jpg,0.5\n", "which array is the action?"),
    ],
)
def test_a_driving_log_of_other_columns_is_refused(tmp_path, settings, first, problem):
    images(tmp_path / "mine", ["IMG/a.jpg"], kind="jpeg")
    (tmp_path / "mine/driving_log.csv").write_text(first)

    assert problem in refused(tmp_path / "mine", settings)


def test_columns_that_are_not_numbers_are_no_elements_of_an_array(tmp_path, settings):
    folder = tmp_path / "mine"
    table(folder, images(folder, ["0.png", "1.png"]))
    (folder / "dataset.toml").write_text('[fields]\nobservation.image = "image"\naction = ["action", "image", "gas"]')

    problem = refused(folder, settings)

    assert "image is text [2], expected a number for each row" in problem
    assert "it has no column gas, only image" in problem


@pytest.mark.first(5)
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_check_reads_what_a_download_stores(tmp_path, name):
    layout = LAYOUTS[name]
    folder = layout.write(tmp_path)
    if layout.toml:
        (folder / "dataset.toml").write_text(layout.toml)

    found = check_files(folder)

    assert (found.steps, found.episodes, found.lengths["max"]) == (STEPS, len(LENGTHS), max(LENGTHS))
    assert layout.toml or not draft_description(folder).questions


def test_a_conversion_holds_few_images_in_memory(tmp_path):
    folder = tmp_path / "mine"
    shape, count = (256, 256, 3), 200
    image = encoded(np.random.default_rng(0).integers(0, 255, shape, np.uint8))
    folder.mkdir()
    for row in range(count):
        (folder / f"{row}.png").write_bytes(image)
    table(folder, [f"{row}.png" for row in range(count)])
    with open_arrays(folder / "log.csv", "csv", "log.csv") as opened:
        file = ImagePathsFile(opened, ImageFolder({path.name: path for path in folder.iterdir()}), "")
        tracemalloc.start()
        try:
            assert sum(len(block) for block in file.blocks("image", 1 << 20)) == count
            assert tracemalloc.get_traced_memory()[1] < 64 << 20
        finally:
            tracemalloc.stop()


def test_rows_of_a_driving_log_in_another_order_are_counted(tmp_path, settings):
    (tmp_path / "mine").mkdir()
    folder = LAYOUTS["Udacity's driving_log.csv"].write(tmp_path / "mine")
    lines = (folder / "driving_log.csv").read_text().splitlines(keepends=True)
    (folder / "driving_log.csv").write_text("".join([lines[1], lines[0], lines[0], *lines[2:]]))
    (folder / "dataset.toml").write_text('[episodes]\nby = "file"')

    assert counts(StoredDataset(download(str(folder), settings=settings)))["time-not-later"] == 2


def test_a_tub_without_rows_beside_other_tubs_is_counted(tmp_path, settings):
    (tmp_path / "mine/later").mkdir(parents=True)
    write_tub(tmp_path / "mine/later")
    write_tub(tmp_path / "mine", deleted=tuple(range(STEPS)))
    shutil.rmtree(tmp_path / "mine/images")

    stored = StoredDataset(download(str(tmp_path / "mine"), settings=settings))

    assert stored.episodes.lengths.tolist() == LENGTHS
    assert counts(stored)["no-transition"] == 1


def test_further_inputs_of_a_tub_are_infos(tmp_path, settings):
    rows = tub_rows()
    for number, row in enumerate(rows):
        row |= {"imu/acl_x": number / 4, "imu/gyr": [1.0, number], "user/mode": "user", "note": None}
    (tmp_path / "mine").mkdir()
    write_tub(tmp_path / "mine", rows)

    stored = StoredDataset(download(str(tmp_path / "mine"), settings=settings))

    np.testing.assert_array_equal(stored.column(("info", "imu", "acl_x")).reshape(-1), np.arange(STEPS) / 4)
    np.testing.assert_array_equal(stored.column(("info", "imu", "gyr"))[:, 1], np.arange(STEPS))


@pytest.mark.parametrize("form", ["raw", "encoded", "video"])
def test_frames_of_two_cameras_are_stored_in_the_form_that_the_user_chooses(tmp_path, settings, form):
    folder = LAYOUTS["folder for each episode, with two cameras"].write(tmp_path / "mine")

    stored = StoredDataset(download(str(folder), settings=settings, selection=Selection(options={"images": form})))

    for camera in ("front", "rear"):
        (field,) = [field for field in stored.schema if field.key == ("observation", "image", camera)]
        assert field.form == form
        expected = np.stack([255 - frame(row) if camera == "rear" else frame(row) for row in range(STEPS)])
        assert np.abs(np.asarray(stored.column(field.key)[:]).astype(int) - expected).max() <= 3
    assert counts(stored).get("video-to-jpeg", 0) == 2 * STEPS * (form == "encoded")
    assert verification.verify(stored.folder, deep=True, settings=settings).problems == ()


@pytest.mark.parametrize("form", ["encoded", "video", "raw"])
def test_rows_with_other_frames_are_not_equal_rows(tmp_path, settings, form):
    still = {"episode": NUMBERS, "frame": WITHIN, **dict.fromkeys(["action_0", "action_1"], np.zeros(STEPS))}
    filmed({f"{number}.mp4": rows for number, rows in enumerate(ROWS)}, **still)(tmp_path / "mine")

    stored = StoredDataset(
        download(str(tmp_path / "mine"), settings=settings, selection=Selection(options={"images": form}))
    )

    assert counts(stored).get("equal-rows", 0) == 0


def per_episode(change=lambda _: None, rows=ROWS, names=("0", "1", "2"), **columns):
    """Return a writer of a table with a video for each episode, and a change of the files."""
    videos = {f"{name}.mp4": rows[number] for number, name in enumerate(names)}
    columns = {"episode": NUMBERS, "frame": WITHIN, **columns}

    def write(folder):
        filmed(videos, **columns)(folder)
        change(folder)

    return write


def cut(folder):
    data = (folder / "1.mp4").read_bytes()
    (folder / "1.mp4").write_bytes(data[: len(data) // 2])


def link_out(folder):
    (folder / "1.mp4").rename(folder.parent / "outside.mp4")
    (folder / "1.mp4").symlink_to(folder.parent / "outside.mp4")


def larger(folder):
    write_video(folder / "2.mp4", np.zeros((LENGTHS[2], 32, 32, 3), np.uint8))


WRONG_VIDEOS = {
    "a frame less": (per_episode(rows=[ROWS[0][1:], *ROWS[1:]]), "0.mp4 has 3 frames, expected 4, one for each row"),
    "a frame more": (per_episode(rows=[*ROWS[:2], range(4)]), "2.mp4 has 4 frames, expected 3, one for each row"),
    "other numbers": (
        per_episode(names=("1", "2", "3")),
        "expected one video of all rows, or a video of the number of each episode",
    ),
    "a missing video": (
        per_episode(lambda folder: (folder / "1.mp4").unlink()),
        "and 3 episodes, beside 0.mp4, 2.mp4: expected",
    ),
    "a missing number": (per_episode(frame=WITHIN + (np.arange(STEPS) > 5)), "is 3 in row 6, expected 2 after 1"),
    "late numbers": (per_episode(frame=WITHIN + 3), "the first frame of 0.mp4 is 3 in row 0, expected 0 or 1"),
    "a video that is cut": (per_episode(cut), "1.mp4: "),
    "a link": (per_episode(link_out), "1.mp4: the video is a link that leads out of the folder"),
    "another size": (per_episode(larger), "2.mp4 has frames of [32, 32], expected [64, 96] as the first video"),
    "a text": (per_episode(lambda folder: (folder / "1.mp4").write_text("no video")), "1.mp4: "),
    "a frame less than a table of the same name": (
        filmed({f"{n}.mp4": ROWS[n][1:] for n in range(3)}, {f"{n}.csv": ROWS[n] for n in range(3)}),
        "0.mp4 has 3 frames, expected 4, one for each row",
    ),
    "a missing path": (
        filmed({"0.mp4": range(STEPS)}, episode=NUMBERS, video=np.full(STEPS, "gone.mp4")),
        "video 'gone.mp4' in row 0 does not exist",
    ),
    "a video twice": (
        filmed({"0.mp4": range(9), "1.mp4": range(4)}, video=np.array(["0.mp4"] * 5 + ["1.mp4"] * 4 + ["0.mp4"] * 4)),
        "video has a video in several ranges of rows",
    ),
}


@pytest.mark.parametrize("name", WRONG_VIDEOS)
def test_videos_that_do_not_have_exactly_the_frames_of_the_rows_are_refused(tmp_path, settings, name):
    write, problem = WRONG_VIDEOS[name]
    write(tmp_path / "mine")

    assert problem in refused(tmp_path / "mine", settings)


def test_a_video_of_another_length_beside_rows_without_frame_numbers_is_no_field(tmp_path, settings):
    folder = tmp_path / "mine"
    filmed({"preview.mp4": range(5)}, episode=NUMBERS, obs=np.arange(STEPS))(folder)

    stored = StoredDataset(download(str(folder), settings=settings))

    assert [field.name for field in stored.schema if field.key[0] == "observation"] == ["observation"]


def test_tubs_in_an_archive_are_read_with_a_description(tmp_path, settings):
    (tmp_path / "tub").mkdir()
    write_tub(tmp_path / "tub")
    (tmp_path / "tub/dataset.toml").write_text('name = "car"')
    with tarfile.open(tmp_path / "tub.tar", "w") as archive:
        archive.add(tmp_path / "tub", "tub")

    stored = StoredDataset(download(str(tmp_path / "tub.tar"), settings=settings))

    images = np.asarray(stored.column(("observation", "image"))[:])
    np.testing.assert_array_equal(images, np.stack([jpeg(row) for row in range(STEPS)]))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
def test_the_files_of_a_tub_that_are_no_regular_files_are_not_opened(tmp_path, settings):
    (tmp_path / "mine").mkdir()
    folder = write_tub(tmp_path / "mine")
    (folder / "catalog_1.catalog").unlink()
    os.mkfifo(folder / "catalog_1.catalog")

    assert "do not have the same catalogs: catalog_1.catalog" in refused(folder, settings)


def test_a_tub_with_inputs_of_other_names_asks_for_its_action(tmp_path, settings):
    rows = tub_rows()
    for row in rows:
        row["steering"], row["gas"] = row.pop("user/angle"), row.pop("user/throttle")
    (tmp_path / "mine").mkdir()
    folder = write_tub(tmp_path / "mine", rows)
    assert "which array is the action?; which fields are gas, steering?" in refused(folder, settings)

    (folder / "dataset.toml").write_text('[fields]\naction = ["steering", "gas"]')
    stored = StoredDataset(download(str(folder), settings=settings))

    np.testing.assert_allclose(stored.column(("action",)), ACTION)
    assert stored.episodes.lengths.tolist() == LENGTHS


def test_a_tub_in_which_a_pilot_drives_is_read_with_its_action(tmp_path, settings):
    rows = tub_rows()
    for row in rows:
        row |= {"user/mode": "local", "pilot/angle": row["user/throttle"], "pilot/throttle": row["user/angle"]}
    (tmp_path / "mine").mkdir()
    folder = write_tub(tmp_path / "mine", rows)
    (folder / "dataset.toml").write_text('[fields]\naction = ["pilot/angle", "pilot/throttle"]')

    stored = StoredDataset(download(str(folder), settings=settings))

    np.testing.assert_allclose(stored.column(("action",)), ACTION[:, ::-1])
    np.testing.assert_allclose(stored.column(("info", "user", "angle")).reshape(-1), ACTION[:, 0])


@pytest.mark.parametrize("name", ["image", "images", "img", "rgb", "pixels"])
def test_an_array_with_a_name_of_images_is_the_observation(tmp_path, settings, name):
    path = tmp_path / "data.npz"
    np.savez(path, **{name: PIXELS}, actions=ACTION, episode_lengths=LENGTHS)

    stored = StoredDataset(download(str(path), settings=settings))

    np.testing.assert_array_equal(np.asarray(stored.column(("observation", "image"))[:]), PIXELS)


@pytest.mark.parametrize(
    ("column", "text", "problem"),
    [
        ("video", "0.mp4", "video '0.mp4' in row 0 does not exist"),
        ("image", "IMG_0001", "image has texts that are not names of PNG or JPEG images, or of videos, in all rows"),
        ("image", "0.png", "image '0.png' in row 0 does not exist"),
        ("image", "7", "image has a number for each row, expected images"),
        ("video", "7", "video has a number for each row, expected images"),
    ],
)
def test_texts_and_numbers_of_a_column_of_images_are_never_stored_as_images(tmp_path, settings, column, text, problem):
    (tmp_path / "mine").mkdir()
    rows = "".join(f"{text},{row},0\n" for row in range(3))
    (tmp_path / "mine/log.csv").write_text(f"{column},action,episode\n{rows}")

    assert problem in refused(tmp_path / "mine", settings)


def test_a_video_of_the_images_of_a_table_is_not_a_field(tmp_path, settings):
    folder = tmp_path / "mine"
    names = images(folder, [f"{row}.png" for row in range(STEPS)])
    filmed({"preview.mp4": range(5)}, episode=NUMBERS, frame=WITHIN, image=np.array(names))(folder)

    stored = StoredDataset(download(str(folder), settings=settings))

    assert [field.name for field in stored.schema if field.key[0] == "observation"] == ["observation.image"]


def test_a_column_of_steps_that_agrees_with_the_column_of_episodes_needs_no_field(tmp_path, settings):
    folder = tmp_path / "mine"
    folder.mkdir()
    rows = "".join(f"{NUMBERS[row]},{WITHIN[row]},{row},{-row}\n" for row in range(STEPS))
    (folder / "log.csv").write_text(f"episode,step,obs,action\n{rows}")

    stored = StoredDataset(download(str(folder), settings=settings))

    assert stored.episodes.lengths.tolist() == LENGTHS


def test_images_that_no_row_names_are_not_files_of_the_dataset(tmp_path, settings):
    folder = tmp_path / "mine"
    images(folder, [f"plots/{number}.png" for number in range(3)])
    (folder / "log.csv").write_text("obs,action,note,episode\n1,2,good,0\n3,4,bad,0\n")
    (folder / "dataset.toml").write_text('[fields]\nnote = "note"')

    stored = StoredDataset(download(str(folder), settings=settings))

    assert sorted(file.path.rpartition("/")[2] for file in stored.manifest.raw) == ["dataset.toml", "log.csv"]


def test_next_vectors_without_next_images_are_refused(tmp_path, settings):
    arrays = {"obs": ACTION[:-1], "next_obs": ACTION[1:], "image": PIXELS[:-1], "action": ACTION[:-1]}
    np.savez(tmp_path / "a.npz", **arrays)

    assert "observation.image has no next observation, unlike observation.state" in refused(
        tmp_path / "a.npz", settings
    )


def test_a_column_of_missing_images_beside_a_described_observation_is_left_out_and_counted(tmp_path, settings):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "log.csv").write_text("image_path,obs,action,episode\nx.png,1,2,0\ny.png,3,4,0\n")
    (folder / "dataset.toml").write_text('[fields]\nobservation = "obs"')

    stored = StoredDataset(download(str(folder), settings=settings))

    assert counts(stored)["left-out"] == 1

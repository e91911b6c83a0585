"""What every form of images has in common: the files that it names, the pixels that it returns, and how datasets are joined."""

from __future__ import annotations

import filecmp

import numpy as np
import pytest
from stored_data import FLAGS, Trajectory, write_dataset
from view_data import SIDE, drawing, image_files, video_frames

from datasets_rl.errors import ConversionError
from datasets_rl.format.images import FORMS, form_class
from datasets_rl.format.integrity import check_content
from datasets_rl.format.reader import StoredDataset
from datasets_rl.format.schema import Column
from datasets_rl.format.writer import DatasetWriter
from datasets_rl.read.compressed_frames import FrameDictionary
from datasets_rl.ted.episode import EncodedImages

KEY = ("observation", "camera")
LENGTHS = (4, 9, 1)
MAKES = {
    "raw": lambda images, _: images,
    "compressed": lambda images, _: images,
    "encoded": lambda images, _: EncodedImages(image_files(images)),
    "video": lambda images, path: video_frames(path, images),
}
"""The images of an episode, uint8 [T + 1, ...], in the form in which a source gives them to the writer."""
PIXELS = [np.stack([drawing(number, step) for step in range(steps + 1)]) for number, steps in enumerate(LENGTHS)]


@pytest.fixture(params=MAKES)
def form(request):
    if request.param == "video":
        pytest.importorskip("av", reason="pip install av")
    return request.param


@pytest.fixture
def columns(form):
    return [
        Column(KEY, np.dtype(np.uint8), (SIDE, SIDE, 3), shared=True, form=form),
        Column(("action",), np.dtype(np.float32), (2,)),
        Column(("next", "reward"), np.dtype(np.float32), (1,)),
        *FLAGS,
    ]


@pytest.fixture
def episodes(form, tmp_path):
    """One episode of each length; the last image of the second one is unknown."""
    made = []
    for number, steps in enumerate(LENGTHS):
        last = (np.arange(steps) == steps - 1)[:, None]
        images = MAKES[form](PIXELS[number], tmp_path / "upstream" / f"{number}.mp4")
        made.append(
            Trajectory(
                {
                    ("action",): np.full((steps, 2), number, np.float32),
                    ("next", "reward"): np.ones((steps, 1), np.float32),
                    ("next", "terminated"): last,
                    ("next", "truncated"): np.zeros_like(last),
                },
                {KEY: images[:steps] if number == 1 else images},
            )
        )
    return made


@pytest.fixture
def dictionaries(form):
    return {KEY: FrameDictionary.train(np.concatenate(PIXELS), 1 << 14)} if form_class(form).has_dictionary else {}


@pytest.fixture
def stored(tmp_path, episodes, columns, dictionaries):
    return write_dataset(tmp_path / "stored", episodes, columns, dictionaries)


def test_the_suite_covers_every_form():
    missing, surplus = sorted(FORMS.keys() - MAKES.keys()), sorted(MAKES.keys() - FORMS.keys())
    assert not missing + surplus, f"add to MAKES how a source gives images of {missing}; remove {surplus}"


def test_the_name_of_a_form_is_that_of_its_class():
    assert {name: form_class(name).name for name in FORMS} == {name: name for name in FORMS}


def test_readers_get_the_pixels_at_each_step_and_after_each_episode(stored):
    steps = np.concatenate([images[:-1] for images in PIXELS])
    final = np.stack([images[-1] for images in PIXELS])
    final[1] = 0
    rows = np.array([3, 0, 12, 3])

    assert np.array_equal(np.asarray(stored.items(KEY)[rows]), steps[rows])
    assert np.array_equal(np.asarray(stored.final_states(KEY)[0:3]), final)
    assert np.array_equal(stored.column(("next", *KEY))[3:5], [final[0], steps[5]])


def test_the_form_names_every_file_of_the_dataset(stored):
    assert list(check_content(stored)) == []


def test_the_description_names_the_form(form, stored):
    assert stored.manifest.images.get("observation.camera", "raw").startswith(form_class(form).summary or "raw")


def test_a_part_that_is_appended_gives_the_bytes_of_one_writer(stored, episodes, columns, dictionaries, tmp_path):
    def write(folder, chosen):
        (tmp_path / folder).mkdir()
        writer = DatasetWriter(tmp_path / folder, columns, name="toy/part", dictionaries=dictionaries)
        for piece in (piece for one in chosen for piece in one.pieces()):
            writer.append(piece)
        return writer

    part = write("part", episodes[1:])
    commit = part.commit()
    part.discard()
    whole = write("whole", episodes[:1])
    whole.append_partial(tmp_path / "part", commit)
    written = whole.finish()

    assert written.files == stored.manifest.files
    files = [entry.path for entry in written.files]
    assert filecmp.cmpfiles(stored.folder, tmp_path / "whole", files, shallow=False) == (files, [], [])


def test_a_writer_that_continues_gives_the_bytes_of_one_writer(stored, episodes, columns, dictionaries, tmp_path):
    (tmp_path / "whole").mkdir()
    commits = []
    for one in episodes:
        writer = DatasetWriter(
            tmp_path / "whole", columns, name="toy/part", dictionaries=dictionaries, commits=tuple(commits)
        )
        for piece in one.pieces():
            writer.append(piece)
        if one is not episodes[-1]:
            commits.append(writer.commit())
            writer.discard()

    assert writer.finish().files == stored.manifest.files


def test_each_form_takes_pixels_or_refuses_them(form, columns, episodes, dictionaries, tmp_path):
    pixels = Trajectory(episodes[0].steps, {KEY: PIXELS[0]})

    if form_class(form).takes_pixels:
        stored = write_dataset(tmp_path / "pixels", [pixels], columns, dictionaries)
        assert np.array_equal(np.asarray(StoredDataset(stored.folder).items(KEY)[0:4]), PIXELS[0][:4])
    else:
        with pytest.raises(ConversionError, match=rf"observation\.camera.*{form_class(form).noun}"):
            write_dataset(tmp_path / "pixels", [pixels], columns, dictionaries)

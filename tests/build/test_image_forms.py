"""The form in which a conversion stores images: measured, decided by hand, and the same however the work is divided."""

from __future__ import annotations

import json

import h5py
import numpy as np
import pytest
from oracles import comparison
from raw.images import encoded, scene

from datasets_rl import Selection, downloading, verification
from datasets_rl.build import conversion, engines, image_forms
from datasets_rl.downloading import planning
from datasets_rl.errors import ConversionError, InvalidArgumentError
from datasets_rl.format.reader import StoredDataset
from datasets_rl.settings import Settings
from datasets_rl.sources import local

ID = "local/arm"
PIXELS = ("observation", "camera")
TEXT = """
alignment = "one-more"
[episodes]
by = "file"
[fields]
observation.camera = "camera"
action = "action"
reward = "reward"
"""
RNG = np.random.default_rng(5)
SCENE = RNG.integers(0, 256, (40, 40, 3)).astype(np.uint8)


def game(steps):
    """Images of a fixed background with a square at a random place, [steps + 1, 40, 40, 3]."""
    images = np.repeat(SCENE[None], steps + 1, axis=0)
    for image, (row, column) in zip(images, RNG.integers(0, 34, (steps + 1, 2)), strict=True):
        image[row : row + 6, column : column + 6] = 200
    return images


def noise(steps):
    return RNG.integers(0, 256, (steps + 1, 40, 40, 3)).astype(np.uint8)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of the user's files, each of which becomes a shard that a process may convert."""
    monkeypatch.setattr(local, "_SHARD_BYTES", 1)
    monkeypatch.setattr(engines, "MIN_PARALLEL_BYTES", 0)
    place = tmp_path / "arm"
    place.mkdir()
    (place / "dataset.toml").write_text(TEXT)
    return place


def write(folder, episodes):
    """Write a file for each episode, given its images."""
    for number, images in enumerate(episodes):
        steps = len(images) - 1
        columns = {"camera": images, "action": np.arange(steps), "reward": np.ones(steps, np.float32)}
        np.savez(folder / f"{number}.npz", **columns)
    return np.concatenate([images[:-1] for images in episodes])


def write_encoded(folder, pictures):
    """Write an episode of PNG images in HDF5."""
    with h5py.File(folder / "0.hdf5", "w") as file:
        camera = file.create_dataset("camera", len(pictures), h5py.vlen_dtype(np.uint8))
        for row, picture in enumerate(pictures):
            camera[row] = np.frombuffer(encoded(picture), np.uint8)
        file["action"] = np.arange(len(pictures) - 1)
        file["reward"] = np.ones(len(pictures) - 1, np.float32)


@pytest.fixture
def convert(folder, tmp_path):
    def run(home="home", jobs=1, force=False, **options):
        settings = Settings(home=tmp_path / home, progress=False, jobs=jobs)
        made = downloading.download(
            ID, from_local=folder, settings=settings, selection=Selection(options=options), force=force
        )
        assert comparison.deep_problems(made, settings=settings) == []
        return StoredDataset(made)

    return run


@pytest.fixture(autouse=True)
def four_cores(monkeypatch):
    monkeypatch.setattr("datasets_rl.build.shards.core_count", lambda: 4)


def form(stored):
    return stored.schema[PIXELS].form


def contents(stored):
    return {path.name: path.read_bytes() for path in stored.folder.glob("*") if path.name != "manifest.json"}


def test_images_that_are_alike_are_compressed(folder, convert):
    pixels = write(folder, [game(600), game(30)])

    stored = convert()

    assert form(stored) == "compressed"
    assert np.array_equal(stored.column(PIXELS), pixels)
    assert "compressed without loss" in stored.manifest.images["observation.camera"]
    assert stored.manifest.selection == {}


def test_images_with_nothing_in_common_are_stored_raw(folder, convert):
    write(folder, [noise(40)])

    stored = convert()

    assert form(stored) == "raw"
    assert stored.manifest.images == {"observation.camera": "raw"}


def test_the_dictionary_counts_as_stored_bytes(folder, convert):
    """Of a few images, it takes as much space as they do."""
    write(folder, [game(8)])

    assert form(convert()) == "raw"


@pytest.mark.parametrize("images", ["raw", "compressed"])
def test_the_form_can_be_decided_by_hand(folder, convert, images):
    pixels = write(folder, [noise(20), game(20)])

    stored = convert(images=images)

    assert form(stored) == images
    assert np.array_equal(stored.column(PIXELS), pixels)
    assert stored.manifest.selection == {"options": {"images": images}}


def test_pixels_do_not_become_png(folder, convert):
    write(folder, [game(3)])

    with pytest.raises(ConversionError, match=r"observation\.camera is pixels in the files of the source") as caught:
        convert(images="encoded")

    assert "compressed" in caught.value.hint


@pytest.mark.parametrize("images", ["", "encoded", "raw", "compressed"])
def test_png_images_of_the_source_stay_unless_the_form_is_decided(folder, convert, images):
    pictures = [scene(40, 40, seed=number) for number in range(12)]
    write_encoded(folder, pictures)

    stored = convert(**({"images": images} if images else {}))

    assert form(stored) == (images or "encoded")
    assert np.array_equal(stored.column(PIXELS), np.stack(pictures[:-1]))
    assert np.array_equal(stored.final_states(PIXELS)[:], np.stack(pictures[-1:]))


def test_many_decoded_images_are_written_in_small_pieces(folder, convert, monkeypatch):
    pictures = [scene(40, 40, seed=number) for number in range(12)]
    write_encoded(folder, pictures)
    whole = contents(convert(images="raw"))
    monkeypatch.setattr(image_forms, "_DECODED_BYTES", 3 * 40 * 40 * 3)
    pieces = []
    split = image_forms.with_pixels
    monkeypatch.setattr(
        "datasets_rl.build.shards.with_pixels", lambda *given: (pieces.append(len(p)) or p for p in split(*given))
    )

    assert contents(convert(images="raw", force=True)) == whole
    assert pieces == [3, 3, 3, 2] * 2  # by the conversion, and by the verification of `convert`


def test_the_result_does_not_depend_on_the_number_of_processes(folder, convert):
    write(folder, [game(600), *(game(10) for _ in range(4))])

    one, two = convert("one"), convert("two", jobs=2)

    assert form(one) == "compressed"
    assert contents(one) == contents(two)
    assert one.manifest.statistics == two.manifest.statistics


def test_one_process_compresses_images_on_two_cores(folder, convert, monkeypatch):
    """It uses both in threads: others take as long, and have to start."""
    write(folder, [game(600), game(10), game(10)])
    submitted = []
    monkeypatch.setattr("datasets_rl.build.engines.local.LocalEngine.submit", lambda *given: submitted.append(given))
    monkeypatch.setattr("datasets_rl.build.shards.core_count", lambda: 2)

    assert form(convert(jobs=2)) == "compressed"
    assert not submitted


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("lost", [False, True])
def test_an_interrupted_conversion_continues_with_the_same_dictionary(
    folder, convert, tmp_path, monkeypatch, jobs, lost
):
    write(folder, [game(600), *(game(10) for _ in range(4))])
    expected = contents(convert("whole"))
    append = conversion.Journal.append

    def interrupted(self, *arguments):
        append(self, *arguments)
        if len(self.entries) == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(conversion.Journal, "append", interrupted)
        with pytest.raises(KeyboardInterrupt):
            convert(jobs=jobs)
    (choice,) = (tmp_path / "home").rglob("image-forms.json")
    if lost:
        choice.unlink()
    chosen = []
    choose = image_forms.choose_forms
    monkeypatch.setattr(image_forms, "choose_forms", lambda *given: chosen.append(given) or choose(*given))

    assert contents(convert(jobs=jobs)) == expected
    assert len(chosen) == lost
    assert not [*(tmp_path / "home").rglob("image-forms.json")]


def test_a_shard_that_compresses_badly_is_counted_and_correct(folder, convert):
    pixels = write(folder, [game(600), noise(30), game(10)])

    stored = convert()

    assert np.array_equal(stored.column(PIXELS), pixels)
    assert {one.rule: one.count for one in stored.manifest.decisions}["images-compress-badly"] == 1


def test_a_damaged_first_shard_is_reported_by_the_conversion(folder, convert):
    write(folder, [game(20)])
    data = bytearray((folder / "0.npz").read_bytes())
    data[len(data) // 2] ^= 0xFF
    (folder / "0.npz").write_bytes(data)

    with pytest.raises(ConversionError, match=r"0\.npz"):
        convert()


def test_a_form_that_is_stored_already_is_not_converted_again(folder, convert):
    write(folder, [game(600)])
    version = convert().folder

    assert convert(images="compressed").folder == version
    with pytest.raises(
        InvalidArgumentError, match=r"was downloaded with images=compressed, and images=raw was requested"
    ):
        convert(images="raw")
    assert form(convert(images="raw", force=True)) == "raw"
    assert form(convert()) == "raw"


def test_a_form_is_kept_for_images_that_are_added_later(folder, convert, tmp_path):
    write(folder, [game(600)])
    settings = Settings(home=tmp_path / "home", progress=False)
    downloading.download(ID, from_local=folder, settings=settings, selection=Selection(keys=("action",)))

    assert form(convert(images="raw")) == "raw"


def test_a_flipped_bit_of_a_compressed_image_is_found(folder, convert):
    write(folder, [game(600)])
    stored = convert()
    path = stored.folder / "observation.camera.npy"
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)

    assert verification.verify(stored.folder).problems


def test_the_size_of_each_form_is_known_before_a_download(tmp_path):
    settings = Settings(home=tmp_path, progress=False)
    name = "gen_dgrl/maze-25M"

    plan = planning.plan(name, settings=Settings(home=tmp_path, progress=False, offline=True))

    assert [*plan.choices] == ["images=compressed", "images=raw"]
    assert plan.stored_bytes == plan.choices["images=compressed"] < plan.choices["images=raw"] / 3
    chosen = Selection(options={"images": "raw"})
    assert planning.plan(name, settings=settings, selection=chosen).stored_bytes == plan.choices["images=raw"]


def test_the_command_says_how_images_are_stored(folder, tmp_path, capsys, monkeypatch):
    from datasets_rl.cli.app import main

    write(folder, [game(600)])
    monkeypatch.setenv("RLDS_HOME", str(tmp_path / "home"))

    assert main(["download", ID, "--from-local", str(folder)]) == 0
    assert "images of observation.camera: compressed without loss" in capsys.readouterr().err
    assert main(["info", ID]) == 0
    assert "compressed without loss" in capsys.readouterr().out
    assert main(["download", ID, "--from-local", str(folder), "--images", "raw", "--force", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["datasets"][0]["selection"] == {"options": {"images": "raw"}}

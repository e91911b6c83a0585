"""Datasets of compressed images: preprocessing gives what it gives for pixels, and keeps the bytes of unchanged images."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace

import gymnasium
import numpy as np
import pytest
import torch
from raw.images import encoded
from stored_data import Trajectory, columns, store_dataset

from datasets_rl import RecordEpisodes
from datasets_rl.errors import InvalidArgumentError, PreprocessError
from datasets_rl.format.check import check_rules
from datasets_rl.format.images import compressed as compressed_images
from datasets_rl.format.integrity import check_files
from datasets_rl.format.reader import StoredDataset
from datasets_rl.format.schema import Column
from datasets_rl.preprocessing import Function, Recipe, make, preprocess, preview
from datasets_rl.progress import Report
from datasets_rl.read.compressed_frames import FrameDictionary
from datasets_rl.ted.episode import EncodedImages

PIXELS = ("pixels",)
SHAPE = (64, 64)
LENGTHS = ((40, True), (1, False), (60, False), (30, True), (25, True), (90, False))
RAW = [Column(PIXELS, np.dtype("u1"), SHAPE, shared=True), *columns()]
COMPRESSED = [replace(column, form="compressed") if column.key == PIXELS else column for column in RAW]


def frames(count, seed):
    """Return a square that moves before a background, uint8 [count, 64, 64]."""
    images = np.repeat(np.random.default_rng(seed % 10).integers(0, 256, (1, *SHAPE), np.uint8), count, 0)
    for number, image in enumerate(images):
        at = (number * 3 + seed) % 56
        image[at : at + 8, at : at + 8] = (number + seed) % 256
    return images


def trajectories(seed=0):
    given = []
    for number, (steps, known) in enumerate(LENGTHS):
        last = (np.arange(steps) == steps - 1)[:, None]
        rng = np.random.default_rng(number + 100 * seed)
        given.append(
            Trajectory(
                {
                    ("action",): rng.normal(size=(steps, 2)).astype("f4"),
                    ("next", "reward"): rng.normal(size=(steps, 1)).astype("f4"),
                    ("next", "terminated"): last & known,
                    ("next", "truncated"): last & (not known),
                },
                {
                    ("observation",): rng.normal(size=(steps + known, 3)).astype("f4"),
                    PIXELS: frames(steps + known, seed + 10 * number),
                },
            )
        )
    return given


def dictionary(seed=0):
    return FrameDictionary.train(np.concatenate([one.states[PIXELS] for one in trajectories(seed)]), 1 << 14)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("home") / "toy"
    store_dataset(home / "raw", trajectories(), RAW)
    store_dataset(home / "compressed", trajectories(), COMPRESSED, {PIXELS: dictionary()})
    store_dataset(home / "other", trajectories(1), COMPRESSED, {PIXELS: dictionary(1)})
    return home


def strict(folder):
    stored = StoredDataset(folder)
    assert not check_files(stored.folder, Report())
    assert not check_rules(stored.schema, stored.episodes, stored.column).problems
    return stored


def assert_equal(stored, expected):
    assert stored.keys() == expected.keys()
    assert stored.episodes.lengths.tolist() == expected.episodes.lengths.tolist()
    for key in expected.keys():  # noqa: SIM118 - no mapping
        values, wanted = stored.column(key), expected.column(key)
        assert values.dtype == wanted.dtype, key
        assert np.array_equal(values, wanted, equal_nan=wanted.dtype.kind == "f"), key


def digests(stored):
    return {entry.path: entry.digest for entry in stored.manifest.files}


RECIPES = {
    "a filter": ["keep_lengths:30"],
    "a part of each episode": ["keep_steps:2:20"],
    "rewards": ["reward_scaling:scale=2"],
    "each second step": ["frame_skip:2"],
    "another name": ["rename:pixels,camera"],
    "smaller images": ["resize:48"],
    "stacks": ["cat_frames:3"],
    "a part of each image, beside it": ["crop:50,in_keys=pixels,out_keys=small"],
    "floats": ["to_tensor_image"],
    "a transform of other fields": ["step_counter:max_steps=7"],
    "targets of several steps": ["n_step_targets:3"],
}


@pytest.mark.first(4)
@pytest.mark.parametrize("steps", RECIPES.values(), ids=RECIPES)
def test_every_recipe_gives_the_values_that_it_gives_for_pixels(home, tmp_path, steps):
    results = [
        strict(preprocess(home / name, Recipe.inline(steps), out=tmp_path / "out" / name, jobs=1))
        for name in ("compressed", "raw")
    ]

    assert_equal(*results)
    forms = {field.key: field.form for field in results[0].schema}
    images = [field for field in results[1].schema if field.dtype == np.uint8]
    assert all(forms[field.key] == "compressed" for field in images)
    assert all(field.form == "raw" for field in results[1].schema)


@pytest.mark.usefixtures("warm_python")
@pytest.mark.parametrize("jobs", [1, 2])
def test_unchanged_images_are_copied_as_bytes(home, tmp_path, monkeypatch, jobs):
    monkeypatch.setattr(compressed_images, "decompress", None)
    recipe = Recipe.inline(["keep_lengths:30", "reward_scaling:scale=2", "rename:pixels,camera"])
    result = StoredDataset(
        preprocess(home / "compressed", recipe, out=tmp_path / "out" / "long", jobs=jobs, num_parts=4)
    )
    before = StoredDataset(home / "compressed")

    assert result.episodes.lengths.tolist() == [40, 60, 30, 90]
    data, ends = before.map("pixels.npy"), before.map("pixels.ends.npy")
    rows = [before.episodes.rows(number) for number in (0, 2, 3, 5)]
    wanted = b"".join(bytes(data[ends[one[0] - 1] if one[0] else 0 : ends[one[-1]]]) for one in rows)
    assert bytes(result.map("camera.npy")) == wanted
    assert result.dictionaries["camera",].data == before.dictionaries[PIXELS].data


@pytest.mark.usefixtures("warm_python")
def test_changed_images_have_one_dictionary_in_all_processes(home, tmp_path):
    recipe = Recipe.inline(["resize:48"])
    one, two = (
        strict(preprocess(home / "compressed", recipe, out=tmp_path / f"jobs{jobs}" / "small", jobs=jobs, num_parts=4))
        for jobs in (1, 2)
    )

    assert digests(one) == digests(two)
    assert one.dictionaries[PIXELS].data
    sizes = {entry.path: entry.bytes for entry in one.manifest.files}
    assert sizes["pixels.npy"] < len(one) * 48 * 48 / 4


def test_an_interrupted_build_continues_with_its_dictionary(home, tmp_path, monkeypatch):
    recipe = Recipe.inline(["resize:48"])
    whole = StoredDataset(preprocess(home / "compressed", recipe, out=tmp_path / "a" / "small", jobs=1, num_parts=4))
    calls = []
    train = FrameDictionary.train

    write = make.write_episodes

    def interrupted(*arguments):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return write(*arguments)

    monkeypatch.setattr(make, "write_episodes", interrupted)
    with pytest.raises(KeyboardInterrupt):
        preprocess(home / "compressed", recipe, out=tmp_path / "b" / "small", jobs=1, num_parts=4)
    # Another dictionary would be trained now, but the build has one.
    monkeypatch.setattr(FrameDictionary, "train", lambda images: train(images[:20]))
    result = strict(preprocess(home / "compressed", recipe, out=tmp_path / "b" / "small", jobs=1, num_parts=4))

    assert len(calls) == 4  # of 3 tasks, the last one twice
    assert digests(result) == digests(whole)


KILLED = """
import os, signal, sys
from pathlib import Path
from datasets_rl.build.journal import Journal
from datasets_rl.preprocessing import Recipe, preprocess

append, left = Journal.append, int(sys.argv[3])

def appended(*arguments, **named):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    append(*arguments, **named)

Journal.append = appended
recipe = Recipe.inline(["compress_images"])
preprocess(Path(sys.argv[1]), recipe, out=Path(sys.argv[2]), jobs=1, num_parts=8)
"""


@pytest.mark.slow
@pytest.mark.usefixtures("warm_python")
@pytest.mark.parametrize("commits", [0, 1, 2])
def test_a_killed_build_is_resumed_with_equal_bits(home, tmp_path, commits):
    recipe = Recipe.inline(["compress_images"])
    whole = StoredDataset(preprocess(home / "raw", recipe, out=tmp_path / "a" / "packed", jobs=1, num_parts=8))
    words = [sys.executable, "-c", KILLED, str(home / "raw"), str(tmp_path / "b" / "packed"), str(commits)]
    assert subprocess.run(words, check=False).returncode == -signal.SIGKILL
    result = strict(preprocess(home / "raw", recipe, out=tmp_path / "b" / "packed", jobs=1, num_parts=8))

    assert digests(result) == digests(whole)


@pytest.mark.parametrize("steps", [["compress_images"], ["compress_images:pixels"], ["compress_images:[pixels]"]])
def test_pixels_are_compressed_and_come_back_bit_for_bit(home, tmp_path, steps):
    raw = StoredDataset(home / "raw")
    packed = strict(preprocess(home / "raw", Recipe.inline(steps), out=tmp_path / "out" / "packed", jobs=1))
    back = Recipe.inline(["compress_images:form=raw"])
    unpacked = strict(preprocess(packed.folder.parent, back, out=tmp_path / "out" / "back", jobs=1))

    assert packed.schema[PIXELS].compressed
    assert not packed.schema["observation",].compressed
    assert packed.manifest.bytes < raw.manifest.bytes / 4 + (256 << 10)
    assert_equal(packed, raw)
    files = digests(unpacked)
    assert {name: files[name] for name in ("pixels.npy", "final.pixels.npy")} == {
        name: digests(raw)[name] for name in ("pixels.npy", "final.pixels.npy")
    }
    assert unpacked.schema[PIXELS].form == "raw"


def test_small_compressed_images_become_pixels_without_being_named(home, tmp_path):
    small = preprocess(home / "compressed", Recipe.inline(["resize:48"]), out=tmp_path / "out" / "small", jobs=1)
    raw = preprocess(small, Recipe.inline(["compress_images:form=raw"]), out=tmp_path / "out" / "raw", jobs=1)

    assert StoredDataset(small).schema[PIXELS].form == "compressed"
    assert strict(raw).schema[PIXELS].form == "raw"
    assert_equal(StoredDataset(raw), StoredDataset(small))


def test_a_dry_run_shows_the_bytes_of_compressed_images(home):
    expected = preview(home / "raw", Recipe.inline(["compress_images"]))
    kept = preview(home / "compressed", Recipe.inline(["keep_lengths:1"]))
    changed = preview(home / "compressed", Recipe.inline(["resize:56"]))

    for one in (expected, kept, changed):
        assert {column.key: column.form for column in one.columns}[PIXELS] == "compressed"
        assert one.bytes < len(StoredDataset(home / "raw")) * 4096 / 4 + (256 << 10)
    assert preview(home / "compressed", Recipe.inline(["compress_images:form=raw"])).bytes > 246 * 4096


def test_a_dry_run_counts_the_dictionary(home, tmp_path):
    recipe = Recipe.inline(["compress_images"])

    made = strict(preprocess(home / "raw", recipe, out=tmp_path / "out" / "small", jobs=1))

    assert preview(home / "raw", recipe).bytes == pytest.approx(made.manifest.bytes, rel=0.1)


class Pixels(gymnasium.Env):
    """An environment whose observations are images."""

    observation_space = gymnasium.spaces.Box(0, 255, SHAPE, np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, **_):
        self.images = iter(frames(30, 0))
        return next(self.images), {}

    def step(self, _action):
        return next(self.images), 1.0, False, False, {}


def test_images_are_compared_with_their_spec_without_a_warning(tmp_path, monkeypatch):
    monkeypatch.setenv("RLDS_HOME", str(tmp_path))
    with RecordEpisodes(gymnasium.wrappers.TimeLimit(Pixels(), 20), "local/pixels") as env:
        env.reset()
        for _ in range(20):
            env.step(0)
    torch.set_warn_always(True)  # torch warns once per process otherwise, perhaps in an earlier test
    try:
        preprocess("local/pixels", Recipe.inline(["reward_clipping:-1,1"]), out=tmp_path / "out" / "clipped", jobs=1)
    finally:
        torch.set_warn_always(False)


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ("compress_images:observation", r"observation is float32 \[3\], expected uint8 with at least one axis"),
        ("compress_images:form=video", "form is 'video', expected 'compressed' or 'encoded' or 'raw'"),
        ("compress_images:form=encoded", r"pixels has the shape \[64, 64\], expected images"),
        ("compress_images:quality=90", "quality is 90 with form=compressed"),
        ("compress_images:form=encoded,quality=0", "quality is 0 with form=encoded, expected 1 to 100"),
    ],
)
def test_what_cannot_be_compressed_is_refused(home, tmp_path, step, message):
    with pytest.raises((PreprocessError, InvalidArgumentError), match=message):
        preprocess(home / "raw", Recipe.inline([step]), out=tmp_path / "out" / "no", jobs=1)


def test_a_dataset_without_images_has_nothing_to_compress(home, tmp_path):
    with pytest.raises(PreprocessError, match="no field has images: uint8 with at least 4,096 bytes per step"):
        preprocess(home / "raw", Recipe.inline(["exclude:pixels", "compress_images"]), out=tmp_path / "o", jobs=1)


@pytest.mark.parametrize(
    "names", [("compressed", "other"), ("raw", "compressed"), ("other", "raw"), ("compressed", "raw", "other")]
)
def test_a_merge_of_other_forms_and_dictionaries_has_the_same_pixels(home, tmp_path, names):
    seeds = [1 if name == "other" else 0 for name in names]
    merged = strict(preprocess([home / name for name in names], Recipe([]), out=tmp_path / "out" / "both", jobs=1))
    images = np.concatenate(
        [one.states[PIXELS][: len(one)] for seed in seeds for one in trajectories(seed)],
    )

    assert merged.schema[PIXELS].compressed
    assert np.array_equal(merged.column(PIXELS), images)
    finals = merged.final_states(PIXELS)
    known = merged.episodes["final_known"]
    wanted = [
        one.states[PIXELS][-1] for seed in seeds for one in trajectories(seed) if len(one.states[PIXELS]) > len(one)
    ]
    assert np.array_equal(finals[np.flatnonzero(known)], wanted)
    assert not finals[np.flatnonzero(~known)].any()


def test_a_merge_of_equal_dictionaries_decompresses_nothing(home, tmp_path, monkeypatch):
    monkeypatch.setattr(compressed_images, "decompress", None)
    part = preprocess(home / "compressed", Recipe.inline(["keep_lengths:30"]), out=tmp_path / "out" / "part", jobs=1)
    merged = preprocess([home / "compressed", part], Recipe([]), out=tmp_path / "out" / "both", jobs=1)

    data = [bytes(StoredDataset(folder).map("pixels.npy")) for folder in (home / "compressed", part, merged)]
    assert data[0] + data[1] == data[2]


@pytest.fixture
def colored(tmp_path):
    """A dataset of images with three channels, and an unknown one."""
    given = [
        replace(one, states={**one.states, PIXELS: one.states[PIXELS][..., None].repeat(3, -1)})
        for one in trajectories()
    ]
    pixels = Column(PIXELS, np.dtype("u1"), (*SHAPE, 3), shared=True)
    store_dataset(tmp_path / "toy" / "colored", given, [pixels, *columns()])
    return tmp_path / "toy" / "colored"


@pytest.mark.slow
def test_pixels_and_compressed_images_can_be_encoded_without_loss(colored, tmp_path):
    packed = preprocess(colored, Recipe.inline(["compress_images"]), out=tmp_path / "o" / "z", jobs=1)
    for number, folder in enumerate((colored, packed)):
        encode = Recipe.inline(["compress_images:form=encoded"])
        png = strict(preprocess(folder, encode, out=tmp_path / "o" / f"png{number}", jobs=1))

        assert png.schema[PIXELS].form == "encoded"
        assert_equal(png, StoredDataset(colored))
        assert preview(folder, encode).bytes == pytest.approx(png.manifest.bytes, rel=0.2)


def test_images_encoded_as_jpeg_are_close_and_their_loss_is_named(colored, tmp_path):
    encode = Recipe.inline(["compress_images:form=encoded,quality=90"])
    jpeg = strict(preprocess(colored, encode, out=tmp_path / "o" / "jpeg", jobs=1))

    difference = jpeg.column(PIXELS).astype(int) - StoredDataset(colored).column(PIXELS)
    assert 0 < np.abs(difference).mean() < 8
    (loss,) = (text for name, text in jpeg.manifest.metadata.items() if name.endswith("loss"))
    assert loss == "pixels were encoded as JPEG of quality 90, which is lossy"
    assert jpeg.manifest.history[-1]["recipe"]["steps"][0]["quality"] == 90


def test_encoded_images_can_be_compressed_and_merged_with_compressed_ones(tmp_path):
    pixels = [one.states[PIXELS][..., None].repeat(3, -1) for one in trajectories()]
    given = [
        replace(one, states={**one.states, PIXELS: EncodedImages([encoded(image) for image in images])})
        for one, images in zip(trajectories(), pixels, strict=True)
    ]
    form = Column(PIXELS, np.dtype("u1"), (*SHAPE, 3), shared=True, form="encoded")
    store_dataset(tmp_path / "toy" / "png", given, [form, *columns()])
    packed = strict(
        preprocess(tmp_path / "toy" / "png", Recipe.inline(["compress_images"]), out=tmp_path / "o" / "z", jobs=1)
    )
    raw = Recipe.inline(["compress_images:form=raw"])
    unpacked = strict(preprocess(tmp_path / "toy" / "png", raw, out=tmp_path / "o" / "raw", jobs=1))

    folders = [tmp_path / "toy" / "png", packed.folder.parent]
    merges = [
        strict(preprocess(order, Recipe([]), out=tmp_path / "o" / name, jobs=1))
        for name, order in (("first", folders), ("last", folders[::-1]))
    ]

    wanted = np.concatenate([images[: len(one)] for one, images in zip(trajectories(), pixels, strict=True)])
    for merged in merges:
        assert merged.schema[PIXELS].compressed
        assert np.array_equal(merged.column(PIXELS), np.concatenate([wanted, wanted]))
    assert (packed.schema[PIXELS].form, unpacked.schema[PIXELS].form) == ("compressed", "raw")
    assert np.array_equal(packed.column(PIXELS), wanted)
    assert np.array_equal(unpacked.column(PIXELS), wanted)


def invert(steps):
    return steps.set("pixels", 255 - steps["pixels"]).set(("next", "pixels"), 255 - steps["next", "pixels"])


def invert_now(steps):
    return steps.set("pixels", 255 - steps["pixels"])


@pytest.mark.parametrize("fn", [invert, invert_now])
@pytest.mark.parametrize("per", ["batch", "episode"])
def test_functions_change_compressed_images(home, tmp_path, fn, per):
    results = [
        strict(preprocess(home / name, Recipe([Function(fn, per)]), out=tmp_path / "out" / name, jobs=1))
        for name in ("compressed", "raw")
    ]

    assert_equal(*results)
    assert all(field.compressed for field in results[0].schema if field.dtype == np.uint8)


def test_a_damaged_image_is_reported_with_its_episode_where_it_is_decompressed(tmp_path):
    store_dataset(tmp_path / "toy" / "mine", trajectories(), COMPRESSED, {PIXELS: dictionary()})
    stored = StoredDataset(tmp_path / "toy" / "mine")
    ends = np.array(stored.map("pixels.ends.npy"))
    data = np.load(stored.folder / "pixels.npy", mmap_mode="r+")
    data[ends[49] : ends[50]] ^= 255
    data.flush()

    with pytest.raises(PreprocessError, match=r"episode 2, .*frame 50 is damaged"):
        preprocess(tmp_path / "toy" / "mine", Recipe.inline(["resize:8"]), out=tmp_path / "o" / "small", jobs=1)
    assert preprocess(
        tmp_path / "toy" / "mine", Recipe.inline(["reward_scaling:scale=2"]), out=tmp_path / "o" / "copy", jobs=1
    )

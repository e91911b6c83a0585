"""Compressed images: a dataset of them reads like one of raw pixels, in every way and bit for bit."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import zstandard
from stored_data import Trajectory, columns, plain, write_dataset

from datasets_rl.errors import IntegrityError, InvalidArgumentError
from datasets_rl.format.images import compressed as compressed_images
from datasets_rl.format.images.compressed import CompressedImageColumn
from datasets_rl.format.integrity import check_files
from datasets_rl.format.reader import StoredDataset
from datasets_rl.format.schema import Column, Schema
from datasets_rl.format.writer import DatasetWriter
from datasets_rl.progress import Report
from datasets_rl.read.compressed_frames import FrameDictionary
from datasets_rl.storages import DatasetStorage, dataset
from datasets_rl.ted.episode import DeferredStates, Episode

U1 = np.dtype(np.uint8)
FRAME, CAMERA = ("frame",), ("camera",)
SHAPES = {FRAME: (84, 84), CAMERA: (48, 32, 3)}
RAW = [Column(FRAME, U1, SHAPES[FRAME], shared=True), Column(CAMERA, U1, SHAPES[CAMERA])]
RAW += [one for one in columns() if one.key != ("observation",)]
COMPRESSED = [replace(one, form="compressed") if one.key in SHAPES else one for one in RAW]
LENGTHS = ((400, True), (1, False), (60, False), (300, True))
"""Number of steps of each episode, and whether its final frame is known."""


def images(shape, count, seed):
    """Return a square that moves before a background, uint8 [count, *shape]."""
    back = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    found = np.repeat(back[None], count, 0)
    for number, image in enumerate(found):
        at = (number * 3 + seed) % (shape[1] - 4)
        image[at : at + 4, at : at + 4] = (number + seed) % 256
    return found


def episode(number, steps, known):
    last = (np.arange(steps) == steps - 1)[:, None]
    return Trajectory(
        {
            ("action",): np.full((steps, 2), number + 1, np.float32),
            ("next", "reward"): np.ones((steps, 1), np.float32),
            ("next", "terminated"): last,
            ("next", "truncated"): np.zeros_like(last),
            CAMERA: images(SHAPES[CAMERA], steps, number),
        },
        {FRAME: images(SHAPES[FRAME], steps + known, number * 7)},
        cuts=(2, 200) if steps > 200 else (),
    )


@pytest.fixture(scope="module")
def episodes():
    return [episode(number, *one) for number, one in enumerate(LENGTHS)]


@pytest.fixture(scope="module")
def dictionaries(episodes):
    frames = {FRAME: episodes[0].states[FRAME], CAMERA: episodes[0].steps[CAMERA]}
    return {key: FrameDictionary.train(values, 1 << 15) for key, values in frames.items()}


@pytest.fixture(scope="module")
def raw(episodes, tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("raw"), episodes, RAW)


@pytest.fixture(scope="module")
def stored(episodes, dictionaries, tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("compressed"), episodes, COMPRESSED, dictionaries)


def test_the_files_are_small_and_listed_with_the_dictionary(stored, raw):
    sizes = {entry.path: entry.bytes for entry in stored.manifest.files}
    pixels = {entry.path: entry.bytes for entry in raw.manifest.files}

    assert sizes["frame.npy"] < pixels["frame.npy"] / 15
    assert 1 << 15 < sizes["frame.dictionary"] <= FrameDictionary.max_bytes(84 * 84)
    assert {"frame.ends.npy", "final.frame.npy", "final.frame.ends.npy", "camera.dictionary"} <= sizes.keys()
    assert StoredDataset(stored.folder).manifest.schema == stored.schema
    assert check_files(stored.folder, Report()) == []


@pytest.fixture
def mixed(tmp_path):
    """Compressed frames, of which some differ from the others in most of their pixels; and the raw ones."""
    states = np.concatenate([images((84, 84), 200, 0), ~images((84, 84), 201, 0)])
    states[::7] = np.random.default_rng(1).integers(0, 2, (58, 84, 84), np.uint8)
    steps = episode(0, 400, known=True).steps
    trajectory = Trajectory(steps, {FRAME: states})
    dictionary = {key: FrameDictionary.train(values) for key, values in ((FRAME, states), (CAMERA, steps[CAMERA]))}
    return write_dataset(tmp_path, [trajectory], COMPRESSED, dictionary), states


def format_lines():
    """Return the program in FORMAT.md that reads a compressed image."""
    text = (Path(compressed_images.__file__).parents[1] / "FORMAT.md").read_text("utf-8")
    section = text[text.index("**Compressed images.**") :]
    return section[section.index("```python") + 9 :].partition("```")[0]


def test_the_program_of_the_format_reads_any_image_with_no_other_package_than_zstandard(mixed, monkeypatch):
    stored, states = mixed
    monkeypatch.chdir(stored.folder)
    program = {}
    exec(format_lines().replace("observation.", "frame."), program)
    first_bytes = {int(program["data"][start]) for start in [0, *program["ends"][:-1].tolist()]}

    assert 0x28 in first_bytes
    assert len(first_bytes) > 2
    for row in range(400):
        assert np.array_equal(program["image"](row), states[row])


def test_every_column_equals_that_of_raw_pixels(stored, raw):
    assert stored.keys() == raw.keys()
    for key in raw.keys():  # noqa: SIM118 - no mapping
        assert np.array_equal(stored.column(key), raw.column(key)), key
        assert np.array_equal(stored.column(key, 399, 463), raw.column(key, 399, 463)), key
        assert stored.column(key, 5, 5).shape == raw.column(key, 5, 5).shape


@pytest.mark.parametrize("count", [0, 1, 7, 600])
@pytest.mark.parametrize("cache", [0, 1 << 20])
def test_every_batch_equals_that_of_raw_pixels(stored, raw, count, cache):
    rows = torch.randint(-len(raw), len(raw), (count,), generator=torch.manual_seed(count))
    rows[: count // 4] = torch.tensor([399, 400, 460])[rows[: count // 4] % 3]  # the ends of episodes
    compressed, wanted = DatasetStorage(stored, image_cache=cache), DatasetStorage(raw)

    for _ in range(2):
        got, expected = plain(compressed.get(rows)), plain(wanted.get(rows))
        assert got.keys() == expected.keys()
        for key, values in expected.items():
            assert np.array_equal(got[key], values), key
    for key in raw.keys():  # noqa: SIM118 - no mapping
        assert torch.equal(compressed.pick(key, rows % len(raw)), wanted.pick(key, rows % len(raw))), key
        assert torch.equal(compressed.column(key), wanted.column(key)), key


def test_a_writer_that_continues_and_partial_datasets_give_the_same_bytes(episodes, dictionaries, stored, tmp_path):
    files = {entry.path: entry.digest for entry in stored.manifest.files}
    (tmp_path / "continued").mkdir()
    writer = DatasetWriter(tmp_path / "continued", COMPRESSED, name="toy/data", dictionaries=dictionaries)
    commits = []
    for one in episodes[:3]:
        for piece in one.pieces():
            writer.append(piece)
        commits.append(writer.commit())
    writer.append(next(episodes[3].pieces()))  # lost
    writer.discard()
    writer = DatasetWriter(tmp_path / "continued", COMPRESSED, name="toy/data", commits=commits)
    for piece in episodes[3].pieces():
        writer.append(piece)
    assert {entry.path: entry.digest for entry in writer.finish().files} == files

    (tmp_path / "joined").mkdir()
    whole = DatasetWriter(tmp_path / "joined", COMPRESSED, name="toy/data", dictionaries=dictionaries)
    for number, one in enumerate(episodes):
        folder = tmp_path / f"part-{number}"
        folder.mkdir()
        part = DatasetWriter(folder, COMPRESSED, name="toy/data", dictionaries=dictionaries)
        for piece in one.pieces():
            part.append(piece)
        commit = part.commit(sync=False)
        part.discard()
        whole.append_partial(folder, commit)
    assert {entry.path: entry.digest for entry in whole.finish().files} == files


@pytest.mark.parametrize("content", ["noise", "zeros"])
def test_a_deferred_frame_takes_its_place_whatever_its_size(episodes, dictionaries, tmp_path, content):
    frames = episodes[2].states[FRAME].copy()
    late = np.random.default_rng(3).integers(0, 256, (1, 84, 84), np.uint8) if content == "noise" else frames[:1] * 0
    writer = DatasetWriter(tmp_path, COMPRESSED, name="toy/data", dictionaries=dictionaries)
    for piece in episodes[0].pieces():
        writer.append(piece)
    steps = episodes[2].steps
    writer.append(
        Episode(
            {key: values[:1] for key, values in steps.items()}, {FRAME: frames[:1] * 0}, continues=True, deferred=True
        )
    )
    writer.append(Episode({key: values[1:] for key, values in steps.items()}, {FRAME: frames[1:]}))
    writer.patch(DeferredStates({FRAME: late}, rows_ago=60))
    summary = writer.finish()
    frames[0] = late[0]

    ends = np.load(tmp_path / "frame.ends.npy")
    data = np.load(tmp_path / "frame.npy")
    reader = zstandard.ZstdDecompressor(
        dict_data=zstandard.ZstdCompressionDict(dictionaries[FRAME].without_patches.data[24:])
    )
    patched = np.frombuffer(reader.decompress(data[ends[399] : ends[400]].tobytes()), np.uint8)  # it has no patch
    assert np.array_equal(patched.reshape(84, 84), frames[0])
    assert summary.steps == 460
    column = CompressedImageColumn(data, ends, (84, 84), tmp_path / "frame.npy", dictionaries[FRAME])
    assert np.array_equal(column[400:460], frames)


@pytest.mark.parametrize("file", ["frame.npy", "frame.ends.npy", "final.frame.npy", "frame.dictionary"])
def test_a_flipped_byte_of_any_file_is_found(episodes, dictionaries, tmp_path, file):
    write_dataset(tmp_path, episodes[1:3], COMPRESSED, dictionaries)
    content = bytearray((tmp_path / file).read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / file).write_bytes(content)

    assert any(file in problem for problem in check_files(tmp_path, Report()))


def test_damaged_images_are_named_with_their_rows(episodes, dictionaries, tmp_path):
    stored = write_dataset(tmp_path, episodes[1:3], COMPRESSED, dictionaries)
    ends = np.load(tmp_path / "frame.ends.npy")
    data = np.load(tmp_path / "frame.npy")
    data[ends[11]] ^= 255
    np.save(tmp_path / "frame.npy", data)
    with pytest.raises(IntegrityError, match="frame 12 is damaged: the result is not 7,056 bytes that were compressed"):
        DatasetStorage(StoredDataset(stored.folder)).get(torch.arange(20))


def test_a_dictionary_of_another_size_or_none_is_refused_when_the_dataset_is_opened(episodes, dictionaries, tmp_path):
    stored = write_dataset(tmp_path, episodes[1:3], COMPRESSED, dictionaries)
    (tmp_path / "frame.dictionary").unlink()
    with pytest.raises(IntegrityError, match=r"frame\.dictionary is missing"):
        StoredDataset(stored.folder)


def test_a_file_that_is_no_dictionary_is_named(episodes, dictionaries, tmp_path):
    stored = write_dataset(tmp_path, episodes[1:3], COMPRESSED, dictionaries)
    content = (tmp_path / "frame.dictionary").read_bytes()
    (tmp_path / "frame.dictionary").write_bytes(b"\xff" * 8 + content[8:])
    with pytest.raises(IntegrityError, match=r"frame\.dictionary: the dictionary of compressed frames has .* expected"):
        StoredDataset(stored.folder).column(FRAME)


def test_only_bytes_can_be_compressed():
    with pytest.raises(InvalidArgumentError, match=r"frame is compressed, <f4 in frame\.npy"):
        Schema.layout([Column(FRAME, np.dtype("f4"), (84, 84), form="compressed")])


def test_an_unknown_form_in_a_manifest_is_refused():
    entry = {**Schema.layout(COMPRESSED)[FRAME].to_json(), "form": ["video"]}
    with pytest.raises(InvalidArgumentError, match=r"schema\[0\].form is .*, expected nothing, encoded or compressed"):
        Schema.from_json([entry])


def test_rows_may_be_read_only(stored, raw):
    rows = np.array([3, 9, 3])
    rows.flags.writeable = False
    assert np.array_equal(stored.items(FRAME)[rows], raw.items(FRAME)[rows])


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="the system does not show how files are mapped")
def test_the_system_reads_single_pages_of_files_larger_than_half_of_the_memory(stored, monkeypatch):
    def advised():
        """Return which files of the dataset are mapped for random reads."""
        name, names = "", set()
        for line in Path("/proc/self/smaps").read_text().splitlines():
            name = line.rpartition("/")[2] if str(stored.folder) in line else "" if "-" in line.split()[0] else name
            names |= {name} if line.startswith("VmFlags") and " rr" in line else set()
        return names - {""}

    small = DatasetStorage(StoredDataset(stored.folder))
    assert advised() == set()
    monkeypatch.setattr(dataset, "memory_bytes", lambda: 2 * stored.manifest.bytes - 1)
    large = DatasetStorage(StoredDataset(stored.folder))
    assert advised() == {"rows.npy", "frame.npy", "frame.ends.npy", "camera.npy", "camera.ends.npy"}
    assert torch.equal(small.get([3])[FRAME], large.get([3])[FRAME])

"""Gen-DGRL: frames of the next level, two address schemes, archives of all games, and two file formats."""

from __future__ import annotations

import io
import lzma
import tarfile
from dataclasses import replace

import numpy as np
import pytest
from oracles import comparison
from raw.gen_dgrl import EXPERT, LEVELS, as_npy, game, play, tarred, written
from raw.xz import blocked
from servers import serve

from datasets_rl import GenDGRLExperienceReplay, Selection, downloading
from datasets_rl.build.conversion import converted_bytes
from datasets_rl.downloading import planning
from datasets_rl.errors import InvalidArgumentError, UnknownIdError
from datasets_rl.format.reader import StoredDataset
from datasets_rl.settings import Settings
from datasets_rl.sources import find, gen_dgrl, get_source
from datasets_rl.sources.gen_dgrl.reader import GenDGRLReader

NAME = "gen_dgrl/bigfish-1M_E"
SECOND = "1M/expert/bigfish.tar.xz"
XML = b'<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>'


@pytest.fixture
def settings(tmp_path, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setattr(gen_dgrl, "_SHARD_STEPS", 250_000)
    return Settings(home=tmp_path / "home", progress=False, retries=0, jobs=1)


@pytest.fixture
def convert(tmp_path, settings):
    """A function that writes an archive to a path of the upstream, and converts it."""

    def run(data, path=EXPERT, name=NAME, **selection):
        place = tmp_path / "tree" / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
        wanted = Selection(**selection)
        return StoredDataset(
            downloading.download(name, from_local=tmp_path / "tree", settings=settings, selection=wanted, force=True)
        )

    return run


def packed(levels, suffix="npy", folder="bigfish"):
    return lzma.compress(tarred(written(levels, folder, suffix)), preset=0)


def decided(stored):
    return {one.rule: one.count for one in stored.manifest.decisions}


def test_an_archive_of_the_current_folder_is_the_same_dataset(convert):
    """``tar -cJf bigfish.tar.xz .`` packs the folder ``./`` first, and ``./`` before every name."""
    levels = game([3, 5])
    root = tarfile.TarInfo("./")
    root.type = tarfile.DIRTYPE
    files = tarred({f"./{name}": data for name, data in written(levels, "bigfish").items()})
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        tar.addfile(root)

    stored = convert(lzma.compress(out.getvalue()[:512] + files))
    assert stored.episodes.lengths.tolist() == [3, 5]
    assert comparison.deep_problems(stored.folder) == []


def test_a_file_without_a_step_is_left_out_and_counted(convert):
    files = written(game([3, 5]), "bigfish")
    first = next(iter(files))
    parts = first.split("_")
    parts[-3] = "0"

    stored = convert(lzma.compress(tarred({"_".join(parts): b"", **files})))
    assert stored.episodes.lengths.tolist() == [3, 5]
    assert decided(stored)["no-transition"] == 1
    assert comparison.deep_problems(stored.folder) == []


def test_the_frame_of_the_next_level_is_not_a_state_of_this_one(convert):
    levels = game([3, 5])

    stored = convert(packed(levels))

    assert len(stored) == 8
    assert stored.episodes["final_known"].tolist() == [False, False]
    following = stored.column(("next", "observation"))
    assert not following[[2, 7]].any()
    assert np.array_equal(following[:2], levels[0].frames[1:3])
    assert np.array_equal(following[3:7], levels[1].frames[1:5])
    for level in levels:
        assert not (stored.column(("observation",)) == level.frames[-1]).all(axis=(1, 2, 3)).any()
    assert decided(stored) == {"alien-last-frame": 2, "terminated": 2, "frames-cast": 2}


def test_the_metadata_in_file_names_is_kept(convert):
    levels = game([3, 5], first=12)

    table = convert(packed(levels)).episodes

    assert table["number"].tolist() == [12, 13]
    assert table["level_seed"].tolist() == [level.seed for level in levels]
    assert table["saved"].tolist() == [20220607010212, 20220607010213]
    assert np.allclose(table["stated_return"], table["return"], atol=0.01)


def test_both_file_formats_give_the_same_dataset(convert):
    """The format is detected from the bytes: the second archive has pickles with the suffix .npz."""
    levels = game([3, 250])
    renamed = {name.replace(".npy", ".npz"): data for name, data in written(levels, "bigfish").items()}

    digests = [
        [(file.path, file.digest) for file in convert(data).manifest.files]
        for data in (packed(levels, "npz"), packed(levels), lzma.compress(tarred(renamed), preset=0))
    ]

    assert digests[0] == digests[1] == digests[2]


def test_a_long_episode_is_read_in_pieces_that_join(convert):
    level = play(400, 0)

    stored = convert(packed([level], "npz"))

    assert stored.episodes.lengths.tolist() == [400]
    assert np.array_equal(stored.column(("observation",)), level.frames[:-1])


@pytest.mark.parametrize("rows", [170, 171, 340])
def test_an_episode_that_ends_with_a_block_is_complete(convert, rows):
    """The excluded frame may be alone in the last block. A block has 170 frames."""
    stored = convert(packed([play(rows, 0), play(2, 1)], "npz"))

    assert stored.episodes.lengths.tolist() == [rows, 2]


def test_numeric_flags_and_uint8_frames_are_accepted(convert):
    """The dtype of the flags varies between files of the upstream."""
    level = play(4, 0)
    ends = (np.arange(4) == 3).astype(np.float32)

    stored = convert(packed([replace(level, changes={"dones": ends, "observations": level.frames})]))

    assert stored.column(("next", "terminated"))[:, 0].tolist() == [False, False, False, True]
    assert decided(stored) == {"alien-last-frame": 1, "terminated": 1, "flags-cast": 1}


def test_an_archive_of_many_blocks_is_read_in_parts(convert):
    """The values are the same; compressed images are others, because the dictionary is trained on the first part."""
    levels = game([3, 9, 1, 4, 7, 2, 8, 5])
    whole = convert(packed(levels))
    wanted = {field.key: whole.column(field.key)[:] for field in whole.schema}

    stored = convert(blocked(tarred(written(levels, "bigfish")), 200_000))

    assert all(np.array_equal(stored.column(key)[:], values) for key, values in wanted.items())
    assert stored.episodes["number"].tolist() == list(range(8))


def test_only_the_files_of_the_game_are_read_from_the_archive_of_all_games(convert):
    """At its own path, and under the path of the first scheme for the archive of a game."""
    levels = game([3, 5])
    files = {"maze/no episode.npy": b"?", **written(levels, "heist"), **written(game([9]), "ninja")}

    for path in (LEVELS, "Procgen/Datasets/Compressed/100k/level_1/expert/heist.tar.xz"):
        stored = convert(tarred(files), path, "gen_dgrl/heist-level_1_E")
        assert stored.episodes.lengths.tolist() == [3, 5]
        assert comparison.deep_problems(stored.folder) == []


@pytest.mark.parametrize("first", [None, XML], ids=["missing", "an error"])
def test_the_second_scheme_is_tried_if_the_first_has_no_file(settings, monkeypatch, first):
    """The server may send an error page with status 200, which is detected by its first bytes."""
    levels = game([3, 5])
    paths = {f"/{SECOND}": packed(levels)} | ({f"/{EXPERT}": first} if first else {})
    with serve(paths) as server:
        catalog = {**get_source("gen_dgrl").catalog, "base": f"{server.url}/"}
        monkeypatch.setitem(get_source("gen_dgrl").__dict__, "catalog", catalog)
        stored = StoredDataset(downloading.download(NAME, settings=settings))

    assert len(stored) == 8
    assert [one.url for one in stored.manifest.raw] == [f"{server.url}/{SECOND}"]
    assert {one.path for one in server.requests} == {f"/{EXPERT}", f"/{SECOND}"}


def test_mirrors_are_tried_with_both_schemes(settings):
    with serve({f"/{SECOND}": packed(game([3]))}) as server:
        stored = StoredDataset(downloading.download(NAME, settings=settings, mirrors=[server.url]))

    assert [one.url for one in stored.manifest.raw] == [f"{server.url}/{SECOND}"]


def test_a_user_file_may_have_any_name(tmp_path, settings):
    (tmp_path / "fish.xz").write_bytes(packed(game([3])))

    assert len(StoredDataset(downloading.download(NAME, from_local=tmp_path / "fish.xz", settings=settings))) == 3


def test_some_episodes_can_be_a_separate_dataset(convert):
    levels = game([3, 5, 2, 4])

    stored = convert(packed(levels), episodes="1,3")

    assert stored.episodes["number"].tolist() == [1, 3]
    assert np.array_equal(stored.column(("action",))[:5, 0], levels[1].action)
    assert comparison.deep_problems(stored.folder) == []
    with pytest.raises(InvalidArgumentError, match="count from the start"):
        convert(packed(levels), episodes="-1:")


def test_fields_without_frames_can_be_a_separate_dataset(convert):
    stored = convert(packed(game([3, 5])), keys=("action",))

    assert {field.name for field in stored.schema} == {
        "action",
        "next.reward",
        "next.terminated",
        "next.truncated",
        "next.done",
        "episode",
    }
    assert comparison.deep_problems(stored.folder) == []


def test_a_batch_has_the_keys_of_torchrl(convert):
    folder = convert(packed(game([30, 20]))).folder

    dataset = GenDGRLExperienceReplay("bigfish-1M_E", 16, root=folder.parents[1], download=False)
    batch = dataset.sample()

    assert batch["observation"].shape == batch["next", "observation"].shape == (16, 3, 64, 64)
    assert batch["action"].shape == batch["next", "reward"].shape == batch["next", "done"].shape == (16, 1)
    assert len(dataset) == 50
    assert dataset.specs["action"].high.item() == 14


def test_the_ids_and_their_metadata():
    ids = get_source("gen_dgrl").ids()

    assert len(ids) == 16 * 8
    assert "starpilot-level_40_S" in ids
    assert any("although one of its addresses says expert" in fault for fault in find("gen_dgrl/maze-25M").known_issues)
    assert all("although" not in fault for fault in find("gen_dgrl/maze-10M").known_issues)
    assert find(NAME).license.startswith("CC-BY-NC-4.0")
    (asset,) = get_source("gen_dgrl").assets("maze-level_1_S")
    assert [url.removeprefix("https://dl.fbaipublicfiles.com/DGRL/") for url in asset.urls] == [
        "Procgen/Datasets/Compressed/100k/level_1/suboptimal/maze.tar.xz",
        "100k_procgen_dataset_1_suboptimal.tar",
    ]
    with pytest.raises(UnknownIdError) as caught:
        find("gen_dgrl/bigfish-1M_F")
    assert "gen_dgrl/bigfish-1M_E" in caught.value.nearest


def test_reading_a_pickle_takes_at_most_twice_its_size(tmp_path):
    """A pickle has the frames of an episode as a single array, which cannot be read in parts."""
    import tracemalloc

    from datasets_rl.read.pickles import load_npy

    data = as_npy(play(400, 0))
    path = tmp_path / "x.npy"
    path.write_bytes(data)
    tracemalloc.start()
    load_npy(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert len(data) > 19_000_000
    assert peak < 2.6 * len(data)


def test_the_stored_size_is_estimated_from_the_steps_in_the_name(tmp_path, settings):
    place = tmp_path / "tree" / EXPERT
    place.parent.mkdir(parents=True)
    place.write_bytes(packed(game([3])))

    def told(**selection):
        wanted = Selection(**selection)
        return planning.plan(NAME, from_local=tmp_path / "tree", settings=settings, selection=wanted).stored_bytes

    raw = told(options={"images": "raw"})
    assert raw == pytest.approx(converted_bytes(GenDGRLReader.columns, 1_000_000), rel=0.01)
    assert told() == pytest.approx(raw / 4, rel=0.01)
    assert told(keys=("action",)) < raw / 100
    assert told(episodes="0:3") < told()

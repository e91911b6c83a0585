"""Minari datasets, written by Minari, compared with the values that it was given."""

from __future__ import annotations

import io
import json
import shutil

import gymnasium
import h5py
import numpy as np
import pytest
from oracles import comparison
from PIL import Image
from raw.minari import SPACES, episodes, flat, write
from servers import serve
from upstreams import COMMIT, bucket, hub

from datasets_rl import MinariExperienceReplay, Selection, downloading, verification
from datasets_rl.downloading import planning
from datasets_rl.errors import (
    ConversionError,
    FetchError,
    IntegrityError,
    InvalidArgumentError,
    OfflineError,
    UnknownIdError,
)
from datasets_rl.format.check import check_rules
from datasets_rl.format.reader import StoredDataset
from datasets_rl.settings import Settings
from datasets_rl.sources import find, minari
from datasets_rl.sources.minari.spaces import leaf_spaces, spec_document
from datasets_rl.specs import from_minari
from datasets_rl.ted.table import EpisodeTable

NAME = "test/things/drawn-v3"
ID = f"minari/{NAME}"
FORMATS = ("hdf5", "arrow", "parquet")


@pytest.fixture
def settings(tmp_path, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.delenv("MINARI_REMOTE", raising=False)
    return Settings(home=tmp_path / "home", progress=False, retries=0)


@pytest.fixture
def convert(tmp_path, settings):
    """A function that converts a dataset of Minari's cache at ``tmp_path / "cache"``."""

    def run(**options):
        return StoredDataset(
            downloading.download(ID, from_local=tmp_path / "cache" / NAME, settings=settings, **options)
        )

    return run


@pytest.fixture
def put(tmp_path):
    """A function that lets Minari write episodes into the cache."""

    def run(given, **options):
        return write(tmp_path / "cache", NAME, given, **{"space": SPACES["box"], **options})

    return run


def meets(stored, given, *, jpeg=()):
    """Compare every value with the given value. JPEG images may differ slightly."""
    observations = [flat(one.observations) for one in given]
    actions = [flat(one.actions) for one in given]
    for key in observations[0]:
        now = [value for one in observations for value in one[key][:-1]]
        following = [value for one in observations for value in one[key][1:]]
        same(stored, ("observation", *key), now, lossy=key in jpeg)
        same(stored, ("next", "observation", *key), following, lossy=key in jpeg)
    for key in actions[0]:
        same(stored, ("action", *key), [value for one in actions for value in one[key]])
    for name, key in (("rewards", "reward"), ("terminations", "terminated"), ("truncations", "truncated")):
        values = [value for one in given for value in getattr(one, name)]
        assert stored.column(("next", key))[:, 0].tolist() == values
    assert stored.episodes.lengths.tolist() == [len(one) for one in given]
    assert stored.episodes["final_known"].all()


def same(stored, key, wanted, *, lossy=False):
    got = stored.column(key)
    if isinstance(wanted[0], str):
        texts = stored.texts(key)
        assert [texts[number] for number in got] == wanted
    elif lossy:
        assert np.abs(got.astype(int) - np.asarray(wanted, int)).max() <= 3
    else:
        assert np.array_equal(got, np.asarray(wanted))
        assert got.dtype == np.asarray(wanted[0]).dtype or np.asarray(wanted[0]).dtype.kind == "i"


@pytest.mark.first(10)
@pytest.mark.parametrize("data_format", FORMATS)
@pytest.mark.parametrize("kind", SPACES)
def test_values_of_every_space_are_read_from_every_format(put, convert, kind, data_format):
    given = episodes(SPACES[kind])
    put(given, space=SPACES[kind], data_format=data_format)

    stored = convert()

    jpeg = {"image": ((),), "grey": (("frame",),)}.get(kind, ())
    meets(stored, given, jpeg=jpeg)
    assert check_rules(stored.schema, stored.episodes, stored.column).problems == []
    assert comparison.deep_problems(stored.folder) == []


@pytest.mark.first(2, of="kind")
@pytest.mark.parametrize("data_format", FORMATS)
@pytest.mark.parametrize("kind", ["discrete", "multi_discrete", "multi_binary", "dict", "tuple"])
def test_actions_of_every_space_are_read(put, convert, kind, data_format):
    given = episodes(SPACES["box"], action=SPACES[kind])
    put(given, action=SPACES[kind], data_format=data_format)

    meets(convert(), given)


def test_the_members_of_a_tuple_have_their_names_in_the_files(put, convert):
    put(episodes(SPACES["tuple"]), space=SPACES["tuple"], data_format="arrow")

    assert {key for key in [*convert().keys()] if key[0] == "observation"} == {
        ("observation", "_index_0"),
        ("observation", "_index_1"),
    }


def test_spaces_become_specs(put, convert):
    put(episodes(SPACES["discrete"]), space=SPACES["discrete"])

    specs = convert().manifest.specs
    assert specs["observation"] == {"kind": "bounded", "shape": [], "dtype": "int64", "low": -2, "high": 4}
    assert specs["action"] == {"kind": "bounded", "shape": [3], "dtype": "float32", "low": -1.0, "high": 1.0}


BOUNDS = {
    **SPACES,
    "half": gymnasium.spaces.Box(np.array([-np.inf, 0.0], "f4"), np.array([1.0, np.inf], "f4")),
    "free": gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float32),
    "rows": gymnasium.spaces.Box(np.array([[0, 0], [1, 1]]), np.array([[5, 6], [5, 6]]), dtype=np.int64),
    "starts": gymnasium.spaces.MultiDiscrete([3, 4], start=[1, -1]),
    "grid": gymnasium.spaces.MultiDiscrete([[3, 4], [5, 6]]),
    "bits": gymnasium.spaces.MultiBinary([2, 3]),
}


@pytest.mark.parametrize("kind", BOUNDS)
def test_specs_have_the_documents_of_the_spec_classes(kind):
    """The reader writes the documents without torch: the import takes longer than most conversions."""
    written = pytest.importorskip("minari.serialization", reason="pip install minari, with Python 3.11")
    for leaf in leaf_spaces(json.loads(written.serialize_space(BOUNDS[kind]))):
        if leaf.space_type != "Text":
            assert spec_document(leaf) == from_minari(leaf.space).to_json()


@pytest.mark.parametrize("data_format", FORMATS)
def test_images_are_read_by_their_stored_dtype_and_not_by_the_metadata(put, convert, data_format):
    given = episodes(SPACES["image"])
    folder = put(given, space=SPACES["image"], data_format=data_format, jpeg=False)
    text = (folder / "data" / "metadata.json").read_text()
    for said in ('"jpeg_encoding": true', '"something": 1'):
        (folder / "data" / "metadata.json").write_text(text.replace('"jpeg_encoding": false', said))

        stored = convert(force=True)

        meets(stored, given)
        assert "jpeg" not in {one.rule for one in stored.manifest.decisions}


def test_jpeg_images_of_different_and_of_equal_lengths_are_read(put, convert):
    """Minari writes a variable-length dataset for the former and a fixed-size dataset for the latter."""
    dice = np.random.default_rng(0)
    smooth = [np.full((36, 40, 3), 90, np.uint8)] * 3
    noisy = [*smooth[:2], dice.integers(0, 255, (36, 40, 3), np.uint8)]
    given = episodes(SPACES["image"], lengths=(2, 2))
    for one, frames in zip(given, (smooth, noisy), strict=True):
        one.observations[:] = frames
    folder = put(given, space=SPACES["image"])
    with h5py.File(folder / "data" / "main_data.hdf5") as file:
        kinds = [file[f"episode_{number}/observations"].dtype.kind for number in range(2)]

    stored = convert()

    assert kinds == ["u", "O"]
    assert stored.schema[("observation",)].form == "encoded"
    assert stored.map("observation.npy")[:3].tobytes() == b"\xff\xd8\xff"
    assert np.abs(stored.column(("observation",))[:2].astype(int) - np.array(smooth[:2])).max() <= 3
    assert np.unique(stored.column(("next", "observation"))[3]).size > 50


def test_symbols_damaged_by_jpeg_are_read_and_reported(put, convert):
    """Minari 0.5.3 wrote grids of 7 x 7 symbols as JPEG, which changes them."""
    given = episodes(SPACES["text"], lengths=(3,))
    folder = put(given, space=SPACES["text"], minari_version="0.5.3")
    with h5py.File(folder / "data" / "main_data.hdf5", "a") as file:
        group = file["episode_0/observations"]
        frames = [_jpeg(frame) for frame in group["view"][()]]
        del group["view"]
        group.create_dataset("view", data=frames, dtype=h5py.vlen_dtype(np.uint8))

    stored = convert()

    rules = {one.rule: one.count for one in stored.manifest.decisions}
    assert rules["jpeg-of-symbols"] == 4
    assert stored.column(("observation", "view")).shape == (3, 7, 7, 3)


def _jpeg(frame):
    buffer = io.BytesIO()
    Image.fromarray(frame).save(buffer, format="JPEG")
    return np.frombuffer(buffer.getvalue(), np.uint8)


def infos(length, dice):
    return {"success": dice.random(length + 1) > 0.5, "deep": {"qpos": dice.normal(size=(length + 1, 4))}}


@pytest.mark.parametrize("data_format", FORMATS)
def test_infos_with_a_row_for_the_reset_are_states(put, convert, data_format):
    given = episodes(SPACES["box"], infos=infos)
    put(given, data_format=data_format)

    stored = convert()

    qpos = np.concatenate([one.infos["deep"]["qpos"][:-1] for one in given])
    after = np.concatenate([one.infos["deep"]["qpos"][1:] for one in given])
    assert np.array_equal(stored.column(("info", "deep", "qpos")), qpos)
    assert np.array_equal(stored.column(("next", "info", "deep", "qpos")), after)
    assert comparison.deep_problems(stored.folder) == []


def test_infos_without_a_row_for_the_reset_follow_their_actions(put, convert):
    """Row t belongs to the state after action t; the info before the first action is unknown."""
    given = episodes(SPACES["box"], infos=lambda length, dice: {"x": dice.normal(size=(length, 2)) + 5})
    put(given)

    stored = convert()

    following = np.concatenate([one.infos["x"] for one in given])
    now = np.concatenate([np.concatenate([np.zeros((1, 2)), one.infos["x"][:-1]]) for one in given])
    assert np.array_equal(stored.column(("next", "info", "x")), following)
    assert np.array_equal(stored.column(("info", "x")), now)
    assert {one.rule: one.count for one in stored.manifest.decisions}["info-without-reset"] == 3
    assert comparison.deep_problems(stored.folder) == []


@pytest.mark.parametrize("data_format", FORMATS)
def test_seeds_keep_all_their_bits(put, convert, data_format):
    put(episodes(SPACES["box"], lengths=(2, 3, 2), seeds=[7, 2**64 - 1, None]), data_format=data_format)

    table = convert().episodes

    assert table["seed"].tolist() == [7, 2**64 - 1, 0]
    assert table["seed"].dtype == np.uint64
    assert table["seeded"].tolist() == [True, True, False]


def test_episode_10_comes_after_episode_9(put, convert):
    given = episodes(SPACES["box"], lengths=[1] * 12)
    put(given)

    stored = convert()

    assert stored.episodes["source"].tolist() == list(range(12))
    meets(stored, given)


def test_the_environment_spec_is_kept_as_text_and_not_imported(put, convert):
    put(episodes(SPACES["box"]), env_spec='{"entry_point": "os:abort"}', ref_min_score=1.5, ref_max_score=9.0)

    metadata = convert().manifest.metadata

    assert metadata["env_spec"] == '{"entry_point": "os:abort"}'
    assert (metadata["author"], metadata["algorithm_name"]) == ("nobody", "a drawn policy")
    assert (metadata["ref_min_score"], metadata["ref_max_score"]) == (1.5, 9.0)


def test_a_missing_space_is_not_taken_from_an_environment(put, convert):
    given = episodes(SPACES["box"])
    put(given, observation_space=None, env_spec='{"entry_point": "os:abort"}')

    stored = convert()

    meets(stored, given)
    assert "space-missing" in {one.rule for one in stored.manifest.decisions}


def test_an_unknown_version_is_read_and_reported(put, convert):
    put(episodes(SPACES["box"]), minari_version="9.9.9")

    assert "unknown-minari-version" in {one.rule for one in convert().manifest.decisions}


@pytest.mark.parametrize("version", ["0.4.0", "0.4.3", "0.5.0", "0.5.4"])
def test_known_versions_are_not_reported(put, convert, version):
    put(episodes(SPACES["box"]), minari_version=version)

    assert {one.rule for one in convert().manifest.decisions} == {"minari-n-plus-one"}


def test_before_0_5_the_metadata_is_in_the_file(put, convert):
    given = episodes(SPACES["box"])
    folder = put(given)
    known = json.loads((folder / "data" / "metadata.json").read_text())
    with h5py.File(folder / "data" / "main_data.hdf5", "a") as file:
        for name in ("observation_space", "action_space", "total_episodes", "total_steps", "dataset_id"):
            file.attrs[name] = known[name]
        file.attrs.update({"author": "a; b", "minari_version": "0.4.3"})
    (folder / "data" / "metadata.json").unlink()

    stored = convert()

    meets(stored, given)
    assert stored.manifest.metadata["author"] == "a; b"
    assert stored.manifest.specs["action"]["high"] == 1.0


def test_an_episode_without_a_flag_at_its_end_is_truncated(put, convert):
    given = episodes(SPACES["box"], lengths=(3,))
    given[0].terminations[-1] = False
    put(given)

    stored = convert()

    assert stored.column(("next", "truncated"))[:, 0].tolist() == [False, False, True]
    assert "end-without-flag" in {one.rule for one in stored.manifest.decisions}


def test_a_flag_inside_an_episode_ends_a_trajectory(put, convert):
    given = episodes(SPACES["box"], lengths=(5,))
    given[0].truncations[1] = True
    put(given)

    stored = convert()

    assert stored.episodes.lengths.tolist() == [2, 3]
    assert stored.episodes["source"].tolist() == [0, 0]
    states = np.asarray(given[0].observations)
    assert np.array_equal(stored.column(("next", "observation")), states[1:])
    assert comparison.deep_problems(stored.folder) == []


def broken(folder, change):
    path = folder / "data" / "main_data.hdf5"
    with h5py.File(path, "a") as file:
        change(file)


def _replace(file, name, data):
    del file[name]
    file.create_dataset(name, data=data)


@pytest.mark.parametrize("number", [0, 1])
def test_an_episode_without_a_step_is_left_out_and_counted(put, convert, number):
    """It has only the observation of its reset."""
    given = episodes(SPACES["box"], lengths=(3, 3, 2))
    folder = put(given)

    def empty(file):
        group = file[f"episode_{number}"]
        for name in ("actions", "rewards", "terminations", "truncations"):
            _replace(group, name, group[name][:0])
        _replace(group, "observations", group["observations"][:1])
        group.attrs["total_steps"] = 0
        if "infos" in group:
            del group["infos"]

    broken(folder, empty)
    known = json.loads((folder / "data" / "metadata.json").read_text())
    known["total_steps"] -= 3
    (folder / "data" / "metadata.json").write_text(json.dumps(known))

    stored = convert()
    assert stored.episodes["source"].tolist() == [one for one in range(3) if one != number]
    assert stored.episodes.lengths.tolist() == [3, 2]
    assert {one.rule: one.count for one in stored.manifest.decisions}["no-transition"] == 1
    assert comparison.deep_problems(stored.folder) == []


def _objects(file, name, items):
    del file[name]
    dataset = file.create_dataset(name, len(items), h5py.vlen_dtype(items[0].dtype))
    for row, item in enumerate(items):
        dataset[row] = item


BREAKS = {
    "a missing episode": (lambda file: file.move("episode_1", "episode_7"), "episode 1: HDF5 reports"),
    "too few observations": (
        lambda file: _replace(file, "episode_1/observations", np.zeros((1, 5))),
        r"episode 1: observation has 1 rows for 1 steps",
    ),
    "other lengths": (lambda file: _replace(file, "episode_0/actions", np.zeros((9, 3), "f4")), "action has 9 rows"),
    "infos of another length": (
        lambda file: file.create_dataset("episode_0/infos/x", data=np.zeros(9)),
        r"info.x has 9 rows for 4 steps",
    ),
    "a column that others lack": (
        lambda file: file.create_dataset("episode_2/infos/x", data=np.zeros(8)),
        "episode 2: it has 6 members, in the first episode 5",
    ),
    "declared steps": (
        lambda file: file["episode_2"].attrs.modify("total_steps", 9),
        "it has 7 steps, but the metadata states 9",
    ),
    "objects": (
        lambda file: _objects(file, "episode_0/actions", [np.ones(2, "f4")] * 4),
        "has values of type object, expected numbers, strings or JPEG",
    ),
    "bytes that are not an image": (
        lambda file: _objects(file, "episode_0/observations", [np.arange(9, dtype="u1")] * 5),
        "expected a JPEG image",
    ),
    "flags that are numbers": (
        lambda file: _replace(file, "episode_0/terminations", np.array([0, 0, 0, 2])),
        "numbers other than 0 and 1",
    ),
    "another shape": (
        lambda file: _replace(file, "episode_2/actions", np.zeros((7, 4), "f4")),
        r"action is float32 \[4\], in the first episode float32 \[3\]",
    ),
    "no rewards": (lambda file: file.__delitem__("episode_0/rewards"), "episode 0: it has no next.reward"),
}


@pytest.mark.parametrize("name", BREAKS)
def test_an_inconsistent_file_is_refused_with_the_position(put, convert, name, tmp_path):
    change, message = BREAKS[name]
    broken(put(episodes(SPACES["box"])), change)

    with pytest.raises(ConversionError, match=message):
        convert()
    assert not (tmp_path / "home" / "minari" / NAME).exists()


@pytest.mark.parametrize(
    "link",
    [h5py.ExternalLink("other.hdf5", "/episode_0"), h5py.ExternalLink("/gone/main_data.hdf5", "/episode_0")],
    ids=["to another file", "to a file that is missing"],
)
@pytest.mark.parametrize("place", ["episode_1", "episode_0/observations", "episode_1/observations/position"])
def test_links_are_not_followed(put, convert, link, place, tmp_path):
    """Where the target is missing, HDF5 opens a file of the same name in the folder of the link: this file itself."""
    folder = put(episodes(SPACES["dict"]), space=SPACES["dict"])
    shutil.copyfile(folder / "data" / "main_data.hdf5", folder / "data" / "other.hdf5")

    def change(file):
        del file[place]
        file[place] = link if place == "episode_1" else h5py.ExternalLink(link.filename, f"/{place}")

    broken(folder, change)

    with pytest.raises(ConversionError, match=rf"{place[:7]} {place[8]}: .* is a link, expected the data itself"):
        convert()
    assert not (tmp_path / "home" / "minari" / NAME).exists()


@pytest.mark.parametrize("data_format", FORMATS)
def test_datasets_that_minari_combined_are_read(tmp_path, convert, monkeypatch, data_format):
    """Minari copies the episodes, renumbers them, and loses their seeds."""
    library = pytest.importorskip("minari", reason="pip install minari, with Python 3.11")
    parts = [episodes(SPACES["text"], (3, 2), seed=seed, seeds=(1, 2)) for seed in range(2)]
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "cache"))
    names = ("test/first-v0", "test/second-v0")
    for name, given in zip(names, parts, strict=True):
        write(tmp_path / "cache", name, given, space=SPACES["text"], data_format=data_format)
    (tmp_path / "cache" / "test" / "things").mkdir()
    library.combine_datasets([library.load_dataset(name) for name in names], NAME)

    stored = convert()

    meets(stored, [*parts[0], *parts[1]])
    assert stored.episodes["source"].tolist() == [0, 1, 2, 3]
    assert not stored.episodes["seeded"].any()
    assert stored.manifest.metadata["combined_datasets"] == "test/first-v0; test/second-v0"


def test_a_dataset_that_declares_more_than_it_stores_is_refused_before_reading(put, convert):
    def change(file):
        del file["episode_0/actions"]
        file.create_dataset("episode_0/actions", (4, 1 << 34), "f4", chunks=(4, 1 << 10))

    broken(put(episodes(SPACES["box"])), change)

    with pytest.raises(ConversionError, match=r"declares \[4, 17179869184\]"):
        convert()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"total_steps": 13}, "the files have 12 steps, expected 13 as the upstream states"),
        ({"total_episodes": 0}, "total_episodes is 0, expected an integer >= 1"),
        ({"total_episodes": 10**15}, "total_episodes is 1000000000000000, expected at most 10,000,000"),
        ({"total_steps": "many"}, "total_steps is 'many'"),
        ({"data_format": "zarr"}, "data_format is 'zarr', expected hdf5, arrow or parquet"),
        ({"dataset_id": "other/x-v0"}, "dataset_id is 'other/x-v0'"),
        ({"observation_space": '{"type": "Custom"}'}, "observation_space is of type 'Custom'"),
        ({"action_space": "{"}, "action_space is not valid JSON"),
    ],
    ids=lambda value: "" if isinstance(value, str) else "-".join(value),
)
def test_metadata_that_contradicts_the_files_is_refused(put, convert, change, message):
    path = put(episodes(SPACES["box"])) / "data" / "metadata.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))

    with pytest.raises(ConversionError, match=message):
        convert()


@pytest.mark.parametrize("data_format", ["arrow", "parquet"])
def test_a_table_that_is_missing_or_cut_is_refused(put, convert, data_format):
    folder = put(episodes(SPACES["box"]), data_format=data_format)
    table = next((folder / "data" / "1").glob(f"*.{data_format}"))
    table.write_bytes(table.read_bytes()[:-40])
    with pytest.raises(ConversionError, match=r"episode 1: .* cannot be read"):
        convert()

    table.unlink()
    with pytest.raises(ConversionError, match=f"episode 1 has 0 {data_format} files"):
        convert()


@pytest.mark.parametrize(
    "name", ["../x-v0", "a/../b-v0", "a//b-v0", "a/b", "/a-v0", "a\\b-v0", "a b-v0", "a-v", "ü/x-v0", "a/.hidden-v0"]
)
def test_ids_that_minari_cannot_have_are_refused(name):
    with pytest.raises(UnknownIdError):
        minari.SOURCE.entry(name)


def test_a_dataset_in_the_cache_of_minari_is_not_downloaded(put, settings, tmp_path, monkeypatch, capsys):
    given = episodes(SPACES["dict"])
    put(given, space=SPACES["dict"], data_format="arrow")
    cache = tmp_path / "cache"
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(cache))
    with serve({}) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        stored = StoredDataset(downloading.download(ID, settings=settings))
        assert server.requests == []
        assert f"{ID} is read in place from {cache / NAME}" in capsys.readouterr().err

        # A copy that lacks an episode is no copy. What is stored stays, whatever becomes of the cache.
        shutil.rmtree(next(path for path in (cache / NAME / "data").iterdir() if path.is_dir()))
        assert downloading.download(ID, settings=settings) == stored.folder.parent
        with pytest.raises(FetchError):
            downloading.download(ID, settings=settings, root=tmp_path / "other")
        assert server.requests

    meets(stored, given)
    assert all((cache / NAME / "data").is_dir() for _ in stored.manifest.raw)


def test_the_catalog_has_every_id_of_the_scripts_and_of_programs_in_public_use():
    ids = minari.SOURCE.ids()

    assert len(ids) == 281
    assert sum(name.startswith("atari/") for name in ids) == 57
    assert {"mujoco/humanoid/expert-v0", "minigrid/BabyAI-BossLevel/optimal-fullobs-v0"} <= {*ids}
    entry = find("minari/atari/breakout/expert-v0")
    assert (entry.environment, entry.action.n, entry.score.low, entry.score.high) == ("ALE/Breakout-v5", 4, 1.7, 30.5)
    assert all(find(f"minari/{name}").observation and find(f"minari/{name}").action for name in ids)


def test_ids_outside_of_the_catalog_are_accepted_in_the_form_of_minari():
    assert find("minari/atari/breakout/expert-v0").id == "minari/atari/breakout/expert-v0"
    assert find("minari/D4RL/door/human-v2").title
    assert "D4RL/door/human-v2" in MinariExperienceReplay.available_datasets


def test_a_dataset_of_the_hub_is_of_one_commit(put, settings, tmp_path, monkeypatch):
    given = episodes(SPACES["dict"])
    put(given, space=SPACES["dict"], data_format="arrow")
    with hub({"farama-minari/test": tmp_path / "cache" / "test"}) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        stored = StoredDataset(downloading.download(ID, settings=settings))

    meets(stored, given)
    assert stored.manifest.revision == COMMIT
    assert all(f"@{COMMIT}/" in file.url for file in stored.manifest.raw)
    assert len(stored.manifest.raw) == 7
    assert {file.checked for file in stored.manifest.raw} == {"catalog", "recorded"}
    assert [*(tmp_path / "home" / "minari" / ".raw").rglob("*.arrow")] == []


def test_a_revision_is_fetched_from_the_hub_and_neither_from_the_cache_nor_a_bucket(
    put, settings, tmp_path, monkeypatch
):
    put(given := episodes(SPACES["box"]))
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "cache"))
    with hub({"farama-minari/test": tmp_path / "cache" / "test"}) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        one = Selection(options={"revision": COMMIT})
        stored = StoredDataset(downloading.download(ID, settings=settings, selection=one))
        other = Selection(options={"revision": "absent"})
        with pytest.raises(FetchError):
            downloading.download(ID, settings=settings, selection=other, root=tmp_path / "other")
    monkeypatch.setenv("MINARI_REMOTE", "gcp://minari-remote")
    with pytest.raises(InvalidArgumentError, match="MINARI_REMOTE is a bucket, which has no revisions"):
        downloading.download(ID, settings=settings, selection=one, root=tmp_path / "third")
    with pytest.raises(InvalidArgumentError, match="revision is 'a/b', expected a name without '/'"):
        minari.SOURCE.check(Selection(options={"revision": "a/b"}))

    meets(stored, given)
    assert stored.manifest.revision == COMMIT
    assert all(file.url.startswith("hf://") and f"@{COMMIT}/" in file.url for file in stored.manifest.raw)


def test_datasets_missing_from_the_hub_are_downloaded_from_the_bucket(put, settings, tmp_path, monkeypatch):
    given = episodes(SPACES["box"])
    put(given)
    with hub({"nobody/nothing": tmp_path}) as first, bucket({"minari-remote": tmp_path / "cache"}) as second:
        monkeypatch.setenv("HF_ENDPOINT", first.url)
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", second.url)
        stored = StoredDataset(downloading.download(ID, settings=settings))

    meets(stored, given)
    assert all("#1700000000000001" in file.url for file in stored.manifest.raw)
    assert {file.checked for file in stored.manifest.raw} == {"catalog"}


def test_only_a_given_remote_is_requested(put, settings, tmp_path, monkeypatch):
    put(episodes(SPACES["box"]))
    with bucket({"mine": tmp_path / "cache"}) as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        monkeypatch.setenv("MINARI_REMOTE", "gcp://mine")
        assert downloading.download(ID, settings=settings).is_dir()
    monkeypatch.setenv("MINARI_REMOTE", "ftp://mine")
    with pytest.raises(
        InvalidArgumentError, match="MINARI_REMOTE is 'ftp://mine', expected hf://AUTHOR or gcp://BUCKET"
    ):
        downloading.download(ID, force=True, settings=settings)


def _other(values):
    """Return the values with the last value changed."""
    changed = np.array(values)
    last = changed.reshape(-1)[-1:]
    last[:] = (
        "else"
        if changed.dtype == object
        else ~last
        if changed.dtype == bool
        else last ^ 1
        if changed.dtype.kind in "iu"
        else last + 1
    )
    return changed


@pytest.mark.first(2)
@pytest.mark.parametrize(
    ("kind", "data_format"),
    [
        pytest.param(kind, data_format, marks=() if data_format == FORMATS[0] or kind == "dict" else pytest.mark.slow)
        for kind in ("text", "image", "grey", "tuple", "dict")
        for data_format in FORMATS
    ],
)
def test_the_comparison_with_the_raw_files_covers_every_value(put, convert, kind, data_format, monkeypatch):
    """Text, pixels of JPEG images, and members of nested spaces, in blocks of rows up to the last row."""
    monkeypatch.setattr("oracles.minari._BLOCK_BYTES", 100)
    put(episodes(SPACES[kind], infos=infos), space=SPACES[kind], data_format=data_format)
    stored = convert()
    files = comparison.raw_files_of(stored)
    honest = comparison.column_of(stored)
    left_out = {("episode",), ("next", "done"), ("next", "truncated")}  # the conversion computes or corrects them
    keys = [field.key for field in stored.schema if field.key not in left_out]
    keys += [("next", *field.key) for field in stored.schema if field.shared]

    assert comparison.compare(f"minari/{NAME}", files, honest, stored.episodes) == []
    for wrong in keys:
        found = comparison.compare(
            f"minari/{NAME}",
            files,
            lambda key, start, stop, wrong=wrong: (
                _other(honest(key, start, stop)) if key == wrong else honest(key, start, stop)
            ),
            stored.episodes,
        )
        assert " at row " in found[0], wrong


@pytest.mark.first(2)
@pytest.mark.parametrize("data_format", FORMATS)
@pytest.mark.parametrize("name", ["seed", "seeded", "source"])
def test_the_comparison_with_the_raw_files_covers_the_seeds(put, convert, data_format, name):
    put(episodes(SPACES["box"], seeds=[5, None, 2**63]), data_format=data_format)
    stored = convert()
    files = comparison.raw_files_of(stored)
    records = stored.episodes.records.copy()
    assert comparison.compare(f"minari/{NAME}", files, stored.column, stored.episodes) == []
    records[name][-1] = 0 if name == "seeded" else 99

    (problem, *_) = comparison.compare(f"minari/{NAME}", files, stored.column, EpisodeTable(records))
    assert problem.startswith("source of episode" if name == "source" else "seeded and seed of episode")


@pytest.fixture
def published(put, tmp_path):
    """Two namespaces, the second without a list, a dataset in its own repository, and a name that is not an id."""
    cache = tmp_path / "cache"
    put(episodes(SPACES["box"]))
    write(cache, "alone-v1", episodes(SPACES["box"]), space=SPACES["box"])
    (cache / "test" / "namespace_metadata.json").write_text(json.dumps({"datasets": [NAME, "test/new-v7", "../x-v0"]}))
    (cache / "notes").mkdir()
    (cache / "notes" / "README.md").write_text("no namespace")
    return cache


def test_the_namespaces_of_the_hub_name_its_datasets(published, settings, monkeypatch):
    repositories = {f"farama-minari/{name}": published / name for name in ("test", "alone-v1", "notes")}
    with hub({**repositories, "others/test": published / "test"}) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        found = planning.list_upstream_ids("minari", settings=settings)

    assert found == ["alone-v1", "test/new-v7", NAME]
    assert sum(request.path.startswith("/api/datasets?") for request in server.requests) == 3


def test_the_folders_of_the_bucket_are_datasets(published, settings, monkeypatch):
    with bucket({"mine": published}) as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        monkeypatch.setenv("MINARI_REMOTE", "gcp://mine")
        assert planning.list_upstream_ids("minari", settings=settings) == ["alone-v1", NAME]


def test_upstreams_without_a_list_are_reported(settings, tmp_path, monkeypatch):
    with hub({"nobody/nothing": tmp_path}) as first, bucket({"minari-remote": tmp_path}, listable=False) as second:
        first.paths = {}
        monkeypatch.setenv("HF_ENDPOINT", first.url)
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", second.url)
        with pytest.raises(FetchError, match="the list of the repositories of farama-minari"):
            planning.list_upstream_ids("minari", settings=settings)
    with pytest.raises(OfflineError):
        planning.list_upstream_ids("minari", settings=Settings(home=tmp_path, offline=True))
    assert [*planning.list_upstream_ids("demo", settings=settings)] == ["pendulum"]


def test_offline_errors_name_the_alternatives(tmp_path):
    offline = Settings(home=tmp_path, offline=True, progress=False)
    with pytest.raises(OfflineError, match=r"from_local=\.\.\."):
        downloading.download(ID, settings=offline)


def test_a_refusing_remote_is_reported_with_its_reason(settings, tmp_path, monkeypatch):
    with hub({"nobody/nothing": tmp_path}) as first, bucket({"minari-remote": tmp_path}, listable=False) as second:
        monkeypatch.setenv("HF_ENDPOINT", first.url)
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", second.url)
        with pytest.raises(FetchError, match=r"status 404.*status 403"):
            downloading.download(ID, settings=settings)


def test_bytes_that_differ_from_the_list_of_the_hub_are_refused(put, settings, tmp_path, monkeypatch):
    folder = put(episodes(SPACES["box"]))
    with hub({"farama-minari/test": tmp_path / "cache" / "test"}) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("MINARI_REMOTE", "hf://farama-minari")
        (behaviour,) = server.paths.values()
        path = "things/drawn-v3/data/main_data.hdf5"
        behaviour.replaced[path] = _File(folder / "data" / "main_data.hdf5")
        with pytest.raises(IntegrityError, match="sha256"):
            downloading.download(ID, settings=settings)


class _File:
    """A file with a flipped bit."""

    def __init__(self, path):
        from servers import File

        body = bytearray(path.read_bytes())
        body[-1] ^= 1
        self.answer = File(bytes(body)).answer


def test_the_cache_of_minari_is_read_in_place(put, tmp_path, monkeypatch):
    given = episodes(SPACES["box"])
    folder = put(given)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "cache"))
    monkeypatch.setenv("RLDS_OFFLINE", "1")
    before = sorted(path.stat().st_mtime_ns for path in folder.rglob("*"))

    dataset = MinariExperienceReplay(NAME, 4, root=tmp_path / "store", load_from_local_minari=True)

    meets(dataset.stored, given)
    assert sorted(path.stat().st_mtime_ns for path in folder.rglob("*")) == before
    assert all(file.url.startswith("file:") for file in dataset.manifest.raw)
    assert verification.verify(dataset.data_path, deep=True).checked[-1].startswith("every converted value")


def test_a_batch_is_strict_ted_with_nested_fields(put, settings, tmp_path):
    put(episodes(SPACES["text"]), space=SPACES["text"])
    downloading.download(ID, root=tmp_path / "store", from_local=tmp_path / "cache" / NAME, settings=settings)

    dataset = MinariExperienceReplay(NAME, 6, root=tmp_path / "store", download=False)
    batch = dataset.sample()

    assert batch["observation", "view"].shape == (6, 7, 7, 3)
    texts = dataset.texts("observation.mission")
    assert {texts[number] for number in batch["next", "observation", "mission"].tolist()} <= set(texts[1:])
    assert not batch["done"].any()


@pytest.mark.parametrize("data_format", FORMATS)
def test_some_episodes_can_be_a_separate_dataset(put, convert, data_format):
    given = episodes(SPACES["box"], lengths=(4, 1, 7, 2))
    put(given, data_format=data_format)

    stored = convert(selection=Selection(episodes="1:3"))

    meets(stored, given[1:3])
    assert stored.episodes["source"].tolist() == [1, 2]
    assert stored.manifest.selection == {"episodes": "1:3"}
    assert len(convert(as_stored=True)) == len(convert(selection=Selection(episodes="1:3"))) == 8
    assert convert(selection=Selection(episodes="3")).episodes["source"].tolist() == [1, 2, 3]
    assert len(convert()) == 14


def test_only_the_files_of_the_selected_episodes_are_fetched(put, settings, tmp_path, monkeypatch):
    put(episodes(SPACES["box"], lengths=(4, 1, 7, 2)), data_format="parquet")
    with hub({"farama-minari/test": tmp_path / "cache" / "test"}) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        plan = planning.plan(ID, selection=Selection(episodes="2"), settings=settings)
        downloading.download(ID, selection=Selection(episodes="2"), settings=settings)

    fetched = {request.path.split("/data/")[1] for request in server.requests if "/resolve/" in request.path}
    assert {path.split("/")[0] for path in fetched} == {"metadata.json", "2"}
    assert plan.wire_bytes == sum(asset.size for asset in plan.assets)
    assert len(plan.assets) == 3


def test_some_fields_can_be_a_separate_dataset(put, convert):
    given = episodes(SPACES["dict"], infos=infos)
    put(given, space=SPACES["dict"])

    stored = convert(selection=Selection(keys=("observation.goal", "action")))

    assert {field.name for field in stored.schema} == {
        "observation.goal.place",
        "observation.goal.kind",
        "action",
        "next.reward",
        "next.terminated",
        "next.truncated",
        "next.done",
        "episode",
    }
    assert comparison.deep_problems(stored.folder) == []

"""Datasets at any address: their layout is recognized from their files, and they are read as by the source of the layout."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from servers import NoRange, Status, serve
from upstreams import hub

from datasets_rl import Selection, downloading, load, sources, store, verify
from datasets_rl.cli.app import main
from datasets_rl.downloading.planning import plan
from datasets_rl.errors import (
    ConversionError,
    FetchError,
    InvalidArgumentError,
    NotADatasetError,
    UnknownIdError,
)
from datasets_rl.fetch.upstream import Upstream
from datasets_rl.format.reader import StoredDataset
from datasets_rl.settings import Settings
from datasets_rl.sources.address import address_of_name, hub_address, id_of_address
from datasets_rl.sources.address_files import AddressFiles
from datasets_rl.sources.recognition import recognizing_sources

PLACES = {
    "d4rl": "",
    "dsrl": "",
    "exorl": "walker/rnd.zip",
    "katakomba": "",
    "lerobot": "me/arm_old",
    "local": "lab/gripper",
    "minari": "test/things/drawn-v3",
    "neorl": "v2/HalfCheetah-v3",
    "og_marl": "core/smac_v1/3m.zip",
    "ogbench": "scene-play-v0.npz",
    "openx": "cmu_stretch",
    "rl_unplugged": "dm_control_suite_episodes/finger_turn_hard",
    "robomimic": "",
    "roboset": "FK1-v4(expert)/FK1_MicroOpenRandom_v2d-v4",
    "torchrl": "lab/rollouts",
    "vd4rl": "vd4rl/main/walker_walk/random/64px",
}
"""Where the files of the first case of a source are, below the folder that it writes."""
EVIDENCE = {
    "d4rl": "has observations, actions, rewards and terminals, of 20 rows each",
    "dsrl": "has observations, actions, rewards, terminals and costs, of 20 rows each",
    "exorl": "an episode in rnd.zip has observation, action, reward and discount, and the name has a number and the steps",
    "katakomba": "has tty_chars, tty_colors, tty_cursor, actions, rewards and dones",
    "lerobot": "meta/info.json has features, and codebase_version v2.1",
    "local": "it has dataset.toml",
    "minari": "data/metadata.json has total_episodes and total_steps of minari 0.5.4",
    "neorl": "train-noise.npz has obs, next_obs, action, reward and done, of 36 rows each",
    "og_marl": "3m.zip has the vaults Good, Poor",
    "ogbench": "scene-play-v0.npz has observations, actions and terminals, of 28 rows each",
    "openx": "0.1.0/features.json has steps, and 0.1.0/dataset_info.json is beside it",
    "rl_unplugged": "the first record of train-00000-of-00004 has observation/..., action, reward and discount",
    "robomimic": "lift/ph/low_dim_v15.hdf5 has the group data/demo_0",
    "roboset": "seed0_trace.h5 has the group Trial0",
    "torchrl": "rollout_0/meta.json describes the .memmap files beside it (2 such folders)",
    "vd4rl": "has image, action, reward, is_first and is_last, of which image has images",
}

OPTIONS = {"og_marl": {"vault": "Good"}}
"""What the address of the first case of a source does not say."""


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("RLDS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NO_PROXY", "*")
    return tmp_path / "home"


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Any:
    """Return a function that writes the files of a source, and returns their folder or file."""
    made: dict[str, Path] = {}

    def write(source: str) -> Path:
        if source not in made:
            folder = tmp_path_factory.mktemp(source)
            importlib.import_module(f"raw.{source}").CASES[0].write(folder)
            made[source] = folder / PLACES[source] if PLACES[source] else folder
        return made[source]

    return write


def write_flat(path: Path, **arrays: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        for name, values in arrays.items():
            file[name] = values
    return path


def flat(rows: int = 6) -> dict[str, Any]:
    draw = np.random.default_rng(0)
    ends = np.arange(rows) % 3 == 2
    return {
        "observations": draw.normal(size=(rows, 3)).astype(np.float32),
        "actions": draw.normal(size=(rows, 2)).astype(np.float32),
        "rewards": np.arange(rows, dtype=np.float32),
        "terminals": ends,
        "timeouts": np.zeros(rows, bool),
    }


def stored(folder: Path) -> StoredDataset:
    return StoredDataset(store.version_folder(folder))


def digests(folder: Path) -> dict[str, str]:
    return {file.path: file.digest for file in stored(folder).manifest.files}


def test_every_source_that_recognizes_files_has_a_case():
    found = {source.name for source in recognizing_sources()}
    missing = sorted(found - {*PLACES, "hf"} | PLACES.keys() - EVIDENCE.keys())

    assert not missing, f"add {missing[0]} to PLACES and EVIDENCE of {__name__}"
    assert found == {*PLACES, "hf"}


@pytest.mark.first(3)
@pytest.mark.parametrize("source", PLACES)
def test_a_path_is_read_as_by_the_source_whose_layout_it_has(written, source, tmp_path):
    path = written(source)
    case = importlib.import_module(f"raw.{source}").CASES[0]

    folder = downloading.download(str(path), selection=Selection(options=OPTIONS.get(source, {})))

    manifest = load(str(path)).manifest
    assert manifest.metadata["layout"] == source
    assert manifest.metadata["layout_evidence"].endswith(EVIDENCE[source])
    assert manifest.id == f"url/file{str(path).replace('(', '%28').replace(')', '%29')}"
    if source != "ogbench":  # that of the case has the rewards of a task, which only an id names
        (tmp_path / "of the id").mkdir()
        case.write(tmp_path / "of the id")
        own = downloading.download(case.id, from_local=tmp_path / "of the id", root=tmp_path / "root")
        assert digests(folder) == digests(own)
    assert not verify(folder, deep=True).problems


@pytest.mark.parametrize("source", sorted({*PLACES}))
def test_exactly_one_layout_fits_the_files_of_every_case(source, tmp_path):
    """Of every file or folder that a case writes, by itself, no second source says that it knows the layout."""
    seen: set[str] = set()
    for number, case in enumerate(importlib.import_module(f"raw.{source}").CASES):
        folder = tmp_path / str(number)
        folder.mkdir()
        case.write(folder)
        places = [folder, *(place for place in folder.rglob("*"))]
        found = [layouts_of(place) for place in places]

        assert all(len(names) <= 1 for names in found), list(zip(places, found, strict=True))
        seen = seen.union(*found)
    assert source in seen


def layouts_of(place: Path) -> set[str]:
    """Return the sources that recognize a file or a folder of this machine."""
    name = id_of_address(place)[0].partition("/")[2]
    settings = Settings(home=place.parent, offline=True, progress=False)
    upstream = Upstream(place.parent / "aside", place.parent / "aside" / "none.json", settings=settings, local=place)
    try:
        files = AddressFiles(sources.get_source("url").files_at(name, Selection(), upstream), name, upstream)
    except (FetchError, InvalidArgumentError):
        return set()
    return {source.name for source in recognizing_sources() if source.recognize(files)}


@pytest.mark.parametrize("number", [0, 1, 2])
def test_every_part_of_rl_unplugged_is_recognized_with_its_alignment(number, tmp_path):
    case = importlib.import_module("raw.rl_unplugged").CASES[number]
    case.write(tmp_path)
    (path,) = {file.parent for file in tmp_path.rglob("*") if file.is_file()}

    folder = downloading.download(str(path))

    assert digests(folder) == digests(downloading.download(case.id, from_local=tmp_path, root=path.parent / "root"))
    assert not verify(folder, deep=True).problems


def test_a_folder_of_episodes_of_exorl_is_recognized(written, tmp_path):
    with zipfile.ZipFile(written("exorl")) as archive:
        archive.extractall(tmp_path / "episodes")

    folder = downloading.download(str(tmp_path / "episodes"))

    manifest = stored(folder).manifest
    assert manifest.metadata["layout"] == "exorl"
    assert manifest.metadata["layout_evidence"].startswith("buffer/episode_0_40.npz has observation")
    assert digests(folder) == digests(downloading.download(str(written("exorl"))))


def test_a_file_of_several_vaults_needs_one_to_be_chosen(written):
    with pytest.raises(ConversionError, match="it has several vaults, expected one of Good, Poor") as caught:
        downloading.download(str(written("og_marl")))
    assert "choose one with" in str(caught.value.hint)
    with pytest.raises(ConversionError, match="vault is 'Best', expected one of Good, Poor"):
        downloading.download(str(written("og_marl")), selection=Selection(options={"vault": "Best"}))
    with pytest.raises(InvalidArgumentError, match="names a vault"):
        downloading.download("og_marl/core/smac_v1/3m/Good", selection=Selection(options={"vault": "Poor"}))


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.zip", b"PK\x03\x04 or not"), ("train-00000-of-00001", b"no record"), ("x_0_3.tar.gz", b"PK\x03\x04")],
)
def test_a_name_alone_is_no_evidence(tmp_path, name, content):
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / name).write_bytes(content)

    with pytest.raises(ConversionError, match="no source knows the layout of its 1 file"):
        downloading.download(str(tmp_path / "files"))


def test_a_repository_of_the_hub_is_recognized_before_its_data_is_fetched(written):
    with hub({"me/arm": written("lerobot")}) as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_ENDPOINT", server.url)

        planned = plan("hf://datasets/me/arm")

        assert planned.layout == f"lerobot: {EVIDENCE['lerobot']}"
        assert not [path for _, path in asked(server) if path.endswith(".parquet")]
        downloading.download("hf://me/arm")
    # Without the hub, and by both spellings.
    assert load("hf://datasets/me/arm").manifest.id == load("hf://me/arm").manifest.id == "hf/me/arm"
    assert load("hf://me/arm").manifest.revision


def asked(server: Any) -> list[tuple[str, str]]:
    return [(request.method, request.path) for request in server.requests]


def test_a_file_in_a_repository_has_the_digest_of_the_hub(tmp_path):
    write_flat(tmp_path / "repo" / "a folder" / "hopper.hdf5", **flat(300))
    write_flat(tmp_path / "repo" / "other.hdf5", **flat())
    with hub({"me/many": tmp_path / "repo"}) as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_ENDPOINT", server.url)

        folder = downloading.download("hf://datasets/me/many@main/a folder/hopper.hdf5")
        with pytest.raises(ConversionError, match=r"no source knows the layout of its 2 files") as caught:
            downloading.download("hf://me/many")
        with pytest.raises(ConversionError, match=r"the repository me/many has no such file"):
            downloading.download("hf://me/many/walker.hdf5")

    assert "name a file" in str(caught.value.hint)
    manifest = stored(folder).manifest
    assert (manifest.id, manifest.steps) == ("hf/me/many/a%20folder/hopper.hdf5", 300)
    assert manifest.raw[0].checked == "catalog"


def test_a_file_on_a_web_server_is_recognized_by_a_part_of_it(tmp_path):
    big = {**flat(), "infos/noise": np.random.default_rng(0).random((100_000, 10))}
    data = write_flat(tmp_path / "flat.hdf5", **big).read_bytes()
    with serve({"/data/hopper%20v2.hdf5": data}) as server:
        address = f"{server.url}/data/hopper v2.hdf5"

        planned = plan(address)

        assert planned.layout.startswith("d4rl: hopper%20v2.hdf5 has observations, actions, rewards and terminals")
        ranges = [request.headers["range"] for request in server.requests if request.method == "GET"]
        spans = [map(int, text.removeprefix("bytes=").split("-")) for text in ranges]
        assert sum(stop - start + 1 for start, stop in spans) < len(data) / 4
        assert planned.wire_bytes == len(data)


def test_a_server_without_ranges_serves_the_whole_file_once(tmp_path):
    data = write_flat(tmp_path / "flat.hdf5", **flat(2000)).read_bytes()
    with serve({"/flat.hdf5": NoRange(data)}) as server:
        folder = downloading.download(f"{server.url}/flat.hdf5")

    assert stored(folder).manifest.steps == 2000


def test_files_with_two_layouts_are_refused_until_one_is_chosen(written, tmp_path):
    both = tmp_path / "both"
    shutil.copytree(written("lerobot"), both)
    shutil.copy(written("local") / "dataset.toml", both)

    with pytest.raises(ConversionError) as caught:
        downloading.download(str(both))

    text = str(caught.value)
    assert f"lerobot ({EVIDENCE['lerobot']}) and of local ({EVIDENCE['local']})" in text
    assert "choose one with" in str(caught.value.hint)
    folder = downloading.download(str(both), selection=Selection(options={"layout": "lerobot"}))
    assert stored(folder).manifest.metadata["layout"] == "lerobot"
    assert load(str(both)).manifest.id == stored(folder).manifest.id


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        ("dsrl", "its files do not have the layout of dsrl: they have the layout of d4rl"),
        ("atari_dqn", "layout is 'atari_dqn', expected one of d4rl, dsrl"),
    ],
)
def test_a_layout_that_the_files_do_not_have_is_refused(tmp_path, layout, message):
    path = write_flat(tmp_path / "flat.hdf5", **flat())

    with pytest.raises((ConversionError, InvalidArgumentError), match=message):
        downloading.download(str(path), selection=Selection(options={"layout": layout}))


def test_options_are_those_of_the_layout(written):
    with pytest.raises(InvalidArgumentError, match="d4rl has no option 'quality'"):
        downloading.download(str(written("d4rl")), selection=Selection(options={"quality": "50"}))
    with pytest.raises(InvalidArgumentError, match="url has no option 'colour'"):
        downloading.download(str(written("d4rl")), selection=Selection(options={"colour": "red"}))
    with pytest.raises(InvalidArgumentError, match="d4rl can select whole files, but not episodes"):
        downloading.download(str(written("d4rl")), selection=Selection(episodes="0:2"))


def test_a_folder_above_stored_datasets_names_them_and_looks_at_no_hidden_folder(tmp_path):
    for name in ("d4rl/a", "demo/b", "demo/c", "minari/x/d", ".venv/e"):
        (tmp_path / name / "0001-01234567").mkdir(parents=True)
        (tmp_path / name / "CURRENT").write_text("0001-01234567\n")
    write_flat(tmp_path / ".venv" / "hopper.hdf5", **flat())
    (tmp_path / "gone").symlink_to(tmp_path / "nothing")

    with pytest.raises(ConversionError) as caught:
        downloading.download(str(tmp_path))
    assert caught.value.problems == (
        "it has stored datasets, and no files of a source: d4rl/a, demo/b, demo/c and 1 more",
    )


@pytest.mark.parametrize("name", ["notes.hdf5", "notes.npz"])
def test_damaged_and_other_files_are_refused_with_what_is_wrong_with_them(tmp_path, name):
    (tmp_path / name).write_bytes(b"PK\x03\x04 or not" * 9)

    with pytest.raises(ConversionError, match=rf"{name} cannot be converted: (it is not HDF5|the directory)"):
        downloading.download(str(tmp_path / name))


@pytest.mark.parametrize("layout", ["d4rl", "local", "robomimic"])
def test_errors_of_files_at_an_address_name_the_id_and_the_file_once(tmp_path, layout):
    place = tmp_path / "raw" / "a run.hdf5"
    place.parent.mkdir()
    with h5py.File(place, "w") as file:
        if layout == "robomimic":
            file.create_group("data").attrs.update(env_args="{}", total=5)
            file["data"].create_group("demo_0").attrs["num_samples"] = 5
            file["data/demo_0/actions"], file["data/demo_0/obs/joints"] = np.zeros((5, 2)), np.zeros((4, 2))
        else:
            rewards, ends = ("rewards", "terminals") if layout == "d4rl" else ("reward", "done")
            file["observations"], file["actions"] = np.zeros((6, 3), np.float32), np.zeros((6, 1), np.float32)
            file[rewards], file[ends], file["timeouts"] = np.zeros(5), np.arange(6) == 5, np.zeros(6, bool)

    with pytest.raises(ConversionError) as caught:
        downloading.download(str(place))

    text = str(caught.value)
    dataset_id = sources.id_of_address(place)[0]
    assert dataset_id.endswith("/=raw/a%20run.hdf5")
    assert text.startswith((f"{dataset_id} cannot be converted", "a run.hdf5 cannot be converted"))
    assert text.removeprefix(dataset_id).count("a run.hdf5") + text.count("a%20run.hdf5/") <= 1
    assert f" {layout}/file/" not in f" {text}"


@pytest.mark.parametrize("name", ["größe", "数据", "run 3", "raw", "a=b", "50%", "=raw"])
def test_an_id_has_the_letters_of_a_name_and_leads_back_to_the_path(tmp_path, name):
    write_flat(tmp_path / name / "hopper.hdf5", **flat(300))

    made = downloading.download(str(tmp_path / name))

    dataset_id = stored(made).manifest.id
    shown = {"run 3": "run%203", "raw": "=raw", "a=b": "a%3Db", "50%": "50%25", "=raw": "%3Draw"}
    assert dataset_id.endswith(f"/{shown.get(name, name)}")
    assert len(load(dataset_id)) == len(load(str(tmp_path / name))) == 300
    assert sources.id_of_address(tmp_path / name)[0] == dataset_id


def test_a_link_to_another_file_is_not_followed(tmp_path):
    write_flat(tmp_path / "secret.hdf5", **flat())
    with h5py.File(tmp_path / "linked.hdf5", "w") as file:
        for name in flat():
            file[name] = h5py.ExternalLink("secret.hdf5", name)

    with pytest.raises(ConversionError, match="actions is a link out of the file"):
        downloading.download(str(tmp_path / "linked.hdf5"))


def test_flags_of_another_length_are_not_the_layout_of_d4rl(tmp_path):
    path = write_flat(tmp_path / "odd.hdf5", **{**flat(), "terminals": np.zeros(3, bool)})

    with pytest.raises(ConversionError, match=r"it has no dataset\.toml") as caught:
        downloading.download(str(path))
    assert "terminals is bool [3], expected a flag for each of" in str(caught.value.hint)


def test_a_dataset_whose_file_was_moved_away_is_opened_by_the_path(tmp_path, monkeypatch):
    path = write_flat(tmp_path / "flat.hdf5", **flat())
    downloading.download(str(path))
    path.unlink()
    monkeypatch.chdir(tmp_path)

    for name in (str(path), path, "./flat.hdf5", "flat.hdf5"):
        assert len(load(name)) == len(flat()["rewards"])
    with pytest.raises(NotADatasetError, match="the path does not exist"):
        load(str(tmp_path / "other.hdf5"))


def test_a_changed_file_is_noticed(tmp_path):
    path = write_flat(tmp_path / "flat.hdf5", **flat())
    downloading.download(str(path))
    write_flat(path, **flat(9))

    with pytest.raises(InvalidArgumentError, match="was converted from other files"):
        downloading.download(str(path))

    assert stored(downloading.download(str(path), force=True)).manifest.steps == 9


def test_a_stored_dataset_at_a_path_is_not_downloaded():
    folder = downloading.download("demo/pendulum")

    with pytest.raises(InvalidArgumentError, match="is a stored dataset, which is opened in place"):
        downloading.download(str(folder))

    assert load(str(folder)).manifest.id == "demo/pendulum"


def test_a_folder_on_a_web_server_cannot_be_listed():
    with serve({"/folder": Status(404)}) as server, pytest.raises(FetchError, match="cannot list files") as caught:
        downloading.download(f"{server.url}/folder")

    assert "the address of one file" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("address", "dataset_id"),
    [
        ("hf://me/arm", "hf/me/arm"),
        ("hf://datasets/me/arm/", "hf/me/arm"),
        ("hf://datasets/me/arm@v1/a b/c.npz", "hf/me/arm/a%20b/c.npz"),
        ("https://host:80/a%20b/c.npz?download=1", "url/https/host%3A80/a%2520b/c.npz%3Fdownload%3D1"),
        ("s3://bucket/raw/0001-0123abcd/x.h5", "url/s3/bucket/=raw/=0001-0123abcd/x.h5"),
        ("gs://bucket/.hidden/CURRENT", "url/gs/bucket/=.hidden/=CURRENT"),
        ("file:///home/me/a%20b%23%3f.npz", "url/file/home/me/a%20b%23%3F.npz"),
        (Path("/home/me/50% of it@once"), "url/file/home/me/50%25%20of%20it%40once"),
    ],
)
def test_an_address_has_one_id_and_an_id_one_address(address, dataset_id):
    found, revision = id_of_address(address)

    assert found == dataset_id
    assert sources.find(dataset_id).id == dataset_id
    name = dataset_id.partition("/")[2]
    back = hub_address(name, revision) if dataset_id.startswith("hf/") else address_of_name(name)
    assert id_of_address(back) == (dataset_id, revision)
    if isinstance(address, str) and not address.startswith("hf://me"):
        assert back == address.rstrip("/").replace("%3f", "%3F")


@pytest.mark.parametrize(
    "address",
    [
        "hf://me",
        "hf://me/arm@",
        "https://",
        "https://host/../x.npz",
        "https://me:secret@host/x.npz",
        "gs://b//x",
        "file://host/x.npz",
    ],
)
def test_what_is_no_address_is_refused_and_shows_no_password(address):
    with pytest.raises(InvalidArgumentError) as caught:
        id_of_address(address)

    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "name", ["url/https/host/a b.npz", "url/ftp/host/x", "url/https", "url/https/a/%2e%2e/b", "hf/me"]
)
def test_other_spellings_of_an_id_are_unknown(name):
    with pytest.raises(UnknownIdError):
        sources.find(name)


def test_the_command_prints_the_layout_before_and_after(written, capsys):
    path = str(written("roboset"))

    assert main(["download", path, "--dry-run"]) == 0
    assert f"layout\troboset: {EVIDENCE['roboset']}" in capsys.readouterr().out
    assert main(["download", path]) == 0
    assert f"its files have the layout of roboset: {EVIDENCE['roboset']}" in capsys.readouterr().err
    assert main(["info", path, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["stored"]["steps"] == 19
    assert main(["sample", path, "-q"]) == 0


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("missing.npz", "missing.npz cannot be read: the path does not exist"),
        ("notes.txt", "notes.txt is not a dataset, expected a folder, or a file that ends with .hdf5, .h5, .npz"),
        ("empty", "empty cannot be read: the path is neither a file"),
        ("pipe.npz", "pipe.npz cannot be read: the path is neither a file"),
    ],
)
def test_a_path_without_files_is_named_as_a_path(tmp_path, name, problem):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "empty").mkdir()
    os.mkfifo(tmp_path / "pipe.npz")

    with pytest.raises(InvalidArgumentError, match=problem):
        downloading.download(str(tmp_path / name))


def test_the_working_directory_is_a_folder_of_files(written, monkeypatch):
    monkeypatch.chdir(written("d4rl"))

    assert (
        stored(downloading.download(".")).manifest.steps == stored(downloading.download(str(Path.cwd()))).manifest.steps
    )


def test_own_files_with_unknown_names_are_refused_with_a_description_to_complete(tmp_path):
    np.savez(tmp_path / "my run.npz", steps=np.zeros(3))

    with pytest.raises(ConversionError, match=r"it has no dataset\.toml") as caught:
        downloading.download(str(tmp_path / "my run.npz"))
    assert "add one beside the file, and give the folder" in caught.value.hint
    assert '# ... = "steps"    # float64 [3]' in caught.value.hint

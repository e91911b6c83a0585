"""LeRobot: three versions, files chosen before the download, and videos that do not fit their tables."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from exports import export_stored
from oracles import comparison
from pyarrow import parquet
from raw import lerobot as raw
from raw import make_lerobot
from raw.lerobot import FPS, LENGTHS, NEW, OLD, draw, golden, write_new, write_old, write_video
from upstreams import hub

from datasets_rl import Selection, downloading, load, verify
from datasets_rl.cli.app import main
from datasets_rl.errors import (
    ConversionError,
    InvalidArgumentError,
    MissingDependencyError,
    UnknownKeyError,
)
from datasets_rl.format.reader import StoredDataset
from datasets_rl.look import StepReader, describe
from datasets_rl.look.page.panel import Panel
from datasets_rl.settings import Settings
from datasets_rl.sources import find, split_address

av = pytest.importorskip("av", reason="pip install av")
TOP = ("observation", "image", "top")
CAMERA = "observation.images.top"
FILE = "chunk-000/file-000"


@pytest.fixture
def drawn():
    return [draw(length, seed) for seed, length in enumerate(LENGTHS)]


@pytest.fixture
def convert(folder, settings):
    """A function that converts the files in the folder, compares them with the oracle, and returns the dataset."""

    def run(name=NEW, *, checked=True, **selection):
        wanted = Selection(**selection)
        made = downloading.download(
            f"lerobot/{name}", from_local=folder, settings=settings, selection=wanted, force=True
        )
        stored = StoredDataset(made)
        if checked:
            files = comparison.raw_files_of(stored)
            assert comparison.compare(stored.manifest.id, files, comparison.column_of(stored), stored.episodes) == []
        assert verify(made, deep=True, settings=settings).problems == ()
        return stored

    return run


def edit(path, change):
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def rules(stored):
    return {decision.rule: decision for decision in stored.manifest.decisions}


@pytest.mark.parametrize("version", ["v2.0", "v2.1", "v3.0"])
def test_every_version_gives_the_same_rows(convert, folder, drawn, version):
    write = write_new if version == "v3.0" else write_old
    write(folder, drawn)
    edit(folder / "meta/info.json", lambda info: info.update(codebase_version=version))
    if version == "v2.0":
        actions = np.concatenate([one.action for one in drawn])
        stats = {name: getattr(actions, name)(0).tolist() for name in ("max", "mean", "min", "std")}
        (folder / "meta/episodes_stats.jsonl").unlink()
        (folder / "meta/stats.json").write_text(json.dumps({"action": stats}))

    stored = convert()

    assert stored.manifest.metadata["codebase_version"] == version
    assert stored.manifest.metadata["robot_type"] == "so100"
    assert stored.manifest.metadata["fps"] == FPS
    actions = np.concatenate([one.action for one in drawn])
    stats = np.load(stored.folder / stored.manifest.metadata["statistics/action"]["file"])
    assert np.allclose(stats, [actions.max(0), actions.mean(0), actions.min(0), actions.std(0)], atol=1e-6)
    for start, one in zip(stored.episodes.starts.tolist(), drawn, strict=True):
        assert np.array_equal(stored.column(("action",), start, start + len(one)), one.action)


def test_a_part_of_a_repository_is_converted_again_from_the_kept_files(folder, drawn, settings, monkeypatch):
    write_new(folder, drawn, video=False)
    with hub({NEW: folder}) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        part = Selection(episodes="1:")
        made = downloading.download(f"lerobot/{NEW}", settings=settings, selection=part, keep_raw=True)

    found = verify(made, deep=True, settings=settings)

    assert found.problems == ()
    assert found.checked[-1].startswith("every converted value against")


def test_a_dataset_that_lerobot_wrote_has_the_rows_that_it_was_given(convert, folder):
    with tarfile.open(Path(raw.__file__).with_name("lerobot-0.4.4.tar.gz")) as archive:
        archive.extractall(folder, filter="data")
    rows = [row for episode in make_lerobot.episodes() for row in episode]

    stored = convert("me/made", options={"images": "raw"}, checked=False)

    assert stored.episodes.lengths.tolist() == list(make_lerobot.LENGTHS)
    for name, key in {
        "observation.state": ("observation", "state"),
        "action": ("action",),
        "next.reward": ("next", "reward"),
        "observation.images.wrist": ("observation", "image", "wrist"),
    }.items():
        assert np.array_equal(stored.column(key), np.stack([row[name] for row in rows])), name
    frames = np.stack([row["observation.images.top"] for row in rows]).astype(int)
    assert np.abs(stored.column(TOP, 0, len(stored)) - frames).max() <= raw.LOSS  # AV1 with crf 30
    texts = stored.texts(("language_instruction",))
    assert [texts[code] for code in stored.column(("language_instruction",))] == [row["task"] for row in rows]
    assert stored.manifest.metadata["names"] == {"observation.state": ["x", "y", "z"], "action": ["pan", "lift"]}
    low = np.load(stored.folder / stored.manifest.metadata["statistics/action"]["file"])[2]
    assert np.allclose(low, np.stack([row["action"] for row in rows]).min(0))


LEFT_OUT = "were left out: they do not name each of its"


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        (["pan", "lift"], ["pan", "lift"]),
        ([["pan", "lift"]], ["pan", "lift"]),
        ([["pan"], ["lift"]], ["pan", "lift"]),
        ({"motors": ["pan", "lift"]}, ["pan", "lift"]),
        ({"axes": ["pan", "lift"]}, ["pan", "lift"]),
        ({"motors": [["pan", "lift"]]}, ["pan", "lift"]),
        ({"left": ["pan"], "right": ["lift"]}, ["pan", "lift"]),
        ({"left": ["pan"], "right": ["pan"]}, ["left.pan", "right.pan"]),
        ({"pan": 0, "lift": 1}, ["pan", "lift"]),
        ({"pan": 1, "lift": 0}, ["lift", "pan"]),
        (None, None),
        ([], None),
        (["pan"], LEFT_OUT),
        ({"motors": ["pan", "lift", "grip"]}, LEFT_OUT),
        ({"pan": 1, "lift": 2}, LEFT_OUT),
        ({"pan": 0, "lift": 0}, LEFT_OUT),
        ({"pan": True, "lift": False}, LEFT_OUT),
        ([0, 1], LEFT_OUT),
        ("pan", LEFT_OUT),
        ([None, None], LEFT_OUT),
    ],
)
@pytest.mark.first(5)
def test_names_of_elements_are_a_flat_list_or_are_left_out(convert, folder, drawn, stated, expected):
    write_new(folder, drawn, video=False)
    edit(folder / "meta/info.json", lambda info: info["features"]["action"].update(names=stated))

    stored = convert()

    named = stored.manifest.metadata["names"]
    assert named.pop("observation.state") == ["x", "y", "z"]
    decision = rules(stored).get("names action")
    if expected == LEFT_OUT:
        assert named == {}
        assert decision.text == f"action: its names {stated!r} {LEFT_OUT} 2 elements"
        assert decision.count == 1
    else:
        assert named == ({} if expected is None else {"action": expected})
        assert decision is None


@pytest.mark.parametrize("version", ["v2.0", "v2.1", "v3.0"])
def test_nested_names_are_seen_in_every_view_and_survive_an_export(convert, folder, drawn, tmp_path, capsys, version):
    write = write_new if version == "v3.0" else write_old
    write(folder, drawn, video=False)

    def change(info):
        info["codebase_version"] = version
        info["features"]["observation.state"]["names"] = [["hip", "knee", "ankle"]]
        info["features"]["action"]["names"] = {"motors": ["pan", "lift"]}

    edit(folder / "meta/info.json", change)
    stored = convert()

    assert Panel(stored).labels("action", 0) == ["action pan", "action lift"]
    described = [field.names() for field in describe(StepReader(stored)).fields]
    assert ["observation.state hip", "observation.state knee", "observation.state ankle"] in described
    assert main(["info", str(stored.folder)]) == 0
    text = capsys.readouterr().out
    assert "action lift" in text
    assert "observation.state ankle" in text
    assert "action[1]" not in text
    out = tmp_path / "out"
    export_stored(stored, "lerobot", out)
    features = json.loads((out / "meta/info.json").read_text())["features"]
    assert features["observation.state"]["names"] == ["hip", "knee", "ankle"]
    assert features["action"]["names"] == ["pan", "lift"]
    settings = Settings(home=tmp_path / "again", progress=False)
    again = StoredDataset(downloading.download("lerobot/me/again", from_local=out, settings=settings))
    assert again.manifest.metadata["names"] == stored.manifest.metadata["names"]


def test_a_selection_fetches_the_files_of_its_episodes_and_cameras(tmp_path, folder, drawn, monkeypatch):
    write_old(folder / OLD, drawn)
    monkeypatch.setenv("NO_PROXY", "*")
    with hub({OLD: folder / OLD}) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        settings = Settings(home=tmp_path / "home", progress=False, retries=0)
        one = Selection(episodes="3", keys=("observation.state", "action"))
        stored = StoredDataset(downloading.download(f"lerobot/{OLD}", settings=settings, selection=one))
        asked = {path.partition("/resolve/")[2].partition("/")[2] for _, path, *_ in map(_request, server.requests)}

    assert {path for path in asked if path.startswith(("data/", "videos/"))} == {
        "data/chunk-001/episode_000003.parquet"
    }
    assert len(stored) == LENGTHS[3]
    assert {field.name for field in stored.schema} >= {"observation.state", "action"}
    assert TOP not in stored.schema


def _request(request):
    return ("GET", getattr(request, "path", str(request)))


def test_one_camera_of_two_is_fetched_and_decoded(convert, folder, drawn):
    write_new(folder, drawn)
    left = folder / f"videos/observation.images.left/{FILE}.mp4"
    write_video(left, np.concatenate([255 - one.top for one in drawn]))

    def add(info):
        info["features"]["observation.images.left"] = info["features"][CAMERA]

    edit(folder / "meta/info.json", add)
    path = folder / f"meta/episodes/{FILE}.parquet"
    table = parquet.read_table(path)
    starts = np.concatenate([[0], np.cumsum(LENGTHS)]) / FPS
    for name, values in {
        "chunk_index": [0] * 5,
        "file_index": [0] * 5,
        "from_timestamp": starts[:-1],
        "to_timestamp": starts[1:],
    }.items():
        table = table.append_column(f"videos/observation.images.left/{name}", pa.array(values))
    parquet.write_table(table, path)

    both = convert()
    only = convert(keys=("observation.image.left",))

    assert TOP in both.schema
    assert TOP not in only.schema
    assert {file.path for file in only.manifest.raw if file.path.endswith(".mp4")} == {
        f"{NEW}/videos/observation.images.left/{FILE}.mp4"
    }
    got = only.column(("observation", "image", "left"), 0, len(only)).astype(int)
    assert np.abs(got - (255 - np.concatenate([one.top for one in drawn]))).max() <= raw.LOSS


def test_rows_are_found_by_their_number_in_another_file_of_the_shard(convert, folder, drawn):
    write_new(folder, drawn, video=False)
    path = folder / f"meta/episodes/{FILE}.parquet"
    table = parquet.read_table(path)
    stale = table.set_column(table.column_names.index("data/file_index"), "data/file_index", pa.array([0, 1, 0, 0, 0]))
    stale = stale.set_column(
        table.column_names.index("data/chunk_index"), "data/chunk_index", pa.array([0, 0, 0, 0, 1])
    )
    parquet.write_table(stale, path)

    stored = convert()

    assert rules(stored)["rows-elsewhere"].count == 3
    assert sorted(stored.episodes["source"].tolist()) == [0, 1, 2, 3, 4]


@pytest.mark.first(1)
@pytest.mark.parametrize("codec", ["libx264", "libsvtav1"])
def test_pixels_are_those_of_one_pass_of_the_decoder_at_any_cut(convert, folder, drawn, codec, monkeypatch):
    monkeypatch.setattr("datasets_rl.sources.lerobot._SHARD_BYTES", 1)
    monkeypatch.setattr("datasets_rl.sources.lerobot.reader._CHUNK_BYTES", 1)
    monkeypatch.setattr("datasets_rl.sources.lerobot.reader._ROWS_MIN", 3)
    options = {"crf": "20"} if codec == "libx264" else {"crf": "30", "preset": "12", "threads": "0"}
    write_new(folder, drawn, per_video=5, codec=codec, **options)

    stored = convert(options={"images": "raw"}, checked=codec == "libx264")
    part = convert(options={"images": "raw"}, episodes="1,3:", checked=False)

    with av.open(str(folder / f"videos/{CAMERA}/{FILE}.mp4")) as container:
        frames = np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])
    assert np.array_equal(stored.column(TOP, 0, len(stored)), frames)
    rows = np.repeat(np.isin(np.arange(5), [1, 3, 4]), LENGTHS)
    assert np.array_equal(part.column(TOP, 0, len(part)), frames[rows])


def test_frames_are_resized_before_they_become_jpeg(convert, folder, drawn):
    write_old(folder, drawn)

    stored = convert(OLD, options={"image-size": "32x48", "quality": "80"}, checked=False)

    assert stored.schema[TOP].shape == (32, 48, 3)
    assert stored.schema[TOP].encoded
    assert "JPEG images of 32 x 48 pixels and quality 80" in rules(stored)["video-to-jpeg"].text
    small = np.concatenate([one.top for one in drawn]).reshape(-1, 32, 2, 48, 2, 3).mean((2, 4))
    assert np.abs(stored.column(TOP, 0, len(stored)) - small).max() <= raw.LOSS


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quality": "0"}, "quality is '0'"),
        ({"quality": "high"}, "quality is 'high'"),
        ({"image-size": "0x3"}, "image-size is '0x3'"),
        ({"revision": "a/b"}, "revision is 'a/b'"),
    ],
)
def test_options_that_are_not_valid_are_refused(convert, folder, drawn, options, message):
    write_old(folder, drawn, video=False)

    with pytest.raises(InvalidArgumentError, match=message):
        convert(OLD, options=options)


def test_without_pyav_states_are_read_and_the_message_names_the_extra(convert, folder, drawn, monkeypatch):
    write_old(folder, drawn)
    monkeypatch.setitem(sys.modules, "av", None)

    with pytest.raises(
        MissingDependencyError, match=r"decoding the videos of observation\.images\.top, .* needs av"
    ) as caught:
        convert(OLD)
    stored = convert(OLD, keys=("observation.state", "action"))

    assert caught.value.hint == "pip install 'datasets-rl[video]'"
    assert len(stored) == sum(LENGTHS)


def test_names_are_those_of_torchrl_and_every_name_has_a_key(convert, folder, drawn):
    write_old(folder, drawn, video=False)
    path = folder / "meta/info.json"

    def rename(info):
        features = info["features"]
        features["actions"] = features.pop("action")
        features["state"] = features.pop("observation.state")
        features["wrist_image"] = features.pop("observation.images.wrist")
        features["actions.gripper"] = {"dtype": "float64", "shape": [1], "names": ["grip"]}
        features["sound"] = {"dtype": "audio", "shape": [1], "names": None}

    edit(path, rename)
    for file in (folder / "data").rglob("*.parquet"):
        table = parquet.read_table(file)
        new = {"action": "actions", "observation.state": "state", "observation.images.wrist": "wrist_image"}
        table = table.rename_columns([new.get(name, name) for name in table.column_names])
        parquet.write_table(table.append_column("actions.gripper", pa.array(np.arange(len(table)) / 7)), file)

    stored = convert(OLD, checked=False)

    keys = {field.key for field in stored.schema}
    assert {("action",), ("observation", "state"), ("observation", "image", "wrist_image")} <= keys
    assert ("actions", "gripper") in keys
    assert rules(stored)["left-out sound"].text == "sound was left out: it has values of the type 'audio'"
    with pytest.raises(UnknownKeyError, match="observation"):
        convert(OLD, keys=("observation.depth",))


def test_a_field_below_another_one_gets_a_joined_name(convert, folder, drawn):
    write_old(folder, drawn, video=False)

    def add(info):
        info["features"]["action.grip.width"] = {"dtype": "float32", "shape": [1], "names": None}

    edit(folder / "meta/info.json", add)
    for file in (folder / "data").rglob("*.parquet"):
        table = parquet.read_table(file)
        parquet.write_table(table.append_column("action.grip.width", pa.array(np.ones(len(table), np.float32))), file)

    stored = convert(OLD, checked=False)

    assert stored.column(("action_grip_width",)).tolist() == [[1.0]] * len(stored)


def test_rows_without_reward_and_flags_are_counted(convert, folder, drawn):
    write_new(folder, drawn, done=False, video=False)

    def drop(info):
        del info["features"]["next.reward"]

    edit(folder / "meta/info.json", drop)

    stored = convert(checked=False)

    assert rules(stored)["reward-missing"].count == len(LENGTHS)
    assert rules(stored)["end-without-flag"].count == len(LENGTHS)
    assert not stored.column(("next", "reward")).any()


def test_done_without_success_terminates(convert, folder, drawn):
    write_new(folder, drawn, video=False)

    def drop(info):
        del info["features"]["next.success"]

    edit(folder / "meta/info.json", drop)

    stored = convert(checked=False)

    assert stored.column(("next", "terminated")).sum() == len(LENGTHS)
    assert rules(stored)["done-is-terminated"].count == len(LENGTHS)


def test_the_manifest_names_the_rule_of_the_rewards(convert, folder, drawn):
    write_new(folder, drawn, video=False)

    stored = convert()

    assert "PushT" in rules(stored)["lerobot-same-row"].text
    assert rules(stored)["lerobot-same-row"].count == len(LENGTHS)
    assert "twice" in find("lerobot/lerobot/pusht").known_issues[0]


def test_an_address_of_the_hub_is_an_id(folder, drawn, tmp_path, monkeypatch):
    assert split_address("hf://datasets/me/arm@v3.0", Selection()) == (
        "hf/me/arm",
        Selection(options={"revision": "v3.0"}),
    )
    write_new(folder, drawn, video=False)
    monkeypatch.setenv("RLDS_HOME", str(tmp_path / "home"))
    downloading.download(f"hf://datasets/{NEW}", from_local=folder)

    dataset = load(f"hf://datasets/{NEW}", batch_size=4)

    assert dataset.manifest.metadata["layout"] == "lerobot"
    assert {*dataset.texts("language_instruction")} >= {*raw.TASKS}
    batch = dataset.sample()
    assert batch["observation", "image", "wrist"].shape == (4, *raw.WRIST)
    assert batch["next", "final_known"].shape[0] == 4


def test_a_folder_with_some_episodes_names_them_and_their_selection(convert, folder):
    write_old(folder / OLD, [draw(5, seed) for seed in range(12)], video=False)
    for number in {*range(12)} - {1, 2, 3, 10}:
        next((folder / OLD).rglob(f"episode_{number:06}.parquet")).unlink()

    with pytest.raises(ConversionError) as refused:
        convert(OLD)

    assert "it has the files of 4 of 12 episodes (1:4,10), and lacks 8 files of the others" in str(refused.value)
    assert "episodes='1:4,10'" in refused.value.remedy.text_with(str).replace('"', "'")
    assert convert(OLD, episodes="1:4,10").episodes.numbers.tolist() == [1, 2, 3, 10]


@pytest.mark.parametrize(
    ("absent", "selection"),
    [("episode_000001.*", {"episodes": "0,2:4"}), ("*.mp4", {"keys": ("observation.state", "action")})],
)
def test_a_stored_part_is_opened_by_path_and_id_though_the_rest_is_absent(
    folder, drawn, tmp_path, monkeypatch, absent, selection
):
    write_old(folder, drawn)
    gone = list(folder.rglob(absent))
    assert gone
    for path in gone:
        path.unlink()
    monkeypatch.setenv("RLDS_HOME", str(tmp_path / "home"))
    made = downloading.download(str(folder), selection=Selection(**selection))

    assert len(load(str(folder))) == len(load(StoredDataset(made).manifest.id)) == len(StoredDataset(made))
    assert downloading.download(str(folder), selection=Selection(**selection)) == made


def test_it_can_be_streamed(tmp_path, folder, drawn, monkeypatch):
    write_old(folder / OLD, drawn)
    with hub({OLD: folder / OLD}) as server:
        for name, value in {"HF_ENDPOINT": server.url, "NO_PROXY": "*", "RLDS_HOME": str(tmp_path / "home")}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr("datasets_rl.sources.lerobot._SHARD_BYTES", 1)

        lengths = [len(episode) for episode in load(f"lerobot/{OLD}", streaming=True)]

    assert sorted(lengths) == sorted(LENGTHS)


def test_times_that_are_not_numbers_are_refused(convert, folder, drawn):
    write_new(folder, drawn)
    path = folder / f"meta/episodes/{FILE}.parquet"
    table = parquet.read_table(path)
    name = f"videos/{CAMERA}/from_timestamp"
    wrong = table.set_column(table.column_names.index(name), name, pa.array([0.0, np.nan, 1.0, 2.0, 3.0]))
    parquet.write_table(wrong, path)

    with pytest.raises(ConversionError, match=r"the times of episode 1 in observation\.images\.top are \[nan"):
        convert()


@pytest.mark.slow
@pytest.mark.usefixtures("warm_python")
def test_a_folder_is_converted_by_the_command(folder, drawn, tmp_path):
    write_new(folder, drawn)
    command = [sys.executable, "-m", "datasets_rl.cli", "--root", str(tmp_path / "home"), "download", f"lerobot/{NEW}"]
    command += ["--from-local", str(folder), "--image-size", "32", "--json"]

    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["datasets"][0]["steps"] == sum(LENGTHS)


def test_what_is_exported_as_lerobot_is_read_back(convert, folder, drawn, tmp_path):
    from exports import export_stored

    write_new(folder, drawn, video=False)
    stored = convert()
    out = export_stored(stored, "lerobot", tmp_path / "out")
    shutil.rmtree(folder)
    shutil.copytree(out, folder)

    back = convert("me/back", checked=False)

    assert np.array_equal(back.column(("action",)), stored.column(("action",)))
    assert np.array_equal(back.column(("observation", "state")), stored.column(("observation", "state")))
    assert golden(drawn[0], 0).final_known is False

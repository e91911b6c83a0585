"""Files of other packages: each is named, with the package that reads the file, and no advice that does not work."""

from __future__ import annotations

import io
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest

import datasets_rl
from datasets_rl import EpisodeWriter, downloading, load
from datasets_rl.cli.app import main
from datasets_rl.errors import ConversionError, DatasetsRLError, InvalidArgumentError

PAGE = "docs/recording.md#files-of-other-packages"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 123\n"


def _agent() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name in ("data", "pytorch_variables.pth", "policy.pth", "_stable_baselines3_version"):
            archive.writestr(name, b"{}")
    return out.getvalue()


BAG = {"metadata.yaml": b"rosbag2_bagfile_information:\n  version: 5\n"}
FOLDERS = {
    "MCAP": ({**BAG, "a_0.mcap": b"\x89MCAP0\r\n."}, "a_0.mcap is a bag of ROS 2 (MCAP)", "rosbags"),
    "SQLite": ({**BAG, "a_0.db3": b"SQLite format 3\0."}, "a_0.db3 is a bag of ROS 2 (SQLite)", "rosbags"),
    "MCAP by its bytes": ({"run": b"\x89MCAP0\r\n."}, "run is a bag of ROS 2 (MCAP)", "rosbags"),
    "ROS 1": ({"a.bag": b"#ROSBAG V2.0\n"}, "a.bag is a bag of ROS 1", "rosbags"),
    "ML-Agents": ({"Crawler.demo": b"\x0a\x1e"}, "Crawler.demo is a demonstration of Unity ML-Agents", "mlagents"),
    "TFRecords": ({"a.tfrecord-00000-of-00001": b"\x10"}, "is a file of TFRecords without features.json", "tfrecord"),
    "ttyrec": ({"1/a.ttyrec3.bz2": b"BZh"}, "1/a.ttyrec3.bz2 is a recording of a terminal (ttyrec)", "nle"),
    "MineRL": (
        {"v1/univ.json": b"{}", "v1/recording.mp4": b"."},
        "v1/univ.json is a recording of MineRL",
        "numpy and av",
    ),
    "checkpoint": ({"model.pt": b"PK\x03\x04"}, "model.pt is a checkpoint of a policy or a network", "RecordEpisodes"),
    "stable-baselines": ({"ppo.zip": _agent()}, "ppo.zip is a checkpoint of a policy or a network", "RecordEpisodes"),
    "TorchRL": (
        {"storage_metadata.json": b"{}", "0.memmap": bytes(8)},
        "0.memmap is a tensor without the meta.json",
        "as a TensorDict",
    ),
    "pointer": ({"a.dat": POINTER}, "a.dat is a pointer of git-LFS", "git lfs pull"),
}


def write(folder, files):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


@pytest.mark.parametrize("case", FOLDERS)
def test_a_folder_of_another_package_is_named_with_the_package_that_reads_it(tmp_path, monkeypatch, case):
    files, named, way = FOLDERS[case]
    monkeypatch.setenv("RLDS_HOME", str(tmp_path / "home"))
    write(tmp_path / "mine", files)

    with pytest.raises(ConversionError) as by_path:
        downloading.download(str(tmp_path / "mine"))
    with pytest.raises(ConversionError) as as_own:
        downloading.download("local/mine", from_local=tmp_path / "mine")

    for refused in (by_path,) if case == "stable-baselines" else (by_path, as_own):
        assert named in str(refused.value)
        assert way in str(refused.value.hint)
        assert "--from-local" not in str(refused.value.hint)


@pytest.mark.parametrize("command", ["info", "download"])
@pytest.mark.parametrize("case", ["MCAP", "ROS 1", "ML-Agents", "checkpoint", "stable-baselines", "pointer"])
def test_a_file_of_another_package_is_named(tmp_path, monkeypatch, capsys, case, command):
    files, named, way = FOLDERS[case]
    monkeypatch.setenv("RLDS_HOME", str(tmp_path / "home"))
    write(tmp_path, files)

    assert main([command, str(tmp_path / list(files)[-1])]) != 0

    said = capsys.readouterr().err
    assert named.partition(" is ")[2] in said
    assert way in said
    assert "tar -xf" not in said


@pytest.mark.parametrize("command", ["info", "download"])
def test_a_file_of_no_known_kind_is_not_called_an_archive(tmp_path, monkeypatch, capsys, command):
    monkeypatch.setenv("RLDS_HOME", str(tmp_path / "home"))
    (tmp_path / "notes.txt").write_text("mine")

    assert main([command, str(tmp_path / "notes.txt")]) != 0

    said = capsys.readouterr().err
    assert "tar -xf" not in said
    assert PAGE in said


@pytest.mark.parametrize(("name", "unpacks"), [("a.tar.gz", "tar -xf"), ("a.tgz", "tar -xf"), ("a.7z", "7z x")])
def test_an_archive_is_named_with_the_command_that_unpacks_it(tmp_path, name, unpacks):
    (tmp_path / name).write_bytes(b"\x1f\x8b")

    with pytest.raises(InvalidArgumentError) as refused:
        downloading.download(str(tmp_path / name))

    assert f"{unpacks} {name}" in str(refused.value.hint)


def test_empty_files_are_named(tmp_path):
    write(tmp_path / "robot", {"notes.json": b"", "data/a.bin": b"."})

    with pytest.raises(ConversionError, match=r"notes\.json is empty \(0 bytes\)"):
        downloading.download(str(tmp_path / "robot"))


def test_a_folder_with_a_manifest_of_this_package_stays_a_dataset(tmp_path):
    write(tmp_path / "mine", {"manifest.json": b"{}"})

    with pytest.raises(DatasetsRLError) as refused:
        downloading.download(str(tmp_path / "mine"))

    assert "Donkeycar" not in str(refused.value)


def programs():
    """Return the names that the programs of the section of the documentation define."""
    text = (Path(datasets_rl.__file__).parents[1] / "docs/recording.md").read_text(encoding="utf-8")
    section = text.partition("## Files of other packages")[2].partition("\n## ")[0]
    names = {"EpisodeWriter": EpisodeWriter}
    for program in re.findall(r"^```python\n(.*?)^```$", section, flags=re.MULTILINE | re.DOTALL):
        exec(program, names)
    return names


def test_a_table_beside_a_checkpoint_is_read(tmp_path, monkeypatch):
    monkeypatch.setenv("RLDS_HOME", str(tmp_path / "home"))
    (tmp_path / "run").mkdir()
    (tmp_path / "run/model.pt").write_bytes(b".")
    done = np.arange(6) % 3 == 2
    arrays = {name: np.zeros((6, 2), np.float32) for name in ("observations", "actions", "next_observations")}
    np.savez(tmp_path / "run/data.npz", **arrays, rewards=np.zeros(6), dones=done)

    assert load(str(tmp_path / "run")).episodes.lengths.tolist() == [3, 3]

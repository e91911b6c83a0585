"""``rlds verify``."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from stored_data import reseal, write_manifest_with_digest
from tensordict import TensorDict

from datasets_rl import EpisodeWriter, LazyTensorStorage, TensorDictReplayBuffer
from datasets_rl.store import version_folder


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


@pytest.mark.usefixtures("stored")
def test_an_intact_dataset_is_reported_as_intact(rlds):
    ran = rlds("verify", "demo/pendulum")

    assert ran.code == 0
    assert ran.out.startswith("demo/pendulum: intact (6 files, ")


@pytest.mark.usefixtures("stored")
def test_of_a_mixture_each_dataset_is_checked_once(rlds, tmp_path):
    mixture = tmp_path / "mix.toml"
    mixture.write_text('[[member]]\ndataset = "demo/pendulum"\n' * 2)

    assert [one["id"] for one in rlds("verify", mixture, "demo/pendulum", "--json").json["datasets"]] == [
        "demo/pendulum"
    ]
    assert "cannot be read" in rlds("verify", tmp_path / "none.toml").err


@pytest.mark.usefixtures("stored")
def test_deep_checks_more(rlds):
    shallow = rlds("verify", "demo/pendulum", "--json").json["datasets"][0]["checked"]
    deep = rlds("verify", "demo/pendulum", "--deep", "--json").json["datasets"][0]["checked"]

    assert set(shallow) < set(deep)


@pytest.mark.parametrize("name", ["rows.npy", "final.npy", "episodes.npy"])
def test_a_flipped_bit_is_found_and_ends_with_5(rlds, stored, name):
    flip(version_folder(stored) / name, -1)

    ran = rlds("verify", "demo/pendulum")

    assert ran.code == 5
    assert name in ran.out
    assert rlds("verify", "demo/pendulum", "--json").json["datasets"][0]["intact"] is False


def test_a_missing_file_is_found(rlds, stored):
    (version_folder(stored) / "final.npy").unlink()

    assert rlds("verify", "demo/pendulum").code == 5


def test_a_folder_can_be_verified(rlds, stored, tmp_path):
    shutil.move(stored, tmp_path / "moved")

    assert rlds("verify", tmp_path / "moved", "-q").code == 0


def test_damaged_datasets_among_several_are_named_and_the_code_is_1(rlds, stored, tmp_path):
    shutil.copytree(stored, tmp_path / "copy")
    flip(version_folder(tmp_path / "copy") / "rows.npy", -1)

    ran = rlds("verify", "demo/pendulum", tmp_path / "copy", "demo/nothing", "--json")

    intact, broken, unknown = ran.json["datasets"]
    assert ran.code == 1
    assert (intact["intact"], broken["intact"], unknown["intact"]) == (True, False, False)
    assert unknown["error"]["code"] == 3
    assert rlds("verify", "demo/pendulum", tmp_path / "copy", "-q").out == f"{tmp_path / 'copy'}\n"


def test_values_that_break_the_rules_are_found_by_deep(rlds, stored):
    """The digests match the changed values, as after a faulty conversion."""
    rows = np.load(version_folder(stored) / "rows.npy")
    rows["next.truncated"][3] = True
    np.save(version_folder(stored) / "rows.npy", rows)
    reseal(stored)

    assert rlds("verify", "demo/pendulum").code == 0
    assert rlds("verify", "demo/pendulum", "--deep").code == 5


def test_values_outside_of_their_spec_are_found_by_deep(rlds, stored):
    """The pendulum's actions are in [-2, 2], so they violate a spec with tighter bounds."""
    manifest = json.loads((version_folder(stored) / "manifest.json").read_text())
    manifest["raw"] = []  # otherwise the spec would be compared with that of the upstream
    manifest["specs"]["action"] = {"kind": "bounded", "dtype": "float32", "shape": [1], "low": -2.0, "high": 2.0}
    write_manifest_with_digest(stored, manifest)
    assert rlds("verify", "demo/pendulum", "--deep").code == 0
    manifest["specs"]["action"]["high"] = 0.5
    write_manifest_with_digest(stored, manifest)
    ran = rlds("verify", "demo/pendulum", "--deep")

    assert ran.code == 5
    assert "action[0:] is " in ran.err + ran.out
    assert "expected a number in [-2.0, 0.5]" in ran.err + ran.out


@pytest.mark.usefixtures("stored")
@pytest.mark.parametrize("name", ["verify", "info", "sample", "path"])
def test_a_folder_in_the_working_directory_does_not_replace_the_id(rlds, tmp_path, monkeypatch, name):
    (tmp_path / "beside" / "demo" / "pendulum").mkdir(parents=True)
    (tmp_path / "beside" / "demo" / "pendulum" / "manifest.json").write_text("broken")
    monkeypatch.chdir(tmp_path / "beside")

    assert rlds(name, "demo/pendulum").code == 0


def test_an_empty_argument_is_wrong_usage_and_a_missing_folder_is_reported_as_missing(rlds):
    assert rlds("verify", "").code == 2
    assert "does not exist" in rlds("info", "./nosuch").err


def test_a_damaged_dataset_has_no_list_of_checks_and_a_remedy(rlds, stored):
    (version_folder(stored) / "final.npy").unlink()

    out = rlds("verify", "demo/pendulum").out

    assert "checked:" not in out
    assert "next: rlds download demo/pendulum --force" in out


def test_the_remedy_for_a_damaged_copy_is_about_the_copy(rlds, stored, tmp_path):
    """Replacing the intact dataset of the same id would not repair the copy."""
    copy = shutil.copytree(stored, tmp_path / "copy")
    flip(version_folder(copy) / "rows.npy", -1)

    out = rlds("verify", copy).out

    assert "--force" not in out
    assert f"next: delete {copy}, and copy or download the dataset to that place again" in out


def test_the_remedy_for_a_damaged_dataset_that_cannot_be_downloaded_is_how_it_was_made(rlds, stored):
    rlds("preprocess", "demo/pendulum", "--recipe", "td3_bc")
    with EpisodeWriter("local/mine", root=stored.parents[1] / "local") as writer:
        writer.start(np.zeros(2, np.float32))
        writer.step(0, np.zeros(2, np.float32), 1.0, True)
    folders = {
        "demo/pendulum@td3_bc": stored.with_name("pendulum@td3_bc"),
        "local/mine": stored.parents[1] / "local" / "mine",
    }
    for folder in folders.values():
        flip(version_folder(folder) / "rows.npy", -1)

    outs = {name: rlds("verify", name).out for name in folders}

    assert "next: rlds preprocess demo/pendulum --recipe NAME --force" in outs["demo/pendulum@td3_bc"]
    assert (
        f"next: delete {folders['local/mine']}, and restore a copy, or record the dataset again" in outs["local/mine"]
    )
    assert not any("download" in out and "cannot be downloaded" not in out for out in outs.values())


def test_a_dataset_given_by_its_folder_has_the_remedy_of_its_id(rlds, stored):
    flip(version_folder(stored) / "rows.npy", -1)

    assert "next: rlds download demo/pendulum --force" in rlds("verify", stored).out


@pytest.mark.parametrize("words", [["verify"], ["info"]])
def test_values_without_an_upstream_digest_are_reported_in_one_line(rlds, stored, words):
    manifest = json.loads((version_folder(stored) / "manifest.json").read_text())
    manifest["raw"] = [{**one, "checked": "recorded"} for one in manifest["raw"]]
    before = rlds(*words, "demo/pendulum").out
    write_manifest_with_digest(stored, manifest)
    after = rlds(*words, "demo/pendulum").out

    assert "no upstream digest vouches" not in before
    assert sum("no upstream digest vouches for" in line for line in after.splitlines()) == 1


@pytest.mark.parametrize("place", ["kept", "changed"])
def test_values_of_the_source_that_are_not_finite_are_counted_and_no_problem(rlds, home, tmp_path, place):
    """They cannot be in any bounds, and another download would have them again."""
    raw = tmp_path / "raw"
    raw.mkdir()
    ends = np.tile([False, False, False, True], 3)
    actions = np.linspace(-1, 1, 24, dtype=np.float32).reshape(12, 2)
    actions[3, 0] = actions[7, 0] = np.nan
    actions[7, 1] = np.inf
    arrays = {"observations": np.arange(12, dtype=np.float32)[:, None], "rewards": np.ones(12, np.float32)}
    np.savez(raw / "data.npz", actions=actions, timeouts=ends, **arrays)
    (raw / "dataset.toml").write_text(
        'name = "mine"\nformat = "npz"\nepisodes.by = "flags"\n[fields]\nobservation = "observations"\n'
        'action = { array = "actions", low = -1.0, high = 1.0 }\nreward = "rewards"\ntruncated = "timeouts"\n'
    )
    converted = rlds("download", "local/mine", "--from-local", raw)
    assert converted.code == 0
    assert "action: 3 values of the source are NaN or infinite, and kept" in converted.err
    assert "3 values of action" in rlds("info", "local/mine").out
    manifest = version_folder(home / "local" / "mine") / "manifest.json"
    statistics = json.loads(manifest.read_text())["statistics"]
    assert statistics["action"]["not_finite"] == [2, 1]
    assert "not_finite" not in statistics["observation"]

    if place == "kept":
        ran = rlds("verify", "local/mine", "--deep")
        assert (ran.code, "problem" in ran.out) == (0, False), ran.out
        assert "action is NaN or infinite: row 3 and 1 more" in ran.out
        return
    document = json.loads(manifest.read_text())
    document["statistics"]["action"]["not_finite"] = [1, 1]
    write_manifest_with_digest(manifest.parent, document)
    ran = rlds("verify", "local/mine", "--deep")
    assert ran.code == 5
    assert "statistics.action.not_finite[0] is 1, expected 2" in ran.out


@pytest.mark.parametrize("compress", [(), ("pixels",)])
def test_a_flipped_byte_in_the_checkpoint_of_a_ring_is_found(rlds, tmp_path, compress):
    frames = torch.arange(2000, dtype=torch.uint8)[:, None, None].expand(-1, 40, 40).clone()
    rb = TensorDictReplayBuffer(storage=LazyTensorStorage(2000, compress=compress))
    rb.extend(TensorDict({"pixels": frames, "reward": torch.zeros(2000, 1)}, [2000]))
    rb.dumps(tmp_path / "buffer")
    intact = rlds("verify", tmp_path / "buffer")
    assert intact.code == 0
    assert "intact" in intact.out
    largest = max(
        (path for path in (tmp_path / "buffer").rglob("*") if path.is_file()), key=lambda path: path.stat().st_size
    )
    flip(largest, -9)

    damaged = rlds("verify", tmp_path / "buffer")
    assert damaged.code == 5
    assert largest.name in damaged.out + damaged.err
    assert "next: load another checkpoint" in damaged.out

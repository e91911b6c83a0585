"""``rlds export``."""

from __future__ import annotations

import json

import h5py
import pytest

from datasets_rl.exporting import FORMATS


@pytest.fixture
def out(tmp_path, monkeypatch):
    """The working directory of the command."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.usefixtures("stored")
def test_the_default_path_is_named_after_dataset_and_format(rlds, out):
    ran = rlds("export", "demo/pendulum", "--to", "hdf5")

    assert (ran.code, ran.out) == (0, f"{out / 'pendulum-hdf5'}\n")
    assert "pendulum-hdf5: 15,000 steps in 75 episodes, in the format hdf5" in ran.err
    assert sorted(path.name for path in out.iterdir()) == ["pendulum-hdf5"]

    again = rlds("export", "demo/pendulum", "--to", "hdf5", "--json")
    assert again.json["exports"][0]["present"] is True


@pytest.mark.usefixtures("stored")
def test_an_export_is_downloaded_from_its_folder(rlds, out):
    rlds("export", "demo/pendulum", "--to", "parquet", "-o", out / "p")

    assert rlds("download", "local/again", "--from-local", out / "p").code == 0
    info = rlds("info", "local/again", "--json").json["stored"]
    assert (info["steps"], info["episodes"], info["final_unknown"]) == (15_000, 75, 0)


@pytest.mark.usefixtures("stored")
def test_losses_are_named_before_anything_is_written(rlds, out):
    ran = rlds("export", "demo/pendulum", "--to", "d3rlpy")

    assert ran.code == 2
    assert "the observation after the last action of 75 episodes is left out" in ran.err
    assert "info.policy, info.qpos, info.qvel: left out" in ran.err
    assert "next: accept that with --lossy" in ran.err
    assert not list(out.iterdir())

    accepted = rlds("export", "demo/pendulum", "--to", "d3rlpy", "--lossy", "-q")
    assert accepted.out == f"{out / 'pendulum.h5'}\n"


@pytest.mark.usefixtures("stored")
def test_a_dry_run_says_what_would_be_lost_and_writes_nothing(rlds, out):
    ran = rlds("export", "demo/pendulum", "--to", "lerobot", "--dry-run", "--json")

    (planned,) = ran.json["exports"]
    assert (ran.code, planned["steps"], len(planned["losses"])) == (2, 15_000, 2)
    assert rlds("export", "demo/pendulum", "--to", "lerobot", "--dry-run", "--lossy").code == 0
    assert rlds("export", "demo/pendulum", "--to", "npz", "--dry-run").code == 0
    assert not list(out.iterdir())


@pytest.mark.usefixtures("stored")
def test_an_existing_target_is_kept_without_force(rlds, out):
    (out / "mine.hdf5").write_text("mine")

    ran = rlds("export", "demo/pendulum", "--to", "d4rl", "--lossy", "-o", "mine.hdf5")

    assert ran.code == 2
    assert "--force" in ran.err
    assert (out / "mine.hdf5").read_text() == "mine"
    assert rlds("export", "demo/pendulum", "--to", "d4rl", "--lossy", "-o", "mine.hdf5", "--force").code == 0
    with h5py.File(out / "mine.hdf5") as file:
        assert file["observations"].shape == (15_000, 3)


@pytest.mark.usefixtures("stored")
def test_force_deletes_no_folder_that_is_not_an_export(rlds, out):
    (out / "photos").mkdir()
    (out / "photos" / "one.png").write_text("mine")

    ran = rlds("export", "demo/pendulum", "--to", "npz", "-o", "photos", "--force")

    assert ran.code == 2
    assert "is a folder that is not an export" in ran.err
    assert (out / "photos" / "one.png").read_text() == "mine"


@pytest.mark.usefixtures("stored")
def test_force_replaces_an_export_of_another_dataset(rlds, out):
    rlds("preprocess", "demo/pendulum", "-t", "keep_top_returns:10", "--as", "best")
    rlds("export", "demo/pendulum", "--to", "hdf5", "-o", "x")

    assert rlds("export", "demo/pendulum@best", "--to", "hdf5", "-o", "x").code == 2
    assert rlds("export", "demo/pendulum@best", "--to", "hdf5", "-o", "x", "--force").code == 0

    assert json.loads((out / "x" / "rlds-export.json").read_text())["dataset"] == "demo/pendulum@best"
    assert [path.name for path in out.iterdir()] == ["x"]


@pytest.mark.usefixtures("stored")
def test_several_datasets_go_into_one_folder(rlds, out):
    rlds("preprocess", "demo/pendulum", "-t", "keep_top_returns:10", "--as", "best")

    ran = rlds("export", "demo/pendulum", "demo/pendulum@best", "--to", "d4rl", "--lossy", "-o", out / "all", "-q")

    assert ran.out.split() == [str(out / "all" / name) for name in ("pendulum.hdf5", "pendulum@best.hdf5")]


@pytest.mark.usefixtures("stored")
def test_a_mixture_is_refused_with_the_command_for_its_members(rlds, out):
    rlds("mix", "demo/pendulum", "demo/pendulum", "-o", out / "mix.toml")
    (out / "mix.toml").write_text('[[member]]\ndataset = "demo/pendulum"\n[[member]]\ndataset = "d4rl/x-v2"\n')

    ran = rlds("export", "mix.toml", "--to", "hdf5")

    assert ran.code == 2
    assert "rlds export demo/pendulum d4rl/x-v2 --to FORMAT --out DIR" in ran.err


def test_the_formats_are_listed_and_misspelled_ones_corrected(rlds):
    assert rlds("export", "--list", "-q").out.split() == list(FORMATS)
    assert rlds("export", "demo/pendulum").code == 2
    unknown = rlds("export", "demo/pendulum", "--to", "minary")
    assert unknown.code == 2
    assert "did you mean minari?" in unknown.err


@pytest.mark.usefixtures("stored")
def test_the_form_of_images_is_one_that_the_format_has(rlds, out):
    video = rlds("export", "demo/pendulum", "--to", "lerobot", "--images", "video", "--lossy")
    other = rlds("export", "demo/pendulum", "--to", "npz", "--images", "video", "--dry-run")

    assert video.code == 0
    assert json.loads((out / "pendulum-lerobot" / "meta" / "info.json").read_text())["video_path"] is None
    assert other.code == 2
    assert "the format npz has a single form of images" in other.err

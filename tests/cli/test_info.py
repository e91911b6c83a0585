"""``rlds info`` and ``rlds path``."""

from __future__ import annotations

import json
import shutil

import h5py
import numpy as np
import pytest
from servers import serve
from stored_data import trajectory, write_dataset
from upstreams import hub

from datasets_rl.store import version_folder


def test_an_id_that_is_not_stored_shows_what_the_catalog_knows(rlds):
    ran = rlds("info", "d4rl/hopper-medium-v0")

    assert ran.code == 0
    for text in (
        "54.3 MB",
        "CC BY 4.0",
        "arXiv:2004.07219",
        "1000 steps",
        "3,234.30",
        "known to be bad",
        "not downloaded",
    ):
        assert text in ran.out


def flat_file(path):
    path.parent.mkdir(parents=True)
    with h5py.File(path, "w") as file:
        file["observations"], file["actions"] = np.zeros((9, 3), "f4"), np.zeros((9, 2), "f4")
        file["rewards"], file["terminals"], file["timeouts"] = np.zeros(9), np.zeros(9, bool), np.arange(9) % 3 == 2
        file["infos/noise"] = np.random.default_rng(0).random((100_000, 10))
    return path


@pytest.mark.parametrize("place", ["web", "hub", "path"])
def test_an_address_is_described_by_its_layout_before_its_data_is_fetched(rlds, tmp_path, monkeypatch, home, place):
    path = flat_file(tmp_path / "data" / "flat.hdf5")
    data = path.read_bytes()
    with serve({"/flat.hdf5": data}) as web, hub({"me/hopper": path.parent}) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        address = {"web": f"{web.url}/flat.hdf5", "hub": "hf://datasets/me/hopper", "path": str(path)}[place]
        ran = rlds("info", address)
        found = rlds("info", address, "--json", "--layout", "d4rl").json["found"]

    evidence = "flat.hdf5 has observations, actions, rewards and terminals, of 9 rows each"
    assert f"d4rl: {evidence}" in ran.out
    expected = {"layout": "d4rl", "evidence": evidence, "files": 1, "first": "flat.hdf5", "bytes": len(data)}
    assert found == {**expected, "read_as": None}
    ranges = [
        request.headers.get("range") for request in (*web.requests, *server.requests) if "range" in request.headers
    ]
    spans = [[int(end) for end in text.removeprefix("bytes=").split("-")] for text in ranges]
    assert sum(stop - start + 1 for start, stop in spans) < len(data) / 2
    assert not home.exists()


def test_an_address_with_another_layout_or_none_is_an_error(rlds, tmp_path, monkeypatch):
    path = flat_file(tmp_path / "data" / "flat.hdf5")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.npz").write_bytes(b"text")

    assert "they have the layout of d4rl" in rlds("info", path, "--layout", "dsrl").err
    assert "it is not a zip file" in rlds("info", tmp_path / "other").err
    assert "expected an address for a layout" in rlds("info", "d4rl/hopper-medium-v2", "--layout", "d4rl").err
    monkeypatch.setenv("RLDS_OFFLINE", "1")
    offline = rlds("info", "https://host.example/flat.hdf5")
    assert offline.code != 0
    assert "offline: network requests are switched off" in offline.err


def test_a_limit_of_one_step_is_in_the_singular(rlds):
    assert "at most 1 step an episode" in rlds("info", "openml/magic").out


def test_a_stored_dataset_shows_its_content(rlds, stored):
    out = rlds("info", "demo/pendulum").out

    for text in (str(stored), "15,000", "75", "next.observation", "float32", "[15000, 3]", "same-row", "pendulum.hdf5"):
        assert text in out


def test_the_keys_are_those_of_a_batch(rlds, stored):
    from datasets_rl import load

    keys = {
        (one["key"], one["dtype"], tuple(one["shape"]))
        for one in rlds("info", "demo/pendulum", "--json").json["stored"]["keys"]
    }

    whole = load(stored)[:]
    leaves = {(".".join(key) if isinstance(key, tuple) else key, leaf) for key, leaf in whole.items(True, True)}
    assert keys == {
        (key, str(leaf.dtype).removeprefix("torch."), tuple(leaf.shape)) for key, leaf in leaves if key != "index"
    }


def test_statistics_are_those_of_the_episodes(rlds, stored):
    table = np.load(version_folder(stored) / "episodes.npy")

    shown = rlds("info", "demo/pendulum", "--json").json["stored"]["statistics"]

    assert shown["return"]["mean"] == pytest.approx(table["return"].mean())
    assert shown["length"]["max"] == table["length"].max()


def test_a_folder_anywhere_is_described_by_its_manifest(rlds, stored, tmp_path):
    shutil.copytree(stored, tmp_path / "copy")

    ran = rlds("info", tmp_path / "copy", "--json")

    assert ran.json["id"] == "demo/pendulum"
    assert ran.json["stored"]["folder"] == str(tmp_path / "copy")


def test_a_folder_with_an_id_outside_of_the_catalogs_is_described(rlds, stored, tmp_path):
    manifest = json.loads((version_folder(stored) / "manifest.json").read_text())
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "manifest.json").write_text(
        json.dumps({**manifest, "id": "lab/mine", "known_issues": ["it is ours"]})
    )

    ran = rlds("info", tmp_path / "mine")

    assert ran.out.startswith("lab/mine\n")
    assert "it is ours" in ran.out
    assert rlds("info", tmp_path / "mine", "--json").json["catalog"] is None


@pytest.mark.parametrize(
    ("dataset", "address"),
    [
        ("minari/D4RL/antmaze/large-play-v1", "https://github.com/Farama-Foundation/Minari/issues/296"),
        ("lerobot/lerobot/pusht", "https://github.com/real-stanford/diffusion_policy/issues/166"),
        ("openx/droid", "https://github.com/droid-dataset/droid/issues/82"),
        ("robomimic/libero/libero_10", "https://arxiv.org/abs/2606.04233"),
        ("ogbench/visual-cube-single-play-v0", "https://github.com/seohongpark/ogbench/issues/44"),
    ],
)
def test_what_users_report_of_a_public_dataset_is_shown_before_the_download(rlds, dataset, address):
    """The whole sentence with its address, on the page and in the document."""
    (issue,) = [one for one in rlds("info", dataset, "--json").json["catalog"]["known_issues"] if address in one]
    page = " ".join(rlds("info", dataset).out.split())

    assert "known issues" in page
    assert issue in page


def test_the_manifest_takes_precedence_over_the_catalog(rlds, stored):
    """They differ for another upstream of the same id, or for user files."""
    manifest = json.loads((version_folder(stored) / "manifest.json").read_text())
    said = {
        "known_issues": ["a joint was loose"],
        "license": "ours",
        "citation": "us",
        "homepage": "https://us",
        "time_limit": 7,
    }
    (version_folder(stored) / "manifest.json").write_text(json.dumps({**manifest, **said}))

    out = rlds("info", "demo/pendulum").out

    assert rlds("info", "demo/pendulum", "--json").json["catalog"]["license"] not in out
    for text in ("a joint was loose", "ours", "https://us", "7 steps"):
        assert text in out


def test_a_relative_folder_is_a_folder(rlds, stored, monkeypatch):
    monkeypatch.chdir(stored.parent)

    assert rlds("info", "./pendulum", "-q").out == "demo/pendulum\n"
    assert rlds("info", "pendulum", "-q").out == "demo/pendulum\n"


def test_a_folder_without_a_dataset_is_not_reported_as_an_unknown_id(rlds, tmp_path):
    ran = rlds("info", tmp_path)

    assert ran.code == 3
    assert f"{tmp_path} is not a dataset" in ran.err


def test_an_invalid_manifest_is_an_integrity_error(rlds, stored):
    (version_folder(stored) / "manifest.json").write_text("{}")

    assert rlds("info", "demo/pendulum").code == 5


def test_ids_may_have_a_colon(rlds):
    assert rlds("info", "d4rl:hopper-medium-v2", "-q").out == "d4rl/hopper-medium-v2\n"


@pytest.mark.parametrize("command", ["info", "path", "verify"])
def test_the_suggested_command_is_quoted_for_a_shell(rlds, command):
    ran = rlds(command, "roboset/DAPG(human)/door_v2d-v1")

    assert "rlds download 'roboset/DAPG(human)/door_v2d-v1'" in ran.out + ran.err


def test_path_prints_the_folder_and_nothing_else(rlds, stored):
    ran = rlds("path", "demo/pendulum")

    assert (ran.out, ran.err) == (f"{stored}\n", "")
    assert rlds("path", "demo/pendulum", "--json").json["path"] == str(stored)


@pytest.mark.parametrize(("dataset", "said"), [("demo/pendulum", "rlds download"), ("demo/nothing", "184 ids|1 ids")])
def test_path_of_a_missing_dataset_prints_nothing_to_stdout(rlds, dataset, said):
    ran = rlds("path", dataset)

    assert (ran.code, ran.out) == (3, "")
    assert any(text in ran.err for text in said.split("|"))


def test_unknown_final_observations_are_counted_with_a_remedy_and_their_mask_is_a_key(rlds, tmp_path):
    write_dataset(tmp_path / "toy", [trajectory(3, known=False), trajectory(2, seed=1)])
    ran = rlds("info", tmp_path / "toy", "--json")
    (line,) = [one for one in rlds("info", tmp_path / "toy").out.splitlines() if "final observation unknown" in one]

    assert "1 of 2 episodes" in line
    assert "drop_unknown_final" in line
    assert ran.json["stored"]["final_unknown"] == 1
    mask = {"key": "next.final_known", "dtype": "bool", "shape": [5, 1], "where": "episodes.npy"}
    assert mask in ran.json["stored"]["keys"]
    assert ran.err == ""


def test_before_a_download_the_card_has_spaces_figures_and_addresses(rlds):
    out = rlds("info", "minari/D4RL/door/human-v2").out

    for text in (
        "AdroitHandDoor-v1",
        "state [39]",
        "continuous [28], from -1 to 1",
        "6,729, as recorded",
        "about 8.0 MB",
        "hf://datasets/farama-minari/D4RL/door/human-v2",
        "return 2,940.58 (ref_min_score and ref_max_score",
        "manipulation, hand, mujoco, human",
        "not downloaded; rlds download minari/D4RL/door/human-v2",
    ):
        assert text in out


def test_the_document_has_the_card_before_and_after_a_download(rlds, stored):
    before, after = (rlds("info", name, "--json").json for name in ("d4rl/pen-human-v1", "demo/pendulum"))

    assert before["stored"] is None
    assert before["catalog"]["action"] == {"kind": "continuous", "shape": [24], "n": None, "low": -1, "high": 1}
    assert before["catalog"]["basis"]["episodes"]["kind"] == "recorded"
    assert (after["catalog"]["environment"], after["catalog"]["steps"]) == ("Pendulum-v1", 15_000)
    assert after["stored"]["folder"] == str(stored)


def test_a_mixture_shows_its_members_with_their_shares(rlds, stored, tmp_path):
    path = tmp_path / "mix.toml"
    path.write_text(
        '[[member]]\ndataset = "demo/pendulum"\nweight = 3\n[[member]]\ndataset = "d4rl/hopper-medium-v2"\nweight = 1\n'
    )
    ran, document = rlds("info", path), rlds("info", path, "--json").json

    assert "not downloaded\t152.8 MB: rlds download d4rl/hopper-medium-v2" in ran.out
    assert "demo/pendulum\t75.0%\t15,000\t75\tstate[3]\tcont[1]\tyes" in ran.out
    assert [one["share"] for one in document["members"]] == [0.75, 0.25]
    assert (document["steps"], document["score"]) == (1_015_000, None)
    assert document["basis"]["steps"]["kind"] == "estimated"
    assert "steps\tabout 1,015,000" in ran.out
    assert document["members"][0]["folder"] == str(stored)
    assert rlds("info", tmp_path / "none.toml").code == 2


def test_a_derived_dataset_that_was_not_made_shows_what_it_would_be_made_of(rlds):
    ran = rlds("info", "demo/pendulum@best")

    assert ran.out.startswith("demo/pendulum, of which demo/pendulum@best is made\n")
    assert "folder\tit was not made; rlds preprocess demo/pendulum --recipe NAME" in ran.out


def test_a_layout_for_a_stored_id_is_an_error(rlds):
    assert rlds("download", "demo/pendulum").code == 0
    ran = rlds("info", "demo/pendulum", "--layout", "d4rl")
    assert ran.code == 2
    assert "expected an address for a layout" in ran.err

"""``rlds mix``: the file that it writes, its report, and invalid options."""

from __future__ import annotations

import pytest
from stored_data import columns, trajectory, write_dataset

from datasets_rl import load_mixture
from datasets_rl.read.toml import parse_toml


@pytest.fixture
def own_dataset(tmp_path):
    return write_dataset(tmp_path / "own_dataset", [trajectory(10, seed=n) for n in range(4)], columns()).folder


@pytest.mark.usefixtures("stored")
def test_a_mixture_is_written_and_loaded(rlds, own_dataset, tmp_path):
    out = tmp_path / "mixes" / "mix.toml"
    out.parent.mkdir()
    ran = rlds(
        "mix",
        "demo/pendulum",
        own_dataset,
        "--weights",
        "0.7,0.3",
        "--batch-size",
        10,
        "-o",
        out,
        "--missing",
        "drop",
        "--json",
    )

    assert ran.code == 2
    assert "float32 [3]  float32 [3]" not in ran.err
    assert ran.err.count("action") == 1  # [1] and [2]
    assert ran.json["error"]["why"].startswith("the dtype or the shape differs in action")
    ran = rlds("mix", own_dataset, own_dataset, "--weights", "0.7,0.3", "--batch-size", 10, "-o", out, "--json")
    assert [one["share"] for one in ran.json["members"]] == [0.7, 0.3]
    assert {"key": "action", "kinds": ["float32 [2]", "float32 [2]"]} in ran.json["keys"]
    assert parse_toml(out.read_text())["member"][0] == {"dataset": "../own_dataset", "weight": 0.7}
    assert len(load_mixture(out).sample()) == 10


@pytest.mark.usefixtures("stored")
def test_keys_that_some_members_lack_are_three_lines_with_the_option(rlds, tmp_path):
    rlds("preprocess", "demo/pendulum", "-t", "rename:observation,obs", "-o", tmp_path / "other")
    ran = rlds("mix", "demo/pendulum", tmp_path / "other")

    assert ran.code == 2
    assert ran.err == (
        "rlds: the members do not fit together\n"
        "  why: only some have next.obs, next.observation, obs, observation\n"
        "  next: make them alike with transforms or `rlds preprocess ...`, or --missing drop or --missing zero for keys "
        "that some lack\n"
    )
    assert rlds("mix", "demo/pendulum", tmp_path / "other", "--missing", "drop").code == 0


def test_a_mixture_from_another_root_names_the_folders(rlds, pendulum, tmp_path):
    out = tmp_path / "mix.toml"
    ran = rlds("mix", "demo/pendulum", "demo/pendulum", "--root", pendulum, "-o", out, "--json")

    assert (tmp_path / parse_toml(out.read_text())["member"][0]["dataset"]).samefile(ran.json["members"][0]["folder"])
    assert len(load_mixture(out)[0]) == ran.json["members"][0]["steps"]


def test_a_mixture_is_printed_as_a_page(rlds, own_dataset):
    ran = rlds("mix", own_dataset, own_dataset, "--temperature", 2, "-t", "reward_scaling:0,0.1", "--slice-len", 4)

    assert f"{own_dataset}\t40\t0.5000\t128.0" in ran.err
    assert "observation\tfloat32 [3]\tfloat32 [3]" in ran.err
    assert "temperature = 2.0" in ran.out
    assert 'transforms = ["reward_scaling:0,0.1"]' in ran.out


def test_what_goes_to_stdout_is_toml_and_nothing_else_and_loads(rlds, own_dataset, tmp_path):
    out = tmp_path / "mix.toml"
    out.write_text(rlds("mix", own_dataset, own_dataset, "--weights", "3,1", "--batch-size", 8).out)

    assert [one["weight"] for one in parse_toml(out.read_text())["member"]] == [3.0, 1.0]
    assert len(load_mixture(out).sample()) == 8


def test_with_out_only_the_path_goes_to_stdout(rlds, own_dataset, tmp_path):
    assert rlds("mix", own_dataset, own_dataset, "-o", tmp_path / "mix.toml").out == f"{tmp_path / 'mix.toml'}\n"


@pytest.mark.parametrize(
    ("out", "why", "hint"),
    [
        ("nodir/mix.toml", "nodir is not a folder", "mkdir -p"),
        ("file/mix.toml", "file is not a folder", "mkdir -p"),
        ("folder", "the path is a folder", "as in mix.toml"),
    ],
)
def test_an_invalid_output_path_is_refused_without_a_temporary_name(rlds, own_dataset, tmp_path, out, why, hint):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    ran = rlds("mix", own_dataset, own_dataset, "-o", tmp_path / out)

    assert ran.code == 2
    assert why in ran.err
    assert hint in ran.err
    assert ".tmp" not in ran.err


def test_a_mixture_can_be_sampled(rlds, own_dataset, tmp_path):
    out = tmp_path / "mix.toml"
    rlds("mix", own_dataset, own_dataset, "-o", out)
    ran = rlds("sample", out, "-n", 8, "--json")

    keys = {one["key"]: one for one in ran.json["keys"]}
    assert keys["index.buffer_ids"]["values"] == [0, 0, 0, 0]
    assert keys["observation"]["shape"] == [8, 3]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--weights", "1"), "1 numbers for 2"),
        (("--weights", "a,b"), "not a list of numbers"),
        (("--weights", "1,2", "--temperature", "2"), "without weights"),
        (("--final-weights", "1,2"), "expected both, with anneal >= 1, or neither"),
        (("--missing", "maybe"), "expected one of refuse, drop, zero"),
        (("--slice-len", 11, "--batch-size", 12), "expected a multiple of 11"),
        (("--slice-len", 11, "--batch-size", 12), "has 10 steps"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(map(str, value)),
)
def test_invalid_options_are_refused_and_nothing_is_written(rlds, own_dataset, tmp_path, options, said):
    ran = rlds("mix", own_dataset, own_dataset, *options, "-o", tmp_path / "mix.toml")

    assert ran.code == 2
    assert said in ran.err
    assert not (tmp_path / "mix.toml").exists()


def test_an_existing_file_is_not_replaced(rlds, own_dataset, tmp_path):
    out = tmp_path / "mix.toml"
    out.write_text("own_dataset")
    ran = rlds("mix", own_dataset, own_dataset, "-o", out)

    assert (ran.code, out.read_text()) == (2, "own_dataset")
    assert "--force" in ran.err
    assert rlds("mix", own_dataset, own_dataset, "-o", out, "--force").code == 0
    assert "[[member]]" in out.read_text()


def test_a_missing_dataset_is_not_downloaded(rlds, own_dataset):
    ran = rlds("mix", own_dataset, "demo/pendulum")

    assert ran.code == 3
    assert "rlds download demo/pendulum" in ran.err


@pytest.mark.usefixtures("stored")
def test_a_share_after_an_id_is_refused_with_the_command_that_is_meant(rlds):
    ran = rlds("mix", "demo/pendulum:0.8", "demo/pendulum:.2")

    assert ran.code == 2
    assert "rlds: demo/pendulum:0.8, demo/pendulum:.2 have shares in them" in ran.err
    assert "rlds mix demo/pendulum demo/pendulum --weights 0.8,.2" in ran.err
    assert rlds("mix", "demo/pendulum", "demo/pendulum", "--weights", "0.8,.2").code == 0


def test_episodes_that_members_have_in_common_are_counted(rlds, stored):
    del stored
    assert rlds("preprocess", "demo/pendulum", "-t", "keep_episodes:0:12", "--as", "few").code == 0
    ran = rlds("mix", "demo/pendulum", "demo/pendulum@few", "--json")
    assert ran.json["shared"] == [{"datasets": ["demo/pendulum", "demo/pendulum@few"], "episodes": 12}]
    lines = rlds("mix", "demo/pendulum", "demo/pendulum@few").err.splitlines()
    assert lines[-1] == "demo/pendulum\tdemo/pendulum@few\t12"

"""``rlds preprocess``."""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np
import pytest
from raw.images import encoded, scene
from stored_data import FLAGS, Trajectory, write_dataset

from datasets_rl.format.reader import StoredDataset
from datasets_rl.format.schema import Column
from datasets_rl.ted.episode import EncodedImages


def test_the_recipes_and_steps_are_listed(rlds):
    ran = rlds("preprocess", "--list", "--json")

    recipes = {one["name"]: one["summary"] for one in ran.json["recipes"]}
    steps = {one["name"]: one["arguments"] for one in ran.json["steps"]}
    assert "Implicit Q-Learning" in recipes["iql_antmaze"]
    assert steps["keep_top_returns"] == "percent=10.0, of=episodes"
    assert steps["resize"] == "w, h, interpolation, in_keys, out_keys, check_layout"
    page = rlds("preprocess", "--list").out
    assert all(name in page for name in (*recipes, *steps))
    assert rlds("preprocess", "--list", "-q").out.split() == list(recipes)


def test_a_recipe_replaces_the_dataset_and_undo_restores_it(rlds, stored):
    before = np.array(StoredDataset(stored).column(("next", "reward")))

    ran = rlds("preprocess", "demo/pendulum", "--recipe", "iql_antmaze", "--in-place")
    assert (ran.code, ran.out) == (0, f"{stored}\n")
    assert "demo/pendulum: 15,000 steps in 75 episodes" in ran.err
    assert np.array_equal(StoredDataset(stored).column(("next", "reward")), before - 1)

    again = rlds("preprocess", "demo/pendulum", "--recipe", "iql_antmaze", "--in-place", "--json")
    assert again.json["datasets"][0]["present"]
    back = rlds("use", "demo/pendulum", "--undo")
    assert back.out == f"{stored}\n"
    assert back.err == "demo/pendulum: version 1 is current, 15,000 steps in 75 episodes, made by download\n"
    assert np.array_equal(StoredDataset(stored).column(("next", "reward")), before)
    twice = rlds("use", "demo/pendulum", "--undo", "--json")
    assert twice.code == 2
    assert twice.json["error"]["what"] == f"{stored} has no earlier version"


def test_steps_follow_a_recipe_and_the_result_goes_to_the_given_folder(rlds, stored, tmp_path):
    before = StoredDataset(stored).manifest
    out = tmp_path / "best"
    ran = rlds(
        "preprocess",
        stored,
        "-r",
        "top_10_percent",
        "-t",
        "frame_skip:2",
        "-t",
        "cast:float16,observation",
        "-o",
        out,
        "--json",
    )

    assert ran.code == 0
    made = StoredDataset(out)
    assert ran.json["datasets"][0]["steps"] == len(made) == 700
    assert (made.episodes.lengths == 100).all()
    assert made.schema["observation",].dtype == np.float16
    assert StoredDataset(stored).manifest == before
    assert [step["use"] for step in made.manifest.history[0]["recipe"]["steps"]] == [
        "keep_top_returns",
        "frame_skip",
        "cast",
    ]
    returns = StoredDataset(stored).episodes["return"]
    assert made.manifest.metadata["preprocess/0/0.keep_top_returns/min"] == np.sort(returns)[-7]


def test_a_dry_run_shows_the_result_and_writes_nothing(rlds, stored):
    before = sorted(path.name for path in stored.parent.rglob("*"))
    ran = rlds("preprocess", "demo/pendulum", "-r", "her_sparse", "-t", "returns_to_go", "--dry-run")
    assert ran.code == 8
    assert "there is no field observation.achieved_goal" in ran.err

    words = ("preprocess", "demo/pendulum", "-t", "returns_to_go", "-t", "n_step_targets:3", "--dry-run")
    found = rlds(*words, "--json").json["datasets"][0]
    keys = {one["key"]: one for one in found["keys"]}
    assert (found["steps"], found["episodes"], found["present"]) == (15000, 75, False)
    assert keys["returns_to_go"]["shape"] == [15000, 1]
    assert keys["observation"]["stored"] == "once for t and t + 1"
    assert len(keys["n_step.observation"]["values"]) == 4
    assert found["bytes"] > 0 < found["seconds"]
    page = rlds(*words).out
    assert "time in a process, about" in page
    assert "once for t and t + 1" in page
    assert sorted(path.name for path in stored.parent.rglob("*")) == before


def test_a_dry_run_shows_the_first_values_of_encoded_images(rlds, tmp_path):
    frames = [scene(4, 5, 3, seed=number) for number in range(4)]
    film = Trajectory(
        {
            ("next", "reward"): np.float32([[0.5], [1], [2]]),
            ("next", "terminated"): np.array([[False], [False], [True]]),
            ("next", "truncated"): np.zeros((3, 1), bool),
        },
        {("camera",): EncodedImages([encoded(one) for one in frames])},
    )
    fields = [Column(("camera",), np.dtype("u1"), (4, 5, 3), shared=True, form="encoded")]
    fields += [Column(("next", "reward"), np.dtype("f4"), (1,)), *FLAGS]
    folder = write_dataset(tmp_path / "film", [film], fields).folder

    ran = rlds("preprocess", folder, "-t", "reward_scaling:scale=2", "--dry-run", "--json")
    values = {one["key"]: one["values"] for one in ran.json["datasets"][0]["keys"]}
    assert values["camera"] == frames[0].ravel()[:4].tolist()
    assert values["next.reward"] == [1, 2, 4]


def test_the_history_is_printed_back_to_the_raw_bytes(rlds, stored):
    raw = StoredDataset(stored).manifest.raw[0]
    rlds("preprocess", "demo/pendulum", "-r", "td3_bc", "--in-place")
    rlds("preprocess", "demo/pendulum", "-t", "reward_scaling:scale=0.1", "--in-place")

    page = rlds("info", "demo/pendulum").out
    assert raw.sha256 in page
    assert page.index("1. td3_bc") < page.index("2. reward_scaling:scale=0.1")
    history = rlds("info", "demo/pendulum", "--json").json["stored"]["history"]
    assert [one["recipe"]["steps"][0]["use"] for one in history] == ["normalize", "reward_scaling"]
    assert history[0]["of"]["files"] != history[1]["of"]["files"]


def test_a_user_recipe_can_be_toml_or_python(rlds, stored, tmp_path):
    (tmp_path / "mine.toml").write_text('summary = "mine"\n[[step]]\nuse = "reward_clipping"\nclamp_min = -5.0\n')
    (tmp_path / "mine.py").write_text("def double(step):\n    return step.set('double', step['action'] * 2)\n")

    assert rlds("preprocess", stored, "-r", tmp_path / "mine.toml", "-o", tmp_path / "a").code == 0
    assert StoredDataset(tmp_path / "a").column(("next", "reward")).min() == -5
    words = ("preprocess", stored, "-r", f"{tmp_path / 'mine.py'}:double", "--num-frames", 300, "-o", tmp_path / "b")
    assert rlds(*words).code == 0
    made = StoredDataset(tmp_path / "b")
    assert np.array_equal(made.column(("double",)), made.column(("action",)) * 2)
    assert made.episodes.lengths.tolist() == [200, 100]


def test_ctrl_c_prints_how_to_continue_and_the_dataset_is_unchanged(rlds, stored, tmp_path):
    before = StoredDataset(stored).manifest
    recipe = tmp_path / "stops.py"
    recipe.write_text("def stop(step):\n    raise KeyboardInterrupt\n")

    ran = rlds("preprocess", "demo/pendulum", "-r", f"{recipe}:stop")
    assert ran.code == 130
    assert f"to continue: rlds preprocess demo/pendulum -r {recipe}:stop" in ran.err
    assert StoredDataset(stored).manifest == before


@pytest.mark.usefixtures("stored")
@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 2, "no dataset is named"),
        (("demo/pendulum",), 2, "no recipe and no step is named"),
        (("demo/pendulum", "-r", "nope"), 2, "there is no recipe 'nope'\n  why: expected one of atari_dqn"),
        (("demo/pendulum", "-t", "rezise:3", "-t", "cast:a"), 2, "there is no step 'rezise'"),
        (("demo/pendulum", "-t", "cast:float16", "--max-ram", "lots"), 2, "'lots' is not a size"),
        (("demo/pendulum", "-t", "cast:float16", "--address", "auto"), 2, "--address auto is for a cluster"),
        (("d4rl/hopper-medium-v2", "-r", "td3_bc"), 3, "rlds download d4rl/hopper-medium-v2"),
        (("demo/pendulum", "-t", "keep_returns:1000"), 8, "nothing is left"),
        (
            ("demo/pendulum", "-t", "keep_where:next.terminated,== true,last"),
            8,
            "why: 0 of 75 episodes pass step 0 (keep_where: next.terminated, == true, last)\n",
        ),
        (
            ("demo/pendulum", "-t", "keep_episodes:0:20", "-t", "cast:float16", "-t", "keep_lengths:1000"),
            8,
            "why: 0 of 20 episodes pass step 2 (keep_lengths: 1000). 20 of 75 reach this step\n",
        ),
        (("demo/pendulum", "-t", "select:x"), 8, "there is no field x"),
    ],
    ids=["none", "no-recipe", "unknown", "faults", "size", "address", "not-there", "empty", "where", "later", "field"],
)
def test_invalid_requests_are_errors_with_exit_codes(rlds, words, code, said):
    ran = rlds("preprocess", *words)

    assert ran.code == code
    assert said in ran.err


def test_with_a_destination_several_datasets_become_one(rlds, stored, tmp_path):
    rlds("preprocess", stored, "-t", "keep_episodes:0:10", "-o", tmp_path / "few")
    words = (
        "preprocess",
        "demo/pendulum",
        tmp_path / "few",
        "-t",
        "select:observation,action,dataset",
        "-o",
        tmp_path / "both",
    )

    plan = rlds(*words, "--dry-run", "--json").json["datasets"]
    assert [one["steps"] for one in plan] == [17000]
    assert rlds(*words).out == f"{tmp_path / 'both'}\n"
    made = StoredDataset(tmp_path / "both")
    assert np.bincount(made.column(("dataset",))).tolist() == [15000, 2000]
    page = rlds("info", tmp_path / "both").out
    assert page.count("1. merge") == 2
    assert "demo/pendulum, 2,000 steps" in page


def test_in_place_each_of_several_datasets_is_replaced(rlds, stored):
    ran = rlds(
        "preprocess", "demo/pendulum", "d4rl/hopper-medium-v2", "-t", "cast:float16,observation", "--in-place", "--json"
    )

    assert ran.code == 1
    assert [one["error"] is None for one in ran.json["datasets"]] == [True, False]
    assert StoredDataset(stored).schema["observation",].dtype == np.float16


@pytest.mark.usefixtures("stored")
def test_the_result_has_the_name_of_its_folder(rlds, tmp_path):
    ran = rlds("preprocess", "demo/pendulum", "--num-frames", 5000, "-t", "cast:float16", "-o", tmp_path / "try")

    assert ran.err.startswith("try: 5,000 steps in 25 episodes, ")
    assert ran.err.endswith(", made of demo/pendulum\n")


def test_the_order_of_the_fields_of_a_vector_is_printed_and_stored(rlds, tmp_path):
    names = [f"o{number}" for number in range(11)]
    files = tmp_path / "wide"
    files.mkdir()
    (files / "dataset.toml").write_text('alignment = "one-more"\n[episodes]\nby = "file"\n')
    states = {f"observation/{name}": np.full(4, number, np.float32) for number, name in enumerate(names)}
    np.savez(files / "0.npz", **states, action=np.ones((3, 1), np.float32), reward=np.ones(3, np.float32))
    rlds("download", "local/wide", "--from-local", files)
    order = ", ".join(f"observation.{name} 1" for name in names)

    assert order in joined(rlds("preprocess", "local/wide", "-r", "flat_observation", "--dry-run").out)
    ran = rlds("preprocess", "local/wide", "-r", "flat_observation")
    assert f"observation is, in this order: {order}" in joined(ran.err)
    for command in ("info", "describe"):
        assert order in joined(rlds(command, "local/wide@flat_observation").out)
    assert rlds("info", "local/wide@flat_observation", "--json").json["stored"]["orders"] == {"observation": order}
    assert StoredDataset(Path(ran.out.strip())).column(("observation",))[0].tolist() == [*range(11)]


def joined(text):
    return " ".join(text.split())


def test_undo_names_the_recipe_of_the_restored_version(rlds, stored):
    for step in ("keep_top_returns:50", "reward_scaling:scale=2"):
        rlds("preprocess", "demo/pendulum", "-t", step, "--in-place")
    ran = rlds("use", "demo/pendulum", "--undo")

    assert ran.err == "demo/pendulum: version 2 is current, 7,400 steps in 37 episodes, made by keep_top_returns:50\n"
    assert len(StoredDataset(stored)) == 7_400
    assert rlds("use", "demo/pendulum", "--undo", "-q").err == ""


PAGE = Path(__file__).parents[2] / "docs" / "preprocess.md"
EXAMPLES = [
    line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("rlds preprocess demo/pendulum -t '")
]


@pytest.mark.usefixtures("stored")
def test_the_examples_of_the_guide_select_episodes_of_the_demo(rlds, tmp_path):
    assert len(EXAMPLES) == 3
    for line in EXAMPLES:
        *words, out = shlex.split(line)[1:]
        assert rlds(*words, tmp_path / out).code == 0, line

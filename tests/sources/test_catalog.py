"""The catalog of D4RL is complete and fast to read."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

from datasets_rl.errors import UnknownIdError
from datasets_rl.sources import Entry, find, get_source, source_names
from datasets_rl.sources.d4rl import SOURCE

BASES = ["http://rail.eecs.berkeley.edu/datasets/offline_rl/", "https://rail.eecs.berkeley.edu/datasets/offline_rl/"]


@pytest.fixture(scope="module")
def entries() -> list[Entry]:
    return [SOURCE.entry(name) for name in SOURCE.ids()]


def test_the_counts_are_those_of_the_tables_of_the_upstream(entries):
    """d4rl/infos.py (155 ids) and its gym registrations (28 more); digests from the checksums of TFDS."""
    assets = [asset for entry in entries for asset in SOURCE.assets(entry.name)]

    assert len(entries) == 183
    assert len({asset.urls[0] for asset in assets}) == 174
    assert sum(asset.sha256 is not None for asset in assets) == 103
    assert len({asset.sha256 for asset in assets} - {None}) == 97
    assert sum(asset.size is not None for asset in assets) == 103
    assert [entry.name for entry in entries if entry.score is None] == ["carla-town-render-v0"]


def test_the_catalog_has_all_families(entries):
    count = {}
    for entry in entries:
        count[entry.params["family"]] = count.get(entry.params["family"], 0) + 1

    assert count == {
        "mujoco": 69,
        "adroit": 32,
        "antmaze": 24,
        "bullet": 20,
        "bullet-maze2d": 4,
        "carla": 5,
        "flow": 4,
        "kitchen": 3,
        "maze2d": 20,
        "minigrid": 2,
    }


def test_every_id_has_its_metadata(entries):
    for entry in entries:
        (asset,) = SOURCE.assets(entry.name)
        *own, mirror = asset.urls
        assert [url[: -len(entry.params["path"])] for url in own] == BASES
        assert mirror == f"hf://datasets/imone/D4RL/{Path(entry.params['path']).name}"
        assert asset.path.endswith(".hdf5")
        assert asset.path == entry.params["path"]
        assert asset.sha256 is None or re.fullmatch("[0-9a-f]{64}", asset.sha256)
        assert entry.bytes == asset.size or (asset.size is None and entry.basis["bytes"].kind != "exact")
        assert (entry.license, entry.homepage) == ("CC BY 4.0", "https://github.com/Farama-Foundation/D4RL")
        assert "arXiv:2004.07219" in entry.citation
        assert entry.time_limit > 0
        assert entry.title
        assert entry.score is None or entry.score.low < entry.score.high
        assert all(fault.endswith(".") for fault in entry.known_issues)


@pytest.mark.parametrize(
    ("name", "path", "limit", "low", "high"),
    [
        ("halfcheetah-medium-v2", "gym_mujoco_v2/halfcheetah_medium-v2.hdf5", 1000, -280.178953, 12135.0),
        ("hopper-medium-replay-v0", "gym_mujoco/hopper_mixed.hdf5", 1000, -20.272305, 3234.3),
        ("walker2d-medium-replay-v0", "gym_mujoco/walker_mixed.hdf5", 1000, 1.629008, 4592.3),
        ("pen-human-v1", "hand_dapg_v1/pen-human-v1.hdf5", 100, 96.262799, 3076.8331017826877),
        (
            "antmaze-large-play-v2",
            "ant_maze_v2/Ant_maze_hardest-maze_noisy_multistart_True_multigoal_False_sparse_fixed.hdf5",
            1000,
            0.0,
            1.0,
        ),
        ("kitchen-partial-v0", "kitchen/kitchen_microwave_kettle_light_slider-v0.hdf5", 280, 0.0, 4.0),
        ("maze2d-large-v1", "maze2d/maze2d-large-sparse-v1.hdf5", 800, 6.7, 273.99),
    ],
)
def test_the_catalog_has_the_ids_of_papers(name, path, limit, low, high):
    entry = find(f"d4rl/{name}")

    assert SOURCE.assets(name)[0].urls[0] == BASES[0] + path
    assert entry.time_limit == limit
    assert (entry.score.low, entry.score.high) == (low, high)


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("maze2d-umaze-v1", "not the end of an episode"),
        ("maze2d-umaze-v1", "off by one"),
        ("kitchen-mixed-v0", "ends of demonstrations"),
        ("antmaze-umaze-v0", "v2 is the corrected version"),
        ("antmaze-umaze-diverse-v2", "issues/199"),
        ("antmaze-eval-large-play-v0", "swapped"),
        ("door-human-v1", "terminals is False everywhere"),
        ("hopper-medium-v0", "known to be bad"),
        ("hopper-random-v2", "4 steps that carries neither flag"),
        ("walker2d-expert-v1", "not trustworthy"),
        ("walker2d-medium-expert-v2", "Two files joined"),
        ("carla-town-render-v0", "the same file"),
        ("carla-town-full-v0", "the same file"),
        ("bullet-maze2d-open-v0", "not the end of an episode"),
    ],
)
def test_the_catalog_has_known_issues(name, word):
    assert any(word in fault for fault in find(f"d4rl/{name}").known_issues)


def test_datasets_without_defects_have_no_known_issues():
    assert find("d4rl/hopper-medium-v2").known_issues == ()
    assert not find("d4rl/hopper-medium-v2").deprecated
    assert find("d4rl/hopper-medium-v0").deprecated


def test_an_unknown_id_names_the_nearest_ones():
    with pytest.raises(UnknownIdError) as caught:
        SOURCE.entry("hopper-medum-v2")

    assert caught.value.nearest[0] == "d4rl/hopper-medium-v2"
    assert "183 ids of d4rl" in str(caught.value)


@pytest.mark.parametrize("wanted", ["d4lr/hopper-medium-v2", "D4RL/hopper-medium-v2", "D4RL:hoper-medium-v2"])
def test_an_id_with_a_misspelled_source_names_the_nearest_whole_id(wanted):
    with pytest.raises(UnknownIdError) as caught:
        find(wanted)

    assert caught.value.nearest[0] == "d4rl/hopper-medium-v2"
    assert caught.value.wanted == wanted


def test_no_sentence_of_the_catalog_is_unused():
    catalog = json.loads(files("datasets_rl.sources.d4rl").joinpath("catalog.json").read_text("utf-8"))
    used = {
        fault
        for entry in (*catalog["ids"].values(), *catalog["groups"].values())
        for fault in entry.get("known_issues", ())
    }

    assert used == set(catalog["known_issues"])


def test_reading_the_catalog_imports_neither_numpy_nor_torch():
    script = """
import sys
from datasets_rl import sources
source = sources.get_source("d4rl")
count = len([source.entry(name) for name in source.ids()])
print(count, *({"numpy", "torch", "h5py", "pandas", "httpx"} & set(sys.modules)))
"""
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()

    assert out == ["183"]


def test_demo_and_d4rl_are_sources():
    assert {"d4rl", "demo"} <= set(source_names())


@pytest.mark.parametrize(
    ("name", "thread"),
    [
        ("minari/D4RL/antmaze/large-play-v1", "github.com/Farama-Foundation/Minari/issues/296"),
        ("lerobot/lerobot/droid_100", "github.com/droid-dataset/droid/issues/82"),
        ("lerobot/lerobot/droid_1.0.1", "github.com/droid-dataset/droid/issues/82"),
        ("lerobot/lerobot/pusht", "github.com/real-stanford/diffusion_policy/issues/166"),
        ("lerobot/lerobot/aloha_sim_insertion_human", "github.com/tonyzhaozh/aloha/issues/48"),
        ("lerobot/lerobot/xarm_lift_medium", "github.com/huggingface/lerobot/issues/4513"),
        ("openx/droid", "github.com/droid-dataset/droid/issues/82"),
        ("openx/droid", "github.com/Physical-Intelligence/openpi/pull/625"),
        ("openx/bridge", "github.com/google-deepmind/open_x_embodiment/issues/15"),
        ("openx/utaustin_mutex", "github.com/google-deepmind/open_x_embodiment/issues/33"),
        ("openx/jaco_play", "github.com/huggingface/lerobot/issues/4513"),
        ("robomimic/libero/libero_goal", "github.com/Lifelong-Robot-Learning/LIBERO/issues/148"),
        ("robomimic/libero/libero_10", "github.com/Lifelong-Robot-Learning/LIBERO/issues/148"),
        ("robomimic/libero/libero_90", "github.com/Lifelong-Robot-Learning/LIBERO/issues/76"),
        ("robomimic/libero/libero_spatial", "arxiv.org/abs/2606.04233"),
        ("robomimic/libero/libero_object", "arxiv.org/abs/2510.03827"),
        ("ogbench/visual-antmaze-medium-navigate-v0", "github.com/seohongpark/ogbench/issues/44"),
        ("ogbench/puzzle-4x4-play-singletask-task1-v0", "github.com/seohongpark/ogbench/issues/26"),
        ("d4rl/relocate-human-v1", "github.com/Farama-Foundation/D4RL/issues/196"),
        ("d4rl/antmaze-large-diverse-v2", "github.com/seohongpark/HIQL/issues/2"),
        ("vd4rl/main/humanoid_walk/medium/64px", "github.com/conglu1997/v-d4rl/issues/13"),
    ],
)
def test_what_users_report_is_a_known_issue_with_the_address_of_the_thread(name, thread):
    assert any(f"(https://{thread})." in fault for fault in find(name).known_issues)


def test_a_known_issue_names_a_thread_by_its_address():
    """A number alone, as in "issue 86", leads nowhere."""
    entries = [get_source(name).entry(one) for name in source_names() for one in get_source(name).ids()]
    faults = {fault for entry in entries for fault in entry.known_issues}

    assert len(faults) > 50
    assert [fault for fault in faults if re.search(r"\bissues? \d|\w#\d", fault)] == []


def test_an_issue_of_images_is_not_an_issue_of_states():
    assert not any("issues/44" in fault for fault in find("ogbench/antmaze-medium-navigate-v0").known_issues)

"""What papers use datasets for, as the catalogs state it."""

from __future__ import annotations

import re

import pytest

from datasets_rl import list_datasets, sources
from datasets_rl.catalog.listing import info
from datasets_rl.cli.app import main
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.sources.purposes import IMAGE, PURPOSES

CATALOGS = [source for source in sources.importable_sources()[0] if source.ids()]


@pytest.mark.parametrize("source", CATALOGS, ids=lambda source: source.name)
def test_every_dataset_of_a_catalog_has_a_purpose_and_every_purpose_is_defined(source):
    stated = source.catalog["used_for"]

    assert stated.keys() <= PURPOSES.keys() - {IMAGE}
    # Ids of D4RL with "eval" were for tuning, and no table has them.
    assert [name for name in source.ids() if not source.purposes(name) and "-eval" not in name] == []
    assert [word for word, pattern in stated.items() if not any(map(re.compile(pattern).fullmatch, source.ids()))] == []


@pytest.mark.parametrize(
    ("dataset_id", "expected"),
    [
        ("d4rl/antmaze-large-play-v2", "benchmark, goal-conditioned, offline-to-online, sparse-reward, stitching"),
        ("d4rl/hopper-medium-v2", "benchmark, offline-to-online"),
        ("d4rl/kitchen-mixed-v0", "benchmark, imitation, multi-task, offline-to-online, sparse-reward, stitching"),
        ("d4rl/maze2d-large-dense-v1", "benchmark, goal-conditioned, stitching"),
        ("dsrl/OfflineCarCircle-v0", "benchmark, safe"),
        ("ogbench/visual-cube-double-play-v0", "benchmark, goal-conditioned, image"),
        ("ogbench/antmaze-giant-stitch-singletask-v0", "benchmark, offline-to-online, sparse-reward, stitching"),
        ("robomimic/libero/libero_10", "image, imitation, language, multi-task, robots"),
        ("minari/D4RL/pen/human-v2", "benchmark, imitation, offline-to-online"),
        ("openml/shuttle", "bandit"),
        ("vd4rl/distracting/walker_walk_random/64px/easy", "generalization, image"),
        ("hf/me/any", ""),
    ],
)
def test_the_purposes_of_datasets_that_are_known(dataset_id, expected, monkeypatch, tmp_path):
    monkeypatch.setenv("RLDS_HOME", str(tmp_path))

    assert ", ".join(info(dataset_id).used_for) == expected
    assert info(dataset_id).to_json()["used_for"] == [*filter(None, expected.split(", "))]


def test_datasets_are_listed_by_all_of_several_purposes(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("RLDS_HOME", str(tmp_path))
    found = list_datasets(used_for=["goal-conditioned", "image"])

    assert "ogbench/visual-antmaze-large-navigate-v0" in found
    assert all("visual" in name or "powderworld" in name or "minigrid" in name.lower() for name in found)
    assert main(["list", "--for", "goal-conditioned", "--for", "image", "-q"]) == 0
    assert capsys.readouterr().out.split() == found
    assert len(list_datasets(used_for="safe")) == 38
    assert len(list_datasets()) > 1500


def test_a_purpose_that_is_misspelled_is_named(capsys):
    with pytest.raises(InvalidArgumentError, match=r"'safety' is not a purpose, expected one of bandit, benchmark"):
        list_datasets(used_for="safety")
    assert main(["list", "--for", "goal-conditoned"]) == 2
    assert "did you mean goal-conditioned?" in capsys.readouterr().err

"""What the catalogs state about every dataset before a download."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import datasets_rl
from datasets_rl import sources
from datasets_rl.format.space_summary import FIGURES

ENTRIES = [origin.entry(name) for origin in sources.importable_sources()[0] for name in origin.ids()]


def test_fewer_than_a_tenth_of_the_ids_have_no_size():
    """Two sources publish no sizes; a number of ours would be invented."""
    stated = [entry for entry in ENTRIES if entry.source not in {"neorl", "og_marl"}]

    assert sum(entry.bytes is None for entry in stated) < len(stated) / 10


def test_the_docs_state_how_many_ids_of_each_source_have_no_size_and_no_steps():
    page = (Path(datasets_rl.__file__).parents[1] / "docs" / "sources" / "README.md").read_text(encoding="utf-8")
    table = page.partition("## Sizes and steps that are not stated\n")[2].partition("\n## ")[0]
    stated = re.findall(r"^\| `(\w+)` \| (\d+) \| (\d+) \|", table, flags=re.MULTILINE)
    missing = {entry.source: [0, 0] for entry in ENTRIES}
    for entry in ENTRIES:
        missing[entry.source][0] += entry.bytes is None
        missing[entry.source][1] += entry.steps is None

    found = {name: [int(no_bytes), int(no_steps)] for name, no_bytes, no_steps in stated}
    expected = {name: counts for name, counts in missing.items() if any(counts)}
    rows = [f"| `{name}` | {no_bytes} | {no_steps} | why |" for name, (no_bytes, no_steps) in expected.items()]

    assert found == expected, (
        "state the figures in the catalog, or write these rows, with the reason, in the table of sizes and steps that are"
        f" not stated of docs/sources/README.md:\n{chr(10).join(row for row in rows if row[:-6] not in table)}"
    )


def test_each_figure_is_a_number_with_a_basis():
    for entry in ENTRIES:
        assert all(getattr(entry, name) is None or getattr(entry, name) > 0 for name in FIGURES), entry.id
        for basis in entry.basis.values():
            assert basis.kind in {"exact", "recorded", "estimated"}, entry.id
            assert basis.origin, entry.id


def test_the_spaces_are_stated_with_their_kinds():
    for entry in ENTRIES:
        assert entry.observation, f"state the observation of {entry.id} in its catalog"
        assert entry.action, f"state the action of {entry.id} in its catalog"
        assert entry.observation.kinds <= {"pixels", "state"}, entry.id
        assert entry.action.kinds <= {"continuous", "discrete"}, entry.id
        assert (entry.action.low is None) == (entry.action.high is None), entry.id


def test_each_dataset_has_a_description_tags_and_addresses():
    for entry in ENTRIES:
        assert entry.description.endswith("."), f"state the description of {entry.id} in its catalog, with sentences"
        assert entry.tags, f"state tags of {entry.id} in its catalog"
        assert len(set(entry.tags)) == len(entry.tags), entry.id
        assert all(
            "://" in one or one.startswith("package:") for one in sources.get_source(entry.source).addresses(entry.name)
        )


@pytest.mark.parametrize(
    ("dataset_id", "figures"),
    [
        # The catalog of TensorFlow Datasets has 1,028 trajectories; checksums.tsv 152,427,435 bytes.
        ("d4rl/hopper-expert-v2", {"bytes": (152_427_435, "exact"), "episodes": (1028, "recorded")}),
        # 554.39 MiB in the catalog of TensorFlow Datasets.
        ("d4rl/relocate-cloned-v1", {"bytes": (581_320_049, "recorded"), "steps": (1_000_000, "estimated")}),
        ("minari/D4RL/door/human-v2", {"steps": (6729, "recorded"), "episodes": (25, "recorded")}),
        ("atari_dqn/Pong/3", {"steps": (50_000_000, "estimated")}),
        ("gen_dgrl/bigfish-25M", {"steps": (25_000_000, "estimated")}),
        (
            "vd4rl/main/humanoid_walk/medium_replay/64px",
            {"steps": (600_000, "estimated"), "episodes": (1200, "estimated")},
        ),
        # docs/dataset_cards/cfcql.md of OG-MARL.
        ("og_marl/cfcql/smac_v1/2s3z/Medium-Replay", {"steps": (100_121, "recorded"), "episodes": (1976, "recorded")}),
        # 193 MB in docs/datasets/robomimic_v0.1.md.
        ("robomimic/tool_hang/ph/low_dim_v15", {"bytes": (241_250_000, "estimated")}),
        # minari.farama.org/main/datasets/atari/centipede/expert-v0
        ("minari/atari/centipede/expert-v0", {"steps": (6864, "recorded")}),
        ("openx/bridge", {"episodes": (25_460, "recorded")}),
        ("demo/pendulum", {"steps": (15_000, "exact"), "episodes": (75, "exact")}),
    ],
)
def test_figures_are_those_of_their_origin(dataset_id, figures):
    entry = sources.find(dataset_id)

    for name, (value, kind) in figures.items():
        assert getattr(entry, name) == value
        assert (entry.basis[name].kind if name in entry.basis else "exact") == kind


@pytest.mark.parametrize(
    ("dataset_id", "low", "high"),
    [
        ("atari_dqn/Pong/1", -20.7, 14.6),  # Wang et al. 2016, table of raw scores
        ("atari_dqn/MontezumaRevenge/2", 0.0, 4753.3),
        ("gen_dgrl/coinrun-10M", 5, 10),  # Cobbe et al. 2020, appendix C, easy
        ("gen_dgrl/fruitbot-1M_E", -1.5, 32.4),
        ("vd4rl/main/walker_walk/expert/84px", 0, 1000),
        ("minari/D4RL/kitchen/partial-v2", 0, 4),
        ("minari/D4RL/relocate/human-v2", 9.189092636108398, 4287.70458984375),
    ],
)
def test_reference_scores_are_those_of_the_field(dataset_id, low, high):
    score = sources.find(dataset_id).score

    assert (score.low, score.high) == (low, high)
    assert score.origin


def test_the_demo_states_what_it_contains(tmp_path):
    from datasets_rl import download
    from datasets_rl.catalog.listing import info
    from datasets_rl.settings import Settings

    entry = sources.find("demo/pendulum")
    stored = info(download("demo/pendulum", settings=Settings(home=tmp_path, progress=False)))

    assert (stored.steps, stored.episodes, stored.environment) == (entry.steps, entry.episodes, entry.environment)
    assert (stored.observation, stored.action.shape) == (entry.observation, entry.action.shape)

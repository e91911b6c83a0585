"""Agents, ends and the store of OG-MARL's vaults."""

from __future__ import annotations

import shutil
import sys
import zipfile

import numpy as np
import pytest
from raw.og_marl import FILE, GOLDEN, golden_rows, write_vault

from datasets_rl import OGMARLExperienceReplay, Selection, downloading
from datasets_rl.errors import ConversionError, MissingDependencyError, UnknownIdError
from datasets_rl.format.reader import StoredDataset
from datasets_rl.read.vault import Vault
from datasets_rl.settings import Settings
from datasets_rl.sources import find, get_source

pytest.importorskip("tensorstore", reason="pip install tensorstore, with Python 3.11")

OBSERVATION = ("agents", "observation")


@pytest.fixture
def rng():
    return np.random.default_rng(4)


@pytest.fixture
def convert(tmp_path):
    def run(rows=None, name="core/smac_v1/3m/Good", **selection):
        folder = tmp_path / "raw"
        folder.mkdir(exist_ok=True)
        if rows is not None:
            write_vault(folder / "3m.zip", "3m.vlt/Good", rows, block=7)
        settings = Settings(home=tmp_path / "home", progress=False, retries=0)
        chosen = Selection(**selection)
        return StoredDataset(
            downloading.download(f"og_marl/{name}", from_local=folder, settings=settings, selection=chosen)
        )

    return run


def play(rng, length=20, agents=2):
    """Return rows of agents without an end."""
    return {
        "observations": rng.normal(size=(length, agents, 3)).astype(np.float32),
        "actions": rng.integers(0, 5, (length, agents)).astype(np.int64),
        "rewards": rng.normal(size=(length, agents)).astype(np.float32),
        "terminals": np.zeros((length, agents), bool),
        "truncations": np.zeros((length, agents), bool),
    }


def rules(stored):
    return {one.rule: one.count for one in stored.manifest.decisions}


def test_there_are_92_vaults_of_37_scenarios():
    source = get_source("og_marl")

    assert len(source.ids()) == 92
    assert len({one.rpartition("/")[0] for one in source.ids()}) == 37
    assert source.assets("cfcql/smac_v1/2s3z/Mixed")[0].urls == (
        "hf://datasets/InstaDeepAI/og-marl/prior_work/cfcql/smac_v1/2s3z.zip",
    )
    assert source.assets("core/smac_v1/3m/Good")[0].path == FILE


def test_a_vault_that_the_catalog_does_not_list_may_be_in_the_file():
    assert find("og_marl/core/smac_v1/3m/Random").action.shape == (3,)
    for name in ("core/smac_v1/3m", "core/smac_v1/9m/Good", "core/smac_v1/3m/a b", "og_marl/smac_v1/3m/Good"):
        with pytest.raises(UnknownIdError):
            find(f"og_marl/{name}")


@pytest.mark.parametrize("dtype", ["float32", "uint8", "int64", "uint16", "bool"])
@pytest.mark.first(2)
def test_masks_of_actions_are_booleans_whatever_dtype_the_vault_has(convert, rng, dtype):
    mask = rng.random((20, 2, 4)) < 0.5

    stored = convert({**play(rng), "infos.legals": mask.astype(dtype)})

    column = stored.column(("agents", "action_mask"))
    assert column.dtype == bool
    assert np.array_equal(column, mask)
    assert rules(stored).get("flags-cast", 0) == (dtype != "bool")
    assert "widened" not in rules(stored)
    assert stored.manifest.specs["agents.action_mask"]["kind"] == "discrete"


@pytest.mark.parametrize("value", [0.5, 2, np.nan])
@pytest.mark.first(1)
def test_a_mask_of_another_value_than_0_and_1_is_refused(convert, rng, value):
    mask = np.ones((20, 2, 4), np.float32)
    mask[11, 1, 2] = value

    with pytest.raises(ConversionError, match=r"infos\.legals is .* at row 11, expected 0 or 1 \(1 such row\)"):
        convert({**play(rng), "infos.legals": mask})


@pytest.mark.parametrize("vault", ["3m/Good", "3m/Poor", "simple_spread/Expert"])
def test_a_vault_of_flashbax_is_read_in_any_blocks(vault):
    scenario, uid = vault.split("/")
    rows = golden_rows(vault)

    with Vault(GOLDEN, uid) as opened:
        assert scenario in opened._folder
        assert {*opened.leaves} == {*rows}
        for start, stop in ((0, 43), (0, 1), (24, 26), (42, 43)):
            for leaf, values in opened.read(opened.leaves, start, stop).items():
                assert values.dtype == rows[leaf].dtype
                assert np.array_equal(values, rows[leaf][start:stop])


def test_an_episode_ends_where_all_agents_have_ended(convert, rng):
    rows = play(rng, 9)
    rows["terminals"][2, 0] = True  # one agent alone
    rows["terminals"][4] = True
    rows["terminals"][6, 0] = rows["truncations"][6, 1] = True  # one agent each

    stored = convert(rows)

    assert stored.episodes.lengths.tolist() == [5, 2, 2]
    assert np.flatnonzero(stored.column(("next", "terminated"))).tolist() == [4]
    assert np.flatnonzero(stored.column(("next", "truncated"))).tolist() == [6, 8]
    assert np.array_equal(stored.column(("next", "agents", "terminated"))[:, :, 0], rows["terminals"])
    assert rules(stored)["end-without-flag"] == 1
    assert not stored.episodes["final_known"].any()


def test_the_reward_of_the_team_is_the_mean_of_its_agents(convert, rng):
    rows = play(rng, 6)

    stored = convert(rows)

    assert np.allclose(stored.column(("next", "reward"))[:, 0], rows["rewards"].mean(axis=1))
    assert np.array_equal(stored.column(("next", "agents", "reward"))[:, :, 0], rows["rewards"])


def test_episodes_longer_than_a_block_are_read_in_pieces(convert, rng, monkeypatch):
    monkeypatch.setattr("datasets_rl.sources.rows._CHUNK_BYTES", 300)  # 5 rows
    rows = play(rng, 37)
    rows["terminals"][[0, 20, 24, 30]] = True

    stored = convert(rows)

    assert stored.episodes.lengths.tolist() == [1, 20, 4, 6, 6]
    assert np.array_equal(stored.column(OBSERVATION), rows["observations"])
    following = stored.column(("next", *OBSERVATION))
    assert np.array_equal(following[1:20], rows["observations"][2:21])
    assert not following[[0, 20, 24, 30, 36]].any()


def test_further_infos_are_kept_by_their_names(convert, rng):
    rows = {
        **play(rng, 4),
        "infos.goal.place": rng.normal(size=(4, 2, 1)).astype(np.float32),
        "infos.time": np.arange(4),
    }

    stored = convert(rows)

    assert np.array_equal(stored.column(("info", "goal", "place")), rows["infos.goal.place"])
    assert np.array_equal(stored.column(("info", "time"))[:, 0], np.arange(4))


def test_selected_keys_are_read_alone(convert, rng):
    stored = convert(play(rng, 4), keys=("agents.action",))

    keys = {field.key for field in stored.schema}
    assert ("agents", "action") in keys
    assert OBSERVATION not in keys


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"actions": np.zeros((6, 3), int)}, r"actions is \[rows, 3\], but rewards are of 2 agents"),
        ({"terminals": np.zeros(6, bool)}, r"terminals is \[rows, \], expected \[rows, agents\]"),
        ({"rewards": np.zeros((6, 2, 1), "f4")}, r"rewards is \[rows, 2, 1\], expected \[rows, agents\]"),
        ({"terminals": np.full((6, 2), 2, "i4")}, "terminals is 2 at row 0, expected 0 or 1"),
        ({"observations": np.zeros((6, 2, 3), "c8")}, "observations has dtype complex64, which cannot be stored"),
    ],
)
def test_arrays_that_contradict_each_other_are_refused(convert, rng, changes, message):
    with pytest.raises(ConversionError, match=message):
        convert({**play(rng, 6), **changes})


def test_a_vault_of_several_environments_is_refused(convert, tmp_path, rng):
    import tensorstore

    rows = play(rng, 6)
    (tmp_path / "raw").mkdir()
    write_vault(tmp_path / "raw" / "3m.zip", "3m.vlt/Good", rows)
    with zipfile.ZipFile(tmp_path / "raw" / "3m.zip") as archive:
        archive.extractall(tmp_path / "open")
    folder = tmp_path / "open" / "3m.vlt" / "Good"
    kvstore = {"driver": "ocdbt", "base": f"file://{folder}/", "path": "actions."}
    spec = {"driver": "zarr", "kvstore": kvstore}
    tensorstore.open(spec, create=True, delete_existing=True, dtype="int32", shape=(4, 10**13, 2)).result()
    shutil.make_archive(str(tmp_path / "raw" / "3m"), "zip", tmp_path / "open")

    with pytest.raises(ConversionError, match=r"actions is \[4, 10000000000000, 2\], expected \[1, rows, ...\]"):
        convert()


def test_a_chunk_that_is_far_larger_than_memory_is_refused_without_reading_it(convert, tmp_path, rng):
    import tensorstore

    (tmp_path / "raw").mkdir()
    write_vault(tmp_path / "raw" / "3m.zip", "3m.vlt/Good", play(rng, 6))
    with zipfile.ZipFile(tmp_path / "raw" / "3m.zip") as archive:
        archive.extractall(tmp_path / "open")
    kvstore = {"driver": "ocdbt", "base": f"file://{tmp_path}/open/3m.vlt/Good/", "path": "actions."}
    spec = {"driver": "zarr", "kvstore": kvstore, "metadata": {"chunks": [1, 10**12, 2]}}
    tensorstore.open(spec, create=True, delete_existing=True, dtype="int32", shape=(1, 10**13, 2)).result()
    shutil.make_archive(str(tmp_path / "raw" / "3m"), "zip", tmp_path / "open")

    with pytest.raises(ConversionError, match="actions has chunks of 8,000,000,000,000 bytes"):
        convert()


def test_without_tensorstore_nothing_is_downloaded_and_the_extra_is_named(convert, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "tensorstore", None)
    (tmp_path / "raw").mkdir()
    shutil.copy(GOLDEN, tmp_path / "raw" / "3m.zip")

    with pytest.raises(MissingDependencyError) as raised:
        convert()

    assert "datasets-rl[vault]" in str(raised.value.hint)


def test_batches_have_torchrls_layout_of_agents(convert, tmp_path):
    (tmp_path / "raw").mkdir()
    shutil.copy(GOLDEN, tmp_path / "raw" / "3m.zip")
    convert()

    dataset = OGMARLExperienceReplay("core/smac_v1/3m/Good", 16, root=tmp_path / "home" / "og_marl", download=False)

    batch = dataset.sample()
    assert batch["agents", "observation"].shape == batch["next", "agents", "observation"].shape == (16, 3, 5)
    assert batch["agents", "action"].shape == (16, 3)
    assert batch["agents", "action_mask"].shape == (16, 3, 9)
    assert batch["next", "agents", "reward"].shape == (16, 3, 1)
    assert batch["next", "reward"].shape == batch["next", "final_known"].shape == (16, 1)
    assert batch["state"].shape == (16, 11)

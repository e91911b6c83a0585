"""Ids, digests, ends and scores of NeoRL and NeoRL-2."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from raw.neorl import arrays_of, draw

from datasets_rl import NeoRLExperienceReplay, Selection, downloading, normalized_score
from datasets_rl.errors import FetchError, IntegrityError, UnknownIdError
from datasets_rl.format.reader import StoredDataset
from datasets_rl.settings import Settings
from datasets_rl.sources import find, get_source

SIZES = (3, 2)


@pytest.fixture
def rng():
    return np.random.default_rng(7)


@pytest.fixture
def convert(tmp_path):
    def run(arrays, name="ib-low-2-val", **selection):
        folder = tmp_path / "raw"
        folder.mkdir(exist_ok=True)
        np.savez(folder / f"{name}.npz", **{key: values for key, values in arrays.items() if values is not None})
        settings = Settings(home=tmp_path / "home", progress=False, retries=0)
        chosen = Selection(**selection)
        return StoredDataset(
            downloading.download(f"neorl/{name}", from_local=folder, settings=settings, selection=chosen)
        )

    return run


def rules(stored):
    return {one.rule: one.count for one in stored.manifest.decisions}


def test_there_are_146_ids_with_the_digests_of_both_packages():
    ids = get_source("neorl").ids()

    assert len(ids) == 146
    assert sum(find(f"neorl/{one}").homepage.endswith("NeoRL2") for one in ids) == 16
    assert all(len(get_source("neorl").assets(one)[0].md5) == 32 for one in ids)


@pytest.mark.parametrize(
    ("name", "path", "md5"),
    [
        (
            "HalfCheetah-v3-low-100-train",
            "v2/HalfCheetah-v3/HalfCheetah-v3-low-100-train-noise.npz",
            "7df5c5fdf830263db1d7211efcdb17c1",
        ),
        ("ib-medium-1000-val", "v2/ib/ib-medium-1000-val.npz", "deed6007666f35af468cc22d9026bb1d"),
        ("DMSD-val", "neorl2/DMSD/DMSD-val.npz", "be6c39c0e73c17029206e714068f26b7"),
        ("HalfCheetah-v3-low-3-train", "v2/HalfCheetah-v3/HalfCheetah-v3-low-3-train-noise.npz", None),
    ],
)
def test_the_address_of_an_id_is_that_of_the_packages(name, path, md5):
    (asset,) = get_source("neorl").assets(name)

    assert asset.urls == (f"http://datasets.polixir.site/{path}",)
    assert asset.md5 == md5


@pytest.mark.parametrize("name", ["HalfCheetah-v3", "Pipeline", "Pipeline-test", "ib-best-10-val", "Ant-v3-low-10-val"])
def test_other_names_are_unknown(name):
    with pytest.raises(UnknownIdError):
        find(f"neorl/{name}")


def test_a_file_with_another_digest_is_refused(convert, rng):
    arrays = arrays_of([draw(rng, 4, "", SIZES)])

    with pytest.raises((IntegrityError, FetchError), match="6df907556cbc96002757f6d652be9d92"):
        convert(arrays, "Simglucose-val")


def test_the_digest_of_a_listed_file_is_checked(convert, rng, monkeypatch, tmp_path):
    arrays = arrays_of([draw(rng, 4, "", SIZES)])
    np.savez(tmp_path / "any.npz", **arrays)
    digest = hashlib.md5((tmp_path / "any.npz").read_bytes()).hexdigest()
    monkeypatch.setitem(get_source("neorl").catalog["ids"]["Simglucose-val"], "md5", digest)

    assert convert(arrays, "Simglucose-val").manifest.steps == 4


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("last", [True, False])
def test_an_index_with_or_without_its_first_and_its_last_row_gives_the_same_trajectories(convert, rng, first, last):
    arrays = arrays_of([draw(rng, length, "", SIZES) for length in (4, 2, 5)])
    rows = [0] * first + [4, 6] + [11] * last

    stored = convert({**arrays, "index": np.array(rows, float)})

    assert stored.episodes.lengths.tolist() == [4, 2, 5]
    assert ("index-without-zero" in rules(stored)) != first
    assert rules(stored)["end-by-index" if last else "end-without-flag"] == (3 if last else 1)


def test_without_an_index_flags_and_jumps_of_the_state_end_trajectories(convert, rng):
    drawn = [draw(rng, length, end, SIZES) for length, end in ((4, "done"), (2, ""), (5, "truncated"), (3, ""))]
    arrays = {**arrays_of(drawn), "truncated": np.concatenate([one["truncated"] for one in drawn]), "index": None}

    stored = convert(arrays)

    assert stored.episodes.lengths.tolist() == [4, 2, 5, 3]
    assert np.flatnonzero(stored.column(("next", "terminated"))).tolist() == [3]
    assert np.flatnonzero(stored.column(("next", "truncated"))).tolist() == [5, 10, 13]
    assert (rules(stored)["seam-without-flag"], rules(stored)["end-without-flag"]) == (1, 1)


def test_a_flag_within_a_trajectory_of_the_index_ends_the_episode_too(convert, rng):
    arrays = arrays_of([draw(rng, 6, "done", SIZES), draw(rng, 4, "", SIZES)])
    arrays["done"][2] = True

    stored = convert(arrays)

    assert stored.episodes.lengths.tolist() == [3, 3, 4]
    assert rules(stored)["flag-within-trajectory"] == 1


def test_final_observations_are_those_of_next_obs(convert, rng):
    drawn = [draw(rng, length, "", SIZES) for length in (4, 2)]

    stored = convert(arrays_of(drawn))

    wanted = np.concatenate([one["states"][1:] for one in drawn])
    assert np.array_equal(stored.column(("next", "observation")), wanted)
    assert stored.episodes["final_known"].all()


def test_trajectories_of_many_blocks_are_read_in_pieces(convert, rng, monkeypatch):
    monkeypatch.setattr("datasets_rl.sources.rows._CHUNK_BYTES", 300)  # 8 rows
    lengths = (30, 1, 2, 8, 1, 25, 3, 16)
    drawn = [draw(rng, length, "", SIZES) for length in lengths]

    stored = convert(arrays_of(drawn))

    assert stored.episodes.lengths.tolist() == [*lengths]
    assert np.array_equal(stored.column(("next", "observation")), np.concatenate([one["states"][1:] for one in drawn]))
    assert np.array_equal(stored.column(("next", "reward"))[:, 0], np.concatenate([one["reward"] for one in drawn]))


def test_the_first_trajectories_are_selected(convert, rng):
    arrays = arrays_of([draw(rng, length, "", SIZES) for length in (4, 2, 5)])

    assert convert(arrays, episodes="0:2").episodes.lengths.tolist() == [4, 2]


def test_rewards_of_a_further_axis_and_doubles_are_kept(convert, rng):
    arrays = arrays_of([draw(rng, 4, "", SIZES)])
    doubles = {name: values.astype(np.float64) for name, values in arrays.items()}

    stored = convert({**doubles, "reward": doubles["reward"][:, None]})

    assert stored.column(("observation",)).dtype == np.float64
    assert np.array_equal(stored.column(("next", "reward")), arrays["reward"][:, None].astype(np.float64))
    assert rules(stored)["flags-cast"] == 4


def test_scores_are_those_of_the_packages():
    assert normalized_score("neorl/DMSD-train", 849.51) == 1
    assert normalized_score("neorl/Walker2d-v3-high-1000-train", 1) == 0
    assert find("neorl/ib-low-100-train").score is None


def test_steps_and_episodes_are_those_of_the_name():
    entry = find("neorl/citylearn-high-1000-train")

    assert (entry.episodes, entry.steps, entry.basis["steps"].kind) == (1000, 1_000_000, "recorded")
    assert find("neorl/Hopper-v3-expert-10000-train").basis["steps"].kind == "estimated"
    assert find("neorl/Fusion-train").steps is None


def test_the_class_has_the_next_observation_of_each_step(convert, rng, tmp_path):
    convert(arrays_of([draw(rng, 20, "", SIZES)]))

    dataset = NeoRLExperienceReplay("ib-low-2-val", 8, root=tmp_path / "home" / "neorl", download=False)

    assert dataset.sample()["next", "observation"].shape == (8, 3)

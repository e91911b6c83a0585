"""Datasets that Minari 0.3.1 combined by links, compared with what its own reader reads of them.

`raw/make_minari.py` made the archive. Its links have absolute paths of the machine that they were made on.
"""

from __future__ import annotations

import json
import shutil

import h5py
import numpy as np
import pytest
from raw import minari as raw
from servers import Status
from upstreams import bucket, hub

from datasets_rl import Selection, downloading, verify
from datasets_rl.downloading import planning
from datasets_rl.errors import ConversionError, FetchError
from datasets_rl.format.reader import StoredDataset
from datasets_rl.settings import Settings

NAMES = ("drawn-first-v0", "drawn-second-v0", "drawn-both-v0", "drawn-nested-v0")
BOTH, NESTED = NAMES[2:]


@pytest.fixture
def cache(tmp_path):
    """The four datasets, as in a cache of Minari."""
    raw.extract_linked(tmp_path / "cache")
    return tmp_path / "cache"


@pytest.fixture
def settings(tmp_path, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.delenv("MINARI_REMOTE", raising=False)
    return Settings(home=tmp_path / "home", progress=False, retries=0)


def equals(stored, cache, name, numbers=None):
    """Compare every value with those that Minari 0.3.1 read."""
    read = json.loads((cache / "read.json").read_text())[name]
    expected = read if numbers is None else [read[number] for number in numbers]
    assert stored.episodes.lengths.tolist() == [len(one["rewards"]) for one in expected]
    assert stored.episodes["source"].tolist() == list(range(len(read)) if numbers is None else numbers)

    def joined(field, start=None, stop=None):
        return np.concatenate([np.asarray(one[field])[start:stop] for one in expected])

    assert np.array_equal(stored.column(("observation",)), joined("observations", stop=-1).astype("f4"))
    assert np.array_equal(stored.column(("next", "observation")), joined("observations", start=1).astype("f4"))
    assert np.array_equal(stored.column(("action",)), joined("actions").astype("f4"))
    for field, key in (("rewards", "reward"), ("terminations", "terminated"), ("truncations", "truncated")):
        assert np.array_equal(stored.column(("next", key))[:, 0], joined(field))


@pytest.mark.parametrize("name", NAMES)
def test_a_dataset_of_links_has_the_episodes_that_minari_reads(cache, settings, name):
    folder = downloading.download(f"minari/{name}", from_local=cache / name, settings=settings)

    stored = StoredDataset(folder)

    equals(stored, cache, name)
    assert not verify(folder, deep=True).problems
    assert [spec["kind"] for field, spec in stored.manifest.specs.items() if field == "observation"]


@pytest.mark.parametrize("upstream", ["hub", "bucket"])
@pytest.mark.parametrize("name", [BOTH, NESTED])
def test_a_combined_dataset_is_downloaded_with_its_parts(cache, settings, name, upstream, monkeypatch):
    repositories = {f"farama-minari/{one}": cache / one for one in NAMES}
    with hub(repositories) if upstream == "hub" else bucket({"minari-remote": cache}) as server:
        monkeypatch.setenv("HF_ENDPOINT" if upstream == "hub" else "STORAGE_EMULATOR_HOST", server.url)
        monkeypatch.setenv("MINARI_REMOTE", "hf://farama-minari" if upstream == "hub" else "gcp://minari-remote")
        folder = downloading.download(f"minari/{name}", settings=settings, keep_raw=True)

    equals(StoredDataset(folder), cache, name)
    assert not verify(folder, deep=True).problems
    raws = {file.path: file.checked for file in StoredDataset(folder).manifest.raw}
    assert raws.keys() >= {f"{name}/data/main_data.hdf5", *(f"{one}/data/main_data.hdf5" for one in NAMES[:2])}
    assert f"{NAMES[1]}/data/additional_data_0.hdf5" in raws


def test_only_the_parts_that_have_the_selected_episodes_are_downloaded(cache, settings, monkeypatch):
    with hub({f"farama-minari/{one}": cache / one for one in NAMES}) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        plan = planning.plan(f"minari/{BOTH}", settings=settings, selection=Selection(episodes="1"))
        folder = downloading.download(
            f"minari/{BOTH}", settings=settings, selection=Selection(episodes="0,4"), keep_raw=True
        )

    assert [asset.path for asset in plan.assets] == [f"{name}/data/main_data.hdf5" for name in (BOTH, NAMES[0])]
    equals(StoredDataset(folder), cache, BOTH, [0, 4])
    assert not verify(folder, deep=True).problems


def test_an_interrupted_download_resumes_with_the_part_that_failed(cache, settings, monkeypatch):
    repositories = {f"farama-minari/{one}": cache / one for one in NAMES}
    with hub(repositories, replaced={"data/additional_data_0.hdf5": Status(503)}) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        with pytest.raises(FetchError, match=r"additional_data_0\.hdf5"):
            downloading.download(f"minari/{BOTH}", settings=settings)
    with hub(repositories) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        folder = downloading.download(f"minari/{BOTH}", settings=settings)

    equals(StoredDataset(folder), cache, BOTH)
    assert {request.path.rpartition("/")[2] for request in server.requests} == {"additional_data_0.hdf5"}


def test_a_combined_dataset_at_a_path_is_read_with_the_parts_beside_it(cache, settings):
    folder = downloading.download(str(cache / NESTED), settings=settings)

    stored = StoredDataset(folder)
    equals(stored, cache, NESTED)
    assert stored.manifest.metadata["layout"] == "minari"
    assert "attributes total_episodes and total_steps" in stored.manifest.metadata["layout_evidence"]


def test_a_part_that_is_missing_is_named_with_what_to_download_instead(cache, settings):
    shutil.rmtree(cache / NAMES[1])

    with pytest.raises(FetchError, match=f"the list of the files of {NAMES[1]}") as caught:
        downloading.download(f"minari/{BOTH}", from_local=cache / BOTH, settings=settings)

    assert f"datasets_rl.download('minari/{NAMES[1]}')" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("link", "message"),
    [
        (
            h5py.ExternalLink("/etc/secrets.hdf5", "/episode_0"),
            "is a link to /etc/secrets.hdf5, expected a file of drawn",
        ),
        (h5py.ExternalLink("../../other/data/main_data.hdf5", "/episode_0"), r"is a link to \.\./\.\./other"),
        (h5py.ExternalLink(f"/tmp/{NAMES[0]}/data/main_data.hdf5", "/keys"), "is a link to '/keys'"),
        (h5py.ExternalLink(f"/tmp/{NAMES[0]}/data/main_data.hdf5", "/episode_9"), "episode 0: HDF5 reports"),
    ],
    ids=["another file", "another dataset", "not an episode", "an episode that is not there"],
)
def test_a_link_to_anything_else_is_refused(cache, settings, link, message):
    with h5py.File(cache / BOTH / "data" / "main_data.hdf5", "r+") as file:
        del file["episode_0"]
        file["episode_0"] = link

    with pytest.raises(ConversionError, match=message):
        downloading.download(f"minari/{BOTH}", from_local=cache / BOTH, settings=settings)


def test_datasets_that_are_parts_of_each_other_are_refused(cache, settings):
    with h5py.File(cache / NAMES[0] / "data" / "main_data.hdf5", "r+") as file:
        file.attrs["combined_datasets"] = [BOTH]
        del file["episode_0"]
        file["episode_0"] = h5py.ExternalLink(f"/tmp/{BOTH}/data/main_data.hdf5", "/episode_0")

    with pytest.raises(ConversionError, match="drawn-first-v0 > drawn-both-v0 > drawn-first-v0 is a circle"):
        downloading.download(f"minari/{BOTH}", from_local=cache / BOTH, settings=settings)


def test_a_number_of_episodes_that_the_links_contradict_is_refused(cache, settings):
    with h5py.File(cache / BOTH / "data" / "main_data.hdf5", "r+") as file:
        file.attrs["total_episodes"] = 7

    with pytest.raises(ConversionError, match="it has 6 episodes, but the metadata states 7"):
        downloading.download(f"minari/{BOTH}", from_local=cache / BOTH, settings=settings)

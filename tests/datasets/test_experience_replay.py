"""Datasets opened by id, by class and by folder."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from d4rl_files import mujoco
from stored_data import trajectory, write_dataset

from datasets_rl import downloading, load, store, verification
from datasets_rl.datasets import (
    D4RLExperienceReplay,
    DemoExperienceReplay,
    StoredExperienceReplay,
    loading,
)
from datasets_rl.errors import (
    IntegrityError,
    InvalidArgumentError,
    ManifestError,
    NotADatasetError,
)
from datasets_rl.format.manifest import Manifest
from datasets_rl.samplers import RandomSampler, SliceSampler
from datasets_rl.sources.demo import __file__ as demo_folder

RAW = Path(demo_folder).with_name("pendulum.hdf5")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A home folder with demo/pendulum."""
    home = tmp_path_factory.mktemp("home")
    downloading.download("demo/pendulum", root=home / "demo")
    return home


@pytest.fixture
def pendulum(home):
    return DemoExperienceReplay("pendulum", batch_size=32, root=home / "demo", download=False)


@pytest.fixture(scope="module")
def raw():
    """The content of the file in the package, read with h5py."""
    with h5py.File(RAW) as file:
        return {name: file[name][()] for name in ("observations", "actions", "rewards", "terminals", "timeouts")}


def test_load_downloads_a_missing_dataset(tmp_path, monkeypatch):
    monkeypatch.setenv("RLDS_HOME", str(tmp_path))
    dataset = loading.load("demo/pendulum", batch_size=7)

    assert isinstance(dataset, DemoExperienceReplay)
    assert tuple(dataset.sample().batch_size) == (7,)
    assert dataset.data_path == tmp_path / "demo" / "pendulum"
    assert dataset.root == tmp_path / "demo"
    # Programs for TorchRL delete this folder, so that it must contain nothing else.
    assert dataset.data_path_root == dataset.data_path


def test_a_key_gives_one_field_and_a_group_gives_all_below_it(pendulum):
    below = pendulum["next"]

    assert set(below.keys()) == {"observation", "info", "reward", "done", "terminated", "truncated"}
    assert tuple(below.batch_size) == (len(pendulum),)
    assert torch.equal(below["reward"], pendulum["next", "reward"])
    assert torch.equal(pendulum["next.reward"], pendulum["next", "reward"])
    assert not pendulum["done"].any()


def test_indices_give_transitions(pendulum):
    everything = pendulum[:]

    assert tuple(everything.batch_size) == (len(pendulum),)
    assert (pendulum[10:20] == everything[10:20]).all()
    assert (pendulum[torch.tensor([3, -1])] == everything[torch.tensor([3, -1])]).all()
    assert (pendulum[5] == everything[5]).all()
    with pytest.raises(IndexError):
        _ = pendulum[len(pendulum)]


def test_samples_are_in_the_specs(pendulum):
    sample = pendulum.sample()

    assert pendulum.specs.is_in(sample)
    assert pendulum.specs.is_in(pendulum[0])
    assert set(pendulum.specs.keys()) == set(sample.keys()) - {"index"}
    assert pendulum.specs["next", "reward"].shape == (1,)


def test_trajectories_are_padded_with_zeros(home, pendulum):
    split = DemoExperienceReplay("pendulum", batch_size=2, root=home / "demo", split_trajs=True)
    sample = split.sample()
    lengths = pendulum.episodes.lengths

    assert len(split) == len(lengths)
    assert tuple(sample.batch_size) == (2, lengths.max())
    assert split["mask"].sum(1).tolist() == lengths.tolist()
    assert torch.equal(split["observation"][split["mask"]], pendulum["observation"])
    assert tuple(split["next"].batch_size) == (len(lengths), lengths.max())
    assert split.specs.is_in(sample)


def test_changes_to_a_batch_do_not_change_the_dataset(pendulum):
    before = {path.name: path.read_bytes() for path in pendulum.data_path.glob("*.npy")}
    kept = pendulum[:].clone()
    for key in ("observation", "action", ("next", "reward"), ("next", "observation"), "episode"):
        pendulum[key].zero_()
    pendulum[:].zero_()
    pendulum.sample().zero_()

    assert (pendulum[:] == kept).all()
    assert {path.name: path.read_bytes() for path in pendulum.data_path.glob("*.npy")} == before


def test_a_missing_dataset_is_downloaded_only_on_request(tmp_path):
    with pytest.raises(NotADatasetError, match="not downloaded") as caught:
        DemoExperienceReplay("pendulum", root=tmp_path, download=False)
    assert caught.value.hint == "datasets_rl.download('demo/pendulum')"
    assert not list(tmp_path.iterdir())


def test_a_root_takes_precedence_over_the_working_directory(tmp_path, monkeypatch):
    """A folder demo/pendulum in the working directory must not replace the one below the given root."""
    write_dataset(tmp_path / "demo" / "pendulum", [trajectory(2)])
    monkeypatch.chdir(tmp_path)

    with pytest.raises(NotADatasetError):
        DemoExperienceReplay("pendulum", root=tmp_path / "elsewhere", download=False)


def test_force_replaces_a_damaged_dataset_and_true_refuses_it(tmp_path):
    folder = DemoExperienceReplay("pendulum", root=tmp_path).stored.folder
    with (folder / "rows.npy").open("r+b") as stream:
        stream.truncate(1000)

    with pytest.raises(IntegrityError, match=r"rows\.npy is 1,000 bytes"):
        DemoExperienceReplay("pendulum", root=tmp_path)
    assert len(DemoExperienceReplay("pendulum", root=tmp_path, download="force")) > 0


def test_download_has_three_values(tmp_path):
    with pytest.raises(InvalidArgumentError, match="expected True, False or 'force'"):
        DemoExperienceReplay("pendulum", root=tmp_path, download="maybe")


def test_delete_removes_everything(tmp_path):
    dataset = DemoExperienceReplay("pendulum", root=tmp_path)
    dataset.delete()

    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    with pytest.raises(NotADatasetError):
        DemoExperienceReplay("pendulum", root=tmp_path, download=False)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"terminate_on_end": False}, "terminate_on_end"),
        ({"dataset_id": None}, "no dataset_id"),
        ({"dataset": {}}, "dataset= replaces the steps of the file"),
        ({"reward_type": "sparse"}, "reward_type= is an argument of an environment"),
    ],
)
def test_arguments_that_exclude_each_other_are_refused(tmp_path, options, problem):
    with pytest.raises(InvalidArgumentError, match=problem):
        D4RLExperienceReplay(**{"dataset_id": "maze2d-umaze-v1", "root": tmp_path, **options})


def test_any_folder_is_opened_by_its_path(tmp_path):
    write_dataset(tmp_path / "toy", [trajectory(3)])
    dataset = load(tmp_path / "toy", batch_size=2)

    assert tuple(dataset.sample().batch_size) == (2,)
    assert dataset.root == tmp_path
    dataset.delete()
    assert not (tmp_path / "toy").exists()
    with pytest.raises(NotADatasetError):
        load(tmp_path / "toy")


def test_metadata_is_nested_and_arrays_are_tensors(tmp_path):
    folder = tmp_path / "toy"
    folder.mkdir()
    arrays = {"w": np.arange(6, dtype=">f4").reshape(2, 3), "names": np.array([b"a", b"bc"])}
    names = {"action": ["hip", "knee"]}
    files, entries = [], {"algorithm": "SAC", "policy/depth": 2, "names": names, "policy/options": {}}
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
        files.append({"path": f"{name}.npy", "bytes": (folder / f"{name}.npy").stat().st_size, "digest": ""})
        entries[f"policy/{name}"] = {"file": f"{name}.npy"}
    dataset = with_metadata(folder, entries, files)

    assert dataset.metadata["algorithm"] == "SAC"
    assert dataset.metadata["policy"]["depth"] == 2
    assert dataset.metadata["names"] == names
    assert dataset.metadata["policy"]["options"] == {}
    assert dataset.metadata["policy"]["w"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert dataset.metadata["policy"]["names"].tolist() == [b"a", b"bc"]


def with_metadata(folder, metadata, files=()):
    stored = write_dataset(folder, [trajectory(3)])
    document = stored.manifest.to_json() | {"metadata": metadata}
    manifest = Manifest.from_json(document | {"files": [*document["files"], *files]})
    manifest.write(folder)
    return load(folder)


@pytest.mark.parametrize(
    "metadata",
    [{"w": {"file": "/etc/passwd"}}, {"w": {"file": "nothing.npy"}}, {"a": "x", "a/b": "y"}],
    ids=repr,
)
def test_metadata_outside_of_the_folder_or_with_contradictions_is_refused(tmp_path, metadata):
    dataset = with_metadata(tmp_path / "toy", metadata)

    with pytest.raises(ManifestError, match="metadata"):
        _ = dataset.metadata


def test_pickled_metadata_is_refused(tmp_path):
    """NumPy stores objects as pickles, which can run code when they are read."""
    (tmp_path / "toy").mkdir()
    path = tmp_path / "toy" / "w.npy"
    np.save(path, np.array([print], object), allow_pickle=True)
    listed = [{"path": "w.npy", "bytes": path.stat().st_size, "digest": ""}]
    dataset = with_metadata(tmp_path / "toy", {"w": {"file": "w.npy"}}, listed)

    with pytest.raises(IntegrityError, match=r"w\.npy"):
        _ = dataset.metadata


def test_a_class_lists_the_ids_that_it_accepts():
    """`available_datasets` is TorchRL's name."""
    assert len(D4RLExperienceReplay.available_datasets) == 183
    assert "hopper-medium-v2" in D4RLExperienceReplay.available_datasets
    assert DemoExperienceReplay.available_datasets == ("pendulum",)
    assert StoredExperienceReplay.available_datasets == ()


def test_a_folder_that_holds_more_than_the_dataset_is_not_deleted(tmp_path):
    write_dataset(tmp_path / "toy", [trajectory(3)])
    (tmp_path / "toy" / "notes").mkdir()
    (tmp_path / "toy" / "notes" / "thesis.tex").write_text("years of work")

    with pytest.raises(InvalidArgumentError, match=r"notes/thesis\.tex"):
        load(tmp_path / "toy").delete()

    assert (tmp_path / "toy" / "notes" / "thesis.tex").read_text() == "years of work"


@pytest.mark.parametrize("act", ["remove", "replace"])
def test_other_files_in_a_downloaded_dataset_are_kept(tmp_path, act):
    folder = downloading.download("demo/pendulum", root=tmp_path)
    (folder / "thesis.tex").write_text("years of work")

    if act == "remove":
        store.remove("demo/pendulum", root=tmp_path)
        assert [path.name for path in folder.iterdir()] == ["thesis.tex"]
    else:
        downloading.download("demo/pendulum", root=tmp_path, force=True)
        assert len(load(folder)) == 15_000
    assert (folder / "thesis.tex").read_text() == "years of work"


@pytest.mark.parametrize("act", ["remove", "replace"])
def test_other_files_in_a_version_are_kept(tmp_path, act):
    folder = downloading.download("demo/pendulum", root=tmp_path)
    note = store.version_folder(folder) / "thesis.tex"
    note.write_text("years of work")

    if act == "remove":
        with pytest.raises(InvalidArgumentError, match=r"thesis\.tex"):
            store.remove("demo/pendulum", root=tmp_path)
    else:
        downloading.download("demo/pendulum", root=tmp_path, force=True)
    assert len(load(folder)) == 15_000
    assert note.read_text() == "years of work"


def test_a_link_to_a_dataset_is_a_dataset(tmp_path):
    elsewhere = downloading.download("demo/pendulum", root=tmp_path / "scratch")
    (tmp_path / "home" / "demo").mkdir(parents=True)
    (tmp_path / "home" / "demo" / "pendulum").symlink_to(elsewhere)

    dataset = DemoExperienceReplay("pendulum", root=tmp_path / "home" / "demo", download=False)

    assert len(dataset) == 15_000
    assert dataset.root == tmp_path / "home" / "demo"
    assert verification.verify("demo/pendulum", deep=True, root=tmp_path / "home" / "demo").problems == ()
    assert list(store.stored_folders(tmp_path / "home")) == [tmp_path / "home" / "demo" / "pendulum"]


def test_a_cyclic_link_is_followed_once(tmp_path):
    downloading.download("demo/pendulum", root=tmp_path / "demo")
    (tmp_path / "demo" / "loop").symlink_to(tmp_path / "demo")

    assert list(store.stored_folders(tmp_path)) == [tmp_path / "demo" / "pendulum"]


def test_a_key_is_in_a_dataset_or_not(pendulum):
    """Without `__contains__`, Python would compare the key with an endless sequence of batches."""
    assert "observation" in pendulum
    assert ("next", "reward") in pendulum
    assert "next" in pendulum
    assert "reward" not in pendulum
    assert 5 not in pendulum


def test_an_unknown_key_is_a_key_error_with_the_nearest(pendulum):
    with pytest.raises(KeyError, match=r"did you mean observation"):
        pendulum["observations"]


def test_the_repr_counts_the_visible_episodes_and_steps(pendulum, home):
    split = DemoExperienceReplay("pendulum", root=home / "demo", split_trajs=True)

    assert "75 episodes, 15,000 steps, batch_size" in repr(pendulum)
    assert "75 episodes, 15,000 steps, split_trajs=True" in repr(split)


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 1.5},
        {"batch_size": True},
        {"batch_size": "3"},
        {"batch_size": 4, "prefetch": -1},
        {"sampler": "random"},
        {"writer": "none"},
        {"transform": 5},
    ],
    ids=str,
)
def test_arguments_of_another_type_are_refused(pendulum, home, options):
    del pendulum
    with pytest.raises(InvalidArgumentError):
        DemoExperienceReplay("pendulum", root=home / "demo", **options)


@pytest.mark.parametrize("size", [1.5, "3", True, 0, -1])
def test_batch_sizes_of_another_type_are_refused(pendulum, size):
    with pytest.raises(InvalidArgumentError, match="expected an integer >= 1"):
        pendulum.sample(size)


def test_iterating_ends_when_the_sampler_is_exhausted(home, pendulum):
    del pendulum

    class Once(RandomSampler):
        def sample(self, storage, batch_size):
            self.ran_out = True
            return super().sample(storage, batch_size)

    dataset = DemoExperienceReplay("pendulum", 4, Once(), root=home / "demo")

    assert len(list(dataset)) == 1
    assert len(list(dataset)) == 1


def test_a_direct_download_is_the_complete_file_as_in_torchrl(tmp_path):
    mujoco(tmp_path / "raw.hdf5")
    downloading.download(
        "d4rl/halfcheetah-random-v2", from_local=tmp_path / "raw.hdf5", hash_check=False, root=tmp_path
    )

    def opened(*more, **options):
        return D4RLExperienceReplay("halfcheetah-random-v2", *more, root=tmp_path, **options)

    assert len(opened(from_env=False)) < len(opened(from_env=False, direct_download=True)) == 300
    assert "info" in opened(from_env=False, direct_download=True)
    assert len(opened(4, None, None, None, False, None, None, False, False, True, True, True)) == 300
    assert len(opened(terminate_on_end=True)) == 300


def test_a_copy_of_the_file_is_read_instead_of_a_download(tmp_path):
    mujoco(tmp_path / "raw.hdf5")
    name, path = "halfcheetah-random-v2", str(tmp_path / "raw.hdf5")

    with pytest.raises(IntegrityError):  # not the published file
        D4RLExperienceReplay(name, h5path=path, root=tmp_path / "d4rl")
    downloading.download(f"d4rl/{name}", from_local=path, hash_check=False, root=tmp_path / "d4rl")
    assert len(D4RLExperienceReplay(name, h5path=path, root=tmp_path / "d4rl")) == 300


@pytest.mark.parametrize("prefetch", [None, 2])
def test_the_flags_of_the_data_are_kept_where_slices_set_none(home, prefetch):
    """By default a slice is truncated at its end; the data has no such flag."""
    sampler = SliceSampler(slice_len=4)
    dataset = DemoExperienceReplay(
        "pendulum", batch_size=32, root=home / "demo", download=False, sampler=sampler, prefetch=prefetch
    )
    marked, (plain, info) = dataset.sample(), dataset.sample(return_info=True, include_info=False)

    assert marked["next", "done"].view(8, 4)[:, -1].all()
    rows = dataset[info["index"]]
    for key in (("next", "done"), ("next", "truncated"), ("next", "terminated")):
        assert torch.equal(plain[key], rows[key]), key
    assert not plain["next", "done"].view(8, 4)[:, -1].all()
    assert "index" not in plain


def test_the_entries_of_the_sampler_can_be_left_out_of_the_batch(pendulum):
    assert "index" in pendulum.sample()
    assert "index" not in pendulum.sample(include_info=False)
    batch, info = pendulum.sample(4, return_info=True, include_info=False)
    assert "index" not in batch
    assert tuple(info["index"].shape) == (4,)

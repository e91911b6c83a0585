"""`load` with ids, folders, partial downloads and invalid arguments."""

from __future__ import annotations

import inspect
from pathlib import Path

import numpy as np
import pytest
import torch
from d4rl_files import mujoco

from datasets_rl import Selection, downloading, load, sources
from datasets_rl.datasets import D4RLExperienceReplay, DemoExperienceReplay, StoredExperienceReplay, dataset_class
from datasets_rl.downloading import planning, stored_selection
from datasets_rl.errors import InvalidArgumentError, NotADatasetError, UnknownIdError, UnknownKeyError
from datasets_rl.format.manifest import Manifest
from datasets_rl.store import version_folder

NAME = "bullet-maze2d-open-v0"
FIELDS = Selection(keys=("observation",))


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("RLDS_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def raw(tmp_path):
    path = tmp_path / "file.hdf5"
    mujoco(path)
    return path


def store(raw, part=None):
    return downloading.download(f"d4rl/{NAME}", from_local=raw, selection=part or Selection(), force=True)


def test_a_folder_opens_as_text_as_a_path_and_below_the_working_directory(monkeypatch):
    folder = load("demo/pendulum").data_path
    monkeypatch.chdir(folder.parent)

    for given in (folder, str(folder), "pendulum", "./pendulum", Path("pendulum")):
        opened = load(given, batch_size=3)
        assert isinstance(opened, StoredExperienceReplay)
        assert opened.manifest.id == "demo/pendulum"
        assert len(opened.sample()) == 3


def test_a_dataset_is_opened_with_some_fields_and_on_a_device():
    some = load("demo/pendulum", 4, keys=["action", ("next", "reward")], device="cpu")

    assert {*some.sample(include_info=False).keys(True, True)} == {"action", ("next", "reward")}
    assert {*some.specs.keys(True, True)} - {"next"} == {"action", ("next", "reward")}
    assert some.storage.rows_device == torch.device("cpu")
    assert torch.equal(some["action"], load("demo/pendulum")["action"])
    with pytest.raises(UnknownKeyError, match="did you mean action"):
        load("demo/pendulum", keys="acton")


def test_episodes_of_a_stored_dataset_are_opened_although_its_source_has_one_file_for_all():
    part = Selection(episodes="3,5:7")
    with pytest.raises(InvalidArgumentError, match="demo can select whole files, but not episodes"):
        load("demo/pendulum", selection=part)
    whole = load("demo/pendulum")

    some = load("demo/pendulum", 4, selection=part)

    assert some.episodes["source"].tolist() == [3, 5, 6]
    expected = torch.cat([episode["observation"] for episode in whole.iterate_episodes([3, 5, 6])])
    assert torch.equal(some["observation"], expected)
    assert len(load("demo/pendulum")) == len(whole)


def test_a_dataset_is_looked_up_once_in_the_catalog(monkeypatch):
    folder, asked, find = load("demo/pendulum").data_path, [], sources.find
    monkeypatch.setattr(sources, "find", lambda dataset_id: asked.append(dataset_id) or find(dataset_id))

    for options in ({}, {"download": False}):
        load("demo/pendulum", **options)
        assert asked == ["demo/pendulum"]
        asked.clear()
    downloading.download("demo/pendulum")
    load(folder)
    assert asked == ["demo/pendulum"]


def test_a_selection_of_another_type_is_refused_with_an_example():
    with pytest.raises(InvalidArgumentError, match=r"selection is '0:3', expected a Selection\nas in Selection\(ep"):
        load("demo/pendulum", selection="0:3")


def test_a_folder_in_the_working_directory_never_replaces_an_id(home, tmp_path, monkeypatch):
    (tmp_path / "demo" / "pendulum").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)

    assert load("demo/pendulum").data_path == home / "demo" / "pendulum"


def test_a_class_takes_ids_and_never_the_path_of_raw_files(tmp_path, monkeypatch):
    (tmp_path / "demo" / "nothing").mkdir(parents=True)
    np.savez(tmp_path / "demo" / "nothing" / "episodes.npz", observations=np.zeros((3, 1)))
    monkeypatch.chdir(tmp_path)

    with pytest.raises(UnknownIdError, match="no dataset 'demo/nothing'"):
        DemoExperienceReplay("nothing")


@pytest.mark.parametrize(
    ("given", "kind", "says"),
    [
        ("./nothing", NotADatasetError, "nothing is not a dataset: the path does not exist"),
        ("nothing/td3", UnknownIdError, "no dataset 'nothing/td3'"),
        ("", UnknownIdError, "no dataset ''"),
        ("mix.toml", InvalidArgumentError, r'expected an id or a folder\nload_mixture\("mix.toml"\)'),
    ],
)
def test_a_path_that_is_not_a_dataset_is_an_error_with_a_remedy(given, kind, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mix.toml").write_text("")

    with pytest.raises(kind, match=says):
        load(given)


@pytest.mark.parametrize("arguments", [{"root": "."}, {"download": "force"}])
def test_a_folder_accepts_no_argument_that_applies_only_to_ids(arguments, tmp_path):
    with pytest.raises(InvalidArgumentError, match="is a folder, which is opened in place"):
        load(tmp_path, **arguments)


@pytest.mark.parametrize(
    ("dataset_id", "argument", "near"),
    [
        ("demo/pendulum", "batchsize", "batch_size"),
        ("demo/pendulum", "transforms", "transform"),
        (f"d4rl/{NAME}", "from_environment", "from_env"),
        ("local/own", "foldr", "folder"),
        ("openx/bridge", "num_slice", "num_slices"),
    ],
)
def test_a_mistyped_argument_is_an_error_with_a_suggestion_before_any_download(home, dataset_id, argument, near):
    with pytest.raises(InvalidArgumentError, match=rf"has no argument '{argument}'.*\ndid you mean {near}"):
        load(dataset_id, **{argument: 3})
    assert not home.exists()


def test_a_class_refuses_an_argument_that_it_lacks_before_any_download(home):
    for name in ("batchsize", "sample_unit"):
        with pytest.raises(TypeError, match=f"got an unexpected keyword argument '{name}'"):
            dataset_class("demo")("pendulum", **{name: 3})
    assert not home.exists()


def test_an_unknown_argument_of_a_class_is_refused_with_the_known_ones():
    with pytest.raises(
        InvalidArgumentError, match="OpenMLExperienceReplay has no argument 'split_trajs', expected batch_size"
    ):
        load("openml/magic", split_trajs=True)


UNLISTED = {"hf": "own/data", "url": "https/host/a.npz"}


def test_every_class_has_the_parameters_of_load_and_a_selection():
    spelled = [one for one in inspect.signature(load).parameters if one not in {"dataset_id", "options"}]
    for source in sources.source_names():
        lacking = {"openml": {"split_trajs"}}.get(source, set())
        with pytest.raises(InvalidArgumentError, match="has no argument 'no_such', expected") as caught:
            load(
                f"{source}/{next(iter(sources.get_source(source).ids()), UNLISTED.get(source, 'own'))}",
                no_such=1,
            )
        named = caught.value.message.partition("expected ")[2].split(", ")
        assert set(spelled) - lacking <= set(named), source
        assert dataset_class(source).source == source


@pytest.mark.parametrize("source", sources.source_names())
def test_the_signature_of_every_class_names_its_arguments_and_those_of_its_base(source):
    parameters = inspect.signature(dataset_class(source)).parameters

    assert [*parameters][1] == "batch_size"
    assert {"transform", "selection", "final_unknown"} < {*parameters}
    assert all(parameter.kind is not inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())


def test_d4rl_shows_the_fields_of_a_selection_with_and_without_the_environment(raw):
    folder = store(raw)
    whole = D4RLExperienceReplay(NAME, from_env=False)

    for from_env in (True, False):
        less = D4RLExperienceReplay(NAME, from_env=from_env, selection=FIELDS, download=False)
        assert "action" not in less
        assert torch.equal(less["observation"], load(folder)["observation"] if from_env else whole["observation"])
        assert len(less) == (len(load(folder)) if from_env else len(whole))
        assert less.selection == FIELDS


def test_d4rl_takes_the_generator_of_its_base_class(raw):
    store(raw)
    drawn = [
        load(f"d4rl/{NAME}", 16, generator=torch.Generator().manual_seed(5)).sample()["index"].tolist() for _ in "ab"
    ]

    assert drawn[0] == drawn[1]


@pytest.mark.parametrize("from_env", [True, False])
def test_d4rl_opens_the_fields_that_are_stored(raw, from_env):
    store(raw)
    whole = D4RLExperienceReplay(NAME, from_env=from_env)[:]
    store(raw, FIELDS)

    dataset = load(f"d4rl/{NAME}", from_env=from_env)

    assert torch.equal(dataset["observation"], whole["observation"])
    assert torch.equal(dataset["next", "observation"], whole["next", "observation"])
    assert "action" not in dataset
    assert f"a part: {FIELDS}" in repr(dataset)


def test_without_a_download_a_larger_part_is_refused_with_the_command_that_adds_it(raw):
    folder = store(raw, FIELDS)
    says = (
        r"holds keys=observation: keys=action was requested\n"
        r"`datasets_rl.download\('d4rl/\S*', selection=datasets_rl.Selection\(keys=\('action',\)\)\)` adds the rest"
    )

    for refused in (
        lambda part: D4RLExperienceReplay(NAME, selection=part, download=False),
        lambda part: load(folder, selection=part),
    ):
        with pytest.raises(InvalidArgumentError, match=says):
            refused(Selection(keys=("action",)))
    assert len(load(folder, selection=FIELDS)) == len(load(folder))


def test_load_adds_to_a_part_in_place():
    downloading.download("demo/pendulum", selection=FIELDS)
    open_before = load("demo/pendulum")
    row = open_before[7]["observation"]

    grown = load("demo/pendulum", selection=Selection(keys=("action",)))

    assert "observation" not in grown
    assert "action" in grown
    assert load("demo/pendulum").selection == Selection(keys=("observation", "action"))
    assert torch.equal(open_before[7]["observation"], row)
    assert DemoExperienceReplay("pendulum", selection=Selection()).selection == load("demo/pendulum").selection
    downloading.download("demo/pendulum")
    assert load("demo/pendulum").selection == Selection()


def test_a_dry_run_plans_both_parts_of_a_growing_dataset_and_nothing_for_a_stored_one():
    downloading.download("demo/pendulum", selection=FIELDS)

    growing = planning.plan("demo/pendulum", selection=Selection(keys=("action",)))
    stored = planning.plan("demo/pendulum", selection=FIELDS)

    assert (growing.present, growing.selection) == (False, Selection(keys=("observation", "action")))
    assert stored.present
    assert not planning.plan("demo/pendulum").present


def test_selections_that_count_episodes_over_different_files_are_not_joined(raw):
    folder = version_folder(store(raw, FIELDS))
    manifest = (folder / "manifest.json").read_text()
    (folder / "manifest.json").write_text(
        manifest.replace('"keys": [\n   "observation"\n  ]', '"episodes": "0:3", "include": ["a"]')
    )

    stored = Manifest.read(folder)
    assert stored_selection.grown_selection(stored, folder, Selection("0:3", include=("a",))) is None
    with pytest.raises(InvalidArgumentError, match="which counts its episodes over different files"):
        stored_selection.grown_selection(stored, folder, Selection("0:3", include=("b",)))

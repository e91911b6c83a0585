"""`as_robomimic`: its sequences are those of robomimic's rules over the file that the dataset was made of."""

from __future__ import annotations

import pickle
from importlib import import_module
from inspect import signature

import h5py
import numpy as np
import pytest
from raw.robomimic import draw, write_file, write_robomimic
from torch.utils.data import DataLoader

from datasets_rl import downloading, load
from datasets_rl.errors import InvalidArgumentError, UnknownKeyError
from datasets_rl.settings import Settings

OBS = ("joint_states", "ee_states")
KEYS = ("actions", "rewards", "dones", "states")
LENGTHS = (5, 3, 8)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    rng = np.random.default_rng(3)
    demos = {number: draw(rng, length, masks=("few",) if number < 2 else ()) for number, length in enumerate(LENGTHS)}
    path = tmp_path_factory.mktemp("raw") / "tree/low_dim.hdf5"
    write_file(path, demos, write_robomimic, env_args='{"env_name": "Lift", "type": 1, "env_kwargs": {}}')
    return path


@pytest.fixture(scope="module")
def dataset(file, tmp_path_factory):
    settings = Settings(home=tmp_path_factory.mktemp("home"), progress=False, jobs=1)
    return load(str(downloading.download("robomimic/mine", from_local=file.parent, settings=settings)))


def expected_items(file, frame_stack, seq_length, demos=LENGTHS, *, pad_stack=True, pad_end=True, goal=False):
    """Return all sequences by the rules of robomimic, from the arrays of a file."""
    items = []
    with h5py.File(file) as source:
        for number, length in enumerate(demos):
            group = source[f"data/demo_{number}"]
            for step in range(0 if pad_stack else frame_stack - 1, length if pad_end else length - seq_length + 1):
                wanted = np.arange(step - frame_stack + 1, step + seq_length)
                rows = wanted.clip(0, length - 1)
                item = {name: group[name][()][rows].astype(np.float32) for name in KEYS}
                item["absent"] = np.zeros((len(rows), 1), np.float32)
                mask = ((wanted >= 0) & (wanted < length))[:, None]
                for prefix in ("obs", "next_obs"):
                    item[prefix] = {name: group[f"{prefix}/{name}"][()][rows] for name in OBS} | {"pad_mask": mask}
                item["pad_mask"] = mask
                if goal:
                    last = length - (0 if pad_end else seq_length - 1) - 1
                    item["goal_obs"] = {name: group[f"next_obs/{name}"][last] for name in OBS}
                    item["goal_obs"]["pad_mask"] = np.ones(1, np.bool_)
                items.append({**item, "index": len(items)})
    return items


def check_equal(item, expected):
    assert item.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, dict):
            check_equal(item[name], value)
        elif isinstance(value, int):
            assert item[name] == value
        else:
            assert (item[name].dtype, item[name].shape) == (value.dtype, value.shape), name
            assert np.array_equal(item[name], value), name


@pytest.mark.parametrize(("frame_stack", "seq_length"), [(1, 1), (3, 2), (1, 10)])
@pytest.mark.parametrize("goal", [None, "last"])
def test_sequences_are_padded_by_the_first_and_the_last_step(dataset, file, frame_stack, seq_length, goal):
    options = {"frame_stack": frame_stack, "seq_length": seq_length, "goal_mode": goal, "get_pad_mask": True}
    sequences = dataset.as_robomimic(OBS, (*KEYS, "absent"), **options)

    expected = expected_items(file, frame_stack, seq_length, goal=goal is not None)
    assert len(sequences) == len(expected)
    for index, item in enumerate(expected):
        check_equal(sequences[index], item)


def test_sequences_without_padding_stay_in_their_episode(dataset, file):
    options = {"pad_frame_stack": False, "pad_seq_length": False, "get_pad_mask": True, "goal_mode": "last"}
    sequences = dataset.as_robomimic(OBS, (*KEYS, "absent"), frame_stack=2, seq_length=2, **options)

    expected = expected_items(file, 2, 2, pad_stack=False, pad_end=False, goal=True)
    assert len(sequences) == len(expected) == sum(LENGTHS) - 6
    for index, item in enumerate(expected):
        check_equal(sequences[index], item)


def test_a_filter_key_and_a_limit_choose_episodes(dataset, file):
    sequences = dataset.as_robomimic(OBS, filter_by_attribute="few")

    assert sequences.demos == ["demo_0", "demo_1"]
    assert len(sequences) == 8
    assert dataset.as_robomimic(OBS, demo_limit=1).demos == ["demo_0"]
    episode = sequences.get_trajectory_at_index(1)
    with h5py.File(file) as source:
        assert np.array_equal(episode["actions"], source["data/demo_1/actions"][()].astype(np.float32))
        assert np.array_equal(episode["obs"]["ee_states"], source["data/demo_1/obs/ee_states"])
    assert episode["ep"] == "demo_1"


def test_observations_and_actions_are_normalized(dataset, file):
    config = {"actions": {"normalization": "min_max"}}
    sequences = dataset.as_robomimic(OBS, action_config=config, hdf5_normalize_obs=True)

    with h5py.File(file) as source:
        groups = [source[f"data/demo_{number}"] for number in range(3)]
        states = np.concatenate([group["obs/joint_states"] for group in groups]).astype(np.float32)
        actions = np.concatenate([group["actions"] for group in groups]).astype(np.float32)
    stats = sequences.get_obs_normalization_stats()["joint_states"]
    assert np.allclose(stats["offset"], states.mean(0, keepdims=True), rtol=1e-5)
    assert np.allclose(stats["scale"], states.std(0, keepdims=True) + 1e-3, rtol=1e-5)
    normalized = np.stack([sequences[index]["actions"][0] for index in range(len(sequences))])
    assert np.allclose(normalized.min(0), -0.999999, atol=1e-6)
    assert np.allclose(normalized.max(0), 0.999999, atol=1e-6)
    found = sequences.get_action_normalization_stats()["actions"]
    assert np.allclose(normalized * found["scale"] + found["offset"], actions, atol=1e-5)
    gaussian = dataset.as_robomimic(OBS, action_config={"actions": {"normalization": "gaussian"}})
    assert np.allclose(gaussian[3]["actions"][0], (actions[3] - actions.mean(0)) / actions.std(0), atol=1e-4)
    plain = dataset.as_robomimic(OBS).get_action_normalization_stats()["actions"]
    assert (plain["scale"] == 1).all()
    assert (plain["offset"] == 0).all()


@pytest.mark.parametrize("workers", [0, 2])
def test_the_loader_of_torch_collates_batches(dataset, file, workers):
    sequences = dataset.as_robomimic(OBS, seq_length=3, hdf5_path="any", hdf5_cache_mode="all", hdf5_use_swmr=True)
    loader = DataLoader(sequences, sampler=sequences.get_dataset_sampler(), batch_size=6, num_workers=workers)

    batches = [*loader]

    expected = expected_items(file, 1, 3)
    assert batches[2]["obs"]["joint_states"].shape == (4, 3, 7)
    found = np.concatenate([batch["actions"].numpy() for batch in batches])
    assert np.array_equal(found, np.stack([item["actions"] for item in expected]))


def test_a_spawned_worker_reads_the_same_sequences(dataset):
    sequences = dataset.as_robomimic(OBS, seq_length=4)

    check_equal(pickle.loads(pickle.dumps(sequences))[6], sequences[6])


def test_wrong_arguments_are_named(dataset):
    with pytest.raises(UnknownKeyError, match="camera"):
        dataset.as_robomimic(["camera"])
    with pytest.raises(InvalidArgumentError, match="'train', expected one of few"):
        dataset.as_robomimic(OBS, filter_by_attribute="train")
    with pytest.raises(InvalidArgumentError, match="1 episodes are too short for a sequence without padding"):
        dataset.as_robomimic(OBS, seq_length=5, pad_seq_length=False)
    with pytest.raises(InvalidArgumentError, match=r"seq_length is 0.*goal_mode is 'all'"):
        dataset.as_robomimic(OBS, seq_length=0, goal_mode="all")
    with pytest.raises(InvalidArgumentError, match="goal_mode needs load_next_obs"):
        dataset.as_robomimic(OBS, goal_mode="last", load_next_obs=False)
    with pytest.raises(InvalidArgumentError, match="action_keys has 'torques'") as refused:
        dataset.as_robomimic(OBS, action_keys=["torques"])
    assert "action_keys: action" in str(refused.value.hint)
    with pytest.raises(InvalidArgumentError, match="lang is 'lift', expected None"):
        dataset.as_robomimic(OBS, lang="lift")
    with pytest.raises(InvalidArgumentError, match="normalization of actions is 'log'"):
        dataset.as_robomimic(OBS, action_config={"actions": {"normalization": "log"}})[0]
    with pytest.raises(InvalidArgumentError, match="hdf5_normalize_obs is False"):
        dataset.as_robomimic(OBS).get_obs_normalization_stats()
    with pytest.raises(IndexError):
        dataset.as_robomimic(OBS)[16]
    assert "next_obs" not in dataset.as_robomimic(OBS, load_next_obs=False)[0]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("frame_stack", "seq_length"), [(1, 1), (3, 4)])
def test_robomimic_reads_the_same_sequences_from_the_file(dataset, file, frame_stack, seq_length):
    module = pytest.importorskip("robomimic.utils.dataset", reason="pip install robomimic", exc_type=ImportError)
    options = {"frame_stack": frame_stack, "seq_length": seq_length, "get_pad_mask": True, "goal_mode": "last"}
    if "action_config" in signature(module.SequenceDataset).parameters:  # from version 0.4
        options |= {"action_keys": ("actions",), "action_config": {"actions": {"normalization": "min_max"}}}
    import_module("robomimic.utils.obs_utils").initialize_obs_modality_mapping_from_dict({"low_dim": [*OBS]})
    given = {"obs_keys": OBS, "dataset_keys": KEYS, "hdf5_cache_mode": "low_dim", "hdf5_use_swmr": False, **options}
    theirs = module.SequenceDataset(str(file), **given)
    ours = dataset.as_robomimic(**given)

    assert len(ours) == len(theirs)
    for index in range(len(theirs)):
        expected = {"index": index, **theirs[index]}  # version 0.3 has no index
        check_equal(ours[index], expected)

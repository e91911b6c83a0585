"""Mixtures of datasets, from one call and from a file, and their errors."""

from __future__ import annotations

import math

import pytest
import torch
from stored_data import columns, trajectory, write_dataset

from datasets_rl import (
    LazyTensorStorage,
    Mixture,
    RandomSampler,
    SliceSampler,
    TensorDictReplayBuffer,
    load,
    load_mixture,
    mixture,
)
from datasets_rl.catalog.mixture_file import Member, mixture_toml
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.read.toml import parse_toml


@pytest.fixture
def small(tmp_path):
    return write_dataset(tmp_path / "small", [trajectory(10, seed=n) for n in range(4)], columns()).folder


@pytest.fixture
def large(tmp_path):
    return write_dataset(tmp_path / "large", [trajectory(10, seed=n) for n in range(36)], columns()).folder


def file_of(folder, text):
    path = folder / "mix.toml"
    path.write_text(text)
    return path


TWO = '[[member]]\ndataset = "small"\n{}\n[[member]]\ndataset = "large"\n{}\n'


def test_one_call_mixes_folders(small, large):
    rb = mixture([small, str(large)], weights=[3, 1], batch_size=8)
    batch = rb.sample()

    assert torch.bincount(batch["index", "buffer_ids"]).tolist() == [6, 2]
    assert torch.equal(batch["observation"][6:], rb[1][batch["index", "index"][6:]]["observation"])
    assert rb.names == (str(small), str(large))


def test_ids_are_mixed_with_folders_and_buffers(monkeypatch, tmp_path):
    monkeypatch.setenv("RLDS_HOME", str(tmp_path / "home"))
    own = TensorDictReplayBuffer(storage=LazyTensorStorage(10))
    own.extend(load("demo/pendulum")[:10].select("observation", "action"))
    rb = mixture(["demo/pendulum", load("demo/pendulum").data_path, own], batch_size=6, missing="drop")
    batch = rb.sample()

    assert rb.names[::2] == ("demo/pendulum", "buffer 2")
    assert set(batch.keys()) == {"index", "observation", "action"}


@pytest.mark.parametrize(
    ("temperature", "shares"), [(1, [0.1, 0.9]), (2, [0.25, 0.75]), (math.inf, [0.5, 0.5])], ids=str
)
def test_a_temperature_determines_shares_from_sizes(small, large, temperature, shares):
    """40 and 360 steps have the ratio 1 to 9, and 1 to 3 after the square root."""
    assert mixture([small, large], temperature=temperature).sampler.shares.tolist() == pytest.approx(shares)


def test_each_member_has_its_transforms(small):
    scaled = Member(str(small), transforms=["reward_scaling:0,10", {"use": "reward_scaling", "loc": 1, "scale": 1}])
    batch = mixture([scaled, small], batch_size=20).sample()
    rows = batch["index", "index"]
    wanted = load_reward(small)[rows] * torch.where(batch["index", "buffer_ids"] == 0, 10, 1)[:, None]

    assert torch.allclose(batch["next", "reward"], wanted + (batch["index", "buffer_ids"] == 0)[:, None])


def load_reward(folder):
    from datasets_rl import load

    return load(folder)["next", "reward"]


def test_a_file_gives_the_same_mixture_as_a_call(small, large, tmp_path):
    path = file_of(
        tmp_path,
        "batch_size = 16\nanneal = 4\nsampler = { use = 'slices', slice_len = 4 }\n"
        + TWO.format(
            "weight = 1\nfinal_weight = 0",
            "weight = 0\nfinal_weight = 1\n[[member.transform]]\nuse = 'double_to_float'",
        ),
    )
    rb = load_mixture(path)
    given = [torch.bincount(rb.sample()["index", "buffer_ids"], minlength=2).tolist() for _ in range(5)]

    assert given == [[16, 0], [12, 4], [8, 8], [4, 12], [0, 16]]
    assert rb.names == (str(small), str(large))
    assert len(rb[1].transforms) == 1


def test_arguments_take_precedence_over_the_file(small, large, tmp_path):  # noqa: ARG001 - the file names them
    rb = load_mixture(file_of(tmp_path, "batch_size = 16\n" + TWO.format("", "")), batch_size=4)

    assert len(rb.sample()) == 4


def test_a_written_mixture_is_read_back():
    members = [
        Member("d4rl/hopper-medium-v2", 0.7, 0.1, ("resize:64", {"use": "cat_frames", "N": 4})),
        Member('a "b"\\c', 3, 0.9),
    ]
    settings = {"batch_size": 8, "anneal": 5, "exact": False, "sampler": {"use": "random"}, "temperature": None}

    read = parse_toml(mixture_toml(members, settings))

    assert read.pop("member") == [
        {
            "dataset": "d4rl/hopper-medium-v2",
            "weight": 0.7,
            "final_weight": 0.1,
            "transforms": ["resize:64", {"use": "cat_frames", "N": 4}],
        },
        {"dataset": 'a "b"\\c', "weight": 3, "final_weight": 0.9},
    ]
    assert read == {key: value for key, value in settings.items() if value is not None}
    assert parse_toml(mixture_toml([], {"temperature": math.inf})) == {"temperature": math.inf}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("color = 1\n[[member]]\nsize = 2", ["the file has color", "member 0 has size", "member 0 has no dataset"]),
        ("[[member]]\ndataset = 'small'\nshare = 2", ["member 0 has share, expected dataset, weight, final_weight"]),
        ("batch_size = 3", [r"no \[\[member\]\] tables"]),
        ("batch_size = ", ["is not valid TOML"]),
        (
            "sampler = 3\nanneal = true\n[[member]]\ndataset = 'small'\nweight = '1'\n",
            [
                "sampler = 3, expected a table or a text",
                "anneal = True, expected an integer",
                "weight = '1', expected an integer or a number",
            ],
        ),
        (TWO.format("weight = 1", ""), ["1 of 2 members have a weight"]),
        ("temperature = 2\n" + TWO.format("weight = 1", "weight = 1"), ["without weights"]),
        ("temperature = 0\n" + TWO.format("", ""), ["above 0"]),
        ("sampler = { use = 'best' }\n" + TWO.format("", ""), ["uses 'best', expected random"]),
        ("sampler = { use = 'slices', length = 2 }\n" + TWO.format("", ""), ["slices cannot be created"]),
        (TWO.format("transforms = ['reszie:3']", ""), ["no step 'reszie'"]),
        (TWO.format("transforms = [3]", ""), ["a transform of .*small is 3, expected"]),
        (TWO.format("[[member.transform]]\nw = 64", ""), [r"a transform of .*small is \{'w': 64\}, expected"]),
    ],
    ids=lambda value: value[:24] if isinstance(value, str) else "",
)
@pytest.mark.usefixtures("small", "large")
def test_an_invalid_file_is_refused_with_all_errors(tmp_path, text, said):
    with pytest.raises(InvalidArgumentError) as raised:
        load_mixture(file_of(tmp_path, text))

    for one in said:
        assert raised.match(one)


def test_a_step_that_needs_whole_episodes_is_refused(small):
    with pytest.raises(InvalidArgumentError, match=r"keep_returns of .* need whole episodes") as raised:
        mixture([Member(str(small), transforms=["keep_returns:3"])])

    assert "datasets_rl.preprocess(datasets_rl.locate(" in raised.value.hint


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InvalidArgumentError, match=r"none\.toml cannot be read"):
        load_mixture(tmp_path / "none.toml")


@pytest.mark.parametrize("size", [2**31, 10**12, 10**30])
def test_a_batch_that_no_memory_holds_is_refused_by_its_size(size):
    refused = pytest.raises(InvalidArgumentError, match=f"batch_size is {size:,}, expected at most 2,147,483,647 steps")

    with refused:
        mixture(["demo/pendulum", "demo/pendulum"], batch_size=size)
    with refused:
        mixture(["demo/pendulum", "demo/pendulum"]).sample(size)
    with refused:
        load("demo/pendulum").sample(size)


@pytest.mark.parametrize("use", ["slices", "slices_without_replacement"])
@pytest.mark.parametrize(
    "shares",
    [{"weights": [0.7, 0.3]}, {"weights": [3, 1], "final_weights": [1, 3], "anneal": 20}, {"exact": False}],
    ids=["uneven", "annealed", "drawn"],
)
def test_a_number_of_slices_is_that_of_the_whole_batch(small, large, use, shares):
    rb = mixture([small, large], sampler={"use": use, "num_slices": 4}, batch_size=32, **shares)
    counts = []
    for _ in range(30):
        batch = rb.sample()
        slices = batch.reshape(4, 8)
        assert (slices["slice_id"] == slices["slice_id"][:, :1]).all()
        assert (slices["index", "index"].diff(dim=1) == 1).all()
        assert len(slices["slice_id"].unique()) == 4
        counts.append(int((slices["index", "buffer_ids"][:, 0] == 0).sum()))
    if "anneal" in shares:
        assert (counts[0], set(counts[21:])) == (3, {1})


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"batch_size": 30}, "num_slices is 4 and batch_size is 30, expected a multiple of num_slices"),
        ({}, "num_slices is 4 and batch_size is None"),
        ({"batch_size": 32, "num_slices": 0}, "num_slices is 0, expected an integer >= 1"),
        ({"batch_size": 32, "slice_len": 8}, "expected exactly one"),
        ({"batch_size": 64}, "slice_len is 16, but the longest episode of .*small has 10 steps"),
        (
            {"batch_size": 64, "strict_length": False},
            "slice_len is 16, but the shortest episode of .*small has 10 steps, expected pad_output=True",
        ),
        ({"batch_size": 32, "span": True}, "span is True, expected pad_output=True"),
    ],
    ids=str,
)
def test_slices_that_a_batch_cannot_have_are_refused_at_the_open(small, large, options, says):
    sampler = {"use": "slices", "num_slices": 4, **options}
    with pytest.raises(InvalidArgumentError, match=says):
        mixture([small, large], batch_size=sampler.pop("batch_size", None), sampler=sampler)


def test_buffers_with_a_number_of_slices_are_refused_where_their_steps_change(small, large):
    members = [load(folder, sampler=SliceSampler(num_slices=4)) for folder in (small, large)]
    with pytest.raises(InvalidArgumentError, match="a sampler has num_slices, and unit is 1"):
        mixture(members, batch_size=32, weights=[3, 1])
    assert len(Mixture(*members, unit=8, batch_size=64).sample()["slice_id"].unique()) == 8


def test_a_sampler_is_given_by_its_name(small, large, tmp_path):
    rb = mixture([small, large], sampler="without_replacement", batch_size=80)
    assert len(rb.sample()["index", "index"][:40].unique()) == 40
    path = file_of(tmp_path, "sampler = 'random'\nkeys = ['action']\nbatch_size = 4\n" + TWO.format("", ""))
    assert isinstance(load_mixture(path).sampler[0], RandomSampler)
    assert set(load_mixture(path).sample().keys()) == {"index", "action"}
    with pytest.raises(InvalidArgumentError, match="sampler uses 'rondom', expected random"):
        mixture([small], sampler="rondom")


def test_a_mixture_reads_only_some_fields(small, large):
    rb = mixture([small, large], keys=["action", "next.reward"], batch_size=4)
    assert set(rb.sample().keys(include_nested=True, leaves_only=True)) - {
        ("index", "buffer_ids"),
        ("index", "index"),
    } == {
        "action",
        ("next", "reward"),
    }
    with pytest.raises(InvalidArgumentError, match="some members are buffers"):
        mixture([small, load(large)], keys=["action"])
    with pytest.raises(TypeError, match="a mixture has no argument 'pre_fetch'") as raised:
        mixture([small], pre_fetch=2)
    assert "prefetch" in raised.value.hint


def test_the_greatest_weights_are_shares(small, large):
    assert mixture([small, large], weights=[1e308, 1e308]).sampler.shares.tolist() == [0.5, 0.5]

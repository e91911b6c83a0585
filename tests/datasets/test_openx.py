"""Open X as a replay buffer: streamed from loopback through a folder of bounded size, and downloaded."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from raw import openx as raw
from upstreams import bucket

from datasets_rl import OpenXExperienceReplay, Selection
from datasets_rl.errors import ConversionError, FetchError, InvalidArgumentError, NotADatasetError, UnknownKeyError
from datasets_rl.samplers import RandomSampler, SliceSampler, SliceSamplerWithoutReplacement
from datasets_rl.sources import openx
from datasets_rl.ted.episode import TextStates

LENGTHS = [len(raw.golden(one, number)) for number, one in enumerate(raw.EPISODES)]


@pytest.fixture
def served(tmp_path, monkeypatch):
    """A server of three files with two, one and two episodes, one shard each."""
    monkeypatch.setattr(openx, "_SHARD_BYTES", 10_000)
    raw.write_records(tmp_path / "tree", raw.FILES)
    with bucket({"gdm-robotics-open-x-embodiment": tmp_path / "tree"}) as server:
        for name, value in {
            "STORAGE_EMULATOR_HOST": server.url,
            "RLDS_HOME": str(tmp_path / "home"),
            "NO_PROXY": "*",
            "RLDS_MAX_RETRIES": "0",
            "RLDS_NO_PROGRESS": "1",
        }.items():
            monkeypatch.setenv(name, value)
        yield server


@pytest.fixture
def streamed(served):
    """A function that makes streams; they are closed after the test."""
    made = []
    assert served.url

    def run(*arguments, **options):
        made.append(OpenXExperienceReplay(raw.NAME, *arguments, streaming=True, download=False, **options))
        return made[-1]

    yield run
    for one in made:
        one.stream.close()


def files_asked(server):
    return [one.path.partition(".tfrecord-")[2][:5] for one in server.requests if ".tfrecord-" in one.path]


def source(dataset, trajectory):
    """Return the number of the generated episode of a trajectory, by the path of its file."""
    words = dataset.texts(("episode_metadata", "file_path"))
    (code,) = set(trajectory["episode_metadata", "file_path"].tolist())
    return [one.path for one in raw.EPISODES].index(words[code])


def same(dataset, trajectory, number):
    """Return whether a trajectory equals the generated episode."""
    wanted = raw.golden(raw.EPISODES[number], number)
    steps = len(wanted)
    for key, values in {**wanted.steps, **wanted.states}.items():
        got = trajectory[key].numpy()
        if isinstance(values, TextStates):
            assert [dataset.texts(key)[code] for code in got] == [
                values.vocabulary[code] for code in values.codes[:steps]
            ]
            continue
        assert np.abs(got.astype(float) - values[:steps]).max() <= 2 * (key[-1] == "image"), key
        if key in wanted.states and len(values) > steps:
            following = trajectory[("next", *key)].numpy().astype(float)
            assert np.abs(following - values[1:]).max() <= 2 * (key[-1] == "image"), key
    assert not trajectory["done"].any()
    assert trajectory["next", "done"][:, 0].tolist() == [False] * (steps - 1) + [True]


def test_iterating_gives_every_trajectory_whole_and_once(streamed):
    dataset = streamed()

    found = [(source(dataset, one), one) for one in dataset]

    assert sorted(number for number, _ in found) == [0, 1, 2, 3, 4]
    for number, trajectory in found:
        same(dataset, trajectory, number)
    assert len(torch.cat([one["episode"].unique() for _, one in found]).unique()) == 5


def test_batches_of_a_stream_always_say_whether_the_final_observation_is_known(streamed):
    """A later shard may have unknown observations."""
    dataset = streamed()
    for trajectory in dataset:
        episode = raw.EPISODES[source(dataset, trajectory)]
        wanted = raw.golden(episode, raw.EPISODES.index(episode)).final_known
        assert trajectory["next", "final_known"][:, 0].tolist() == [True] * (len(trajectory) - 1) + [wanted]


def test_padded_steps_of_a_stream_have_no_known_next_state(streamed):
    batch = streamed(5 * 40, slice_len=40, pad=1, shuffle=False).sample()
    mask = batch["collector", "mask"]

    assert not mask.all()
    assert not batch["next", "final_known"][~mask].any()


@pytest.mark.usefixtures("served")
def test_the_default_is_a_stream_unless_the_dataset_is_stored():
    streamed = OpenXExperienceReplay(raw.NAME)
    stored = OpenXExperienceReplay(raw.NAME, download=True)

    assert streamed.streaming
    assert not stored.streaming
    assert not OpenXExperienceReplay(raw.NAME).streaming
    assert OpenXExperienceReplay(raw.NAME, streaming=True).streaming
    assert len(stored) == sum(LENGTHS)
    streamed.stream.close()


def test_without_shuffling_they_come_in_the_order_of_the_files(streamed):
    dataset = streamed(shuffle=False)

    assert [source(dataset, one) for one in dataset] == [0, 1, 2, 3, 4]
    assert [source(dataset, one) for one in dataset] == [0, 1, 2, 3, 4]


def test_the_seed_determines_the_order(streamed):
    def order(seed):
        torch.manual_seed(seed)
        dataset = streamed()
        found = [source(dataset, one) for one in dataset]
        dataset.stream.close()
        return found

    assert order(3) == order(3)
    assert len({tuple(order(seed)) for seed in range(4)}) > 1


def test_a_given_generator_determines_the_order(streamed):
    def order():
        dataset = streamed(num_slices=1)
        dataset.set_rng(torch.Generator().manual_seed(5))
        found = [dataset.sample(2)["observation", "state"].tolist() for _ in range(5)]
        dataset.stream.close()
        return found

    assert order() == order()


def test_batches_hold_slices_of_different_trajectories(streamed):
    dataset = streamed(4, num_slices=2)
    states = torch.cat([torch.from_numpy(one.state) for one in raw.EPISODES])

    batches = [*dataset]

    # Five trajectories give two batches of two slices, and one slice remains.
    assert [len(batch) for batch in batches] == [4, 4, 2]
    for batch in batches:
        for part in batch.split(2):
            assert len(set(part["episode"].tolist())) == 1
            at = (states == part["observation", "state"][0]).all(1).nonzero().item()
            assert torch.equal(part["observation", "state"], states[at : at + 2])
            assert part["next", "truncated"][:, 0].tolist() == [False, True]
            assert part["next", "done"][:, 0].tolist() == [False, True]
            assert part["is_init"].tolist() == [True, False]
        assert len(set(batch["episode"].tolist())) == len(batch) // 2
        assert batch["slice_id"].tolist() == [number for number in range(len(batch) // 2) for _ in range(2)]


def test_every_start_of_a_trajectory_is_drawn(streamed, tmp_path):
    raw.write_records(tmp_path / "tree", [[raw.draw(6, 3)]])
    dataset = streamed(slice_len=2)
    states = raw.draw(6, 3).state[:, 0].tolist()

    starts = [states.index(float(dataset.sample(2)["observation", "state"][0, 0])) for _ in range(60)]

    counts = np.bincount(starts, minlength=4)
    assert counts.min() > 4
    assert len(counts) == 4


def test_sampling_continues_after_the_end_without_new_requests(streamed, served):
    dataset = streamed(num_slices=1)

    seen = [source(dataset, dataset.sample(1)) for _ in range(5)]
    asked = len(files_asked(served))
    again = [source(dataset, dataset.sample(1)) for _ in range(5)]

    assert sorted(seen) == sorted(again) == [0, 1, 2, 3, 4]
    assert len(files_asked(served)) == asked


def test_a_batch_without_slices_is_one_slice(streamed):
    dataset = streamed()

    batch = dataset.sample(2)
    assert batch["slice_id"].tolist() == [0, 0]
    assert len(set(batch["episode"].tolist())) == 1


@pytest.mark.first(1)
@pytest.mark.parametrize("pad", [True, 7, 0.5])
def test_short_trajectories_are_padded_with_the_given_value(streamed, pad):
    dataset = streamed(slice_len=4, pad=pad, shuffle=False)

    batch = dataset.sample(20)

    mask = batch["collector", "mask"]
    assert mask.reshape(5, 4).sum(1).tolist() == [min(length, 4) for length in LENGTHS]
    value = 0 if pad is True else pad
    assert (batch["observation", "state"][~mask] == value).all()
    assert (batch["observation", "image"][~mask] == int(value)).all()
    assert batch["observation", "image"][mask].float().mean() > 10
    ends = batch["next", "truncated"].reshape(5, 4).int()
    assert ends.argmax(1).tolist() == [min(length, 4) - 1 for length in LENGTHS]
    assert ends.sum(1).tolist() == [1] * 5


def test_a_trajectory_that_is_too_short_is_an_error_or_a_shorter_slice(streamed):
    with pytest.raises(InvalidArgumentError, match="a trajectory has 2 steps, expected 4 for a slice"):
        list(streamed(4, slice_len=4, shuffle=False))

    dataset = streamed(20, slice_len=4, strict_length=False, shuffle=False)
    (batch,) = dataset
    assert len(batch) == sum(min(length, 4) for length in LENGTHS)


def test_iterated_without_a_batch_size_slices_are_cut(streamed):
    dataset = streamed(slice_len=2)

    parts = [*dataset]
    assert [len(one) for one in parts] == [2] * 5
    assert sorted(source(dataset, one) for one in parts) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("size", [3, 5])
def test_a_batch_size_that_is_not_a_multiple_of_the_slices_is_refused(streamed, size):
    for options in ({"num_slices": 2}, {"slice_len": 2}):
        with pytest.raises(InvalidArgumentError, match="multiple of num_slices or slice_len"):
            streamed(**options).sample(size)


@pytest.mark.slow
def test_transforms_and_threads_work_on_a_stream(streamed):
    plain = streamed(4, slice_len=2, shuffle=False)
    torch.manual_seed(0)
    wanted = [batch["action", "world_vector"] for batch in plain]
    plain.stream.close()
    ahead = streamed(4, slice_len=2, shuffle=False, prefetch=2, transform=lambda batch: batch.select("action"))
    torch.manual_seed(0)
    got = [batch["action", "world_vector"] for batch in ahead]

    assert [one.tolist() for one in got] == [one.tolist() for one in wanted]


def test_fields_and_devices_need_a_stored_dataset(streamed):
    dataset = streamed(4, slice_len=2)
    for change in (lambda: dataset.select("action"), lambda: dataset.to("cpu")):
        with pytest.raises(InvalidArgumentError, match="is streamed, expected a stored dataset"):
            change()
    batch = dataset.sample(keys=[("action", "world_vector")])
    assert {*batch.keys(True, True)} > {("action", "world_vector"), "index"}
    assert "observation" not in batch


# --- the cache folder


def on_disk(dataset):
    folder = dataset.stream._folder
    return sorted(path.name for path in (folder / "shards").iterdir()), [*(folder / "raw").rglob("*.tfrecord-*")]


def test_without_room_only_the_current_shard_is_kept(streamed):
    dataset = streamed(cache_size=0)

    for _ in dataset:
        shards, files = on_disk(dataset)
        assert len(shards) == 1
        # The next shard may be stored, and another one may be downloading.
        assert len({path.name.partition(".part")[0] for path in files}) <= 2 * 2
    assert sum(1 for _ in dataset) == 5
    assert len(on_disk(dataset)[0]) == 1


def test_the_next_stream_reuses_stored_shards(streamed, served):
    first = streamed()
    wanted = sum(1 for _ in first)
    first.stream.close()
    asked = len(files_asked(served))

    second = streamed()
    assert sum(1 for _ in second) == wanted
    assert second.stream._folder == first.stream._folder
    assert len(files_asked(served)) == asked


@pytest.mark.slow
def test_concurrent_streams_have_separate_folders(streamed):
    first, second = streamed(shuffle=False), streamed(shuffle=False)

    pairs = [*zip(first, second, strict=True)]
    assert all(torch.equal(one["observation", "state"], two["observation", "state"]) for one, two in pairs)
    assert first.stream._folder != second.stream._folder


@pytest.mark.slow
def test_an_abandoned_stream_ends_its_thread(streamed):
    def fetching():
        return [one for one in threading.enumerate() if one.name == "rlds-fetch"]

    for _ in streamed():
        break
    dataset = streamed(num_slices=1)
    dataset.sample(1)
    dataset.stream.close()
    del dataset

    assert all(one.daemon for one in fetching())


def test_an_error_of_a_stream_is_raised(streamed, tmp_path):
    raw.corrupt_bytes(raw.flipped, tmp_path / "tree")
    dataset = streamed(shuffle=False)

    with pytest.raises(ConversionError, match="does not match the CRC32C"):
        list(dataset)
    assert on_disk(dataset)[0] != []


def test_a_failed_stream_stays_where_it_failed(streamed, tmp_path):
    raw.corrupt_bytes(raw.flipped, tmp_path / "tree")
    dataset = streamed(num_slices=1, shuffle=False)

    assert source(dataset, dataset.sample(1)) == 0
    for _ in range(2):
        with pytest.raises(ConversionError):
            dataset.sample(1)
    raw.write_records(tmp_path / "tree", [raw.FILES[1]] * 3)
    raw.corrupt_bytes(raw.flipped, tmp_path / "tree")
    other = streamed(num_slices=1, shuffle=False, selection=Selection(episodes="1"))
    for _ in range(2):
        with pytest.raises(ConversionError):
            other.sample(1)


def test_keys_and_episodes_are_selected_as_for_a_download(streamed):
    dataset = streamed(selection=Selection(keys=("action",), episodes="1,4"))

    found = [*dataset]
    assert sorted(len(one) for one in found) == [2, 3]
    assert "observation" not in found[0]


def test_a_stream_has_no_length_no_index_and_no_folder(streamed):
    dataset = streamed()

    for ask in (lambda: len(dataset), lambda: dataset[0], lambda: dataset.data_path):
        with pytest.raises(InvalidArgumentError, match="streamed"):
            ask()
    with pytest.raises(UnknownKeyError):
        dataset.texts("language_instruction")
    assert repr(dataset) == "OpenXStream(Stream('openx/cmu_stretch', 3 shards))"


def test_a_stream_of_an_unknown_id_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setenv("RLDS_OFFLINE", "1")
    with pytest.raises(FetchError):
        OpenXExperienceReplay("cmu_stretch", streaming=True, root=tmp_path)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"streaming": True, "download": True}, "streaming and download exclude each other"),
        ({"streaming": True, "replacement": True}, "replacement=True is for downloaded datasets"),
        ({"streaming": True, "sampler": RandomSampler()}, "takes no sampler"),
        ({"streaming": True, "split_trajs": True}, "split_trajs is for downloaded datasets"),
        ({"streaming": True, "final_unknown": "drop"}, "final_unknown is for downloaded datasets"),
        ({"download": True, "pad": True}, "pad is for streams"),
        ({"num_slices": 2, "slice_len": 2}, "expected exactly one"),
        ({"slice_len": 0}, "slice_len is 0, expected an integer >= 1"),
        ({"num_slices": -2}, "num_slices is -2, expected an integer >= 1"),
        ({"slice_len": 4, "pad": float("nan")}, "pad is nan, expected a number"),
        ({"slice_len": 4, "pad": 1e30}, "pad is 1e\\+30, expected a number"),
        ({"download": True, "num_slices": 2, "sampler": RandomSampler()}, "a sampler and slices"),
        ({"download": True, "num_slices": 2, "shuffle": False}, "shuffle=False needs replacement=False"),
    ],
)
def test_contradictory_or_meaningless_arguments_are_refused(tmp_path, options, says):
    with pytest.raises(InvalidArgumentError, match=says):
        OpenXExperienceReplay(raw.NAME, root=tmp_path, **options)
    assert [*tmp_path.iterdir()] == []


# --- downloaded


@pytest.mark.usefixtures("served")
def test_a_downloaded_set_is_sampled_in_slices():
    dataset = OpenXExperienceReplay(raw.NAME, 4, num_slices=2, download=True)

    assert isinstance(dataset.sampler, SliceSampler)
    assert dataset.sample().reshape(2, -1).shape == (2, 2)
    once = OpenXExperienceReplay(raw.NAME, 4, slice_len=2, replacement=False, shuffle=False, download=True)
    assert isinstance(once.sampler, SliceSamplerWithoutReplacement)
    assert [batch["episode"].tolist() for batch in once] == [[0, 0, 1, 1], [2, 2, 3, 3], [4, 4]]


@pytest.mark.usefixtures("served")
def test_a_downloaded_set_is_iterated_trajectory_by_trajectory_too():
    dataset = OpenXExperienceReplay(raw.NAME, shuffle=False, download=True)

    assert [(len(one), one["episode"].unique().tolist()) for one in dataset] == [
        (length, [number]) for number, length in enumerate(LENGTHS)
    ]
    sliced = OpenXExperienceReplay(raw.NAME, slice_len=2, replacement=False, shuffle=False, download=True)
    assert [len(one) for one in sliced] == [2] * 5


@pytest.mark.usefixtures("served")
def test_a_missing_dataset_is_not_opened():
    with pytest.raises(NotADatasetError):
        OpenXExperienceReplay(raw.NAME, download=False)

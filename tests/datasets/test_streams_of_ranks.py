"""The ranks of a job share a stream: each reads its part of the episodes, and resumes exactly."""

from __future__ import annotations

import pickle
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from raw import openx as raw
from servers import serve
from stored_data import trajectory, write_dataset
from upstreams import bucket

from datasets_rl import SampledBatches, load
from datasets_rl.datasets import remote
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.sources import openx

LENGTHS = [7, 1, 12, 3, 9, 4, 30, 2, 5, 8, 6, 11]
STEPS = sum(LENGTHS)


@pytest.fixture
def web(tmp_path, monkeypatch):
    """A web server with a dataset in the stored format, of one block for each episode."""
    monkeypatch.setattr(remote, "_BLOCK_BYTES", 1)
    monkeypatch.setenv("RLDS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("RLDS_NO_PROGRESS", "1")
    with published(tmp_path / "some", LENGTHS) as server:
        yield server


@contextmanager
def published(folder, lengths):
    """Serve a dataset in the stored format with these lengths of episodes, at the path ``/some``."""
    write_dataset(folder, [trajectory(length) for length in lengths])
    files = {f"/some/{path.relative_to(folder)}": path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with serve(files) as server:
        yield server


@pytest.fixture
def ranks(web):
    """A function that returns the streams of all ranks; they are closed after the test."""
    made = []

    def opened(world_size, batch_size=5, **options):
        streams = [
            load(f"{web.url}/some", batch_size=batch_size, streaming=True, rank=rank, world_size=world_size, **options)
            for rank in range(world_size)
        ]
        made.extend(streams)
        return streams

    yield opened
    for stream in made:
        stream.close()


def rows_of(batches):
    return [list(zip(batch["episode"].tolist(), batch["index"].tolist(), strict=True)) for batch in batches]


def flat(batches):
    return [row for batch in batches for row in batch]


@pytest.mark.first(2)
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_every_step_is_read_once_and_every_episode_by_one_rank(ranks, web, world_size):
    drawn = [flat(rows_of(stream)) for stream in ranks(world_size, buffer_steps=20)]

    assert len(set(flat(drawn))) == len(flat(drawn)) == STEPS
    owners = [{episode for episode, _ in rows} for rows in drawn]
    assert sorted(flat(owners)) == list(range(len(LENGTHS)))
    starts = [one.headers["Range"] for one in web.requests if one.path == "/some/final.npy" and "Range" in one.headers]
    assert len(starts) <= len(LENGTHS) + 2 * world_size  # each episode by one rank, and the header by each


def test_slices_are_one_of_each_episode(ranks):
    drawn = [flat(rows_of(stream)) for stream in ranks(2, slice_len=4, batch_size=8, strict_length=False)]

    episodes = [episode for episode, _ in flat(drawn)]
    assert np.bincount(episodes).tolist() == [min(length, 4) for length in LENGTHS]


@pytest.mark.parametrize("slices", [{"slice_len": 2}, {"num_slices": 2}], ids=str)
def test_a_slice_that_an_episode_does_not_have_is_refused_at_the_open(ranks, slices):
    with pytest.raises(InvalidArgumentError, match="a trajectory has 1 steps, expected 2 for a slice"):
        ranks(1, batch_size=4, **slices)
    (padded,) = ranks(1, batch_size=4, pad=0.0, **slices)
    assert len(padded.sample()) == 4


def test_epochs_differ_and_follow_from_the_seed(ranks):
    (stream,), (again,) = ranks(1, seed=3), ranks(1, seed=3)
    epochs = [rows_of(stream) for _ in range(2)]

    assert [rows_of(again) for _ in range(2)] == epochs
    assert epochs[0] != epochs[1]


@pytest.mark.first(2)
@pytest.mark.parametrize(
    ("before", "after", "options"),
    [
        pytest.param(*ranks, options, marks=() if ranks in {(2, 2), (4, 2)} or not number else pytest.mark.slow)
        for number, options in enumerate([{"buffer_steps": 20}, {"slice_len": 1, "batch_size": 1}, {"prefetch": 2}])
        for ranks in [(2, 2), (4, 2), (2, 4), (1, 3)]
    ],
)
def test_a_resumed_epoch_has_what_is_left(ranks, before, after, options):
    options = {"seed": 0, **options}
    streams = ranks(before, **options)
    left = [iter(stream) for stream in streams]
    drawn = [flat(rows_of(next(batches) for _ in range(2))) for batches in left]
    state = streams[-1].state_dict()
    rest = [rows_of(batches) for batches in left]

    restored = ranks(after, **options)
    for stream in restored:
        stream.load_state_dict(state)
    found = [rows_of(stream) for stream in restored]
    if before == after:
        assert found == rest
    assert sorted(flat(flat(found))) == sorted(flat(flat(rest)))
    assert not set(flat(flat(found))) & set(flat(drawn))


def test_a_resumed_stream_does_not_read_what_was_drawn(ranks, web):
    (stream,) = ranks(1, seed=0, buffer_steps=1)
    batches = iter(stream)
    for _ in range(STEPS // 5 - 2):
        next(batches)
    state = stream.state_dict()
    (restored,) = ranks(1, seed=0, buffer_steps=1, root=Path(stream.stream._folder).parent / "other")
    restored.load_state_dict(state)
    asked = len(web.requests)

    assert sum(map(len, rows_of(restored))) == STEPS - 5 * (STEPS // 5 - 2)
    assert len(web.requests) - asked < len(LENGTHS)


@pytest.mark.slow
def test_workers_of_a_loader_share_the_episodes_of_a_rank(ranks):
    streams = ranks(2)
    epochs = [[flat(rows_of(SampledBatches(stream).loader(num_workers=2))) for stream in streams] for _ in range(2)]

    for drawn in epochs:
        assert len(set(flat(drawn))) == len(flat(drawn)) == STEPS
        assert not {episode for episode, _ in drawn[0]} & {episode for episode, _ in drawn[1]}
    assert epochs[0] != epochs[1]


def test_a_pickled_stream_continues_where_it_is_in_a_folder_of_its_own(ranks):
    (stream,) = ranks(1, seed=0, buffer_steps=1)
    stream.sample()
    copied = pickle.loads(pickle.dumps(stream))

    assert rows_of([stream.sample() for _ in range(9)]) == rows_of([copied.sample() for _ in range(9)])
    copied.close()


@pytest.mark.slow
@pytest.mark.parametrize("slices", [{}, {"slice_len": 50}])
def test_workers_that_are_spawned_share_the_episodes_of_a_rank(tmp_path, monkeypatch, slices):
    monkeypatch.setenv("RLDS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("RLDS_NO_PROGRESS", "1")
    with published(tmp_path / "some", [2000] * 8) as server:
        stream = load(f"{server.url}/some", batch_size=200, streaming=True, seed=0, **slices)
        opened = [request for request in server.requests if request.path.endswith("/manifest.json")]
        del server.requests[:]
        drawn = flat(rows_of(SampledBatches(stream).loader(num_workers=2, multiprocessing_context="spawn")))
        stream.close()

    assert len(set(drawn)) == len(drawn) == (8 * 50 if slices else 8 * 2000)
    assert {episode for episode, _ in drawn} == {*range(8)}
    again = [request for request in server.requests if request.path.endswith("/manifest.json")]
    assert len(again) == 2 * len(opened) > 0  # each worker opens the stream once


def test_more_ranks_than_blocks_are_an_error(ranks):
    with pytest.raises(InvalidArgumentError, match=r"12 episodes, .* cannot be divided among 13 ranks"):
        ranks(13)


def test_a_state_of_another_stream_is_refused(ranks):
    (stream,), (other,) = ranks(1, seed=0), ranks(1, seed=0, slice_len=2, strict_length=False)
    stream.sample()
    with pytest.raises(InvalidArgumentError, match="the saved component is a StreamStepSampler"):
        other.load_state_dict(stream.state_dict())
    (part,) = ranks(1, seed=1)
    with pytest.raises(InvalidArgumentError, match="seed is 0, expected 1"):
        part.load_state_dict(stream.state_dict())


# --- files of a source, whose numbers of steps are unknown until they are converted


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


@pytest.mark.first(1)
@pytest.mark.usefixtures("served")
@pytest.mark.parametrize(
    ("before", "after"),
    [(2, 2), (3, 2), (1, 3), *(pytest.param(*ranks, marks=pytest.mark.slow) for ranks in ((1, 1), (2, 3)))],
)
def test_files_of_a_source_are_shared_and_resumed(before, after):
    def opened(world_size):
        return [
            load(
                f"openx/{raw.NAME}",
                batch_size=2,
                streaming=True,
                num_slices=2,
                rank=rank,
                world_size=world_size,
                seed=0,
            )
            for rank in range(world_size)
        ]

    streams = opened(before)
    left = [iter(stream) for stream in streams]
    drawn = [flat(rows_of([next(batches)])) for batches in left]
    state = streams[0].state_dict()
    rest = [rows_of(batches) for batches in left]
    restored = opened(after)
    for stream in restored:
        stream.load_state_dict(state)
    found = [rows_of(stream) for stream in restored]

    if before == after:
        assert found == rest
    episodes = [episode for episode, _ in [*flat(drawn), *flat(flat(found))]]
    assert len(episodes) == len(set(episodes)) == 5
    for stream in [*streams, *restored]:
        stream.close()


@pytest.mark.usefixtures("served")
def test_ranks_of_unknown_lengths_are_not_made_equal_without_reading_them():
    stream = load(f"openx/{raw.NAME}", batch_size=1, streaming=True, rank=0, world_size=2, uneven="drop", seed=0)
    assert len(list(stream)) == 2
    assert torch.cat(list(stream))["episode"].unique().numel() == 2
    stream.close()


@pytest.mark.usefixtures("served")
def test_a_pickled_stream_of_a_source_reads_the_same_episodes():
    stream = load(f"openx/{raw.NAME}", batch_size=1, streaming=True, seed=0)
    copied = pickle.loads(pickle.dumps(stream))

    assert rows_of(copied) == rows_of(stream)
    for one in (stream, copied):
        one.close()

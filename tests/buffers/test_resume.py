"""A buffer that loads a state goes on with the next batches of the one that saved it, wherever that one was."""

from __future__ import annotations

import warnings
from functools import partial
from itertools import islice

import pytest
import torch
from stored_data import columns, trajectory, write_dataset

from datasets_rl import (
    EpisodeSampler,
    EpisodeSliceSampler,
    GoalSampler,
    LazyTensorStorage,
    Mixture,
    PrioritizedSampler,
    RandomSampler,
    SampledBatches,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    TensorDictReplayBuffer,
    load,
)
from datasets_rl.errors import InvalidArgumentError

SIZE, TAKEN, NEXT = 8, 7, 100


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A stored dataset of episodes with 4 to 9 steps: 240 steps, 30 batches."""
    given = [trajectory(4 + number % 6, seed=number) for number in range(37)]
    return write_dataset(tmp_path_factory.mktemp("home") / "toy" / "data", given, columns()).folder


def seeded():
    return torch.Generator().manual_seed(5)


SAMPLERS = {
    "random": lambda: RandomSampler(generator=seeded()),
    "without replacement": lambda: SamplerWithoutReplacement(generator=seeded()),
    "slices": lambda: SliceSampler(slice_len=4, generator=seeded()),
    "slices without replacement": lambda: SliceSamplerWithoutReplacement(slice_len=4, generator=seeded()),
    "prioritized": lambda: PrioritizedSampler(1_000, alpha=0.6, beta=0.4, generator=seeded()),
    "episodes": lambda: EpisodeSampler(seed=3, pool_steps=30),
    "episode slices": lambda: EpisodeSliceSampler(seed=3, slice_len=4),
    "goals": lambda: GoalSampler(generator=seeded()),
}


def opened(folder, sampler, prefetch):
    if sampler == "mixture":
        members = [load(folder, sampler=SAMPLERS[name]()) for name in ("without replacement", "random")]
        return Mixture(*members, p=[0.7, 0.3], batch_size=SIZE, prefetch=prefetch)
    return load(folder, batch_size=SIZE, sampler=SAMPLERS[sampler](), prefetch=prefetch)


def sampled(buffer):
    while True:
        yield buffer.sample()


def in_runs(buffer):
    while True:  # samplers with epochs end a loop, the others do not
        yield from buffer.batches()


def iterated(buffer):
    while True:
        yield from buffer


def loaded(buffer):
    while True:
        yield from SampledBatches(buffer, 5).loader()


WAYS = {
    "sample": sampled,
    "batches": in_runs,
    "count": lambda buffer: buffer.batches(500),
    "iterate": iterated,
    "loader": loaded,
}


def rows(batches):
    return [
        (batch["index"]["index"] if not isinstance(batch["index"], torch.Tensor) else batch["index"]).tolist()
        for batch in batches
    ]


@pytest.mark.first(2, of="sampler")
@pytest.mark.parametrize("prefetch", [None, 2])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("sampler", [*SAMPLERS, "mixture"])
def test_the_next_hundred_batches_follow_a_loaded_state(folder, tmp_path, sampler, way, prefetch):
    buffer = opened(folder, sampler, prefetch)
    batches = WAYS[way](buffer)
    taken = rows(islice(batches, TAKEN))
    state = buffer.state_dict()
    buffer.dumps(tmp_path / "state")
    following = rows(islice(batches, NEXT))
    from_disk, from_dict = opened(folder, sampler, prefetch), opened(folder, sampler, None)
    from_disk.loads(tmp_path / "state")
    from_dict.load_state_dict(state)

    assert rows(islice(WAYS[way](from_disk), NEXT)) == following
    if way != "loader":  # whose epochs of five batches begin anew
        assert rows(islice(sampled(from_dict), NEXT)) == following
    assert rows(islice(sampled(opened(folder, sampler, None)), TAKEN)) == taken


def test_workers_of_a_loader_go_on_with_the_episodes_that_are_left(folder):
    buffer, again = (opened(folder, "episodes", None) for _ in range(2))
    batches = iter(SampledBatches(buffer).loader(num_workers=2))
    for _ in range(TAKEN):
        next(batches)
    again.load_state_dict(buffer.state_dict())

    assert rows(batches) == rows(SampledBatches(again).loader(num_workers=2))


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_loop_that_ends_early_resumes_at_the_batches_of_the_program_itself(folder, sampler):
    buffer, again = opened(folder, sampler, None), opened(folder, sampler, None)
    for number, _ in enumerate(buffer.batches()):
        if number == TAKEN:
            break
    again.load_state_dict(buffer.state_dict())

    assert rows(islice(in_runs(buffer), NEXT)) == rows(islice(in_runs(again), NEXT))


@pytest.mark.parametrize("sampler", ["without replacement", "episodes"])
def test_a_loop_that_ends_early_loses_no_step_of_the_epoch(folder, sampler):
    buffer = opened(folder, sampler, None)
    drawn = []
    for batch in buffer.batches():
        drawn += batch["index"].tolist()
        if len(drawn) > 100:
            break
    for batch in buffer.batches():
        drawn += batch["index"].tolist()

    assert sorted(drawn) == list(range(len(buffer)))


def test_two_loops_at_different_places_have_no_state(folder):
    buffer = opened(folder, "random", None)
    first, second = buffer.batches(), buffer.batches()
    for _ in range(3):
        next(first), next(second)

    with pytest.raises(InvalidArgumentError, match=r"2 loops over batches\(\) are running"):
        buffer.state_dict()


@pytest.mark.parametrize(
    ("make", "warns"),
    [
        (RandomSampler, True),
        (partial(SliceSampler, slice_len=4), True),
        (SamplerWithoutReplacement, True),
        (partial(SamplerWithoutReplacement, shuffle=False), False),
        (partial(EpisodeSampler, seed=0), False),
        *((make, False) for make in SAMPLERS.values()),
    ],
)
def test_a_state_without_its_generator_is_warned_of_once(folder, make, warns):
    buffer = load(folder, batch_size=SIZE, sampler=make())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        buffer.state_dict()
        buffer.state_dict()

    assert ["generator=" in str(one.message) for one in caught] == [True] * warns


def test_a_ring_goes_on_with_the_steps_that_were_prefetched(tmp_path):
    def ring(prefetch):
        return TensorDictReplayBuffer(
            storage=LazyTensorStorage(50), batch_size=4, prefetch=prefetch, generator=seeded()
        )

    first = ring(3)
    first.extend(load("demo/pendulum", root=tmp_path)[:50].exclude("episode"))
    first.sample()
    first.dumps(tmp_path / "state")
    second = ring(None)
    second.loads(tmp_path / "state")

    assert rows(islice(sampled(first), 20)) == rows(islice(sampled(second), 20))

"""A buffer with any storage, sampler and writer continues from a checkpoint with the same batches."""

from __future__ import annotations

import itertools
from functools import partial

import pytest
import torch
from tensordict import TensorDict

from datasets_rl import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    PrioritizedSampler,
    RandomSampler,
    ReplayBuffer,
    RoundRobinWriter,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    TensorDictMaxValueWriter,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
    TensorStorage,
)
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.samplers import PrioritizedSliceSampler

SLOTS, LANES, ROWS = 20, 2, 100


def steps(first, count, *, envs=None):
    """Return numbered steps of episodes of five; with lanes [lanes, count], like a rollout of parallel environments."""
    number = torch.arange(first, first + count)
    if envs is not None:
        number = number + 1000 * torch.arange(envs).unsqueeze(-1)
    done = (number % 5 == 4).unsqueeze(-1)
    return TensorDict(
        {
            "observation": torch.stack([number, -number], -1).float(),
            "episode": number // 5,
            "step_count": number % 5,
            "image": (number % 256).to(torch.uint8)[..., None, None].expand(*number.shape, 3, 3),
            "next": {"reward": (number * 7 % 11).unsqueeze(-1).float(), "done": done, "truncated": done},
        },
        number.shape,
    )


STORAGES = {
    "list": lambda: ListStorage(SLOTS),
    "tensor": lambda: TensorStorage(steps(0, SLOTS).clone()),
    "lazy": lambda: LazyTensorStorage(SLOTS),
    "memmap": lambda: LazyMemmapStorage(SLOTS),
    "lanes": lambda: LazyTensorStorage(SLOTS * LANES, ndim=2),
    "compressed": lambda: LazyTensorStorage(SLOTS, compress="image"),
}
SAMPLERS = {
    "random": RandomSampler,
    "without": lambda own: SamplerWithoutReplacement(generator=own),
    "prioritized": lambda own: PrioritizedSampler(ROWS, 0.7, 0.5, generator=own),
    "slices": lambda own: SliceSampler(slice_len=2, strict_length=False, generator=own),
    "slices without": lambda own: SliceSamplerWithoutReplacement(slice_len=2, strict_length=False, generator=own),
    "prioritized slices": lambda own: PrioritizedSliceSampler(
        ROWS, 0.7, 0.5, slice_len=2, strict_length=False, generator=own
    ),
}
WRITERS = {
    "round": RoundRobinWriter,
    "tensordict round": TensorDictRoundRobinWriter,
    "highest": lambda: TensorDictMaxValueWriter(reduction="max"),
}
FIELDLESS = {("list", sampler) for sampler in SAMPLERS if "slices" in sampler}
"""A list has no columns, so slices cannot be drawn from it."""
COMBINATIONS = [
    (*one, ReplayBuffer if one[2] == "round" else TensorDictReplayBuffer)
    for one in itertools.product(STORAGES, SAMPLERS, WRITERS)
    if one[:2] not in FIELDLESS and (one[0], one[2]) != ("lanes", "highest")
]


PAIRS = [
    one
    for one in COMBINATIONS
    if ([*STORAGES].index(one[0]) + [*SAMPLERS].index(one[1])) % len(WRITERS) == [*WRITERS].index(one[2])
]
"""Every storage with every sampler, and both with every writer."""


def pairs_first(combinations):
    return [one if one in PAIRS else pytest.param(one, marks=pytest.mark.slow) for one in combinations]


def made(storage, sampler, writer, kind, seed=0):
    own = torch.Generator().manual_seed(seed)
    return kind(storage=STORAGES[storage](), sampler=SAMPLERS[sampler](own), writer=WRITERS[writer](), batch_size=6)


def written(buffer, first, count):
    envs = LANES if buffer.storage.ndim == 2 else None
    return buffer.extend(steps(first, count, envs=envs))


def content(buffer):
    items = buffer[:]
    return torch.stack(items) if isinstance(items, list) else items.clone()


def drawn(buffer, count=5):
    """Return the next batches and the info of the sampler."""
    batches = []
    for _ in range(count):
        batch, info = buffer.sample(return_info=True)
        batches.append((batch.clone(), {str(key): value for key, value in info.items()}))
    return batches


def assert_same(left, right):
    for (batch, info), (other, others) in zip(left, right, strict=True):
        assert set(batch.keys(True, True)) == set(other.keys(True, True))
        assert (batch == other).all()
        assert info.keys() == others.keys()
        for key, value in info.items():
            assert torch.equal(torch.as_tensor(_plain(value)), torch.as_tensor(_plain(others[key]))), key


def _plain(value):
    return torch.stack(list(value)) if isinstance(value, tuple) else value


def used(buffer):
    """Fill the buffer past its capacity, draw batches, and set different priorities."""
    for first, count in ((0, 13), (13, 4), (17, 9)):
        written(buffer, first, count)
        _, info = buffer.sample(return_info=True)
        buffer.update_priority(info["index"], torch.linspace(0.1, 2.0, 6)[: len(_rows(info["index"]))])
    return buffer


def _rows(index):
    return index[0] if isinstance(index, tuple) else index


@pytest.mark.parametrize("parts", pairs_first(COMBINATIONS), ids=lambda parts: "-".join(parts[:3]))
def test_a_loaded_buffer_gives_the_batches_of_the_original(parts, tmp_path):
    original = used(made(*parts))
    original.dumps(tmp_path / "state")
    before = content(original)
    expected = drawn(original)
    rows = written(original, 30, 7)
    after, later = content(original), drawn(original)

    again = made(*parts, seed=99)
    again.loads(tmp_path / "state")
    assert len(again) == len(original)
    assert (content(again) == before).all()
    assert_same(drawn(again), expected)
    assert torch.equal(written(again, 30, 7), rows)
    assert (content(again) == after).all()
    assert_same(drawn(again), later)


@pytest.mark.parametrize("parts", COMBINATIONS[::5], ids=lambda parts: "-".join(parts[:3]))
def test_a_state_saved_by_torch_gives_the_batches_of_the_original(parts, tmp_path):
    original = used(made(*parts))
    torch.save(original.state_dict(), tmp_path / "state.pt")
    expected = drawn(original)
    again = made(*parts, seed=99)
    again.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))

    assert_same(drawn(again), expected)


GROWING = [
    one
    for one in COMBINATIONS
    if one[0] in {"list", "lazy", "memmap", "lanes", "compressed"} and one[2] != "tensordict round"
]


def resized(monkeypatch, slots):
    kinds = {"list": ListStorage, "lazy": LazyTensorStorage, "memmap": LazyMemmapStorage}
    compressed = partial(LazyTensorStorage, compress="image")
    for name, kind in {**kinds, "compressed": compressed}.items():
        monkeypatch.setitem(STORAGES, name, lambda kind=kind: kind(slots))
    monkeypatch.setitem(STORAGES, "lanes", lambda: LazyTensorStorage(slots * LANES, ndim=2))


@pytest.mark.parametrize("parts", pairs_first(GROWING), ids=lambda parts: "-".join(parts[:3]))
def test_a_larger_buffer_loads_the_steps_in_order_and_writes_after_them(parts, tmp_path, monkeypatch):
    original = used(made(*parts))
    original.dumps(tmp_path)
    resized(monkeypatch, SLOTS + 5)
    larger = made(*parts)
    larger.loads(tmp_path)
    before, after = content(original), content(larger)

    shift = original.storage.write_count % SLOTS
    assert (after == torch.cat([before[shift:], before[:shift]])).all()
    rows = _rows(written(larger, 30, 3).unbind(-1) if larger.storage.ndim == 2 else written(larger, 30, 3))
    assert set(rows.tolist()) == {SLOTS, SLOTS + 1, SLOTS + 2}
    assert len(larger) == len(original) + 3 * larger.storage.envs
    for batch, info in drawn(larger, 3):
        where = larger.storage.ravel(info["index"])
        taken = larger.storage.take(where)
        taken = torch.stack(taken) if isinstance(taken, list) else taken
        assert torch.equal(batch["observation"], taken["observation"])


@pytest.mark.parametrize("parts", GROWING[::5], ids=lambda parts: "-".join(parts[:3]))
def test_a_smaller_buffer_refuses_and_does_not_change(parts, tmp_path, monkeypatch):
    used(made(*parts)).dumps(tmp_path)
    resized(monkeypatch, SLOTS - 5)
    smaller = made(*parts)
    written(smaller, 100, 7)
    before = content(smaller)

    with pytest.raises(InvalidArgumentError, match="does not fit"):
        smaller.loads(tmp_path)
    assert (content(smaller) == before).all()
    assert len(smaller) == 7 * smaller.storage.envs


def change(**parts):
    def apply(state):
        for name, value in parts.items():
            state[name] = {**state[name], "state": {**state[name]["state"], **value}}

    return apply


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (change(storage={"env_shape": [0]}), r"env_shape is \[0\]"),
        (change(storage={"slots": "x"}), "slots is 'x'"),
        (change(storage={"slots": 0}), "slots is 0"),
        (lambda state: state.update(sampler={"state": [1]}), "the state has no sampler"),
        (lambda state: state.update(ahead=[3]), "batch 0 of ahead is not a batch"),
        (lambda state: state["ahead"][0].update(index=torch.tensor([99])), "not a batch of the 20 steps"),
        (lambda state: state["ahead"][0].update(info=[1]), "batch 0 of ahead"),
    ],
    ids=["env shape", "slots", "none fit", "sampler", "ahead", "outside", "said"],
)
def test_a_damaged_state_is_refused_and_nothing_changes(damage, reason):
    original = ReplayBuffer(storage=LazyTensorStorage(SLOTS), batch_size=6, prefetch=1)
    original.extend(steps(0, SLOTS + 4))
    original.sample()
    state = original.state_dict()
    damage(state)
    other = ReplayBuffer(storage=LazyTensorStorage(SLOTS + 1), batch_size=6)
    other.extend(steps(50, 2))
    with pytest.raises(InvalidArgumentError, match=reason):
        other.load_state_dict(state)
    original._prefetch.close()

    assert other[:]["observation"][:, 0].tolist() == [50, 51]


def test_another_object_is_not_a_state():
    for state in ([1], {}, {"storage": {}}):
        with pytest.raises(InvalidArgumentError, match="expected the state of a replay buffer"):
            ReplayBuffer().load_state_dict(state)


def test_a_list_storage_and_a_tensor_storage_refuse_the_state_of_each_other():
    for kind, other in ((ListStorage, LazyTensorStorage), (LazyTensorStorage, ListStorage)):
        buffer = ReplayBuffer(storage=kind(SLOTS))
        buffer.extend(steps(0, SLOTS + 4))
        with pytest.raises(InvalidArgumentError, match="storage:"):
            ReplayBuffer(storage=other(SLOTS + 5)).load_state_dict(buffer.state_dict())

"""Any sequence of operations on a buffer has the result of a plain model: a list of dicts and a cursor."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tensordict import TensorDict

from datasets_rl import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    PrioritizedSampler,
    RandomSampler,
    SamplerWithoutReplacement,
    SliceSampler,
    TensorDictReplayBuffer,
)

STORAGES = {"list": ListStorage, "ram": LazyTensorStorage, "memmap": LazyMemmapStorage}
SAMPLERS = {
    "random": lambda _: RandomSampler(),
    "without replacement": lambda _: SamplerWithoutReplacement(),
    "prioritized": lambda size: PrioritizedSampler(size, 1.0, 1.0, eps=0.0),
    "slices": lambda _: SliceSampler(slice_len=2, traj_key="episode", strict_length=False),
}
KINDS = [(storage, sampler) for storage in STORAGES for sampler in SAMPLERS if (storage, sampler) != ("list", "slices")]


class Machine(RuleBasedStateMachine):
    """A buffer and its model."""

    storage: str
    sampler: str

    def __init__(self):
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.clock = 0
        self.dumped = None

    def teardown(self):
        shutil.rmtree(self.folder)

    @initialize(size=st.integers(2, 9))
    def start(self, size):
        self.size = size
        self.buffer = self.made(size)
        self.steps, self.next = [], 0
        self.priorities = []

    def made(self, size):
        return TensorDictReplayBuffer(storage=STORAGES[self.storage](size), sampler=SAMPLERS[self.sampler](size))

    def fresh(self, count):
        """Return the next steps as dicts; every third step ends an episode."""
        first = self.clock
        self.clock += count
        return [
            {"number": number, "mark": 0, "next": {"done": number % 3 == 2}, "episode": number // 3}
            for number in range(first, first + count)
        ]

    def data(self, steps):
        done = torch.tensor([step["next"]["done"] for step in steps], dtype=torch.bool)
        return TensorDict(
            {
                "number": torch.tensor([step["number"] for step in steps], dtype=torch.int64),
                "mark": torch.tensor([step["mark"] for step in steps], dtype=torch.int32),
                "next": {"done": done.unsqueeze(-1)},
                "episode": torch.tensor([step["episode"] for step in steps], dtype=torch.int64),
            },
            [len(steps)],
        )

    def wrote(self, steps):
        """Apply a write to the model, and return the row of each step."""
        places = []
        highest = max(self.priorities, default=1.0) if self.sampler == "prioritized" else 1.0
        for step in steps:
            place = self.next % self.size
            self.steps[place : place + 1] = [step]
            self.priorities[place : place + 1] = [highest]
            self.next += 1
            places.append(place)
        return [-1] * max(len(steps) - self.size, 0) + places[-self.size :]

    @rule()
    def add(self):
        (step,) = steps = self.fresh(1)
        assert [self.buffer.add(self.data([step])[0])] == self.wrote(steps)

    @rule(count=st.integers(0, 14))
    def extend(self, count):
        if not count and not self.steps:
            return  # the storage has no layout yet
        steps = self.fresh(count)
        assert self.buffer.extend(self.data(steps)).tolist() == self.wrote(steps)

    @rule(by=st.integers(1, 3))
    def extend_with_a_list(self, by):
        steps = self.fresh(by)
        assert self.buffer.extend([self.data([step])[0] for step in steps]).tolist() == self.wrote(steps)

    @precondition(lambda self: self.steps)
    @rule(size=st.integers(1, 12))
    def sample(self, size):
        size += size % 2  # slices of two
        batch = self.buffer.sample(size)
        for index, number in zip(batch["index"].tolist(), batch["number"].tolist(), strict=True):
            assert self.steps[index]["number"] == number
            if self.sampler == "prioritized":
                assert self.priorities[index] > 0
        if self.sampler == "slices":
            for slice_id in batch["slice_id"].unique():
                piece = batch[batch["slice_id"] == slice_id]
                assert len(piece["episode"].unique()) == 1
                assert (piece["number"].diff() == 1).all()

    @precondition(lambda self: self.steps)
    @rule(data=st.data())
    def update_priorities(self, data):
        places = data.draw(st.lists(st.integers(0, len(self.steps) - 1), min_size=1, max_size=6))
        values = data.draw(st.lists(st.sampled_from([0.5, 1.0, 3.0]), min_size=len(places), max_size=len(places)))
        self.buffer.update_priority(torch.tensor(places), torch.tensor(values))
        for place, value in zip(places, values, strict=True):
            self.priorities[place] = value

    @precondition(lambda self: self.steps)
    @rule(data=st.data())
    def replace(self, data):
        place = data.draw(st.integers(0, len(self.steps) - 1))
        step = self.steps[place] | {"mark": data.draw(st.integers(1, 99))}
        self.buffer[place] = self.data([step])[0]
        self.steps[place] = step

    @precondition(lambda self: self.steps)
    @rule()
    def dump(self):
        self.buffer.dumps(self.folder / "dump")
        self.dumped = ([*self.steps], self.next, [*self.priorities], self.size)
        self.dumped_at = self.clock

    @precondition(lambda self: self.dumped is not None)
    @rule(elsewhere=st.booleans(), room=st.integers(0, 3))
    def load(self, elsewhere, room):
        steps, following, priorities, size = self.dumped
        if elsewhere or size != self.size:
            self.size = size + (room if following <= size else 0)
            self.buffer = self.made(self.size)
        self.buffer.loads(self.folder / "dump")
        self.clock = self.dumped_at  # write the lost steps again, so that the stored numbers have no gap
        self.steps, self.next, self.priorities = [*steps], following, [*priorities]

    @precondition(lambda self: self.dumped is not None and self.dumped[1] > self.dumped[3])
    @rule(room=st.integers(1, 4))
    def load_a_ring_into_a_larger_one(self, room):
        steps, following, priorities, size = self.dumped
        self.size = size + room
        self.buffer = self.made(self.size)
        self.buffer.loads(self.folder / "dump")
        self.clock = self.dumped_at
        turn = following % size
        self.steps = steps[turn:] + steps[:turn]
        self.priorities = priorities[turn:] + priorities[:turn]
        self.next = size

    @precondition(lambda self: self.steps)
    @rule()
    def empty(self):
        self.buffer.empty()
        self.steps, self.next, self.priorities = [], 0, []

    @invariant()
    def the_buffer_is_its_model(self):
        if not hasattr(self, "buffer"):
            return
        assert len(self.buffer) == len(self.steps)
        if self.steps:
            everything = self.buffer[:]
            assert everything["number"].tolist() == [step["number"] for step in self.steps]
            assert everything["mark"].tolist() == [step["mark"] for step in self.steps]
            assert everything["next", "done"].flatten().tolist() == [step["next"]["done"] for step in self.steps]


@pytest.mark.first(4)
@pytest.mark.parametrize(("storage", "sampler"), KINDS, ids=lambda kind: kind.replace(" ", "-"))
def test_any_sequence_of_operations_has_the_result_of_the_model(storage, sampler):
    machine = type("Bound", (Machine,), {"storage": storage, "sampler": sampler})
    run_state_machine_as_test(machine, settings=settings(max_examples=12, stateful_step_count=20, deadline=None))


@pytest.mark.slow
@pytest.mark.parametrize(("storage", "sampler"), KINDS, ids=lambda kind: kind.replace(" ", "-"))
def test_any_long_sequence_of_operations_has_the_result_of_the_model(storage, sampler):
    machine = type("Bound", (Machine,), {"storage": storage, "sampler": sampler})
    run_state_machine_as_test(machine, settings=settings(max_examples=150, stateful_step_count=60, deadline=None))

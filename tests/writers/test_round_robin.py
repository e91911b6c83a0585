"""The writer overwrites the oldest slot next, for any sizes of writes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from datasets_rl.buffers import ReplayBuffer
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.storages import LazyTensorStorage, ListStorage, TensorStorage
from datasets_rl.writers import RoundRobinWriter, TensorDictRoundRobinWriter


class Ring:
    """A model of the ring as a list of values and a cursor."""

    def __init__(self, slots):
        self.slots = slots
        self.empty()

    def empty(self):
        self.values = [None] * self.slots
        self.next = 0

    def extend(self, values):
        rows = []
        for value in values:
            rows.append(self.next)
            self.values[self.next] = value
            self.next = (self.next + 1) % self.slots
        lost = max(len(rows) - self.slots, 0)
        return [-1] * lost + rows[lost:]

    @property
    def held(self):
        return [value for value in self.values if value is not None]


def tensor(values):
    return torch.tensor(values, dtype=torch.int64)


def tensordict(values):
    return TensorDict({"a": tensor(values), "b": {"c": tensor(values).double().unsqueeze(-1)}}, [len(values)])


def pytree(values):
    return {"a": tensor(values), "b": (tensor(values), tensordict(values))}


def one(data):
    return torch.utils._pytree.tree_map(lambda leaf: leaf[0], data, is_leaf=lambda leaf: isinstance(leaf, TensorDict))


def first_leaf(data):
    return data if isinstance(data, torch.Tensor) else data["a"]


KINDS = {
    "tensor": (LazyTensorStorage, tensor, lambda values: one(tensor(values)), first_leaf),
    "tensordict": (LazyTensorStorage, tensordict, lambda values: one(tensordict(values)), first_leaf),
    "pytree": (LazyTensorStorage, pytree, lambda values: one(pytree(values)), first_leaf),
    "list of tensors": (LazyTensorStorage, lambda values: list(tensor(values)), lambda v: tensor(v)[0], first_leaf),
    "objects": (ListStorage, list, lambda values: values[0], tensor),
    "iterator": (ListStorage, iter, lambda values: values[0], tensor),
}
STEPS = st.lists(st.just("add") | st.just("empty") | st.integers(0, 12), max_size=12)


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=40)
@given(slots=st.integers(1, 5), steps=STEPS)
def test_it_writes_like_the_model(kind, slots, steps):
    make, several, single, values_of = KINDS[kind]
    storage, ring, writer = make(slots), Ring(slots), RoundRobinWriter()
    writer.register_storage(storage)
    count = 0
    for step in steps:
        if step == "empty":
            storage.empty()
            writer.empty()
            ring.empty()
        elif step == "add":
            assert writer.add(single([count])) == ring.extend([count])[0]
            count += 1
        elif step or "list" not in kind:
            values = list(range(count, count + step))
            rows = writer.extend(several(values))
            assert rows.dtype == torch.int64
            assert rows.tolist() == ring.extend(values)
            count += step
        if ring.held:
            assert values_of(storage.get(slice(None))).tolist() == ring.held
        assert len(storage) == len(ring.held)


@settings(deadline=None, max_examples=60)
@given(envs=st.integers(1, 3), slots=st.integers(1, 4), portions=st.lists(st.integers(0, 9), max_size=8))
def test_a_slot_of_several_lanes_has_one_row_per_lane(envs, slots, portions):
    storage, ring, writer = LazyTensorStorage(slots * envs, ndim=2), Ring(slots), RoundRobinWriter()
    writer.register_storage(storage)
    count = 0
    for portion in portions:
        values = list(range(count, count + portion))
        data = tensor(values)[:, None] * 10 + torch.arange(envs)
        expected = [row * envs + lane if row >= 0 else -1 for row in ring.extend(values) for lane in range(envs)]
        rows = writer.extend(data)
        count += portion

        assert rows.tolist() == expected
        kept = rows[rows >= 0]
        if len(kept):
            assert torch.equal(storage.take(kept), data.flatten()[rows >= 0])


def test_adding_to_lanes_returns_the_rows_of_the_slot():
    storage, writer = LazyTensorStorage(6, ndim=2), RoundRobinWriter()
    writer.register_storage(storage)

    assert [writer.add(torch.tensor([n, n + 10])).tolist() for n in range(4)] == [[0, 1], [2, 3], [4, 5], [0, 1]]
    assert storage.get(slice(None)).tolist() == [[3, 13], [1, 11], [2, 12]]


def test_overwritten_steps_have_an_index_of_minus_one_on_every_axis():
    buffer = ReplayBuffer(storage=LazyTensorStorage(4, ndim=2), dim_extend=0)

    assert buffer.extend(torch.arange(6).reshape(3, 2)).tolist() == [[-1, -1], [-1, -1], [1, 0], [1, 1], [0, 0], [0, 1]]


@pytest.mark.parametrize("kind", ["range", "iterator", "generator", "list", "tuple"])
def test_a_list_storage_accepts_any_iterable(kind):
    data = {
        "range": range(3),
        "iterator": iter([0, 1, 2]),
        "generator": (n for n in range(3)),
        "list": [0, 1, 2],
        "tuple": (0, 1, 2),
    }[kind]
    storage, writer = ListStorage(4), RoundRobinWriter()
    writer.register_storage(storage)

    assert writer.extend(data).tolist() == [0, 1, 2]
    assert storage.get(slice(None)) == [0, 1, 2]


def test_a_list_is_a_stack_and_a_tuple_is_a_pytree():
    stack, tree = LazyTensorStorage(4), LazyTensorStorage(4)
    for storage, data in ((stack, [torch.zeros(3), torch.ones(3)]), (tree, (torch.zeros(3), torch.ones(3)))):
        writer = RoundRobinWriter()
        writer.register_storage(storage)
        writer.extend(data)

    assert stack.get(slice(None)).tolist() == [[0, 0, 0], [1, 1, 1]]
    assert [leaf.tolist() for leaf in tree.get(slice(None))] == [[0, 0, 0], [1, 1, 1]]
    assert (len(stack), len(tree)) == (2, 3)


@pytest.mark.parametrize("writer", [RoundRobinWriter, TensorDictRoundRobinWriter])
def test_the_data_of_the_caller_does_not_change(writer):
    """TorchRL adds "index" to it."""
    data, made = tensordict([1, 2, 3]), writer()
    made.register_storage(LazyTensorStorage(4))
    made.extend(data)
    made.add(data[0])

    assert (data == tensordict([1, 2, 3])).all()
    assert set(data.keys()) == {"a", "b"}


def test_data_that_does_not_fit_changes_nothing():
    storage, writer = LazyTensorStorage(4), RoundRobinWriter()
    writer.register_storage(storage)
    writer.extend(tensordict([1, 2, 3]))
    for wrong in (tensor([1, 2]), TensorDict({"a": tensor([1])}, [1])):
        with pytest.raises(InvalidArgumentError):
            writer.extend(wrong)

    assert writer.extend(tensordict([4, 5])).tolist() == [3, 0]
    assert storage.get(slice(None))["a"].tolist() == [5, 2, 3, 4]


def test_a_storage_that_is_initially_full_is_overwritten_from_its_first_slot():
    storage, writer = TensorStorage(torch.arange(3)), RoundRobinWriter()
    writer.register_storage(storage)

    assert writer.extend(torch.tensor([10, 11])).tolist() == [0, 1]
    assert storage.get(slice(None)).tolist() == [10, 11, 2]


def test_two_writers_of_one_storage_share_the_cursor():
    storage = LazyTensorStorage(4)
    first, second = RoundRobinWriter(), RoundRobinWriter()
    first.register_storage(storage)
    second.register_storage(storage)

    assert [first.add(tensor(1)), second.add(tensor(2)), first.add(tensor(3))] == [0, 1, 2]
    assert storage.get(slice(None)).tolist() == [1, 2, 3]

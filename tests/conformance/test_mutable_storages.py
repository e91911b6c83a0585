"""Properties of every writable storage, for every variant and every type of data, compared with a plain list."""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from tensordict import LazyStackedTensorDict, TensorDict, tensorclass
from torch.utils import _pytree as pytree

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.format import checkpoint
from datasets_rl.storages import LazyMemmapStorage, LazyStackStorage, LazyTensorStorage, ListStorage, TensorStorage


class Pair(NamedTuple):
    left: Any
    right: Any


@tensorclass
class Step:
    image: torch.Tensor
    reward: torch.Tensor


def numbered(shape, steps, dtype=torch.float32):
    """Return one value per step, in a tensor [*steps.shape, *shape]."""
    steps = torch.as_tensor(steps)
    return steps.reshape((*steps.shape, *[1] * len(shape))).expand((*steps.shape, *shape)).to(dtype).clone()


def tensors(steps):
    return numbered((2, 3), steps)


def scalars(steps):
    return numbered((), steps, torch.int64)


def images(steps):
    return numbered((3, 40, 41), steps, torch.uint8)


def tensordicts(steps):
    steps = torch.as_tensor(steps)
    return TensorDict(
        {
            "observation": numbered((3,), steps),
            "done": numbered((1,), steps % 2, torch.bool),
            "nothing": numbered((0, 2), steps),
            "precise": numbered((), steps, torch.float64),
            "coarse": numbered((3,), steps, torch.bfloat16),
            "next": TensorDict({"reward": numbered((1,), steps, torch.float16)}, steps.shape),
        },
        steps.shape,
    )


def wide(steps):
    steps = torch.as_tensor(steps)
    fields = {"pixels": numbered((1025,), steps), "waves": numbered((5,), steps, torch.complex128)}
    return TensorDict({**fields, "odd": numbered((4099,), steps, torch.uint8)}, steps.shape)


def trajectories(steps):
    """Return elements whose batch size has additional axes."""
    steps = torch.as_tensor(steps)
    return TensorDict({"a": numbered((4, 2), steps), "b": numbered((4,), steps, torch.int32)}, [*steps.shape, 4])


def tensorclasses(steps):
    steps = torch.as_tensor(steps)
    return Step(image=numbered((2, 2), steps), reward=numbered((1,), steps), batch_size=steps.shape)


def trees(steps):
    return {
        "a": numbered((3,), steps),
        30: (numbered((), steps, torch.int16), [numbered((1,), steps)]),
        "c": Pair(numbered((2,), steps), tensordicts(steps)),
    }


KINDS = [tensors, scalars, images, tensordicts, wide, trajectories, tensorclasses, trees]


def leaves(data) -> list[list[Any]]:
    """Return the leaves of data as plain lists, with their dtypes."""
    found: list[Any] = []
    for part in pytree.tree_leaves(data, is_leaf=lambda one: hasattr(one, "batch_size")):
        if isinstance(part, torch.Tensor):
            found.append(part)
        else:
            whole = part if isinstance(part, TensorDict) else part.to_tensordict()
            found += [whole[key] for key in sorted(whole.keys(True, True), key=str)]
    return [[str(leaf.dtype), list(leaf.shape), leaf.tolist()] for leaf in found]


def same(one, other):
    return type(one) is type(other) and leaves(one) == leaves(other)


@dataclass(frozen=True)
class Variant:
    name: str
    make: Any
    starts_full: bool = False

    def __call__(self, kind, size=8, **options):
        if self.starts_full:
            storage = self.make(kind(np.zeros((size // 2, 2) if options.get("ndim") == 2 else size, int)), **options)
            storage.empty()
            return storage
        return self.make(size, **options)

    def __str__(self):
        return self.name


class CompressedVariant(Variant):
    """A storage that compresses the images in the data, if it has any."""

    def __call__(self, kind, size=8, **options):
        return super().__call__(kind, size, compress=COMPRESSED.get(kind, ()), **options)


COMPRESSED = {images: [()], wide: ["odd"]}
VARIANTS = [
    Variant("tensor", TensorStorage, starts_full=True),
    Variant("lazy", LazyTensorStorage),
    Variant("memmap", LazyMemmapStorage),
    CompressedVariant("lazy, compressed", LazyTensorStorage),
    CompressedVariant("memmap, compressed", LazyMemmapStorage),
]


def skip_compressed(variant, kind):
    if isinstance(variant, CompressedVariant) and kind in COMPRESSED:
        pytest.skip("what is read of compressed leaves is a copy")


@pytest.fixture(params=VARIANTS, ids=str)
def variant(request):
    return request.param


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
def kind(request):
    return request.param


class Ring:
    """The expected content of a storage, one list entry per step."""

    def __init__(self, slots):
        self.slots: list[int | None] = [None] * slots
        self.written = 0

    def extend(self, steps):
        for step in steps:
            self.slots[self.written % len(self.slots)] = step
            self.written += 1

    @property
    def held(self):
        return [step for step in self.slots if step is not None]


def test_steps_are_written_in_order_and_wrap_around(variant, kind):
    storage, ring = variant(kind), Ring(8)
    for first, count in ((1, 3), (4, 4), (8, 3), (11, 8), (19, 1)):
        slots = torch.arange(storage.write_count, storage.write_count + count) % 8
        storage.set(slots, kind(np.arange(first, first + count)))
        ring.extend(range(first, first + count))

        assert len(storage) == storage.filled_count == len(ring.held)
        assert storage.write_count == ring.written
        assert same(storage.get(slice(None)), kind(np.array(ring.held)))
    assert storage.rewrite_count == (1 if variant.starts_full else 0)


def test_one_step_at_a_time_is_the_same_as_several(variant, kind):
    one, several = variant(kind), variant(kind)
    for slot in range(5):
        one.set(slot, kind(slot + 1))
    several.set(range(5), kind(np.arange(1, 6)))

    assert same(one.get(slice(None)), several.get(slice(None)))
    assert same(one.get(3), kind(4))
    assert same(one.get(-1), kind(5))


def test_of_more_steps_than_fit_the_last_are_kept(variant, kind):
    storage = variant(kind)
    storage.set(torch.arange(21) % 8, kind(np.arange(21)))

    assert same(storage.get(slice(None)), kind(np.array([16, 17, 18, 19, 20, 13, 14, 15])))
    assert (storage.write_count, storage.filled_count) == (21, 8)


def test_any_slots_can_be_written_again(variant, kind):
    storage = variant(kind)
    storage.set(slice(0, 6), kind(np.arange(6)))
    storage.set(torch.tensor([4, 1]), kind(np.array([14, 11])))
    storage.set([0, -1], kind(np.array([10, 15])))
    storage.set(range(3, 1, -1), kind(np.array([13, 12])))

    assert same(storage.get(slice(None)), kind(np.array([10, 11, 12, 13, 14, 15])))
    assert storage.write_count == 6
    assert storage.rewrite_count == 3 + variant.starts_full


def test_a_batch_has_its_own_memory(variant, kind):
    storage = variant(kind)
    storage.set(range(6), kind(np.arange(6)))
    for batch in (storage.get(torch.tensor([4, 0, 4])), storage.take(torch.tensor([4, 0, 4])), storage.get([4, 0, -2])):
        assert same(batch, kind(np.array([4, 0, 4])))
        for leaf in pytree.tree_leaves(batch):
            leaf.zero_()

    assert same(storage.get(slice(None)), kind(np.arange(6)))


def test_numbers_and_slices_are_views_of_the_storage(variant, kind):
    skip_compressed(variant, kind)
    storage = variant(kind)
    storage.set(range(6), kind(np.full(6, 7)))
    for view in (storage.get(0), storage.get(slice(2, None, 2)), storage.get((5,))):
        for leaf in pytree.tree_leaves(view):
            leaf.zero_()

    assert same(storage.get([0, 1, 2, 3, 4, 5]), kind(np.array([0, 7, 0, 7, 0, 0])))


def test_unwritten_steps_cannot_be_read(variant, kind):
    storage = variant(kind)
    storage.set(range(3), kind(np.arange(3)))
    for index in (
        3,
        -4,
        [0, 3],
        torch.tensor([3]),
        torch.tensor([-4]),
        [True] * 8,
        (0, 0),
        1.5,
        "a",
        (slice(None),) * 2,
    ):
        with pytest.raises(IndexError):
            storage.get(index)
    for rows in ([3], [7], [8]):
        with pytest.raises(IndexError):
            storage.take(torch.tensor(rows))
    assert same(storage.get(slice(0, 99)), kind(np.arange(3)))


def test_slots_cannot_be_left_unwritten(variant, kind):
    storage = variant(kind)
    storage.set(range(3), kind(np.arange(3)))
    for slots in (4, range(5, 7), [2, 4], torch.tensor([8]), 8, [-4]):
        with pytest.raises(IndexError):
            storage.set(slots, kind(np.arange(len(slots)) if hasattr(slots, "__len__") else 9))
    storage.set([2, 4, 3], kind(np.array([12, 14, 13])))

    assert same(storage.get(slice(None)), kind(np.array([0, 1, 12, 13, 14])))


def test_data_for_another_number_of_slots_is_refused(variant, kind):
    storage = variant(kind)
    with pytest.raises(InvalidArgumentError, match="names 2 slots, and the data fills 3"):
        storage.set(range(2), kind(np.arange(3)))
    assert storage.filled_count == 0


def test_a_list_of_elements_is_stacked(variant, kind):
    storage = variant(kind)
    assert storage.size_of([kind(1), kind(2)]) == 2
    storage.set(range(2), [kind(1), kind(2)])

    assert same(storage.get(slice(None)), kind(np.array([1, 2])))


def test_an_emptied_storage_starts_again(variant, kind):
    storage = variant(kind)
    storage.set(range(5), kind(np.arange(5)))
    before = storage.rewrite_count
    storage.empty()

    assert len(storage) == storage.filled_count == storage.write_count == 0
    assert storage.rewrite_count > before
    with pytest.raises(IndexError):
        storage.get(0)
    storage.set(0, kind(9))
    assert same(storage.get(slice(None)), kind(np.array([9])))


def test_nothing_is_written_of_data_that_does_not_fit(variant, kind):
    storage = variant(kind)
    storage.set(range(4), kind(np.arange(4)))
    wrong = pytree.tree_map(lambda leaf: torch.zeros_like(leaf, dtype=torch.int8), kind(np.arange(2)))
    for slots, data in ((range(2), wrong), (0, kind(np.arange(2))), (range(2), kind(3)), (range(2), "text")):
        with pytest.raises(InvalidArgumentError):
            storage.set(slots, data)

    assert same(storage.get(slice(None)), kind(np.arange(4)))
    assert (storage.write_count, storage.filled_count) == (4, 4)


def test_a_state_can_be_restored(variant, kind, tmp_path):
    """From files, into a storage with other data and into an empty one."""
    storage = variant(kind)
    storage.set(torch.arange(11) % 8, kind(np.arange(11)))
    checkpoint.write_state(tmp_path / "state", "Storage", storage.state_dict())
    fitting = variant(kind)
    fitting.set(range(3), kind(np.full(3, 99)))
    fitting.load_state_dict(checkpoint.read_state(tmp_path / "state"))

    assert same(fitting.get(slice(None)), kind(np.array([8, 9, 10, 3, 4, 5, 6, 7])))
    assert (fitting.write_count, fitting.filled_count) == (11, 8)
    fitting.set(3, kind(11))
    assert same(storage.get(3), kind(3))


def test_a_full_ring_loads_into_a_larger_one_in_order(variant, kind):
    storage, larger = variant(kind), variant(kind, 10)
    storage.set(torch.arange(11) % 8, kind(np.arange(11)))
    larger.set(0, kind(99))
    larger.load_state_dict(storage.state_dict())

    assert same(larger.get(slice(None)), kind(np.arange(3, 11)))
    assert (larger.write_count, larger.filled_count) == (8, 8)


def test_a_state_loads_into_a_smaller_storage_if_its_steps_fit(variant, kind):
    storage, fits, small = variant(kind), variant(kind, 5), variant(kind, 4)
    storage.set(range(5), kind(np.arange(5)))
    for target in (fits, small):
        target.set(0, kind(99))
    fits.load_state_dict(storage.state_dict())
    with pytest.raises(InvalidArgumentError, match="the state holds 5 slots, expected at most 4"):
        small.load_state_dict(storage.state_dict())

    assert same(fits.get(slice(None)), kind(np.arange(5)))
    assert same(small.get(slice(None)), kind(np.array([99])))


@pytest.mark.parametrize("wrap", [dict, lambda fields: TensorDict(fields, fields["b"].shape[:1])], ids=["dict", "td"])
def test_keys_may_have_another_order(variant, wrap):
    """In later data, and in the state of a storage whose first data had another order."""
    fields = {"b": torch.arange(8.0), "a": torch.arange(8.0) + 10, "c": torch.arange(8.0).expand(1024, 8).t() + 20}
    turned = {name: fields[name] for name in ("c", "a", "b")}
    storages = [
        variant(lambda _steps, data=data: wrap({name: leaf.clone() for name, leaf in data.items()}))
        for data in (fields, turned)
    ]
    for storage in storages:
        storage.set(range(8), wrap(dict(fields)))
    again = storages[1]
    again.set(range(8), wrap({name: leaf * 0 for name, leaf in turned.items()}))
    again.load_state_dict(storages[0].state_dict())

    got = again.get(slice(None))
    assert [got["a"][3], got["b"][3], got["c"][3, 5]] == [13, 3, 23]


def test_a_copy_by_pickle_is_the_same(variant, kind):
    storage = variant(kind)
    storage.set(range(5), kind(np.arange(5)))
    again = pickle.loads(pickle.dumps(storage))

    assert same(again.get(slice(None)), kind(np.arange(5)))
    assert (again.write_count, again.filled_count, again.max_size) == (5, 5, 8)


def test_shared_memory_has_the_existing_steps(variant, kind):
    skip_compressed(variant, kind)
    storage = variant(kind)
    storage.set(range(3), kind(np.arange(3)))
    view = storage.get(slice(None))
    storage.share()
    storage.set(range(3, 5), kind(np.array([3, 4])))
    for leaf in pytree.tree_leaves(view):
        leaf[0] = leaf[1]

    assert storage.shared
    assert same(storage.get(slice(None)), kind(np.array([1, 1, 2, 3, 4])))


LANES = [tensors, scalars, tensordicts, wide, trees]


@pytest.mark.parametrize("kind", LANES, ids=lambda kind: kind.__name__)
def test_lanes_are_axes_of_every_slot(variant, kind):
    storage = variant(kind, ndim=2)
    steps = np.arange(14).reshape(7, 2)
    assert storage.size_of(kind(steps)) == 7
    storage.set(torch.arange(7) % 4, kind(steps))
    held = steps[[4, 5, 6, 3]]

    assert (storage.slot_count, storage.envs, storage.filled_count, len(storage)) == (4, 2, 4, 8)
    assert same(storage.get(slice(None)), kind(held))
    assert same(storage.get(1), kind(held[1]))
    assert same(storage.get((slice(None), 1)), kind(held[:, 1]))
    assert same(storage.get(([0, 3], [1, 0])), kind(held[[0, 3], [1, 0]]))
    assert same(storage.take(torch.tensor([7, 0])), kind(held.reshape(-1)[[7, 0]]))
    storage.set(1, kind(np.array([50, 51])))
    assert same(storage.get((1, ...)), kind(np.array([50, 51])))


@pytest.mark.parametrize("kind", LANES, ids=lambda kind: kind.__name__)
def test_environments_that_do_not_divide_the_size_round_it_up(kind):
    storage = LazyTensorStorage(7, ndim=2)
    storage.set(range(2), kind(np.zeros((2, 2), int)))
    single = LazyTensorStorage(7, ndim=2)
    single.set(0, kind(np.zeros(8, int)))

    assert (storage.slot_count, storage.max_size) == (4, 8)
    assert (single.slot_count, single.max_size, len(single)) == (1, 8, 8)
    with pytest.raises(InvalidArgumentError):
        storage.set(0, kind(np.zeros(3, int)))


@st.composite
def indices(draw, shape):
    basic = st.one_of(st.none(), st.just(...), st.integers(-shape[0], shape[0] - 1), st.slices(shape[0]))
    advanced = arrays.integer_array_indices(shape[:1], result_shape=arrays.array_shapes(max_dims=2, max_side=4))
    mask = st.lists(st.booleans(), min_size=shape[0], max_size=shape[0]).map(np.array)
    if len(shape) == 1:
        return draw(
            st.one_of(basic, advanced.map(lambda one: one[0]), mask, arrays.basic_indices(shape, allow_newaxis=True))
        )
    return draw(
        st.one_of(basic, arrays.basic_indices(shape, allow_newaxis=True), arrays.integer_array_indices(shape), mask)
    )


@pytest.mark.first(1)
@pytest.mark.parametrize("shape", [(6,), (4, 3)], ids=str)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_an_index_is_read_as_numpy_reads_it(shape, data):
    expected = np.arange(1, 1 + np.prod(shape)).reshape(shape)
    storage = LazyTensorStorage(20, ndim=len(shape))
    storage.set(range(shape[0]), TensorDict({"a": torch.from_numpy(expected)}, shape))
    index = data.draw(indices(shape))
    as_tensors = data.draw(st.booleans())
    if as_tensors:
        convert = lambda part: torch.from_numpy(part.copy()) if isinstance(part, np.ndarray) else part  # noqa: E731
        given_index = tuple(map(convert, index)) if isinstance(index, tuple) else convert(index)
    else:
        given_index = index
    got = storage.get(given_index)

    assert got["a"].numpy().tolist() == expected[index].tolist()
    assert tuple(got.batch_size) == expected[index].shape


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_sequence_of_writes_has_the_result_of_a_list(data):
    storage, model, written = LazyTensorStorage(7), [], 0
    for number in range(data.draw(st.integers(1, 8))):
        held = len(model)
        count = data.draw(st.integers(0, 9))
        in_order = data.draw(st.booleans()) or not held
        if in_order:
            slots = [(written + at) % 7 for at in range(count)]
        else:
            slots = data.draw(st.lists(st.integers(0, held - 1), unique=True, max_size=held))
        steps = [100 * number + at for at in range(len(slots))]
        storage.set(torch.tensor(slots, dtype=torch.int64), tensors(np.array(steps, int)))
        for slot, step in zip(slots, steps, strict=True):
            if slot == len(model):
                model.append(step)
            else:
                model[slot] = step
        if slots and slots[0] == written % 7 and all((b - a) % 7 == 1 for a, b in pairwise(slots)):
            written += len(slots)

        assert storage.filled_count == len(model)
        assert storage.write_count == written
        assert not model or storage.get(slice(None))[:, 0, 0].tolist() == model


def test_rows_and_indices_of_each_axis_select_the_same_steps(variant):
    storage = variant(tensors, ndim=2)
    storage.set(range(4), tensors(np.arange(8).reshape(4, 2)))
    rows = torch.tensor([0, 5, 7])
    slots, envs = storage.unravel(rows)

    assert (slots.tolist(), envs.tolist()) == ([0, 2, 3], [0, 1, 1])
    assert storage.ravel((slots, envs)).tolist() == [0, 5, 7]
    assert storage.ravel(torch.stack([slots, envs], -1)).tolist() == [0, 5, 7]


def test_a_column_is_a_view_of_all_steps(variant):
    storage = variant(tensordicts)
    storage.set(range(5), tensordicts(np.arange(5)))
    storage.column(("next", "reward"))[2] = 40

    assert storage.column(("next", "reward")).tolist() == [[0], [1], [40], [3], [4]]
    assert storage.column(("next",))["reward"].tolist() == [[0], [1], [40], [3], [4]]
    assert storage.get(2)["next", "reward"].tolist() == [40]
    with pytest.raises(InvalidArgumentError, match=r"'next\.rewards'"):
        storage.column(("next", "rewards"))


def test_a_column_of_lanes_has_a_row_for_each_step_and_is_a_view_too(variant):
    skip_compressed(variant, wide)
    storage = variant(wide, ndim=2)
    storage.set(range(3), wide(np.arange(6).reshape(3, 2)))
    for key in ("pixels", "waves", "odd"):
        storage.column((key,))[3] = 40

    assert storage.column(("odd",))[:, 0].tolist() == [0, 1, 2, 40, 4, 5]
    assert same(storage.get((1, 1)), wide(40))


def test_only_whole_slots_are_written(variant):
    storage = variant(tensors, ndim=2)
    storage.set((0,), tensors(np.arange(2)))
    with pytest.raises(IndexError, match="whole slots"):
        storage.set((0, 1), tensors(9))

    assert same(storage.get(0), tensors(np.arange(2)))


def test_all_errors_of_data_are_reported_at_once(variant):
    storage = variant(tensordicts)
    storage.set(range(5), tensordicts(np.arange(5)))
    data = tensordicts(np.arange(2))
    del data["observation"]
    data["done"] = torch.zeros(2, 1)
    data["next", "reward"] = torch.zeros(2, dtype=torch.float16)
    data["next", "info"] = torch.zeros(2)
    with pytest.raises(InvalidArgumentError) as caught:
        storage.set(range(2), data)

    for part in (
        "'observation' is missing",
        "'done' is float32, expected bool",
        "('next', 'reward') has shape [2], expected [2, 1]",
        "('next', 'info') is not stored",
    ):
        assert part in str(caught.value)


def test_one_element_for_extend_and_several_for_add_get_a_hint(variant):
    storage = variant(tensordicts)
    storage.set(range(5), tensordicts(np.arange(5)))
    with pytest.raises(InvalidArgumentError, match="this looks like a single element: pass it to add"):
        storage.set(range(3), tensordicts(1))
    with pytest.raises(InvalidArgumentError, match="this looks like several elements: pass them to extend"):
        storage.set(0, tensordicts(np.arange(3)))


def test_gradients_are_not_stored(variant):
    storage = variant(tensors)
    storage.set(range(2), tensors(np.arange(2)).requires_grad_())
    storage.set(torch.tensor([1, 0]), tensors(np.arange(2)).requires_grad_())

    assert not storage.get(slice(None)).requires_grad


class TestListStorage:
    def test_it_holds_any_objects(self):
        storage = ListStorage(3)
        storage.set(range(2), ["a", None])
        storage.set(2, {"b": 1})
        storage.set(torch.tensor([0, 1]), (30, [1, 2]))

        assert storage.get(slice(None)) == [30, [1, 2], {"b": 1}]
        assert storage.get([2, 0]) == [{"b": 1}, 30]
        assert storage.get(torch.tensor([[0, 0]])) == [[30, 30]]
        assert storage.get(-1) == {"b": 1}
        assert (storage.write_count, len(storage)) == (5, 3)

    def test_an_iterable_is_several_elements(self):
        storage = ListStorage()
        for data in (range(2), np.arange(2), torch.arange(2), tensordicts(np.arange(2)), (5, 6)):
            storage.set(range(storage.filled_count, storage.filled_count + 2), data)

        assert len(storage) == 10
        assert same(storage.get(7), tensordicts(1))

    @pytest.mark.parametrize("data", ["text", {"a": 1}, 3], ids=repr)
    def test_data_that_is_not_a_sequence_is_refused(self, data):
        with pytest.raises(InvalidArgumentError, match="does not hold several elements"):
            ListStorage().set(range(1), data)

    def test_an_index_out_of_range_is_an_error(self):
        storage = ListStorage(4)
        storage.set(range(2), [1, 2])
        for index in (2, -3, [2], torch.tensor([-3]), (0, 0)):
            with pytest.raises(IndexError):
                storage.get(index)
        for slot in (3, 4):
            with pytest.raises(IndexError):
                storage.set(slot, 0)

    def test_a_state_can_be_restored_from_files(self, tmp_path):
        items = [1.5, None, "a", torch.arange(3), tensordicts(2), {"a": (1, [torch.ones(2)]), 3: True}]
        storage, again = ListStorage(6), ListStorage(9)
        storage.set(range(6), items)
        storage.set(0, 2.5)
        checkpoint.write_state(tmp_path, "ListStorage", storage.state_dict())
        again.load_state_dict(checkpoint.read_state(tmp_path))

        got = again.get(slice(None))
        assert [got[0], got[1], got[5]] == [None, "a", 2.5]
        assert got[2].tolist() == [0, 1, 2]
        assert same(got[3], tensordicts(2))
        assert same(got[4]["a"][1][0], torch.ones(2))
        assert got[4][3] is True
        assert again.write_count == 6

    def test_an_element_that_cannot_be_saved_is_named(self):
        storage = ListStorage()
        storage.set(range(2), [1, {"a": [object()]}])
        with pytest.raises(InvalidArgumentError, match=r"element 1\['a'\]\[0\] is of type object"):
            storage.state_dict()

    def test_a_state_that_does_not_fit_changes_nothing(self):
        storage, small = ListStorage(5), ListStorage(2)
        storage.set(range(3), [1, 2, 3])
        small.set(0, 7)
        for state in (storage.state_dict(), {}, {"items": [{"no": 1}], "written": 1}):
            with pytest.raises(InvalidArgumentError):
                small.load_state_dict(copy.copy(state))

        assert small.get(slice(None)) == [7]


class TestLazyStackStorage:
    """What it does as a `ListStorage` is not tested again."""

    @staticmethod
    def ragged(length):
        """Return an element of this length, with text."""
        return TensorDict({"a": torch.arange(float(length)), "length": torch.tensor(length), "text": f"{length} steps"})

    def filled(self, *lengths, **options):
        storage = LazyStackStorage(8, **options)
        storage.set(range(len(lengths)), [*map(self.ragged, lengths)])
        return storage

    @pytest.mark.parametrize("index", [[2, 0, 2], torch.tensor([2, 0, 2]), np.array([2, 0, 2])], ids=type)
    def test_elements_of_different_shapes_are_read_as_a_lazy_stack(self, index):
        batch = self.filled(2, 3, 4).get(index)

        assert isinstance(batch, LazyStackedTensorDict)
        assert batch["length"].tolist() == [4, 2, 4]
        assert batch["text"] == ["4 steps", "2 steps", "4 steps"]
        assert [part["a"].tolist() for part in batch.unbind(0)] == [[0, 1, 2, 3], [0, 1], [0, 1, 2, 3]]

    def test_slices_rows_and_numbers_are_indices_too(self):
        storage = self.filled(2, 3, 4)

        assert storage.get(slice(1, None))["length"].tolist() == [3, 4]
        assert storage.take(torch.tensor([1, 1]))["length"].tolist() == [3, 3]
        assert storage.get(torch.tensor([[0, 1], [2, 0]]))["length"].tolist() == [[2, 3], [4, 2]]
        assert storage.get(-1)["length"] == 4
        assert storage.get([]).shape == (0,)

    @pytest.mark.parametrize(("stack_dim", "shape"), [(0, (2, 3)), (1, (3, 2)), (-1, (3, 2)), (-2, (2, 3))])
    def test_the_axis_of_the_stack_can_be_chosen(self, stack_dim, shape):
        storage = LazyStackStorage(4, stack_dim=stack_dim)
        storage.set(range(2), TensorDict({"a": torch.zeros(2, 3)}, [2, 3]))

        assert storage.get([0, 1]).shape == shape

    def test_an_entry_that_is_added_to_a_batch_is_not_stored(self):
        storage = self.filled(2, 3)
        storage.get([0, 1, 0])["index"] = torch.arange(3)

        assert sorted(storage.get(0).keys()) == ["a", "length", "text"]

    def test_other_elements_are_refused(self):
        storage = LazyStackStorage(3)
        for slots, data in ((0, torch.zeros(2)), (range(2), [self.ragged(2), 3])):
            with pytest.raises(InvalidArgumentError, match=r"of type (Tensor|int), expected TensorDicts"):
                storage.set(slots, data)

        assert len(storage) == 0

    def test_a_state_can_be_restored(self):
        storage, again = self.filled(2, 3), LazyStackStorage(9)
        again.load_state_dict(storage.state_dict())

        assert again.get([1, 0])["text"] == ["3 steps", "2 steps"]

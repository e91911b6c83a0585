"""Storages of packed rows: records, dtypes, objects, and data that they refuse."""

import numpy as np
import pytest
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict
from torch.utils import _pytree as pytree

from datasets_rl.buffers import ReplayBuffer
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.storages import LazyMemmapStorage, LazyTensorStorage, StorageEnsemble, TensorStorage
from datasets_rl.storages.structure import Structure, stack_elements

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.uint16,
    torch.int16,
    torch.float16,
    torch.bfloat16,
    torch.uint32,
    torch.int32,
    torch.float32,
    torch.uint64,
    torch.int64,
    torch.float64,
    torch.complex64,
    torch.complex128,
]


def test_all_narrow_leaves_are_in_one_record():
    storage = LazyTensorStorage(10)
    storage.set(0, TensorDict({"a": torch.zeros(17), "b": torch.zeros(1, dtype=torch.bool), "c": torch.zeros(1024)}))

    assert [list(table.shape) for table in storage._tables] == [[10, 9], [10, 512]]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [1, 3, 700], ids=str)
def test_every_dtype_is_restored_bit_by_bit(dtype, size):
    bits = torch.randint(0, 2, (6, size, dtype.itemsize), dtype=torch.uint8)
    values = bits.view(dtype).squeeze(-1)
    storage = LazyTensorStorage(6)
    storage.set(range(6), {"odd": torch.zeros(6, 3, dtype=torch.uint8), "values": values})

    for got in (storage.get(slice(None)), storage.get(torch.arange(6))):
        assert got["values"].dtype == dtype
        assert torch.equal(got["values"].contiguous().view(torch.uint8), values.contiguous().view(torch.uint8))


def test_a_batch_keeps_names_and_has_the_device_of_the_storage():
    storage = LazyTensorStorage(6)
    storage.set(range(3), TensorDict({"a": torch.zeros(3, 4)}, [3, 4], names=["time", "agent"]))

    assert storage.get(slice(None)).names == ["time", "agent"]
    assert storage.get(0).names == ["agent"]
    assert storage.get([[0, 1]]).names == [None, None, "agent"]
    assert storage.get(0).device == torch.device("cpu")


def test_the_device_of_the_first_data_is_used_on_request():
    storage = LazyTensorStorage(6, device="auto")
    storage.set(0, torch.zeros(3))

    assert storage.device == torch.device("cpu")


class TestObjects:
    def test_objects_are_stored_beside_tensors(self):
        storage = LazyTensorStorage(3)
        storage.set(range(2), TensorDict({"a": torch.arange(2), "text": NonTensorStack("x", "y")}, [2]))
        storage.set(torch.tensor([2, 0]), TensorDict({"a": torch.arange(2, 4), "text": "z"}, [2]))

        assert list(storage.get(slice(None))["text"]) == ["z", "y", "z"]
        assert storage.get(1)["text"] == "y"
        assert list(storage.get([2, 1])["text"]) == ["z", "y"]

    def test_they_are_not_shared(self):
        storage = LazyTensorStorage(3)
        storage.set(0, TensorDict({"a": torch.zeros(()), "text": "x"}))
        with pytest.raises(InvalidArgumentError, match=r"\('text',\)"):
            storage.share()

    def test_text_and_json_values_are_saved_and_move_with_their_steps_into_a_larger_ring(self, tmp_path):
        rb = ReplayBuffer(storage=LazyTensorStorage(3))
        rb.extend(TensorDict({"a": torch.arange(5), "text": NonTensorStack("u", "v", "x", ["y", 1], {"z": None})}, [5]))
        rb.dumps(tmp_path)
        larger = ReplayBuffer(storage=LazyTensorStorage(4))
        larger.loads(tmp_path)

        assert list(larger[:]["text"]) == ["x", ["y", 1], {"z": None}]
        assert larger[:]["a"].tolist() == [2, 3, 4]

    def test_other_objects_are_not_saved(self):
        storage = LazyTensorStorage(3)
        storage.set(0, TensorDict({"a": torch.zeros(()), "what": NonTensorData(object())}))
        with pytest.raises(InvalidArgumentError, match="step 0 is of type object, which cannot be saved"):
            storage.state_dict()

    def test_a_mapped_storage_refuses_a_state_with_objects(self):
        storage = LazyTensorStorage(3)
        storage.set(0, TensorDict({"a": torch.zeros(()), "text": "x"}))
        with pytest.raises(InvalidArgumentError, match=r"the leaf .*text.* is not a tensor"):
            LazyMemmapStorage(3).load_state_dict(storage.state_dict())


class TestRefused:
    @pytest.mark.parametrize(
        ("data", "message"),
        [
            ({"a": torch.zeros(3), "b": 1.5}, "'b' is a float, expected a tensor"),
            ({}, "dict contains no tensor"),
            ("text", "the data is a str"),
            ({"a": torch.zeros(3), "b": torch.zeros(())}, r"'b' has shape \[\], expected at least 1 axes"),
            ({"a": torch.zeros(3), "b": torch.zeros(2)}, r"'b' has shape \[2\], expected \[3\]"),
        ],
    )
    def test_first_data_that_is_not_a_batch_of_tensors_is_refused(self, data, message):
        storage = LazyTensorStorage(3)
        with pytest.raises(InvalidArgumentError, match=message):
            storage.set(range(3), data)

        assert not storage.initialized
        with pytest.raises(IndexError, match="nothing has been written"):
            storage.get(0)

    def test_a_container_of_another_type_is_refused(self):
        storage = LazyTensorStorage(3)
        storage.set(0, (torch.zeros(1), torch.zeros(2)))
        with pytest.raises(InvalidArgumentError, match="expected"):
            storage.set(0, [torch.zeros(1), torch.zeros(2)])

    def test_elements_that_cannot_be_stacked_are_refused(self):
        with pytest.raises(InvalidArgumentError, match="cannot be stacked"):
            stack_elements([torch.zeros(2), torch.zeros(3)])
        with pytest.raises(InvalidArgumentError, match="cannot stack an empty list"):
            stack_elements([])


class TestState:
    def saved(self):
        storage = LazyTensorStorage(6)
        storage.set(range(3), TensorDict({"a": torch.arange(3.0)}, [3]))
        return storage.state_dict()

    def test_an_empty_storage_adopts_the_structure(self):
        storage = LazyTensorStorage(9, device="auto")
        storage.load_state_dict(self.saved())

        assert storage.get(slice(None))["a"].tolist() == [0, 1, 2]
        with pytest.raises(IndexError):
            storage.get(3)

    def test_an_empty_state_empties_the_storage(self):
        storage = LazyTensorStorage(6)
        storage.set(range(3), torch.zeros(3))
        storage.load_state_dict(LazyTensorStorage(6).state_dict())

        assert len(storage) == 0

    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            ({"layout": "columns"}, "layout is 'columns'"),
            ({"ndim": 2}, "ndim is 2, expected 1"),
            ({"held": -1}, "held is -1"),
            ({"written": 2}, "held 3, slots 6, written 2"),
            ({"tables": [[torch.zeros(3, 2)]]}, r"table 0 has another dtype or shape, expected torch.int64 \[3, 1\]"),
            ({"tables": []}, "the state has 0 tables, expected 1"),
            ({"structure": {"nodes": [{"dtype": "no_grad", "shape": []}], "tree": None}}, "'no_grad' is not a dtype"),
            ({"structure": {"nodes": 3}}, "does not describe a structure"),
            ({"structure": None}, "held is 3, but the structure is missing"),
        ],
        ids=repr,
    )
    def test_a_state_that_is_damaged_is_refused_and_changes_nothing(self, change, reason):
        storage = LazyTensorStorage(6)
        storage.set(range(2), TensorDict({"a": torch.ones(2)}, [2]))
        with pytest.raises(InvalidArgumentError, match=reason):
            storage.load_state_dict({**self.saved(), **change})

        assert storage.get(slice(None))["a"].tolist() == [1, 1]

    def test_the_state_of_other_data_is_refused_with_all_reasons(self):
        storage = LazyTensorStorage(2)
        storage.set(0, TensorDict({"b": torch.zeros(2)}))
        with pytest.raises(
            InvalidArgumentError,
            match=r"'b' is missing; 'a' is not stored; the state holds 3 slots, expected at most 2",
        ):
            storage.load_state_dict(self.saved())


def test_a_description_restores_the_same_structure():
    data = {
        "a": torch.zeros(4, 2),
        3: ([torch.zeros(4)], TensorDict({"b": torch.zeros(4, 5)}, [4, 5], names=["t", None])),
    }
    structure = Structure.from_data(data, 1)
    again = Structure.from_json(structure.to_json())
    built = again.build(again.flatten(data, [None])[1], torch.Size([4]), None)

    assert again.leaves == structure.leaves
    assert pytree.tree_structure(built) == pytree.tree_structure(data)
    assert built[3][1].names == ["t", None]


class TestGivenTensors:
    def test_writes_reach_them(self):
        container = torch.zeros(4, 3)
        storage = TensorStorage(container)
        storage.set(0, torch.ones(3))

        assert container[0].tolist() == [1, 1, 1]
        assert (len(storage), storage.write_count, storage.max_size) == (4, 5, 4)

    def test_mapped_tensors_stay_mapped(self, tmp_path):
        container = TensorDict({"a": torch.zeros(4)}, [4]).memmap_(tmp_path)
        TensorStorage(container).set(range(4), TensorDict({"a": torch.arange(4.0)}, [4]))

        assert TensorDict.load_memmap(tmp_path)["a"].tolist() == [0, 1, 2, 3]

    def test_another_size_is_refused(self):
        with pytest.raises(InvalidArgumentError, match="max_size is 5"):
            TensorStorage(torch.zeros(4), 5)

    def test_transposed_tensors_can_be_written(self):
        container = torch.zeros(2, 3).t()
        storage = TensorStorage(container, ndim=2)
        other = TensorStorage(torch.arange(6.0).view(3, 2), ndim=2)
        storage.load_state_dict(other.state_dict())

        assert container.tolist() == [[0, 1], [2, 3], [4, 5]]


class TestEnsemble:
    @pytest.fixture
    def ensemble(self):
        storages = [LazyTensorStorage(4), LazyTensorStorage(6)]
        for number, storage in enumerate(storages):
            storage.set(range(3), torch.arange(3) + 10 * number)
        return StorageEnsemble(*storages, transforms=[None, lambda data: -data])

    def test_its_storages_are_indexed_by_number(self, ensemble):
        assert ensemble[1][2] == 12
        assert len(ensemble[:1]) == 1
        assert (len(ensemble), ensemble.filled_count, ensemble.max_size) == (2, 6, 10)

    def test_it_is_not_written_to(self, ensemble):
        with pytest.raises(InvalidArgumentError, match="the storage to write to is ambiguous"):
            ensemble.set(0, torch.tensor(1))

    def test_the_number_of_transforms_must_match(self):
        with pytest.raises(InvalidArgumentError, match="2 transforms were given for 1 storages"):
            StorageEnsemble(LazyTensorStorage(1), transforms=[None, None])


@pytest.mark.parametrize("of", [0, 1])
def test_a_tensor_that_is_not_dense_is_refused_and_nothing_is_written(of):
    storage = LazyTensorStorage(10)
    if of:
        storage.set(range(3), {"a": torch.ones(3), "b": torch.ones(3, 3)})
    with pytest.raises(InvalidArgumentError, match="expected a dense tensor"):
        storage.set(range(of * 3), {"a": torch.zeros(3), "b": torch.eye(3).to_sparse()})

    assert storage.filled_count == of * 3
    assert storage.initialized is bool(of)
    if of:
        assert storage.get(slice(None))["a"].tolist() == [1, 1, 1]


def test_all_invalid_sizes_are_reported_at_once():
    for size in (0, -1, 3.5, "3", True):
        with pytest.raises(InvalidArgumentError, match=r"max_size is .*; ndim is 0"):
            LazyTensorStorage(size, ndim=0)
    assert LazyTensorStorage(np.int64(3)).max_size == 3


def test_a_range_of_slots_may_count_from_the_end_of_the_slots_held():
    storage = LazyTensorStorage(5)
    storage.set(range(3), torch.arange(3))
    storage.set(range(-2, 0), torch.tensor([8, 9]))

    assert storage.get(slice(None)).tolist() == [0, 8, 9]


def test_data_of_no_environments_are_refused():
    data = TensorDict({"x": torch.zeros(3, 0, 1)}, [3, 0])

    with pytest.raises(InvalidArgumentError, match=r"axes of the environments are \[0\], expected at least 1"):
        LazyTensorStorage(8, ndim=2).set(range(3), data)

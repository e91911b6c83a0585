"""Writes go to the rows that the buffer returns, through the inverse transforms; stored steps can be changed."""

from __future__ import annotations

import copy
import math
import pickle
import signal

import pytest
import torch
from tensordict import NonTensorStack, TensorDict

from datasets_rl import (
    BoundedTensorSpec,
    CompositeSpec,
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    PrioritizedReplayBuffer,
    PrioritizedSampler,
    RandomSampler,
    ReplayBuffer,
    RoundRobinWriter,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
    TensorStorage,
    Unbounded,
)
from datasets_rl.errors import InvalidArgumentError, UnknownKeyError


def steps(first, count):
    """Return steps whose number is in every field."""
    number = torch.arange(first, first + count)
    return TensorDict(
        {"observation": number.float().unsqueeze(-1).expand(count, 3).clone(), "next": {"reward": number.double()}},
        [count],
    )


def numbers(data):
    return data["next", "reward"].flatten().long().tolist()


@pytest.fixture(params=["ram", "memmap"])
def buffer(request):
    def make(size=10, kind=TensorDictReplayBuffer, **options):
        storage = {"ram": LazyTensorStorage, "memmap": LazyMemmapStorage}[request.param](size)
        return kind(storage=storage, **options)

    return make


def test_a_batch_that_was_sampled_can_be_written_again(buffer):
    made = buffer()
    made.extend(steps(0, 5))
    batch = made.sample(3)
    made.extend(batch)

    assert len(made) == 8
    assert numbers(made[5:]) == numbers(batch)
    assert "index" in batch.keys()  # noqa: SIM118 - a TensorDict iterates over its steps


def test_steps_and_fields_can_be_replaced(buffer):
    made = buffer()
    made.extend(steps(0, 5))
    made[1] = steps(11, 1)[0]
    made[2:4] = steps(12, 2)
    made["observation"] = torch.ones(5, 3)

    assert numbers(made[:]) == [0, 11, 12, 13, 4]
    assert (made[:]["observation"] == 1).all()


def test_a_list_of_tensors_is_an_element_for_each_tensor():
    made = ReplayBuffer(storage=LazyTensorStorage(5))
    made.extend([torch.zeros(3), torch.ones(3)])

    assert made[:].tolist() == [[0, 0, 0], [1, 1, 1]]


def test_a_transform_that_works_in_place_does_not_change_the_buffer(buffer):
    made = buffer(transform=lambda data: data.apply_(lambda leaf: leaf.fill_(7)))
    made.extend(steps(0, 5))

    for seen in (made[:], made[0], made[1:3], made.sample(4)):
        assert (seen["observation"] == 7).all()
    assert (made["observation"] == 7).all()
    assert made.storage.column(("observation",))[:, 0].tolist() == [0, 1, 2, 3, 4]


class Shift:
    """Subtracts an offset from written values and adds it to sampled values."""

    def __init__(self, by, log):
        self.by, self.log = by, log

    def __call__(self, data):
        return data.set("observation", data["observation"] + self.by)

    def inv(self, data):
        self.log.append(self.by)
        return data.set("observation", data["observation"] - self.by)


def test_written_data_passes_the_inverse_transforms_in_reverse_order(buffer):
    log = []
    made = buffer(transform=[Shift(1, log), lambda data: data, Shift(10, log)])
    made.extend(steps(0, 5))
    made.add(steps(5, 1)[0])

    assert log == [10, 1, 10, 1]
    assert made.storage.column(("observation",))[:, 0].tolist() == [-11, -10, -9, -8, -7, -6]
    assert made[:]["observation"][:, 0].tolist() == [0, 1, 2, 3, 4, 5]


def test_a_transform_can_be_inverted(buffer):
    made = buffer()
    made.append_transform(lambda data: data.set("observation", data["observation"] + 1), invert=True)
    made.extend(steps(0, 3))

    assert made.storage.column(("observation",))[:, 0].tolist() == [1, 2, 3]
    assert made[:]["observation"][:, 0].tolist() == [1, 2, 3]


def test_nothing_is_written_where_an_inverse_transform_returns_none(buffer):
    class Nothing:
        def __call__(self, data):
            return data

        def inv(self, data):
            del data

    made = buffer(transform=Nothing())

    assert made.extend(steps(0, 3)).tolist() == []
    assert made.add(steps(0, 1)[0]) is None
    assert len(made) == 0


def test_replacing_a_component_returns_the_previous_one(buffer):
    made = buffer()
    made.extend(steps(0, 5))
    storage, sampler, writer = made.storage, made.sampler, made.writer
    other, uniform, round_robin = LazyTensorStorage(4), RandomSampler(), RoundRobinWriter()

    assert made.set_sampler(uniform) is sampler
    assert made.set_writer(round_robin) is writer
    assert made.set_storage(other) is storage
    assert (made.storage, made.sampler, made.writer) == (other, uniform, round_robin)
    made.extend(steps(0, 3))
    assert len(other) == 3
    assert len(storage) == 5


def test_an_invalid_component_is_refused_and_nothing_changes(buffer):
    made = buffer()
    before = (made.storage, made.sampler, made.writer)
    for change in (made.set_storage, made.set_sampler, made.set_writer):
        for part in (3, RandomSampler):
            with pytest.raises(InvalidArgumentError, match="has no method"):
                change(part)

    assert (made.storage, made.sampler, made.writer) == before


def test_a_new_writer_continues_at_the_cursor_of_the_storage(buffer):
    made = buffer()
    made.extend(steps(0, 5))
    made.set_writer(RoundRobinWriter())
    made.extend(steps(5, 2))

    assert numbers(made[:]) == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("priority", [float("nan"), -1.0, float("inf")])
def test_steps_whose_priority_is_none_are_not_written(buffer, priority):
    made = buffer(kind=TensorDictReplayBuffer, sampler=PrioritizedSampler(10, 0.7, 0.9))
    made.extend(steps(0, 2))
    before = made.sampler.state_dict()
    with pytest.raises(InvalidArgumentError, match="priority"):
        made.extend(steps(2, 3).set("td_error", torch.tensor([1.0, priority, 1.0])))
    with pytest.raises(InvalidArgumentError, match="priority"):
        made.add(steps(2, 1)[0].set("td_error", torch.tensor(priority)))

    assert numbers(made[:]) == [0, 1]
    assert made.write_count == 2
    assert made.sampler.state_dict()["priorities"].tolist() == before["priorities"].tolist()


@pytest.mark.parametrize("storage", [ListStorage, LazyTensorStorage])
def test_empty_data_writes_nothing(storage):
    made = TensorDictReplayBuffer(storage=storage(5))
    assert made.extend([]).tolist() == []
    assert made.extend(steps(0, 0).set("td_error", torch.zeros(0))).tolist() == []
    made.extend(steps(0, 2))

    assert made.extend([]).tolist() == []
    assert len(made) == 2


def test_the_older_name_of_the_root_alone_selects_all_data(buffer):
    made = buffer()
    made.extend(steps(0, 3))
    made["_data"] = steps(5, 3)

    assert numbers(made["_data"]) == numbers(made[:]) == [5, 6, 7]


class TestFields:
    @pytest.fixture(params=[1, 2, 3])
    def envs(self, request, buffer):
        """A function that makes a buffer of 4 slots with 0, 1 or 2 axes of lanes, [2, 3]; its steps are numbered."""
        shape = (4, 2, 3)[: request.param]
        storage = type(buffer().storage)(24, ndim=request.param)
        made = TensorDictReplayBuffer(storage=storage, dim_extend=0)
        number = torch.arange(math.prod(shape))
        made.extend(TensorDict({"a": number.reshape(shape), "n": {"b": torch.zeros(*shape, 5)}}, shape))
        return made

    def test_a_field_has_the_axes_of_the_slots_and_lanes(self, envs):
        for key in ("a", ("_data", "a")):
            assert envs[key].shape == envs.storage.shape
            assert (envs[key] == envs[:]["a"]).all()
        assert envs["n", "b"].shape == (*envs.storage.shape, 5)
        assert envs["n"].batch_size == envs.storage.shape

    def test_a_write_to_a_field_or_its_view_changes_the_buffer(self, envs):
        new = torch.randint(9, envs.storage.shape)
        envs["a"] = new
        envs["n", "b"][0] = 3
        assert (envs[:]["a"] == new).all()
        assert (envs[0]["n", "b"] == 3).all()
        envs["n"] = TensorDict({"b": torch.ones(*envs.storage.shape, 5)}, envs.storage.shape)
        envs["a"] = 4

        assert (envs[:]["n", "b"] == 1).all()
        assert (envs[:]["a"] == 4).all()

    @pytest.mark.parametrize(
        ("key", "value", "problem"),
        [
            ("a", torch.zeros(7, 7, 7, dtype=torch.int64), r"has shape \[7, 7, 7\]"),
            ("a", 0.5, "float32"),
            ("n", torch.zeros(3), "expected a TensorDict"),
            ("n", TensorDict({"b": torch.zeros(9)}), r"'n.b' has shape"),
            ("n", TensorDict({"b": torch.zeros(4), "c": torch.zeros(4)}), "expected a TensorDict of these"),
        ],
    )
    def test_a_value_that_does_not_fit_a_field_is_refused_and_nothing_changes(self, envs, key, value, problem):
        before = envs[:].clone()
        with pytest.raises(InvalidArgumentError, match=problem):
            envs[key] = value

        assert (envs[:] == before).all()

    def test_fields_of_a_list_are_stacked(self):
        made = TensorDictReplayBuffer()
        made.extend(steps(0, 3))

        assert made["next", "reward"].tolist() == [0, 1, 2]
        with pytest.raises(UnknownKeyError, match="observation"):
            made["nothing"]
        with pytest.raises(InvalidArgumentError, match="no fields"):
            made["observation"] = 1

    def test_fields_of_a_pytree_are_readable_with_transforms(self, buffer):
        for transform in (None, lambda data: data):
            made = buffer(kind=ReplayBuffer, transform=transform)
            made.extend({"a": {"b": torch.arange(3)}})

            assert made["a", "b"].tolist() == [0, 1, 2]

    def test_objects_cannot_be_replaced_by_field(self):
        made = TensorDictReplayBuffer(storage=LazyTensorStorage(4))
        made.extend(steps(0, 2).set("text", NonTensorStack("a", "b")))

        with pytest.raises(InvalidArgumentError, match="non-tensor data"):
            made["text"] = "c"


def test_a_sampled_batch_can_replace_other_steps(buffer):
    made = buffer()
    made.extend(steps(0, 5))
    batch = made.sample(3)
    made[:3] = batch

    assert numbers(made[:]) == [*numbers(batch), 3, 4]


def test_steps_that_are_replaced_go_through_the_inverse_transforms(buffer):
    made = buffer(transform=Shift(10, []))
    made.extend(steps(0, 3))
    made[0] = steps(5, 1)[0]
    made[1:] = steps(6, 2)

    assert made[:]["observation"][:, 0].tolist() == [5, 6, 7]


def test_data_without_an_axis_of_time_is_refused():
    made = TensorDictReplayBuffer(storage=LazyTensorStorage(12, ndim=2), batch_size=4)
    made.extend(TensorDict({"a": torch.zeros(2, 3)}, [2, 3]))

    for buffer, data in ((made, made.sample()), (ReplayBuffer(storage=LazyTensorStorage(4, ndim=2)), torch.zeros(3))):
        with pytest.raises(InvalidArgumentError, match="has no axis 1"):
            buffer.extend(data)


def test_non_tensor_objects_are_kept_in_a_copy_and_a_pickle():
    made = TensorDictReplayBuffer(storage=LazyTensorStorage(4))
    made.extend(steps(0, 2).set("text", NonTensorStack("a", "b")))
    for other in (copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        other.extend(steps(2, 1).set("text", NonTensorStack("c")))

        assert list(other[:]["text"]) == ["a", "b", "c"]
    assert list(made[:]["text"]) == ["a", "b"]


@pytest.mark.parametrize("storage", [TensorStorage, None], ids=["tensor", "lazy"])
def test_a_tensor_of_one_number_is_an_index(storage):
    made = ReplayBuffer(storage=LazyTensorStorage(5) if storage is None else storage(torch.zeros(5)))
    made.extend(torch.arange(5.0))

    assert made[torch.tensor(2)].shape == ()
    assert float(made[torch.tensor(-1)]) == 4


def test_a_list_storage_cannot_have_a_second_axis():
    made = ReplayBuffer(storage=ListStorage(5))
    made.extend(range(3))

    with pytest.raises(IndexError, match="adds an axis"):
        made[None]


def test_items_of_a_list_keep_their_type_in_a_batch():
    made = ReplayBuffer(storage=ListStorage(4))
    made.extend([(torch.ones(2), [1, {"a": "x"}]), (torch.zeros(2), [2, {"a": "y"}])])
    first, (numbers_, named) = made[:]

    assert type(made[:]) is tuple
    assert first.tolist() == [[1, 1], [0, 0]]
    assert numbers_.tolist() == [1, 2]
    assert named == {"a": ["x", "y"]}


def test_all_invalid_arguments_are_reported_at_once():
    with pytest.raises(InvalidArgumentError) as caught:
        ReplayBuffer(storage=ListStorage(3), batch_size=0, sampler=3, transform=["x"], dim_extend=-1, prefetch=1.5)

    for part in (
        "batch_size is 0",
        "3 has no method sample",
        "'x' is not callable",
        "dim_extend is -1",
        "prefetch is 1.5",
    ):
        assert part in str(caught.value)


def test_components_may_be_given_as_classes_or_factories():
    made = ReplayBuffer(storage=lambda: ListStorage(7), sampler=RandomSampler, writer=RoundRobinWriter)

    assert made.storage.max_size == 7
    assert isinstance(made.sampler, RandomSampler)
    with pytest.raises(InvalidArgumentError, match="without arguments"):
        ReplayBuffer(storage=LazyTensorStorage)


def test_the_default_storage_is_a_list_of_a_thousand():
    made = ReplayBuffer()
    made.extend(range(1500))

    assert isinstance(made.storage, ListStorage)
    assert len(made) == 1000
    assert made[0] == 1000
    assert made[:3].tolist() == [1000, 1001, 1002]


def test_the_error_for_items_that_cannot_be_stacked_says_what_to_do():
    made = ReplayBuffer()
    made.extend([object(), object()])

    with pytest.raises(InvalidArgumentError, match="object") as caught:
        made.sample(2)
    assert "collate_fn" in caught.value.hint


def test_tensordicts_of_different_shapes_are_stacked_lazily():
    made = TensorDictReplayBuffer(storage=ListStorage(4))
    made.extend([TensorDict({"a": torch.ones(size)}) for size in (2, 3)])
    batch = made[:]

    assert batch.batch_size == (2,)
    assert batch[1]["a"].tolist() == [1, 1, 1]


def test_a_buffer_of_tensordicts_refuses_other_data():
    made = TensorDictReplayBuffer(storage=ListStorage(4))

    for write, data in ((made.extend, [1, 2]), (made.extend, torch.ones(3)), (made.add, "a")):
        with pytest.raises(InvalidArgumentError, match="TensorDicts only") as caught:
            write(data)
        assert "ReplayBuffer" in caught.value.hint
    assert len(made) == 0


def test_a_separate_generator_reproduces_the_batches(buffer):
    sequences = []
    for _ in range(2):
        made = buffer(generator=torch.Generator().manual_seed(5), batch_size=4)
        made.extend(steps(0, 10))
        sequences.append([numbers(made.sample()) for _ in range(3)])

    assert sequences[0] == sequences[1]
    assert sequences[0][0] != sequences[0][1]


@pytest.mark.parametrize("kind", [str, type(None)])
def test_the_repr_of_a_buffer_names_its_components(buffer, kind):
    made = buffer(transform=None if kind is type(None) else [str.upper], batch_size=3)
    text = repr(made)

    assert text.startswith("TensorDictReplayBuffer(\n    storage=Lazy")
    assert "RandomSampler()" in text
    assert "batch_size=3" in text
    assert ("upper" in text) == (kind is str)


def test_a_notebook_shows_a_table_with_the_fields_and_runs_nothing_in_them(buffer):
    made = buffer()
    assert "0 of 10" in made._repr_html_()
    made.extend(TensorDict({"<script>": torch.zeros(2, 3)}, [2]))
    html = made._repr_html_()

    assert "2 of 10" in html
    assert "&lt;script&gt;" in html
    assert "<script>" not in html
    assert "float32 [3]" in html


class TestLanes:
    """Two parallel environments: written data is [B, T], and the storage has time as its first axis."""

    @pytest.fixture
    def made(self):
        made = TensorDictReplayBuffer(storage=LazyTensorStorage(10, ndim=2))
        made.extend(steps(0, 6).reshape(2, 3))
        return made

    def test_an_axis_can_be_named(self):
        made = ReplayBuffer(storage=LazyTensorStorage(12, ndim=2), dim_extend=0)
        made.extend(torch.arange(6).reshape(3, 2))

        assert made[:].tolist() == [[0, 1], [2, 3], [4, 5]]

    def test_one_step_of_each_is_added(self, made):
        assert made.add(steps(6, 2)).tolist() == [[3, 0], [3, 1]]
        assert made[3]["next", "reward"].tolist() == [6, 7]


class TestPriorities:
    @pytest.fixture
    def made(self):
        made = TensorDictPrioritizedReplayBuffer(alpha=1.0, beta=1.0, eps=0.0, storage=LazyTensorStorage(10))
        made.extend(steps(0, 10))
        return made

    def only(self, made, batch=200):
        return set(numbers(made.sample(batch)))

    def test_priorities_of_a_batch_are_applied(self, made):
        made.update_priority(torch.arange(10), 0.0)
        batch = made[torch.tensor([3, 4])].set("index", torch.tensor([3, 4]))
        made.update_tensordict_priority(batch.set("td_error", torch.tensor([1.0, 0.0])))

        assert self.only(made) == {3}

    def test_priorities_can_be_written_with_the_steps(self, made):
        made.update_priority(torch.arange(10), 0.0)
        made.set_storage(LazyTensorStorage(10))
        made.extend(steps(0, 10).set("td_error", torch.eye(10)[6]))

        assert self.only(made) == {6}
        made.extend(steps(10, 10).set("td_error", torch.eye(10)[6]), update_priority=False)
        assert len(self.only(made, 1000)) == 10

    @pytest.mark.parametrize(
        "index",
        [7, torch.tensor(7), torch.tensor([7]), (torch.tensor([7]),), [7]],
        ids=["int", "scalar", "one", "tuple", "list"],
    )
    def test_an_index_is_given_in_any_form(self, made, index):
        made.update_priority(torch.arange(10), 0.0)
        made.update_priority(index, 2.0)

        assert self.only(made) == {7}

    def test_rows_of_several_axes_are_indexed(self):
        storage = LazyTensorStorage(10, ndim=2)
        made = TensorDictReplayBuffer(storage=storage, sampler=PrioritizedSampler(10, 1.0, 1.0, eps=0.0))
        index = made.extend(steps(0, 10).reshape(2, 5))
        made.update_priority(index, 0.0)
        batch = made[torch.tensor([1]), torch.tensor([1])]
        made.update_tensordict_priority(batch.set("index", torch.tensor([[1, 1]])).set("td_error", torch.ones(1)))

        assert self.only(made) == {6}

    def test_the_error_for_a_batch_without_an_index_says_what_to_do(self, made):
        with pytest.raises(InvalidArgumentError, match="no 'index'") as caught:
            made.update_tensordict_priority(steps(0, 2).set("td_error", torch.ones(2)))
        assert "update_priority" in caught.value.hint

    def test_a_plain_buffer_returns_the_weights_in_its_info(self):
        made = PrioritizedReplayBuffer(alpha=0.7, beta=1.0, storage=LazyTensorStorage(10), batch_size=4)
        made.extend(torch.arange(10.0))
        batch, info = made.sample(return_info=True)
        made.update_priority(info["index"], torch.ones(4))

        assert batch.tolist() == info["index"].tolist()
        assert info["priority_weight"].shape == (4,)

    def test_another_sampler_is_refused(self):
        with pytest.raises(InvalidArgumentError, match="creates its own"):
            PrioritizedReplayBuffer(alpha=1, beta=1, sampler=RandomSampler())


def test_copies_do_not_share_memory():
    made = TensorDictReplayBuffer(storage=LazyTensorStorage(10))
    made.extend(steps(0, 5))
    for other in (copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        other[:]["observation"].fill_(-1)
        other.extend(steps(5, 1))

        assert len(other) == 6
    assert len(made) == 5
    assert made["observation"][:, 0].tolist() == [0, 1, 2, 3, 4]


def test_a_prioritized_ring_of_environments_that_do_not_divide_its_size_goes_round():
    # The storage rounds 100 steps of 12 environments up to 9 slots of 12.
    storage = LazyTensorStorage(100, ndim=2)
    made = TensorDictPrioritizedReplayBuffer(alpha=1.0, beta=1.0, eps=0.0, storage=storage, batch_size=1000)
    times = torch.arange(20)
    for time in times:
        steps = TensorDict({"observation": time.expand(12, 1), "td_error": time.expand(12, 1) + 1.0}, [12, 1])
        made.extend(steps)

    batch = made.sample()

    assert len(made) == made.storage.max_size == 108
    assert set(batch["observation"].tolist()) == set(range(11, 20))
    assert torch.allclose(batch["priority_weight"], 12 / (batch["observation"] + 1.0))


def test_a_sampler_with_a_capacity_below_that_of_the_storage_is_refused():
    def made(size):
        return ReplayBuffer(storage=ListStorage(size), sampler=PrioritizedSampler(5, 1.0, 1.0))

    with pytest.raises(InvalidArgumentError, match="max_capacity is 5, and the storage holds up to 10 steps"):
        made(10)
    buffer = made(5)
    with pytest.raises(InvalidArgumentError, match="max_capacity is 4, and the storage holds up to 5 steps"):
        buffer.set_sampler(PrioritizedSampler(4, 1.0, 1.0))
    with pytest.raises(InvalidArgumentError, match="max_capacity is 5, and the storage holds up to 6 steps"):
        buffer.set_storage(ListStorage(6))


def test_without_a_storage_a_buffer_has_the_capacity_of_its_sampler():
    """As in TorchRL's test_ptdrb: of three and five steps, the last five stay."""
    made = ReplayBuffer(sampler=PrioritizedSampler(5, 1.0, 1.0), batch_size=200)
    made.extend([*"abc"])
    made.extend([*"vwxyz"])

    assert len(made) == made.storage.max_size == 5
    assert {*made.sample()} == {*"vwxyz"}


class TestSpecs:
    @pytest.fixture
    def made(self, buffer):
        spec = CompositeSpec(
            observation=BoundedTensorSpec(0, 100, (3,)), next={"reward": Unbounded((), dtype=torch.float64)}
        )
        return buffer(writer=RoundRobinWriter(spec=spec))

    def test_data_in_the_spec_is_written(self, made):
        made.extend(steps(0, 3))
        made.add(steps(3, 1)[0])
        made.extend([steps(4, 1)[0]])

        assert numbers(made[:]) == [0, 1, 2, 3, 4]

    @pytest.mark.parametrize("verb", ["add", "extend", "list"])
    def test_data_outside_of_the_spec_is_refused_with_path_value_and_bound_and_nothing_is_written(self, made, verb):
        data = steps(0, 2)
        data["observation"][1, 2] = 101
        write = {
            "add": lambda: made.add(data[1]),
            "extend": lambda: made.extend(data),
            "list": lambda: made.extend([data[0], data[1]]),
        }

        with pytest.raises(
            InvalidArgumentError, match=r"observation is 101.0 at .*expected a number in \[0.0, 100.0\]"
        ):
            write[verb]()
        assert len(made) == 0


@pytest.mark.parametrize("kind", [LazyTensorStorage, ListStorage])
def test_ctrl_c_during_a_write_leaves_no_step_half_written(monkeypatch, kind):
    rb = TensorDictReplayBuffer(storage=kind(4), batch_size=4, prefetch=2)
    old = TensorDict({"a": torch.zeros(4), "b": torch.zeros(4, 2000)}, [4])
    rb.extend(old)
    write = kind.set

    def interrupted(storage, cursor, data):
        signal.raise_signal(signal.SIGINT)
        write(storage, cursor, data)

    monkeypatch.setattr(kind, "set", interrupted)
    with pytest.raises(KeyboardInterrupt):
        rb.extend(old + 1)

    assert rb.write_count == 8
    assert rb.sample()["a"].tolist() == [1.0] * 4

"""Batches come in the order that the seed determines, with and without threads; changes to a batch do not persist."""

from __future__ import annotations

import copy
import math
import multiprocessing
import pickle
import threading
import time
import warnings

import pytest
import torch
from stored_data import trajectory, write_dataset

from datasets_rl.buffers import ReplayBuffer, TensorDictReplayBuffer
from datasets_rl.buffers import prefetch as prefetch_module
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.samplers import RandomSampler, SamplerWithoutReplacement
from datasets_rl.storages import DatasetStorage, LazyMemmapStorage, TensorStorage
from datasets_rl.storages.trajectories import PaddedTrajectories
from datasets_rl.transforms import Compose, DoubleToFloat

PRINTED = [[4, 9, 3, 0, 3], [9, 7, 3], [7, 3, 1, 6, 6], [9, 8, 6, 6, 8], [4, 3, 6, 9, 1], [4, 4, 1, 9, 9]]
"""Rows in TorchRL's documentation after torch.manual_seed(0), for ten steps: batches of 5 and 3, and 5 by iterating."""


@pytest.fixture(scope="module")
def storage(tmp_path_factory):
    return DatasetStorage(write_dataset(tmp_path_factory.mktemp("toy"), [trajectory(4), trajectory(6)]))


@pytest.fixture
def buffer(storage):
    """A function that makes a buffer; its threads end with the test."""
    made = []

    def make(kind=TensorDictReplayBuffer, **options):
        made.append(kind(storage=storage, **{"batch_size": 5, **options}))
        return made[-1]

    yield make
    for one in made:
        if one._prefetch is not None:
            one._prefetch.close()


def rows(batch):
    return batch["index"].tolist()


def test_batches_are_those_in_the_documentation_of_torchrl(buffer):
    torch.manual_seed(0)
    made = buffer()
    batches = [made.sample(), made.sample(batch_size=3)]
    for batch in made:
        batches.append(batch)
        if len(batches) == 6:
            break

    assert [rows(batch) for batch in batches] == PRINTED


def test_a_batch_has_its_index_and_the_data_at_that_index(buffer, storage):
    batch = buffer().sample(64)

    assert batch["index"].dtype == torch.int64
    assert (batch.exclude("index") == storage.get(batch["index"])).all()


def test_each_step_of_a_trajectory_has_the_index_of_the_trajectory(storage):
    batch = TensorDictReplayBuffer(storage=PaddedTrajectories(storage), batch_size=3).sample()

    assert tuple(batch["index"].shape) == (3, 6)
    assert (batch["index"] == batch["index"][:, :1]).all()


def test_the_info_is_returned_on_demand(buffer):
    batch, info = buffer(ReplayBuffer).sample(return_info=True)

    assert "index" not in set(batch.keys())
    assert info["index"].shape == (5,)


def test_components_are_attributes_and_the_sampler_can_be_replaced(buffer, storage):
    made = buffer(transform=torch.nn.Identity())
    sampler = RandomSampler(torch.Generator().manual_seed(0))
    before = made.set_sampler(sampler)

    assert isinstance(before, RandomSampler)
    assert made.sampler is sampler
    assert made.storage is storage
    assert len(made) == 10
    assert len(made.transforms) == 1
    assert "batch_size=5" in repr(made)


def test_an_element_a_slice_and_a_mask_give_steps(buffer, storage):
    made = buffer(transform=lambda data: data.set("mark", torch.ones(data.batch_size)))

    assert tuple(made[0].batch_size) == ()
    assert tuple(made[2:5].batch_size) == (3,)
    assert made[2:5]["mark"].tolist() == [1, 1, 1]
    assert (made[2:5].exclude("mark") == storage.get([2, 3, 4])).all()


@pytest.mark.parametrize("verb", ["add", "extend"])
def test_writes_are_refused(buffer, verb):
    with pytest.raises(InvalidArgumentError, match="read-only"):
        getattr(buffer(), verb)(buffer()[0])
    with pytest.raises(InvalidArgumentError, match="emptied"):
        buffer().empty()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"batch_size": 0}, "batch_size is 0"),
        ({"batch_size": None, "prefetch": 2}, "prefetch"),
        ({"prefetch": -1}, "prefetch is -1"),
        ({"transform": [None]}, "callable"),
    ],
)
def test_arguments_that_exclude_each_other_are_refused(storage, options, problem):
    with pytest.raises(InvalidArgumentError, match=problem):
        ReplayBuffer(storage=storage, **{"batch_size": 5, **options})


def test_a_batch_size_is_needed_somewhere(storage):
    made = ReplayBuffer(storage=storage)

    with pytest.raises(InvalidArgumentError, match="no batch size"):
        made.sample()
    with pytest.raises(InvalidArgumentError, match="batch_size is 0"):
        made.sample(0)
    with pytest.raises(InvalidArgumentError, match="iterating needs"):
        next(iter(made))


def test_transforms_are_applied_in_order_after_collating(buffer):
    seen = []

    def mark(name):
        def step(data):
            seen.append(name)
            return data

        return step

    made = buffer(collate_fn=mark("collate"), transform=[mark("b")])
    made.append_transform(mark("c"))
    made.insert_transform(0, mark("a"))
    made.sample()

    assert seen == ["collate", "a", "b", "c"]


def test_a_transform_is_not_inserted_beyond_the_others(buffer):
    made = buffer(transform=[lambda data: data])

    for index in (2, -2, 10):
        with pytest.raises(ValueError, match=f"index is {index}, expected -1 to 1"):
            made.insert_transform(index, lambda data: data)
    assert len(made.transforms) == 1


def test_a_sample_unit_of_another_type_is_a_type_error(buffer):
    with pytest.raises(TypeError, match="sample_unit is 3, expected an instance of a SampleUnit"):
        buffer(sample_unit=3)


@pytest.mark.parametrize("prefetch", [1, 3])
def test_prefetching_gives_the_same_sequence(buffer, prefetch):
    """The indices of a batch are drawn in the caller's thread, in order."""
    torch.manual_seed(7)
    plain = buffer()
    expected = [rows(plain.sample()) for _ in range(20)]

    def uneven(data):
        time.sleep(0.001 * int(data["index"][0]))
        return data

    ahead = buffer(prefetch=prefetch, transform=uneven)
    torch.manual_seed(7)

    assert [rows(ahead.sample()) for _ in range(20)] == expected


def test_prefetched_batches_are_assembled_concurrently(buffer):
    """In the transform, each of the three threads waits for the other two."""
    meeting = threading.Barrier(3, timeout=20)
    names = set()

    def slow(data):
        names.add(threading.current_thread().name)
        meeting.wait()
        return data

    made = buffer(prefetch=3, transform=slow)
    for _ in range(2):
        made.sample()
    meeting.abort()
    made._prefetch.drain()

    assert len(names) == 3
    assert threading.current_thread().name not in names


@pytest.mark.slow
@pytest.mark.parametrize("pause", [0, 0.04])
def test_threads_are_used_while_batches_take_long(buffer, pause, monkeypatch):
    """To exchange a batch with a thread costs more than to make a fast one.

    The limit is far from both times here, so that a loaded machine cannot turn a fast batch into a slow one.
    """
    monkeypatch.setattr(prefetch_module, "_WORTH_A_THREAD", 0.02)
    made_by = []

    def transform(data):
        time.sleep(pause)
        made_by.append(threading.current_thread() is threading.main_thread())
        return data

    made = buffer(prefetch=2, transform=transform)
    first = [rows(made.sample()) for _ in range(30)]

    assert made._prefetch.uses_threads == (pause > 0)
    assert made_by[-1] == (pause == 0)
    assert len(made_by) - len(first) <= 2  # as many are ahead as with threads
    before, pause = pause, 0.04 - pause
    for _ in range(30):
        made.sample()
    assert made._prefetch.uses_threads == (before == 0)
    made._prefetch.close()


def test_an_error_without_threads_is_that_of_its_batch(buffer, monkeypatch):
    monkeypatch.setattr(prefetch_module, "_WORTH_A_THREAD", math.inf)
    failing = []

    def transform(data):
        if failing and failing.pop():
            raise RuntimeError("the transform failed")
        return data

    made = buffer(prefetch=2, transform=transform)
    while made._prefetch.uses_threads:
        made.sample()
    for _ in range(3):  # threads may still make the batches that are ahead
        made.sample()
    failing.append(True)  # of the third batch from here
    for _ in range(2):
        made.sample()
    with pytest.raises(RuntimeError, match="the transform failed"):
        made.sample()
    assert len(made.sample()) == 5


def test_changes_reach_the_next_batch(buffer):
    """Prefetched batches were drawn before the change, so they are discarded."""
    made = buffer(prefetch=2)
    made.sample()
    made.append_transform(lambda data: data.set("mark", torch.ones(data.batch_size)))
    assert made.sample()["mark"].tolist() == [1] * 5

    class Third(RandomSampler):
        def sample(self, storage, batch_size):
            assert len(storage) == 10
            return torch.full((batch_size,), 3), {}

    made.set_sampler(Third())
    assert rows(made.sample()) == [3] * 5


def test_a_batch_of_another_size_ignores_the_prefetched_batches(buffer):
    made = buffer(prefetch=2)

    assert len(made.sample()) == 5
    assert len(made.sample(3)) == 3
    assert len(made.sample(5)) == 5


def test_an_error_in_a_thread_is_raised_and_the_next_batch_is_correct(buffer):
    failing = [True]

    def transform(data):
        if failing:
            failing.clear()
            raise RuntimeError("the transform failed")
        return data

    made = buffer(prefetch=1, transform=transform)
    with pytest.raises(RuntimeError, match="the transform failed"):
        made.sample()
    assert len(made.sample()) == 5


def test_many_threads_may_sample_at_once(buffer):
    made = buffer(prefetch=2)
    seen = []

    def work():
        seen.extend(rows(made.sample()) for _ in range(50))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(seen) == 200


@pytest.mark.parametrize("prefetch", [None, 1, 3])
@pytest.mark.parametrize("size", [5, 4])
def test_iterating_ends_with_the_last_batch_of_an_epoch_for_any_prefetch(buffer, prefetch, size):
    made = buffer(sampler=SamplerWithoutReplacement(), prefetch=prefetch, batch_size=size)

    for _ in range(3):
        assert sorted(step for batch in made for step in rows(batch)) == list(range(10))


@pytest.mark.parametrize("prefetch", [None, 2])
@pytest.mark.parametrize(
    "copied", [lambda made: pickle.loads(pickle.dumps(made)), copy.deepcopy], ids=["pickle", "copy"]
)
def test_a_copy_of_a_buffer_samples_the_same_also_what_was_drawn_ahead(buffer, prefetch, copied):
    made = buffer(prefetch=prefetch, generator=torch.Generator().manual_seed(3))
    made.sample()
    again = copied(made)

    assert [rows(again.sample()) for _ in range(5)] == [rows(made.sample()) for _ in range(5)]


def sample_elsewhere(made, queue):
    queue.put(len(made.sample()))


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="processes cannot be forked here")
def test_a_forked_process_starts_its_own_threads(buffer):
    """DataLoader forks its workers on Linux; the parent's threads do not exist in a fork."""
    made = buffer(prefetch=2)
    made.sample()
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=sample_elsewhere, args=(made, queue))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        process.start()
    got = queue.get(timeout=100)
    process.join(5)
    process.kill()

    assert got == 5


def change_elsewhere(made, queue):
    made.set_sampler(RandomSampler())
    queue.put(len(made.sample()))


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="processes cannot be forked here")
def test_a_forked_process_discards_the_prefetched_batches_of_its_parent():
    """Otherwise it would count the parent's batches as read, and wait forever for the others."""
    context = multiprocessing.get_context("fork")
    leave = context.Event()
    made = ReplayBuffer(
        storage=TensorStorage(torch.arange(10)),
        batch_size=5,
        prefetch=2,
        transform=lambda data: (leave.wait(20), data)[1],
    )
    sampling = threading.Thread(target=made.sample)
    sampling.start()
    time.sleep(0.1)
    queue = context.SimpleQueue()
    process = context.Process(target=change_elsewhere, args=(made, queue))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        process.start()
    leave.set()
    sampling.join(20)
    made._prefetch.close()
    process.join(10)
    process.kill()
    process.join(10)

    assert process.exitcode == 0


def test_a_batch_may_be_written_to(buffer):
    made = buffer()
    torch.manual_seed(0)
    first = made.sample()
    kept = first.clone()
    first["observation"].fill_(0)
    first["next", "observation"].fill_(0)
    torch.manual_seed(0)

    assert (made.sample() == kept).all()


def test_memory_is_pinned_only_where_there_is_a_gpu(buffer):
    """A script that pins memory also runs without a GPU."""
    assert buffer(pin_memory=True).sample()["observation"].is_pinned() is torch.accelerator.is_available()


@pytest.mark.parametrize("prefetch", [None, 2])
def test_next_gives_an_epoch_then_none_and_then_another(buffer, prefetch):
    made = buffer(sampler=SamplerWithoutReplacement(), prefetch=prefetch)
    batches = [made.next() for _ in range(6)]

    assert [batch is None for batch in batches] == [False, False, True] * 2
    assert sorted(rows(batches[0]) + rows(batches[1])) == list(range(10))


def test_next_of_a_sampler_with_replacement_never_returns_none(buffer):
    torch.manual_seed(0)
    made = buffer(sampler=RandomSampler())

    assert rows(made.next()) == PRINTED[0]
    assert all(made.next() is not None for _ in range(20))


def test_a_failed_iteration_starts_again():
    made = ReplayBuffer(batch_size=2)
    for _ in range(2):
        with pytest.raises(InvalidArgumentError):
            made.next()
    made.extend(torch.arange(4))

    assert made.next().shape == (2,)


def test_a_copy_starts_its_own_iteration(buffer):
    made = buffer(sampler=SamplerWithoutReplacement(shuffle=False))
    made.next()
    copy = pickle.loads(pickle.dumps(made))

    assert rows(copy.next()) == rows(made.next()) == [5, 6, 7, 8, 9]


def test_the_transforms_are_one_compose(buffer):
    made = buffer()
    assert list(made.transform) == []
    assert made.transform(made.sample()) is not None

    made.append_transform(one := Compose())
    assert made.transform is one
    made.append_transform(other := DoubleToFloat(in_keys=["observation"]))
    assert (len(one), list(made.transform)) == (0, [one, other])


@pytest.mark.parametrize("prefetch", [None, 2])
def test_a_transform_appended_to_the_compose_is_applied_to_later_batches(buffer, prefetch):
    made = buffer(prefetch=prefetch)
    made.sample()
    made.transform.append(lambda batch: batch.set("mine", batch["index"] + 1))
    batch = made.sample()

    assert torch.equal(batch["mine"], batch["index"] + 1)
    assert len(made.transforms) == 1
    with pytest.raises(InvalidArgumentError, match="index is 3"):
        made.transform.insert(3, print)
    with pytest.raises(InvalidArgumentError, match="callable"):
        made.transform.append(3)


def test_a_buffer_is_saved_in_the_folder_that_contains_its_files(tmp_path):
    rb = ReplayBuffer(storage=LazyMemmapStorage(100, scratch_dir=tmp_path / "storage"), batch_size=4)
    rb.extend(torch.arange(10))
    rb.dumps(tmp_path)
    rb.extend(torch.arange(10, 20))
    rb.dumps(tmp_path)
    restored = ReplayBuffer(storage=LazyMemmapStorage(100), batch_size=4)
    restored.loads(tmp_path)

    assert restored[:].tolist() == rb[:].tolist() == list(range(20))


def test_a_buffer_is_not_saved_among_files_of_others_beside_its_own(tmp_path):
    rb = ReplayBuffer(storage=LazyMemmapStorage(100, scratch_dir=tmp_path / "storage"), batch_size=4)
    (tmp_path / "thesis.tex").write_text("x")

    with pytest.raises(InvalidArgumentError, match=r"not a checkpoint: thesis\.tex"):
        rb.dumps(tmp_path)

"""Threads, processes and data loaders use one buffer concurrently; no record is torn or lost."""

from __future__ import annotations

import copy
import pickle
import threading
import time
from functools import partial

import pytest
import torch
from tensordict import TensorDict
from torch import multiprocessing as mp
from torch.utils.data import DataLoader

from datasets_rl import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    PrioritizedSampler,
    PrioritizedSliceSampler,
    ReplayBuffer,
    SampledBatches,
    SamplerWithoutReplacement,
    TensorDictMaxValueWriter,
    TensorDictReplayBuffer,
)
from datasets_rl.errors import InvalidArgumentError

WIDTH = 64
COMPRESSED = {"compress": ("image", ("next", "image"))}
RINGS = [
    LazyTensorStorage,
    LazyMemmapStorage,
    partial(LazyTensorStorage, **COMPRESSED),
    partial(LazyMemmapStorage, **COMPRESSED),
]


def ring_name(storage):
    return storage.func.__name__ + " compressed" if isinstance(storage, partial) else storage.__name__


def records(writer, first, count):
    """Return steps in which every byte depends on the writer and the number of the step."""
    stamp = (writer * 1_000_000_000 + torch.arange(first, first + count)).double()
    image, after = (
        shifted.unsqueeze(-1).expand(-1, WIDTH).contiguous().view(torch.uint8) for shifted in (stamp, stamp + 1)
    )
    return TensorDict(
        {
            "stamp": stamp,
            "wide": stamp.unsqueeze(-1).expand(-1, WIDTH).clone(),
            "image": image,
            "next": {"copy": stamp.clone(), "image": after},
        },
        [count],
    )


def assert_whole(batch):
    stamp = batch["stamp"]
    assert (batch["wide"] == stamp.unsqueeze(-1)).all()
    assert (batch["next", "copy"] == stamp).all()
    assert (batch["image"].contiguous().view(torch.float64) == stamp.unsqueeze(-1)).all()
    assert (batch["next", "image"].contiguous().view(torch.float64) == stamp.unsqueeze(-1) + 1).all()


def write_for(buffer, writer, seconds, chunk):
    """Extend the buffer without pauses; return the number of written records."""
    end, written = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        buffer.extend(records(writer, written, chunk))
        written += chunk
    return written


def run_threads(buffer, seconds, writers, readers):
    faults, written, seen = [], [0] * writers, []

    def write(number):
        try:
            written[number] = write_for(buffer, number, seconds, 7 + number)
        except BaseException as error:  # noqa: BLE001 - raised again by the test
            faults.append(error)

    def read():
        end = time.monotonic() + seconds
        try:
            while time.monotonic() < end:
                assert_whole(buffer.sample())
                seen.append(1)
        except BaseException as error:  # noqa: BLE001 - raised again by the test
            faults.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(writers)]
    threads += [threading.Thread(target=read) for _ in range(readers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
    assert seen
    return written


def assert_nothing_is_lost(buffer, written):
    """Check that the buffer counts every record, and holds the latest records of each writer without a gap."""
    assert buffer.write_count == sum(written)
    held = buffer[:]
    assert_whole(held)
    stamps = held["stamp"].long()
    for writer, count in enumerate(written):
        mine = (stamps[stamps // 1_000_000_000 == writer] % 1_000_000_000).sort().values
        if count:
            assert mine.tolist() == list(range(count - len(mine), count))
    assert len(stamps) == min(sum(written), buffer.storage.max_size)


@pytest.mark.first(1, of="storage")
@pytest.mark.parametrize("prefetch", [None, 2])
@pytest.mark.parametrize("storage", RINGS, ids=ring_name)
def test_threads_that_write_and_sample_never_tear_a_record(storage, prefetch):
    buffer = TensorDictReplayBuffer(storage=storage(500), batch_size=128, prefetch=prefetch)
    buffer.add(records(9, 0, 1)[0])
    written = run_threads(buffer, 0.25, writers=2, readers=2)
    if prefetch:
        buffer._prefetch.close()

    assert buffer.write_count == sum(written) + 1
    assert_whole(buffer[:])


@pytest.mark.slow
def test_eight_threads_for_a_minute():
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(20_000), batch_size=256)
    buffer.extend(records(8, 0, 300))
    written = run_threads(buffer, 60, writers=4, readers=4)

    assert buffer.write_count == sum(written) + 300
    assert_whole(buffer[:])


def write_process(buffer, writer, seconds, queue):
    queue.put((writer, write_for(buffer, writer, seconds, 7 + writer)))


def read_process(buffer, seconds, queue):
    end, batches = time.monotonic() + seconds, 0
    while time.monotonic() < end or not batches:
        if len(buffer):
            assert_whole(buffer.sample(128))
            batches += 1
    queue.put((-1, batches))


def run_processes(buffer, method, seconds, writers, readers):
    context = mp.get_context(method)
    queue = context.Queue()
    processes = [
        context.Process(target=write_process, args=(buffer, number, seconds, queue)) for number in range(writers)
    ]
    processes += [context.Process(target=read_process, args=(buffer, seconds, queue)) for _ in range(readers)]
    for process in processes:
        process.start()
    results = [queue.get(timeout=seconds + 100) for _ in processes]
    for process in processes:
        process.join(30)
    assert [process.exitcode for process in processes] == [0] * len(processes)
    written = [0] * writers
    for writer, count in results:
        if writer >= 0:
            written[writer] = count
        else:
            assert count
    return written


def shared(storage, size):
    buffer = TensorDictReplayBuffer(storage=storage(size))
    buffer.extend(records(0, 0, 1))
    buffer.empty()
    return buffer if buffer.storage.shared else buffer.share()


@pytest.mark.usefixtures("warm_python")
@pytest.mark.parametrize(
    ("storage", "method"),
    [
        (LazyMemmapStorage, "fork"),
        pytest.param(LazyTensorStorage, "fork", marks=pytest.mark.slow),
        (LazyTensorStorage, "spawn"),
        pytest.param(RINGS[2], "spawn", marks=pytest.mark.slow),
        pytest.param(RINGS[3], "fork", marks=pytest.mark.slow),
    ],
    ids=lambda value: value if isinstance(value, str) else ring_name(value),
)
def test_processes_write_and_read_one_buffer(storage, method):
    buffer = shared(storage, 400)
    # A spawned process needs seconds to import torch.
    written = run_processes(buffer, method, 0.3, writers=2 if method == "fork" else 1, readers=1)

    assert_nothing_is_lost(buffer, written)


@pytest.mark.slow
@pytest.mark.parametrize(("storage", "seconds"), [(LazyMemmapStorage, 60), (LazyTensorStorage, 20)])
def test_four_processes_for_a_minute(storage, seconds):
    buffer = shared(storage, 20_000)
    written = run_processes(buffer, "fork", seconds, writers=2, readers=2)

    assert_nothing_is_lost(buffer, written)


def test_a_storage_that_cannot_be_shared_is_an_error():
    with pytest.raises(InvalidArgumentError, match="cannot be shared"):
        ReplayBuffer(storage=ListStorage(3)).share()


def test_a_prefetched_batch_has_the_values_at_its_choice():
    """The writer waits for batches that were chosen earlier, so no batch has a newer record than at its choice."""
    slow = threading.Event()

    class Slow(LazyTensorStorage):
        def take(self, rows):
            slow.wait(5)
            return super().take(rows)

    buffer = TensorDictReplayBuffer(storage=Slow(100), batch_size=32, prefetch=1)
    buffer.extend(records(0, 0, 100))
    sampling = threading.Thread(target=lambda: got.append(buffer.sample()))
    got: list = []
    sampling.start()
    time.sleep(0.1)
    writing = threading.Thread(target=buffer.extend, args=(records(1, 0, 100),))
    writing.start()
    time.sleep(0.05)
    assert writing.is_alive()
    slow.set()
    sampling.join(10)
    writing.join(10)
    buffer._prefetch.close()

    assert (got[0]["stamp"] < 1_000_000_000).all()


@pytest.fixture(scope="module")
def buffer():
    buffer = TensorDictReplayBuffer(storage=LazyMemmapStorage(40), batch_size=8)
    buffer.extend(records(0, 0, 40))
    return buffer


class TestLoader:
    @pytest.mark.parametrize("workers", [0, 2])
    def test_a_loader_reads_the_steps_in_order(self, buffer, workers):
        batches = list(
            DataLoader(buffer, batch_size=16, num_workers=workers, multiprocessing_context="fork" if workers else None)
        )

        assert [len(batch["stamp"]) for batch in batches] == [16, 16, 8]
        assert torch.cat([batch["stamp"] for batch in batches]).tolist() == list(range(40))
        for batch in batches:
            assert_whole(batch)

    def test_a_loader_shuffles_them(self, buffer):
        stamps = torch.cat([batch["stamp"] for batch in DataLoader(buffer, batch_size=16, shuffle=True)]).tolist()

        assert stamps != list(range(40))
        assert sorted(stamps) == list(range(40))

    @pytest.mark.parametrize(
        "data", [torch.arange(10.0), {"a": torch.arange(10.0), "b": (torch.zeros(10, 2),)}], ids=["tensor", "pytree"]
    )
    def test_a_loader_reads_other_data_too(self, data):
        buffer = ReplayBuffer(storage=LazyTensorStorage(10))
        buffer.extend(data)
        first = next(iter(DataLoader(buffer, batch_size=4)))

        assert (first if isinstance(first, torch.Tensor) else first["a"]).tolist() == [0, 1, 2, 3]

    @pytest.mark.parametrize("workers", [0, 1, 2])
    def test_workers_share_an_epoch_of_the_sampler(self, workers):
        buffer = TensorDictReplayBuffer(
            storage=LazyMemmapStorage(40), sampler=SamplerWithoutReplacement(), batch_size=8
        )
        buffer.extend(records(0, 0, 40))
        loader = SampledBatches(buffer).loader(
            num_workers=workers,
            multiprocessing_context="fork" if workers else None,
            persistent_workers=bool(workers),
        )
        epochs = [[batch["stamp"].tolist() for batch in loader] for _ in range(2)]

        for epoch in epochs:
            assert sorted(stamp for batch in epoch for stamp in batch) == list(range(40))
            assert [len(batch) for batch in epoch] == [8] * 5
        assert epochs[0] != epochs[1]

    def test_workers_of_an_endless_sampler_do_not_repeat_each_other(self, buffer):
        loader = SampledBatches(buffer, batches=12).loader(num_workers=2, multiprocessing_context="fork")
        batches = [tuple(batch["stamp"].tolist()) for batch in loader]

        assert len(set(batches)) == len(batches) == 12

    def test_a_seed_reproduces_what_the_workers_read(self, buffer):
        runs = []
        for _ in range(2):
            torch.manual_seed(3)
            loader = SampledBatches(buffer, batches=4).loader(num_workers=2, multiprocessing_context="fork")
            runs.append([batch["stamp"].tolist() for batch in loader])

        assert runs[0] == runs[1]

    def test_a_batch_size_is_needed(self):
        with pytest.raises(InvalidArgumentError, match="no batch size"):
            SampledBatches(ReplayBuffer())


def _nothing(_buffer):
    """Do nothing; the target of another process."""


class TestSpawnNeverCopiesSilently:
    """Each process would write to its own copy of the component; TorchRL also raises an error."""

    @pytest.mark.parametrize(
        ("parts", "named"),
        [
            ({"storage": lambda: ListStorage(20)}, "ListStorage"),
            ({"writer": TensorDictMaxValueWriter}, "TensorDictMaxValueWriter"),
            ({"sampler": lambda: PrioritizedSampler(20, 0.7, 0.9)}, "PrioritizedSampler"),
            ({"sampler": lambda: PrioritizedSliceSampler(20, 0.7, 0.9, slice_len=2)}, "PrioritizedSliceSampler"),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_components_that_cannot_be_shared_are_refused(self, parts, named):
        made = {name: make() for name, make in parts.items()}
        rb = TensorDictReplayBuffer(**{"storage": LazyMemmapStorage(20), **made}, batch_size=4)
        process = mp.get_context("spawn").Process(target=_nothing, args=(rb,))

        with pytest.raises(InvalidArgumentError, match=f"a {named} cannot be shared between processes") as raised:
            process.start()
        assert raised.value.hint

    def test_copies_within_a_process_are_allowed(self):
        rb = ReplayBuffer(storage=ListStorage(5), sampler=PrioritizedSampler(5, 0.7, 0.9), batch_size=4)
        rb.extend([1, 2, 3])

        assert pickle.loads(pickle.dumps(rb))[:].tolist() == [1, 2, 3]
        assert copy.deepcopy(rb)[:].tolist() == [1, 2, 3]


def test_a_checkpointer_is_refused_and_not_ignored():
    storage = LazyTensorStorage(4)

    with pytest.raises(InvalidArgumentError, match="checkpointer is object, expected None"):
        storage.checkpointer = object()
    storage.checkpointer = None
    assert storage.checkpointer is None

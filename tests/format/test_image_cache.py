"""Decoded images stay in a bounded number of bytes, and batches are the same with every cache."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest
import torch
from raw.images import encoded, scene
from stored_data import Trajectory, columns, write_dataset

from datasets_rl import TensorDictReplayBuffer
from datasets_rl.buffers import batches as batches_module
from datasets_rl.errors import IntegrityError
from datasets_rl.format.images import cache as cache_module
from datasets_rl.format.images import encoded as images_module
from datasets_rl.format.images.cache import ImageCache
from datasets_rl.format.images.encoded import EncodedImageColumn
from datasets_rl.format.schema import Column
from datasets_rl.read import threads
from datasets_rl.storages import DatasetStorage
from datasets_rl.ted.episode import EncodedImages

SHAPE = (16, 24, 3)
SIZE = 16 * 24 * 3
CAMERA = ("observation", "camera")
STEPS = (9, 1, 14)
COLUMNS = [
    Column(CAMERA, np.dtype(np.uint8), SHAPE, shared=True, form="encoded"),
    *[one for one in columns() if one.key != ("observation",)],
]


def episode(number, steps):
    """Return an episode of different images; those of the second episode are JPEG."""
    kind = "JPEG" if number == 1 else "PNG"
    last = (np.arange(steps) == steps - 1)[:, None]
    return Trajectory(
        {
            ("action",): np.zeros((steps, 2), np.float32),
            ("next", "reward"): np.zeros((steps, 1), np.float32),
            ("next", "terminated"): last,
            ("next", "truncated"): np.zeros_like(last),
        },
        {CAMERA: EncodedImages([encoded(scene(*SHAPE, seed=100 * number + t), kind) for t in range(steps + 1)])},
    )


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    episodes = [episode(number, steps) for number, steps in enumerate(STEPS)]
    return write_dataset(tmp_path_factory.mktemp("cache"), episodes, COLUMNS)


def caches(storage):
    return [cache for _, items in storage._wide.values() if (cache := items._cache) is not None]


@pytest.fixture
def decoded_counts(monkeypatch):
    """The number of images of each call of the decoder."""
    counts = []
    decode = images_module.decode

    def counted(images, *arguments, **options):
        counts.append(len(images))
        decode(images, *arguments, **options)

    monkeypatch.setattr(images_module, "decode", counted)
    return counts


@pytest.fixture
def cores(monkeypatch):
    """Set the number of cores that the decoder finds: ``cores(3)``."""
    monkeypatch.setattr(threads, "_pool", None)
    yield lambda count: monkeypatch.setattr(threads, "core_count", lambda: count)
    if threads._pool is not None:
        threads._pool.shutdown()


def test_a_batch_decodes_repeated_rows_once_without_a_cache(stored, decoded_counts):
    storage = DatasetStorage(stored, image_cache=0)
    storage.pick(CAMERA, torch.tensor([3, 1, 3, 3, 1]))
    assert decoded_counts == [2]


def test_runs_of_batches_read_a_bounded_number_of_images_at_once(stored, decoded_counts, monkeypatch):
    monkeypatch.setattr(batches_module, "_MAX_BYTES", 7 * 2 * 4 * SIZE // 2)
    buffer = TensorDictReplayBuffer(storage=DatasetStorage(stored, image_cache=0), batch_size=4)
    assert [len(batch) for batch in buffer.batches(10)] == [4] * 10
    assert 8 < max(decoded_counts) <= 3 * 8


def test_an_image_stays_from_its_second_read_until_another_one_of_its_slot_is_read_twice():
    cache = ImageCache(3, 2)
    images = np.arange(10, dtype=np.uint8).repeat(2).reshape(10, 2)

    def add(*rows):
        cache.add(np.array(rows), images, np.array(rows))

    def found(*rows):
        out = np.full((len(rows), 2), 255, np.uint8)
        missing = cache.find(np.array(rows), out, np.arange(len(rows)))
        return [None if absent else image.tolist() for absent, image in zip(missing, out, strict=True)]

    add(0, 1, 2)
    assert found(0, 1, 2) == [None, None, None]
    add(0, 1, 2)
    assert found(2, 0, 1, 3) == [[2, 2], [0, 0], [1, 1], None]
    add(3, 4, 7)  # the slots of 0, of 1, and of 1
    assert found(0, 1, 2, 3) == [[0, 0], [1, 1], [2, 2], None]
    add(3, 4, 7)
    assert found(0, 1, 2, 3, 4, 7) == [None, [1, 1], [2, 2], [3, 3], None, None]
    add(7)
    assert found(1, 4, 7) == [None, None, [7, 7]]
    assert cache.max_bytes == 6


def test_an_image_that_was_not_copied_whole_is_not_found(monkeypatch):
    cache = ImageCache(3, 2)

    def interrupted(*_):
        raise KeyboardInterrupt

    image = np.ones((1, 2), np.uint8), np.array([0])
    cache.add(np.array([1]), *image)
    with monkeypatch.context() as patch:
        patch.setattr(cache_module, "run_on_all_cores", interrupted)
        with pytest.raises(KeyboardInterrupt):
            cache.add(np.array([1]), *image)

    assert cache.find(np.array([1]), *image).tolist() == [True]


def test_threads_share_a_cache(stored, cores):
    cores(3)
    storage = DatasetStorage(stored, image_cache=6 * SIZE)
    pixels = torch.from_numpy(stored.column(CAMERA))

    def read(seed):
        generator = torch.Generator().manual_seed(seed)
        for _ in range(20):
            rows = torch.randint(sum(STEPS), (9,), generator=generator)
            assert torch.equal(storage.get(rows)[CAMERA], pixels[rows])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(read, range(4)))


def column_of(shape, count):
    """Return a column of PNG images, and their pixels."""
    pixels = np.stack([scene(*shape, seed=seed) for seed in range(count)])
    files = [encoded(one) for one in pixels]
    ends = np.cumsum([len(file) for file in files], dtype=np.int64)
    return files, ends, pixels


def test_damaged_images_of_a_batch_in_threads_are_all_reported(cores, tmp_path):
    cores(3)
    files, ends, pixels = column_of((128, 128, 3), 12)
    data = np.frombuffer(b"".join(files), np.uint8).copy()
    for row in (2, 9):
        data[ends[row] - 40 : ends[row] - 20] ^= 0xFF
    column = EncodedImageColumn(data, ends, (128, 128, 3), tmp_path / "camera.npy")

    for cache in (None, column.new_cache(1)):
        with pytest.raises(IntegrityError, match="image 2 is a PNG") as caught:
            column.take(np.array([9, 3, 2, 5, 2, 1]), cache)
        assert sorted(problem.split(" is ")[0] for problem in caught.value.problems) == ["image 2", "image 9"]
        assert np.array_equal(column.take(np.array([8, 3, 8, 0]), cache), pixels[[8, 3, 8, 0]])


def test_work_covers_all_items_once_and_the_first_exception_stops_it(cores):
    cores(4)
    ranges = []
    threads.run_on_all_cores(lambda *bounds: ranges.append(bounds), 103, 10)
    assert min(ranges) == (0, 10)
    assert max(ranges) == (100, 103)
    assert all(one[1] == other[0] for one, other in pairwise(sorted(ranges)))

    def fail(start, stop):
        raise OSError(f"{start} to {stop}")

    with pytest.raises(OSError, match=r"\d to \d"):
        threads.run_on_all_cores(fail, 100, 1)
    threads.run_on_all_cores(fail, 0, 1)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows cannot fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_decodes_with_threads_of_its_own(stored, cores):
    cores(3)
    storage = DatasetStorage(stored)
    files, ends, pixels = column_of((256, 256, 1), 4)
    column = EncodedImageColumn(np.frombuffer(b"".join(files), np.uint8), ends, (256, 256, 1), stored.folder)
    column.take(np.arange(4))
    storage.get([0])
    with cache_module._lock:  # as if another thread used the cache during the fork
        child = os.fork()
        if not child:
            status = 1
            try:
                signal.alarm(20)
                right = np.array_equal(column.take(np.arange(4)), pixels)
                status = 0 if right and storage.get([0])[CAMERA].any() else 2
            finally:
                os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_the_environment_sets_the_size_of_the_cache(stored, monkeypatch):
    def cached(**options):
        return sum(cache.max_bytes for cache in caches(DatasetStorage(stored, **options))) // SIZE

    monkeypatch.setenv("RLDS_IMAGE_CACHE", "3")
    assert cached() == sum(STEPS)
    monkeypatch.setenv("RLDS_IMAGE_CACHE", "0")
    assert cached() == 0
    assert 0 < cached(image_cache=18 * SIZE) < 18

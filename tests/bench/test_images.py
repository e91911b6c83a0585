"""What batches of encoded images cost: against the bare decoder in as many threads, and where frames are repeated."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import simplejpeg
import torch
from raw.images import encoded, scene
from stored_data import Trajectory, columns, write_dataset

from datasets_rl import TensorDictReplayBuffer
from datasets_rl.format.schema import Column
from datasets_rl.read.threads import core_count
from datasets_rl.storages import DatasetStorage
from datasets_rl.ted.episode import EncodedImages
from datasets_rl.transforms import CatFrames

CAMERA = ("observation", "camera")
KEYS = [CAMERA, ("next", *CAMERA)]
COLUMNS = [one for one in columns() if one.key != ("observation",)]
BATCH = 64


@pytest.fixture(scope="module")
def shape(size):
    return (size(full=256, small=16),) * 2 + (3,)


@pytest.fixture(scope="module")
def files(shape, size):
    return [encoded(scene(*shape, seed=seed), "JPEG") for seed in range(size(full=1001, small=101))]


@pytest.fixture(scope="module")
def stored(files, shape, tmp_path_factory):
    """An episode of JPEG images."""
    steps = len(files) - 1
    last = (np.arange(steps) == steps - 1)[:, None]
    episode = Trajectory(
        {
            ("action",): np.zeros((steps, 2), np.float32),
            ("next", "reward"): np.zeros((steps, 1), np.float32),
            ("next", "terminated"): last,
            ("next", "truncated"): np.zeros_like(last),
        },
        {CAMERA: EncodedImages(files)},
    )
    camera = Column(CAMERA, np.dtype(np.uint8), shape, shared=True, form="encoded")
    return write_dataset(tmp_path_factory.mktemp("images"), [episode], [camera, *COLUMNS])


@pytest.fixture(scope="module")
def bare(files, shape):
    """A function that decodes images by their numbers with simplejpeg, a thread for each core."""
    pool = ThreadPoolExecutor(core_count())

    def decode(rows):
        out = np.empty((len(rows), *shape), np.uint8)
        list(pool.map(lambda at: simplejpeg.decode_jpeg(files[rows[at]], buffer=out[at]), range(len(rows))))
        return out

    yield decode
    pool.shutdown()


def test_images_are_decoded_at_the_rate_of_the_bare_decoder(stored, bare, compare, expect):
    rows = torch.randperm(len(stored))[:BATCH]
    storage = DatasetStorage(stored, image_cache=0)
    took = compare(
        {"ours": lambda: storage.pick(CAMERA, rows), "bare": lambda: bare(rows.tolist())},
        rounds=30,
        repeat=1,
    )

    expect("images a second, of the bare decoder's", took["bare"] / took["ours"], at_least=1)


def test_a_stack_with_next_costs_about_as_much_as_its_distinct_frames(stored, bare, size, compare, expect):
    """Steps that are not near each other: five distinct frames each, of eight in the stacks."""
    frames = CatFrames(4, -4, in_keys=KEYS)
    generator = torch.Generator().manual_seed(0)

    def rows():
        return torch.randperm((len(stored) - 10) // 8, generator=generator)[: BATCH // 8] * 8 + 5

    # A new storage has an empty cache.
    buffers = [
        TensorDictReplayBuffer(storage=DatasetStorage(stored), transform=frames) for _ in range(size(full=31, small=2))
    ]

    def stacks():
        return buffers.pop().sample(rows=rows())

    took = compare(
        {
            "stacks": stacks,
            "distinct": lambda: bare((rows()[:, None] + torch.arange(-3, 2)).reshape(-1).tolist()),
        },
        rounds=30,
        repeat=1,
    )

    # Measured 0.94 to 1.47: with the records, the copies and the cache of a whole batch beside bare calls of the decoder.
    expect("a stack of 4 with next, in times its distinct frames", took["stacks"] / took["distinct"], at_most=1.5)


def test_images_in_the_cache_are_several_times_faster(stored, bare, compare, expect):
    rows = torch.arange(BATCH)
    storage = DatasetStorage(stored)
    storage.pick(CAMERA, rows)  # an image stays from its second read on
    took = compare(
        {"cached": lambda: storage.pick(CAMERA, rows), "bare": lambda: bare(rows.tolist())}, rounds=20, repeat=1
    )

    expect("cached images, times the bare decoder's speed", took["bare"] / took["cached"], at_least=2)

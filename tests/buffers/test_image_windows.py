"""Windows of images are the same for every form in which images are stored, and read each image of a batch once."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from raw.images import encoded, scene
from stored_data import Trajectory, columns, plain, write_dataset
from torch.utils.data import DataLoader

from datasets_rl import TensorDictReplayBuffer
from datasets_rl.errors import NotEnoughMemoryError
from datasets_rl.format.images.columns import ImageColumn
from datasets_rl.format.schema import Column
from datasets_rl.read.compressed_frames import FrameDictionary
from datasets_rl.samplers import SliceSampler
from datasets_rl.storages import DatasetStorage, device
from datasets_rl.storages.device import DeviceStorage
from datasets_rl.storages.view import View
from datasets_rl.ted.episode import EncodedImages
from datasets_rl.transforms import (
    ActionChunkTransform,
    CatFrames,
    ClipTransform,
    Compose,
    MultiStepTransform,
    RenameTransform,
    RewardClipping,
    RewardScaling,
    WindowTransform,
)

PIXELS, NEXT_PIXELS = ("pixels",), ("next", "pixels")
SHAPE = (48, 40, 3)
EPISODES = ((30, True), (1, True), (2, False), (40, True))
"""Number of steps of each episode, and whether its final image is known."""
RAW = [Column(PIXELS, np.dtype(np.uint8), SHAPE, shared=True)]
RAW += [one for one in columns() if one.key != ("observation",)]
FORMS = ("compressed", "encoded")


def episode(number, steps, known, form):
    last = (np.arange(steps) == steps - 1)[:, None]
    images = [scene(*SHAPE, seed=100 * number + t) for t in range(steps + known)]
    return Trajectory(
        {
            ("action",): np.arange(2 * steps, dtype=np.float32).reshape(steps, 2),
            ("next", "reward"): np.arange(steps, dtype=np.float32)[:, None],
            ("next", "terminated"): last,
            ("next", "truncated"): np.zeros_like(last),
        },
        {PIXELS: EncodedImages([encoded(one) for one in images]) if form == "encoded" else np.stack(images)},
    )


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """The same dataset in each form."""
    datasets = {}
    for form in ("raw", *FORMS):
        episodes = [episode(number, *one, form) for number, one in enumerate(EPISODES)]
        schema = [replace(RAW[0], form=form), *RAW[1:]]
        dictionaries = {PIXELS: FrameDictionary()} if form == "compressed" else None
        datasets[form] = write_dataset(tmp_path_factory.mktemp(form), episodes, schema, dictionaries)
    return datasets


def stacks(n=4, **options):
    return CatFrames(n, -4, in_keys=[PIXELS, NEXT_PIXELS], out_keys=["stack", ("next", "stack")], **options)


def darkened(batch):
    return batch.set("pixels", batch["pixels"] // 2)


WINDOWS = {
    "stack": stacks,
    "stack with zeros before an episode": lambda: stacks(padding="zeros"),
    "stack in place": lambda: CatFrames(3, -1, in_keys=[PIXELS, NEXT_PIXELS]),
    "stack of now": lambda: CatFrames(3, -1, in_keys=["pixels"]),
    "stack of next": lambda: CatFrames(3, -1, in_keys=[NEXT_PIXELS]),
    "stack of the future": lambda: CatFrames(3, -1, in_keys=[PIXELS, NEXT_PIXELS], future=True),
    "n-step": lambda: MultiStepTransform(3, 0.9),
    "stack, then n-step": lambda: Compose(stacks(), MultiStepTransform(3, 0.9)),
    "n-step, then stack of now": lambda: Compose(MultiStepTransform(3, 0.9), CatFrames(3, -1, in_keys=["pixels"])),
    "clipped rewards, then stack": lambda: Compose(RewardClipping(0, 3), stacks()),
    "clipped rewards, then windows": lambda: Compose(
        RewardClipping(0, 3), WindowTransform({PIXELS: (2, 1), NEXT_PIXELS: (2, 1), "action": (0, 3)})
    ),
    "scaled actions, then windows": lambda: Compose(
        RewardScaling(1, 2, in_keys=["action"]), WindowTransform({PIXELS: (2, 1), "action": (0, 3)})
    ),
    "clipped images, then stack": lambda: Compose(ClipTransform([PIXELS], low=9, high=50), stacks()),
    "renamed images, then stack": lambda: Compose(
        RenameTransform([PIXELS, NEXT_PIXELS], ["image", ("next", "image")]),
        CatFrames(4, -4, in_keys=["image", ("next", "image")]),
    ),
    "images under another key, then stack": lambda: Compose(
        RenameTransform([PIXELS], ["image"], create_copy=True), stacks()
    ),
    "a function, then stack": lambda: Compose(darkened, stacks()),
    "chunks": lambda: ActionChunkTransform(4),
    "windows elsewhere": lambda: WindowTransform({PIXELS: (2, 1), "action": (0, 3)}, "zero", out_keys=["a", "b"]),
    "windows": lambda: WindowTransform({PIXELS: (2, 1), NEXT_PIXELS: (2, 1), "action": (0, 3)}),
    "windows of next": lambda: WindowTransform({NEXT_PIXELS: (1, 0)}, out_keys=["after"]),
    "seconds": lambda: WindowTransform.delta_timestamps(
        {PIXELS: [0.1, -0.3, 0], NEXT_PIXELS: [0], "action": [-0.2, 2]}, fps=10
    ),
    "seconds of now": lambda: WindowTransform.delta_timestamps({PIXELS: [-0.2, -0.1]}, fps=10),
    "seconds of the future": lambda: WindowTransform.delta_timestamps({"pixels": [0.1, 0.2]}, fps=10),
}


@pytest.mark.first(2, of=("windows", "form"))
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("windows", list(WINDOWS))
@pytest.mark.parametrize("cache", [0, None, 10 * 48 * 40 * 3])
def test_windows_are_those_of_raw_pixels(stored, form, windows, cache):
    rows = torch.tensor([0, 1, 2, 3, 28, 29, 30, 31, 32, 33, 34, 60, 71, 72, 0, 29])

    def read(storage):
        return plain(TensorDictReplayBuffer(storage=storage, transform=WINDOWS[windows]()).sample(rows=rows))

    got, expected = read(DatasetStorage(stored[form], image_cache=cache)), read(DatasetStorage(stored["raw"]))
    assert got.keys() == expected.keys()
    for key, values in expected.items():
        assert np.array_equal(got[key], values), key


@pytest.mark.parametrize(
    "windows", [name for name in WINDOWS if ", then " in name and not name.startswith(("n-step", "stack"))]
)
def test_earlier_transforms_change_what_windows_show_only_if_they_change_the_images(stored, windows):
    """Against one transform after the other, each of which is applied to all steps."""
    storage = DatasetStorage(stored["compressed"])
    first, last = list(WINDOWS[windows]())
    batch = TensorDictReplayBuffer(storage=storage, transform=WINDOWS[windows]()).sample(
        rows=torch.arange(len(storage))
    )
    for start, stop in zip(storage.episodes.starts, storage.episodes.stops, strict=True):
        expected = last(first(storage.get(torch.arange(start, stop))))
        assert set(batch.exclude("index").keys(True, True)) == set(expected.keys(True, True))
        for key, values in expected.items(True, True):
            assert torch.equal(batch[start:stop][key], values), key


@pytest.mark.parametrize("form", ["raw", *FORMS])
def test_stacks_are_those_of_single_reads(stored, form):
    """Against the stacks that the transform makes along the time axis of whole episodes."""
    storage = DatasetStorage(stored[form])
    batch = TensorDictReplayBuffer(storage=storage, transform=stacks()).sample(rows=torch.arange(len(storage)))
    for start, stop in zip(storage.episodes.starts, storage.episodes.stops, strict=True):
        expected = stacks()(storage.get(torch.arange(start, stop)))
        for key in ("stack", ("next", "stack"), "pixels", NEXT_PIXELS):
            assert torch.equal(batch[start:stop][key], expected[key]), key


@pytest.mark.parametrize("view", ["rows", "fields", "device"])
def test_stacks_of_views(stored, view):
    rows = np.array([3, 4, 5, 6, 20, 21, 29, 32, 40, 41])

    def steps(form):
        storage = DatasetStorage(stored[form])
        if view == "device":
            return DeviceStorage(View(storage, rows), "cpu") if form == "compressed" else View(storage, rows)
        return View(storage, rows if view == "rows" else None, {**dict.fromkeys(storage.keys()), PIXELS: torch.float32})

    def read(form):
        buffer = TensorDictReplayBuffer(storage=steps(form), transform=stacks())
        return plain(buffer.sample(rows=torch.tensor([0, 1, 4, 9, 6, 7])))

    got, expected = read("compressed"), read("raw")
    assert got.keys() == expected.keys()
    for key, values in expected.items():
        assert np.array_equal(got[key], values), key


def test_stacks_of_compressed_images_on_a_device_depend_on_no_value(stored):
    """On ``meta`` there are no values: whatever waited for one would fail."""
    storage = DeviceStorage(DatasetStorage(stored["compressed"]), "meta")
    batch = TensorDictReplayBuffer(storage=storage, transform=stacks(padding="zeros"), batch_size=6).sample()
    assert batch["next", "stack"].shape == (6, 4, *SHAPE)


def test_compressed_images_that_do_not_fit_on_a_device_are_named(stored, monkeypatch):
    monkeypatch.setattr(device, "memory_bytes", lambda: 400_000)
    message = r"the fields take 44\d,\d+ bytes on cpu after pixels, stored compressed, is decompressed, expected at most 400,000"
    with pytest.raises(NotEnoughMemoryError, match=message):
        DeviceStorage(DatasetStorage(stored["compressed"]), "cpu")


@pytest.mark.parametrize("form", FORMS)
def test_slices_are_those_of_raw_pixels(stored, form):
    def read(storage):
        sampler = SliceSampler(slice_len=5, generator=torch.Generator().manual_seed(0))
        return plain(TensorDictReplayBuffer(storage=storage, sampler=sampler).sample(20))

    got, expected = read(DatasetStorage(stored[form])), read(DatasetStorage(stored["raw"]))
    for key, values in expected.items():
        assert np.array_equal(got[key], values), key


@pytest.fixture
def reads(monkeypatch):
    """The rows of each read of images."""
    read = []
    take = ImageColumn.take

    def noted(column, rows, cache=None):
        read.append(rows)
        return take(column, rows, cache)

    monkeypatch.setattr(ImageColumn, "take", noted)
    return read


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("windows", "distinct"),
    [
        ("stack", 5),
        ("stack in place", 4),
        ("stack of now", 3),
        ("stack of next", 3),
        ("clipped rewards, then stack", 5),
        ("clipped rewards, then windows", 5),
        ("windows", 5),
        ("windows elsewhere", 4),
        ("windows of next", 2),
        ("seconds", 3),
        ("seconds of the future", 2),
    ],
)
@pytest.mark.parametrize("way", ["sample", "index", "loader"])
def test_a_window_of_a_field_and_its_next_values_is_one_read(stored, form, windows, distinct, way, reads):
    buffer = TensorDictReplayBuffer(storage=DatasetStorage(stored[form]), transform=WINDOWS[windows]())
    reads.clear()
    if way == "sample":
        buffer.sample(rows=torch.tensor([10, 20, 50]))
    elif way == "index":
        assert buffer[[10, 20, -23]].shape == (3,)
    else:
        next(iter(DataLoader(buffer, sampler=[10, 20, 50], batch_size=3, collate_fn=lambda batch: batch)))

    if "stack of" in windows:  # the batch's other image, which has no stack
        reads.remove(next(one for one in reads if len(one) == 3))
    assert [len(np.unique(one)) for one in reads] == [3 * distinct]


def test_the_caller_owns_every_stack(stored):
    buffer = TensorDictReplayBuffer(storage=DatasetStorage(stored["compressed"]), transform=stacks())
    rows = torch.tensor([10, 10, 11])
    batch, expected = buffer.sample(rows=rows), buffer.sample(rows=rows)
    batch["stack"].zero_()
    batch["pixels"].zero_()
    assert torch.equal(batch["next", "stack"], expected["next", "stack"])
    assert torch.equal(batch[NEXT_PIXELS], expected[NEXT_PIXELS])


@pytest.mark.parametrize("form", ["raw", *FORMS])
def test_windows_of_images_without_those_under_next_are_one_read_of_the_same_values(stored, form, reads):
    def read(keys):
        storage = DatasetStorage(stored[form])
        shown = View(storage, None, dict.fromkeys(keys or storage.keys()))
        buffer = TensorDictReplayBuffer(storage=shown, transform=WINDOWS["seconds of now"]())
        reads.clear()
        return buffer.sample(rows=torch.tensor([0, 1, 10, 30, 33]))

    expected = read(None)["pixels"]
    assert torch.equal(read([PIXELS, ("action",), ("episode",)])["pixels"], expected)
    assert len(reads) == (form != "raw")


def test_any_index_has_the_windows_of_its_rows(stored):
    buffer = TensorDictReplayBuffer(storage=DatasetStorage(stored["encoded"]), transform=WINDOWS["seconds"]())
    expected = buffer.sample(rows=torch.arange(73))
    mask = torch.arange(73) % 5 == 0
    for index in (3, -1, slice(4, 40, 3), [5, 5, 0], torch.tensor([[0, 1], [72, 30]]), mask, slice(0, 0)):
        assert torch.equal(buffer[index]["pixels"], expected["pixels"][index])
        assert buffer[index].shape == expected[index].shape


@pytest.mark.first(3)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("form", FORMS)
def test_a_loader_without_batches_gives_each_step_in_turn(stored, form, workers):
    buffers = {name: TensorDictReplayBuffer(storage=DatasetStorage(stored[name])) for name in ("raw", form)}
    context = "fork" if workers else None
    # Without a function, torch iterates over the TensorDict as if it were a dict, whichever storage it is from.
    options = {"num_workers": workers, "multiprocessing_context": context, "collate_fn": lambda step: step}
    loader = DataLoader(buffers[form], batch_size=None, **options)

    steps = [plain(step) for step in loader]
    expected = [plain(buffers["raw"][row]) for row in range(len(buffers["raw"]))]
    assert len(steps) == sum(count for count, _ in EPISODES)
    for step, other in zip(steps, expected, strict=True):
        assert step.keys() == other.keys()
        assert all(np.array_equal(step[key], other[key]) for key in other)

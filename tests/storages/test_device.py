"""Datasets in the memory of a device: on the CPU, on ``meta``, where nothing can wait for a value, and on a GPU."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from raw.images import encoded, scene
from stored_data import Column, columns, trajectory, write_dataset

from datasets_rl import GoalSampler, SamplerWithoutReplacement, SliceSampler, load
from datasets_rl.errors import InvalidArgumentError, UnknownKeyError
from datasets_rl.storages.device import DeviceStorage
from datasets_rl.ted.episode import EncodedImages
from datasets_rl.transforms import ActionChunkTransform, CatFrames, MultiStepTransform

LENGTHS = (4, 1, 5, 2)
IMAGE = Column(("image",), np.dtype(np.uint8), (64, 65), shared=True)
DEPTH = Column(("depth",), np.dtype(np.float32), (40, 40))
DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]
    ),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A dataset with wide fields, one of them shared, and with an unknown final observation."""
    folder, rng = tmp_path_factory.mktemp("toy"), np.random.default_rng(0)
    episodes = [trajectory(steps, seed=steps, known=steps != 5, terminated=steps == 2) for steps in LENGTHS]
    for one in episodes:
        one.states["image",] = rng.integers(1, 255, (len(one.states["observation",]), 64, 65), np.uint8)
        one.steps["depth",] = rng.random((len(one), 40, 40), np.float32)
    write_dataset(folder, episodes, [*columns(), IMAGE, DEPTH])
    return folder


@pytest.mark.parametrize("device", DEVICES)
def test_batches_are_those_of_the_files(folder, device):
    files, moved = load(folder), load(folder).to(device)
    rows = torch.tensor([11, 0, 3, 9, 9, 4, 10])

    batch = moved.sample(rows=rows)
    assert batch.device.type == device
    assert batch["index"].device.type == device
    assert (batch.cpu() == files.sample(rows=rows)).all()
    assert (moved[2:5].cpu() == files[2:5]).all()
    assert torch.equal(moved["next", "image"].cpu(), files["next", "image"])
    some = moved.sample(rows=rows, keys=["depth", "next.observation"])
    assert (some.cpu() == files.sample(rows=rows, keys=["depth", "next.observation"])).all()


@pytest.mark.parametrize("device", DEVICES)
def test_samplers_and_windows_give_the_same_as_from_the_files(folder, device):
    def opened():
        sampler = SliceSampler(slice_len=2, generator=torch.Generator().manual_seed(0))
        transform = [CatFrames(2, -1, ["observation"]), MultiStepTransform(2, 0.9)]
        return load(folder, 8, sampler=sampler, transform=transform)

    files, moved = opened(), opened().to(device)
    for _ in range(3):
        ours, theirs = moved.sample(), files.sample()
        assert (ours.cpu() == theirs).all()


def test_a_batch_depends_on_no_value(folder):
    """On ``meta`` there are no values: whatever waited for one, or took a shape from one, would fail."""
    dataset = load(folder, 6).to("meta")

    for batch in (dataset.sample(), *dataset.batches(3), dataset.sample(keys=["next.image", "action"])):
        assert {leaf.device.type for leaf in batch.values(True, True)} == {"meta"}
        assert batch["next", "image"].shape == (6, 64, 65)


@pytest.mark.parametrize("device", [*DEVICES, "meta"])
@pytest.mark.parametrize("keys", [None, ["action"], ["next.observation", "next.reward"], ["episode", "next.reward"]])
def test_floating_point_numbers_start_at_16_bytes(folder, device, keys):
    dataset = load(folder, 6).to(device)

    for batch in (dataset.sample(keys=keys), dataset[torch.arange(5)]):
        for leaf in batch.values(True, True):
            assert not leaf.is_floating_point() or leaf.storage_offset() * leaf.itemsize % 16 == 0
            assert not leaf.is_floating_point() or leaf.is_meta or leaf.data_ptr() % 16 == 0


COMPILED = {
    "steps": {},
    "epoch": {"sampler": partial(SamplerWithoutReplacement, drop_last=True)},
    "slices": {"sampler": partial(SliceSampler, slice_len=2)},
    "goals": {"sampler": GoalSampler},
    "chunks": {"transform": partial(ActionChunkTransform, 3)},
    "stacks": {"transform": partial(CatFrames, 2, -1, ["observation"])},
    "n steps": {"transform": partial(MultiStepTransform, 2, 0.9)},
    "rewards": {"transform": lambda: lambda batch: batch.set("twice", batch["next", "reward"] * 2)},
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("device", [None, *DEVICES])
@pytest.mark.parametrize("kind", [*COMPILED])
@pytest.mark.first(1, of="device")
def test_a_compiled_function_samples_from_a_dataset(folder, device, kind):
    """Without a graph break, and the same batches as without compilation, from the files and on a device."""
    torch._dynamo.reset()

    def opened():
        return load(folder, 6, **{name: make() for name, make in COMPILED[kind].items()}).to(device)

    compiled, dataset = torch.compile(opened().sample, fullgraph=True, backend="eager"), opened()
    torch.manual_seed(0)
    batches = [compiled() for _ in range(3)]
    torch.manual_seed(0)
    for batch in batches:
        expected = dataset.sample()
        assert batch.device == expected.device
        assert set(batch.keys(True, True)) == set(expected.keys(True, True))
        assert (batch.exclude("slice_id") == expected.exclude("slice_id")).all()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("device", DEVICES)
def test_a_compiled_update_reads_what_was_drawn(folder, device):
    torch._dynamo.reset()
    dataset = load(folder, 6).to(device)

    def update():
        batch = dataset.sample()
        return batch["index"], batch["next", "observation"] - batch["observation"]

    index, difference = torch.compile(update, fullgraph=True)()
    expected = load(folder).sample(rows=index.cpu())
    assert torch.equal(difference.cpu(), expected["next", "observation"] - expected["observation"])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_sampling_is_captured_in_a_cuda_graph(folder):
    dataset = load(folder, 6).to("cuda")
    with torch.cuda.stream(torch.cuda.Stream()):
        dataset.sample()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        batch = dataset.sample()
    drawn = []
    for _ in range(20):
        graph.replay()
        drawn.append(batch["index"].tolist())
        assert (batch.cpu() == load(folder).sample(rows=batch["index"].cpu())).all()

    assert len(set(map(tuple, drawn))) > 1


def test_chosen_fields_alone_are_copied(folder):
    dataset = load(folder, 6).select(["action", "next.observation"]).to("cpu")
    bare = load(folder, 6).select(["action"]).to("cpu")

    assert dataset.storage._record_bytes == 2 * 16  # 3 floats, then 2 floats and the mask
    assert bare.storage._record_bytes == 16
    wide = load(folder, 6).select(["depth"]).to("cpu")
    assert torch.equal(wide.sample(rows=[4, 11])["depth"], load(folder)[[4, 11]]["depth"])
    assert torch.equal(bare.sample(rows=[4])["action"], load(folder)[[4]]["action"])
    with pytest.raises(UnknownKeyError, match="depth"):
        dataset["depth"]


def test_a_dataset_returns_to_its_files(folder):
    dataset = load(folder, 6, collate_fn=lambda data: data.set("mark", data["episode"])).to("cpu")
    assert isinstance(dataset.storage, DeviceStorage)
    assert "mark" in dataset.sample().keys()  # noqa: SIM118 - a TensorDict iterates over its steps

    assert not isinstance(dataset.to(None).storage, DeviceStorage)
    assert dataset.to("cpu").as_dict("d4rl")["rewards"].shape == (12,)


def test_a_generator_of_another_device_is_named(folder):
    dataset = load(folder, 6, generator=torch.Generator()).to("meta")
    with pytest.raises(InvalidArgumentError, match="the generator is on cpu, expected a generator on meta"):
        dataset.sample()


def test_what_cannot_be_moved_is_refused_and_nothing_changes(tmp_path, folder):
    camera = Column(("camera",), np.dtype(np.uint8), (16, 24, 3), shared=True, form="encoded")
    one = trajectory(2)
    one.states["camera",] = EncodedImages([encoded(scene(16, 24, 3, seed=step)) for step in range(3)])
    write_dataset(tmp_path, [one], [*columns(), camera])
    dataset = load(tmp_path, 2)
    with pytest.raises(InvalidArgumentError, match="camera is stored as PNG or JPEG, which cannot be kept") as caught:
        dataset.to("cpu")
    assert "'action'" in str(caught.value.hint)
    assert "camera" in dataset.sample().keys()  # noqa: SIM118 - a TensorDict iterates over its steps
    assert dataset.select(["action", "observation"]).to("cpu").sample().batch_size == (2,)
    assert "fields: observation, action, on cpu" in repr(dataset)
    with pytest.raises(InvalidArgumentError, match="device is 'gpu', which torch cannot use here"):
        dataset.to("gpu")
    with pytest.raises(InvalidArgumentError, match="whole episodes"):
        load(folder, split_trajs=True).to("cpu")

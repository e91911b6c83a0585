"""Storages of compressed images: what they hold, and how many bytes that takes."""

from __future__ import annotations

import copy
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import ClassVar

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tensordict import NonTensorStack, TensorDict

from datasets_rl import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ReplayBufferEnsemble,
    SliceSampler,
    TensorDictMaxValueWriter,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
    TensorStorage,
)
from datasets_rl.errors import DiskFullError, InvalidArgumentError
from datasets_rl.format import checkpoint
from datasets_rl.storages import compressed, frame_ring
from datasets_rl.transforms import CatFrames, Compose, MultiStepTransform, WindowTransform

KEYS = ("pixels", ("next", "pixels"))
SIDE = 64


@cache
def image(number):
    """Return an image that depends on a number: a block that moves over a background."""
    row, column = divmod(number % 3136, 56)
    pixels = (torch.arange(SIDE * SIDE) // 97 % 256).to(torch.uint8).view(SIDE, SIDE).clone()
    pixels[row : row + 8, column : column + 8] = number % 251
    return pixels


@cache
def noise_image(number):
    """Return an image that cannot be compressed."""
    generator = torch.Generator().manual_seed(number)
    return torch.randint(0, 256, (SIDE, SIDE), generator=generator, dtype=torch.uint8)


def steps(numbers, *, noise=False):
    """Return steps of these numbers, whose next observation is the observation of the number after.

    Args:
        numbers: The numbers.
        noise: Whether the images cannot be compressed, for all or for each number.
    """
    numbers = list(numbers)
    kinds = [noise_image if one else image for one in (noise if isinstance(noise, list) else [noise] * len(numbers))]
    number = torch.tensor(numbers)
    following = {
        "pixels": torch.stack([kind(one + 1) for kind, one in zip(kinds, numbers, strict=True)]),
        "done": (number % 7 == 6).unsqueeze(-1),
        "reward": number.float().unsqueeze(-1),
    }
    pixels = torch.stack([kind(one) for kind, one in zip(kinds, numbers, strict=True)])
    return TensorDict({"pixels": pixels, "number": number, "next": TensorDict(following, number.shape)}, number.shape)


@pytest.fixture
def small_ring(monkeypatch):
    """Train the dictionary early, and make segments small, so that a short test uses all of them again."""
    monkeypatch.setattr(compressed, "_TRAINING_FRAMES", 40)
    monkeypatch.setattr(compressed, "_WRITTEN_FRAMES", 16)
    monkeypatch.setattr(frame_ring, "_SEGMENT_BYTES", 4096)
    monkeypatch.setattr(frame_ring, "_FRAMES_PER_SEGMENT", 2)
    monkeypatch.setattr(frame_ring, "_SPARE_SEGMENTS", 1)


def check_counts(storage):
    """Check that the live bytes of every segment are those of the references of all steps."""
    for group in storage._frames._groups:
        before = group.ring._live.copy()
        assert not group.ring.writing
        group.recount()
        assert (group.ring._live == before).all()
        assert before.min() >= 0


class Machine(RuleBasedStateMachine):
    """Any writes to a compressed storage, in and out of ring order, compared with a list."""

    @initialize(slots=st.integers(1, 30), kind=st.sampled_from([LazyTensorStorage, LazyMemmapStorage]))
    def start(self, slots, kind):
        self.kind, self.slots, self.count = kind, slots, 0
        self.storage = self.made()
        self.model: list[int] = []

    def made(self):
        return self.kind(self.slots, compress=KEYS)

    def fresh(self, count):
        self.count += count
        return range(self.count - count, self.count)

    @rule(count=st.integers(1, 40), gap=st.sampled_from([0, 0, 0, 5]), noise=st.booleans())
    def extend(self, count, gap, noise):
        self.count += gap
        numbers = self.fresh(count)
        first = self.storage.write_count
        self.storage.set((torch.arange(count) + first) % self.slots, steps(numbers, noise=noise))
        for place, number in enumerate(numbers, first):
            entry = (number, noise)
            if place % self.slots == len(self.model):
                self.model.append(entry)
            else:
                self.model[place % self.slots] = entry

    @precondition(lambda self: self.model)
    @rule(data=st.data(), noise=st.booleans())
    def overwrite(self, data, noise):
        slots = data.draw(st.lists(st.integers(0, len(self.model) - 1), min_size=1, max_size=20))
        numbers = self.fresh(len(slots))
        self.storage.overwrite(torch.tensor(slots), steps(numbers, noise=noise))
        for slot, number in zip(slots, numbers, strict=True):
            self.model[slot] = (number, noise)

    @rule()
    def empty(self):
        self.storage.empty()
        self.model = []

    @rule()
    def copy_by_pickle(self):
        if self.kind is LazyTensorStorage:
            self.storage = pickle.loads(pickle.dumps(self.storage))
        else:
            self.storage = copy.deepcopy(self.storage)
            self.kind = type(self.storage)

    @rule(raw=st.booleans())
    def load(self, raw):
        state = self.storage.state_dict()
        if raw and self.model:
            other = LazyTensorStorage(self.slots)
            other.load_state_dict(state)
            state = other.state_dict()
        again = self.made()
        again.load_state_dict(state)
        self.storage = again

    @invariant()
    def the_storage_is_its_model(self):
        if not hasattr(self, "storage"):
            return
        assert len(self.storage) == len(self.model)
        if self.model:
            numbers, noise = map(list, zip(*self.model, strict=True))
            assert (self.storage.get(slice(None)) == steps(numbers, noise=noise)).all()
            check_counts(self.storage)


Machine.TestCase.settings = settings(max_examples=12, stateful_step_count=40, deadline=None)


@pytest.mark.usefixtures("small_ring")
class TestAnySequenceOfWrites(Machine.TestCase):
    pass


KINDS = [LazyTensorStorage, LazyMemmapStorage]


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
def kind(request):
    return request.param


def filled(storage, count, *, noise=False):
    """Return a storage with so many steps, written 50 at a time."""
    for first in range(0, count, 50):
        numbers = range(first, min(first + 50, count))
        storage.set(torch.tensor(numbers) % storage.slot_count, steps(numbers, noise=noise))
    return storage


def same(left, right):
    return type(left) is type(right) and bool((left == right).all())


WINDOWS = {
    "stack": lambda: CatFrames(4, -3, in_keys=[*KEYS], out_keys=["stack", ("next", "stack")], check_layout=False),
    "stack in place": lambda: CatFrames(3, -3, in_keys=[*KEYS], padding="zeros", check_layout=False),
    "stack of next": lambda: CatFrames(3, -3, in_keys=[KEYS[1]], check_layout=False),
    "n-step": lambda: MultiStepTransform(3, 0.9),
    "stack, then n-step": lambda: Compose(
        CatFrames(4, -3, in_keys=[*KEYS], check_layout=False), MultiStepTransform(3, 0.9)
    ),
    "windows": lambda: WindowTransform({"pixels": (2, 1), KEYS[1]: (2, 1), "number": (0, 3)}),
}


@pytest.mark.usefixtures("small_ring")
class TestReading:
    """Whatever reads a raw storage reads the same from a compressed one."""

    @pytest.fixture
    def both(self, kind):
        return filled(kind(60), 90), filled(kind(60, compress=KEYS), 90)

    def test_objects_are_read_beside_them(self):
        storage = LazyTensorStorage(60, compress=KEYS)
        data = steps(range(50))
        data["next", "text"] = NonTensorStack(*map(str, range(50)))
        storage.set(range(50), data)
        rows = torch.tensor([40, 3])

        assert storage.take_next(rows)["text"] == ["40", "3"]
        assert storage.take_fields(rows, [("next", "text"), ("pixels",)])["next", "text"] == ["40", "3"]
        assert same(storage.take(rows)["next", "pixels"], data[rows]["next", "pixels"])

    def test_slices_are_equal(self, both):
        def batches(storage):
            torch.manual_seed(0)
            sampler = SliceSampler(slice_len=3, strict_length=False)
            buffer = TensorDictReplayBuffer(storage=storage, sampler=sampler, batch_size=12)
            return [buffer.sample() for _ in range(4)]

        for one, other in zip(*map(batches, both), strict=True):
            assert same(other, one)

    @pytest.mark.parametrize("windows", WINDOWS)
    def test_windows_are_equal(self, both, windows):
        batches = [
            TensorDictReplayBuffer(storage=storage, transform=WINDOWS[windows]()).sample(rows=torch.arange(60))
            for storage in both
        ]

        assert same(batches[1], batches[0])

    @pytest.mark.parametrize(
        ("transform", "distinct"), [(None, 30), (lambda: CatFrames(4, -3, in_keys=[*KEYS], check_layout=False), 31)]
    )
    def test_a_batch_decompresses_each_frame_once(self, transform, distinct, monkeypatch):
        small = filled(LazyTensorStorage(60, compress=KEYS), 90)
        small.overwrite(slice(None), small.get(slice(None)).set(("next", "done"), torch.zeros(60, 1, dtype=torch.bool)))
        buffer = TensorDictReplayBuffer(storage=small, transform=transform and transform())
        decompressed = []
        original = frame_ring.read_frames

        def counting(data, dictionary, references, out):
            decompressed.append(len(set(references.tolist())))
            original(data, dictionary, references, out)

        monkeypatch.setattr(frame_ring, "read_frames", counting)
        buffer.sample(rows=torch.arange(31, 60) % 60)

        assert decompressed == [distinct]

    @pytest.mark.parametrize("kind_of_read", ["rows", "list", "slice", "ensemble"])
    def test_stacks_at_an_index_and_those_of_an_ensemble_decompress_each_frame_once(self, kind_of_read, monkeypatch):
        small = filled(LazyTensorStorage(60, compress=KEYS), 50)
        small.set(slice(None), small.get(slice(None)).set(("next", "done"), torch.zeros(50, 1, dtype=torch.bool)))
        buffer = TensorDictReplayBuffer(
            storage=small, transform=CatFrames(4, -3, in_keys=[*KEYS], check_layout=False), batch_size=20
        )
        rows = torch.arange(11, 31)
        expected = buffer.sample(rows=rows).exclude("index")
        decompressed = []
        original = frame_ring.read_frames

        def counting(data, dictionary, references, out):
            decompressed.append(len(set(references.tolist())))
            original(data, dictionary, references, out)

        monkeypatch.setattr(frame_ring, "read_frames", counting)
        if kind_of_read == "ensemble":
            ensemble = ReplayBufferEnsemble(buffer, batch_size=20)
            ensemble.sample()
            decompressed.clear()
            ensemble.sample()
            assert len(decompressed) == 1
        else:
            index = {"rows": rows, "list": rows.tolist(), "slice": slice(11, 31)}[kind_of_read]
            assert same(buffer[index], expected)
            assert decompressed == [24]

    def test_stacks_at_one_integer_are_those_of_its_row(self):
        small = filled(LazyTensorStorage(60, compress=KEYS), 50)
        buffer = TensorDictReplayBuffer(storage=small, transform=CatFrames(4, -3, in_keys=[*KEYS], check_layout=False))

        assert same(buffer[-1], buffer.sample(rows=torch.tensor([49])).exclude("index")[0])

    @pytest.mark.slow
    @pytest.mark.filterwarnings("ignore")
    def test_a_compiled_function_samples_it(self):
        torch._dynamo.reset()
        small = filled(LazyTensorStorage(60, compress=KEYS), 60)
        buffer = TensorDictReplayBuffer(storage=small, batch_size=8)
        batch = torch.compile(buffer.sample, fullgraph=True, backend="eager")()

        assert same(batch["pixels"], torch.stack([image(number) for number in batch["number"].tolist()]))


@pytest.mark.usefixtures("small_ring")
class TestBytes:
    def test_the_frame_after_a_step_is_that_of_the_following_step(self, kind):
        """Within one write, and from one write to the next."""
        storage = filled(kind(200, compress=KEYS), 150)
        references = [column[:150] for column in storage._frames._groups[0].columns.values()]
        at, after = sorted(references, key=lambda column: column[0] == references[0][0], reverse=True)
        late = slice(60, 150)  # the frames before were written without a dictionary, and then moved

        assert (at[late][1:] == after[late][:-1]).all() or (after[late][1:] == at[late][:-1]).all()

    def test_parallel_environments_share_them_too(self):
        storage = LazyTensorStorage(200, ndim=2, compress=KEYS)
        for first in range(0, 40, 8):
            data = torch.stack([steps(range(first + 500 * env, first + 500 * env + 8)) for env in range(3)], 1)
            storage.set(range(first, first + 8), data)
        columns = {number: column.reshape(-1, 3) for number, column in storage._frames._groups[0].columns.items()}
        ((at, after),) = storage._frames._groups[0]._next_of.items()

        assert (columns[at][21:40] == columns[after][20:39]).all()
        assert same(storage.get((slice(None), 1))["number"], torch.arange(500, 540))

    def test_the_ring_uses_its_segments_again(self, kind):
        storage = filled(kind(100, compress=KEYS), 300)
        before = storage.compressed_bytes
        filled(storage, 3000)

        assert storage.compressed_bytes <= before + 2 * 8192
        assert same(storage.get(slice(None)), steps(range(2900, 3000)))
        check_counts(storage)

    def test_frames_that_cannot_be_compressed_take_their_own_bytes(self, kind):
        storage = filled(kind(100, compress=KEYS), 400, noise=True)

        assert same(storage.get(slice(None)), steps(range(300, 400), noise=True))
        assert storage.compressed_bytes < 1.2 * 200 * SIDE * SIDE

    @pytest.mark.parametrize("count", [20, 90])
    @pytest.mark.parametrize("noise", [False, True])
    def test_writes_in_any_order_take_at_most_a_few_times_the_bytes(self, kind, noise, count, monkeypatch):
        monkeypatch.setattr(compressed, "_WRITTEN_FRAMES", 16 if count == 20 else 4096)
        storage = filled(kind(100, compress=KEYS), 100, noise=noise)
        expected = list(range(100))
        for first in range(100, 900, count):
            slots, numbers = torch.randperm(100)[:count], range(first, first + count)
            storage.overwrite(slots, steps(numbers, noise=noise))
            for slot, number in zip(slots.tolist(), numbers, strict=True):
                expected[slot] = number

        assert same(storage.get(slice(None)), steps(expected, noise=noise))
        live = sum(int(group.ring._live.sum()) for group in storage._frames._groups)
        assert storage.compressed_bytes < 380_000 + 4 * live
        check_counts(storage)

    def test_a_writer_by_rank_keeps_the_highest(self):
        buffer = TensorDictReplayBuffer(
            storage=LazyTensorStorage(20, compress=KEYS), writer=TensorDictMaxValueWriter(), batch_size=4
        )
        order = torch.randperm(200).tolist()
        for first in range(0, 200, 10):
            buffer.extend(steps(order[first : first + 10]))

        held = buffer[:]
        assert sorted(held["number"].tolist()) == list(range(180, 200))
        assert same(held["pixels"], torch.stack([image(number) for number in held["number"].tolist()]))

    def test_a_failed_write_leaves_the_other_steps(self, monkeypatch):
        storage = filled(LazyTensorStorage(100, compress=KEYS), 100)
        monkeypatch.setattr(TensorStorage, "_store", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            storage.set(range(10), steps(range(10)))
        monkeypatch.undo()
        monkeypatch.setattr(compressed, "_WRITTEN_FRAMES", 16)
        filled(storage, 150)

        assert same(storage.get(slice(50)), steps(range(100, 150)))
        check_counts(storage)


def stamped(first, count):
    """Return steps that follow each other, of which each has a number that tells its images."""
    return steps(range(first, first + count))


@pytest.mark.usefixtures("small_ring")
@pytest.mark.parametrize("kind", [LazyTensorStorage, LazyMemmapStorage])
def test_priorities_of_steps_in_a_ring_that_is_written_again_belong_to_the_steps_that_are_there(kind):
    buffer = TensorDictPrioritizedReplayBuffer(
        alpha=1.0, beta=1.0, eps=0.0, storage=kind(60, compress=KEYS), batch_size=32
    )
    for first in range(0, 300, 20):
        buffer.extend(stamped(first, 20))
    numbers = buffer.storage.get(slice(None))["number"]
    assert sorted(numbers.tolist()) == list(range(240, 300))
    buffer.update_priority(torch.arange(60), (numbers % 10 == 3).float() + 1e-9)

    batch = buffer.sample(500)
    assert set((batch["number"] % 10).tolist()) == {3}
    assert same(batch.select("pixels", "number", "next"), steps(batch["number"].tolist()))
    batch["td_error"] = (batch["number"] == 273).float() + 1e-9
    buffer.update_tensordict_priority(batch)
    assert buffer.sample(100)["number"].unique().tolist() == [273]
    check_counts(buffer.storage)


@pytest.mark.usefixtures("small_ring")
@pytest.mark.parametrize("kind", [LazyTensorStorage, LazyMemmapStorage])
def test_two_threads_that_write_while_a_third_one_samples_lose_no_frame_and_mix_none(kind):
    buffer = TensorDictReplayBuffer(storage=kind(200, compress=KEYS), batch_size=16)
    buffer.extend(stamped(0, 20))
    written = [[stamped(first, 10) for first in range(start, start + 300, 10)] for start in (1000, 2000)]
    start = threading.Barrier(3)
    done = threading.Event()

    def write(chunks):
        start.wait()
        for chunk in chunks:
            buffer.extend(chunk)

    def sample():
        start.wait()
        count = 0
        while not done.is_set() or not count:
            batch = buffer.sample()
            assert same(batch.select("pixels", "number", "next"), steps(batch["number"].tolist()))
            count += 1
        return count

    with ThreadPoolExecutor(3) as pool:
        sampled = pool.submit(sample)
        writers = [pool.submit(write, chunks) for chunks in written]
        for one in writers:
            one.result()
        done.set()
        assert sampled.result() >= 1

    numbers = buffer.storage.get(slice(None))["number"].tolist()
    assert same(buffer.storage.get(slice(None)), steps(numbers))
    chunks = [numbers[at : at + 10] for at in range(0, 200, 10)]
    assert all(chunk == list(range(chunk[0], chunk[0] + 10)) for chunk in chunks)
    for offset in (1000, 2000):  # the chunks of each thread are in its order, in slots that are written in turn
        firsts = [chunk[0] for chunk in chunks if offset <= chunk[0] < offset + 300]
        turn = firsts.index(min(firsts)) if firsts else 0
        assert firsts[turn:] + firsts[:turn] == sorted(firsts)
        assert all(first % 10 == 0 for first in firsts)
    check_counts(buffer.storage)


@pytest.mark.usefixtures("small_ring")
class TestSaving:
    MAKERS: ClassVar = {
        "raw": partial(LazyTensorStorage, 100),
        "compressed": partial(LazyTensorStorage, 100, compress=KEYS),
        "files": partial(LazyMemmapStorage, 100, compress=KEYS),
        "one key": partial(LazyTensorStorage, 100, compress="pixels"),
        "tensors": lambda: TensorStorage(steps(range(1000, 1100))),
    }

    @pytest.mark.first(5)
    @pytest.mark.parametrize("target", MAKERS)
    @pytest.mark.parametrize("source", MAKERS)
    def test_any_storage_loads_the_state_of_any_other(self, source, target, tmp_path):
        storage = filled(self.MAKERS[source](), 130)
        checkpoint.write_state(tmp_path, "Storage", storage.state_dict())
        for again in (self.MAKERS[target](), filled(self.MAKERS[target](), 20)):
            again.load_state_dict(checkpoint.read_state(tmp_path, deep=True))

            assert same(again.get(slice(None)), storage.get(slice(None)))
            again.set(30, steps([7])[0])
            assert same(again.get(30), steps([7])[0])

    def test_a_checkpoint_has_about_the_bytes_of_the_frames(self, tmp_path):
        storage = filled(LazyTensorStorage(100, compress=KEYS), 130)
        checkpoint.write_state(tmp_path, "Storage", storage.state_dict())
        torch.save(storage.state_dict(), tmp_path / "state.pt")

        assert sum(path.stat().st_size for path in tmp_path.glob("*.npy")) < storage.compressed_bytes
        assert (tmp_path / "state.pt").stat().st_size < storage.compressed_bytes + 100_000

    def test_a_later_checkpoint_writes_the_new_segments_only(self, tmp_path, monkeypatch):
        monkeypatch.setattr(frame_ring, "_PIECE_BYTES", 1 << 14)
        storage = filled(LazyTensorStorage(400, compress=KEYS), 100, noise=True)
        checkpoint.write_state(tmp_path, "Storage", storage.state_dict())
        before = {path.name for path in tmp_path.glob("*.npy")}
        storage.set(range(100, 110), steps(range(100, 110), noise=True))
        checkpoint.write_state(tmp_path, "Storage", storage.state_dict())

        assert len({path.name for path in tmp_path.glob("*.npy")} - before) < len(before) / 4

    def test_a_state_whose_frames_are_missing_or_elsewhere_is_refused_and_nothing_changes(self):
        state = filled(LazyTensorStorage(100, compress=KEYS), 130).state_dict()
        first = state["frames"][0]
        damages = [
            {"frames": []},
            {"frames": [1]},
            {"frames": [{**first, "pieces": []}]},
            {"frames": [{**first, "pieces": [first["pieces"][0].float()]}]},
            {"frames": [{**first, "dictionary": 3}]},
            {"frames": [{**first, "dictionary": torch.full((100,), 255, dtype=torch.uint8)}]},
            {"frames": [{**first, "dictionary": torch.zeros(24 + (1 << 20), dtype=torch.uint8)}]},
            {"frames": [{**first, "dictionary": torch.tensor([1, 0, 0, 0, 0, 0, 0, 0] * 3 + [0] * 16).byte()}]},
        ]
        for damage in damages:
            other = filled(LazyTensorStorage(100, compress=KEYS), 5)
            with pytest.raises(InvalidArgumentError, match="does not fit"):
                other.load_state_dict({**state, **damage})
            assert same(other.get(slice(None)), steps(range(5)))

    def test_a_later_process_continues_with_the_files(self, tmp_path):
        filled(LazyMemmapStorage(100, scratch_dir=tmp_path, compress=KEYS), 130)
        again = LazyMemmapStorage(100, scratch_dir=tmp_path, existsok=True)
        again.set(range(30, 40), steps(range(130, 140)))

        assert same(again.get(slice(0, 40)), steps(range(100, 140)))
        with pytest.raises(InvalidArgumentError, match="compress is"):
            LazyMemmapStorage(100, scratch_dir=tmp_path, existsok=True, compress="pixels")
        assert again.cleanup()
        assert not tmp_path.exists()

    @pytest.mark.parametrize("size", [None, 0, 100])
    def test_missing_or_shorter_files_are_refused(self, tmp_path, size):
        filled(LazyMemmapStorage(100, scratch_dir=tmp_path, compress=KEYS), 30)
        file = tmp_path / "frames.0.bin"
        file.unlink()
        if size is not None:
            file.write_bytes(bytes(size))
        with pytest.raises(InvalidArgumentError, match=r"frames\.0\.bin is missing or damaged"):
            LazyMemmapStorage(100, scratch_dir=tmp_path, existsok=True)

    def test_save_hooks_see_the_images(self):
        storage = filled(LazyTensorStorage(30, compress=KEYS), 30)
        storage.register_save_hook(lambda data: data.select("pixels", "number", "next"))
        again = LazyTensorStorage(30, compress=KEYS)
        again.register_load_hook(lambda data: data)
        again.load_state_dict(storage.state_dict())

        assert same(again.get(slice(None)), storage.get(slice(None)))

    def test_a_copy_is_independent(self, kind):
        storage = filled(kind(50, compress=KEYS), 50)
        copied = copy.deepcopy(storage)
        storage.set(range(10), steps(range(900, 910)))

        assert same(copied.get(slice(None)), steps(range(50)))


class TestErrors:
    def test_a_key_that_holds_no_bytes_is_named(self):
        storage = LazyTensorStorage(10, compress=("pixel", "number"))
        with pytest.raises(InvalidArgumentError, match="'pixel' is missing, expected uint8; 'number' is int64"):
            storage.set(range(3), steps(range(3)))
        assert not storage.initialized

    @pytest.mark.parametrize("compress", [None, True, 3])
    def test_what_is_no_collection_of_keys_is_refused(self, compress):
        with pytest.raises(InvalidArgumentError, match=f"compress is {compress}, expected keys of images"):
            LazyTensorStorage(10, compress=compress)

    def test_a_nested_key_that_is_not_in_a_tuple_is_shown_in_one(self):
        storage = LazyTensorStorage(10, compress=("next", "pixels"))
        with pytest.raises(InvalidArgumentError, match="'next' is missing") as raised:
            storage.set(range(3), steps(range(3)))
        assert '("next", "pixels"))' in str(raised.value)

    def test_fields_are_not_changed_in_place(self):
        buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(10, compress=KEYS), batch_size=2)
        buffer.extend(steps(range(10)))
        for key in ("pixels", ("next", "pixels"), "next"):
            with pytest.raises(InvalidArgumentError, match=r"compressed(.|\n)*rb\[index\] = steps"):
                buffer[key] = buffer[key]
        buffer["number"] = torch.arange(10, 20)
        buffer[3] = steps([77])[0]

        assert buffer["number"].tolist() == [10, 11, 12, 77, 14, 15, 16, 17, 18, 19]
        assert same(buffer[3]["pixels"], image(77))

    def test_another_device_than_main_memory_is_refused(self):
        storage = LazyTensorStorage(10, device="meta", compress=KEYS)
        with pytest.raises(InvalidArgumentError, match="main memory"):
            storage.set(range(3), steps(range(3)))

    def test_images_without_bytes_are_refused(self):
        storage = LazyTensorStorage(10, compress="image")
        with pytest.raises(InvalidArgumentError, match="'image' has 0 bytes"):
            storage.set(range(3), {"image": torch.zeros(3, 0, 4, dtype=torch.uint8)})

    @pytest.mark.usefixtures("small_ring")
    def test_a_full_disk_is_an_error_before_a_page_is_written(self, monkeypatch):
        storage = filled(LazyMemmapStorage(1000, compress=KEYS), 50)

        def full(*_, **__):
            raise DiskFullError("folder", needed=1, free=0, why="the frames")

        monkeypatch.setattr("datasets_rl.disk.require_free", full)
        with pytest.raises(DiskFullError):
            storage.set(range(50, 100), steps(range(50, 100), noise=True))
        monkeypatch.undo()

        assert same(storage.get(slice(None)), steps(range(50)))

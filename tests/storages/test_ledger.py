"""A process that is killed at any line of a write leaves all of the write or none; torn steps are never sampled."""

from __future__ import annotations

import os
import signal
import sys

import pytest
import torch
from tensordict import TensorDict

from datasets_rl import (
    LazyMemmapStorage,
    LazyTensorStorage,
    PrioritizedSampler,
    RandomSampler,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    TensorDictMaxValueWriter,
    TensorDictReplayBuffer,
)
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.samplers import PrioritizedSliceSampler
from datasets_rl.storages.ledger import Ledger

pytestmark = pytest.mark.skipif(os.name == "nt", reason="fork and SIGKILL")

SLOTS = 24
TRACED = {sys.modules[Ledger.__module__].__file__}
COPIES = {"_store", "_copy", "_scatter", "_clear"}


def steps(first, count, envs=None):
    """Return steps of episodes of six, numbered from 1; with lanes [lanes, count]."""
    number = torch.arange(first, first + count) + 1
    if envs is not None:
        number = number + 1000 * torch.arange(envs).unsqueeze(-1)
    done = (torch.arange(first, first + count) % 6 == 5).expand(number.shape).unsqueeze(-1)
    stamp = number.float()
    return TensorDict(
        {
            "stamp": stamp,
            "image": stamp.view(*stamp.shape, 1).expand(*stamp.shape, 2000).clone(),
            "next": {"done": done},
        },
        number.shape,
    )


def filled(storage="memmap", sampler=None, *, writer=None, folder=None):
    envs = 2 if storage == "lanes" else None
    made = {
        "memmap": lambda: LazyMemmapStorage(SLOTS, scratch_dir=folder),
        "tensor": lambda: LazyTensorStorage(SLOTS),
        "lanes": lambda: LazyMemmapStorage(2 * SLOTS, ndim=2),
    }[storage]()
    parts = {name: part for name, part in (("sampler", sampler), ("writer", writer)) if part is not None}
    buffer = TensorDictReplayBuffer(storage=made, batch_size=12, **parts)
    buffer.extend(steps(0, SLOTS, envs))
    return buffer if made.shared else buffer.share()


def killed(work, line=None):
    """Run `work` in a forked process that is killed at a line of the writing code; return whether it was killed."""
    child = os.fork()
    if not child:
        torch.set_num_threads(1)  # the threads of the parent do not exist in a fork
        code, left = 1, [line]

        def trace(frame, event, _):
            if frame.f_code.co_filename not in TRACED and frame.f_code.co_name not in COPIES:
                return None
            if event == "line":
                left[0] -= 1
                if not left[0]:
                    os.kill(os.getpid(), signal.SIGKILL)
            return trace

        try:
            if line is not None:
                sys.settrace(trace)
            work()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.waitstatus_to_exitcode(status) == 0
    return False


def die_while_copying(buffer, work):
    """Write in a process that exits after it has written the first of two tables."""
    storage = buffer.storage

    def half(write):
        places = [torch.arange(storage.slot_count)[where] for where in write.slots(storage.slot_count)]
        slots, leaf, column = torch.cat(places), write.leaves[0], storage._columns[0]
        column.index_copy_(0, slots, leaf.reshape(-1, *column.shape[1:])[-len(slots) :])
        os.kill(os.getpid(), signal.SIGKILL)

    def write():
        storage._store = half
        work()

    assert killed(write)


WRITES = {
    "extend": lambda buffer, envs: buffer.extend(steps(SLOTS, 7, envs)),
    "add": lambda buffer, envs: buffer.add(steps(SLOTS, 1, envs)[..., 0]),
    "wrap": lambda buffer, envs: buffer.extend(steps(SLOTS, SLOTS + 5, envs)),
    "replace": lambda buffer, envs: buffer.__setitem__(slice(6, 12), chronological_rows(steps(60, 6, envs), envs)),
    "scatter": lambda buffer, envs: buffer.__setitem__([3, 20, 7], chronological_rows(steps(90, 3, envs), envs)),
    "empty": lambda buffer, _: buffer.empty(),
}


def chronological_rows(data, envs):
    return data if envs is None else data.transpose(0, 1)


def content(buffer):
    held = buffer[:]
    image = held["image"]
    assert torch.equal(image.amin(-1), image.amax(-1))
    return held["stamp"].tolist(), image[..., 0].tolist(), buffer.write_count


@pytest.mark.parametrize(
    ("storage", "how"),
    [
        pytest.param(storage, how, marks=() if (storage, how) == ("memmap", "extend") else pytest.mark.slow)
        for storage in ("memmap", "lanes")
        for how in WRITES
    ],
)
@pytest.mark.parametrize("distance", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_a_write_killed_before_its_lines_is_complete_or_missing(storage, how, distance):
    envs = 2 if storage == "lanes" else None
    line, seen = 0, set()
    before = content(filled(storage))
    done = filled(storage)
    WRITES[how](done, envs)
    after = content(done)
    while True:
        line += distance
        buffer = filled(storage)
        if not killed(lambda buffer=buffer: WRITES[how](buffer, envs), line):
            break
        found = content(buffer)  # the next process to enter completes the write
        stamps, images, written = (torch.tensor(one) for one in found)
        torn = stamps == 0
        assert torch.equal(stamps, images.reshape(stamps.shape))
        assert int(torn.sum()) == buffer.torn_count
        if buffer.torn_count:
            assert torch.equal(torch.where(torn, 0, torch.tensor(before[0])), stamps)
            assert int(written) == before[2]
        else:
            assert found in (before, after)
        seen.add("torn" if buffer.torn_count else "before" if found == before else "after")
    assert content(buffer) == after
    assert seen == ({"before", "after"} if how == "empty" else {"before", "torn", "after"})


@pytest.mark.slow
@pytest.mark.parametrize("distance", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_a_recovery_killed_before_its_lines_is_completed_by_the_next_process(distance):
    line = 0
    while True:
        line += distance
        buffer = filled()
        die_while_copying(buffer, lambda buffer=buffer: buffer.extend(steps(SLOTS, 5)))
        if not killed(lambda buffer=buffer: buffer[0], line):
            break
        assert buffer[:]["stamp"].tolist() == [0] * 5 + list(range(6, SLOTS + 1))
        assert buffer.torn_count == 5
    assert line > 10


SAMPLERS = {
    "uniform": RandomSampler,
    "rank": lambda: RandomSampler(rank=1, world_size=2),
    "without": SamplerWithoutReplacement,
    "ordered": lambda: SamplerWithoutReplacement(shuffle=False, drop_last=True),
    "prioritized": lambda: PrioritizedSampler(2 * SLOTS, 0.7, 0.5),
    "slices": lambda: SliceSampler(slice_len=3),
    "slices without": lambda: SliceSamplerWithoutReplacement(slice_len=3),
    "prioritized slices": lambda: PrioritizedSliceSampler(2 * SLOTS, 0.7, 0.5, slice_len=3),
    "given ends": lambda: SliceSampler(slice_len=3, ends=(torch.arange(SLOTS) % 6 == 5)),
}


@pytest.mark.first(4)
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("how", ["extend", "replace"])
def test_no_sampler_draws_a_torn_step_and_every_other_step_is_drawn(sampler, how):
    buffer = filled(sampler=SAMPLERS[sampler]())
    buffer.sample()  # the sampler's state is from before the kill
    first, count = (0, 5) if how == "extend" else (8, 2)
    work = {
        "extend": lambda: buffer.extend(steps(SLOTS, 5)),
        "replace": lambda: buffer.__setitem__(slice(8, 10), steps(70, 2)),
    }[how]
    die_while_copying(buffer, work)
    batches = [buffer.sample() for _ in range(150)]
    drawn = {int(stamp) - 1 for batch in batches for stamp in batch["stamp"]}
    valid = set(range(SLOTS)) - set(range(first, first + count))
    if "slices" in sampler or sampler == "given ends":
        for batch in batches:
            same = batch["slice_id"][1:] == batch["slice_id"][:-1]
            assert (batch["stamp"].diff()[same] == 1).all()
        # Episodes that lost steps are too short: 5 of the first, and 8 and 9 of the second remain.
        valid -= {5} if how == "extend" else {6, 7, 10, 11}
    if sampler == "rank":
        valid = {row for row in valid if row % 2}

    assert buffer.torn_count == count
    assert drawn == valid


@pytest.mark.first(1)
@pytest.mark.parametrize("sampler", ["uniform", "without", "prioritized", "slices"])
def test_torn_steps_are_drawn_again_when_they_have_been_written_again(sampler):
    buffer = filled(sampler=SAMPLERS[sampler]())
    die_while_copying(buffer, lambda: buffer.extend(steps(SLOTS, 6)))
    buffer.sample()
    buffer.extend(steps(102, 4))
    assert buffer.torn_count == 2
    assert buffer[:]["stamp"][:6].tolist() == [103, 104, 105, 106, 0, 0]

    # Another process writes the rest, which this sampler does not know.
    assert not killed(lambda: buffer.extend(steps(106, 2)))
    drawn = {int(stamp) for _ in range(200) for stamp in buffer.sample()["stamp"]}
    assert buffer.torn_count == 0
    assert drawn == set(buffer[:]["stamp"].int().tolist())


def test_uniform_sampling_is_uniform_over_steps_that_are_not_torn():
    torch.manual_seed(0)
    buffer = filled()
    die_while_copying(buffer, lambda: buffer.__setitem__([3, 4, 17], steps(70, 3)))
    counts = torch.bincount(torch.cat([buffer.sample(500)["index"] for _ in range(100)]), minlength=SLOTS).double()
    mean = 50_000 / (SLOTS - 3)

    assert counts[[3, 4, 17]].sum() == 0
    valid = counts[counts > 0]
    assert len(valid) == SLOTS - 3
    assert float(((valid - mean) ** 2 / mean).sum()) < 45  # chi-square of 20 degrees, p = 0.001


def test_a_torn_step_is_the_first_to_be_replaced_by_one_of_higher_rank():
    buffer = filled(writer=TensorDictMaxValueWriter(rank_key="stamp", reduction="max"))
    die_while_copying(buffer, lambda: buffer.extend(steps(100, 3)))
    buffer.sample()
    assert buffer.torn_count == 3
    buffer.extend(steps(0, 3))

    assert buffer.torn_count == 0
    assert sorted(buffer[:]["stamp"].tolist()) == list(range(1, SLOTS + 1))


def test_a_buffer_with_only_torn_steps_is_an_error_with_a_remedy():
    for sampler in ("uniform", "without", "prioritized"):
        buffer = filled(sampler=SAMPLERS[sampler]())
        die_while_copying(buffer, lambda buffer=buffer: buffer.extend(steps(SLOTS, SLOTS)))
        with pytest.raises(InvalidArgumentError, match="24 of 24 steps are torn") as caught:
            buffer.sample()
        assert "extend" in caught.value.hint
        buffer.extend(steps(0, 13))
        assert set(buffer.sample()["stamp"].int().tolist()) <= set(range(1, 14))


def test_a_later_process_that_opens_the_folder_finds_the_torn_steps(tmp_path):
    buffer = filled(folder=tmp_path)
    die_while_copying(buffer, lambda: buffer.extend(steps(SLOTS, 5)))
    later = LazyMemmapStorage(SLOTS, scratch_dir=tmp_path, existsok=True)

    assert later.torn == 5
    assert later.torn_rows().tolist() == [0, 1, 2, 3, 4]
    assert later[:]["image"][:5].sum() == 0
    assert later.chronological_rows().tolist() == list(range(5, SLOTS))


def test_a_folder_of_an_earlier_release_without_marks_can_be_used(tmp_path):
    buffer = filled(folder=tmp_path)
    os.truncate(tmp_path / "counts.bin", 24)
    del buffer
    later = LazyMemmapStorage(SLOTS, scratch_dir=tmp_path, existsok=True)

    assert later[:]["stamp"].tolist() == list(range(1, SLOTS + 1))
    assert later.torn == 0


@pytest.mark.first(2)
@pytest.mark.parametrize("larger", [False, True], ids=["the same size", "larger"])
@pytest.mark.parametrize("storage", ["memmap", "tensor", "lanes"])
def test_a_checkpoint_keeps_the_marks_of_torn_steps(storage, larger, tmp_path):
    envs = 2 if storage == "lanes" else None
    buffer = filled(storage)
    buffer.extend(steps(SLOTS, 2, envs))
    die_while_copying(buffer, lambda: buffer.extend(steps(SLOTS + 2, 4, envs)))
    buffer.dumps(tmp_path)
    size = SLOTS * (envs or 1) * (2 if larger else 1)
    again = TensorDictReplayBuffer(storage=LazyTensorStorage(size, ndim=1 if envs is None else 2), batch_size=12)
    again.loads(tmp_path)

    assert again.torn_count == buffer.torn_count == 4 * (envs or 1)
    held = again[:]["stamp"]
    assert (held.reshape(-1)[again.storage.torn_rows()] == 0).all()
    assert int((held == 0).sum()) == again.torn_count
    assert all((again.sample()["stamp"] > 0).all() for _ in range(30))


def test_a_killed_write_to_a_field_affects_one_part_of_it():
    buffer = filled()

    def change():
        parts = buffer.storage.rewriting()
        for _ in range(3):
            next(parts)
        os.kill(os.getpid(), signal.SIGKILL)

    assert killed(change)
    assert len(buffer[:]) == SLOTS
    assert buffer.torn_count == 1
    assert buffer.storage.torn_rows().tolist() == [2]
    buffer["stamp"] = torch.ones(())
    assert buffer.torn_count == 1  # only a write of the complete step makes it valid
    buffer[2] = steps(0, 1)[0]
    assert buffer.torn_count == 0


def test_two_buffers_over_one_storage_in_one_process_do_not_wait_for_each_other():
    storage = LazyMemmapStorage(SLOTS)
    one, other = (TensorDictReplayBuffer(storage=storage, batch_size=3) for _ in range(2))
    one.extend(steps(0, SLOTS))
    with one.lock:
        assert len(other.sample()) == 3

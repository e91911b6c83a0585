"""What a ring of compressed frames costs, against a ring of raw frames: bytes, writing and sampling."""

import pytest
import torch
from tensordict import TensorDict

from datasets_rl import LazyMemmapStorage, LazyTensorStorage, TensorDictReplayBuffer
from datasets_rl.transforms import CatFrames

KEYS = ("pixels", ("next", "pixels"))
WRITTEN = 1000


def drawn(count):
    """Return frames of a ball between walls of bricks, uint8 [count, 84, 84]."""
    generator = torch.Generator().manual_seed(0)
    frames = torch.zeros(count, 84, 84, dtype=torch.uint8)
    bricks = torch.ones(6, 14, dtype=torch.bool)
    ball, speed = torch.tensor([40, 40]), torch.tensor([2, 1])
    for frame in frames:
        frame[:4] = frame[:, :2] = frame[:, -2:] = 142
        frame[12:24] = (bricks * torch.arange(60, 240, 30)[:, None]).repeat_interleave(6, 1).repeat_interleave(2, 0)
        frame[ball[0] : ball[0] + 2, ball[1] : ball[1] + 2] = 200
        frame[79:81, ball[1] // 2 + 20 : ball[1] // 2 + 28] = 200
        ball += speed
        speed *= torch.where((ball < 26) | (ball > 76), -1, 1)
        ball.clamp_(26, 76)
        if torch.rand((), generator=generator) < 0.1:
            bricks.view(-1)[torch.randint(84, (1,), generator=generator)] ^= True
    return frames


@pytest.fixture(scope="module")
def frames(size):
    return drawn(size(full=20_000, small=2000) + 1)


def steps(frames, first):
    """Return the next steps of a game, which starts again at its end."""
    first %= len(frames) - 1
    flags = torch.zeros(WRITTEN, 1, dtype=torch.bool)
    following = {
        "pixels": frames[first + 1 : first + WRITTEN + 1].clone(),
        "reward": torch.zeros(WRITTEN, 1),
        "done": flags,
    }
    root = {"pixels": frames[first : first + WRITTEN], "action": torch.zeros(WRITTEN, dtype=torch.int64)}
    return TensorDict({**root, "next": TensorDict(following, [WRITTEN])}, [WRITTEN])


@pytest.mark.slow
@pytest.mark.parametrize("kind", [LazyTensorStorage, LazyMemmapStorage])
def test_a_ring_of_compressed_frames(kind, frames, size, compare, expect, expect_exactly):
    """Reading and writing in the middle of a ring that has been full for a while."""
    slots = size(full=200_000, small=2000)
    rings = {name: kind(slots, compress=keys) for name, keys in (("raw", ()), ("compressed", KEYS))}
    buffers = {name: TensorDictReplayBuffer(storage=ring) for name, ring in rings.items()}
    for first in range(0, slots + slots // 2, WRITTEN):
        data = steps(frames, first)
        for buffer in buffers.values():
            buffer.extend(data)
    raw_bytes = sum(table.nbytes for table in rings["raw"]._tables[1:])
    expect_exactly(
        f"{kind.__name__}: raw bytes over compressed", raw_bytes / rings["compressed"].compressed_bytes, at_least=15
    )

    written = [steps(frames, first) for first in range(0, len(frames) - 1, WRITTEN)]

    def extending(buffer):
        def extend():
            for data in written:
                buffer.extend(data)

        return extend

    took = compare({name: extending(buffer) for name, buffer in buffers.items()}, rounds=7, repeat=1)
    # To make a patch of a frame takes 0.5 us of a core, and to compare it 0.6; to copy two frames takes 1.3.
    expect(f"{kind.__name__}, extend, times the raw ring", took["compressed"] / took["raw"], at_most=3)
    for count in (32, 256):
        took = compare(
            {name: lambda buffer=buffer, count=count: buffer.sample(count) for name, buffer in buffers.items()},
            repeat=5,
        )
        expect(f"{kind.__name__}, sample {count}, times the raw ring", took["compressed"] / took["raw"], at_most=2)
    stacks = CatFrames(4, -3, in_keys=[*KEYS], check_layout=False)
    stacked = {name: TensorDictReplayBuffer(storage=ring, transform=stacks.clone()) for name, ring in rings.items()}
    took = compare({name: lambda buffer=buffer: buffer.sample(32) for name, buffer in stacked.items()}, repeat=3)
    expect(f"{kind.__name__}, 32 stacks of 4 and next, times the raw ring", took["compressed"] / took["raw"], at_most=2)

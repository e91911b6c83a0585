"""Stacks of images, whose frames are concatenated along any axis."""

import pytest
import torch
from tensordict import TensorDict

from datasets_rl import LazyTensorStorage, TensorDictReplayBuffer
from datasets_rl.transforms import CatFrames

STEPS = 7


@pytest.fixture(params=[(5, 4, 3), (5, 4, 1), (3, 5, 4), (2, 6)], ids=str)
def shape(request):
    return request.param


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.float32])
@pytest.mark.parametrize("dim", [-1, -2, -3])
def test_the_frames_of_a_stack_are_concatenated(shape, dim, dtype):
    if -dim > len(shape):
        pytest.skip("the frames have fewer axes")
    frames = torch.arange(STEPS * torch.Size(shape).numel()).remainder(127).to(dtype).view(STEPS, *shape)
    done = torch.zeros(STEPS, 1, dtype=torch.bool)
    done[3] = done[-1] = True
    steps = TensorDict({"pixels": frames, "next": {"pixels": frames.flip(0), "done": done}}, [STEPS])
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(STEPS), transform=CatFrames(3, dim, ["pixels", ("next", "pixels")]), batch_size=64
    )
    buffer.extend(steps)
    batch = buffer.sample()

    for row, stack, after in zip(batch["index"].tolist(), batch["pixels"], batch["next", "pixels"], strict=True):
        first = 0 if row < 4 else 4
        window = [frames[max(row - ago, first)] for ago in (2, 1, 0)]
        assert stack.equal(torch.cat(window, dim))
        assert after.equal(torch.cat([*window[1:], frames.flip(0)[row]], dim))

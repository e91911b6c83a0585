"""What an epoch over wide records costs: against copying the same bytes."""

import numpy as np
import torch
from tensordict import TensorDict

from datasets_rl import LazyMemmapStorage, LazyTensorStorage, SamplerWithoutReplacement, TensorDictReplayBuffer

BATCH = 256
GOAL = 1.5
"""Times the copy of the same bytes; 1.1 to 1.5 is seen."""


def test_an_epoch_of_images_costs_little_more_than_copying_them(size, tmp_path, compare, expect):
    steps = BATCH * size(full=80, small=1)
    # 84 x 84 x 4 bytes a step, as of stacked Atari frames: 578 MB.
    pixels = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (steps, 4, 84, 84), np.uint8))
    images = TensorDict({"pixels": pixels, "action": torch.zeros(steps, dtype=torch.int64)}, [steps])

    def copied():
        for batch in pixels.view(-1, BATCH, 4 * 84 * 84):
            kept = batch.clone()  # a loop has the batch before while the next one is made, and so takes turns in memory
        return kept

    def epoch_over(storage):
        rb = TensorDictReplayBuffer(storage=storage, sampler=SamplerWithoutReplacement(), batch_size=BATCH)
        rb.extend(images)
        return lambda: [None for _ in rb]

    took = compare(
        {
            "copy": copied,
            "memory": epoch_over(LazyTensorStorage(steps)),
            "memory-mapped": epoch_over(LazyMemmapStorage(steps, scratch_dir=tmp_path)),
        },
        repeat=1,
    )

    for name in ("memory", "memory-mapped"):
        expect(f"an epoch of images, {name}, of copying them", took[name] / took["copy"], at_most=GOAL)

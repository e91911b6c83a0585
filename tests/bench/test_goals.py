"""What goals cost, against plain batches and against the arithmetic of OGBench on arrays in memory."""

import numpy as np
import pytest

from datasets_rl import GoalSampler, TensorDictReplayBuffer
from datasets_rl.transforms import CatFrames

DISCOUNT, FRAMES = 0.99, 3
LIMITS = {256: (3, 1, 1), 1024: (3, 2, 1.5), 4096: (5, 2, 1.5)}
"""Largest ratio to a plain batch, and least speed to OGBench, without and with stacks of frames, by batch size."""


class Peer:
    """Batches with a value goal and an actor goal, as in OGBench: arrays by name, indexed by rows.

    The observations are stacks of frames, which OGBench keeps in memory.
    """

    def __init__(self, storage, frames=1):
        names = {"observations": ("observation",), "actions": ("action",), "terminals": ("next", "done")}
        self.arrays = {name: storage.column(key).clone().numpy() for name, key in names.items()}
        self.lasts = storage.episodes.stops - 1
        rows, firsts = np.arange(len(storage)), np.repeat(storage.episodes.starts, storage.episodes.lengths)
        states = self.arrays["observations"]
        stacks = [states[np.maximum(rows - ago, firsts)] for ago in reversed(range(frames))]
        self.arrays["observations"] = np.concatenate(stacks, axis=-1)
        self.arrays["next_observations"] = np.roll(self.arrays["observations"], -1, 0)
        self.random = np.random.RandomState(0)

    def goal_rows(self, rows, p_current, p_trajectory, p_random, *, geometric):
        random_rows = self.random.randint(len(self.arrays["terminals"]), size=len(rows))
        last = self.lasts[np.searchsorted(self.lasts, rows)]
        if geometric:
            ahead = np.minimum(rows + self.random.geometric(1 - DISCOUNT, len(rows)), last)
        else:
            share = self.random.rand(len(rows))
            ahead = np.round(np.minimum(rows + 1, last) * share + last * (1 - share)).astype(int)
        threshold = p_trajectory / (p_trajectory + p_random)
        goals = np.where(self.random.rand(len(rows)) < threshold, ahead, random_rows)
        return np.where(self.random.rand(len(rows)) < p_current, rows, goals)

    def sample(self, size):
        rows = self.random.randint(len(self.arrays["terminals"]), size=size)
        batch = {name: array[rows] for name, array in self.arrays.items()}
        value = self.goal_rows(rows, 0.2, 0.5, 0.3, geometric=True)
        actor = self.goal_rows(rows, 0, 1, 0, geometric=False)
        reached = (rows == value).astype(float)
        batch["value_goals"], batch["actor_goals"] = (
            self.arrays["observations"][value],
            self.arrays["observations"][actor],
        )
        batch["masks"], batch["rewards"] = 1 - reached, reached - 1
        return batch


@pytest.mark.parametrize("size_of_batch", list(LIMITS))
def test_goals_cost_a_few_plain_batches_and_less_than_in_ogbench(ours, size_of_batch, compare, expect):
    peer, stacked_peer = Peer(ours.storage), Peer(ours.storage, FRAMES)
    stacks = CatFrames(FRAMES, -1, ["observation", ("next", "observation")])
    storage = ours.storage

    def buffer(sampler=None, transform=None):
        return TensorDictReplayBuffer(storage=storage, sampler=sampler, transform=transform, batch_size=size_of_batch)

    calls = {
        "plain": buffer().sample,
        "goals": buffer(GoalSampler(geometric=DISCOUNT)).sample,
        "OGBench": lambda: peer.sample(size_of_batch),
        "stacks": buffer(GoalSampler(geometric=DISCOUNT, frame_stack=FRAMES), stacks).sample,
        "stacks of OGBench": lambda: stacked_peer.sample(size_of_batch),
    }
    took = compare(calls, rounds=36, repeat=10)

    at_most, at_least, stacks_at_least = LIMITS[size_of_batch]
    expect(f"sample({size_of_batch}) with goals, of a plain one", took["goals"] / took["plain"], at_most=at_most)
    expect(
        f"OGBench's batch of {size_of_batch}, of ours with goals", took["OGBench"] / took["goals"], at_least=at_least
    )
    expect(
        f"OGBench's batch of {size_of_batch} stacks in memory, of ours with goals",
        took["stacks of OGBench"] / took["stacks"],
        at_least=stacks_at_least,
    )

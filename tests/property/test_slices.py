"""For any writes to a ring, its trajectories and slices are those of a plain Python model."""

from __future__ import annotations

import random

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from datasets_rl.samplers import SliceSampler, SliceSamplerWithoutReplacement
from datasets_rl.storages import LazyTensorStorage
from datasets_rl.storages.index import TrajectoryIndex
from datasets_rl.writers import RoundRobinWriter

FEW = settings(max_examples=50, deadline=None)
KEYS = {
    # The ways to separate trajectories, and the sampler's arguments for each.
    "flags": {"end_key": ("next", "done")},
    "numbers": {"traj_key": ("id",)},
    "numbers and flags": {"traj_key": ("id",)},
    "numbers and steps": {"traj_key": ("id",), "step_key": ("step",)},
}
CHUNKS = st.lists(st.integers(0, 17), min_size=1, max_size=8)
"""Number of slots of each write; 0 empties the ring."""


class World:
    """Environments that write to a ring, and the written steps.

    Three environments take turns in each lane; only one writes if trajectories are separated by flags alone. The
    environments reuse trajectory numbers, unless trajectories are separated by numbers alone.
    """

    def __init__(self, told_by, *, slots, envs, lengths, seed):
        self.told_by = told_by
        self.slots, self.envs, self.lengths = slots, envs, lengths
        self.random = random.Random(seed)
        self.storage = LazyTensorStorage(slots * envs, ndim=1 if envs == 1 else 2)
        self.writer = RoundRobinWriter()
        self.writer.register_storage(self.storage)
        turns = 1 if told_by == "flags" else 3
        self.turns = [[{"left": 0, "env": env} for env in range(turns)] for _ in range(envs)]
        self.episodes = self.steps = 0
        self.held = []  # the slots from the oldest to the newest, one step per lane

    @property
    def keys(self):
        return KEYS[self.told_by]

    def _step(self, lane):
        env = self.random.choice(self.turns[lane])
        if not env["left"]:
            env |= {"episode": self.episodes, "time": -1, "left": self.random.choice(self.lengths)}
            self.episodes += 1
        env["time"] += 1
        env["left"] -= 1
        self.steps += 1
        return {**env, "uid": self.steps}

    def write(self, count):
        if not count:
            self.storage.empty()
            self.held = []
            return
        steps = [[self._step(lane) for lane in range(self.envs)] for _ in range(count)]
        self.held = (self.held + steps)[-self.slots :]
        flat = [step for slot in steps for step in slot]
        number = "episode" if self.told_by == "numbers" else "env"
        data = {
            "uid": torch.tensor([step["uid"] for step in flat]),
            "id": torch.tensor([step[number] for step in flat]),
            "step": torch.tensor([step["time"] for step in flat]),
        }
        if "flags" in self.told_by:
            data["next"] = {"done": torch.tensor([[step["left"] == 0] for step in flat])}
        batch = TensorDict(data, [count * self.envs])
        self.writer.extend(batch if self.envs == 1 else batch.reshape(count, self.envs))

    def expected(self):
        """Return the stored steps of each episode, in chronological order."""
        found = {}
        for slot in self.held:
            for step in slot:
                found.setdefault(step["episode"], []).append((step["time"], step["uid"]))
        return sorted([uid for _, uid in sorted(steps)] for steps in found.values())

    def uids(self, rows):
        return self.storage.column(("uid",)).reshape(-1)[torch.as_tensor(rows)].tolist()

    def shown(self, trajectories):
        bounds = zip(trajectories.firsts, trajectories.firsts + trajectories.lengths, strict=True)
        return [self.uids(trajectories.rows(np.arange(first, stop))) for first, stop in bounds]


WORLDS = st.builds(
    World,
    st.sampled_from(list(KEYS)),
    slots=st.integers(1, 14),
    envs=st.integers(1, 3),
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    seed=st.integers(0, 1000),
)


@FEW
@given(WORLDS, CHUNKS)
def test_the_index_has_the_stored_episodes(world, chunks):
    """Over wraps, lanes, environments that take turns, reused numbers, and writes larger than the ring."""
    for chunk in chunks:
        world.write(chunk)

        assert sorted(world.shown(world.storage.trajectories(**world.keys))) == world.expected()


@FEW
@given(WORLDS, CHUNKS, st.data())
def test_an_updated_index_equals_a_new_one(world, chunks, data):
    """For any times of the updates, including the order: draws do not depend on when the index was updated."""
    keys = {"end_key": None, "traj_key": None, "step_key": None} | world.keys
    followed = TrajectoryIndex(**keys)
    for chunk in chunks:
        world.write(chunk)
        if data.draw(st.booleans()):
            followed.trajectories(world.storage)

    made = TrajectoryIndex(**keys).trajectories(world.storage)
    assert world.shown(followed.trajectories(world.storage)) == world.shown(made)


@FEW
@given(WORLDS, CHUNKS)
def test_every_row_has_its_trajectory_and_position(world, chunks):
    for chunk in chunks:
        world.write(chunk)
        trajectories = world.storage.trajectories(**world.keys)
    rows = np.arange(len(world.storage))
    numbers, places = trajectories.locate(rows)

    assert (trajectories.rows(places) == rows).all()
    offsets = places - trajectories.firsts[numbers]
    assert ((offsets >= 0) & (offsets < trajectories.lengths[numbers])).all()


@FEW
@given(
    WORLDS,
    CHUNKS,
    st.integers(1, 6),
    st.sampled_from(
        [{}, {"strict_length": False, "pad_output": True}, {"strict_length": False, "span": True}, {"span": (True, 0)}]
    ),
    st.sampled_from([SliceSampler, SliceSamplerWithoutReplacement]),
)
def test_a_slice_is_consecutive_steps_of_one_episode(world, chunks, length, policy, kind):
    """It crosses no end of an episode, and has no overwritten or unwritten row."""
    policy = {key: value for key, value in policy.items() if key != "span" or kind is SliceSampler}
    keys = world.keys
    if "step_key" in keys:
        keys, kind = {**keys, "fragmented": True}, SliceSampler
    sampler = kind(slice_len=length, **keys, **policy)
    for chunk in chunks:
        world.write(chunk)
        expected = world.expected()
        fits = [one for one in expected if not sampler.strict_length or len(one) >= length]
        if not fits:
            continue
        rows, info = sampler.sample(world.storage, 4 * length)
        uids = np.array(world.uids(rows))
        mask = info.get(("collector", "mask"))
        real = np.ones(len(rows), bool) if mask is None else mask.numpy()
        assert (mask is not None) == (sampler.pad_output and any(len(one) < length for one in fits))
        for number in info["slice_id"].unique().tolist():
            mine = uids[(info["slice_id"].numpy() == number) & real].tolist()
            home = next(one for one in fits if mine[0] in one)
            at = home.index(mine[0])

            assert home[at : at + len(mine)] == mine
            assert len(mine) == min(length, len(home)) or "span" in policy

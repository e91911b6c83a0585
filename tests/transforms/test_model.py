"""Stacks, targets, chunks and sums, compared with a plain Python model: random episodes and ring buffers."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from datasets_rl import LazyTensorStorage, RandomSampler, ReplayBufferEnsemble, SliceSampler, TensorDictReplayBuffer
from datasets_rl.transforms import (
    ActionChunkTransform,
    CatFrames,
    Compose,
    MultiStepTransform,
    RewardClipping,
    RewardSum,
    StepCounter,
    TargetReturn,
)

GAMMA = 0.5
BOTH = ["observation", ("next", "observation")]


@dataclass
class Step:
    """One step of the model, identified by numbers."""

    observation: float
    following: float
    reward: float
    terminated: bool
    truncated: bool


def run_of(lengths, *, ends, start):
    """Steps of one environment; `ends` is the final flag of each episode, "" for an unfinished episode."""
    steps, number = [], start
    for length, end in zip(lengths, ends, strict=True):
        for place in range(length):
            last = place == length - 1
            # The final observation differs from the first observation of the next episode.
            following = number + 0.5 if last else number + 1
            steps.append(
                Step(number, following, (7 * number) % 5 - 2, last and end == "terminated", last and end == "truncated")
            )
            number += 1
        number += 10
    return steps


def as_data(steps):
    """[T] TensorDict of the steps."""

    def column(values, dtype=torch.float32):
        return torch.tensor(values, dtype=dtype).unsqueeze(1)

    ends = [(step.terminated, step.truncated) for step in steps]
    return TensorDict(
        {
            "observation": column([step.observation for step in steps]),
            "action": column([-step.observation for step in steps]),
            "next": {
                "observation": column([step.following for step in steps]),
                "reward": column([step.reward for step in steps]),
                "terminated": column([one for one, _ in ends], torch.bool),
                "truncated": column([one for _, one in ends], torch.bool),
                "done": column([one or other for one, other in ends], torch.bool),
            },
        },
        [len(steps)],
    )


class Model:
    """Expected result for each stored step, by its observation."""

    def __init__(self, steps):
        """Take the steps of one environment that are held, the oldest first."""
        self.steps = steps
        self.first, self.last = {}, {}
        begin = 0
        for place, step in enumerate(steps):
            if step.terminated or step.truncated or place == len(steps) - 1:
                for one in range(begin, place + 1):
                    self.first[one], self.last[one] = begin, place
                begin = place + 1

    def stack(self, place, count):
        return [self.steps[max(one, self.first[place])].observation for one in range(place - count + 1, place + 1)]

    def next_stack(self, place, count):
        return [*self.stack(place, count), self.steps[place].following][1:]

    def ahead(self, place, count):
        return self.steps[place : min(place + count - 1, self.last[place]) + 1]

    def expected(self, place, *, count, clip=False):
        ahead = self.ahead(place, count)
        rewards = [max(-1, min(1, step.reward)) if clip else step.reward for step in ahead]
        chunk = [-step.observation for step in ahead]
        so_far = sum(step.reward for step in self.steps[self.first[place] : place + 1])
        return {
            "stack": self.stack(place, count),
            "next stack": self.next_stack(place, count),
            "target": sum(reward * GAMMA**power for power, reward in enumerate(rewards)),
            "following": ahead[-1].following,
            "steps": len(ahead),
            "gamma": GAMMA ** len(ahead),
            "nonterminal": not ahead[-1].terminated,
            "done": ahead[-1].terminated or ahead[-1].truncated,
            "chunk": chunk + [chunk[-1]] * (count - len(chunk)),
            "padding": [False] * len(chunk) + [True] * (count - len(chunk)),
            "number": place - self.first[place],
            "sum": so_far,
            "wanted": 10 - so_far + self.steps[place].reward,
        }


def transform(count, *, clip=False):
    stacked = [("stack",), ("next", "stack")]
    more = [RewardClipping(-1, 1)] if clip else []
    return Compose(
        CatFrames(count, -1, BOTH, stacked),
        StepCounter(),
        RewardSum(),
        TargetReturn(10.0),
        *more,
        ActionChunkTransform(count),
        MultiStepTransform(count, GAMMA),
    )


def seen(batch):
    """Actual result for each step of a batch, by its observation."""

    def one(key, row):
        value = batch[key][row].reshape(-1).tolist()
        return value[0] if len(value) == 1 else value

    def many(key, row):
        return batch[key][row].reshape(-1).tolist()

    # MultiStepTransform replaces the entries under "next" by those of the last step, so the stack is read before it.
    return {
        one("observation", row): {
            "stack": many("stack", row),
            "target": one(("next", "reward"), row),
            "following": one(("next", "observation"), row),
            "steps": one("steps_to_next_obs", row),
            "gamma": one("gamma", row),
            "nonterminal": one("nonterminal", row),
            "done": one(("next", "done"), row),
            "chunk": many(("vla_action", "chunk"), row),
            "padding": many("action_is_pad", row),
            "number": one("step_count", row),
            "wanted": one("target_return", row),
        }
        for row in range(len(batch))
    }


def check(batch, models, *, count, clip=False):
    found = seen(batch)
    wanted = {
        model.steps[place].observation: model.expected(place, count=count, clip=clip)
        for model in models
        for place in range(len(model.steps))
    }
    for name, facts in found.items():
        for fact, value in facts.items():
            assert value == pytest.approx(wanted[name][fact]), (name, fact)


episodes = st.lists(st.tuples(st.integers(1, 5), st.sampled_from(["terminated", "truncated"])), min_size=1, max_size=5)


@settings(max_examples=15, deadline=None)
@given(episodes, st.integers(1, 4), st.integers(1, 14), st.integers(1, 6), st.booleans(), st.booleans())
def test_single_steps_of_a_ring(runs, count, size, piece, clip, open_end):
    """Ring buffers with any overwritten steps and any batch sizes of the writes."""
    lengths, ends = zip(*runs, strict=True)
    ends = [*ends[:-1], "" if open_end else ends[-1]]
    steps = run_of(lengths, ends=ends, start=0)
    rb = TensorDictReplayBuffer(
        storage=LazyTensorStorage(size), transform=transform(count, clip=clip), batch_size=16, sampler=RandomSampler()
    )
    for start in range(0, len(steps), piece):
        rb.extend(as_data(steps[start : start + piece]))
        held = steps[: start + piece][-size:]
        check(rb.sample(), [Model(held)], count=count, clip=clip)
        check(rb[:], [Model(held)], count=count, clip=clip)

    assert len(rb) == min(size, len(steps))


@settings(max_examples=30, deadline=None)
@given(episodes, episodes, st.integers(1, 4), st.integers(2, 9))
def test_lanes_do_not_mix(one, other, count, slots):
    """Two environments write in parallel, and their episodes end at different steps."""
    lanes = []
    for start, runs in ((0, one), (1000, other)):
        lengths, ends = zip(*runs, strict=True)
        lanes.append(run_of(lengths, ends=ends, start=start))
    length = min(map(len, lanes))
    data = torch.stack([as_data(lane[:length]) for lane in lanes])
    rb = TensorDictReplayBuffer(storage=LazyTensorStorage(2 * slots, ndim=2), transform=transform(count), batch_size=16)
    for start in range(length):
        rb.extend(data[:, start : start + 1])
    models = [Model(lane[:length][-slots:]) for lane in lanes]

    check(rb.sample().reshape(-1), models, count=count)
    check(rb[:].reshape(-1), models, count=count)


@settings(max_examples=30, deadline=None)
@given(episodes, st.integers(1, 4))
def test_slices_see_the_steps_before_them(runs, count):
    """A slice that starts inside an episode is not treated as the start of the episode."""
    lengths, ends = zip(*runs, strict=True)
    steps = run_of(lengths, ends=ends, start=0)
    rb = TensorDictReplayBuffer(
        storage=LazyTensorStorage(len(steps)),
        transform=transform(count),
        sampler=SliceSampler(slice_len=2, strict_length=False),
        batch_size=8,
    )
    rb.extend(as_data(steps))

    check(rb.sample(), [Model(steps)], count=count)


@settings(max_examples=30, deadline=None)
@given(episodes, st.integers(1, 4))
def test_a_batch_in_order_gives_the_same_as_a_storage(runs, count):
    lengths, ends = zip(*runs, strict=True)
    data = as_data(run_of(lengths, ends=ends, start=0))
    rb = TensorDictReplayBuffer(storage=LazyTensorStorage(len(data)), transform=transform(count))
    rb.extend(data)
    held, passed = rb[:], transform(count)(data)

    for key, value in passed.items(include_nested=True, leaves_only=True):
        torch.testing.assert_close(held[key], value)


@settings(max_examples=20, deadline=None)
@given(episodes, episodes, st.integers(1, 3))
def test_members_of_an_ensemble_read_their_own_steps(one, other, count):
    members, models = [], []
    for start, runs in ((0, one), (1000, other)):
        lengths, ends = zip(*runs, strict=True)
        steps = run_of(lengths, ends=ends, start=start)
        members.append(TensorDictReplayBuffer(storage=LazyTensorStorage(len(steps)), transform=transform(count)))
        members[-1].extend(as_data(steps))
        models.append(Model(steps))
    batch = ReplayBufferEnsemble(*members, batch_size=8).sample()

    check(batch.reshape(-1), models, count=count)


def test_the_stack_under_next_is_that_of_the_step_after():
    """TED requires for every entry: next.x of a step is x of the next step."""
    steps = run_of([3, 2], ends=["terminated", "truncated"], start=0)
    rb = TensorDictReplayBuffer(storage=LazyTensorStorage(5), transform=CatFrames(3, -1, BOTH))
    rb.extend(as_data(steps))
    data, model = rb[:], Model(steps)

    assert [row.tolist() for row in data["next", "observation"]] == [model.next_stack(place, 3) for place in range(5)]
    assert torch.equal(data["next", "observation"][[0, 1, 3]], data["observation"][[1, 2, 4]])

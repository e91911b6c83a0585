"""Sampler of steps with goals from the same trajectories, for goal-conditioned learning."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor
from typing_extensions import override

from datasets_rl.arguments import check, choice_problems, size_problems
from datasets_rl.samplers.base import Sampler
from datasets_rl.samplers.random import RandomSampler
from datasets_rl.ted.keys import EPISODE, NEXT, NEXT_DONE, NEXT_FINAL_KNOWN, as_key

if TYPE_CHECKING:
    from datasets_rl.samplers.goal_pass import GoalPass
    from datasets_rl.storages.base import Storage
    from datasets_rl.storages.packed import RowSlot
    from datasets_rl.storages.record_access import RecordAccess
    from datasets_rl.ted.trajectories import Trajectories

GoalStrategy = Literal["interpolate", "future", "final", "episode"]
Index = NDArray[np.int64]
Mask = NDArray[np.bool_]
Floats = NDArray[np.float64]
Probabilities = tuple[float, float, float]
_KEYS_OF_EPISODES = {None, NEXT_DONE, EPISODE}
"""Keys by which a stored dataset finds its episodes in its table."""
_NO_MASK, _NO_ROWS = np.empty(0, np.bool_), np.empty(0, np.int64)
_RULES_OF_DRAWS = np.array([[first, first + 1, first + 2, 0, 1, 1, 0] for first in (0, 3)], np.float64)
"""How the numbers of `_numbers_of` become goals: a kind of -1 is the step itself, and a kind of 1 is a random goal."""


@dataclass(slots=True, eq=False)
class GoalDraws:
    """Random choices that determine a goal for each of B steps, which `GoalSampler.goals_of` computes."""

    ahead: NDArray[Any]
    """Where a trajectory goal is. For a geometric distribution: number of steps to the goal, at least 1, int64 [B]. Else:
    numbers in [0, 1), float64 [B]."""
    current: Mask | None = None
    """Whether the goal is the step itself, bool [B], or None for never."""
    random: Mask | None = None
    """Whether the goal is random if it is not the step itself, bool [B], or None for never."""
    random_rows: Index | None = None
    """Row of the random goal, int64 [B]. Only with `random`."""


@dataclass(slots=True, eq=False)
class _Steps:
    """Places of B steps in trajectories, see `Trajectories`."""

    trajectories: Trajectories
    places: Index
    firsts: Index
    """Place of the first step of each trajectory."""
    lasts: Index
    """Place of the last step of each trajectory."""
    limits: Index
    """Place of the last possible goal: `lasts`, or with the final state as a goal `lasts` + 1."""

    def rows(self, places: Index) -> Index:
        """Return the rows of places. The final state of a trajectory has the row of the last step."""
        return self.trajectories.rows(places if self.limits is self.lasts else np.minimum(places, self.lasts))

    def goals(self, places: Index) -> _Goals:
        """Return the goals at places of the trajectories of the steps."""
        return _Goals(self.rows(places), None if self.limits is self.lasts else places > self.lasts, places)


@dataclass(slots=True, eq=False)
class _Goals:
    """Goals of B steps."""

    rows: Index
    final: Mask | None
    """Whether each goal is the final state after the row, or None if no goal is."""
    limits: Index
    """Place of each goal, or for a random goal the last possible goal of the step's trajectory."""


@dataclass(frozen=True)
class _GoalRule:
    """Distribution of the goals of a step."""

    p_current: float
    p_trajectory: float
    p_random: float
    geometric: float | None
    strategy: GoalStrategy

    @property
    def numbers(self) -> int:
        """Number of random numbers for each goal: the place in the trajectory, the kind, and a random row."""
        return 1 + (self.p_current > 0 or self.p_random > 0) + (self.p_random > 0)

    def draws(self, uniform: Floats, storage: Storage) -> GoalDraws:
        """Return the random choices for B steps from numbers in [0, 1), [numbers, B]."""
        ahead = uniform[0]
        if self.geometric is not None:
            # The inverse of the distribution function: the number of trials to the first success.
            ahead = (np.log1p(-ahead) * self._trials).astype(np.int64) + 1
        current = uniform[1] < self.p_current if self.p_current else None
        if not self.p_random:
            return GoalDraws(ahead, current)
        rows = storage.chronological_rows().numpy() if storage.torn else None
        random_rows = (uniform[-1] * (len(storage) if rows is None else len(rows))).astype(np.int64)
        return GoalDraws(
            ahead, current, uniform[1] >= 1 - self.p_random, random_rows if rows is None else rows[random_rows]
        )

    def table_row(self, first: int, count: int) -> list[float]:
        """Return how the random numbers become a goal, see `goal_rows.read_goals`.

        Args:
            first: The first row of random numbers of this rule.
            count: Number of steps of the storage.
        """
        kind = first + 1 if self.numbers > 1 else -1
        random = first + self.numbers - 1 if self.p_random else -1
        trials = 0 if self.geometric is None else self._trials
        return [first, kind, random, self.p_current, 1 - self.p_random, count, trials]

    @cached_property
    def _trials(self) -> float:
        return 1 / math.log(self.geometric or 0.5)

    def choose(self, steps: _Steps, draws: GoalDraws) -> _Goals:
        """Return the goals of steps."""
        from datasets_rl.samplers.goal_rows import STRATEGIES, choose_goals  # deferred: imports numba

        count, order = len(steps.places), steps.trajectories.order
        rows, limits, final = np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count, np.bool_)
        choose_goals(
            STRATEGIES.index(self.strategy if self.geometric is None else "geometric"),
            *_arrays_of(draws),
            steps.places,
            steps.firsts,
            steps.lasts,
            steps.limits,
            _NO_ROWS if order is None else order,
            rows,
            final,
            limits,
        )
        return _Goals(rows, None if steps.limits is steps.lasts else final, limits)


class GoalSampler(Sampler):
    """Sample steps with goals: the step itself, a later state of its trajectory, or a state of any trajectory.

        trajectory          s_0  s_1  s_2  s_3  s_4 | s_0 ...
        step                      i
        current goal              x
        trajectory goal                x    x    x              the final state, after s_4, only with `final_states`
        random goal          x    x    x    x    x     x

        >>> from datasets_rl import GoalSampler, load
        >>> rb = load("demo/pendulum", sampler=GoalSampler(0.2, 0.5, 0.3, geometric=0.99))
        >>> rb.sample(256)["value_goal"].shape
        torch.Size([256, 3])

    Batches get the goals of the value function and of the actor, which are drawn independently, and the reward of the
    value goal, which is 0 or 1, minus 1 if `negative`:

    ====================================== ======================================================
    ``value_goal``, ``actor_goal``         states, [B, ...]
    ``value_goal_index``, ...              the rows of the goals in the storage, int64 [B]
    ``value_goal_final``, ...              with `final_states`: whether the goal is the next state of that row, bool [B]
    ``reward``                             float32 [B, 1]
    ``mask``                               1 minus success: 0 where the goal is reached, float32 [B, 1]
    ====================================== ======================================================

    ``("next", "reward")`` keeps the stored reward. The defaults, the rules and the rewards are the same as of
    `GCDataset` in OGBench (Park et al., 2024, arXiv:2410.20092), and with `subgoal_steps` as of `HGCDataset`. Hindsight
    experience replay (Andrychowicz et al., 2017, arXiv:1707.01495) has the strategies `future`, `final` and `episode`,
    with ``p_trajectory=1``, and `random`, which is ``p_random=1``. Its goals include final states, and its rewards are
    the rewards of next states.

    Args:
        p_current: Probability that the goal of the value function is the state of the step itself.
        p_trajectory: Probability of a goal of the same trajectory.
        p_random: Probability of a goal that is drawn uniformly from all steps.
        geometric: Discount factor g: a trajectory goal is n steps ahead with probability (1 - g) g^(n-1), n >= 1, but at
            most at the end of the trajectory. None for `strategy`.
        actor: The three probabilities for the goal of the actor. None for no such goal.
        actor_geometric: As `geometric`, for the goal of the actor.
        strategy: Distribution of trajectory goals without a geometric distribution. "interpolate": a point between the
            next and the last state, rounded, as in OGBench, so that both ends have half of the probability of the
            others. "future": a later state, uniformly. The last step has itself. "final": the last state. "episode":
            any state of the trajectory, uniformly.
        subgoal_steps: Number of steps k to a subgoal: adds ``low_actor_goal``, the state k steps ahead, and
            ``high_actor_goal`` with ``high_actor_target``, the state k steps ahead on the way to that goal, in place of
            ``actor_goal``.
        negative: Whether rewards are -1 and 0 instead of 0 and 1.
        reward: "state": success is that the state of the step is the goal. "next": success is that the next state is
            the goal.
        final_states: Whether the state after the last step of a trajectory can be a trajectory goal, if known.
            Never in OGBench.
        frame_stack: Number of states N of a goal: the state of the goal and the states before, concatenated along the last
            axis, as in OGBench. Before the first state of a trajectory, this state is repeated. `CatFrames(N, -1, keys)`
            stacks the observations of the steps in the same way.
        goal_key: Key of the states that are goals.
        end_key: Key of the flag that ends a trajectory, see `Storage.trajectories`.
        traj_key: Key of the trajectory id, likewise.
        sampler: Sampler of the steps. By default uniform with replacement.
        generator: Random generator, also for `sampler`. By default torch's global generator.

    Raises:
        InvalidArgumentError: If probabilities are not three numbers with the sum 1, or an argument is out of range.
    """

    draws_at_random = True

    def __init__(
        self,
        p_current: float = 0.2,
        p_trajectory: float = 0.5,
        p_random: float = 0.3,
        geometric: float | None = None,
        *,
        actor: Probabilities | None = (0.0, 1.0, 0.0),
        actor_geometric: float | None = None,
        strategy: GoalStrategy = "interpolate",
        subgoal_steps: int | None = None,
        negative: bool = True,
        reward: Literal["state", "next"] = "state",
        final_states: bool = False,
        frame_stack: int = 1,
        goal_key: str | tuple[str, ...] = "observation",
        end_key: str | tuple[str, ...] | None = None,
        traj_key: str | tuple[str, ...] | None = None,
        sampler: Sampler | None = None,
        generator: Generator | None = None,
    ) -> None:
        problems = [
            *_rule_problems("p_current, p_trajectory, p_random", (p_current, p_trajectory, p_random), geometric),
            *([] if actor is None else _rule_problems("actor", actor, actor_geometric)),
            *choice_problems(*get_args(GoalStrategy), strategy=strategy),
            *choice_problems("state", "next", reward=reward),
            *size_problems(frame_stack=frame_stack),
        ]
        if subgoal_steps is not None and (subgoal_steps < 1 or actor is None):
            problems.append(
                f"subgoal_steps is {subgoal_steps} and actor is {actor}, expected at least 1, with an actor"
            )
        check(problems)
        self._value = _GoalRule(p_current, p_trajectory, p_random, geometric, strategy)
        self._actor = None if actor is None else _GoalRule(*actor, actor_geometric, strategy)
        self.subgoal_steps, self.negative, self.reward, self.final_states = (
            subgoal_steps,
            negative,
            reward,
            final_states,
        )
        self.frame_stack, self.goal_key = frame_stack, as_key(goal_key)
        self.end_key = None if end_key is None else as_key(end_key)
        self.traj_key = None if traj_key is None else as_key(traj_key)
        self.sampler = RandomSampler() if sampler is None else sampler
        self.unit = self.sampler.unit
        self._table: tuple[int, Floats] | None = None
        self._generator: Generator | None = None
        if generator is not None:
            self.generator = generator

    @property
    @override
    def generator(self) -> Generator | None:
        """Random generator of the goals. Setting this generator also sets the generator of the sampler of the steps."""
        return self._generator

    @generator.setter
    def generator(self, generator: Generator | None) -> None:
        self._generator = self.sampler.generator = generator

    def sample(self, storage: Storage, batch_size: int) -> tuple[Tensor, dict[str, Any]]:
        """Sample steps and goals, see the class."""
        rows, info = self.sampler.sample(storage, batch_size)
        self.ran_out = self.sampler.ran_out
        used = self._value.numbers
        count = used if self._actor is None else used + self._actor.numbers
        uniform = torch.rand((count, len(rows)), dtype=torch.float64, generator=self._generator).numpy()
        found = self._pass_over(storage, rows, has_actor=self._actor is not None)
        if found is not None:
            # The logarithms of numpy, which compiled loops compute with other last bits.
            for rule, first in ((self._value, 0), (self._actor, used)):
                if rule is not None and rule.geometric is not None:
                    uniform[first] = np.log1p(-uniform[first])
            info.update(found.read(rows.contiguous(), self._rules(len(storage)), uniform))
            return rows, info
        value = self._value.draws(uniform[:used], storage)
        actor = None if self._actor is None else self._actor.draws(uniform[used:], storage)
        info.update(self._located_goals(storage, rows.cpu(), value, actor))
        return rows, info

    def _rules(self, count: int) -> Floats:
        """Return how random numbers become goals in a storage of `count` steps, see `goal_rows.read_goals`."""
        if self._table is None or self._table[0] != count:
            rows = [self._value.table_row(0, count), (self._actor or self._value).table_row(self._value.numbers, count)]
            self._table = count, np.array(rows, np.float64)
        return self._table[1]

    @override
    def info_of(self, storage: Storage, rows: Tensor) -> dict[Any, Tensor]:
        draws = GoalDraws(np.zeros(len(rows), np.int64))
        return {**self.sampler.info_of(storage, rows), **self.goals_of(storage, rows.cpu(), draws, draws)}

    def goals_of(
        self, storage: Storage, rows: Tensor, value: GoalDraws, actor: GoalDraws | None = None
    ) -> dict[str, Tensor]:
        """Return the entries that `sample` adds to a batch, for given steps and given random choices.

        Args:
            storage: The storage that contains the rows.
            rows: Rows of the steps, int64 [B].
            value: Random choices for the goals of the value function.
            actor: Random choices for the goals of the actor, or None if the actor has no goals.

        Raises:
            UnknownKeyError: If the data has no `goal_key`.
        """
        if (found := self._pass_over(storage, rows, has_actor=actor is not None)) is not None:
            return found.read(rows.contiguous(), _RULES_OF_DRAWS, _numbers_of(value, value if actor is None else actor))
        return self._located_goals(storage, rows, value, actor)

    def _located_goals(
        self, storage: Storage, rows: Tensor, value: GoalDraws, actor: GoalDraws | None
    ) -> dict[str, Tensor]:
        """Return the same as `goals_of` for any storage."""
        steps = self._steps(storage, rows.numpy())
        value_goals = self._value.choose(steps, value)
        goals = {"value_goal": value_goals}
        if self._actor is not None and actor is not None:
            actor_goals = self._actor.choose(steps, actor)
            goals |= {"actor_goal": actor_goals} if self.subgoal_steps is None else self._subgoals(steps, actor_goals)
        info = self._states(storage, steps.trajectories, goals)
        success = self._success(steps, value_goals).astype(np.float32)[:, None]
        info["mask"] = torch.from_numpy(1 - success)
        info["reward"] = torch.from_numpy(success - 1 if self.negative else success)
        return info

    def _pass_over(self, storage: Storage, rows: Tensor, *, has_actor: bool) -> GoalPass | None:
        """Return the pass that reads the goals of a stored dataset, made once, or None for other data."""
        if not (rows.is_cpu and rows.dtype is torch.int64):
            return None
        access = storage.record_access(self.goal_key)
        if access is None or not {self.end_key, self.traj_key} <= _KEYS_OF_EPISODES:
            return None
        records, slot = access
        if self.frame_stack > 1 and len(slot.shape) > 1:  # the states of a stack are not one after another in memory
            return None
        value, actor = self._value, self._actor if has_actor else None
        # The choices that the compiled loop knows, in an order that is quick to hash.
        name = (
            *(self.goal_key, self.subgoal_steps, self.frame_stack, self.final_states, self.reward, self.negative),
            *(value.strategy, value.geometric is None, None if actor is None else actor.geometric is None),
        )
        if (found := records.passes.get(name)) is None:
            found = records.passes[name] = self._new_pass(records, slot, actor)
        made: GoalPass = found
        return made

    def _new_pass(self, records: RecordAccess, slot: RowSlot, actor: _GoalRule | None) -> GoalPass:
        """Return the pass that reads the goals of a stored dataset.

        Args:
            records: The records.
            slot: The position of the states in a record.
            actor: The rule of the goal of the actor, or None for no such goal.
        """
        from datasets_rl.samplers.goal_pass import GoalPass  # deferred: imports numba
        from datasets_rl.samplers.goal_rows import STRATEGIES

        subgoal_steps = 0 if actor is None else self.subgoal_steps or 0
        names = ["value_goal"]
        if actor is not None:
            names += ["low_actor_goal", "high_actor_goal", "high_actor_target"] if subgoal_steps else ["actor_goal"]
        value_strategy, actor_strategy = (
            STRATEGIES.index(rule.strategy if rule.geometric is None else "geometric")
            for rule in (self._value, actor or self._value)
        )
        return GoalPass(
            records,
            slot,
            names,
            (value_strategy, actor_strategy),
            subgoal_steps=subgoal_steps,
            final_states=self.final_states,
            of_next=self.reward == "next",
            negative=self.negative,
            frames=self.frame_stack,
        )

    def _steps(self, storage: Storage, rows: Index) -> _Steps:
        trajectories = storage.trajectories(end_key=self.end_key, traj_key=self.traj_key)
        owners, places = trajectories.locate(rows)
        firsts = trajectories.firsts[owners]
        limits = lasts = firsts + (trajectories.lengths[owners] - 1)
        if self.final_states:
            limits = lasts + 1
            if storage.masked:
                known = storage.pick(NEXT_FINAL_KNOWN, torch.from_numpy(trajectories.rows(lasts)))
                limits = lasts + known.reshape(-1).numpy()
        return _Steps(trajectories, places, firsts, lasts, limits)

    def _subgoals(self, steps: _Steps, high: _Goals) -> dict[str, _Goals]:
        ahead = steps.places + (self.subgoal_steps or 0)
        low, target = (steps.goals(np.minimum(ahead, limits)) for limits in (steps.limits, high.limits))
        return {"low_actor_goal": low, "high_actor_goal": high, "high_actor_target": target}

    def _success(self, steps: _Steps, goals: _Goals) -> Mask:
        """Return whether each step reaches its goal, bool [B]."""
        if self.reward == "state":
            reached: Mask = goals.rows == steps.rows(steps.places)
            return reached if goals.final is None else reached & ~goals.final
        following = np.minimum(steps.places + 1, steps.lasts)
        ended = steps.places == steps.lasts
        is_final = np.zeros_like(ended) if goals.final is None else goals.final
        success: Mask = (goals.rows == steps.rows(following)) & (is_final == ended)
        return success

    def _states(self, storage: Storage, trajectories: Trajectories, goals: dict[str, _Goals]) -> dict[str, Tensor]:
        """Return the states and the rows of goals."""
        info: dict[str, Tensor] = {}
        for name, part in goals.items():
            window = part.rows[:, None] if self.frame_stack == 1 else self._rows_of_stacks(trajectories, part)
            states = storage.pick(self.goal_key, torch.from_numpy(window.reshape(-1)))
            states = states.view(*window.shape, *states.shape[1:])
            info[f"{name}_index"] = rows = torch.from_numpy(part.rows)
            if part.final is not None:
                info[f"{name}_final"] = final = torch.from_numpy(part.final)
                last = final.nonzero().squeeze(1)
                if len(last):
                    next_states = storage.pick((NEXT, *self.goal_key), rows[last])
                    states[:, -1].index_copy_(0, last.to(states.device), next_states)
            if self.frame_stack == 1:
                states = states[:, 0]
            elif states.ndim > 2:
                states = states.movedim(1, -2).flatten(-2)
            info[name] = states
        return info

    def _rows_of_stacks(self, trajectories: Trajectories, goals: _Goals) -> Index:
        """Return the rows of the states of stacks, [B, N]. That of a final state is the row before the state."""
        owners, places = trajectories.locate(goals.rows)
        ends = places if goals.final is None else places + goals.final
        window = ends[:, None] + np.arange(1 - self.frame_stack, 1)
        firsts = trajectories.firsts[owners]
        return trajectories.rows(np.minimum(np.maximum(window, firsts[:, None]), places[:, None]))

    def attach(self, storage: Storage) -> None:
        """Prepare the sampler of the steps."""
        self.sampler.attach(storage)

    @override
    def add(self, index: Tensor) -> None:
        self.sampler.add(index)

    @override
    def extend(self, index: Tensor) -> None:
        self.sampler.extend(index)

    @override
    def update_priority(self, index: Tensor, priority: Tensor | float, *, storage: Storage | None = None) -> None:
        self.sampler.update_priority(index, priority, storage=storage)

    @property
    @override
    def default_priority(self) -> float:
        return self.sampler.default_priority

    @override
    def mark_update(self, index: Any, *, storage: Storage | None = None) -> None:
        self.sampler.mark_update(index, storage=storage)

    @override
    def expect_priority(self, priority: Tensor) -> None:
        self.sampler.expect_priority(priority)

    @override
    def empty(self) -> None:
        self.sampler.empty()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the sampler of the steps, and of the generator."""
        state = self.sampler.state_dict()
        if self.sampler.generator is self._generator:
            state.pop("generator", None)
        return {**super().state_dict(), "sampler": state}

    @override
    def state_problems(self, state_dict: dict[str, Any]) -> list[str]:
        state = state_dict.get("sampler")
        reasons = super().state_problems(state_dict)
        if not isinstance(state, dict):
            return [*reasons, f"sampler is {state!r}, expected the state of {self.sampler!r}"]
        return reasons + self.sampler.state_problems(state)

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        if "generator" in state_dict:
            self.generator = self._generator
        state = state_dict["sampler"]
        if "generator" in state and self.sampler.generator is self._generator:
            self.sampler.generator = None  # the saved sampler had a separate generator, and restores that generator
        self.sampler.load_state_dict(state)

    @override
    def renumbered(self, state_dict: dict[str, Any], shift: int, slots: int) -> dict[str, Any]:
        if self.state_problems(state_dict):
            return state_dict  # unchanged: load_state_dict rejects this state
        return {**state_dict, "sampler": self.sampler.renumbered(state_dict["sampler"], shift, slots)}

    def __repr__(self) -> str:
        rule = self._value
        return (
            f"{type(self).__name__}(p_current={rule.p_current}, p_trajectory={rule.p_trajectory}, "
            f"p_random={rule.p_random}, geometric={rule.geometric}, sampler={self.sampler!r})"
        )


def _arrays_of(draws: GoalDraws) -> tuple[Floats, Mask, Mask, Index]:
    """Return random choices as arrays for a compiled loop. An array without elements stands for none."""
    is_random = draws.random is not None and draws.random_rows is not None
    return (
        np.ascontiguousarray(draws.ahead, np.float64),
        _NO_MASK if draws.current is None else np.ascontiguousarray(draws.current, np.bool_),
        np.ascontiguousarray(draws.random, np.bool_) if is_random else _NO_MASK,
        np.ascontiguousarray(draws.random_rows, np.int64) if is_random else _NO_ROWS,
    )


def _numbers_of(*draws: GoalDraws) -> Floats:
    """Return random choices as the numbers that `_RULES_OF_DRAWS` describes, [3 R, B] for R rules."""
    numbers = np.zeros((3 * len(draws), len(draws[0].ahead)))
    for first, (ahead, current, random, rows) in zip(range(0, len(numbers), 3), map(_arrays_of, draws), strict=True):
        numbers[first] = ahead
        if len(random):
            numbers[first + 1], numbers[first + 2] = random, rows
        if len(current):
            numbers[first + 1, current] = -1
    return numbers


def _rule_problems(name: str, probabilities: Any, geometric: float | None) -> list[str]:
    problems = []
    if len(probabilities) != 3 or not all(0 <= p <= 1 for p in probabilities) or not np.isclose(sum(probabilities), 1):
        problems.append(f"{name} are {tuple(probabilities)}, expected three probabilities with the sum 1")
    if geometric is not None and not 0 < geometric < 1:
        problems.append(
            f"the discount factor of the geometric distribution is {geometric}, expected a number in (0, 1)"
        )
    return problems

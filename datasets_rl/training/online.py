"""Updates between the steps of an environment, for programs that learn from a dataset and from new episodes."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from datasets_rl.training.learner import Learner


class OnlineEpisodes:
    """A `Source` of whole episodes: each step extends a buffer, and is followed by updates.

    A run is saved between episodes only, because the state of an environment cannot be saved.

    Args:
        learner: The agent.
        start_exploring: Called for each episode. Returns the function that maps observations [1, ...] to actions
            [1, ...] of the agent, in the units of the environment.
        env: The environment.
        buffer: A buffer that is extended by transitions [1], and sampled for updates.
        args: Arguments with `seed`, `device`, `batch_size`, `start`, the number of steps before the first update, and
            `updates`, the number of updates for each step.
        dtype: Dtype of the observations in the buffer.
    """

    def __init__(
        self,
        learner: Learner,
        start_exploring: Callable[[], Callable[[Tensor], Tensor]],
        env: Any,
        buffer: Any,
        args: argparse.Namespace,
        *,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self._learner, self._start_exploring, self._env, self._buffer = learner, start_exploring, env, buffer
        self._args, self._dtype = args, dtype
        self._episode = 0

    def updates(self, step: int, target: int) -> Iterator[tuple[int, list[Mapping[str, Tensor]]]]:
        """Yield after each episode."""
        while step < target:
            losses: list[Mapping[str, Tensor]] = []
            observation, ended = self._env.reset(seed=100_000 * self._args.seed + self._episode)[0], False
            explore = self._start_exploring()
            while not ended:
                transition = self._collect(observation, explore)
                self._buffer.extend(transition)
                observation, ended = transition["next", "observation"][0], bool(transition["next", "done"])
                step += 1
                if step > self._args.start:
                    losses.append(self._update(step))
            self._episode += 1
            yield step, losses

    def _update(self, step: int) -> Mapping[str, Tensor]:
        batches = self._buffer.sample(self._args.updates * self._args.batch_size).to(self._args.device)
        losses = [self._learner.update(batch, step) for batch in batches.split(self._args.batch_size)]
        return {name: loss.detach() for name, loss in losses[-1].items()}

    def _collect(self, observation: Any, explore: Callable[[Tensor], Tensor]) -> TensorDict:
        """Take a step of the environment, and return the transition, [1], with the keys and dtypes of the dataset."""
        state = torch.as_tensor(observation, dtype=self._dtype)[None]
        action = explore(state.to(self._args.device)).cpu()
        following, reward, terminated, truncated, _ = self._env.step(action[0].numpy())
        flags = {"terminated": [[bool(terminated)]], "done": [[bool(terminated or truncated)]]}
        after = {
            "observation": torch.as_tensor(following, dtype=self._dtype)[None],
            "reward": [[float(reward)]],
            **flags,
        }
        return TensorDict({"observation": state, "action": action, "next": TensorDict(after, [1])}, [1])

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the buffer, and the number of episodes."""
        return {"buffer": self._buffer.state_dict(), "episode": self._episode}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state."""
        self._buffer.load_state_dict(state["buffer"])
        self._episode = state["episode"]

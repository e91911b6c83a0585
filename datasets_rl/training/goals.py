"""Evaluation of policies that reach goals, on the tasks of an environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from datasets_rl.errors import Argument, InvalidArgumentError, Remedy
from datasets_rl.training.evaluation import Episodes, Policy, summarize

if TYPE_CHECKING:
    from datasets_rl.training.learner import Learner
    from datasets_rl.training.run import Run


def goal_policy(learner: Learner, act: Callable[[Tensor, Tensor], Tensor]) -> Policy:
    """Return the policy of an episode with the goal ``info["goal"]`` from the reset.

    Args:
        learner: Converts observations and goals to tensors.
        act: Returns actions in the units of the environment, [E, A], from observations and goals, [E, ...] each.
    """
    goals: dict[str, Tensor] = {}

    @torch.no_grad()
    def policy(observations: Any, _: Any, infos: Mapping[str, Any]) -> Any:
        if not goals:  # only the infos of a reset have a goal
            goals["goal"] = learner.as_batch(infos["goal"])
        return act(learner.as_batch(observations), goals["goal"]).cpu().numpy()

    return policy


def check_goals(run: Run) -> None:
    """Check, before training, that the environment has goals.

    Args:
        run: The run. Without environments, nothing is checked.

    Raises:
        InvalidArgumentError: If the environment has no goals.
    """
    if run.envs is not None and "goal" not in run.envs.reset(seed=0)[1]:
        raise InvalidArgumentError(
            f"the environment of {run.args.dataset} has no goals, expected info['goal'] from a reset, as in OGBench",
            hint=Remedy("train without evaluation: {}", Argument("no_eval", True)),
        )


def evaluate_tasks(run: Run, start_policy: Callable[[], Policy]) -> dict[str, float]:
    """Return the summary of an episode in each environment for each of ``--tasks`` tasks, and the success of each task.

    As in OGBench (Park et al., 2024, arXiv:2410.20092), the option "task_id" of a reset, from 1, selects start and goal.

    Args:
        run: The run, with goals, see `check_goals`. Without environments, the result is empty.
        start_policy: Returns the policy of new episodes.
    """
    if run.envs is None:
        return {}
    tasks = range(1, run.args.tasks + 1)
    parts = [run.play(start_policy(), number=task, options={"task_id": task}) for task in tasks]
    rates = {
        f"success_task{task}": 100 * float(part.success.mean())
        for task, part in zip(tasks, parts, strict=True)
        if part.success is not None
    }
    return {**summarize(run.args.dataset, Episodes.concatenate(parts)), **rates}

"""GCBC: goal-conditioned behavior cloning (Ghosh et al., 2021, arXiv:1912.06088, with the goals of OGBench).

actor = min  (pi(s, g) - a)^2         where g is a later state of the episode

`GoalSampler` draws the goals from the trajectories of the dataset, and rewards are not read.

    rlds train gcbc --dataset ogbench/pointmaze-medium-navigate-v0 --steps 100000
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from datasets_rl import GoalSampler, load, training
from datasets_rl.transforms import DoubleToFloat

NAME = "gcbc"
KEYS = ("observation", "action")


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    """Return the arguments of the program."""
    parser = training.Parser(NAME, __doc__, steps=3_000, eval_every=1_000, eval_episodes=4, batch_size=256)
    parser.add_integer(
        "--tasks", 5, high=1_000, text="tasks of the environment, where each has --eval-episodes episodes"
    )
    parser.add_hidden(512, 512, 512)
    parser.add_number("--lr", 3e-4, above=0, text="of Adam")
    return parser.parse(argv)


def open_dataset(args: argparse.Namespace, **selection: Any) -> Any:
    """Return steps with later states of the same episode as goals."""
    generator = torch.Generator().manual_seed(args.seed)
    sampler = GoalSampler(actor=(0, 1, 0), generator=generator)
    return load(args.dataset, sampler=sampler, transform=DoubleToFloat(), **selection).select(KEYS)


class Agent(training.Learner):
    """A policy with the units of the environment, of states and goals, [B, O] each."""

    def __init__(self, dataset: Any, space: Any, args: argparse.Namespace) -> None:
        super().__init__()
        self.args = args
        self.inputs = training.observation_normalizer(dataset)
        self.outputs = training.action_normalizer(NAME, dataset, space)
        states, actions = 2 * len(self.inputs.shift), len(self.outputs.shift)
        self.actor = nn.Sequential(training.make_mlp(states, *args.hidden, actions), nn.Tanh())
        self.to(args.device)
        self.optimizers = {"actor": torch.optim.Adam(self.actor.parameters(), args.lr, fused=True)}

    def lead(self, state: Tensor, goal: Tensor) -> Tensor:
        """Return normalized actions, [B, A]."""
        actions: Tensor = self.actor(torch.cat([self.inputs(state), self.inputs(goal)], -1))
        return actions

    def start_policy(self) -> training.Policy:
        """Return the policy, which leads from states to the goals of the environments."""
        return training.goal_policy(self, lambda state, goal: self.outputs.denormalize(self.lead(state, goal)))

    def update(self, batch: Any, step: int) -> dict[str, Tensor]:
        """Take a step of the actor and return the loss."""
        del step
        loss = functional.mse_loss(self.lead(batch["observation"], batch["actor_goal"]), self.outputs(batch["action"]))
        self.descend("actor", loss)
        return {"actor": loss}


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Train, evaluate, and print the result as a line of JSON."""
    args = parse_arguments(argv)
    with training.Run(NAME, args, open_dataset) as run:
        training.check_goals(run)
        agent = Agent(run.dataset, run.action_space, args)
        return run.train(agent, evaluate=lambda: training.evaluate_tasks(run, agent.start_policy))


if __name__ == "__main__":
    training.run_program(main)

"""GC-IQL: a policy that reaches given states (implicit Q-learning, arXiv:2110.06169, with the goals of OGBench).

critics = min  (Q(s, a, g) - r - gamma m V(s', g))^2         r = -1, m = 1, but where s is the goal g, r = 0, m = 0
value   = min  |tau - 1(u < 0)| u^2                          u = min Q'(s, a, g) - V(s, g), tau = the expectile
actor   = min  exp(beta (Q'(s, a, g) - V(s, g))) (pi(s, g) - a)^2

`GoalSampler` draws the goals from the trajectories of the dataset. Rewards are not read. With ``--beta 0`` all actions
have the same weight, which is goal-conditioned behavior cloning.

    python -m datasets_rl.recipes.results.point_maze --dataset local/point-maze
    rlds train gc_iql --dataset local/point-maze
"""

from __future__ import annotations

import argparse
import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from datasets_rl import GoalSampler, load, training
from datasets_rl.transforms import DoubleToFloat

NAME = "gc_iql"
KEYS = ("observation", "action", "next.observation")


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    """Return the arguments of the program."""
    parser = training.Parser(NAME, __doc__, steps=3_000, eval_every=1_000, eval_episodes=4, batch_size=128)
    parser.add_integer(
        "--tasks", 5, high=1_000, text="tasks of the environment, where each has --eval-episodes episodes"
    )
    parser.add_hidden(128, 128)
    parser.add_number("--lr", 1e-3, above=0, text="of Adam")
    parser.add_number("--discount", 0.98, above=0, high=0.9999)
    parser.add_number("--tau", 0.02, high=1, text="share of the networks in an update of the targets")
    parser.add_number("--expectile", 0.9, above=0, high=1, text="0.5 is the mean, 1 the best action of the data")
    parser.add_number("--beta", 3.0, text="weight of the advantages, where 0 is behavior cloning")
    return parser.parse(argv)


def open_dataset(args: argparse.Namespace, **selection: Any) -> Any:
    """Return transitions with goals of later steps of the same episode, and of others."""
    generator = torch.Generator().manual_seed(args.seed)
    sampler = GoalSampler(geometric=args.discount, actor_geometric=args.discount, generator=generator)
    data = load(args.dataset, sampler=sampler, transform=DoubleToFloat(), final_unknown="drop", **selection)
    return data.select(KEYS)


def normalized(width: int) -> list[nn.Module]:
    """Return the layers between two linear layers."""
    return [nn.LayerNorm(width), nn.GELU()]


class Agent(training.Learner):
    """A policy with the units of the environment, two critics and a value, of states and goals, [B, O] each."""

    def __init__(self, dataset: Any, space: Any, args: argparse.Namespace) -> None:
        super().__init__()
        self.args = args
        self.inputs = training.observation_normalizer(dataset)
        self.outputs = training.action_normalizer(NAME, dataset, space)
        states, actions = 2 * len(self.inputs.shift), len(self.outputs.shift)
        self.actor = nn.Sequential(training.make_mlp(states, *args.hidden, actions, between=normalized), nn.Tanh())
        self.value = training.make_mlp(states, *args.hidden, 1, between=normalized)
        self.critics = nn.ModuleList(
            training.make_mlp(states + actions, *args.hidden, 1, between=normalized) for _ in range(2)
        )
        self.target_critics = copy.deepcopy(self.critics)
        self.to(args.device)
        self.optimizers = {
            "actor": torch.optim.Adam(self.actor.parameters(), args.lr, fused=True),
            "value": torch.optim.Adam(self.value.parameters(), args.lr, fused=True),
            "critics": torch.optim.Adam(self.critics.parameters(), args.lr, fused=True),
        }

    def start_policy(self) -> training.Policy:
        """Return the policy, which leads from states to the goals of the environments."""
        return training.goal_policy(
            self, lambda state, goal: self.outputs.denormalize(self.actor(self.pair(state, goal)))
        )

    def pair(self, state: Tensor, goal: Tensor) -> Tensor:
        """Return normalized states and goals side by side, [B, 2 * O]."""
        return torch.cat([self.inputs(state), self.inputs(goal)], -1)

    @torch.no_grad()
    def worth(self, pair: Tensor, action: Tensor) -> Tensor:
        """Return the lower value of both target critics, [B, 1]."""
        return torch.minimum(*(critic(torch.cat([pair, action], -1)) for critic in self.target_critics))

    def update(self, batch: Any, step: int) -> dict[str, Tensor]:
        """Take a step of the value, of the critics and of the actor. Return the losses."""
        del step
        action = self.outputs(batch["action"])
        pair = self.pair(batch["observation"], batch["value_goal"])
        with torch.no_grad():
            next_value = self.value(self.pair(batch["next", "observation"], batch["value_goal"]))
            target = batch["reward"] + self.args.discount * batch["mask"] * next_value
        advantage = self.worth(pair, action) - self.value(pair)
        weight = torch.where(advantage < 0, 1 - self.args.expectile, self.args.expectile)
        losses = {"value": (weight * advantage.square()).mean()}
        self.descend("value", losses["value"])
        inputs = torch.cat([pair, action], -1)
        losses["critics"] = sum(functional.mse_loss(critic(inputs), target) for critic in self.critics)
        self.descend("critics", losses["critics"])
        self.follow(self.target_critics, self.critics, self.args.tau)
        pair = self.pair(batch["observation"], batch["actor_goal"])
        with torch.no_grad():
            advantage = self.worth(pair, action) - self.value(pair)
            weight = (self.args.beta * advantage).exp().clamp(max=100)
        losses["actor"] = (weight * (self.actor(pair) - action).square()).mean()
        self.descend("actor", losses["actor"])
        return losses


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Train, evaluate, and print the result as a line of JSON."""
    args = parse_arguments(argv)
    with training.Run(NAME, args, open_dataset) as run:
        training.check_goals(run)
        agent = Agent(run.dataset, run.action_space, args)
        return run.train(agent, evaluate=lambda: training.evaluate_tasks(run, agent.start_policy))


if __name__ == "__main__":
    training.run_program(main)

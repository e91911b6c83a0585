"""HIQL: hierarchical implicit Q-learning of goals (Park et al., 2023, arXiv:2307.11949, with the goals of OGBench).

value = min  |tau - 1(u < 0)| (r + gamma m V_i'(s', g) - V_i(s, g))^2      i = 1, 2, u = r + gamma m min_i V_i'(s', g) - mean_i V_i'(s, g)
high  = min  exp(beta_h (V(w, g) - V(s, g))) |pi_h(s, g) - phi(s, w)|^2    w = the state k steps ahead, on the way to g
low   = min  exp(beta_l (V(s', w) - V(s, w))) (pi_l(s, phi(s, w)) - a)^2   w = the state k steps ahead

The value sees goals through the representation phi, on a sphere, which only its own loss changes. In an episode, the high policy
names the representation of a subgoal, and the low policy leads to it.

    rlds train hiql --dataset ogbench/antmaze-large-navigate-v0 --steps 1000000
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

NAME = "hiql"
KEYS = ("observation", "action", "next.observation")


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    """Return the arguments of the program."""
    parser = training.Parser(NAME, __doc__, steps=3_000, eval_every=1_000, eval_episodes=4, batch_size=256)
    parser.add_integer(
        "--tasks", 5, high=1_000, text="tasks of the environment, where each has --eval-episodes episodes"
    )
    parser.add_hidden(512, 512, 512)
    parser.add_integer("--representation", 10, text="numbers by which goals are represented")
    parser.add_integer("--subgoal-steps", 25, text="steps to a subgoal")
    parser.add_number("--lr", 3e-4, above=0, text="of Adam")
    parser.add_number("--discount", 0.99, above=0, high=0.9999)
    parser.add_number("--tau", 0.005, high=1, text="share of the networks in an update of the targets")
    parser.add_number("--expectile", 0.7, above=0, high=1, text="0.5 is the mean, 1 the best next state of the data")
    parser.add_number("--low-beta", 3.0, text="weight of the advantages of the low policy, where 0 is behavior cloning")
    parser.add_number("--high-beta", 3.0, text="weight of the advantages of the high policy")
    return parser.parse(argv)


def open_dataset(args: argparse.Namespace, **selection: Any) -> Any:
    """Return transitions with goals of the value, and with goals and subgoals of the policies."""
    generator = torch.Generator().manual_seed(args.seed)
    sampler = GoalSampler(geometric=args.discount, subgoal_steps=args.subgoal_steps, generator=generator)
    data = load(args.dataset, sampler=sampler, transform=DoubleToFloat(), final_unknown="drop", **selection)
    return data.select(KEYS)


def normalized(width: int) -> list[nn.Module]:
    """Return the layers between two linear layers."""
    return [nn.LayerNorm(width), nn.GELU()]


class Value(nn.Module):
    """Two values of states and goals, [B, O] each, which see goals through a representation."""

    def __init__(self, size: int, args: argparse.Namespace) -> None:
        super().__init__()
        width = args.representation
        self.representation = training.make_mlp(2 * size, *args.hidden, width, between=normalized)
        self.heads = nn.ModuleList(
            training.make_mlp(size + width, *args.hidden, 1, between=normalized) for _ in range(2)
        )

    def represent(self, state: Tensor, goal: Tensor) -> Tensor:
        """Return the representation of a goal seen from a state, [B, D], of length sqrt(D)."""
        return on_sphere(self.representation(torch.cat([state, goal], -1)))

    def forward(self, state: Tensor, goal: Tensor) -> Tensor:
        """Return both values, [2, B, 1]."""
        inputs = torch.cat([state, self.represent(state, goal)], -1)
        return torch.stack([head(inputs) for head in self.heads])


def on_sphere(points: Tensor) -> Tensor:
    """Return points, [B, D], at the distance sqrt(D) from the origin."""
    return functional.normalize(points, dim=-1) * points.shape[-1] ** 0.5


class Agent(training.Learner):
    """A value, a high policy of subgoals and a low policy of actions with the units of the environment."""

    def __init__(self, dataset: Any, space: Any, args: argparse.Namespace) -> None:
        super().__init__()
        self.args = args
        self.inputs = training.observation_normalizer(dataset)
        self.outputs = training.action_normalizer(NAME, dataset, space)
        states, actions, width = len(self.inputs.shift), len(self.outputs.shift), args.representation
        self.value = Value(states, args)
        self.target_value = copy.deepcopy(self.value)
        self.high = training.make_mlp(2 * states, *args.hidden, width)
        self.low = nn.Sequential(training.make_mlp(states + width, *args.hidden, actions), nn.Tanh())
        self.to(args.device)
        self.optimizers = {
            name: torch.optim.Adam(network.parameters(), args.lr, fused=True)
            for name, network in (("value", self.value), ("high", self.high), ("low", self.low))
        }

    def start_policy(self) -> training.Policy:
        """Return the policy, which leads from states over subgoals to the goals of the environments."""

        def act(observation: Tensor, goal: Tensor) -> Tensor:
            state = self.inputs(observation)
            subgoal = on_sphere(self.high(torch.cat([state, self.inputs(goal)], -1)))
            return self.outputs.denormalize(self.low(torch.cat([state, subgoal], -1)))

        return training.goal_policy(self, act)

    def update(self, batch: Any, step: int) -> dict[str, Tensor]:
        """Take a step of the value and of both policies. Return the losses."""
        del step
        names = ("observation", "value_goal", "low_actor_goal", "high_actor_goal", "high_actor_target")
        state, goal, low_goal, high_goal, target = (self.inputs(batch[name]) for name in names)
        next_state = self.inputs(batch["next", "observation"])
        losses = {"value": self.value_loss(state, next_state, goal, batch["reward"], batch["mask"])}
        self.descend("value", losses["value"])
        self.follow(self.target_value, self.value, self.args.tau)
        with torch.no_grad():
            gain = (self.value(target, high_goal) - self.value(state, high_goal)).mean(0)
            weight = (self.args.high_beta * gain).exp().clamp(max=100)
            wanted = self.value.represent(state, target)
            low_gain = (self.value(next_state, low_goal) - self.value(state, low_goal)).mean(0)
            low_weight = (self.args.low_beta * low_gain).exp().clamp(max=100)
            subgoal = self.value.represent(state, low_goal)
        named = self.high(torch.cat([state, high_goal], -1))
        losses["high"] = (weight * (named - wanted).square()).mean()
        self.descend("high", losses["high"])
        action = self.low(torch.cat([state, subgoal], -1))
        losses["low"] = (low_weight * (action - self.outputs(batch["action"])).square()).mean()
        self.descend("low", losses["low"])
        return losses

    def value_loss(self, state: Tensor, next_state: Tensor, goal: Tensor, reward: Tensor, mask: Tensor) -> Tensor:
        """Return the expectile loss of both values, weighted by the sign of the advantage."""
        with torch.no_grad():
            ahead = self.target_value(next_state, goal)
            targets = reward + self.args.discount * mask * ahead  # [2, B, 1]
            advantage = targets.amin(0) - self.target_value(state, goal).mean(0)
            weight = torch.where(advantage < 0, 1 - self.args.expectile, self.args.expectile)
        return (weight * (targets - self.value(state, goal)).square()).sum(0).mean()


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Train, evaluate, and print the result as a line of JSON."""
    args = parse_arguments(argv)
    with training.Run(NAME, args, open_dataset) as run:
        training.check_goals(run)
        agent = Agent(run.dataset, run.action_space, args)
        return run.train(agent, evaluate=lambda: training.evaluate_tasks(run, agent.start_policy))


if __name__ == "__main__":
    training.run_program(main)

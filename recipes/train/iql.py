"""IQL: values of the best actions in the data, without a value of any other (Kostrikov et al. 2021, arXiv:2110.06169).

value   = min  |tau - 1(u < 0)| u^2                u = min Q'(s, a) - V(s), tau = the expectile
critics = min  (Q(s, a) - r - gamma V(s'))^2
actor   = max  exp(beta (min Q'(s, a) - V(s))) log pi(a | s)

    rlds train iql --dataset demo/pendulum
"""

from __future__ import annotations

import argparse
import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from datasets_rl import training

NAME = "iql"
KEYS = ("observation", "action", "next.observation", "next.reward", "next.terminated")


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    """Return the arguments of the program."""
    parser = training.Parser(
        NAME, __doc__, steps=50_000, eval_every=5_000, batch_size=256, paper="the paper takes 1,000,000"
    )
    parser.add_actor_critic()
    parser.add_number("--expectile", 0.7, above=0, high=1, text="0.5 is the mean, 1 the best action of the data")
    parser.add_number("--beta", 3.0, text="weight of the advantages against imitation")
    parser.add_reward_scaling()
    parser.add_integer(
        "--decay-steps",
        None,
        low=0,
        text="of the cosine of the actor's rate, by default --steps, or 0 for a constant rate",
    )
    args = parser.parse(argv)
    args.decay_steps = args.steps if args.decay_steps is None else args.decay_steps
    return args


def open_dataset(args: argparse.Namespace, **selection: Any) -> Any:
    """Return the transitions, drawn with replacement."""
    return training.load_transitions(args, KEYS, **selection)


class Agent(training.Learner):
    """A Gaussian policy with the units of the environment, two critics and a value, for states [B, O], actions [B, A]."""

    def __init__(self, dataset: Any, space: Any, args: argparse.Namespace) -> None:
        super().__init__()
        self.args = args
        self.inputs = training.observation_normalizer(dataset)
        self.outputs = training.action_normalizer(NAME, dataset, space)
        states, actions = len(self.inputs.shift), len(self.outputs.shift)
        self.reward = training.reward_scaling(dataset, args.reward_scale, args.reward_shift)
        self.choices = {
            "reward_scale": self.reward.scale,
            "reward_shift": self.reward.shift,
            "reward": self.reward.reason,
        }
        self.actor = nn.Sequential(training.make_mlp(states, *args.hidden, actions), nn.Tanh())
        self.log_std = nn.Parameter(torch.zeros(actions))
        self.value = training.make_mlp(states, *args.hidden, 1)
        self.critics = nn.ModuleList(training.make_mlp(states + actions, *args.hidden, 1) for _ in range(2))
        self.target_critics = copy.deepcopy(self.critics)
        self.to(args.device)
        self.optimizers = {
            "actor": torch.optim.Adam([*self.actor.parameters(), self.log_std], args.lr, fused=True),
            "value": torch.optim.Adam(self.value.parameters(), args.lr, fused=True),
            "critics": torch.optim.Adam(self.critics.parameters(), args.lr, fused=True),
        }

    @torch.no_grad()
    def act(self, observation: Tensor) -> Tensor:
        """Return the mean actions [B, A] for observations [B, O], in the units of the environment."""
        return self.outputs.denormalize(self.actor(self.inputs(observation)))

    def update(self, batch: Any, step: int) -> dict[str, Tensor]:
        """Take a step of the value, of the critics and of the actor. Return the losses."""
        state, action = self.inputs(batch["observation"]), self.outputs(batch["action"])
        pair = torch.cat([state, action], -1)
        with torch.no_grad():
            best = torch.minimum(*(critic(pair) for critic in self.target_critics))
            next_value = self.value(self.inputs(batch["next", "observation"]))
            alive = self.args.discount * ~batch["next", "terminated"]
            target = self.reward(batch["next", "reward"]) + alive * next_value
        advantage = best - self.value(state)
        weight = torch.where(advantage < 0, 1 - self.args.expectile, self.args.expectile)
        losses = {"value": (weight * advantage.square()).mean()}
        self.descend("value", losses["value"])
        losses["critics"] = torch.stack([functional.mse_loss(critic(pair), target) for critic in self.critics]).sum()
        self.descend("critics", losses["critics"])
        self.follow(self.target_critics, self.critics, self.args.tau)
        policy = torch.distributions.Normal(self.actor(state), self.log_std.clamp(-5, 2).exp())
        weight = (self.args.beta * advantage.detach()).exp().clamp(max=100)
        losses["actor"] = -(weight * policy.log_prob(action).sum(-1, keepdim=True)).mean()
        rate = self.args.lr * training.cosine_decay(step, self.args.decay_steps)
        self.descend("actor", losses["actor"], rate=rate)
        return losses


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Train, evaluate, and print the result as a line of JSON."""
    args = parse_arguments(argv)
    with training.Run(NAME, args, open_dataset) as run:
        return run.train(Agent(run.dataset, run.action_space, args))


if __name__ == "__main__":
    training.run_program(main)

"""CQL: critics that are low for actions outside of the data (Kumar et al. 2020, arXiv:2006.04779), with the actor of SAC.

critics = min  weight (log sum exp Q(s, .) - Q(s, a)) + (Q(s, a) - r - gamma min Q'(s', a'))^2        a' of the policy
actor   = min  alpha log pi(b | s) - min Q(s, b)                                                       b of the policy

The sum is over random actions and over actions of the policy in s and in s', weighted by their densities: CQL(H).

    rlds train cql --dataset demo/pendulum
"""

from __future__ import annotations

import argparse
import copy
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from datasets_rl import training

NAME = "cql"
KEYS = ("observation", "action", "next.observation", "next.reward", "next.terminated")


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    """Return the arguments of the program."""
    parser = training.Parser(
        NAME, __doc__, steps=50_000, eval_every=5_000, batch_size=256, paper="the paper takes 1,000,000"
    )
    parser.add_actor_critic()
    parser.add_number("--weight", 5.0, text="weight of the penalty of other actions")
    parser.add_integer("--samples", 10, high=10_000, text="actions of each kind in the penalty")
    parser.add_number("--actor-lr", 1e-4, above=0)
    parser.add_reward_scaling()
    return parser.parse(argv)


def open_dataset(args: argparse.Namespace, **selection: Any) -> Any:
    """Return the transitions, drawn with replacement."""
    return training.load_transitions(args, KEYS, **selection)


class Agent(training.Learner):
    """A squashed Gaussian policy with the units of the environment, and two critics, for states [B, O], actions [B, A]."""

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
        self.actor = training.make_mlp(states, *args.hidden, 2 * actions)
        self.critics = nn.ModuleList(training.make_mlp(states + actions, *args.hidden, 1) for _ in range(2))
        self.target_critics = copy.deepcopy(self.critics)
        self.log_alpha = nn.Parameter(torch.zeros(()))
        self.to(args.device)
        self.optimizers = {
            "actor": torch.optim.Adam(self.actor.parameters(), args.actor_lr, fused=True),
            "alpha": torch.optim.Adam([self.log_alpha], args.actor_lr, fused=True),
            "critics": torch.optim.Adam(self.critics.parameters(), args.lr, fused=True),
        }

    @torch.no_grad()
    def act(self, observation: Tensor) -> Tensor:
        """Return the mean actions [B, A] for observations [B, O], in the units of the environment."""
        return self.outputs.denormalize(self.actor(self.inputs(observation)).chunk(2, -1)[0].tanh())

    def draw(self, state: Tensor, count: int = 1) -> tuple[Tensor, Tensor]:
        """Draw actions [count, B, A] in [-1, 1] from the policy, and return the logarithms of the densities too."""
        mean, log_std = self.actor(state).expand(count, -1, -1).chunk(2, -1)
        policy = torch.distributions.Normal(mean, log_std.clamp(-5, 2).exp())
        drawn = policy.mean + policy.stddev * torch.randn(mean.shape, device=state.device)
        squash = 2 * (math.log(2) - drawn - functional.softplus(-2 * drawn))  # log(1 - tanh^2), without cancellation
        return drawn.tanh(), (policy.log_prob(drawn) - squash).sum(-1, keepdim=True)

    def update(self, batch: Any, step: int) -> dict[str, Tensor]:
        """Take a step of the actor, its entropy weight and the critics, and return the losses."""
        del step
        state, next_state = self.inputs(batch["observation"]), self.inputs(batch["next", "observation"])
        (chosen, log_density), alpha = self.draw(state), self.log_alpha.exp().detach()
        value = torch.minimum(*(critic(torch.cat([state[None], chosen], -1)) for critic in self.critics))
        losses = {"actor": (alpha * log_density - value).mean()}
        self.descend("actor", losses["actor"])
        self.descend("alpha", -(self.log_alpha * (log_density.detach().mean() - chosen.shape[-1])))
        with torch.no_grad():
            here, there = self.draw(state, self.args.samples), self.draw(next_state, self.args.samples)
            random = 2 * torch.rand(here[0].shape, device=state.device) - 1
            uniform = torch.full_like(here[1], -math.log(2) * random.shape[-1])
            actions, densities = torch.cat([random, here[0], there[0]]), torch.cat([uniform, here[1], there[1]])
            pair = torch.cat([next_state, there[0][0]], -1)
            next_value = torch.minimum(*(critic(pair) for critic in self.target_critics))
            alive = self.args.discount * ~batch["next", "terminated"]
            target = self.reward(batch["next", "reward"]) + alive * next_value
        pair, losses["critics"] = torch.cat([state, self.outputs(batch["action"])], -1), torch.zeros(())
        for critic in self.critics:
            value = critic(pair)
            other = critic(torch.cat([state.expand(len(actions), -1, -1), actions], -1)) - densities
            penalty = torch.logsumexp(other, 0).mean() - value.mean()
            losses["critics"] = losses["critics"] + self.args.weight * penalty + functional.mse_loss(value, target)
        self.descend("critics", losses["critics"])
        self.follow(self.target_critics, self.critics, self.args.tau)
        return losses


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Train, evaluate, and print the result as a line of JSON."""
    args = parse_arguments(argv)
    with training.Run(NAME, args, open_dataset) as run:
        return run.train(Agent(run.dataset, run.action_space, args))


if __name__ == "__main__":
    training.run_program(main)
